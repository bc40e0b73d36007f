//! Every check of `validate` sees the violation that is planted for it, and the
//! control, which holds nothing but look-alikes, passes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use mok_build::setup::CudaTools;
use mok_build::validate::budgets::{self, Budgets};
use mok_build::validate::{Check, Error, Failure, FileReport, Validator};
use mok_build::{Silent, Workspace};

fn tools() -> &'static CudaTools {
    static TOOLS: OnceLock<CudaTools> = OnceLock::new();
    TOOLS.get_or_init(|| {
        let workspace = Workspace::find(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
        CudaTools::ensure(&workspace.tools(), &mut Silent).unwrap()
    })
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/ptx")
        .join(name)
}

fn judge(path: &Path) -> Result<FileReport, Error> {
    Validator::new(tools(), &Budgets::default())?.file(path)
}

fn failures(name: &str) -> Vec<Failure> {
    judge(&fixture(name)).unwrap().failures
}

/// What was found, with its line, for each failure of one check.
fn of(failures: &[Failure], check: Check) -> Vec<(Option<usize>, &str)> {
    let chosen = failures.iter().filter(|failure| failure.check == check);
    chosen
        .map(|failure| (failure.line, failure.found.as_str()))
        .collect()
}

fn written(text: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("given.ptx");
    fs::write(&path, text).unwrap();
    (folder, path)
}

fn budgets_of(text: &str) -> Result<Budgets, budgets::Error> {
    let (_folder, path) = written(text.as_bytes());
    Budgets::read(&path)
}

#[test]
fn control() {
    let report = judge(&fixture("clean.ptx")).unwrap();
    assert_eq!(report.failures, []);
    assert!(report.passed());
    assert_eq!(
        (report.target.as_str(), report.ptx_version.as_str()),
        ("sm_90a", "8.4")
    );
    let [entry] = &report.entries[..] else {
        panic!("one entry: {report:?}")
    };
    assert_eq!(
        (entry.entry.as_str(), entry.shared, entry.collectives),
        ("clean", 1024, 5)
    );
    assert!(entry.registers > 0);
    assert_eq!(entry.tensor_core.get("HMMA"), Some(&1));
}

#[test]
fn spill() {
    let failures = failures("spill.ptx");
    let found = of(&failures, Check::Spill);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0, Some(6));
    assert!(found[0].1.contains("bytes stored"));
    assert_eq!(of(&failures, Check::Local), []);
}

#[test]
fn stack_and_local() {
    let failures = failures("stack.ptx");
    assert_eq!(of(&failures, Check::Stack), [(Some(6), "64 bytes")]);
    let local = of(&failures, Check::Local);
    assert_eq!(
        local,
        [
            (Some(10), ".local"),
            (Some(23), "st.local.u32"),
            (Some(24), "ld.local.u32")
        ]
    );
    assert_eq!(of(&failures, Check::Spill), []);
}

#[test]
fn serialised_wgmma() {
    let failures = failures("serialized.ptx");
    let found = of(&failures, Check::Performance);
    assert!(
        found.iter().any(|(_, text)| text.starts_with("(C7517)")),
        "{found:?}"
    );
    assert!(
        found
            .iter()
            .all(|(line, _)| line.is_some_and(|line| line > 20)),
        "{found:?}"
    );
    assert!(failures.iter().all(|failure| failure.entry == "serialized"));
}

#[test]
fn indirect_branch() {
    let failures = failures("indirect_branch.ptx");
    assert_eq!(
        of(&failures, Check::IndirectBranch),
        [(Some(16), "brx.idx")]
    );
    assert_eq!(failures.len(), 1);
}

#[test]
fn calls_and_panics() {
    let failures = failures("call.ptx");
    assert_eq!(
        of(&failures, Check::Call),
        [(Some(17), "call.uni"), (Some(20), "call")]
    );
    let panic = of(&failures, Check::Panic);
    assert_eq!(
        panic,
        [(Some(17), "_ZN4core9panicking5panic17h0123456789abcdefE")]
    );
}

#[test]
fn copied_collectives() {
    let failures = failures("collective.ptx");
    let found = of(&failures, Check::Collective);
    let expected = [
        (
            Some(23),
            "`@collective somewhere` names no place: write file:line:column",
        ),
        (
            Some(18),
            "kernel/src/role/load.rs:51:9: emitted 2 times, 1 meant",
        ),
        (
            Some(22),
            "kernel/src/role/load.rs:60:9 x2: emitted 3 times, 2 meant",
        ),
    ];
    assert_eq!(found, expected);
    // The same place in another entry is another emission, and fine.
    assert!(failures.iter().all(|failure| failure.entry == "collective"));
}

#[test]
fn budgets() {
    let path = fixture("clean.ptx");
    let judge = |text: &str| {
        let budgets = budgets_of(text).unwrap();
        let validator = Validator::new(tools(), &budgets)
            .unwrap()
            .shipping(&["clean"]);
        validator.file(&path).unwrap()
    };
    let registers = judge("[clean]\nsm_90a = 255\n").entries[0].registers;
    let exact = judge(&format!("[clean]\nsm_90a = {registers}\n"));
    assert_eq!(
        (exact.failures, exact.entries[0].budget),
        (vec![], Some(registers))
    );
    let over = judge(&format!("[clean]\nsm_90a = {}\n", registers - 1));
    let found = format!("{registers} registers, budget {}", registers - 1);
    assert_eq!(
        of(&over.failures, Check::Budget),
        [(Some(6), found.as_str())]
    );
    // A budget for another architecture is none for this one.
    let none = judge("[clean]\nsm_100a = 255\n");
    assert_eq!(of(&none.failures, Check::NoBudget).len(), 1);
    assert!(matches!(
        budgets_of("clean = 168"),
        Err(budgets::Error::Format { .. })
    ));
    assert!(matches!(
        budgets_of("[clean]\nsm_90a = -1"),
        Err(budgets::Error::Format { .. })
    ));
}

#[test]
fn what_cannot_be_judged() {
    let missing = judge(Path::new("/nonexistent/file.ptx")).unwrap_err();
    assert!(matches!(missing, Error::File(_)));
    assert!(missing.to_string().contains("/nonexistent/file.ptx"));

    let head = ".version 8.4\n.target sm_90a\n.address_size 64\n";
    type Expected = fn(&Error) -> bool;
    let cases: [(Vec<u8>, Expected); 6] = [
        (b"fn main() {}\n".to_vec(), |error| {
            matches!(error, Error::NotPtx { .. })
        }),
        (Vec::new(), |error| matches!(error, Error::NotPtx { .. })),
        (vec![0x7f, b'E', b'L', b'F', 0xff, 0xfe], |error| {
            matches!(error, Error::NotText { .. })
        }),
        (head.into(), |error| {
            matches!(error, Error::NoEntries { .. })
        }),
        (
            format!("{head}.visible .entry f()\n{{ nonsense; ret; }}\n").into(),
            |error| matches!(error, Error::Ptxas { .. }),
        ),
        (
            b".version 3.0\n.target sm_20\n.visible .entry f()\n{ ret; }\n".to_vec(),
            |error| matches!(error, Error::Target { target, .. } if target == "sm_20"),
        ),
    ];
    for (text, expected) in cases {
        let (_folder, path) = written(&text);
        let error = judge(&path).unwrap_err();
        assert!(expected(&error), "{error:?}");
        assert!(error.to_string().contains("given.ptx"), "{error}");
    }
}
