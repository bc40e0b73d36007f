//! `doctor`: what this machine has and lacks. Fetches nothing, changes nothing.

use std::fs;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Result;
use comfy_table::Table;
use comfy_table::presets::UTF8_BORDERS_ONLY;
use mok_build::setup::{self, CudaTools};
use mok_build::{Arch, Workspace};
use mok_build::{process, report};
use serde::Serialize;
use serde_json::json;

use crate::gpus::{self, Driver};
use crate::place::Place;

/// How something stands.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// There.
    Ok,
    /// Not there, and building or validating needs it.
    Missing,
    /// Not there, and only running on a GPU needs it.
    Absent,
}

/// One line of the report.
#[derive(Serialize)]
struct Item {
    name: &'static str,
    state: State,
    detail: String,
    /// The one command that mends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Item {
    fn ok(name: &'static str, detail: impl Into<String>) -> Item {
        Item {
            name,
            state: State::Ok,
            detail: detail.into(),
            fix: None,
        }
    }

    fn lacks(name: &'static str, state: State, detail: impl Into<String>, fix: &str) -> Item {
        Item {
            name,
            state,
            detail: detail.into(),
            fix: Some(fix.to_owned()),
        }
    }
}

/// `xtask doctor`.
pub fn run(json: bool, strict: bool) -> Result<ExitCode> {
    let mut items = Vec::new();
    match Place::find() {
        Ok(Place::Checkout(workspace)) => building(&workspace, &mut items),
        Ok(place @ Place::Pack(_)) => proving(&CudaTools::look(&place.tools()), &mut items),
        Err(error) => items.push(Item::lacks(
            "sources",
            State::Missing,
            report::in_full(error.as_ref()),
            "cd into a checkout of mok-rs",
        )),
    }
    let driver = gpus::driver();
    running(&driver, &mut items);
    let passed = items.iter().all(|item| item.state != State::Missing);
    if json {
        let gpus = driver.as_ref().ok();
        let object = json!({ "schema": 1, "passed": passed, "items": items, "driver": gpus });
        println!("{object:#}");
    } else {
        print(&items, driver.as_ref().ok());
    }
    Ok(if strict && !passed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// What compiling needs.
fn building(workspace: &Workspace, items: &mut Vec<Item>) {
    const NEEDED: State = State::Missing;
    let found = setup::look(workspace);
    match &found.toolchain {
        Ok(toolchain) => items.push(Item::ok(
            "rustc",
            format!("{}, LLVM {}", toolchain.release, toolchain.llvm),
        )),
        Err(error) => {
            let detail = error.to_string();
            let detail = detail.lines().next().unwrap_or_default();
            let fix = format!("rustup toolchain install {}", setup::RUSTC);
            items.push(Item::lacks("rustc", NEEDED, detail, &fix));
        }
    }
    match &found.rust_src {
        Some(source) => items.push(Item::ok("rust-src", source.origin.words())),
        None => {
            let detail = "not here yet: the kernels compile `core` from source";
            items.push(Item::lacks("rust-src", NEEDED, detail, "cargo xtask setup"));
        }
    }
    proving(&found.cuda, items);
    // Only needed to fetch what is missing.
    if !found.cuda.complete() {
        let mut pip = Command::new("python3");
        let pip = process::run(
            pip.args(["-m", "pip", "--version"]),
            Duration::from_secs(60),
        );
        items.push(match pip {
            Ok(printed) => Item::ok("python, pip", first_words(&printed.stdout, 2)),
            Err(_) => Item::lacks(
                "python, pip",
                NEEDED,
                "python3 -m pip does not answer: setup brings ptxas through it",
                "apt-get install python3-pip",
            ),
        });
    }
}

/// What assembling and validating need.
fn proving(tools: &CudaTools, items: &mut Vec<Item>) {
    for (name, tool) in [("ptxas", &tools.ptxas), ("nvdisasm", &tools.nvdisasm)] {
        items.push(match tool {
            Some(tool) => Item::ok(name, format!("{} ({})", tool.version, tool.origin)),
            None if let Some(misnamed) = CudaTools::misnamed(name) => {
                let fix = format!("unset MOK_{}", name.to_uppercase());
                Item::lacks(name, State::Missing, misnamed, &fix)
            }
            None => {
                let (major, minor) = setup::MIN_CUDA;
                let detail = format!("none of CUDA {major}.{minor} or later");
                // In a pack, validate itself brings it; there is no setup.
                let fix = match Place::find() {
                    Ok(Place::Pack(_)) => "./xtask validate",
                    _ => "cargo xtask setup",
                };
                Item::lacks(name, State::Missing, detail, fix)
            }
        });
    }
}

/// What running on a GPU needs.
fn running(driver: &Result<Driver, String>, items: &mut Vec<Item>) {
    const OPTIONAL: State = State::Absent;
    match driver {
        Err(reason) if has_nvidia_card() => {
            let fix = "apt-get install nvidia-driver-580-open";
            items.push(Item::lacks("driver", OPTIONAL, reason.as_str(), fix));
        }
        Err(reason) => {
            let detail = format!("{reason}, nor a GPU of NVIDIA's");
            let fix = "cargo xtask pack (and take it to a machine that has one)";
            items.push(Item::lacks("driver", OPTIONAL, detail, fix));
        }
        Ok(driver) => {
            items.push(Item::ok("driver", format!("CUDA {}", driver.cuda)));
            let usable = |(major, minor)| Arch::from_capability(major, minor).is_some();
            let count = driver
                .gpus
                .iter()
                .filter(|gpu| usable(gpu.capability))
                .count();
            let detail = format!("{count} of {} can run the kernels", driver.gpus.len());
            items.push(if count > 0 {
                Item::ok("GPUs", detail)
            } else {
                let fix = "use a machine with a Hopper or Blackwell GPU: cargo xtask pack";
                Item::lacks("GPUs", OPTIONAL, detail, fix)
            });
            if driver.gpus.len() > 1 {
                items.push(if driver.peers.iter().flatten().all(|peer| *peer) {
                    Item::ok("peer access", "every GPU reaches every other")
                } else {
                    let detail = "some GPUs cannot reach each other (matrix below)";
                    Item::lacks("peer access", OPTIONAL, detail, "nvidia-smi topo -p2p r")
                });
            }
        }
    }
    items.push(match gpus::nccl() {
        Some(version) => Item::ok("NCCL", version),
        None => {
            let detail = "no libnccl: only the unfused transport needs it";
            Item::lacks(
                "NCCL",
                OPTIONAL,
                detail,
                "python3 -m pip install nvidia-nccl-cu13",
            )
        }
    });
}

/// Whether a card is there that only lacks its driver.
fn has_nvidia_card() -> bool {
    let Ok(devices) = fs::read_dir("/sys/bus/pci/devices") else {
        return false;
    };
    devices.flatten().any(|device| {
        fs::read_to_string(device.path().join("vendor"))
            .is_ok_and(|vendor| vendor.trim() == "0x10de")
    })
}

fn first_words(text: &str, count: usize) -> String {
    text.split_whitespace()
        .take(count)
        .collect::<Vec<_>>()
        .join(" ")
}

fn print(items: &[Item], driver: Option<&Driver>) {
    let mut table = Table::new();
    table
        .load_preset(UTF8_BORDERS_ONLY)
        .set_header(["what", "", "found", "mend it with"]);
    for item in items {
        let mark = match item.state {
            State::Ok => "ok",
            State::Missing => "missing",
            State::Absent => "absent",
        };
        table.add_row([
            item.name,
            mark,
            &item.detail,
            item.fix.as_deref().unwrap_or(""),
        ]);
    }
    println!("{table}");
    let Some(driver) = driver.filter(|driver| !driver.gpus.is_empty()) else {
        return;
    };
    let mut table = Table::new();
    table.load_preset(UTF8_BORDERS_ONLY);
    let mut header: Vec<String> = ["GPU", "name", "arch", "memory", "SMs"]
        .map(str::to_owned)
        .to_vec();
    header.extend((0..driver.gpus.len()).map(|peer| format!("reaches {peer}")));
    table.set_header(header);
    for (index, (gpu, peers)) in driver.gpus.iter().zip(&driver.peers).enumerate() {
        let (major, minor) = gpu.capability;
        let arch = Arch::from_capability(major, minor).map_or_else(
            || format!("sm_{major}{minor}: no kernels"),
            |arch| arch.name().to_owned(),
        );
        let memory = format!("{:.0} GiB", gpu.memory as f64 / f64::from(1u32 << 30));
        let mut row = vec![
            index.to_string(),
            gpu.name.clone(),
            arch,
            memory,
            gpu.sms.to_string(),
        ];
        row.extend(
            peers
                .iter()
                .map(|peer| if *peer { "yes" } else { "no" }.to_owned()),
        );
        table.add_row(row);
    }
    println!("{table}");
}
