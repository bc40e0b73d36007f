//! The scalar instructions, one row a form (PTX ISA 9.7.1 to 9.7.9).
//!
//! A pattern is the opcode, then its parts: `a|b` one of these must be there, `[a|b]` one of
//! these may be. Capitals name a set of [`set`]. Types are matched in order; modifiers wherever they
//! stand, since compilers differ (`.relu.satfinite` and `.satfinite.relu`) and ptxas takes both.

use super::op::Op;

/// One form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// What it computes.
    pub op: Op,
    /// The lowest `sm_` that has it; 90 stands for "90 or earlier".
    pub arch: u16,
    /// See the module.
    pub pattern: &'static str,
}

/// What a set of the patterns stands for.
pub(crate) fn set(name: &str) -> Option<&'static str> {
    Some(match name {
        "INT" => "u16|u32|u64|s16|s32|s64",
        "SINT" => "s16|s32|s64",
        "WORD" => "u32|s32|u64|s64",
        "BYTES" => "u8|u16|u32|u64|s8|s16|s32|s64",
        "BITS" => "b16|b32|b64",
        "ANY" => "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64",
        "RND" => "rn|rz|rm|rp",
        "RNDI" => "rni|rzi|rmi|rpi",
        "BOOL" => "and|or|xor",
        "CMPF" => "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan",
        "CMPU" => "eq|ne|lt|le|gt|ge|lo|ls|hi|hs",
        "CMPS" => "eq|ne|lt|le|gt|ge",
        "HALVES" => "f16|f16x2",
        "BRAINS" => "bf16|bf16x2",
        _ => return None,
    })
}

macro_rules! rows {
    ($($op:ident $arch:literal: $($pattern:literal),+ ;)*) => {
        /// Every form.
        pub(crate) static ROWS: &[Row] = &[$($(Row { op: Op::$op, arch: $arch, pattern: $pattern },)+)*];
    };
}

rows! {
    // Integer arithmetic.
    Add 90: "add INT|u16x2|s16x2", "add sat s32", "add cc WORD";
    Addc 90: "addc [cc] WORD";
    Sub 90: "sub INT", "sub sat s32", "sub cc WORD";
    Subc 90: "subc [cc] WORD";
    Mul 90: "mul hi|lo INT", "mul wide u16|u32|s16|s32";
    Mad 90: "mad hi|lo INT", "mad wide u16|u32|s16|s32", "mad hi sat s32", "mad hi|lo cc WORD";
    Madc 90: "madc hi|lo [cc] WORD";
    Mul24 90: "mul24 hi|lo u32|s32";
    Mad24 90: "mad24 hi|lo u32|s32", "mad24 hi sat s32";
    Sad 90: "sad INT";
    Div 90: "div INT";
    Rem 90: "rem INT";
    Abs 90: "abs SINT";
    Neg 90: "neg SINT";
    Min 90: "min INT|u16x2|s16x2", "min relu s16x2|s32";
    Max 90: "max INT|u16x2|s16x2", "max relu s16x2|s32";
    Popc 90: "popc b32|b64";
    Clz 90: "clz b32|b64";
    Bfind 90: "bfind [shiftamt] WORD";
    Fns 90: "fns b32";
    Brev 90: "brev b32|b64";
    Bfe 90: "bfe WORD";
    Bfi 90: "bfi b32|b64";
    Szext 90: "szext clamp|wrap u32|s32";
    Bmsk 90: "bmsk clamp|wrap b32";
    Dp4a 90: "dp4a u32|s32 u32|s32";
    Dp2a 90: "dp2a lo|hi u32|s32 u32|s32";

    // Logic, shift, bytes.
    And 90: "and pred|BITS";
    Or 90: "or pred|BITS";
    Xor 90: "xor pred|BITS";
    Not 90: "not pred|BITS";
    Cnot 90: "cnot BITS";
    Lop3 90: "lop3 b32", "lop3 and|or b32";
    Shf 90: "shf l|r clamp|wrap b32";
    Shl 90: "shl BITS";
    Shr 90: "shr BITS|INT";
    Prmt 90: "prmt b32 [f4e|b4e|rc8|ecl|ecr|rc16]";

    // Floating point.
    Add 90: "add [RND] [ftz] [sat] f32", "add [RND] f64", "add [rn] [ftz] [sat] HALVES", "add [rn] BRAINS";
    Sub 90: "sub [RND] [ftz] [sat] f32", "sub [RND] f64", "sub [rn] [ftz] [sat] HALVES", "sub [rn] BRAINS";
    Mul 90: "mul [RND] [ftz] [sat] f32", "mul [RND] f64", "mul [rn] [ftz] [sat] HALVES", "mul [rn] BRAINS";
    Add 100: "add [RND] [ftz] f32x2", "add [RND] [sat] f32 f16|bf16";
    Sub 100: "sub [RND] [ftz] f32x2", "sub [RND] [sat] f32 f16|bf16";
    Mul 100: "mul [RND] [ftz] f32x2";
    Fma 90: "fma RND [ftz] [sat] f32", "fma RND f64", "fma rn [ftz] [sat] HALVES", "fma rn [ftz] relu HALVES",
        "fma rn [relu] BRAINS", "fma rn oob [relu] HALVES|BRAINS",
        "mad RND [ftz] [sat] f32", "mad RND f64";
    Fma 100: "fma RND [ftz] f32x2", "fma RND [sat] f32 f16|bf16";
    Div 90: "div approx|full [ftz] f32", "div RND [ftz] f32", "div RND f64";
    Rcp 90: "rcp approx [ftz] f32", "rcp approx ftz f64", "rcp RND [ftz] f32", "rcp RND f64";
    Sqrt 90: "sqrt approx [ftz] f32", "sqrt RND [ftz] f32", "sqrt RND f64";
    Rsqrt 90: "rsqrt approx [ftz] f32|f64";
    Sin 90: "sin approx [ftz] f32";
    Cos 90: "cos approx [ftz] f32";
    Lg2 90: "lg2 approx [ftz] f32";
    Ex2 90: "ex2 approx [ftz] f32", "ex2 approx HALVES", "ex2 approx ftz BRAINS";
    Tanh 90: "tanh approx f32|HALVES|BRAINS";
    Abs 90: "abs [ftz] f32|HALVES", "abs f64|BRAINS";
    Neg 90: "neg [ftz] f32|HALVES", "neg f64|BRAINS";
    Min 90: "min [ftz] [NaN] f32|HALVES", "min [ftz] [NaN] xorsign abs f32|HALVES", "min f64",
        "min [NaN] BRAINS", "min [NaN] xorsign abs BRAINS";
    Max 90: "max [ftz] [NaN] f32|HALVES", "max [ftz] [NaN] xorsign abs f32|HALVES", "max f64",
        "max [NaN] BRAINS", "max [NaN] xorsign abs BRAINS";
    // Three inputs only; without .abs the name is that of the two-input form.
    Min 100: "min [ftz] [NaN] abs f32";
    Max 100: "max [ftz] [NaN] abs f32";
    Testp 90: "testp finite|infinite|number|notanumber|normal|subnormal f32|f64";
    Copysign 90: "copysign f32|f64";

    // Comparison and selection.
    Setp 90: "setp eq|ne [BOOL] BITS", "setp CMPS [BOOL] SINT", "setp CMPU [BOOL] u16|u32|u64",
        "setp CMPF [BOOL] [ftz] f32|HALVES", "setp CMPF [BOOL] f64|BRAINS";
    Set 90: "set eq|ne [BOOL] u32|s32|f32|f16|bf16 BITS", "set CMPS [BOOL] u32|s32|f32|f16|bf16 SINT",
        "set CMPU [BOOL] u32|s32|f32|f16|bf16 u16|u32|u64", "set CMPF [BOOL] [ftz] u32|s32|f32|f16 f32", "set CMPF [BOOL] bf16 f32",
        "set CMPF [BOOL] u32|s32|f32|f16|bf16 f64", "set CMPF [BOOL] [ftz] u16|s16|u32|s32|f16 f16",
        "set CMPF [BOOL] u16|s16|u32|s32|bf16 bf16", "set CMPF [BOOL] [ftz] f16x2|u32|s32 f16x2",
        "set CMPF [BOOL] bf16x2|u32|s32 bf16x2";
    Selp 90: "selp ANY";
    Slct 90: "slct ANY s32", "slct [ftz] ANY f32";
    Mov 90: "mov pred|ANY";

    // Conversion.
    CvtInt 90: "cvt [sat] BYTES BYTES";
    CvtToInt 90: "cvt RNDI [ftz] [sat] BYTES f32", "cvt RNDI [sat] BYTES f16|f64", "cvt RNDI BYTES bf16";
    CvtFromInt 90: "cvt RND [ftz] [sat] f32 BYTES", "cvt RND [sat] f16|f64 BYTES", "cvt RND bf16 BYTES";
    CvtFloat 90: "cvt [RNDI] [ftz] [sat] f32 f32", "cvt [RNDI] [sat] f64 f64", "cvt [RNDI] [sat] f16 f16",
        "cvt [RNDI] bf16 bf16", "cvt [ftz] [sat] f32 f16", "cvt [ftz] [sat] f64 f32", "cvt [sat] f64 f16",
        "cvt [RND] [ftz] f32 bf16", "cvt [RND] f64 bf16", "cvt RND [ftz] [sat] f32 f64", "cvt RND [ftz] [sat] f16 f32",
        "cvt RND [sat] f16 f64", "cvt RND [ftz] bf16 f32", "cvt RND bf16 f64",
        // As ptxas takes them: with bf16 a rounding may be left out, or be there to no effect.
        "cvt [RND] bf16 f16", "cvt [RND] f16 bf16",
        "cvt rn|rz [relu] [satfinite] f16|bf16 f32",
        "cvt rna [satfinite] tf32 f32", "cvt rn|rz [relu] tf32 f32";
    CvtFloat 100: "cvt rn|rz satfinite [relu] tf32 f32";
    CvtPacked 90: "cvt rn|rz [relu] [satfinite] f16x2|bf16x2 f32", "cvt rn satfinite [relu] e4m3x2|e5m2x2 f32|f16x2",
        "cvt rn [relu] f16x2 e4m3x2|e5m2x2";
    CvtPacked 100: "cvt rs [relu] [satfinite] f16x2|bf16x2 f32", "cvt rn satfinite [relu] e2m1x2|e2m3x2|e3m2x2 f32",
        "cvt rn [relu] f16x2 e2m1x2|e2m3x2|e3m2x2",
        "cvt rz|rp [satfinite] ue8m0x2 f32|bf16x2", "cvt rn bf16x2 ue8m0x2";
    CvtPack 90: "cvt pack sat u16|s16 s32", "cvt pack sat u2|s2|u4|s4|u8|s8 s32 b32";
}
