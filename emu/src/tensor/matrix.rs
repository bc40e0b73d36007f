//! `ldmatrix`, `stmatrix` and `movmatrix` for 8 by 8 matrices of 16-bit elements (PTX ISA 9.0,
//! 9.7.14.5.15 to 17).
//!
//! Row i of matrix j is the 16 bytes at the address that lane 8 j + i holds. Lane l has one
//! register a matrix: elements (l / 4, 2 (l % 4)) and (l / 4, 2 (l % 4) + 1), low half first;
//! with `.trans` the elements of the transposed matrix.
//!
//! All functions move bits only, so they serve masks (of uninitialised bits, say) as they serve
//! values.

/// Threads of a warp.
const LANES: usize = 32;

/// One of the three, its opcode decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matrix {
    /// `ldmatrix` of `count` matrices.
    Load {
        /// 1, 2 or 4.
        count: usize,
        /// `.trans`.
        trans: bool,
    },
    /// `stmatrix` of `count` matrices.
    Store {
        /// 1, 2 or 4.
        count: usize,
        /// `.trans`.
        trans: bool,
    },
    /// `movmatrix`: the transpose of one matrix, registers to registers.
    Move,
}

/// The vector qualifiers.
const COUNTS: [(&str, usize); 3] = [("x1", 1), ("x2", 2), ("x4", 4)];

/// The opcodes with an address.
const NAMES: [&str; 2] = ["ldmatrix", "stmatrix"];

impl Matrix {
    /// Decodes an opcode split at its dots; `None` if it is none of the three.
    pub fn decode(opcode: &[&str]) -> Result<Option<Matrix>, String> {
        let wrong = |what: &str| Err(format!("{}: {what}", opcode.join(".")));
        let Some((name, rest)) = opcode.split_first() else {
            return Ok(None);
        };
        if *name == "movmatrix" {
            return match rest {
                ["sync", "aligned", "m8n8", "trans", "b16"] => Ok(Some(Matrix::Move)),
                _ => wrong("expected movmatrix.sync.aligned.m8n8.trans.b16"),
            };
        }
        if !NAMES.contains(name) {
            return Ok(None);
        }
        let ["sync", "aligned", "m8n8", count, rest @ ..] = rest else {
            return wrong("expected .sync.aligned.m8n8 (the 8-bit shapes are Blackwell's)");
        };
        let Some((_, count)) = COUNTS.into_iter().find(|(word, _)| word == count) else {
            return wrong("expected .x1, .x2 or .x4");
        };
        let (trans, rest) = match rest {
            ["trans", rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        match rest {
            ["shared" | "shared::cta", "b16"] | ["b16"] => {}
            _ => return wrong("expected {.trans}{.shared}.b16"),
        }
        Ok(Some(if *name == NAMES[0] {
            Matrix::Load { count, trans }
        } else {
            Matrix::Store { count, trans }
        }))
    }

    /// Matrices, hence registers in each lane.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Matrix::Load { count, .. } | Matrix::Store { count, .. } => *count,
            Matrix::Move => 1,
        }
    }

    fn trans(&self) -> bool {
        match self {
            Matrix::Load { trans, .. } | Matrix::Store { trans, .. } => *trans,
            Matrix::Move => true,
        }
    }

    /// The rows in order, as (lane whose address it is, address); each is 16 bytes. Addresses
    /// of other lanes are not used. None for `movmatrix`.
    pub fn rows(&self, addresses: &[u64; LANES]) -> Result<Vec<(usize, u64)>, String> {
        if *self == Matrix::Move {
            return Ok(Vec::new());
        }
        let rows: Vec<(usize, u64)> = addresses
            .iter()
            .copied()
            .enumerate()
            .take(8 * self.count())
            .collect();
        match rows.iter().find(|(_, address)| address % 16 != 0) {
            Some((lane, address)) => Err(format!(
                "row {} of matrix {}: address {address:#x} of lane {lane} is not a multiple of 16",
                lane % 8,
                lane / 8
            )),
            None => Ok(rows),
        }
    }

    /// Where half `half` (0 low, 1 high) of register `register` of `lane` is: the lane whose
    /// address names the row, and the byte in the row.
    #[must_use]
    pub fn place(&self, lane: usize, register: usize, half: usize) -> (usize, usize) {
        let (row, column) = (lane / 4, 2 * (lane % 4) + half);
        let (row, column) = if self.trans() {
            (column, row)
        } else {
            (row, column)
        };
        (8 * register + row, 2 * column)
    }

    /// The registers, `[register][lane]`, that a load of these rows gives; a missing row reads
    /// as 0.
    #[must_use]
    pub fn load(&self, rows: &[[u8; 16]]) -> Vec<[u32; LANES]> {
        let mut registers = vec![[0; LANES]; self.count()];
        for (register, lanes) in registers.iter_mut().enumerate() {
            for (lane, bits) in lanes.iter_mut().enumerate() {
                for half in 0..2 {
                    let (row, byte) = self.place(lane, register, half);
                    let row = rows.get(row).copied().unwrap_or_default();
                    let element = u16::from_le_bytes([row[byte], row[byte + 1]]);
                    *bits |= u32::from(element) << (16 * half);
                }
            }
        }
        registers
    }

    /// The rows that a store of these registers writes.
    #[must_use]
    pub fn store(&self, registers: &[[u32; LANES]]) -> Vec<[u8; 16]> {
        let mut rows = vec![[0; 16]; 8 * self.count()];
        for (register, lanes) in registers.iter().take(self.count()).enumerate() {
            for (lane, bits) in lanes.iter().enumerate() {
                for half in 0..2 {
                    let (row, byte) = self.place(lane, register, half);
                    let element = (bits >> (16 * half)) as u16;
                    rows[row][byte..byte + 2].copy_from_slice(&element.to_le_bytes());
                }
            }
        }
        rows
    }
}

/// `movmatrix`: the transpose of the matrix that the warp holds.
#[must_use]
pub fn transpose(source: &[u32; LANES]) -> [u32; LANES] {
    let rows = Matrix::Store {
        count: 1,
        trans: false,
    }
    .store(&[*source]);
    Matrix::Move.load(&rows)[0]
}

/// Rows of the table of what is executed.
#[must_use]
pub fn isa() -> Vec<(String, String)> {
    let counts = COUNTS.map(|(word, _)| word).join(", ");
    let mut rows: Vec<(String, String)> = NAMES
        .iter()
        .map(|name| {
            (
                format!("{name}.sync.aligned.m8n8.num{{.trans}}{{.shared}}"),
                format!("b16, {counts}"),
            )
        })
        .collect();
    rows.push(("movmatrix.sync.aligned.m8n8.trans".into(), "b16".into()));
    rows
}
