//! Ranks that are processes, which the command or a launcher has started.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::{check, command, json, object, with};

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

/// With devices too: emulated ones that meet over the host. The bits are those of one rank.
#[test]
fn processes_compute_what_one_rank_does() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["one", "three"].map(|name| folder.path().join(name).display().to_string());
    let (one, code) = json(&with(&[
        "--ranks", "1", "--tokens", "9", "--output", &paths[0],
    ]));
    assert_eq!(code, Some(0), "{one}");
    let (three, code) = json(&with(&[
        "--ranks",
        "3",
        "--tokens",
        "5,0,4",
        "--transport",
        "nccl",
        "--launch",
        "processes",
        "--output",
        &paths[1],
    ]));
    assert_eq!(code, Some(0), "{three}");
    assert_eq!(
        (&three["launch"], &three["transport"]),
        (&"processes".into(), &"nccl".into())
    );
    assert_eq!(three["total"]["out_sha256"], one["total"]["out_sha256"]);
    let files = paths.map(|path| std::fs::read(path).unwrap());
    let [one, three] = files
        .each_ref()
        .map(|bytes| safetensors::SafeTensors::deserialize(bytes).unwrap());
    for name in ["out", "topk_experts", "router_weights"] {
        let [one, three] = [&one, &three].map(|file| file.tensor(name).unwrap());
        assert_eq!(
            (one.shape(), one.data()),
            (three.shape(), three.data()),
            "{name}"
        );
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

/// As torchrun with one process, or a batch system with one task.
#[test]
fn a_launcher_of_one_rank_is_as_good_as_none() {
    let mut one = command(&with(&["--json"]));
    one.env("RANK", "0")
        .env("LOCAL_RANK", "0")
        .env("WORLD_SIZE", "1");
    one.env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", "29500");
    let (report, code) = object(&one.output().unwrap());
    assert_eq!((code, &report["ranks"]), (Some(0), &1.into()), "{report}");
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
