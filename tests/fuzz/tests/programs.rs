//! The programs themselves: all of the table, as ptxas takes it, with nothing undefined.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use mok_build::{Silent, Workspace, setup};
use mok_fuzz::program::{Item, Program};
use mok_fuzz::uses::Uses;
use mok_fuzz::{Catalogue, Generator, PROGRAMS, Runner, USES, module, recorded_programs};

/// Programs of the first round: each name is in one of them.
fn round(generator: &Generator) -> Vec<Program> {
    let mut uses = Uses::new(generator.catalogue());
    let mut programs = Vec::new();
    while uses.written.contains(&0) {
        assert!(
            programs.len() < 200,
            "the order leaves out {:?}",
            uses.written.iter().position(|&n| n == 0)
        );
        let program = generator.program(programs.len() as u32);
        uses.add(&program, None);
        programs.push(program);
    }
    programs
}

fn assemble(programs: &[&Program]) {
    let workspace = Workspace::find(Path::new(env!("CARGO_MANIFEST_DIR"))).expect("a checkout");
    let tools = setup::ensure(&workspace, &mut Silent).expect("the tools");
    let Some(ptxas) = tools.cuda.ptxas else {
        panic!("there is no ptxas: `cargo xtask doctor` says why")
    };
    let folder = tempfile::tempdir().expect("a folder");
    let [ptx, cubin] = ["programs.ptx", "programs.cubin"].map(|name| folder.path().join(name));
    std::fs::write(&ptx, module(programs)).expect("written");
    let mut command = Command::new(&ptxas.path);
    let output = command
        .args(["-arch", "sm_90a", "-o"])
        .arg(&cubin)
        .arg(&ptx)
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    let first = programs[0].number;
    assert!(
        output.status.success(),
        "from program {first} on: {}: {said}",
        output.status
    );
    assert!(!said.contains("warning"), "from program {first} on: {said}");
}

#[test]
fn ptxas_takes_every_name() {
    let programs = round(&recorded_programs());
    for programs in programs.chunks(50) {
        assemble(&programs.iter().collect::<Vec<_>>());
    }
}

#[test]
#[ignore = "minutes"]
fn ptxas_takes_every_program() {
    let generator = recorded_programs();
    for start in (0..PROGRAMS).step_by(100) {
        let programs: Vec<Program> = (start..start + 100)
            .map(|number| generator.program(number))
            .collect();
        assemble(&programs.iter().collect::<Vec<_>>());
    }
}

/// The emulator's checker sees races, and bytes that nobody wrote.
#[test]
fn the_checker_finds_nothing() {
    let generator = recorded_programs();
    for program in round(&generator) {
        let runner = Runner::emulated(generator.seed(), true).expect("a device");
        if let Err(error) = runner.run(&[&program]) {
            panic!("program {}: {error}", program.number);
        }
    }
}

/// The same, where threads do not keep to rows of their own.
#[test]
fn the_checker_sees_rows_that_overlap() {
    let generator = recorded_programs();
    let program = generator.program(0);
    let stride = format!("mad.wide.u32 %out, %x0, {},", 8 * program.words);
    let text = module(&[&program]);
    assert!(text.contains(&stride));
    let runner = Runner::emulated(generator.seed(), true).expect("a device");
    let outcome = runner.run_text(
        &[&program],
        &text.replace(&stride, "mad.wide.u32 %out, %x0, 16,"),
    );
    let error = outcome.map(drop).expect_err("a finding");
    assert!(error.to_string().contains("race"), "{error}");
}

/// The first register that a line reads though not every thread has written it. Behind the first
/// branch only temporaries count, which are written where they are read.
fn read_too_early(text: &str) -> Option<String> {
    let named = |part: &str| {
        let at = part.match_indices('%').map(|(at, _)| at + 1);
        let name = at.map(|at| {
            part[at..]
                .chars()
                .take_while(char::is_ascii_alphanumeric)
                .collect()
        });
        name.collect::<Vec<String>>()
    };
    let mut written = HashSet::new();
    let mut straight = true;
    for line in text.lines().map(str::trim) {
        if line.contains(".func") || line.contains(".entry") {
            (written, straight) = (HashSet::new(), true);
        }
        if line.starts_with(['.', '{']) {
            continue;
        }
        let guarded = line.strip_prefix('@').and_then(|line| line.split_once(' '));
        let (guard, code) = guarded.unwrap_or(("", line));
        let leaves = |code: &str| {
            ["bra", "ret", "exit", "call"]
                .iter()
                .any(|start| code.starts_with(start))
        };
        // What stands before the first comma is written; a vector of a load, whole.
        let (to, from) = match code.find('}') {
            _ if code.starts_with("st.") || leaves(code) => ("", code),
            Some(end) if code.starts_with("ld.") => code.split_at(end),
            _ => code.split_once(',').unwrap_or((code, "")),
        };
        let special = ["tid", "ctaid", "ntid"];
        for register in named(guard).into_iter().chain(named(from)) {
            if !special.contains(&register.as_str()) && !written.contains(&register) {
                return Some(format!("%{register} in `{line}`"));
            }
        }
        straight &= !leaves(code) && !line.ends_with(':');
        for register in named(to) {
            // A byte is stored under the guard under which it was written.
            let counts = guard.is_empty() || register.starts_with("tb");
            if counts && (straight || register.starts_with(['t', 'c', 'l'])) {
                written.insert(register);
            }
        }
    }
    None
}

/// Neither the driver nor the emulator says what a register holds that nobody wrote.
#[test]
fn no_register_is_read_before_it_is_written() {
    let generator = recorded_programs();
    for number in 0..500 {
        let program = generator.program(number);
        let text = module(&[&program]);
        assert_eq!(read_too_early(&text), None, "program {number}");
        // Each line that writes is needed for that: without one of the pool's loads it shows.
        if number < 20 {
            let load = text
                .lines()
                .rfind(|line| line.starts_with("ld.global.v4.b32 {%r0,"))
                .expect("a load");
            assert!(
                read_too_early(&text.replace(load, "")).is_some(),
                "program {number}: {load}"
            );
            let load = text
                .lines()
                .find(|line| line.contains(" %tr1, [%in"))
                .expect("a load");
            assert!(
                read_too_early(&text.replacen(load, "", 1)).is_some(),
                "program {number}: {load}"
            );
        }
    }
}

#[test]
fn a_program_is_its_seed_and_its_number() {
    let text = |seed, number| {
        module(&[&Generator::new(Catalogue::new(90), seed, PROGRAMS, USES).program(number)])
    };
    assert_eq!(text(1, 77), text(1, 77));
    assert_ne!(text(1, 77), text(2, 77));
    assert_ne!(text(1, 77), text(1, 78).replace("fuzz78", "fuzz77"));
}

#[test]
fn no_name_is_more_than_one_use_ahead() {
    // Few names, so that the order goes round often. Carry chains bring others along.
    let mut catalogue = Catalogue::new(90);
    catalogue
        .names
        .retain(|name| name.op.uses_carry() == (false, false));
    catalogue.names.truncate(60);
    let generator = Generator::new(catalogue, 3, 20, 7);
    let mut uses = Uses::new(generator.catalogue());
    for number in 0..20 {
        uses.add(&generator.program(number), None);
    }
    let (least, most) = (uses.written.iter().min(), uses.written.iter().max());
    assert_eq!((least, most), (Some(&7), Some(&7)));
}

/// All kinds of control are there, and threads do part at them.
#[test]
fn programs_branch_repeat_call_and_end() {
    fn count(items: &[Item], counts: &mut [usize; 5]) {
        for item in items {
            let kind = match item {
                Item::Step(_) => 0,
                Item::If { .. } => 1,
                Item::Loop { .. } => 2,
                Item::Leave { .. } => 3,
                Item::Call { .. } => 4,
            };
            counts[kind] += 1;
            item.parts()
                .into_iter()
                .for_each(|part| count(part, counts));
        }
    }
    let generator = recorded_programs();
    let mut counts = [0; 5];
    let mut threads = std::collections::BTreeSet::new();
    for number in 0..100 {
        let program = generator.program(number);
        count(&program.main.items, &mut counts);
        program
            .functions
            .iter()
            .for_each(|body| count(&body.items, &mut counts));
        threads.insert(program.shape.threads);
    }
    assert!(counts.iter().all(|&count| count > 30), "{counts:?}");
    assert!(
        threads.iter().any(|threads| threads % 32 != 0),
        "{threads:?}"
    );
}
