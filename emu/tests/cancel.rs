//! `clusterlaunchcontrol`: who has started does the work of clusters that have not.

mod common;

use common::run;
use mok_emu::machine::{Completion, Config};
use mok_emu::report::FindingKind;

/// Every block, or cluster, counts its own number, then asks for another; at the end it writes how
/// many it did behind the counts of all 24.
const BODY: &str = "
.shared .align 16 .b8 response[16]; .shared .align 8 .b64 bar; .reg .b128 %q;
mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, response; mov.u32 %r3, bar; mov.u32 %r4, 0;
mov.u32 %r7, 0; setp.eq.u32 %p0, %r0, 0; mov.u32 %r8, %ctaid.x; mov.u32 %r9, %cluster_ctarank;
@%p0 mbarrier.init.shared.b64 [%r3], 1;
@%p0 fence.mbarrier_init.release.cluster;
MEET
LOOP:
@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 16;
MEET
REQUEST
mul.wide.u32 %rd2, %r1, 4; add.s64 %rd2, %rd2, %rd1;
@%p0 red.global.add.u32 [%rd2], 1;
add.u32 %r7, %r7, 1;
WAIT: mbarrier.try_wait.parity.shared.b64 %p1, [%r3], %r4; @!%p1 bra WAIT;
xor.b32 %r4, %r4, 1;
ld.shared.b128 %q, [%r2];
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %q;
@%p2 clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r1, %q;
@%p2 clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r1, %r5, _, _}, %q;
fence.proxy.async.shared::cta;
MEET
@%p2 add.u32 %r1, %r1, %r9;
@%p2 bra LOOP;
add.u32 %r8, %r8, 24; mul.wide.u32 %rd2, %r8, 4; add.s64 %rd2, %rd2, %rd1;
@%p0 st.global.u32 [%rd2], %r7;
ret;";

fn body(cluster: u32) -> String {
    let request = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes";
    match cluster {
        1 => BODY
            .replace("MEET", "bar.sync 0;")
            .replace("REQUEST", &format!("@%p0 {request}.b128 [%r2], [%r3];")),
        _ => BODY
            .replace(
                "MEET",
                "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
            )
            .replace(
                "REQUEST",
                &format!(
                    "setp.eq.and.u32 %p3, %r9, 0, %p0;\n\
                     @%p3 {request}.multicast::cluster::all.b128 [%r2], [%r3];"
                ),
            ),
    }
}

#[test]
fn every_cluster_is_done_once() {
    for (cluster, seed) in [(1, 0), (1, 1), (1, 2), (2, 3), (2, 4), (4, 5)] {
        for completion in [Completion::Random, Completion::Early, Completion::Late] {
            let config = Config {
                seed,
                completion,
                reverse: seed == 1,
                sms: 2,
                blocks_per_sm: 4,
                ..Config::default()
            };
            let (words, findings, _) = run(&body(cluster), [24, cluster], 64, 48, config);
            assert!(findings.is_empty(), "{}", findings[0]);
            assert_eq!(words[..24], [1; 24]);
            assert_eq!(words[24..].iter().sum::<u32>(), 24);
            // Those that have started did others' work.
            assert!(words[24..].iter().any(|&count| count > 1), "{words:?}");
        }
    }
}

#[test]
fn a_refused_request_has_no_block() {
    let wrong = body(1).replace(
        "@%p2 clusterlaunchcontrol.query_cancel.get_first_ctaid::x",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid::x",
    );
    let (_, findings, _) = run(&wrong, [24, 1], 64, 48, Config::default());
    assert!(
        findings
            .iter()
            .any(|found| found.kind == FindingKind::Illegal
                && found.message.contains("no cluster was cancelled")),
        "{findings:?}"
    );
    // Asking on after a refusal.
    let again = body(1).replace("@%p2 bra LOOP;", "setp.lt.u32 %p2, %r7, 30; @%p2 bra LOOP;");
    let (_, findings, _) = run(&again, [24, 1], 64, 48, Config::default());
    assert!(
        findings
            .iter()
            .any(|found| found.kind == FindingKind::Illegal
                && found.message.contains("one was refused")),
        "{findings:?}"
    );
    // The response is read before it was waited for.
    let early = body(1).replace("@!%p1 bra WAIT;", "");
    let (_, findings, _) = run(&early, [24, 1], 64, 48, Config::default());
    assert!(
        findings
            .iter()
            .any(|found| found.kind == FindingKind::Proxy),
        "{findings:?}"
    );
}
