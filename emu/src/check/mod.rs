//! The checker: what a run got right only by luck.
//!
//! Every access to shared and device memory is compared with earlier ones to the same bytes.
//! Two of which one writes are ordered by what the PTX memory model orders them with: barriers,
//! mbarriers, releases and acquires within their scopes, completion mechanisms of asynchronous
//! work. Where neither comes first, and not both are strong within each other's scope, that is a
//! race, whatever values this run saw. Clocks are those of FastTrack (Flanagan and Freund, 2009):
//! one number for an access, a vector for what is ordered before.
//!
//! Asynchronous work has clocks of its own: that of an mbarrier stands for the bulk copies that
//! it counts, and is known to whoever observed the phase; those of a thread's bulk groups and of
//! a warp's products are known after their waits. A second vector holds which ordinary writes a
//! proxy fence has made visible to the asynchronous proxy.

mod clock;
mod copies;
mod hooks;
mod maps;
mod registers;
mod shadow;
mod sync;
mod tensor;
#[cfg(test)]
mod tests;
mod unwritten;
mod warps;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::code::{Entry, SHARED_START};
use crate::machine::Place;
use crate::report::{Finding, FindingKind};
use clock::{Agent, Clock};
use registers::Plan;
pub(crate) use shadow::Use;
use shadow::{Cell, Conflict, Fault, Judge, MOST_RECORDS, Pages, Record, Sets, id};
pub(crate) use tensor::Role;
pub(crate) use unwritten::{Found, Written};
use warps::{AGENTS, Launches, WarpInfo, WarpState};

/// The instruction that is being executed.
#[derive(Clone, Copy, Debug, Default)]
struct Now {
    warp: u32,
    pc: u32,
}

/// The checker's state.
#[derive(Debug, Default)]
pub(crate) struct Check {
    warps: Vec<WarpInfo>,
    states: Vec<Option<WarpState>>,
    plans: Vec<(Arc<Entry>, Arc<Plan>)>,
    launches: Launches,
    agents: Agent,
    /// For each GPU, what its ended warps knew of other GPUs: later launches know it too. Empty
    /// where there is only one.
    histories: Vec<Clock>,
    /// With several GPUs: from which agent on they are of which.
    owners: Vec<(Agent, usize)>,
    records: Vec<Record>,
    recent: Vec<u32>,
    sets: Sets,
    /// By block.
    shared: Vec<Vec<Cell>>,
    global: Pages,
    /// Bytes of shared memory that were written, by block.
    written: Vec<Written>,
    sync: sync::Sync,
    tensor: tensor::TensorState,
    /// Acquired tensor maps, by block and address.
    maps: HashMap<(usize, u64), Vec<maps::Acquired>>,
    /// Agents of a thread's bulk groups: their reads and their writes.
    bulk: HashMap<(u32, u32), (Agent, Agent)>,
    now: Now,
    /// Records that were found in order before this one.
    fine: (u32, bool, [u32; 2]),
    reported: HashSet<(FindingKind, u32, u32)>,
    found: Vec<Finding>,
    notes: Vec<String>,
}

/// Entries of the table of recent records.
const RECENT: usize = 1 << 12;

impl Check {
    /// Forgets everything: whatever ran is over before anything else starts.
    fn forget(&mut self) {
        let found = std::mem::take(&mut self.found);
        let notes = std::mem::take(&mut self.notes);
        let plans = std::mem::take(&mut self.plans);
        let gpus = self.histories.len();
        *self = Check {
            found,
            notes,
            plans,
            histories: vec![Clock::default(); gpus],
            ..Check::default()
        };
    }

    /// A checker of this many GPUs.
    pub(crate) fn of(gpus: usize) -> Check {
        Check {
            histories: vec![Clock::default(); if gpus > 1 { gpus } else { 0 }],
            ..Check::default()
        }
    }

    /// New agents, for what runs on a GPU.
    fn agent(&mut self, count: u32, gpu: usize) -> Agent {
        let first = self.agents;
        self.agents += count;
        if !self.histories.is_empty() && self.owners.last().is_none_or(|last| last.1 != gpu) {
            self.owners.push((first, gpu));
        }
        first
    }

    /// The GPU of the warp that runs.
    fn gpu(&self) -> usize {
        let warp = self.warps.get(self.now.warp as usize);
        warp.map_or(0, |warp| warp.domain.gpu)
    }

    /// A warp has ended: what it knows of other GPUs, later launches of its own know.
    fn end_warp(&mut self, warp: u32) {
        let state = self.states.get_mut(warp as usize).and_then(Option::take);
        let gpu = self.warps.get(warp as usize).map(|warp| warp.domain.gpu);
        let (Some(state), Some(gpu)) = (state, gpu) else {
            return;
        };
        let owners = &self.owners;
        let foreign = |agent: Agent| {
            let next = owners.partition_point(|owner| owner.0 <= agent);
            next.checked_sub(1).is_none_or(|at| owners[at].1 != gpu)
        };
        if let Some(history) = self.histories.get_mut(gpu) {
            let living = state.groups.iter().map(|group| &group.known.seen);
            for seen in living.chain([&state.left]) {
                history.join(&seen.only(foreign));
            }
        }
    }

    /// A new warp; gives its number.
    fn start(&mut self, mut info: WarpInfo, live: u32, shared: usize) -> u32 {
        info.first = self.agent(AGENTS, info.domain.gpu);
        let known = self
            .plans
            .iter()
            .find(|(entry, _)| Arc::ptr_eq(entry, &info.entry));
        let plan = match known {
            Some((_, plan)) => plan.clone(),
            None => {
                let plan = Arc::new(Plan::new(&info.entry));
                self.plans.push((info.entry.clone(), plan.clone()));
                plan
            }
        };
        let block = info.domain.block;
        if self.shared.len() <= block {
            self.shared.resize(block + 1, Vec::new());
            self.written.resize(block + 1, Written::default());
        }
        if self.shared[block].is_empty() {
            self.shared[block] = vec![Cell::default(); shared.div_ceil(4)];
            self.written[block] = Written::new(shared);
            // The system's part is not a kernel's to initialise.
            self.written[block].mark(0, SHARED_START as usize, true);
        }
        let mut state = WarpState::new(info.first, live, plan);
        let gpu = info.domain.gpu;
        if let Some(history) = self.histories.get_mut(gpu) {
            // Launches of one GPU are in order, and between them every proxy sees everything.
            history.raise_launch(gpu, info.launch.saturating_sub(1));
            state.groups[0].known.start(history);
        }
        self.states.push(Some(state));
        self.warps.push(info);
        self.warps.len() as u32 - 1
    }

    fn state(&mut self) -> Option<&mut WarpState> {
        self.states.get_mut(self.now.warp as usize)?.as_mut()
    }

    /// The state of the warp that runs, and what is known about it.
    fn running(&mut self) -> Option<(&mut WarpState, &WarpInfo)> {
        let at = self.now.warp as usize;
        Some((self.states.get_mut(at)?.as_mut()?, self.warps.get(at)?))
    }

    /// An instruction begins.
    fn enter(&mut self, warp: u32, pc: u32, mask: u32, active: u32, live: u32) {
        self.now = Now { warp, pc };
        if active == 0 {
            return;
        }
        let Some((state, info)) = self.running() else {
            return;
        };
        let step = &state.plan.steps[pc as usize];
        let (memory, barrier, touches) = (step.memory, step.barrier, !step.touches.is_empty());
        let arrival = step.arrival;
        if memory {
            state.select(info.first, if arrival { active } else { mask }, live);
            if barrier {
                state.meet(info.first, mask, live);
            }
        }
        if touches {
            self.touch_registers(pc);
        }
        if self.records.len() > MOST_RECORDS || self.sets.len() > MOST_RECORDS {
            self.drop_history();
        }
    }

    /// The instruction touches registers of products.
    fn touch_registers(&mut self, pc: u32) {
        let Some(state) = self.state() else { return };
        let (plan, done) = (state.plan.clone(), state.products.1);
        let loaded = state.moves[1].1;
        let mut held = None;
        let step = &plan.steps[pc as usize];
        for &(slot, write) in &step.touches {
            held = state
                .flight
                .touch(slot, write, step.copies, (done, loaded))
                .or(held);
        }
        if let Some(message) = held {
            self.report(FindingKind::InFlight, None, 0, message);
        }
    }

    /// Too much is remembered: accesses so far are forgotten, what is ordered before what is not.
    fn drop_history(&mut self) {
        let warp = &self.warps[self.now.warp as usize];
        self.notes.push(format!(
            "{}: the checker's memory was full; what came before is no longer compared with what follows",
            warp.entry.name
        ));
        self.records.clear();
        self.recent.clear();
        self.sets = Sets::default();
        self.global = Pages::default();
        self.tensor.forget();
        self.fine = Default::default();
        self.maps
            .values_mut()
            .flatten()
            .for_each(maps::Acquired::forget);
        for cells in &mut self.shared {
            cells.fill(Cell::default());
        }
    }

    fn record(&mut self, record: Record) -> u32 {
        if self.recent.is_empty() {
            self.recent = vec![0; RECENT];
            // Number 0 is nobody's.
            self.records.push(Record {
                warp: u32::MAX,
                ..record
            });
        }
        let hash = record.warp.wrapping_mul(0x9e37_79b1) ^ record.pc.wrapping_mul(0x85eb_ca6b);
        let at = (hash ^ record.agent.wrapping_mul(0xc2b2_ae35)) as usize >> 7 & (RECENT - 1);
        let known = self.recent[at];
        if self.records[known as usize] == record {
            return known;
        }
        self.records.push(record);
        self.recent[at] = self.records.len() as u32 - 1;
        self.recent[at]
    }

    /// Checks an access and notes it; what is ordered before it is what the lane knows.
    fn touch(&mut self, lane: u32, record: Record, place: Place, bytes: u32, what: Use) {
        if bytes == 0 {
            return;
        }
        let again = what == Use::Rewrite;
        let what = if again { Use::Write } else { what };
        let number = self.record(record);
        let Check {
            states,
            warps,
            launches,
            records,
            sets,
            shared,
            global,
            fine,
            ..
        } = self;
        let Some(state) = states.get(self.now.warp as usize).and_then(Option::as_ref) else {
            return;
        };
        let in_global = matches!(place, Place::Global(_));
        let mut judge = Judge {
            records,
            warps,
            launches,
            known: &state.group(lane).known,
            me: id(number, lane),
            record,
            global: in_global,
            fine: if (fine.0, fine.1) == (number, in_global) {
                fine.2
            } else {
                [0; 2]
            },
            again,
        };
        let start = match place {
            Place::Global(address) => address,
            Place::Shared(_, offset) => offset.into(),
            Place::Fill(_) => return,
        };
        let end = start.saturating_add(bytes.into());
        let mut fault = None;
        let mut at = start;
        while at < end {
            let word = at / 4;
            let next = ((word + 1) * 4).min(end);
            let mask = ((1u16 << (next - 4 * word)) - (1u16 << (at - 4 * word))) as u8;
            let cell = match place {
                Place::Shared(block, _) => shared
                    .get_mut(block)
                    .and_then(|cells| cells.get_mut(word as usize)),
                _ => global.cell(word),
            };
            if let Some(cell) = cell {
                fault = fault.or(judge
                    .access(sets, cell, mask, what)
                    .map(|fault| (fault, at)));
            }
            at = next;
        }
        *fine = (number, in_global, judge.fine);
        if let Some((fault, at)) = fault {
            let place = match place {
                Place::Shared(block, _) => Place::Shared(block, at as u32),
                _ => Place::Global(at),
            };
            self.conflict(lane, record, place, what, fault);
        }
    }

    fn conflict(&mut self, lane: u32, record: Record, place: Place, what: Use, fault: Fault) {
        let with = self.records[(fault.with >> 5) as usize];
        let warp = &self.warps[with.warp as usize];
        let line = line_of(&warp.entry, with.pc);
        let [x, y, z] = warp.block;
        let mut who = format!(
            "line {line}, block ({x}, {y}, {z}), thread {}",
            warp.number * 32 + (fault.with & 31)
        );
        if warp.domain.gpu != self.warps[record.warp as usize].domain.gpu {
            who += &format!(", GPU {}", warp.domain.gpu);
        }
        let place = match place {
            Place::Shared(_, at) => format!("shared memory at {at:#x}"),
            Place::Global(at) => format!("device memory at {at:#x}"),
            Place::Fill(_) => String::new(),
        };
        let verb = match (record.proxy, what) {
            (false, Use::Read) => "reads",
            (false, Use::Write | Use::Rewrite) => "writes",
            (false, Use::Change) => "changes",
            (true, Use::Read) => "reads asynchronously",
            (true, Use::Write | Use::Rewrite) => "writes asynchronously",
            (true, Use::Change) => "changes asynchronously",
        };
        let did = if fault.wrote { "write" } else { "read" };
        let (kind, message) = match (fault.conflict, with.proxy) {
            (Conflict::Proxy, _) => (
                FindingKind::Proxy,
                format!(
                    "{verb} {place} after an ordinary write of {who}, with no fence.proxy.async between"
                ),
            ),
            (Conflict::Race, true) if fault.wrote && what == Use::Read => (
                FindingKind::Proxy,
                format!(
                    "{verb} {place} before it observed the completion of the asynchronous write of {who}"
                ),
            ),
            (Conflict::Race, true) => (
                FindingKind::Race,
                format!(
                    "{verb} {place}, and the asynchronous {did} of {who} is not known to be complete"
                ),
            ),
            (Conflict::Race, false) => (
                FindingKind::Race,
                format!("{verb} {place}, and the {did} of {who} is not ordered before it"),
            ),
        };
        self.report(kind, Some(lane), with.pc + 1, message);
    }

    /// A finding about the instruction that is being executed, once for each pair of instructions.
    fn report(&mut self, kind: FindingKind, lane: Option<u32>, other: u32, message: String) {
        if !self.reported.insert((kind, self.now.pc, other)) {
            return;
        }
        let Some(info) = self.warps.get(self.now.warp as usize) else {
            return;
        };
        self.found.push(Finding {
            kind,
            entry: info.entry.name.clone(),
            line: line_of(&info.entry, self.now.pc),
            gpu: info.domain.gpu,
            block: info.block,
            thread: Some(info.number * 32 + lane.unwrap_or(0)),
            message,
        });
    }

    /// The ordinary access of a lane now.
    fn ordinary(&mut self, lane: u32, strong: Option<crate::code::Scope>) -> Option<Record> {
        let Now { warp, pc } = self.now;
        let group = self.state()?.group_mut(lane);
        Some(Record {
            agent: group.agent,
            clock: group.stamp(),
            warp,
            pc,
            proxy: false,
            strong,
            form: 0,
        })
    }

    fn end_block(&mut self, block: usize) {
        if let Some(cells) = self.shared.get_mut(block) {
            *cells = Vec::new();
            self.written[block] = Written::default();
        }
        self.sync.end_block(block);
        self.end_maps(block);
    }
}

fn line_of(entry: &Entry, pc: u32) -> u32 {
    entry
        .code
        .get(pc as usize)
        .map_or(0, |instruction| instruction.line)
}
