//! Handing a rank's memory to the others, in each way that there is.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use super::descriptor;
use super::guards::Handle;
use crate::device::{Device, HandleKind};
use crate::error::{Error, Result};
use crate::group::Group;
use crate::identity;

/// Memory that ranks of this process offer each other, by a name that no other has.
static OFFERED: LazyLock<Mutex<HashMap<String, Arc<Handle>>>> = LazyLock::new(Mutex::default);

fn offered() -> MutexGuard<'static, HashMap<String, Arc<Handle>>> {
    OFFERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An offer within this process, until dropped.
pub(super) struct InProcess(String);

impl Drop for InProcess {
    fn drop(&mut self) {
        offered().remove(&self.0);
    }
}

/// What keeps an offer open.
#[expect(dead_code, reason = "held, to be dropped")]
pub(super) enum Offer {
    InProcess(InProcess),
    Fabric,
    Descriptor(descriptor::Server),
}

/// Offers memory to the other ranks: the offer, and the bytes by which they take it.
pub(super) fn offer(
    device: &Arc<dyn Device>,
    handle: &Arc<Handle>,
    kind: HandleKind,
) -> Result<(Offer, Vec<u8>)> {
    match kind {
        HandleKind::InProcess => {
            let name = identity::nonce();
            offered().insert(name.clone(), handle.clone());
            let bytes = name.clone().into_bytes();
            Ok((Offer::InProcess(InProcess(name)), bytes))
        }
        HandleKind::Fabric => {
            // SAFETY: the handle is alive as long as its guard.
            let bytes = unsafe { device.export_fabric(handle.raw())? };
            Ok((Offer::Fabric, bytes.to_vec()))
        }
        HandleKind::Descriptor => {
            // SAFETY: the handle is alive as long as its guard.
            let exported = unsafe { device.export_descriptor(handle.raw())? };
            let (server, ticket) = descriptor::Server::start(exported)?;
            Ok((Offer::Descriptor(server), ticket))
        }
    }
}

/// Takes what rank `peer` offers.
pub(super) fn take(
    group: &Group,
    device: &Arc<dyn Device>,
    kind: HandleKind,
    peer: usize,
    ticket: &[u8],
) -> Result<Arc<Handle>> {
    let bad = || Error::Protocol {
        rank: group.member(peer),
        what: format!("{} bytes as {kind}", ticket.len()),
    };
    match kind {
        HandleKind::InProcess => {
            let name = std::str::from_utf8(ticket).map_err(|_| bad())?;
            offered().get(name).cloned().ok_or_else(bad)
        }
        HandleKind::Fabric => {
            let raw = device.import_fabric(ticket.try_into().map_err(|_| bad())?)?;
            Ok(Arc::new(Handle::own(device, raw)))
        }
        HandleKind::Descriptor => {
            let descriptor = descriptor::fetch(group, peer, ticket)?;
            let raw = device.import_descriptor(&descriptor)?;
            Ok(Arc::new(Handle::own(device, raw)))
        }
    }
}
