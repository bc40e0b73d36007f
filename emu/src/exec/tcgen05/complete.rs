//! What comes out of the pipe.

use crate::machine::{Issuer, Machine, Place, TensorWork};
use crate::report::FindingKind;
use crate::tensor::tcgen05::copy::Copy;
use crate::tensor::tcgen05::descriptor::Layout;
use crate::tensor::tcgen05::memory::Address;
use crate::tensor::tcgen05::product::{Planned, Tile};

impl Machine {
    /// Executes the next of a block's pipe.
    pub(crate) fn complete_tensor(&mut self, block: usize) {
        let Some((issuer, work)) = self.blocks[block]
            .as_mut()
            .and_then(|block| block.tensor.pipe.pop_front())
        else {
            return;
        };
        self.progress += 1;
        match work {
            TensorWork::Mma { plan, blocks } => {
                if let Err(message) = self.execute_product(&plan, &blocks) {
                    self.find_issued(Some(&issuer), FindingKind::Illegal, message);
                }
            }
            TensorWork::Copy {
                op,
                layout,
                to,
                blocks,
            } => {
                for block in blocks {
                    if let Err(message) = self.execute_copy(op, layout, to, block) {
                        self.find_issued(Some(&issuer), FindingKind::OutOfBounds, message);
                    }
                }
            }
            TensorWork::Commit { bars, number } => {
                self.checked(|check| check.arrive_commit(number, &bars));
                for bar in bars {
                    self.commit_arrives(&issuer, bar);
                }
            }
        }
    }

    /// 16 bytes of a block's shared memory, and whether so many of them were written.
    fn chunk_of(
        &self,
        block: usize,
        address: u32,
        used: usize,
    ) -> Result<([u8; 16], bool), String> {
        let shared = self.blocks[block]
            .as_ref()
            .map(|block| block.shared.as_slice())
            .unwrap_or_default();
        let chunk = shared
            .get(address as usize..)
            .and_then(|rest| rest.first_chunk::<16>())
            .ok_or_else(|| {
                format!(
                    "the descriptor reaches shared address {address:#x}; the block has {:#x} bytes",
                    shared.len()
                )
            })?;
        Ok((
            *chunk,
            self.all_written(Place::Shared(block, address), used),
        ))
    }

    fn execute_product(&mut self, plan: &Planned, blocks: &[usize]) -> Result<(), String> {
        if blocks.iter().any(|&block| self.blocks[block].is_none()) {
            return Ok(());
        }
        let columns = blocks
            .iter()
            .map(|&block| plan.gather_b(&|address, used| self.chunk_of(block, address, used)))
            .collect::<Result<Vec<Tile>, _>>()?;
        for (rank, &block) in blocks.iter().enumerate() {
            let sm = self.sm_of(block);
            let mut memory = self.tensors.remove(&sm).unwrap_or_default();
            let done = plan
                .gather_a(
                    &|address, used| self.chunk_of(block, address, used),
                    &memory.cells,
                )
                .and_then(|rows| plan.accumulate(&mut memory.cells, rank, &rows, &columns));
            self.tensors.insert(sm, memory);
            done?;
        }
        Ok(())
    }

    fn execute_copy(
        &mut self,
        op: Copy,
        layout: Layout,
        to: Address,
        block: usize,
    ) -> Result<(), String> {
        if self.blocks[block].is_none() {
            return Ok(());
        }
        let sm = self.sm_of(block);
        let mut memory = self.tensors.remove(&sm).unwrap_or_default();
        let mut done = Ok(());
        for (row, chunk, address) in op.chunks(layout) {
            let (bytes, written) = match self.chunk_of(block, address, op.used()) {
                Ok(found) => found,
                Err(message) => {
                    done = Err(message);
                    break;
                }
            };
            for (at, word) in (0..).zip(op.words(&bytes)) {
                for lane in op.lanes(row) {
                    let column = to.column + 4 * chunk + at;
                    memory.cells.set(lane, column, word, written);
                }
            }
        }
        self.tensors.insert(sm, memory);
        done
    }

    fn commit_arrives(&mut self, issuer: &Issuer, (block, offset): (usize, u32)) {
        let bar = self.blocks[block]
            .as_mut()
            .and_then(|block| block.mbarriers.get_mut(&offset));
        let Some(bar) = bar else {
            let message =
                format!("a commit arrives at an mbarrier at {offset:#x} that is not initialised");
            return self.find_issued(Some(issuer), FindingKind::Mbarrier, message);
        };
        let arrived = bar.arrive(1, false);
        let phase = bar.settle().then_some(bar.phase);
        if let Some(phase) = phase {
            self.check_settled_bar((block, offset), phase);
        }
        if let Err(message) = arrived {
            self.find_issued(Some(issuer), FindingKind::Mbarrier, message);
        }
        self.wake_cluster_of(block);
    }
}
