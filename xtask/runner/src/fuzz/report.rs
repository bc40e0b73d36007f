//! What `fuzz` prints.

use std::collections::BTreeMap;

use mok_fuzz::Generator;
use mok_fuzz::compare::{Near, Part};

/// Programs that are printed whole.
const SHOWN: usize = 20;

/// The table of uses; whether each name has as many as it must.
pub fn uses(generator: &Generator, part: &Part, every: bool, least: usize) -> bool {
    let Some(uses) = &part.uses else { return false };
    let catalogue = generator.catalogue();
    if every {
        for (name, count) in catalogue.names.iter().zip(&uses.executed) {
            println!("{count:7}  {}", name.text);
        }
    }
    println!(
        "{:>5} {:>7} {:>5} {:>8}  instruction",
        "names", "fewest", "most", "uses"
    );
    for line in uses.table(catalogue) {
        println!(
            "{:5} {:7} {:5} {:8}  {}",
            line.names, line.fewest, line.most, line.all, line.pattern
        );
    }
    let short = uses.short(catalogue, least);
    for (name, count) in short.iter().take(SHOWN) {
        println!("too few uses of {name}: {count}, not {least}");
    }
    println!(
        "{} names of sm_90a, each executed at least {} times, {} in all; {} names of later GPUs are left out",
        catalogue.names.len(),
        uses.executed.iter().min().unwrap_or(&0),
        uses.executed.iter().sum::<usize>(),
        catalogue.later
    );
    short.is_empty()
}

/// Approximate results; whether all are within the bound.
pub fn approximate(near: &BTreeMap<String, Near>, whose: &str) -> bool {
    println!(
        "\n{:>10} {:>8}  approximate, {whose}; 1 is what the ISA allows",
        "results", "farthest"
    );
    for (name, near) in near {
        println!("{:10} {:8.3}  {name}", near.checked, near.worst);
        if near.over > 0 {
            println!(
                "           {} results are beyond it; operands and result: {:x?}",
                near.over, near.beyond
            );
        }
    }
    println!();
    near.values().all(|near| near.over == 0)
}

/// Programs that differ or failed: some of each instruction first, then a count of each.
pub fn differences(part: &Part) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut shown = Vec::new();
    let mut left = Vec::new();
    for difference in &part.differences {
        let count = counts.entry(&difference.name).or_default();
        *count += 1;
        match (&difference.reduced, *count) {
            (Some(_), 1) => shown.push(difference),
            (Some(_), _) => left.push(difference),
            (None, _) => {}
        }
    }
    shown.extend(left);
    for difference in shown.into_iter().take(SHOWN) {
        println!(
            "\nprogram {}: {}\n  thread {}: device {:#018x}, emulator {:#018x} (bytes a5 were not stored)",
            difference.program,
            difference.instruction,
            difference.thread,
            difference.device,
            difference.emulated
        );
        for (operand, value) in &difference.operands {
            match value {
                Some(value) => println!("  {operand} = {value:#018x}"),
                None => println!("  {operand}"),
            }
        }
        if let Some(text) = &difference.reduced {
            println!("{text}");
        }
    }
    if !counts.is_empty() {
        println!("\nprograms that differ, by the first instruction that does:");
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
        for (name, count) in counts {
            println!("{count:7}  {name}");
        }
    }
    for (program, reason) in part.failures.iter().take(SHOWN) {
        println!("program {program} did not run: {reason}");
    }
}
