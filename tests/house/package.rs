//! A crate outside this repository that depends on the packaged `mok`, on a machine that can
//! build no kernels.

use std::fs;
use std::path::{Path, PathBuf};

const PROGRAM: &str = r#"
fn main() {
    for arch in mok::Arch::ALL {
        let code = mok::kernels::embedded(arch).expect("every architecture is embedded");
        assert!(code.ptx.contains("mok_gemm_forward") && code.ptx.contains(".reqntid"));
        println!("{} {} {}", arch.name(), code.ptx.len() > 1000, code.cubin.is_some());
    }
    match mok::Device::cuda(0) {
        Ok(device) => println!("device {}", device.name()),
        Err(error) => println!("error {error}"),
    }
}
"#;

/// The crates that a published `mok` is made of.
const PUBLISHED: [&str; 5] = ["mok-kernel", "mok-build", "mok-emu", "mok-comm", "mok"];

/// Packs the published crates, unpacks them below `to`, returns their folders.
fn packaged(to: &Path) -> Vec<(String, PathBuf)> {
    let mut package = super::cargo();
    package
        .args([
            "package",
            "--no-verify",
            "--allow-dirty",
            "--quiet",
            "--target-dir",
        ])
        .arg(to.join("target"));
    for name in PUBLISHED {
        package.args(["-p", name]);
    }
    super::output(&mut package);
    let files = fs::read_dir(to.join("target/package")).expect("packages");
    let mut folders = Vec::new();
    for file in files.map(|file| file.expect("an entry").path()) {
        if file
            .extension()
            .is_some_and(|extension| extension == "crate")
        {
            super::output(
                std::process::Command::new("tar")
                    .arg("-xzf")
                    .arg(&file)
                    .arg("-C")
                    .arg(to),
            );
            let stem = file
                .file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            let name = stem.rsplit_once('-').expect("name-version").0.to_owned();
            folders.push((name, to.join(stem)));
        }
    }
    folders
}

#[test]
fn an_outside_crate_uses_the_packaged_library_without_rust_src() {
    let temp = tempfile::tempdir().expect("a folder");
    let folders = packaged(temp.path());
    assert_eq!(folders.len(), PUBLISHED.len());
    let outside = temp.path().join("outside");
    fs::create_dir_all(outside.join("src")).expect("a folder");
    let mut manifest = String::from(
        "[package]\nname = \"outside\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[dependencies]\nmok = \"0.1\"\n\n[workspace]\n\n[patch.crates-io]\n",
    );
    for (name, folder) in &folders {
        manifest.push_str(&format!(
            "{name} = {{ path = {:?} }}\n",
            folder.display().to_string()
        ));
    }
    fs::write(outside.join("Cargo.toml"), manifest).expect("written");
    fs::write(outside.join("src/main.rs"), PROGRAM).expect("written");
    // The same versions as here, so that nothing has to be downloaded.
    fs::copy(super::root().join("Cargo.lock"), outside.join("Cargo.lock")).expect("copied");

    let home = temp.path().join("home");
    fs::create_dir(&home).expect("a folder");
    let mut run = super::cargo();
    run.current_dir(&outside)
        .args(["run", "--quiet", "--offline"]);
    // Unoptimised: what is tested is that it builds at all.
    run.env("CARGO_TARGET_DIR", temp.path().join("outside-target"));
    for variable in [
        "RUSTC_BOOTSTRAP",
        "__CARGO_TESTS_ONLY_SRC_ROOT",
        "MOK_KERNELS",
        "MOK_PTXAS",
    ] {
        run.env_remove(variable);
    }
    let printed = super::output(&mut run);
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), 4, "{printed}");
    for (line, arch) in lines.iter().zip(["sm_90a", "sm_100a", "sm_103a"]) {
        assert!(line.starts_with(&format!("{arch} true")), "{printed}");
    }
    assert!(
        lines[3].starts_with("device ") || lines[3].starts_with("error no CUDA driver"),
        "{printed}"
    );
}
