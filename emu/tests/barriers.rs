//! Barriers whose threads come one part of a warp after another, and blocks that fill no warp.

mod common;

use common::run;
use mok_emu::machine::{Config, Outcome};

/// Runs with several seeds; no finding, and each word is the value for its thread.
fn gives(body: &str, grid: [u32; 2], threads: u32, want: impl Fn(u32) -> u32) {
    for seed in 0..8 {
        let config = Config {
            seed,
            ..Config::default()
        };
        let (words, findings, outcome) = run(body, grid, threads, 1024, config);
        assert!(findings.is_empty(), "{findings:?}");
        assert_eq!(outcome, Outcome::Done);
        for thread in 0..threads {
            assert_eq!(
                words[thread as usize],
                want(thread),
                "thread {thread}, seed {seed}"
            );
        }
    }
}

const STORE: &str =
    "mul.wide.u32 %rd2, %r0, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r1;";

#[test]
fn diverged_threads_meet_at_barriers_of_their_own() {
    // Odd and even threads wait at different instructions; each then reads its neighbour's word.
    let body = format!(
        ".shared .b32 s[64]; mov.u32 %r0, %tid.x; shl.b32 %r2, %r0, 2; mov.u32 %r3, s; add.u32 %r2, %r2, %r3;
         and.b32 %r4, %r0, 1; setp.eq.u32 %p1, %r4, 0; st.shared.u32 [%r2], %r0;
         @%p1 bra EVEN; barrier.sync 1; bra.uni ON;
         EVEN: nanosleep.u32 50; barrier.sync 1;
         ON: xor.b32 %r5, %r0, 1; shl.b32 %r5, %r5, 2; add.u32 %r5, %r5, %r3; ld.shared.u32 %r1, [%r5]; {STORE} ret;"
    );
    gives(&body, [1, 1], 64, |thread| thread ^ 1);
    // The aligned form is divergent there.
    let aligned = body.replace("barrier.sync 1", "bar.sync 1");
    let (_, findings, _) = run(&aligned, [1, 1], 64, 64, Config::default());
    assert!(!findings.is_empty());
}

#[test]
fn arrivals_of_a_warp_count_once_all_its_threads_have_come_or_ended() {
    // Warp 0 arrives in two parts, the second after others have ended; warp 1 waits for it.
    let body = format!(
        ".shared .b32 s; mov.u32 %r0, %tid.x; mov.u32 %r1, 0; setp.ge.u32 %p1, %r0, 32; @%p1 bra WAIT;
         setp.ge.u32 %p2, %r0, 20; @%p2 ret;
         setp.ge.u32 %p3, %r0, 7; @%p3 bra MANY; nanosleep.u32 100;
         setp.eq.u32 %p4, %r0, 3; @%p4 st.shared.u32 [s], 9; barrier.arrive 2, 64; ret;
         MANY: barrier.arrive 2, 64; ret;
         WAIT: barrier.sync 2, 64; ld.shared.u32 %r1, [s]; {STORE} ret;"
    );
    gives(&body, [1, 1], 64, |thread| if thread < 32 { 0 } else { 9 });
}

#[test]
fn reductions_count_threads_that_exist() {
    for (op, want) in [("and.pred %p3, 0, %p1", 1), ("or.pred %p3, 0, !%p1", 0)] {
        for barrier in ["bar.red", "barrier.red"] {
            let body = format!(
                "mov.u32 %r0, %tid.x; setp.lt.u32 %p1, %r0, 1000; {barrier}.{op}; selp.u32 %r1, 1, 0, %p3; {STORE} ret;"
            );
            gives(&body, [1, 1], 40, |_| want);
        }
    }
    // In two parts, both of which get the result.
    let body = format!(
        "mov.u32 %r0, %tid.x; setp.lt.u32 %p1, %r0, 11; setp.lt.u32 %p2, %r0, 33; @%p1 bra LESS;
         barrier.red.popc.u32 %r1, 3, %p2; add.u32 %r1, %r1, 100; bra.uni ON; LESS: barrier.red.popc.u32 %r1, 3, !%p2; ON: {STORE} ret;"
    );
    gives(&body, [1, 1], 50, |thread| {
        22 + if thread < 11 { 0 } else { 100 }
    });
}

#[test]
fn clusters_meet_in_parts() {
    let body = format!(
        ".shared .b32 s; mov.u32 %r0, %tid.x; mov.u32 %r4, %cluster_ctarank; setp.eq.u32 %p2, %r0, 0; @%p2 st.shared.u32 [s], %r4;
         and.b32 %r2, %r0, 1; setp.eq.u32 %p1, %r2, 0; @%p1 bra EVEN; barrier.cluster.arrive; barrier.cluster.wait; bra.uni ON;
         EVEN: nanosleep.u32 50; barrier.cluster.arrive; barrier.cluster.wait;
         ON: xor.b32 %r5, %r4, 1; mapa.shared::cluster.u32 %r6, s, %r5; ld.shared::cluster.u32 %r1, [%r6];
         barrier.cluster.arrive; barrier.cluster.wait; mad.lo.u32 %r0, %r4, 64, %r0; {STORE} ret;"
    );
    gives(&body, [2, 2], 64, |_| 1);
}
