//! Kinds of `tcgen05.mma` and its instruction descriptor (PTX ISA 9.0, 9.7.16.2.1, 9.7.16.4.2).
//!
//! | bits | f16, tf32, f8f6f4, i8 | mxf8f6f4 | mxf4, mxf4nvf4 |
//! |---|---|---|---|
//! | 2 | sparse | sparse | sparse |
//! | 3 | saturate (i8) | | |
//! | 4-5 | D: f16 0, f32 1, s32 2 | B's scale id | B's scale id |
//! | 7-9 | A's type | A's type | A's type, e2m1 = 1 |
//! | 10-12 | B's type | B's type | B's type (10-11), e2m1 = 1 |
//! | 13, 14 | negate A, B | same | same |
//! | 15, 16 | transpose A, B | same | |
//! | 17-22 | N >> 3 | same | same |
//! | 23 | | scales: ue8m0 = 1 | scales: ue4m3 = 0, ue8m0 = 1 |
//! | 24-28 | M >> 4 | M >> 7 at 27-28 | M >> 7 at 27-28 |
//! | 29-30 | | A's scale id | A's scale id |
//! | 30-31 | shift of `.ws` | | K = 96 (31) |

use super::super::number::{Accumulator, Element};

/// The `.kind` of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Kind {
    F16,
    Tf32,
    F8f6f4,
    I8,
    Mxf8f6f4,
    Mxf4,
    Mxf4nvf4,
}

/// Every kind with its name.
pub const KINDS: [(&str, Kind); 7] = [
    ("f16", Kind::F16),
    ("tf32", Kind::Tf32),
    ("f8f6f4", Kind::F8f6f4),
    ("i8", Kind::I8),
    ("mxf8f6f4", Kind::Mxf8f6f4),
    ("mxf4", Kind::Mxf4),
    ("mxf4nvf4", Kind::Mxf4nvf4),
];

impl Kind {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        KINDS
            .iter()
            .find(|(_, kind)| *kind == self)
            .map_or("", |(name, _)| name)
    }

    /// Whether its operands are scaled in blocks.
    #[must_use]
    pub fn is_scaled(self) -> bool {
        matches!(self, Kind::Mxf8f6f4 | Kind::Mxf4 | Kind::Mxf4nvf4)
    }

    /// Whether two elements share a byte.
    #[must_use]
    pub fn is_packed(self) -> bool {
        matches!(self, Kind::Mxf4 | Kind::Mxf4nvf4)
    }

    /// Columns of A, rows of B: 32 bytes of them.
    #[must_use]
    pub fn k(self) -> usize {
        match self {
            Kind::F16 => 16,
            Kind::Tf32 => 8,
            Kind::F8f6f4 | Kind::I8 | Kind::Mxf8f6f4 => 32,
            Kind::Mxf4 | Kind::Mxf4nvf4 => 64,
        }
    }

    /// The types of A and B by their codes.
    #[must_use]
    pub fn elements(self) -> &'static [(u32, Element)] {
        match self {
            Kind::F16 => &[(0, Element::F16), (1, Element::Bf16)],
            Kind::Tf32 => &[(2, Element::Tf32)],
            Kind::I8 => &[(0, Element::U8), (1, Element::S8)],
            Kind::F8f6f4 | Kind::Mxf8f6f4 => &[
                (0, Element::E4m3),
                (1, Element::E5m2),
                (3, Element::E2m3),
                (4, Element::E3m2),
                (5, Element::E2m1),
            ],
            Kind::Mxf4 | Kind::Mxf4nvf4 => &[(1, Element::E2m1)],
        }
    }

    /// The types of D by their codes.
    #[must_use]
    pub fn sums(self) -> &'static [(u32, Accumulator)] {
        match self {
            Kind::F16 | Kind::F8f6f4 => &[(0, Accumulator::F16), (1, Accumulator::F32)],
            Kind::Tf32 => &[(1, Accumulator::F32)],
            Kind::I8 => &[(2, Accumulator::S32)],
            _ => &[],
        }
    }

    /// The values of M.
    #[must_use]
    pub fn rows(self, group: u32) -> &'static [usize] {
        match (self.is_scaled(), group) {
            (_, 2) => &[128, 256],
            (true, _) => &[128],
            (false, _) => &[64, 128],
        }
    }

    /// The values of N: the smallest is the step, up to 256; for i8 there are further small ones.
    #[must_use]
    pub fn columns(self, group: u32) -> (usize, &'static [usize]) {
        match (self, group) {
            (Kind::I8, 2) => (32, &[]),
            (Kind::I8, _) => (16, &[8, 24]),
            (_, 2) => (16, &[]),
            _ => (8, &[]),
        }
    }
}

/// The type of scale factors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleType {
    /// A power of two: 2^(bits - 127), 255 is NaN.
    Ue8m0,
    /// Unsigned e4m3.
    Ue4m3,
}

/// What an instruction descriptor says of scale factors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScaleFields {
    /// Which bytes of the words are A's.
    pub a: u32,
    /// Which bytes of the words are B's.
    pub b: u32,
    /// Their type.
    pub ty: ScaleType,
}

/// An instruction descriptor, taken apart and found legal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Fields {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: Element,
    pub b: Element,
    pub d: Accumulator,
    pub negate_a: bool,
    pub negate_b: bool,
    pub transpose_a: bool,
    pub transpose_b: bool,
    pub saturate: bool,
    pub scales: Option<ScaleFields>,
}

impl Fields {
    /// Takes a descriptor apart; an error says which value is wrong and what is allowed.
    pub fn decode(bits: u32, kind: Kind, group: u32) -> Result<Fields, String> {
        let wrong = |what: String| {
            format!(
                "instruction descriptor {bits:#010x} of kind::{}: {what}",
                kind.name()
            )
        };
        let field = |from: u32, count: u32| bits >> from & ((1 << count) - 1);
        let scaled = kind.is_scaled();
        let reserved = match kind {
            Kind::Mxf8f6f4 => 0b1000_0111_0000_0000_0000_0000_0100_1011,
            _ if scaled => 0b0000_0111_0000_0000_0001_0000_0100_1011,
            Kind::I8 => 1 << 6 | 1 << 23 | 1 << 29 | 3,
            _ => 1 << 3 | 1 << 6 | 1 << 23 | 1 << 29 | 3,
        };
        if field(2, 1) != 0 {
            return Err(wrong(
                "bit 2 asks for a sparse A, and this is no `.sp`".into(),
            ));
        }
        if bits & reserved != 0 {
            return Err(wrong(format!(
                "bits {:#010x} are set and must be 0",
                bits & reserved
            )));
        }
        if scaled && kind.is_packed() && field(31, 1) != 0 {
            return Err(wrong("K = 96 (bit 31) is not emulated".into()));
        }
        if !scaled && field(30, 2) != 0 {
            return Err(wrong("bits 30-31, a shift, are for `.ws`".into()));
        }
        let element = |which: &str, code: u32| {
            let known = kind.elements();
            known
                .iter()
                .find(|(other, _)| *other == code)
                .map(|&(_, element)| element)
                .ok_or_else(|| {
                    let list: Vec<String> = known
                        .iter()
                        .map(|(code, element)| format!("{code} {}", element.name()))
                        .collect();
                    wrong(format!(
                        "the type of {which} is {code}, and there are {}",
                        list.join(", ")
                    ))
                })
        };
        let a = element("A", field(7, 3))?;
        let b = element("B", field(10, if kind.is_packed() { 2 } else { 3 }))?;
        let d = if scaled {
            Accumulator::F32
        } else {
            let code = field(4, 2);
            let found = kind.sums().iter().find(|(other, _)| *other == code);
            found.map(|&(_, d)| d).ok_or_else(|| {
                let list: Vec<String> = kind
                    .sums()
                    .iter()
                    .map(|(code, d)| format!("{code} {}", d.name()))
                    .collect();
                wrong(format!(
                    "the type of D is {code}, and there are {}",
                    list.join(", ")
                ))
            })?
        };
        if kind == Kind::F16 && d == Accumulator::F16 && (a, b) != (Element::F16, Element::F16) {
            return Err(wrong(format!(
                "D in f16 takes A and B in f16, not {} and {}",
                a.name(),
                b.name()
            )));
        }
        let m = match scaled {
            true => field(27, 2) as usize * 128,
            false => field(24, 5) as usize * 16,
        };
        let rows = kind.rows(group);
        if !rows.contains(&m) {
            let list: Vec<String> = rows.iter().map(ToString::to_string).collect();
            return Err(wrong(format!(
                "M = {m}, and with cta_group::{group} M is {}",
                list.join(" or ")
            )));
        }
        let n = field(17, 6) as usize * 8;
        let (mut step, others) = kind.columns(group);
        // 9.7.16.10.1: N of a transposed B with elements of 8 bits.
        let transpose_b = field(16, 1) != 0;
        let bytes = kind != Kind::F16 && kind != Kind::Tf32;
        if transpose_b && bytes {
            step = step.max(16 * group as usize);
        }
        let listed = others.contains(&n) && !transpose_b;
        if !(listed || n >= step && n <= 256 && n.is_multiple_of(step)) {
            let also: String = others.iter().map(|n| format!("{n}, ")).collect();
            return Err(wrong(format!(
                "N = {n}, and with cta_group::{group} N is {also}{step} to 256 in steps of {step}"
            )));
        }
        let (negate_a, negate_b) = (field(13, 1) != 0, field(14, 1) != 0);
        if kind == Kind::I8 && (negate_a || negate_b) {
            return Err(wrong("integers are not negated".into()));
        }
        let transpose_a = field(15, 1) != 0;
        if kind.is_packed() && (transpose_a || transpose_b) {
            return Err(wrong("operands of 4 bits are not transposed".into()));
        }
        let scales = match scaled {
            false => None,
            true => Some(ScaleFields {
                a: field(29, 2),
                b: field(4, 2),
                ty: match (field(23, 1), kind) {
                    (1, _) => ScaleType::Ue8m0,
                    (_, Kind::Mxf4nvf4) => ScaleType::Ue4m3,
                    _ => {
                        return Err(wrong(
                            "the type of the scales (bit 23) is 0, and there is 1, ue8m0".into(),
                        ));
                    }
                },
            }),
        };
        Ok(Fields {
            m,
            n,
            k: kind.k(),
            a,
            b,
            d,
            negate_a,
            negate_b,
            transpose_a,
            transpose_b,
            saturate: field(3, 1) != 0,
            scales,
        })
    }
}
