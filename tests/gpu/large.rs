//! More than 2^31 elements in each operand and result in turn: 256 rows in float64 on the CPU,
//! every element against an independent kernel.

use half::bf16;
use libtest_mimic::Trial;
use mok::gemm::{Form, GemmCall, Matrix, Sink};
use mok::oracle::{self, Operand, Problem};
use mok::{Buffer, Groups, Slice, fill};
use mok_probes::spec::{self, CompareArgs, NaiveArgs};
use mok_tests::Probes;

use crate::gemm::{Engine, enqueue};
use crate::{Outcome, trial};

struct Case {
    name: &'static str,
    form: Form,
    sink: Sink,
    sizes: Vec<u32>,
    m: usize,
    n: usize,
    k: usize,
}

fn cases() -> Vec<Case> {
    let few: Vec<u32> = (0..1024).map(|group| group % 3 + 1).collect();
    // 65,500 rows a group: the tensor cores' f32 sums lose about 4e-8 of their size for each 16
    // rows, always downwards, and at 262,000 rows that alone is over the limit for bf16 results.
    let many = vec![65_500u32; 32];
    let forward = Case {
        name: "forward_weights",
        form: Form::Forward,
        sink: Sink::Bf16,
        sizes: few.clone(),
        m: 0,
        n: 2048,
        k: 1088,
    };
    vec![
        Case {
            name: "dgrad_weights",
            form: Form::Dgrad,
            sizes: few.clone(),
            ..forward
        },
        Case {
            name: "forward_rows",
            sizes: many.clone(),
            n: 64,
            ..forward
        },
        Case {
            name: "forward_result",
            sizes: many.clone(),
            n: 1088,
            k: 64,
            ..forward
        },
        Case {
            name: "wgrad_result",
            form: Form::Wgrad,
            sink: Sink::F32,
            sizes: few,
            m: 2048,
            n: 1088,
            k: 0,
        },
        Case {
            name: "wgrad_rows",
            form: Form::Wgrad,
            sizes: many,
            m: 1088,
            n: 64,
            k: 0,
            ..forward
        },
        forward,
    ]
}

/// The first 256 rows, and 256 spread over all: read one by one, since all of D would take long.
fn gather(d: &Slice<'_, u8>, rows: &[usize], bytes: usize) -> Result<Vec<u8>, mok::Error> {
    let mut all = vec![0; rows.len() * bytes];
    for (to, &row) in all.chunks_mut(bytes).zip(rows) {
        d.slice(row * bytes..(row + 1) * bytes)?.copy_to(to)?;
    }
    Ok(all)
}

fn large(case: &Case) -> Outcome {
    let probes = Probes::load()?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    let groups = Groups::new(&case.sizes)?;
    let rows = groups.capacity() as usize;
    let (m, n, k) = (case.m, case.n, case.k);
    let (len_a, len_b, d_rows) = match case.form {
        Form::Wgrad => (rows * m, rows * n, groups.len() * m),
        _ => (rows * k, groups.len() * n * k, rows),
    };
    let most = len_a.max(len_b).max(d_rows * n);
    if most <= 1 << 31 {
        return Err(format!("the largest matrix has only {most} elements").into());
    }
    let mut a: Vec<bf16> = fill::normal(1, len_a, 1.0);
    let b: Vec<bf16> = fill::normal(2, len_b, 0.1);
    // NaN between the groups.
    let width = len_a / rows;
    for group in 0..groups.len() {
        let end = groups.rows_of(group).end;
        a[end * width..end.next_multiple_of(128) * width].fill(bf16::NAN);
    }
    let (on_a, on_b) = (device.buffer_from(&a)?, device.buffer_from(&b)?);
    let size = case.sink.element_size() as usize;
    let d: Buffer<u8> = device.buffer_filled(d_rows * n * size, 0xff)?;
    let (sizes, starts) = (
        device.buffer_from(groups.sizes())?,
        device.buffer_from(groups.starts())?,
    );
    let at = groups.at(sizes.ptr());
    let [to_a, to_b, to_d] = [Matrix::of(&on_a), Matrix::of(&on_b), Matrix::of(&d)];
    let (problem, call) = match case.form {
        Form::Forward => (
            Problem::forward(&groups, n, k, Operand::new(&a), Operand::new(&b))?,
            GemmCall::forward(at, n as u32, k as u32, to_a, to_b, to_d),
        ),
        Form::Dgrad => (
            Problem::dgrad(&groups, n, k, Operand::new(&a), Operand::new(&b))?,
            GemmCall::dgrad(at, n as u32, k as u32, to_a, to_b, to_d),
        ),
        Form::Wgrad => (
            Problem::wgrad(&groups, m, n, Operand::new(&a), Operand::new(&b))?,
            GemmCall::wgrad(at, m as u32, n as u32, to_a, to_b, to_d).with_sink(case.sink),
        ),
    };
    enqueue(&probes, Engine::Shipped, &call, device.sm_count(), &stream)?;
    stream.synchronize()?;

    // 256 rows in float64.
    let sample = problem.sample_rows(256, 7);
    let sums = problem.sums(&sample)?;
    let (rounded, exact) = (sums.rounded(case.sink, None)?, sums.exact(None)?);
    let bytes = gather(&d.view(), &sample, n * size)?;
    let place = |row: usize| {
        sample
            .binary_search(&row)
            .map_or(usize::MAX, |index| index * n)
    };
    let (rounded, exact) = match size {
        2 => {
            let values: Vec<bf16> = bytes
                .chunks_exact(size)
                .map(bytemuck::pod_read_unaligned)
                .collect();
            (
                rounded.compare_at(&values, place)?,
                exact.compare_at(&values, place)?,
            )
        }
        _ => {
            let values: Vec<f32> = bytes
                .chunks_exact(size)
                .map(bytemuck::pod_read_unaligned)
                .collect();
            (
                rounded.compare_at(&values, place)?,
                exact.compare_at(&values, place)?,
            )
        }
    };
    if !rounded.passes(oracle::ROUNDED) || !exact.passes(oracle::EXACT) {
        return Err(format!("sampled rows: rounded {rounded:?}, exact {exact:?}").into());
    }

    // Every element against the plain kernel, and the padding against its mark.
    let reference: Buffer<u8> = device.buffer_filled(d_rows * n * 4, 0xff)?;
    let naive = NaiveArgs {
        a: on_a.ptr().as_raw(),
        b: on_b.ptr().as_raw(),
        d: reference.ptr().as_raw(),
        starts: starts.ptr().as_raw(),
        rows: sizes.ptr().as_raw(),
        m: if case.form == Form::Wgrad {
            m
        } else {
            groups.len()
        } as u32,
        n: n as u32,
        k: k as u32,
        form: case.form as u32,
    };
    let grid = [d_rows as u32, n.div_ceil(256) as u32, 1];
    // SAFETY: the buffers are as the arguments say.
    unsafe {
        probes
            .kernel(&spec::NAIVE_GEMM)?
            .launch()
            .grid(grid)
            .arg(&naive)
            .enqueue(&stream)?
    };
    let output = device.buffer_zeroed::<[u32; 3]>(d_rows)?;
    let compare = CompareArgs {
        d: d.ptr().as_raw(),
        reference: reference.ptr().as_raw(),
        output: output.ptr().as_raw(),
        n: n as u32,
        wide: u32::from(size == 4),
    };
    let kernel = probes.kernel(&spec::COMPARE_ROWS)?;
    // SAFETY: as above.
    unsafe {
        kernel
            .launch()
            .grid([d_rows as u32, 1, 1])
            .shared(256 * 12)
            .arg(&compare)
            .enqueue(&stream)?
    };
    stream.synchronize()?;
    let (mut error, mut norm) = (0f64, 0f64);
    for (row, &[row_error, row_norm, bad]) in output.to_vec()?.iter().enumerate() {
        let (row_error, row_norm) = (
            f64::from(f32::from_bits(row_error)),
            f64::from(f32::from_bits(row_norm)),
        );
        error += row_error;
        norm += row_norm;
        if bad > 0 || row_error > (oracle::EXACT.row * oracle::EXACT.row) * row_norm {
            return Err(format!(
                "row {row}: {bad} bad elements, squared error {row_error} of {row_norm}"
            )
            .into());
        }
    }
    match norm > 0.0 && (error / norm).sqrt() <= oracle::EXACT.whole {
        true => Ok(()),
        false => Err(format!("all elements: error {} of {norm}", error.sqrt()).into()),
    }
}

pub fn trials() -> Vec<Trial> {
    cases()
        .into_iter()
        .map(|case| trial(format!("large::{}", case.name), move || large(&case)))
        .collect()
}
