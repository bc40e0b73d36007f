//! A rank that is killed while others map its memory.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};

use crate::launch::{Job, Rank};

fn watching(rank: &mut Rank) -> Result<(), Failed> {
    let stdout = rank.child.stdout.as_mut().ok_or("no output")?;
    let said = BufReader::new(stdout)
        .lines()
        .any(|line| line.is_ok_and(|line| line.contains("watching")));
    if said {
        Ok(())
    } else {
        Err("a rank ended before it watched".into())
    }
}

fn kill(victim: usize) -> Result<(), Failed> {
    let mut ranks = Job::of(2).start_all("survive a killed peer");
    for rank in &mut ranks {
        watching(rank)?;
    }
    let mut dead = ranks.remove(victim);
    dead.kill();
    let result = ranks.remove(0).result(Duration::from_secs(60));
    let expected = format!("ok rank {victim} is lost: its connection closed");
    if !result.starts_with(&expected) {
        return Err(result.into());
    }
    // The dead rank's memory is free again for who comes next.
    crate::check("afterwards", Job::of(2).run("write and read"))
}

pub fn trials() -> Vec<Trial> {
    let trial = |victim| {
        Trial::test(format!("rank {victim} is killed, processes"), move || {
            kill(victim)
        })
    };
    [0, 1].map(trial).into()
}
