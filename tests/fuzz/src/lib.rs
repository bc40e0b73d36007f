//! Random PTX over every scalar instruction of the emulator's table, to compare one device with
//! another: the emulator with a GPU, or any two.
//!
//! A [`Generator`] turns a seed and a number into a [`Program`](program::Program): a kernel with
//! branches, loops, calls and early ends, in which each instruction's result goes to a word of its
//! own in the output. [`Runner`] runs programs and returns those words; [`reduce`] shortens a
//! program that two devices disagree on; [`record`] keeps hashes of a GPU's outputs.
//!
//! What the ISA leaves open does not occur: a carry flag is read right behind the instruction that
//! set it; a zero that only the launch knows stands between a result and its use, so that no
//! assembler fuses or folds the two; of several f64 operands one may be NaN; positions beyond an
//! operand's range are cut. Integers are divided by zero all the same, where no assembler can see it:
//! what an H200 gives is known. Approximate results go nowhere but to an output of their own, with
//! their operands, where [`approximate`] compares them with f64.
//!
//! ```
//! use mok_fuzz::{Catalogue, Generator, Runner};
//!
//! let generator = Generator::new(Catalogue::new(90), 1, 10_000, 100);
//! let program = generator.program(7);
//! let output = &Runner::emulated(1, true)?.run(&[&program])?[0];
//! assert_eq!(output.exact.len(), program.shape.all() * program.words as usize);
//! # Ok::<(), mok::Error>(())
//! ```

pub mod approximate;
pub mod compare;
mod generate;
mod isa;
mod operands;
pub mod program;
mod random;
pub mod record;
pub mod reduce;
mod render;
mod run;
pub mod uses;
mod values;

pub use generate::{Generator, VERSION};
pub use isa::{Catalogue, Name, Row};
pub use random::Random;
pub use render::module;
pub use run::{Output, Runner};

/// The seed of the programs whose outputs are recorded.
pub const SEED: u64 = 20_260_101;
/// How many programs are recorded.
pub const PROGRAMS: u32 = 10_000;
/// How often each name is used at least, where at least one thread executes it.
pub const USES: usize = 100;

/// The programs that are recorded, for a GPU of compute capability 9.0.
pub fn recorded_programs() -> Generator {
    // Some branches are taken by nobody.
    Generator::new(Catalogue::new(90), SEED, PROGRAMS, USES + USES / 8)
}
