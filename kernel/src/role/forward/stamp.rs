//! Stamps of tasks, where a launch is [traced](crate::trace).

use core::mem::offset_of;

use crate::forward::ForwardArgs;
use crate::ptx::{global, reg};
use crate::trace::{Record, STREAMS};

/// The stream of one thread. Nothing of it is kept from stamp to stamp: those that multiply have no registers to spare.
#[derive(Clone, Copy)]
pub struct Stamp<'a> {
    args: &'a ForwardArgs,
    stream: u32,
}

impl<'a> Stamp<'a> {
    /// Stream `stream` of this block.
    #[inline(always)]
    pub fn new(args: &'a ForwardArgs, stream: u32) -> Stamp<'a> {
        Stamp { args, stream }
    }

    /// The stream of this warp, the first lane's.
    #[inline(always)]
    pub fn of_warp(args: &'a ForwardArgs) -> Stamp<'a> {
        Stamp::new(args, reg::anew(reg::thread_idx()) / 32)
    }

    /// Where the number of this stream's tasks stands.
    #[inline(always)]
    fn count(self) -> u64 {
        let stream = reg::block_idx() * STREAMS + self.stream;
        self.args.trace + 8 * stream as u64
    }

    /// Whether there is room for the next record, and where.
    ///
    /// # Safety
    /// The launch is traced, and the stream is this thread's.
    #[inline(always)]
    unsafe fn record(self) -> (bool, u64) {
        // SAFETY: the caller's contract.
        let number = unsafe { global::load_u64(self.count()) };
        let streams = reg::grid_dim() * STREAMS;
        let stream = reg::block_idx() * STREAMS + self.stream;
        let before = stream as u64 * self.args.trace_records as u64 + number;
        let at = self.args.trace + 8 * streams as u64 + size_of::<Record>() as u64 * before;
        (number < self.args.trace_records as u64, at)
    }

    /// A task begins, or takes the place of one that has begun and not ended.
    ///
    /// # Safety
    /// The stream is this thread's alone.
    #[inline(always)]
    pub unsafe fn begin(self, what: u32, index: u32) {
        if self.args.trace == 0 {
            return;
        }
        // SAFETY: the caller's contract.
        unsafe {
            if let (true, at) = self.record() {
                global::store_u64(at + offset_of!(Record, start) as u64, reg::globaltimer());
                global::store_u32(at + offset_of!(Record, what) as u64, what);
                global::store_u32(at + offset_of!(Record, index) as u64, index);
            }
        }
    }

    /// What the task waits for is there.
    ///
    /// # Safety
    /// As [`begin`](Stamp::begin).
    #[inline(always)]
    pub unsafe fn ready(self) {
        if self.args.trace == 0 {
            return;
        }
        // SAFETY: the caller's contract.
        unsafe {
            if let (true, at) = self.record() {
                global::store_u64(at + offset_of!(Record, ready) as u64, reg::globaltimer());
            }
        }
    }

    /// The task is done.
    ///
    /// # Safety
    /// As [`begin`](Stamp::begin).
    #[inline(always)]
    pub unsafe fn end(self) {
        if self.args.trace == 0 {
            return;
        }
        // SAFETY: the caller's contract.
        unsafe {
            if let (true, at) = self.record() {
                global::store_u64(at + offset_of!(Record, end) as u64, reg::globaltimer());
            }
            global::store_u64(self.count(), global::load_u64(self.count()) + 1);
        }
    }
}
