//! What completes later: mbarriers, bulk and tensor copies, wgmma.

use super::decode::Decoder;
use super::memory::operation;
use super::modifiers::Modifiers;
use super::{Address, Bulk, Mbarrier, MbarrierOp, Op, Scope, TensorCopy, TensorKind, WgmmaCall};
use crate::ptx::ast::{Operand, Space};
use crate::tensor::wgmma::{Immediate, Modifiers as Immediates, Wgmma};

pub(super) fn mbarrier(
    decoder: &mut Decoder<'_>,
    mut parts: Modifiers<'_>,
    operands: &[Operand],
) -> Result<Op, String> {
    let kind = parts
        .find(|part| {
            [
                "init",
                "inval",
                "arrive",
                "arrive_drop",
                "expect_tx",
                "complete_tx",
                "test_wait",
                "try_wait",
                "pending_count",
            ]
            .into_iter()
            .find(|name| *name == part)
        })
        .ok_or("no operation")?;
    let mut order = parts.order(Scope::Block);
    let space = parts.space();
    let space = if space == Space::Generic {
        Space::Generic
    } else {
        space
    };
    let expect = kind.starts_with("arrive") && parts.take("expect_tx");
    let complete = !parts.take("noComplete");
    let parity = parts.take("parity");
    parts.take("b64");
    let at = |decoder: &mut Decoder<'_>, operand: &Operand| decoder.address(operand, space);
    let (op, address) = match (kind, operands) {
        ("init", [bar, count]) => (
            MbarrierOp::Init {
                count: decoder.source(count, 0)?,
            },
            at(decoder, bar)?,
        ),
        ("inval", [bar]) => (MbarrierOp::Invalidate, at(decoder, bar)?),
        ("arrive" | "arrive_drop", [state, bar, rest @ ..]) => {
            order.release |= !order.strong;
            let state = decoder.optional(state)?;
            let amount = match rest {
                [] => None,
                [amount] => Some(decoder.source(amount, 0)?),
                _ => return Err("too many operands".into()),
            };
            let (count, expected) = if expect {
                (None, amount)
            } else {
                (amount, None)
            };
            if expect && expected.is_none() {
                return Err("an arrival that expects bytes takes their number".into());
            }
            let drop = kind == "arrive_drop";
            (
                MbarrierOp::Arrive {
                    state,
                    count,
                    expect: expected,
                    drop,
                    complete,
                },
                at(decoder, bar)?,
            )
        }
        // Remote arrivals may leave the state out.
        ("arrive" | "arrive_drop", [bar]) => {
            order.release |= !order.strong;
            let drop = kind == "arrive_drop";
            (
                MbarrierOp::Arrive {
                    state: None,
                    count: None,
                    expect: None,
                    drop,
                    complete,
                },
                at(decoder, bar)?,
            )
        }
        ("expect_tx", [bar, bytes]) => (
            MbarrierOp::ExpectTx {
                bytes: decoder.source(bytes, 0)?,
            },
            at(decoder, bar)?,
        ),
        ("complete_tx", [bar, bytes]) => (
            MbarrierOp::CompleteTx {
                bytes: decoder.source(bytes, 0)?,
            },
            at(decoder, bar)?,
        ),
        ("test_wait" | "try_wait", [done, bar, state] | [done, bar, state, _]) => {
            order.acquire |= !order.strong;
            let done = decoder.register(done)?.0;
            let suspend = kind == "try_wait";
            (
                MbarrierOp::Wait {
                    done,
                    state: decoder.source(state, 0)?,
                    parity,
                    suspend,
                },
                at(decoder, bar)?,
            )
        }
        ("pending_count", [dst, state]) => {
            let zero = decoder.constant(0);
            let address = Address {
                space: Space::Shared,
                base: zero,
                offset: 0,
            };
            (
                MbarrierOp::PendingCount {
                    dst: decoder.register(dst)?.0,
                    state: decoder.source(state, 0)?,
                },
                address,
            )
        }
        _ => return Err(format!("{} operands do not fit", operands.len())),
    };
    parts.done()?;
    Ok(Op::Mbarrier(Box::new(Mbarrier { op, address, order })))
}

pub(super) fn copy(
    decoder: &mut Decoder<'_>,
    mut parts: Modifiers<'_>,
    operands: &[Operand],
) -> Result<Op, String> {
    let reduce = parts.take("reduce");
    if !parts.take("async") {
        return Err("unknown copy".into());
    }
    if !parts.take("bulk") {
        return small(decoder, parts, operands);
    }
    if parts.take("commit_group") {
        parts.done()?;
        return Ok(Op::BulkCommit);
    }
    if parts.take("wait_group") {
        let read = parts.take("read");
        parts.done()?;
        let [Operand::Int(pending)] = operands else {
            return Err("it takes a number of groups".into());
        };
        return Ok(Op::BulkWait {
            pending: u32::try_from(*pending).unwrap_or(u32::MAX),
            read,
        });
    }
    if parts.take("prefetch") {
        return Ok(Op::Nothing);
    }
    let policy = parts.take_cache_policy();
    let tensor = parts.take("tensor");
    let multicast = parts.take("multicast::cluster");
    let counted = parts.take("mbarrier::complete_tx::bytes");
    let grouped = parts.take("bulk_group");
    let mut operands = operands.to_vec();
    if policy {
        operands.pop();
    }
    let mask = match multicast {
        true => Some(decoder.source(&operands.pop().ok_or("no mask")?, 0)?),
        false => None,
    };
    if tensor {
        return tensor_copy(decoder, parts, &operands, reduce, counted, grouped, mask);
    }
    let op = if reduce {
        Some(operation(&mut parts).ok_or("no operation")?)
    } else {
        None
    };
    let (to, from) = (parts.space(), parts.space());
    let number = match op {
        Some(op) => {
            let (number, bytes, _) = parts.number()?;
            parts.take("noftz");
            Some((op, number, bytes))
        }
        None => None,
    };
    parts.done()?;
    let shared = |space| matches!(space, Space::Shared | Space::SharedCluster);
    let bulk = match (operands.as_slice(), counted, grouped) {
        ([dst, src, bytes, bar], true, false)
            if shared(to) && from == Space::Global && number.is_none() =>
        {
            Bulk::Load {
                dst: decoder.address(dst, Space::SharedCluster)?,
                src: decoder.address(src, from)?,
                bytes: decoder.source(bytes, 0)?,
                bar: decoder.address(bar, Space::SharedCluster)?,
                mask,
            }
        }
        ([dst, src, bytes, bar], true, false) if shared(to) && shared(from) => Bulk::Copy {
            dst: decoder.address(dst, Space::SharedCluster)?,
            src: decoder.address(src, Space::Shared)?,
            bytes: decoder.source(bytes, 0)?,
            bar: decoder.address(bar, Space::SharedCluster)?,
            reduce: number,
        },
        ([dst, src, bytes], false, true) if to == Space::Global && shared(from) => Bulk::Store {
            dst: decoder.address(dst, to)?,
            src: decoder.address(src, Space::Shared)?,
            bytes: decoder.source(bytes, 0)?,
            reduce: number,
        },
        _ => return Err("unknown direction or completion".into()),
    };
    Ok(Op::Bulk(Box::new(bulk)))
}

fn tensor_copy(
    decoder: &mut Decoder<'_>,
    mut parts: Modifiers<'_>,
    operands: &[Operand],
    reduce: bool,
    counted: bool,
    grouped: bool,
    mask: Option<super::Slot>,
) -> Result<Op, String> {
    let op = if reduce {
        Some(operation(&mut parts).ok_or("no operation")?)
    } else {
        None
    };
    let rank = parts
        .find(|part| {
            part.strip_suffix('d')
                .and_then(|rank| rank.parse::<usize>().ok())
        })
        .filter(|rank| (1..=5).contains(rank))
        .ok_or("no rank from 1d to 5d")?;
    parts.take("tile");
    let four = match (parts.take("tile::gather4"), parts.take("tile::scatter4")) {
        (false, false) => false,
        (gathers, scatters)
            if gathers == counted && scatters == grouped && !reduce && rank == 2 =>
        {
            true
        }
        _ => return Err("a load gathers and a store scatters four rows, in two dimensions".into()),
    };
    let pair = parts.take("cta_group::2");
    let single = parts.take("cta_group::1");
    let (to, from) = (parts.space(), parts.space());
    parts.done()?;
    let (map, kind) = match (operands, counted, grouped) {
        ([dst, map, bar], true, false)
            if matches!(to, Space::Shared | Space::SharedCluster)
                && from == Space::Global
                && !reduce =>
        {
            let dst = decoder.address(dst, Space::SharedCluster)?;
            let bar = decoder.address(bar, Space::SharedCluster)?;
            let kind = TensorKind::Load {
                dst,
                bar,
                mask,
                pair,
            };
            (map, kind)
        }
        ([map, src], false, true) if to == Space::Global && !pair && !single => (
            map,
            TensorKind::Store {
                src: decoder.address(src, Space::Shared)?,
                reduce: op,
            },
        ),
        _ => return Err("unknown direction or completion".into()),
    };
    let Operand::Address {
        parts: coordinates, ..
    } = map
    else {
        return Err("the map is no address".into());
    };
    let [Operand::Vector(coordinates)] = coordinates.as_slice() else {
        return Err("no coordinates".into());
    };
    let rank = if four { 5 } else { rank };
    if coordinates.len() != rank {
        return Err(format!(
            "{rank} coordinates are needed, not {}",
            coordinates.len()
        ));
    }
    let coordinates = coordinates
        .iter()
        .map(|at| decoder.source(at, 0))
        .collect::<Result<_, _>>()?;
    let map = decoder.address(map, Space::Generic)?;
    Ok(Op::Tensor(Box::new(TensorCopy {
        map,
        coordinates,
        four,
        kind,
    })))
}

/// `cp.async` of 4, 8 or 16 bytes a thread.
fn small(
    decoder: &mut Decoder<'_>,
    mut parts: Modifiers<'_>,
    operands: &[Operand],
) -> Result<Op, String> {
    if parts.take("commit_group") {
        parts.done()?;
        return Ok(Op::CopyCommit);
    }
    if parts.take("wait_all") {
        parts.done()?;
        return Ok(Op::CopyWait {
            pending: 0,
            all: true,
        });
    }
    if parts.take("wait_group") {
        parts.done()?;
        let [Operand::Int(pending)] = operands else {
            return Err("it takes a number of groups".into());
        };
        return Ok(Op::CopyWait {
            pending: u32::try_from(*pending).unwrap_or(u32::MAX),
            all: false,
        });
    }
    if parts.take("mbarrier") {
        let increments = !parts.take("noinc");
        parts.take("arrive");
        let space = parts.space();
        parts.take("b64");
        parts.done()?;
        let [bar] = operands else {
            return Err("it takes an mbarrier".into());
        };
        return Ok(Op::CopyArrive {
            bar: decoder.address(bar, space)?,
            increments,
        });
    }
    let policy = parts.take_cache_policy();
    parts.drop_hints();
    parts.space();
    parts.space();
    parts.done()?;
    let mut operands = operands.to_vec();
    if policy {
        operands.pop();
    }
    let (dst, src, bytes, from) = match operands.as_slice() {
        [dst, src, bytes] => (dst, src, bytes, None),
        [dst, src, bytes, from] => (dst, src, bytes, Some(from)),
        _ => return Err("it takes three or four operands".into()),
    };
    let Operand::Int(bytes @ (4 | 8 | 16)) = bytes else {
        return Err("4, 8 or 16 bytes are copied".into());
    };
    Ok(Op::CopyAsync {
        dst: decoder.address(dst, Space::Shared)?,
        src: decoder.address(src, Space::Global)?,
        bytes: *bytes as u32,
        from: from.map(|from| decoder.source(from, 0)).transpose()?,
    })
}

pub(super) fn wgmma(
    decoder: &mut Decoder<'_>,
    opcode: &str,
    operands: &[Operand],
) -> Result<Op, String> {
    let parts: Vec<&str> = opcode.split('.').collect();
    match parts.get(1) {
        Some(&"fence") => return Ok(Op::WgmmaFence),
        Some(&"commit_group") => return Ok(Op::WgmmaCommit),
        Some(&"wait_group") => {
            let [Operand::Int(pending @ 0..=7)] = operands else {
                return Err("it takes 0 to 7 groups".into());
            };
            return Ok(Op::WgmmaWait {
                pending: *pending as u32,
            });
        }
        _ => {}
    }
    let op = Wgmma::decode(&parts)?.ok_or("unknown instruction")?;
    let [Operand::Vector(d), a, b, scale_d, immediates @ ..] = operands else {
        return Err("it takes D, A, B and a predicate".into());
    };
    let d = d
        .iter()
        .map(|part| decoder.register(part).map(|(slot, _)| slot))
        .collect::<Result<Vec<_>, _>>()?;
    if d.len() != op.registers() {
        return Err(format!(
            "D takes {} registers, not {}",
            op.registers(),
            d.len()
        ));
    }
    let (a, a_registers) = match a {
        Operand::Vector(parts) if parts.len() == 4 => (
            parts
                .iter()
                .map(|part| decoder.source(part, 0))
                .collect::<Result<Vec<_>, _>>()?,
            true,
        ),
        Operand::Vector(parts) => return Err(format!("A takes 4 registers, not {}", parts.len())),
        descriptor => (vec![decoder.source(descriptor, 0)?], false),
    };
    let mut numbers = Vec::new();
    for immediate in immediates {
        let Operand::Int(value) = immediate else {
            return Err("the last operands are immediates".into());
        };
        numbers.push(*value as i64);
    }
    let sign = |value: i64| match value {
        1 => Ok(false),
        -1 => Ok(true),
        other => Err(format!("a scale is 1 or -1, not {other}")),
    };
    let bit = |value: i64| match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(format!("a transpose is 0 or 1, not {other}")),
    };
    let wanted = op.immediates(a_registers);
    if numbers.len() != wanted.len() {
        return Err(format!(
            "{} immediates are needed, not {}",
            wanted.len(),
            numbers.len()
        ));
    }
    let mut modifiers = Immediates::default();
    for (kind, &value) in wanted.iter().zip(&numbers) {
        match kind {
            Immediate::ScaleA => modifiers.neg_a = sign(value)?,
            Immediate::ScaleB => modifiers.neg_b = sign(value)?,
            Immediate::TransA => modifiers.trans_a = bit(value)?,
            Immediate::TransB => modifiers.trans_b = bit(value)?,
        }
    }
    Ok(Op::Wgmma(Box::new(WgmmaCall {
        op,
        d,
        a,
        a_registers,
        b: decoder.source(b, 0)?,
        scale_d: decoder.source(scale_d, 0)?,
        modifiers,
    })))
}
