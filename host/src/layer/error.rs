//! What can go wrong with a layer.

use std::fmt;
use std::time::Duration;

use mok_kernel::failure::{Code, Wait, word};

/// A layer that cannot be, or a call that failed on this rank or another.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// A size is out of range.
    #[error("{what} is {value}, not {least} to {most}")]
    Range {
        /// Which.
        what: &'static str,
        /// The value.
        value: u64,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// A size is no multiple of what it must be.
    #[error("{what} is {value}, not a multiple of {of}")]
    Multiple {
        /// Which.
        what: &'static str,
        /// The value.
        value: u64,
        /// What it must be a multiple of.
        of: u64,
    },
    /// `swiglu_limit` is not a positive number.
    #[error("swiglu_limit is {value}, not a positive number")]
    SwigluLimit {
        /// The value.
        value: f32,
    },
    /// A deadline is zero, or longer than the device's timer counts.
    #[error("{what} is {value:?}, not more than zero and at most {most:?}")]
    DeadlineRange {
        /// Which.
        what: &'static str,
        /// The value.
        value: Duration,
        /// The most.
        most: Duration,
    },
    /// Ranks were configured differently.
    #[error(
        "rank {rank} has {what} {theirs}, rank {own_rank} has {own}: all ranks need the same configuration"
    )]
    Disagreement {
        /// What differs.
        what: &'static str,
        /// This rank.
        own_rank: usize,
        /// Here.
        own: String,
        /// The other rank.
        rank: usize,
        /// There.
        theirs: String,
    },
    /// A pointer is null or not aligned.
    #[error("{what} is at {address:#x}, which is {}", if *address == 0 { "null" } else { "not 16-byte aligned" })]
    Pointer {
        /// Which tensor.
        what: &'static str,
        /// Its address.
        address: u64,
    },
    /// The weights do not fit the configuration.
    #[error("the layer has {}a shared expert, its weights have {}", if *configured { "" } else { "not " }, if *configured { "none" } else { "one" })]
    SharedExpert {
        /// Whether the configuration has one.
        configured: bool,
    },
    /// Gate and up that lie differently.
    #[error(
        "Path::Fused takes gate and up with the same strides, at a distance that is a multiple of 16 bytes under 2^40: lay them so, or use Path::Unfused"
    )]
    Fused,
    /// A pass in one launch that would have to wait for the host.
    #[error(
        "Path::Fused moves rows through the other ranks' memory, and Transport::Nccl does without: use Transport::Peer or Path::Unfused"
    )]
    FusedExchange,
    /// A trace of a pass in separate launches, or where pairs of blocks multiply.
    #[error("a trace is of a pass in one launch on Hopper: use Path::Fused there")]
    NoTrace,
    /// A schedule of another workspace.
    #[error("the schedule belongs to another workspace")]
    OtherSchedule,
    /// The schedule holds nothing yet, or what it held went with an error.
    #[error(
        "the schedule is empty: `MoeLayer::schedule` comes before `forward`, and again after `recover`"
    )]
    NoSchedule,
    /// A route names an expert that is not there.
    #[error(
        "rank {rank}, token {token}, k {k}: expert {expert} is not -1 to {}; every rank refuses the call",
        i64::from(*experts) - 1
    )]
    BadExpert {
        /// The rank whose token it is.
        rank: u32,
        /// The token.
        token: u32,
        /// The slot.
        k: u32,
        /// What was chosen.
        expert: i32,
        /// Experts of the layer.
        experts: u32,
    },
    /// The rows of a rank's experts are more than the schedule's capacity.
    #[error(
        "rank {rank} needs {needed} rows for its experts, and schedule_capacity is {capacity}: every rank needs {needed}"
    )]
    Overflow {
        /// The rank that needs most.
        rank: u32,
        /// Rows, with each expert's segment padded to 128.
        needed: u64,
        /// Rows that there is room for.
        capacity: u32,
    },
    /// The layer's calls can't be captured with this transport.
    #[error(
        "the stream is being captured, and Transport::Nccl synchronises with the host in every call: use Transport::Peer for graphs"
    )]
    Captured,
    /// NCCL isn't there, or lacks a function.
    #[error(
        "NCCL is needed by Transport::Nccl and can't be loaded: {reason} (tried: {tried}); install it (the PyPI wheel nvidia-nccl-cu13 holds nvidia/nccl/lib/libnccl.so.2) and put its folder into LD_LIBRARY_PATH, or the file's path into MOK_NCCL"
    )]
    NoNccl {
        /// What went wrong.
        reason: String,
        /// Names and paths that were tried, in order.
        tried: String,
    },
    /// A call of NCCL failed.
    #[error("{call} failed: {text}")]
    Nccl {
        /// The function.
        call: &'static str,
        /// What NCCL says.
        text: String,
    },
    /// An exchange did not end.
    #[error("NCCL's exchange did not end within {deadline:?}: a rank or a link is stuck")]
    Stuck {
        /// How long was waited.
        deadline: Duration,
    },
    /// A rank is gone: its process or thread ended, or left the group.
    #[error("rank {rank} is lost{}: `recover` can't bring it back", how.as_ref().map_or_else(String::new, |how| format!(" ({how})")))]
    Lost {
        /// Which.
        rank: u32,
        /// How, where this host knows.
        how: Option<String>,
    },
    /// The group of ranks can't be used any more.
    #[error("{text}, in the wait for {wait}")]
    Group {
        /// What it says.
        text: String,
        /// Which wait.
        wait: WaitName,
    },
    /// Ranks made different calls.
    #[error(
        "rank {rank} waits for {theirs}, this rank for {own}: all ranks make the same calls in the same order"
    )]
    Different {
        /// Another rank.
        rank: u32,
        /// What that one waits for.
        theirs: WaitName,
        /// What this one waits for.
        own: WaitName,
    },
    /// Ranks did not come to a call.
    #[error("ranks {ranks:?} did not come to the wait for {wait} within {deadline:?}")]
    Late {
        /// Who.
        ranks: Vec<u32>,
        /// Which wait.
        wait: WaitName,
        /// How long was waited.
        deadline: Duration,
    },
    /// A rank did not come.
    #[error(
        "rank {rank} did not come to the wait for {wait} within the deadline (it is at epoch {seen}, expected {expected})"
    )]
    Deadline {
        /// Who did not come.
        rank: u32,
        /// Which wait.
        wait: WaitName,
        /// The epoch that was waited for.
        expected: u64,
        /// The epoch that it had reached.
        seen: u64,
    },
    /// Another rank gave up.
    #[error("rank {rank} gave up ({reason}), seen in the wait for {wait}")]
    Aborted {
        /// Who.
        rank: u32,
        /// Why.
        reason: String,
        /// Where this rank was told.
        wait: WaitName,
    },
    /// A check on this rank's host failed, and the others were told.
    #[error(
        "a check on rank {rank} failed, and the call was given up on every rank; `recover` makes the workspace usable"
    )]
    HostCheck {
        /// The rank.
        rank: u32,
    },
    /// The device's record of an error makes no sense.
    #[error("the device left a record that is none: {words:?}")]
    BadRecord {
        /// Its words.
        words: Vec<u64>,
    },
}

/// For what ranks wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitName(pub(super) Option<Wait>);

impl fmt::Display for WaitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Some(Wait::Routes) => "all ranks' routes",
            Some(Wait::Schedule) => "all ranks' schedules",
            Some(Wait::Tokens) => "all ranks' tokens",
            Some(Wait::Results) => "all ranks' results",
            None => "an unknown thing",
        })
    }
}

/// The error that a kernel's record tells of; `None` while there is none.
pub(super) fn of_record(words: &[u64]) -> Option<LayerError> {
    let at = |index: usize| words.get(index).copied().unwrap_or(0);
    if at(word::CODE) == 0 {
        return None;
    }
    let rank = at(word::RANK) as u32;
    let wait = WaitName(Wait::from_number(at(word::PLACE)));
    Some(match Code::from_number(at(word::CODE)) {
        Some(Code::BadExpert) => LayerError::BadExpert {
            rank,
            token: at(word::PLACE) as u32,
            k: at(word::K) as u32,
            expert: at(word::SEEN) as u32 as i32,
            experts: at(word::EXPECTED) as u32,
        },
        Some(Code::Overflow) => LayerError::Overflow {
            rank,
            needed: at(word::SEEN),
            capacity: at(word::EXPECTED) as u32,
        },
        Some(Code::Deadline) => LayerError::Deadline {
            rank,
            wait,
            expected: at(word::EXPECTED),
            seen: at(word::SEEN),
        },
        Some(Code::Aborted) if at(word::EXPECTED) == Code::Lost as u64 => {
            LayerError::Lost { rank, how: None }
        }
        Some(Code::Aborted) if at(word::EXPECTED) == Code::Group as u64 => LayerError::Group {
            text: "the group of ranks failed".into(),
            wait,
        },
        Some(Code::Aborted) => LayerError::Aborted {
            rank,
            wait,
            reason: match Code::from_number(at(word::EXPECTED)) {
                Some(Code::Deadline) => "a peer did not come within its deadline",
                Some(Code::HostCheck) => "a check on its host failed",
                Some(Code::Different) => "ranks made different calls",
                _ => "of an error on its device",
            }
            .into(),
        },
        Some(Code::HostCheck) => LayerError::HostCheck { rank },
        Some(Code::Lost) => LayerError::Lost { rank, how: None },
        Some(Code::Different) => LayerError::Different {
            rank,
            theirs: WaitName(Wait::from_number(at(word::SEEN))),
            own: wait,
        },
        Some(Code::Group) | None => LayerError::BadRecord {
            words: words.to_vec(),
        },
    })
}
