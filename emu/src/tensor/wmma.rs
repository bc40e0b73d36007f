//! `wmma.load`, `wmma.mma` and `wmma.store` (PTX ISA 9.0, 9.7.14.4): products whose fragments have a
//! layout that nobody may rely on.
//!
//! So this one is plain: the elements of a fragment, row after row, lie in the registers of lane 0,
//! then of lane 1, and so on; where there is more room than elements (A and B of f16), they repeat.
//!
//! | types | shapes | C and D |
//! |---|---|---|
//! | f16 | m16n16k16, m8n32k16, m32n8k16 | f32, f16, also one of each |
//! | bf16 | the same | f32 |
//! | tf32 | m16n16k8 | f32 |
//! | s8, u8 | those of f16 | s32 |

use super::number::{Accumulator, Element, canonical, f16_from_f64, f16_to_f32};
use super::product::{Numerics, Shape};

/// Threads of a warp.
const LANES: usize = 32;

/// A matrix in the registers of a warp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// Bytes of an element in memory.
    pub bytes: usize,
    /// Registers of each lane.
    pub registers: usize,
}

impl Fragment {
    /// Elements of a register.
    #[must_use]
    pub fn per_register(&self) -> usize {
        4 / self.bytes
    }

    /// Row and column of element `index` of a register of a lane.
    #[must_use]
    pub fn place(&self, lane: usize, register: usize, index: usize) -> (usize, usize) {
        let each = self.per_register();
        let at = ((lane * self.registers + register) * each + index) % (self.rows * self.columns);
        (at / self.columns, at % self.columns)
    }

    /// The bits of all elements, row after row.
    fn elements(&self, registers: &[[u32; LANES]]) -> Vec<u32> {
        let mut all = vec![0; self.rows * self.columns];
        let bits = 8 * self.bytes as u32;
        for (register, lanes) in registers.iter().enumerate() {
            for (lane, value) in lanes.iter().enumerate() {
                for index in 0..self.per_register() {
                    let (row, column) = self.place(lane, register, index);
                    let value = u64::from(*value) >> (bits * index as u32);
                    all[row * self.columns + column] = (value & ((1 << bits) - 1)) as u32;
                }
            }
        }
        all
    }

    /// The registers that hold these elements.
    fn registers(&self, elements: &[u32]) -> Vec<[u32; LANES]> {
        let mut all = vec![[0; LANES]; self.registers];
        let bits = 8 * self.bytes as u32;
        for (register, lanes) in all.iter_mut().enumerate() {
            for (lane, value) in lanes.iter_mut().enumerate() {
                for index in 0..self.per_register() {
                    let (row, column) = self.place(lane, register, index);
                    *value |= elements[row * self.columns + column] << (bits * index as u32);
                }
            }
        }
        all
    }
}

/// Types, shapes as `mMnNkK`, and registers of A and B.
const KINDS: [(Element, [usize; 3], usize, usize); 13] = [
    (Element::F16, [16, 16, 16], 8, 8),
    (Element::F16, [8, 32, 16], 8, 8),
    (Element::F16, [32, 8, 16], 8, 8),
    (Element::Bf16, [16, 16, 16], 4, 4),
    (Element::Bf16, [8, 32, 16], 2, 8),
    (Element::Bf16, [32, 8, 16], 8, 2),
    (Element::Tf32, [16, 16, 8], 4, 4),
    (Element::S8, [16, 16, 16], 2, 2),
    (Element::S8, [8, 32, 16], 1, 4),
    (Element::S8, [32, 8, 16], 4, 1),
    (Element::U8, [16, 16, 16], 2, 2),
    (Element::U8, [8, 32, 16], 1, 4),
    (Element::U8, [32, 8, 16], 4, 1),
];

/// A decoded instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wmma {
    /// From memory; whether rows are contiguous there.
    Load {
        /// What is loaded.
        fragment: Fragment,
        /// Whether it is stored row after row.
        row: bool,
    },
    /// To memory.
    Store {
        /// What is stored.
        fragment: Fragment,
        /// Whether it is stored row after row.
        row: bool,
    },
    /// D = A B + C.
    Product(Product),
}

/// The product of two fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Product {
    shape: [usize; 3],
    element: Element,
    c: Accumulator,
    d: Accumulator,
    saturate: bool,
}

fn shape_of(name: &str) -> Option<[usize; 3]> {
    let known = KINDS.iter().map(|kind| kind.1);
    known
        .into_iter()
        .find(|[m, n, k]| *name == format!("m{m}n{n}k{k}"))
}

fn accumulated([m, n, _]: [usize; 3], d: Accumulator) -> Fragment {
    let half = d == Accumulator::F16;
    Fragment {
        rows: m,
        columns: n,
        bytes: if half { 2 } else { 4 },
        registers: if half { 4 } else { 8 },
    }
}

fn operand([m, n, k]: [usize; 3], element: Element, left: bool) -> Option<Fragment> {
    let found = KINDS
        .iter()
        .find(|kind| kind.0 == element && kind.1 == [m, n, k])?;
    Some(Fragment {
        rows: if left { m } else { k },
        columns: if left { k } else { n },
        bytes: element.bytes(),
        registers: if left { found.2 } else { found.3 },
    })
}

impl Wmma {
    /// Decodes an opcode split at its dots, without its state space; `None` if it is no `wmma`.
    pub fn decode(opcode: &[&str]) -> Result<Option<Wmma>, String> {
        let ["wmma", rest @ ..] = opcode else {
            return Ok(None);
        };
        let unknown = || "these shapes and types are not implemented";
        let layout = |name: &str| match name {
            "row" => Ok(true),
            "col" => Ok(false),
            _ => Err("expected .row or .col"),
        };
        Ok(Some(match rest {
            [
                "load",
                which @ ("a" | "b"),
                "sync",
                "aligned",
                order,
                shape,
                ty,
            ] => {
                let fragment = shape_of(shape)
                    .zip(Element::from_name(ty))
                    .and_then(|(shape, ty)| operand(shape, ty, *which == "a"));
                Wmma::Load {
                    fragment: fragment.ok_or_else(unknown)?,
                    row: layout(order)?,
                }
            }
            ["load", "c", "sync", "aligned", order, shape, ty]
            | ["store", "d", "sync", "aligned", order, shape, ty] => {
                let fragment = shape_of(shape)
                    .zip(Accumulator::from_name(ty))
                    .map(|(shape, ty)| accumulated(shape, ty))
                    .ok_or_else(unknown)?;
                let row = layout(order)?;
                match rest[0] {
                    "load" => Wmma::Load { fragment, row },
                    _ => Wmma::Store { fragment, row },
                }
            }
            ["mma", "sync", "aligned", a, b, shape, types @ ..] => {
                layout(a)?;
                layout(b)?;
                let (saturate, types) = match types {
                    [types @ .., "satfinite"] => (true, types),
                    types => (false, types),
                };
                let (d, element, c) = match types {
                    [d, c] => (*d, Element::F16, *c),
                    [d, a, b, c] if a == b => (*d, Element::from_name(a).ok_or_else(unknown)?, *c),
                    _ => return Err(unknown().into()),
                };
                let sums = Accumulator::from_name(d).zip(Accumulator::from_name(c));
                let (d, c) = sums.ok_or_else(unknown)?;
                let shape = shape_of(shape).ok_or_else(unknown)?;
                let fits = operand(shape, element, true).is_some()
                    && (d == Accumulator::S32) == element.is_integer()
                    && (c == Accumulator::S32) == element.is_integer()
                    && (element == Element::F16 || d != Accumulator::F16 && c != Accumulator::F16);
                if !fits || saturate && !element.is_integer() && element != Element::F16 {
                    return Err(unknown().into());
                }
                Wmma::Product(Product {
                    shape,
                    element,
                    c,
                    d,
                    saturate: saturate && element.is_integer(),
                })
            }
            _ => return Err(unknown().into()),
        }))
    }
}

impl Product {
    /// The fragments of D, A, B and C.
    #[must_use]
    pub fn fragments(&self) -> [Fragment; 4] {
        let of = |left| operand(self.shape, self.element, left);
        // They exist: `decode` asked.
        let none = accumulated(self.shape, self.d);
        [
            none,
            of(true).unwrap_or(none),
            of(false).unwrap_or(none),
            accumulated(self.shape, self.c),
        ]
    }

    /// D = A B + C over a warp; `a[register][lane]` and so on.
    pub fn execute(
        &self,
        numerics: Numerics,
        a: &[[u32; LANES]],
        b: &[[u32; LANES]],
        c: &[[u32; LANES]],
    ) -> Result<Vec<[u32; LANES]>, String> {
        let [to, left, right, from] = self.fragments();
        let wanted = [left.registers, right.registers, from.registers];
        if [a.len(), b.len(), c.len()] != wanted {
            return Err(format!("it takes {wanted:?} registers of A, B and C"));
        }
        let wide = |bits: Vec<u32>| -> Vec<f32> {
            bits.into_iter()
                .map(|bits| self.element.decode(bits))
                .collect()
        };
        let (left, right) = (wide(left.elements(a)), wide(right.elements(b)));
        let mut sums = from.elements(c);
        // Where C and D differ, they are summed as f32.
        let d = if self.c == self.d {
            self.d
        } else {
            Accumulator::F32
        };
        if self.c == Accumulator::F16 && d == Accumulator::F32 {
            for sum in &mut sums {
                *sum = f16_to_f32(*sum as u16).to_bits();
            }
        }
        let [m, n, k] = self.shape;
        let shape = Shape {
            m,
            n,
            k,
            a: self.element,
            b: self.element,
            d,
            saturate: self.saturate,
        };
        shape.multiply(numerics, &left, &right, &mut sums);
        if self.d == Accumulator::F16 && d == Accumulator::F32 {
            for sum in &mut sums {
                *sum = u32::from(f16_from_f64(f64::from(f32::from_bits(*sum))));
            }
        } else if d == Accumulator::F32 {
            for sum in &mut sums {
                *sum = canonical(f32::from_bits(*sum));
            }
        }
        Ok(to.registers(&sums))
    }
}

/// Rows of the table of what is executed.
#[must_use]
pub fn isa() -> Vec<(String, String)> {
    let mut rows = Vec::new();
    for (element, [m, n, k], ..) in KINDS {
        let name = element.name();
        let sums: &[&str] = match element {
            Element::F16 => &["f16", "f32"],
            Element::S8 | Element::U8 => &["s32"],
            _ => &["f32"],
        };
        let shape = format!("m{m}n{n}k{k}");
        rows.push((
            format!("wmma.load.(a|b).sync.aligned.(row|col).{shape}"),
            name.into(),
        ));
        let types = sums.join(" ");
        rows.push((
            format!("wmma.load.c.sync.aligned.(row|col).{shape}"),
            types.clone(),
        ));
        rows.push((
            format!("wmma.store.d.sync.aligned.(row|col).{shape}"),
            types,
        ));
        for d in sums {
            for c in sums {
                let types = match element {
                    Element::F16 => format!("{d}.{c}"),
                    _ => format!("{d}.{name}.{name}.{c}"),
                };
                rows.push((
                    format!("wmma.mma.sync.aligned.(row|col).(row|col).{shape}"),
                    types,
                ));
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_multiplies() {
        for (element, [m, n, k], ..) in KINDS {
            let (d, types) = match element {
                Element::F16 => ("f32", "f32.f32".to_owned()),
                Element::S8 | Element::U8 => ("s32", format!("s32.{0}.{0}.s32", element.name())),
                other => ("f32", format!("f32.{0}.{0}.f32", other.name())),
            };
            let name = format!("wmma.mma.sync.aligned.row.col.m{m}n{n}k{k}.{types}");
            let parts: Vec<&str> = name.split('.').collect();
            let Ok(Some(Wmma::Product(product))) = Wmma::decode(&parts) else {
                panic!("{name}")
            };
            let one = match element {
                Element::F16 => 0x3c00,
                Element::Bf16 => 0x3f80,
                Element::Tf32 => 1f32.to_bits(),
                _ => 1,
            };
            let [_, left, right, sum] = product.fragments();
            // A has ones in column 3, B counts rows in column 5 (by ones and zeros in row 3).
            let a: Vec<u32> = (0..m * k)
                .map(|at| if at % k == 3 { one } else { 0 })
                .collect();
            let b: Vec<u32> = (0..k * n)
                .map(|at| if at == 3 * n + 5 { one } else { 0 })
                .collect();
            let c = vec![0; m * n];
            let out = product
                .execute(
                    Numerics::Exact,
                    &left.registers(&a),
                    &right.registers(&b),
                    &sum.registers(&c),
                )
                .unwrap();
            let out = sum.elements(&out);
            let unit = if d == "s32" { 1 } else { 1f32.to_bits() };
            for (at, value) in out.iter().enumerate() {
                assert_eq!(*value, if at % n == 5 { unit } else { 0 }, "{name} {at}");
            }
        }
    }

    #[test]
    fn what_is_not_there_is_refused() {
        for name in [
            "wmma.load.a.sync.aligned.row.m8n8k32.s4",
            "wmma.load.a.sync.aligned.row.m8n8k4.f64",
            "wmma.load.a.sync.aligned.diagonal.m16n16k16.f16",
            "wmma.mma.sync.aligned.row.col.m16n16k16.f16.bf16.bf16.f16",
            "wmma.mma.sync.aligned.row.col.m16n16k8.f32.f32",
            "wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.u8.s32",
            "wmma.hold",
        ] {
            let parts: Vec<&str> = name.split('.').collect();
            assert!(Wmma::decode(&parts).is_err(), "{name}");
        }
    }
}
