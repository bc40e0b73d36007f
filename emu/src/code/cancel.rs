//! `clusterlaunchcontrol`: clusters that have not started are cancelled, for who asks to do their work
//! (PTX ISA 9.0, 9.7.13.17 and 9.7.13.18).

use super::decode::Decoder;
use super::memory::halves;
use super::modifiers::Modifiers;
use super::{Op, Query};
use crate::ptx::ast::{Operand, Space};

pub(super) fn decode(
    decoder: &mut Decoder<'_>,
    mut parts: Modifiers<'_>,
    operands: &[Operand],
) -> Result<Op, String> {
    if parts.take("try_cancel") {
        let all = parts.take("multicast::cluster::all");
        let counted = parts.take("async") && parts.take("mbarrier::complete_tx::bytes");
        let space = parts.space();
        if !counted || !parts.take("b128") || !matches!(space, Space::Generic | Space::Shared) {
            return Err("it is `.async{.shared::cta}.mbarrier::complete_tx::bytes.b128`".into());
        }
        parts.done()?;
        let [to, bar] = operands else {
            return Err("it takes an address and an mbarrier".into());
        };
        return Ok(Op::TryCancel {
            to: decoder.address(to, space)?,
            bar: decoder.address(bar, space)?,
            all,
        });
    }
    if !parts.take("query_cancel") {
        return Err("unknown instruction".into());
    }
    let query = parts.find(|part| {
        Some(match part {
            "is_canceled" => Query::IsCanceled,
            "get_first_ctaid" => Query::First,
            "get_first_ctaid::x" => Query::Axis(0),
            "get_first_ctaid::y" => Query::Axis(1),
            "get_first_ctaid::z" => Query::Axis(2),
            _ => return None,
        })
    });
    let query = query.ok_or("unknown query")?;
    let typed = match query {
        Query::IsCanceled => parts.take("pred"),
        Query::First => parts.take("v4") && parts.take("b32"),
        Query::Axis(_) => parts.take("b32"),
    };
    if !typed || !parts.take("b128") {
        return Err("the types do not fit the query".into());
    }
    parts.done()?;
    let [dst, response] = operands else {
        return Err("it takes a destination and a response".into());
    };
    let dst = match (query, dst) {
        (Query::First, Operand::Vector(parts)) if parts.len() == 4 => parts
            .iter()
            .map(|part| decoder.optional(part))
            .collect::<Result<_, _>>()?,
        (Query::First, _) => return Err("it takes a vector of four".into()),
        (_, dst) => vec![Some(decoder.register(dst)?.0)],
    };
    Ok(Op::QueryCancel {
        query,
        dst,
        response: halves(decoder, response)?,
    })
}
