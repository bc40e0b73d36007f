//! Which ranks share what: hosts, devices, links.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::CudaContext;
use serde::{Deserialize, Serialize};

use crate::device::cuda::Cuda;
use crate::device::{Device, DeviceReport};
use crate::error::Result;
use crate::group::Group;
use crate::symmetric::gather;

/// The way from one rank's device to another's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Route {
    /// Both ranks use one device.
    SameDevice,
    /// Peer access with native atomics: NVLink.
    NvLink,
    /// Peer access without native atomics: PCIe.
    Pcie,
    /// The devices see each other and can't reach each other.
    None,
    /// Different hosts, both with fabric handles: the same NVLink domain, if their fabric managers
    /// agree.
    Fabric,
    /// Nothing is known: a rank has no device, or its process doesn't see the other's.
    Unknown,
}

impl Route {
    /// Two letters for a table.
    fn short(self) -> &'static str {
        match self {
            Route::SameDevice => "=",
            Route::NvLink => "NV",
            Route::Pcie => "PCI",
            Route::None => "-",
            Route::Fabric => "FAB",
            Route::Unknown => "?",
        }
    }
}

/// One rank.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankReport {
    /// Its number in the group.
    pub rank: usize,
    /// Its number among those of its launcher on its host.
    pub local_rank: usize,
    /// Its host, numbered in the order in which ranks come to a new one.
    pub host: usize,
    /// That host's name.
    pub host_name: String,
    /// Its process.
    pub process_id: u32,
    /// Its device, if it has one.
    pub device: Option<DeviceReport>,
}

/// Which ranks of a group share a host or a device, and how their devices reach each other.
///
/// ```
/// use mok_comm::{Group, Route, Topology};
///
/// let group = Group::threads(1)?.remove(0);
/// let topology = Topology::gather(&group, None)?; // no device
/// assert_eq!((topology.hosts(), topology.route(0, 0)), (1, Route::Unknown));
/// println!("{topology}");
/// # Ok::<(), mok_comm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    ranks: Vec<RankReport>,
}

/// What a rank can't learn from the group.
#[derive(Serialize, Deserialize)]
struct Own {
    local_rank: usize,
    device: Option<DeviceReport>,
}

impl Topology {
    /// Collects the reports of all ranks, each with its device if it has one: a collective call.
    ///
    /// # Errors
    /// As for [`SymmetricMemory::allocate`](crate::SymmetricMemory::allocate).
    pub fn gather(group: &Group, context: Option<&Arc<CudaContext>>) -> Result<Topology> {
        let report = context.map(|context| Cuda::new(context)?.report());
        Topology::of(group, report.transpose())
    }

    fn of(group: &Group, device: Result<Option<DeviceReport>>) -> Result<Topology> {
        let own = device.map(|device| Own {
            local_rank: group.local_rank(),
            device,
        });
        let all = gather(group, own)?;
        let mut ranks: Vec<RankReport> = Vec::new();
        let mut hosts = 0;
        for (rank, own) in all.into_iter().enumerate() {
            let known = (0..rank).find(|&earlier| group.share_host(earlier, rank));
            let host = match known {
                Some(earlier) => ranks[earlier].host,
                None => {
                    hosts += 1;
                    hosts - 1
                }
            };
            ranks.push(RankReport {
                rank,
                local_rank: own.local_rank,
                host,
                host_name: group.host_name(rank).to_owned(),
                process_id: group.process_id(rank),
                device: own.device,
            });
        }
        Ok(Topology { ranks })
    }

    /// The ranks, in order.
    pub fn ranks(&self) -> &[RankReport] {
        &self.ranks
    }

    /// How many hosts they run on.
    pub fn hosts(&self) -> usize {
        let hosts = self.ranks.iter().map(|rank| rank.host + 1);
        hosts.max().unwrap_or(0)
    }

    /// The way from the device of rank `from` to that of rank `to`.
    pub fn route(&self, from: usize, to: usize) -> Route {
        let device = |rank: usize| {
            let report = self.ranks.get(rank)?;
            Some((report.host, report.device.as_ref()?))
        };
        let (Some((host, own)), Some((other_host, other))) = (device(from), device(to)) else {
            return Route::Unknown;
        };
        if own.uuid == other.uuid {
            return Route::SameDevice;
        }
        match own.links.iter().find(|link| link.uuid == other.uuid) {
            Some(link) if !link.access => Route::None,
            Some(link) if link.native_atomics => Route::NvLink,
            Some(_) => Route::Pcie,
            None if host != other_host && own.fabric && other.fabric => Route::Fabric,
            None => Route::Unknown,
        }
    }

    /// Ranks that use one device together: each such set of two or more.
    pub fn shared_devices(&self) -> Vec<Vec<usize>> {
        let mut sets: Vec<(&str, Vec<usize>)> = Vec::new();
        for report in &self.ranks {
            let Some(device) = &report.device else {
                continue;
            };
            match sets.iter_mut().find(|(uuid, _)| *uuid == device.uuid) {
                Some((_, set)) => set.push(report.rank),
                None => sets.push((&device.uuid, vec![report.rank])),
            }
        }
        let sets = sets.into_iter().map(|(_, set)| set);
        sets.filter(|set| set.len() > 1).collect()
    }
}

impl fmt::Display for Topology {
    /// A line for each rank, then a table of the ways between devices.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ranks on {} hosts", self.ranks.len(), self.hosts())?;
        for report in &self.ranks {
            let (rank, host) = (report.rank, &report.host_name);
            write!(
                f,
                "rank {rank:3}: {host} (host {}), process {}",
                report.host, report.process_id
            )?;
            match &report.device {
                None => writeln!(f, ", no device")?,
                Some(device) => {
                    let ways = match (device.fabric, device.descriptors) {
                        (true, true) => "fabric handles, file descriptors",
                        (true, false) => "fabric handles",
                        (false, true) => "file descriptors",
                        (false, false) => "nothing between processes",
                    };
                    writeln!(f, ", {} {} ({ways})", device.name, device.bus)?;
                }
            }
        }
        for set in self.shared_devices() {
            writeln!(f, "one device: ranks {set:?}")?;
        }
        if self.ranks.iter().all(|report| report.device.is_none()) {
            return Ok(());
        }
        write!(f, "to:  ")?;
        for to in 0..self.ranks.len() {
            write!(f, "{to:>4}")?;
        }
        for from in 0..self.ranks.len() {
            write!(f, "\n{from:>4} ")?;
            for to in 0..self.ranks.len() {
                write!(f, "{:>4}", self.route(from, to).short())?;
            }
        }
        write!(
            f,
            "\n= same device, NV peer access with native atomics, PCI peer access, - none, FAB by fabric, ? not known\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::fake::{Machine, Setup};
    use crate::identity;

    /// What one of four ranks gathers: two hosts, a shared device, a pair without access.
    fn topologies() -> Vec<Topology> {
        let setup = Setup {
            apart: vec![(0, 1)],
            ..Setup::default()
        };
        // The second host's device is one that the first doesn't see.
        let machines = [Machine::new(2, setup), Machine::new(9, Setup::default())];
        let groups = Group::threads(5).expect("groups");
        std::thread::scope(|scope| {
            let threads: Vec<_> = groups
                .into_iter()
                .map(|group| {
                    let machines = &machines;
                    scope.spawn(move || {
                        let mut roster: Vec<_> = (0..5)
                            .map(|rank| identity::person(rank, rank % 3))
                            .collect();
                        for person in &mut roster[3..] {
                            person.host = "other".into();
                            person.host_name = "node8".into();
                        }
                        let group = group.with_roster(roster);
                        let device = match group.rank() {
                            0 => Some(machines[0].device(0)),
                            1 | 2 => Some(machines[0].device(1)),
                            3 => Some(machines[1].device(8)),
                            _ => None,
                        };
                        let report = device.map(|device| device.report()).transpose();
                        let topology = Topology::of(&group, report).expect("gathered");
                        group.barrier().expect("all have it");
                        topology
                    })
                })
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(|topology| topology.expect("no panic")).collect()
        })
    }

    #[test]
    fn all_ranks_get_the_same_report_of_who_shares_what() {
        let all = topologies();
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
        let topology = &all[0];
        assert_eq!(topology.hosts(), 2);
        let hosts: Vec<_> = topology.ranks().iter().map(|rank| rank.host).collect();
        assert_eq!(hosts, [0, 0, 0, 1, 1]);
        assert_eq!(topology.shared_devices(), [[1, 2]]);
        let route = |from, to| topology.route(from, to);
        assert_eq!(route(0, 0), Route::SameDevice);
        assert_eq!(route(2, 1), Route::SameDevice);
        assert_eq!(route(0, 1), Route::None);
        assert_eq!(route(0, 3), Route::Fabric);
        assert_eq!(route(3, 1), Route::NvLink);
        assert_eq!(route(3, 4), Route::Unknown);
        assert_eq!(route(0, 99), Route::Unknown);
        let text = topology.to_string();
        for part in [
            "5 ranks on 2 hosts",
            "node8 (host 1)",
            "no device",
            "one device: ranks [1, 2]",
            "\n   0    =   -   - FAB   ?\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }
}
