//! What can go wrong between ranks, and what to do about it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A rank as an error names it: its number in the group that the call was made on, and in the job.
///
/// ```
/// # use mok_comm::Member;
/// let member = Member { rank: 1, world_rank: 5 };
/// assert_eq!(member.to_string(), "rank 1 (rank 5 of the job)");
/// assert_eq!(Member { rank: 5, world_rank: 5 }.to_string(), "rank 5");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// The number in the group.
    pub rank: usize,
    /// The number in the whole job.
    pub world_rank: usize,
}

impl Member {
    pub(crate) fn of_world(rank: usize) -> Member {
        Member {
            rank,
            world_rank: rank,
        }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)?;
        if self.rank != self.world_rank {
            write!(f, " (rank {} of the job)", self.world_rank)?;
        }
        Ok(())
    }
}

pub(crate) fn list(members: &[impl fmt::Display]) -> String {
    let names: Vec<String> = members.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// Ranks by their value, each value once.
fn groups(values: &[(Member, String)]) -> String {
    let mut seen: Vec<&str> = Vec::new();
    let mut texts = Vec::new();
    for (_, value) in values {
        if !seen.contains(&value.as_str()) {
            seen.push(value);
            let same = values.iter().filter(|(_, other)| other == value);
            let ranks: Vec<Member> = same.map(|(rank, _)| *rank).collect();
            texts.push(format!("{value} on {}", list(&ranks)));
        }
    }
    texts.join("; ")
}

fn lines(notes: &[String]) -> String {
    notes.iter().map(|note| format!("\n  {note}")).collect()
}

/// How a rank went away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Departure {
    /// Its connection closed: the process ended or was killed, or its host went down.
    Closed,
    /// It dropped its [`Group`](crate::Group) while others still used theirs.
    Left,
    /// Its thread panicked.
    Panicked,
    /// It took no data for too long: the process is stopped, or the network is gone.
    Stuck,
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Departure::Closed => {
                "its connection closed (the process ended or was killed; its own log says why)"
            }
            Departure::Left => "it dropped its group while others still used theirs",
            Departure::Panicked => "its thread panicked",
            Departure::Stuck => "it takes no data (stopped process, or broken network)",
        })
    }
}

/// A collective call: which, the how-manieth on its group, and where in the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The call, with what must be equal on all ranks, such as `broadcast from rank 0`.
    pub name: String,
    /// How many collective calls this group made before.
    pub number: u64,
    /// `file:line` of the caller.
    pub place: String,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (call {} at {})", self.name, self.number, self.place)
    }
}

/// Everything that a call of this crate can fail with.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A variable of the launcher is missing, unreadable or contradicts another.
    #[error("{variable} {problem}: {advice}")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// What is wrong with it.
        problem: String,
        /// What to do.
        advice: String,
    },
    /// A value given to this crate is out of its range.
    #[error("{what} is {value}: {limit}")]
    OutOfRange {
        /// The value's name.
        what: &'static str,
        /// The value.
        value: String,
        /// What it may be.
        limit: String,
    },
    /// Rank 0 could bind none of the ports of its job.
    #[error("rank 0 can listen on no port of this job: {advice}{}", lines(tried))]
    NoPort {
        /// Each address with the system's error.
        tried: Vec<String>,
        /// What to do.
        advice: String,
    },
    /// A rank found no rank 0 of its job within its deadline.
    #[error(
        "rank {rank} found no rank 0 of its job within {seconds:.1} s: is rank 0 running, and do MASTER_ADDR, MASTER_PORT and the job's id agree? tried{}",
        lines(tried)
    )]
    NoRendezvous {
        /// The rank that looked.
        rank: usize,
        /// How long.
        seconds: f64,
        /// Each address with what happened there last.
        tried: Vec<String>,
    },
    /// Ranks did not come to the rendezvous within the deadline.
    #[error(
        "of {world} ranks these never came within {seconds:.1} s: {}; their own logs say why{}",
        list(missing),
        lines(notes)
    )]
    MissingRanks {
        /// The ranks.
        missing: Vec<usize>,
        /// Ranks of the job.
        world: usize,
        /// How long was waited.
        seconds: f64,
        /// Who was turned away meanwhile, and why.
        notes: Vec<String>,
    },
    /// Two processes came as the same rank of the same job.
    #[error(
        "rank {rank} came twice: {first}, and {second}; give every process its own RANK, and jobs that share a host and port their own MOK_JOB_ID"
    )]
    DuplicateRank {
        /// The rank.
        rank: usize,
        /// Who came first.
        first: String,
        /// Who came then.
        second: String,
    },
    /// A rank of this job was started with another number of ranks.
    #[error(
        "rank {rank} has WORLD_SIZE {theirs}, rank 0 has {ours}: start all ranks with the same"
    )]
    WorldSize {
        /// The rank that came.
        rank: usize,
        /// Its world size.
        theirs: usize,
        /// Rank 0's.
        ours: usize,
    },
    /// A rank went away.
    #[error("{rank} is lost: {how}")]
    RankLost {
        /// Which.
        rank: Member,
        /// How.
        how: Departure,
    },
    /// The process of the job's rank 0, which carries the messages of every group, went away; that
    /// rank isn't in this group.
    #[error("rank 0 of the job, which carries this group's messages, is lost: {how}")]
    CarrierLost {
        /// How.
        how: Departure,
    },
    /// A rank said that it failed: in [`agree`](crate::Group::agree), or by
    /// [`abort`](crate::Group::abort).
    #[error("{rank} failed: {message}")]
    RankFailed {
        /// Which; of several, the lowest.
        rank: Member,
        /// What it said.
        message: String,
    },
    /// Ranks did not come to a collective call within its deadline.
    #[error("{call} was not reached within {seconds:.1} s by {}", list(missing))]
    Timeout {
        /// The call that waited.
        call: Box<Call>,
        /// Who never came.
        missing: Vec<Member>,
        /// How long was waited.
        seconds: f64,
    },
    /// Ranks made different collective calls on the same group.
    #[error(
        "ranks disagree about the next collective: {first} called {first_call}, {second} called {second_call}; all ranks must make the same calls in the same order"
    )]
    Mismatch {
        /// A rank.
        first: Member,
        /// What it called.
        first_call: Box<Call>,
        /// Another.
        second: Member,
        /// What that called.
        second_call: Box<Call>,
    },
    /// Rank 0's process, which carries all messages, does not answer.
    #[error(
        "{call}: no answer from rank 0's process within {seconds:.1} s (stopped, or the network is gone)"
    )]
    Silent {
        /// The call that waited.
        call: Box<Call>,
        /// How long.
        seconds: f64,
    },
    /// A message is larger than this crate sends.
    #[error("{call}: {bytes} bytes are more than a rank may send, {limit}")]
    TooLarge {
        /// The call.
        call: Box<Call>,
        /// Its bytes.
        bytes: usize,
        /// The most.
        limit: usize,
    },
    /// Ranks speak, but not as this crate does.
    #[error(
        "{rank} sent what this version does not understand: {what}; run the same build everywhere"
    )]
    Protocol {
        /// Which.
        rank: Member,
        /// What came.
        what: String,
    },
    /// Ranks gave different values where all must give the same.
    #[error("ranks disagree on {what}: {}", groups(values))]
    Unequal {
        /// What the values are of.
        what: &'static str,
        /// Every rank's value, in rank order.
        values: Vec<(Member, String)>,
    },
    /// A device can't reach another's memory.
    #[error(
        "the device of {rank} ({device}) has no peer access to that of {peer} ({peer_device}): they need NVLink, or PCIe peer access that the system allows; without it use the NCCL transport"
    )]
    NoPeerAccess {
        /// Whose device can't reach.
        rank: Member,
        /// That device.
        device: String,
        /// Whose it can't reach.
        peer: Member,
        /// That device.
        peer_device: String,
    },
    /// Device memory can't be shared between these ranks in any way.
    #[error("device memory can't be shared between these ranks: {why}")]
    NoSharing {
        /// Why each way is closed.
        why: String,
    },
    /// The machine has no CUDA driver library.
    #[error(
        "no CUDA driver on this machine: libcuda.so was not found (install the NVIDIA driver, or add its folder to LD_LIBRARY_PATH)"
    )]
    NoDriver,
    /// The driver library lacks a function that this crate calls.
    #[error("the CUDA driver is too old: it has no {symbol} (CUDA 12.0 or later is needed)")]
    DriverTooOld {
        /// The missing function.
        symbol: &'static str,
    },
    /// A driver call failed.
    #[error("{call} failed: {name} ({code}){}{values}", if values.is_empty() { "" } else { "; " })]
    Driver {
        /// The driver function.
        call: &'static str,
        /// The driver's error number.
        code: u32,
        /// The driver's name for it, such as `CUDA_ERROR_OUT_OF_MEMORY`.
        name: String,
        /// The values of this call; may be empty.
        values: String,
    },
    /// The operating system refused something.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: String,
        /// The system's answer.
        error: String,
    },
}

impl Error {
    pub(crate) fn system(what: impl Into<String>, error: &std::io::Error) -> Error {
        Error::System {
            what: what.into(),
            error: error.to_string(),
        }
    }
}
