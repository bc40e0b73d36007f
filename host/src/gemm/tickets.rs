//! Words from which the blocks of a launch draw their tiles.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};

use mok_kernel::gemm::TICKETS;

use super::GemmError;
use crate::device::Device;
use crate::error::Result;
use crate::memory::{Buffer, DevicePtr};
use crate::stream::Stream;

/// CUDA's handle for the calling thread's default stream: as many streams as there are threads.
const PER_THREAD: usize = 2;

/// Words for the launches of each stream. A launch leaves its words as it found them, and launches of
/// one stream come one after the other, so they can share theirs; what is captured on a stream has
/// words of its own.
///
/// [`GroupedGemm`](super::GroupedGemm) has its own; whoever launches the entries himself makes one.
#[derive(Debug)]
pub struct Tickets {
    device: Device,
    words: Buffer<u64>,
    places: Mutex<Places>,
}

/// Which place is whose.
#[derive(Debug)]
struct Places {
    taken: HashMap<User, u32>,
    free: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct User {
    stream: usize,
    thread: Option<ThreadId>,
    captured: bool,
}

impl Tickets {
    /// Streams that there is room for at a time.
    pub const STREAMS: u32 = 256;

    /// Device memory that they take.
    pub const BYTES: u64 = (Tickets::STREAMS * TICKETS) as u64 * size_of::<u64>() as u64;

    /// Words that nothing has been drawn from.
    pub fn new(device: &Device) -> Result<Tickets> {
        Ok(Tickets {
            device: device.clone(),
            words: device.buffer_zeroed((Tickets::STREAMS * TICKETS) as usize)?,
            places: Mutex::new(Places {
                taken: HashMap::new(),
                free: (0..Tickets::STREAMS).rev().collect(),
            }),
        })
    }

    /// Has a launch made on `stream` with that stream's words,
    /// for [`GemmCall::args`](super::GemmCall::args).
    ///
    /// If more streams have come than there is room for, it waits for the device, and all but the captured
    /// ones are forgotten.
    ///
    /// # Errors
    /// [`GemmError::Streams`] if that leaves no room; the launch's own.
    pub fn with<R>(
        &self,
        stream: &Stream,
        launch: impl FnOnce(DevicePtr) -> Result<R>,
    ) -> Result<R> {
        let user = User {
            stream: stream.handle(),
            thread: (stream.handle() == PER_THREAD).then(|| thread::current().id()),
            captured: stream.captured()?,
        };
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = match places.taken.get(&user) {
            Some(&place) => place,
            None => {
                if places.free.is_empty() {
                    // A stream may have been destroyed and its work not be done.
                    self.device.synchronize()?;
                    let Places { taken, free } = &mut *places;
                    taken.retain(|user, place| {
                        if !user.captured {
                            free.push(*place);
                        }
                        user.captured
                    });
                }
                let limit = Tickets::STREAMS;
                let place = places.free.pop().ok_or(GemmError::Streams { limit })?;
                places.taken.insert(user, place);
                place
            }
        };
        let bytes = u64::from(place * TICKETS) * size_of::<u64>() as u64;
        // Still locked: nobody may be given this place before the launch is in its stream.
        launch(DevicePtr::from_raw(self.words.ptr().as_raw() + bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::EmulatorConfig;
    use crate::error::Error;

    fn of(tickets: &Tickets, stream: &Stream) -> Result<u64> {
        tickets.with(stream, |words| Ok(words.as_raw()))
    }

    #[test]
    fn a_stream_keeps_its_words_and_shares_them_with_no_other() {
        let device = Device::emulated(EmulatorConfig::default()).unwrap();
        let tickets = Tickets::new(&device).unwrap();
        let streams: Vec<Stream> = (0..Tickets::STREAMS)
            .map(|_| device.stream().unwrap())
            .collect();
        let words: Vec<u64> = streams.iter().map(|s| of(&tickets, s).unwrap()).collect();
        for (at, stream) in streams.iter().enumerate() {
            assert_eq!(of(&tickets, stream).unwrap(), words[at]);
        }
        let mut apart = words.clone();
        apart.sort_unstable();
        let step = 8 * u64::from(TICKETS);
        assert!(apart.windows(2).all(|two| two[1] - two[0] == step));
        // One more: the others are forgotten, and each gets words again.
        let more = device.stream().unwrap();
        assert!(words.contains(&of(&tickets, &more).unwrap()));
        assert_ne!(
            of(&tickets, &streams[0]).unwrap(),
            of(&tickets, &more).unwrap()
        );
    }

    #[test]
    fn what_is_captured_keeps_its_words() {
        let device = Device::emulated(EmulatorConfig::default()).unwrap();
        let tickets = Tickets::new(&device).unwrap();
        let stream = device.stream().unwrap();
        let mut captured = Vec::new();
        for _ in 0..2 {
            stream.begin_capture().unwrap();
            captured.push(of(&tickets, &stream).unwrap());
            stream.end_capture().unwrap();
        }
        assert_eq!(captured[0], captured[1]);
        for _ in 0..2 * Tickets::STREAMS {
            let other = device.stream().unwrap();
            assert_ne!(of(&tickets, &other).unwrap(), captured[0]);
        }
        // Nothing but captured ones: no room is left.
        let streams: Vec<Stream> = (0..Tickets::STREAMS)
            .map(|_| device.stream().unwrap())
            .collect();
        let mut refused = None;
        for stream in &streams {
            stream.begin_capture().unwrap();
            refused = of(&tickets, stream).err();
            stream.end_capture().unwrap();
        }
        assert!(
            matches!(
                refused,
                Some(Error::Gemm(GemmError::Streams { limit: 256 }))
            ),
            "{refused:?}"
        );
    }
}
