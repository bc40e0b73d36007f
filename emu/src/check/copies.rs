//! Asynchronous work: it is checked when it is issued, and known to be over after its wait.

use std::cell::RefCell;

use super::Check;
use super::shadow::{Record, Use};
use crate::code::{Scope, WgmmaCall};
use crate::machine::{Piece, Place};
use crate::report::FindingKind;
use crate::tensor::wgmma::{Modifiers, OperandA};

impl Check {
    /// A bulk or tensor load that an mbarrier counts.
    pub(crate) fn counted(
        &mut self,
        lane: u32,
        pieces: &[Piece],
        (bar, phase): ((usize, u32), u64),
        (proxy, reduces): (bool, bool),
    ) {
        let Some((agent, clock)) = self.issue_counted(lane, bar, phase) else {
            return;
        };
        let record = Record {
            proxy,
            ..self.asynchronous(agent, clock, reduces)
        };
        for piece in pieces {
            self.touch(lane, record, piece.from, piece.bytes, Use::Read);
        }
        let what = if reduces { Use::Change } else { Use::Write };
        for piece in pieces {
            self.touch(lane, record, piece.to, piece.bytes, what);
        }
    }

    pub(super) fn asynchronous(&self, agent: u32, clock: u32, reduces: bool) -> Record {
        Record {
            agent,
            clock,
            warp: self.now.warp,
            pc: self.now.pc,
            proxy: true,
            strong: reduces.then_some(Scope::Gpu),
            form: 0,
        }
    }

    /// A store of a bulk group.
    pub(crate) fn grouped(&mut self, lane: u32, pieces: &[Piece], group: u64, reduces: bool) {
        let key = (self.now.warp, lane);
        let (reads, writes) = match self.bulk.get(&key) {
            Some(&agents) => agents,
            None => {
                let first = self.agent(2, self.gpu());
                self.bulk.insert(key, (first, first + 1));
                (first, first + 1)
            }
        };
        let clock = group as u32 + 1;
        let record = self.asynchronous(reads, clock, false);
        for piece in pieces {
            self.touch(lane, record, piece.from, piece.bytes, Use::Read);
        }
        let record = self.asynchronous(writes, clock, reduces);
        let what = if reduces { Use::Change } else { Use::Write };
        for piece in pieces {
            self.touch(lane, record, piece.to, piece.bytes, what);
        }
    }

    /// A lane waits until so many of its bulk groups are complete, or have read.
    pub(crate) fn wait_grouped(&mut self, lane: u32, complete: u64, read: bool) {
        let Some(&(reads, writes)) = self.bulk.get(&(self.now.warp, lane)) else {
            return;
        };
        self.learn(1 << lane, reads, complete as u32);
        if !read {
            self.learn(1 << lane, writes, complete as u32);
        }
    }

    /// A `cp.async`: of the ordinary proxy, but complete only after a wait.
    pub(crate) fn small(&mut self, lane: u32, to: Place, from: Place, bytes: u32, real: u32) {
        let Some((state, info)) = self.running() else {
            return;
        };
        let (agent, clock) = (info.copies(), state.copies + 1);
        let record = Record {
            proxy: false,
            ..self.asynchronous(agent, clock, false)
        };
        self.touch(lane, record, from, real, Use::Read);
        self.touch(lane, record, to, bytes, Use::Write);
    }

    pub(crate) fn commit_small(&mut self) {
        if let Some(state) = self.state() {
            state.copies += 1;
        }
    }

    /// Waits for all but so many groups of small copies, or for all that there are.
    pub(crate) fn wait_small(&mut self, mask: u32, pending: u32, all: bool) {
        let Some((state, info)) = self.running() else {
            return;
        };
        state.copies += u32::from(all);
        let (agent, complete) = (info.copies(), state.copies.saturating_sub(pending));
        self.learn(mask, agent, complete);
    }

    /// The clock of the small copies so far.
    pub(crate) fn small_clock(&mut self) -> Option<u32> {
        self.state().map(|state| state.copies + 1)
    }

    /// A product is issued. It reads shared memory until a wait covers it.
    pub(crate) fn product(&mut self, call: &WgmmaCall, a: u64, b: u64, modifiers: Modifiers) {
        let pc = self.now.pc;
        let Some((state, info)) = self.running() else {
            return;
        };
        let (agent, clock) = (info.products(), state.products.0 + 1);
        let done = state.products.1;
        let line = super::line_of(&info.entry, pc);
        let (block, registers) = (
            info.domain.block,
            if call.a_registers { &call.a[..] } else { &[] },
        );
        if let Some(message) = state.flight.issue(&call.d, registers, clock, line, done) {
            self.report(FindingKind::InFlight, None, 0, message);
        }
        let chunks = RefCell::new(Vec::new());
        let masks = self.operand_marks(call);
        let operand = if call.a_registers {
            OperandA::Regs(&masks)
        } else {
            OperandA::Desc(a)
        };
        // What is wrong with a descriptor is found when it is executed.
        let written = self.written.get(block);
        let marks = call.op.marks(
            |address| {
                chunks.borrow_mut().push(address);
                let at = address as usize;
                match written {
                    Some(written) if !written.all(at, 16) => (0..16)
                        .filter(|byte| !written.all(at + byte, 1))
                        .fold(0, |mask, byte| mask | 1 << byte),
                    _ => 0,
                }
            },
            operand,
            b,
            modifiers,
        );
        if let Ok(marks) = marks {
            self.carry_product(call, &marks, modifiers.scale_d);
        }
        let record = self.asynchronous(agent, clock, false);
        let mut chunks = chunks.into_inner();
        chunks.sort_unstable();
        let mut left = &chunks[..];
        while let Some(&start) = left.first() {
            let mut end = start;
            while let Some((&next, rest)) = left.split_first()
                && next <= end
            {
                end = next.saturating_add(16);
                left = rest;
            }
            self.touch(
                0,
                record,
                Place::Shared(block, start),
                end - start,
                Use::Read,
            );
        }
    }

    pub(crate) fn commit_products(&mut self) {
        if let Some(state) = self.state() {
            state.products.0 += 1;
        }
    }

    pub(crate) fn wait_products(&mut self, mask: u32, pending: u32) {
        let Some((state, info)) = self.running() else {
            return;
        };
        let done = state.products.0.saturating_sub(pending);
        state.products.1 = state.products.1.max(done);
        let (agent, done) = (info.products(), state.products.1);
        self.learn(mask, agent, done);
    }

    pub(crate) fn fence_products(&mut self) {
        if let Some(state) = self.state() {
            state.flight.fence();
        }
    }
}
