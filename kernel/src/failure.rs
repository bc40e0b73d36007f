//! The first error of a rank, as kernels leave it for the host.
//!
//! A kernel that fails writes a record into host-visible memory, marks its rank as failed, and
//! tells the peers; kernels that run later do nothing but fill their outputs with NaN.

/// Words of the record.
pub const RECORD_WORDS: usize = 8;

/// What a word of the record holds. [`word::CODE`] is written last.
pub mod word {
    /// A [`Code`](super::Code).
    pub const CODE: usize = 0;
    /// The rank concerned: whose route, who did not come, who gave up.
    pub const RANK: usize = 1;
    /// The [`Wait`](super::Wait), or the token of a route.
    pub const PLACE: usize = 2;
    /// The slot k of a route.
    pub const K: usize = 3;
    /// What was expected: an epoch, a limit.
    pub const EXPECTED: usize = 4;
    /// What was seen instead; an expert as its i32's bits.
    pub const SEEN: usize = 5;
}

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$var_doc:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum $name { $($(#[$var_doc])* $variant = $number,)* }

        impl $name {
            /// The one with this number.
            pub const fn from_number(number: u64) -> Option<$name> {
                match number {
                    $($number => Some($name::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

numbered! {
    /// What went wrong.
    Code {
        /// A route names an expert that is not there.
        BadExpert = 1,
        /// The rows of some rank are more than the schedule's capacity.
        Overflow = 2,
        /// A peer did not come within the deadline.
        Deadline = 3,
        /// A peer gave up.
        Aborted = 4,
        /// A check on the host of a rank failed.
        HostCheck = 5,
        /// A rank is gone: written by the host of each rank that is left, into a word of its own.
        Lost = 6,
        /// The group of ranks can't be used any more: written as [`Code::Lost`].
        Group = 7,
        /// A peer waits for something else: ranks made different calls.
        Different = 8,
    }
}

numbered! {
    /// For what the ranks wait for each other.
    Wait {
        /// All ranks' routes to be there.
        Routes = 1,
        /// All ranks to have read the routes.
        Schedule = 2,
        /// All ranks' tokens to be there.
        Tokens = 3,
        /// All ranks' results to be there.
        Results = 4,
    }
}

/// The word that tells a peer which wait this rank has come to, and for what.
pub const fn signal_word(epoch: u64, wait: u64) -> u64 {
    epoch << 3 | wait
}

/// The epoch of a signal, and what for.
pub const fn signal_of(word: u64) -> (u64, u64) {
    (word >> 3, word & 7)
}

/// The word that tells peers that a rank gave up; never 0.
pub const fn abort_word(rank: u32, code: Code) -> u64 {
    (rank as u64 + 1) << 32 | code as u64
}

/// The rank of an abort word, and the code's number.
pub const fn abort_of(word: u64) -> (u32, u64) {
    ((word >> 32).wrapping_sub(1) as u32, word & 0xffff_ffff)
}
