//! A range of programs on a device, beside the emulator.

use std::collections::BTreeMap;
use std::time::Instant;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::approximate;
use crate::generate::Generator;
use crate::program::{Place, Program, UNWRITTEN};
use crate::reduce::{mismatch, reduce, traced};
use crate::render;
use crate::run::{Output, Runner};
use crate::uses::Uses;

/// Programs of one module: enough to spread what loading one costs.
pub const BATCH: u32 = 50;
/// Programs that a reduction tries at most.
const MOST_TRIES: usize = 400;

/// How near an approximate instruction's results were.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Near {
    /// Results that the ISA says something of.
    pub checked: u64,
    /// The largest distance from f64; 1 is what the ISA allows.
    pub worst: f64,
    /// Results beyond it: operands and result, as bits.
    pub beyond: Vec<[u64; 3]>,
    /// How many of those.
    pub over: u64,
}

/// A program that the device and the emulator disagree on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Difference {
    /// Its number.
    pub program: u32,
    /// The name of the first instruction that differs.
    pub name: String,
    /// That instruction.
    pub instruction: String,
    /// In which thread, counted over all blocks.
    pub thread: usize,
    /// What the device gave.
    pub device: u64,
    /// What the emulator gave.
    pub emulated: u64,
    /// The instruction's operands, as the emulator saw them.
    pub operands: Vec<(String, Option<u64>)>,
    /// The shortest program found that still differs, and what it was found to differ in.
    pub reduced: Option<String>,
}

/// What a range of programs gave.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Part {
    /// The first program.
    pub first: u32,
    /// [`Output::hash`] of each on the device.
    pub hashes: Vec<u64>,
    /// [`text_hash`] of each.
    pub texts: Vec<u64>,
    /// Approximate names on the device.
    pub near: BTreeMap<String, Near>,
    /// Approximate names on the emulator beside it.
    pub near_emulated: BTreeMap<String, Near>,
    /// How often names were used.
    pub uses: Option<Uses>,
    /// Where device and emulator differ.
    pub differences: Vec<Difference>,
    /// Programs that did not run, and why.
    pub failures: Vec<(u32, String)>,
}

/// The first 64 bits of the SHA-256 of a program's PTX.
pub fn text_hash(program: &Program) -> u64 {
    let text = render::module(&[program]);
    Sha256::digest(text.as_bytes())[..8]
        .iter()
        .fold(0, |all, &byte| all << 8 | u64::from(byte))
}

/// Adds the approximate results of a program.
fn note(
    generator: &Generator,
    program: &Program,
    output: &Output,
    near: &mut BTreeMap<String, Near>,
) {
    const SHOWN: usize = 3;
    let unwritten = u64::from_le_bytes([UNWRITTEN; 8]);
    for instruction in program.instructions() {
        let Place::Site(site) = instruction.place else {
            continue;
        };
        let name = &generator.catalogue().names[instruction.name];
        let known = near.entry(name.text.clone()).or_default();
        for row in output.near.chunks_exact(3 * program.sites as usize) {
            let at = 3 * site as usize;
            let [a, b, result] = [row[at], row[at + 1], row[at + 2]];
            if result == unwritten {
                continue;
            }
            // What a narrow store leaves of a word is the filling.
            let cut = |value: u64| value & name.op.src()[0].mask();
            let Some(error) = approximate::error(name, [cut(a), cut(b)], cut(result)) else {
                continue;
            };
            known.checked += 1;
            // JSON has no infinity.
            known.worst = known.worst.max(error.min(f64::MAX));
            if error > 1.0 {
                known.over += 1;
                if known.beyond.len() < SHOWN {
                    known.beyond.push([cut(a), cut(b), cut(result)]);
                }
            }
        }
    }
}

/// Joins what is known of names.
pub fn join_near(into: &mut BTreeMap<String, Near>, from: &BTreeMap<String, Near>) {
    for (name, near) in from {
        let known = into.entry(name.clone()).or_default();
        known.checked += near.checked;
        known.worst = known.worst.max(near.worst);
        known.over += near.over;
        known.beyond.extend(
            near.beyond
                .iter()
                .take(3_usize.saturating_sub(known.beyond.len())),
        );
    }
}

/// Runs programs on the emulator alone, on all processors.
///
/// # Errors
/// The emulator's, with the number of the program.
pub fn emulate(generator: &Generator, programs: std::ops::Range<u32>) -> Result<Part, String> {
    let first = programs.start;
    let starts: Vec<u32> = programs.clone().step_by(BATCH as usize).collect();
    let batches: Result<Vec<Part>, String> = starts
        .par_iter()
        .map(|&start| {
            let end = (start + BATCH).min(programs.end);
            let runner =
                Runner::emulated(generator.seed(), false).map_err(|error| error.to_string())?;
            let made: Vec<Program> = (start..end)
                .map(|number| generator.program(number))
                .collect();
            let outputs = runner.run(&made.iter().collect::<Vec<_>>());
            let outputs = outputs.map_err(|error| format!("programs {start} to {end}: {error}"))?;
            let mut part = Part {
                first: start,
                uses: Some(Uses::new(generator.catalogue())),
                ..Part::default()
            };
            for (program, output) in made.iter().zip(&outputs) {
                part.add(generator, program, output);
            }
            Ok(part)
        })
        .collect();
    let mut all = Part {
        first,
        ..Part::default()
    };
    batches?.into_iter().for_each(|part| all.join(part));
    Ok(all)
}

impl Part {
    fn add(&mut self, generator: &Generator, program: &Program, output: &Output) {
        self.hashes.push(output.hash());
        self.texts.push(text_hash(program));
        note(generator, program, output, &mut self.near);
        if let Some(uses) = &mut self.uses {
            uses.add(program, Some(output));
        }
    }

    /// Appends the part that comes behind it.
    pub fn join(&mut self, next: Part) {
        self.hashes.extend(next.hashes);
        self.texts.extend(next.texts);
        join_near(&mut self.near, &next.near);
        join_near(&mut self.near_emulated, &next.near_emulated);
        self.uses = match (self.uses.take(), next.uses) {
            (Some(own), Some(other)) => Some(own.join(&other)),
            (own, other) => own.or(other),
        };
        self.differences.extend(next.differences);
        self.failures.extend(next.failures);
    }
}

/// Two places to run programs.
pub struct Pair<'a> {
    /// Makes them.
    pub generator: &'a Generator,
    /// What is to be recorded.
    pub device: &'a dyn Fn(&[&Program]) -> mok::Result<Vec<Output>>,
    /// What it is compared with.
    pub emulator: &'a dyn Fn(&[&Program]) -> mok::Result<Vec<Output>>,
}

impl Pair<'_> {
    /// Runs a range on both. Disagreements are reduced until `deadline`, then only listed.
    pub fn compare(&self, programs: std::ops::Range<u32>, deadline: Instant) -> Part {
        let catalogue = self.generator.catalogue();
        let mut part = Part {
            first: programs.start,
            uses: Some(Uses::new(catalogue)),
            ..Part::default()
        };
        for start in programs.clone().step_by(BATCH as usize) {
            let end = (start + BATCH).min(programs.end);
            let made: Vec<Program> = (start..end)
                .map(|number| self.generator.program(number))
                .collect();
            match self.both(&made.iter().collect::<Vec<_>>()) {
                Ok(outputs) => {
                    for (program, outputs) in made.iter().zip(&outputs) {
                        self.note(&mut part, program, outputs, deadline);
                    }
                }
                // One of them; by itself each tells.
                Err(_) => {
                    for program in &made {
                        match self.both(&[program]) {
                            Ok(outputs) => self.note(&mut part, program, &outputs[0], deadline),
                            Err(error) => {
                                part.hashes.push(0);
                                part.texts.push(text_hash(program));
                                part.failures.push((program.number, error.to_string()));
                            }
                        }
                    }
                }
            }
        }
        part
    }

    fn both(&self, programs: &[&Program]) -> mok::Result<Vec<[Output; 2]>> {
        let device = (self.device)(programs)?;
        let emulator = (self.emulator)(programs)?;
        Ok(device
            .into_iter()
            .zip(emulator)
            .map(|(device, emulator)| [device, emulator])
            .collect())
    }

    fn note(
        &self,
        part: &mut Part,
        program: &Program,
        [device, emulated]: &[Output; 2],
        deadline: Instant,
    ) {
        part.add(self.generator, program, device);
        note(self.generator, program, emulated, &mut part.near_emulated);
        if let Some(found) = mismatch(program, [device, emulated]) {
            let code = program.source_of(found.word);
            let mut difference = Difference {
                program: program.number,
                name: code.map_or("final registers".into(), |code| {
                    self.generator.catalogue().names[code.name].text.clone()
                }),
                instruction: code.map_or(String::new(), |code| code.text.clone()),
                thread: found.thread,
                device: found.values[0],
                emulated: found.values[1],
                operands: Vec::new(),
                reduced: None,
            };
            // Two of a kind tell enough.
            let known = part
                .differences
                .iter()
                .filter(|other| other.name == difference.name)
                .count();
            if Instant::now() < deadline && known < 2 {
                self.shorten(program, &mut difference, deadline);
            }
            part.differences.push(difference);
        }
    }

    /// Reduces a program and describes what still differs.
    fn shorten(&self, program: &Program, difference: &mut Difference, deadline: Instant) {
        let differs = |candidate: &Program| {
            let outputs = self.both(&[candidate]).ok()?;
            let [device, emulated] = &outputs[0];
            mismatch(candidate, [device, emulated])
        };
        let short = reduce(program, MOST_TRIES, &mut |candidate| {
            Instant::now() < deadline && differs(candidate).is_some()
        });
        if let Some(found) = differs(&short) {
            let (with_operands, operands) = traced(&short, found.word);
            if let Ok(outputs) = (self.emulator)(&[&with_operands]) {
                let row = found.thread * with_operands.words as usize;
                let read = |word: u32| outputs[0].exact.get(row + word as usize).copied();
                difference.operands = operands
                    .into_iter()
                    .map(|(name, word)| (name, word.and_then(read)))
                    .collect();
            }
            if let Some(code) = short.source_of(found.word) {
                difference.name = self.generator.catalogue().names[code.name].text.clone();
                difference.instruction = code.text.clone();
            }
            difference.thread = found.thread;
            [difference.device, difference.emulated] = found.values;
        }
        difference.reduced = Some(render::module(&[&short]));
    }
}
