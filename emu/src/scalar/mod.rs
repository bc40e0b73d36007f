//! Scalar instructions: pure functions from operand bits to result bits (PTX ISA 9.0, 9.7.1
//! to 9.7.9). Nothing here knows of registers, memory or threads.
//!
//! [`ScalarOp::decode`] reads a name through one table of forms (`table`), from which [`isa`] is
//! printed too. Values are bit patterns zero-extended to 64 bits; bits above an operand's type
//! are ignored, so a wider register may be passed as it is.
//!
//! Where the ISA leaves a result open, this is what an H200 gives (each compared there, bit for
//! bit): integer division by zero and its remainder are all ones; `abs` and `neg` of an f32 NaN
//! are the canonical NaN; f64 passes NaNs on (`float`), and conversions some (`convert`).

mod approx;
mod bits;
mod compare;
mod convert;
mod decode;
mod float;
mod int;
mod op;
mod soft;
mod table;
#[cfg(test)]
mod tests;
mod types;
mod warp;

pub use decode::{IsaRow, isa, notation};
pub use op::ScalarOp;
pub use types::Ty;

use op::Op;

impl ScalarOp {
    /// One lane. `carry` is the condition code's carry flag. The second value is the second
    /// destination: `setp`'s complement or upper half, `lop3`'s predicate; else 0.
    ///
    /// Missing sources count as zero; only `min` and `max` of f32 look at how many there are.
    pub fn eval(&self, src: &[u64], carry: &mut bool) -> [u64; 2] {
        let mut s = [0; 6];
        let count = src.len().min(6);
        s[..count].copy_from_slice(&src[..count]);
        let single = |d: Option<u64>| d.map(|d| [d, 0]);
        let result = match self.op {
            Op::Mov => Some([s[0] & self.ty.mask(), 0]),
            Op::Setp | Op::Set | Op::Selp | Op::Slct => compare::eval(self, &s),
            Op::CvtInt => Some([int::convert(self, s[0]), 0]),
            Op::CvtPack => Some([int::pack(self, s[0], s[1], s[2]), 0]),
            Op::CvtToInt | Op::CvtFromInt | Op::CvtFloat | Op::CvtPacked => {
                single(convert::eval(self, &s))
            }
            _ if self.mods.approx => single(approx::eval(self, &s)),
            _ if self.ty.is_float() => single(float::eval(self, &s, count)),
            _ => single(int::eval(self, &s, carry)).or_else(|| bits::eval(self, &s)),
        };
        // Every decoded operation has an arm: a test evaluates each name of the table.
        debug_assert!(result.is_some(), "{self:?}");
        result.unwrap_or_default()
    }
}
