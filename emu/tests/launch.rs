//! Launches that can't be, and runs in slices.

use std::sync::Arc;

use mok_emu::machine::{Config, Launch, Machine, Outcome};
use mok_emu::program::Program;
use mok_emu::report::FindingKind;

fn machine(body: &str) -> (Machine, Launch) {
    let text = format!(
        ".version 8.4\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{{\n\
         .reg .b64 %r<8>;\n.reg .pred %p<2>;\n{body}\nret;\n}}\n"
    );
    let mut machine = Machine::new(Config::default());
    let program = Program::load(&mut machine, 0, &text).unwrap();
    let launch = Launch {
        entry: Arc::clone(program.entry("k").unwrap()),
        gpu: 0,
        grid: [1; 3],
        block: [64, 1, 1],
        cluster: [1; 3],
        dynamic_shared: 0,
        params: Vec::new(),
    };
    (machine, launch)
}

/// Polls for what never comes; each warp reads the clock, as if it had a deadline.
const POLLS: &str = "
.shared .align 8 .b64 bar;
mov.u32 %r0, %tid.x;
setp.eq.u32 %p0, %r0, 0;
@%p0 mbarrier.init.shared.b64 [bar], 1;
bar.sync 0;
wait:
mov.u64 %r1, %globaltimer;
mbarrier.test_wait.parity.shared.b64 %p1, [bar], 0;
@!%p1 bra wait;
";

#[test]
fn slices_find_a_deadlock_too() {
    for turns in [1, 7, u64::MAX] {
        let (mut machine, launch) = machine(POLLS);
        machine.launch(launch).unwrap();
        let ended = (0..1_000_000)
            .map(|_| machine.run_turns(turns))
            .find(|&outcome| outcome != Outcome::More);
        assert_eq!(ended, Some(Outcome::Stopped), "slices of {turns}");
        assert_eq!(machine.findings().0[0].kind, FindingKind::Deadlock);
    }
}

#[test]
fn an_interrupted_run_says_where_it_was() {
    let (mut machine, launch) = machine("again:\nbra again;");
    machine.launch(launch).unwrap();
    assert_eq!(machine.run_turns(10), Outcome::More);
    assert_eq!(machine.interrupt("out of time"), Outcome::Stopped);
    let finding = machine.findings().0[0].clone();
    assert_eq!((finding.kind, finding.line), (FindingKind::Limit, 9));
    assert!(finding.message.contains("line 9 runs"), "{finding}");
    assert_eq!(machine.run_turns(10), Outcome::Done);
}

#[test]
fn launches_that_no_machine_holds() {
    type Change = fn(&mut Launch);
    let wrong: [(&str, &str, Change); 4] = [
        ("", "not 1 to 1024", |launch| launch.block = [u32::MAX; 3]),
        ("", "not 1 to 16", |launch| launch.cluster = [u32::MAX; 3]),
        ("", "4 SMs have room for 4", |launch| {
            (launch.grid, launch.cluster) = ([8, 1, 1], [8, 1, 1]);
            launch.dynamic_shared = 200 << 10;
        }),
        (".local .b8 big[600000];", "local memory", |_| {}),
    ];
    for (body, reason, change) in wrong {
        let (mut machine, mut launch) = machine(body);
        change(&mut launch);
        let error = machine.launch(launch).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}
