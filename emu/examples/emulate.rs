//! The emulator as a library: any PTX, on the CPU, and what is wrong with it.
//! `cargo run --example emulate`

use std::error::Error;

use mok_emu::machine::{Config, Launch, Machine};
use mok_emu::program::Program;

/// Each thread writes its number to shared memory and reads its neighbour's. BARRIER is left out
/// the second time.
const PTX: &str = "
.version 8.0
.target sm_90a
.address_size 64
.visible .entry neighbour(.param .u64 out)
{
    .reg .b32 %r<6>;
    .reg .b64 %d<4>;
    .shared .align 4 .b8 numbers[256];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, numbers;
    mad.lo.u32 %r2, %r0, 4, %r1;
    st.shared.u32 [%r2], %r0;
    BARRIER
    xor.b32 %r3, %r0, 32;
    mad.lo.u32 %r4, %r3, 4, %r1;
    ld.shared.u32 %r5, [%r4];
    ld.param.u64 %d0, [out];
    mul.wide.u32 %d1, %r0, 4;
    add.s64 %d2, %d0, %d1;
    st.global.u32 [%d2], %r5;
    ret;
}
";

fn run(ptx: &str) -> Result<(Vec<u8>, Vec<String>), Box<dyn Error>> {
    // The seed fixes which warp runs when, and when asynchronous work completes.
    let mut machine = Machine::new(Config {
        seed: 1,
        ..Config::default()
    });
    let program = Program::load(&mut machine, 0, ptx)?;
    let entry = program.entry("neighbour").ok_or("no such entry")?.clone();
    let out = machine.memory.alloc(0, 256).map_err(|fault| fault.reason)?;
    machine.launch(Launch {
        entry,
        gpu: 0,
        grid: [1; 3],
        block: [64, 1, 1],
        cluster: [1; 3],
        dynamic_shared: 0,
        params: out.to_le_bytes().to_vec(),
    })?;
    machine.run();
    let findings = machine
        .take_findings()
        .iter()
        .map(ToString::to_string)
        .collect();
    let bytes = machine
        .memory
        .read(out, 256)
        .map_err(|fault| fault.reason)?;
    Ok((bytes.to_vec(), findings))
}

fn main() -> Result<(), Box<dyn Error>> {
    let (bytes, findings) = run(&PTX.replace("BARRIER", "bar.sync 0;"))?;
    assert!(findings.is_empty(), "{findings:?}");
    assert_eq!(bytes[..4], 32u32.to_le_bytes());
    println!("thread 0 read {}", bytes[0]);

    let (_, findings) = run(&PTX.replace("BARRIER", ""))?;
    assert!(!findings.is_empty());
    println!(
        "without the barrier:
{}",
        findings.join(
            "
"
        )
    );
    Ok(())
}
