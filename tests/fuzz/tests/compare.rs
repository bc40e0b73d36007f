//! That a comparison can fail: planted faults, found, named and shortened.

use std::time::{Duration, Instant};

use mok_fuzz::compare::{Difference, Pair, emulate};
use mok_fuzz::program::Program;
use mok_fuzz::record::Record;
use mok_fuzz::{Generator, Output, Runner, module, recorded_programs};

/// The text with one name for another, wherever it is.
fn swapped(programs: &[&Program], [from, to]: [&str; 2]) -> String {
    module(programs).replace(&format!("{from} "), &format!("{to} "))
}

fn emulated(
    generator: &Generator,
    programs: &[&Program],
    swap: Option<[&str; 2]>,
) -> mok::Result<Vec<Output>> {
    let runner = Runner::emulated(generator.seed(), false)?;
    match swap {
        Some(swap) => runner.run_text(programs, &swapped(programs, swap)),
        None => runner.run(programs),
    }
}

/// The emulator against one that takes a name for another.
fn differences(swap: [&str; 2], programs: std::ops::Range<u32>, seconds: u64) -> Vec<Difference> {
    let generator = recorded_programs();
    let pair = Pair {
        generator: &generator,
        device: &|programs| emulated(&generator, programs, Some(swap)),
        emulator: &|programs| emulated(&generator, programs, None),
    };
    let part = pair.compare(programs, Instant::now() + Duration::from_secs(seconds));
    assert!(part.failures.is_empty(), "{:?}", part.failures);
    part.differences
}

/// Programs that use a name.
fn using(generator: &Generator, name: &str) -> Vec<u32> {
    let index = generator.catalogue().find(name).expect("a name");
    let uses = |number: &u32| {
        generator
            .program(*number)
            .instructions()
            .iter()
            .any(|one| one.name == index)
    };
    (0..400).filter(uses).collect()
}

/// In a twenty-fifth of the programs that are recorded.
#[test]
fn one_name_taken_for_another_changes_the_hash() {
    let generator = recorded_programs();
    for swap in [
        ["add.sat.s32", "add.s32"],
        ["add.rz.f32", "add.rp.f32"],
        ["fma.rn.f64", "fma.rm.f64"],
        ["min.NaN.bf16", "min.bf16"],
        ["mul.ftz.f32", "mul.f32"],
        ["neg.f16", "abs.f16"],
        ["cvt.rni.s32.f32", "cvt.rzi.s32.f32"],
        [
            "cvt.rn.satfinite.e4m3x2.f32",
            "cvt.rn.satfinite.relu.e4m3x2.f32",
        ],
        ["cvt.s64.s8", "cvt.s64.u8"],
        ["setp.lt.u32", "setp.lt.s32"],
        ["set.ltu.u32.f16", "set.lt.u32.f16"],
        ["and.pred", "or.pred"],
        ["prmt.b32.f4e", "prmt.b32.b4e"],
        ["shf.l.clamp.b32", "shf.l.wrap.b32"],
        ["bfe.s64", "bfe.u64"],
        ["dp4a.u32.s32", "dp4a.s32.s32"],
        ["addc.cc.u32", "addc.u32"],
        ["subc.s64", "sub.s64"],
        ["div.rn.f32", "div.rz.f32"],
        ["rem.s64", "div.s64"],
        ["lop3.and.b32", "lop3.or.b32"],
        ["mov.b16", "not.b16"],
    ] {
        let found = using(&generator, swap[0]);
        let programs: Vec<Program> = found
            .iter()
            .map(|&number| generator.program(number))
            .collect();
        let programs: Vec<&Program> = programs.iter().collect();
        assert!(programs.len() >= 2, "{swap:?}");
        let right = emulated(&generator, &programs, None).expect("outputs");
        let wrong = emulated(&generator, &programs, Some(swap)).expect("outputs");
        let caught = right
            .iter()
            .zip(&wrong)
            .filter(|(a, b)| a.hash() != b.hash())
            .count();
        assert!(caught > 0, "{swap:?}: none of {} programs", programs.len());
    }
}

#[test]
fn a_fault_is_named_and_shortened() {
    let generator = recorded_programs();
    let swap = ["shf.l.clamp.b32", "shf.l.wrap.b32"];
    let number = using(&generator, swap[0])[0];
    let found = differences(swap, number..number + 1, 600);
    let [difference] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(
        (difference.name.as_str(), difference.program),
        (swap[0], number)
    );
    let text = difference.reduced.as_ref().expect("a shorter program");
    let whole = module(&[&generator.program(number)]);
    assert!(
        text.contains(swap[0]) && text.lines().count() < 45,
        "{text}"
    );
    assert!(text.lines().count() * 4 < whole.lines().count());
    // The operands say why: the amount is where the two forms differ.
    let values: Vec<u64> = difference
        .operands
        .iter()
        .filter_map(|(_, value)| *value)
        .collect();
    assert_eq!(difference.operands.len(), 3);
    let (clamp, wrap) = match values[..] {
        [a, b, c] => {
            let both = (b << 32) | (a & 0xffff_ffff);
            let shifted = |by: u64| (both << by >> 32) & 0xffff_ffff;
            (shifted((c & 0xffff_ffff).min(32)), shifted(c & 31))
        }
        _ => return,
    };
    assert_eq!(difference.emulated & 0xffff_ffff, clamp);
    assert_eq!(difference.device & 0xffff_ffff, wrap);
}

#[test]
fn equal_devices_agree() {
    let generator = recorded_programs();
    let pair = Pair {
        generator: &generator,
        device: &|programs| emulated(&generator, programs, None),
        emulator: &|programs| emulated(&generator, programs, None),
    };
    let part = pair.compare(20..140, Instant::now());
    assert!(part.differences.is_empty() && part.failures.is_empty());
    assert_eq!(part.hashes.len(), 120);
    // Batches, threads and neighbours do not matter.
    let alone = emulate(&generator, 77..78).expect("outputs");
    assert_eq!(alone.hashes[0], part.hashes[57]);
}

/// A program that a device refuses is told, and the others of its batch run.
#[test]
fn what_does_not_run_is_a_failure() {
    let generator = recorded_programs();
    let pair = Pair {
        generator: &generator,
        device: &|programs| match programs.iter().any(|program| program.number == 33) {
            true => Err(mok::Error::BadPtx {
                reason: "planted".into(),
            }),
            false => emulated(&generator, programs, None),
        },
        emulator: &|programs| emulated(&generator, programs, None),
    };
    let part = pair.compare(30..40, Instant::now());
    let [(33, reason)] = &part.failures[..] else {
        panic!("{:?}", part.failures)
    };
    assert!(reason.contains("planted") && part.differences.is_empty());
    assert_eq!(part.hashes.iter().filter(|&&hash| hash != 0).count(), 9);
}

#[test]
fn records_are_read_as_written_and_refused_otherwise() {
    let generator = recorded_programs();
    let part = emulate(&generator, 0..50).expect("outputs");
    let folder = tempfile::tempdir().expect("a folder");
    let record = Record::new(&generator, &part, "a GPU".into(), "a driver".into(), None);
    record.write(folder.path(), &part.hashes).expect("written");
    let (read, hashes) = Record::read(folder.path()).expect("a record");
    assert_eq!((&read, &hashes), (&record, &part.hashes));
    assert!(read.check(&part.texts).is_ok());
    let mut others = part.texts.clone();
    others[7] ^= 1;
    assert!(read.check(&others).is_err());
    let path = folder.path().join(mok_fuzz::record::HASHES);
    let mut bytes = std::fs::read(&path).expect("bytes");
    bytes[9] ^= 1;
    std::fs::write(&path, &bytes).expect("written");
    assert!(Record::read(folder.path()).is_err());
}
