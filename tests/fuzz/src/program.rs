//! A program as a tree, so that parts can be taken out and what is left is still a program.
//!
//! That holds since every register of the pool has a value from the start, each [`Step`] brings its
//! own temporaries, and each result has a word of its own in the output, whoever else is there.

use mok_emu::scalar::Ty;

/// Registers that keep values between steps: predicates, and 16, 32 and 64 bits.
pub const POOL: [(&str, u32, usize); 4] =
    [("p", 1, 8), ("h", 16, 10), ("r", 32, 12), ("d", 64, 10)];
/// f64 registers that are never NaN and never written to.
pub const NUMBERS: usize = 4;
/// Bytes that the output holds where nothing was stored.
pub const UNWRITTEN: u8 = 0xa5;

/// How it is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
}

impl Shape {
    /// Threads of all blocks.
    pub fn all(self) -> usize {
        self.blocks as usize * self.threads as usize
    }
}

/// Where an instruction's result is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In so many words of the exact output, from this one on.
    Words(u32, u32),
    /// With its sources, in this site of the approximate output.
    Site(u32),
}

/// One instruction under test.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// Its name's index in the catalogue.
    pub name: usize,
    /// As PTX, without guard and semicolon.
    pub text: String,
    /// Sources and their types.
    pub sources: Vec<(String, Ty)>,
    /// Where its result is.
    pub place: Place,
}

/// Instructions that belong together, and what brings operands and stores results.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// Lines that compute operands.
    pub before: Vec<String>,
    /// The instructions; more than one is a carry chain.
    pub code: Vec<Instruction>,
    /// Lines behind them; true: under the guard too.
    pub after: Vec<(bool, String)>,
    /// `%p1` or `!%p1`: whom it concerns.
    pub guard: Option<String>,
}

/// A part of a program.
#[derive(Clone, Debug)]
pub enum Item {
    /// Straight-line code.
    Step(Step),
    /// One of two parts.
    If {
        /// Lines that compute the condition.
        before: Vec<String>,
        /// `%p1` or `!%p1`.
        condition: String,
        /// Whether all threads agree on it.
        uniform: bool,
        /// Where it holds.
        then: Vec<Item>,
        /// Where it does not.
        other: Vec<Item>,
    },
    /// A part that each thread repeats as often as its data says, at least once.
    Loop {
        /// Lines that compute how often, less one, in the depth's counter.
        before: Vec<String>,
        /// How many loops are around it.
        depth: usize,
        /// What is repeated.
        body: Vec<Item>,
    },
    /// The end, for some threads.
    Leave {
        /// Lines that compute the condition.
        before: Vec<String>,
        /// `%p1` or `!%p1`.
        condition: String,
        /// By `exit`, also from within a function; else from the function, or the kernel.
        exit: bool,
    },
    /// A call of a function, and what goes in and comes out.
    Call {
        /// Which.
        function: usize,
        /// A 32-bit and a 64-bit register.
        arguments: [String; 2],
        /// A 32-bit register.
        result: String,
    },
}

/// Lines at the start of a function, and the registers that each defines.
#[derive(Clone, Debug, Default)]
pub struct Setup(pub Vec<(Vec<String>, String)>);

/// A body, with the values that its registers start with.
#[derive(Clone, Debug, Default)]
pub struct Body {
    /// The start.
    pub setup: Setup,
    /// The rest.
    pub items: Vec<Item>,
}

/// One program.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its number.
    pub number: u32,
    /// How it is launched.
    pub shape: Shape,
    /// A parameter: the same for all threads, unknown to whoever compiles.
    pub salt: u32,
    /// Words of a thread's exact output, an even number.
    pub words: u32,
    /// Sites of a thread's approximate output: three words each, two sources and the result.
    pub sites: u32,
    /// Registers for temporaries, for each width of [`POOL`].
    pub temporaries: [usize; 4],
    /// The kernel.
    pub main: Body,
    /// Functions that it calls.
    pub functions: Vec<Body>,
}

impl Item {
    /// The parts inside.
    pub fn parts(&self) -> Vec<&Vec<Item>> {
        match self {
            Item::If { then, other, .. } => vec![then, other],
            Item::Loop { body, .. } => vec![body],
            _ => Vec::new(),
        }
    }

    /// The parts inside.
    pub fn parts_mut(&mut self) -> Vec<&mut Vec<Item>> {
        match self {
            Item::If { then, other, .. } => vec![then, other],
            Item::Loop { body, .. } => vec![body],
            _ => Vec::new(),
        }
    }
}

/// Calls `each` with every step, in the order of the text.
fn walk<'a>(items: &'a [Item], each: &mut dyn FnMut(&'a Step)) {
    for item in items {
        if let Item::Step(step) = item {
            each(step);
        }
        for part in item.parts() {
            walk(part, each);
        }
    }
}

impl Program {
    /// Its entry's name.
    pub fn entry(&self) -> String {
        format!("fuzz{}", self.number)
    }

    /// Every instruction under test, functions last.
    pub fn instructions(&self) -> Vec<&Instruction> {
        let mut found = Vec::new();
        for body in std::iter::once(&self.main).chain(&self.functions) {
            walk(&body.items, &mut |step| found.extend(&step.code));
        }
        found
    }

    /// The instruction whose result a word of the exact output holds.
    pub fn source_of(&self, word: u32) -> Option<&Instruction> {
        let holds = |place| matches!(place, Place::Words(first, count) if (first..first + count).contains(&word));
        let all = self.instructions();
        all.into_iter().find(|instruction| holds(instruction.place))
    }
}
