//! Thread-instructions and products a second of the emulator, on one core.
//!
//! `cargo bench -p mok-benches --bench emulator`. The element of criterion's throughput is one
//! thread-instruction; in the groups named `products` it is one product of two numbers.

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
.reg .pred %p<2>; .reg .b32 %r<9>; .reg .f32 %f<4>; .reg .b64 %rd<4>;
ld.param.u64 %rd1, [p];
mov.u32 %r1, %tid.x;
mov.u32 %r7, %ctaid.x;
mad.lo.u32 %r8, %r7, 256, %r1;
mul.wide.u32 %rd2, %r8, 4;
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

/// A reversal within the block through shared memory, over and over: half of it memory and barriers.
const MEMORY: &str = "
.version 8.4
.target sm_90a
.address_size 64
.visible .entry memory(.param .u64 p)
{
.reg .pred %p<2>; .reg .b32 %r<12>; .reg .b64 %rd<4>;
.shared .align 4 .b8 own[1024];
ld.param.u64 %rd1, [p];
mov.u32 %r1, %tid.x;
mov.u32 %r9, %ctaid.x;
shl.b32 %r9, %r9, 8;
add.u32 %r9, %r9, %r1;
mul.wide.u32 %rd2, %r9, 4;
add.s64 %rd3, %rd1, %rd2;
mov.u32 %r2, own;
shl.b32 %r3, %r1, 2;
add.u32 %r4, %r2, %r3;
xor.b32 %r5, %r3, 1020;
add.u32 %r5, %r2, %r5;
mov.u32 %r6, 0;
mov.u32 %r7, %r1;
LOOP:
st.shared.b32 [%r4], %r7;
bar.sync 0;
ld.shared.b32 %r8, [%r5];
st.global.b32 [%rd3], %r8;
ld.global.b32 %r7, [%rd3];
bar.sync 0;
add.u32 %r6, %r6, 1;
setp.lt.u32 %p1, %r6, 200;
@%p1 bra LOOP;
ret;
}";

/// Four `wgmma` of 64 x 128 x 16 a turn, with their fence, commit and wait, on zeros.
fn products() -> String {
    let sums: Vec<String> = (0..64).map(|at| format!("%f{at}")).collect();
    let sums = sums.join(", ");
    let mut text = String::from(
        "
.version 8.4
.target sm_90a
.address_size 64
.visible .entry products(.param .u64 p)
{
.reg .pred %p<2>; .reg .b32 %r<8>; .reg .f32 %f<64>; .reg .b64 %rd<16>;
.shared .align 1024 .b8 tiles[24576];
mov.u32 %r1, %tid.x;
shl.b32 %r2, %r1, 4;
mov.u32 %r3, tiles;
add.u32 %r4, %r3, %r2;
mov.u32 %r5, 0;
FILL:
st.shared.v4.b32 [%r4], {%r5, %r5, %r5, %r5};
add.u32 %r4, %r4, 2048;
add.u32 %r6, %r3, 24576;
setp.lt.u32 %p1, %r4, %r6;
@%p1 bra FILL;
fence.proxy.async.shared::cta;
bar.sync 0;
shr.u32 %r3, %r3, 4;
cvt.u64.u32 %rd1, %r3;
or.b64 %rd2, %rd1, 0x4000004000000000;
add.u64 %rd3, %rd2, 512;
setp.ne.u32 %p1, %r5, 0;
LOOP:
wgmma.fence.sync.aligned;
",
    );
    for step in 0..4 {
        text += &format!(
            "add.u64 %rd4, %rd2, {offset};\nadd.u64 %rd5, %rd3, {offset};\n\
             wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {{{sums}}}, %rd4, %rd5, %p1, 1, 1, 0, 0;\n\
             setp.eq.u32 %p1, 0, 0;\n",
            offset = 2 * step
        );
    }
    text + "wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
add.u32 %r5, %r5, 1;
setp.lt.u32 %p1, %r5, 32;
@%p1 bra LOOP;
ld.param.u64 %rd6, [p];
mov.u32 %r7, %ctaid.x;
mad.lo.u32 %r7, %r7, 128, %r1;
mul.wide.u32 %rd7, %r7, 4;
add.u64 %rd6, %rd6, %rd7;
st.global.f32 [%rd6], %f63;
ret;
}"
}

/// Products of two numbers in a launch of `products`.
const PRODUCTS: u64 = 4 * 32 * 4 * 64 * 128 * 16;

/// A kernel, and how it is launched.
struct Kernel {
    text: String,
    name: &'static str,
    threads: u32,
}

/// Runs the kernel once on a fresh machine; the thread-instructions it took.
fn run(kernel: &Kernel, config: &Config) -> u64 {
    let mut machine = Machine::new(config.clone());
    let program = Program::load(&mut machine, 0, &kernel.text).expect("the kernel loads");
    let address = machine.memory.alloc(0, 4096).expect("memory");
    let launch = Launch {
        entry: program.entry(kernel.name).expect("the kernel").clone(),
        gpu: 0,
        grid: [4, 1, 1],
        block: [kernel.threads, 1, 1],
        cluster: [1, 1, 1],
        dynamic_shared: 0,
        params: address.to_le_bytes().to_vec(),
    };
    machine.launch(launch).expect("it launches");
    assert_eq!(machine.run(), Outcome::Done);
    let (findings, _) = machine.findings();
    assert!(findings.is_empty(), "{findings:?}");
    machine.instructions()
}

fn measure(criterion: &mut Criterion, group: &str, kernel: &Kernel, elements: Option<u64>) {
    let mut group = criterion.benchmark_group(group);
    group.sample_size(10);
    for (name, check) in [("checked", true), ("unchecked", false)] {
        let config = Config {
            check,
            ..Config::default()
        };
        let elements = elements.unwrap_or_else(|| run(kernel, &config));
        group.throughput(Throughput::Elements(elements));
        group.bench_with_input(
            BenchmarkId::new(kernel.name, name),
            &config,
            |bencher, config| {
                bencher.iter(|| run(kernel, config));
            },
        );
    }
    group.finish();
}

/// Blocks that spin on nothing but arithmetic, memory and barriers: what most code is.
fn scalar(criterion: &mut Criterion) {
    for (name, text) in [("scalar", SCALAR), ("memory", MEMORY)] {
        let kernel = Kernel {
            text: text.into(),
            name,
            threads: 256,
        };
        measure(criterion, "instructions", &kernel, None);
    }
}

fn tensor(criterion: &mut Criterion) {
    let kernel = Kernel {
        text: products(),
        name: "products",
        threads: 128,
    };
    measure(criterion, "instructions", &kernel, None);
    measure(criterion, "products", &kernel, Some(PRODUCTS));
}

criterion_group!(benches, scalar, tensor);
criterion_main!(benches);
