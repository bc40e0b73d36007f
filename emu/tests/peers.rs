//! GPUs that work together: order between their launches, memory that peers reach, held time.

use std::sync::Arc;

use mok_emu::machine::{Config, Launch, Machine, Outcome};
use mok_emu::program::Program;
use mok_emu::report::{Finding, FindingKind};

/// Kernels that take a word `data` and a word `flag`.
const KERNELS: &str = "
.version 8.4
.target sm_90a
.address_size 64
.visible .entry write(.param .u64 data, .param .u64 flag) {
    .reg .b64 %d;
    ld.param.u64 %d, [data];
    st.global.u32 [%d], 7;
    ret;
}
.visible .entry release(.param .u64 data, .param .u64 flag) {
    .reg .b64 %f;
    ld.param.u64 %f, [flag];
    st.release.sys.global.u32 [%f], 1;
    ret;
}
.visible .entry relaxed(.param .u64 data, .param .u64 flag) {
    .reg .b64 %f;
    ld.param.u64 %f, [flag];
    st.relaxed.sys.global.u32 [%f], 1;
    ret;
}
.visible .entry acquire(.param .u64 data, .param .u64 flag) {
    .reg .b64 %f;
    .reg .b32 %v;
    .reg .pred %p;
    ld.param.u64 %f, [flag];
wait:
    ld.acquire.sys.global.u32 %v, [%f];
    setp.eq.u32 %p, %v, 0;
    @%p bra wait;
    ret;
}
.visible .entry leave_early(.param .u64 data, .param .u64 flag) {
    .reg .b64 %f, %start, %now;
    .reg .b32 %v, %t;
    .reg .pred %p;
    ld.param.u64 %f, [flag];
    mov.u32 %t, %tid.x;
    setp.ne.u32 %p, %t, 0;
    @%p bra other;
wait:
    ld.acquire.sys.global.u32 %v, [%f];
    setp.eq.u32 %p, %v, 0;
    @%p bra wait;
    ret;
other:
    mov.u64 %start, %globaltimer;
stay:
    ld.relaxed.sys.global.u32 %v, [%f+4];
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %p, %now, 1000000;
    @%p bra stay;
    st.global.u32 [%f+8], 1;
    ret;
}
.visible .entry read(.param .u64 data, .param .u64 flag) {
    .reg .b64 %d;
    .reg .b32 %v;
    ld.param.u64 %d, [data];
    ld.global.u32 %v, [%d];
    add.u32 %v, %v, 1;
    st.global.u32 [%d], %v;
    ret;
}
.visible .entry late_warp(.param .u64 data, .param .u64 flag) {
    .reg .b64 %f;
    .reg .b32 %t;
    .reg .pred %p;
    ld.param.u64 %f, [flag];
    mov.u32 %t, %tid.x;
    setp.ne.u32 %p, %t, 32;
    @%p ret;
    st.release.sys.global.u32 [%f], 1;
    ret;
}
.visible .entry patient(.param .u64 data, .param .u64 flag) {
    .reg .b64 %f, %start, %now;
    .reg .b32 %v;
    .reg .pred %p;
    ld.param.u64 %f, [flag];
    mov.u64 %start, %globaltimer;
wait:
    ld.acquire.sys.global.u32 %v, [%f];
    setp.ne.u32 %p, %v, 0;
    @%p ret;
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %p, %now, 1000000;
    @%p bra wait;
    trap;
}
";

struct Pair {
    machine: Machine,
    program: Program,
    params: Vec<u8>,
    data: u64,
}

fn pair(config: Config) -> Pair {
    let mut machine = Machine::new(Config { gpus: 2, ..config });
    let program = Program::load(&mut machine, 0, KERNELS).unwrap();
    let data = machine.memory.alloc(0, 4).unwrap();
    let flag = machine.memory.alloc(1, 12).unwrap();
    machine.memory.host_fill(flag, 0, 12).unwrap();
    Pair {
        machine,
        program,
        params: [data.to_le_bytes(), flag.to_le_bytes()].concat(),
        data,
    }
}

fn threads(entry: &str) -> u32 {
    match entry {
        "late_warp" => 64,
        "leave_early" => 2,
        _ => 1,
    }
}

impl Pair {
    fn launch(&mut self, gpu: usize, entry: &str) {
        let launch = Launch {
            entry: Arc::clone(self.program.entry(entry).unwrap()),
            gpu,
            grid: [1; 3],
            block: [threads(entry), 1, 1],
            cluster: [1; 3],
            dynamic_shared: 0,
            params: self.params.clone(),
        };
        self.machine.launch(launch).unwrap();
    }

    fn run(mut self, launches: &[(usize, &str)]) -> (Outcome, Vec<Finding>) {
        for &(gpu, entry) in launches {
            self.launch(gpu, entry);
        }
        (self.machine.run(), self.machine.take_findings())
    }
}

#[test]
fn what_a_peer_released_is_known_to_later_launches() {
    let ends = [(0, "write"), (1, "acquire"), (1, "read")];
    for seed in 0..20 {
        let of = |release| {
            let config = Config {
                seed,
                ..Config::default()
            };
            let [write, acquire, read] = ends;
            pair(config).run(&[write, (0, release), acquire, read])
        };
        assert_eq!(of("release"), (Outcome::Done, vec![]), "seed {seed}");
        // The same values arrive, but nothing orders them.
        let (outcome, findings) = of("relaxed");
        assert_eq!(outcome, Outcome::Done);
        let kinds: Vec<_> = findings.iter().map(|finding| finding.kind).collect();
        assert!(!kinds.is_empty(), "seed {seed}");
        assert!(
            kinds.iter().all(|&kind| kind == FindingKind::Race),
            "{findings:?}"
        );
        assert!(
            findings[0].message.contains("GPU 0"),
            "{}",
            findings[0].message
        );
    }
}

/// A thread that has ended has left what it acquired to later launches, however long others of its
/// warp go on.
#[test]
fn what_a_thread_acquired_that_ended_early_is_known_to_later_launches() {
    for seed in 0..20 {
        let config = || Config {
            seed,
            ..Config::default()
        };
        let of = |release| {
            let launches = [(0, "write"), (0, release), (1, "leave_early"), (1, "read")];
            pair(config()).run(&launches)
        };
        assert_eq!(of("release"), (Outcome::Done, vec![]), "seed {seed}");
        let kinds: Vec<_> = of("relaxed").1.iter().map(|found| found.kind).collect();
        assert!(kinds.contains(&FindingKind::Race), "seed {seed}: {kinds:?}");
    }
}

#[test]
fn launches_that_nothing_orders_race() {
    let (_, findings) = pair(Config::default()).run(&[(0, "write"), (1, "write")]);
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].kind, FindingKind::Race);
}

#[test]
fn a_launch_after_anothers_end_is_ordered_after_it() {
    let mut pair = pair(Config::default());
    for gpu in [0, 1, 0] {
        pair.launch(gpu, "write");
        assert_eq!(pair.machine.run(), Outcome::Done);
    }
    assert_eq!(pair.machine.take_findings(), []);
}

#[test]
fn a_number_says_what_a_launch_comes_after() {
    let mut pair = pair(Config::default());
    let early = pair.machine.reserve_launch();
    pair.launch(0, "write");
    pair.launch(0, "acquire");
    while !pair.machine.is_done(early + 1) {
        pair.machine.run_turns(1);
    }
    // Enqueued before the write ended, so that nothing orders it, though it starts later.
    let launch = Launch {
        entry: Arc::clone(pair.program.entry("read").unwrap()),
        gpu: 1,
        grid: [1; 3],
        block: [1; 3],
        cluster: [1; 3],
        dynamic_shared: 0,
        params: pair.params.clone(),
    };
    pair.machine.launch_reserved(launch, early).unwrap();
    while !pair.machine.is_done(early) {
        pair.machine.run_turns(1);
    }
    let findings = pair.machine.take_findings();
    assert!(
        findings
            .iter()
            .any(|finding| finding.kind == FindingKind::Race),
        "{findings:?}"
    );
}

#[test]
fn a_starved_warp_runs_when_others_only_poll() {
    for seed in 0..8 {
        let config = Config {
            seed,
            starved_warp: Some(1),
            ..Config::default()
        };
        let (outcome, findings) = pair(config).run(&[(0, "acquire"), (1, "late_warp")]);
        assert_eq!((outcome, findings), (Outcome::Done, vec![]), "seed {seed}");
    }
}

#[test]
fn held_time_waits_for_what_is_launched_later() {
    let mut pair = pair(Config::default());
    pair.launch(0, "patient");
    pair.machine.hold_time(true);
    for _ in 0..5 {
        let polls = (0..1000).map(|_| pair.machine.run_turns(64));
        let last = polls.into_iter().find(|&outcome| outcome != Outcome::More);
        assert_eq!(last, Some(Outcome::Polling));
        pair.machine.pass_time(1000);
    }
    pair.launch(1, "release");
    pair.machine.hold_time(false);
    assert_eq!(pair.machine.run(), Outcome::Done);
    assert_eq!(pair.machine.take_findings(), []);
}

#[test]
fn passing_time_reaches_deadlines() {
    for held in [true, false] {
        let mut pair = pair(Config::default());
        pair.launch(0, "patient");
        pair.machine.hold_time(held);
        if held {
            while pair.machine.run_turns(64) == Outcome::More {}
            pair.machine.pass_time(2_000_000);
        }
        while pair.machine.run_turns(64) == Outcome::More {}
        let findings = pair.machine.take_findings();
        assert!(findings[0].message.contains("trap"), "{findings:?}");
    }
}

#[test]
fn a_slice_ends_with_a_launch_before_time_jumps() {
    let mut pair = pair(Config::default());
    pair.launch(0, "patient");
    pair.launch(1, "write");
    // With the write over only polls are left, but what is launched next may end them.
    let outcome = pair.machine.run_turns(1_000_000);
    assert_eq!(outcome, Outcome::More);
    assert!(pair.machine.time() < 1_000_000);
    pair.launch(1, "release");
    while pair.machine.run_turns(1_000_000) == Outcome::More {}
    assert_eq!(pair.machine.take_findings(), []);
}

#[test]
fn private_memory_is_out_of_a_peers_bounds() {
    let mut own = pair(Config::default());
    own.machine.memory.make_private(own.data);
    let (_, findings) = own.run(&[(0, "write")]);
    assert_eq!(findings, []);
    let mut other = pair(Config::default());
    other.machine.memory.make_private(other.data);
    let (_, findings) = other.run(&[(1, "write")]);
    assert_eq!(findings.len(), 1, "{findings:?}");
    let message = &findings[0].message;
    assert!(
        message.contains("memory of GPU 0 that is not mapped for peers"),
        "{message}"
    );
}
