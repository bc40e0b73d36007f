//! The shipped kernels in the emulator: clean as they are, and no synchronisation too many.

mod mutations;
mod pass;
mod seeds;

use half::bf16;
use mok::gemm::{Form, GateUpCall, GemmCall, GroupedGemm, Matrix, Mxfp8Call, Mxfp8Matrix, Sink};
use mok::{Arch, Completion, Device, EmulatorConfig, Error, Groups, Module};
use mok_kernel::gate_up::GATE_UP;

/// When asynchronous work completes, all ways.
const COMPLETIONS: [Completion; 3] = [Completion::Random, Completion::Early, Completion::Late];

/// A kernel that multiplies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Entry {
    Plain(Form),
    GateUp,
    /// Where pairs of blocks multiply.
    Mxfp8,
}

impl Entry {
    /// Its name in the PTX.
    fn name(self) -> &'static str {
        match self {
            // On all architectures.
            Entry::Plain(form) => form.spec(Arch::Sm90a).entry,
            Entry::GateUp => GATE_UP.entry,
            Entry::Mxfp8 => mok_kernel::mxfp8::FORWARD.entry,
        }
    }
}

/// A product: whose, where to, and how long its contraction is. wgrad's is as long as its groups: all kinds with 0,
/// else one group of so many rows.
#[derive(Clone, Copy, Debug)]
struct Case {
    entry: Entry,
    sink: Sink,
    depth: usize,
}

/// 10 stages are two chunks, and more than the ring has; 4 are what it has on Hopper, so that the end
/// comes to the stage where the last tile began.
const CASES: [Case; 13] = [
    case(Form::Forward, Sink::Bf16, 640),
    case(Form::Forward, Sink::Bf16, 256),
    case(Form::Dgrad, Sink::Bf16, 640),
    case(Form::Dgrad, Sink::Bf16, 256),
    case(Form::Wgrad, Sink::Bf16, 0),
    case(Form::Wgrad, Sink::F32, 0),
    case(Form::Wgrad, Sink::AddF32, 0),
    case(Form::Wgrad, Sink::AddBf16, 0),
    case(Form::Wgrad, Sink::Bf16, 256),
    GATE_AND_UP,
    // Fewer stages than the ring has, or its barriers order what the way out has to.
    Case {
        depth: 64,
        ..GATE_AND_UP
    },
    MXFP8,
    // As few.
    Case {
        depth: 128,
        ..MXFP8
    },
];

/// Six stages, of the five that the ring has.
const MXFP8: Case = Case {
    entry: Entry::Mxfp8,
    sink: Sink::Bf16,
    depth: 768,
};

const GATE_AND_UP: Case = Case {
    entry: Entry::GateUp,
    sink: Sink::Bf16,
    depth: 640,
};

const fn case(form: Form, sink: Sink, depth: usize) -> Case {
    Case {
        entry: Entry::Plain(form),
        sink,
        depth,
    }
}

/// Those that an architecture has.
fn cases(arch: Arch) -> impl Iterator<Item = Case> {
    let has = move |case: &Case| arch.pairs() || case.entry != Entry::Mxfp8;
    CASES.into_iter().filter(has)
}

/// The PTX that the library ships for an architecture.
fn shipped(arch: Arch) -> &'static str {
    let code = mok::kernels::embedded(arch);
    code.expect("its kernels are part of every build").ptx
}

/// Small integers, the same ones each time.
fn integers(count: usize, seed: u32) -> Vec<bf16> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bf16::from_f32((state >> 24) as f32 % 5.0 - 2.0)
    };
    (0..count).map(|_| next()).collect()
}

/// Sizes of 34 groups (more than a warp has threads), with tails in rows and in depth.
///
/// As a contraction, 520 rows are more stages than a chunk has and than the ring has; 40 are less
/// than one, and 64 are one exactly. As a wide side they are tiles of five widths. Gate-and-up,
/// whose tiles are twice as many, does without the many rows.
fn sizes(case: Case) -> Vec<u32> {
    let (first, last) = match case.entry {
        Entry::Plain(Form::Wgrad) if case.depth > 0 => ([case.depth as u32, 0, 0, 0, 0], 0),
        Entry::Plain(_) => ([520, 0, 40, 129, 64], 1),
        Entry::GateUp => ([9, 0, 40, 129, 64], 1),
        // Two tiles, of which the second starts in the middle of a tile of scales.
        Entry::Mxfp8 => ([257, 0, 40, 17, 64], 1),
    };
    let mut sizes = vec![0; 34];
    sizes[..5].copy_from_slice(&first);
    sizes[33] = last;
    sizes
}

/// What one kernel writes on a small emulated GPU, or what was found.
///
/// Each block has several tiles, so that stages, staging memory and barriers are used again and
/// again. Of the fixed side, both consumers have a part.
fn product(ptx: &str, case: Case, config: EmulatorConfig) -> Result<Vec<u8>, Error> {
    let Case { entry, sink, depth } = case;
    // Both blocks of a pair have a part of it. Two pairs draw from each other; one alone has so many tiles
    // that it deals more than it has places for.
    let (fixed, sms) = match (config.arch.pairs(), depth) {
        (false, _) => (72, 2),
        (true, 640 | 768) => (200, 4),
        (true, _) => (200, 2),
    };
    let (n, k) = match entry {
        Entry::Plain(Form::Forward) | Entry::GateUp => (fixed, depth),
        Entry::Plain(Form::Dgrad) => (depth, fixed),
        // All of the scales' tiles.
        Entry::Mxfp8 => (256, depth),
        // In two tiles, of 192 and 120.
        Entry::Plain(Form::Wgrad) if !config.arch.pairs() => (fixed, 312),
        // In twice two, of 256 and 200; in the second two a consumer has no rows of D, for 8 panels.
        Entry::Plain(Form::Wgrad) => (320, 456),
    };
    let device = Device::emulated(EmulatorConfig { sms, ..config })?;
    let module = Module::from_ptx(&device, ptx)?;
    let gemm = GroupedGemm::from_module(&device, &module)?;
    let groups = Groups::new(&sizes(case))?;
    let sizes = device.buffer_from(groups.sizes())?;
    let rows = groups.capacity() as usize;
    let x = device.buffer_from(&integers(rows * k, 1))?;
    let dy = device.buffer_from(&integers(rows * n, 2))?;
    let w = device.buffer_from(&integers(groups.len() * n * k, 3))?;
    let up = device.buffer_from(&integers(groups.len() * n * k, 4))?;
    let elements = match entry {
        Entry::Plain(Form::Forward) | Entry::GateUp | Entry::Mxfp8 => rows * n,
        Entry::Plain(Form::Dgrad) => rows * k,
        Entry::Plain(Form::Wgrad) => groups.len() * n * k,
    };
    let old = vec![bf16::ONE; elements * sink.element_size() as usize / 2];
    let results = [(); 3].map(|()| device.buffer_from(&old));
    let [d, kept_gate, kept_up] = results;
    let (d, kept_gate, kept_up) = (d?, kept_gate?, kept_up?);
    let at = groups.at(sizes.ptr());
    let [x, dy, w, up, to, to_gate, to_up] =
        [&x, &dy, &w, &up, &d, &kept_gate, &kept_up].map(Matrix::of);
    // The same bits once more, as e4m3 that are no NaNs, and scales about 1.
    let bytes = |count: usize, seed| -> Vec<u8> {
        let small = integers(count, seed).into_iter();
        small
            .map(|value| value.to_f32() as i8 as u8 & 0x87 | 0x30)
            .collect()
    };
    let near_one = |rows: usize, seed| -> Vec<u8> {
        let count = Mxfp8Matrix::scale_bytes(rows as u64, k as u64) as usize;
        let small = integers(count, seed).into_iter();
        small
            .map(|value| (127 + value.to_f32() as i32) as u8)
            .collect()
    };
    let mxfp8 = match entry {
        Entry::Mxfp8 => [
            bytes(rows * k, 5),
            near_one(rows, 6),
            bytes(groups.len() * n * k, 7),
            near_one(groups.len() * n, 8),
        ],
        _ => [(); 4].map(|()| Vec::new()),
    };
    let mxfp8 = mxfp8.map(|bytes| device.buffer_from(&bytes));
    let [values_a, scales_a, values_b, scales_b] = mxfp8;
    let (values_a, scales_a, values_b, scales_b) = (values_a?, scales_a?, values_b?, scales_b?);
    let (n, k) = (n as u32, k as u32);
    let stream = device.stream()?;
    // SAFETY: the buffers live until the synchronisation, and only this call uses them.
    unsafe {
        match entry {
            Entry::Plain(form) => {
                let call = match form {
                    Form::Forward => GemmCall::forward(at, n, k, x, w, to),
                    Form::Dgrad => GemmCall::dgrad(at, k, n, dy, w, to),
                    Form::Wgrad => GemmCall::wgrad(at, n, k, dy, x, to),
                };
                gemm.enqueue(&call.with_sink(sink), &stream)?;
            }
            Entry::GateUp => {
                let call = GateUpCall::new(at, n, k, x, [w, up], to).keeping(to_gate, to_up);
                gemm.enqueue_gate_up(&call, &stream)?;
            }
            Entry::Mxfp8 => {
                let a = Mxfp8Matrix::new(Matrix::of(&values_a), Matrix::of(&scales_a));
                let b = Mxfp8Matrix::new(Matrix::of(&values_b), Matrix::of(&scales_b));
                gemm.enqueue_mxfp8(&Mxfp8Call::forward(at, n, k, a, b, to), &stream)?;
            }
        }
    }
    stream.synchronize()?;
    let mut bits = Vec::new();
    for result in [&d, &kept_gate, &kept_up] {
        let values = result.to_vec()?;
        bits.extend(
            values
                .iter()
                .flat_map(|value| value.to_bits().to_le_bytes()),
        );
    }
    Ok(bits)
}
