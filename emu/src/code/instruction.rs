//! One instruction to its operation: which family it belongs to.

use super::decode::Decoder;
use super::isa::Family;
use super::modifiers::Modifiers;
use super::special::clock;
use super::{Op, Scalar, Scope, Slot, asynchronous, cancel, maps, memory, tcgen05, warp};
use crate::memory::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};
use crate::ptx::ast::{Instruction, Operand, Space};
use crate::scalar::Ty;

/// Decodes one instruction.
pub(super) fn decode<'a>(
    decoder: &mut Decoder<'a>,
    instruction: &'a Instruction,
) -> Result<Op, String> {
    let opcode = instruction.opcode.as_str();
    let name = opcode.split('.').next().unwrap_or("");
    let operands = instruction.operands.as_slice();
    let mut parts = Modifiers::new(opcode);
    match Family::of(name) {
        Some(Family::Move) => mov(decoder, instruction),
        Some(Family::Load) => memory::load(decoder, parts, operands),
        Some(Family::Store) => memory::store(decoder, parts, operands),
        Some(Family::Atomic) => memory::atomic(decoder, parts, operands, name == "red"),
        Some(Family::Fence) => memory::fence(decoder, parts, operands),
        Some(Family::Branch) => {
            parts.take("uni");
            parts.done()?;
            let [Operand::Name(label)] = operands else {
                return Err("it takes one label".into());
            };
            decoder.target(0, label, instruction.line);
            Ok(Op::Branch(0))
        }
        Some(Family::BranchIndexed) => {
            parts.take("idx");
            parts.take("uni");
            parts.done()?;
            let [index, Operand::Name(table)] = operands else {
                return Err("it takes an index and a table".into());
            };
            let labels = decoder
                .table(table)
                .cloned()
                .ok_or_else(|| format!("there is no table `{table}`"))?;
            for (position, label) in labels.iter().enumerate() {
                decoder.target(position, label, instruction.line);
            }
            Ok(Op::BranchIndexed {
                index: decoder.source(index, 0)?,
                targets: vec![0; labels.len()],
            })
        }
        Some(Family::Call) => Err("a call is more than one operation".into()),
        Some(Family::Exit) => {
            parts.take("uni");
            parts.done()?;
            if name == "ret" && decoder.in_function() {
                return Ok(decoder.back(instruction.line));
            }
            Ok(Op::Exit)
        }
        Some(Family::Trap) => Ok(Op::Trap),
        Some(Family::Barrier) => warp::barrier(decoder, parts, operands, name == "bar"),
        Some(Family::Shuffle) => warp::shuffle(decoder, parts, operands),
        Some(Family::Vote) => warp::vote(decoder, parts, operands),
        Some(Family::Match) => warp::matching(decoder, parts, operands),
        Some(Family::Reduce) => warp::reduce(decoder, parts, operands),
        Some(Family::ActiveMask) => Ok(Op::ActiveMask {
            dst: decoder.register(one(operands)?)?.0,
        }),
        Some(Family::Elect) => warp::elect(decoder, operands),
        Some(Family::Matrix) => warp::matrix(decoder, opcode, operands),
        Some(Family::Wgmma) => asynchronous::wgmma(decoder, opcode, operands),
        Some(Family::Cancel) => cancel::decode(decoder, parts, operands),
        Some(Family::Tcgen05) => tcgen05::decode(decoder, opcode, operands),
        Some(Family::Mbarrier) => asynchronous::mbarrier(decoder, parts, operands),
        Some(Family::Copy) => asynchronous::copy(decoder, parts, operands),
        Some(Family::Nanosleep) => Ok(Op::Nanosleep(decoder.source(one(operands)?, 0)?)),
        Some(Family::Window) => {
            let to = !parts.take("to");
            // `.to.space` is towards the space, without it towards generic.
            let space = parts.space();
            parts.element()?;
            parts.done()?;
            let [dst, src] = operands else {
                return Err("it takes two operands".into());
            };
            let window = match space {
                Space::Shared | Space::SharedCluster => SHARED_WINDOW,
                Space::Local => LOCAL_WINDOW,
                Space::Param if decoder.in_function() => LOCAL_WINDOW,
                Space::Param => PARAM_WINDOW,
                _ => 0,
            };
            Ok(Op::Window {
                dst: decoder.register(dst)?.0,
                src: decoder.source(src, 0)?,
                window,
                to,
            })
        }
        Some(Family::IsSpace) => {
            let space = parts.space();
            parts.done()?;
            let [dst, src] = operands else {
                return Err("it takes two operands".into());
            };
            Ok(Op::IsSpace {
                dst: decoder.register(dst)?.0,
                src: decoder.source(src, 0)?,
                space,
            })
        }
        Some(Family::MapAddress) => {
            let generic = parts.space() == Space::Generic;
            parts.element()?;
            parts.done()?;
            let [dst, src, rank] = operands else {
                return Err("it takes three operands".into());
            };
            let (dst, _) = decoder.register(dst)?;
            Ok(Op::MapAddress {
                dst,
                src: decoder.source(src, 0)?,
                rank: decoder.source(rank, 0)?,
                generic,
            })
        }
        Some(Family::BlockRank) => {
            let generic = parts.space() == Space::Generic;
            parts.element()?;
            parts.done()?;
            let [dst, src] = operands else {
                return Err("it takes two operands".into());
            };
            Ok(Op::BlockRank {
                dst: decoder.register(dst)?.0,
                src: decoder.source(src, 0)?,
                generic,
            })
        }
        Some(Family::SetMaxRegisters) => {
            let increase = parts.take("inc");
            let decrease = parts.take("dec");
            if increase == decrease
                || !(parts.take("sync") && parts.take("aligned") && parts.take("u32"))
            {
                return Err("it is `setmaxnreg.{inc,dec}.sync.aligned.u32`".into());
            }
            parts.done()?;
            match operands {
                [Operand::Int(count)] if (24..=256).contains(count) && count % 8 == 0 => {
                    Ok(Op::SetMaxRegisters {
                        increase,
                        count: *count as u32,
                    })
                }
                _ => Err("the count is a multiple of 8 from 24 to 256".into()),
            }
        }
        Some(Family::TensorMap) => maps::tensormap(decoder, parts, operands),
        Some(Family::Hint) => Ok(Op::Nothing),
        Some(Family::CachePolicy) => {
            let (dst, _) = decoder.register(operands.first().ok_or("it takes a destination")?)?;
            let zero = decoder.constant(0);
            Ok(Op::Pack {
                dst,
                parts: vec![zero],
                bits: 64,
            })
        }
        None => scalar(decoder, opcode, operands),
    }
}

/// The only operand.
fn one(operands: &[Operand]) -> Result<&Operand, String> {
    match operands {
        [operand] => Ok(operand),
        _ => Err(format!("it takes one operand, not {}", operands.len())),
    }
}

/// An operation on registers alone.
fn scalar<'a>(
    decoder: &mut Decoder<'a>,
    opcode: &'a str,
    operands: &[Operand],
) -> Result<Op, String> {
    let op = decoder.scalar(opcode)?;
    let (types_dst, types_src) = (op.dst().to_vec(), op.src().to_vec());
    let Some((dst, rest)) = operands.split_first() else {
        return Err("it takes operands".into());
    };
    let dst = match dst {
        Operand::Pair(first, second) if types_dst.len() == 2 => {
            [decoder.optional(first)?, decoder.optional(second)?]
        }
        Operand::Pair(..) => return Err("it has one destination".into()),
        first => [decoder.optional(first)?, None],
    };
    if !(op.src_required()..=types_src.len()).contains(&rest.len()) {
        return Err(format!(
            "it takes {} sources, not {}",
            types_src.len(),
            rest.len()
        ));
    }
    let mut src = Vec::with_capacity(rest.len());
    let mut negated = 0;
    for (position, (operand, ty)) in rest.iter().zip(&types_src).enumerate() {
        let operand = match operand {
            Operand::Not(inner) => {
                negated |= 1 << position;
                inner
            }
            operand => operand,
        };
        src.push(decoder.source(operand, if ty.is_float() { ty.bits() } else { 0 })?);
    }
    // A signed result in a wider register is sign-extended to it.
    let wide = |slot: Option<Slot>, ty: Option<&Ty>| {
        let (bits, ty) = (decoder.bits(slot?), *ty?);
        (ty.is_signed() && bits > ty.bits()).then_some((ty, bits))
    };
    let extend = [
        wide(dst[0], types_dst.first()),
        wide(dst[1], types_dst.get(1)),
    ];
    Ok(Op::Scalar(Box::new(Scalar {
        op,
        dst,
        src,
        negated,
        extend,
    })))
}

/// Moves: of one value, of a vector to or from one register, of a clock.
fn mov<'a>(decoder: &mut Decoder<'a>, instruction: &'a Instruction) -> Result<Op, String> {
    let [dst, src] = instruction.operands.as_slice() else {
        return Err("it takes two operands".into());
    };
    let ty = instruction.opcode.split('.').nth(1).unwrap_or("");
    let bytes = crate::ptx::type_bytes(ty).ok_or("no type")?;
    if bytes == 16 {
        return wide_move(decoder, dst, src);
    }
    let bits = 8 * bytes;
    match (dst, src) {
        (Operand::Vector(parts), src) => {
            let parts = parts
                .iter()
                .map(|part| decoder.optional(part))
                .collect::<Result<_, _>>()?;
            Ok(Op::Unpack {
                parts,
                src: decoder.source(src, 0)?,
                bits,
            })
        }
        (dst, Operand::Vector(parts)) => {
            let parts = parts
                .iter()
                .map(|part| decoder.source(part, 0))
                .collect::<Result<_, _>>()?;
            Ok(Op::Pack {
                dst: decoder.register(dst)?.0,
                parts,
                bits,
            })
        }
        (dst, Operand::Name(name)) if clock(name).is_some() => {
            let (global, bits, high) = clock(name).unwrap_or_default();
            Ok(Op::Clock {
                dst: decoder.register(dst)?.0,
                global,
                bits,
                high,
            })
        }
        _ => scalar(decoder, &instruction.opcode, &instruction.operands),
    }
}

/// `mov.b128`.
fn wide_move(decoder: &mut Decoder<'_>, dst: &Operand, src: &Operand) -> Result<Op, String> {
    let moves = match (dst, src) {
        (Operand::Vector(parts), src) => {
            let from = memory::halves(decoder, src)?;
            let mut moves = Vec::new();
            for (part, from) in two(parts)?.iter().zip(from) {
                moves.extend(decoder.optional(part)?.map(|to| (to, from)));
            }
            moves
        }
        (dst, Operand::Vector(parts)) => {
            let to = memory::halves(decoder, dst)?;
            let mut moves = Vec::new();
            for (part, to) in two(parts)?.iter().zip(to) {
                moves.push((to, decoder.source(part, 64)?));
            }
            moves
        }
        (dst, src) => {
            let (to, from) = (memory::halves(decoder, dst)?, memory::halves(decoder, src)?);
            to.into_iter().zip(from).collect()
        }
    };
    Ok(Op::Moves(moves))
}

fn two(parts: &[Operand]) -> Result<&[Operand; 2], String> {
    parts
        .try_into()
        .map_err(|_| "128 bits are two registers of 64".into())
}

/// The scope that an access without one has.
pub(super) const DEFAULT_SCOPE: Scope = Scope::Gpu;
