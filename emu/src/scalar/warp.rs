//! A warp at once: one dispatch a call, then a tight loop over the lanes.

use super::bits::{combine, lop3};
use super::compare::holds;
use super::float::arithmetic;
use super::op::{Cmp, Op, Part, ScalarOp};
use super::soft::{F32, F64, Round};
use super::types::Ty;

/// A source's value in each lane.
type Lanes = [u64; 32];

impl ScalarOp {
    /// [`ScalarOp::eval`] over the lanes of `mask`; other lanes of `carry` and `dst` stay.
    pub fn eval_warp(&self, mask: u32, src: &[&Lanes], carry: &mut u32, dst: &mut [Lanes; 2]) {
        if mask == u32::MAX {
            if self.fast(src, dst) {
                return;
            }
        } else {
            // A partial warp computes all lanes aside: the functions are pure.
            let mut aside = [[0; 32]; 2];
            if self.fast(src, &mut aside) {
                let second = self.op == Op::Setp;
                for i in (0..32).filter(|i| mask >> i & 1 == 1) {
                    dst[0][i] = aside[0][i];
                    if second {
                        dst[1][i] = aside[1][i];
                    }
                }
                return;
            }
        }
        let count = src.len().min(6);
        for i in (0..32).filter(|i| mask >> i & 1 == 1) {
            let mut s = [0; 6];
            for (to, from) in s.iter_mut().zip(src) {
                *to = from[i];
            }
            let mut flag = *carry >> i & 1 == 1;
            let [d, q] = self.eval(&s[..count], &mut flag);
            *carry = *carry & !(1 << i) | u32::from(flag) << i;
            (dst[0][i], dst[1][i]) = (d, q);
        }
    }

    /// The common operations, over all lanes. False: not one of them.
    fn fast(&self, src: &[&Lanes], dst: &mut [Lanes; 2]) -> bool {
        let m = &self.mods;
        if src.len() < self.src_required() {
            return false;
        }
        let ones = self.ty.mask();
        match (self.op, self.ty) {
            (Op::Mov, _) => map1(src, dst, |a| a & ones),
            (Op::Setp, ty) => return self.setp(ty, src, dst),
            (Op::Selp, _) => {
                map3(src, dst, |a, b, p| (if p & 1 != 0 { a } else { b }) & ones);
            }
            (Op::And, _) => map2(src, dst, |a, b| a & b & ones),
            (Op::Or, _) => map2(src, dst, |a, b| (a | b) & ones),
            (Op::Xor, _) => map2(src, dst, |a, b| (a ^ b) & ones),
            (Op::Not, _) => map1(src, dst, |a| !a & ones),
            (Op::Shl, Ty::B32) => map2(src, dst, |a, b| {
                if b as u32 > 31 {
                    0
                } else {
                    u64::from((a as u32) << (b as u32))
                }
            }),
            (Op::Shl, Ty::B64) => map2(
                src,
                dst,
                |a, b| if b as u32 > 63 { 0 } else { a << (b as u32) },
            ),
            (Op::Shr, Ty::B32 | Ty::U32) => map2(src, dst, |a, b| {
                if b as u32 > 31 {
                    0
                } else {
                    (a as u32 >> (b as u32)).into()
                }
            }),
            (Op::Shr, Ty::B64 | Ty::U64) => {
                map2(
                    src,
                    dst,
                    |a, b| if b as u32 > 63 { 0 } else { a >> (b as u32) },
                )
            }
            (Op::Shr, Ty::S32) => map2(src, dst, |a, b| {
                ((a as i32) >> (b as u32).min(31)) as u32 as u64
            }),
            (Op::Shr, Ty::S64) => map2(src, dst, |a, b| ((a as i64) >> (b as u32).min(63)) as u64),
            (Op::Add, Ty::U32 | Ty::S32) if !m.sat && !m.cc => {
                map2(src, dst, |a, b| a.wrapping_add(b) as u32 as u64)
            }
            (Op::Sub, Ty::U32 | Ty::S32) if !m.sat && !m.cc => {
                map2(src, dst, |a, b| a.wrapping_sub(b) as u32 as u64)
            }
            (Op::Add, Ty::U64 | Ty::S64) if !m.cc => map2(src, dst, u64::wrapping_add),
            (Op::Sub, Ty::U64 | Ty::S64) if !m.cc => map2(src, dst, u64::wrapping_sub),
            (Op::Mul | Op::Mad, ty) if !ty.is_float() => return self.product(src, dst),
            (Op::Add | Op::Sub | Op::Mul | Op::Fma, Ty::F32 | Ty::F64) => {
                return self.nearest(src, dst);
            }
            (Op::CvtInt, _) if !m.sat => {
                let (to, from) = (self.ty.mask(), self.from);
                map1(src, dst, |a| from.extend(a) & to);
            }
            (Op::Lop3, _) if m.with.is_none() => {
                for (i, d) in dst[0].iter_mut().enumerate() {
                    let [a, b, c, lut] = [0, 1, 2, 3].map(|k| src[k][i]);
                    *d = lop3(a as u32, b as u32, c as u32, lut as u8).into();
                }
            }
            (Op::Shf, _) => return self.funnel(src, dst),
            (Op::Min, Ty::U32) => map2(src, dst, |a, b| (a as u32).min(b as u32).into()),
            (Op::Max, Ty::U32) => map2(src, dst, |a, b| (a as u32).max(b as u32).into()),
            (Op::Min, Ty::S32) if !m.relu => {
                map2(src, dst, |a, b| (a as i32).min(b as i32) as u32 as u64)
            }
            (Op::Max, Ty::S32) if !m.relu => {
                map2(src, dst, |a, b| (a as i32).max(b as i32) as u32 as u64)
            }
            (Op::CvtFromInt | Op::CvtToInt | Op::CvtFloat | Op::CvtPacked, _) => {
                return self.cast(src, dst);
            }
            _ => return false,
        }
        true
    }

    /// `shf`: `b` above `a`.
    fn funnel(&self, src: &[&Lanes], dst: &mut [Lanes; 2]) -> bool {
        let wrap = self.mods.wrap;
        let amount = |c: u64| {
            if wrap {
                c as u32 & 31
            } else {
                (c as u32).min(32)
            }
        };
        let both = |a: u64, b: u64| b << 32 | a & 0xffff_ffff;
        if self.mods.left {
            map3(src, dst, |a, b, c| both(a, b) << amount(c) >> 32);
        } else {
            map3(src, dst, |a, b, c| both(a, b) >> amount(c) & 0xffff_ffff);
        }
        true
    }

    /// `mul` and `mad` of 32- and 64-bit integers.
    fn product(&self, src: &[&Lanes], dst: &mut [Lanes; 2]) -> bool {
        let m = &self.mods;
        if m.sat || m.cc {
            return false;
        }
        // A product has no third source: zero stands in.
        let add = if self.op == Op::Mad { src[2] } else { &[0; 32] };
        let src = &[src[0], src[1], add];
        match (m.part, self.ty) {
            (Part::Lo, Ty::U32 | Ty::S32) => {
                map3(src, dst, |a, b, c| {
                    a.wrapping_mul(b).wrapping_add(c) as u32 as u64
                });
            }
            (Part::Lo, Ty::U64 | Ty::S64) => {
                map3(src, dst, |a, b, c| a.wrapping_mul(b).wrapping_add(c))
            }
            (Part::Wide, Ty::U32) => {
                map3(src, dst, |a, b, c| {
                    (a as u32 as u64)
                        .wrapping_mul(b as u32 as u64)
                        .wrapping_add(c)
                });
            }
            (Part::Wide, Ty::S32) => {
                map3(src, dst, |a, b, c| {
                    ((a as i32 as i64).wrapping_mul(b as i32 as i64) as u64).wrapping_add(c)
                });
            }
            (Part::Hi, Ty::U32) => map3(src, dst, |a, b, c| {
                ((((a as u32 as u64) * (b as u32 as u64)) >> 32) as u32)
                    .wrapping_add(c as u32)
                    .into()
            }),
            (Part::Hi, Ty::S32) => map3(src, dst, |a, b, c| {
                ((((a as i32 as i64) * (b as i32 as i64)) >> 32) as u32)
                    .wrapping_add(c as u32)
                    .into()
            }),
            _ => return false,
        }
        true
    }

    /// f32 and f64 rounded to nearest, with no clamp.
    fn nearest(&self, src: &[&Lanes], dst: &mut [Lanes; 2]) -> bool {
        let m = &self.mods;
        if m.round != Round::Rn || m.sat || self.from != self.ty {
            return false;
        }
        if m.ftz {
            return self.flushed(src, dst);
        }
        match (self.op, self.ty) {
            (Op::Add, Ty::F32) => map2(src, dst, |a, b| single(float(a) + float(b))),
            (Op::Sub, Ty::F32) => map2(src, dst, |a, b| single(float(a) - float(b))),
            (Op::Mul, Ty::F32) => map2(src, dst, |a, b| single(float(a) * float(b))),
            (Op::Fma, Ty::F32) => map3(src, dst, |a, b, c| {
                single(float(a).mul_add(float(b), float(c)))
            }),
            (Op::Add, Ty::F64) => map2(src, dst, |a, b| {
                self.double(f64::from_bits(a) + f64::from_bits(b), [a, b, 0])
            }),
            (Op::Sub, Ty::F64) => map2(src, dst, |a, b| {
                self.double(f64::from_bits(a) - f64::from_bits(b), [a, b, 0])
            }),
            (Op::Mul, Ty::F64) => map2(src, dst, |a, b| {
                self.double(f64::from_bits(a) * f64::from_bits(b), [a, b, 0])
            }),
            (Op::Fma, Ty::F64) => map3(src, dst, |a, b, c| {
                let [x, y, z] = [a, b, c].map(f64::from_bits);
                self.double(x.mul_add(y, z), [a, b, c])
            }),
            _ => return false,
        }
        true
    }

    /// f32 with `.ftz`.
    fn flushed(&self, src: &[&Lanes], dst: &mut [Lanes; 2]) -> bool {
        let read = |a: u64| float(F32.flush(a & 0xffff_ffff));
        let write = |d: f32, s: [u64; 3]| {
            if d.abs() == f32::MIN_POSITIVE {
                // Perhaps a tiny value rounded up, which is flushed.
                arithmetic(self.op, F32, &self.mods, s)
            } else {
                F32.flush(single(d))
            }
        };
        match (self.op, self.ty) {
            (Op::Add, Ty::F32) => map2(src, dst, |a, b| write(read(a) + read(b), [a, b, 0])),
            (Op::Sub, Ty::F32) => map2(src, dst, |a, b| write(read(a) - read(b), [a, b, 0])),
            (Op::Mul, Ty::F32) => map2(src, dst, |a, b| write(read(a) * read(b), [a, b, 0])),
            (Op::Fma, Ty::F32) => map3(src, dst, |a, b, c| {
                write(read(a).mul_add(read(b), read(c)), [a, b, c])
            }),
            _ => return false,
        }
        true
    }

    /// The bits of `d`; a NaN is worked out again from the operands, whose payload it may keep.
    #[inline(always)]
    fn double(&self, d: f64, s: [u64; 3]) -> u64 {
        if d.is_nan() {
            arithmetic(self.op, F64, &self.mods, s)
        } else {
            d.to_bits()
        }
    }

    /// Conversions among 32- and 64-bit types whose rounding the host's casts share.
    fn cast(&self, src: &[&Lanes], dst: &mut [Lanes; 2]) -> bool {
        let m = &self.mods;
        if m.sat || m.ftz || m.relu || m.satfinite {
            return false;
        }
        match (self.ty, self.from, m.round, m.integral) {
            (Ty::F32, Ty::S32, Round::Rn, _) => map1(src, dst, |a| single(a as i32 as f32)),
            (Ty::F32, Ty::U32, Round::Rn, _) => map1(src, dst, |a| single(a as u32 as f32)),
            (Ty::F32, Ty::S64, Round::Rn, _) => map1(src, dst, |a| single(a as i64 as f32)),
            (Ty::F32, Ty::U64, Round::Rn, _) => map1(src, dst, |a| single(a as f32)),
            // Both saturate, and NaN is zero in both.
            (Ty::S32, Ty::F32, Round::Rz, true) => {
                map1(src, dst, |a| float(a) as i32 as u32 as u64)
            }
            (Ty::U32, Ty::F32, Round::Rz, true) => map1(src, dst, |a| float(a) as u32 as u64),
            (Ty::F32, Ty::F64, Round::Rn, false) => map1(src, dst, narrowed),
            (Ty::F32, Ty::Bf16, _, false) => map1(src, dst, |a| a << 16 & 0xffff_ffff),
            (Ty::Bf16, Ty::F32, Round::Rn, false) => map1(src, dst, brain),
            (Ty::Bf16x2, Ty::F32, Round::Rn, false) if !m.stochastic => {
                map2(src, dst, |a, b| brain(a) << 16 | brain(b));
            }
            _ => return false,
        }
        true
    }

    /// Comparisons of 32- and 64-bit types.
    fn setp(&self, ty: Ty, src: &[&Lanes], dst: &mut [Lanes; 2]) -> bool {
        if self.mods.ftz {
            return false;
        }
        let cmp = self.mods.cmp;
        match ty {
            Ty::B32 | Ty::U32 => compare(cmp, src, dst, |a| a as u32),
            Ty::S32 => compare(cmp, src, dst, |a| a as i32),
            Ty::B64 | Ty::U64 => compare(cmp, src, dst, |a| a),
            Ty::S64 => compare(cmp, src, dst, |a| a as i64),
            Ty::F32 => compare(cmp, src, dst, float),
            Ty::F64 => compare(cmp, src, dst, f64::from_bits),
            _ => return false,
        }
        if let Some(with) = self.mods.with {
            let [p, q] = dst;
            for (i, c) in src[2].iter().enumerate() {
                p[i] = combine(Some(with), p[i] != 0, *c).into();
                q[i] = combine(Some(with), q[i] != 0, *c).into();
            }
        }
        true
    }
}

fn float(a: u64) -> f32 {
    f32::from_bits(a as u32)
}

/// The bits of a result, every NaN being the canonical one.
fn single(a: f32) -> u64 {
    if a.is_nan() {
        0x7fff_ffff
    } else {
        a.to_bits().into()
    }
}

/// f64 to f32, to nearest even; a NaN keeps its sign and the payload's upper bits, made quiet.
fn narrowed(a: u64) -> u64 {
    let value = f64::from_bits(a);
    if value.is_nan() {
        a >> 32 & 0x8000_0000 | 0x7fc0_0000 | a >> 29 & 0x7f_ffff
    } else {
        u64::from((value as f32).to_bits())
    }
}

/// f32 to bf16, to nearest even.
fn brain(a: u64) -> u64 {
    let a = a as u32;
    if a & 0x7fff_ffff > 0x7f80_0000 {
        0x7fff
    } else {
        u64::from((a + 0x7fff + (a >> 16 & 1)) >> 16)
    }
}

#[inline(always)]
fn map1(src: &[&Lanes], dst: &mut [Lanes; 2], f: impl Fn(u64) -> u64) {
    for (d, a) in dst[0].iter_mut().zip(src[0]) {
        *d = f(*a);
    }
}

#[inline(always)]
fn map2(src: &[&Lanes], dst: &mut [Lanes; 2], f: impl Fn(u64, u64) -> u64) {
    let (a, b) = (src[0], src[1]);
    for (i, d) in dst[0].iter_mut().enumerate() {
        *d = f(a[i], b[i]);
    }
}

#[inline(always)]
fn map3(src: &[&Lanes], dst: &mut [Lanes; 2], f: impl Fn(u64, u64, u64) -> u64) {
    let (a, b, c) = (src[0], src[1], src[2]);
    for (i, d) in dst[0].iter_mut().enumerate() {
        *d = f(a[i], b[i], c[i]);
    }
}

/// One loop a comparison, so that each is a single machine comparison.
#[inline(always)]
fn compare<T: PartialOrd>(cmp: Cmp, src: &[&Lanes], dst: &mut [Lanes; 2], read: impl Fn(u64) -> T) {
    let [p, q] = dst;
    let (a, b) = (src[0], src[1]);
    macro_rules! each {
        ($test:expr) => {
            for i in 0..32 {
                let t = $test(read(a[i]), read(b[i]));
                (p[i], q[i]) = (t.into(), (!t).into());
            }
        };
    }
    match cmp {
        Cmp::Eq => each!(|a: T, b: T| a == b),
        Cmp::Lt => each!(|a: T, b: T| a < b),
        Cmp::Le => each!(|a: T, b: T| a <= b),
        Cmp::Gt => each!(|a: T, b: T| a > b),
        Cmp::Ge => each!(|a: T, b: T| a >= b),
        cmp => each!(|a: T, b: T| holds(cmp, a.partial_cmp(&b))),
    }
}
