//! The emulated GPU: the same library, with kernels executed on the CPU.

pub use mok_emu::machine::Completion;

use mok_kernel::arch::Arch;

/// What an emulated GPU is like.
///
/// One seed fixes one interleaving of warps and asynchronous work, so a failure can be replayed.
///
/// ```
/// let device = mok::Device::emulated(mok::EmulatorConfig { seed: 7, ..Default::default() })?;
/// assert_eq!(device.arch()?, mok::Arch::Sm90a);
/// # Ok::<(), mok::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct EmulatorConfig {
    /// What it is, and which of the shipped kernels it runs.
    pub arch: Arch,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Fixes the interleaving.
    pub seed: u64,
    /// When asynchronous copies complete.
    pub completion: Completion,
    /// Starts blocks in reverse order.
    pub reverse: bool,
    /// Warps of this number in their block run only when nothing else can.
    pub starved_warp: Option<u32>,
    /// SMs that hold nothing, as if other work had them.
    pub held_sms: u32,
    /// Whether races, proxies, uninitialised values and products in flight are checked.
    pub check: bool,
}

impl Default for EmulatorConfig {
    fn default() -> EmulatorConfig {
        EmulatorConfig {
            arch: Arch::Sm90a,
            sms: 4,
            seed: 0,
            completion: Completion::Random,
            reverse: false,
            starved_warp: None,
            held_sms: 0,
            check: true,
        }
    }
}
