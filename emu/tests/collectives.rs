//! Collective instructions whose lanes have different masks, and threads that end by assertion.

mod common;

use common::run;
use mok_emu::machine::{Config, Launch, Machine, Outcome};
use mok_emu::program::Program;
use mok_emu::report::FindingKind;

const STORE: &str =
    "mul.wide.u32 %rd2, %r0, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r1;";

/// The mask of a lane's quarter of the warp, in `%r2`.
const QUARTER: &str =
    "mov.u32 %r0, %tid.x; and.b32 %r3, %r0, 24; mov.u32 %r2, 255; shl.b32 %r2, %r2, %r3;";

fn gives(body: &str, want: impl Fn(u32) -> u32) {
    for seed in 0..8 {
        let config = Config {
            seed,
            ..Config::default()
        };
        let (words, findings, outcome) = run(body, [1, 1], 32, 32, config);
        assert!(findings.is_empty(), "{findings:?}");
        assert_eq!(outcome, Outcome::Done);
        for thread in 0..32 {
            assert_eq!(
                words[thread as usize],
                want(thread),
                "thread {thread}, seed {seed}"
            );
        }
    }
}

#[test]
fn lanes_of_one_mask_are_a_team() {
    gives(
        &format!("{QUARTER} redux.sync.add.u32 %r1, %r0, %r2; {STORE} ret;"),
        |thread| {
            let first = thread / 8 * 8;
            (first..first + 8).sum()
        },
    );
    gives(
        &format!("{QUARTER} shfl.sync.idx.b32 %r1, %r0, 3, 0x181f, %r2; {STORE} ret;"),
        |thread| thread / 8 * 8 + 3,
    );
    gives(
        &format!(
            "{QUARTER} setp.gt.u32 %p1, %r0, 20; vote.sync.ballot.b32 %r1, %p1, %r2; {STORE} ret;"
        ),
        |thread| (0xffff_ffff << 21) & (255 << (thread / 8 * 8)),
    );
}

#[test]
fn a_team_that_is_whole_does_not_wait_for_others() {
    // The upper half comes late, and waits for the lower half's word.
    let body = format!(
        ".shared .b32 s; {QUARTER} setp.lt.u32 %p1, %r0, 16; @%p1 bra ON; nanosleep.u32 200;
         ON: elect.sync %r4|%p2, %r2; redux.sync.max.u32 %r1, %r0, %r2; bar.warp.sync %r2; {STORE} ret;"
    );
    gives(&body, |thread| thread / 8 * 8 + 7);
}

#[test]
fn masks_that_no_team_can_have_are_found() {
    for (mask, said) in [
        // A lane that the mask doesn't name, and masks that disagree.
        ("mov.u32 %r2, 0x7fffffff;", "but the mask is"),
        (
            "setp.eq.u32 %p1, %r0, 5; selp.b32 %r2, 0x20, -1, %p1;",
            "have another",
        ),
    ] {
        let body = format!("mov.u32 %r0, %tid.x; {mask} redux.sync.add.u32 %r1, %r0, %r2; ret;");
        let (_, findings, outcome) = run(&body, [1, 1], 32, 1, Config::default());
        assert_eq!(
            (findings[0].kind, outcome),
            (FindingKind::Divergent, Outcome::Done)
        );
        assert!(
            findings.iter().any(|found| found.message.contains(said)),
            "{findings:?}"
        );
    }
}

#[test]
fn a_failed_assertion_says_what_failed_where() {
    let text = r#".version 8.4
.target sm_90a
.address_size 64
.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.global .align 1 .b8 what[6] = {110, 32, 62, 32, 48, 0};
.global .align 1 .b8 file[5] = {97, 46, 99, 117, 0};
.global .align 1 .b8 name[2] = {107, 0};
.visible .entry k(.param .u32 n)
{
.reg .pred %p; .reg .b32 %r; .reg .b64 %d;
ld.param.u32 %r, [n];
setp.ne.s32 %p, %r, 0;
@%p bra fine;
{
.param .b64 p0; .param .b64 p1; .param .b32 p2; .param .b64 p3; .param .b64 p4;
mov.u64 %d, what; st.param.b64 [p0], %d;
mov.u64 %d, file; st.param.b64 [p1], %d;
st.param.b32 [p2], 17;
mov.u64 %d, name; st.param.b64 [p3], %d;
st.param.b64 [p4], 1;
call.uni __assertfail, (p0, p1, p2, p3, p4);
}
fine: ret;
}
"#;
    for (n, found) in [(0u32, 1), (1, 0)] {
        let mut machine = Machine::new(Config::default());
        let program = Program::load(&mut machine, 0, text).expect("it loads");
        let launch = Launch {
            entry: program.entry("k").expect("the kernel").clone(),
            gpu: 0,
            grid: [1; 3],
            block: [1; 3],
            cluster: [1; 3],
            dynamic_shared: 0,
            params: n.to_le_bytes().to_vec(),
        };
        machine.launch(launch).expect("it launches");
        assert_eq!(machine.run(), Outcome::Done);
        let findings = machine.take_findings();
        assert_eq!(findings.len(), found);
        for finding in findings {
            assert_eq!(finding.kind, FindingKind::Trap);
            assert!(
                finding.message.contains("`n > 0` failed at a.cu:17, in k"),
                "{finding}"
            );
        }
    }
    let missing = text.replace("__assertfail", "vprintf");
    let error = Program::load(&mut Machine::new(Config::default()), 0, &missing)
        .expect_err("no such function");
    assert!(error.to_string().contains("`vprintf`"), "{error}");
}
