//! Special registers, register allocation, and waiting ("Special Registers").

use core::arch::asm;

macro_rules! special {
    ($($(#[$doc:meta])* $name:ident = $reg:literal;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name() -> u32 {
            let value: u32;
            // SAFETY: reads a register that never changes while the thread lives.
            unsafe {
                asm!(concat!("mov.u32 {0}, %", $reg, ";"), out(reg32) value,
                     options(pure, nomem, nostack, preserves_flags));
            }
            value
        }
    )*};
}

special! {
    /// Index of the thread in its block, along x.
    thread_idx = "tid.x";
    /// Threads in the block, along x.
    block_dim = "ntid.x";
    /// Index of the block in the grid, along x.
    block_idx = "ctaid.x";
    /// Index of the block in the grid, along y.
    block_idx_y = "ctaid.y";
    /// Blocks in the grid, along x.
    grid_dim = "nctaid.x";
    /// Lane in the warp, 0 to 31.
    lane = "laneid";
    /// Rank of this block in its cluster.
    cluster_rank = "cluster_ctarank";
    /// Blocks in the cluster.
    cluster_size = "cluster_nctarank";
    /// Index of the cluster in the grid, along x.
    cluster_idx = "clusterid.x";
    /// The SM that runs this block. It may change only when the block is preempted.
    sm_id = "smid";
}

/// Nanoseconds of the device-wide timer. Its resolution is the device's own (about 1 us on Hopper).
#[inline(always)]
pub fn globaltimer() -> u64 {
    let value: u64;
    // SAFETY: reads a register. Not `pure`: two reads may differ.
    unsafe { asm!("mov.u64 {0}, %globaltimer;", out(reg64) value, options(nostack)) };
    value
}

/// Clock cycles of this SM.
#[inline(always)]
pub fn clock() -> u64 {
    let value: u64;
    // SAFETY: as `globaltimer`.
    unsafe { asm!("mov.u64 {0}, %clock64;", out(reg64) value, options(nostack)) };
    value
}

/// Suspends the thread for about `ns` nanoseconds, at most twice as long ("nanosleep").
#[inline(always)]
pub fn nanosleep(ns: u32) {
    // SAFETY: no memory is touched.
    unsafe { asm!("nanosleep.u32 {0};", in(reg32) ns, options(nostack)) };
}

/// The same value, of which the compiler no longer knows anything.
#[inline(always)]
pub fn opaque(value: u32) -> u32 {
    let same: u32;
    // SAFETY: copies a register.
    unsafe {
        asm!("mov.b32 {0}, {1};", out(reg32) same, in(reg32) value, options(pure, nomem, nostack))
    };
    same
}

/// [`opaque`], each time anew: what is worked out from it isn't kept in registers meanwhile.
///
/// The products' kernels have both where nothing else explains them: ptxas then finds registers for products
/// in flight (docs/gemm.md, "The way out").
#[inline(always)]
pub fn anew(value: u32) -> u32 {
    let same: u32;
    // SAFETY: copies a register.
    unsafe { asm!("mov.b32 {0}, {1};", out(reg32) same, in(reg32) value, options(nomem, nostack)) };
    same
}

/// Ends the kernel with an error for the whole context. The panic handler's last resort.
#[inline(always)]
pub fn trap() -> ! {
    // SAFETY: `trap` doesn't return to the thread.
    unsafe { asm!("trap;", options(noreturn, nostack)) }
}

/// Raises (`inc`) or lowers (`dec`) this warp's register limit ("setmaxnreg").
///
/// `set_max_registers!(inc 232)`. The count is a multiple of 8 from 24 to 256.
///
/// # Safety
/// Every warp of the warpgroup runs the same one; `inc` waits until other
/// warpgroups have released enough; the entry needs `.reqntid` and `.minnctapersm`.
#[macro_export]
macro_rules! set_max_registers {
    (inc $count:literal) => {
        ::core::arch::asm!(
            concat!(
                "setmaxnreg.inc.sync.aligned.u32 ",
                $count,
                ";",
                $crate::collective_tag!()
            ),
            options(nostack)
        )
    };
    (dec $count:literal) => {
        ::core::arch::asm!(
            concat!(
                "setmaxnreg.dec.sync.aligned.u32 ",
                $count,
                ";",
                $crate::collective_tag!()
            ),
            options(nostack)
        )
    };
}

/// Pins the block it stands in: LLVM neither copies nor sinks a block that holds a
/// convergent call, hence not the collectives beside it either.
#[macro_export]
macro_rules! pin {
    () => {
        $crate::ptx::reg::pin()
    };
}

/// The function behind [`pin!`](crate::pin).
///
/// # Safety
/// Always sound; unsafe only so that it stands in the `unsafe` block of the collective it pins.
#[inline(always)]
pub unsafe fn pin() {
    // Absent when the documentation is built for a host.
    #[cfg(target_arch = "nvptx64")]
    {
        unsafe extern "C" {
            #[link_name = "llvm.nvvm.activemask"]
            fn activemask() -> u32;
        }
        // SAFETY: reads the mask of active lanes. The empty asm keeps the call alive.
        unsafe {
            let mask = activemask();
            asm!("// {0}", in(reg32) mask, options(nostack));
        }
    }
}
