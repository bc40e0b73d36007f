//! Every check of `validate` sees the violation that is planted for it, and the
//! control, which holds nothing but look-alikes, passes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use mok_build::setup::{CudaTool, CudaTools};
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

const HEAD: &str = ".version 8.4\n.target sm_90a\n.address_size 64\n";

/// Failures of a text given by hand, behind the three lines of [`HEAD`].
fn failures_of(text: &str) -> Vec<Failure> {
    let (_folder, path) = written(format!("{HEAD}{text}").as_bytes());
    judge(&path).unwrap().failures
}

#[test]
fn what_stands_close_is_seen_too() {
    let failures = failures_of(
        ".visible .func g()\n{ ret; }\n.visible.entry f(.param.u32 f_param)\n{\n\
         .reg.u32 %r<2>;\n.local.b8 a[64];\nld.param.u32 %r1, [f_param];\n\
         s: .branchtargets x, y;\nz:brx.idx %r1, s;\nx:call g;\ny:call.uni g;\nret; }\n",
    );
    assert_eq!(of(&failures, Check::Local), [(Some(9), ".local.b8")]);
    assert_eq!(
        of(&failures, Check::IndirectBranch),
        [(Some(12), "brx.idx")]
    );
    let calls = of(&failures, Check::Call);
    assert_eq!(calls, [(Some(13), "call"), (Some(14), "call.uni")]);
    assert_eq!(of(&failures, Check::Stack), [(Some(6), "64 bytes")]);
}

#[test]
fn labels_and_variables_may_be_named_call() {
    let text = ".visible .entry f()\n{\n.reg .u32 call;\nmov.u32 call, 1;\nret;\n}\n\
                .visible .entry g()\n{\nbra call;\ncall: ret;\n}\n";
    assert_eq!(failures_of(text), []);
}

#[test]
fn alloca_is_a_stack_frame() {
    let failures = failures_of(
        ".visible .entry f(.param .u64 p)\n{\n.reg .b64 %rd<4>;\nld.param.u64 %rd1, [p];\n\
         alloca.u64 %rd2, %rd1, 8;\nst.global.u64 [%rd1], %rd2;\nret;\n}\n",
    );
    assert_eq!(of(&failures, Check::Stack), [(Some(8), "alloca.u64")]);
}

#[test]
fn a_remark_that_names_no_function() {
    let body = "{\nsetmaxnreg.inc.sync.aligned.u32 232;\nret;\n}\n";
    let alone = failures_of(&format!(".visible .entry f()\n{body}"));
    assert_eq!(alone.len(), 1);
    assert_eq!((alone[0].entry.as_str(), alone[0].line), ("f", Some(4)));
    assert!(alone[0].found.starts_with("(C7508)"), "{alone:?}");
    let one_of_two = failures_of(&format!(
        ".visible .entry f()\n{body}.visible .entry g()\n{{\nret;\n}}\n"
    ));
    assert_eq!(
        (one_of_two[0].entry.as_str(), one_of_two[0].line),
        ("", None)
    );
}

/// A producer and its consumers.
fn roles(directives: &str, body: &str) -> Vec<Failure> {
    failures_of(&format!(
        ".visible .entry f()\n{directives}\n{{\n.reg .pred %p; .reg .b32 %r;\n\
         mov.u32 %r, %tid.x; setp.lt.u32 %p, %r, 128; @%p bra L;\n{body}ret;\n}}\n"
    ))
}

#[test]
fn more_registers_than_a_block_has() {
    let three = ".reqntid 384, 1, 1\n.minnctapersm 1";
    let inc = "setmaxnreg.inc.sync.aligned.u32 240;\nret;\n";
    let dec = |count| format!("{inc}L: setmaxnreg.dec.sync.aligned.u32 {count};\n");
    assert_eq!(roles(three, &dec(24)), []);
    let failures = roles(three, &dec(32));
    let found = "dec to 32 and 2 x inc to 240 are 512, of 3 x 168 = 504 at launch";
    assert_eq!(of(&failures, Check::RegisterPool), [(Some(10), found)]);
    assert_eq!(failures.len(), 1);
    // Fewer at launch, since blocks share an SM, or by order.
    let two = ".maxntid 2, 128\n.minnctapersm 2";
    assert_eq!(of(&roles(two, &dec(24)), Check::RegisterPool).len(), 1);
    assert_eq!(roles(".maxntid 0x100 .minnctapersm 1", &dec(24)), []);
    let ordered = ".maxntid 384 .maxnreg 160";
    assert_eq!(of(&roles(ordered, &dec(24)), Check::RegisterPool).len(), 1);
    // Copies are one; two counts of a kind are not known to meet, and a `dec` alone is fine.
    let again = dec(32).replace("L:", "L: setmaxnreg.dec.sync.aligned.u32 32;");
    assert_eq!(of(&roles(three, &again), Check::RegisterPool).len(), 1);
    let several = dec(32).replace("L:", "L: setmaxnreg.dec.sync.aligned.u32 40;");
    assert_eq!(roles(three, &several), []);
    assert_eq!(roles(three, &dec(32).replace(inc, "")), []);
    // No whole warpgroups, or no number of them.
    assert_eq!(roles(".maxntid 320 .minnctapersm 1", &dec(32)), []);
    assert_eq!(roles(".maxnreg 168", &dec(32)), []);
    // Where ptxas ignores it, that is what fails.
    let ignored = roles(".reqntid 384", &dec(32));
    assert!(ignored[0].found.starts_with("(C7508)"), "{ignored:?}");
    assert_eq!(ignored.len(), 1);
}

#[test]
fn as_many_copies_as_can_be_counted() {
    let tag = format!("bar.sync 0; // @collective a.rs:1:1 x{}\n", usize::MAX);
    assert_eq!(
        failures_of(&format!(".visible .entry f()\n{{\n{tag}ret;\n}}\n")),
        []
    );
}

#[test]
fn an_assembler_that_says_nothing() {
    let silent = CudaTools {
        ptxas: Some(CudaTool {
            path: "/bin/true".into(),
            version: "99.0".into(),
            origin: "a test".into(),
        }),
        ..tools().clone()
    };
    let budgets = Budgets::default();
    let validator = Validator::new(&silent, &budgets).unwrap();
    let error = validator.file(&fixture("clean.ptx")).unwrap_err();
    assert!(
        matches!(&error, Error::Unaccounted { entries, .. } if entries == &["clean"]),
        "{error:?}"
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
fn tensor_core_instructions() {
    let judge = |opcode: &str| {
        let line = format!("sm_90a = {{ registers = 255, tensor_core = \"{opcode}\" }}");
        let budgets = budgets_of(&format!("[clean]\n{line}\n")).unwrap();
        let validator = Validator::new(tools(), &budgets).unwrap();
        validator.file(&fixture("clean.ptx")).unwrap()
    };
    let right = judge("HMMA");
    assert_eq!(right.failures, []);
    assert_eq!(right.entries[0].budget, Some(255));
    let wrong = judge("HGMMA");
    assert_eq!(
        of(&wrong.failures, Check::TensorCore),
        [(Some(6), "HMMA, and no HGMMA")]
    );
    assert!(matches!(
        budgets_of("[clean]\nsm_90a = { registers = 255, tensor = \"HMMA\" }"),
        Err(budgets::Error::Format { .. })
    ));
}

#[test]
fn what_cannot_be_judged() {
    let missing = judge(Path::new("/nonexistent/file.ptx")).unwrap_err();
    assert!(matches!(missing, Error::File(_)));
    assert!(missing.to_string().contains("/nonexistent/file.ptx"));

    type Expected = fn(&Error) -> bool;
    let cases: [(Vec<u8>, Expected); 7] = [
        (b"fn main() {}\n".to_vec(), |error| {
            matches!(error, Error::NotPtx { .. })
        }),
        (Vec::new(), |error| matches!(error, Error::NotPtx { .. })),
        (vec![0x7f, b'E', b'L', b'F', 0xff, 0xfe], |error| {
            matches!(error, Error::NotText { .. })
        }),
        (HEAD.into(), |error| {
            matches!(error, Error::NoEntries { .. })
        }),
        (
            format!("{HEAD}.visible .entry f()\n{{ nonsense; ret; }}\n").into(),
            |error| matches!(error, Error::Ptxas { .. }),
        ),
        (
            b".version 3.0\n.target sm_20\n.visible .entry f()\n{ ret; }\n".to_vec(),
            |error| matches!(error, Error::Target { target, .. } if target == "sm_20"),
        ),
        (
            b".version 8.4\n.target compute_90\n.visible .entry f()\n{ ret; }\n".to_vec(),
            |error| matches!(error, Error::Target { target, .. } if target == "compute_90"),
        ),
    ];
    for (text, expected) in cases {
        let (_folder, path) = written(&text);
        let error = judge(&path).unwrap_err();
        assert!(expected(&error), "{error:?}");
        assert!(error.to_string().contains("given.ptx"), "{error}");
    }
}
