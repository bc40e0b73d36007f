//! Tensor memory: who reads and writes it, and what orders them (PTX ISA 9.0, 9.7.16.6).
//!
//! A cell stands for 16 lanes of a column. What is done asynchronously has a clock of its own:
//! the products and copies of a thread, the loads of a warp, its stores. Knowing of these takes
//! more than knowing of an ordinary access: [`super::clock::Known::tensor`] holds what later
//! `tcgen05` instructions of a thread come after. `fence::after_thread_sync` puts there what the
//! thread has seen, `fence::before_thread_sync` lets others see what is there; waits and the
//! pipeline put there what the thread did itself. `commit` is such a fence of its own.
//!
//! Each clock is an even agent, and the next one is for what takes less: of products and copies
//! that they were issued before, which is enough where the pipeline keeps the order (9.7.16.6.2);
//! of loads and stores that they were waited for, which is enough to free the memory.

use std::collections::HashMap;

use super::clock::{Agent, Known};
use super::shadow::{Cell, Conflict, Fault, Judge, Record, Use, id};
use super::warps::Group;
use super::{Check, line_of};
use crate::machine::Place;
use crate::report::FindingKind;
use crate::tensor::tcgen05::memory::{Area, COLUMNS, LANES};

/// Lanes of a cell.
const GRAIN: u32 = 16;
/// Bits of a role in [`Record::form`].
const ROLE: u32 = 15;

/// What an access to tensor memory is, for the order of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Accumulators, of products of this form.
    Sum(u32),
    /// A and the scales of a product.
    Operand,
    /// What `tcgen05.cp` writes.
    Copy,
    /// `tcgen05.ld`.
    Load,
    /// `tcgen05.st`.
    Store,
    /// `tcgen05.dealloc`.
    Free,
}

impl Role {
    fn form(self) -> u32 {
        match self {
            Role::Sum(form) => form << 4 | 1,
            Role::Operand => 2,
            Role::Copy => 3,
            Role::Load => 4,
            Role::Store => 5,
            Role::Free => 6,
        }
    }

    fn of(form: u32) -> Role {
        match form & ROLE {
            1 => Role::Sum(form >> 4),
            2 => Role::Operand,
            3 => Role::Copy,
            4 => Role::Load,
            5 => Role::Store,
            _ => Role::Free,
        }
    }

    /// Whether its completion is that of a warp's loads or stores.
    fn is_move(self) -> bool {
        matches!(self, Role::Load | Role::Store)
    }

    fn instruction(self) -> &'static str {
        match self {
            Role::Sum(_) | Role::Operand => "tcgen05.mma",
            Role::Copy => "tcgen05.cp",
            Role::Load => "tcgen05.ld",
            Role::Store => "tcgen05.st",
            Role::Free => "tcgen05.dealloc",
        }
    }

    fn verb(self) -> &'static str {
        match self {
            Role::Sum(_) => "accumulates in",
            Role::Operand => "reads operands from",
            Role::Copy => "copies to",
            Role::Load => "loads from",
            Role::Store => "stores to",
            Role::Free => "frees",
        }
    }
}

/// Whether the pipeline executes one access after another that was issued before it (9.7.16.6.2):
/// products of one form on the same accumulators, copies and the products that read them, and what
/// a product reads before what others write there.
fn pipelined(before: Role, after: Role) -> bool {
    match (before, after) {
        (Role::Sum(a), Role::Sum(b)) => a == b,
        (Role::Operand | Role::Copy, Role::Sum(_) | Role::Operand | Role::Copy) => true,
        _ => false,
    }
}

/// Whether an access to tensor memory comes after another.
pub(super) fn ordered(known: &Known, before: &Record, form: u32) -> bool {
    let (earlier, role) = (Role::of(before.form), Role::of(form));
    let at_least = |clock: &super::clock::Clock, agent: Agent| clock.get(agent) >= before.clock;
    if role == Role::Free {
        let waited = earlier.is_move() && at_least(&known.seen, before.agent + 1);
        return waited
            || at_least(&known.seen, before.agent)
            || at_least(&known.tensor, before.agent);
    }
    at_least(&known.tensor, before.agent)
        || !earlier.is_move()
            && pipelined(earlier, role)
            && at_least(&known.tensor, before.agent + 1)
}

/// Tensor memory's cells and clocks.
#[derive(Debug, Default)]
pub(super) struct TensorState {
    /// By GPU and SM.
    cells: HashMap<(usize, u32), Vec<Cell>>,
    /// By warp and lane: the agent of its products and copies, and how many there were.
    pipes: HashMap<(u32, u32), (Agent, u32)>,
    /// What commits that have not arrived will tell.
    commits: HashMap<u64, Known>,
}

impl TensorState {
    /// Forgets accesses.
    pub fn forget(&mut self) {
        self.cells.clear();
    }
}

fn index(lane: u32, column: u32) -> usize {
    (lane / GRAIN * COLUMNS + column) as usize
}

impl Check {
    /// A product or copy of a lane is issued: its clock.
    pub(crate) fn tensor_issue(&mut self, lane: u32) -> (u32, u32) {
        let key = (self.now.warp, lane);
        let (agent, clock) = match self.tensor.pipes.get(&key) {
            Some(&(agent, clock)) => (agent, clock),
            None => (self.agent(2, self.gpu()), 0),
        };
        let clock = clock + 1;
        self.tensor.pipes.insert(key, (agent, clock));
        if let Some(state) = self.state() {
            state.group_mut(lane).known.tensor.raise(agent + 1, clock);
        }
        (agent, clock)
    }

    fn tensor_record(&self, (agent, clock): (u32, u32), role: Role) -> Record {
        Record {
            form: role.form(),
            ..self.asynchronous(agent, clock, false)
        }
    }

    /// An access of a product, a copy, a load or a store to areas of an SM's tensor memory.
    pub(crate) fn tensor_touch(
        &mut self,
        lane: u32,
        ticket: (u32, u32),
        at: (usize, u32),
        areas: &[Area],
        (what, role): (Use, Role),
    ) {
        let record = self.tensor_record(ticket, role);
        let number = self.record(record);
        let Check {
            states,
            warps,
            launches,
            records,
            sets,
            tensor,
            ..
        } = self;
        let Some(state) = states.get(self.now.warp as usize).and_then(Option::as_ref) else {
            return;
        };
        let cells = tensor
            .cells
            .entry(at)
            .or_insert_with(|| vec![Cell::default(); index(LANES, 0)]);
        let mut judge = Judge {
            records,
            warps,
            launches,
            known: &state.group(lane).known,
            me: id(number, lane),
            record,
            global: false,
            fine: [0; 2],
            again: false,
        };
        let mut fault = None;
        for area in areas {
            for lane in (area.lane..area.lane + area.lanes).step_by(GRAIN as usize) {
                for column in area.column..area.column + area.columns {
                    let Some(cell) = cells.get_mut(index(lane, column)) else {
                        continue;
                    };
                    let found = judge.access(sets, cell, 1, what);
                    fault = fault.or(found.map(|fault| (fault, lane, column)));
                }
            }
        }
        if let Some((fault, at, column)) = fault {
            self.tensor_conflict(lane, role, fault, (at, column));
        }
    }

    fn tensor_conflict(&mut self, lane: u32, role: Role, fault: Fault, at: (u32, u32)) {
        if fault.conflict != Conflict::Race {
            return;
        }
        let with = self.records[(fault.with >> 5) as usize];
        let warp = &self.warps[with.warp as usize];
        let (line, [x, y, z]) = (line_of(&warp.entry, with.pc), warp.block);
        let thread = warp.number * 32 + (fault.with & 31);
        let earlier = Role::of(with.form);
        let Some(state) = self.states[self.now.warp as usize].as_ref() else {
            return;
        };
        let known = &state.group(lane).known;
        let seen = |agent: Agent| known.seen.get(agent) >= with.clock;
        let why = if seen(with.agent) {
            "was seen to be complete, but no tcgen05.fence::after_thread_sync followed"
        } else if earlier.is_move() && seen(with.agent + 1) {
            "was waited for, but no tcgen05.fence::before_thread_sync followed it there"
        } else if earlier.is_move() {
            "is not known to be complete: no tcgen05.wait covers it, or nothing orders that before"
        } else {
            "is not known to be complete: no tcgen05.commit that covers it was waited for"
        };
        let message = format!(
            "{} tensor memory at lane {}, column {}, and the {} of line {line}, block ({x}, {y}, {z}), \
             thread {thread} {why}",
            role.verb(),
            at.0,
            at.1,
            earlier.instruction()
        );
        self.report(FindingKind::Race, Some(lane), with.pc + 1, message);
    }

    /// A product or copy reads shared memory.
    pub(crate) fn tensor_reads(
        &mut self,
        lane: u32,
        (agent, clock): (u32, u32),
        block: usize,
        chunks: &mut [u32],
    ) {
        let record = self.asynchronous(agent, clock, false);
        chunks.sort_unstable();
        let mut left = &chunks[..];
        while let Some(&start) = left.first() {
            let mut end = start;
            while let Some((&next, rest)) = left.split_first()
                && next <= end
            {
                end = end.max(next.saturating_add(16));
                left = rest;
            }
            let place = Place::Shared(block, start);
            self.touch(lane, record, place, end - start, Use::Read);
        }
    }

    /// A commit of a lane: what its arrival will tell.
    pub(crate) fn tensor_commit(&mut self, lane: u32, commit: u64, bars: &[(usize, u32)]) {
        for &(block, offset) in bars {
            self.see_bar(lane, block, offset);
        }
        let pipe = self.tensor.pipes.get(&(self.now.warp, lane)).copied();
        let Some((state, info)) = self.running() else {
            return;
        };
        let own = info.own();
        let group = state.group_mut(lane);
        let mut known = group.known.clone();
        known.seen.join(&std::mem::take(&mut known.tensor));
        // It is no release: what the warp itself wrote in passing is not told. What it had seen when
        // it issued the products came before what they did.
        known.seen = known.seen.only(|agent| !own.contains(&agent));
        if let Some((agent, clock)) = pipe {
            known.seen.raise(agent, clock);
        }
        group.told = true;
        self.tensor.commits.insert(commit, known);
    }

    /// What a commit tells that arrives now, at the mbarriers that it names.
    pub(crate) fn arrive_commit(&mut self, commit: u64, bars: &[(usize, u32)]) {
        let Some(known) = self.tensor.commits.remove(&commit) else {
            return;
        };
        for bar in bars {
            self.sync.told_by_commit(*bar, &known);
        }
    }

    /// A warp's loads, or its stores: the clock of the next.
    pub(crate) fn tensor_move(&mut self, load: bool) -> (u32, u32) {
        let Some((state, info)) = self.running() else {
            return (0, 0);
        };
        let at = usize::from(load);
        state.moves[at].0 += 1;
        (info.moves(load), state.moves[at].0)
    }

    /// Registers that a load will write.
    pub(crate) fn tensor_flight(&mut self, slots: &[u32], clock: u32) {
        let pc = self.now.pc;
        let Some((state, info)) = self.running() else {
            return;
        };
        let line = line_of(&info.entry, pc);
        state.flight.load(slots, clock, line);
    }

    /// `wait::ld` or `wait::st` of a warp.
    pub(crate) fn tensor_wait(&mut self, load: bool, mask: u32) {
        let Some((state, info)) = self.running() else {
            return;
        };
        let agent = info.moves(load);
        let moves = &mut state.moves[usize::from(load)];
        moves.1 = moves.0;
        let clock = moves.1;
        for Group { known, told, .. } in state.inside(mask) {
            known.tensor.raise(agent, clock);
            known.seen.raise(agent + 1, clock);
            *told = true;
        }
    }

    /// `fence::before_thread_sync` or `fence::after_thread_sync`.
    pub(crate) fn tensor_fence(&mut self, before: bool, mask: u32) {
        let Some((state, info)) = self.running() else {
            return;
        };
        let own = info.own();
        for group in state.inside(mask) {
            let known = &mut group.known;
            if before {
                known.seen.join(&known.tensor);
                // It is no release either: what the warp itself wrote is not told.
                group.fenced = known.tensor.only(|agent| !own.contains(&agent));
                group.told = true;
            } else {
                known.tensor.join(&known.seen);
                group.relaxed.each_seen(|seen| known.tensor.join(seen));
            }
        }
    }

    /// Columns are allocated: what was done there before concerns nobody.
    pub(crate) fn tensor_alloc(&mut self, at: (usize, u32), first: u32, columns: u32) {
        if let Some(cells) = self.tensor.cells.get_mut(&at) {
            for lane in (0..LANES).step_by(GRAIN as usize) {
                let from = index(lane, first);
                cells[from..from + columns as usize].fill(Cell::default());
            }
        }
    }

    /// Columns are freed by the running warp.
    pub(crate) fn tensor_free(&mut self, lane: u32, at: (usize, u32), first: u32, columns: u32) {
        let area = Area {
            lane: 0,
            lanes: LANES,
            column: first,
            columns,
        };
        self.tensor_touch(lane, (0, 0), at, &[area], (Use::Write, Role::Free));
        self.tensor_alloc(at, first, columns);
    }
}
