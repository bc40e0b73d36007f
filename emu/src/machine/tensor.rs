//! Tensor memory of an SM, and what the tensor cores of a block still have to do.

use std::collections::VecDeque;

use super::{Issuer, Machine};
use crate::tensor::tcgen05::copy::Copy;
use crate::tensor::tcgen05::descriptor::Layout;
use crate::tensor::tcgen05::memory::{Address, Area, COLUMNS, Cells, UNIT};
use crate::tensor::tcgen05::product::Planned;

/// Columns that a block has.
#[derive(Clone, Debug)]
pub(crate) struct Allocation {
    pub block: usize,
    pub first: u32,
    pub columns: u32,
    /// Whether the block has freed it, and its peer has not.
    pub left: bool,
    /// Who allocated it.
    pub issuer: Issuer,
}

/// Tensor memory of one SM.
#[derive(Clone, Debug, Default)]
pub(crate) struct TensorMemory {
    pub cells: Cells,
    pub allocations: Vec<Allocation>,
}

impl TensorMemory {
    /// Where columns are free, here and in a peer's memory: at the first place.
    pub fn free(&self, columns: u32, peer: Option<&TensorMemory>) -> Option<u32> {
        let taken = |first: u32| {
            let all = self.allocations.iter();
            let mut all = all.chain(peer.into_iter().flat_map(|peer| peer.allocations.iter()));
            all.any(|other| first < other.first + other.columns && other.first < first + columns)
        };
        (0..=COLUMNS.checked_sub(columns)?)
            .step_by(UNIT as usize)
            .find(|&first| !taken(first))
    }

    /// What of an area a block does not have.
    pub fn owns(&self, block: usize, area: &Area) -> Result<(), String> {
        for column in area.column..area.column + area.columns {
            let owned = self.allocations.iter().any(|own| {
                own.block == block
                    && !own.left
                    && (own.first..own.first + own.columns).contains(&column)
            });
            if !owned {
                return Err(format!(
                    "column {column} of tensor memory, which the block has not allocated or has freed"
                ));
            }
        }
        Ok(())
    }
}

/// An allocation that a block of a pair waits for, with its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joint {
    /// It has come to an allocation of so many columns.
    Waits(u32),
    /// Its peer has come too, and this is the first column.
    Granted(u32),
}

/// What the tensor cores do later, in the order in which a block issued it.
#[derive(Clone, Debug)]
pub(crate) enum TensorWork {
    Mma {
        plan: Box<Planned>,
        /// The blocks of the group.
        blocks: Vec<usize>,
    },
    Copy {
        op: Copy,
        layout: Layout,
        to: Address,
        blocks: Vec<usize>,
    },
    /// Arrivals at mbarriers, with the number that the checker knows it by.
    Commit {
        bars: Vec<(usize, u32)>,
        number: u64,
    },
}

/// A block's part in tensor memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockTensor {
    /// Where it gave up allocating.
    pub relinquished: Option<u32>,
    pub joint: Option<Joint>,
    /// Columns of the last allocation; 0 before the first.
    pub last: u32,
    pub pipe: VecDeque<(Issuer, TensorWork)>,
}

impl Machine {
    /// The GPU and SM of a block.
    pub(crate) fn sm_of(&self, block: usize) -> (usize, u32) {
        let block = self.block(block);
        (block.gpu, block.sm)
    }

    /// The tensor memory of a block's SM.
    pub(crate) fn tensor_memory(&mut self, block: usize) -> &mut TensorMemory {
        let at = self.sm_of(block);
        self.tensors.entry(at).or_default()
    }

    /// The peer of a block in its pair (9.7.16.5.2).
    pub(crate) fn peer_of(&self, block: usize) -> Option<usize> {
        let own = self.block(block);
        own.cluster.get((own.rank ^ 1) as usize).copied()
    }

    /// The blocks that an instruction of a group works on, the even one first.
    pub(crate) fn group_of(&self, block: usize, group: u32) -> Result<Vec<usize>, String> {
        if group == 1 {
            return Ok(vec![block]);
        }
        let peer = self.peer_of(block).ok_or_else(|| {
            format!(
                ".cta_group::2, and block {} of a cluster of {} has no peer",
                self.block(block).rank,
                self.block(block).cluster.len()
            )
        })?;
        if self.block(peer).live == 0 {
            return Err(".cta_group::2, and the peer block has ended".into());
        }
        Ok(match self.block(block).rank % 2 {
            0 => vec![block, peer],
            _ => vec![peer, block],
        })
    }

    /// Whether columns can be had now: for a pair, only once its other block has come.
    pub(crate) fn can_allocate(&self, block: usize, columns: u32, group: u32) -> bool {
        let none = TensorMemory::default;
        let memory = |block: usize| self.tensors.get(&self.sm_of(block));
        if group == 1 {
            return memory(block).is_none_or(|memory| memory.free(columns, None).is_some());
        }
        if let Some(Joint::Granted(_)) = self.block(block).tensor.joint {
            return true;
        }
        let Some(peer) = self.peer_of(block) else {
            return true;
        };
        if self.block(peer).tensor.joint != Some(Joint::Waits(columns)) {
            return false;
        }
        match (memory(block), memory(peer)) {
            (Some(own), peer) => own.free(columns, peer).is_some(),
            (None, Some(peer)) => peer.free(columns, None).is_some(),
            (None, None) => none().free(columns, None).is_some(),
        }
    }

    /// Blocks of an SM look again at what they wait for: columns may be free.
    pub(crate) fn wake_sm(&mut self, at: (usize, u32)) {
        for block in 0..self.blocks.len() {
            if self.blocks[block]
                .as_ref()
                .is_some_and(|block| (block.gpu, block.sm) == at)
            {
                self.wake_cluster_of(block);
            }
        }
    }
}
