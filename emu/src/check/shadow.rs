//! Who accessed each word last, and whether the next access may.
//!
//! A cell stands for four bytes and holds its last write and the reads since. Accesses are
//! numbers of records (one for each instruction, thread group and clock) with the lane in the
//! low bits; sets of reads are interned, since many words are read by the same threads. Where
//! several threads write parts of one word, only the last of them is remembered.

use std::collections::HashMap;

use super::clock::{Agent, Clock, Known};
use super::tensor;
use super::warps::{Launches, WarpInfo};
use crate::code::Scope;

/// One access by the threads of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub agent: Agent,
    pub clock: u32,
    /// The warp that issued it.
    pub warp: u32,
    pub pc: u32,
    /// By the asynchronous proxy.
    pub proxy: bool,
    /// Its scope, if it is strong.
    pub strong: Option<Scope>,
    /// What it is to tensor memory; 0 if it is to other memory.
    pub form: u32,
}

/// A record and a lane; 0 is none.
pub(super) type Id = u32;
/// Marks a set of reads.
const SET: u32 = 1 << 31;
/// Records and sets beyond this are too many: what is known is dropped.
pub(super) const MOST_RECORDS: usize = 1 << 23;

pub(super) fn id(record: u32, lane: u32) -> Id {
    record << 5 | lane & 31
}

/// Four bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    write: Id,
    reads: u32,
    /// Bytes that the write touched, and those of the reads.
    written: u8,
    read: u8,
}

impl Cell {
    /// Who wrote it last.
    pub fn last_write(&self) -> Id {
        self.write
    }
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
    /// Writes what is there already.
    Rewrite,
    /// Both, in one.
    Change,
}

/// What is wrong with an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Conflict {
    /// Not ordered.
    Race,
    /// Ordered, but an ordinary write is not visible to the asynchronous proxy.
    Proxy,
}

/// A conflict: with which access, and whether that wrote.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub conflict: Conflict,
    pub with: Id,
    pub wrote: bool,
}

/// Interned sets of reads.
#[derive(Debug, Default)]
pub(super) struct Sets {
    sets: Vec<Vec<Id>>,
    known: HashMap<Vec<Id>, u32>,
    /// The last step from one set to the next.
    last: (u32, Id, u32),
}

impl Sets {
    fn intern(&mut self, mut ids: Vec<Id>) -> u32 {
        if let [only] = ids[..] {
            return only;
        }
        ids.sort_unstable();
        if let Some(&known) = self.known.get(&ids) {
            return known;
        }
        let number = self.sets.len() as u32 | SET;
        self.known.insert(ids.clone(), number);
        self.sets.push(ids);
        number
    }

    fn at(&self, reads: u32, index: usize) -> Option<Id> {
        if reads & SET != 0 {
            return self.sets[(reads & !SET) as usize].get(index).copied();
        }
        (index == 0 && reads != 0).then_some(reads)
    }

    pub fn len(&self) -> usize {
        self.sets.len()
    }
}

/// An access that is being checked.
pub(super) struct Judge<'a> {
    pub records: &'a [Record],
    pub warps: &'a [WarpInfo],
    pub launches: &'a Launches,
    /// What is ordered before it.
    pub known: &'a Known,
    /// Its own record and lane.
    pub me: Id,
    pub record: Record,
    /// In device memory.
    pub global: bool,
    /// The last record that was found in order, reads or writes.
    pub fine: [u32; 2],
    /// It writes what is there already.
    pub again: bool,
}

impl Judge<'_> {
    fn ordered(&self, other: &Record, lane: u32) -> bool {
        if self.record.form != 0 {
            return tensor::ordered(self.known, other, self.record.form);
        }
        other.agent == self.record.agent && !other.proxy
            || self.covers(&self.known.seen, other, lane)
            || self.launches.ordered(
                &self.warps[other.warp as usize],
                &self.warps[self.record.warp as usize],
            )
    }

    /// Whether a clock knows of an access.
    fn covers(&self, clock: &Clock, other: &Record, lane: u32) -> bool {
        clock.has(other.agent, other.clock, lane) || {
            let warp = &self.warps[other.warp as usize];
            clock.has_launch(warp.domain.gpu, warp.launch)
        }
    }

    /// Whether both are strong, and each in the other's scope.
    fn morally_strong(&self, other: &Record) -> bool {
        let (Some(own), Some(others)) = (self.record.strong, other.strong) else {
            return false;
        };
        let a = self.warps[self.record.warp as usize].domain;
        let b = self.warps[other.warp as usize].domain;
        a.shares(own, b) && a.shares(others, b)
    }

    /// Whether it is the same store, of another thread of the block. Compilers have every thread
    /// that holds an element store it: with one value, in whatever order, that is no fault.
    fn is_same_store(&self, other: &Record) -> bool {
        let block = |record: &Record| self.warps[record.warp as usize].domain.block;
        let launch = |record: &Record| self.warps[record.warp as usize].launch;
        other.pc == self.record.pc
            && !other.proxy
            && block(other) == block(&self.record)
            && launch(other) == launch(&self.record)
    }

    fn check(&mut self, other: Id, wrote: bool) -> Option<Fault> {
        let number = other >> 5;
        if self.fine[usize::from(wrote)] == number {
            return None;
        }
        let record = self.records[number as usize];
        let fault = |conflict| {
            Some(Fault {
                conflict,
                with: other,
                wrote,
            })
        };
        if !self.ordered(&record, other & 31) {
            if self.morally_strong(&record) || wrote && self.again && self.is_same_store(&record) {
                return None;
            }
            return fault(Conflict::Race);
        }
        if wrote && self.record.proxy && !record.proxy {
            let visible = if self.global {
                &self.known.global
            } else {
                &self.known.shared
            };
            let launches = self.launches.ordered(
                &self.warps[record.warp as usize],
                &self.warps[self.record.warp as usize],
            );
            if !launches && !self.covers(visible, &record, other & 31) {
                return fault(Conflict::Proxy);
            }
        }
        // Of what a warp did together, one lane's access says nothing of the others'.
        if record.agent == self.record.agent || self.known.seen.get(record.agent) >= record.clock {
            self.fine[usize::from(wrote)] = number;
        }
        None
    }

    /// Checks an access to some bytes of a cell and notes it there.
    pub fn access(
        &mut self,
        sets: &mut Sets,
        cell: &mut Cell,
        bytes: u8,
        what: Use,
    ) -> Option<Fault> {
        let mut found = None;
        if cell.write != 0 && cell.written & bytes != 0 {
            found = self.check(cell.write, true);
        }
        if what == Use::Read {
            self.note_read(sets, cell, bytes);
            return found;
        }
        if cell.read & bytes != 0 {
            let mut index = 0;
            while let Some(read) = sets.at(cell.reads, index) {
                if read >> 5 != self.me >> 5 || self.record.proxy {
                    found = found.or(self.check(read, false));
                }
                index += 1;
            }
        }
        (cell.write, cell.written) = (self.me, bytes);
        if cell.read & !bytes == 0 || found.is_some() {
            (cell.reads, cell.read) = (0, 0);
        }
        found
    }

    fn note_read(&mut self, sets: &mut Sets, cell: &mut Cell, bytes: u8) {
        let old = cell.reads;
        // Of one record two lanes are enough: a part of the warp that lets go has one of them at most,
        // unless it is most of the warp.
        let all = cell.read & bytes == bytes;
        if all && (old == self.me || self.record.proxy && old >> 5 == self.me >> 5) {
            return;
        }
        let covered = cell.read & !bytes == 0;
        cell.read |= bytes;
        if old == 0 {
            cell.reads = self.me;
            return;
        }
        if sets.last.0 == old && sets.last.1 == self.me && covered {
            cell.reads = sets.last.2;
            return;
        }
        let mut ids = Vec::new();
        let (mut index, mut same) = (0, 0);
        while let Some(read) = sets.at(old, index) {
            index += 1;
            if read >> 5 == self.me >> 5 {
                same += 1;
                if all && (same == 2 || read == self.me) {
                    return;
                }
                if read != self.me {
                    ids.push(read);
                }
                continue;
            }
            let record = self.records[(read >> 5) as usize];
            // A strong read says less than a weak one.
            let says_as_much =
                record.strong == self.record.strong && record.proxy == self.record.proxy;
            if !(covered && says_as_much && self.ordered(&record, read & 31)) {
                ids.push(read);
            }
        }
        ids.push(self.me);
        ids.truncate(64);
        cell.reads = sets.intern(ids);
        if covered {
            sets.last = (old, self.me, cell.reads);
        }
    }
}

/// Words of a page of device memory.
const PAGE: usize = 1024;
/// Pages that are remembered: 256 MiB of device memory.
const MOST_PAGES: usize = 1 << 16;

/// The cells of device memory, where it was touched.
#[derive(Debug, Default)]
pub(super) struct Pages {
    index: HashMap<u64, usize>,
    pages: Vec<Box<[Cell; PAGE]>>,
    last: Option<(u64, usize)>,
    /// Whether accesses went past the last page.
    pub full: bool,
}

impl Pages {
    /// The cell of the word at an address.
    pub fn cell(&mut self, word: u64) -> Option<&mut Cell> {
        let page = word / PAGE as u64;
        let at = match self.last {
            Some((last, at)) if last == page => at,
            _ => {
                let at = match self.index.get(&page) {
                    Some(&at) => at,
                    None if self.pages.len() >= MOST_PAGES => {
                        self.full = true;
                        return None;
                    }
                    None => {
                        self.pages.push(Box::new([Cell::default(); PAGE]));
                        self.index.insert(page, self.pages.len() - 1);
                        self.pages.len() - 1
                    }
                };
                self.last = Some((page, at));
                at
            }
        };
        Some(&mut self.pages[at][(word % PAGE as u64) as usize])
    }
}
