//! The three products, as far as the roles differ: which operand is contiguous along
//! what, and which boxes fill a stage.

use crate::gemm::{Form, TILE_K, boxes};
use crate::mma::tile::{KMajor, MnMajor, Operand, PANEL};
use crate::ptx::shared::SmemAddr;
use crate::ptx::tma::{self, TensorMapRef};
use crate::schedule::grouped::Tile;

/// The tensor maps of both operands.
#[derive(Clone, Copy)]
pub struct Maps {
    /// A's.
    pub a: TensorMapRef,
    /// B's.
    pub b: TensorMapRef,
}

/// One of the three products.
pub trait Product {
    /// Its form.
    const FORM: Form;
    /// How A lies in a stage.
    type A: Operand;
    /// How B lies in a stage.
    type B: Operand;

    /// Issues the loads of stage `step` of `tile`: A's bytes to `a`, B's to `b`, all of both counted by `bar`.
    ///
    /// # Safety
    /// The maps have the boxes of [`boxes`]; the stage at `a` and `b` is free and `bar` expects its bytes.
    unsafe fn load(maps: Maps, tile: &Tile, step: u32, a: SmemAddr, b: SmemAddr, bar: SmemAddr);
}

/// `D[r, n] = sum_k A[r, k] B[g, n, k]`.
pub struct Forward;
/// `D[r, n] = sum_k A[r, k] B[g, k, n]`.
pub struct Dgrad;
/// `D[g, m, n] = sum_r A[r, m] B[r, n]`.
pub struct Wgrad;

/// Panels of 64 columns in A's and B's part of a stage.
const PANELS_A: u32 = crate::gemm::TILE_M / boxes::PANEL;
const PANELS_B: u32 = crate::gemm::TILE_N / boxes::PANEL;

impl Product for Forward {
    const FORM: Form = Form::Forward;
    type A = KMajor;
    type B = KMajor;

    #[inline(always)]
    unsafe fn load(maps: Maps, tile: &Tile, step: u32, a: SmemAddr, b: SmemAddr, bar: SmemAddr) {
        let k = (step * TILE_K) as i32;
        // SAFETY: the trait's contract.
        unsafe {
            tma::load_2d(a, maps.a, [k, (tile.row_start + tile.m) as i32], bar);
            tma::load_3d(b, maps.b, [k, tile.n as i32, tile.group as i32], bar);
        }
    }
}

impl Product for Dgrad {
    const FORM: Form = Form::Dgrad;
    type A = KMajor;
    type B = MnMajor;

    #[inline(always)]
    unsafe fn load(maps: Maps, tile: &Tile, step: u32, a: SmemAddr, b: SmemAddr, bar: SmemAddr) {
        let k = (step * TILE_K) as i32;
        // SAFETY: the trait's contract.
        unsafe {
            tma::load_2d(a, maps.a, [k, (tile.row_start + tile.m) as i32], bar);
            let mut panel = 0;
            while panel < PANELS_B {
                let n = tile.n + panel * boxes::PANEL;
                tma::load_3d(
                    b.add(panel * PANEL),
                    maps.b,
                    [n as i32, k, tile.group as i32],
                    bar,
                );
                panel += 1;
            }
        }
    }
}

impl Product for Wgrad {
    const FORM: Form = Form::Wgrad;
    type A = MnMajor;
    type B = MnMajor;

    #[inline(always)]
    unsafe fn load(maps: Maps, tile: &Tile, step: u32, a: SmemAddr, b: SmemAddr, bar: SmemAddr) {
        let row = (tile.row_start + step * TILE_K) as i32;
        let mut panel = 0;
        while panel < PANELS_A {
            let m = tile.m + panel * boxes::PANEL;
            // SAFETY: the trait's contract.
            unsafe { tma::load_2d(a.add(panel * PANEL), maps.a, [m as i32, row], bar) };
            panel += 1;
        }
        panel = 0;
        while panel < PANELS_B {
            let n = tile.n + panel * boxes::PANEL;
            // SAFETY: the trait's contract.
            unsafe { tma::load_2d(b.add(panel * PANEL), maps.b, [n as i32, row], bar) };
            panel += 1;
        }
    }
}
