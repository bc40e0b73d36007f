//! The emulator against what an H200 gave.

use std::path::Path;

use mok_fuzz::compare::emulate;
use mok_fuzz::record::Record;
use mok_fuzz::{PROGRAMS, SEED, USES, recorded_programs};

#[test]
fn the_emulator_gives_what_the_gpu_gave() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden");
    let (record, hashes) = Record::read(&folder).expect("a record");
    assert_eq!((record.programs, record.seed), (PROGRAMS, SEED));
    assert!(!record.device.contains("emulated"), "{}", record.device);
    let generator = recorded_programs();
    let part = emulate(&generator, 0..PROGRAMS).expect("outputs");
    record
        .check(&part.texts)
        .expect("the programs that were recorded");
    let numbers = (0..PROGRAMS).zip(part.hashes.iter().zip(&hashes));
    let wrong: Vec<u32> = numbers
        .filter(|(_, (a, b))| a != b)
        .map(|(number, _)| number)
        .collect();
    assert!(
        wrong.is_empty(),
        "{} programs differ; `cargo xtask fuzz --program N --emit` prints one: {:?}",
        wrong.len(),
        &wrong[..wrong.len().min(20)]
    );
    let uses = part.uses.expect("counts");
    assert_eq!(uses.short(generator.catalogue(), USES), []);
    // Approximate results: each within the ISA's bound here, and there when it was recorded.
    for (name, near) in &part.near {
        assert!(near.over == 0 && near.checked > 1000, "{name}: {near:?}");
        let (checked, worst) = record.approximate.get(name).expect("a name");
        assert!(
            *checked > 1000 && *worst <= 1.0,
            "{name}: {worst} in the record"
        );
    }
    let approximate = generator
        .catalogue()
        .names
        .iter()
        .filter(|name| name.op.is_approximate());
    assert_eq!(approximate.count(), part.near.len());
    assert_eq!(record.approximate.len(), part.near.len());
}
