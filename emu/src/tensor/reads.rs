//! Which bytes of shared memory an instruction read, in few ranges.

use std::ops::Range;

/// Shared-memory bytes that an instruction read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reads {
    /// Ascending, none touching the next.
    pub ranges: Vec<Range<u32>>,
}

/// A bit for each 16 bytes of shared memory.
pub(super) struct Touched {
    words: Vec<u64>,
}

impl Touched {
    pub(super) fn new(bytes: usize) -> Touched {
        Touched {
            words: vec![0; bytes / 16 / 64 + 1],
        }
    }

    /// The 16 bytes at `address`, noted as read.
    pub(super) fn chunk<'a>(
        &mut self,
        shared: &'a [u8],
        address: u32,
        which: &str,
        bits: u64,
    ) -> Result<&'a [u8; 16], String> {
        let at = address as usize;
        let chunk = shared
            .get(at..)
            .and_then(|rest| rest.first_chunk::<16>())
            .ok_or_else(|| {
                format!(
                    "operand {which}: descriptor {bits:#018x} reaches shared address {address:#x}; \
                 the CTA has {:#x} bytes",
                    shared.len()
                )
            })?;
        self.words[at / 1024] |= 1 << (at / 16 % 64);
        Ok(chunk)
    }

    pub(super) fn reads(&self) -> Reads {
        let mut ranges: Vec<Range<u32>> = Vec::new();
        for (index, word) in self.words.iter().enumerate() {
            let mut word = *word;
            while word != 0 {
                let first = word.trailing_zeros();
                let count = (!(word >> first)).trailing_zeros();
                let start = index as u32 * 1024 + first * 16;
                let end = start + count * 16;
                match ranges.last_mut() {
                    Some(last) if last.end == start => last.end = end,
                    _ => ranges.push(start..end),
                }
                word = if first + count >= 64 {
                    0
                } else {
                    word >> (first + count) << (first + count)
                };
            }
        }
        Reads { ranges }
    }
}
