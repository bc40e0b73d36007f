//! A rank that is killed in the middle of its passes.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};

use crate::bodies::{Body, RUNNING};
use crate::launch::{Job, Rank};

/// How soon the others must know: by being told, since their deadlines are longer.
const SOON: Duration = Duration::from_secs(20);

/// Waits until a rank has made passes.
fn running(rank: &mut Rank) -> Result<(), Failed> {
    let stdout = rank.child.stdout.as_mut().ok_or("no output")?;
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        if line.contains(RUNNING) {
            return Ok(());
        }
        if line.contains("RESULT") {
            return Err(line.into());
        }
    }
    Err("a rank ended before it had made a pass".into())
}

fn kill(ranks: usize, victim: usize, body: Body) -> Result<(), Failed> {
    let mut all = Job::of(ranks).start_all(&body.to_string());
    for rank in &mut all {
        running(rank)?;
    }
    let mut dead = all.remove(victim);
    let start = Instant::now();
    dead.kill();
    for rank in all {
        let number = rank.rank;
        let result = rank.result(Duration::from_secs(60));
        let expected = format!("ok rank {victim} is lost (its connection closed");
        if !result.starts_with(&expected) {
            return Err(format!("rank {number}: {result}").into());
        }
    }
    let took = start.elapsed();
    if took > SOON {
        return Err(format!("the others knew after {took:?}").into());
    }
    Ok(())
}

pub fn trial(ranks: usize, victim: usize, body: Body) -> Trial {
    let name = format!("{body}, rank {victim} of {ranks} processes is killed");
    Trial::test(name, move || kill(ranks, victim, body))
}
