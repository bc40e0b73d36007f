//! A rank that comes when the others have given up waiting for it: the call ends on every rank.

use std::time::Duration;

use mok::layer::{LayerError, MoeConfig, Path};
use mok::{Error, Result};
use mok_tests::layer::{Problem, Routing};
use mok_tests::rank::{Rank, on_ranks};

use super::numbers::ranks;

/// All rows are of one rank, which the others don't wait for as long as it needs.
fn passes(path: Path, progress: Duration) -> Vec<Result<()>> {
    let config = MoeConfig::new(3, 64, 512, 1, 200)
        .with_schedule_capacity(640)
        .with_deadlines(Duration::from_secs(600), progress)
        .with_path(path);
    let problem = Problem::new(config, &[200, 200, 200], Routing::OneExpert, 1);
    on_ranks(ranks(3, 5), |device, group| {
        let mut rank = Rank::new(&problem, &device, &group).unwrap();
        let passed = rank.output();
        assert_eq!(rank.outputs_are_nan(), passed.is_err());
        // Nobody goes before all have seen what came of it.
        rank.workspace.recover().unwrap();
        passed.map(drop)
    })
}

#[test]
fn the_late_rank_fails_with_the_others() {
    fails_with_the_others(Path::Unfused);
}

#[test]
fn in_one_launch_too() {
    fails_with_the_others(Path::Fused);
}

fn fails_with_the_others(path: Path) {
    for passed in passes(path, Duration::from_secs(30)) {
        passed.unwrap();
    }
    for (rank, passed) in passes(path, Duration::from_micros(50))
        .into_iter()
        .enumerate()
    {
        let error = passed.unwrap_err();
        let told = matches!(
            error,
            Error::Layer(LayerError::Deadline { .. } | LayerError::Aborted { .. })
        );
        assert!(told, "rank {rank}: {error}");
    }
}
