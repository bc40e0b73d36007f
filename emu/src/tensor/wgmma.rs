//! `wgmma.mma_async.sync.aligned` (PTX ISA 9.0, 9.7.15.5.2), dense forms.
//!
//! | types | shape | D |
//! |---|---|---|
//! | f16 | m64nNk16 | f32, f16 |
//! | bf16 | m64nNk16 | f32 |
//! | tf32 | m64nNk8 | f32 |
//! | e4m3, e5m2 in any pair | m64nNk32 | f32, f16 |
//! | s8, u8 in any pair | m64nNk32 | s32 |
//!
//! N is a multiple of 8 up to 256; of 16 for integers, and 8 and 24 there too.
//!
//! Fragments, with g = lane / 4, t = lane % 4 and w the warp of the warpgroup: register r of A
//! holds row 16 w + g + 8 (r % 2) and the 4 bytes of K from 4 t + 16 (r / 2); D holds rows
//! 16 w + g and + 8, columns 8 j + 2 t and + 1, in the order (row, column), (row, column + 1),
//! (row + 8, column), (row + 8, column + 1), then the next j.

use super::descriptor::{Descriptor, Layout, Major};
use super::number::{Accumulator, Element};
use super::product::{Numerics, Shape};
use super::reads::Touched;

pub use super::reads::Reads;

/// Rows of A and D.
const M: usize = 64;
/// Threads of a warpgroup.
const THREADS: usize = 128;

/// A dense `wgmma.mma_async`, its opcode decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wgmma {
    n: usize,
    a: Element,
    b: Element,
    d: Accumulator,
    saturate: bool,
}

/// The types that go together.
const KINDS: [(Element, &[Element], &[Accumulator]); 7] = [
    (
        Element::F16,
        &[Element::F16],
        &[Accumulator::F32, Accumulator::F16],
    ),
    (Element::Bf16, &[Element::Bf16], &[Accumulator::F32]),
    (Element::Tf32, &[Element::Tf32], &[Accumulator::F32]),
    (
        Element::E4m3,
        &[Element::E4m3, Element::E5m2],
        &[Accumulator::F32, Accumulator::F16],
    ),
    (
        Element::E5m2,
        &[Element::E4m3, Element::E5m2],
        &[Accumulator::F32, Accumulator::F16],
    ),
    (
        Element::S8,
        &[Element::S8, Element::U8],
        &[Accumulator::S32],
    ),
    (
        Element::U8,
        &[Element::S8, Element::U8],
        &[Accumulator::S32],
    ),
];

/// The values of N.
fn columns(element: Element) -> impl Iterator<Item = usize> {
    let integer = element.is_integer();
    (8..=256)
        .step_by(8)
        .filter(move |n| !integer || n % 16 == 0 || *n == 8 || *n == 24)
}

/// An immediate that follows the predicate `scale-d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Immediate {
    /// `imm-scale-a`: 1, or -1 to negate A.
    ScaleA,
    /// `imm-scale-b`.
    ScaleB,
    /// `imm-trans-a`: 0, or 1 for an M-major A.
    TransA,
    /// `imm-trans-b`: 0, or 1 for an N-major B.
    TransB,
}

/// Where A comes from.
#[derive(Debug, Clone, Copy)]
pub enum OperandA<'a> {
    /// Shared memory, by descriptor.
    Desc(u64),
    /// Four registers of each of the 128 threads.
    Regs(&'a [[u32; 4]; 128]),
}

/// The predicate and the immediates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Modifiers {
    /// False: D = A B, the old D is not read.
    pub scale_d: bool,
    /// `imm-scale-a` is -1.
    pub neg_a: bool,
    /// `imm-scale-b` is -1.
    pub neg_b: bool,
    /// `imm-trans-a` is 1.
    pub trans_a: bool,
    /// `imm-trans-b` is 1.
    pub trans_b: bool,
}

impl Default for Modifiers {
    /// D += A B, both K-major.
    fn default() -> Self {
        Modifiers {
            scale_d: true,
            neg_a: false,
            neg_b: false,
            trans_a: false,
            trans_b: false,
        }
    }
}

/// Which rows of A and columns of B hold something that the caller marked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marks {
    /// Rows of A, hence of D.
    pub rows: [bool; 64],
    /// Columns of B, hence of D.
    pub columns: Vec<bool>,
}

impl Wgmma {
    /// Decodes an opcode split at its dots; `None` if it is no `wgmma.mma_async`.
    pub fn decode(opcode: &[&str]) -> Result<Option<Wgmma>, String> {
        let ["wgmma", "mma_async", rest @ ..] = opcode else {
            return Ok(None);
        };
        let wrong = |what: &str| Err(format!("{}: {what}", opcode.join(".")));
        if rest.contains(&"sp") {
            return wrong("sparse wgmma is not implemented");
        }
        if rest.contains(&"b1") {
            return wrong("single-bit wgmma is not implemented");
        }
        let ["sync", "aligned", shape, rest @ ..] = rest else {
            return wrong("expected .sync.aligned and a shape");
        };
        let (saturate, types) = match rest {
            ["satfinite", types @ ..] => (true, types),
            types => (false, types),
        };
        let [d, a, b] = types else {
            return wrong("expected the types of D, A and B after the shape");
        };
        let (Some(d), Some(a), Some(b)) = (
            Accumulator::from_name(d),
            Element::from_name(a),
            Element::from_name(b),
        ) else {
            return wrong("a type that wgmma doesn't have");
        };
        let known = KINDS
            .iter()
            .any(|(left, right, sums)| *left == a && right.contains(&b) && sums.contains(&d));
        if !known {
            return wrong("these types don't go together");
        }
        if saturate && !a.is_integer() {
            return wrong(".satfinite is for integers");
        }
        let k = 32 / a.bytes();
        let Some(n) = columns(a).find(|n| *shape == format!("m64n{n}k{k}")) else {
            return wrong(&format!("the shape is none of m64nNk{k} for {}", a.name()));
        };
        Ok(Some(Wgmma {
            n,
            a,
            b,
            d,
            saturate,
        }))
    }

    /// Columns of B and D.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Columns of A, rows of B: 32 bytes of them.
    #[must_use]
    pub fn k(&self) -> usize {
        32 / self.a.bytes()
    }

    /// Type of A's elements.
    #[must_use]
    pub fn a(&self) -> Element {
        self.a
    }

    /// Type of B's elements.
    #[must_use]
    pub fn b(&self) -> Element {
        self.b
    }

    /// Type of D's elements.
    #[must_use]
    pub fn d(&self) -> Accumulator {
        self.d
    }

    /// Registers of D in each thread.
    #[must_use]
    pub fn registers(&self) -> usize {
        if self.d == Accumulator::F16 {
            self.n / 4
        } else {
            self.n / 2
        }
    }

    /// Registers of A in each thread, if A is in registers: 4 in every dense form.
    #[must_use]
    pub fn registers_a(&self) -> usize {
        4
    }

    /// The immediates that follow `scale-d`, in order.
    #[must_use]
    pub fn immediates(&self, a_in_registers: bool) -> &'static [Immediate] {
        use Immediate::{ScaleA, ScaleB, TransA, TransB};
        match (self.a, a_in_registers) {
            (Element::S8 | Element::U8, _) => &[],
            (Element::F16 | Element::Bf16, false) => &[ScaleA, ScaleB, TransA, TransB],
            (Element::F16 | Element::Bf16, true) => &[ScaleA, ScaleB, TransB],
            _ => &[ScaleA, ScaleB],
        }
    }

    /// Floating-point (or integer) operations of one instruction.
    #[must_use]
    pub fn operations(&self) -> u64 {
        2 * (M * self.n * self.k()) as u64
    }

    /// Row and column of an element of D: register `register` of `thread`, `half` 0 or 1 where
    /// two share a register.
    #[must_use]
    pub fn place(&self, thread: usize, register: usize, half: usize) -> (usize, usize) {
        let element = if self.d == Accumulator::F16 {
            2 * register + half
        } else {
            register
        };
        let (warp, group, inner) = (thread / 32, thread % 32 / 4, thread % 4);
        let row = 16 * warp + group + 8 * (element / 2 % 2);
        (row, 8 * (element / 4) + 2 * inner + element % 2)
    }

    /// Executes it on a CTA's shared memory (`shared[0]` is address 0) and the warpgroup's
    /// accumulators, `d[thread][register]`.
    pub fn execute(
        &self,
        numerics: Numerics,
        shared: &[u8],
        a: OperandA,
        desc_b: u64,
        modifiers: Modifiers,
        d: &mut [Vec<u32>],
    ) -> Result<Reads, String> {
        self.check(a, modifiers)?;
        if d.len() != THREADS || d.iter().any(|thread| thread.len() != self.registers()) {
            return Err(format!(
                "the accumulator of m64n{}k{} has {} registers in each of {THREADS} threads",
                self.n,
                self.k(),
                self.registers()
            ));
        }
        let mut touched = Touched::new(shared.len());
        let left = self.gather_a(shared, a, modifiers, &mut touched)?;
        let right = self.gather_b(shared, desc_b, modifiers, &mut touched)?;
        let shape = Shape {
            m: M,
            n: self.n,
            k: self.k(),
            a: self.a,
            b: self.b,
            d: self.d,
            saturate: self.saturate,
        };
        let mut sums = vec![0; M * self.n];
        if modifiers.scale_d {
            self.each_accumulator(|thread, register, shift, at| {
                sums[at] = d[thread][register] >> shift;
            });
        }
        shape.multiply(numerics, &left, &right, &mut sums);
        let packed = self.d == Accumulator::F16;
        self.each_accumulator(|thread, register, shift, at| {
            let out = &mut d[thread][register];
            *out = match (packed, shift) {
                (false, _) => sums[at],
                (true, 0) => sums[at] & 0xffff,
                (true, _) => *out | sums[at] << 16,
            };
        });
        Ok(touched.reads())
    }

    /// Calls (thread, register, shift, index into `[row][column]`) for each element of D, as
    /// [`Self::place`] has it, without its divisions.
    #[inline(always)]
    fn each_accumulator(&self, mut visit: impl FnMut(usize, usize, u32, usize)) {
        let packed = self.d == Accumulator::F16;
        for thread in 0..THREADS {
            let first = row_of_a(thread, 0) * self.n + 2 * (thread % 4);
            for block in 0..self.n / 8 {
                for lower in 0..2 {
                    let at = first + 8 * lower * self.n + 8 * block;
                    for half in 0..2 {
                        let (register, shift) = if packed {
                            (2 * block + lower, 16 * half as u32)
                        } else {
                            (4 * block + 2 * lower + half, 0)
                        };
                        visit(thread, register, shift, at + half);
                    }
                }
            }
        }
    }

    /// Which rows and columns of the product hold something marked, e.g. uninitialised:
    /// `marked(address)` has bit i set if byte `address + i` of a 16-byte chunk is, and
    /// `registers` are masks of A's marked bits where A is in registers.
    pub fn marks(
        &self,
        marked: impl Fn(u32) -> u16,
        a: OperandA,
        desc_b: u64,
        modifiers: Modifiers,
    ) -> Result<Marks, String> {
        self.check(a, modifiers)?;
        let mut marks = Marks {
            rows: [false; 64],
            columns: vec![false; self.n],
        };
        match a {
            OperandA::Desc(bits) => {
                let layout = Self::layout(bits, "A", modifiers.trans_a, self.a)?;
                mark(&layout, M, self.k(), &marked, &mut marks.rows);
            }
            OperandA::Regs(masks) => {
                for (thread, registers) in masks.iter().enumerate() {
                    for (register, mask) in registers.iter().enumerate() {
                        marks.rows[row_of_a(thread, register)] |= *mask != 0;
                    }
                }
            }
        }
        let layout = Self::layout(desc_b, "B", modifiers.trans_b, self.b)?;
        mark(&layout, self.n, self.k(), &marked, &mut marks.columns);
        Ok(marks)
    }

    fn check(&self, a: OperandA, modifiers: Modifiers) -> Result<(), String> {
        let in_registers = matches!(a, OperandA::Regs(_));
        let immediates = self.immediates(in_registers);
        let flags = [
            (modifiers.neg_a, Immediate::ScaleA, "negates A"),
            (modifiers.neg_b, Immediate::ScaleB, "negates B"),
            (modifiers.trans_a, Immediate::TransA, "transposes A"),
            (modifiers.trans_b, Immediate::TransB, "transposes B"),
        ];
        for (set, immediate, what) in flags {
            if set && !immediates.contains(&immediate) {
                let from = if in_registers {
                    "registers"
                } else {
                    "shared memory"
                };
                return Err(format!(
                    "a wgmma that {what}: no such form with {} and A in {from}",
                    self.a.name()
                ));
            }
        }
        Ok(())
    }

    fn layout(bits: u64, which: &str, trans: bool, element: Element) -> Result<Layout, String> {
        let major = if trans { Major::Mn } else { Major::K };
        Descriptor::decode(bits)
            .and_then(|descriptor| descriptor.layout(major, element.bytes()))
            .map_err(|error| format!("operand {which}: {error}"))
    }

    /// A as `[m][k]`.
    fn gather_a(
        &self,
        shared: &[u8],
        a: OperandA,
        modifiers: Modifiers,
        touched: &mut Touched,
    ) -> Result<Vec<f32>, String> {
        let k = self.k();
        let mut values = vec![0.0; M * k];
        let sign = if modifiers.neg_a { -1.0 } else { 1.0 };
        match a {
            OperandA::Regs(threads) => {
                let per = self.a.per_register();
                for (thread, registers) in threads.iter().enumerate() {
                    for (register, bits) in registers.iter().enumerate() {
                        let column = per * (thread % 4 + 4 * (register / 2));
                        let at = row_of_a(thread, register) * k + column;
                        self.a
                            .each_in_register(*bits, |i, value| values[at + i] = sign * value);
                    }
                }
            }
            OperandA::Desc(bits) => {
                let layout = Self::layout(bits, "A", modifiers.trans_a, self.a)?;
                chunks(&layout, M, k, |row, column, address| {
                    let chunk = touched.chunk(shared, address, "A", bits)?;
                    let (start, step) = match layout.major() {
                        Major::K => (row * k + column, 1),
                        Major::Mn => (column * k + row, k),
                    };
                    self.a
                        .each(chunk, |i, value| values[start + i * step] = sign * value);
                    Ok(())
                })?;
            }
        }
        Ok(values)
    }

    /// B as `[k][n]`.
    fn gather_b(
        &self,
        shared: &[u8],
        bits: u64,
        modifiers: Modifiers,
        touched: &mut Touched,
    ) -> Result<Vec<f32>, String> {
        let n = self.n;
        let mut values = vec![0.0; n * self.k()];
        let sign = if modifiers.neg_b { -1.0 } else { 1.0 };
        let layout = Self::layout(bits, "B", modifiers.trans_b, self.b)?;
        chunks(&layout, n, self.k(), |row, column, address| {
            let chunk = touched.chunk(shared, address, "B", bits)?;
            let (start, step) = match layout.major() {
                Major::K => (column * n + row, n),
                Major::Mn => (row * n + column, 1),
            };
            self.b
                .each(chunk, |i, value| values[start + i * step] = sign * value);
            Ok(())
        })?;
        Ok(values)
    }
}

/// Row of A in a register.
fn row_of_a(thread: usize, register: usize) -> usize {
    16 * (thread / 32) + thread % 32 / 4 + 8 * (register % 2)
}

/// Calls (row, first element along the major dimension, address) for each 16-byte chunk of a
/// tile of `mn` by `k`; `row` counts the other dimension.
fn chunks(
    layout: &Layout,
    mn: usize,
    k: usize,
    mut visit: impl FnMut(usize, usize, u32) -> Result<(), String>,
) -> Result<(), String> {
    let (rows, columns) = match layout.major() {
        Major::K => (mn, k),
        Major::Mn => (k, mn),
    };
    let per = layout.per_chunk() as usize;
    for row in 0..rows {
        for chunk in 0..columns / per {
            visit(row, chunk * per, layout.chunk(row as u32, chunk as u32))?;
        }
    }
    Ok(())
}

fn mark(layout: &Layout, mn: usize, k: usize, marked: &impl Fn(u32) -> u16, out: &mut [bool]) {
    let per = layout.per_chunk() as usize;
    // The closure never fails.
    let _ = chunks(layout, mn, k, |row, column, address| {
        let mask = marked(address);
        match layout.major() {
            Major::K => out[row] |= mask != 0,
            Major::Mn => {
                for i in 0..per {
                    out[column + i] |= mask >> (i * 16 / per) & 3 != 0;
                }
            }
        }
        Ok(())
    });
}

/// Rows of the table of what is executed.
#[must_use]
pub fn isa() -> Vec<(String, String)> {
    let mut rows = Vec::new();
    for (a, others, sums) in KINDS {
        let list: Vec<String> = columns(a).map(|n| n.to_string()).collect();
        for b in others {
            for d in sums {
                let clamp = if a.is_integer() { "{.satfinite}" } else { "" };
                rows.push((
                    format!(
                        "wgmma.mma_async.sync.aligned.m64nNk{}{clamp}",
                        32 / a.bytes()
                    ),
                    format!(
                        "{}.{}.{}, N = {}",
                        d.name(),
                        a.name(),
                        b.name(),
                        list.join(" ")
                    ),
                ));
            }
        }
    }
    rows
}
