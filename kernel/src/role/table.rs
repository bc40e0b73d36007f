//! Before the roles part: the whole block derives the group table from the group sizes.

use crate::gemm::GemmArgs;
use crate::ptx::shared::{self, SmemAddr};
use crate::ptx::{atom, global, reg};
use crate::schedule::grouped::{Class, GroupTable, Problem, Tiling, clamp_rows, padded};
use crate::{block_sync, shuffle, shuffle_up};

/// The group table in this block's shared memory.
#[derive(Clone, Copy)]
pub struct SharedTable {
    groups: u32,
    first_tile: SmemAddr,
    row_start: SmemAddr,
    rows: SmemAddr,
}

impl SharedTable {
    /// The table that is to start there; its contents come with [`build`].
    pub fn new(groups: u32, first_tile: SmemAddr) -> SharedTable {
        let row_start = first_tile.add(2 * 4 * (groups + 1));
        SharedTable {
            groups,
            first_tile,
            row_start,
            rows: row_start.add(4 * groups),
        }
    }

    #[inline(always)]
    fn first_tile_at(&self, class: Class, group: u32) -> SmemAddr {
        self.first_tile
            .add(4 * (class as u32 * (self.groups + 1) + group))
    }

    /// Writes the number of tiles before a group: of few rows in the upper half of `tiles`, of many in
    /// the lower.
    ///
    /// # Safety
    /// While the table is built; one thread for each group.
    #[inline(always)]
    unsafe fn put_first_tiles(&self, group: u32, tiles: u64) {
        // SAFETY: inside the table.
        unsafe {
            shared::store_u32(self.first_tile_at(Class::Many, group), tiles as u32);
            shared::store_u32(self.first_tile_at(Class::Few, group), (tiles >> 32) as u32);
        }
    }
}

impl GroupTable for SharedTable {
    #[inline(always)]
    fn groups(&self) -> u32 {
        self.groups
    }

    #[inline(always)]
    fn first_tile(&self, class: Class, group: u32) -> u32 {
        // SAFETY: inside the table, which isn't written after `build`.
        unsafe { shared::load_u32(self.first_tile_at(class, group)) }
    }

    #[inline(always)]
    fn rows(&self, group: u32) -> (u32, u32) {
        // SAFETY: as above.
        unsafe {
            (
                shared::load_u32(self.row_start.add(4 * group)),
                shared::load_u32(self.rows.add(4 * group)),
            )
        }
    }
}

/// Inclusive sum over the lanes of a warp up to this one, of a u64.
macro_rules! scan_u64 {
    ($value:expr, $lane:expr) => {{
        let mut sum: u64 = $value;
        scan_u64!(@step sum, $lane, 1);
        scan_u64!(@step sum, $lane, 2);
        scan_u64!(@step sum, $lane, 4);
        scan_u64!(@step sum, $lane, 8);
        scan_u64!(@step sum, $lane, 16);
        sum
    }};
    (@step $sum:ident, $lane:expr, $delta:literal) => {
        let low = shuffle_up!($sum as u32, $delta, $delta, "low");
        let high = shuffle_up!(($sum >> 32) as u32, $delta, $delta, "high");
        if $lane >= $delta {
            $sum += (high as u64) << 32 | low as u64;
        }
    };
}

/// The last lane's u64, in every lane.
macro_rules! broadcast_last {
    ($value:expr) => {{
        let low = shuffle!($value as u32, 31u32, "low");
        let high = shuffle!(($value >> 32) as u32, 31u32, "high");
        (high as u64) << 32 | low as u64
    }};
}

/// Fills the table: sizes in parallel, then one warp sums them, 32 groups at a time.
///
/// # Safety
/// All threads of the block call it, once; `args.group_rows` addresses `groups` words
/// that no one writes, and `args.overflow` a word or 0.
#[inline(always)]
pub unsafe fn build<S: Tiling>(table: SharedTable, problem: &Problem, args: &GemmArgs) {
    let thread = reg::thread_idx();
    let mut group = thread;
    while group < table.groups {
        // SAFETY: inside the caller's array and the table.
        unsafe {
            let rows = global::load_u32(args.group_rows + 4 * group as u64);
            shared::store_u32(table.rows.add(4 * group), rows);
        }
        group += reg::block_dim();
    }
    // SAFETY: every thread is here.
    unsafe { block_sync!() };
    if thread < 32 {
        // SAFETY: the first warp, all of it; the sizes are in.
        unsafe { sum::<S>(table, problem, args, thread) };
    }
    // SAFETY: every thread is here.
    unsafe { block_sync!() };
}

/// # Safety
/// The 32 lanes of one warp call it, after the sizes have been stored and before anyone reads the rest.
#[inline(always)]
unsafe fn sum<S: Tiling>(table: SharedTable, problem: &Problem, args: &GemmArgs, lane: u32) {
    let (mut next_row, mut next_tile) = (0u64, 0u64);
    let mut first = 0;
    while first < table.groups {
        let group = first + lane;
        let real = group < table.groups;
        let wanted = if real {
            // SAFETY: inside the table.
            unsafe { shared::load_u32(table.rows.add(4 * group)) }
        } else {
            0
        };
        // SAFETY: all lanes are here.
        let after = next_row + unsafe { scan_u64!(padded(wanted), lane) };
        let start = after - padded(wanted);
        let rows = clamp_rows(start, wanted, args.capacity);
        // Both classes are summed at once: neither has 2^32 tiles.
        let class = if S::ONE_CLASS {
            Class::Many
        } else {
            Class::of(rows)
        };
        let tiles = if real {
            (problem.tiles::<S>(rows) as u64) << (32 * class as u32)
        } else {
            0
        };
        // SAFETY: all lanes are here.
        let tiles_after = next_tile + unsafe { scan_u64!(tiles, lane) };
        if real {
            // SAFETY: this lane's entries of the table.
            unsafe {
                table.put_first_tiles(group, tiles_after - tiles);
                shared::store_u32(table.row_start.add(4 * group), start as u32);
                shared::store_u32(table.rows.add(4 * group), rows);
            }
            if rows < wanted && args.overflow != 0 && reg::block_idx() == 0 {
                // SAFETY: the caller's word.
                unsafe {
                    atom::max_relaxed_gpu_u64(args.overflow as *mut u64, start + wanted as u64)
                };
            }
        }
        // SAFETY: all lanes are here.
        unsafe {
            next_row = broadcast_last!(after);
            next_tile = broadcast_last!(tiles_after);
        }
        first += 32;
    }
    if lane == 0 {
        // SAFETY: the table's last entries.
        unsafe { table.put_first_tiles(table.groups, next_tile) };
    }
}
