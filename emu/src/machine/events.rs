//! Work that completes later.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::{Completion, Machine};
use crate::code::{AtomicOp, Number};
use crate::report::{Finding, FindingKind};

/// Where a piece of an asynchronous copy goes from and to. Addresses are of device memory or
/// `(block, offset)` of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Device memory.
    Global(u64),
    /// Shared memory of a block.
    Shared(usize, u32),
    /// Nowhere: this byte pattern is what is read.
    Fill(u64),
}

/// One contiguous piece.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// From.
    pub from: Place,
    /// To.
    pub to: Place,
    /// Bytes.
    pub bytes: u32,
}

/// Who issued work, for reports.
#[derive(Clone, Debug)]
pub struct Issuer {
    /// The kernel.
    pub entry: String,
    /// Line of the instruction.
    pub line: u32,
    /// The GPU.
    pub gpu: usize,
    /// The block.
    pub block: [u32; 3],
    /// The thread.
    pub thread: u32,
}

/// What completes.
#[derive(Clone, Debug)]
pub enum Work {
    /// Bytes arrive in shared memory, and are counted by an mbarrier.
    Load {
        /// What is copied.
        pieces: Vec<Piece>,
        /// The mbarrier: block and offset.
        bar: (usize, u32),
        /// Bytes that it counts.
        bytes: u32,
        /// A reduction on the way.
        reduce: Option<(AtomicOp, Number, u32)>,
    },
    /// A bulk group's store reads its source; its write follows.
    Read {
        /// What is copied.
        pieces: Vec<Piece>,
        /// Warp, lane and group.
        group: (usize, u32, u64),
        /// A reduction at the destination.
        reduce: Option<(AtomicOp, Number, u32)>,
    },
    /// A bulk group's store writes what it read.
    Write {
        /// Bytes and their destination.
        pieces: Vec<(Vec<u8>, u64)>,
        /// Warp, lane and group.
        group: (usize, u32, u64),
        /// A reduction at the destination.
        reduce: Option<(AtomicOp, Number, u32)>,
    },
    /// A sleeping fragment goes on.
    Wake(usize),
    /// The next of a block's tensor pipe is executed.
    Tensor(usize),
}

/// Work with its time.
#[derive(Clone, Debug)]
pub struct Event {
    /// When it completes.
    pub time: u64,
    /// Order among those of one time.
    pub number: u64,
    /// Who issued it.
    pub issuer: Option<Issuer>,
    /// What completes.
    pub work: Work,
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        (self.time, self.number) == (other.time, other.number)
    }
}
impl Eq for Event {}
impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Event {
    /// The earliest is the greatest: the heap gives the greatest.
    fn cmp(&self, other: &Event) -> Ordering {
        (other.time, other.number).cmp(&(self.time, self.number))
    }
}

/// Events in order of time.
#[derive(Debug, Default)]
pub struct Queue {
    heap: BinaryHeap<Event>,
    next: u64,
}

/// Times from here on are only reached when nothing else can run.
const LATE: u64 = 1 << 62;

impl Queue {
    fn push(&mut self, time: u64, issuer: Option<Issuer>, work: Work) {
        self.next += 1;
        self.heap.push(Event {
            time,
            number: self.next,
            issuer,
            work,
        });
    }

    /// Whether nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// When the next one completes.
    pub fn next_time(&self) -> Option<u64> {
        self.heap.peek().map(|event| event.time)
    }

    fn pop(&mut self) -> Option<Event> {
        self.heap.pop()
    }
}

impl Machine {
    /// Schedules asynchronous work.
    pub(crate) fn later(&mut self, issuer: Issuer, work: Work) {
        let time = match self.config.completion {
            Completion::Early => self.time,
            Completion::Late => LATE,
            Completion::Random => self.time + 100 + self.random.below(2000),
        };
        self.events.push(time, Some(issuer), work);
        if self.config.completion == Completion::Early {
            self.complete_due();
        }
    }

    /// Wakes a fragment at a time.
    pub(crate) fn wake_at(&mut self, time: u64, warp: usize) {
        self.events.push(time, None, Work::Wake(warp));
    }

    /// Completes whatever is due.
    pub(crate) fn complete_due(&mut self) {
        while self
            .events
            .next_time()
            .is_some_and(|time| time <= self.time)
        {
            self.complete_next();
        }
    }

    /// Completes the next event, and lets time pass up to it.
    pub(crate) fn complete_next(&mut self) {
        let Some(event) = self.events.pop() else {
            return;
        };
        if event.time < LATE {
            self.time = self.time.max(event.time);
        }
        match event.work {
            Work::Wake(warp) => {
                self.make_ready(warp);
            }
            Work::Tensor(block) => self.complete_tensor(block),
            Work::Load {
                pieces,
                bar,
                bytes,
                reduce,
            } => {
                self.progress += 1;
                for piece in &pieces {
                    if let Err(message) = self.copy_piece(piece, reduce) {
                        self.find_issued(event.issuer.as_ref(), FindingKind::OutOfBounds, message);
                    }
                }
                self.deliver(event.issuer.as_ref(), bar, bytes);
            }
            Work::Read {
                pieces,
                group,
                reduce,
            } => {
                self.progress += 1;
                let mut read = Vec::with_capacity(pieces.len());
                for piece in &pieces {
                    match (self.read_place(piece.from, piece.bytes), piece.to) {
                        (Ok(bytes), Place::Global(to)) => read.push((bytes, to)),
                        (Err(message), _) => self.find_issued(
                            event.issuer.as_ref(),
                            FindingKind::OutOfBounds,
                            message,
                        ),
                        _ => {}
                    }
                }
                self.group_done(group, true);
                if let Some(issuer) = event.issuer {
                    self.later(
                        issuer,
                        Work::Write {
                            pieces: read,
                            group,
                            reduce,
                        },
                    );
                }
            }
            Work::Write {
                pieces,
                group,
                reduce,
            } => {
                self.progress += 1;
                for (bytes, to) in pieces {
                    if let Err(message) = self.write_place(Place::Global(to), &bytes, reduce) {
                        self.find_issued(event.issuer.as_ref(), FindingKind::OutOfBounds, message);
                    }
                }
                self.group_done(group, false);
            }
        }
    }

    pub(crate) fn find_issued(
        &mut self,
        issuer: Option<&Issuer>,
        kind: FindingKind,
        message: String,
    ) {
        let Some(issuer) = issuer else { return };
        self.find(Finding {
            kind,
            entry: issuer.entry.clone(),
            line: issuer.line,
            gpu: issuer.gpu,
            block: issuer.block,
            thread: Some(issuer.thread),
            message,
        });
    }

    /// Bytes of a place.
    pub(crate) fn read_place(&self, from: Place, bytes: u32) -> Result<Vec<u8>, String> {
        match from {
            Place::Fill(pattern) => Ok(pattern
                .to_le_bytes()
                .into_iter()
                .cycle()
                .take(bytes as usize)
                .collect()),
            Place::Global(address) => self
                .memory
                .read(address, bytes.into())
                .map(<[u8]>::to_vec)
                .map_err(|fault| {
                    format!(
                        "an asynchronous copy reads {} bytes at {address:#x}: {}",
                        bytes, fault.reason
                    )
                }),
            Place::Shared(block, offset) => {
                let shared = self.blocks[block]
                    .as_ref()
                    .map(|block| block.shared.as_slice())
                    .unwrap_or_default();
                shared.get(offset as usize..offset as usize + bytes as usize).map(<[u8]>::to_vec).ok_or_else(|| {
                    format!("an asynchronous copy reads {bytes} bytes at {offset:#x} of {} bytes of shared memory", shared.len())
                })
            }
        }
    }

    /// Writes bytes to a place, or reduces them into it.
    pub(crate) fn write_place(
        &mut self,
        to: Place,
        bytes: &[u8],
        reduce: Option<(AtomicOp, Number, u32)>,
    ) -> Result<(), String> {
        let target = match to {
            Place::Global(address) => {
                self.memory
                    .write(address, bytes.len() as u64)
                    .map_err(|fault| {
                        format!(
                            "an asynchronous copy writes {} bytes at {address:#x}: {}",
                            bytes.len(),
                            fault.reason
                        )
                    })?
            }
            Place::Shared(block, offset) => {
                let shared = self.blocks[block]
                    .as_mut()
                    .map(|block| block.shared.as_mut_slice())
                    .unwrap_or_default();
                let len = shared.len();
                shared.get_mut(offset as usize..offset as usize + bytes.len()).ok_or_else(|| {
                    format!("an asynchronous copy writes {} bytes at {offset:#x} of {len} bytes of shared memory", bytes.len())
                })?
            }
            Place::Fill(_) => return Ok(()),
        };
        match reduce {
            None => target.copy_from_slice(bytes),
            Some((op, number, size)) => {
                crate::exec::reduce_bytes(target, bytes, op, number, size, false)?;
            }
        }
        if let Place::Shared(..) = to {
            self.mark_written(to, bytes.len(), true);
        }
        Ok(())
    }

    fn copy_piece(
        &mut self,
        piece: &Piece,
        reduce: Option<(AtomicOp, Number, u32)>,
    ) -> Result<(), String> {
        let bytes = self.read_place(piece.from, piece.bytes)?;
        self.write_place(piece.to, &bytes, reduce)?;
        self.carry_copy(piece.from, piece.to, piece.bytes as usize);
        Ok(())
    }

    /// Counts delivered bytes at an mbarrier.
    fn deliver(&mut self, issuer: Option<&Issuer>, (block, offset): (usize, u32), bytes: u32) {
        let bar = self.blocks[block]
            .as_mut()
            .and_then(|block| block.mbarriers.get_mut(&offset));
        let Some(bar) = bar else {
            let message = format!(
                "{bytes} bytes arrive for an mbarrier at {offset:#x} that is not initialised"
            );
            return self.find_issued(issuer, FindingKind::Mbarrier, message);
        };
        let counted = bar.count_bytes(-i64::from(bytes));
        let phase = bar.settle().then_some(bar.phase);
        self.checked(|check| check.delivered(block, offset));
        if let Some(phase) = phase {
            self.check_settled_bar((block, offset), phase);
        }
        if let Err(message) = counted {
            self.find_issued(issuer, FindingKind::Mbarrier, message);
        }
        self.wake_cluster_of(block);
    }

    /// One store of a bulk group has read, or written.
    fn group_done(&mut self, (warp, lane, group): (usize, u32, u64), read: bool) {
        if let Some(warp) = self.warps.get_mut(warp).and_then(Option::as_mut) {
            let groups = &mut warp.bulk[lane as usize];
            if let Some((_, reads, writes)) =
                groups.open.iter_mut().find(|(number, ..)| *number == group)
            {
                let left = if read { reads } else { writes };
                *left = left.saturating_sub(1);
            }
            while groups.open.front().is_some_and(|(number, reads, writes)| {
                *number < groups.current && *reads == 0 && *writes == 0
            }) {
                groups.open.pop_front();
            }
        }
        self.make_ready(warp);
    }
}
