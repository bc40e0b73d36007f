//! `setup`, `build`, `package`.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Result, bail};
use mok_build::compile::{self, Built};
use mok_build::workspace::cargo;
use mok_build::{Arch, Tools, Workspace, setup};

use crate::bars::Bars;
use crate::place::Place;

/// What `cargo package` makes, in the order in which it would be published.
const PUBLISHED: &[&str] = &["mok-kernel", "mok-build", "mok-comm", "mok-emu", "mok"];

/// `xtask setup`.
pub fn setup() -> Result<ExitCode> {
    let workspace = Place::checkout("setup")?;
    let tools = setup::ensure(&workspace, &mut Bars::new())?;
    let source = &tools.rust_src;
    let compiler = &tools.toolchain;
    println!("rustc     {} (LLVM {})", compiler.release, compiler.llvm);
    println!(
        "rust-src  {} ({})",
        source.library.display(),
        source.origin.words()
    );
    for (name, tool) in [
        ("ptxas", &tools.cuda.ptxas),
        ("nvdisasm", &tools.cuda.nvdisasm),
    ] {
        match tool {
            Some(tool) => {
                let path = tool.path.display();
                println!("{name:9} {} ({}: {path})", tool.version, tool.origin);
            }
            None => println!("{name:9} missing"),
        }
    }
    if !tools.cuda.complete() {
        bail!(
            "ptxas or nvdisasm is missing: PTX can be built, but neither assembled nor validated"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// `xtask build`.
pub fn build(archs: &[Arch], stage: bool) -> Result<ExitCode> {
    let workspace = Place::checkout("build")?;
    let (_, built) = built(&workspace, archs)?;
    for built in &built {
        println!("{}", built.ptx.display());
        if let Some(cubin) = &built.cubin {
            println!("{}", cubin.display());
        }
    }
    if stage {
        let folder = compile::stage(&workspace, &built)?;
        eprintln!("staged in {}", folder.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Sets up and builds the shipped kernels.
pub fn built(workspace: &Workspace, archs: &[Arch]) -> Result<(Tools, Vec<Built>)> {
    let mut bars = Bars::new();
    let tools = setup::ensure(workspace, &mut bars)?;
    let built = compile::shipped(workspace, &tools, &once(archs), &mut bars)?;
    Ok((tools, built))
}

/// Each architecture once: two builds of one would only wait for each other.
fn once(archs: &[Arch]) -> Vec<Arch> {
    Arch::ALL
        .into_iter()
        .filter(|arch| archs.contains(arch))
        .collect()
}

/// `xtask package`.
pub fn package(args: &[OsString]) -> Result<ExitCode> {
    let workspace = Place::checkout("package")?;
    let (_, built) = built(&workspace, &Arch::ALL)?;
    if built.iter().any(|built| built.cubin.is_none()) {
        bail!("no ptxas, so no cubins: a package ships those that were validated");
    }
    compile::stage(&workspace, &built)?;
    let mut command = cargo();
    command.current_dir(workspace.root()).arg("package");
    for name in PUBLISHED {
        command.args(["-p", name]);
    }
    let status = command.args(args).status()?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_architecture_named_twice() {
        let named = [Arch::Sm100a, Arch::Sm90a, Arch::Sm100a];
        assert_eq!(once(&named), [Arch::Sm90a, Arch::Sm100a]);
    }
}
