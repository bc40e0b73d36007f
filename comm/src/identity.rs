//! Who this process is, for telling which ranks share what.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;

use crate::wire::Person;

/// 128 bits that the system's random source made: no two calls give the same.
pub(crate) fn nonce() -> String {
    let half = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", half(), half())
}

fn read(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn host_name() -> String {
    let name = read("/proc/sys/kernel/hostname").or_else(|| std::env::var("HOSTNAME").ok());
    name.unwrap_or_else(|| "this host".into())
}

/// This process as a rank.
pub(crate) fn person(rank: usize, local_rank: usize) -> Person {
    static PROCESS: OnceLock<String> = OnceLock::new();
    let host_name = host_name();
    // Containers of one host share the kernel's boot id, whatever their names are.
    let boot = read("/proc/sys/kernel/random/boot_id").unwrap_or_else(|| host_name.clone());
    let network = fs::read_link("/proc/self/ns/net");
    Person {
        rank,
        local_rank,
        pid: std::process::id(),
        host_name,
        host: boot,
        network: network.map_or_else(|_| String::new(), |link| link.display().to_string()),
        process: PROCESS.get_or_init(nonce).clone(),
    }
}
