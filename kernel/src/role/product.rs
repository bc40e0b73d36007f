//! The products, as far as the roles differ: which operand is contiguous along
//! what, and which boxes fill a stage.

use crate::gate_up;
use crate::gemm::{CONSUMERS, Form, STAGE_FIXED, TILE_K, boxes};
use crate::mma::tile::{KMajor, MnMajor, Operand, PANEL};
use crate::ptx::reg;
use crate::ptx::shared::{ClusterAddr, SmemAddr};
use crate::ptx::tma::{self, TensorMapRef};
use crate::schedule::grouped::Tile;

/// The tensor maps of what is multiplied, and of what comes beside it.
#[derive(Clone, Copy)]
pub struct Maps<S = ()> {
    /// A's: one for each of [`boxes::ROWS`], or the same three times (wgrad).
    pub a: [TensorMapRef; 3],
    /// B's.
    pub b: TensorMapRef,
    /// What comes beside them ([`Elements`](super::pair::elements::Elements)).
    pub beside: S,
}

impl<S> Maps<S> {
    /// Those of what is multiplied.
    #[inline(always)]
    pub fn operands(&self) -> Maps {
        Maps {
            a: self.a,
            b: self.b,
            beside: (),
        }
    }
}

/// How a block's loads are counted, and what it loads of a tile's wide side.
pub trait Loader: Copy {
    /// Rows or columns of the wide side that the block multiplies by, from `tile`'s start on.
    fn width(tile: &Tile) -> u32;

    /// Loads a box.
    ///
    /// # Safety
    /// As [`tma::load_2d`].
    unsafe fn load_2d(self, dst: SmemAddr, map: TensorMapRef, at: [i32; 2]);

    /// Loads a box.
    ///
    /// # Safety
    /// As [`tma::load_3d`].
    unsafe fn load_3d(self, dst: SmemAddr, map: TensorMapRef, at: [i32; 3]);

    /// Loads a box.
    ///
    /// # Safety
    /// As [`tma::load_5d`].
    unsafe fn load_5d(self, dst: SmemAddr, map: TensorMapRef, at: [i32; 5]);
}

/// A whole tile, counted by an mbarrier of the block.
#[derive(Clone, Copy)]
pub struct Whole(pub SmemAddr);

/// A block's half of a pair's tile ([`Tile::half`]), counted by an mbarrier of either block.
#[derive(Clone, Copy)]
pub struct Half(pub ClusterAddr);

macro_rules! loads {
    ($bar:ident: $($name:ident $rank:literal $load:path;)*) => {$(
        #[inline(always)]
        unsafe fn $name(self, dst: SmemAddr, map: TensorMapRef, at: [i32; $rank]) {
            let $bar(bar) = self;
            // SAFETY: the trait's contract.
            unsafe { $load(dst, map, at, bar) }
        }
    )*};
}

impl Loader for Whole {
    #[inline(always)]
    fn width(tile: &Tile) -> u32 {
        tile.width()
    }

    loads! { Whole: load_2d 2 tma::load_2d; load_3d 3 tma::load_3d; load_5d 5 tma::load_5d; }
}

impl Loader for Half {
    #[inline(always)]
    fn width(tile: &Tile) -> u32 {
        tile.count
    }

    loads! { Half: load_2d 2 tma::load_pair_2d; load_3d 3 tma::load_pair_3d; load_5d 5 tma::load_pair_5d; }
}

/// One of the products.
pub trait Product {
    /// Its form.
    const FORM: Form;
    /// Whether stages can hold rows that are no one's and would be summed.
    const RELAYED: bool = matches!(Self::FORM, Form::Wgrad);
    /// Whether a tile's last stage and its group are worth a look: where all stages count in full and D has no
    /// groups they aren't.
    const WHOLE_ORDERS: bool = Self::RELAYED;
    /// How the fixed side lies in a stage.
    type Fixed: Operand;
    /// How the wide side lies in a stage.
    type Wide: Operand;

    /// Bytes that a stage of `tile` gets: whole boxes, also where they reach outside the tensor.
    fn bytes<L: Loader>(tile: &Tile) -> u32;

    /// Issues the loads of stage `step` of `tile`, all counted by `to`'s mbarrier.
    ///
    /// # Safety
    /// The maps have the product's boxes ([`boxes`], [`gate_up::WEIGHTS`]); the stage at `fixed` and `wide` is free and the mbarrier
    /// expects the tile's [`bytes`](Product::bytes).
    unsafe fn load<L: Loader>(
        maps: Maps,
        tile: &Tile,
        step: u32,
        fixed: SmemAddr,
        wide: SmemAddr,
        to: L,
    );
}

/// `D[r, n] = sum_k A[r, k] B[g, n, k]`.
pub struct Forward;
/// `D[r, n] = sum_k A[r, k] B[g, k, n]`.
pub struct Dgrad;
/// `D[g, m, n] = sum_r A[r, m] B[r, n]`.
pub struct Wgrad;

/// [`Forward`] with gate's and up's rows in turn as B.
pub struct GateUp;

/// Panels of 64 in the fixed side's part of a stage.
const FIXED_PANELS: u32 = crate::gemm::SIDE / boxes::PANEL;
/// Bytes of a row of a stage.
const ROW_BYTES: u32 = TILE_K * 2;

/// Bytes of a stage whose wide side is rows.
#[inline(always)]
fn bytes_of_rows<L: Loader>(tile: &Tile) -> u32 {
    STAGE_FIXED + L::width(tile) * ROW_BYTES
}

/// The rows of a tile, in the largest [boxes](boxes::ROWS) that fit, so that none are loaded that
/// aren't multiplied. Those past the tile belong to the next one, to
/// padding or to another group; they multiply into columns of sums that are never written.
///
/// # Safety
/// As [`Product::load`], for the wide side.
#[inline(always)]
unsafe fn load_rows<L: Loader>(
    maps: [TensorMapRef; 3],
    tile: &Tile,
    k: i32,
    wide: SmemAddr,
    to: L,
) {
    let first = tile.row_start + tile.wide;
    let mut row = 0;
    macro_rules! boxes {
        ($($size:literal)*) => {$(
            while row + boxes::ROWS[$size] <= L::width(tile) {
                let at = [k, (first + row) as i32];
                // SAFETY: the caller's contract; boxes of whole rows follow each other.
                unsafe { to.load_2d(wide.add(row * ROW_BYTES), maps[$size], at) };
                row = reg::opaque(row + boxes::ROWS[$size]);
            }
        )*};
    }
    boxes!(0 1 2);
}

impl Product for Forward {
    const FORM: Form = Form::Forward;
    type Fixed = KMajor;
    type Wide = KMajor;

    #[inline(always)]
    fn bytes<L: Loader>(tile: &Tile) -> u32 {
        bytes_of_rows::<L>(tile)
    }

    #[inline(always)]
    unsafe fn load<L: Loader>(
        maps: Maps,
        tile: &Tile,
        step: u32,
        fixed: SmemAddr,
        wide: SmemAddr,
        to: L,
    ) {
        let k = (step * TILE_K) as i32;
        // SAFETY: the trait's contract.
        unsafe {
            to.load_3d(fixed, maps.b, [k, tile.fixed as i32, tile.group as i32]);
            load_rows(maps.a, tile, k, wide, to);
        }
    }
}

impl Product for GateUp {
    const FORM: Form = Form::Forward;
    /// Looked at all the same: ptxas finds registers so.
    const WHOLE_ORDERS: bool = true;
    type Fixed = KMajor;
    type Wide = KMajor;

    #[inline(always)]
    fn bytes<L: Loader>(tile: &Tile) -> u32 {
        bytes_of_rows::<L>(tile)
    }

    #[inline(always)]
    unsafe fn load<L: Loader>(
        maps: Maps,
        tile: &Tile,
        step: u32,
        fixed: SmemAddr,
        wide: SmemAddr,
        to: L,
    ) {
        let k = (step * TILE_K) as i32;
        // SAFETY: the trait's contract.
        unsafe {
            let mut part = 0;
            while part < CONSUMERS {
                let column = tile.fixed + part * gate_up::APART;
                let from = (column / gate_up::ALTERNATION) as i32;
                to.load_5d(
                    fixed.add(part * PANEL),
                    maps.b,
                    [k, 0, 0, from, tile.group as i32],
                );
                part += 1;
            }
            load_rows(maps.a, tile, k, wide, to);
        }
    }
}

impl Product for Dgrad {
    const FORM: Form = Form::Dgrad;
    type Fixed = MnMajor;
    type Wide = KMajor;

    #[inline(always)]
    fn bytes<L: Loader>(tile: &Tile) -> u32 {
        bytes_of_rows::<L>(tile)
    }

    #[inline(always)]
    unsafe fn load<L: Loader>(
        maps: Maps,
        tile: &Tile,
        step: u32,
        fixed: SmemAddr,
        wide: SmemAddr,
        to: L,
    ) {
        let k = (step * TILE_K) as i32;
        // SAFETY: the trait's contract.
        unsafe {
            let mut panel = 0;
            while panel < FIXED_PANELS {
                let n = tile.fixed + panel * boxes::PANEL;
                to.load_3d(
                    fixed.add(panel * PANEL),
                    maps.b,
                    [n as i32, k, tile.group as i32],
                );
                panel += 1;
            }
            load_rows(maps.a, tile, k, wide, to);
        }
    }
}

impl Product for Wgrad {
    const FORM: Form = Form::Wgrad;
    type Fixed = MnMajor;
    type Wide = MnMajor;

    #[inline(always)]
    fn bytes<L: Loader>(tile: &Tile) -> u32 {
        STAGE_FIXED + L::width(tile).div_ceil(boxes::PANEL) * PANEL
    }

    #[inline(always)]
    unsafe fn load<L: Loader>(
        maps: Maps,
        tile: &Tile,
        step: u32,
        fixed: SmemAddr,
        wide: SmemAddr,
        to: L,
    ) {
        let row = (tile.row_start + step * TILE_K) as i32;
        let mut panel = 0;
        while panel < FIXED_PANELS {
            let m = tile.fixed + panel * boxes::PANEL;
            // SAFETY: the trait's contract.
            unsafe { to.load_2d(fixed.add(panel * PANEL), maps.a[0], [m as i32, row]) };
            panel += 1;
        }
        panel = 0;
        while panel * boxes::PANEL < L::width(tile) {
            let n = tile.wide + panel * boxes::PANEL;
            // SAFETY: the trait's contract.
            unsafe { to.load_2d(wide.add(panel * PANEL), maps.b, [n as i32, row]) };
            panel += 1;
        }
    }
}
