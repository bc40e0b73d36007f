//! A rank that goes away in the middle of a call ends the others' waits at once.

use std::time::{Duration, Instant};

use mok::layer::{LayerError, MoeConfig, Path, Transport};
use mok::{Error, Result};
use mok_tests::rank::{Rank, try_on_ranks};

use super::errors::{TOKENS, WAYS, problem};
use super::numbers::ranks;

/// Where a rank goes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Leaves {
    BeforeSchedule,
    BeforeForward,
    /// By a panic.
    Panics,
}

/// Rank 1 goes; what the others' passes, and their next calls, tell.
fn run((transport, path): (Transport, Path), leaves: Leaves) -> Vec<(Result<()>, Result<()>)> {
    // Deadlines of minutes: nothing here waits for one.
    let config = MoeConfig::new(6, 64, 64, 2, TOKENS);
    let config = config.with_transport(transport).with_path(path);
    // Devices outlive their ranks: with one gone too, nobody is left to wait for, and time jumps to
    // the deadlines.
    let devices = ranks(3, 4);
    let ended = try_on_ranks(devices.iter().cloned(), |device, group| {
        let mut rank = Rank::new(&problem(config), &device, &group).unwrap();
        rank.pass().unwrap();
        group.barrier().unwrap();
        if group.rank() != 1 {
            let error = rank.pass();
            return Some((error, rank.workspace.recover()));
        }
        if leaves != Leaves::BeforeSchedule {
            rank.schedule(TOKENS).unwrap();
        }
        assert!(leaves != Leaves::Panics, "as asked for");
        None
    });
    let results = ended.into_iter();
    results.filter_map(|result| result.ok().flatten()).collect()
}

#[test]
fn the_others_are_told_who_is_lost() {
    let leaves = [
        Leaves::BeforeSchedule,
        Leaves::BeforeForward,
        Leaves::Panics,
    ];
    for way in WAYS {
        for leaves in leaves {
            let start = Instant::now();
            let results = run(way, leaves);
            assert_eq!(results.len(), 2);
            for (pass, recovered) in results {
                let error = pass.unwrap_err();
                let lost = matches!(
                    &error,
                    Error::Layer(LayerError::Lost { rank: 1, how: Some(how) })
                        if how.contains("panic") == (leaves == Leaves::Panics)
                );
                assert!(lost, "{way:?}, {leaves:?}: {error}");
                // It can't come back.
                let recovered = recovered.unwrap_err().to_string();
                assert!(recovered.contains("rank 1 is lost"), "{recovered}");
            }
            let took = start.elapsed();
            assert!(took < Duration::from_secs(20), "{way:?}: {took:?}");
        }
    }
}
