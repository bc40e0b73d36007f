//! How long the emulator takes, said before it begins.

use anyhow::{Result, bail};

use super::problem::Problem;
use super::rank::Work;

/// Seconds after which nobody is asked to wait without having said so.
const LONG: f64 = 3600.0;

/// Says how long a run will take if that is long; refuses hours unless `force`.
pub fn admit(problem: &Problem, work: Work, force: bool) -> Result<()> {
    let seconds = seconds(problem) * (1 + work.runs) as f64;
    if seconds < 20.0 {
        return Ok(());
    }
    let time = match seconds {
        seconds if seconds < 120.0 => format!("{seconds:.0} seconds"),
        seconds if seconds < 2.0 * LONG => format!("{:.0} minutes", seconds / 60.0),
        seconds => format!("{:.0} hours", seconds / LONG),
    };
    if seconds > LONG && !force {
        bail!(
            "the emulator would need about {time} for this: take a smaller --shape or fewer --tokens, \
             a GPU, or --force"
        );
    }
    eprintln!("the emulator will need about {time}");
    Ok(())
}

/// Of one pass of all ranks on one of today's cores, within a factor of two: fitted to passes of
/// 0.2 to 20 seconds. Products are made of whole tiles, so rows that pad a segment cost like others.
fn seconds(problem: &Problem) -> f64 {
    let shape = &problem.shape;
    let tokens: usize = problem.tokens.iter().sum();
    let routes = tokens as f64 * f64::from(shape.top_k);
    let experts = f64::from(shape.experts.max(1));
    let each = routes / experts;
    let padded = match each {
        each if each > 64.0 => experts * (each + 64.0),
        // Experts that have a row at all have a tile.
        each => experts * 128.0 * (1.0 - (-each).exp()),
    };
    let shared = tokens as f64 + 128.0 * problem.tokens.len() as f64;
    let of = |rows: f64, inner: u32| {
        let (hidden, inner) = (f64::from(shape.hidden), f64::from(inner));
        4.2e-9 * rows * 3.0 * hidden * inner + 0.75e-6 * rows * (hidden + inner)
    };
    let moved = 0.75e-6 * routes * f64::from(shape.hidden + shape.intermediate);
    of(padded, shape.intermediate)
        + of(shared, shape.shared) * f64::from(shape.shared.min(1))
        + moved
}
