//! `run gemm`: the three products against the oracle.

use anyhow::Result;
use clap::{Parser, ValueEnum};
use mok::gemm::{Form, Sink};
use mok::oracle::{EXACT, ROUNDED};
use mok::{Device, Image};

use crate::backend::Backend;
use crate::host_checks;
use crate::products::{MARK, Product, Products};
use crate::progress::Progress;
use crate::report::{Check, Report, ShapeReport};
use crate::shape::{Data, Numbers, Shape};

/// Run the grouped GEMM in its three forms, and compare it with the oracle
///
/// Forward, dgrad and wgrad with every sink, on a small shape, against f64 sums with and without
/// the sink's rounding, with NaN wherever no result may look: on a GPU, or with none in the
/// emulator, whose checker must find nothing. It says which it used (`backend`).
#[derive(Parser, Debug)]
#[command(after_help = "\
Examples:
  cargo xtask run gemm
  cargo xtask run gemm --json
  cargo xtask run gemm --groups 1000,0,24,3000 --n 4096 --k 7168 --sample 256
  cargo xtask run gemm --backend cuda --sink add-f32 --seed 7
  cargo xtask run gemm --backend emulator         though there is a GPU
  cargo xtask run gemm --backend none             only what the host can check

Exit status: 0 if every check passed, 1 if one failed, 2 if it could not run.")]
pub struct Args {
    #[command(flatten)]
    shape: Shape,
    /// Where to run
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    backend: Backend,
    /// Which GPU
    #[arg(long, default_value_t = 0)]
    device: usize,
    /// Where weight gradients go
    #[arg(long, value_enum, default_value_t = SinkArg::All)]
    sink: SinkArg,
    /// Compare about this many rows of each product; 0 compares all
    #[arg(long, default_value_t = 0)]
    sample: usize,
    /// Print one JSON object on standard output, everything else on standard error
    #[arg(long)]
    pub json: bool,
}

/// A sink by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SinkArg {
    /// All of them
    All,
    /// Fresh bf16
    Bf16,
    /// Fresh f32
    F32,
    /// Added to f32
    AddF32,
    /// Added to bf16
    AddBf16,
}

impl SinkArg {
    fn takes(self, sink: Sink) -> bool {
        match self {
            SinkArg::All => true,
            SinkArg::Bf16 => sink == Sink::Bf16,
            SinkArg::F32 => sink == Sink::F32,
            SinkArg::AddF32 => sink == Sink::AddF32,
            SinkArg::AddBf16 => sink == Sink::AddBf16,
        }
    }
}

/// A sink's name in checks and files.
pub fn sink_name(sink: Sink) -> &'static str {
    match sink {
        Sink::Bf16 => "bf16",
        Sink::F32 => "f32",
        Sink::AddF32 => "add_f32",
        Sink::AddBf16 => "add_bf16",
    }
}

/// The forms with the sinks that they take.
pub fn forms_and_sinks() -> impl Iterator<Item = (Form, Sink)> {
    Form::ALL.into_iter().flat_map(|form| {
        Sink::ALL
            .into_iter()
            .filter(move |&sink| form == Form::Wgrad || sink == Sink::Bf16)
            .map(move |sink| (form, sink))
    })
}

/// The object of a run whose arguments are wrong, so that its shape isn't known.
pub fn print_usage_error(error: &anyhow::Error) {
    // Standard output is gone if this fails; the exit status still tells.
    let _ = Report::failed("none", ShapeReport::default(), error).print(true);
}

/// `xtask run gemm`; whether everything passed.
pub fn run(args: &Args) -> Result<bool> {
    let mut backend = "none";
    let report = match checked(args, &mut backend) {
        Ok(report) => report,
        Err(error) => {
            if args.json {
                Report::failed(backend, args.shape.report(), &error).print(true)?;
            }
            return Err(error);
        }
    };
    report.print(args.json)?;
    Ok(report.passed())
}

/// Runs the checks; `backend` is where, as soon as that is known.
fn checked(args: &Args, backend: &mut &'static str) -> Result<Report> {
    let data = Data::new(&args.shape, Numbers::Normal)?;
    match args.backend.open(args.device)? {
        None => {
            let mut checks = host_checks::all(&data, args.shape.seed)?;
            checks.extend(Check::validated());
            Ok(Report::new("none", None, args.shape.report(), checks))
        }
        Some(device) => {
            *backend = if device.is_emulated() {
                "emulator"
            } else {
                "cuda"
            };
            let module = device.kernels()?.module();
            let image = match module.image() {
                Image::Cubin => "cubins",
                Image::Ptx if device.is_emulated() => "PTX",
                Image::Ptx => "PTX, compiled by the driver",
            };
            eprintln!("{}, {image}", device.name());
            let passed_over = module.cubin_error().filter(|_| !device.is_emulated());
            if let Some(error) = passed_over {
                eprintln!("the cubin was not taken: {error}");
            }
            let arch = device.arch()?.name();
            let mut checks = on_device(args, &device, &data)?;
            checks.extend(Check::validated());
            Ok(Report::new(
                backend,
                Some(arch),
                args.shape.report(),
                checks,
            ))
        }
    }
}

fn on_device(args: &Args, device: &Device, data: &Data) -> Result<Vec<Check>> {
    let wanted: Vec<(Form, Sink)> = forms_and_sinks()
        .filter(|&(form, sink)| form != Form::Wgrad || args.sink.takes(sink))
        .collect();
    let progress = Progress::new(wanted.len());
    let products = Products::new(device, data)?;
    let mut checks = Vec::new();
    for (form, sink) in wanted {
        let name = match form {
            Form::Wgrad => format!("{}.{}", form.name(), sink_name(sink)),
            _ => form.name().to_owned(),
        };
        progress.at(name.clone());
        let bytes = products.bytes(form, sink, device.sm_count())?;
        let again = products.bytes(form, sink, 1)?;
        let different = bytes.iter().zip(&again).filter(|(a, b)| a != b).count();
        checks.push(Check::none(format!("{name}.differs_on_one_sm"), different));
        if form != Form::Wgrad {
            checks.push(Check::none(
                format!("{name}.padding_written"),
                padding_written(data, form, &bytes),
            ));
        }
        let problem = data.problem(form)?;
        let rows = problem.sample_rows(args.sample, args.shape.seed);
        let sums = problem.sums(&rows)?;
        let old = data.old(form, sink);
        let product = Product::new(sink, &bytes);
        let exact = product.compare(&sums.exact(old.as_deref())?)?;
        checks.extend(Check::compared(&format!("{name}.exact"), &exact, EXACT));
        let rounded = product.compare(&sums.rounded(sink, old.as_deref())?)?;
        checks.extend(Check::compared(
            &format!("{name}.rounded"),
            &rounded,
            ROUNDED,
        ));
        progress.step();
    }
    Ok(checks)
}

/// Bytes outside the groups' rows that are no longer what they were.
fn padding_written(data: &Data, form: Form, bytes: &[u8]) -> usize {
    let (_, cols) = data.d_extent(form);
    bytes
        .chunks(cols * 2)
        .enumerate()
        .filter(|&(row, _)| data.groups.group_of(row).is_none())
        .map(|(_, row)| row.iter().filter(|&&byte| byte != MARK).count())
        .sum()
}
