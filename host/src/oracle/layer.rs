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
        self.outputs(tokens, rows, Rounding::None)
    }

    /// The outputs of some tokens with every sum taken in f64 and the product's rounding points.
    pub fn rounded(&self, tokens: &Tokens<'_>, rows: &[usize]) -> Result<Reference, OracleError> {
        self.outputs(tokens, rows, Rounding::Bf16)
    }

    /// [`Layer::rounded`], with what is [undecided](Reference::undecided) of each row: for layers so
    /// narrow that a single rounding can be more of a row than the limits allow.
    ///
    /// A value that is nearer to a tie than 2^-19 of the norm of its terms may be rounded to either
    /// side, since f32 sums aren't more exact than that; and so may what is computed from it, within
    /// what it may be off by.
    pub fn rounded_to_either_side(
        &self,
        tokens: &Tokens<'_>,
        rows: &[usize],
    ) -> Result<Reference, OracleError> {
        self.outputs(tokens, rows, Rounding::EitherSide)
    }

    fn outputs(
        &self,
        tokens: &Tokens<'_>,
        rows: &[usize],
        rounding: Rounding,
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
        let outputs: Vec<(Vec<f64>, f64)> = rows
            .par_iter()
            .map(|&row| {
                if row >= count {
                    return Err(OracleError::Row { row });
                }
                let x = &tokens.x[row * self.hidden..][..self.hidden];
                let mut out = vec![Sum::default(); self.hidden];
                if let Some(shared) = &self.shared {
                    for (sum, y) in out.iter_mut().zip(self.expert(shared, x, rounding)) {
                        sum.add(1.0, y);
                    }
                }
                for route in row * top_k..(row + 1) * top_k {
                    let expert = usize::try_from(tokens.topk_experts[route]);
                    let Ok(expert) = expert else { continue };
                    let expert = self.experts.get(expert).ok_or(OracleError::Row { row })?;
                    let weight = f64::from(tokens.router_weights[route]);
                    for (sum, y) in out.iter_mut().zip(self.expert(expert, x, rounding)) {
                        sum.add(weight, y);
                    }
                }
                let sides = out.into_iter().map(|sum| rounding.sides(sum));
                let sides: Vec<Sides> = sides.collect();
                let undecided = sides.iter().map(|sides| sides.apart().powi(2)).sum();
                Ok((sides.iter().map(|sides| sides.value).collect(), undecided))
            })
            .collect::<Result<_, _>>()?;
        let (values, undecided): (Vec<Vec<f64>>, Vec<f64>) = outputs.into_iter().unzip();
        Ok(Reference::of_rows(
            self.hidden,
            rows.to_vec(),
            values.concat(),
            undecided,
        ))
    }

    /// What one expert makes of one token.
    fn expert(&self, expert: &Expert<'_>, x: &[bf16], rounding: Rounding) -> Vec<Sides> {
        let x: Vec<f64> = x.iter().map(|value| value.to_f64()).collect();
        let gates = expert.gate.chunks_exact(self.hidden);
        let h: Vec<Sides> = gates
            .zip(expert.up.chunks_exact(self.hidden))
            .map(|(gate, up)| {
                let [gate, up] = [gate, up].map(|weights| rounding.sides(dot(weights, &x)));
                self.activation(gate, up, rounding)
            })
            .collect();
        let values: Vec<f64> = h.iter().map(|sides| sides.value).collect();
        let undecided = h.iter().map(Sides::apart).enumerate();
        let undecided: Vec<(usize, f64)> = undecided.filter(|&(_, apart)| apart > 0.0).collect();
        let downs = expert.down.chunks_exact(h.len().max(1));
        downs
            .map(|down| {
                let mut sum = dot(down, &values);
                let off = undecided
                    .iter()
                    .map(|&(at, apart)| down[at].to_f64() * apart);
                sum.off = off.map(|off| off.powi(2)).sum();
                rounding.sides(sum)
            })
            .collect()
    }

    /// The activation of both sides of gate and up.
    fn activation(&self, gate: Sides, up: Sides, rounding: Rounding) -> Sides {
        let limit = self.swiglu_limit;
        // Comparisons, so that a NaN stays one.
        let clamp = |value: f64| if value > limit { limit } else { value };
        let of = |gate: f64, up: f64| {
            let (gate, up) = (clamp(gate), -clamp(-clamp(up)));
            let value = gate / (1.0 + (-gate).exp()) * up;
            rounding.sides(Sum {
                value,
                squares: value.powi(2),
                off: 0.0,
            })
        };
        let mut sides = of(gate.value, up.value);
        if gate.apart() > 0.0 || up.apart() > 0.0 {
            for (gate, up) in [
                (gate.low, up.low),
                (gate.low, up.high),
                (gate.high, up.low),
                (gate.high, up.high),
            ] {
                let other = of(gate, up);
                sides.low = sides.low.min(other.low);
                sides.high = sides.high.max(other.high);
            }
        }
        sides
    }
}

/// A sum in f64.
#[derive(Clone, Copy, Default)]
struct Sum {
    value: f64,
    /// Of its terms' squares.
    squares: f64,
    /// Of the squares of what its terms may be off by.
    off: f64,
}

impl Sum {
    fn add(&mut self, weight: f64, term: Sides) {
        let product = weight * term.value;
        self.value += product;
        self.squares += product.powi(2);
        self.off += (weight * term.apart()).powi(2);
    }
}

fn dot(weights: &[bf16], values: &[f64]) -> Sum {
    let mut sum = Sum::default();
    for (weight, value) in weights.iter().zip(values) {
        let term = weight.to_f64() * value;
        sum.value += term;
        sum.squares += term.powi(2);
    }
    sum
}

/// A value that was rounded, and what it may be rounded to otherwise.
#[derive(Clone, Copy)]
struct Sides {
    value: f64,
    low: f64,
    high: f64,
}

impl Sides {
    /// How far another side may be; 0 where one is not finite.
    fn apart(&self) -> f64 {
        let apart = (self.high - self.value).max(self.value - self.low);
        if apart.is_finite() { apart } else { 0.0 }
    }
}

/// The rounding points.
#[derive(Clone, Copy)]
enum Rounding {
    None,
    Bf16,
    /// To the nearer bf16, or the other one where f32 sums can't tell.
    EitherSide,
}

impl Rounding {
    /// What f32 sums may be off by, as a part of the norm of their terms: tensor cores truncate up to
    /// 32 partial sums, each of about that norm, by half of 2^-23 on average.
    const SPREAD: f64 = 1.0 / (1u32 << 19) as f64;

    fn round(self, value: f64) -> f64 {
        match self {
            Rounding::None => value,
            Rounding::Bf16 | Rounding::EitherSide => bf16::from_f64(value).to_f64(),
        }
    }

    fn sides(self, sum: Sum) -> Sides {
        let spread = match self {
            Rounding::None | Rounding::Bf16 => 0.0,
            Rounding::EitherSide => (Rounding::SPREAD.powi(2) * sum.squares + sum.off).sqrt(),
        };
        Sides {
            value: self.round(sum.value),
            low: self.round(sum.value - spread),
            high: self.round(sum.value + spread),
        }
    }
}
