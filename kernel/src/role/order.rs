//! What the producer tells the other warps of its block about a tile.
//!
//! Only the producer walks the schedule. Its search and its divisions then run ahead of the
//! tensor cores with its loads, and cost the consumers neither time nor registers. An order stands
//! beside the first stage of its tile and holds as long as that stage does.

use super::product::Product;
use crate::gemm::{Form, ORDER, SharedPlan, TILE_K};
use crate::ptx::reg;
use crate::ptx::shared::{self, SmemAddr};
use crate::schedule::grouped::{Problem, Tile, width};
use crate::shuffle;

/// One tile.
#[derive(Clone, Copy)]
pub struct Order {
    /// Stages of the tile, at least 1; 0 ends the work.
    pub depth: u32,
    /// Contraction length in its last stage; 0 if there is nothing to multiply.
    pub last: u32,
    /// How much of the wide side exists.
    pub count: u32,
    /// Row of D (in its group, for wgrad) where the tile starts.
    pub row: u32,
    /// Column of D where the tile starts.
    pub column: u32,
    /// Group of D, for wgrad.
    pub group: u32,
}

impl Order {
    /// No more work.
    pub const END: Order = Order {
        depth: 0,
        last: 0,
        count: 0,
        row: 0,
        column: 0,
        group: 0,
    };

    /// Width of its products.
    pub const fn width(&self) -> u32 {
        width(self.count)
    }

    /// Whether there is anything to multiply.
    #[inline(always)]
    pub const fn work<P: Product>(&self) -> bool {
        self.depth > 0 && !(P::RELAYED && self.last == 0)
    }

    /// Whether the last stage has rows that are no one's and would be summed.
    #[inline(always)]
    pub const fn dirty(&self) -> bool {
        !self.last.is_multiple_of(16)
    }

    /// Steps of 16 K in the last stage, if it doesn't count in full; 0 if it does.
    #[inline(always)]
    pub const fn tail<P: Product>(&self) -> u32 {
        match P::FORM {
            Form::Wgrad if self.last < TILE_K => self.last.div_ceil(16),
            _ => 0,
        }
    }

    /// The order for a tile.
    #[inline(always)]
    pub fn new(problem: &Problem, tile: &Tile) -> Order {
        let depth = problem.depth(tile.rows);
        let (row, column) = match problem.form {
            Form::Forward | Form::Dgrad => (tile.row_start + tile.wide, tile.fixed),
            Form::Wgrad => (tile.fixed, tile.wide),
        };
        Order {
            depth: if depth == 0 { 1 } else { depth },
            last: match problem.form {
                Form::Forward | Form::Dgrad => TILE_K,
                Form::Wgrad if depth == 0 => 0,
                Form::Wgrad => tile.rows - (depth - 1) * TILE_K,
            },
            count: tile.count,
            row,
            column,
            group: tile.group,
        }
    }

    /// Writes the order of the tile that starts in `stage`.
    ///
    /// # Safety
    /// The producer calls it between acquiring and announcing the stage.
    #[inline(always)]
    pub unsafe fn put(&self, base: SmemAddr, plan: &SharedPlan, stage: u32) {
        let at = base.add(plan.orders + stage * ORDER);
        // SAFETY: the stage's own 32 bytes.
        unsafe {
            shared::store_v4(at, [self.depth, self.last, self.count, self.group]);
            shared::store_v4(at.add(16), [self.row, self.column, 0, 0]);
        }
    }

    /// [`get`](Order::get), read by the first lane for all, as far as the product's orders differ. A barrier of the
    /// warp would order all lanes' reads before that lane lets go of the stage; but where a warp is together it is no
    /// instruction, and compute-sanitizer's racecheck knows of none, unless the last to read is that lane itself.
    ///
    /// # Safety
    /// As `get`; all lanes of the warp call it.
    #[inline(always)]
    pub unsafe fn get_for_warp<P: Product>(base: SmemAddr, plan: &SharedPlan, stage: u32) -> Order {
        let mut order = Order::END;
        // SAFETY: the caller's contract.
        unsafe {
            if reg::lane() == 0 {
                order = Order::get(base, plan, stage);
            }
            Order {
                depth: shuffle!(order.depth, 0u32),
                last: if P::WHOLE_ORDERS {
                    shuffle!(order.last, 0u32)
                } else {
                    TILE_K
                },
                count: shuffle!(order.count, 0u32),
                row: shuffle!(order.row, 0u32),
                column: shuffle!(order.column, 0u32),
                group: if P::WHOLE_ORDERS {
                    shuffle!(order.group, 0u32)
                } else {
                    0
                },
            }
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
        let ([depth, last, count, group], [row, column, _, _]) =
            unsafe { (shared::load_v4(at), shared::load_v4(at.add(16))) };
        Order {
            depth,
            last,
            count,
            row,
            column,
            group,
        }
    }
}

const _: () = assert!(ORDER == 32);
