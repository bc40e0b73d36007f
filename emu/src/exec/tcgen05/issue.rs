//! `tcgen05.mma`, `tcgen05.cp` and `tcgen05.commit`: into the pipe.

use super::{Fault, illegal, outside};
use crate::check::{Role, Use};
use crate::code::{Address as Operand, MmaCall, Tcgen05};
use crate::machine::{Machine, TensorWork, Warp, Work};
use crate::ptx::ast::Space;
use crate::report::FindingKind;
use crate::tensor::tcgen05::memory::Address;
use crate::tensor::tcgen05::product::{OperandA, Operands};

impl Machine {
    pub(super) fn tensor_issue(
        &mut self,
        warp: &mut Warp,
        at: usize,
        op: &Tcgen05,
        lane: usize,
    ) -> Result<(), Fault> {
        let pc = warp.fragments[at].pc;
        let work = match op {
            Tcgen05::Mma(call) => self.issue_product(warp, call, lane)?,
            Tcgen05::Copy {
                op,
                group,
                dst,
                descriptor,
            } => {
                let to = Address::of(Self::address_of(warp, dst, lane) as u32);
                let descriptor = warp.lanes(*descriptor)[lane];
                let layout = op.layout(descriptor).map_err(illegal)?;
                let area = op.area(to).map_err(illegal)?;
                let blocks = self.group_of(warp.block, *group).map_err(illegal)?;
                let mut chunks: Vec<u32> = op.chunks(layout).map(|chunk| chunk.2).collect();
                let ticket = self.ticket(lane);
                for &block in &blocks {
                    self.owned(block, &[area], "copies to")?;
                    let sm = self.sm_of(block);
                    self.checked(|check| {
                        check.tensor_reads(lane as u32, ticket, block, &mut chunks);
                        let how = (Use::Write, Role::Copy);
                        check.tensor_touch(lane as u32, ticket, sm, &[area], how);
                    });
                }
                TensorWork::Copy {
                    op: *op,
                    layout,
                    to,
                    blocks,
                }
            }
            Tcgen05::Commit { group, bar, mask } => {
                self.group_of(warp.block, *group).map_err(illegal)?;
                let mask = mask.map(|slot| warp.lanes(slot)[lane] & 0xffff);
                let address = Self::address_of(warp, bar, lane);
                let mut bar = *bar;
                if bar.space == Space::Generic && address <= u64::from(u32::MAX) {
                    // It works all the same: what is tracked is in shared memory anyway.
                    let message = format!(
                        "the mbarrier's address {address:#x} is one of shared memory, and without a \
                         state space it must be generic"
                    );
                    self.report(warp, pc, Some(lane as u32), FindingKind::Illegal, message);
                    bar.space = Space::SharedCluster;
                }
                let place = self.shared_place(warp, &bar, lane).map_err(outside)?;
                let bars = self.receivers(warp, place, mask).map_err(illegal)?;
                for &(block, offset) in &bars {
                    if !self.block(block).mbarriers.contains_key(&offset) {
                        let message = format!("the mbarrier at {offset:#x} is not initialised");
                        return Err((FindingKind::Mbarrier, message));
                    }
                }
                self.commits += 1;
                let number = self.commits;
                self.checked(|check| check.tensor_commit(lane as u32, number, &bars));
                TensorWork::Commit { bars, number }
            }
            _ => return Ok(()),
        };
        let issuer = self.issuer(warp, at, lane);
        let pipe = &mut self.block_mut(warp.block).tensor.pipe;
        pipe.push_back((issuer.clone(), work));
        self.later(issuer, Work::Tensor(warp.block));
        Ok(())
    }

    /// The checker's clock of what a lane issues.
    fn ticket(&mut self, lane: usize) -> (u32, u32) {
        let mut ticket = (0, 0);
        self.checked(|check| ticket = check.tensor_issue(lane as u32));
        ticket
    }

    fn issue_product(
        &mut self,
        warp: &Warp,
        call: &MmaCall,
        lane: usize,
    ) -> Result<TensorWork, Fault> {
        let value = |slot: u32| warp.lanes(slot)[lane];
        let address = |operand: &Operand| Address::of(Self::address_of(warp, operand, lane) as u32);
        let mut disabled = [[0; 4]; 2];
        for (at, &slot) in call.disabled.iter().enumerate() {
            disabled[at / 4][at % 4] = value(slot) as u32;
        }
        let operands = Operands {
            d: address(&call.d),
            a: match &call.a {
                Ok(at) => OperandA::Tensor(address(at)),
                Err(slot) => OperandA::Shared(value(*slot)),
            },
            b: value(call.b),
            instruction: value(call.instruction) as u32,
            scales: call.scales.map(|(a, b)| (address(&a), address(&b))),
            input_d: (value(call.input_d.0) != 0) != call.input_d.1,
            scale_d: call.scale_d,
            disabled,
        };
        let plan = call.op.plan(operands).map_err(illegal)?;
        let blocks = self.group_of(warp.block, call.op.group).map_err(illegal)?;
        let (sums, reads) = (plan.sums(), plan.reads());
        for &block in &blocks {
            self.owned(block, &sums, "accumulates in")?;
            self.owned(block, &reads, "reads")?;
        }
        let ticket = self.ticket(lane);
        if self.check.is_some() {
            let mut chunks = plan.chunks();
            let how = if operands.input_d {
                Use::Change
            } else {
                Use::Write
            };
            for &block in &blocks {
                let sm = self.sm_of(block);
                self.checked(|check| {
                    let lane = lane as u32;
                    check.tensor_reads(lane, ticket, block, &mut chunks);
                    check.tensor_touch(lane, ticket, sm, &reads, (Use::Read, Role::Operand));
                    let role = Role::Sum(plan.form());
                    check.tensor_touch(lane, ticket, sm, &sums, (how, role));
                });
            }
        }
        Ok(TensorWork::Mma {
            plan: Box::new(plan),
            blocks,
        })
    }
}
