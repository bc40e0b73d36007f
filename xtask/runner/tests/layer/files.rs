//! Tokens and routes of a file, and the file that is left.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use half::bf16;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;

use super::{check, json, with};

/// A file of tensors, by name.
struct Tensors(BTreeMap<&'static str, (Dtype, Vec<usize>, Vec<u8>)>);

impl Tensors {
    fn new() -> Tensors {
        Tensors(BTreeMap::new())
    }

    fn add<T: bytemuck::NoUninit>(
        mut self,
        name: &'static str,
        dtype: Dtype,
        shape: [usize; 2],
        values: &[T],
    ) -> Tensors {
        let bytes = bytemuck::cast_slice(values).to_vec();
        self.0.insert(name, (dtype, shape.to_vec(), bytes));
        self
    }

    fn write(&self, path: &Path) {
        let tensors = self.0.iter().map(|(name, (dtype, shape, bytes))| {
            (
                *name,
                TensorView::new(*dtype, shape.clone(), bytes).unwrap(),
            )
        });
        std::fs::write(path, safetensors::serialize(tensors, None).unwrap()).unwrap();
    }
}

/// Tokens and routes; weights are made up, as --shape asks.
#[test]
fn tokens_and_routes_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] =
        ["in", "out"].map(|name| folder.path().join(format!("{name}.safetensors")));
    let x: Vec<f32> = mok::fill::normal(1, 7 * 64, 1.0);
    let experts: Vec<i64> = vec![0, 5, 3, -1, -1, -1, 2, 2, 5, 4, 1, 0, 4, 3];
    let weights = vec![bf16::from_f32(0.5); 14];
    Tensors::new()
        .add("x", Dtype::F32, [7, 64], &x)
        .add("topk_experts", Dtype::I64, [7, 2], &experts)
        .add("router_weights", Dtype::BF16, [7, 2], &weights)
        .write(&input);
    let paths = [&input, &output].map(|path| path.to_str().unwrap());
    let mut args = vec![
        "--backend",
        "emulator",
        "--shape",
        "6,64,64,1,1",
        "--ranks",
        "3",
    ];
    args.extend([
        "--tokens", "2,0,5", "--input", paths[0], "--output", paths[1],
    ]);
    let (report, code) = json(&args);
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(report["shape"]["top_k"], 2);
    assert_eq!(report["total"]["routes"], 11);
    assert!(
        report["notes"][0].as_str().unwrap().contains("x is F32"),
        "{report}"
    );
    let bytes = std::fs::read(&output).unwrap();
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let out = read.tensor("out").unwrap();
    assert_eq!((out.dtype(), out.shape()), (Dtype::BF16, &[7, 64][..]));
    // The third token has no expert.
    let zero = |token: usize| {
        out.data()[token * 128..][..128]
            .iter()
            .all(|&byte| byte == 0)
    };
    assert_eq!([zero(1), zero(2), zero(3)], [false, true, false]);
    let (routes, _) = read.tensor("topk_experts").unwrap().data().as_chunks::<4>();
    let routes: Vec<i64> = routes
        .iter()
        .map(|&route| i32::from_le_bytes(route).into())
        .collect();
    assert_eq!(routes, experts);
    // Nothing else is left in the folder, and the file is not private.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

/// NaN in a token is that token's matter.
#[test]
fn a_poisoned_token_poisons_itself_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let mut x: Vec<bf16> = mok::fill::normal(1, 6 * 64, 1.0);
    x[2 * 64 + 7] = bf16::NAN;
    x[4 * 64] = bf16::INFINITY;
    Tensors::new()
        .add("x", Dtype::BF16, [6, 64], &x)
        .write(&path);
    let path = path.to_str().unwrap();
    let (report, code) = json(&with(&["--input", path, "--routing", "uniform"]));
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(report["total"]["compared_tokens"], 4);
    assert_eq!(check(&report, "out.nan_lost")["value"], 0.0);
}

#[test]
fn files_that_do_not_fit_are_errors_that_name_the_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.safetensors");
    let x: Vec<bf16> = mok::fill::normal(1, 4 * 64, 1.0);
    let weights = [0.5f32; 8];
    let good = || {
        Tensors::new()
            .add("x", Dtype::BF16, [4, 64], &x)
            .add("topk_experts", Dtype::I32, [4, 2], &[0i32; 8])
            .add("router_weights", Dtype::F32, [4, 2], &weights)
    };
    let without = |name: &str| {
        let mut tensors = good();
        tensors.0.remove(name);
        tensors
    };
    let cases = [
        (
            good().add("x", Dtype::BF16, [2, 128], &x),
            "x in",
            "BF16 [2, 128], not [T, 64]",
        ),
        (
            good().add("x", Dtype::I16, [4, 64], &x),
            "x in",
            "I16 [4, 64], not [T, 64] of BF16",
        ),
        (
            good().add("topk_experts", Dtype::I32, [2, 4], &[0i32; 8]),
            "topk_experts",
            "[2, 4], not [4, K]",
        ),
        (
            good().add("topk_experts", Dtype::F32, [4, 2], &weights),
            "topk_experts",
            "F32 [4, 2]",
        ),
        (
            good().add(
                "topk_experts",
                Dtype::I32,
                [4, 2],
                &[0, 1, 2, 6, 0, 0, 0, 0i32],
            ),
            "topk_experts[1, 1] is 6",
            "-1 (none) to 5",
        ),
        (
            good().add(
                "topk_experts",
                Dtype::I64,
                [4, 2],
                &[0, 1, 2, i64::MIN, 0, 0, 0, 0],
            ),
            "topk_experts[1, 1]",
            "-1 (none) to 5",
        ),
        (
            good().add("router_weights", Dtype::F32, [8, 1], &weights),
            "router_weights",
            "[8, 1], not [4, 2]",
        ),
        (without("router_weights"), "topk_experts", "come together"),
        (without("topk_experts"), "router_weights", "come together"),
    ];
    let path = path.to_str().unwrap();
    for (tensors, names, says) in cases {
        tensors.write(Path::new(path));
        let (report, code) = json(&[
            "--backend",
            "emulator",
            "--shape",
            "6,64,64,2,4",
            "--input",
            path,
        ]);
        assert_eq!(code, Some(2), "{report}");
        let error = report["error"].as_str().unwrap();
        assert!(
            error.contains(names) && error.contains(says),
            "{names}: {error}"
        );
    }
    // Without sizes on the command line nothing is made up.
    good().write(Path::new(path));
    let (report, _) = json(&["--backend", "emulator", "--input", path]);
    assert!(
        report["error"]
            .as_str()
            .unwrap()
            .contains("no expert weights"),
        "{report}"
    );
}

#[test]
fn outputs_that_cannot_be_written_are_refused_first() {
    let start = Instant::now();
    let (report, code) = json(&[
        "--backend",
        "emulator",
        "--shape",
        "qwen3.5",
        "--output",
        "/nowhere/out",
    ]);
    assert_eq!(code, Some(2));
    assert!(
        report["error"].as_str().unwrap().contains("/nowhere/out"),
        "{report}"
    );
    assert!(start.elapsed() < Duration::from_secs(5));
}

/// In one launch, with the two files that say who did what when; and what is refused before anything runs.
#[test]
fn traces_are_left_where_they_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (events, picture) = (file("a.json"), file("b.svg"));
    let fused = [
        "--ranks",
        "2",
        "--path",
        "fused",
        "--macrobatch-rows",
        "1024",
    ];
    let traced = ["--trace", &events, "--trace", &picture];
    let (report, code) = json(&with(&[&fused[..], &traced].concat()));
    assert_eq!((code, &report["path"]), (Some(0), &"fused".into()));
    let text = std::fs::read(&events).unwrap();
    let trace: Value = serde_json::from_slice(&text).unwrap();
    let all = trace["traceEvents"].as_array().unwrap();
    for rank in [0, 1] {
        for name in [
            "stage",
            "meet",
            "dispatch",
            "load",
            "gate-and-up",
            "down",
            "combine",
            "sum",
        ] {
            let is = |event: &&Value| event["pid"] == rank && event["name"] == name;
            assert!(all.iter().any(|event| is(&event)), "rank {rank}: {name}");
        }
    }
    let text = std::fs::read_to_string(&picture).unwrap();
    assert!(text.starts_with("<svg") && text.contains("rank 1: 2 of 2 blocks"));
    for (more, part) in [
        (&["--trace", &events][..], "--path fused"),
        (&["--path", "fused", "--trace", "a.txt"], ".svg"),
        (
            &["--path", "fused", "--trace", "/nowhere/a.svg"],
            "/nowhere/a.svg",
        ),
        (
            &["--path", "fused", "--macrobatch-rows", "128"],
            "macrobatch_rows is 128, not 1024",
        ),
    ] {
        let (report, code) = json(&with(more));
        let error = report["error"].as_str().unwrap();
        assert!(code == Some(2) && error.contains(part), "{error}");
    }
}
