//! What entries should take that no machine at hand can run: [`model`], beside what was assembled.

use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use mok_build::Arch;
use mok_build::validate::{EntryReport, FileReport};
use mok_kernel::gemm::model::{self, Model};
use serde_json::{Value, json};

/// What a reader must know of every figure.
const LABEL: &str = "predicted by a model, never measured (docs/gemm.md, \"What it should take\")";

/// The models of a file's entries, with what was assembled of them.
fn predicted(report: &FileReport) -> impl Iterator<Item = (&EntryReport, Model)> {
    let pairs = Arch::from_name(&report.target).is_some_and(Arch::pairs);
    report.entries.iter().filter_map(move |entry| {
        let mut models = model::all().into_iter().filter(|_| pairs);
        let model = models.find(|model| model.spec.entry == entry.entry)?;
        Some((entry, model))
    })
}

/// Tensor-core instructions in an entry's machine code.
fn in_machine_code(entry: &EntryReport) -> u32 {
    entry.tensor_core.values().sum()
}

/// Where the machine code is not what the model counts: its only products stand in the loop over stages, whose steps
/// are unrolled.
pub fn differences(report: &FileReport) -> Vec<String> {
    predicted(report)
        .filter(|(entry, model)| in_machine_code(entry) != model.products_a_stage)
        .map(|(entry, model)| {
            format!(
                "{}: {}: the machine code has {} products, and the model (kernel/src/gemm/model.rs) {} a stage",
                report.file.display(),
                entry.entry,
                in_machine_code(entry),
                model.products_a_stage
            )
        })
        .collect()
}

/// A file's report as an object, with its predictions.
pub fn object(report: &FileReport) -> Value {
    let mut object = json!(report);
    let entries: Vec<Value> = predicted(report)
        .map(|(entry, model)| {
            json!({
                "entry": entry.entry,
                "registers": entry.registers,
                "tile": model.tile,
                "stages": model.stages,
                "products_a_stage": model.products_a_stage,
                "products_a_tile": model.products(),
                "shared_bytes": model.shared(),
                "tensor_memory_columns": model.tensor_columns(),
                "tensor_memory_bytes": model.tensor_bytes(),
                "product_clocks": model.busy(),
                "memory_clocks": model.moving(),
                "utilisation": f64::from(model.utilisation()) / 1000.0,
            })
        })
        .collect();
    if !entries.is_empty() {
        object["prediction"] = json!({ "label": LABEL, "entries": entries });
    }
    object
}

/// One row an entry that is predicted; nothing if none is.
pub fn table(reports: &[FileReport]) -> Option<String> {
    let mut table = Table::new();
    table.load_preset(UTF8_BORDERS_ONLY).set_header([
        "arch",
        "entry",
        "registers",
        "tile",
        "products a tile",
        "shared",
        "tensor memory",
        "product clocks",
        "memory clocks",
        "utilisation",
    ]);
    for report in reports {
        for (entry, model) in predicted(report) {
            let [fixed, wide] = model.tile;
            table.add_row([
                report.target.clone(),
                entry.entry.clone(),
                entry.registers.to_string(),
                format!("{fixed} x {wide}"),
                format!(
                    "{} x {} = {}",
                    model.stages,
                    model.products_a_stage,
                    model.products()
                ),
                model.shared().to_string(),
                format!("{} x 512", model.tensor_columns()),
                model.busy().to_string(),
                model.moving().to_string(),
                format!("{} %", model.utilisation() / 10),
            ]);
        }
    }
    for number in 2..10 {
        if let Some(column) = table.column_mut(number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    (table.row_count() > 0).then(|| format!("A full tile, {LABEL}:\n{table}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A file with one entry that multiplies.
    fn report(target: &str, entry: &str, products: u32) -> FileReport {
        let entry = EntryReport {
            entry: entry.into(),
            registers: 90,
            budget: None,
            spill_stores: 0,
            spill_loads: 0,
            stack: 0,
            shared: 0,
            collectives: 0,
            tensor_core: BTreeMap::from([("UTCQMMA.2CTA".into(), products)]),
        };
        FileReport {
            file: "a.ptx".into(),
            target: target.into(),
            ptx_version: "8.7".into(),
            sha256: String::new(),
            entries: vec![entry],
            failures: Vec::new(),
            remarks: Vec::new(),
        }
    }

    #[test]
    fn every_figure_is_labelled_as_a_prediction() {
        let right = report("sm_103a", "mok_gemm_forward_mxfp8", 4);
        assert!(differences(&right).is_empty());
        let shown = table(std::slice::from_ref(&right)).unwrap();
        assert!(shown.contains("never measured"), "{shown}");
        for part in ["256 x 192", "56 x 4 = 224", "512 x 512", "53 %", " 90 "] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let object = object(&right);
        let prediction = &object["prediction"];
        assert_eq!(prediction["label"], LABEL);
        let entry = &prediction["entries"][0];
        assert_eq!(entry["products_a_tile"], 224);
        assert_eq!(entry["tensor_memory_bytes"], 256 * 1024);
        let model = model::all()[4];
        let utilisation = f64::from(model.busy()) / f64::from(model.moving());
        assert!((entry["utilisation"].as_f64().unwrap() - utilisation).abs() < 1e-3);
        // What was found stays as it was.
        assert_eq!(object["entries"][0]["registers"], 90);
    }

    #[test]
    fn machine_code_that_isnt_the_models_is_told_of() {
        let wrong = report("sm_100a", "mok_gemm_wgrad", 8);
        let [difference] = &differences(&wrong)[..] else {
            panic!();
        };
        assert!(difference.contains("mok_gemm_wgrad") && difference.contains("has 8 products"));
    }

    #[test]
    fn what_runs_at_hand_is_not_predicted() {
        for other in [
            report("sm_90a", "mok_gemm_forward", 160),
            report("sm_100a", "mok_combine", 0),
            report("no_target", "mok_gemm_forward", 4),
        ] {
            assert!(differences(&other).is_empty());
            assert_eq!(table(std::slice::from_ref(&other)), None);
            assert!(object(&other).get("prediction").is_none());
        }
    }
}
