//! `validate`: the table and the JSON of `mok_build::validate`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use mok_build::validate::budgets::Budgets;
use mok_build::validate::{FileReport, Validator};
use mok_build::{Arch, Report, compile, report};
use serde_json::json;

use crate::bars::Bars;
use crate::kernels;
use crate::place::Place;
use crate::predict;

/// `xtask validate`.
pub fn run(given: &[PathBuf], json: bool) -> Result<ExitCode> {
    let judged = Place::find().and_then(|place| judge(&place, given));
    let (reports, errors) = match judged {
        Ok(judged) => judged,
        // Nothing could be judged at all: a script that reads the object reads why.
        Err(error) if json => (Vec::new(), vec![report::in_full(error.as_ref())]),
        Err(error) => return Err(error),
    };
    let passed = errors.is_empty() && reports.iter().all(FileReport::passed);
    if json {
        let files: Vec<_> = reports.iter().map(predict::object).collect();
        let object = json!({ "schema": 1, "passed": passed, "files": files, "errors": errors });
        println!("{object:#}");
    } else if !reports.is_empty() {
        println!("{}", table(&reports));
        if let Some(predicted) = predict::table(&reports) {
            println!("{predicted}");
        }
    }
    for report in &reports {
        explain(report);
    }
    for error in &errors {
        eprintln!("error: {error}");
    }
    Ok(if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Validates our own files, printing the table to standard error.
pub fn shipped(place: &Place) -> Result<bool> {
    let (reports, errors) = judge(place, &[])?;
    eprintln!("{}", table(&reports));
    reports.iter().for_each(explain);
    errors.iter().for_each(|error| eprintln!("error: {error}"));
    Ok(errors.is_empty() && reports.iter().all(FileReport::passed))
}

/// Every file's report, and the errors of those that cannot be judged.
fn judge(place: &Place, given: &[PathBuf]) -> Result<(Vec<FileReport>, Vec<String>)> {
    let of = |arch| (compile::SHIPPED.entries)(arch).iter();
    let ours: Vec<&str> = Arch::ALL
        .into_iter()
        .flat_map(of)
        .map(|spec| spec.entry)
        .collect();
    let (files, must_have_budget) = match (given, place) {
        ([], Place::Checkout(workspace)) => {
            let (_, built) = kernels::built(workspace, &Arch::ALL)?;
            (
                built.into_iter().map(|built| built.ptx).collect(),
                &ours[..],
            )
        }
        ([], Place::Pack(_)) => {
            let file = |arch: Arch| format!("{}_{}.ptx", compile::STEM, arch.name());
            let files = Arch::ALL.map(|arch| place.ptx().join(file(arch)));
            (files.to_vec(), &ours[..])
        }
        _ => (given.to_vec(), &[][..]),
    };
    let mut bars = Bars::new();
    let tools = place.cuda_tools(&mut bars)?;
    let budgets = Budgets::read(&place.budgets())?;
    let validator = Validator::new(&tools, &budgets)?.shipping(must_have_budget);
    let mut reports = Vec::new();
    let mut errors = Vec::new();
    for file in &files {
        let step = format!("validate {}", file.display());
        bars.begin(&step);
        let report = validator.file(file);
        let outcome = match &report {
            Ok(report) if report.passed() => "fit to ship".to_owned(),
            Ok(report) => format!("{} failures", report.failures.len()),
            Err(_) => "cannot be judged".to_owned(),
        };
        bars.end(&step, &outcome);
        match report {
            Ok(report) => {
                errors.extend(predict::differences(&report));
                reports.push(report);
            }
            Err(error) => errors.push(report::in_full(&error)),
        }
    }
    Ok((reports, errors))
}

/// One row an entry.
fn table(reports: &[FileReport]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_BORDERS_ONLY).set_header([
        "arch",
        "entry",
        "registers",
        "budget",
        "spills",
        "stack",
        "shared",
        "collectives",
        "tensor-core SASS",
        "verdict",
    ]);
    for report in reports {
        for entry in &report.entries {
            let failed = report
                .failures
                .iter()
                .filter(|failure| failure.entry == entry.entry);
            let verdict = match failed.count() {
                0 => "ok".to_owned(),
                count => format!("{count} failed"),
            };
            let opcodes: Vec<String> = entry
                .tensor_core
                .iter()
                .map(|(opcode, count)| format!("{count} {opcode}"))
                .collect();
            table.add_row([
                report.target.clone(),
                entry.entry.clone(),
                entry.registers.to_string(),
                entry
                    .budget
                    .map_or("-".to_owned(), |budget| budget.to_string()),
                (entry.spill_stores + entry.spill_loads).to_string(),
                entry.stack.to_string(),
                entry.shared.to_string(),
                entry.collectives.to_string(),
                if opcodes.is_empty() {
                    "none".to_owned()
                } else {
                    opcodes.join(", ")
                },
                verdict,
            ]);
        }
    }
    for number in 2..8 {
        if let Some(column) = table.column_mut(number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn explain(report: &FileReport) {
    let file = report.file.display();
    for failure in &report.failures {
        let line = failure
            .line
            .map_or(String::new(), |line| format!(":{line}"));
        let check = serde_json::to_value(failure.check).unwrap_or_default();
        let check = check.as_str().unwrap_or_default().to_owned();
        let entry = match failure.entry.as_str() {
            "" => String::new(),
            entry => format!("{entry}: "),
        };
        eprintln!("{file}{line}: {entry}{check}: {}", failure.found);
        eprintln!("    {}", failure.fix);
    }
    for remark in &report.remarks {
        eprintln!("{file}: ptxas remarks: {remark}");
    }
}
