//! Checkpoints of three model families, against what Hugging Face's own blocks compute.
//!
//! The files were made by tests/checkpoints/make.py.

use std::path::{Path, PathBuf};
use std::process::Command;

use half::bf16;
use safetensors::SafeTensors;
use serde_json::Value;

fn folder(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/checkpoints")
        .join(family)
}

fn run(inputs: &[&Path], more: &[&str]) -> (Value, bool) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask-runner"));
    command
        .args(["run", "--backend", "emulator", "--json"])
        .args(more);
    for input in inputs {
        command.arg("--input").arg(input);
    }
    let output = command.output().unwrap();
    (
        serde_json::from_slice(&output.stdout).unwrap(),
        output.status.success(),
    )
}

fn floats(bytes: &[u8]) -> Vec<f64> {
    let (numbers, _) = bytes.as_chunks::<4>();
    numbers
        .iter()
        .map(|bytes| f64::from(f32::from_le_bytes(*bytes)))
        .collect()
}

/// Experts of a token with their weights, in the experts' order.
fn routes(experts: &[i64], weights: &[f64], top_k: usize) -> Vec<Vec<(i64, f64)>> {
    let tokens = experts.chunks(top_k).zip(weights.chunks(top_k));
    tokens
        .map(|(experts, weights)| {
            let mut own: Vec<_> = experts
                .iter()
                .copied()
                .zip(weights.iter().copied())
                .collect();
            own.sort_by_key(|(expert, _)| *expert);
            own
        })
        .collect()
}

/// Runs the layer of a folder, and compares routes and outputs with what was recorded.
fn agrees(family: &str, weights: &Path) {
    let temp = tempfile::tempdir().unwrap();
    let output = temp.path().join("out.safetensors");
    let tokens = folder(family).join("tokens.safetensors");
    let (report, passed) = run(
        &[weights, &tokens],
        &["--ranks", "2", "--output", output.to_str().unwrap()],
    );
    assert!(passed, "{report}");
    assert_eq!(report["origin"]["routing"], "the checkpoint's router");
    let (own, theirs) = (
        std::fs::read(&output).unwrap(),
        std::fs::read(folder(family).join("expected.safetensors")).unwrap(),
    );
    let (own, theirs) = (
        SafeTensors::deserialize(&own).unwrap(),
        SafeTensors::deserialize(&theirs).unwrap(),
    );
    let tensor = |file: &SafeTensors<'_>, name| file.tensor(name).unwrap().data().to_vec();
    let top_k = own.tensor("topk_experts").unwrap().shape()[1];
    let narrow: Vec<i64> = tensor(&own, "topk_experts")
        .as_chunks::<4>()
        .0
        .iter()
        .map(|&b| i32::from_le_bytes(b).into())
        .collect();
    let wide: Vec<i64> = tensor(&theirs, "topk_experts")
        .as_chunks::<8>()
        .0
        .iter()
        .map(|&b| i64::from_le_bytes(b))
        .collect();
    let own_routes = routes(&narrow, &floats(&tensor(&own, "router_weights")), top_k);
    let their_routes = routes(&wide, &floats(&tensor(&theirs, "router_weights")), top_k);
    for (token, (own, theirs)) in own_routes.iter().zip(&their_routes).enumerate() {
        for (own, theirs) in own.iter().zip(theirs) {
            assert_eq!(own.0, theirs.0, "{family}, token {token}");
            assert!(
                (own.1 - theirs.1).abs() < 1e-5,
                "{family}, token {token}: {own:?} {theirs:?}"
            );
        }
    }
    let out: Vec<f64> = tensor(&own, "out")
        .as_chunks::<2>()
        .0
        .iter()
        .map(|&b| bf16::from_le_bytes(b).to_f64())
        .collect();
    let expected = floats(&tensor(&theirs, "out"));
    assert_eq!(out.len(), expected.len());
    let hidden = own.tensor("out").unwrap().shape()[1];
    // Of the whole and of each token, as the contract has it for references without rounding.
    let off = |out: &[f64], expected: &[f64]| {
        let error: f64 = out.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum();
        (error / expected.iter().map(|b| b.powi(2)).sum::<f64>()).sqrt()
    };
    let whole = off(&out, &expected);
    assert!(whole <= 6e-3, "{family}: {whole}");
    for (out, expected) in out.chunks(hidden).zip(expected.chunks(hidden)) {
        let row = off(out, expected);
        assert!(row <= 2e-2, "{family}: {row}");
    }
}

#[test]
fn qwen3_moe() {
    agrees("qwen3_moe", &folder("qwen3_moe"));
}

/// In two parts, with a list of them.
#[test]
fn mixtral() {
    agrees("mixtral", &folder("mixtral"));
}

/// With a shared expert, groups of experts, and a bias.
#[test]
fn deepseek_v3() {
    agrees("deepseek_v3", &folder("deepseek_v3"));
}

/// Every tensor under another name.
fn renamed(from: &Path, to: &Path, name: impl Fn(&str) -> Option<String>) {
    let bytes = std::fs::read(from).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = tensors
        .tensors()
        .into_iter()
        .filter_map(|(old, view)| Some((name(&old)?, view)));
    std::fs::write(to, safetensors::serialize(tensors, None).unwrap()).unwrap();
}

#[test]
fn names_without_the_model_and_other_layers() {
    let temp = tempfile::tempdir().unwrap();
    let source = folder("qwen3_moe");
    let path = temp.path().join("model.safetensors");
    renamed(&source.join("model.safetensors"), &path, |name| {
        name.strip_prefix("model.").map(str::to_owned)
    });
    std::fs::copy(source.join("config.json"), temp.path().join("config.json")).unwrap();
    agrees("qwen3_moe", temp.path());
    agrees("qwen3_moe", &path);
    let tokens = source.join("tokens.safetensors");
    let (report, passed) = run(&[&path, &tokens], &["--layer", "4"]);
    assert!(!passed);
    let error = report["error"].as_str().unwrap();
    assert!(
        error.contains("--layer 4") && error.contains("[1]"),
        "{error}"
    );
}

#[test]
fn what_a_checkpoint_lacks_is_named() {
    let temp = tempfile::tempdir().unwrap();
    let source = folder("deepseek_v3");
    let path = temp.path().join("model.safetensors");
    let tokens = source.join("tokens.safetensors");
    let config = temp.path().join("config.json");
    let text = std::fs::read_to_string(source.join("config.json")).unwrap();
    let stem = "model.layers.1.mlp.";
    let error = |more: &[&str]| -> String {
        let (report, passed) = run(&[&path, &tokens], more);
        assert!(!passed, "{report}");
        report["error"].as_str().unwrap().to_owned()
    };
    let without = |part: &str| {
        renamed(&source.join("model.safetensors"), &path, |name| {
            (!name.contains(part)).then(|| name.to_owned())
        });
    };
    without("nothing");
    let told = error(&[]);
    assert!(
        told.contains("config.json") && told.contains("gate.weight"),
        "{told}"
    );
    std::fs::write(&config, "{").unwrap();
    assert!(error(&[]).contains("config.json is no JSON"));
    for (key, value, says) in [
        ("num_experts_per_tok", "0", "num_experts_per_tok is 0"),
        ("num_experts_per_tok", "99", "chooses 99 experts"),
        ("n_group", "3", "n_group is 3"),
        (
            "topk_group",
            "1",
            "topk_group is 1 of 4 groups of 2 experts",
        ),
        (
            "routed_scaling_factor",
            "\"much\"",
            "routed_scaling_factor is \"much\", not a number",
        ),
        ("hidden_act", "\"gelu\"", "hidden_act is \"gelu\""),
    ] {
        let mut changed: Value = serde_json::from_str(&text).unwrap();
        changed[key] = serde_json::from_str(value).unwrap();
        std::fs::write(&config, changed.to_string()).unwrap();
        let told = error(&[]);
        assert!(told.contains(says), "{key}: {told}");
    }
    std::fs::write(&config, &text).unwrap();
    for (part, says) in [
        (
            "experts.5.up_proj",
            "model.layers.1.mlp.experts.5.up_proj.weight is missing",
        ),
        (
            "shared_experts.down_proj",
            "mlp.shared_experts.down_proj.weight is missing",
        ),
        ("correction_bias", "a deepseek_v3 model is not known here"),
        (
            "mlp.gate",
            "neither topk_experts and router_weights nor a router",
        ),
    ] {
        without(part);
        let told = error(&[]);
        assert!(told.contains(says), "{part}: {told}");
    }
    without("experts");
    let told = error(&[]);
    assert!(
        told.contains("no expert weights") && told.contains("w1,w3,w2"),
        "{told}"
    );
    // An expert far beyond all others has nothing allocated for it.
    let beyond = format!("{stem}experts.4000000000.up_proj.weight");
    renamed(&source.join("model.safetensors"), &path, |name| {
        Some(if name.contains("experts.5.up_proj") {
            beyond.clone()
        } else {
            name.to_owned()
        })
    });
    assert!(error(&[]).contains("beyond the most"));
    // The command line may not contradict the file.
    without("nothing");
    assert!(error(&["--shape", "9,128,64,3,1"]).contains("experts 9"));
    assert!(error(&["--shared", "64"]).contains("--shared is 64"));
    assert!(error(&["--routing", "zipf"]).contains("--shape"));
    let (report, passed) = run(&[&path, &tokens], &["--shared", "0"]);
    assert!(passed, "{report}");
    assert_eq!(report["shape"]["shared"], 0);
}
