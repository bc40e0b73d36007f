//! What the producer tells the other warps of its block about a tile.
//!
//! Only the producer walks the schedule. Its search and its divisions then run ahead of the
//! tensor cores with its loads, and cost the consumers neither time nor registers. An order stands
//! beside the first stage of its tile and holds as long as that stage does.

use crate::gemm::{Form, GemmArgs, ORDER, SharedPlan, TILE_K};
use crate::ptx::shared::{self, SmemAddr};
use crate::schedule::grouped::{Problem, Tile};

/// One tile.
#[derive(Clone, Copy)]
pub struct Order {
    /// Stages of the tile, at least 1; 0 ends the work.
    pub depth: u32,
    /// Width of its products.
    pub width: u32,
    /// Contraction length in its last stage; 0 if there is nothing to multiply.
    pub last: u32,
    /// How much of the wide side exists.
    pub count: u32,
    /// How much of D is left on the fixed side from here on; may be more than the tile.
    pub left: u32,
    /// Elements from D's start to the tile's.
    pub offset: u64,
}

impl Order {
    /// No more work.
    pub const END: Order = Order {
        depth: 0,
        width: 0,
        last: 0,
        count: 0,
        left: 0,
        offset: 0,
    };

    /// The order for a tile.
    #[inline(always)]
    pub fn new(problem: &Problem, args: &GemmArgs, tile: &Tile) -> Order {
        let depth = problem.depth(tile.rows);
        let (row, column, group) = match problem.form {
            Form::Forward | Form::Dgrad => {
                (tile.row_start as u64 + tile.wide as u64, tile.fixed, 0)
            }
            Form::Wgrad => (
                tile.fixed as u64,
                tile.wide,
                tile.group as u64 * args.d_group_stride,
            ),
        };
        Order {
            depth: if depth == 0 { 1 } else { depth },
            width: tile.width(),
            last: match problem.form {
                Form::Forward | Form::Dgrad => TILE_K,
                Form::Wgrad if depth == 0 => 0,
                Form::Wgrad => tile.rows - (depth - 1) * TILE_K,
            },
            count: tile.count,
            left: problem.fixed_extent() - tile.fixed,
            offset: group + row * args.d_row_stride + column as u64,
        }
    }

    /// Writes the order of the tile that starts in `stage`.
    ///
    /// # Safety
    /// The producer calls it between acquiring and announcing the stage.
    #[inline(always)]
    pub unsafe fn put(&self, base: SmemAddr, plan: &SharedPlan, stage: u32) {
        let at = base.add(plan.orders + stage * ORDER);
        let offset = (self.offset as u32, (self.offset >> 32) as u32);
        // SAFETY: the stage's own 32 bytes.
        unsafe {
            shared::store_v4(at, [self.depth, self.width, self.last, self.count]);
            shared::store_v4(at.add(16), [self.left, 0, offset.0, offset.1]);
        }
    }

    /// The order of the tile that starts in `stage`.
    ///
    /// # Safety
    /// The stage has been awaited and not let go of; a tile starts there.
    #[inline(always)]
    pub unsafe fn get(base: SmemAddr, plan: &SharedPlan, stage: u32) -> Order {
        let at = base.add(plan.orders + stage * ORDER);
        // SAFETY: as above.
        let ([depth, width, last, count], [left, _, low, high]) =
            unsafe { (shared::load_v4(at), shared::load_v4(at.add(16))) };
        Order {
            depth,
            width,
            last,
            count,
            left,
            offset: (high as u64) << 32 | low as u64,
        }
    }
}

const _: () = assert!(ORDER == 32);
