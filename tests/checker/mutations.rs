use std::collections::BTreeMap;

use mok::EmulatorConfig;
use mok::gemm::{Form, Sink};

use super::{CASES, COMPLETIONS, product, shipped};

/// Widths of the product, each with an arm of its own.
const WIDTHS: usize = 20;

/// What can be deleted from a kernel with nothing found, and why.
const REDUNDANT: [(&str, &str); 1] = [(
    "fence.mbarrier_init.release.cluster",
    "a cluster is one block here, and `bar.sync` orders the initialisation for its threads",
)];

/// What synchronises.
const SYNCHRONISES: [&str; 8] = [
    "fence",
    "try_wait",
    "commit_group",
    "wait_group",
    "arrive",
    "bar.sync",
    "bar.warp.sync",
    "mbarrier.init",
];

/// The lines of a kernel, from its entry to the next.
fn lines_of(ptx: &str, form: Form) -> std::ops::Range<usize> {
    let name = format!(".entry mok_gemm_{}(", form.name());
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
fn mutants(line: &str) -> Vec<String> {
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
        return vec![format!("mov.b32 {}, 1;", between("selp.b32 ", ","))];
    }
    let mut mutants = vec![String::new()];
    if line.contains("expect_tx") {
        let bar = between("_, [", "]");
        mutants.push(format!("mbarrier.arrive.shared::cta.b64 _, [{bar}];"));
    }
    mutants
}

/// A line of an arm that one width of the product has for itself: the place in the source and what
/// it is there for, and the width.
fn arm(line: &str) -> Option<(&str, u32)> {
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

/// A form's kernel, and what it gives.
struct Kernel<'a> {
    form: Form,
    lines: Vec<&'a str>,
    /// With each sink that is tried.
    right: Vec<(Sink, Vec<u8>)>,
}

impl Kernel<'_> {
    /// Whether the kernel still gives what is right with other lines in place of some.
    fn survives(&self, sink: usize, with: &[(usize, &str)], config: EmulatorConfig) -> bool {
        let mut text = self.lines.clone();
        for &(at, line) in with {
            text[at] = line;
        }
        let (sink, right) = &self.right[sink];
        product(&text.join("\n"), self.form, *sink, config).is_ok_and(|d| d == *right)
    }

    /// Appends those of some lines that are executed.
    fn reached(&self, sink: usize, of: &[usize], reached: &mut Vec<usize>) {
        let traps: Vec<(usize, &str)> = of.iter().map(|&at| (at, "trap;")).collect();
        if of.is_empty() || self.survives(sink, &traps, EmulatorConfig::default()) {
            return;
        }
        if let [line] = of {
            reached.push(*line);
            return;
        }
        let (low, high) = of.split_at(of.len() / 2);
        self.reached(sink, low, reached);
        self.reached(sink, high, reached);
    }

    /// What isn't executed stands in arms of other widths, and is executed in this one's.
    fn check_unreached(&self, reached: &[usize], unreached: &[usize]) {
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
            assert_eq!(widths, some, "{:?}: {what}", self.form);
            assert_eq!(elsewhere.get(what), Some(others), "{:?}: {what}", self.form);
        }
        assert_eq!(here.len(), elsewhere.len());
        assert!(some.len() > 1, "{some:?}");
        assert_eq!(some.len() + others.len(), WIDTHS, "{:?}", self.form);
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
                self.form,
                others.len()
            );
        }
    }
}

fn caught(form: Form) {
    let lines: Vec<&str> = shipped().lines().collect();
    let sinks = CASES.iter().filter(|case| case.0 == form);
    let right = sinks.map(|&(_, sink)| {
        let d = product(shipped(), form, sink, EmulatorConfig::default());
        (sink, d.unwrap())
    });
    let kernel = Kernel {
        form,
        right: right.collect(),
        lines,
    };
    let all: Vec<usize> = lines_of(shipped(), form)
        .filter(|&at| !mutants(kernel.lines[at].trim()).is_empty())
        .collect();
    // Each line with the first sink that comes to it.
    let (mut tried, mut left) = (Vec::new(), all);
    for sink in 0..kernel.right.len() {
        let mut reached = Vec::new();
        kernel.reached(sink, &left, &mut reached);
        left.retain(|at| !reached.contains(at));
        tried.extend(reached.iter().map(|&at| (at, sink)));
    }
    let reached: Vec<usize> = tried.iter().map(|&(at, _)| at).collect();
    kernel.check_unreached(&reached, &left);
    assert!(tried.len() > 20, "{tried:?}");
    let mut wrong = Vec::new();
    for (at, sink) in tried {
        let line = kernel.lines[at].trim();
        for mutant in mutants(line) {
            let redundant = REDUNDANT.iter().any(|(part, _)| line.starts_with(part));
            for completion in COMPLETIONS {
                let config = EmulatorConfig {
                    seed: at as u64,
                    completion,
                    ..EmulatorConfig::default()
                };
                if kernel.survives(sink, &[(at, &mutant)], config) != redundant {
                    wrong.push(format!(
                        "line {}: `{mutant}` for `{line}`, {:?}, {completion:?}",
                        at + 1,
                        kernel.right[sink].0
                    ));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{form:?}: what is needed was not missed, or what is not was:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn all_that_forward_synchronises_is_needed() {
    caught(Form::Forward);
}

#[test]
fn all_that_dgrad_synchronises_is_needed() {
    caught(Form::Dgrad);
}

#[test]
fn all_that_wgrad_synchronises_is_needed() {
    caught(Form::Wgrad);
}
