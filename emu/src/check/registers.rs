//! Registers: which ones an instruction touches, and which ones products in flight hold.

use crate::code::{Address, Bulk, Entry, Instruction, MbarrierOp, Op, Slot, Tcgen05, TensorKind};
use crate::tensor::wmma::Wmma;

/// What the checker does at an instruction.
#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    /// Registers of products that it touches, and whether it writes them.
    pub touches: Vec<(Slot, bool)>,
    /// Whether it only copies registers.
    pub copies: bool,
    /// Whether it needs the groups of its threads.
    pub memory: bool,
    /// Whether it releases, for the threads alone for which its predicate holds.
    pub arrival: bool,
    /// Whether what the threads that meet at it did before is ordered for all of them.
    pub barrier: bool,
}

/// The checker's view of a kernel.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub steps: Vec<Step>,
    pub slots: u32,
    /// Bytes of a thread's local memory.
    pub local: usize,
    /// Whether it has products.
    pub products: bool,
}

impl Plan {
    pub fn new(entry: &Entry) -> Plan {
        let mut held = vec![false; entry.slots as usize];
        let mut products = false;
        for instruction in &entry.code {
            if let Op::Tcgen05(op) = &instruction.op
                && let Tcgen05::Load { dst, reduction, .. } = &**op
            {
                products = true;
                let result = reduction.as_ref().map(|(_, slot)| slot);
                dst.iter()
                    .chain(result)
                    .for_each(|&slot| held[slot as usize] = true);
            }
            if let Op::Wgmma(call) = &instruction.op {
                products = true;
                let a = if call.a_registers { &call.a[..] } else { &[] };
                for &slot in call.d.iter().chain(a) {
                    held[slot as usize] = true;
                }
            }
        }
        let steps = entry
            .code
            .iter()
            .map(|instruction| {
                let mut step = Step {
                    memory: is_memory(&instruction.op),
                    arrival: is_arrival(&instruction.op),
                    barrier: is_barrier(&instruction.op),
                    copies: matches!(&instruction.op, Op::Scalar(scalar) if scalar.op.is_copy()),
                    ..Step::default()
                };
                if products && !matches!(instruction.op, Op::Wgmma(_)) {
                    each_slot(instruction, &mut |slot, write| {
                        if held[slot as usize] {
                            step.touches.push((slot, write));
                        }
                    });
                }
                step
            })
            .collect();
        Plan {
            steps,
            slots: entry.slots,
            local: entry.local_bytes as usize,
            products,
        }
    }
}

/// What only the threads do for which the predicate holds.
fn is_arrival(op: &Op) -> bool {
    match op {
        Op::Mbarrier(bar) => matches!(bar.op, MbarrierOp::Arrive { .. }),
        Op::Tcgen05(op) => !op.is_collective(),
        _ => false,
    }
}

fn is_memory(op: &Op) -> bool {
    is_collective(op)
        || matches!(
            op,
            Op::Load(_)
                | Op::Store(_)
                | Op::Atomic(_)
                | Op::BlockBarrier { .. }
                | Op::ClusterBarrier { .. }
                | Op::Fence(_)
                | Op::MapFence { .. }
                | Op::MapReplace { .. }
                | Op::Mbarrier(_)
                | Op::Bulk(_)
                | Op::Tensor(_)
                | Op::BulkWait { .. }
                | Op::StoreAsync(_)
                | Op::CopyAsync { .. }
                | Op::CopyCommit
                | Op::CopyWait { .. }
                | Op::CopyArrive { .. }
                | Op::TryCancel { .. }
                | Op::Tcgen05(_)
        )
}

/// Other instructions that a warp executes together order none of its accesses: PTX gives such a
/// meaning to barriers only.
fn is_barrier(op: &Op) -> bool {
    matches!(
        op,
        Op::WarpBarrier { .. }
            | Op::BlockBarrier { aligned: true, .. }
            | Op::ClusterBarrier { aligned: true, .. }
    )
}

fn is_collective(op: &Op) -> bool {
    if let Op::Tcgen05(op) = op {
        return op.is_collective();
    }
    matches!(
        op,
        Op::WarpBarrier { .. }
            | Op::BlockBarrier { aligned: true, .. }
            | Op::ClusterBarrier { aligned: true, .. }
            | Op::Shuffle(_)
            | Op::Vote { .. }
            | Op::Match { .. }
            | Op::Reduce { .. }
            | Op::Elect { .. }
            | Op::SetMaxRegisters { .. }
            | Op::MapCopy { .. }
            | Op::WgmmaFence
            | Op::WgmmaCommit
            | Op::WgmmaWait { .. }
            | Op::Wgmma(_)
            | Op::Mma { .. }
            | Op::WmmaMove { .. }
            | Op::WmmaProduct { .. }
            | Op::LoadMatrix { .. }
            | Op::StoreMatrix { .. }
            | Op::MoveMatrix { .. }
    )
}

/// Calls (slot, whether it is written) for each register of an instruction.
pub(super) fn each_slot(instruction: &Instruction, visit: &mut dyn FnMut(Slot, bool)) {
    if let Some((slot, _)) = instruction.guard {
        visit(slot, false);
    }
    let mut reads: Vec<Slot> = Vec::new();
    let mut writes: Vec<Slot> = Vec::new();
    let address = |address: &Address| address.base;
    match &instruction.op {
        Op::Scalar(scalar) => {
            reads.extend(&scalar.src);
            writes.extend(scalar.dst.iter().flatten());
        }
        Op::Pack { dst, parts, .. } => {
            reads.extend(parts);
            writes.push(*dst);
        }
        Op::Moves(moves) => {
            reads.extend(moves.iter().map(|(_, src)| src));
            writes.extend(moves.iter().map(|(dst, _)| dst));
        }
        Op::StoreAsync(store) => {
            reads.extend([address(&store.dst), address(&store.bar)]);
            reads.extend(&store.values);
        }
        Op::Unpack { parts, src, .. } => {
            reads.push(*src);
            writes.extend(parts.iter().flatten());
        }
        Op::Load(access) => {
            reads.push(address(&access.address));
            writes.extend(access.values.iter().flatten());
        }
        Op::Store(access) => {
            reads.push(address(&access.address));
            reads.extend(access.values.iter().flatten());
        }
        Op::Atomic(atomic) => {
            reads.push(address(&atomic.address));
            reads.extend(atomic.a.iter().chain(&atomic.b));
            reads.extend(atomic.b.filter(|_| atomic.halves).map(|slot| slot + 1));
            writes.extend(atomic.dst.iter().flatten());
        }
        Op::BranchIndexed { index, .. } => reads.push(*index),
        Op::BlockBarrier {
            id,
            threads,
            reduce,
            ..
        } => {
            reads.push(*id);
            reads.extend(threads);
            if let Some((_, dst, pred, _)) = reduce {
                reads.push(*pred);
                writes.push(*dst);
            }
        }
        Op::WarpBarrier { mask } => reads.push(*mask),
        Op::Shuffle(shuffle) => {
            reads.extend([shuffle.src, shuffle.b, shuffle.c, shuffle.mask]);
            writes.push(shuffle.dst);
            writes.extend(shuffle.pred);
        }
        Op::Vote { dst, src, mask, .. } | Op::Reduce { dst, src, mask, .. } => {
            reads.extend([*src, *mask]);
            writes.push(*dst);
        }
        Op::Match {
            dst,
            pred,
            src,
            mask,
            ..
        } => {
            reads.extend([*src, *mask]);
            writes.push(*dst);
            writes.extend(pred);
        }
        Op::ActiveMask { dst } | Op::Clock { dst, .. } => writes.push(*dst),
        Op::Elect { dst, pred, mask } => {
            reads.push(*mask);
            writes.push(*pred);
            writes.extend(dst);
        }
        Op::Mbarrier(call) => {
            reads.push(address(&call.address));
            match call.op {
                MbarrierOp::Init { count } => reads.push(count),
                MbarrierOp::Arrive {
                    state,
                    count,
                    expect,
                    ..
                } => {
                    reads.extend(count.iter().chain(&expect));
                    writes.extend(state);
                }
                MbarrierOp::ExpectTx { bytes } | MbarrierOp::CompleteTx { bytes } => {
                    reads.push(bytes);
                }
                MbarrierOp::Wait { done, state, .. } => {
                    reads.push(state);
                    writes.push(done);
                }
                MbarrierOp::PendingCount { dst, state } => {
                    reads.push(state);
                    writes.push(dst);
                }
                MbarrierOp::Invalidate => {}
            }
        }
        Op::Bulk(bulk) => match &**bulk {
            Bulk::Load {
                dst,
                src,
                bytes,
                bar,
                mask,
            } => {
                reads.extend([address(dst), address(src), *bytes, address(bar)]);
                reads.extend(mask);
            }
            Bulk::Store {
                dst, src, bytes, ..
            } => reads.extend([address(dst), address(src), *bytes]),
            Bulk::Copy {
                dst,
                src,
                bytes,
                bar,
                ..
            } => reads.extend([address(dst), address(src), *bytes, address(bar)]),
        },
        Op::Tensor(copy) => {
            reads.push(address(&copy.map));
            reads.extend(&copy.coordinates);
            match &copy.kind {
                TensorKind::Load { dst, bar, mask, .. } => {
                    reads.extend([address(dst), address(bar)]);
                    reads.extend(mask);
                }
                TensorKind::Store { src, .. } => reads.push(address(src)),
            }
        }
        Op::CopyAsync { dst, src, from, .. } => {
            reads.extend([address(dst), address(src)]);
            reads.extend(from);
        }
        Op::MapFence { map, .. } => reads.push(address(map)),
        Op::MapReplace { map, value, .. } => reads.extend([address(map), *value]),
        Op::MapCopy { dst, src, .. } => reads.extend([address(dst), address(src)]),
        Op::CopyArrive { bar, .. } => reads.push(address(bar)),
        Op::Wgmma(call) => {
            reads.extend(call.a.iter().chain(&call.d));
            reads.extend([call.b, call.scale_d]);
            writes.extend(&call.d);
        }
        Op::Mma { d, a, b, c, .. } => {
            reads.extend(a.iter().chain(b).chain(c));
            writes.extend(d);
        }
        Op::WmmaMove {
            op,
            slots,
            address,
            stride,
        } => {
            reads.push(address.base);
            reads.extend(stride);
            match op {
                Wmma::Load { .. } => writes.extend(slots),
                _ => reads.extend(slots),
            }
        }
        Op::WmmaProduct { d, a, b, c, .. } => {
            reads.extend(a.iter().chain(b).chain(c));
            writes.extend(d);
        }
        Op::LoadMatrix { dst, address, .. } => {
            reads.push(address.base);
            writes.extend(dst);
        }
        Op::StoreMatrix { src, address, .. } => {
            reads.push(address.base);
            reads.extend(src);
        }
        Op::MoveMatrix { dst, src }
        | Op::Window { dst, src, .. }
        | Op::IsSpace { dst, src, .. }
        | Op::BlockRank { dst, src, .. } => {
            reads.push(*src);
            writes.push(*dst);
        }
        Op::MapAddress { dst, src, rank, .. } => {
            reads.extend([*src, *rank]);
            writes.push(*dst);
        }
        Op::Nanosleep(slot) => reads.push(*slot),
        Op::TryCancel { to, bar, .. } => reads.extend([address(to), address(bar)]),
        Op::QueryCancel { dst, response, .. } => {
            reads.extend(response);
            writes.extend(dst.iter().flatten());
        }
        Op::Tcgen05(op) => op.each_slot(&mut |slot, write| match write {
            true => writes.push(slot),
            false => reads.push(slot),
        }),
        Op::Branch(_)
        | Op::Exit
        | Op::Trap
        | Op::AssertFail(_)
        | Op::ClusterBarrier { .. }
        | Op::Fence(_)
        | Op::BulkCommit
        | Op::BulkWait { .. }
        | Op::CopyCommit
        | Op::CopyWait { .. }
        | Op::WgmmaFence
        | Op::WgmmaCommit
        | Op::WgmmaWait { .. }
        | Op::SetMaxRegisters { .. }
        | Op::Nothing => {}
    }
    for slot in reads {
        visit(slot, false);
    }
    for slot in writes {
        visit(slot, true);
    }
}

/// Registers of a warp's products.
#[derive(Debug, Default)]
pub(super) struct Flight {
    /// For each slot the product group (its clock) and line that accumulates in it last.
    sums: Vec<(u32, u32)>,
    /// For each slot the product group and line that reads it as A last.
    operands: Vec<(u32, u32)>,
    /// For each slot the number of fences when something else touched it last, plus 1.
    touched: Vec<u32>,
    /// For each slot the load from tensor memory (its clock) and line that writes it last.
    loads: Vec<(u32, u32)>,
    fences: u32,
    /// Whether no product was issued since the last fence.
    fenced: bool,
}

impl Flight {
    pub fn new(plan: &Plan) -> Flight {
        let slots = if plan.products {
            plan.slots as usize
        } else {
            0
        };
        Flight {
            sums: vec![(0, 0); slots],
            operands: vec![(0, 0); slots],
            touched: vec![0; slots],
            loads: vec![(0, 0); slots],
            fences: 0,
            fenced: false,
        }
    }

    pub fn fence(&mut self) {
        self.fences += 1;
        self.fenced = true;
    }

    /// Something other than a product touches a register.
    ///
    /// Compilers move copies of virtual registers to behind the fence, right before the product;
    /// ptxas gives both registers one place, or fences for itself. Those are not counted.
    ///
    /// `done`: product groups, and loads from tensor memory, that a wait has covered.
    pub fn touch(
        &mut self,
        slot: Slot,
        write: bool,
        copies: bool,
        (done, loaded): (u32, u32),
    ) -> Option<String> {
        let slot = slot as usize;
        if !(copies && self.fenced) {
            self.touched[slot] = self.fences + 1;
        }
        let verb = if write { "writes" } else { "reads" };
        // That a register depends on the load is honoured (9.7.16.6.4.5); that memory is, is not.
        let (load, line) = self.loads[slot];
        if load > loaded {
            return Some(format!(
                "{verb} a register that the tcgen05.ld of line {line} loads, and no tcgen05.wait::ld has covered it"
            ));
        }
        let (sum, line) = self.sums[slot];
        if sum > done {
            return Some(format!(
                "{verb} a register in which the wgmma of line {line} accumulates, and no wait has covered it"
            ));
        }
        let (operand, line) = self.operands[slot];
        (write && operand > done).then(|| {
            format!(
                "writes a register that the wgmma of line {line} reads as A, and no wait has covered it"
            )
        })
    }

    /// A load from tensor memory is issued.
    pub fn load(&mut self, slots: &[Slot], clock: u32, line: u32) {
        for &slot in slots {
            self.loads[slot as usize] = (clock, line);
        }
    }

    /// A product is issued.
    pub fn issue(
        &mut self,
        d: &[Slot],
        a: &[Slot],
        clock: u32,
        line: u32,
        done: u32,
    ) -> Option<String> {
        self.fenced = false;
        let fences = self.fences;
        let unfenced = |&&slot: &&Slot| self.touched[slot as usize] > fences;
        let mut found = None;
        if self.fences == 0 {
            found = Some("the first wgmma follows no wgmma.fence".to_string());
        } else if d.iter().chain(a).any(|slot| unfenced(&slot)) {
            found = Some(
                "its registers were used by other instructions, and no wgmma.fence followed".into(),
            );
        } else if let Some(&slot) = a.iter().find(|&&slot| self.sums[slot as usize].0 > done) {
            found = Some(format!(
                "reads A from a register in which the wgmma of line {} accumulates, and no wait has covered it",
                self.sums[slot as usize].1
            ));
        }
        for &slot in d {
            self.sums[slot as usize] = (clock, line);
        }
        for &slot in a {
            self.operands[slot as usize] = (clock, line);
        }
        found
    }
}
