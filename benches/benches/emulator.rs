//! Thread-instructions a second of the emulator, on one core.
//!
//! `cargo bench -p mok-benches --bench emulator`; the element of criterion's throughput is one
//! thread-instruction.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mok_emu::machine::{Config, Launch, Machine, Outcome};
use mok_emu::program::Program;

/// Integer and floating-point arithmetic in a loop, a load and a store at its end.
const SCALAR: &str = "
.version 8.4
.target sm_90a
.address_size 64
.visible .entry scalar(.param .u64 p)
{
.reg .pred %p<2>; .reg .b32 %r<8>; .reg .f32 %f<4>; .reg .b64 %rd<4>;
ld.param.u64 %rd1, [p];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd3, %rd1, %rd2;
mov.u32 %r2, 0;
mov.f32 %f1, 0f3F800000;
LOOP:
add.u32 %r3, %r2, %r1;
xor.b32 %r4, %r3, 21;
shl.b32 %r5, %r4, 3;
and.b32 %r6, %r5, 255;
add.f32 %f2, %f1, %f1;
mul.f32 %f1, %f2, 0f3F000000;
add.u32 %r2, %r2, 1;
setp.lt.u32 %p1, %r2, 2000;
@%p1 bra LOOP;
st.global.u32 [%rd3], %r6;
ret;
}";

/// Runs the kernel once on a fresh machine; the thread-instructions it took.
fn run(config: &Config) -> u64 {
    let mut machine = Machine::new(config.clone());
    let program = Program::load(&mut machine, 0, SCALAR).expect("the kernel loads");
    let address = machine.memory.alloc(0, 4096).expect("memory");
    let launch = Launch {
        entry: program.entry("scalar").expect("the kernel").clone(),
        gpu: 0,
        grid: [4, 1, 1],
        block: [256, 1, 1],
        cluster: [1, 1, 1],
        dynamic_shared: 0,
        params: address.to_le_bytes().to_vec(),
    };
    machine.launch(launch).expect("it launches");
    assert_eq!(machine.run(), Outcome::Done);
    machine.instructions()
}

fn scalar(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("emulator");
    let config = Config::default();
    group.throughput(Throughput::Elements(run(&config)));
    group.sample_size(10);
    group.bench_with_input(
        BenchmarkId::new("scalar", "plain"),
        &config,
        |bencher, config| {
            bencher.iter(|| run(config));
        },
    );
    group.finish();
}

criterion_group!(benches, scalar);
criterion_main!(benches);
