//! wgmma for every N, both majors of both operands, and A from registers.

use mok_kernel::entry::gemm::TensorMapParam;
use mok_kernel::layout::descriptor::{Major, advance, k_major, mn_major};
use mok_kernel::layout::fragment::{accumulator, ldmatrix};
use mok_kernel::mma::tile::PANEL;
use mok_kernel::ptx::shared::{SmemAddr, dynamic_base};
use mok_kernel::ptx::tma::{self, TensorMapRef};
use mok_kernel::ptx::{fence, global, mbarrier, reg};
use mok_kernel::{
    block_sync, load_matrix, tensor_map_param, wgmma, wgmma_commit, wgmma_fence, wgmma_settled,
    wgmma_wait,
};

use crate::spec::ProbeArgs;

/// Brings A (64 by 64) to the base and B (N by 64) behind it.
///
/// # Safety
/// All threads of the block call it; the maps' boxes are a whole K-major tile or one MN-major panel.
unsafe fn load(a: TensorMapRef, b: TensorMapRef, n: u32, b_major: Major) -> (SmemAddr, SmemAddr) {
    let base = dynamic_base();
    let (at_b, bar) = (base.add(PANEL), base.add(5 * PANEL));
    // SAFETY: one thread initialises and loads, all wait.
    unsafe {
        if reg::thread_idx() == 0 {
            mbarrier::init(bar, 1);
            fence::mbarrier_init();
        }
        block_sync!();
        if reg::thread_idx() == 0 {
            match b_major {
                Major::K => {
                    mbarrier::arrive_expect(bar, PANEL + 128 * n);
                    tma::load_2d(at_b, b, [0, 0], bar);
                }
                Major::Mn => {
                    let panels = n.div_ceil(64);
                    mbarrier::arrive_expect(bar, PANEL * (1 + panels));
                    let mut panel = 0;
                    while panel < panels {
                        tma::load_2d(at_b.add(panel * PANEL), b, [64 * panel as i32, 0], bar);
                        panel += 1;
                    }
                }
            }
            tma::load_2d(base, a, [0, 0], bar);
        }
        mbarrier::wait(bar, 0);
    }
    (base, at_b)
}

macro_rules! probes {
    ($($n:tt $half:tt $name:ident $text:literal [$($i:literal)*];)*) => {$(
        /// `mode`: bit 0 A is MN-major, bit 1 B is MN-major, bit 2 A comes from registers.
        /// `output`: f32 [64, N].
        #[unsafe(no_mangle)]
        unsafe extern "ptx-kernel" fn $name(_a: TensorMapParam, _b: TensorMapParam, args: ProbeArgs) {
            // SAFETY: the maps are valid; the output has 64 rows of N.
            unsafe {
                let (map_a, map_b) = (tensor_map_param!($text, 0), tensor_map_param!($text, 1));
                let b_major = if args.mode & 2 == 0 { Major::K } else { Major::Mn };
                let (a, b) = load(map_a, map_b, $n, b_major);
                let thread = reg::thread_idx();
                // The first product must drop what is there.
                let mut sums = [1e30f32; $half];
                let d = &mut sums;
                let (ak, am) = (k_major(a.0), mn_major(a.0, PANEL));
                let (bk, bm) = (k_major(b.0), mn_major(b.0, PANEL));
                macro_rules! four {
                    ($desc_a:expr, $desc_b:expr, $ma:expr, $mb:expr) => {
                        wgmma!($n, d, smem $desc_a, $desc_b, 0u32, $ma.transpose(), $mb.transpose(), 0);
                        wgmma!($n, d, smem advance($desc_a, $ma.k_step()), advance($desc_b, $mb.k_step()), 1u32, $ma.transpose(), $mb.transpose(), 1);
                        wgmma!($n, d, smem advance($desc_a, 2 * $ma.k_step()), advance($desc_b, 2 * $mb.k_step()), 1u32, $ma.transpose(), $mb.transpose(), 2);
                        wgmma!($n, d, smem advance($desc_a, 3 * $ma.k_step()), advance($desc_b, 3 * $mb.k_step()), 1u32, $ma.transpose(), $mb.transpose(), 3);
                    };
                }
                macro_rules! from_registers {
                    ($f:ident, $desc_b:expr, $mb:expr) => {
                        wgmma!($n, d, regs $f[0], $desc_b, 0u32, $mb.transpose(), 0);
                        wgmma!($n, d, regs $f[1], advance($desc_b, $mb.k_step()), 1u32, $mb.transpose(), 1);
                        wgmma!($n, d, regs $f[2], advance($desc_b, 2 * $mb.k_step()), 1u32, $mb.transpose(), 2);
                        wgmma!($n, d, regs $f[3], advance($desc_b, 3 * $mb.k_step()), 1u32, $mb.transpose(), 3);
                    };
                }
                let row = thread / 32 * 16;
                let at = |k: u32| a.add(ldmatrix::a(Major::K, reg::lane(), row, k, PANEL));
                if args.mode & 4 != 0 {
                    let fragments = [
                        load_matrix!(x4, at(0), 0),
                        load_matrix!(x4, at(16), 1),
                        load_matrix!(x4, at(32), 2),
                        load_matrix!(x4, at(48), 3),
                    ];
                    wgmma_fence!();
                    if args.mode & 2 == 0 {
                        from_registers!(fragments, bk, Major::K);
                    } else {
                        from_registers!(fragments, bm, Major::Mn);
                    }
                    wgmma_commit!();
                    wgmma_wait!(0);
                    wgmma_settled!($n, d);
                } else {
                    wgmma_fence!();
                    if args.mode & 3 == 0 {
                        four!(ak, bk, Major::K, Major::K);
                    } else if args.mode & 3 == 1 {
                        four!(am, bk, Major::Mn, Major::K);
                    } else if args.mode & 3 == 2 {
                        four!(ak, bm, Major::K, Major::Mn);
                    } else {
                        four!(am, bm, Major::Mn, Major::Mn);
                    }
                    wgmma_commit!();
                    wgmma_wait!(0);
                    wgmma_settled!($n, d);
                }
                $(
                    let element = accumulator::row(thread, $i) * $n + accumulator::column(thread, $i);
                    global::store_u32(args.output + 4 * element as u64, sums[$i].to_bits());
                )*
            }
        }
    )*};
}

probes! {
    8 4 probe_wgmma_8 "probe_wgmma_8" [0 1 2 3];
    16 8 probe_wgmma_16 "probe_wgmma_16" [0 1 2 3 4 5 6 7];
    24 12 probe_wgmma_24 "probe_wgmma_24" [0 1 2 3 4 5 6 7 8 9 10 11];
    32 16 probe_wgmma_32 "probe_wgmma_32" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15];
    40 20 probe_wgmma_40 "probe_wgmma_40" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19];
    48 24 probe_wgmma_48 "probe_wgmma_48" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23];
    56 28 probe_wgmma_56 "probe_wgmma_56" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27];
    64 32 probe_wgmma_64 "probe_wgmma_64" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31];
    72 36 probe_wgmma_72 "probe_wgmma_72" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35];
    80 40 probe_wgmma_80 "probe_wgmma_80" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39];
    88 44 probe_wgmma_88 "probe_wgmma_88" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43];
    96 48 probe_wgmma_96 "probe_wgmma_96" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47];
    104 52 probe_wgmma_104 "probe_wgmma_104" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51];
    112 56 probe_wgmma_112 "probe_wgmma_112" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55];
    120 60 probe_wgmma_120 "probe_wgmma_120" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59];
    128 64 probe_wgmma_128 "probe_wgmma_128" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63];
    136 68 probe_wgmma_136 "probe_wgmma_136" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67];
    144 72 probe_wgmma_144 "probe_wgmma_144" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71];
    152 76 probe_wgmma_152 "probe_wgmma_152" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75];
    160 80 probe_wgmma_160 "probe_wgmma_160" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79];
    168 84 probe_wgmma_168 "probe_wgmma_168" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83];
    176 88 probe_wgmma_176 "probe_wgmma_176" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87];
    184 92 probe_wgmma_184 "probe_wgmma_184" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91];
    192 96 probe_wgmma_192 "probe_wgmma_192" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95];
    200 100 probe_wgmma_200 "probe_wgmma_200" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99];
    208 104 probe_wgmma_208 "probe_wgmma_208" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102 103];
    216 108 probe_wgmma_216 "probe_wgmma_216" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107];
    224 112 probe_wgmma_224 "probe_wgmma_224" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111];
    232 116 probe_wgmma_232 "probe_wgmma_232" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115];
    240 120 probe_wgmma_240 "probe_wgmma_240" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119];
    248 124 probe_wgmma_248 "probe_wgmma_248" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119 120 121 122 123];
    256 128 probe_wgmma_256 "probe_wgmma_256" [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119 120 121 122 123 124 125 126 127];
}
