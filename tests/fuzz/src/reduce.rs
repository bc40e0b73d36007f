//! Shortening a program while two devices still disagree on it.

use crate::operands::register_bits;
use crate::program::{Item, Place, Program, Step};
use crate::run::Output;

/// One word that two devices disagree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Thread, counted over all blocks.
    pub thread: usize,
    /// Word of its exact output.
    pub word: u32,
    /// The two values.
    pub values: [u64; 2],
}

/// The first word in the order of the program that differs in any thread.
pub fn mismatch(program: &Program, outputs: [&Output; 2]) -> Option<Mismatch> {
    let words = program.words.max(1) as usize;
    let [a, b] = outputs.map(|output| &output.exact);
    let differing = a.iter().zip(b).enumerate().filter(|(_, (a, b))| a != b);
    differing
        .map(|(at, (a, b))| Mismatch {
            thread: at / words,
            word: (at % words) as u32,
            values: [*a, *b],
        })
        .min_by_key(|found| (found.word, found.thread))
}

/// What becomes of an item.
enum Change {
    Keep,
    Drop,
    Become(Vec<Item>),
}

/// Items are numbered in the order of the text, outer ones before inner ones.
fn rebuilt(
    items: &[Item],
    next: &mut usize,
    change: &mut dyn FnMut(usize, &Item) -> Change,
) -> Vec<Item> {
    let mut built = Vec::new();
    for item in items {
        let number = *next;
        *next += 1;
        let mut item = item.clone();
        let change_here = change(number, &item);
        for part in item.parts_mut() {
            *part = rebuilt(part, next, change);
        }
        match change_here {
            Change::Keep => built.push(item),
            Change::Drop => {}
            Change::Become(items) => built.extend(items),
        }
    }
    built
}

fn changed(program: &Program, change: &mut dyn FnMut(usize, &Item) -> Change) -> Program {
    let mut next = 0;
    let mut changed = program.clone();
    changed.main.items = rebuilt(&program.main.items, &mut next, change);
    for (body, new) in program.functions.iter().zip(&mut changed.functions) {
        new.items = rebuilt(&body.items, &mut next, change);
    }
    changed
}

fn count(program: &Program) -> usize {
    let mut count = 0;
    changed(program, &mut |_, _| {
        count += 1;
        Change::Keep
    });
    count
}

/// What stands in for a branch, a loop or a call: its parts, without it.
fn inside(program: &Program, item: &Item) -> Vec<Vec<Item>> {
    match item {
        Item::Call { function, .. } => program
            .functions
            .get(*function)
            .map(|body| body.items.clone())
            .into_iter()
            .collect(),
        item => item.parts().into_iter().cloned().collect(),
    }
}

/// The shortest program found on which `differs` still holds, trying at most so many.
///
/// It holds of `program` itself. What is taken out first is what is last and what is large.
pub fn reduce(
    program: &Program,
    most: usize,
    differs: &mut dyn FnMut(&Program) -> bool,
) -> Program {
    let mut best = program.clone();
    let mut tries = 0;
    let mut attempt = |candidate: Program, best: &mut Program| {
        tries += 1;
        let holds = tries <= most && differs(&candidate);
        if holds {
            *best = candidate;
        }
        holds
    };
    loop {
        let before = count(&best);
        let mut size = before.div_ceil(2);
        while size > 0 {
            let mut end = count(&best);
            while end > 0 {
                let start = end.saturating_sub(size);
                let within = |number: usize| (start..end).contains(&number);
                let cut = |number: usize, _: &Item| {
                    if within(number) {
                        Change::Drop
                    } else {
                        Change::Keep
                    }
                };
                attempt(changed(&best, &mut { cut }), &mut best);
                end = start.min(count(&best));
            }
            size /= 2;
        }
        for number in (0..count(&best)).rev() {
            let mut parts = Vec::new();
            changed(&best, &mut |at, item| {
                if at == number {
                    parts = inside(&best, item);
                }
                Change::Keep
            });
            for part in parts {
                let candidate = changed(&best, &mut |at, _| {
                    if at == number {
                        Change::Become(part.clone())
                    } else {
                        Change::Keep
                    }
                });
                if attempt(candidate, &mut best) {
                    break;
                }
            }
        }
        for number in 0..count(&best) {
            let mut guarded = false;
            let candidate = changed(&best, &mut |at, item| match item {
                Item::Step(step) if at == number && step.guard.is_some() => {
                    guarded = true;
                    Change::Become(vec![Item::Step(Step {
                        guard: None,
                        ..step.clone()
                    })])
                }
                _ => Change::Keep,
            });
            if guarded {
                attempt(candidate, &mut best);
            }
        }
        if count(&best) >= before {
            return best;
        }
    }
}

/// The program with the operands of the instruction that wrote `word` stored too: what PTX calls
/// them, and the words where they are; constants have none.
pub fn traced(program: &Program, word: u32) -> (Program, Vec<(String, Option<u32>)>) {
    let mut operands = Vec::new();
    let mut words = program.words;
    let mut traced = changed(program, &mut |_, item| {
        let Item::Step(step) = item else {
            return Change::Keep;
        };
        let wrote = |place| matches!(place, Place::Words(first, count) if (first..first + count).contains(&word));
        let Some(code) = step.code.iter().find(|code| wrote(code.place)) else {
            return Change::Keep;
        };
        let mut step = step.clone();
        for (source, ty) in &code.sources {
            let register = source.trim_start_matches('!');
            if !register.starts_with('%') {
                operands.push((source.clone(), None));
                continue;
            }
            let at = 8 * words;
            match register_bits(register, *ty) {
                1 => {
                    step.before
                        .push(format!("selp.b32 %tr0, 1, 0, {register};"));
                    step.before
                        .push(format!("st.global.b32 [%out+{at}], %tr0;"));
                }
                bits => step
                    .before
                    .push(format!("st.global.b{bits} [%out+{at}], {register};")),
            }
            operands.push((source.clone(), Some(words)));
            words += 1;
        }
        Change::Become(vec![Item::Step(step)])
    });
    traced.words = words.next_multiple_of(2);
    (traced, operands)
}
