//! Tensor maps in device memory: fences, replaced fields, copies.

use super::decode::Decoder;
use super::modifiers::Modifiers;
use super::{Fence, Op};
use crate::ptx::ast::{Operand, Space};
use crate::tensor::map::Field;
use crate::tensor::tma::BYTES;

/// `fence.proxy.tensormap::generic`, behind its proxies. It releases, or acquires one map; both
/// order other accesses as well, as the ISA's example of a map's hand-over has no other fence.
pub(super) fn fence(
    decoder: &mut Decoder<'_>,
    mut parts: Modifiers<'_>,
    operands: &[Operand],
) -> Result<Op, String> {
    let acquire = parts.take("acquire");
    let release = parts.take("release");
    let scope = parts.scope().ok_or("no scope")?;
    parts.done()?;
    match (acquire, release, operands) {
        (false, true, []) => Ok(Op::Fence(Fence::Memory {
            scope,
            acquire: false,
            release: true,
        })),
        (true, false, [map, size]) => {
            whole(size)?;
            Ok(Op::MapFence {
                map: decoder.address(map, Space::Generic)?,
                scope,
            })
        }
        _ => Err("it releases, or acquires `[map], 128`".into()),
    }
}

fn whole(size: &Operand) -> Result<(), String> {
    match size {
        Operand::Int(size) if *size == BYTES as u64 => Ok(()),
        _ => Err(format!("the size is {BYTES}")),
    }
}

/// `tensormap.replace` and `tensormap.cp_fenceproxy`.
pub(super) fn tensormap(
    decoder: &mut Decoder<'_>,
    mut parts: Modifiers<'_>,
    operands: &[Operand],
) -> Result<Op, String> {
    if parts.take("cp_fenceproxy") {
        let spaces = parts.take("global") && parts.take("shared::cta");
        let release = parts.take("tensormap::generic") && parts.take("release");
        let scope = parts.scope().ok_or("no scope")?;
        let together = parts.take("sync") && parts.take("aligned");
        parts.done()?;
        let [dst, src, size] = operands else {
            return Err("it takes three operands".into());
        };
        whole(size)?;
        if !(spaces && release && together) {
            return Err(
                "it is `.global.shared::cta.tensormap::generic.release.scope.sync.aligned`".into(),
            );
        }
        return Ok(Op::MapCopy {
            dst: decoder.address(dst, Space::Global)?,
            src: decoder.address(src, Space::Shared)?,
            scope,
        });
    }
    if !(parts.take("replace") && parts.take("tile")) {
        return Err("unknown instruction".into());
    }
    let field = parts
        .find(|part| {
            let found = Field::ALL.iter().find(|(name, _)| *name == part);
            found.map(|(_, field)| *field)
        })
        .ok_or("no field")?;
    let space = parts.space();
    let (bytes, _) = if parts.take("b1024") {
        parts.element()?
    } else {
        return Err("no `.b1024`".into());
    };
    parts.done()?;
    if bytes != field.bytes() {
        return Err(format!("the field has {} bytes", field.bytes()));
    }
    let (map, ordinal, value) = match (operands, field.has_ordinal()) {
        ([map, Operand::Int(ordinal), value], true) => (map, *ordinal, value),
        ([map, value], false) => (map, 0, value),
        _ => {
            return Err(
                "it takes a map, the number of a dimension for some fields, and a value".into(),
            );
        }
    };
    Ok(Op::MapReplace {
        map: decoder.address(map, space)?,
        field,
        ordinal: u32::try_from(ordinal).unwrap_or(u32::MAX),
        value: decoder.source(value, 0)?,
    })
}
