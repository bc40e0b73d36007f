//! Which ports a job may meet on.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use super::Rendezvous;
use crate::error::{Error, Result};

/// How many ports are tried beside MASTER_PORT.
const MORE: u64 = 15;
/// Below the ports that systems give to outgoing connections.
const RANGE: std::ops::Range<u64> = 20_000..32_000;
/// How long rank 0 tries: a job that has just ended gives its port back, and what another rank's
/// search took by chance is free again at once.
const PATIENCE: Duration = Duration::from_secs(1);

/// The ports of a job, in the order in which they are tried: the same on all ranks.
pub(super) fn candidates(rendezvous: &Rendezvous) -> Vec<u16> {
    let mut ports = Vec::new();
    if !rendezvous.port_taken {
        ports.push(rendezvous.port);
    }
    let Some(job) = &rendezvous.job else {
        return ports;
    };
    let key = format!("{job}\0{}\0{}", rendezvous.port, rendezvous.world);
    // FNV-1a: a hash that every build computes alike.
    let start = key.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let width = RANGE.end - RANGE.start;
    // An odd stride that shares no factor with the width walks distinct ports.
    let more = (0..MORE).map(|step| RANGE.start + (start % width + step * 7) % width);
    ports.extend(
        more.map(|port| port as u16)
            .filter(|port| *port != rendezvous.port),
    );
    ports
}

/// Whether an address says by itself that nobody comes from another host.
fn local_only(addr: &str) -> bool {
    match addr.parse::<IpAddr>() {
        Ok(ip) => ip.is_loopback(),
        Err(_) => addr.eq_ignore_ascii_case("localhost"),
    }
}

/// What rank 0 binds. A host name may resolve to a loopback address on its own host, so only an
/// address that is given as such narrows who can connect.
fn interfaces(addr: &str) -> Vec<IpAddr> {
    let any = [
        IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    ];
    match addr.parse::<IpAddr>() {
        // It may not be an interface's own: behind a translation, any has to do.
        Ok(ip) if ip.is_loopback() => vec![ip],
        Ok(ip @ IpAddr::V4(_)) => vec![ip, any[1]],
        Ok(ip @ IpAddr::V6(_)) => vec![ip, any[0]],
        Err(_) if local_only(addr) => {
            let found = (addr, 0).to_socket_addrs();
            let mut ips: Vec<IpAddr> = found
                .map(|found| {
                    found
                        .map(|at| at.ip())
                        .filter(IpAddr::is_loopback)
                        .collect()
                })
                .unwrap_or_default();
            ips.push(Ipv4Addr::LOCALHOST.into());
            ips
        }
        Err(_) => any.to_vec(),
    }
}

/// Listens on the first port of the job that is free.
pub(super) fn listen(rendezvous: &Rendezvous) -> Result<TcpListener> {
    let until = Instant::now() + PATIENCE;
    loop {
        match listen_now(rendezvous) {
            Err(_) if Instant::now() < until => thread::sleep(PATIENCE / 10),
            listening => return listening,
        }
    }
}

fn listen_now(rendezvous: &Rendezvous) -> Result<TcpListener> {
    let mut tried = Vec::new();
    for port in candidates(rendezvous) {
        for ip in interfaces(&rendezvous.addr) {
            let at = SocketAddr::new(ip, port);
            match TcpListener::bind(at) {
                Ok(listener) => return Ok(listener),
                Err(error) => {
                    tried.push(format!("{at}: {error}"));
                    // Another protocol's wildcard would find the port taken too, or steal it.
                    if error.kind() == ErrorKind::AddrInUse {
                        break;
                    }
                }
            }
        }
    }
    let advice = if rendezvous.job.is_some() {
        "choose another MASTER_PORT"
    } else {
        "another job or program has it; choose another MASTER_PORT, or give each job its own MOK_JOB_ID"
    };
    Err(Error::NoPort {
        tried,
        advice: advice.into(),
    })
}

/// The addresses of rank 0's host.
pub(super) fn resolve(rendezvous: &Rendezvous) -> io::Result<Vec<IpAddr>> {
    let found = (rendezvous.addr.as_str(), 0).to_socket_addrs()?;
    let mut ips: Vec<IpAddr> = Vec::new();
    for at in found {
        if !ips.contains(&at.ip()) {
            ips.push(at.ip());
        }
    }
    Ok(ips)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_differ_in_their_ports_and_ranks_do_not() {
        let at = |rank, job: &str| candidates(&Rendezvous::new("h", 29500, rank, 4).job(job));
        assert_eq!(at(0, "a"), at(3, "a"));
        assert_eq!(at(0, "a")[0], 29500);
        assert_ne!(at(0, "a")[1..], at(0, "b")[1..]);
        let mut distinct = at(0, "a");
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), 1 + MORE as usize);
        // Without an id there is nothing that could tell jobs apart on other ports.
        assert_eq!(candidates(&Rendezvous::new("h", 29500, 0, 4)), [29500]);
        let mut torchrun = Rendezvous::new("h", 29500, 0, 4).job("a");
        torchrun.port_taken = true;
        assert_eq!(candidates(&torchrun), at(0, "a")[1..]);
    }

    #[test]
    fn only_an_address_that_says_so_is_local() {
        assert_eq!(interfaces("127.0.0.1"), [IpAddr::V4(Ipv4Addr::LOCALHOST)]);
        assert_eq!(interfaces("::1"), [IpAddr::V6(Ipv6Addr::LOCALHOST)]);
        assert!(interfaces("localhost").iter().all(IpAddr::is_loopback));
        for open in ["10.1.2.3", "fe80::1", "node7"] {
            assert!(
                interfaces(open).iter().any(IpAddr::is_unspecified),
                "{open}"
            );
        }
    }
}
