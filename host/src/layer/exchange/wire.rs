//! What carries rows between ranks that don't reach each other's memory.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use mok_comm::{Group, MAX_BYTES};
use mok_kernel::failure::Wait;

use super::of_group;
use crate::device::Device;
use crate::error::Result;
use crate::layer::{LayerError, WaitName};
use crate::stream::Stream;

/// What goes to one rank, or comes from it: bytes of device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::layer) struct Part {
    /// Where they start.
    pub at: u64,
    /// How many.
    pub bytes: u64,
}

/// An all-to-all.
pub(in crate::layer) trait Wire: Send + Sync + Debug {
    /// Collective: sends and receives a part for each rank; this rank's own are empty. Enqueued on
    /// the stream, or over when it returns. Fails where another rank is lost or late.
    ///
    /// # Safety
    /// The parts are device memory that lives until [`Wire::settle`] has returned, and that nothing
    /// off the stream touches until then.
    unsafe fn exchange(&self, sends: &[Part], receives: &[Part], stream: &Stream) -> Result<()>;

    /// Waits until every exchange is over. After an error nothing of them runs any more.
    fn settle(&self) -> Result<()>;

    /// Gives up what is under way; later exchanges fail.
    fn abort(&self);
}

/// For emulated devices: through the host's memory and the group's messages.
#[derive(Debug)]
pub(super) struct Emulated {
    pub device: Device,
    pub group: Arc<Group>,
    /// How long each step waits for the slowest rank, whose kernels are emulated meanwhile.
    pub deadline: Duration,
}

impl Emulated {
    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let all = self.group.all_gather(bytes);
        Ok(all.map_err(|error| of_group(error, Wait::Results, self.deadline))?)
    }

    /// # Safety
    /// As [`Wire::exchange`].
    unsafe fn read(&self, parts: &[Part], stream: &Stream) -> Result<Vec<u8>> {
        let total: u64 = parts.iter().map(|part| part.bytes).sum();
        let mut bytes = vec![0; total as usize];
        let mut rest = &mut bytes[..];
        for part in parts {
            let (own, after) = rest.split_at_mut(part.bytes as usize);
            if !own.is_empty() {
                let backend = self.device.backend();
                let to = own.as_mut_ptr();
                // SAFETY: device memory by the contract; the slice outlives the synchronisation.
                unsafe { backend.copy_out(to, part.at, own.len(), stream.handle()) }?;
            }
            rest = after;
        }
        stream.synchronize()?;
        Ok(bytes)
    }
}

impl Wire for Emulated {
    unsafe fn exchange(&self, sends: &[Part], receives: &[Part], stream: &Stream) -> Result<()> {
        self.group.set_timeout(self.deadline);
        let rank = self.group.rank();
        // SAFETY: the same contract.
        let own = unsafe { self.read(sends, stream) };
        let own = match own {
            Ok(own) => own,
            Err(error) => {
                // Nobody waits for what won't come.
                self.group.abort(&error);
                return Err(error);
            }
        };
        let lengths: Vec<u8> = sends
            .iter()
            .flat_map(|part| part.bytes.to_le_bytes())
            .collect();
        let lengths: Vec<Vec<u64>> = self
            .gather(&lengths)?
            .iter()
            .map(|own| own.chunks_exact(8).map(word).collect())
            .collect();
        let longest = lengths.iter().map(|own| own.iter().sum::<u64>()).max();
        let rounds = longest.unwrap_or(0).div_ceil(MAX_BYTES as u64);
        // From where to where in each rank's bytes this rank's part stands.
        let mut parts: Vec<(u64, u64, Vec<u8>)> = lengths
            .iter()
            .map(|own| {
                let start: u64 = own.iter().take(rank).sum();
                let bytes = own.get(rank).copied().unwrap_or(0);
                (start, start + bytes, Vec::with_capacity(bytes as usize))
            })
            .collect();
        for round in 0..rounds {
            let from = round * MAX_BYTES as u64;
            let chunk = own.chunks(MAX_BYTES).nth(round as usize).unwrap_or(&[]);
            let all = self.gather(chunk)?;
            for ((start, end, part), chunk) in parts.iter_mut().zip(&all) {
                let inside = |at: u64| at.saturating_sub(from).min(chunk.len() as u64) as usize;
                part.extend_from_slice(&chunk[inside(*start)..inside(*end)]);
            }
        }
        for (other, ((_, _, bytes), to)) in parts.iter().zip(receives).enumerate() {
            if bytes.len() as u64 != to.bytes {
                let text = format!(
                    "rank {other} sent {} bytes where {} were expected",
                    bytes.len(),
                    to.bytes
                );
                self.group.abort(&text);
                let wait = WaitName(Some(Wait::Results));
                return Err(LayerError::Group { text, wait }.into());
            }
            if !bytes.is_empty() {
                let backend = self.device.backend();
                // SAFETY: device memory by the contract; the bytes outlive the synchronisation.
                unsafe { backend.copy_in(to.at, bytes.as_ptr(), bytes.len(), stream.handle()) }?;
            }
        }
        stream.synchronize()
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn abort(&self) {}
}

fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

/// One rank alone: nothing travels.
#[derive(Debug)]
pub(super) struct Alone;

impl Wire for Alone {
    unsafe fn exchange(&self, _: &[Part], _: &[Part], _: &Stream) -> Result<()> {
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn abort(&self) {}
}
