use std::time::Instant;

use crate::machine::{Config, Launch, Machine};
use crate::program::Program;

/// Run with `--ignored --nocapture` in a release build.
#[test]
#[ignore = "it measures"]
fn what_checking_costs() {
    let body = "mov.u32 %r2, 0;\nmov.u32 %r5, smem;\nshl.b32 %r3, %r0, 2;\nadd.u32 %r3, %r3, %r5;\n$loop:\n\
        mad.lo.u32 %r4, %r2, 7, %r0;\nxor.b32 %r4, %r4, %r2;\nand.b32 %r4, %r4, 255;\nadd.u32 %r6, %r4, %r2;\nshr.u32 %r6, %r6, 3;\n\
        MEMORY\nadd.u32 %r2, %r2, 1;\nsetp.lt.u32 %p0, %r2, 20000;\n@%p0 bra $loop;";
    for (name, memory) in [
        ("scalar", "sub.u32 %r6, %r6, %r4;"),
        (
            "shared",
            "st.shared.u32 [%r3], %r6;\nld.shared.u32 %r7, [%r3];",
        ),
        (
            "device",
            "mul.wide.u32 %rd2, %r0, 4;\nadd.u64 %rd2, %rd2, %rd0;\nld.global.u32 %r7, [%rd2];",
        ),
    ] {
        for check in [true, false] {
            let text = super::Plant::new(&body.replace("MEMORY", memory)).text();
            let mut machine = Machine::new(Config {
                check,
                ..Config::default()
            });
            let buffer = machine.memory.alloc(0, 1 << 16).unwrap();
            machine.memory.host_write(buffer, &[0; 1 << 16]).unwrap();
            let program = Program::load(&mut machine, 0, &text).unwrap();
            machine
                .launch(Launch {
                    entry: program.entries[0].clone(),
                    gpu: 0,
                    grid: [1, 1, 1],
                    block: [256, 1, 1],
                    cluster: [1, 1, 1],
                    dynamic_shared: 4096,
                    params: [buffer.to_le_bytes(), buffer.to_le_bytes()].concat(),
                })
                .unwrap();
            let start = Instant::now();
            machine.run();
            let rate = machine.instructions() as f64 / start.elapsed().as_secs_f64() / 1e6;
            println!("{name}, checker {check}: {rate:.0} million thread-instructions a second");
        }
    }
}
