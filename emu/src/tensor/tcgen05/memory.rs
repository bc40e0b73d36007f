//! Tensor memory: 128 lanes by 512 columns of 32 bits, for each SM (PTX ISA 9.0, 9.7.16.1).

/// Lanes, the rows of tensor memory.
pub const LANES: u32 = 128;
/// Columns.
pub const COLUMNS: u32 = 512;
/// Columns are allocated in this many.
pub const UNIT: u32 = 32;

/// An address: the lane in bits 16-31, the column in bits 0-15 (9.7.16.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The lane.
    pub lane: u32,
    /// The column.
    pub column: u32,
}

impl Address {
    /// Takes an address apart.
    #[must_use]
    pub fn of(bits: u32) -> Address {
        Address {
            lane: bits >> 16,
            column: bits & 0xffff,
        }
    }
}

/// What tensor memory holds, and which of it was written.
#[derive(Debug, Clone)]
pub struct Cells {
    words: Vec<u32>,
    written: Vec<bool>,
}

impl Default for Cells {
    fn default() -> Cells {
        let cells = (LANES * COLUMNS) as usize;
        Cells {
            words: vec![0; cells],
            written: vec![false; cells],
        }
    }
}

impl Cells {
    /// A word; the lane and the column are inside.
    #[must_use]
    pub fn get(&self, lane: u32, column: u32) -> u32 {
        self.words[(lane * COLUMNS + column) as usize]
    }

    /// Whether a word was written since its column was allocated.
    #[must_use]
    pub fn is_written(&self, lane: u32, column: u32) -> bool {
        self.written[(lane * COLUMNS + column) as usize]
    }

    /// Writes a word, with what is known of its value: false if it depends on what nobody wrote.
    pub fn set(&mut self, lane: u32, column: u32, word: u32, written: bool) {
        let at = (lane * COLUMNS + column) as usize;
        self.words[at] = word;
        self.written[at] = written;
    }

    /// Forgets columns: they hold what nobody wrote.
    pub fn forget(&mut self, first: u32, columns: u32) {
        for lane in 0..LANES {
            let at = (lane * COLUMNS + first) as usize;
            self.written[at..at + columns as usize].fill(false);
        }
    }
}

/// A part of tensor memory: lanes by columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// The first lane.
    pub lane: u32,
    /// Lanes.
    pub lanes: u32,
    /// The first column.
    pub column: u32,
    /// Columns.
    pub columns: u32,
}

impl Area {
    /// What of it lies outside tensor memory.
    pub fn check(&self, what: &str) -> Result<(), String> {
        let end = |start: u32, count: u32| u64::from(start) + u64::from(count);
        if end(self.lane, self.lanes) > LANES.into() {
            return Err(format!(
                "{what} reaches lanes {} to {}, and tensor memory has {LANES}",
                self.lane,
                end(self.lane, self.lanes) - 1
            ));
        }
        if end(self.column, self.columns) > COLUMNS.into() {
            return Err(format!(
                "{what} reaches columns {} to {}, and tensor memory has {COLUMNS}",
                self.column,
                end(self.column, self.columns) - 1
            ));
        }
        Ok(())
    }
}
