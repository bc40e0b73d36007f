//! A decoded scalar instruction: the operation, its types and its modifiers.

use super::soft::Round;
use super::types::Ty;

/// The operation; the types and [`Mods`] say the rest.
#[allow(missing_docs)] // each is the PTX name
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Add,
    Addc,
    Sub,
    Subc,
    Mul,
    Mad,
    Madc,
    Mul24,
    Mad24,
    Sad,
    Div,
    Rem,
    Abs,
    Neg,
    Min,
    Max,
    Popc,
    Clz,
    Bfind,
    Fns,
    Brev,
    Bfe,
    Bfi,
    Szext,
    Bmsk,
    Dp4a,
    Dp2a,
    And,
    Or,
    Xor,
    Not,
    Cnot,
    Lop3,
    Shf,
    Shl,
    Shr,
    Prmt,
    Fma,
    Rcp,
    Sqrt,
    Rsqrt,
    Sin,
    Cos,
    Lg2,
    Ex2,
    Tanh,
    Testp,
    Copysign,
    Setp,
    Set,
    Selp,
    Slct,
    Mov,
    /// Integer to integer.
    CvtInt,
    /// Float to integer.
    CvtToInt,
    /// Integer to float.
    CvtFromInt,
    /// Float to float, one value.
    CvtFloat,
    /// Float to float, packed.
    CvtPacked,
    /// `cvt.pack`.
    CvtPack,
}

/// Which part of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The lower half.
    Lo,
    /// The upper half.
    Hi,
    /// All of it.
    Wide,
}

/// A comparison, once its signedness is known from the type. The `u` forms hold for unordered
/// operands too.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    Num,
    Nan,
}

/// How a comparison combines with the predicate source.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bool {
    And,
    Or,
    Xor,
}

/// What `testp` asks.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    Finite,
    Infinite,
    Number,
    Nan,
    Normal,
    Subnormal,
}

/// How `prmt` chooses bytes.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bytes {
    Any,
    F4e,
    B4e,
    Rc8,
    Ecl,
    Ecr,
    Rc16,
}

/// Modifiers; each operation reads the few that it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mods {
    /// Rounding; `Rn` where the name has none.
    pub round: Round,
    /// A rounding to an integer (`.rni`) was named.
    pub integral: bool,
    /// `.rs`.
    pub stochastic: bool,
    /// `.approx` or `.full`.
    pub approx: bool,
    /// `.full`.
    pub full: bool,
    /// Subnormal operands and results become zero.
    pub ftz: bool,
    /// Clamp: to [0, 1], or to the integer range.
    pub sat: bool,
    /// Clamp to the finite range.
    pub satfinite: bool,
    /// Negative results become zero.
    pub relu: bool,
    /// `fma.oob`.
    pub oob: bool,
    /// NaN wins in min and max.
    pub nan: bool,
    /// Magnitudes.
    pub abs: bool,
    /// The sign is the product's.
    pub xorsign: bool,
    /// Writes the carry flag.
    pub cc: bool,
    /// `bfind.shiftamt`.
    pub shiftamt: bool,
    /// `.wrap` rather than `.clamp`.
    pub wrap: bool,
    /// `shf.l` rather than `shf.r`.
    pub left: bool,
    /// Half of the product, or of dp2a's second source.
    pub part: Part,
    /// Comparison.
    pub cmp: Cmp,
    /// With the predicate source.
    pub with: Option<Bool>,
    /// `testp`.
    pub test: Test,
    /// `prmt`.
    pub bytes: Bytes,
}

impl Mods {
    /// No modifier.
    pub const NONE: Mods = Mods {
        round: Round::Rn,
        integral: false,
        stochastic: false,
        approx: false,
        full: false,
        ftz: false,
        sat: false,
        satfinite: false,
        relu: false,
        oob: false,
        nan: false,
        abs: false,
        xorsign: false,
        cc: false,
        shiftamt: false,
        wrap: false,
        left: false,
        part: Part::Lo,
        cmp: Cmp::Eq,
        with: None,
        test: Test::Finite,
        bytes: Bytes::Any,
    };

    /// Notes one modifier of `op`. The patterns have already said that it belongs there.
    pub fn note(&mut self, op: Op, token: &str) {
        let compares = matches!(op, Op::Setp | Op::Set);
        match token {
            "rn" => self.round = Round::Rn,
            "rz" => self.round = Round::Rz,
            "rm" => self.round = Round::Rm,
            "rp" => self.round = Round::Rp,
            "rna" => self.round = Round::Rna,
            "rs" => self.stochastic = true,
            "rni" | "rzi" | "rmi" | "rpi" => {
                self.integral = true;
                self.note(op, &token[..2]);
            }
            "approx" => self.approx = true,
            "full" => (self.approx, self.full) = (true, true),
            "ftz" => self.ftz = true,
            "sat" => self.sat = true,
            "satfinite" => self.satfinite = true,
            "relu" => self.relu = true,
            "oob" => self.oob = true,
            "NaN" => self.nan = true,
            "abs" => self.abs = true,
            "xorsign" => self.xorsign = true,
            "cc" => self.cc = true,
            "shiftamt" => self.shiftamt = true,
            "wrap" => self.wrap = true,
            "l" => self.left = true,
            "wide" => self.part = Part::Wide,
            "hi" if !compares => self.part = Part::Hi,
            "and" => self.with = Some(Bool::And),
            "or" => self.with = Some(Bool::Or),
            "xor" => self.with = Some(Bool::Xor),
            "eq" => self.cmp = Cmp::Eq,
            "ne" => self.cmp = Cmp::Ne,
            "lt" | "lo" if compares => self.cmp = Cmp::Lt,
            "le" | "ls" => self.cmp = Cmp::Le,
            "gt" | "hi" => self.cmp = Cmp::Gt,
            "ge" | "hs" => self.cmp = Cmp::Ge,
            "equ" => self.cmp = Cmp::Equ,
            "neu" => self.cmp = Cmp::Neu,
            "ltu" => self.cmp = Cmp::Ltu,
            "leu" => self.cmp = Cmp::Leu,
            "gtu" => self.cmp = Cmp::Gtu,
            "geu" => self.cmp = Cmp::Geu,
            "num" => self.cmp = Cmp::Num,
            "nan" => self.cmp = Cmp::Nan,
            "finite" => self.test = Test::Finite,
            "infinite" => self.test = Test::Infinite,
            "number" => self.test = Test::Number,
            "notanumber" => self.test = Test::Nan,
            "normal" => self.test = Test::Normal,
            "subnormal" => self.test = Test::Subnormal,
            "f4e" => self.bytes = Bytes::F4e,
            "b4e" => self.bytes = Bytes::B4e,
            "rc8" => self.bytes = Bytes::Rc8,
            "ecl" => self.bytes = Bytes::Ecl,
            "ecr" => self.bytes = Bytes::Ecr,
            "rc16" => self.bytes = Bytes::Rc16,
            // The defaults: lo, r, clamp, pack.
            _ => {}
        }
    }
}

/// One decoded scalar instruction: what it computes on registers alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalarOp {
    pub(crate) op: Op,
    /// The type after the modifiers; the destination's in `set`, `slct` and `cvt`.
    pub(crate) ty: Ty,
    /// The second type of the name, or the first again.
    pub(crate) from: Ty,
    pub(crate) mods: Mods,
    pub(crate) arch: u16,
    pub(crate) dst: Operands<2>,
    pub(crate) src: Operands<6>,
}

impl ScalarOp {
    /// Whether it only copies.
    pub(crate) fn is_copy(&self) -> bool {
        self.op == Op::Mov
    }

    /// Whether it puts bits of one operand among those of another, as for bit fields.
    pub(crate) fn is_merge(&self) -> bool {
        matches!(self.op, Op::Or | Op::Bfi)
    }

    /// Whether its third operand, a predicate, chooses one of the first two.
    pub(crate) fn is_selection(&self) -> bool {
        self.op == Op::Selp
    }
}

/// Operand types in order; those from `required` on may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operands<const N: usize> {
    pub types: [Ty; N],
    pub count: u8,
    pub required: u8,
}

impl<const N: usize> Operands<N> {
    /// All of `types` (at most `N`), of which `required` must be there.
    pub fn new(types: &[Ty], required: usize) -> Self {
        let mut all = [Ty::Pred; N];
        all[..types.len()].copy_from_slice(types);
        Operands {
            types: all,
            count: types.len() as u8,
            required: required as u8,
        }
    }
}
