//! A rank's outputs against both references.

use std::collections::BTreeSet;

use anyhow::Result;
use half::bf16;
use mok::fill;
use mok::oracle::{Comparison, Expert, Layer, Reference, Tokens};
use serde::{Deserialize, Serialize};

use super::problem::{Matrices, Problem, RankData};

/// Multiplications of one token with both references.
fn token_work(problem: &Problem) -> f64 {
    let shape = &problem.shape;
    2.0 * shape.operations(shape.top_k.into(), 1) / 2.0
}

/// Multiplications that take some seconds; beyond it tokens are sampled.
const MUCH: f64 = 1.5e10;
/// Sampled tokens of all ranks together, at least.
const SAMPLES: usize = 256;

/// The tokens of a rank that are compared, by their numbers on it: all of them, or about so many
/// of all ranks' where that would take long. `asked` overrules; 0 asks for all.
pub fn sample(problem: &Problem, rank: usize, asked: Option<usize>) -> Vec<usize> {
    let (own, total) = (problem.range(rank), problem.tokens.iter().sum::<usize>());
    let wanted = match asked {
        Some(0) => total,
        Some(asked) => asked,
        None if token_work(problem) * total as f64 <= MUCH => total,
        None => SAMPLES,
    };
    if wanted >= total {
        return (0..own.len()).collect();
    }
    // A share of the samples as large as its share of the tokens, rounded up.
    let share = (wanted * own.len()).div_ceil(total.max(1));
    let mut picked: BTreeSet<usize> = [0, own.len().saturating_sub(1)].into();
    let mut index = 0;
    while picked.len() < share.min(own.len()) {
        picked.insert(fill::hash(own.start as u64, index) as usize % own.len());
        index += 1;
    }
    picked.retain(|&token| token < own.len());
    picked.into_iter().collect()
}

/// How far some outputs are from a reference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distance {
    /// Over all compared tokens, as `||out - reference|| / ||reference||`; null if not finite.
    pub whole: Option<f64>,
    /// Of the token that is furthest off; null if not finite.
    pub row: Option<f64>,
    /// Its number in the job.
    pub worst_token: Option<usize>,
    /// NaN and infinity where the reference has none.
    pub non_finite: usize,
    /// Sums of squares: of what is off, and of the reference.
    pub squares: [f64; 2],
}

/// Whatever is not finite is null, as JSON has no other word for it.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

impl Distance {
    fn of(comparison: &Comparison, first: usize) -> Distance {
        Distance {
            whole: finite(comparison.whole),
            row: finite(comparison.row_error()),
            worst_token: comparison.worst_row.map(|(row, _)| first + row),
            non_finite: comparison.non_finite,
            squares: comparison.squares,
        }
    }

    /// This and that of other tokens, as one.
    pub fn and(&self, other: &Distance) -> Distance {
        let off = |distance: &Distance| distance.row.unwrap_or(f64::INFINITY);
        let worse = if other.worst_token.is_some() && off(other) > off(self)
            || self.worst_token.is_none()
        {
            other
        } else {
            self
        };
        let squares = [0, 1].map(|which| self.squares[which] + other.squares[which]);
        let whole = if squares[0] == 0.0 {
            0.0
        } else {
            (squares[0] / squares[1]).sqrt()
        };
        Distance {
            whole: finite(whole).filter(|_| self.whole.is_some() && other.whole.is_some()),
            row: worse.row,
            worst_token: worse.worst_token,
            non_finite: self.non_finite + other.non_finite,
            squares,
        }
    }

    /// Of no token at all.
    pub fn none() -> Distance {
        Distance {
            whole: Some(0.0),
            row: Some(0.0),
            ..Distance::default()
        }
    }
}

/// What was found on one rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// Tokens compared.
    pub compared: usize,
    /// Against f64 with no rounding.
    pub exact: Distance,
    /// Against f64 sums with the layer's rounding points.
    pub rounded: Distance,
    /// Tokens whose output is not finite, though their input is; of all tokens.
    pub non_finite: usize,
    /// Tokens whose inputs (or experts) are not finite.
    pub poisoned: usize,
    /// Compared tokens whose reference is not finite, and whose output is.
    pub poison_lost: usize,
}

/// Weights that are in memory at once.
const MEMORY: usize = 4 << 30;

/// Compares the outputs of a rank's tokens; `step` is called after each part.
pub fn verify(
    problem: &Problem,
    rank: usize,
    data: &RankData,
    out: &[bf16],
    rows: &[usize],
) -> Result<Verdict> {
    let hidden = problem.shape.hidden as usize;
    let top_k = problem.shape.top_k as usize;
    let first = problem.range(rank).start;
    let is_finite = |row: &[bf16]| row.iter().all(|value| value.is_finite());
    // Not finite themselves, whether or not their output depends on it; and proven to be so.
    let (mut suspect, mut poisoned) = (BTreeSet::new(), BTreeSet::new());
    for token in 0..problem.range(rank).len() {
        let weights = &data.routes.weights[token * top_k..][..top_k];
        let experts = &data.routes.experts[token * top_k..][..top_k];
        let weighed = weights.iter().zip(experts);
        let bad = weighed.filter(|(weight, expert)| **expert >= 0 && !weight.is_finite());
        if bad.count() > 0 || !is_finite(&data.x[token * hidden..][..hidden]) {
            suspect.insert(token);
        }
    }
    let [mut exact, mut rounded] = [Distance::none(), Distance::none()];
    let shared = problem.shared()?;
    let mut compared = 0;
    for part in parts(problem, data, rows) {
        let needed: BTreeSet<usize> = part
            .iter()
            .flat_map(|&token| &data.routes.experts[token * top_k..][..top_k])
            .filter_map(|&expert| usize::try_from(expert).ok())
            .collect();
        let loaded = Loaded::new(problem, &needed)?;
        let layer = loaded.layer(problem, shared.as_ref())?;
        let tokens = Tokens {
            x: &data.x,
            topk_experts: &data.routes.experts,
            router_weights: &data.routes.weights,
        };
        let mut part = part.to_vec();
        let mut references = [layer.exact(&tokens, &part)?, layer.rounded(&tokens, &part)?];
        let bad: Vec<usize> = infinite_rows(&references);
        if !bad.is_empty() {
            part.retain(|token| !bad.contains(token));
            poisoned.extend(bad);
            references = [layer.exact(&tokens, &part)?, layer.rounded(&tokens, &part)?];
        }
        compared += part.len();
        let [own_exact, own_rounded] = references.each_ref().map(|reference| {
            let comparison = reference.compare(out)?;
            anyhow::Ok(Distance::of(&comparison, first))
        });
        exact = exact.and(&own_exact?);
        rounded = rounded.and(&own_rounded?);
    }
    let finite_out = |token: usize| is_finite(&out[token * hidden..][..hidden]);
    let tokens = 0..problem.range(rank).len();
    let excused = |token: &usize| suspect.contains(token) || poisoned.contains(token);
    Ok(Verdict {
        compared,
        exact,
        rounded,
        non_finite: tokens
            .clone()
            .filter(|token| !excused(token) && !finite_out(*token))
            .count(),
        poisoned: tokens.filter(excused).count(),
        poison_lost: poisoned.iter().filter(|token| finite_out(**token)).count(),
    })
}

/// Tokens whose reference is not finite.
fn infinite_rows(references: &[Reference]) -> Vec<usize> {
    let rows = references.iter().flat_map(Reference::iter);
    let bad = rows.filter(|(_, values)| !values.iter().all(|value| value.is_finite()));
    bad.map(|(row, _)| row).collect()
}

/// The tokens in parts whose experts fit into memory together.
fn parts<'a>(problem: &Problem, data: &RankData, rows: &'a [usize]) -> Vec<&'a [usize]> {
    let top_k = problem.shape.top_k as usize;
    let expert = 6 * problem.shape.hidden as usize * problem.shape.intermediate as usize;
    let most = (MEMORY / problem.tokens.len().max(1) / expert.max(1)).max(top_k);
    let mut parts = Vec::new();
    let (mut start, mut needed) = (0, BTreeSet::new());
    for (at, &token) in rows.iter().enumerate() {
        let own = &data.routes.experts[token * top_k..][..top_k];
        let before = needed.clone();
        needed.extend(own);
        if needed.len() > most && !before.is_empty() {
            parts.push(&rows[start..at]);
            start = at;
            needed = own.iter().collect();
        }
    }
    parts.push(&rows[start..]);
    parts
}

/// Some of the experts, and nothing for the others.
struct Loaded(Vec<Option<Matrices>>);

impl Loaded {
    fn new(problem: &Problem, needed: &BTreeSet<usize>) -> Result<Loaded> {
        let load = |expert| match needed.contains(&expert) {
            true => problem.routed(expert).map(Some),
            false => Ok(None),
        };
        let experts = (0..problem.shape.experts as usize).map(load);
        Ok(Loaded(experts.collect::<Result<_>>()?))
    }

    fn layer<'a>(&'a self, problem: &Problem, shared: Option<&'a Matrices>) -> Result<Layer<'a>> {
        let view = |matrices: &'a Matrices| {
            let [gate, up, down] = matrices;
            Expert { gate, up, down }
        };
        let nothing = Expert {
            gate: &[],
            up: &[],
            down: &[],
        };
        let experts = self
            .0
            .iter()
            .map(|expert| expert.as_ref().map_or(nothing, view));
        let hidden = problem.shape.hidden as usize;
        let layer = Layer::new(hidden, experts.collect(), shared.map(view))?;
        Ok(match problem.swiglu_limit {
            Some(limit) => layer.with_swiglu_limit(limit),
            None => layer,
        })
    }
}
