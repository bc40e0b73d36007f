//! Small programs, run whole.

mod common;

use mok_emu::machine::{Config, Machine, Outcome};
use mok_emu::program::Program;
use mok_emu::report::{Finding, FindingKind};

/// Runs one kernel with one pointer parameter to `words` zeroed words; the words, and what was found.
fn run(
    body: &str,
    grid: u32,
    threads: u32,
    words: usize,
    config: Config,
) -> (Vec<u32>, Vec<Finding>, Outcome) {
    common::run(body, [grid, 1], threads, words, config)
}

/// Ends with each thread storing `%r1` to word `%tid.x`.
const STORE: &str = "mov.u32 %r2, %tid.x; mul.wide.u32 %rd2, %r2, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r1;";

#[test]
fn threads_part_and_meet_again() {
    let body = format!(
        "mov.u32 %r0, %tid.x; and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 0; mov.u32 %r1, 0;\n\
         @%p1 bra EVEN;\n mov.u32 %r4, 0;\n\
         LOOP: add.u32 %r1, %r1, 3; add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, %r0; @%p2 bra LOOP;\n bra.uni DONE;\n\
         EVEN: mov.u32 %r1, 100;\n\
         DONE: activemask.b32 %r5; popc.b32 %r6, %r5; add.u32 %r1, %r1, %r6;\n{STORE}"
    );
    for seed in 0..8 {
        let (words, findings, outcome) = run(
            &body,
            1,
            32,
            32,
            Config {
                seed,
                ..Config::default()
            },
        );
        assert_eq!((findings, outcome), (vec![], Outcome::Done));
        for (thread, &word) in words.iter().enumerate() {
            let expect = if thread % 2 == 0 {
                100
            } else {
                3 * thread as u32
            };
            assert!(
                word > expect && word <= expect + 32,
                "thread {thread}: {word}"
            );
        }
    }
}

/// "All but the four last": the oldest is done, whichever has finished first.
#[test]
fn a_wait_for_bulk_groups_is_for_the_oldest() {
    let store = |group: u32| {
        let (from, to) = (64 * group, 64 * group);
        format!(
            "st.shared.u32 [%r2+{from}], {group}; fence.proxy.async.shared::cta;\n\
             add.u32 %r3, %r2, {from}; add.s64 %rd2, %rd1, {to};\n\
             cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r3], 16; cp.async.bulk.commit_group;\n"
        )
    };
    let stores: String = (0..5).map(store).collect();
    for read in [".read", ""] {
        let body = format!(
            ".shared .align 128 .b8 smem[512];\nmov.u32 %r2, smem;\n\
             st.shared.v4.u32 [%r2], {{9, 9, 9, 9}}; st.shared.v4.u32 [%r2+64], {{9, 9, 9, 9}};\n\
             st.shared.v4.u32 [%r2+128], {{9, 9, 9, 9}}; st.shared.v4.u32 [%r2+192], {{9, 9, 9, 9}};\n\
             st.shared.v4.u32 [%r2+256], {{9, 9, 9, 9}};\n{stores}\
             cp.async.bulk.wait_group{read} 4; st.shared.u32 [%r2], 7;\n\
             cp.async.bulk.wait_group 0; ret;"
        );
        for seed in 0..16 {
            let config = Config {
                seed,
                ..Config::default()
            };
            let (words, findings, outcome) = run(&body, 1, 1, 80, config);
            assert_eq!((findings, outcome), (vec![], Outcome::Done), "seed {seed}");
            let first: Vec<u32> = (0..5).map(|group| words[16 * group]).collect();
            assert_eq!(first, [0, 1, 2, 3, 4], "seed {seed}");
        }
    }
}

/// A thread that waits for another of its own warp: both make progress.
#[test]
fn a_spin_lock_inside_a_warp_ends() {
    let body = "mov.u32 %r0, 0;\n\
         SPIN: atom.global.cas.b32 %r1, [%rd1], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra SPIN;\n\
         ld.volatile.global.u32 %r2, [%rd1+4]; add.u32 %r2, %r2, 1; st.volatile.global.u32 [%rd1+4], %r2;\n\
         atom.global.exch.b32 %r3, [%rd1], 0; ret;";
    for seed in 0..8 {
        let (words, findings, outcome) = run(
            body,
            2,
            64,
            2,
            Config {
                seed,
                ..Config::default()
            },
        );
        assert_eq!(
            (words, findings, outcome),
            (vec![0, 128], vec![], Outcome::Done)
        );
    }
}

#[test]
fn barriers_reduce() {
    let body = format!(
        "mov.u32 %r0, %tid.x; rem.u32 %r3, %r0, 3; setp.eq.u32 %p1, %r3, 0;\n\
         bar.red.popc.u32 %r1, 0, %p1;\n bar.red.or.pred %p2, 0, %p1; selp.u32 %r4, 1000, 0, %p2; add.u32 %r1, %r1, %r4;\n{STORE}"
    );
    let (words, findings, _) = run(&body, 1, 96, 96, Config::default());
    assert_eq!(findings, vec![]);
    assert_eq!(words, vec![1032; 96]);
}

#[test]
fn a_store_past_its_memory_is_found_and_named() {
    let (_, findings, _) = run(
        "mov.u32 %r1, 7; st.global.u32 [%rd1+8], %r1;",
        1,
        1,
        2,
        Config::default(),
    );
    assert_eq!(findings.len(), 1);
    let finding = &findings[0];
    assert_eq!(
        (finding.kind, finding.entry.as_str(), finding.thread),
        (FindingKind::OutOfBounds, "k", Some(0))
    );
    assert!(
        finding.line > 0
            && finding
                .message
                .contains("byte 8 of an allocation of 8 bytes"),
        "{finding}"
    );
}

#[test]
fn misaligned_accesses_are_found() {
    let (_, findings, _) = run(
        "mov.u32 %r1, 7; st.global.u32 [%rd1+2], %r1;",
        1,
        1,
        4,
        Config::default(),
    );
    assert_eq!(findings[0].kind, FindingKind::Misaligned);
}

#[test]
fn an_aligned_barrier_that_half_a_warp_skips_is_found() {
    let body =
        "mov.u32 %r0, %tid.x; setp.lt.u32 %p1, %r0, 16; @%p1 bra SKIP; bar.sync 0; SKIP: ret;";
    let (_, findings, _) = run(body, 1, 32, 1, Config::default());
    // The rest of the warp ends: whoever is left is the whole warp. But a guard is divergence.
    assert_eq!(findings, vec![]);
    let body = "mov.u32 %r0, %tid.x; setp.lt.u32 %p1, %r0, 16; @%p1 bar.sync 0; ret;";
    let (_, findings, _) = run(body, 1, 32, 1, Config::default());
    assert_eq!(findings[0].kind, FindingKind::Divergent);
}

#[test]
fn a_deadlock_says_who_waits_for_what() {
    let body = ".shared .align 8 .b64 bar;\n mov.u32 %r0, bar; mov.u32 %r1, 2; mbarrier.init.shared.b64 [%r0], %r1;\n\
         mbarrier.arrive.shared.b64 %rd2, [%r0];\n\
         WAIT: mbarrier.try_wait.parity.shared.b64 %p1, [%r0], 0; @!%p1 bra WAIT; ret;";
    let (_, findings, outcome) = run(body, 1, 1, 1, Config::default());
    assert_eq!(outcome, Outcome::Stopped);
    let message = &findings[0].message;
    assert_eq!(findings[0].kind, FindingKind::Deadlock);
    assert!(
        message.contains("which is in phase 0 with 1 arrivals and 0 bytes missing"),
        "{message}"
    );
    // Whether it suspends or only asks.
    let (_, asking, _) = run(
        &body.replace("try_wait", "test_wait"),
        1,
        1,
        1,
        Config::default(),
    );
    let message = &asking[0].message;
    assert!(
        message.contains("1 arrivals and 0 bytes missing"),
        "{message}"
    );
}

#[test]
fn a_deadlock_says_what_was_seen_last() {
    for (poll, seen) in [
        (
            "mov.u32 %r3, 5; st.global.u32 [%rd1], %r3; L: ld.relaxed.gpu.global.u32 %r1, [%rd1]; setp.ne.u32 %p1, %r1, 7;",
            "4 bytes of device memory at 0x10000000, which were last 0x5",
        ),
        (
            ".shared .b32 s; mov.u32 %r3, 6; st.shared.u32 [s], %r3; L: atom.shared.cas.b32 %r1, [s], 0, 1; setp.ne.u32 %p1, %r1, 0;",
            "4 bytes of shared memory at 0x400, which were last 0x6",
        ),
    ] {
        let (_, findings, outcome) = run(
            &format!("{poll} @%p1 bra L; ret;"),
            1,
            1,
            1,
            Config::default(),
        );
        assert_eq!(
            (findings[0].kind, outcome),
            (FindingKind::Deadlock, Outcome::Stopped)
        );
        assert!(
            findings[0].message.contains(seen),
            "{}",
            findings[0].message
        );
    }
    let (_, findings, _) = run("bar.sync 2, 96; ret;", 1, 64, 1, Config::default());
    let message = &findings[0].message;
    assert!(
        message.contains("barrier 2, where 64 of 96 threads have arrived"),
        "{message}"
    );
}

#[test]
fn an_endless_loop_meets_the_limit() {
    let config = Config {
        instruction_limit: 10_000,
        ..Config::default()
    };
    let (_, findings, outcome) = run("L: bra L;", 1, 32, 1, config);
    assert_eq!(
        (findings[0].kind, outcome),
        (FindingKind::Limit, Outcome::Stopped)
    );
}

#[test]
fn too_many_arrivals_are_found() {
    let body = ".shared .align 8 .b64 bar;\n mov.u32 %r0, bar; mov.u32 %r1, 1; mbarrier.init.shared.b64 [%r0], %r1;\n\
         mov.u32 %r2, 3; mbarrier.arrive.shared.b64 %rd2, [%r0], %r2; ret;";
    let (_, findings, _) = run(body, 1, 1, 1, Config::default());
    assert_eq!(findings[0].kind, FindingKind::Mbarrier);
}

#[test]
fn unknown_instructions_are_errors_at_load_that_name_them() {
    for (body, name) in [
        ("frobnicate.u32 %r1, %r2;", "frobnicate"),
        ("add.sideways.u32 %r1, %r2, %r3;", "sideways"),
        ("tcgen05.fence::before_thread_sync;", "not for sm_90a"),
        (
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes [%r1], [%r2, {%r1, %r1, %r1, %r1, %r1}], [%r3];",
            "four rows is for sm_100",
        ),
        ("bra NOWHERE;", "NOWHERE"),
        ("mov.u32 %r1, %undeclared;", "%undeclared"),
    ] {
        let text = format!(
            ".version 8.4\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{{\n.reg .b32 %r<4>;\n{body}\nret;\n}}\n"
        );
        let error = Program::load(&mut Machine::new(Config::default()), 0, &text)
            .expect_err(body)
            .to_string();
        assert!(error.contains(name) && error.contains("line 7"), "{error}");
    }
}

/// The same seed is the same run.
#[test]
fn a_seed_fixes_the_interleaving() {
    let body = "atom.global.add.u32 %r1, [%rd1], 1; mov.u32 %r2, %ctaid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3+4], %r2; ret;";
    let order = |seed| {
        run(
            body,
            16,
            1,
            17,
            Config {
                seed,
                ..Config::default()
            },
        )
        .0
    };
    assert_eq!(order(3), order(3));
    assert!(
        (0..8).any(|seed| order(seed) != order(3)),
        "other seeds give other orders"
    );
}

#[test]
fn declarations_that_nothing_holds_are_errors_at_load() {
    for declarations in [
        ".shared .b8 a[1000000000]; .shared .b8 b[1000000000]; .shared .b8 c[1000000000];",
        ".local .b64 a[134217728]; .local .b64 b[134217728];",
        ".shared .align 3 .b8 a[4];",
        ".reg .b128 %q<100000>;",
    ] {
        let text = format!(
            ".version 8.4\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{{\n{declarations} ret;\n}}\n"
        );
        let loaded = Program::load(&mut Machine::new(Config::default()), 0, &text);
        assert!(loaded.is_err(), "{declarations}");
    }
    let params = [".param .b8 p[1000000000]"; 5].join(", ");
    let params = params.replace("p[", "p_[");
    for text in [
        format!(".version 8.4\n.target sm_90a\n.address_size 64\n.visible .entry k({params})\n{{ ret; }}\n"),
        ".version 8.4\n.target sm_90a\n.address_size 64\n.extern .shared .align 4294967295 .b8 s[];\n.visible .entry k()\n{ ret; }\n".into(),
    ] {
        let loaded = Program::load(&mut Machine::new(Config::default()), 0, &text);
        assert!(loaded.is_err(), "{text}");
    }
}
