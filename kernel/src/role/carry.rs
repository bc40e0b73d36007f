//! wgrad's carrier: one thread that takes panels to D, and brings what D holds where that counts.

use crate::gemm::{CONSUMERS, GemmArgs, PANEL_BYTES, PANELS, STAGING, Sink, boxes};
use crate::ptx::shared::SmemAddr;
use crate::ptx::tma::{self, TensorMapRef};
use crate::ptx::{bulk, mbarrier, reg};
use crate::schedule::grouped::{FEW_ROWS, Tile};

const _: () = assert!(PANELS > 1);

/// Tiles that one thread reads in two walks: ahead, and to let go of them.
pub trait Ahead: Copy {
    /// Waits for this walk's tile; `None` ends the work.
    ///
    /// # Safety
    /// One thread of the block calls it, of a tile that it hasn't let go of.
    unsafe fn read(&self) -> Option<Tile>;

    /// Goes on to the next tile.
    fn skip(&mut self);

    /// Lets go of this walk's tile, which the other walk has gone past, and goes on to the next.
    ///
    /// # Safety
    /// Once for each tile.
    unsafe fn done(&mut self);
}

/// The rings of panels, one for each 64 rows of the fixed side.
#[derive(Clone, Copy)]
pub struct Rings {
    /// The consumers' [`STAGING`] memory, a ring each.
    staging: SmemAddr,
    /// The mbarriers that tell that a panel may be filled, [`PANELS`] a ring.
    open: SmemAddr,
    /// Those that tell that it has been.
    ready: SmemAddr,
}

impl Rings {
    /// The rings in this memory.
    #[inline(always)]
    pub fn new(staging: SmemAddr, open: SmemAddr, ready: SmemAddr) -> Rings {
        Rings {
            staging,
            open,
            ready,
        }
    }

    #[inline(always)]
    fn panel(&self, ring: u32, buffer: u32) -> SmemAddr {
        self.staging.add(STAGING * ring + PANEL_BYTES * buffer)
    }

    #[inline(always)]
    fn open(&self, ring: u32, buffer: u32) -> SmemAddr {
        self.open.add(8 * (PANELS * ring + buffer))
    }

    #[inline(always)]
    fn ready(&self, ring: u32, buffer: u32) -> SmemAddr {
        self.ready.add(8 * (PANELS * ring + buffer))
    }
}

/// A walk through the panels of all tiles.
struct Walk<D> {
    tiles: D,
    /// How many tiles it has gone past.
    past: u32,
    /// The tile that it is in.
    tile: Option<Tile>,
    /// Column of the tile where its next panel starts.
    column: u32,
    /// Buffer of that panel, and the parity of its barriers.
    buffer: u32,
    parity: u32,
}

impl<D: Ahead> Walk<D> {
    const fn new(tiles: D) -> Walk<D> {
        Walk {
            tiles,
            past: 0,
            tile: None,
            column: 0,
            buffer: 0,
            parity: 0,
        }
    }

    /// Goes on to the next panel; true if that is the next tile's.
    #[inline(always)]
    fn advance(&mut self, width: u32, buffers: u32) -> bool {
        self.buffer = reg::opaque(self.buffer + 1);
        if self.buffer == buffers {
            self.buffer = 0;
            self.parity ^= 1;
        }
        self.column += width;
        match self.tile {
            Some(tile) if self.column < tile.count => false,
            _ => {
                self.column = 0;
                self.past += 1;
                self.tile = None;
                true
            }
        }
    }
}

/// Carries the panels of all of the block's tiles, `fixed` further on along the fixed side.
///
/// Waits for: a tile; a panel to be filled (`ready`). Signals: the panel may be filled (`open`), by itself or
/// through the copy of what D holds there; and that it has gone past a tile.
///
/// It opens panels of the tile that it is at and of the next one, which is dealt without its doing.
///
/// # Safety
/// One thread of the block runs it; the barriers are initialised, `map` is the tensor map of `args`' D.
#[inline(always)]
pub unsafe fn carry<D: Ahead>(
    tiles: D,
    fixed: u32,
    args: &GemmArgs,
    map: TensorMapRef,
    rings: Rings,
) {
    let wide = if args.sink == Sink::F32 as u32 || args.sink == Sink::AddF32 as u32 {
        boxes::WGRAD_D_F32[0]
    } else {
        boxes::WGRAD_D[0]
    };
    let fetches = args.sink == Sink::AddF32 as u32 || args.sink == Sink::AddBf16 as u32;
    let (mut to, mut ahead) = (Walk::new(tiles), Walk::new(tiles));
    // Panels that are open, filled, or on their way to D; and of these the one copied last, if there is one.
    let (mut open, mut unread) = (0, 0);
    loop {
        if to.tile.is_none() {
            // SAFETY: the caller's contract.
            to.tile = unsafe { to.tiles.read() };
        }
        let Some(tile) = to.tile else { break };
        while open < PANELS && ahead.past <= to.past + 1 {
            if ahead.tile.is_none() {
                // SAFETY: the caller's contract.
                ahead.tile = unsafe { ahead.tiles.read() };
            }
            let Some(tile) = ahead.tile else { break };
            let mut part = 0;
            while part < CONSUMERS {
                let (at, inside) = place(args, &tile, fixed, ahead.column, part);
                let bar = rings.open(part, ahead.buffer);
                // SAFETY: the barrier is initialised, and one arrival pending: nothing is in the panel, or
                // its copy to D has been read.
                unsafe {
                    if fetches && inside {
                        mbarrier::arrive_expect(bar, PANEL_BYTES);
                        tma::load_3d(rings.panel(part, ahead.buffer), map, at, bar);
                    } else {
                        mbarrier::arrive(bar);
                    }
                }
                part += 1;
            }
            if ahead.advance(wide, PANELS) {
                ahead.tiles.skip();
            }
            open += 1;
        }
        let mut part = 0;
        while part < CONSUMERS {
            let (at, inside) = place(args, &tile, fixed, to.column, part);
            // SAFETY: the barrier is initialised; the panel's warps have fenced what they wrote towards
            // the copy, and the elements are this tile's.
            unsafe {
                mbarrier::wait(rings.ready(part, to.buffer), to.parity);
                if inside {
                    tma::store_3d(map, at, rings.panel(part, to.buffer));
                }
            }
            part += 1;
        }
        bulk::commit();
        // Loads wait for copies to D: where a tile has many, one copy at a time leaves room for them. Of tiles
        // with few, the next copy is under way before this one has been read, and this panel opens with the
        // next.
        if tile.rows > FEW_ROWS {
            bulk::wait_read::<0>();
            open -= 1 + unread;
            unread = 0;
        } else {
            bulk::wait_read::<1>();
            open -= unread;
            unread = 1;
        }
        if to.advance(wide, PANELS) {
            // SAFETY: the caller's contract.
            unsafe { to.tiles.done() };
        }
    }
    bulk::wait::<0>();
}

/// Where in D a consumer's part of a tile has its column `column`, and whether D has any row of it.
#[inline(always)]
fn place(args: &GemmArgs, tile: &Tile, fixed: u32, column: u32, part: u32) -> ([i32; 3], bool) {
    let row = tile.fixed + fixed + 64 * part;
    let at = [(tile.wide + column) as i32, row as i32, tile.group as i32];
    (at, row < args.m)
}
