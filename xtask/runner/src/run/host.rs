//! What can be checked of a layer with no GPU: the references, the limits, the kernels' text.

use anyhow::Result;
use half::bf16;
use mok::Arch;
use mok::oracle::{EXACT, Expert, Layer, ROUNDED, Reference, Tokens};

use super::problem::{Matrices, Problem, RankData};
use crate::host_checks;
use crate::report::Check;

/// Tokens that the references are checked on.
const TOKENS: usize = 3;

/// All of them, on the first tokens of a rank.
pub fn checks(problem: &Problem, data: &RankData, archs: &[Arch]) -> Result<Vec<Check>> {
    let mut checks = vec![Check::none("limits.accepted", beyond_limits(problem))];
    host_checks::embedded(archs, &mut checks);
    let hidden = problem.shape.hidden as usize;
    let count = (data.x.len() / hidden).min(TOKENS);
    let finite = data.x[..count * hidden]
        .iter()
        .all(|value| value.is_finite());
    if count > 0 && finite {
        checks.extend(references(problem, data, count)?);
    }
    Ok(checks)
}

/// Layers beyond a limit that are not refused.
fn beyond_limits(problem: &Problem) -> usize {
    let right = problem.shape.config(1);
    let ranks = problem.tokens.len();
    let mut wrong = [right; 6];
    wrong[0].hidden += 1;
    wrong[1].intermediate += 32;
    wrong[2].top_k = 33;
    wrong[3].experts = 1025;
    wrong[4].max_tokens = (1 << 20) + 1;
    wrong[5].swiglu_limit = Some(-1.0);
    wrong
        .iter()
        .filter(|config| config.check(ranks).is_ok())
        .count()
        + usize::from(right.check(73).is_ok())
}

/// The few experts that the checked tokens have.
fn references(problem: &Problem, data: &RankData, count: usize) -> Result<Vec<Check>> {
    let hidden = problem.shape.hidden as usize;
    let top_k = problem.shape.top_k as usize;
    let x = &data.x[..count * hidden];
    let router_weights = &data.routes.weights[..count * top_k];
    let chosen = &data.routes.experts[..count * top_k];
    // Their experts alone, numbered anew.
    let mut used: Vec<i32> = chosen
        .iter()
        .copied()
        .filter(|&expert| expert >= 0)
        .collect();
    used.sort_unstable();
    used.dedup();
    let number = |expert: &i32| used.binary_search(expert).map_or(-1, |at| at as i32);
    let chosen: Vec<i32> = chosen.iter().map(number).collect();
    let experts = used.iter().map(|&expert| problem.routed(expert as usize));
    let experts = experts.collect::<Result<Vec<_>>>()?;
    let shared = problem.shared()?;
    let layer = Layer::new(
        hidden,
        experts.iter().map(expert).collect(),
        shared.as_ref().map(expert),
    )?;
    let layer = match problem.swiglu_limit {
        Some(limit) => layer.with_swiglu_limit(limit),
        None => layer,
    };
    let tokens = Tokens {
        x,
        topk_experts: &chosen,
        router_weights,
    };
    let rows: Vec<usize> = (0..count).collect();
    let (exact, rounded) = (layer.exact(&tokens, &rows)?, layer.rounded(&tokens, &rows)?);
    let limit = problem.swiglu_limit.map_or(f64::INFINITY, f64::from);
    let definition = |token: usize, lost: Option<usize>| -> Vec<f64> {
        let x = &x[token * hidden..][..hidden];
        let mut out = vec![0.0; hidden];
        if let Some(shared) = &shared {
            add(&mut out, 1.0, shared, x, limit);
        }
        for k in (0..top_k).filter(|&k| lost != Some(k)) {
            if let Ok(expert) = usize::try_from(chosen[token * top_k + k]) {
                let weight = router_weights[token * top_k + k].into();
                add(&mut out, weight, &experts[expert], x, limit);
            }
        }
        out
    };
    let mut worst = 0f64;
    for (token, values) in exact.iter() {
        let defined = definition(token, None);
        let size = defined
            .iter()
            .fold(1f64, |size, value| size.max(value.abs()));
        for (value, defined) in values.iter().zip(&defined) {
            worst = worst.max((value - defined).abs() / size);
        }
    }
    let right: Vec<bf16> = rounded
        .iter()
        .flat_map(|(_, values)| values.iter().map(|&value| bf16::from_f64(value)))
        .collect();
    let judge = |values: &[bf16]| -> Result<bool> {
        let passes =
            |reference: &Reference, limits| anyhow::Ok(reference.compare(values)?.passes(limits));
        Ok(passes(&exact, EXACT)? && passes(&rounded, ROUNDED)?)
    };
    let mut missed = 0;
    let mut planted = plant(&right, hidden);
    // A route that weighs most, lost.
    let heaviest = (0..top_k)
        .filter(|&k| chosen[k] >= 0)
        .max_by(|&a, &b| router_weights[a].abs().total_cmp(&router_weights[b].abs()));
    if let Some(k) = heaviest.filter(|&k| router_weights[k] != 0.0) {
        let mut lost = right.clone();
        for (to, value) in lost.iter_mut().zip(definition(0, Some(k))) {
            *to = bf16::from_f64(value);
        }
        planted.push(lost);
    }
    for fault in &planted {
        missed += usize::from(judge(fault)?);
    }
    Ok(vec![
        Check::at_most("oracle.off_definition", worst, 1e-9),
        Check::none("oracle.right_refused", usize::from(!judge(&right)?)),
        Check::none("oracle.faults_missed", missed),
    ])
}

fn expert(matrices: &Matrices) -> Expert<'_> {
    let [gate, up, down] = matrices;
    Expert { gate, up, down }
}

/// One expert of one token, as its definition reads.
fn add(out: &mut [f64], weight: f64, [gate, up, down]: &Matrices, x: &[bf16], limit: f64) {
    let (hidden, inner) = (out.len(), gate.len() / out.len());
    let product = |matrix: &[bf16], row: usize| -> f64 {
        (0..hidden)
            .map(|column| matrix[row * hidden + column].to_f64() * x[column].to_f64())
            .sum()
    };
    let h: Vec<f64> = (0..inner)
        .map(|row| {
            let gated = product(gate, row).min(limit);
            let upped = product(up, row).clamp(-limit, limit);
            gated * upped / (1.0 + (-gated).exp())
        })
        .collect();
    for (column, to) in out.iter_mut().enumerate() {
        let y: f64 = (0..inner)
            .map(|row| down[column * inner + row].to_f64() * h[row])
            .sum();
        *to += weight * y;
    }
}

/// Wrong results, each by one fault; only of a token that is not zero, where each of them is one.
fn plant(right: &[bf16], hidden: usize) -> Vec<Vec<bf16>> {
    let of_zeros = |row: &[bf16]| row.iter().all(|value| value.to_f32() == 0.0);
    let Some(at) = right.chunks_exact(hidden).position(|row| !of_zeros(row)) else {
        return Vec::new();
    };
    let place = at * hidden..(at + 1) * hidden;
    let faults: [fn(&mut [bf16]); 4] = [
        |row| row.fill(bf16::ZERO),
        |row| row[0] = bf16::NAN,
        |row| {
            row.iter_mut()
                .for_each(|value| *value = bf16::from_f32(2.0 * value.to_f32()))
        },
        |row| row.rotate_left(1),
    ];
    faults
        .into_iter()
        .map(|fault| {
            let mut wrong = right.to_vec();
            fault(&mut wrong[place.clone()]);
            wrong
        })
        // Equal elements may change places.
        .filter(|wrong| wrong != right)
        .collect()
}
