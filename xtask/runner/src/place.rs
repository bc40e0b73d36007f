//! Where files are written by default: in a checkout, or in a pack.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

/// The two places.
enum Place {
    Pack(PathBuf),
    Checkout(PathBuf),
}

fn find() -> Option<Place> {
    let named = named();
    let starts = [
        env::current_dir().ok(),
        env::current_exe().ok(),
        // Cargo sets it for what it runs, wherever the caller stands.
        env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from),
    ];
    let above = starts
        .iter()
        .flatten()
        .flat_map(|start| start.ancestors().map(Path::to_owned));
    named.chain(above).find_map(place_at)
}

/// What the environment names.
fn named() -> impl Iterator<Item = PathBuf> {
    ["MOK_ROOT", "MOK_PACK"]
        .into_iter()
        .filter_map(env::var_os)
        .map(PathBuf::from)
}

fn place_at(folder: PathBuf) -> Option<Place> {
    if folder.join(MANIFEST).is_file() {
        Some(Place::Pack(folder))
    } else if folder.join("kernel/Cargo.toml").is_file() {
        Some(Place::Checkout(folder))
    } else {
        None
    }
}

/// The place that a program lies in.
fn around(program: &Path) -> Option<Place> {
    program.ancestors().map(Path::to_owned).find_map(place_at)
}

/// The file that makes a folder a pack.
const MANIFEST: &str = "mok-pack.json";

/// The folder of golden files.
pub fn golden() -> Result<PathBuf> {
    match find() {
        Some(Place::Pack(folder)) => Ok(folder.join("golden")),
        Some(Place::Checkout(folder)) => Ok(folder.join("tests/golden")),
        None => bail!(
            "this is neither in a checkout of mok-rs nor in a pack: name the folder with --out, \
             or the checkout with MOK_ROOT"
        ),
    }
}

/// The commit that this was built from, where that is known: what the program itself lies in says so
/// before the folder it is called from, which can be a checkout of another commit.
pub fn commit() -> Option<String> {
    let own = env::current_exe().ok().and_then(|program| around(&program));
    match own.or_else(find)? {
        Place::Pack(folder) => {
            let manifest = fs::read(folder.join(MANIFEST)).ok()?;
            let manifest: serde_json::Value = serde_json::from_slice(&manifest).ok()?;
            manifest["commit"].as_str().map(str::to_owned)
        }
        Place::Checkout(folder) => {
            let described = Command::new("git")
                .args(["describe", "--always", "--dirty", "--abbrev=40"])
                .current_dir(folder)
                .output()
                .ok()
                .filter(|output| output.status.success())?;
            Some(String::from_utf8(described.stdout).ok()?.trim().to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pack inside a checkout, as one is made: its programs are the pack's.
    #[test]
    fn a_program_in_a_pack_is_the_packs() {
        let checkout = tempfile::tempdir().unwrap();
        let pack = checkout.path().join("target/pack");
        fs::create_dir_all(checkout.path().join("kernel")).unwrap();
        fs::write(checkout.path().join("kernel/Cargo.toml"), "").unwrap();
        fs::create_dir_all(&pack).unwrap();
        fs::write(pack.join(MANIFEST), "{}").unwrap();
        assert!(matches!(around(&pack.join("xtask-runner")), Some(Place::Pack(at)) if at == pack));
        let built = checkout.path().join("target/release/xtask-runner");
        assert!(matches!(around(&built), Some(Place::Checkout(at)) if at == checkout.path()));
    }
}
