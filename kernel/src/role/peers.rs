//! Waiting for the other ranks, and giving up.

use crate::block_sync;
use crate::failure::{Code, abort_of, abort_word, signal_of, signal_word, word};
use crate::ptx::{atom, global, reg};
use crate::unfused::{AbortArgs, RankArgs, STATE_EPOCH, STATE_FAILED, SignalArgs};

/// Where a rank's symmetric region is mapped.
///
/// # Safety
/// `args` describes live memory, and `rank` is one of its ranks.
#[inline(always)]
pub unsafe fn region(args: &RankArgs, rank: u32) -> u64 {
    // SAFETY: the caller's contract; nobody writes the table.
    unsafe { global::load_u64(args.peers + 8 * rank as u64) }
}

/// Whether an earlier kernel failed. Not for a kernel that may itself fail meanwhile.
///
/// # Safety
/// `state` is a rank's state that no other kernel writes now.
#[inline(always)]
pub unsafe fn failed(state: u64) -> bool {
    // SAFETY: the caller's contract.
    unsafe { global::load_u64(state + 8 * STATE_FAILED) != 0 }
}

/// What went wrong; the words of a record.
#[derive(Clone, Copy)]
pub struct Failure {
    /// What.
    pub code: Code,
    /// The rank concerned.
    pub rank: u32,
    /// Which wait, or which token.
    pub place: u64,
    /// Which slot.
    pub k: u32,
    /// What was expected.
    pub expected: u64,
    /// What was seen.
    pub seen: u64,
}

/// Marks the rank as failed; the first failure is what the host reads.
///
/// # Safety
/// `args` describes live memory.
#[inline(always)]
pub unsafe fn fail(args: &RankArgs, failure: Failure) {
    let flag = (args.state + 8 * STATE_FAILED) as *mut u64;
    // SAFETY: the rank's own words; whoever changes the flag writes the record alone.
    unsafe {
        if atom::cas_acq_rel_gpu_u64(flag, 0, 1) != 0 {
            return;
        }
        let at = |word: usize| args.mailbox + 8 * word as u64;
        global::store_u64(at(word::RANK), failure.rank as u64);
        global::store_u64(at(word::PLACE), failure.place);
        global::store_u64(at(word::K), failure.k as u64);
        global::store_u64(at(word::EXPECTED), failure.expected);
        global::store_u64(at(word::SEEN), failure.seen);
        atom::store_release_sys_u64(at(word::CODE) as *mut u64, failure.code as u64);
    }
}

/// Tells a peer that this rank gives up.
///
/// # Safety
/// `args` describes live memory, and `peer` is one of its ranks.
#[inline(always)]
unsafe fn tell(args: &RankArgs, peer: u32, code: Code) {
    // SAFETY: the peer's abort word, which everybody accesses atomically.
    unsafe {
        let at = region(args, peer) + args.plan.abort;
        atom::store_release_sys_u64(at as *mut u64, abort_word(args.rank, code));
    }
}

/// One block: each rank's words tell every other that it is here, then wait for the others'.
///
/// # Safety
/// One block of at least `ranks` threads runs it; `args` describes live memory, and no other
/// kernel of the rank runs meanwhile.
#[inline(always)]
pub unsafe fn signal(args: &SignalArgs) {
    let rank = &args.rank;
    let peer = reg::thread_idx();
    // SAFETY: only this kernel changes the state, after the barrier.
    let (gone, epoch) = unsafe {
        let epoch = global::load_u64(rank.state + 8 * STATE_EPOCH) + 1;
        (failed(rank.state), epoch)
    };
    // SAFETY: every thread is here.
    unsafe { block_sync!() };
    if gone {
        return;
    }
    if peer == 0 {
        // SAFETY: everybody has read it.
        unsafe { global::store_u64(rank.state + 8 * STATE_EPOCH, epoch) };
    }
    if peer >= rank.ranks {
        return;
    }
    // SAFETY: the caller's contract; each thread has a peer of its own.
    unsafe {
        call(rank, peer, epoch, args.wait);
        answer(rank, peer, epoch, args.wait, args.deadline);
    }
}

/// Tells a peer that this rank is here.
///
/// # Safety
/// `rank` describes live memory, and `peer` is one of its ranks.
#[inline(always)]
pub unsafe fn call(rank: &RankArgs, peer: u32, epoch: u64, wait: u64) {
    // SAFETY: this rank's own word in the peer's region.
    unsafe {
        let theirs = region(rank, peer) + rank.plan.signals + 8 * rank.rank as u64;
        atom::store_release_sys_u64(theirs as *mut u64, signal_word(epoch, wait));
    }
}

/// Waits until a peer is here, or fails. This rank itself is.
///
/// # Safety
/// As [`call`], which comes before.
#[inline(always)]
pub unsafe fn answer(rank: &RankArgs, peer: u32, epoch: u64, wait: u64, deadline: u64) {
    if peer == rank.rank {
        // What goes wrong elsewhere is for those who wait for others to say: they may know it better.
        return;
    }
    // SAFETY: the rank's own words, which are accessed atomically.
    unsafe {
        let own = region(rank, rank.rank);
        let signal = (own + rank.plan.signals + 8 * peer as u64) as *const u64;
        let start = reg::globaltimer();
        loop {
            let (seen, theirs) = signal_of(atom::load_acquire_sys_u64(signal));
            let mut abort = atom::load_relaxed_sys_u64((own + rank.plan.abort) as *const u64);
            let code = abort_of(abort).1;
            // Who gave up for want of this rank, or for what it does, has failed in this very call,
            // however late this rank comes. Any other reason is of a later call where everybody has
            // come.
            let this_call = code == Code::Deadline as u64 || code == Code::Different as u64;
            if seen == epoch && theirs != wait {
                // A rank that sees this goes no further, so whoever differs from it sees it too.
                let failure = Failure {
                    code: Code::Different,
                    rank: peer,
                    place: wait,
                    k: 0,
                    expected: wait,
                    seen: theirs,
                };
                give_up(rank, failure);
                break;
            }
            if seen >= epoch && !this_call {
                break;
            }
            if abort == 0 {
                abort = atom::load_relaxed_sys_u64((own + rank.plan.lost) as *const u64);
            }
            if abort != 0 {
                let (by, code) = abort_of(abort);
                fail(
                    rank,
                    Failure {
                        code: Code::Aborted,
                        rank: by,
                        place: wait,
                        k: 0,
                        expected: code,
                        seen,
                    },
                );
                break;
            }
            if reg::globaltimer().wrapping_sub(start) > deadline {
                let failure = Failure {
                    code: Code::Deadline,
                    rank: peer,
                    place: wait,
                    k: 0,
                    expected: epoch,
                    seen,
                };
                give_up(rank, failure);
                break;
            }
        }
    }
}

/// Fails, and tells every rank, this one's other threads among them.
///
/// # Safety
/// `args` describes live memory.
#[inline(always)]
unsafe fn give_up(args: &RankArgs, failure: Failure) {
    // SAFETY: the caller's contract.
    unsafe {
        fail(args, failure);
        let mut other = 0;
        while other < args.ranks {
            tell(args, other, failure.code);
            other += 1;
        }
    }
}

/// One block: the rank gives up and tells every other.
///
/// # Safety
/// As [`signal`].
#[inline(always)]
pub unsafe fn abort(args: &AbortArgs) {
    let peer = reg::thread_idx();
    // SAFETY: the caller's contract.
    unsafe {
        if peer == 0 {
            fail(
                &args.rank,
                Failure {
                    code: Code::HostCheck,
                    rank: args.rank.rank,
                    place: 0,
                    k: 0,
                    expected: 0,
                    seen: 0,
                },
            );
        }
        if peer < args.rank.ranks && peer != args.rank.rank {
            tell(&args.rank, peer, Code::HostCheck);
        }
    }
}
