//! Device memory that every rank of a group can reach: a buffer of one size on each rank, and
//! everybody's mapped on everybody's device.

mod descriptor;
mod guards;
mod share;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use cudarc::driver::CudaContext;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use self::guards::{Handle, Mapping};
use crate::device::cuda::Cuda;
use crate::device::{Device, DeviceReport, HandleKind};
use crate::error::{Error, Member, Result};
use crate::group::Group;

/// Where one rank's device finds every rank's buffer.
///
/// ```
/// use mok_comm::PeerAddresses;
///
/// let addresses = PeerAddresses { own: 1, bases: vec![0x1000, 0x2000], bytes: 256 };
/// assert_eq!(addresses.base(), 0x2000);
/// assert_eq!(addresses.world_size(), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddresses {
    /// Whose these are: a rank of the group.
    pub own: usize,
    /// The address of each rank's buffer, in rank order. They are this rank's: another rank reaches
    /// the same memory at other addresses.
    pub bases: Vec<u64>,
    /// Bytes of each buffer.
    pub bytes: usize,
}

impl PeerAddresses {
    /// This rank's own buffer; 0 if `own` is no rank.
    pub fn base(&self) -> u64 {
        self.bases.get(self.own).copied().unwrap_or(0)
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.bases.len()
    }
}

/// A buffer on every rank's device that all of them can read and write.
///
/// The memory comes from the driver's virtual memory calls. Ranks may drop theirs in any order, or
/// die: a buffer lives as long as any rank maps it. Before dropping it, a rank must have waited for
/// its own kernels and copies that use it; peers' do no harm to it, nor it to them.
///
/// ```no_run
/// use mok_comm::{Group, SymmetricMemory};
/// # use cudarc::driver::CudaContext;
///
/// let group = Group::from_env()?;
/// let context = CudaContext::new(group.local_rank())?;
/// let memory = SymmetricMemory::allocate(&group, &context, 1 << 20)?;
/// for (rank, base) in memory.addresses().bases.iter().enumerate() {
///     println!("rank {rank}'s buffer is at {base:#x} here");
/// }
/// group.barrier()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SymmetricMemory {
    /// One a rank; they hold the memory.
    _mappings: Vec<Mapping>,
    addresses: PeerAddresses,
    kind: HandleKind,
}

/// What a rank brings to an allocation.
#[derive(Serialize, Deserialize)]
struct Card {
    bytes: usize,
    wanted: Option<HandleKind>,
    granularity: usize,
    device: DeviceReport,
}

impl SymmetricMemory {
    /// Allocates `bytes` on this rank's device and maps every rank's: a collective call. The memory
    /// is zero when it returns, on all ranks. Sizes are rounded up to
    /// [`granularity`](SymmetricMemory::granularity) (usually 2 MiB).
    ///
    /// How memory is handed on follows from what all ranks can do, and is logged: within one
    /// process the driver's own handles; else fabric handles; else file descriptors.
    ///
    /// # Errors
    /// The same on every rank, and nothing is left allocated: [`Error::Unequal`] for different
    /// sizes, [`Error::NoPeerAccess`], [`Error::NoSharing`], [`Error::RankFailed`] with what failed
    /// on another rank, that itself on the rank where it failed ([`Error::Driver`] and others); and
    /// as for [`Group::barrier`].
    pub fn allocate(
        group: &Group,
        context: &Arc<CudaContext>,
        bytes: usize,
    ) -> Result<SymmetricMemory> {
        SymmetricMemory::allocate_with(group, context, bytes, None)
    }

    /// [`allocate`](SymmetricMemory::allocate), by this kind of handle or not at all where `kind` is
    /// given (the same on all ranks).
    ///
    /// # Errors
    /// As there.
    pub fn allocate_with(
        group: &Group,
        context: &Arc<CudaContext>,
        bytes: usize,
        kind: Option<HandleKind>,
    ) -> Result<SymmetricMemory> {
        let device = Cuda::new(context).map(|device| Arc::new(device) as Arc<dyn Device>);
        allocate_on(group, device, bytes, kind)
    }

    /// What sizes are rounded up to on this device, in bytes.
    ///
    /// # Errors
    /// [`Error::NoDriver`], [`Error::DriverTooOld`], [`Error::Driver`].
    pub fn granularity(context: &Arc<CudaContext>) -> Result<usize> {
        let device = Cuda::new(context)?;
        let mut report = device.report()?;
        granularity(&device, &mut report)
    }

    /// Where this rank's device finds every rank's buffer.
    pub fn addresses(&self) -> &PeerAddresses {
        &self.addresses
    }

    /// Bytes of each buffer, after rounding up.
    pub fn bytes(&self) -> usize {
        self.addresses.bytes
    }

    /// How the memory was handed on.
    pub fn kind(&self) -> HandleKind {
        self.kind
    }
}

/// The largest of all ways that the device has. A way whose granularity the driver doesn't tell is
/// none.
fn granularity(device: &dyn Device, report: &mut DeviceReport) -> Result<usize> {
    let mut bytes = device.granularity(HandleKind::InProcess)?;
    for (kind, able) in [
        (HandleKind::Fabric, &mut report.fabric),
        (HandleKind::Descriptor, &mut report.descriptors),
    ] {
        if *able {
            match device.granularity(kind) {
                Ok(own) => bytes = bytes.max(own),
                Err(error) => {
                    tracing::debug!("no {kind}: {error}");
                    *able = false;
                }
            }
        }
    }
    Ok(bytes)
}

fn card(device: &dyn Device, bytes: usize, wanted: Option<HandleKind>) -> Result<Card> {
    let mut report = device.report()?;
    if !report.virtual_memory {
        return Err(Error::NoSharing {
            why: format!("{} has no virtual memory management", report.name),
        });
    }
    let granularity = granularity(device, &mut report)?;
    // Twice the granularity below the end: rounding up can't overflow, on any rank.
    let limit = isize::MAX as usize / 2;
    if bytes == 0 || bytes > limit || !(1..limit).contains(&granularity) {
        return Err(Error::OutOfRange {
            what: "the size of symmetric memory",
            value: format!("{bytes} bytes"),
            limit: format!("1 to {limit}"),
        });
    }
    Ok(Card {
        bytes,
        wanted,
        granularity,
        device: report,
    })
}

/// What failed on this rank itself, where that is what all agreed on: it says more than its text.
fn own_or_agreed(group: &Group, own: Option<Error>, agreed: Error) -> Error {
    match (&agreed, own) {
        (Error::RankFailed { rank, .. }, Some(own)) if rank.rank == group.rank() => own,
        _ => agreed,
    }
}

/// Every rank's value, or the first failure.
pub(crate) fn gather<T: Serialize + DeserializeOwned>(
    group: &Group,
    own: Result<T>,
) -> Result<Vec<T>> {
    let bytes = own
        .as_ref()
        .map(|own| serde_json::to_vec(own).unwrap_or_default());
    let parts = group
        .try_all_gather(bytes)
        .map_err(|agreed| own_or_agreed(group, own.err(), agreed))?;
    let read = |(rank, part): (usize, &Vec<u8>)| {
        serde_json::from_slice(part).map_err(|error| Error::Protocol {
            rank: group.member(rank),
            what: error.to_string(),
        })
    };
    parts.iter().enumerate().map(read).collect()
}

/// An error unless all ranks gave the same.
fn equal(
    group: &Group,
    what: &'static str,
    cards: &[Card],
    value: impl Fn(&Card) -> String,
) -> Result<()> {
    let values: Vec<(Member, String)> = cards
        .iter()
        .enumerate()
        .map(|(rank, card)| (group.member(rank), value(card)))
        .collect();
    if values.windows(2).all(|pair| pair[0].1 == pair[1].1) {
        return Ok(());
    }
    Err(Error::Unequal { what, values })
}

/// An error if a device is known not to reach another. A device that a rank's process doesn't see
/// can't be asked about; mapping its memory tells.
fn check_access(group: &Group, cards: &[Card]) -> Result<()> {
    for (rank, card) in cards.iter().enumerate() {
        for (peer, other) in cards.iter().enumerate() {
            let mut links = card.device.links.iter();
            if let Some(link) = links.find(|link| link.uuid == other.device.uuid)
                && link.uuid != card.device.uuid
                && !link.access
            {
                return Err(Error::NoPeerAccess {
                    rank: group.member(rank),
                    device: format!("{} {}", card.device.name, card.device.bus),
                    peer: group.member(peer),
                    peer_device: format!("{} {}", other.device.name, other.device.bus),
                });
            }
        }
    }
    Ok(())
}

/// The ways that all ranks have, the first choice first: the same on every rank.
fn ways(group: &Group, cards: &[Card]) -> Result<Vec<HandleKind>> {
    let ranks = 0..cards.len();
    let lacking = |has: &dyn Fn(usize) -> bool| ranks.clone().find(|&rank| !has(rank));
    let mut ways = Vec::new();
    let mut reasons = Vec::new();
    for kind in [
        HandleKind::InProcess,
        HandleKind::Fabric,
        HandleKind::Descriptor,
    ] {
        let reason = match kind {
            HandleKind::InProcess => lacking(&|rank| group.share_process(0, rank))
                .map(|rank| format!("{} is another process than rank 0", group.member(rank))),
            HandleKind::Fabric => lacking(&|rank| cards[rank].device.fabric)
                .map(|rank| format!("the device of {} has none", group.member(rank))),
            HandleKind::Descriptor => lacking(&|rank| group.share_sockets(0, rank))
                .map(|rank| {
                    format!(
                        "{} shares no local sockets with rank 0 (another host, {}, or another container)",
                        group.member(rank),
                        group.host_name(rank)
                    )
                })
                .or_else(|| {
                    lacking(&|rank| cards[rank].device.descriptors)
                        .map(|rank| format!("the device of {} has none", group.member(rank)))
                }),
        };
        match reason {
            None => ways.push(kind),
            Some(reason) => reasons.push(format!("{kind}: {reason}")),
        }
    }
    if let Some(wanted) = cards.first().and_then(|card| card.wanted) {
        ways.retain(|&way| way == wanted);
    } else if ways.first() == Some(&HandleKind::InProcess) {
        // Nothing that the others do could be better, or succeed where it fails.
        ways.truncate(1);
    }
    if ways.is_empty() {
        let why = reasons.join("; ");
        return Err(Error::NoSharing { why });
    }
    Ok(ways)
}

pub(crate) fn allocate_on(
    group: &Group,
    device: Result<Arc<dyn Device>>,
    bytes: usize,
    wanted: Option<HandleKind>,
) -> Result<SymmetricMemory> {
    let (device, own) = match device {
        Ok(device) => {
            let card = card(&*device, bytes, wanted);
            (Ok(device), card)
        }
        Err(error) => (Err(error.clone()), Err(error)),
    };
    let cards = gather(group, own)?;
    let device = device?;
    // From here to `attempt` all ranks decide the same from the same cards.
    equal(group, "the size of symmetric memory", &cards, |card| {
        format!("{} bytes", card.bytes)
    })?;
    equal(group, "the kind of handles", &cards, |card| {
        card.wanted
            .map_or("any".into(), |wanted| wanted.to_string())
    })?;
    check_access(group, &cards)?;
    let mut ways = ways(group, &cards)?.into_iter().peekable();
    let granularity = cards.iter().map(|card| card.granularity).max();
    let granularity = granularity.unwrap_or(1);
    let bytes = bytes.next_multiple_of(granularity);
    while let Some(kind) = ways.next() {
        match attempt(group, &device, bytes, granularity, kind) {
            Ok(mappings) => {
                tracing::info!(rank = group.rank(), ranks = group.world_size(), bytes, %kind, "symmetric memory");
                let addresses = PeerAddresses {
                    own: group.rank(),
                    bases: mappings.iter().map(Mapping::address).collect(),
                    bytes,
                };
                return Ok(SymmetricMemory {
                    _mappings: mappings,
                    addresses,
                    kind,
                });
            }
            // All ranks are here, with the same verdict, as long as the group has not failed.
            Err(error) => match ways.peek() {
                Some(next) if group.failed().is_none() => {
                    tracing::info!("no symmetric memory by {kind} ({error}); trying {next}");
                }
                _ => return Err(error),
            },
        }
    }
    Err(Error::NoSharing {
        why: "there is no way left".into(),
    })
}

/// One way: allocates, hands on, maps. It succeeds on all ranks or on none.
fn attempt(
    group: &Group,
    device: &Arc<dyn Device>,
    bytes: usize,
    granularity: usize,
    kind: HandleKind,
) -> Result<Vec<Mapping>> {
    let made = Handle::create(device, bytes, kind).and_then(|handle| {
        let handle = Arc::new(handle);
        let (offer, ticket) = share::offer(device, &handle, kind)?;
        Ok((handle, offer, ticket))
    });
    let ticket = made.as_ref().map(|(_, _, ticket)| ticket.clone());
    let tickets = group.try_all_gather(ticket);
    let (tickets, handle, offer) = match (tickets, made) {
        (Ok(tickets), Ok((handle, offer, _))) => (tickets, handle, offer),
        (Err(agreed), made) => return Err(own_or_agreed(group, made.err(), agreed)),
        (Ok(_), Err(own)) => return Err(own),
    };
    let mapped = map_all(group, device, &handle, &tickets, bytes, granularity, kind);
    let agreed = group.agree(mapped.as_ref().map(|_| ()));
    // Not before all have taken it.
    drop(offer);
    match agreed {
        Ok(()) => mapped,
        Err(agreed) => Err(own_or_agreed(group, mapped.err(), agreed)),
    }
}

fn map_all(
    group: &Group,
    device: &Arc<dyn Device>,
    own: &Handle,
    tickets: &[Vec<u8>],
    bytes: usize,
    granularity: usize,
    kind: HandleKind,
) -> Result<Vec<Mapping>> {
    let mut mappings = Vec::new();
    for (rank, ticket) in tickets.iter().enumerate() {
        let mapping = if rank == group.rank() {
            let mapping = Mapping::new(device, own, bytes, granularity)?;
            mapping.zero()?;
            mapping
        } else {
            let taken = share::take(group, device, kind, rank, ticket)?;
            Mapping::new(device, &taken, bytes, granularity)?
        };
        mappings.push(mapping);
    }
    Ok(mappings)
}
