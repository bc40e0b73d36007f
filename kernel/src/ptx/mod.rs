//! One function or macro for an instruction or instruction family, no policy.
//!
//! Everything here is for sm_90 and later unless it says otherwise; the section
//! named is that of the PTX ISA, version 9.0.
//!
//! **Collectives are macros.** `asm!` is not convergent for LLVM: it may copy a
//! block that holds a barrier or a `.sync.aligned` instruction into divergent arms.
//! Each collective therefore carries a comment `// @collective FILE:LINE:COLUMN`
//! of the place that uses it, and the validator fails when one place is emitted
//! twice in an entry. Where a macro expands one place into literal copies, each
//! copy adds its index, so that its tag is its own. [`pin!`](crate::pin) adds a
//! call that LLVM does know as convergent.

pub mod atom;
pub mod barrier;
pub mod bulk;
pub mod cvt;
pub mod fence;
pub mod float;
pub mod global;
pub mod matrix;
pub mod mbarrier;
pub mod reg;
pub mod shared;
pub mod shuffle;
pub mod tcgen05;
pub mod tma;
pub mod wgmma;

/// The comment that names the source line of a collective.
#[doc(hidden)]
#[macro_export]
macro_rules! collective_tag {
    () => {
        concat!(" // @collective ", file!(), ":", line!(), ":", column!())
    };
    ($index:literal $($more:literal)*) => {
        concat!(" // @collective ", file!(), ":", line!(), ":", column!(), " #", $index $(, ".", $more)*)
    };
}
