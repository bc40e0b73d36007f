//! Registers that the warps of a kernel own at launch.

use super::{Instruction, Op};
use crate::ptx::ast::Directives;

/// Registers of an SM.
const REGISTERS: u64 = 64 << 10;
/// Threads of an SM.
const THREADS: u64 = 2048;
/// The most blocks of an SM.
const BLOCKS: u32 = 32;
/// Registers are given out in this many a thread.
const UNIT: u32 = 8;

/// Registers a thread of each warp at launch, in kernels with `setmaxnreg`; `None` where that has no
/// effect.
///
/// The ISA leaves both open. This is what `ptxas -v` of CUDA 13.0 says for sm_90a: what a block of
/// `.reqntid` or `.maxntid` threads, in whole warpgroups, may use where `.minnctapersm` of them share
/// an SM, or `.maxnreg` if that is less; and no more than the largest `inc` asks for. Without either
/// it ignores `setmaxnreg` (C7508), as the ISA allows.
pub(super) fn at_launch(directives: &Directives, code: &[Instruction]) -> Option<u32> {
    let limit = [shared(directives), directives.max_registers.map(given)];
    let limit = limit.into_iter().flatten().min()?;
    let increases = code.iter().filter_map(|instruction| match instruction.op {
        Op::SetMaxRegisters { increase, count } => increase.then_some(count),
        _ => None,
    });
    Some(increases.max().map_or(limit, |largest| largest.min(limit)))
}

/// What is left to a thread where blocks share an SM.
fn shared(directives: &Directives) -> Option<u32> {
    let threads = directives
        .required_threads
        .or(directives.max_threads)?
        .iter()
        .fold(1, |product: u64, &n| product.saturating_mul(n.into()));
    let blocks = directives
        .min_blocks
        .filter(|blocks| (1..=BLOCKS).contains(blocks))?;
    // Otherwise ptxas ignores `.minnctapersm`.
    let fits = threads > 0 && threads.saturating_mul(blocks.into()) <= THREADS;
    let threads = fits.then(|| threads.next_multiple_of(128) * u64::from(blocks))?;
    // 255 are used at most, but 256 given.
    Some((REGISTERS / threads).clamp(32, 256) as u32 / UNIT * UNIT)
}

/// What `.maxnreg` gives.
fn given(registers: u32) -> u32 {
    registers.clamp(24, 255).next_multiple_of(UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What ptxas 13.0 says of the same.
    #[test]
    fn as_ptxas_counts() {
        let of = |threads: u32, blocks: u32, most: Option<u32>, counts: &[(bool, u32)]| {
            let directives = Directives {
                max_threads: (threads > 0).then_some([threads, 1, 1]),
                min_blocks: (blocks > 0).then_some(blocks),
                max_registers: most,
                ..Directives::default()
            };
            let code: Vec<Instruction> = counts
                .iter()
                .map(|&(increase, count)| Instruction {
                    op: Op::SetMaxRegisters { increase, count },
                    guard: None,
                    line: 0,
                })
                .collect();
            at_launch(&directives, &code)
        };
        let both = [(false, 24), (true, 240)];
        for (threads, blocks, want) in [
            (128, 3, 168),
            (256, 2, 128),
            (384, 1, 168),
            (384, 2, 80),
            (384, 5, 32),
            (300, 1, 168),
            (544, 1, 96),
            (672, 3, 32),
            (1024, 1, 64),
        ] {
            let found = of(threads, blocks, None, &both);
            assert_eq!(found, Some(want), "{threads} threads, {blocks} blocks");
        }
        // Nothing says how many: without a number of blocks, or with one that can't be.
        assert_eq!(of(384, 0, None, &both), None);
        assert_eq!(of(0, 1, None, &both), None);
        assert_eq!(of(384, 6, None, &both), None);
        assert_eq!(of(32, 33, None, &both), None);
        // `.maxnreg`, alone and with the others.
        assert_eq!(of(0, 0, Some(128), &both), Some(128));
        assert_eq!(of(384, 1, Some(128), &both), Some(128));
        assert_eq!(of(384, 1, Some(200), &both), Some(168));
        assert_eq!(of(384, 1, Some(u32::MAX), &both), Some(168));
        assert_eq!(of(0, 0, Some(0), &both), Some(24));
        // No more than the largest `inc`.
        assert_eq!(of(256, 1, None, &both), Some(240));
        assert_eq!(of(384, 1, None, &[(false, 120), (true, 160)]), Some(160));
        assert_eq!(of(384, 1, None, &[(false, 24)]), Some(168));
        assert_eq!(of(128, 1, None, &[(true, 256)]), Some(256));
    }
}
