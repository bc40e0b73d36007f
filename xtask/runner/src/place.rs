//! Where files are written by default: in a checkout, or in a pack.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The folder of golden files.
pub fn golden() -> Result<PathBuf> {
    let starts = [
        env::current_dir().ok(),
        env::current_exe().ok(),
        // Cargo sets it for what it runs, wherever the caller stands.
        env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from),
    ];
    let named = ["MOK_ROOT", "MOK_PACK"]
        .into_iter()
        .filter_map(env::var_os)
        .map(PathBuf::from);
    named
        .chain(
            starts
                .iter()
                .flatten()
                .flat_map(|start| start.ancestors().map(Path::to_owned)),
        )
        .find_map(|folder| {
            if folder.join("mok-pack.json").is_file() {
                Some(folder.join("golden"))
            } else if folder.join("kernel/Cargo.toml").is_file() {
                Some(folder.join("tests/golden"))
            } else {
                None
            }
        })
        .context(
            "this is neither in a checkout of mok-rs nor in a pack: name the folder with --out, \
             or the checkout with MOK_ROOT",
        )
}
