//! How often each name is used.

use serde::{Deserialize, Serialize};

use crate::isa::Catalogue;
use crate::program::{Place, Program};
use crate::run::Output;

/// Counts for each name of a catalogue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uses {
    /// In the text of programs.
    pub written: Vec<usize>,
    /// Of these, where at least one thread stored a result.
    pub executed: Vec<usize>,
}

/// A row of the table of uses: all names of one pattern.
#[derive(Clone, Debug)]
pub struct Line {
    /// The pattern.
    pub pattern: String,
    /// Its names.
    pub names: usize,
    /// Executed uses of the name with the fewest, and with the most.
    pub fewest: usize,
    /// See `fewest`.
    pub most: usize,
    /// Executed uses of all its names.
    pub all: usize,
}

impl Uses {
    /// None yet.
    pub fn new(catalogue: &Catalogue) -> Uses {
        let zeros = vec![0; catalogue.names.len()];
        Uses {
            written: zeros.clone(),
            executed: zeros,
        }
    }

    /// Adds a program's. Without an output only what is written.
    pub fn add(&mut self, program: &Program, output: Option<&Output>) {
        let unwritten = u64::from_le_bytes([crate::program::UNWRITTEN; 8]);
        for instruction in program.instructions() {
            self.written[instruction.name] += 1;
            let Some(output) = output else { continue };
            let stored = match instruction.place {
                Place::Words(first, count) => {
                    (first..first + count).any(|word| output.is_written(program.words, word))
                }
                Place::Site(site) => {
                    let rows = output.near.chunks_exact(3 * program.sites as usize);
                    rows.map(|row| row[3 * site as usize + 2])
                        .any(|word| word != unwritten)
                }
            };
            self.executed[instruction.name] += usize::from(stored);
        }
    }

    /// Both together.
    pub fn join(mut self, other: &Uses) -> Uses {
        let add = |to: &mut Vec<usize>, from: &[usize]| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        };
        add(&mut self.written, &other.written);
        add(&mut self.executed, &other.executed);
        self
    }

    /// Names that were executed fewer than so many times, with how often.
    pub fn short<'a>(&self, catalogue: &'a Catalogue, least: usize) -> Vec<(&'a str, usize)> {
        let names = catalogue.names.iter().map(|name| name.text.as_str());
        names
            .zip(self.executed.iter().copied())
            .filter(|(_, count)| *count < least)
            .collect()
    }

    /// The table, a line a pattern that has names.
    pub fn table(&self, catalogue: &Catalogue) -> Vec<Line> {
        let mut lines = Vec::new();
        for (row, pattern) in catalogue.rows.iter().enumerate() {
            let names = catalogue.names.iter().zip(&self.executed);
            let counts: Vec<usize> = names
                .filter(|(name, _)| name.row == row)
                .map(|(_, count)| *count)
                .collect();
            let Some((fewest, most)) = counts.iter().min().zip(counts.iter().max()) else {
                continue;
            };
            lines.push(Line {
                pattern: pattern.pattern.clone(),
                names: counts.len(),
                fewest: *fewest,
                most: *most,
                all: counts.iter().sum(),
            });
        }
        lines
    }
}
