//! Ranks that don't reach each other's memory: what they agree on, and how rows travel.
//!
//! Each call begins and ends with a meeting over the host. The first says whether every rank's checks
//! passed, so that nothing is enqueued which others would wait for in vain; the last makes what
//! went wrong on one rank everybody's error.

use std::sync::Arc;
use std::time::Duration;

use mok_comm::{Error as GroupError, Group};
use mok_kernel::failure::Wait;

use super::config::MoeConfig;
use super::error::{LayerError, WaitName};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::stream::Stream;

mod lists;
mod nccl;
mod wire;

pub(super) use lists::Lists;
pub(super) use nccl::check_library;
pub(super) use wire::Part;
use wire::Wire;

/// A failure as the call tells it, and as the workspace keeps it until it is recovered.
#[derive(Debug)]
pub(super) struct Failure {
    pub told: Error,
    pub kept: LayerError,
}

impl Failure {
    /// One that the call tells as it is kept.
    fn of(kept: LayerError) -> Box<Failure> {
        let told = kept.clone().into();
        Box::new(Failure { told, kept })
    }
}

/// The ranks of a workspace, and what carries rows between them.
#[derive(Debug)]
pub(super) struct Exchange {
    device: Device,
    /// Of this workspace alone: its deadlines are the layer's, and its failure is no other's.
    group: Arc<Group>,
    wire: Box<dyn Wire>,
    config: MoeConfig,
}

impl Exchange {
    /// Collective.
    pub fn new(device: &Device, group: &Group, config: &MoeConfig) -> Result<Exchange> {
        let own = Arc::new(group.split(0, group.rank() as u64)?);
        own.set_timeout(config.start_deadline);
        let wire: Box<dyn Wire> = if own.world_size() == 1 {
            Box::new(wire::Alone)
        } else if device.is_emulated() {
            Box::new(wire::Emulated {
                device: device.clone(),
                group: own.clone(),
                deadline: config.start_deadline.max(config.progress_deadline),
            })
        } else {
            Box::new(nccl::Nccl::new(device, &own, config)?)
        };
        Ok(Exchange {
            device: device.clone(),
            group: own,
            wire,
            config: *config,
        })
    }

    /// Collective, at the start of a call: every rank's bytes, if all checks passed.
    pub fn open(&self, checked: Result<Vec<u8>>, wait: Wait) -> Result<Vec<Vec<u8>>, Box<Failure>> {
        let rank = self.group.rank() as u32;
        self.meet(checked, wait, |_| LayerError::HostCheck { rank })
    }

    /// Collective, at the end of a call: whether it went well everywhere.
    pub fn close(&self, result: Result<()>, wait: Wait) -> Result<(), Box<Failure>> {
        let kept = |error: &Error| match error {
            Error::Layer(error) => error.clone(),
            other => LayerError::Group {
                text: other.to_string(),
                wait: WaitName(Some(wait)),
            },
        };
        let result = result.map(|()| Vec::new());
        self.meet(result, wait, kept).map(drop)
    }

    fn meet(
        &self,
        own: Result<Vec<u8>>,
        wait: Wait,
        kept: impl FnOnce(&Error) -> LayerError,
    ) -> Result<Vec<Vec<u8>>, Box<Failure>> {
        let deadline = self.config.deadline(wait);
        self.group.set_timeout(deadline);
        // Which call it is goes along: they all meet here, so the group can't tell them apart.
        let tagged = |own: &Vec<u8>| [own.as_slice(), &[wait as u8]].concat();
        let met = self.group.try_all_gather(own.as_ref().map(tagged));
        match (own, met) {
            (Ok(_), Ok(mut all)) => {
                let tags: Vec<Option<u8>> = all.iter_mut().map(Vec::pop).collect();
                match tags.iter().position(|&tag| tag != Some(wait as u8)) {
                    None => Ok(all),
                    Some(rank) => Err(Failure::of(LayerError::Different {
                        rank: rank as u32,
                        theirs: WaitName(tags[rank].and_then(|tag| Wait::from_number(tag.into()))),
                        own: WaitName(Some(wait)),
                    })),
                }
            }
            (Ok(_), Err(error)) => {
                let kept = of_group(error, wait, deadline);
                Err(Failure::of(kept))
            }
            (Err(told), _) => {
                let kept = kept(&told);
                Err(Box::new(Failure { told, kept }))
            }
        }
    }

    /// Collective: an all-to-all of these parts, one for each rank, its own among them.
    ///
    /// # Safety
    /// The parts are device memory that lives until [`Exchange::settle`] has returned, and that
    /// nothing off the stream touches until then.
    pub unsafe fn exchange(
        &self,
        mut sends: Vec<Part>,
        mut receives: Vec<Part>,
        stream: &Stream,
    ) -> Result<()> {
        let rank = self.group.rank();
        if let (Some(from), Some(to)) = (sends.get_mut(rank), receives.get_mut(rank)) {
            let (from, to) = (std::mem::take(from), std::mem::take(to));
            let bytes = from.bytes.min(to.bytes) as usize;
            if bytes > 0 {
                let backend = self.device.backend();
                // SAFETY: the caller's contract.
                unsafe { backend.copy_within(to.at, from.at, bytes, stream.handle()) }?;
            }
        }
        // SAFETY: the caller's contract.
        unsafe { self.wire.exchange(&sends, &receives, stream) }
    }

    /// Waits until every exchange is over.
    pub fn settle(&self) -> Result<()> {
        self.wire.settle()
    }

    /// Gives up what is under way.
    pub fn abort(&self) {
        self.wire.abort();
    }
}

/// What a failure of the group means for the layer.
pub(super) fn of_group(error: GroupError, wait: Wait, deadline: Duration) -> LayerError {
    let wait = WaitName(Some(wait));
    match error {
        GroupError::RankFailed { rank, message } => LayerError::Aborted {
            rank: rank.rank as u32,
            reason: message,
            wait,
        },
        GroupError::RankLost { rank, how } => LayerError::Lost {
            rank: rank.rank as u32,
            how: Some(how.to_string()),
        },
        GroupError::Timeout { missing, .. } => LayerError::Late {
            ranks: missing.iter().map(|rank| rank.rank as u32).collect(),
            wait,
            deadline,
        },
        other => LayerError::Group {
            text: other.to_string(),
            wait,
        },
    }
}
