//! Ranks of one job: how they find each other, agree, and fail together.
//!
//! A [`Group`] is one rank's place among the others. Ranks are threads of one process
//! ([`Group::threads`]) or processes that a launcher started ([`Group::from_env`],
//! [`Group::connect`]); what can be done with a group is the same. Set-up and errors go
//! over the host, through rank 0's process: [`barrier`](Group::barrier),
//! [`all_gather`](Group::all_gather), [`broadcast`](Group::broadcast),
//! [`agree`](Group::agree), [`split`](Group::split), each with a deadline and an error that names
//! the rank. A rank whose process dies is noticed at once, also between calls:
//! [`failed`](Group::failed).
//!
//! [`SymmetricMemory`] is a buffer on every rank's device that all devices reach;
//! [`Topology`] says which ranks share a host or a device, and how devices reach each other.
//!
//! Nothing here panics on what a caller, a peer or a stranger sends.
#![deny(missing_docs)]

mod device;
mod error;
mod group;
mod hub;
mod identity;
mod mailbox;
mod rendezvous;
mod symmetric;
mod topology;
mod wire;

pub use device::{DeviceReport, HandleKind, PeerLink};
pub use error::{Call, Departure, Error, Member, Result};
pub use group::{DEFAULT_TIMEOUT, Group, MAX_BYTES, MAX_RANKS};
pub use rendezvous::Rendezvous;
pub use symmetric::{PeerAddresses, SymmetricMemory};
pub use topology::{RankReport, Route, Topology};
