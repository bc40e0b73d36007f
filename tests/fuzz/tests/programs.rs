//! The programs themselves: all of the table, as ptxas takes it, with nothing undefined.

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

/// The emulator's checker sees races, and values that nobody wrote where they are stored.
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

/// The same, had a register no value: the checker says so.
#[test]
fn the_checker_sees_a_register_without_a_value() {
    let generator = recorded_programs();
    let program = generator.program(0);
    let text = module(&[&program]);
    let load = text
        .lines()
        .find(|line| line.starts_with("ld.global.v4.b32 {%r0,"))
        .expect("a load");
    let runner = Runner::emulated(generator.seed(), true).expect("a device");
    let error = runner
        .run_text(&[&program], &text.replace(load, ""))
        .expect_err("an error");
    assert!(error.to_string().contains("uninitialised"), "{error}");
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
