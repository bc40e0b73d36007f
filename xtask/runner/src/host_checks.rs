//! What can be checked with no GPU: the oracle, the layout, the calls, the kernels' text.

use anyhow::Result;
use half::bf16;
use mok::gemm::{Form, Matrix, Sink};
use mok::oracle::{EXACT, ROUNDED, Reference};
use mok::{Arch, DevicePtr, fill, kernels};
use mok_kernel::entries;
use mok_kernel::gemm::{ROW_ALIGN, shared_bytes};

use crate::products;
use crate::progress::Progress;
use crate::report::Check;
use crate::run::gemm::{forms_and_sinks, sink_name};
use crate::shape::Data;

/// All of them.
pub fn all(data: &Data, seed: u64) -> Result<Vec<Check>> {
    let progress = Progress::new(6);
    let mut checks = Vec::new();
    for form in Form::ALL {
        progress.at(format!("oracle: {}", form.name()));
        oracle(data, form, seed, &mut checks)?;
        progress.step();
    }
    progress.at("layout");
    checks.push(Check::none("layout.rows_misplaced", rows_misplaced(data)));
    progress.step();
    progress.at("calls");
    calls(data, &mut checks);
    progress.step();
    progress.at("kernels");
    embedded(&Arch::ALL, &mut checks);
    progress.step();
    Ok(checks)
}

/// Rows that the oracle is checked on; it takes the definition's time.
const ROWS: usize = 48;

/// The oracle against the definition, and its verdict on right and on wrong results.
fn oracle(data: &Data, form: Form, seed: u64, checks: &mut Vec<Check>) -> Result<()> {
    let name = form.name();
    let problem = data.problem(form)?;
    let rows = problem.sample_rows(ROWS, seed);
    let sums = problem.sums(&rows)?;
    let exact = sums.exact(None)?;
    let rounded = sums.rounded(Sink::Bf16, None)?;
    let mut worst = 0f64;
    for (row, values) in exact.iter() {
        // A few columns of each row: the first, the last, and some between.
        let picked = (0..8).map(|pick| fill::hash(seed, pick) as usize % values.len());
        for col in picked.chain([0, values.len() - 1]) {
            worst = worst.max((values[col] - by_definition(data, form, row, col)).abs());
        }
    }
    checks.push(Check::at_most(
        format!("oracle.{name}.off_definition"),
        worst,
        1e-9,
    ));
    let right = result_of(&rounded);
    let judge = |values: &[bf16]| -> Result<bool> {
        let start = |row: usize| rows.partition_point(|&sampled| sampled < row) * rounded.cols();
        Ok(exact.compare_at(values, start)?.passes(EXACT)
            && rounded.compare_at(values, start)?.passes(ROUNDED))
    };
    checks.push(Check::none(
        format!("oracle.{name}.right_refused"),
        usize::from(!judge(&right)?),
    ));
    let mut missed = 0;
    for fault in faults(&right, rounded.cols()) {
        missed += usize::from(judge(&fault)?);
    }
    checks.push(Check::none(format!("oracle.{name}.faults_missed"), missed));
    Ok(())
}

fn by_definition(data: &Data, form: Form, row: usize, col: usize) -> f64 {
    let (n, k) = (data.n, data.k);
    let x = |row: usize, col: usize| data.x[row * k + col].to_f64();
    let dy = |row: usize, col: usize| data.dy[row * n + col].to_f64();
    // Sampled rows are always a group's.
    let group = data.groups.group_of(row).unwrap_or(0);
    let w = |out: usize, depth: usize| data.w[(group * n + out) * k + depth].to_f64();
    match form {
        Form::Forward => (0..k).map(|depth| x(row, depth) * w(col, depth)).sum(),
        Form::Dgrad => (0..n).map(|out| dy(row, out) * w(out, col)).sum(),
        Form::Wgrad => (data.groups.rows_of(row / n))
            .map(|r| dy(r, row % n) * x(r, col))
            .sum(),
    }
}

/// A reference's rows as a kernel would have stored them.
fn result_of(reference: &Reference) -> Vec<bf16> {
    reference
        .iter()
        .flat_map(|(_, values)| values.iter().map(|&value| bf16::from_f64(value)))
        .collect()
}

/// Wrong results: a lost row, a NaN, swapped rows, a doubled product. Only of rows that are not
/// zero, where each of them is a fault.
fn faults(right: &[bf16], cols: usize) -> Vec<Vec<bf16>> {
    let is_zero = |row: &[bf16]| row.iter().all(|value| value.to_f32() == 0.0);
    let rows: Vec<usize> = right
        .chunks_exact(cols)
        .enumerate()
        .filter(|(_, row)| !is_zero(row))
        .map(|(index, _)| index * cols)
        .collect();
    let (Some(&first), Some(&last)) = (rows.first(), rows.last()) else {
        return Vec::new();
    };
    let plant = |fault: &dyn Fn(&mut [bf16])| {
        let mut values = right.to_vec();
        fault(&mut values);
        values
    };
    let mut planted = vec![
        plant(&|values| values[last..last + cols].fill(bf16::ZERO)),
        plant(&|values| values[first + cols / 2] = bf16::NAN),
        plant(&|values| {
            for value in values {
                *value = bf16::from_f32(value.to_f32() * 2.0);
            }
        }),
    ];
    if first != last && right[first..first + cols] != right[last..last + cols] {
        planted.push(plant(&|values| {
            for col in 0..cols {
                values.swap(first + col, last + col);
            }
        }));
    }
    planted
}

/// Groups that do not start where they should, or share rows.
fn rows_misplaced(data: &Data) -> usize {
    let groups = &data.groups;
    let mut next = 0;
    (0..groups.len())
        .filter(|&group| {
            let rows = groups.rows_of(group);
            let right = groups.starts()[group].is_multiple_of(ROW_ALIGN)
                && groups.starts()[group] as usize >= next
                && rows.end <= groups.capacity() as usize;
            next = next.max(rows.end);
            !right
        })
        .count()
}

/// Every call passes its checks, and calls with one thing wrong don't.
fn calls(data: &Data, checks: &mut Vec<Check>) {
    let at = |address: u64| Matrix::new(DevicePtr::from_raw(address));
    let groups = data.groups.at(DevicePtr::from_raw(0x100));
    // Apart by more than any tensor; nothing is ever read there.
    let inputs = [at(1 << 44), at(2 << 44), at(3 << 44)];
    for (form, sink) in forms_and_sinks() {
        let name = format!("call.{}.{}", form.name(), sink_name(sink));
        let right = products::call(data, form, groups, inputs, at(4 << 44)).with_sink(sink);
        let refused = right.check();
        if let Err(error) = &refused {
            eprintln!("{name}: {error}");
        }
        checks.push(Check::none(
            format!("{name}.refused"),
            usize::from(refused.is_err()),
        ));
        if data.groups.capacity() == 0 {
            continue;
        }
        let call = |groups, d| products::call(data, form, groups, inputs, d).with_sink(sink);
        let wrong = [
            call(groups, at(4 << 44 | 8)),
            call(groups, at(0)),
            call(groups, at(4 << 44).with_row_stride(1)),
            call(groups.with_capacity(groups.capacity + 1), at(4 << 44)),
            call(groups.with_overflow(DevicePtr::from_raw(4)), at(4 << 44)),
        ];
        let accepted = wrong.iter().filter(|call| call.check().is_ok()).count();
        checks.push(Check::none(format!("{name}.wrong_accepted"), accepted));
    }
    for arch in Arch::ALL {
        checks.push(Check::at_most(
            format!("launch.{}.shared_bytes", arch.name()),
            shared_bytes(arch, groups.groups).into(),
            Form::Forward.spec(arch).max_shared.into(),
        ));
    }
}

/// The kernels' text has every entry, with its launch directives.
pub fn embedded(archs: &[Arch], checks: &mut Vec<Check>) {
    for &arch in archs {
        let Some(code) = kernels::embedded(arch) else {
            checks.push(Check::none(
                format!("kernels.{}.missing", arch.name()),
                entries(arch).len(),
            ));
            continue;
        };
        let target = format!(".target {}", arch.name());
        let missing = entries(arch).iter().filter(|spec| {
            let header = code
                .ptx
                .split(".entry ")
                .find(|text| text.starts_with(&format!("{}(", spec.entry)))
                .and_then(|text| text.split('{').next());
            let threads = format!(".reqntid {}", spec.threads);
            let cluster = format!(".reqnctapercluster {}", spec.cluster);
            !header.is_some_and(|header| {
                header.contains(&threads) && (spec.cluster == 1) != header.contains(&cluster)
            }) || !code.ptx.contains(&target)
        });
        checks.push(Check::none(
            format!("kernels.{}.missing", arch.name()),
            missing.count(),
        ));
    }
}
