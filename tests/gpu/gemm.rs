//! The grouped GEMM against the oracle: what ships here, on emulated GPUs what ships for architectures
//! of which there is none at hand, and the same roles on `mma.sync`, on the same shapes.

use bytemuck::Pod;
use half::bf16;
use libtest_mimic::Trial;
use mok::gemm::{Form, GemmCall, Matrix, Sink};
use mok::oracle::{self, Operand, Problem};
use mok::{Device, EmulatorConfig, Groups, Kernel, Stream, fill};
use mok_kernel::arch::Arch;
use mok_kernel::gemm::shared_bytes;
use mok_probes::spec;
use mok_tests::Probes;

use crate::{Outcome, expect_equal, trial};

/// Which build of the kernels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Engine {
    /// What the library loads.
    Shipped,
    /// The same roles on `mma.sync`.
    Warp,
}

impl Engine {
    /// What its kernels are for: the probes are Hopper's everywhere.
    pub fn arch(self, device: &Device) -> Result<Arch, mok::Error> {
        match self {
            Engine::Shipped => device.arch(),
            Engine::Warp => Ok(Arch::Sm90a),
        }
    }
}

/// A build of the kernels, and where it runs.
pub struct Build {
    pub engine: Engine,
    pub label: &'static str,
    /// An emulated GPU, or where the other tests run.
    pub on: Option<EmulatorConfig>,
}

/// What runs on Hopper: what ships for it, and the probes on `mma.sync`.
pub fn hoppers() -> Vec<Build> {
    [(Engine::Shipped, "shipped"), (Engine::Warp, "warp")]
        .map(|(engine, label)| Build {
            engine,
            label,
            on: None,
        })
        .into()
}

/// One launch, without the library's own front: any engine, any grid.
pub fn enqueue(
    probes: &Probes,
    engine: Engine,
    call: &GemmCall,
    sms: u32,
    stream: &Stream,
) -> Result<(), mok::Error> {
    call.check()?;
    let grid = call.grid(sms);
    if grid == 0 {
        return Ok(());
    }
    let device = &probes.device;
    let kernel: Kernel = match (engine, call.form()) {
        (Engine::Shipped, form) => device.kernels()?.gemm(form).clone(),
        (Engine::Warp, Form::Forward) => probes.kernel(&spec::WARP_FORWARD)?,
        (Engine::Warp, Form::Dgrad) => probes.kernel(&spec::WARP_DGRAD)?,
        (Engine::Warp, Form::Wgrad) => probes.kernel(&spec::WARP_WGRAD)?,
    };
    let arch = engine.arch(device)?;
    probes.tickets.with(stream, |tickets| {
        let args = call.args(tickets);
        let mut launch = kernel
            .launch()
            .grid([kernel.spec().whole_clusters(grid), 1, 1])
            .shared(shared_bytes(arch, args.groups));
        for map in call.tensor_maps() {
            launch = launch.map(&device.tensor_map(&map)?);
        }
        // SAFETY: the callers' buffers live until they synchronise the stream.
        unsafe { launch.arg(&args).enqueue(stream) }
    })
}

/// One product: sizes of groups and of matrices.
#[derive(Clone, Debug)]
pub struct Case {
    pub sizes: Vec<u32>,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Elements between rows, rows between groups, rows after the last group: all NaN.
    pub gaps: bool,
    /// Weights and their gradients as `[rows, groups, columns]`: a group's stride is under a row's.
    pub beside: bool,
}

impl Case {
    /// Multiply-adds, more or less.
    fn work(&self, form: Form) -> usize {
        let rows: usize = self.sizes.iter().map(|&size| size as usize).sum();
        match form {
            Form::Wgrad => (rows + 64 * self.sizes.len()) * self.m * self.n,
            _ => (rows + 128 * self.sizes.len()) * self.n * self.k,
        }
    }

    pub fn new(sizes: impl Into<Vec<u32>>, [m, n, k]: [usize; 3]) -> Case {
        Case {
            sizes: sizes.into(),
            m,
            n,
            k,
            gaps: false,
            beside: false,
        }
    }

    /// Elements from row to row, from group to group, and in all, of `[rows, cols, groups]` with
    /// `[elements, rows]` of gaps.
    fn strides(&self, extent: [usize; 3], gaps: [usize; 2]) -> [usize; 3] {
        let ([rows, cols, groups], [after_row, after_group]) = (extent, gaps);
        let gap = |size| if self.gaps { size } else { 0 };
        let wide = cols + gap(after_row);
        if self.beside {
            return [groups * wide, wide, rows * groups * wide];
        }
        let group_stride = (rows + gap(after_group)) * wide;
        [wide, group_stride, groups * group_stride]
    }
}

/// Every shape is run in all three forms. H and I at odd multiples of 64, at 8, at multiples of
/// 8 that fill no tile; empty groups, groups of one row, 1,000 and 1,024 groups.
fn cases() -> Vec<Case> {
    let sizes: [&[u32]; 9] = [
        &[1],
        &[128],
        &[129, 0, 127],
        &[0, 0, 5],
        &[64, 65, 1, 0, 63],
        &[300, 0, 77, 1, 0, 0, 512],
        &[7, 0, 1000],
        &[0],
        &[257, 255, 256, 1, 2, 3, 4, 5, 6, 7, 8],
    ];
    let dims = [
        [64, 64, 64],
        [192, 320, 448],
        [704, 192, 320],
        [8, 8, 8],
        [136, 264, 72],
    ];
    let mut cases: Vec<Case> = sizes
        .iter()
        .flat_map(|&sizes| dims.map(|dims| Case::new(sizes, dims)))
        .collect();
    let zipf: Vec<u32> = (1..=48).map(|rank| 4000 / (rank * rank)).collect();
    cases.extend([
        Case::new(zipf, [576, 960, 832]),
        Case::new(vec![2048], [1088, 1344, 1984]),
        Case::new(vec![1u32; 1000], [64, 192, 64]),
        Case::new(
            (0..1000).map(|group| group % 5).collect::<Vec<u32>>(),
            [64, 64, 192],
        ),
        Case::new(
            (0..1024)
                .map(|group| group * 37 % 130)
                .collect::<Vec<u32>>(),
            [64, 72, 64],
        ),
        Case::new(vec![300u32; 24], [448, 1024, 704]),
        Case {
            gaps: true,
            ..Case::new(vec![5u32, 0, 200, 64], [64, 192, 128])
        },
        Case {
            gaps: true,
            ..Case::new(vec![333u32, 1, 0], [200, 328, 264])
        },
        Case {
            beside: true,
            ..Case::new(vec![5u32, 0, 200, 64], [64, 192, 128])
        },
        Case {
            gaps: true,
            beside: true,
            ..Case::new(vec![333u32, 1, 0], [200, 328, 264])
        },
        // The second consumer has rows of D in some tiles and none in the next.
        Case::new(vec![5u32, 3], [704, 192, 8]),
    ]);
    cases
}

/// Rows of a matrix on the host: values in the rows and columns that exist, NaN elsewhere.
struct Held {
    values: Vec<bf16>,
    row_stride: usize,
    group_stride: usize,
}

impl Held {
    fn new(
        seed: u64,
        rows: usize,
        cols: usize,
        groups: usize,
        case: &Case,
        deviation: f32,
    ) -> Held {
        let [row_stride, group_stride, len] = case.strides([rows, cols, groups], [24, 3]);
        let mut values = vec![bf16::NAN; len];
        let source: Vec<bf16> = fill::normal(seed, groups * rows * cols, deviation);
        for (index, row) in source.chunks(cols.max(1)).enumerate() {
            let start = index / rows * group_stride + index % rows * row_stride;
            values[start..start + cols].copy_from_slice(row);
        }
        Held {
            values,
            row_stride,
            group_stride,
        }
    }

    /// A matrix of all groups' rows: those outside a group become NaN.
    fn rows(seed: u64, groups: &Groups, capacity: usize, cols: usize, case: &Case) -> Held {
        let mut held = Held::new(seed, capacity, cols, 1, case, 1.0);
        for row in 0..capacity {
            if groups.group_of(row).is_none() {
                held.values[row * held.row_stride..][..held.row_stride]
                    .fill(bf16::from_bits(0xffff));
            }
        }
        held
    }

    fn operand(&self) -> Operand<'_> {
        Operand::new(&self.values)
            .with_row_stride(self.row_stride)
            .with_group_stride(self.group_stride)
    }
}

/// Elements of D on the device.
trait Stored: Pod + Into<f64> + Sync + PartialEq + std::fmt::Debug {
    fn from_f32(value: f32) -> Self;
    fn is_mark(self) -> bool;
}

impl Stored for bf16 {
    fn from_f32(value: f32) -> bf16 {
        bf16::from_f32(value)
    }
    fn is_mark(self) -> bool {
        self.to_bits() == 0xffff
    }
}

impl Stored for f32 {
    fn from_f32(value: f32) -> f32 {
        value
    }
    fn is_mark(self) -> bool {
        self.to_bits() == u32::MAX
    }
}

/// One product and everything around it.
pub fn check(engine: Engine, form: Form, sink: Sink, case: &Case) -> Outcome {
    match sink.element_size() {
        2 => check_as::<bf16>(engine, form, sink, case),
        _ => check_as::<f32>(engine, form, sink, case),
    }
}

/// A shape with empty and ragged groups, several tiles and more stages than the ring has.
pub fn check_small(engine: Engine, form: Form, sink: Sink) -> Outcome {
    let case = Case {
        gaps: true,
        ..Case::new(vec![150u32, 0, 333, 1], [136, 264, 392])
    };
    check(engine, form, sink, &case)
}

fn check_as<T: Stored>(engine: Engine, form: Form, sink: Sink, case: &Case) -> Outcome {
    let probes = Probes::load()?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    let groups = Groups::new(&case.sizes)?;
    let capacity = groups.capacity() as usize + if case.gaps { 256 } else { 0 };
    let (count, m, n, k) = (groups.len(), case.m, case.n, case.k);

    let (a, b) = match form {
        Form::Forward => (
            Held::rows(1, &groups, capacity, k, case),
            Held::new(2, n, k, count, case, 0.1),
        ),
        Form::Dgrad => (
            Held::rows(1, &groups, capacity, k, case),
            Held::new(2, k, n, count, case, 0.1),
        ),
        Form::Wgrad => (
            Held::rows(1, &groups, capacity, m, case),
            Held::rows(2, &groups, capacity, n, case),
        ),
    };
    let problem = match form {
        Form::Forward => Problem::forward(&groups, n, k, a.operand(), b.operand())?,
        Form::Dgrad => Problem::dgrad(&groups, n, k, a.operand(), b.operand())?,
        Form::Wgrad => Problem::wgrad(&groups, m, n, a.operand(), b.operand())?,
    };

    // D: all ones, with the old values where a sink adds to them.
    let (d_rows, d_groups) = if form == Form::Wgrad {
        (m, count)
    } else {
        (capacity, 1)
    };
    let [row_stride, group_stride, len] = case.strides([d_rows, n, d_groups], [40, 2]);
    let start = |row: usize| row / d_rows.max(1) * group_stride + row % d_rows.max(1) * row_stride;
    let mark = bytemuck::pod_read_unaligned::<T>(&[0xffu8; 8][..size_of::<T>()]);
    let mut d = vec![mark; len];
    let mut old = None;
    if sink.adds() {
        let values: Vec<T> = fill::normal::<f32>(3, d_groups * d_rows * n, 2.0)
            .into_iter()
            .map(T::from_f32)
            .collect();
        for (row, values) in values.chunks(n).enumerate() {
            d[start(row)..][..n].copy_from_slice(values);
        }
        old = Some(
            values
                .iter()
                .map(|&value| value.into() as f32)
                .collect::<Vec<f32>>(),
        );
    }
    let before = d.clone();

    let sizes = device.buffer_from(groups.sizes())?;
    let (on_a, on_b, on_d) = (
        device.buffer_from(&a.values)?,
        device.buffer_from(&b.values)?,
        device.buffer_from(&d)?,
    );
    let rows = groups.at(sizes.ptr()).with_capacity(capacity as u32);
    let [on_a, on_b] = [(&on_a, &a), (&on_b, &b)].map(|(buffer, held)| {
        Matrix::of(buffer)
            .with_row_stride(held.row_stride as u64)
            .with_group_stride(held.group_stride as u64)
    });
    let to_d = Matrix::of(&on_d)
        .with_row_stride(row_stride as u64)
        .with_group_stride(group_stride as u64);
    let call = match form {
        Form::Forward => GemmCall::forward(rows, n as u32, k as u32, on_a, on_b, to_d),
        Form::Dgrad => GemmCall::dgrad(rows, n as u32, k as u32, on_a, on_b, to_d),
        Form::Wgrad => GemmCall::wgrad(rows, m as u32, n as u32, on_a, on_b, to_d).with_sink(sink),
    };
    enqueue(&probes, engine, &call, device.sm_count(), &stream)?;
    stream.synchronize()?;
    let d = on_d.to_vec()?;

    let sums = problem.sums(&problem.all_rows())?;
    let rounded = sums.rounded(sink, old.as_deref())?.compare_at(&d, start)?;
    let exact = sums.exact(old.as_deref())?.compare_at(&d, start)?;
    let name = format!("{engine:?} {} {sink:?} {case:?}", form.name());
    if !rounded.passes(oracle::ROUNDED) || !exact.passes(oracle::EXACT) {
        return Err(format!("{name}: rounded {rounded:?}, exact {exact:?}").into());
    }
    // Everything that is no row of a group, or past the columns, is as it was.
    let mut ours = vec![false; d.len()];
    for row in problem.all_rows() {
        ours[start(row)..][..n].fill(true);
    }
    for (at, &value) in d.iter().enumerate() {
        let untouched = value.is_mark() || (sink.adds() && value == before[at]);
        if !ours[at] && !untouched {
            return Err(format!(
                "{name}: D[{at}] is outside every group and was written: {value:?}"
            )
            .into());
        }
    }
    Ok(())
}

/// The same bits for every grid, and on every run.
fn deterministic(engine: Engine, form: Form) -> Outcome {
    let probes = Probes::load()?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    let groups = Groups::new(&[300, 0, 77, 513])?;
    let (rows, n, k) = (groups.capacity() as usize, 704, 448);
    let sizes = device.buffer_from(groups.sizes())?;
    let a: Vec<bf16> = fill::normal(5, rows * n.max(k), 1.0);
    let b: Vec<bf16> = fill::normal(6, rows.max(4 * n) * k, 1.0);
    let (a, b) = (device.buffer_from(&a)?, device.buffer_from(&b)?);
    let mut first = None;
    for sms in [device.sm_count(), 1, 7, device.sm_count(), 64] {
        let d = device.buffer_filled::<f32>(4 * n * k, 0xff)?;
        let at = groups.at(sizes.ptr());
        let [to_a, to_b, to_d] = [Matrix::of(&a), Matrix::of(&b), Matrix::of(&d)];
        let (n, k) = (n as u32, k as u32);
        let call = match form {
            Form::Forward => GemmCall::forward(at, n, k, to_a, to_b, to_d),
            Form::Dgrad => GemmCall::dgrad(at, n, k, to_a, to_b, to_d),
            Form::Wgrad => GemmCall::wgrad(at, n, k, to_a, to_b, to_d).with_sink(Sink::F32),
        };
        enqueue(&probes, engine, &call, sms, &stream)?;
        stream.synchronize()?;
        let bits: Vec<u32> = d.to_vec()?.into_iter().map(f32::to_bits).collect();
        match &first {
            None => first = Some(bits),
            Some(first) => expect_equal(&format!("{sms} blocks"), &bits, first)?,
        }
    }
    Ok(())
}

/// Rows past the capacity are reported and left out; memory past D stays as it is.
fn overflow(engine: Engine) -> Outcome {
    let probes = Probes::load()?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    let (n, k, capacity) = (64u32, 64u32, 256u32);
    for (sizes, needed) in [
        (vec![100u32, 100, 100], Some(356)),
        (vec![100, 128], None),
        (vec![100, 156], Some(284)),
        (vec![300], Some(300)),
        (
            vec![1, u32::MAX, u32::MAX],
            Some(128 + (1u64 << 32) + u64::from(u32::MAX)),
        ),
        (vec![128, 128, 0, 0], None),
    ] {
        let word = mok::gemm::OverflowWord::new(device)?;
        let on_sizes = device.buffer_from(&sizes)?;
        let a: Vec<bf16> = fill::normal(1, (capacity * k) as usize, 1.0);
        let b: Vec<bf16> = fill::normal(2, sizes.len() * (n * k) as usize, 1.0);
        let (a, b) = (device.buffer_from(&a)?, device.buffer_from(&b)?);
        // Twice the room, so that a stray write would be seen.
        let d = device.buffer_filled::<bf16>(2 * (capacity * n) as usize, 0xff)?;
        let rows = mok::gemm::GroupRows {
            sizes: on_sizes.ptr(),
            groups: sizes.len() as u32,
            capacity,
            overflow: Some(word.ptr()),
        };
        let call = GemmCall::forward(rows, n, k, Matrix::of(&a), Matrix::of(&b), Matrix::of(&d));
        enqueue(&probes, engine, &call, device.sm_count(), &stream)?;
        stream.synchronize()?;
        if word.needed()? != needed {
            return Err(format!(
                "{sizes:?}: needed {:?}, expected {needed:?}",
                word.needed()?
            )
            .into());
        }
        let past = &d.to_vec()?[(capacity * n) as usize..];
        if past.iter().any(|value| !value.is_mark()) {
            return Err(format!("{sizes:?}: memory past D was written").into());
        }
    }
    Ok(())
}

/// Nothing to do is not an error, and a fresh gradient of no rows is zero.
fn no_rows_at_all(device: &Device, probes: &Probes, engine: Engine) -> Outcome {
    let stream = device.stream()?;
    let sizes = device.buffer_from(&[0u32; 3])?;
    let groups = Groups::new(&[0, 0, 0])?;
    let empty = device.buffer_from::<bf16>(&[])?;
    let d = device.buffer_filled::<f32>(3 * 64 * 72, 0xff)?;
    let call = GemmCall::wgrad(
        groups.at(sizes.ptr()),
        64,
        72,
        Matrix::of(&empty),
        Matrix::of(&empty),
        Matrix::of(&d),
    )
    .with_sink(Sink::F32);
    enqueue(probes, engine, &call, device.sm_count(), &stream)?;
    stream.synchronize()?;
    expect_equal(
        "gradient of no rows",
        &d.to_vec()?,
        &vec![0f32; 3 * 64 * 72],
    )
}

/// The tests of the shapes whose work (products of D's rows, columns and depth) is wanted.
pub fn trials(builds: &[Build], wanted: impl Fn(usize) -> bool) -> Vec<Trial> {
    let mut trials = Vec::new();
    for build in builds {
        let (engine, label) = (build.engine, build.label);
        let trial = |name: String, run: Box<dyn FnOnce() -> Outcome + Send>| {
            let on = build.on.clone();
            trial(name, move || match on {
                Some(config) => mok_tests::emulated(config, run),
                None => run(),
            })
        };
        for form in Form::ALL {
            let sinks = if form == Form::Wgrad {
                &Sink::ALL[..]
            } else {
                &Sink::ALL[..1]
            };
            for &sink in sinks {
                for (index, case) in cases().into_iter().enumerate() {
                    if !wanted(case.work(form)) {
                        continue;
                    }
                    let name = format!("gemm::{label}::{}::{sink:?}::{index:02}", form.name())
                        .to_lowercase();
                    let run = move || check(engine, form, sink, &case);
                    trials.push(trial(name, Box::new(run)));
                }
            }
            let name = format!("gemm::{label}::{}::gaps", form.name());
            let sink = sinks[0];
            trials.push(trial(
                name,
                Box::new(move || check_small(engine, form, sink)),
            ));
            let name = format!("gemm::{label}::{}::deterministic", form.name());
            trials.push(trial(name, Box::new(move || deterministic(engine, form))));
        }
        let run = move || overflow(engine);
        trials.push(trial(format!("gemm::{label}::overflow"), Box::new(run)));
        let run = move || {
            let probes = Probes::load()?;
            no_rows_at_all(&probes.device, &probes, engine)
        };
        trials.push(trial(format!("gemm::{label}::no_rows"), Box::new(run)));
    }
    trials
}
