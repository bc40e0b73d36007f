//! Builds the probes for Hopper and those of tensor memory for Blackwell, and embeds them, so that the test
//! executables carry all they need.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use mok_build::compile::{self, Package};
use mok_build::{Arch, Silent, Workspace, setup};

fn main() -> Result<(), Box<dyn Error>> {
    for path in [
        "probes/src",
        "probes/Cargo.toml",
        "../kernel/src",
        "../kernel/Cargo.toml",
    ] {
        println!("cargo::rerun-if-changed={path}");
    }
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let workspace = Workspace::find(&here)?;
    let tools = setup::ensure(&workspace, &mut Silent)?;
    let package = Package {
        name: "mok-probes",
        features: &["entries"],
        entries: mok_probes::spec::of,
        stem: "mok_probes",
    };
    let archs = [Arch::Sm90a, Arch::Sm100a];
    let built = compile::package(&workspace, &tools, &package, &archs, &mut Silent)?;
    let [probes, of_tensor_memory] = &built[..] else {
        return Err("the probes were not built".into());
    };
    let out = PathBuf::from(env::var("OUT_DIR")?);
    embed(&out.join("probes.ptx"), Some(&probes.ptx))?;
    embed(&out.join("probes.cubin"), probes.cubin.as_deref())?;
    embed(&out.join("tcgen05.ptx"), Some(&of_tensor_memory.ptx))?;
    Ok(())
}

/// An absent cubin becomes an empty file: the driver then compiles the PTX.
fn embed(to: &Path, from: Option<&Path>) -> Result<(), Box<dyn Error>> {
    Ok(fs::write(
        to,
        from.map(fs::read).transpose()?.unwrap_or_default(),
    )?)
}
