//! The CPU reference of a layer's forward pass.

use half::bf16;
use rayon::prelude::*;

use super::{OracleError, Reference};

/// Weights of one expert, packed row-major.
#[derive(Clone, Copy, Debug)]
pub struct Expert<'a> {
    /// `[intermediate][hidden]`.
    pub gate: &'a [bf16],
    /// `[intermediate][hidden]`.
    pub up: &'a [bf16],
    /// `[hidden][intermediate]`.
    pub down: &'a [bf16],
}

/// Tokens of one rank.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// `[tokens][hidden]`.
    pub x: &'a [bf16],
    /// `[tokens][top_k]`: an expert, or -1.
    pub topk_experts: &'a [i32],
    /// `[tokens][top_k]`.
    pub router_weights: &'a [f32],
}

/// A layer on the CPU, in f64: with the rounding points of the product, or with none.
///
/// ```
/// use half::bf16;
/// use mok::{fill, oracle::{EXACT, Expert, Layer, ROUNDED, Tokens}};
///
/// let data = |seed| fill::normal::<bf16>(seed, 8 * 8, 0.5);
/// let (gate, up, down) = (data(1), data(2), data(3));
/// let expert = Expert { gate: &gate, up: &up, down: &down };
/// let layer = Layer::new(8, vec![expert], None)?;
/// let x = fill::normal::<bf16>(4, 2 * 8, 1.0);
/// let tokens = Tokens { x: &x, topk_experts: &[0, -1], router_weights: &[0.5, 9.0] };
/// let rounded = layer.rounded(&tokens, &[0, 1])?;
/// // The second token has no expert, so its row is zeros.
/// let rows: Vec<_> = rounded.iter().collect();
/// assert!(rows[1].1.iter().all(|&value| value == 0.0));
/// # Ok::<(), mok::oracle::OracleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Layer<'a> {
    hidden: usize,
    experts: Vec<Expert<'a>>,
    shared: Option<Expert<'a>>,
    swiglu_limit: f64,
}

impl<'a> Layer<'a> {
    /// All routed experts in order, and the shared one.
    pub fn new(
        hidden: usize,
        experts: Vec<Expert<'a>>,
        shared: Option<Expert<'a>>,
    ) -> Result<Layer<'a>, OracleError> {
        for expert in experts.iter().chain(&shared) {
            let len = expert.gate.len();
            let whole = hidden > 0 && len.is_multiple_of(hidden);
            for (what, other) in [
                ("gate", len),
                ("up", expert.up.len()),
                ("down", expert.down.len()),
            ] {
                if !whole || other != len {
                    return Err(OracleError::Length {
                        what,
                        len: other,
                        needed: len.max(hidden),
                    });
                }
            }
        }
        Ok(Layer {
            hidden,
            experts,
            shared,
            swiglu_limit: f64::INFINITY,
        })
    }

    /// With the activation's inputs clamped.
    pub fn with_swiglu_limit(mut self, limit: f32) -> Self {
        self.swiglu_limit = limit.into();
        self
    }

    /// The outputs of some tokens with no rounding.
    pub fn exact(&self, tokens: &Tokens<'_>, rows: &[usize]) -> Result<Reference, OracleError> {
        self.outputs(tokens, rows, |value| value)
    }

    /// The outputs of some tokens with every sum taken in f64 and the product's rounding points.
    pub fn rounded(&self, tokens: &Tokens<'_>, rows: &[usize]) -> Result<Reference, OracleError> {
        self.outputs(tokens, rows, |value| bf16::from_f64(value).to_f64())
    }

    fn outputs(
        &self,
        tokens: &Tokens<'_>,
        rows: &[usize],
        round: impl Fn(f64) -> f64 + Sync,
    ) -> Result<Reference, OracleError> {
        let count = tokens.x.len() / self.hidden;
        let top_k = match count {
            0 => 0,
            _ => tokens.topk_experts.len() / count,
        };
        let lengths = [
            ("topk_experts", tokens.topk_experts.len()),
            ("router_weights", tokens.router_weights.len()),
        ];
        for (what, len) in lengths {
            if len != count * top_k {
                let needed = count * top_k;
                return Err(OracleError::Length { what, len, needed });
            }
        }
        let values: Vec<Vec<f64>> = rows
            .par_iter()
            .map(|&row| {
                if row >= count {
                    return Err(OracleError::Row { row });
                }
                let x = &tokens.x[row * self.hidden..][..self.hidden];
                let mut out = match &self.shared {
                    Some(shared) => self.expert(shared, x, &round),
                    None => vec![0.0; self.hidden],
                };
                for route in row * top_k..(row + 1) * top_k {
                    let expert = usize::try_from(tokens.topk_experts[route]);
                    let Ok(expert) = expert else { continue };
                    let expert = self.experts.get(expert).ok_or(OracleError::Row { row })?;
                    let weight = f64::from(tokens.router_weights[route]);
                    for (sum, y) in out.iter_mut().zip(self.expert(expert, x, &round)) {
                        *sum += weight * y;
                    }
                }
                Ok(out.into_iter().map(&round).collect())
            })
            .collect::<Result<_, _>>()?;
        Ok(Reference::of_rows(
            self.hidden,
            rows.to_vec(),
            values.concat(),
        ))
    }

    /// What one expert makes of one token.
    fn expert(&self, expert: &Expert<'_>, x: &[bf16], round: &impl Fn(f64) -> f64) -> Vec<f64> {
        let dot = |weights: &[bf16], values: &[f64]| -> f64 {
            weights
                .iter()
                .zip(values)
                .map(|(weight, value)| weight.to_f64() * value)
                .sum()
        };
        let x: Vec<f64> = x.iter().map(|value| value.to_f64()).collect();
        let gates = expert.gate.chunks_exact(self.hidden);
        let h: Vec<f64> = gates
            .zip(expert.up.chunks_exact(self.hidden))
            .map(|(gate, up)| {
                let limit = self.swiglu_limit;
                // Comparisons, so that a NaN stays one.
                let clamp = |value: f64| if value > limit { limit } else { value };
                let gate = clamp(round(dot(gate, &x)));
                let up = -clamp(-clamp(round(dot(up, &x))));
                round(gate / (1.0 + (-gate).exp()) * up)
            })
            .collect();
        let downs = expert.down.chunks_exact(h.len().max(1));
        downs.map(|down| round(dot(down, &h))).collect()
    }
}
