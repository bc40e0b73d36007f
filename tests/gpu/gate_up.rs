//! Gate-and-up against two products of the same engine, bit for bit, and against SwiGLU in f64.

use half::bf16;
use libtest_mimic::Trial;
use mok::gemm::{GateUpCall, GemmCall, GroupRows, Matrix};
use mok::{Groups, Slice, Stream, fill};
use mok_kernel::gemm::shared_bytes;
use mok_probes::spec;
use mok_tests::Probes;

use crate::gemm::{self, Build, Engine};
use crate::{Outcome, expect_equal, trial};

/// How the weights lie.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    /// One tensor `[groups][gate's rows, up's rows][k]`.
    Halves,
    /// The same with up first.
    UpFirst,
    /// Row by row in turn: `[groups][n][gate, up][k]`.
    Rows,
    /// One after the other, all groups of gate first, with gaps between rows and groups.
    Gaps,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    sizes: &'static [u32],
    n: usize,
    k: usize,
    lie: Lie,
    limit: Option<f32>,
    /// How large G and U become.
    deviation: f32,
    keeps: bool,
}

const SMALL: Case = Case {
    sizes: &[150, 0, 333, 1, 64],
    n: 136,
    k: 200,
    lie: Lie::Halves,
    limit: None,
    deviation: 1.0,
    keeps: true,
};

/// Widths of every kind, columns that fill no tile, many groups; activations that overflow.
const CASES: [Case; 8] = [
    SMALL,
    Case {
        lie: Lie::UpFirst,
        limit: Some(0.75),
        ..SMALL
    },
    Case {
        lie: Lie::Rows,
        keeps: false,
        n: 64,
        k: 640,
        ..SMALL
    },
    Case {
        lie: Lie::Gaps,
        n: 72,
        k: 64,
        deviation: 100.0,
        ..SMALL
    },
    Case {
        sizes: &[1],
        n: 8,
        k: 8,
        ..SMALL
    },
    Case {
        sizes: &[0, 192, 193, 385, 7],
        n: 320,
        k: 72,
        limit: Some(2.0),
        deviation: 30.0,
        ..SMALL
    },
    Case {
        sizes: &[3; 40],
        n: 200,
        lie: Lie::Gaps,
        k: 128,
        ..SMALL
    },
    Case {
        sizes: &[0, 0],
        ..SMALL
    },
];

/// Where the weights stand: elements from gate to up, from row to row, from group to group, in all.
fn strides(case: &Case, groups: usize) -> (usize, [usize; 2], usize) {
    let (n, k) = (case.n, case.k);
    match case.lie {
        Lie::Halves | Lie::UpFirst => (n * k, [k, 2 * n * k], groups * 2 * n * k),
        Lie::Rows => (k, [2 * k, 2 * n * k], groups * 2 * n * k),
        Lie::Gaps => {
            let (row, group) = (k + 24, (n + 3) * (k + 24));
            (groups * group, [row, group], 2 * groups * group)
        }
    }
}

/// Whether `got` is `silu(g) * u` after the clamps.
pub fn is_activation(got: bf16, [gate, up]: [bf16; 2], limit: f32) -> bool {
    // Comparisons, so that a NaN stays one.
    let clamp = |value: f64| {
        if value > limit.into() {
            limit.into()
        } else {
            value
        }
    };
    let (gate, up) = (clamp(gate.to_f64()), -clamp(-clamp(up.to_f64())));
    // There e^-g is over 2^126, and as an f32 its reciprocal is 0.
    let silu = if gate < -87.34 && gate.is_finite() {
        -0.0
    } else {
        gate / (1.0 + (-gate).exp())
    };
    let want = silu * up;
    // Eight units of an f32 in the last place; zero, where silu is nearly nothing.
    let [one, other] = [1.0, -1.0].map(|sign| bf16::from_f64(want + sign * want * 2f64.powi(-20)));
    got == one
        || got == other
        || got.is_nan() && want.is_nan()
        || got == bf16::ZERO && want.abs() < 1e-30
}

/// One launch, of any engine, on any grid.
pub fn enqueue(
    probes: &Probes,
    engine: Engine,
    call: &GateUpCall,
    sms: u32,
    stream: &Stream,
) -> Result<(), mok::Error> {
    call.check()?;
    let device = &probes.device;
    let grid = call.grid(sms);
    if grid == 0 {
        return Ok(());
    }
    let kernel = match engine {
        Engine::Shipped => device.kernels()?.gate_up().clone(),
        Engine::Warp => probes.kernel(&spec::WARP_GATE_UP)?,
    };
    let arch = engine.arch(device)?;
    probes.tickets.with(stream, |tickets| {
        let args = call.args(tickets)?;
        let mut launch = kernel
            .launch()
            .grid([kernel.spec().whole_clusters(grid), 1, 1])
            .shared(shared_bytes(arch, args.gemm.groups));
        for map in call.tensor_maps()? {
            launch = launch.map(&device.tensor_map(&map)?);
        }
        // SAFETY: the caller's buffers live until it synchronises the stream.
        unsafe { launch.arg(&args).enqueue(stream) }
    })
}

fn check(engine: Engine, case: &Case) -> Outcome {
    let probes = Probes::load()?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    let groups = Groups::new(case.sizes)?;
    let (capacity, n, k) = (groups.capacity() as usize, case.n, case.k);
    let (apart, [row_stride, group_stride], len) = strides(case, groups.len());
    let deviation = case.deviation / (k as f32).sqrt();
    // What lies between the weights is NaN, and so are rows of X that are no group's.
    let mut weights = vec![bf16::NAN; len + k];
    let source: Vec<bf16> = fill::normal(2, 2 * groups.len() * n * k, deviation);
    for (index, row) in source.chunks(k).enumerate() {
        let (which, group, at) = (index % 2, index / 2 / n, index / 2 % n);
        let start = which * apart + group * group_stride + at * row_stride;
        weights[start..][..k].copy_from_slice(row);
    }
    let mut x: Vec<bf16> = fill::normal(1, capacity * k, 1.0);
    for (row, values) in x.chunks_mut(k).enumerate() {
        if groups.group_of(row).is_none() {
            values.fill(bf16::NAN);
        }
    }
    let (sizes, x) = (device.buffer_from(groups.sizes())?, device.buffer_from(&x)?);
    let weights = device.buffer_from(&weights)?;
    let place = |slice: &Slice<'_, bf16>| {
        Matrix::in_slice(slice)
            .with_row_stride(row_stride as u64)
            .with_group_stride(group_stride as u64)
    };
    let both = [place(&weights.view()), place(&weights.slice(apart..)?)];
    let [gate, up] = match case.lie {
        Lie::UpFirst => [both[1], both[0]],
        _ => both,
    };
    let rows: GroupRows = groups.at(sizes.ptr());
    let [h, g, u, g_apart, u_apart] = {
        let filled = || device.buffer_filled::<bf16>(capacity * (n + 16), 0xff);
        [filled()?, filled()?, filled()?, filled()?, filled()?]
    };
    let to = |buffer| Matrix::of(buffer).with_row_stride(n as u64 + 16);
    let (wide, deep, x) = (n as u32, k as u32, Matrix::of(&x));
    let mut call = GateUpCall::new(rows, wide, deep, x, [gate, up], to(&h));
    if let Some(limit) = case.limit {
        call = call.with_limit(limit);
    }
    if case.keeps {
        call = call.keeping(to(&g), to(&u));
    }
    enqueue(&probes, engine, &call, device.sm_count(), &stream)?;
    for (weights, d) in [(gate, &g_apart), (up, &u_apart)] {
        let product = GemmCall::forward(rows, wide, deep, x, weights, to(d));
        gemm::enqueue(&probes, engine, &product, device.sm_count(), &stream)?;
    }
    stream.synchronize()?;
    let bits = |buffer: &mok::Buffer<bf16>| -> Result<Vec<u16>, mok::Error> {
        Ok(buffer.to_vec()?.into_iter().map(bf16::to_bits).collect())
    };
    let (h, g_apart, u_apart) = (bits(&h)?, bits(&g_apart)?, bits(&u_apart)?);
    let (kept_g, kept_u) = match case.keeps {
        true => (g_apart.clone(), u_apart.clone()),
        false => (vec![0xffff; g_apart.len()], vec![0xffff; u_apart.len()]),
    };
    expect_equal("G", &bits(&g)?, &kept_g)?;
    expect_equal("U", &bits(&u)?, &kept_u)?;
    for (at, &bits) in h.iter().enumerate() {
        let (row, column) = (at / (n + 16), at % (n + 16));
        if column >= n || groups.group_of(row).is_none() {
            if bits != 0xffff {
                return Err(format!("H[{row}, {column}] is no one's and was written").into());
            }
            continue;
        }
        let (gate, up) = (bf16::from_bits(g_apart[at]), bf16::from_bits(u_apart[at]));
        let got = bf16::from_bits(bits);
        if !is_activation(got, [gate, up], case.limit.unwrap_or(f32::INFINITY)) {
            return Err(format!("H[{row}, {column}] of {gate} and {up} is {got}").into());
        }
    }
    Ok(())
}

/// Empty and ragged groups, several tiles, all that is kept.
#[allow(dead_code, reason = "only the emulator has schedules to choose from")]
pub fn check_small(engine: Engine) -> Outcome {
    check(engine, &SMALL)
}

/// Widths, layouts, clamps, and what is kept.
pub fn trials(builds: &[Build]) -> Vec<Trial> {
    let mut trials = Vec::new();
    for Build { engine, label, on } in builds {
        for (index, case) in CASES.into_iter().enumerate() {
            let name = format!("gate_up::{label}::{index:02}");
            let (engine, on) = (*engine, on.clone());
            trials.push(trial(name, move || match on {
                Some(config) => mok_tests::emulated(config, || check(engine, &case)),
                None => check(engine, &case),
            }));
        }
    }
    trials
}
