//! Barriers, exchange among lanes, matrix fragments.

use super::decode::Decoder;
use super::modifiers::Modifiers;
use super::{BarrierReduce, Op, ReduceOp, Shuffle, ShuffleMode, VoteKind};
use crate::ptx::ast::{Operand, Space};
use crate::tensor::matrix::Matrix;
use crate::tensor::mma::Mma;
use crate::tensor::wmma::Wmma;

/// `bar` and `barrier`; the short name is that of the aligned forms.
pub(super) fn barrier(
    decoder: &mut Decoder<'_>,
    mut parts: Modifiers<'_>,
    operands: &[Operand],
    short: bool,
) -> Result<Op, String> {
    if parts.take("warp") {
        parts.take("sync");
        parts.done()?;
        let [mask] = operands else {
            return Err("it takes a mask".into());
        };
        return Ok(Op::WarpBarrier {
            mask: decoder.source(mask, 0)?,
        });
    }
    let cluster = parts.take("cluster");
    parts.take("cta");
    let aligned = parts.take("aligned");
    if cluster {
        let arrive = parts.take("arrive");
        let wait = parts.take("wait");
        let relaxed = parts.take("relaxed");
        parts.take("release");
        parts.take("acquire");
        parts.done()?;
        if arrive == wait || !operands.is_empty() {
            return Err("it either arrives or waits, without operands".into());
        }
        return Ok(Op::ClusterBarrier {
            wait,
            relaxed,
            aligned,
        });
    }
    let aligned = aligned || short;
    let arrive = parts.take("arrive");
    parts.take("sync");
    if parts.take("red") {
        let kind = parts
            .find(|part| {
                Some(match part {
                    "popc" => BarrierReduce::Popc,
                    "and" => BarrierReduce::And,
                    "or" => BarrierReduce::Or,
                    _ => return None,
                })
            })
            .ok_or("no reduction")?;
        parts.take("u32");
        parts.take("pred");
        parts.done()?;
        let (dst, id, threads, pred) = match operands {
            [dst, id, pred] => (dst, id, None, pred),
            [dst, id, threads, pred] => (dst, id, Some(threads), pred),
            _ => return Err("it takes three or four operands".into()),
        };
        let threads = threads
            .map(|threads| decoder.source(threads, 0))
            .transpose()?;
        let dst = decoder.register(dst)?.0;
        let (pred, negated) = match pred {
            Operand::Not(pred) => (&**pred, true),
            pred => (pred, false),
        };
        let reduce = Some((kind, dst, decoder.source(pred, 0)?, negated));
        return Ok(Op::BlockBarrier {
            id: decoder.source(id, 0)?,
            threads,
            wait: true,
            reduce,
            aligned,
        });
    }
    parts.done()?;
    let (id, threads) = match operands {
        [] => (decoder.constant(0), None),
        [id] => (decoder.source(id, 0)?, None),
        [id, threads] => (decoder.source(id, 0)?, Some(decoder.source(threads, 0)?)),
        _ => return Err("it takes a number and a count".into()),
    };
    if arrive && threads.is_none() {
        return Err("an arrival takes a count".into());
    }
    Ok(Op::BlockBarrier {
        id,
        threads,
        wait: !arrive,
        reduce: None,
        aligned,
    })
}

pub(super) fn shuffle(
    decoder: &mut Decoder<'_>,
    mut parts: Modifiers<'_>,
    operands: &[Operand],
) -> Result<Op, String> {
    if !parts.take("sync") {
        return Err("only the `.sync` form exists since sm_70".into());
    }
    let mode = parts
        .find(|part| {
            Some(match part {
                "up" => ShuffleMode::Up,
                "down" => ShuffleMode::Down,
                "bfly" => ShuffleMode::Butterfly,
                "idx" => ShuffleMode::Index,
                _ => return None,
            })
        })
        .ok_or("no mode")?;
    parts.take("b32");
    parts.done()?;
    let [dst, src, b, c, mask] = operands else {
        return Err("it takes five operands".into());
    };
    let (dst, pred) = match dst {
        Operand::Pair(dst, pred) => (decoder.register(dst)?.0, Some(decoder.register(pred)?.0)),
        dst => (decoder.register(dst)?.0, None),
    };
    Ok(Op::Shuffle(Box::new(Shuffle {
        mode,
        dst,
        pred,
        src: decoder.source(src, 32)?,
        b: decoder.source(b, 0)?,
        c: decoder.source(c, 0)?,
        mask: decoder.source(mask, 0)?,
    })))
}

pub(super) fn vote(
    decoder: &mut Decoder<'_>,
    mut parts: Modifiers<'_>,
    operands: &[Operand],
) -> Result<Op, String> {
    if !parts.take("sync") {
        return Err("only the `.sync` form exists since sm_70".into());
    }
    let kind = parts
        .find(|part| {
            Some(match part {
                "all" => VoteKind::All,
                "any" => VoteKind::Any,
                "uni" => VoteKind::Uni,
                "ballot" => VoteKind::Ballot,
                _ => return None,
            })
        })
        .ok_or("no mode")?;
    parts.take("pred");
    parts.take("b32");
    parts.done()?;
    let [dst, src, mask] = operands else {
        return Err("it takes three operands".into());
    };
    let (src, negated) = match src {
        Operand::Not(src) => (&**src, true),
        src => (src, false),
    };
    let dst = decoder.register(dst)?.0;
    Ok(Op::Vote {
        kind,
        dst,
        src: decoder.source(src, 0)?,
        negated,
        mask: decoder.source(mask, 0)?,
    })
}

pub(super) fn matching(
    decoder: &mut Decoder<'_>,
    mut parts: Modifiers<'_>,
    operands: &[Operand],
) -> Result<Op, String> {
    let all = parts.take("all");
    parts.take("any");
    parts.take("sync");
    let wide = parts.take("b64");
    parts.take("b32");
    parts.done()?;
    let [dst, src, mask] = operands else {
        return Err("it takes three operands".into());
    };
    let (dst, pred) = match dst {
        Operand::Pair(dst, pred) => (decoder.register(dst)?.0, Some(decoder.register(pred)?.0)),
        dst => (decoder.register(dst)?.0, None),
    };
    Ok(Op::Match {
        all,
        wide,
        dst,
        pred,
        src: decoder.source(src, 0)?,
        mask: decoder.source(mask, 0)?,
    })
}

pub(super) fn reduce(
    decoder: &mut Decoder<'_>,
    mut parts: Modifiers<'_>,
    operands: &[Operand],
) -> Result<Op, String> {
    parts.take("sync");
    let op = parts
        .find(|part| {
            Some(match part {
                "add" => ReduceOp::Add,
                "min" => ReduceOp::Min,
                "max" => ReduceOp::Max,
                "and" => ReduceOp::And,
                "or" => ReduceOp::Or,
                "xor" => ReduceOp::Xor,
                _ => return None,
            })
        })
        .ok_or("no operation")?;
    let (bytes, signed) = parts.element()?;
    parts.done()?;
    let [dst, src, mask] = operands else {
        return Err("it takes three operands".into());
    };
    if bytes != 4 {
        return Err("only 32-bit integers are reduced".into());
    }
    let dst = decoder.register(dst)?.0;
    Ok(Op::Reduce {
        op,
        signed,
        dst,
        src: decoder.source(src, 0)?,
        mask: decoder.source(mask, 0)?,
    })
}

pub(super) fn elect(decoder: &mut Decoder<'_>, operands: &[Operand]) -> Result<Op, String> {
    let [Operand::Pair(dst, pred), mask] = operands else {
        return Err("it is `elect.sync d|p, mask`".into());
    };
    let (dst, pred) = (decoder.optional(dst)?, decoder.register(pred)?.0);
    Ok(Op::Elect {
        dst,
        pred,
        mask: decoder.source(mask, 0)?,
    })
}

/// The registers of a fragment.
fn fragment(decoder: &mut Decoder<'_>, operand: &Operand) -> Result<Vec<super::Slot>, String> {
    match operand {
        Operand::Vector(parts) => parts.iter().map(|part| decoder.source(part, 32)).collect(),
        other => Ok(vec![decoder.source(other, 32)?]),
    }
}

fn counted(what: &str, slots: Vec<super::Slot>, wanted: usize) -> Result<Vec<super::Slot>, String> {
    match slots.len() == wanted {
        true => Ok(slots),
        false => Err(format!(
            "{what} takes {wanted} registers, not {}",
            slots.len()
        )),
    }
}

fn wmma(decoder: &mut Decoder<'_>, opcode: &str, operands: &[Operand]) -> Result<Op, String> {
    // The state space may stand anywhere behind the shape.
    let space = Modifiers::new(opcode).space();
    let named = |part: &&str| Modifiers::new(&format!("wmma.{part}")).space() == Space::Generic;
    let parts: Vec<&str> = opcode.split('.').filter(named).collect();
    let op = Wmma::decode(&parts)?.ok_or("unknown instruction")?;
    let (fragment, registers, address, stride) = match (op, operands) {
        (Wmma::Product(op), [d, a, b, c]) => {
            let [to, left, right, from] = op.fragments().map(|fragment| fragment.registers);
            return Ok(Op::WmmaProduct {
                op,
                d: counted("D", fragment(decoder, d)?, to)?,
                a: counted("A", fragment(decoder, a)?, left)?,
                b: counted("B", fragment(decoder, b)?, right)?,
                c: counted("C", fragment(decoder, c)?, from)?,
            });
        }
        (Wmma::Load { fragment, .. }, [registers, address, stride @ ..]) => {
            (fragment, registers, address, stride)
        }
        (Wmma::Store { fragment, .. }, [address, registers, stride @ ..]) => {
            (fragment, registers, address, stride)
        }
        _ => return Err(format!("{} operands do not fit", operands.len())),
    };
    let stride = match stride {
        [] => None,
        [stride] => Some(decoder.source(stride, 0)?),
        _ => return Err("it takes at most three operands".into()),
    };
    let slots = match op {
        Wmma::Load { .. } => destinations(decoder, registers)?,
        _ => self::fragment(decoder, registers)?,
    };
    Ok(Op::WmmaMove {
        op,
        slots: counted("it", slots, fragment.registers)?,
        address: decoder.address(address, space)?,
        stride,
    })
}

/// The registers that a fragment is loaded into.
fn destinations(decoder: &mut Decoder<'_>, operand: &Operand) -> Result<Vec<super::Slot>, String> {
    let parts = match operand {
        Operand::Vector(parts) => parts.as_slice(),
        other => std::slice::from_ref(other),
    };
    let slots = parts.iter().map(|part| decoder.register(part));
    slots.map(|slot| slot.map(|(slot, _)| slot)).collect()
}

pub(super) fn matrix(
    decoder: &mut Decoder<'_>,
    opcode: &str,
    operands: &[Operand],
) -> Result<Op, String> {
    let parts: Vec<&str> = opcode.split('.').collect();
    if let Some(op) = Matrix::decode(&parts)? {
        let [first, second] = operands else {
            return Err("it takes two operands".into());
        };
        return Ok(match op {
            Matrix::Load { count, .. } => {
                let dst = counted("it", fragment(decoder, first)?, count)?;
                Op::LoadMatrix {
                    op,
                    dst,
                    address: decoder.address(second, Space::Shared)?,
                }
            }
            Matrix::Store { count, .. } => {
                let src = counted("it", fragment(decoder, second)?, count)?;
                Op::StoreMatrix {
                    op,
                    src,
                    address: decoder.address(first, Space::Shared)?,
                }
            }
            Matrix::Move => Op::MoveMatrix {
                dst: decoder.register(first)?.0,
                src: decoder.source(second, 0)?,
            },
        });
    }
    if parts[0] == "wmma" {
        return wmma(decoder, opcode, operands);
    }
    let mma = Mma::decode(&parts)?.ok_or("unknown instruction")?;
    let [d, a, b, c] = operands else {
        return Err("it takes four operands".into());
    };
    Ok(Op::Mma {
        d: counted("D", fragment(decoder, d)?, mma.registers_d())?,
        a: counted("A", fragment(decoder, a)?, mma.registers_a())?,
        b: counted("B", fragment(decoder, b)?, mma.registers_b())?,
        c: counted("C", fragment(decoder, c)?, mma.registers_d())?,
        mma,
    })
}
