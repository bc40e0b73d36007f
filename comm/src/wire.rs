//! Messages: a JSON header that says what it is, and raw bytes behind it.

use std::io::{self, Read, Write};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Call, Departure};

/// What both sides of a connection say first.
pub(crate) const MAGIC: [u8; 8] = *b"mok-comm";
/// Raised with every change of what is sent.
pub(crate) const VERSION: u32 = 1;
/// Bytes of [`greeting`].
pub(crate) const GREETING: usize = 12;
/// The most bytes that one rank may send in one call: what a caller may give, and a byte that says
/// whether it failed.
pub(crate) const MAX_PAYLOAD: usize = (1 << 20) + 1;
/// A year stands for every longer time, so that sums with a clock don't overflow.
pub(crate) const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
/// The most bytes of a header: the roster of the largest world fits.
pub(crate) const MAX_HEADER: usize = 4 << 20;
/// The most bytes of a [`Hello`], which anybody may send.
pub(crate) const MAX_HELLO: usize = 16 << 10;

/// Magic and version.
pub(crate) fn greeting() -> [u8; GREETING] {
    let mut bytes = [0; GREETING];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// The version in a greeting, `None` if it is no greeting of this crate's.
pub(crate) fn version_of(greeting: [u8; GREETING]) -> Option<u32> {
    let [magic @ .., a, b, c, d] = greeting;
    (magic == MAGIC).then_some(u32::from_le_bytes([a, b, c, d]))
}

/// Who a rank is, as it says itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Person {
    pub rank: usize,
    pub local_rank: usize,
    pub pid: u32,
    /// The name of its host, for people.
    pub host_name: String,
    /// Equal for processes that run under one kernel.
    pub host: String,
    /// Equal for processes that see each other's abstract sockets.
    pub network: String,
    /// Equal for ranks of one process.
    pub process: String,
}

impl std::fmt::Display for Person {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} on {}", self.pid, self.host_name)
    }
}

/// What a rank says when it comes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub job: String,
    pub world: usize,
    pub person: Person,
}

/// What a rank asks of the hub.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Takes part in a collective call; its bytes follow.
    Call {
        group: String,
        call: Call,
        timeout_ms: u64,
    },
    /// Gives up its place in one group.
    Leave { group: String, how: Departure },
    /// Has failed, and says so to a group.
    Abort { group: String, message: String },
    /// Gives up everything.
    Bye { how: Departure },
}

/// Why a group is of no use any more. Ranks are numbered as in the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Cause {
    Lost {
        rank: usize,
        how: Departure,
    },
    Aborted {
        rank: usize,
        message: String,
    },
    Timeout {
        call: Call,
        missing: Vec<usize>,
        seconds: f64,
    },
    Mismatch {
        first: (usize, Call),
        second: (usize, Call),
    },
    Protocol {
        rank: usize,
        what: String,
    },
    Silent {
        call: Call,
        seconds: f64,
    },
}

/// Why a rank is not let in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// Another job, or another version: this is not the rank 0 that was looked for.
    Foreign {
        why: String,
    },
    Duplicate {
        rank: usize,
        first: String,
        second: String,
    },
    WorldSize {
        rank: usize,
        theirs: usize,
        ours: usize,
    },
    /// The others were not complete in time.
    Missing {
        missing: Vec<usize>,
        seconds: f64,
        notes: Vec<String>,
    },
    Lost {
        rank: usize,
        how: Departure,
    },
}

/// What the hub tells a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// Not let in, or no longer.
    Refused(Refusal),
    /// Let in; these ranks are still to come.
    Waiting { missing: Vec<usize> },
    /// All are here.
    Welcome { roster: Vec<Person> },
    /// A collective call is done; the members' bytes follow, in order, with these lengths.
    Done {
        group: String,
        number: u64,
        lengths: Vec<usize>,
    },
    /// A group is of no use any more.
    Failed { group: String, cause: Cause },
}

/// A message as bytes: two lengths, the header, the parts.
pub(crate) fn frame(header: &impl Serialize, parts: &[Vec<u8>]) -> Vec<u8> {
    // Plain enums of strings and numbers: there is nothing that JSON could refuse.
    let header = serde_json::to_vec(header).unwrap_or_default();
    let payload: usize = parts.iter().map(Vec::len).sum();
    let mut bytes = Vec::with_capacity(12 + header.len() + payload);
    bytes.extend((header.len() as u32).to_le_bytes());
    bytes.extend((payload as u64).to_le_bytes());
    bytes.extend(&header);
    for part in parts {
        bytes.extend(part);
    }
    bytes
}

/// Reads a message of at most `max_header` bytes of header and `max_payload` bytes behind it.
pub(crate) fn read<T: DeserializeOwned>(
    from: &mut impl Read,
    max_header: usize,
    max_payload: usize,
) -> io::Result<(T, Vec<u8>)> {
    let bad = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut lengths = [0; 12];
    from.read_exact(&mut lengths)?;
    let [a, b, c, d, payload @ ..] = lengths;
    let header = u32::from_le_bytes([a, b, c, d]) as usize;
    let payload = u64::from_le_bytes(payload);
    if header > max_header || payload > max_payload as u64 {
        return Err(bad(format!(
            "a message of {header} and {payload} bytes, the limits are {max_header} and {max_payload}"
        )));
    }
    let header = exactly(from, header)?;
    let header = serde_json::from_slice(&header).map_err(|error| bad(error.to_string()))?;
    Ok((header, exactly(from, payload as usize)?))
}

/// Reads so many bytes, taking memory only as they come.
fn exactly(from: &mut impl Read, bytes: usize) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    from.take(bytes as u64).read_to_end(&mut read)?;
    if read.len() == bytes {
        Ok(read)
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Writes a message.
pub(crate) fn write(
    to: &mut impl Write,
    header: &impl Serialize,
    parts: &[Vec<u8>],
) -> io::Result<()> {
    to.write_all(&frame(header, parts))
}

/// Cuts the bytes behind a [`Reply::Done`] into the members' parts.
pub(crate) fn cut(mut payload: &[u8], lengths: &[usize]) -> Option<Vec<Vec<u8>>> {
    let mut parts = Vec::with_capacity(lengths.len());
    for &length in lengths {
        let (part, rest) = payload.split_at_checked(length)?;
        parts.push(part.to_vec());
        payload = rest;
    }
    payload.is_empty().then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let reply = Reply::Done {
            group: "0".into(),
            number: 7,
            lengths: vec![2, 0, 1],
        };
        let parts = vec![vec![1, 2], vec![], vec![3]];
        let bytes = frame(&reply, &parts);
        let (read, payload) =
            self::read::<Reply>(&mut &bytes[..], MAX_HEADER, 3).expect("a message");
        assert_eq!((&read, payload.as_slice()), (&reply, &[1, 2, 3][..]));
        assert_eq!(cut(&payload, &[2, 0, 1]), Some(parts));
        assert_eq!(cut(&payload, &[2, 2]), None);
        assert_eq!(cut(&payload, &[2]), None);
        assert!(self::read::<Reply>(&mut &bytes[..], 20, 3).is_err());
        // One byte more than the reader takes, and every shorter message.
        assert!(self::read::<Reply>(&mut &bytes[..], MAX_HEADER, 2).is_err());
        for end in 0..bytes.len() {
            assert!(self::read::<Reply>(&mut &bytes[..end], MAX_HEADER, 3).is_err());
        }
    }

    #[test]
    fn a_length_alone_takes_no_memory() {
        let mut bytes = 2u32.to_le_bytes().to_vec();
        bytes.extend((1u64 << 40).to_le_bytes());
        bytes.extend(b"{}");
        let error = self::read::<Reply>(&mut &bytes[..], 8, usize::MAX).expect_err("too short");
        assert_ne!(error.kind(), io::ErrorKind::OutOfMemory);
    }

    #[test]
    fn greetings_are_told_from_noise() {
        assert_eq!(version_of(greeting()), Some(VERSION));
        assert_eq!(version_of(*b"GET / HTTP/1"), None);
    }
}
