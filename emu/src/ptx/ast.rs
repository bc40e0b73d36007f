//! The syntax tree. Names are as written; lines count from 1.

/// A whole file.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// `.version`, such as (8, 4).
    pub version: (u32, u32),
    /// The first `.target`, such as `sm_90a`.
    pub target: String,
    /// Variables outside functions.
    pub variables: Vec<Variable>,
    /// Entries and device functions with a body.
    pub functions: Vec<Function>,
}

/// State spaces of variables and addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Any: the address says which.
    Generic,
    /// Device memory.
    Global,
    /// Read-only device memory.
    Const,
    /// The block's shared memory.
    Shared,
    /// Shared memory of any block of the cluster.
    SharedCluster,
    /// The thread's own memory.
    Local,
    /// Parameters.
    Param,
}

/// A variable: in a state space, or a parameter.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Where it lives.
    pub space: Space,
    /// Alignment in bytes; 0 if not given.
    pub align: u32,
    /// Bytes of one element.
    pub element: u32,
    /// Elements; 0 for an array without a size (dynamic shared memory).
    pub len: u64,
    /// Whether it is only declared here.
    pub external: bool,
    /// Initial elements.
    pub init: Vec<Init>,
    /// Line of the declaration.
    pub line: u32,
}

/// One initial element.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// Its bits.
    Bits(u64),
    /// The address of a variable plus an offset.
    Address(String, i64),
}

/// What a function's header asks of its launches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Directives {
    /// `.reqntid`: exact threads of a block.
    pub required_threads: Option<[u32; 3]>,
    /// `.maxntid`: most threads of a block.
    pub max_threads: Option<[u32; 3]>,
    /// `.reqnctapercluster`.
    pub cluster: Option<[u32; 3]>,
    /// `.minnctapersm`.
    pub min_blocks: Option<u32>,
    /// `.maxnreg`.
    pub max_registers: Option<u32>,
}

/// A function with a body.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Whether it is a kernel.
    pub entry: bool,
    /// Return values (device functions).
    pub returns: Vec<Variable>,
    /// Parameters in order.
    pub params: Vec<Variable>,
    /// Launch directives.
    pub directives: Directives,
    /// The body.
    pub body: Vec<Statement>,
    /// Line of the header.
    pub line: u32,
}

/// One statement of a body.
#[derive(Clone, Debug)]
pub enum Statement {
    /// `.reg .b32 %r<4>, a;`: names with the registers' type; a range is given by its count.
    Registers {
        /// The type as written, without the dot: `b32`, `pred`.
        ty: String,
        /// Names, and how many of each (`None` for a plain name).
        names: Vec<(String, Option<u32>)>,
    },
    /// A variable of the function.
    Variable(Variable),
    /// A label.
    Label(String),
    /// A scope of its own.
    Block(Vec<Statement>),
    /// `label: .branchtargets a, b;` or the list of a `brx.idx`.
    Targets(String, Vec<String>),
    /// An instruction.
    Instruction(Instruction),
}

/// A predicate in front of an instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Guard {
    /// The predicate register.
    pub register: String,
    /// `@!p`.
    pub negated: bool,
}

/// One instruction.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// `@p` or `@!p`.
    pub guard: Option<Guard>,
    /// The name with all its modifiers, as written.
    pub opcode: String,
    /// Operands in order.
    pub operands: Vec<Operand>,
    /// Line of the instruction.
    pub line: u32,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A register, special register, label or variable: told apart by declarations.
    Name(String),
    /// An integer, as 64 bits.
    Int(u64),
    /// `0f3F800000`: an f32 by its bits.
    F32(u32),
    /// `0d3FF0000000000000`, or a decimal number: an f64 by its bits.
    F64(u64),
    /// `_`: nothing.
    Sink,
    /// `!p`.
    Not(Box<Operand>),
    /// `-x`: a negated name.
    Minus(Box<Operand>),
    /// `p|q`.
    Pair(Box<Operand>, Box<Operand>),
    /// `{a, b}`.
    Vector(Vec<Operand>),
    /// `[base + offset]`, or `[map, {x, y}]` with further parts.
    Address {
        /// A name or an integer.
        base: Box<Operand>,
        /// Added to it, in bytes.
        offset: i64,
        /// What follows the base after commas.
        parts: Vec<Operand>,
    },
    /// `name + 8` outside brackets, as in `mov.u64 %rd, array+8`.
    Offset(String, i64),
    /// `x.y`-like component of a vector register is not written by compilers any more; a
    /// parenthesised list, as in `call (r), f, (a, b)`.
    List(Vec<Operand>),
}
