//! Whether `setmaxnreg` asks for registers that a block never has.

use super::{Check, Failure};
use crate::ptx::{self, Entry, Module};

/// A warpgroup.
const GROUP: u64 = 128;

/// What is wrong where one warpgroup decreases and all others increase, as in a producer and its
/// consumers; `registers` a thread are what ptxas gave the entry.
///
/// An `inc` that the block's registers cannot serve waits for ever (PTX ISA, "setmaxnreg"). Who
/// executes which can't be told from the text in general: with several counts of a kind, or no
/// known number of warpgroups, nothing is said.
pub(super) fn failure(module: &Module, entry: &Entry, registers: u32) -> Option<Failure> {
    let (mut less, mut more) = (Counts::None, Counts::None);
    let mut words = module.words(entry.body.clone());
    while let Some(word) = words.next() {
        let mut parts = word.text.split('.');
        if parts.next() != Some("setmaxnreg") {
            continue;
        }
        let counts = match parts.next() {
            Some("dec") => &mut less,
            Some("inc") => &mut more,
            _ => return None,
        };
        let count = words.next().and_then(|count| ptx::integer(count.text))?;
        *counts = match *counts {
            Counts::None => Counts::One(count, word.at),
            Counts::One(same, at) if same == count => Counts::One(count, at),
            _ => return None,
        };
    }
    let (Counts::One(less, _), Counts::One(more, at)) = (less, more) else {
        return None;
    };
    let threads = threads(module, entry).filter(|threads| threads % GROUP == 0)?;
    let groups = (threads / GROUP).checked_sub(1)?;
    // Hardware gives registers in units of 8 a thread.
    let given = u64::from(registers).next_multiple_of(8);
    let wanted = less.saturating_add(groups.saturating_mul(more));
    let all = (groups + 1).saturating_mul(given);
    (wanted > all).then(|| {
        let found = format!(
            "dec to {less} and {groups} x inc to {more} are {wanted}, of {} x {given} = {all} at launch",
            groups + 1
        );
        Failure::new(&entry.name, Check::RegisterPool, Some(module.line(at)), found)
    })
}

/// Counts of `dec`, or of `inc`.
#[derive(Clone, Copy)]
enum Counts {
    None,
    /// One, and where it stands first.
    One(u64, usize),
}

/// Threads of a block.
fn threads(module: &Module, entry: &Entry) -> Option<u64> {
    let mut words = module.words(entry.directives.clone());
    words.find(|word| [".reqntid", ".maxntid"].contains(&word.text))?;
    let numbers = words.map_while(|word| ptx::integer(word.text));
    numbers.take(3).reduce(u64::saturating_mul)
}
