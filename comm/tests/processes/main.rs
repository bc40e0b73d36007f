//! Ranks as processes and as threads, with the same bodies; what goes wrong; who intrudes.

mod bodies;
mod collectives;
mod deaths;
#[path = "../support/launch.rs"]
mod launch;
mod rendezvous;

/// How this program is told to be a rank.
const CHILD_ARGS: &[&str] = &["--exact", "rank_process", "--nocapture"];

/// The copies run this "test"; elsewhere it does nothing.
#[test]
fn rank_process() {
    launch::run_as_rank();
}
