//! Whatever synchronises a forward pass in one launch is needed.

use std::sync::Arc;
use std::time::Duration;

use half::bf16;
use mok::layer::{Group, MoeConfig, Path, Workspace};
use mok::{Arch, Completion, Device, EmulatorConfig, Error, Module, Result};
use mok_kernel::forward::FORWARD;
use mok_tests::layer::{Problem, Routing};
use mok_tests::rank::{Rank, try_on_ranks};
use rayon::prelude::*;

use super::mutations::{lines_of, mutants};
use super::shipped;

/// What is deleted or weakened is tried in these ways until one misses it. The interleavings differ, and those of two ranks
/// from run to run: they are threads.
const TRIES: u64 = 32;

fn config(number: u64) -> EmulatorConfig {
    EmulatorConfig {
        seed: number,
        sms: 2 + number as u32 % 2,
        completion: [Completion::Late, Completion::Random, Completion::Early][number as usize % 3],
        reverse: number % 4 == 3,
        starved_warp: (number % 5 == 2).then_some(number as u32 % 12),
        ..EmulatorConfig::default()
    }
}

/// Two ranks with more strips than places, of some eight rows: what goes by copies and what goes by stores. Or no
/// routes at all.
fn problem(routing: Routing) -> Problem {
    let config = MoeConfig::new(14, 64, 128, 2, 64)
        .with_shared(64)
        .with_path(Path::Fused)
        .with_minibatch_rows(256)
        .with_macrobatch_rows(1024)
        // Of a rank that waits for one that has found a fault.
        .with_deadlines(Duration::from_millis(20), Duration::from_millis(20));
    Problem::new(config, &[64, 30], routing, 3)
}

/// What all ranks give with these kernels; `None` if anything is found. Time passes by itself where a rank's thread is
/// held up, so that a rank which only waited in vain is asked again.
fn outputs(problem: &Problem, ptx: &str, config: EmulatorConfig) -> Option<Vec<Vec<bf16>>> {
    let mut again = 0;
    loop {
        let devices = Device::emulated_peers(config.clone(), problem.tokens.len()).unwrap();
        let of_rank = |device: Device, group: Arc<Group>| -> Result<Vec<bf16>> {
            let module = Module::from_ptx(&device, ptx)?;
            let workspace = Workspace::from_module(&device, &group, &problem.config, &module)?;
            let mut rank = Rank::with(problem, &device, workspace, &group)?;
            // Nobody's time passes before all have their weights.
            group.barrier()?;
            rank.output()
        };
        let ranks = try_on_ranks(devices, of_rank);
        let in_vain = |error: &Error| matches!(error, Error::Layer(_) | Error::Comm(_));
        let found = ranks.iter().any(|rank| match rank {
            Ok(Err(error)) => !in_vain(error),
            Ok(Ok(_)) => false,
            Err(_) => true,
        });
        let all: Option<Vec<_>> = ranks.into_iter().map(|rank| rank.ok()?.ok()).collect();
        again += 1;
        if all.is_some() || found || again == 5 {
            return all;
        }
    }
}

/// Whether a line orders what only this kernel does: words in device memory, and what its own roles wait for.
/// What it shares with the kernels of products is missed there.
fn own(line: &str) -> bool {
    let parts = [
        ".release.gpu",
        ".acquire.gpu",
        ".acq_rel.gpu",
        ".release.sys",
        ".acquire.sys",
        "role/forward/",
        "entry/forward.rs",
        "fence.proxy.async;",
        "cp.async.bulk.wait_group 0;",
    ];
    parts.iter().any(|part| line.contains(part))
}

/// What isn't missed: the barrier behind it is aligned, and waits here for lanes that are on their way.
const SPARED: &str = "#together";

/// A line, and what it is replaced with.
type Mutant = (usize, String);

/// What is replaced together with a line. The compiler makes two looks of a wait for a word, the first before its loop:
/// where it is seldom there so early, only the other one matters.
fn all_copies(lines: &[&str], (at, mutant): Mutant) -> Vec<Mutant> {
    let operand = |line: &str| Some(line.split_once('[')?.1.to_owned());
    let waits = |line: &str| line.contains("ld.acquire.gpu");
    let pauses = |lines: &[&str]| lines.iter().any(|line| line.contains("nanosleep"));
    let first = waits(lines[at]) && !pauses(&lines[at.saturating_sub(8)..at]);
    let mut all = vec![(at, mutant)];
    if first && pauses(&lines[at..][..24]) {
        let again = (at + 1..lines.len())
            .find(|&next| waits(lines[next]) && operand(lines[next]) == operand(lines[at]));
        let again = again.expect("the look in the loop");
        all.extend(mutants(lines, again).pop().map(|mutant| (again, mutant)));
    }
    all
}

/// A kernel, and what it gives.
struct Pass<'a> {
    lines: Vec<&'a str>,
    right: Vec<(Problem, Vec<Vec<bf16>>)>,
}

impl Pass<'_> {
    /// Whether nothing is missed with other lines in place of some.
    fn survives(&self, with: &[Mutant], number: u64) -> bool {
        let mut text = self.lines.clone();
        for (at, line) in with {
            text[*at] = line;
        }
        let text = text.join("\n");
        self.right.iter().all(|(problem, right)| {
            outputs(problem, &text, config(number)).is_some_and(|all| all == *right)
        })
    }

    /// Those of some lines that are executed: with a trap in place of one, a rank fails.
    fn executed(&self, of: &[usize]) -> Vec<usize> {
        let traps: Vec<Mutant> = of.iter().map(|&at| (at, "trap;".to_owned())).collect();
        if self.survives(&traps, 0) {
            return Vec::new();
        }
        if of.len() == 1 {
            return of.to_vec();
        }
        let (low, high) = of.split_at(of.len() / 2);
        [self.executed(low), self.executed(high)].concat()
    }
}

/// With `cargo xtask test --all`: hundreds of passes, on two ranks whose time may pass by itself where others keep the
/// machine busy.
#[test]
fn all_that_a_pass_synchronises_is_needed() {
    if std::env::var_os("MOK_TEST_ALL").is_none() {
        return;
    }
    let ptx = shipped(Arch::Sm90a);
    let right = [Routing::Loose, Routing::Nobody].map(|routing| {
        let problem = problem(routing);
        let right = outputs(&problem, ptx, config(0)).expect("the kernel is clean");
        (problem, right)
    });
    let pass = Pass {
        lines: ptx.lines().collect(),
        right: right.into(),
    };
    let clean = (1..TRIES).into_par_iter();
    assert!(
        clean
            .map(|number| pass.survives(&[], number))
            .all(|clean| clean)
    );
    let lines = &pass.lines;
    let all = lines_of(ptx, FORWARD.entry).filter(|&at| own(lines[at]));
    let (other_ranks, mut tried): (Vec<usize>, Vec<usize>) = all
        .filter(|&at| !mutants(lines, at).is_empty())
        .partition(|&at| lines[at].contains("st.release.sys") || lines[at].contains(".cas."));
    // Most of these tell of a failure.
    let executed = pass.executed(&other_ranks);
    assert!(!executed.is_empty());
    tried.extend(executed);
    assert!(tried.len() > 40, "{}", tried.len());
    let survivors: Vec<Vec<Mutant>> = tried
        .into_par_iter()
        .filter(|&at| !lines[at].contains(SPARED))
        .flat_map_iter(|at| {
            let mutants = mutants(lines, at).into_iter();
            mutants.map(move |mutant| all_copies(lines, (at, mutant)))
        })
        .filter(|with| (0..TRIES).all(|number| pass.survives(with, number)))
        .collect();
    assert!(
        survivors.is_empty(),
        "what is needed was not missed: {survivors:#?}"
    );
}
