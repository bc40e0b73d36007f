//! PTX of other compilers (Triton, nvcc), run in the emulator and compared with NumPy.
//!
//! `make.py` compiles the kernels and computes what they give. Where it can't, for want of
//! Python or of packages, the tests are listed as ignored, with the reason.

mod case;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};

/// What `make.py` ends with when Python or the packages can't be had.
const UNAVAILABLE: i32 = 3;

/// Where the PTX and the data are, or why they can't be made here.
enum Made {
    Folder(PathBuf),
    Unavailable(String),
    Failed(String),
}

fn make() -> Made {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("compilers");
    let script = here.join("make.py");
    if !script.exists() {
        return Made::Unavailable(format!("{} is not on this machine", script.display()));
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compilers");
    let run = Command::new("python3")
        .arg("-B")
        .arg(&script)
        .arg(&folder)
        .output();
    match run {
        Err(error) => Made::Unavailable(format!("python3 doesn't start: {error}")),
        Ok(run) if run.status.success() => Made::Folder(folder),
        Ok(run) => {
            let said = String::from_utf8_lossy(&run.stderr).trim().to_owned();
            match run.status.code() {
                Some(UNAVAILABLE) => Made::Unavailable(said),
                _ => Made::Failed(said),
            }
        }
    }
}

/// Listed as ignored; asked for by name it says why it can't run.
fn ignored(name: &str, reason: &str) -> Trial {
    eprintln!("{name} is ignored: {reason}");
    let reason = Failed::from(reason);
    Trial::test(name, || Err(reason)).with_ignored_flag(true)
}

fn trials() -> Vec<Trial> {
    let folder = match make() {
        Made::Folder(folder) => folder,
        Made::Unavailable(reason) => return vec![ignored("compilers", &reason)],
        Made::Failed(said) => return vec![Trial::test("make", || Err(Failed::from(said)))],
    };
    let list = match case::List::read(&folder) {
        Ok(list) => list,
        Err(error) => {
            let said = error.to_string();
            return vec![Trial::test("list", || Err(Failed::from(said)))];
        }
    };
    let mut trials: Vec<Trial> = list
        .ignored
        .iter()
        .map(|(name, reason)| ignored(name, reason))
        .collect();
    let folder = Arc::new(folder);
    let all = std::env::var_os("MOK_TEST_ALL").is_some();
    for case in list.cases {
        let folder = folder.clone();
        trials.push(Trial::test(case.name.clone(), move || {
            case.run(&folder, all)
                .map_err(|error| Failed::from(error.to_string()))
        }));
    }
    trials
}

fn main() {
    let arguments = Arguments::from_args();
    libtest_mimic::run(&arguments, trials()).exit();
}
