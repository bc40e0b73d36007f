//! Damaged PTX: an error or a finding, never a panic and never a hang.
//!
//! `MOK_MUTATIONS` sets how many of each program; `MOK_MUTATED_FILE` names a further program.

use std::panic::{AssertUnwindSafe, catch_unwind};

use mok_emu::code::isa;
use mok_emu::machine::{Completion, Config, Launch, Machine, Random};
use mok_emu::program::Program;

/// A kernel with one instruction of each row of the table.
fn every_row() -> String {
    let mut body = String::new();
    for row in isa() {
        let names = row.names();
        for name in [&names[0], &names[names.len() - 1]] {
            // All `tcgen05` of a kernel name one group.
            if name.ends_with("v2.b128") || name.contains("cta_group::2") {
                continue;
            }
            let lanes = ["v8", "v4", "v2"].iter().zip([8, 4, 2]);
            let lanes = lanes
                .filter(|(part, _)| name.split('.').any(|word| word == **part))
                .map(|(_, count)| count)
                .next()
                .unwrap_or(1);
            let registers: Vec<String> = (0..lanes).map(|at| format!("%r{at}")).collect();
            let vector = match lanes {
                1 => registers[0].clone(),
                _ => format!("{{{}}}", registers.join(", ")),
            };
            let policy = if name.contains("L2::cache_hint") {
                ", %r15"
            } else {
                ""
            };
            body += &format!(
                "{name} {}{policy};\n",
                row.operands.replace("$q", "%q0").replace('$', &vector)
            );
        }
    }
    format!(
        ".version 8.6\n.target sm_100a\n.address_size 64\n.func callee() {{ ret; }}\n\
         .visible .entry k(.param .u64 p)\n{{\n.reg .b64 %r<16>;\n.reg .b128 %q<4>;\n.reg .pred %p<2>;\ntable: .branchtargets end;\n{body}end:\nret;\n}}\n"
    )
}

/// Declarations, control flow, calls, memory, asynchronous copies, products.
const SMALL: &str = r#"
.version 8.6
.target sm_90a
.address_size 64
.extern .shared .align 128 .b8 dyn[];
.global .align 8 .b64 gv[4] = {1, 2, 0x10, -1};
.global .align 8 .u64 gp[2] = {generic(gv), gv+8};
.const .align 4 .f32 cf[2] = {0f3F800000, 1.5e-3};
.func (.param .b32 ret) twice(.param .b32 a) { .reg .b32 %t; ld.param.b32 %t, [a]; shl.b32 %t, %t, 1; st.param.b32 [ret], %t; ret; }
.visible .entry k(.param .u64 p) .maxntid 128, 1, 1
{
.reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<24>; .reg .b64 %d<8>; .reg .f32 %f<8>; .reg .f64 %e<4>;
.shared .align 8 .b64 bar; .local .align 8 .b8 own[32];
ld.param.u64 %d0, [p];
cvta.to.global.u64 %d1, %d0;
mov.u32 %r0, %tid.x; mov.u32 %r9, dyn; mov.u32 %r10, bar;
mad.lo.s32 %r1, %r0, 4, 16; mul.wide.u32 %d2, %r0, 8; add.s64 %d3, %d1, %d2;
ld.global.v2.b32 {%r2, %r3}, [%d3];
setp.lt.and.s32 %p1|%p2, %r2, %r3, %p0;
@%p1 bra L1;
{ .reg .b32 %r1; mov.b32 %r1, {%h0, %h1}; }
bra.uni L2;
L1: add.rn.f32 %f1, %f2, 0f3F800000; cvt.rn.bf16x2.f32 %r4, %f1, %f2; fma.rn.f64 %e1, %e2, 0d3FF0000000000000, %e3;
L2: bar.sync 0;
shfl.sync.bfly.b32 %r5|%p3, %r0, 1, 0x1f, -1;
st.shared.u32 [%r9+64], %r5; ld.shared.u32 %r6, [%r9+64];
st.local.u32 [own+8], %r6; ld.local.u32 %r7, [own+8];
atom.global.add.u32 %r8, [%d1], 1; red.global.max.s32 [%d1+4], %r0;
{ .param .b32 a0; .param .b32 r0; st.param.b32 [a0], %r7; call.uni (r0), twice, (a0); ld.param.b32 %r7, [r0]; }
ts: .branchtargets L3, L4;
and.b32 %r11, %r0, 1;
brx.idx %r11, ts;
L3: setp.ne.u32 %p0, %r0, 0; @%p0 bra L4;
mbarrier.init.shared.b64 [%r10], 1; fence.proxy.async;
mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 64;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r9], [%d1], 64, [%r10];
W: mbarrier.try_wait.parity.shared.b64 %p3, [%r10], 0; @!%p3 bra W;
cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r9], 64; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
L4: bar.warp.sync -1;
ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r12, %r13}, [%r9];
mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r12, %r13}, {%r12}, {%f0, %f1, %f2, %f3};
prmt.b32 %r14, %r12, %r13, 0x5410; lop3.b32 %r15, %r12, %r13, %r14, 0xe8; bfe.u32 %r16, %r15, 4, 8;
vote.sync.ballot.b32 %r17, %p1, -1; nanosleep.u32 20; mov.u64 %d4, %globaltimer;
st.global.u32 [%d3], %r16;
ret;
}
"#;

/// Tensor memory: allocation, copies, products with A in both memories, scales, loads and stores.
const TENSOR: &str = r#"
.version 8.8
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 dyn[];
.visible .entry k(.param .u64 p) .maxntid 128, 1, 1
{
.reg .pred %p<4>; .reg .b32 %r<24>; .reg .b64 %d<8>;
.shared .align 8 .b8 bars[16];
ld.param.u64 %d0, [p]; mov.u32 %r0, %tid.x; mov.u32 %r1, dyn; mov.u32 %r2, bars;
setp.lt.u32 %p0, %r0, 32; setp.eq.u32 %p1, %r0, 0; setp.ne.u32 %p2, %r0, %r0;
shl.b32 %r3, %r0, 6; add.u32 %r3, %r3, %r1; st.shared.v2.u32 [%r3], {%r0, %r1};
@%p1 mbarrier.init.shared.b64 [%r2], 1; fence.proxy.async;
@!%p0 bra L0;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2+8], 128;
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
L0: tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
ld.shared.u32 %r4, [%r2+8]; bfe.u32 %r5, %r1, 4, 14; cvt.u64.u32 %d1, %r5;
add.s64 %d2, %d1, 0x0000400800080000; add.s64 %d3, %d1, 0x4000404000010000;
@%p1 tcgen05.cp.cta_group::1.32x128b.warpx4 [%r4+64], %d2;
@%p1 tcgen05.cp.cta_group::1.128x256b.b8x16.b4x16_p64 [%r4+96], %d2;
@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r4], %d2, %d3, 134481040, {%r0, 1, 2, 3}, %p2, 4;
@%p1 tcgen05.mma.cta_group::1.kind::f8f6f4 [%r4+16], [%r4+96], %d2, 134481040, !%p2;
@%p1 tcgen05.mma.cta_group::1.kind::tf32 [%r4+32], %d2, %d2, 134482192, %p2;
@%p1 tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [%r4], %d2, %d2, 142868480, [%r4+64], [%r4+68], %p2;
@%p1 tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 [%r4], %d2, %d2, 134480000, [%r4+64], [%r4+68], %p2;
@%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2];
W: mbarrier.try_wait.parity.shared.b64 %p3, [%r2], 0; @!%p3 bra W;
tcgen05.fence::after_thread_sync;
shr.u32 %r6, %r0, 5; shl.b32 %r6, %r6, 21; add.u32 %r6, %r6, %r4;
tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r7, %r8}, [%r6];
tcgen05.ld.sync.aligned.16x128b.x1.pack::16b.b32 {%r9, %r10}, [%r6];
tcgen05.ld.sync.aligned.16x32bx2.x2.b32 {%r11, %r12}, [%r6], 16;
tcgen05.wait::ld.sync.aligned;
tcgen05.st.sync.aligned.16x64b.x2.b32 [%r6], {%r7, %r9};
tcgen05.st.sync.aligned.16x256b.x1.unpack::16b.b32 [%r6+16], {%r7, %r8, %r9, %r10};
tcgen05.wait::st.sync.aligned;
tcgen05.fence::before_thread_sync; bar.sync 0;
@!%p0 bra L1;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 128;
L1: st.global.u32 [%d0], %r7;
ret;
}
"#;

/// The text cut into tokens, more or less.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_%$.".contains(c);
    for c in text.chars() {
        match tokens.last_mut() {
            Some(last) if is_word(c) && last.chars().all(is_word) => last.push(c),
            _ => tokens.push(c.into()),
        }
    }
    tokens
}

const ODD: [&str; 24] = [
    "",
    "0",
    "-1",
    "1",
    "4294967295",
    "18446744073709551615",
    "0x8000000000000000",
    "99999999999999999999",
    "0f7fffffff",
    "0f1",
    "1e400",
    "{",
    "}",
    "[",
    "]",
    "(",
    ";",
    ",",
    "%r0",
    "_",
    "!",
    "\"",
    "\u{e9}",
    "%r4000000000",
];

fn damaged(pieces: &[String], random: &mut Random) -> String {
    let mut pieces = pieces.to_vec();
    for _ in 0..1 + random.below(3) {
        if pieces.is_empty() {
            break;
        }
        let at = random.below(pieces.len() as u64) as usize;
        let other = pieces[random.below(pieces.len() as u64) as usize].clone();
        match random.below(8) {
            0 => drop(pieces.remove(at)),
            1 => pieces.insert(at, other),
            2 => pieces[at] = other,
            3 => pieces[at] = ODD[random.below(ODD.len() as u64) as usize].into(),
            4 => pieces.insert(at, ODD[random.below(ODD.len() as u64) as usize].into()),
            5 if random.below(8) == 0 => pieces.truncate(at),
            6 => {
                // Another part of a dotted name.
                let mut parts: Vec<&str> = pieces[at].split('.').collect();
                let part = random.below(parts.len() as u64) as usize;
                let new: Vec<&str> = other.split('.').collect();
                parts[part] = new[random.below(new.len() as u64) as usize];
                pieces[at] = parts.join(".");
            }
            _ => {
                let (a, b) = (at, random.below(pieces.len() as u64) as usize);
                pieces.swap(a, b);
            }
        }
    }
    pieces.concat()
}

fn run(text: &str, seed: u64) {
    let mut machine = Machine::new(Config {
        seed,
        completion: [Completion::Random, Completion::Early, Completion::Late][seed as usize % 3],
        instruction_limit: 20_000,
        ..Config::default()
    });
    let Ok(program) = Program::load(&mut machine, 0, text) else {
        return;
    };
    let buffer = machine.memory.alloc(0, 4096).expect("memory");
    for entry in program.entries.iter().take(2) {
        let mut params = vec![0; entry.param_bytes as usize];
        for (to, from) in params.iter_mut().zip(buffer.to_le_bytes()) {
            *to = from;
        }
        let launch = Launch {
            entry: entry.clone(),
            gpu: 0,
            grid: [2, 1, 1],
            block: [40, 1, 1],
            cluster: entry.directives.cluster.unwrap_or([1; 3]),
            dynamic_shared: 16384,
            params,
        };
        if machine.launch(launch).is_ok() {
            machine.run_turns(4000);
            machine.interrupt("enough");
        }
    }
}

#[test]
fn damage_is_an_error_or_a_finding() {
    let count: u64 = std::env::var("MOK_MUTATIONS")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(400);
    let mut texts = vec![SMALL.to_owned(), every_row(), TENSOR.to_owned()];
    if let Ok(path) = std::env::var("MOK_MUTATED_FILE") {
        texts = vec![std::fs::read_to_string(path).expect("the file")];
    }
    for text in &texts {
        let mut machine = Machine::new(Config::default());
        Program::load(&mut machine, 0, text).expect("undamaged it loads");
        let pieces = tokens(text);
        for number in 0..count {
            let mut random = Random::new(number);
            let broken = damaged(&pieces, &mut random);
            let outcome = catch_unwind(AssertUnwindSafe(|| run(&broken, number)));
            if outcome.is_err() {
                let path = std::env::temp_dir().join(format!("mok-mutation-{number}.ptx"));
                let _ = std::fs::write(&path, &broken);
                panic!("mutation {number} panicked: {}", path.display());
            }
        }
    }
}
