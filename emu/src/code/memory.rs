//! Loads, stores, atomics, fences.

use super::decode::Decoder;
use super::instruction::DEFAULT_SCOPE;
use super::modifiers::Modifiers;
use super::{Access, Atomic, AtomicOp, Fence, Number, Op, Order, Scope, Slot, StoreAsync};
use crate::ptx::ast::{Operand, Space};

/// The elements of an operand that may be a vector.
fn elements(operand: &Operand) -> &[Operand] {
    match operand {
        Operand::Vector(parts) => parts,
        other => std::slice::from_ref(other),
    }
}

/// A register of 128 bits is two, one behind the other.
pub(super) fn halves(decoder: &Decoder<'_>, operand: &Operand) -> Result<[Slot; 2], String> {
    match decoder.register(operand)? {
        (slot, 128) => Ok([slot, slot + 1]),
        _ => Err("it takes registers of 128 bits".into()),
    }
}

/// `st.async` and `red.async`, behind that name.
fn asynchronous(
    decoder: &mut Decoder<'_>,
    mut parts: Modifiers<'_>,
    operands: &[Operand],
    reduction: bool,
) -> Result<Op, String> {
    parts.take("weak");
    parts.take("relaxed");
    parts.take("cluster");
    let space = parts.space();
    if !(parts.take("mbarrier::complete_tx::bytes")
        && matches!(space, Space::Generic | Space::SharedCluster))
    {
        return Err("only forms to shared::cluster that an mbarrier counts are emulated".into());
    }
    let op = if reduction {
        Some(operation(&mut parts).ok_or("no operation")?)
    } else {
        None
    };
    let count = parts.vector();
    let (number, bytes, _) = parts.number()?;
    parts.done()?;
    let known = match op {
        None => bytes >= 4,
        Some(op) => {
            check(op, number, bytes).is_ok() && !matches!(op, AtomicOp::Exch | AtomicOp::Cas)
        }
    };
    if !known || bytes > 8 || number == Number::F16 || number == Number::Bf16 {
        return Err("there is no such type".into());
    }
    let [dst, values, bar] = operands else {
        return Err(format!("it takes three operands, not {}", operands.len()));
    };
    let values = elements(values)
        .iter()
        .map(|value| decoder.source(value, 8 * bytes))
        .collect::<Result<Vec<_>, _>>()?;
    if values.len() != count {
        return Err(format!(
            "a vector of {count} needs {count} sources, not {}",
            values.len()
        ));
    }
    Ok(Op::StoreAsync(Box::new(StoreAsync {
        dst: decoder.address(dst, Space::SharedCluster)?,
        bytes,
        values,
        bar: decoder.address(bar, Space::SharedCluster)?,
        reduce: op.map(|op| (op, number, bytes)),
    })))
}

pub(super) fn load(
    decoder: &mut Decoder<'_>,
    mut parts: Modifiers<'_>,
    operands: &[Operand],
) -> Result<Op, String> {
    let policy = parts.take_cache_policy();
    parts.drop_hints();
    let order = parts.order(DEFAULT_SCOPE);
    let space = parts.space();
    let count = parts.vector();
    let (bytes, signed) = parts.element()?;
    parts.take("unified");
    parts.done()?;
    let (dst, address) = match operands {
        [dst, address] => (dst, address),
        [dst, address, _] if policy => (dst, address),
        _ => return Err(format!("it takes two operands, not {}", operands.len())),
    };
    let dst = elements(dst);
    if dst.len() != count {
        return Err(format!(
            "a vector of {count} needs {count} destinations, not {}",
            dst.len()
        ));
    }
    if bytes == 16 {
        let mut values = Vec::new();
        for operand in dst {
            values.extend(halves(decoder, operand)?.map(Some));
        }
        return Ok(Op::Load(Box::new(Access {
            address: decoder.address(address, space)?,
            bytes: 8,
            signed: false,
            values,
            bits: 64,
            order,
        })));
    }
    let mut bits = 8 * bytes;
    for operand in dst {
        if *operand != Operand::Sink {
            bits = bits.max(decoder.register(operand)?.1);
        }
    }
    let values = dst
        .iter()
        .map(|operand| decoder.optional(operand))
        .collect::<Result<_, _>>()?;
    let address = decoder.address(address, space)?;
    Ok(Op::Load(Box::new(Access {
        address,
        bytes,
        signed,
        values,
        bits,
        order,
    })))
}

pub(super) fn store(
    decoder: &mut Decoder<'_>,
    mut parts: Modifiers<'_>,
    operands: &[Operand],
) -> Result<Op, String> {
    if parts.take("async") {
        return asynchronous(decoder, parts, operands, false);
    }
    let policy = parts.take_cache_policy();
    parts.drop_hints();
    let order = parts.order(DEFAULT_SCOPE);
    let space = parts.space();
    let count = parts.vector();
    let (bytes, _) = parts.element()?;
    parts.done()?;
    let (address, src) = match operands {
        [address, src] => (address, src),
        [address, src, _] if policy => (address, src),
        _ => return Err(format!("it takes two operands, not {}", operands.len())),
    };
    let src = elements(src);
    if src.len() != count {
        return Err(format!(
            "a vector of {count} needs {count} sources, not {}",
            src.len()
        ));
    }
    let mut values = Vec::new();
    for operand in src {
        match bytes {
            16 => values.extend(halves(decoder, operand)?.map(Some)),
            _ => values.push(Some(decoder.source(operand, 8 * bytes)?)),
        }
    }
    let bytes = bytes.min(8);
    let address = decoder.address(address, space)?;
    Ok(Op::Store(Box::new(Access {
        address,
        bytes,
        signed: false,
        values,
        bits: 8 * bytes,
        order,
    })))
}

/// The operation of an atomic, by its modifier.
pub(super) fn operation(parts: &mut Modifiers<'_>) -> Option<AtomicOp> {
    parts.find(|part| {
        Some(match part {
            "and" => AtomicOp::And,
            "or" => AtomicOp::Or,
            "xor" => AtomicOp::Xor,
            "exch" => AtomicOp::Exch,
            "cas" => AtomicOp::Cas,
            "add" => AtomicOp::Add,
            "inc" => AtomicOp::Inc,
            "dec" => AtomicOp::Dec,
            "min" => AtomicOp::Min,
            "max" => AtomicOp::Max,
            _ => return None,
        })
    })
}

pub(super) fn atomic(
    decoder: &mut Decoder<'_>,
    mut parts: Modifiers<'_>,
    operands: &[Operand],
    reduction: bool,
) -> Result<Op, String> {
    if reduction && parts.take("async") {
        return asynchronous(decoder, parts, operands, true);
    }
    let policy = parts.take_cache_policy();
    parts.drop_hints();
    // Without an order an atomic is relaxed.
    let mut order = parts.order(DEFAULT_SCOPE);
    order.strong = true;
    let space = parts.space();
    let op = operation(&mut parts).ok_or("no operation")?;
    let count = parts.vector();
    let (number, bytes, lanes) = parts.number()?;
    parts.take("noftz");
    parts.done()?;
    check(op, number, bytes)?;
    let mut operands = operands.to_vec();
    if policy {
        operands.pop();
    }
    let dst: Vec<Operand> = operands
        .drain(..usize::from(!reduction).min(operands.len()))
        .collect();
    let wanted = if op == AtomicOp::Cas { 3 } else { 2 };
    if operands.len() != wanted {
        return Err(format!(
            "it takes {wanted} operands, its destination not among them, not {}",
            operands.len()
        ));
    }
    if bytes == 16 {
        return wide_atomic(decoder, (op, order, space), &dst, &operands);
    }
    let sources = |decoder: &mut Decoder<'_>, operand: &Operand| -> Result<Vec<Slot>, String> {
        elements(operand)
            .iter()
            .map(|operand| decoder.source(operand, 8 * bytes))
            .collect()
    };
    let a = sources(decoder, &operands[1])?;
    let b = operands
        .get(2)
        .map(|operand| decoder.source(operand, 8 * bytes))
        .transpose()?;
    if a.len() != count {
        return Err(format!(
            "a vector of {count} needs {count} sources, not {}",
            a.len()
        ));
    }
    let dst = dst
        .iter()
        .flat_map(elements)
        .map(|operand| decoder.optional(operand))
        .collect::<Result<Vec<_>, _>>()?;
    let address = decoder.address(&operands[0], space)?;
    Ok(Op::Atomic(Box::new(Atomic {
        op,
        number,
        bytes,
        lanes,
        address,
        dst,
        a,
        b,
        halves: false,
        order,
    })))
}

/// An atomic of 128 bits.
fn wide_atomic(
    decoder: &mut Decoder<'_>,
    (op, order, space): (AtomicOp, Order, Space),
    dst: &[Operand],
    operands: &[Operand],
) -> Result<Op, String> {
    let dst = match dst {
        [Operand::Sink] => vec![None, None],
        [dst] => halves(decoder, dst)?.map(Some).to_vec(),
        _ => return Err("it takes a destination".into()),
    };
    let b = operands.get(2).map(|operand| halves(decoder, operand));
    Ok(Op::Atomic(Box::new(Atomic {
        op,
        number: Number::Unsigned,
        bytes: 8,
        lanes: 1,
        address: decoder.address(&operands[0], space)?,
        dst,
        a: halves(decoder, &operands[1])?.to_vec(),
        b: b.transpose()?.map(|[low, _]| low),
        halves: true,
        order,
    })))
}

/// Whether the operation exists for the format.
fn check(op: AtomicOp, number: Number, bytes: u32) -> Result<(), String> {
    use AtomicOp::{Add, And, Cas, Dec, Exch, Inc, Max, Min, Or, Xor};
    let fits = match number {
        Number::Unsigned => match op {
            Inc | Dec => bytes == 4,
            Cas => true,
            Exch => bytes >= 4,
            And | Or | Xor | Add | Min | Max => bytes == 4 || bytes == 8,
        },
        Number::Signed => matches!(op, Add | Min | Max),
        Number::F16 | Number::Bf16 => matches!(op, Add | Min | Max),
        Number::F32 | Number::F64 => matches!(op, Add),
    };
    match fits {
        true => Ok(()),
        false => Err(format!("there is no {op:?} of {number:?} in {bytes} bytes")),
    }
}

pub(super) fn fence(
    decoder: &mut Decoder<'_>,
    mut parts: Modifiers<'_>,
    operands: &[Operand],
) -> Result<Op, String> {
    if parts.take("mbarrier_init") {
        parts.take("release");
        parts.scope();
        parts.done()?;
        return Ok(Op::Fence(Fence::MbarrierInit));
    }
    if parts.take("proxy") {
        if parts.take("async") {
            // Without a space: every one. `async::generic` forms name the direction as well.
            let space = parts.space();
            parts.done()?;
            let all = space == Space::Generic;
            let shared = all || matches!(space, Space::Shared | Space::SharedCluster);
            return Ok(Op::Fence(Fence::ProxyAsync {
                shared,
                global: all || space == Space::Global,
            }));
        }
        // One-way forms between remote arrivals and the asynchronous proxy; taken as both ways.
        if parts.take("async::generic") {
            parts.order(Scope::Cluster);
            parts.find(|part| part.starts_with("sync_restrict").then_some(()));
            parts.done()?;
            return Ok(Op::Fence(Fence::ProxyAsync {
                shared: true,
                global: true,
            }));
        }
        let map = parts.find(|part| part.starts_with("tensormap").then_some(()));
        if map.is_some() {
            return super::maps::fence(decoder, parts, operands);
        }
        if parts.take("alias") {
            parts.done()?;
            return Ok(Op::Nothing);
        }
        return Err("unknown proxy".into());
    }
    if !operands.is_empty() {
        return Err("it takes no operands".into());
    }
    // `membar.gl` and `membar.cta` are the old names.
    let old = parts.find(|part| match part {
        "gl" => Some(Scope::Gpu),
        _ => None,
    });
    let (acquire, release) = match (parts.take("acquire"), parts.take("release")) {
        (false, false) => (true, true),
        one => one,
    };
    parts.take("acq_rel");
    parts.take("sc");
    parts.find(|part| part.starts_with("sync_restrict").then_some(()));
    let scope = old.or_else(|| parts.scope()).ok_or("no scope")?;
    parts.done()?;
    Ok(Op::Fence(Fence::Memory {
        scope,
        acquire,
        release,
    }))
}
