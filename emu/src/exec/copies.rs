//! Asynchronous copies: bulk, tensor, and the small ones of threads.

use super::{Step, lanes};
use crate::check::Use;
use crate::code::{Address, AtomicOp, Bulk, Op, Order, StoreAsync, TensorCopy, TensorKind};
use crate::machine::{Issuer, Machine, Piece, Place, Wait, Warp, Work};
use crate::report::FindingKind;
use crate::tensor::tma::{BYTES, Direction, Dtype, MAP_ALIGNMENT, TensorMap};

use super::memory::Target;

/// A `cp.async` that has not happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SmallCopy {
    lane: u32,
    to: Place,
    from: Place,
    bytes: u32,
    /// Bytes that are read; the rest is zero.
    real: u32,
    pc: u32,
}

/// Whether all but the `pending` bulk groups that each thread of the mask committed last are finished:
/// groups need not finish in order, but a wait is for the older ones.
pub(crate) fn bulk_settled(warp: &Warp, mask: u32, pending: u32, read: bool) -> bool {
    lanes(mask).all(|lane| {
        let groups = &warp.bulk[lane];
        !groups.open.iter().any(|(number, reads, writes)| {
            number + u64::from(pending) < groups.current && (*reads > 0 || !read && *writes > 0)
        })
    })
}

impl Machine {
    pub(super) fn copy(
        &mut self,
        id: usize,
        warp: &mut Warp,
        at: usize,
        op: &Op,
        active: u32,
    ) -> Step {
        let pc = warp.fragments[at].pc;
        match op {
            Op::BulkCommit => {
                for lane in lanes(active) {
                    warp.bulk[lane].current += 1;
                }
            }
            Op::BulkWait { pending, read } => {
                self.check_bulk_wait(warp, active, *pending, *read);
                if bulk_settled(warp, active, *pending, *read) {
                    return Step::Next;
                }
                warp.fragments[at].pc += 1;
                warp.fragments[at].wait = Wait::Bulk {
                    pending: *pending,
                    read: *read,
                };
                return Step::Blocked;
            }
            Op::Bulk(bulk) => {
                for lane in lanes(active) {
                    if let Err((kind, message)) = self.bulk(id, warp, at, lane, bulk) {
                        self.report(warp, pc, Some(lane as u32), kind, message);
                    }
                }
            }
            Op::Tensor(copy) => {
                for lane in lanes(active) {
                    if let Err((kind, message)) = self.tensor_copy(id, warp, at, lane, copy) {
                        self.report(warp, pc, Some(lane as u32), kind, message);
                    }
                }
            }
            Op::CopyAsync {
                dst,
                src,
                bytes,
                from,
            } => {
                for lane in lanes(active) {
                    let real =
                        from.map_or(*bytes, |slot| (warp.lanes(slot)[lane] as u32).min(*bytes));
                    let places = self
                        .place(warp, dst, lane)
                        .and_then(|to| Ok((to, self.place(warp, src, lane)?)));
                    match places {
                        Ok((to, from)) => {
                            self.checked(|check| check.small(lane as u32, to, from, *bytes, real));
                            warp.copies.push(SmallCopy {
                                lane: lane as u32,
                                to,
                                from,
                                bytes: *bytes,
                                real,
                                pc,
                            })
                        }
                        Err(message) => self.report(
                            warp,
                            pc,
                            Some(lane as u32),
                            FindingKind::OutOfBounds,
                            message,
                        ),
                    }
                }
            }
            Op::StoreAsync(store) => {
                for lane in lanes(active) {
                    if let Err(message) = self.store_async(warp, at, lane, store) {
                        let kind = FindingKind::OutOfBounds;
                        self.report(warp, pc, Some(lane as u32), kind, message);
                    }
                }
            }
            Op::CopyCommit => {
                self.check_groups(op, active);
                // Groups are each thread's own; a warp that commits together commits them together.
                let (committed, left): (Vec<SmallCopy>, Vec<SmallCopy>) = warp
                    .copies
                    .drain(..)
                    .partition(|copy| active >> copy.lane & 1 != 0);
                warp.copies = left;
                warp.copy_groups.push_back(committed);
            }
            Op::CopyWait { pending, all } => {
                self.check_groups(op, active);
                // `wait_all` also covers what is not committed.
                if *all {
                    let open = std::mem::take(&mut warp.copies);
                    warp.copy_groups.push_back(open);
                }
                while warp.copy_groups.len() > *pending as usize {
                    let group = warp.copy_groups.pop_front().unwrap_or_default();
                    self.finish_small(warp, &group);
                }
            }
            Op::CopyArrive { bar, increments } => {
                // The copies so far are done before the arrival: as late as that is allowed.
                let groups: Vec<SmallCopy> = warp
                    .copy_groups
                    .drain(..)
                    .flatten()
                    .chain(warp.copies.drain(..))
                    .collect();
                self.finish_small(warp, &groups);
                for lane in lanes(active) {
                    let arrived = self
                        .shared_place(warp, bar, lane)
                        .and_then(|(block, offset)| {
                            self.checked(|check| check.arrive_small(lane as u32, (block, offset)));
                            let missing =
                                || format!("the mbarrier at {offset:#x} is not initialised");
                            let bar = self
                                .block_mut(block)
                                .mbarriers
                                .get_mut(&offset)
                                .ok_or_else(missing)?;
                            if *increments {
                                bar.pending += 1;
                            }
                            bar.arrive(1, false)?;
                            let phase = bar.settle().then_some(bar.phase);
                            if let Some(phase) = phase {
                                self.check_settled_bar((block, offset), phase);
                            }
                            self.wake_cluster_of(block);
                            Ok(())
                        });
                    if let Err(message) = arrived {
                        self.report(warp, pc, Some(lane as u32), FindingKind::Mbarrier, message);
                    }
                }
            }
            _ => {}
        }
        Step::Next
    }

    fn finish_small(&mut self, warp: &mut Warp, copies: &[SmallCopy]) {
        for copy in copies {
            // A copy of nothing does not look at its source.
            let read = match copy.real {
                0 => Ok(Vec::new()),
                real => self.read_place(copy.from, real),
            };
            let done = read.and_then(|mut bytes| {
                bytes.resize(copy.bytes as usize, 0);
                self.write_place(copy.to, &bytes, None)?;
                self.carry_copy(copy.from, copy.to, copy.real as usize);
                Ok(())
            });
            if let Err(message) = done {
                self.report(
                    warp,
                    copy.pc,
                    Some(copy.lane),
                    FindingKind::OutOfBounds,
                    message,
                );
            }
        }
        self.progress += 1;
    }

    fn place(&self, warp: &Warp, address: &Address, lane: usize) -> Result<Place, String> {
        match self.target(warp, address.space, Self::address_of(warp, address, lane))? {
            Target::Place(place) => Ok(place),
            _ => Err("asynchronous copies know device and shared memory only".into()),
        }
    }

    pub(super) fn shared_place(
        &self,
        warp: &Warp,
        address: &Address,
        lane: usize,
    ) -> Result<(usize, u32), String> {
        match self.place(warp, address, lane)? {
            Place::Shared(block, offset) => Ok((block, offset)),
            _ => Err(format!(
                "{:#x} is not in shared memory",
                Self::address_of(warp, address, lane)
            )),
        }
    }

    pub(super) fn issuer(&self, warp: &Warp, at: usize, lane: usize) -> Issuer {
        let block = self.block(warp.block);
        Issuer {
            entry: warp.entry.name.clone(),
            line: warp.entry.code[warp.fragments[at].pc as usize].line,
            gpu: block.gpu,
            block: block.index,
            thread: warp.number * 32 + lane as u32,
        }
    }

    /// Adds one store to the thread's current bulk group.
    fn in_group(&mut self, id: usize, warp: &mut Warp, lane: usize) -> (usize, u32, u64) {
        let groups = &mut warp.bulk[lane];
        let current = groups.current;
        match groups.open.back_mut() {
            Some((number, reads, writes)) if *number == current => {
                *reads += 1;
                *writes += 1;
            }
            _ => groups.open.push_back((current, 1, 1)),
        }
        (id, lane as u32, current)
    }

    /// Values on their way to shared memory of the cluster, counted by an mbarrier there.
    fn store_async(
        &mut self,
        warp: &Warp,
        at: usize,
        lane: usize,
        store: &StoreAsync,
    ) -> Result<(), String> {
        let (block, offset) = self.shared_place(warp, &store.dst, lane)?;
        let bar = self.shared_place(warp, &store.bar, lane)?;
        let bytes = store.bytes * store.values.len() as u32;
        if !offset.is_multiple_of(bytes) {
            return Err(format!(
                "{bytes} bytes at {offset:#x}, which is no multiple of that"
            ));
        }
        let pieces: Vec<Piece> = store
            .values
            .iter()
            .zip(0u32..)
            .map(|(&slot, index)| Piece {
                from: Place::Fill(warp.lanes(slot)[lane]),
                to: Place::Shared(block, offset + index * store.bytes),
                bytes: store.bytes,
            })
            .collect();
        self.check_counted(lane, &pieces, bar, (false, store.reduce.is_some()));
        let issuer = self.issuer(warp, at, lane);
        let work = Work::Load {
            pieces,
            bar,
            bytes,
            reduce: store.reduce,
        };
        self.later(issuer, work);
        Ok(())
    }

    fn bulk(
        &mut self,
        id: usize,
        warp: &mut Warp,
        at: usize,
        lane: usize,
        bulk: &Bulk,
    ) -> Result<(), (FindingKind, String)> {
        let bounds = |message: String| (FindingKind::OutOfBounds, message);
        let (dst, src, bytes) = match bulk {
            Bulk::Load {
                dst, src, bytes, ..
            }
            | Bulk::Store {
                dst, src, bytes, ..
            }
            | Bulk::Copy {
                dst, src, bytes, ..
            } => (dst, src, warp.lanes(*bytes)[lane] as u32),
        };
        let (to, from) = (
            self.place(warp, dst, lane).map_err(bounds)?,
            self.place(warp, src, lane).map_err(bounds)?,
        );
        for (what, address) in [("destination", dst), ("source", src)] {
            let address = Self::address_of(warp, address, lane);
            if address % 16 != 0 {
                return Err((
                    FindingKind::Misaligned,
                    format!("the {what} {address:#x} of a bulk copy is no multiple of 16"),
                ));
            }
        }
        if bytes % 16 != 0 {
            return Err((
                FindingKind::Illegal,
                format!("a bulk copy of {bytes} bytes, which is no multiple of 16"),
            ));
        }
        let issuer = self.issuer(warp, at, lane);
        match bulk {
            Bulk::Load { bar, mask, .. } => {
                let mask = mask.map(|slot| warp.lanes(slot)[lane] & 0xffff);
                let Place::Shared(block, offset) = to else {
                    return Err(bounds("the destination is not in shared memory".into()));
                };
                let bar = self.shared_place(warp, bar, lane).map_err(bounds)?;
                let receivers = self
                    .receivers(warp, (block, offset), mask)
                    .map_err(|message| (FindingKind::Illegal, message))?;
                for (member, offset) in receivers {
                    let bar = if mask.is_some() { (member, bar.1) } else { bar };
                    let pieces = vec![Piece {
                        from,
                        to: Place::Shared(member, offset),
                        bytes,
                    }];
                    self.check_counted(lane, &pieces, bar, (true, false));
                    self.later(
                        issuer.clone(),
                        Work::Load {
                            pieces,
                            bar,
                            bytes,
                            reduce: None,
                        },
                    );
                }
            }
            Bulk::Copy { bar, reduce, .. } => {
                let bar = self.shared_place(warp, bar, lane).map_err(bounds)?;
                let pieces = vec![Piece { from, to, bytes }];
                self.check_counted(lane, &pieces, bar, (true, reduce.is_some()));
                self.later(
                    issuer,
                    Work::Load {
                        pieces,
                        bar,
                        bytes,
                        reduce: *reduce,
                    },
                );
            }
            Bulk::Store { reduce, .. } => {
                let group = self.in_group(id, warp, lane);
                self.issue_store(
                    warp,
                    issuer,
                    vec![Piece { from, to, bytes }],
                    group,
                    *reduce,
                );
            }
        }
        Ok(())
    }

    /// A store may complete at once, while its warp is out of its place: then it is counted here.
    fn issue_store(
        &mut self,
        warp: &mut Warp,
        issuer: Issuer,
        pieces: Vec<Piece>,
        group: (usize, u32, u64),
        reduce: Option<(AtomicOp, crate::code::Number, u32)>,
    ) {
        self.check_grouped(group.1, &pieces, group.2, reduce.is_some());
        if self.config().completion != crate::machine::Completion::Early {
            return self.later(
                issuer,
                Work::Read {
                    pieces,
                    group,
                    reduce,
                },
            );
        }
        for piece in &pieces {
            let done = self
                .read_place(piece.from, piece.bytes)
                .and_then(|bytes| self.write_place(piece.to, &bytes, reduce));
            if let Err(message) = done {
                let pc = warp
                    .fragments
                    .iter()
                    .map(|fragment| fragment.pc)
                    .min()
                    .unwrap_or(0);
                self.report(warp, pc, Some(group.1), FindingKind::OutOfBounds, message);
            }
        }
        if let Some((_, reads, writes)) = warp.bulk[group.1 as usize].open.back_mut() {
            *reads -= 1;
            *writes -= 1;
        }
        self.progress += 1;
    }

    fn tensor_copy(
        &mut self,
        id: usize,
        warp: &mut Warp,
        at: usize,
        lane: usize,
        copy: &TensorCopy,
    ) -> Result<(), (FindingKind, String)> {
        let illegal = |message: String| (FindingKind::Illegal, message);
        let bounds = |message: String| (FindingKind::OutOfBounds, message);
        let address = Self::address_of(warp, &copy.map, lane);
        let target = self.target(warp, copy.map.space, address).map_err(bounds)?;
        let raw: [u8; BYTES] = self
            .bytes_of(warp, lane, target, BYTES)
            .map_err(bounds)?
            .try_into()
            .map_err(|_| illegal("no tensor map".into()))?;
        let map = TensorMap::from_bytes(&raw).map_err(illegal)?;
        let aligned = match target {
            Target::Param(offset) => u64::from(offset) % MAP_ALIGNMENT == 0,
            _ => address.is_multiple_of(MAP_ALIGNMENT),
        };
        if !aligned {
            return Err((
                FindingKind::Misaligned,
                format!("the tensor map at {address:#x} is not aligned to {MAP_ALIGNMENT} bytes"),
            ));
        }
        if let Target::Place(Place::Global(address)) = target {
            self.check_access(
                lane,
                Place::Global(address),
                BYTES,
                Use::Read,
                Order::default(),
            );
            if !self.memory.is_constant(address) {
                self.checked(|check| check.use_map(lane as u32, address));
            }
        }
        let coordinates: Vec<i32> = copy
            .coordinates
            .iter()
            .map(|&slot| warp.lanes(slot)[lane] as i32)
            .collect();
        let issuer = self.issuer(warp, at, lane);
        let (kind, shared) = match &copy.kind {
            TensorKind::Load { dst, .. } => (Direction::Load, dst),
            TensorKind::Store { src, reduce: None } => (Direction::Store, src),
            TensorKind::Store { src, .. } => (Direction::Reduce, src),
        };
        let (block, offset) = self.shared_place(warp, shared, lane).map_err(bounds)?;
        map.check_shared(offset)
            .map_err(|message| (FindingKind::Misaligned, message))?;
        let (runs, count) = match copy.four {
            true => (map.four_rows(&coordinates, kind), 4),
            false => (map.boxes(&coordinates, kind).map(Iterator::collect), 1),
        };
        let runs: Vec<_> = runs.map_err(illegal)?;
        let mut fill = [0u8; 8];
        map.fill_into(&mut fill);
        let fill = Place::Fill(u64::from_le_bytes(fill));
        match &copy.kind {
            TensorKind::Load {
                bar, mask, pair, ..
            } => {
                let mask = mask.map(|slot| warp.lanes(slot)[lane] & 0xffff);
                let bar = self.shared_place(warp, bar, lane).map_err(bounds)?;
                for (member, offset) in self
                    .receivers(warp, (block, offset), mask)
                    .map_err(illegal)?
                {
                    let how = (mask.is_some(), *pair);
                    let bar = self.signalled(bar, member, how).map_err(illegal)?;
                    let pieces = runs
                        .iter()
                        .flat_map(|run| map.pieces(offset, *run))
                        .map(|piece| Piece {
                            from: piece.global.map_or(fill, Place::Global),
                            to: Place::Shared(member, piece.shared),
                            bytes: piece.len,
                        })
                        .collect();
                    let pieces: Vec<Piece> = pieces;
                    self.check_counted(lane, &pieces, bar, (true, false));
                    self.later(
                        issuer.clone(),
                        Work::Load {
                            pieces,
                            bar,
                            bytes: count * map.box_bytes(),
                            reduce: None,
                        },
                    );
                }
            }
            TensorKind::Store { reduce, .. } => {
                let reduce = match reduce {
                    None => None,
                    Some(op) => Some((
                        *op,
                        number_of(map.dtype).map_err(illegal)?,
                        map.dtype.bytes() as u32,
                    )),
                };
                let pieces = runs
                    .iter()
                    .flat_map(|run| map.pieces(offset, *run))
                    .filter_map(|piece| {
                        let to = Place::Global(piece.global?);
                        Some(Piece {
                            from: Place::Shared(block, piece.shared),
                            to,
                            bytes: piece.len,
                        })
                    })
                    .collect();
                let group = self.in_group(id, warp, lane);
                self.issue_store(warp, issuer, pieces, group, reduce);
            }
        }
        Ok(())
    }
}

/// How a tensor's elements are reduced.
fn number_of(dtype: Dtype) -> Result<crate::code::Number, String> {
    use crate::code::Number;
    Ok(match dtype {
        Dtype::F32 => Number::F32,
        Dtype::F16 => Number::F16,
        Dtype::Bf16 => Number::Bf16,
        Dtype::U32 | Dtype::U64 => Number::Unsigned,
        Dtype::S32 | Dtype::S64 => Number::Signed,
        other => return Err(format!("there is no reduction of {}", other.name())),
    })
}
