//! Embeds the kernels.
//!
//! In a clone of the repository they are built, by the builder that the command
//! line uses; a packaged crate carries them in `kernels/`. `MOK_KERNELS` names
//! a folder of ready ones that is used instead of either.

use std::env;
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use mok_build::{Arch, Report, Workspace, compile, report, setup};

fn main() -> ExitCode {
    match embed() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let error = report::in_full(error.as_ref());
            eprintln!("mok: the kernels could not be embedded.\n\n{error}");
            ExitCode::FAILURE
        }
    }
}

/// One architecture's files.
struct Code {
    arch: Arch,
    ptx: PathBuf,
    cubin: Option<PathBuf>,
}

fn embed() -> Result<(), Box<dyn Error>> {
    let home = folder("CARGO_MANIFEST_DIR")?;
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=MOK_KERNELS");
    let codes = if let Some(ready) = env::var_os("MOK_KERNELS").filter(|ready| !ready.is_empty()) {
        ready_kernels(Path::new(&ready))?
    } else if home.join("../kernel/builder/Cargo.toml").is_file() {
        // Documentation needs no kernels, and its builder may have no network to set up with.
        match env::var_os("DOCS_RS") {
            Some(_) => Vec::new(),
            None => build_kernels(&home)?,
        }
    } else {
        ready_kernels(&home.join("kernels"))?
    };
    write_source(&folder("OUT_DIR")?, &codes)
}

/// Kernels that were built before.
fn ready_kernels(folder: &Path) -> Result<Vec<Code>, Box<dyn Error>> {
    println!("cargo:rerun-if-changed={}", folder.display());
    let file = |arch: Arch, kind: &str| {
        let path = folder.join(format!("mok_{}.{kind}", arch.name()));
        path.is_file().then_some(path)
    };
    let codes: Vec<Code> = Arch::ALL
        .into_iter()
        .filter_map(|arch| {
            Some(Code {
                arch,
                ptx: file(arch, "ptx")?,
                cubin: file(arch, "cubin"),
            })
        })
        .collect();
    if codes.is_empty() {
        return Err(format!(
            "{} has no mok_<arch>.ptx (sm_90a, sm_100a, sm_103a). A package made by `cargo package \
             -p mok` carries them if `cargo build -p mok` ran before it in the clone. Build mok in \
             a clone of the repository, or set MOK_KERNELS to a folder of kernels from `cargo xtask \
             build`.",
            folder.display()
        )
        .into());
    }
    Ok(codes)
}

/// Builds the kernels, and leaves copies where `cargo package` takes them along.
fn build_kernels(home: &Path) -> Result<Vec<Code>, Box<dyn Error>> {
    for watched in ["kernel/src", "kernel/Cargo.toml", "kernel/builder/src"] {
        println!("cargo:rerun-if-changed=../{watched}");
    }
    let advice = |error: &dyn Error| {
        format!(
            "{error}\n`cargo xtask doctor` says what this machine lacks. Where nothing can be \
             downloaded, set MOK_KERNELS to a folder of kernels from `cargo xtask build`."
        )
    };
    let report = &mut Warnings;
    let workspace = Workspace::find(home)?;
    let tools = setup::ensure(&workspace, report).map_err(|error| advice(&error))?;
    let built = compile::shipped(&workspace, &tools, &Arch::ALL, report)?;
    compile::stage(&workspace, &built)?;
    Ok(built
        .into_iter()
        .map(|built| Code {
            arch: built.arch,
            ptx: built.ptx,
            cubin: built.cubin,
        })
        .collect())
}

/// Copies the files beside a source file that includes them.
fn write_source(out: &Path, codes: &[Code]) -> Result<(), Box<dyn Error>> {
    let copy = |from: &Path| -> Result<String, Box<dyn Error>> {
        let name = from
            .file_name()
            .and_then(|name| name.to_str())
            .ok_or_else(|| format!("{} has no usable name", from.display()))?;
        // Not `fs::copy`: a read-only source would leave a copy that the next build can't replace.
        fs::read(from)
            .and_then(|bytes| fs::write(out.join(name), bytes))
            .map_err(|error| format!("copying {}: {error}", from.display()))?;
        // `OUT_DIR` is read while compiling: the binary holds the bytes and no path.
        Ok(format!("(concat!(env!(\"OUT_DIR\"), \"/{name}\"))"))
    };
    let mut source = String::from("static EMBEDDED: &[Embedded] = &[\n");
    for code in codes {
        let ptx = copy(&code.ptx)?;
        let cubin = match &code.cubin {
            Some(cubin) => format!("Some(include_bytes!{})", copy(cubin)?),
            None => "None".to_owned(),
        };
        writeln!(
            source,
            "    Embedded {{ arch: Arch::{:?}, ptx: include_str!{ptx}, cubin: {cubin} }},",
            code.arch
        )?;
    }
    source.push_str("];\n");
    fs::write(out.join("embedded.rs"), source)?;
    Ok(())
}

fn folder(name: &str) -> Result<PathBuf, Box<dyn Error>> {
    Ok(env::var_os(name)
        .ok_or_else(|| format!("{name} is not set: run this through cargo"))?
        .into())
}

/// Passes warnings on; cargo shows its own progress.
struct Warnings;

impl Report for Warnings {
    fn begin(&mut self, _: &str) {}
    fn detail(&mut self, _: &str, _: &str) {}
    fn end(&mut self, _: &str, _: &str) {}
    fn warn(&mut self, line: &str) {
        for line in line.lines() {
            println!("cargo:warning={line}");
        }
    }
}
