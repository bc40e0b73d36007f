//! The calls and their errors, as threads and as processes.

use crate::launch::{Job, run_threads};

/// Runs a body both ways.
fn both(world: usize, body: &str) -> [(&'static str, Vec<String>); 2] {
    [
        ("threads", run_threads(world, body)),
        ("processes", Job::of(world).run(body)),
    ]
}

#[track_caller]
fn all_say(world: usize, body: &str, expected: &str) {
    for (form, results) in both(world, body) {
        for (rank, result) in results.iter().enumerate() {
            assert!(result.contains(expected), "{form}, rank {rank}: {result}");
        }
    }
}

#[test]
fn every_call_on_1_2_4_and_8_ranks() {
    for world in [1, 2, 3, 4, 8] {
        for (form, results) in both(world, "everything") {
            for (rank, result) in results.iter().enumerate() {
                assert_eq!(*result, format!("ok {rank} of {world}"), "{form}");
            }
        }
    }
}

#[test]
fn every_call_on_72_ranks() {
    for (form, results) in both(72, "everything") {
        assert_eq!(results.len(), 72);
        for (rank, result) in results.iter().enumerate() {
            assert_eq!(*result, format!("ok {rank} of 72"), "{form}");
        }
    }
}

#[test]
fn many_calls_in_a_row() {
    all_say(4, "many", "ok ");
}

#[test]
fn different_calls_are_an_error_that_names_both() {
    for (form, results) in both(3, "mismatch") {
        for result in results {
            let both = result.contains("barrier (call 1 at")
                && result.contains("all_gather (call 1 at")
                && result.contains("bodies.rs:")
                && result.contains("rank 1 called all_gather");
            assert!(both, "{form}: {result}");
        }
    }
}

#[test]
fn a_deadline_names_the_rank_that_never_came() {
    let expected = "was not reached within 0.3 s by rank 2";
    all_say(3, "late", expected);
}

#[test]
fn an_abort_ends_the_others() {
    all_say(3, "abort", "rank 1 failed: bad shape");
}

#[test]
fn a_group_that_is_dropped_counts_as_lost() {
    for (form, results) in both(3, "leave") {
        assert_eq!(results[1], "ok left", "{form}");
        for rank in [0, 2] {
            let said = &results[rank];
            assert!(
                said.contains("rank 1 is lost: it dropped its group"),
                "{form}: {said}"
            );
        }
    }
}

#[test]
fn a_rank_that_panics_counts_as_lost() {
    for (form, results) in both(3, "panic") {
        for rank in [0, 2] {
            let said = &results[rank];
            // A process's own panic unwinds its thread too, before the process ends.
            assert!(
                said.contains("rank 1 is lost: its thread panicked"),
                "{form}: {said}"
            );
        }
    }
}

#[test]
fn messages_are_bounded() {
    let expected = format!(
        "{} bytes are more than a rank may send",
        mok_comm::MAX_BYTES + 1
    );
    all_say(3, "large", &expected);
}
