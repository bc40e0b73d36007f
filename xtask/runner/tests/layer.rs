//! `run` as its callers see it: one layer on ranks that are threads or processes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use half::bf16;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask-runner"));
    command.arg("run").args(args).env_remove("MOK_VALIDATED");
    // A driver that is there shows no device then.
    command.env("CUDA_VISIBLE_DEVICES", "");
    for name in [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
    ] {
        command.env_remove(name);
    }
    command
}

/// The one object on standard output, and the exit status.
fn json(args: &[&str]) -> (Value, Option<i32>) {
    object(&command(args).arg("--json").output().unwrap())
}

fn object(output: &Output) -> (Value, Option<i32>) {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    assert_eq!(
        text.lines().count(),
        1,
        "one object and nothing else: {text}"
    );
    (serde_json::from_str(text).unwrap(), output.status.code())
}

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {report}"))
}

/// Fast, and with everything: uneven tokens, none at all, a shared expert.
const SMALL: [&str; 6] = [
    "--shape",
    "6,64,64,2,5",
    "--shared",
    "64",
    "--backend",
    "emulator",
];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SMALL[..], more].concat()
}

#[test]
fn the_main_job_runs_in_the_emulator_and_says_so() {
    let (report, code) = json(&[]);
    assert_eq!(code, Some(0), "{report}");
    for (field, value) in [
        ("schema", "mok-run/1"),
        ("backend", "emulator"),
        ("arch", "sm_90a"),
        ("pass", "forward"),
        ("dtype", "bf16"),
        ("launch", "threads"),
        ("transport", "peer"),
    ] {
        assert_eq!(report[field], value, "{field}");
    }
    assert_eq!(
        (&report["passed"], &report["ranks"]),
        (&true.into(), &2.into())
    );
    for name in ["exact.whole", "exact.row", "rounded.whole", "rounded.row"] {
        assert_eq!(check(&report, &format!("out.{name}"))["passed"], true);
    }
    assert_eq!(check(&report, "out.differs_between_passes")["value"], 0.0);
    let total = &report["total"];
    assert_eq!(total["compared_tokens"], total["tokens"]);
    assert_eq!(total["time"]["simulated"], true);
    assert_eq!(
        total["time"]["tflops_per_gpu"],
        Value::Null,
        "nothing is claimed"
    );
    let ranks = report["per_rank"].as_array().unwrap();
    let sum = |field: &str| -> u64 { ranks.iter().map(|rank| rank[field].as_u64().unwrap()).sum() };
    assert_eq!(sum("rows"), total["routes"].as_u64().unwrap());
    assert_eq!(sum("tokens"), 48);
    // Every token that leaves comes back.
    let links = &total["link_bytes"];
    assert_eq!(links["dispatch"], links["combine"]);
    assert!(links["dispatch"].as_u64().unwrap() > 0);
}

#[test]
fn outputs_do_not_depend_on_how_many_ranks_there_are() {
    let hashes: Vec<String> = [
        &["--ranks", "1", "--tokens", "9"][..],
        &["--ranks", "2", "--tokens", "4,5"],
        &["--ranks", "4", "--tokens", "0,7,1,1", "--capacity", "1024"],
        &["--ranks", "3", "--tokens", "3,3,3", "--transport", "nccl"],
    ]
    .iter()
    .map(|ranks| {
        let (report, code) = json(&with(ranks));
        assert_eq!(code, Some(0), "{report}");
        report["total"]["out_sha256"].as_str().unwrap().to_owned()
    })
    .collect();
    assert!(
        hashes
            .iter()
            .all(|hash| *hash == hashes[0] && hash.len() == 64),
        "{hashes:?}"
    );
    let (other, _) = json(&with(&["--ranks", "1", "--tokens", "9", "--seed", "2"]));
    assert_ne!(other["total"]["out_sha256"], hashes[0].as_str());
}

#[test]
fn every_routing_has_room() {
    for (routing, limit) in [("zipf", None), ("one-expert", Some("0.5"))] {
        let mut args = with(&["--routing", routing]);
        args.extend(limit.iter().flat_map(|limit| ["--swiglu-limit", limit]));
        let (report, code) = json(&args);
        assert_eq!(code, Some(0), "{report}");
    }
}

#[test]
fn rooms_that_are_too_small_are_an_error_that_names_what_is_needed() {
    let (report, code) = json(&with(&[
        "--routing",
        "one-expert",
        "--tokens",
        "70,70",
        "--capacity",
        "128",
    ]));
    assert_eq!(code, Some(2));
    let error = report["error"].as_str().unwrap();
    assert!(
        error.contains("needs 384 rows") && error.contains("128"),
        "{error}"
    );
}

#[test]
fn what_cannot_run_is_still_one_object() {
    let cases: [(&[&str], &str); 16] = [
        (&["--ranks", "0"], "1..=72"),
        (&["--shape", "dsv4"], "qwen3-235b"),
        (
            &["--shape", "4,65,64,2,8"],
            "hidden is 65, not a multiple of 64",
        ),
        (&["--shape", "4,64,64,33,8"], "top_k is 33, not 1 to 32"),
        (&["--shape", "1025,64,64,2,8"], "experts is 1025"),
        (&["--tokens", "1,2,3"], "3 numbers for 2 ranks"),
        (&["--tokens", "1048577,0"], "max_tokens is 1048577"),
        (&["--dtype", "mxfp8"], "not there yet"),
        (&["--transport", "smoke"], "peer, nccl"),
        (&["--arch", "sm_100a"], "the emulated GPU is sm_90a"),
        (&["--arch", "sm_80"], "known are"),
        (&["--launch", "processes"], "threads of one process"),
        (&["--routing", "file"], "needs --input"),
        (&["--swiglu-limit", "-1"], "swiglu_limit"),
        (&["--capacity", "100"], "multiple of 128"),
        (&["--bogus"], "--bogus"),
    ];
    for (args, says) in cases {
        let (report, code) = json(&[&["--backend", "emulator"], args].concat());
        assert_eq!(code, Some(2), "{args:?}: {report}");
        assert_eq!(report["passed"], false);
        assert_eq!(report["pass"], "forward");
        let error = report["error"].as_str().unwrap();
        assert!(error.contains(says), "{args:?}: {error}");
    }
    let (report, code) = json(&["--backend", "cuda"]);
    assert_eq!(code, Some(2), "{report}");
}

#[test]
fn hours_are_refused_before_they_begin() {
    let start = Instant::now();
    let (report, code) = json(&["--backend", "emulator", "--shape", "dsv3"]);
    assert_eq!(code, Some(2));
    let error = report["error"].as_str().unwrap();
    assert!(
        error.contains("hours") && error.contains("--force"),
        "{error}"
    );
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn tables_are_for_people() {
    let output = command(&with(&["--ranks", "2"])).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    for part in [
        "out.rounded.row",
        "emulator's clock",
        "backend: emulator, sm_90a",
        "2 ranks as threads",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let help = command(&["--json", "--help"]).output().unwrap();
    assert!(help.status.success());
    assert!(
        String::from_utf8(help.stdout)
            .unwrap()
            .contains("Exit status")
    );
}

#[test]
fn a_sample_is_said_to_be_one() {
    let (report, code) = json(&with(&["--tokens", "30,10", "--sample", "8"]));
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(report["total"]["compared_tokens"], 8);
}

/// Host checks need no device, and plain processes no GPU.
#[test]
fn ranks_can_be_processes() {
    for ranks in ["1", "3"] {
        let (report, code) = json(&[
            "--backend",
            "none",
            "--launch",
            "processes",
            "--ranks",
            ranks,
            "--tokens",
            &["4"; 3][..ranks.parse().unwrap()].join(","),
        ]);
        assert_eq!(code, Some(0), "{report}");
        assert_eq!(report["launch"], "processes");
        assert_eq!(
            report["per_rank"].as_array().unwrap().len().to_string(),
            ranks
        );
        assert_eq!(check(&report, "oracle.faults_missed")["value"], 0.0);
    }
}

fn launched(rank: usize, world: usize, port: u16, args: &[&str]) -> Child {
    command(args)
        .args(["--backend", "none", "--json"])
        .env("RANK", rank.to_string())
        .env("LOCAL_RANK", rank.to_string())
        .env("WORLD_SIZE", world.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .env("MOK_JOB_ID", format!("test {port}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn a_launcher_may_have_started_the_ranks() {
    let port = free_port();
    let ranks: Vec<Child> = (0..3).map(|rank| launched(rank, 3, port, &[])).collect();
    let outputs: Vec<Output> = ranks
        .into_iter()
        .map(|rank| rank.wait_with_output().unwrap())
        .collect();
    let (report, code) = object(&outputs[0]);
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(
        (&report["ranks"], &report["launch"]),
        (&3.into(), &"processes".into())
    );
    for other in &outputs[1..] {
        assert!(other.status.success() && other.stdout.is_empty());
    }
}

#[test]
fn ranks_that_were_given_other_things_say_so() {
    let port = free_port();
    let args: [&[&str]; 2] = [&["--ranks", "2"], &["--ranks", "5"]];
    let ranks: Vec<Child> = (0..2)
        .map(|rank| launched(rank, 2, port, args[rank]))
        .collect();
    let outputs: Vec<Output> = ranks
        .into_iter()
        .map(|rank| rank.wait_with_output().unwrap())
        .collect();
    let (report, code) = object(&outputs[0]);
    assert_eq!(code, Some(2), "{report}");
    assert!(
        report["error"].as_str().unwrap().contains("rank 1"),
        "{report}"
    );
    let told = String::from_utf8_lossy(&outputs[1].stderr);
    assert!(told.contains("--ranks is 5, and WORLD_SIZE is 2"), "{told}");
}

#[test]
fn a_launcher_cannot_start_emulated_ranks() {
    let output = command(&["--backend", "emulator", "--json"])
        .env("RANK", "0")
        .env("WORLD_SIZE", "2")
        .output()
        .unwrap();
    let (report, code) = object(&output);
    assert_eq!(code, Some(2));
    assert!(
        report["error"]
            .as_str()
            .unwrap()
            .contains("without a launcher"),
        "{report}"
    );
}

/// Ranks of a process, by their ids, once they are there.
#[cfg(target_os = "linux")]
fn children(of: u32, count: usize) -> Vec<String> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let listed = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children"));
        let ids: Vec<String> = listed
            .unwrap_or_default()
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        if ids.len() == count {
            return ids;
        }
        assert!(Instant::now() < until, "{ids:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_rank_that_is_killed_ends_the_others_with_an_error() {
    for victim in [0, 1] {
        // Enough tokens to be in the middle of them.
        let shape = "8,2048,64,2,40000";
        let mut parent = command(&["--backend", "none", "--launch", "processes", "--ranks", "3"]);
        parent
            .args(["--json", "--shape", shape])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let parent = parent.spawn().unwrap();
        let ranks = children(parent.id(), 3);
        std::thread::sleep(Duration::from_millis(100));
        let start = Instant::now();
        assert!(
            Command::new("kill")
                .args(["-9", &ranks[victim]])
                .status()
                .unwrap()
                .success()
        );
        let output = parent.wait_with_output().unwrap();
        let (report, code) = object(&output);
        assert_eq!(code, Some(2), "{report}");
        let error = report["error"].as_str().unwrap();
        assert!(error.contains(&format!("rank {victim}")), "{error}");
        assert!(start.elapsed() < Duration::from_secs(30));
        for rank in &ranks {
            assert!(
                !Path::new(&format!("/proc/{rank}")).exists(),
                "rank {rank} is still there"
            );
        }
    }
}

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
