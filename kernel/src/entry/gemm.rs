//! The grouped GEMMs: persistent blocks of one producer and two consumer warpgroups. Where pairs of
//! blocks multiply together: [`pair`](super::pair).
//!
//! ```text
//! all      group sizes -> table (shared memory)            barrier
//! producer for each tile, each stage: wait empty -> TMA -> full
//! dealer   wgrad, each tile: its place -> dealt
//! carrier  wgrad, each panel: open, with what D holds;  wait ready -> D
//! relay    wgrad, each stage: wait full -> rows past the group cleared -> clear, empty
//! consumer for each tile, each stage: wait full -> products -> empty;  sums -> D,
//!          or in wgrad, each panel: wait open -> sums -> ready
//! ```
//!
//! Registers move from the producer to the consumers, whose sums alone are 192 a thread.

use crate::gate_up::GateUpArgs;
use crate::gemm::{CONSUMERS, GemmArgs, PANEL_WARPS, PANELS, shared_plan};
use crate::mma::Engine;
use crate::ptx::tma::TensorMapRef;
use crate::ptx::{fence, mbarrier, reg, shared};
use crate::role::activate::Activate;
use crate::role::carry::{Ahead, Rings, carry};
use crate::role::clear::clear;
use crate::role::deal::{Deals, deal};
use crate::role::load::load;
use crate::role::multiply::multiply;
use crate::role::product::{GateUp, Maps, Product};
use crate::role::store::{Linear, WayOut};
use crate::role::table::{self, SharedTable};
use crate::role::tickets::Drawn;
use crate::schedule::grouped::{ByBlock, Problem, Tiles};
use crate::set_max_registers;
use crate::sync::ring::Ring;

/// A tensor map as a by-value parameter. Only its address is ever used; the builder
/// raises the parameter's alignment to 64 (rustc 1.95 refuses more than 16 here).
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub struct TensorMapParam(pub [u64; 16]);

/// What the entries do, by their engine.
pub trait Body {
    /// Elements in two bytes, which the schedule counts as one of K.
    const IN_TWO_BYTES: u32;
    /// What a carrier reads its tiles from.
    type Tiles: Ahead;
    /// Tensor maps of what comes beside the operands.
    type Beside: Copy;

    /// Composes the roles of a launch. `carrier` gets the tiles, how much further on along the fixed side
    /// this block's part of them is, and the panels.
    ///
    /// # Safety
    /// All threads run it, launched as the entry's spec says, with the dynamic shared memory of its plan
    /// for `args`' groups; `args`, `maps` and `way` describe valid memory, and `way` uses none of the
    /// stages' memory. Each role makes what it alone uses.
    unsafe fn gemm<P: Product, W: WayOut>(
        maps: impl FnOnce() -> Maps<Self::Beside>,
        problem: Problem,
        args: &GemmArgs,
        way: impl FnOnce() -> W,
        carrier: impl FnOnce(Self::Tiles, u32, Rings),
    );

    /// A plain product: the body of the three forms.
    ///
    /// # Safety
    /// As [`gemm`](Body::gemm); `d` is the tensor map of `args`' D.
    #[inline(always)]
    unsafe fn linear<P: Product>(
        maps: impl FnOnce() -> Maps<Self::Beside>,
        d: impl Fn() -> TensorMapRef,
        args: &GemmArgs,
    ) {
        let k = args.k / Self::IN_TWO_BYTES;
        let problem = Problem::new(P::FORM, args.m, args.n, k, args.sink);
        let way = || Linear::<P>::new(args, d());
        // SAFETY: the caller's contract.
        unsafe {
            Self::gemm::<P, _>(maps, problem, args, way, |tiles, fixed, rings| {
                carry(tiles, fixed, args, d(), rings)
            })
        };
    }

    /// Gate-and-up.
    ///
    /// # Safety
    /// As [`gemm`](Body::gemm).
    #[inline(always)]
    unsafe fn gate_up(maps: impl FnOnce() -> Maps<Self::Beside>, args: &GateUpArgs) {
        let problem = Problem::gate_up(args.gemm.n, args.gemm.k);
        let (gemm, way) = (&args.gemm, || Activate { args });
        // SAFETY: the caller's contract.
        unsafe { Self::gemm::<GateUp, _>(maps, problem, gemm, way, |_, _, _| ()) };
    }
}

/// Each block multiplies on its own.
impl<E: Engine> Body for E {
    const IN_TWO_BYTES: u32 = 1;
    type Tiles = Deals;
    type Beside = ();

    #[inline(always)]
    unsafe fn gemm<P: Product, W: WayOut>(
        maps: impl FnOnce() -> Maps,
        problem: Problem,
        args: &GemmArgs,
        way: impl FnOnce() -> W,
        carrier: impl FnOnce(Deals, u32, Rings),
    ) {
        let plan = shared_plan(args.groups);
        let base = shared::dynamic_base();
        let ring = Ring::new(
            base.add(plan.full),
            base.add(plan.empty),
            base.add(plan.clear),
        );
        let table = SharedTable::new(args.groups, base.add(plan.table));

        if reg::thread_idx() == 0 {
            // SAFETY: one thread, before the barriers inside `build`.
            unsafe {
                ring.init(P::RELAYED);
                if P::RELAYED {
                    Deals::new(base, &plan).init();
                    let mut panel = 0;
                    while panel < CONSUMERS * PANELS {
                        mbarrier::init(base.add(plan.open + 8 * panel), 1);
                        mbarrier::init(base.add(plan.ready + 8 * panel), PANEL_WARPS);
                        panel = reg::opaque(panel + 1);
                    }
                }
            }
            fence::mbarrier_init();
        }
        // SAFETY: every thread is here.
        unsafe { table::build::<ByBlock>(table, &problem, args) };

        let warpgroup = reg::thread_idx() / 128;
        if warpgroup == 0 {
            // SAFETY: the whole warpgroup; its first thread is the producer, its second warp the relay, a
            // thread of the third the dealer, one of the fourth the carrier.
            unsafe {
                set_max_registers!(dec 40);
                let drawn = || {
                    let tiles = Tiles::<_, ByBlock>::new(table, problem);
                    Drawn::new(tiles, args.tickets, reg::block_idx())
                };
                if reg::thread_idx() == 0 {
                    if P::RELAYED {
                        load::<P>(Deals::new(base, &plan), &problem, maps(), ring, base, &plan);
                    } else {
                        load::<P>(drawn(), &problem, maps(), ring, base, &plan);
                    }
                } else if P::RELAYED && reg::thread_idx() == 64 {
                    deal(drawn(), Deals::new(base, &plan));
                } else if P::RELAYED && reg::thread_idx() / 32 == 1 {
                    clear(ring, base, &plan);
                } else if P::RELAYED && reg::thread_idx() == 96 {
                    let rings = Rings::new(
                        base.add(plan.staging),
                        base.add(plan.open),
                        base.add(plan.ready),
                    );
                    carrier(Deals::new(base, &plan), 0, rings);
                }
            }
        } else {
            // SAFETY: the whole warpgroup, one part each.
            unsafe {
                set_max_registers!(inc 232);
                multiply::<P, E, W>(way(), warpgroup - 1, ring, base, &plan);
            }
        }
    }
}

/// Defines a kernel of a form under a name, with the product and the engine it composes: of rows, of rows
/// and weights with scales (`scaled`), or `wgrad`.
#[macro_export]
macro_rules! gemm_entry {
    ($(#[$doc:meta])* wgrad $name:ident = $literal:literal, $product:ty, $engine:ty) => {
        $crate::gemm_entry! { @entry $(#[$doc])* $name, $product, $engine, (_a, _b, _d),
            [$crate::tensor_map_param!($literal, 0); 3], $crate::tensor_map_param!($literal, 1),
            $crate::tensor_map_param!($literal, 2), () }
    };
    ($(#[$doc:meta])* scaled $name:ident = $literal:literal, $product:ty, $engine:ty) => {
        $crate::gemm_entry! { @rows $(#[$doc])* $name = $literal, $product, $engine,
            (_a128, _a32, _a8, _b, _d, _scales_a, _scales_b), $crate::role::pair::elements::Scales {
                wide: $crate::tensor_map_param!($literal, 5),
                fixed: $crate::tensor_map_param!($literal, 6),
            } }
    };
    ($(#[$doc:meta])* $name:ident = $literal:literal, $product:ty, $engine:ty) => {
        $crate::gemm_entry! { @rows $(#[$doc])* $name = $literal, $product, $engine,
            (_a128, _a32, _a8, _b, _d), () }
    };
    (@rows $(#[$doc:meta])* $name:ident = $literal:literal, $product:ty, $engine:ty, $maps:tt, $beside:expr) => {
        $crate::gemm_entry! { @entry $(#[$doc])* $name, $product, $engine, $maps,
            [
                $crate::tensor_map_param!($literal, 0),
                $crate::tensor_map_param!($literal, 1),
                $crate::tensor_map_param!($literal, 2),
            ],
            $crate::tensor_map_param!($literal, 3), $crate::tensor_map_param!($literal, 4), $beside }
    };
    (@entry $(#[$doc:meta])* $name:ident, $product:ty, $engine:ty, ($($map:ident),*), $a:expr, $b:expr, $d:expr, $beside:expr) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As its launch spec says; the maps have the product's boxes, `args` describes valid memory.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(
            $($map: $crate::entry::gemm::TensorMapParam,)*
            args: $crate::gemm::GemmArgs,
        ) {
            // SAFETY: the caller's contract.
            unsafe {
                let maps = || $crate::role::product::Maps { a: $a, b: $b, beside: $beside };
                <$engine as $crate::entry::gemm::Body>::linear::<$product>(maps, || $d, &args);
            }
        }
    };
}

/// Defines a gate-and-up kernel under a name, with the engine it composes.
#[macro_export]
macro_rules! gate_up_entry {
    ($(#[$doc:meta])* $name:ident = $literal:literal, $engine:ty) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As its launch spec says; the maps have the product's boxes, `args` describes valid memory.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(
            _x128: $crate::entry::gemm::TensorMapParam,
            _x32: $crate::entry::gemm::TensorMapParam,
            _x8: $crate::entry::gemm::TensorMapParam,
            _weights: $crate::entry::gemm::TensorMapParam,
            args: $crate::gate_up::GateUpArgs,
        ) {
            // SAFETY: the caller's contract.
            unsafe {
                let maps = || $crate::role::product::Maps {
                    a: [
                        $crate::tensor_map_param!($literal, 0),
                        $crate::tensor_map_param!($literal, 1),
                        $crate::tensor_map_param!($literal, 2),
                    ],
                    b: $crate::tensor_map_param!($literal, 3),
                    beside: (),
                };
                <$engine as $crate::entry::gemm::Body>::gate_up(maps, &args);
            }
        }
    };
}

#[cfg(feature = "entries")]
mod entries {
    use crate::mma::Native;
    use crate::role::product::{Dgrad, Forward, Wgrad};

    gemm_entry! {
        /// `D[r, n] = sum_k A[r, k] B[g, n, k]`.
        mok_gemm_forward = "mok_gemm_forward", Forward, Native
    }
    gemm_entry! {
        /// `D[r, n] = sum_k A[r, k] B[g, k, n]`.
        mok_gemm_dgrad = "mok_gemm_dgrad", Dgrad, Native
    }
    gemm_entry! {
        /// `D[g, m, n] = sum_r A[r, m] B[r, n]`.
        wgrad mok_gemm_wgrad = "mok_gemm_wgrad", Wgrad, Native
    }
    #[cfg(any(mok_arch = "sm_100a", mok_arch = "sm_103a"))]
    gemm_entry! {
        /// `D[r, n] = sum_k A[r, k] B[g, n, k]` in MXFP8.
        scaled mok_gemm_forward_mxfp8 = "mok_gemm_forward_mxfp8", Forward,
        crate::mma::sm100::Tcgen05<crate::role::pair::elements::Mxfp8>
    }
    gate_up_entry! {
        /// `H = silu(X gate^T) * (X up^T)`.
        mok_gate_up = "mok_gate_up", Native
    }
}
