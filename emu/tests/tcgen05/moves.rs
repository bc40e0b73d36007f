//! `tcgen05.ld` and `tcgen05.st` of every shape, against each other.

use mok_emu::machine::{Completion, Config, Launch, Machine};
use mok_emu::program::Program;

/// Registers of the moves under test.
const MOST: usize = 16;

/// Runs a body on the second warp of a block, which reaches lanes 32 to 63 and has their first
/// address in `%r5`; each thread stores `%r20` to `%r35` at the end.
fn run(body: &str, completion: Completion) -> Vec<[u32; MOST]> {
    let stores: String = (0..MOST)
        .map(|at| format!("@%p1 st.global.u32 [%rd2+{}], %r{};\n", 4 * at, 20 + at))
        .collect();
    let text = format!(
        ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u64 p)\n{{\n\
         .shared .align 16 .b8 place[16];\n.reg .pred %p<4>;\n.reg .b32 %r<72>;\n.reg .b64 %rd<4>;\n\
         ld.param.u64 %rd1, [p];\nmov.u32 %r0, %tid.x;\nmov.u32 %r1, place;\nsetp.ge.u32 %p1, %r0, 32;\n\
         and.b32 %r2, %r0, 31;\n@%p1 bra MEET;\n\
         tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 64;\nMEET:\nbar.sync 0;\n\
         ld.shared.u32 %r4, [%r1];\nadd.u32 %r5, %r4, 0x200000;\n@!%p1 bra FREE;\n{body}\n\
         mul.wide.u32 %rd2, %r2, {};\nadd.s64 %rd2, %rd2, %rd1;\n{stores}FREE:\nbar.sync 0;\n@%p1 bra END;\n\
         tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 64;\nEND:\nret;\n}}\n",
        4 * MOST
    );
    let mut machine = Machine::new(Config {
        completion,
        ..Config::default()
    });
    let program = Program::load(&mut machine, 0, &text).expect("it loads");
    let bytes = 32 * 4 * MOST as u64;
    let to = machine.memory.alloc(0, bytes).expect("memory");
    machine
        .launch(Launch {
            entry: program.entry("k").expect("the kernel").clone(),
            gpu: 0,
            grid: [1; 3],
            block: [64, 1, 1],
            cluster: [1; 3],
            dynamic_shared: 0,
            params: to.to_le_bytes().to_vec(),
        })
        .expect("it launches");
    machine.run();
    let found = machine.take_findings();
    assert!(found.is_empty(), "{}\n{body}", found[0]);
    let words: Vec<u32> = machine
        .memory
        .read(to, bytes)
        .expect("the words")
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
        .collect();
    words
        .chunks_exact(MOST)
        .map(|words| words.try_into().expect("a row"))
        .collect()
}

fn registers(first: usize, count: usize) -> String {
    let names: Vec<String> = (first..first + count).map(|at| format!("%r{at}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// Every word of 16 columns holds its lane and column, in both halves.
fn fill() -> String {
    let values: String = (0..16)
        .map(|at| {
            format!(
                "shl.b32 %r{0}, %r2, 4;\nadd.u32 %r{0}, %r{0}, {at};\nmul.lo.u32 %r{0}, %r{0}, 0x10001;\n",
                40 + at
            )
        })
        .collect();
    format!(
        "{values}tcgen05.st.sync.aligned.32x32b.x16.b32 [%r5], {};\ntcgen05.wait::st.sync.aligned;\n",
        registers(40, 16)
    )
}

/// What that word is.
fn word(lane: usize, column: usize) -> u32 {
    (lane * 16 + column) as u32 * 0x10001
}

/// Shape, number, registers, and the lane and first column of a thread's register as the figures of
/// the ISA show them, without packing; the second half of 16x32bx2 is 8 columns away.
type Shape = (
    &'static str,
    &'static str,
    usize,
    fn(usize, usize) -> (usize, usize),
);

const SHAPES: [Shape; 5] = [
    ("32x32b", "x8", 8, |thread, at| (thread, at)),
    ("16x64b", "x4", 4, |thread, at| {
        (thread / 4 + thread % 2 * 8, 2 * at + thread / 2 % 2)
    }),
    ("16x128b", "x2", 4, |thread, at| {
        (thread / 4 + at % 2 * 8, at / 2 * 4 + thread % 4)
    }),
    ("16x256b", "x1", 4, |thread, at| {
        (thread / 4 + at / 2 * 8, thread % 4 * 2 + at % 2)
    }),
    ("16x32bx2", "x4", 4, |thread, at| {
        (thread % 16, at + thread / 16 * 8)
    }),
];

fn split(shape: &str) -> &'static str {
    if shape.ends_with("x2") { ", 8" } else { "" }
}

#[test]
fn every_shape_loads_what_is_there() {
    for completion in [Completion::Early, Completion::Late] {
        for (shape, number, count, place) in SHAPES {
            for packed in [false, true] {
                // Of 16-bit elements two columns are one register: half as far, for the halves too.
                let pack = if packed { ".pack::16b" } else { "" };
                let load = format!(
                    "tcgen05.ld.sync.aligned.{shape}.{number}{pack}.b32 {}, [%r5]{};\n\
                     tcgen05.wait::ld.sync.aligned;\n",
                    registers(20, count),
                    split(shape)
                );
                let rest: String = (count..MOST)
                    .map(|at| format!("mov.u32 %r{}, 0;\n", 20 + at))
                    .collect();
                let found = run(&format!("{}{load}{rest}", fill()), completion);
                for (thread, values) in found.iter().enumerate() {
                    for (at, &value) in values.iter().enumerate().take(count) {
                        let (lane, column) = place(thread, at);
                        let want = match (packed, shape) {
                            (false, _) => word(lane, column),
                            (true, "16x32bx2") => {
                                let first = 2 * (column % 8) + column / 8 * 8;
                                word(lane, first) & 0xffff | word(lane, first + 1) << 16
                            }
                            (true, _) => {
                                word(lane, 2 * column) & 0xffff | word(lane, 2 * column + 1) << 16
                            }
                        };
                        assert_eq!(value, want, "{shape} {pack} thread {thread} register {at}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_shape_stores_where_it_says() {
    for completion in [Completion::Early, Completion::Late] {
        for (shape, number, count, place) in SHAPES {
            for packed in [false, true] {
                let unpack = if packed { ".unpack::16b" } else { "" };
                // A thread's number and its register's, in each half its own.
                let values: String = (0..count)
                    .map(|at| {
                        format!(
                            "shl.b32 %r{0}, %r2, 4;\nadd.u32 %r{0}, %r{0}, {1};\nmul.lo.u32 %r{0}, %r{0}, 0x20001;\n",
                            20 + at,
                            at + 1
                        )
                    })
                    .collect();
                let store = format!(
                    "{values}tcgen05.st.sync.aligned.{shape}.{number}{unpack}.b32 [%r5]{}, {};\n\
                     tcgen05.wait::st.sync.aligned;\n",
                    split(shape),
                    registers(20, count)
                );
                let load = format!(
                    "tcgen05.ld.sync.aligned.32x32b.x16.b32 {}, [%r5];\ntcgen05.wait::ld.sync.aligned;\n",
                    registers(20, MOST)
                );
                let found = run(&format!("{}{store}{load}", fill()), completion);
                let mut want: Vec<[u32; MOST]> = (0..32)
                    .map(|lane| std::array::from_fn(|column| word(lane, column)))
                    .collect();
                for thread in 0..32 {
                    for at in 0..count {
                        let value = (thread * 16 + at + 1) as u32 * 0x20001;
                        let (lane, column) = place(thread, at);
                        match (packed, shape) {
                            (false, _) => want[lane][column] = value,
                            (true, _) => {
                                let first = match shape {
                                    "16x32bx2" => 2 * (column % 8) + column / 8 * 8,
                                    _ => 2 * column,
                                };
                                want[lane][first] = value & 0xffff;
                                want[lane][first + 1] = value >> 16;
                            }
                        }
                    }
                }
                assert_eq!(found, want, "{shape} {unpack}");
            }
        }
    }
}
