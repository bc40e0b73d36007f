use mok::EmulatorConfig;
use mok::gemm::Form;

use super::{COMPLETIONS, product, shipped};

/// What can be deleted from a kernel with nothing found, and why.
const REDUNDANT: [(&str, &str); 1] = [(
    "fence.mbarrier_init.release.cluster",
    "a cluster is one block here, and `bar.sync` orders the initialisation for its threads",
)];

/// What synchronises.
const SYNCHRONISES: [&str; 7] = [
    "fence",
    "try_wait",
    "commit_group",
    "wait_group",
    "arrive",
    "bar.sync",
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

fn caught(form: Form) {
    let lines: Vec<&str> = shipped().lines().collect();
    let right = product(shipped(), form, EmulatorConfig::default()).unwrap();
    let mut tried = 0;
    for at in lines_of(shipped(), form) {
        let line = lines[at].trim();
        for mutant in mutants(line) {
            tried += 1;
            let mut text = lines.clone();
            text[at] = &mutant;
            let text = text.join("\n");
            let redundant = REDUNDANT.iter().any(|(part, _)| line.starts_with(part));
            for completion in COMPLETIONS {
                let config = EmulatorConfig {
                    seed: at as u64,
                    completion,
                    ..EmulatorConfig::default()
                };
                let same = product(&text, form, config).is_ok_and(|d| d == right);
                assert_eq!(
                    same,
                    redundant,
                    "{form:?}, line {}: `{mutant}` for `{line}`, {completion:?}",
                    at + 1
                );
            }
        }
    }
    assert!(tried > 20, "{tried}");
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
