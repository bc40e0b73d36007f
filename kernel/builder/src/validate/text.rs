//! What can be seen in the PTX itself.

use std::collections::BTreeMap;

use super::{Check, Failure};
use crate::ptx::{Entry, Module, Word};

/// How a collective names its place in the source, inside its asm:
/// `// @collective kernel/src/role/load.rs:51:9`.
///
/// ` x4` after it: the source unrolls it, up to 4 copies are meant. ` #3` or
/// ` #3.left` after it: one copy that a macro made, told apart from its others.
pub const TAG: &str = "@collective";

/// Violations in one entry. The same kind is reported once, with a count.
pub(super) fn failures(module: &Module, entry: &Entry) -> Vec<Failure> {
    let mut seen: Vec<(Check, usize, String, usize)> = Vec::new();
    let mut note = |check: Check, at: usize, what: &str| match seen
        .iter_mut()
        .find(|(known, _, first, _)| *known == check && first == what)
    {
        Some((.., count)) => *count += 1,
        None => seen.push((check, at, what.to_owned(), 1)),
    };
    for word in module.words(entry.body.clone()) {
        let mut parts = word.text.split('.').filter(|part| !part.is_empty());
        let first = parts.clone().next().unwrap_or_default();
        let dotted = word.text.contains('.');
        if dotted && parts.any(|part| part == "local") {
            note(Check::Local, word.at, word.text);
        } else if first == "alloca" && dotted {
            note(Check::Stack, word.at, word.text);
        } else if first == "brx" && dotted {
            note(Check::IndirectBranch, word.at, word.text);
        } else if first == "call" && !word.text.starts_with('.') && has_operand(module, &word) {
            note(Check::Call, word.at, word.text);
        } else if is_panic(word.text) {
            note(Check::Panic, word.at, word.text);
        }
    }
    let mut failures: Vec<Failure> = seen
        .into_iter()
        .map(|(check, at, what, count)| {
            let times = if count > 1 {
                format!(", {count} times")
            } else {
                String::new()
            };
            Failure::new(
                &entry.name,
                check,
                Some(module.line(at)),
                format!("{what}{times}"),
            )
        })
        .collect();
    failures.extend(copied_collectives(module, entry));
    failures
}

/// Whether a word is followed by an operand: an instruction, not a label or a
/// variable of that name, behind which there is `:`, `;` or `,`.
fn has_operand(module: &Module, word: &Word) -> bool {
    let next = module.after_blanks(word.end());
    next.is_some_and(|byte| byte.is_ascii_alphanumeric() || b"(_$%".contains(&byte))
}

/// How many tagged collectives an entry has.
pub(super) fn collectives(module: &Module, entry: &Entry) -> usize {
    tags(module, entry).count()
}

fn tags<'m>(module: &'m Module, entry: &Entry) -> impl Iterator<Item = (usize, &'m str)> {
    module
        .comments(entry.body.clone())
        .filter_map(|(at, comment)| {
            let tag = comment.strip_prefix(TAG)?;
            Some((at, tag.trim()))
        })
}

fn copied_collectives(module: &Module, entry: &Entry) -> Vec<Failure> {
    let mut failures = Vec::new();
    // Place in the source -> copies meant, copies found, where the one too many is.
    let mut places: BTreeMap<&str, (usize, usize, usize)> = BTreeMap::new();
    for (at, tag) in tags(module, entry) {
        let Some(meant) = copies(tag) else {
            let found = format!("`{TAG} {tag}` names no place: write file:line:column");
            let line = Some(module.line(at));
            failures.push(Failure::new(&entry.name, Check::Collective, line, found));
            continue;
        };
        let place = places.entry(tag).or_insert((meant, 0, at));
        place.1 += 1;
        if place.1 - 1 == meant {
            place.2 = at;
        }
    }
    for (tag, (meant, found, at)) in places {
        if found > meant {
            let found = format!("{tag}: emitted {found} times, {meant} meant");
            let line = Some(module.line(at));
            failures.push(Failure::new(&entry.name, Check::Collective, line, found));
        }
    }
    failures
}

/// How many copies a tag allows; `None` if it is not a tag's form.
fn copies(tag: &str) -> Option<usize> {
    let mut words = tag.split_whitespace();
    let place = words.next()?;
    let mut numbers = place.rsplit(':').take(2);
    let number = |text: Option<&str>| text.is_some_and(|text| text.parse::<u32>().is_ok());
    if !number(numbers.next()) || !number(numbers.next()) {
        return None;
    }
    let mut meant = 1;
    for word in words {
        if let Some(count) = word.strip_prefix('x') {
            meant = count.parse().ok()?;
        } else {
            word.strip_prefix('#').filter(|name| !name.is_empty())?;
        }
    }
    Some(meant)
}

/// Symbols of Rust's panic machinery, mangled either way. What `core` panics through
/// is named `..._fail` or `..._failed` where it isn't named after the panic.
fn is_panic(word: &str) -> bool {
    const NAMES: &[&str] = &["rust_begin_unwind", "rust_panic", "rust_eh_personality"];
    let mangled = word.starts_with("_ZN") || word.starts_with("_R");
    let of_core = mangled && word.contains("4core");
    NAMES.iter().any(|name| word.contains(name))
        || (mangled && word.contains("panic"))
        || (of_core && word.contains("_fail"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_their_copies() {
        assert_eq!(copies("kernel/src/role/load.rs:51:9"), Some(1));
        assert_eq!(copies("a.rs:51:9 x4"), Some(4));
        assert_eq!(copies("a.rs:51:9 #3"), Some(1));
        assert_eq!(copies("a.rs:51:9 #3.left"), Some(1));
        assert_eq!(copies("a.rs:51:9 x4 #3"), Some(4));
        for bad in [
            "",
            "a.rs",
            "a.rs:51",
            "a.rs:51:9 four",
            "a.rs:51:9 xx",
            "a.rs:51:9 #",
        ] {
            assert_eq!(copies(bad), None, "{bad}");
        }
    }

    #[test]
    fn panic_symbols() {
        assert!(is_panic("_ZN4core9panicking5panic17h0123456789abcdefE"));
        assert!(is_panic("_RNvNtCs1_4core9panicking5panic"));
        assert!(is_panic("_RNvCs1_7___rustc17rust_begin_unwind"));
        assert!(is_panic("_RNvNtCs1_4core6option13expect_failed"));
        assert!(is_panic(
            "_ZN4core5slice5index16slice_index_fail17h0123456789abcdefE"
        ));
        assert!(!is_panic("panic_free_kernel"));
        assert!(!is_panic("_RNvCs1_6kernel10count_fail"));
    }
}
