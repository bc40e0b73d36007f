//! Ranks that are killed in the middle.

use std::io::{BufRead, BufReader};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::launch::{Job, Rank};

/// How long the others may take to notice.
const AT_ONCE: Duration = Duration::from_secs(3);

/// Waits until a rank says that it watches.
fn watching(rank: &mut Rank) {
    let mut lines = BufReader::new(rank.child.stdout.as_mut().expect("piped")).lines();
    assert!(lines.any(|line| line.is_ok_and(|line| line.contains("watching"))));
}

fn kill_one(body: &str, victim: usize) -> Vec<String> {
    let job = Job::of(4);
    let mut ranks = job.start_all(body);
    if body == "watch" {
        ranks.iter_mut().for_each(watching);
    } else {
        thread::sleep(Duration::from_millis(300));
    }
    let mut dead = ranks.remove(victim);
    dead.kill();
    let killed = Instant::now();
    let results = ranks.into_iter().map(|rank| rank.result(AT_ONCE)).collect();
    assert!(killed.elapsed() < AT_ONCE);
    results
}

#[test]
fn a_kill_is_noticed_at_once_in_a_call_and_between_calls() {
    for body in ["barriers", "watch"] {
        for victim in [0, 2] {
            for result in kill_one(body, victim) {
                let expected = format!("rank {victim} is lost: its connection closed");
                assert!(result.contains(&expected), "{body}: {result}");
            }
        }
    }
}

#[test]
fn a_kill_while_others_are_still_to_come_is_noticed_at_once() {
    for (killed, left) in [(1, 0), (0, 1)] {
        let job = Job::of(3);
        let left = job.start(left, "everything");
        let mut dead = job.start(killed, "everything");
        thread::sleep(Duration::from_millis(400));
        dead.kill();
        let result = left.result(AT_ONCE);
        let expected = format!("join: rank {killed} is lost: its connection closed");
        assert!(result.contains(&expected), "{result}");
    }
}

/// A stopped process is no dead one: only the deadline tells.
#[cfg(target_os = "linux")]
#[test]
fn a_stopped_rank_ends_in_the_deadline() {
    for victim in [0u32, 2] {
        let job = Job::of(3);
        let mut ranks = job.start_all("barriers briefly");
        thread::sleep(Duration::from_millis(300));
        let mut stopped = ranks.remove(victim as usize);
        let stop = std::process::Command::new("kill")
            .args(["-STOP", &stopped.child.id().to_string()])
            .status();
        assert!(stop.expect("kill runs").success());
        for rank in ranks {
            let result = rank.result(Duration::from_secs(10));
            let expected = match victim {
                0 => "no answer from rank 0's process within 5.5 s",
                _ => "was not reached within 0.5 s by rank 2",
            };
            assert!(result.contains(expected), "{result}");
        }
        stopped.kill();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whenever the kill comes, also in the rendezvous, every other rank ends with an error.
    #[test]
    fn a_kill_at_any_time_never_hangs_the_others(world in 2usize..6, victim in 0usize..6, after_ms in 0u64..150) {
        let victim = victim % world;
        let mut job = Job::of(world);
        job.deadline_ms = 1500;
        let mut ranks = job.start_all("barriers");
        thread::sleep(Duration::from_millis(after_ms));
        let mut dead = ranks.remove(victim);
        dead.kill();
        let results = ranks.into_iter().map(|rank| rank.result(Duration::from_secs(8)));
        let results: Vec<String> = results.collect();
        // Rank 0 may have learned of the loss and ended before a slow rank reached it.
        let ended = victim == 0 || results[0].contains(&format!("rank {victim} is lost"));
        for result in &results {
            let known = [
                format!("rank {victim} is lost"),
                format!("these never came within 1.5 s: {victim}"),
                "found no rank 0 of its job".into(),
            ];
            prop_assert!(known.iter().any(|known| result.contains(known)), "{}", result);
            prop_assert!(ended || !result.contains("no rank 0"), "{}", result);
        }
    }
}
