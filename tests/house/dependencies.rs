//! Dependencies point one way, and the emulator on its own.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Which workspace crates each workspace crate names, in any kind of dependency.
fn edges(metadata: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let packages = metadata["packages"].as_array().expect("packages");
    let name = |value: &Value| value["name"].as_str().expect("a name").to_owned();
    let ours: BTreeSet<String> = packages.iter().map(name).collect();
    packages
        .iter()
        .map(|package| {
            let used = package["dependencies"]
                .as_array()
                .expect("dependencies")
                .iter()
                .map(name);
            (
                name(package),
                used.filter(|used| ours.contains(used)).collect(),
            )
        })
        .collect()
}

/// Everything that `from` reaches.
fn reach(edges: &BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut left = vec![from.to_owned()];
    while let Some(next) = left.pop() {
        for used in edges.get(&next).into_iter().flatten() {
            if seen.insert(used.clone()) {
                left.push(used.clone());
            }
        }
    }
    seen
}

fn workspace() -> BTreeMap<String, BTreeSet<String>> {
    let text =
        super::output(super::cargo().args(["metadata", "--no-deps", "--format-version", "1"]));
    edges(&serde_json::from_str(&text).expect("JSON"))
}

/// Two independent statements of a layout find a mistake; one shared statement hides it.
#[test]
fn the_emulator_depends_on_nothing_of_ours() {
    let edges = workspace();
    assert!(edges.contains_key("mok-emu") && edges.contains_key("mok-kernel"));
    assert_eq!(reach(&edges, "mok-emu"), BTreeSet::new());
}

#[test]
fn nothing_below_the_library_depends_on_it() {
    let edges = workspace();
    for below in ["mok-kernel", "mok-build", "mok-comm", "mok-emu", "xtask"] {
        assert!(!reach(&edges, below).contains("mok"), "{below} reaches mok");
    }
}

#[test]
fn a_planted_dependency_is_seen() {
    let planted = serde_json::json!({"packages": [
        {"name": "mok-emu", "dependencies": [{"name": "between"}]},
        {"name": "between", "dependencies": [{"name": "mok-kernel"}, {"name": "serde"}]},
        {"name": "mok-kernel", "dependencies": []},
    ]});
    assert!(reach(&edges(&planted), "mok-emu").contains("mok-kernel"));
}
