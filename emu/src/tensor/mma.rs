//! `mma.sync.aligned` (PTX ISA 9.0, 9.7.14.5), dense forms of shape m16n8kK.
//!
//! | types | K | C and D |
//! |---|---|---|
//! | f16 | 8, 16 | f32, f16 |
//! | bf16 | 8, 16 | f32 |
//! | tf32 | 4, 8 | f32 |
//! | e4m3, e5m2 in any pair | 16, 32 | f32, f16 |
//! | s8, u8 in any pair | 16, 32 | s32 |
//!
//! The figures of all these shapes are one rule. With g = lane / 4, t = lane % 4 and E elements
//! in a register: register r of A holds row g + 8 (r % 2), columns E t + 4 E (r / 2) and on;
//! register r of B holds column g, rows E t + 4 E r and on; element e of C and D is row
//! g + 8 (e / 2), column 2 t + e % 2, two elements a register if f16.

use super::number::{Accumulator, Element};
use super::product::{Numerics, Shape};

const M: usize = 16;
const N: usize = 8;
/// Threads of a warp.
const LANES: usize = 32;

/// A dense `mma.sync`, its opcode decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mma {
    k: usize,
    a: Element,
    b: Element,
    d: Accumulator,
    saturate: bool,
}

/// A's type, B's types, the values of K, D's types.
type Kind = (
    Element,
    &'static [Element],
    [usize; 2],
    &'static [Accumulator],
);

/// The types and shapes that go together.
const KINDS: [Kind; 7] = [
    (
        Element::F16,
        &[Element::F16],
        [8, 16],
        &[Accumulator::F32, Accumulator::F16],
    ),
    (
        Element::Bf16,
        &[Element::Bf16],
        [8, 16],
        &[Accumulator::F32],
    ),
    (Element::Tf32, &[Element::Tf32], [4, 8], &[Accumulator::F32]),
    (
        Element::E4m3,
        &[Element::E4m3, Element::E5m2],
        [16, 32],
        &[Accumulator::F32, Accumulator::F16],
    ),
    (
        Element::E5m2,
        &[Element::E4m3, Element::E5m2],
        [16, 32],
        &[Accumulator::F32, Accumulator::F16],
    ),
    (
        Element::S8,
        &[Element::S8, Element::U8],
        [16, 32],
        &[Accumulator::S32],
    ),
    (
        Element::U8,
        &[Element::S8, Element::U8],
        [16, 32],
        &[Accumulator::S32],
    ),
];

impl Mma {
    /// Decodes an opcode split at its dots; `None` if it is no `mma`.
    pub fn decode(opcode: &[&str]) -> Result<Option<Mma>, String> {
        let ["mma", rest @ ..] = opcode else {
            return Ok(None);
        };
        let wrong = |what: &str| Err(format!("{}: {what}", opcode.join(".")));
        if rest.iter().any(|part| part.starts_with("sp")) {
            return wrong("sparse mma is not implemented");
        }
        let ["sync", "aligned", shape, "row", "col", rest @ ..] = rest else {
            return wrong("expected .sync.aligned, a shape, .row.col (others are not implemented)");
        };
        let (saturate, types) = match rest {
            ["satfinite", types @ ..] => (true, types),
            types => (false, types),
        };
        let [d, a, b, c] = types else {
            return wrong(
                "expected the types of D, A, B and C (kinds, scales and operators on \
                          bits are not implemented)",
            );
        };
        let (Some(sum), Some(left), Some(right)) = (
            Accumulator::from_name(d),
            Element::from_name(a),
            Element::from_name(b),
        ) else {
            return wrong("a type that is not implemented");
        };
        if c != d {
            return wrong("C and D of different types");
        }
        let Some(kind) = KINDS
            .iter()
            .find(|kind| kind.0 == left && kind.1.contains(&right) && kind.3.contains(&sum))
        else {
            return wrong("these types don't go together");
        };
        if saturate && !left.is_integer() {
            return wrong(".satfinite is for integers");
        }
        let Some(k) = kind
            .2
            .into_iter()
            .find(|k| *shape == format!("m{M}n{N}k{k}"))
        else {
            let [low, high] = kind.2;
            return wrong(&format!("{a} takes m16n8k{low} and m16n8k{high} here"));
        };
        Ok(Some(Mma {
            k,
            a: left,
            b: right,
            d: sum,
            saturate,
        }))
    }

    /// Columns of A, rows of B.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Type of C's and D's elements.
    #[must_use]
    pub fn d(&self) -> Accumulator {
        self.d
    }

    /// Registers of A in each lane.
    #[must_use]
    pub fn registers_a(&self) -> usize {
        self.k * self.a.bytes() / 8
    }

    /// Registers of B in each lane.
    #[must_use]
    pub fn registers_b(&self) -> usize {
        self.registers_a() / 2
    }

    /// Registers of C, and of D, in each lane.
    #[must_use]
    pub fn registers_d(&self) -> usize {
        if self.d == Accumulator::F16 { 2 } else { 4 }
    }

    /// Floating-point (or integer) operations of one instruction.
    #[must_use]
    pub fn operations(&self) -> u64 {
        2 * (M * N * self.k) as u64
    }

    /// Row and column of the first element that `register` of A holds; K ascends in it.
    #[must_use]
    pub fn place_a(&self, lane: usize, register: usize) -> (usize, usize) {
        let per = self.a.per_register();
        (
            lane / 4 + 8 * (register % 2),
            per * (lane % 4) + 4 * per * (register / 2),
        )
    }

    /// Row (k) and column (n) of the first element that `register` of B holds; k ascends in it.
    #[must_use]
    pub fn place_b(&self, lane: usize, register: usize) -> (usize, usize) {
        let per = self.b.per_register();
        (per * (lane % 4) + 4 * per * register, lane / 4)
    }

    /// Row and column of an element of C or D; `half` is 0 or 1 where two share a register.
    #[must_use]
    pub fn place_d(&self, lane: usize, register: usize, half: usize) -> (usize, usize) {
        let element = if self.d == Accumulator::F16 {
            2 * register + half
        } else {
            register
        };
        (lane / 4 + 8 * (element / 2), 2 * (lane % 4) + element % 2)
    }

    /// D = A B + C over a warp; `a[register][lane]` and so on.
    pub fn execute(
        &self,
        numerics: Numerics,
        a: &[[u32; LANES]],
        b: &[[u32; LANES]],
        c: &[[u32; LANES]],
    ) -> Result<Vec<[u32; LANES]>, String> {
        let given = (a.len(), b.len(), c.len());
        let wanted = (self.registers_a(), self.registers_b(), self.registers_d());
        if given != wanted {
            return Err(format!(
                "m16n8k{} with {} takes {wanted:?} registers of A, B and C, not {given:?}",
                self.k,
                self.a.name()
            ));
        }
        let mut left = vec![0.0; M * self.k];
        for (register, lanes) in a.iter().enumerate() {
            for (lane, bits) in lanes.iter().enumerate() {
                let (row, column) = self.place_a(lane, register);
                self.a.each_in_register(*bits, |i, value| {
                    left[row * self.k + column + i] = value;
                });
            }
        }
        let mut right = vec![0.0; self.k * N];
        for (register, lanes) in b.iter().enumerate() {
            for (lane, bits) in lanes.iter().enumerate() {
                let (row, column) = self.place_b(lane, register);
                self.b
                    .each_in_register(*bits, |i, value| right[(row + i) * N + column] = value);
            }
        }
        let mut sums = vec![0; M * N];
        self.each_accumulator(|register, lane, shift, at| sums[at] = c[register][lane] >> shift);
        let shape = Shape {
            m: M,
            n: N,
            k: self.k,
            a: self.a,
            b: self.b,
            d: self.d,
            saturate: self.saturate,
        };
        shape.multiply(numerics, &left, &right, &mut sums);
        let mut d = vec![[0; LANES]; self.registers_d()];
        let mask = if self.d == Accumulator::F16 {
            0xffff
        } else {
            u32::MAX
        };
        self.each_accumulator(|register, lane, shift, at| {
            d[register][lane] |= (sums[at] & mask) << shift;
        });
        Ok(d)
    }

    /// Calls (register, lane, shift, index into `[row][column]`) for each element of D.
    fn each_accumulator(&self, mut visit: impl FnMut(usize, usize, u32, usize)) {
        let halves = if self.d == Accumulator::F16 { 2 } else { 1 };
        for register in 0..self.registers_d() {
            for lane in 0..LANES {
                for half in 0..halves {
                    let (row, column) = self.place_d(lane, register, half);
                    visit(register, lane, 16 * half as u32, row * N + column);
                }
            }
        }
    }

    /// Masks of D's bits that depend on marked (e.g. uninitialised) bits of A, B or C: a marked
    /// register of A marks the rows of D that it holds, one of B the columns. Lengths as for
    /// [`Self::execute`]; missing registers count as unmarked.
    #[must_use]
    pub fn marks(
        &self,
        a: &[[u32; LANES]],
        b: &[[u32; LANES]],
        c: &[[u32; LANES]],
    ) -> Vec<[u32; LANES]> {
        let (mut rows, mut columns) = ([false; M], [false; N]);
        for (register, lanes) in a.iter().take(self.registers_a()).enumerate() {
            for (lane, mask) in lanes.iter().enumerate() {
                rows[self.place_a(lane, register).0] |= *mask != 0;
            }
        }
        for (register, lanes) in b.iter().take(self.registers_b()).enumerate() {
            for (lane, mask) in lanes.iter().enumerate() {
                columns[self.place_b(lane, register).1] |= *mask != 0;
            }
        }
        let all = if self.d == Accumulator::F16 {
            0xffff
        } else {
            u32::MAX
        };
        let mut marks = vec![[0; LANES]; self.registers_d()];
        self.each_accumulator(|register, lane, shift, at| {
            let old = c
                .get(register)
                .map_or(0, |lanes| lanes[lane] >> shift & all);
            if rows[at / N] || columns[at % N] || old != 0 {
                marks[register][lane] |= all << shift;
            }
        });
        marks
    }
}

/// Rows of the table of what is executed.
#[must_use]
pub fn isa() -> Vec<(String, String)> {
    let mut rows = Vec::new();
    for (a, others, depths, sums) in KINDS {
        for k in depths {
            for b in others {
                for d in sums {
                    let clamp = if a.is_integer() { "{.satfinite}" } else { "" };
                    rows.push((
                        format!("mma.sync.aligned.m{M}n{N}k{k}.row.col{clamp}"),
                        format!("{}.{}.{}.{}", d.name(), a.name(), b.name(), d.name()),
                    ));
                }
            }
        }
    }
    rows
}
