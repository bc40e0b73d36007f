//! Registers that `setmaxnreg` moves between the warps of a block: planted faults, each with a twin
//! that is right.

use mok_emu::machine::{Config, Launch, Machine, Outcome};
use mok_emu::program::Program;
use mok_emu::report::{Finding, FindingKind};

/// 384 threads of one block an SM: 168 registers each, 504 a lane of the three warpgroups.
const THREE: &str = ".reqntid 384 .minnctapersm 1";

/// One warpgroup decs, two inc and meet at a barrier.
const GEMM: &str = "setp.lt.u32 %p0, %r0, 128; @%p0 bra PRODUCER;
    setmaxnreg.inc.sync.aligned.u32 240; // consumers
    bar.sync 1, 256; ret;
    PRODUCER: setmaxnreg.dec.sync.aligned.u32 24; // producer
    ret;";

fn once(directives: &str, body: &str, config: Config) -> (Vec<Finding>, Outcome) {
    let text = format!(
        ".version 8.4\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{directives}\n{{\n\
         .reg .pred %p<8>; .reg .b32 %r<8>;\nmov.u32 %r0, %tid.x;\n{body}\nret;\n}}\n"
    );
    let mut machine = Machine::new(config);
    let program = Program::load(&mut machine, 0, &text).unwrap();
    let entry = program.entry("k").unwrap().clone();
    let directives = entry.directives;
    let block = directives.required_threads.or(directives.max_threads);
    let launch = Launch {
        entry,
        gpu: 0,
        grid: [3, 1, 1],
        block: block.unwrap_or([384, 1, 1]),
        cluster: [1; 3],
        dynamic_shared: 0,
        params: Vec::new(),
    };
    machine.launch(launch).unwrap();
    let outcome = machine.run();
    (machine.take_findings(), outcome)
}

/// With several schedules; with the checker and without, which must not differ.
fn all(directives: &str, body: &str) -> Vec<(Vec<Finding>, Outcome)> {
    let runs = (0..8).flat_map(|seed| [None, Some(0), Some(5)].map(|warp| (seed, warp)));
    runs.map(|(seed, starved_warp)| {
        let run = |check| {
            let config = Config {
                seed,
                starved_warp,
                check,
                ..Config::default()
            };
            once(directives, body, config)
        };
        let checked = run(true);
        assert_eq!(checked, run(false));
        checked
    })
    .collect()
}

fn clean(directives: &str, body: &str) {
    for (findings, outcome) in all(directives, body) {
        assert_eq!((findings, outcome), (vec![], Outcome::Done));
    }
}

/// The first finding of each run; there is one of this kind, with these words.
fn finds(directives: &str, body: &str, kind: FindingKind, words: &str) -> Vec<Finding> {
    let runs = all(directives, body).into_iter();
    runs.map(|(findings, _)| {
        let found = findings.iter().find(|finding| finding.kind == kind);
        let found = found.unwrap_or_else(|| panic!("no {} in {findings:?}", kind.name()));
        assert!(found.message.contains(words), "{found}");
        found.clone()
    })
    .collect()
}

#[test]
fn an_inc_waits_for_registers_that_never_come() {
    // 240 + 240 + 24 are 504.
    clean(THREE, GEMM);
    // 512 are not there, which hung an H200: the last of eight warps needs 72 x 32 registers, of
    // 4 x (168 - 32) x 32 - 7 x 72 x 32 that are left.
    let greedy = GEMM.replace("u32 24;", "u32 32;");
    let words = "waits for 2304 registers (72 a thread more than its 168), of which the block's pool has 1280";
    for finding in finds(THREE, &greedy, FindingKind::Deadlock, words) {
        // At the `inc`, whoever else waits.
        assert_eq!(finding.line, 10, "{finding}");
        assert!(finding.message.contains("waits at barrier 1"), "{finding}");
    }
    // Without `dec` the pool stays empty.
    let body = "setmaxnreg.inc.sync.aligned.u32 176;";
    finds(THREE, body, FindingKind::Deadlock, "the block's pool has 0");
    clean(THREE, &body.replace("176", "168"));
}

#[test]
fn an_inc_waits_for_a_dec() {
    // The producer gives twice, the second time after the consumers have begun to wait.
    let twice = GEMM.replace(
        "PRODUCER:",
        "PRODUCER: setmaxnreg.dec.sync.aligned.u32 32; nanosleep.u32 5000; bar.sync 2, 128;",
    );
    clean(THREE, &twice);
    // Back and forth, with a barrier between.
    clean(
        THREE,
        "setmaxnreg.dec.sync.aligned.u32 40; bar.sync 0; setmaxnreg.inc.sync.aligned.u32 168;
         bar.sync 0; setmaxnreg.dec.sync.aligned.u32 96; bar.sync 0; setmaxnreg.inc.sync.aligned.u32 160;",
    );
    // What an ended warp owned does not come back.
    let ends = "setp.lt.u32 %p0, %r0, 128; @%p0 ret; setmaxnreg.inc.sync.aligned.u32 176;";
    finds(
        THREE,
        ends,
        FindingKind::Deadlock,
        "waits for 256 registers",
    );
}

#[test]
fn blocks_that_share_an_sm_have_less() {
    let two = ".maxntid 256 .minnctapersm 2";
    let body = GEMM.replace("256;", "128;").replace("240", "232");
    clean(two, &body);
    finds(
        two,
        &body.replace("232", "240"),
        FindingKind::Deadlock,
        "waits for 3584 registers (112 a thread more than its 128)",
    );
    finds(
        ".maxnreg 120",
        GEMM,
        FindingKind::Deadlock,
        "a thread more than its 120)",
    );
}

#[test]
fn counts_go_the_way_their_instruction_says() {
    // ptxas takes it, since the largest count is 240.
    let up = GEMM.replace("u32 24;", "u32 176;");
    finds(
        THREE,
        &up,
        FindingKind::Illegal,
        "illegal setmaxnreg.dec 176: the warp must own no fewer registers a thread, and owns 168",
    );
    let down = "setmaxnreg.dec.sync.aligned.u32 80; bar.sync 0; setmaxnreg.inc.sync.aligned.u32 96;
        bar.sync 0; setmaxnreg.inc.sync.aligned.u32 88;";
    finds(
        THREE,
        down,
        FindingKind::Illegal,
        "illegal setmaxnreg.inc 88: the warp must own no more registers a thread, and owns 96",
    );
    clean(THREE, &down.replace("88", "96"));
}

#[test]
fn all_warps_of_a_warpgroup_execute_the_same() {
    let right = "setp.lt.u32 %p0, %r0, 128; @%p0 bra ONE;
        setmaxnreg.dec.sync.aligned.u32 40; ret;
        ONE: setmaxnreg.dec.sync.aligned.u32 40; ret;";
    clean(THREE, right);
    let divergent = FindingKind::Divergent;
    finds(
        THREE,
        &right.replace("%r0, 128", "%r0, 96"),
        divergent,
        "execute the same setmaxnreg, but others than warp",
    );
    // One warp leaves it out.
    let without = "setp.lt.u32 %p0, %r0, 32; @%p0 ret; setmaxnreg.dec.sync.aligned.u32 40;";
    finds(THREE, without, divergent, "ended");
    clean(THREE, &without.replace("%r0, 32", "%r0, 256"));
    // Half a warp, which is a warp's own fault.
    let half = "setp.lt.u32 %p0, %r0, 16; @%p0 setmaxnreg.dec.sync.aligned.u32 40;";
    finds(THREE, half, divergent, "a predicate keeps threads");
    // One warp may be ahead of the others.
    clean(
        THREE,
        "setp.ge.u32 %p1, %r0, 352; @%p1 nanosleep.u32 100000; setmaxnreg.dec.sync.aligned.u32 80;
         setmaxnreg.dec.sync.aligned.u32 80;",
    );
}

#[test]
fn without_a_register_count_it_has_no_effect() {
    // PTX ISA: it "may have no effect", and ptxas ignores it (C7508).
    let greedy = GEMM.replace("u32 24;", "u32 32;");
    clean(".reqntid 384", &greedy);
    clean("", &greedy);
    let text = ".version 8.4 .target sm_90a .address_size 64 .visible .entry k() { setmaxnreg.sync.aligned.u32 40; ret; }";
    assert!(Program::load(&mut Machine::new(Config::default()), 0, text).is_err());
}
