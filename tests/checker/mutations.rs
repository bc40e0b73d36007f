use std::collections::{BTreeMap, BTreeSet};

use mok::gemm::Form;
use mok::{Arch, Completion, EmulatorConfig};
use rayon::prelude::*;

use super::{COMPLETIONS, Case, Entry, cases, product, shipped};

/// Widths of the product, each with an arm of its own.
fn arms(entry: Entry) -> usize {
    match entry {
        // Whole panels.
        Entry::Plain(Form::Wgrad) => 3,
        _ => 20,
    }
}

/// What can be deleted from a kernel with nothing found, and why.
fn redundant(arch: Arch) -> &'static [(&'static str, &'static str)] {
    if arch.pairs() { &OF_PAIRS } else { &OF_BLOCKS }
}

/// The last block out counts the others and resets their words.
const COUNTED_OUT: (&str, &str) = (
    "atom.acq_rel.gpu.global.add.u64",
    "nobody draws a ticket after it was reset: atomics happen here where they are executed, and the ISA \
     lets relaxed ones of two words overtake each other",
);

const RESET: (&str, &str) = (
    "st.release.gpu.global.b64",
    "the next launch reads it, which the end of this one orders",
);

const OF_PAIRS: [(&str, &str); 3] = [
    COUNTED_OUT,
    RESET,
    (
        "fence.mbarrier_init.release.cluster",
        "the cluster barrier orders the initialisation for the threads of both blocks",
    ),
];

const OF_BLOCKS: [(&str, &str); 6] = [
    COUNTED_OUT,
    RESET,
    (
        "fence.mbarrier_init.release.cluster",
        "a cluster is one block here, and `bar.sync` orders the initialisation for its threads",
    ),
    (
        "wgmma.fence.sync.aligned; // @collective kernel/src/mma/wgmma.rs ?.fence",
        "nothing has touched the sums since the chunk's first fence; ptxas wants one in each stage",
    ),
    (
        "wgmma.fence.sync.aligned; // @collective kernel/src/mma/wgmma.rs ?.tail_fence",
        "likewise",
    ),
    (
        "wgmma.wait_group.sync.aligned 0; // @collective kernel/src/mma/wgmma.rs ?settle",
        "nothing is under way, which the compiler doesn't know",
    ),
];

/// A line without what changes from build to build and from arm to arm: places in files and copies.
fn without_places(line: &str) -> String {
    match line.split_once(" // @collective ") {
        None => line.to_owned(),
        Some((text, tag)) => {
            let (place, copy) = tag.split_once(" #").unwrap_or((tag, ""));
            let file = place.split(':').next().unwrap_or("");
            let what = copy.trim_start_matches(|c: char| c.is_ascii_digit());
            format!("{text} // @collective {file} ?{what}")
        }
    }
}

/// What can be deleted when copies complete at once, and why. Of pairs, whose blocks wait for each other
/// before they end, it may be missed or not when copies complete soon.
const REDUNDANT_EARLY: [(&str, &str); 1] = [(
    "cp.async.bulk.wait_group 0;",
    "it waits for the last copies out of the block's memory, before that is gone",
)];

/// Of a kernel of pairs with so many places where what is dealt is read, and so many initialisations of
/// relays' and panels' barriers that nobody uses.
macro_rules! spared_in_pairs {
    ($readers:literal, $unused:literal, $carried:literal) => {
        &[
            (
                "role/pair/bring.rs",
                $carried,
                "the carrier has what is dealt until every warp has filled a panel",
            ),
            (
                "mbarrier.arrive.release.cluster",
                $carried,
                "likewise",
            ),
            (
                "mbarrier.init",
                $unused,
                "without relays and panels nobody uses them",
            ),
            (
                "role/table.rs",
                1,
                "after the table is made: the cluster barrier follows",
            ),
            (
                "acquire.cluster.shared",
                $readers,
                "a tile's bytes are stored asynchronously, and here they are there for all whom the \
                 barrier tells so; the ISA wants an acquire of the writer's scope",
            ),
            (
                "try_wait.parity.shared",
                1,
                "the producer's last waits: commits arrive in order here, so those for stages before \
                 the one for the sums; the ISA doesn't say so",
            ),
            (
                "entry/pair.rs",
                1,
                "the cluster barrier is aligned, and waits here for lanes that are on their way",
            ),
            (
                "sync/pair.rs",
                1,
                "the wait for a warp's loads is the warp's, which orders its lanes here",
            ),
        ]
    };
}

/// Of the lines with this text, how many can be deleted, and why. The others can't.
fn spared(arch: Arch, entry: Entry) -> &'static [(&'static str, usize, &'static str)] {
    if arch.pairs() {
        return match entry {
            Entry::Plain(Form::Wgrad) => spared_in_pairs!(6, 0, 1),
            _ => spared_in_pairs!(3, 4, 0),
        };
    }
    match entry {
        Entry::Plain(Form::Wgrad) => &[(
            "try_wait",
            4,
            "full, before clear, three times: needed where the relay is a round behind, as in gemm's groups \
             of 300 rows and none; and wanted, which is about when to draw a tile, not whether it may be \
             dealt",
        )],
        _ => &[("mbarrier.init", 4, "without a relay nobody uses them")],
    }
}

/// All completions for each mutant with `cargo xtask test --all`, else one in turn.
fn completions(turn: usize) -> &'static [Completion] {
    match std::env::var_os("MOK_TEST_ALL") {
        Some(_) => &COMPLETIONS,
        None => &COMPLETIONS[turn % 3..][..1],
    }
}

/// What synchronises.
pub const SYNCHRONISES: [&str; 15] = [
    "fence",
    "try_wait",
    "commit_group",
    "wait_group",
    "arrive",
    "bar.sync",
    "bar.warp.sync",
    "mbarrier.init",
    "barrier.cluster",
    "tcgen05.commit",
    "tcgen05.wait",
    "tcgen05.dealloc",
    // Of words in device memory: counted and awaited.
    ".release.",
    ".acquire.",
    ".acq_rel.",
];

/// The lines of a kernel, from its entry to the next.
pub fn lines_of(ptx: &str, entry: &str) -> std::ops::Range<usize> {
    let name = format!(".entry {entry}(");
    let entries = ptx
        .lines()
        .enumerate()
        .filter(|(_, line)| line.contains(".visible .entry"));
    let entries: Vec<(usize, &str)> = entries.collect();
    let at = entries
        .iter()
        .position(|(_, line)| line.contains(&name))
        .unwrap();
    let end = entries
        .get(at + 1)
        .map_or(ptx.lines().count(), |(line, _)| *line);
    entries[at].0..end
}

/// What an instruction is replaced with.
pub fn mutants(lines: &[&str], at: usize) -> Vec<String> {
    let line = lines[at].trim();
    if line.starts_with("//") || !SYNCHRONISES.iter().any(|part| line.contains(part)) {
        return Vec::new();
    }
    let between = |from: &str, to: &str| {
        let rest = line.split_once(from).map_or("", |(_, rest)| rest);
        rest.split_once(to)
            .map_or("", |(inside, _)| inside)
            .to_owned()
    };
    if line.contains("try_wait") {
        // Without it the loop around it would never end; so it passes at once.
        let mut mutants = vec![format!("mov.b32 {}, 1;", between("selp.b32 ", ","))];
        if line.contains(".acquire.cluster") {
            mutants.push(line.replace(".acquire.cluster", ""));
        }
        return mutants;
    }
    // Without them something would be missing altogether, which isn't the question.
    if ["red.", "atom.", "ld.", "st."]
        .iter()
        .any(|word| line.starts_with(word))
    {
        let weaker = [".release.", ".acquire.", ".acq_rel."]
            .into_iter()
            .filter(|order| line.contains(order));
        return weaker
            .map(|order| line.replace(order, ".relaxed."))
            .collect();
    }
    let zero = format!("mov.b32 {}, 0;", between("], ", ";"));
    let expects_nothing = lines[at.saturating_sub(12)..at]
        .iter()
        .any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") == zero);
    let mut mutants = vec![String::new()];
    // An arrival in another block that tells of nothing.
    if line.contains("arrive.release.cluster.shared") {
        mutants.push(line.replace(".release.", ".relaxed."));
    }
    // One that expects nothing is an arrival as it is.
    if line.contains("expect_tx") && !expects_nothing {
        let bar = between("_, [", "]");
        mutants.push(format!("mbarrier.arrive.shared::cta.b64 _, [{bar}];"));
    }
    mutants
}

/// A line of an arm that one width of the product has for itself: the place in the source and what
/// it is there for, and the width.
pub fn arm(line: &str) -> Option<(&str, u32)> {
    let (_, tag) = line.split_once("// @collective ")?;
    let (place, copy) = tag.split_once(" #")?;
    if !place.contains("mma/wgmma.rs") {
        return None;
    }
    let digits = copy
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(copy.len());
    let (width, what) = copy.split_at(digits);
    Some((what, width.parse().ok()?))
}

/// A kernel, and what it gives.
struct Kernel<'a> {
    arch: Arch,
    entry: Entry,
    lines: Vec<&'a str>,
    right: Vec<(Case, Vec<u8>)>,
}

impl Kernel<'_> {
    /// Whether the kernel still gives what is right with other lines in place of some.
    fn survives(&self, case: usize, with: &[(usize, &str)], config: EmulatorConfig) -> bool {
        let mut text = self.lines.clone();
        for &(at, line) in with {
            text[at] = line;
        }
        let (case, right) = &self.right[case];
        product(&text.join("\n"), *case, config).is_ok_and(|d| d == *right)
    }

    /// Whether none of some lines is executed: traps in their places change nothing.
    fn unreached(&self, case: usize, of: &[usize]) -> bool {
        let traps: Vec<(usize, &str)> = of.iter().map(|&at| (at, "trap;")).collect();
        let config = EmulatorConfig {
            arch: self.arch,
            ..EmulatorConfig::default()
        };
        self.survives(case, &traps, config)
    }

    /// Those of some lines that may be executed: all that are, and few that aren't.
    fn candidates(&self, case: usize, of: &[usize]) -> Vec<usize> {
        if of.is_empty() || self.unreached(case, of) {
            return Vec::new();
        }
        if of.len() == 1 {
            return of.to_vec();
        }
        let (low, high) = of.split_at(of.len() / 2);
        let mut candidates = Vec::new();
        for half in [low, high] {
            match half.len() {
                // Its mutants will tell.
                1 => candidates.push(half[0]),
                _ => candidates.extend(self.candidates(case, half)),
            }
        }
        candidates
    }

    /// What goes wrong, or doesn't, without a line; nothing if the line isn't executed.
    fn without(&self, case: usize, at: usize) -> Option<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        for mutant in mutants(&self.lines, at) {
            for &completion in completions(at) {
                let config = EmulatorConfig {
                    arch: self.arch,
                    seed: at as u64,
                    completion,
                    ..EmulatorConfig::default()
                };
                outcomes.push(Outcome {
                    survives: self.survives(case, &[(at, &mutant)], config),
                    completion,
                    mutant: mutant.clone(),
                });
            }
        }
        let all_caught = outcomes.iter().all(|outcome| !outcome.survives);
        (all_caught || !self.unreached(case, &[at])).then_some(outcomes)
    }

    /// What isn't executed stands in arms of other widths, and is executed in this one's.
    fn check_unreached(&self, reached: &[usize], unreached: &[usize]) {
        if self.arch.pairs() {
            // The width is a number there.
            let lines: Vec<&str> = unreached.iter().map(|&at| self.lines[at]).collect();
            assert!(lines.is_empty(), "{:?}: {lines:#?}", self.entry);
            return;
        }
        let widths = |lines: &[usize]| {
            let mut widths: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
            for (what, width) in lines.iter().filter_map(|&at| arm(self.lines[at])) {
                widths.entry(what).or_default().push(width);
            }
            widths.values_mut().for_each(|widths| widths.sort());
            widths
        };
        let (here, elsewhere) = (widths(reached), widths(unreached));
        let [some, others] = [&here, &elsewhere].map(|widths| &widths[".fence"]);
        for (what, widths) in &here {
            assert_eq!(widths, some, "{:?}: {what}", self.entry);
            assert_eq!(
                elsewhere.get(what),
                Some(others),
                "{:?}: {what}",
                self.entry
            );
        }
        assert_eq!(here.len(), elsewhere.len());
        assert!(some.len() > 1, "{some:?}");
        assert_eq!(
            some.len() + others.len(),
            arms(self.entry),
            "{:?}",
            self.entry
        );
        // Without a tag: as many for each width.
        let mut plain: BTreeMap<&str, usize> = BTreeMap::new();
        for &at in unreached
            .iter()
            .filter(|&&at| arm(self.lines[at]).is_none())
        {
            let line = self.lines[at].trim();
            let what = SYNCHRONISES.iter().find(|part| line.contains(**part));
            *plain.entry(what.unwrap()).or_default() += 1;
        }
        for (what, count) in plain {
            assert!(
                ["try_wait", "arrive"].contains(&what) && count.is_multiple_of(others.len()),
                "{:?}: {count} times {what} unreached, {} widths",
                self.entry,
                others.len()
            );
        }
    }
}

/// A mutant's fate.
struct Outcome {
    mutant: String,
    completion: Completion,
    survives: bool,
}

fn caught(arch: Arch, entry: Entry) {
    let lines: Vec<&str> = shipped(arch).lines().collect();
    let cases = cases(arch).filter(|case| case.entry == entry);
    let right = cases.map(|case| {
        let config = EmulatorConfig {
            arch,
            ..EmulatorConfig::default()
        };
        let d = product(shipped(arch), case, config);
        (case, d.unwrap())
    });
    let kernel = Kernel {
        arch,
        entry,
        right: right.collect(),
        lines,
    };
    let all: Vec<usize> = lines_of(shipped(arch), entry.name())
        .filter(|&at| !mutants(&kernel.lines, at).is_empty())
        .collect();
    let (mut reached, mut left) = (BTreeSet::new(), all);
    // What is wrong with a line in the cases that came to it so far.
    let mut wrong: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for case in 0..kernel.right.len() {
        let candidates = kernel.candidates(case, &left).into_par_iter();
        let tried = candidates.filter_map(|at| Some((at, kernel.without(case, at)?)));
        for (at, outcomes) in tried.collect::<Vec<_>>() {
            reached.insert(at);
            let line = kernel.lines[at].trim();
            let line = &without_places(line);
            let is = |list: &[(&str, &str)]| list.iter().any(|(part, _)| line.starts_with(part));
            let mut faults = Vec::new();
            for outcome in outcomes {
                let survives = match outcome.completion {
                    _ if is(redundant(arch)) => Some(true),
                    Completion::Early => Some(is(&REDUNDANT_EARLY)),
                    Completion::Random if arch.pairs() && is(&REDUNDANT_EARLY) => None,
                    _ => Some(false),
                };
                if survives.is_some_and(|survives| outcome.survives != survives) {
                    faults.push(format!(
                        "line {}: `{}` for `{line}`, {:?}, {:?}",
                        at + 1,
                        outcome.mutant,
                        kernel.right[case].0,
                        outcome.completion
                    ));
                }
            }
            match faults.is_empty() {
                true => drop(wrong.remove(&at)),
                false => wrong.entry(at).or_default().extend(faults),
            }
        }
        // Once it is found to be needed, that is enough.
        left.retain(|at| !reached.contains(at) || wrong.contains_key(at));
    }
    let unreached: Vec<usize> = left
        .into_iter()
        .filter(|at| !reached.contains(at))
        .collect();
    let reached: Vec<usize> = reached.into_iter().collect();
    assert!(reached.len() > 20, "{reached:?}");
    kernel.check_unreached(&reached, &unreached);
    for (part, count, why) in spared(arch, entry) {
        let spare = wrong.extract_if(.., |&at, _| kernel.lines[at].contains(part));
        let spare: Vec<_> = spare.collect();
        assert_eq!(
            spare.len(),
            *count,
            "{arch:?} {entry:?}, {part}: {why}\n{spare:#?}"
        );
    }
    assert!(
        wrong.is_empty(),
        "{arch:?} {entry:?}: what is needed was not missed, or what is not was:\n{wrong:#?}"
    );
}

#[test]
fn all_that_forward_synchronises_is_needed() {
    caught(Arch::Sm90a, Entry::Plain(Form::Forward));
}

#[test]
fn all_that_dgrad_synchronises_is_needed() {
    caught(Arch::Sm90a, Entry::Plain(Form::Dgrad));
}

#[test]
fn all_that_wgrad_synchronises_is_needed() {
    caught(Arch::Sm90a, Entry::Plain(Form::Wgrad));
}

#[test]
fn all_that_gate_up_synchronises_is_needed() {
    caught(Arch::Sm90a, Entry::GateUp);
}

/// Here something comes beside the operands.
#[test]
fn all_that_pairs_synchronise_in_mxfp8_is_needed() {
    caught(Arch::Sm100a, Entry::Mxfp8);
}

/// The fixed side's, and both tiles of the wide side's: without one, products are scaled by what nobody wrote.
#[test]
fn each_copy_of_scales_is_needed() {
    let (arch, ptx) = (Arch::Sm100a, shipped(Arch::Sm100a));
    let case = cases(arch).find(|case| case.entry == Entry::Mxfp8).unwrap();
    let config = EmulatorConfig {
        arch,
        ..EmulatorConfig::default()
    };
    let right = product(ptx, case, config.clone()).unwrap();
    let lines: Vec<&str> = ptx.lines().collect();
    let is_copy = |at: &usize| lines[*at].contains("tcgen05.cp");
    let copies: Vec<usize> = lines_of(ptx, Entry::Mxfp8.name()).filter(is_copy).collect();
    assert_eq!(copies.len(), 3);
    for at in copies {
        let mut without = lines.clone();
        without[at] = "";
        let d = product(&without.join("\n"), case, config.clone());
        assert!(d.is_err() || d.is_ok_and(|d| d != right), "line {}", at + 1);
    }
}

/// With `cargo xtask test --all` in all kernels. wgrad's has every role and barrier of the others, whose way
/// out is Hopper's.
#[test]
fn all_that_pairs_synchronise_is_needed() {
    caught(Arch::Sm100a, Entry::Plain(Form::Wgrad));
    if std::env::var_os("MOK_TEST_ALL").is_some() {
        for entry in [
            Entry::Plain(Form::Forward),
            Entry::Plain(Form::Dgrad),
            Entry::GateUp,
        ] {
            caught(Arch::Sm100a, entry);
        }
    }
}
