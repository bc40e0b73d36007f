//! Builds the kernels of mok-rs, and proves what came out.
//!
//! [`setup`] brings what the compiler needs (rust-src) and what proves and
//! assembles its output (ptxas, nvdisasm); [`compile`] turns a `no_std` crate
//! into PTX with launch [`directives`] and cubins; [`validate`] assembles any
//! PTX and says whether it is fit to ship. The command line (`cargo xtask`) and
//! the build script of `mok` are both thin layers over this crate.
//!
//! ```no_run
//! use mok_build::{Arch, Silent, Workspace, compile, setup};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let workspace = Workspace::find(".".as_ref())?;
//! let tools = setup::ensure(&workspace, &mut Silent)?;
//! for built in compile::shipped(&workspace, &tools, &Arch::ALL, &mut Silent)? {
//!     println!("{}: {}", built.arch.name(), built.ptx.display());
//! }
//! # Ok(())
//! # }
//! ```
#![deny(missing_docs)]

pub mod compile;
pub mod directives;
pub mod files;
pub mod process;
pub mod ptx;
pub mod report;
pub mod setup;
pub mod validate;
pub mod workspace;

pub use mok_kernel::arch::Arch;
pub use mok_kernel::launch::{LaunchSpec, Param};
pub use report::{Report, Silent};
pub use setup::Tools;
pub use workspace::Workspace;
