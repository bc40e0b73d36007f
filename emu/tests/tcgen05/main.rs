//! Kernels with `tcgen05`, from the allocation of tensor memory to its end.

mod matmul;
mod moves;

use matmul::Matmul;
use mok_emu::machine::{Completion, Config};
use mok_emu::report::FindingKind;

fn config(seed: u64, completion: Completion) -> Config {
    Config {
        seed,
        completion,
        instruction_limit: 10_000_000,
        ..Config::default()
    }
}

fn all(mut each: impl FnMut(Config)) {
    for completion in [Completion::Random, Completion::Early, Completion::Late] {
        for seed in 0..3 {
            each(config(seed, completion));
        }
    }
}

#[test]
fn a_product_of_one_block() {
    for (m, n) in [(128, 48), (64, 24)] {
        let kernel = Matmul::new(m, n, 1);
        all(|config| {
            let (sums, findings) = kernel.run(1, config);
            assert!(findings.is_empty(), "{}", findings[0]);
            assert_eq!(sums, kernel.want(0));
        });
    }
}

/// Without the checker, too, a wait that is missing gives a wrong result where work completes late.
#[test]
fn late_work_is_not_there_before_its_wait() {
    let kernel = Matmul::new(128, 48, 1);
    let late = Config {
        check: false,
        ..config(0, Completion::Late)
    };
    let text = kernel.text();
    let wait = "mbarrier.try_wait.parity.shared.b64 %p6, [%r3], 0;\n@!%p6 bra ISSUED;\n";
    for line in [wait, "tcgen05.wait::ld.sync.aligned;\n"] {
        assert!(text.contains(line));
        let (sums, _) = kernel.run_text(&text.replace(line, ""), 1, late.clone());
        assert_ne!(sums, kernel.want(0), "without {line}");
    }
    let (sums, _) = kernel.run_text(&text, 1, late);
    assert_eq!(sums, kernel.want(0));
}

#[test]
fn blocks_wait_for_columns() {
    // Each takes 256 of the 512 columns, and one SM holds six.
    let kernel = Matmul::new(128, 32, 1).columns(256);
    all(|config| {
        let config = Config { sms: 1, ..config };
        let (sums, findings) = kernel.run(6, config);
        assert!(findings.is_empty(), "{}", findings[0]);
        let want: Vec<u32> = (0..6).flat_map(|block| kernel.want(block)).collect();
        assert_eq!(sums, want);
    });
}

#[test]
fn a_product_of_two_blocks() {
    for (m, n) in [(256, 48), (128, 64)] {
        let kernel = Matmul::new(m, n, 2).columns(128);
        all(|config| {
            // Pairs that share one SM of their two must not get the same columns there.
            let config = Config { sms: 3, ..config };
            let (sums, findings) = kernel.run(12, config);
            assert!(findings.is_empty(), "{}", findings[0]);
            let want: Vec<u32> = (0..6).flat_map(|pair| kernel.want(pair)).collect();
            assert_eq!(sums, want);
        });
    }
}

#[test]
fn block_scaled_products() {
    for (m, n, group) in [(128, 40, 1), (256, 64, 2)] {
        let kernel = Matmul::new(m, n, group).scaled();
        all(|config| {
            let (sums, findings) = kernel.run(2, config);
            assert!(findings.is_empty(), "{}", findings[0]);
            let want: Vec<u32> = (0..2 / group).flat_map(|at| kernel.want(at)).collect();
            assert_eq!(sums, want);
        });
    }
}

#[test]
fn pairs_need_two_sms() {
    let kernel = Matmul::new(256, 32, 2);
    let one = Config {
        sms: 1,
        ..config(0, Completion::Random)
    };
    let error = kernel.launch_error(2, one);
    assert!(error.contains("two SMs"), "{error}");
}

#[test]
fn a_group_is_the_same_everywhere() {
    let text = Matmul::new(128, 32, 1)
        .text()
        .replace("dealloc.cta_group::1", "dealloc.cta_group::2");
    let error = matmul::load_error(&text);
    assert!(error.contains("all of a kernel have the same"), "{error}");
    let integers = Matmul::new(128, 32, 1)
        .text()
        .replace("kind::f16", "kind::i8")
        .replace("sm_100a", "sm_103a");
    let error = matmul::load_error(&integers);
    assert!(
        error.contains("kind::i8") && error.contains("sm_103a"),
        "{error}"
    );
}

#[test]
fn a_deadlock_names_the_columns() {
    let kernel = Matmul::new(128, 32, 1).columns(512);
    let held = kernel.text().replace(
        "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 512;",
        "HELD: bra HELD;",
    );
    let config = Config {
        sms: 1,
        instruction_limit: 300_000,
        ..config(1, Completion::Random)
    };
    let (_, findings) = kernel.run_text(&held, 2, config);
    assert!(
        findings.iter().any(|found| found.kind == FindingKind::Limit
            && found
                .message
                .contains("waits for 512 columns of tensor memory")),
        "{findings:?}"
    );
}
