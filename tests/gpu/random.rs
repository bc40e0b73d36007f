//! Any gate-and-up, any weight gradient, any quantization and any product in MXFP8, on an emulated GPU that is
//! out for trouble.

use half::bf16;
use libtest_mimic::Trial;
use mok::gemm::{Form, GateUpCall, GemmCall, GroupRows, Matrix, OverflowWord, Sink};
use mok::{Arch, Completion, EmulatorConfig, fill};
use mok_tests::{Probes, emulated};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::gate_up::{enqueue, is_activation};
use crate::gemm::{self, Engine};
use crate::{Outcome, expect_equal, mxfp8, quantize, trial};

/// How gate and up lie, outermost first, before each row's elements.
#[derive(Clone, Copy, Debug)]
enum Lie {
    GroupsBothRows,
    GroupsRowsBoth,
    BothGroupsRows,
    BothRowsGroups,
    RowsGroupsBoth,
}

#[derive(Clone, Debug)]
struct Case {
    sizes: Vec<u32>,
    n: usize,
    k: usize,
    /// Blocks of 128 rows that the capacity has beyond what is needed.
    spare: i64,
    lie: Lie,
    up_first: bool,
    /// Elements after each row, in eights: of X, of the weights, of H, G and U.
    gaps: [usize; 5],
    limit: f32,
    /// What isn't a number, where: in X or in the weights.
    odd: Vec<(bool, u64, f32)>,
    engine: Engine,
    blocks: u32,
}

fn sizes() -> impl Strategy<Value = Vec<u32>> {
    let edges = proptest::sample::select(vec![0u32, 1, 8, 9, 63, 64, 65, 128, 129, 192, 193]);
    let some = proptest::collection::vec(prop_oneof![edges, 0u32..300], 1..5);
    prop_oneof![4 => some, 1 => proptest::collection::vec(0u32..3, 33..70)]
}

/// The probes are built for Hopper.
fn engines(arch: Arch) -> impl Strategy<Value = Engine> {
    let engines = [Engine::Shipped, Engine::Warp];
    proptest::sample::select(engines[..if arch.pairs() { 1 } else { 2 }].to_vec())
}

fn devices(arch: Arch) -> impl Strategy<Value = EmulatorConfig> {
    use Completion::{Early, Late, Random};
    let completion = proptest::sample::select(vec![Random, Early, Late]);
    let starved = proptest::option::of(0u32..12);
    // A pair of blocks needs two.
    let least = if arch.pairs() { 2u32 } else { 1 };
    let parts = (least..8, any::<u64>(), completion, any::<bool>(), starved);
    parts.prop_map(
        move |(sms, seed, completion, reverse, starved_warp)| EmulatorConfig {
            arch,
            sms,
            seed,
            completion,
            reverse,
            starved_warp,
            ..EmulatorConfig::default()
        },
    )
}

fn cases(arch: Arch) -> impl Strategy<Value = Case> {
    use Lie::*;
    let depths = prop_oneof![4 => 1usize..20, 1 => 64usize..90];
    let lies = proptest::sample::select(vec![
        GroupsBothRows,
        GroupsRowsBoth,
        BothGroupsRows,
        BothRowsGroups,
        RowsGroupsBoth,
    ]);
    let limits = proptest::sample::select(vec![1e-40f32, 0.7, 7.0, f32::MAX, f32::INFINITY]);
    let no_number = proptest::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
    let odd = proptest::collection::vec((any::<bool>(), any::<u64>(), no_number), 0..4);
    let shape = (sizes(), 1usize..26, depths, -2i64..3, lies, any::<bool>());
    let rest = (proptest::array::uniform5(0usize..3), limits, odd);
    (shape, rest, engines(arch), 1u32..9).prop_map(|(shape, rest, engine, blocks)| {
        let ((sizes, n, k, spare, lie, up_first), (gaps, limit, odd)) = (shape, rest);
        Case {
            sizes,
            n: 8 * n,
            k: 8 * k,
            spare,
            lie,
            up_first,
            gaps: gaps.map(|gap| 8 * gap),
            limit,
            odd,
            engine,
            blocks,
        }
    })
}

impl Case {
    /// Rows of the capacity, rows of each group inside it, and rows needed if those are too few.
    fn rows(&self) -> (usize, Vec<std::ops::Range<usize>>, Option<u64>) {
        let padded = |&size: &u32| size.next_multiple_of(128) as usize;
        let all: usize = self.sizes.iter().map(padded).sum();
        let capacity = (all as i64 + 128 * self.spare).max(0) as usize;
        let (mut start, mut needed) = (0, None);
        let groups = self.sizes.iter().map(|size| {
            let (first, end) = (start, start + *size as usize);
            start += padded(size);
            if end > capacity && *size > 0 {
                needed = Some(end as u64);
            }
            first.min(capacity)..end.min(capacity)
        });
        (capacity, groups.collect(), needed)
    }

    /// Elements of the weights from gate to up (or up to gate), from row to row, from group to group.
    fn strides(&self) -> [usize; 3] {
        let (n, groups, wide) = (self.n, self.sizes.len(), self.k + self.gaps[1]);
        match self.lie {
            Lie::GroupsBothRows => [n * wide, wide, 2 * n * wide],
            Lie::GroupsRowsBoth => [wide, 2 * wide, 2 * n * wide],
            Lie::BothGroupsRows => [groups * n * wide, wide, n * wide],
            Lie::BothRowsGroups => [groups * n * wide, groups * wide, wide],
            Lie::RowsGroupsBoth => [wide, 2 * groups * wide, 2 * wide],
        }
    }
}

/// G and U are those of two products, also where rows don't fit; H is their activation; what isn't a
/// number reaches only its own row, or its own column of its group; nothing else is written.
fn gate_up(case: &Case, config: EmulatorConfig) -> Outcome {
    let probes = emulated(config, Probes::load)?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    let (n, k, wide) = (case.n, case.k, case.k + case.gaps[0]);
    let (capacity, groups, needed) = case.rows();
    let [apart, row, group] = case.strides();

    let mut x = vec![bf16::NAN; (capacity * wide).max(8)];
    let values: Vec<bf16> = fill::normal(1, capacity * k, 1.0);
    for at in groups.iter().cloned().flatten() {
        x[at * wide..][..k].copy_from_slice(&values[at * k..][..k]);
    }
    let lines = 2 * case.sizes.len() * n;
    // Of gate or up, of a group, of a row; gate and up in turn.
    let line = |index: usize| index % 2 * apart + index / 2 / n * group + index / 2 % n * row;
    let mut weights = vec![bf16::NAN; lines * (k + case.gaps[1])];
    let values: Vec<bf16> = fill::normal(2, lines * k, 3.0 / (k as f32).sqrt());
    for index in 0..lines {
        weights[line(index)..][..k].copy_from_slice(&values[index * k..][..k]);
    }
    let (mut odd_rows, mut odd_lines) = (vec![false; capacity], vec![false; lines]);
    for &(in_x, at, value) in &case.odd {
        let (at, column) = ((at >> 8) as usize, at as usize % k);
        let rows: Vec<usize> = groups.iter().cloned().flatten().collect();
        if !in_x {
            weights[line(at % lines) + column] = bf16::from_f32(value);
            odd_lines[at % lines] = true;
        } else if let Some(&row) = rows.get(at % rows.len().max(1)) {
            x[row * wide + column] = bf16::from_f32(value);
            odd_rows[row] = true;
        }
    }

    let (sizes, x) = (device.buffer_from(&case.sizes)?, device.buffer_from(&x)?);
    let weights = device.buffer_from(&weights)?;
    let place = |at: usize| -> Result<Matrix, mok::Error> {
        let matrix = Matrix::in_slice(&weights.slice(at..)?).with_row_stride(row as u64);
        Ok(matrix.with_group_stride(group as u64))
    };
    let mut both = [place(0)?, place(apart)?];
    if case.up_first {
        both.reverse();
    }
    let widths = [2, 3, 4, 3, 4].map(|of: usize| n + case.gaps[of]);
    let outputs = widths.map(|width| device.buffer_filled::<bf16>(capacity * width, 0xff));
    let [h, g, u, g_apart, u_apart] = outputs;
    let outputs = [h?, g?, u?, g_apart?, u_apart?];
    let to = |at: usize| Matrix::of(&outputs[at]).with_row_stride(widths[at] as u64);
    let word = OverflowWord::new(device)?;
    let rows = GroupRows {
        sizes: sizes.ptr(),
        groups: case.sizes.len() as u32,
        capacity: capacity as u32,
        overflow: Some(word.ptr()),
    };
    let (x, columns, depth) = (
        Matrix::of(&x).with_row_stride(wide as u64),
        n as u32,
        k as u32,
    );
    let call = GateUpCall::new(rows, columns, depth, x, both, to(0)).with_limit(case.limit);
    let call = call.keeping(to(1), to(2));
    enqueue(&probes, case.engine, &call, case.blocks, &stream)?;
    stream.synchronize()?;
    expect_equal("the rows needed", &[word.needed()?], &[needed])?;
    for (weights, d) in both.into_iter().zip([to(3), to(4)]) {
        let product = GemmCall::forward(rows, columns, depth, x, weights, d);
        gemm::enqueue(&probes, case.engine, &product, device.sm_count(), &stream)?;
    }
    stream.synchronize()?;

    let [h, g, u, g_apart, u_apart] = outputs.each_ref().map(|output| output.to_vec());
    let bits =
        |values: &[bf16]| -> Vec<u16> { values.iter().map(|value| value.to_bits()).collect() };
    let (h, g, u) = (h?, g?, u?);
    expect_equal("G", &bits(&g), &bits(&g_apart?))?;
    expect_equal("U", &bits(&u), &bits(&u_apart?))?;
    for (at, &value) in h.iter().enumerate() {
        let (row, column) = (at / widths[0], at % widths[0]);
        let group = groups.iter().position(|rows| rows.contains(&row));
        let Some(group) = group.filter(|_| column < n) else {
            if value.to_bits() != 0xffff {
                return Err(format!("H[{row}, {column}] is no one's and was written").into());
            }
            continue;
        };
        let (gate, up) = (g[row * widths[1] + column], u[row * widths[2] + column]);
        let lines = 2 * (group * n + column);
        let odd = odd_rows[row] || odd_lines[lines] || odd_lines[lines + 1];
        if !odd && ![gate, up, value].iter().all(|value| value.is_finite()) {
            return Err(format!("[{row}, {column}]: {gate}, {up}, {value}").into());
        }
        if !is_activation(value, [gate, up], case.limit) {
            return Err(format!("H[{row}, {column}] of {gate} and {up} is {value}").into());
        }
    }
    Ok(())
}

/// Weight gradients in every sink, with gaps or beside each other.
fn wgrads(arch: Arch) -> impl Strategy<Value = (Engine, Sink, gemm::Case)> {
    let sink = proptest::sample::select(Sink::ALL.to_vec());
    let shape = (
        sizes(),
        1usize..26,
        1usize..50,
        any::<bool>(),
        any::<bool>(),
    );
    (engines(arch), sink, shape).prop_map(|(engine, sink, (sizes, m, n, gaps, beside))| {
        let case = gemm::Case {
            gaps,
            beside,
            ..gemm::Case::new(sizes, [8 * m, 8 * n, 8])
        };
        (engine, sink, case)
    })
}

/// Quantizations along either dimension, or both.
fn quantizations() -> impl Strategy<Value = quantize::Quantization> {
    let shape = (1usize..4, 1usize..300, 1usize..5, 0usize..3);
    let results = proptest::sample::select(vec![(true, false), (false, true), (true, true)]);
    let kinds = proptest::collection::vec(any::<u8>(), 1..12);
    (shape, results, kinds, any::<u64>()).prop_map(
        |(shape, (along_columns, along_rows), kinds, seed)| {
            let (groups, rows, columns, gaps) = shape;
            let rows = if along_rows {
                rows.next_multiple_of(128)
            } else {
                rows
            };
            let columns = 128 * columns;
            let bits = (0..groups * rows * columns).map(|at| {
                let (row, column) = (at / columns, at % columns);
                // Some blocks are of one kind, along columns or along rows, and some are mixed.
                let kind =
                    kinds[(row / 32 * 7 + column / 32 * 5 + row * column / 977) % kinds.len()];
                quantize::bits_of(kind, seed, at as u64)
            });
            quantize::Quantization {
                groups,
                rows,
                columns,
                gaps,
                along_columns,
                along_rows,
                bits: bits.collect(),
            }
        },
    )
}

/// Products in MXFP8: any sizes, any room, NaNs anywhere.
fn products() -> impl Strategy<Value = mxfp8::Case> {
    let depths = prop_oneof![4 => 1usize..4, 1 => 5usize..9];
    let odd = proptest::collection::vec((any::<bool>(), any::<u64>(), any::<u64>()), 0..4);
    (sizes(), 1usize..4, depths, 0usize..3, -2i64..3, odd).prop_map(
        |(sizes, n, k, gaps, spare, odd)| mxfp8::Case {
            gaps,
            spare,
            odd,
            ..mxfp8::Case::new(&sizes, 128 * n, 128 * k)
        },
    )
}

fn any_of<T: std::fmt::Debug>(
    count: u32,
    arch: Arch,
    cases: impl Strategy<Value = T>,
    check: impl Fn(&T, EmulatorConfig) -> Outcome,
) -> Outcome {
    let config = Config {
        cases: count,
        max_shrink_iters: 40,
        failure_persistence: None,
        ..Config::default()
    };
    // The same few cases each time, or many others.
    let mut runner = match std::env::var_os("MOK_TEST_ALL") {
        Some(_) => TestRunner::new(config),
        None => {
            let seeds = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
            TestRunner::new_with_rng(config, seeds)
        }
    };
    let run = runner.run(&(cases, devices(arch)), |(case, config)| {
        check(&case, config).map_err(|error| TestCaseError::fail(error.to_string()))
    });
    run.map_err(|error| error.to_string().into())
}

/// More of them if long tests were asked for.
pub fn trials(all: bool) -> Vec<Trial> {
    let count = if all { 400 } else { 6 };
    let of_arch = |arch: Arch| {
        let name = arch.name();
        [
            trial(format!("random::{name}::gate_up"), move || {
                any_of(count, arch, cases(arch), gate_up)
            }),
            trial(format!("random::{name}::wgrad"), move || {
                any_of(count, arch, wgrads(arch), |(engine, sink, case), config| {
                    emulated(config, || gemm::check(*engine, Form::Wgrad, *sink, case))
                })
            }),
            trial(format!("random::{name}::quantize"), move || {
                any_of(2 * count, arch, quantizations(), |case, config| {
                    quantize::quantize(&mok::Device::emulated(config)?, case)
                })
            }),
            trial(format!("random::{name}::mxfp8"), move || {
                any_of(count, arch, products(), |case, config| {
                    emulated(config, || mxfp8::check(case))
                })
            }),
        ]
    };
    Arch::ALL.into_iter().flat_map(of_arch).collect()
}
