//! The main job: what it reports, and what it refuses.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{check, command, json, with};

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
        ("path", "unfused"),
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
    let cases: [(&[&str], &str); 15] = [
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

/// Ranks with nothing to do still take part.
#[test]
fn no_token_anywhere_is_a_run_too() {
    let (report, code) = json(&with(&["--tokens", "0,0"]));
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(report["total"]["tokens"], 0);
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
