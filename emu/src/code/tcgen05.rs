//! `tcgen05`: tensor memory and its products (PTX ISA 9.0, 9.7.16).

use super::decode::Decoder;
use super::{Address, Instruction, Op, Slot, TensorKind};
use crate::ptx::ast::{Operand, Space};
use crate::tensor::tcgen05::copy::Copy;
use crate::tensor::tcgen05::fragment::Fragment;
use crate::tensor::tcgen05::instruction::Kind;
use crate::tensor::tcgen05::product::Mma;
use crate::tensor::tcgen05::reduction::Reduction;

/// What is done with tensor memory.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Tcgen05 {
    Alloc {
        group: u32,
        /// Where in shared memory the address goes.
        dst: Address,
        columns: Slot,
    },
    Dealloc {
        group: u32,
        at: Slot,
        columns: Slot,
    },
    Relinquish {
        group: u32,
    },
    Load {
        fragment: Fragment,
        dst: Vec<Slot>,
        address: Address,
        /// A reduction, and where its result goes.
        reduction: Option<(Reduction, Slot)>,
    },
    Store {
        fragment: Fragment,
        src: Vec<Slot>,
        address: Address,
    },
    /// `wait::ld`, or `wait::st`.
    Wait {
        load: bool,
    },
    Mma(MmaCall),
    Copy {
        op: Copy,
        group: u32,
        dst: Address,
        descriptor: Slot,
    },
    Commit {
        group: u32,
        bar: Address,
        mask: Option<Slot>,
    },
    /// `fence::before_thread_sync`, or `fence::after_thread_sync`.
    Fence {
        before: bool,
    },
}

/// A `tcgen05.mma` with its operands.
#[derive(Debug)]
pub struct MmaCall {
    /// Kind and group.
    pub op: Mma,
    /// The accumulators.
    pub d: Address,
    /// A in tensor memory, or else its descriptor.
    pub a: Result<Address, Slot>,
    /// B's descriptor.
    pub b: Slot,
    /// The instruction descriptor.
    pub instruction: Slot,
    /// Masks of the lanes that are not written.
    pub disabled: Vec<Slot>,
    /// Scale factors of A and B.
    pub scales: Option<(Address, Address)>,
    /// The predicate that keeps the old sums, and whether it is negated.
    pub input_d: (Slot, bool),
    /// The old sums are divided by 2 to this.
    pub scale_d: u32,
}

impl Tcgen05 {
    /// The `.cta_group`, where there is one.
    #[must_use]
    pub fn group(&self) -> Option<u32> {
        match self {
            Tcgen05::Alloc { group, .. }
            | Tcgen05::Dealloc { group, .. }
            | Tcgen05::Relinquish { group }
            | Tcgen05::Copy { group, .. }
            | Tcgen05::Commit { group, .. } => Some(*group),
            Tcgen05::Mma(call) => Some(call.op.group),
            _ => None,
        }
    }

    /// Whether all threads of the warp execute it together.
    #[must_use]
    pub fn is_collective(&self) -> bool {
        match self {
            Tcgen05::Alloc { .. }
            | Tcgen05::Dealloc { .. }
            | Tcgen05::Relinquish { .. }
            | Tcgen05::Load { .. }
            | Tcgen05::Store { .. }
            | Tcgen05::Wait { .. } => true,
            Tcgen05::Mma(_)
            | Tcgen05::Copy { .. }
            | Tcgen05::Commit { .. }
            | Tcgen05::Fence { .. } => false,
        }
    }

    /// Calls (slot, whether it is written) for each register.
    pub(crate) fn each_slot(&self, visit: &mut dyn FnMut(Slot, bool)) {
        match self {
            Tcgen05::Alloc { dst, columns, .. } => {
                visit(dst.base, false);
                visit(*columns, false);
            }
            Tcgen05::Dealloc { at, columns, .. } => {
                visit(*at, false);
                visit(*columns, false);
            }
            Tcgen05::Load {
                dst,
                address,
                reduction,
                ..
            } => {
                visit(address.base, false);
                dst.iter().for_each(|&slot| visit(slot, true));
                reduction.iter().for_each(|&(_, slot)| visit(slot, true));
            }
            Tcgen05::Store { src, address, .. } => {
                visit(address.base, false);
                src.iter().for_each(|&slot| visit(slot, false));
            }
            Tcgen05::Mma(call) => {
                visit(call.d.base, false);
                visit(call.a.map_or_else(|slot| slot, |at| at.base), false);
                visit(call.b, false);
                visit(call.instruction, false);
                call.disabled.iter().for_each(|&slot| visit(slot, false));
                for at in call.scales.iter().flat_map(|(a, b)| [a, b]) {
                    visit(at.base, false);
                }
                visit(call.input_d.0, false);
            }
            Tcgen05::Copy {
                dst, descriptor, ..
            } => {
                visit(dst.base, false);
                visit(*descriptor, false);
            }
            Tcgen05::Commit { bar, mask, .. } => {
                visit(bar.base, false);
                mask.iter().for_each(|&slot| visit(slot, false));
            }
            Tcgen05::Relinquish { .. } | Tcgen05::Wait { .. } | Tcgen05::Fence { .. } => {}
        }
    }
}

/// Whether a kernel works on pairs of blocks; all of its instructions must name the same group. An
/// error has its line.
pub(super) fn pairs(code: &[Instruction]) -> Result<bool, (u32, String)> {
    let mut first: Option<(u32, u32)> = None;
    for instruction in code {
        let Op::Tcgen05(op) = &instruction.op else {
            continue;
        };
        match (op.group(), first) {
            (Some(group), None) => first = Some((group, instruction.line)),
            (Some(group), Some((other, line))) if group != other => {
                let reason = format!(
                    "`tcgen05` with .cta_group::{group}, and line {line} has .cta_group::{other}: \
                     all of a kernel have the same"
                );
                return Err((instruction.line, reason));
            }
            _ => {}
        }
    }
    Ok(first.is_some_and(|(group, _)| group == 2))
}

/// Of an instruction that a target does not have, the reason.
pub(crate) fn missing(target: &str, op: &Op) -> Option<String> {
    let number = target.strip_prefix("sm_").unwrap_or("");
    let family = number.strip_suffix(['a', 'f']).unwrap_or("");
    let op = match op {
        Op::Tcgen05(op) => op,
        other => {
            let what = match other {
                Op::TryCancel { .. } | Op::QueryCancel { .. } => "`clusterlaunchcontrol`",
                Op::Tensor(copy) if copy.four => "a tensor copy of four rows",
                Op::Tensor(copy) if matches!(copy.kind, TensorKind::Load { pair: true, .. }) => {
                    "a tensor copy with .cta_group::2"
                }
                _ => return None,
            };
            let version = number.trim_end_matches(['a', 'f']).parse::<u32>();
            return version
                .is_ok_and(|version| version < 100)
                .then(|| format!("{what} is for sm_100 and later, not for {target}"));
        }
    };
    if !matches!(family, "100" | "101" | "103" | "110") {
        return Some(format!(
            "`tcgen05` is for sm_100a, sm_103a and their families, not for {target}"
        ));
    }
    let reduces = matches!(
        &**op,
        Tcgen05::Load {
            reduction: Some(_),
            ..
        }
    );
    if reduces && family == "100" {
        return Some(format!(
            "`tcgen05.ld.red` is for sm_103a and sm_110a, not for {target}"
        ));
    }
    let integers = matches!(&**op, Tcgen05::Mma(call) if call.op.kind == Kind::I8);
    (integers && !matches!(number, "100a" | "101a" | "110a"))
        .then(|| format!("`tcgen05.mma` of kind::i8 is for sm_100a and sm_110a, not for {target}"))
}

/// Decodes one instruction.
pub(super) fn decode(
    decoder: &mut Decoder<'_>,
    opcode: &str,
    operands: &[Operand],
) -> Result<Op, String> {
    let parts: Vec<&str> = opcode.split('.').skip(1).collect();
    let op = match parts.as_slice() {
        ["alloc" | "dealloc" | "relinquish_alloc_permit", ..] => {
            allocation(decoder, &parts, operands)?
        }
        ["ld", "red", "sync", "aligned", "32x32b", number, rest @ ..] if *number != "x1" => {
            let [dst, value, address] = operands else {
                return Err("it takes registers, a register for the result and an address".into());
            };
            let fragment = fragment(&["32x32b", number], None, true)?;
            Tcgen05::Load {
                fragment,
                dst: registers(decoder, dst, fragment, true)?,
                address: decoder.address(address, Space::Generic)?,
                reduction: Some((Reduction::decode(rest)?, decoder.register(value)?.0)),
            }
        }
        ["ld", "red", ..] => {
            return Err("of loads with a reduction, .32x32b from .x2 on are implemented".into());
        }
        ["ld", "sync", "aligned", shape @ .., "b32"] => {
            let (dst, address, split) = match operands {
                [dst, address] => (dst, address, None),
                [dst, address, split] => (dst, address, Some(split)),
                _ => return Err("it takes registers, an address and perhaps a distance".into()),
            };
            let fragment = fragment(shape, split, true)?;
            Tcgen05::Load {
                fragment,
                dst: registers(decoder, dst, fragment, true)?,
                address: decoder.address(address, Space::Generic)?,
                reduction: None,
            }
        }
        ["st", "sync", "aligned", shape @ .., "b32"] => {
            let (src, address, split) = match operands {
                [address, src] => (src, address, None),
                [address, split, src] => (src, address, Some(split)),
                _ => return Err("it takes an address, perhaps a distance, and registers".into()),
            };
            let fragment = fragment(shape, split, false)?;
            Tcgen05::Store {
                fragment,
                src: registers(decoder, src, fragment, false)?,
                address: decoder.address(address, Space::Generic)?,
            }
        }
        ["wait::ld", "sync", "aligned"] => none(operands, Tcgen05::Wait { load: true })?,
        ["wait::st", "sync", "aligned"] => none(operands, Tcgen05::Wait { load: false })?,
        ["fence::before_thread_sync"] => none(operands, Tcgen05::Fence { before: true })?,
        ["fence::after_thread_sync"] => none(operands, Tcgen05::Fence { before: false })?,
        ["mma", rest @ ..] => product(decoder, rest, operands)?,
        ["cp", group_part, rest @ ..] => {
            let [dst, descriptor] = operands else {
                return Err("it takes an address and a descriptor".into());
            };
            Tcgen05::Copy {
                op: Copy::decode(rest)?,
                group: group(group_part)?,
                dst: decoder.address(dst, Space::Generic)?,
                descriptor: decoder.source(descriptor, 0)?,
            }
        }
        ["commit", rest @ ..] => commit(decoder, rest, operands)?,
        _ => return Err("this tcgen05 instruction is not implemented".into()),
    };
    Ok(Op::Tcgen05(Box::new(op)))
}

fn none(operands: &[Operand], op: Tcgen05) -> Result<Tcgen05, String> {
    match operands {
        [] => Ok(op),
        _ => Err("it takes no operands".into()),
    }
}

fn group(part: &str) -> Result<u32, String> {
    match part {
        "cta_group::1" => Ok(1),
        "cta_group::2" => Ok(2),
        part => Err(format!("`.{part}` is no .cta_group::1 or .cta_group::2")),
    }
}

fn allocation(
    decoder: &mut Decoder<'_>,
    parts: &[&str],
    operands: &[Operand],
) -> Result<Tcgen05, String> {
    match (parts, operands) {
        (["alloc", which, "sync", "aligned", space @ .., "b32"], [dst, columns]) => {
            let space = match space {
                [] => Space::Generic,
                ["shared::cta"] => Space::Shared,
                _ => return Err("the address goes to .shared::cta".into()),
            };
            Ok(Tcgen05::Alloc {
                group: group(which)?,
                dst: decoder.address(dst, space)?,
                columns: decoder.source(columns, 0)?,
            })
        }
        (["dealloc", which, "sync", "aligned", "b32"], [at, columns]) => Ok(Tcgen05::Dealloc {
            group: group(which)?,
            at: decoder.source(at, 0)?,
            columns: decoder.source(columns, 0)?,
        }),
        (["relinquish_alloc_permit", which, "sync", "aligned"], []) => Ok(Tcgen05::Relinquish {
            group: group(which)?,
        }),
        _ => Err("unknown parts, or operands that do not fit".into()),
    }
}

fn fragment(shape: &[&str], split: Option<&Operand>, load: bool) -> Result<Fragment, String> {
    let fragment = Fragment::decode(shape, load)?;
    match (split, fragment.takes_split()) {
        (None, false) => Ok(fragment),
        (Some(Operand::Int(columns @ 0..=0xffff)), true) => {
            Ok(fragment.with_split(*columns as u32))
        }
        (Some(_), true) => Err("the distance of the halves is an immediate".into()),
        (None, true) => Err("16x32bx2 takes the distance of its halves".into()),
        (Some(_), false) => Err("only 16x32bx2 takes a distance".into()),
    }
}

fn registers(
    decoder: &mut Decoder<'_>,
    operand: &Operand,
    fragment: Fragment,
    load: bool,
) -> Result<Vec<Slot>, String> {
    let parts = match operand {
        Operand::Vector(parts) => parts.as_slice(),
        one => std::slice::from_ref(one),
    };
    let wanted = fragment.registers() as usize;
    if parts.len() != wanted {
        return Err(format!("it takes {wanted} registers, not {}", parts.len()));
    }
    parts
        .iter()
        .map(|part| match load {
            true => decoder.register(part).map(|(slot, _)| slot),
            false => decoder.source(part, 0),
        })
        .collect()
}

fn product(
    decoder: &mut Decoder<'_>,
    parts: &[&str],
    operands: &[Operand],
) -> Result<Tcgen05, String> {
    let op = Mma::decode(parts)?;
    let [d, a, b, instruction, rest @ ..] = operands else {
        return Err("it takes D, A, B, an instruction descriptor and a predicate".into());
    };
    let d = decoder.address(d, Space::Generic)?;
    let a = match a {
        Operand::Address { .. } => Ok(decoder.address(a, Space::Generic)?),
        descriptor => Err(decoder.source(descriptor, 0)?),
    };
    let (disabled, rest) = match rest {
        [Operand::Vector(masks), rest @ ..] if !op.kind.is_scaled() => {
            let wanted = 4 * op.group as usize;
            if masks.len() != wanted {
                return Err(format!(
                    "disable-output-lane takes {wanted} registers, not {}",
                    masks.len()
                ));
            }
            (masks.as_slice(), rest)
        }
        rest => (&[][..], rest),
    };
    let disabled = disabled
        .iter()
        .map(|mask| decoder.source(mask, 0))
        .collect::<Result<_, _>>()?;
    let (scales, rest) = match (op.kind.is_scaled(), rest) {
        (true, [a, b, rest @ ..]) => (
            Some((
                decoder.address(a, Space::Generic)?,
                decoder.address(b, Space::Generic)?,
            )),
            rest,
        ),
        (true, _) => return Err("it takes the addresses of two kinds of scales".into()),
        (false, rest) => (None, rest),
    };
    let (input_d, scale_d) = match rest {
        [input_d] => (input_d, 0),
        [input_d, Operand::Int(scale @ 0..=15)] if matches!(op.kind, Kind::F16 | Kind::Tf32) => {
            (input_d, *scale as u32)
        }
        [_, _] => {
            return Err("scale-input-d is 0 to 15, and for kind::f16 and kind::tf32 only".into());
        }
        _ => return Err("it takes a predicate behind its descriptors".into()),
    };
    let input_d = match input_d {
        Operand::Not(inner) => (decoder.source(inner, 0)?, true),
        plain => (decoder.source(plain, 0)?, false),
    };
    Ok(Tcgen05::Mma(MmaCall {
        op,
        d,
        a,
        b: decoder.source(b, 0)?,
        instruction: decoder.source(instruction, 0)?,
        disabled,
        scales,
        input_d,
        scale_d,
    }))
}

fn commit(
    decoder: &mut Decoder<'_>,
    parts: &[&str],
    operands: &[Operand],
) -> Result<Tcgen05, String> {
    let [which, "mbarrier::arrive::one", rest @ .., "b64"] = parts else {
        return Err("expected .cta_group, .mbarrier::arrive::one and .b64".into());
    };
    let (space, rest) = match rest {
        ["shared::cluster", rest @ ..] => (Space::SharedCluster, rest),
        rest => (Space::Generic, rest),
    };
    let (bar, mask) = match (rest, operands) {
        ([], [bar]) => (bar, None),
        (["multicast::cluster"], [bar, mask]) => (bar, Some(mask)),
        _ => return Err("it takes an mbarrier, and a mask with .multicast::cluster".into()),
    };
    Ok(Tcgen05::Commit {
        group: group(which)?,
        bar: decoder.address(bar, space)?,
        mask: mask.map(|mask| decoder.source(mask, 0)).transpose()?,
    })
}
