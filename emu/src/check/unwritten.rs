//! Bytes that nobody wrote, and the registers that depend on them.
//!
//! A load of such bytes is no fault: rows of padding are loaded with their tile. The registers
//! carry it, lane by lane, until a value is used as an address or a predicate, or is stored to
//! device memory. A shuffle carries it within its lane only; products carry it by row and column.

use super::Check;
use super::registers::each_slot;
use crate::code::{Instruction, Op, Slot, WgmmaCall};
use crate::machine::{Machine, Place, Warp};
use crate::ptx::ast::Space;
use crate::report::FindingKind;
use crate::tensor::matrix::Matrix;
use crate::tensor::wgmma::Marks;
use crate::tensor::wmma::Wmma;

/// A bit for each byte.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    words: Vec<u64>,
}

impl Written {
    pub fn new(bytes: usize) -> Written {
        Written {
            words: vec![0; bytes.div_ceil(64)],
        }
    }

    fn parts(start: usize, bytes: usize) -> impl Iterator<Item = (usize, u64)> {
        let end = start + bytes;
        (start / 64..end.div_ceil(64)).map(move |word| {
            let (from, to) = (
                start.max(64 * word) % 64,
                end.min(64 * word + 64) - 64 * word,
            );
            let below = |bits: usize| {
                if bits == 64 {
                    u64::MAX
                } else {
                    (1 << bits) - 1
                }
            };
            (word, below(to) & !below(from))
        })
    }

    pub fn mark(&mut self, start: usize, bytes: usize, written: bool) {
        for (word, mask) in Self::parts(start, bytes) {
            if let Some(word) = self.words.get_mut(word) {
                *word = if written { *word | mask } else { *word & !mask };
            }
        }
    }

    /// Whether all of these bytes were written.
    pub fn all(&self, start: usize, bytes: usize) -> bool {
        Self::parts(start, bytes)
            .all(|(word, mask)| self.words.get(word).is_none_or(|word| word & mask == mask))
    }
}

/// Registers that hold what nobody wrote.
#[derive(Clone, Debug, Default)]
pub(super) struct Taint {
    /// Lanes, by slot; empty while there are none.
    lanes: Vec<u32>,
    /// Lanes whose value looks like the padding of a structure: it may be copied, not computed with.
    padding: Vec<u32>,
    /// The line that loaded it.
    line: u32,
}

impl Taint {
    fn none(&self) -> bool {
        self.lanes.is_empty()
    }

    fn of(&self, slot: Slot) -> u32 {
        self.lanes.get(slot as usize).copied().unwrap_or(0)
    }

    fn padding_of(&self, slot: Slot) -> u32 {
        self.padding.get(slot as usize).copied().unwrap_or(0)
    }

    /// `padding` are those of `lanes` that look like padding.
    fn set(&mut self, slot: Slot, lanes: u32, padding: u32, mask: u32, slots: u32) {
        if self.lanes.is_empty() {
            if lanes & mask == 0 {
                return;
            }
            self.lanes = vec![0; slots as usize];
            self.padding = vec![0; slots as usize];
        }
        let at = slot as usize;
        if let (Some(to), Some(pad)) = (self.lanes.get_mut(at), self.padding.get_mut(at)) {
            *to = *to & !mask | lanes & mask;
            *pad = *pad & !mask | padding & lanes & mask;
        }
    }
}

/// What a load finds of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Written,
    Unwritten,
    /// Unwritten among bytes that are written, as the padding of a structure is.
    Padding,
}

/// Judges an element of an access by which of the bytes around it were written. `written` says it of
/// a range, by offsets from the access; `address` is that of the access.
///
/// Compilers copy structures with their padding, in words. Elements of which a part was written, and
/// those beside a part of a word, are taken for that; in local memory, where structures live, those
/// beside a word, too.
fn judge(
    address: u64,
    on_stack: bool,
    (size, count, index): (usize, usize, usize),
    written: &dyn Fn(i64, usize) -> bool,
) -> Found {
    let some = |start: i64, bytes: usize| (0..bytes as i64).any(|byte| written(start + byte, 1));
    let at = (index * size) as i64;
    if written(at, size) || some(at, size) {
        return Found::Written;
    }
    let of_word = address.wrapping_add_signed(at) % 8;
    let beside = match (count, size) {
        (2.., _) => some(0, size * count),
        (_, 4) => {
            let other = if of_word < 4 { at + 4 } else { at - 4 };
            some(other, 4) && (on_stack || !written(other, 4))
        }
        (_, 1 | 2) => some(at - (of_word % 4) as i64, 4),
        _ => false,
    };
    if beside {
        Found::Padding
    } else {
        Found::Unwritten
    }
}

impl Check {
    /// Bytes of shared memory are written, or get what nobody wrote.
    pub(crate) fn mark_shared(&mut self, block: usize, start: usize, bytes: usize, written: bool) {
        if let Some(marks) = self.written.get_mut(block) {
            marks.mark(start, bytes, written);
        }
    }

    pub(crate) fn all_written(&self, block: usize, start: usize, bytes: usize) -> bool {
        self.written
            .get(block)
            .is_none_or(|marks| marks.all(start, bytes))
    }

    /// A lane loads an element into a register.
    pub(crate) fn loaded(&mut self, slot: Slot, lane: usize, found: Found) {
        let line = match found {
            Found::Written => 0,
            _ => self.line(),
        };
        let Some(state) = self.state() else { return };
        if found == Found::Written && state.taint.none() {
            return;
        }
        let slots = state.plan.slots;
        if found != Found::Written {
            state.taint.line = line;
        }
        let lanes = u32::from(found != Found::Written) << lane;
        let padding = u32::from(found == Found::Padding) << lane;
        state.taint.set(slot, lanes, padding, 1 << lane, slots);
    }

    fn line(&self) -> u32 {
        let Some(info) = self.warps.get(self.now.warp as usize) else {
            return 0;
        };
        super::line_of(&info.entry, self.now.pc)
    }

    /// What a lane's register holds.
    pub(crate) fn held(&mut self, slot: Slot, lane: usize) -> Found {
        let Some(state) = self.state() else {
            return Found::Written;
        };
        let of = |lanes: u32| lanes >> lane & 1 != 0;
        match (of(state.taint.of(slot)), of(state.taint.padding_of(slot))) {
            (false, _) => Found::Written,
            (true, false) => Found::Unwritten,
            (true, true) => Found::Padding,
        }
    }

    /// A value that nobody wrote is used.
    pub(crate) fn unwritten(&mut self, lane: u32, how: &str) {
        let line = self.state().map_or(0, |state| state.taint.line);
        let message = match line {
            0 => format!("a value that nobody wrote is {how}"),
            line => format!("a value that nobody wrote, as line {line} loaded it, is {how}"),
        };
        self.report(FindingKind::Uninitialised, Some(lane), 0, message);
    }

    /// Carries it through an instruction that is about to be executed.
    pub(super) fn carry(&mut self, warp: &Warp, instruction: &Instruction, active: u32) {
        let Some(state) = self.state() else { return };
        if state.taint.none() {
            return;
        }
        let mut used = None;
        if let Some((slot, _)) = instruction.guard {
            let lanes = state.taint.of(slot) & warp.live;
            used = (lanes != 0).then_some((lanes, "used as a predicate"));
        }
        let address = match &instruction.op {
            _ if active == 0 => None,
            Op::Load(access) | Op::Store(access) if access.address.space != Space::Param => {
                Some(access.address)
            }
            Op::Atomic(atomic) => Some(atomic.address),
            Op::LoadMatrix { address, .. } | Op::StoreMatrix { address, .. } => Some(*address),
            _ => None,
        };
        if let Some(address) = address {
            let lanes = state.taint.of(address.base) & active;
            used = used.or((lanes != 0).then_some((lanes, "used as an address")));
        }
        let slots = state.plan.slots;
        match &instruction.op {
            // These say what they load themselves.
            _ if active == 0 => {}
            Op::Load(_) | Op::LoadMatrix { .. } | Op::Wgmma(_) | Op::Tcgen05(_) => {}
            Op::WmmaMove {
                op: Wmma::Load { .. },
                ..
            } => {}
            Op::Mma { d, a, b, c, .. } => carry_mma(&mut state.taint, [d, a, b, c], slots),
            op => {
                let (mut all, mut padding) = (0, 0);
                let mut to = Vec::new();
                let moves = match op {
                    Op::Scalar(scalar) => scalar.op.is_copy() || scalar.op.is_selection(),
                    Op::Pack { .. } | Op::Unpack { .. } | Op::Moves(_) => true,
                    _ => false,
                };
                let chosen = match op {
                    Op::Scalar(scalar) if scalar.op.is_selection() && scalar.src.len() == 3 => {
                        Some(scalar)
                    }
                    _ => None,
                };
                each_slot(instruction, &mut |slot, write| match write {
                    true => to.push(slot),
                    false => {
                        let of = state.taint.of(slot);
                        all |= of;
                        // Padding beside a value is padding.
                        padding |= state.taint.padding_of(slot);
                    }
                });
                if let Some(scalar) = chosen {
                    let mut first = 0;
                    for (lane, value) in warp.lanes(scalar.src[2]).iter().enumerate() {
                        let negated = scalar.negated >> 2 & 1 != 0;
                        first |= u32::from((*value != 0) != negated) << lane;
                    }
                    let [a, b, p] = [0, 1, 2].map(|at| state.taint.of(scalar.src[at]));
                    all = a & first | b & !first | p;
                }
                // A bit field is set in a word that nobody wrote: as of elements, parts are enough.
                if let Op::Scalar(scalar) = op
                    && scalar.op.is_merge()
                {
                    let both = scalar.src.iter().take(2);
                    all = both.fold(all, |all, &slot| all & state.taint.of(slot));
                }
                if let Op::Vote { mask, .. } | Op::Reduce { mask, .. } | Op::Match { mask, .. } = op
                {
                    let teams = warp.lanes(*mask);
                    let shared = |lane: &usize| all & active & teams[*lane] as u32 != 0;
                    all = (0..32).filter(shared).fold(0, |all, lane| all | 1 << lane);
                }
                let padding = if moves { padding } else { 0 };
                for slot in to {
                    state.taint.set(slot, all, padding, active, slots);
                }
            }
        }
        if let Some((lanes, how)) = used {
            self.unwritten(lanes.trailing_zeros(), how);
        }
    }

    /// The sums of a product depend on its operands, by row and column.
    pub(super) fn carry_product(&mut self, call: &WgmmaCall, marks: &Marks, keeps: bool) {
        let at = self.now.warp as usize;
        let line = self.line();
        let (Some(info), Some(state)) = (
            self.warps.get(at),
            self.states.get_mut(at).and_then(Option::as_mut),
        ) else {
            return;
        };
        let (part, slots) = ((info.number % 4) as usize, state.plan.slots);
        let marked = marks.rows.iter().chain(&marks.columns).any(|&mark| mark);
        if !marked && state.taint.none() {
            return;
        }
        for (register, &slot) in call.d.iter().enumerate() {
            let mut lanes = if keeps { state.taint.of(slot) } else { 0 };
            for lane in 0..32 {
                let (row, column) = call.op.place(32 * part + lane, register, 0);
                let next = call.op.place(32 * part + lane, register, 1).1;
                let columns = |column: usize| marks.columns.get(column).is_some_and(|&mark| mark);
                if marks.rows[row] || columns(column) || columns(next) {
                    lanes |= 1 << lane;
                    state.taint.line = line;
                }
            }
            state.taint.set(slot, lanes, 0, u32::MAX, slots);
        }
    }

    /// Masks of A's registers that hold what nobody wrote, for one warp of a product.
    pub(super) fn operand_marks(&self, call: &WgmmaCall) -> [[u32; 4]; 128] {
        let mut masks = [[0; 4]; 128];
        let at = self.now.warp as usize;
        if let (Some(info), Some(Some(state))) = (self.warps.get(at), self.states.get(at)) {
            let part = (info.number % 4) as usize;
            for (register, &slot) in call.a.iter().enumerate().take(4) {
                for lane in 0..32 {
                    masks[32 * part + lane][register] = state.taint.of(slot) >> lane & 1;
                }
            }
        }
        masks
    }
}

/// Rows are those of A's quads of lanes, columns those of B's.
fn carry_mma(taint: &mut Taint, [d, a, b, c]: [&[Slot]; 4], slots: u32) {
    let quads = |lanes: u32| {
        let any = (lanes | lanes >> 1 | lanes >> 2 | lanes >> 3) & 0x1111_1111;
        any * 15
    };
    let mut rows = [0u32; 2];
    for (register, &slot) in a.iter().enumerate() {
        rows[register % 2] |= quads(taint.of(slot));
    }
    let columns = quads(b.iter().fold(0, |all, &slot| all | taint.of(slot)));
    let mut by_column = 0;
    for lane in 0..32 {
        let first = 2 * (lane % 4);
        let either = columns >> (4 * first) & 1 | columns >> (4 * first + 4) & 1;
        by_column |= either << lane;
    }
    let halves = d.len().max(2);
    let new: Vec<u32> = (0..d.len())
        .map(|register| {
            let old = c.get(register).map_or(0, |&slot| taint.of(slot));
            old | rows[(2 * register / halves).min(1)] | by_column
        })
        .collect();
    for (&slot, lanes) in d.iter().zip(new) {
        taint.set(slot, lanes, 0, u32::MAX, slots);
    }
}

impl Machine {
    /// Whether all bytes of a place were written; true without a checker.
    pub(crate) fn all_written(&self, place: Place, bytes: usize) -> bool {
        let Some(check) = &self.check else {
            return true;
        };
        match place {
            Place::Global(address) => self.memory.all_written(address, bytes as u64),
            Place::Shared(block, offset) => check.all_written(block, offset as usize, bytes),
            Place::Fill(_) => true,
        }
    }

    /// Marks bytes of a place as written or not.
    pub(crate) fn mark_written(&mut self, place: Place, bytes: usize, written: bool) {
        let Some(check) = &mut self.check else {
            return;
        };
        match place {
            Place::Global(address) => self.memory.mark_written(address, bytes as u64, written),
            Place::Shared(block, offset) => {
                check.mark_shared(block, offset as usize, bytes, written);
            }
            Place::Fill(_) => {}
        }
    }

    /// After a copy: what was not written there is not written here.
    pub(crate) fn carry_copy(&mut self, from: Place, to: Place, bytes: usize) {
        if self.all_written(from, bytes) {
            return;
        }
        let at = |place: Place, by: usize| match place {
            Place::Global(address) => Place::Global(address + by as u64),
            Place::Shared(block, offset) => Place::Shared(block, offset + by as u32),
            fill => fill,
        };
        for byte in 0..bytes {
            if !self.all_written(at(from, byte), 1) {
                self.mark_written(at(to, byte), 1, false);
            }
        }
    }

    /// A lane's load: each element's register learns whether its bytes were written.
    pub(crate) fn check_loaded(
        &mut self,
        lane: usize,
        place: Place,
        size: usize,
        values: &[Option<Slot>],
    ) {
        if self.check.is_none() {
            return;
        }
        let whole = self.all_written(place, size * values.len());
        let address = match place {
            Place::Global(address) => address,
            Place::Shared(_, offset) => offset.into(),
            Place::Fill(_) => 0,
        };
        for (index, slot) in values.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let found = match whole {
                true => Found::Written,
                false => judge(address, false, (size, values.len(), index), &|by, bytes| {
                    let at = match place {
                        Place::Global(address) => Place::Global(address.wrapping_add_signed(by)),
                        Place::Shared(block, offset) => {
                            Place::Shared(block, offset.wrapping_add_signed(by as i32))
                        }
                        fill => fill,
                    };
                    self.all_written(at, bytes)
                }),
            };
            self.checked(|check| check.loaded(*slot, lane, found));
        }
    }

    /// A lane's load of its own memory.
    pub(crate) fn check_loaded_local(
        &mut self,
        lane: usize,
        (address, range): (u32, std::ops::Range<usize>),
        size: usize,
        values: &[Option<Slot>],
    ) {
        self.checked(|check| {
            let Some(state) = check.state() else { return };
            let whole = state.local.all(range.start, range.len());
            let found: Vec<Found> = (0..values.len())
                .map(|index| match whole {
                    true => Found::Written,
                    false => judge(
                        address.into(),
                        true,
                        (size, values.len(), index),
                        &|by, bytes| {
                            let at = range.start.checked_add_signed(by as isize);
                            at.is_some_and(|at| state.local.all(at, bytes))
                        },
                    ),
                })
                .collect();
            for (slot, found) in values.iter().zip(found) {
                if let Some(slot) = slot {
                    check.loaded(*slot, lane, found);
                }
            }
        });
    }

    /// A lane's store to its own memory.
    pub(crate) fn check_stored_local(
        &mut self,
        lane: usize,
        range: std::ops::Range<usize>,
        size: usize,
        values: &[Option<Slot>],
    ) {
        self.checked(|check| {
            for (index, slot) in values.iter().enumerate() {
                let written = slot.is_none_or(|slot| check.held(slot, lane) == Found::Written);
                if let Some(state) = check.state() {
                    state.local.mark(range.start + index * size, size, written);
                }
            }
        });
    }

    /// A load of matrices: which registers get what nobody wrote.
    pub(crate) fn check_matrix(&mut self, op: &Matrix, dst: &[Slot], places: &[Place]) {
        if self.check.is_none() {
            return;
        }
        let mask = |place: &Place| {
            let mut mask = [0u8; 16];
            if let Place::Shared(block, offset) = *place
                && !self.all_written(*place, 16)
            {
                for (byte, mask) in mask.iter_mut().enumerate() {
                    let at = Place::Shared(block, offset + byte as u32);
                    *mask = u8::from(!self.all_written(at, 1));
                }
            }
            mask
        };
        let masks: Vec<[u8; 16]> = places.iter().map(mask).collect();
        for (&slot, masks) in dst.iter().zip(op.load(&masks)) {
            for (lane, mask) in masks.iter().enumerate() {
                let found = match *mask {
                    0 => Found::Written,
                    _ => Found::Unwritten,
                };
                self.checked(|check| check.loaded(slot, lane, found));
            }
        }
    }

    /// After a lane's store: what nobody wrote stays so in shared memory, and is a finding in
    /// device memory.
    pub(crate) fn check_stored(
        &mut self,
        lane: usize,
        place: Place,
        size: usize,
        values: &[Option<Slot>],
    ) {
        for (index, slot) in values.iter().enumerate() {
            let Some(check) = &mut self.check else { return };
            let held = slot.map_or(Found::Written, |slot| check.held(slot, lane));
            match (held, place) {
                (Found::Written, _) => {}
                (_, Place::Shared(block, offset)) => {
                    check.mark_shared(block, offset as usize + index * size, size, false);
                }
                (Found::Padding, Place::Global(address)) => {
                    let at = address + (index * size) as u64;
                    self.memory.mark_written(at, size as u64, false);
                }
                _ => self.checked(|check| check.unwritten(lane as u32, "stored to device memory")),
            }
        }
    }
}
