//! Which blocks of a cluster get what is copied, and where that is counted.

use crate::machine::{Machine, Warp};

impl Machine {
    /// The blocks that a multicast mask names, and the offsets there.
    pub(super) fn receivers(
        &self,
        warp: &Warp,
        (block, offset): (usize, u32),
        mask: Option<u64>,
    ) -> Result<Vec<(usize, u32)>, String> {
        let Some(mask) = mask else {
            return Ok(vec![(block, offset)]);
        };
        let members = &self.block(warp.block).cluster;
        if mask >> members.len() != 0 || mask == 0 {
            return Err(format!(
                "the multicast mask {mask:#x} in a cluster of {}",
                members.len()
            ));
        }
        Ok(members
            .iter()
            .enumerate()
            .filter(|(rank, _)| mask >> rank & 1 != 0)
            .map(|(_, &member)| (member, offset))
            .collect())
    }

    /// The mbarrier that counts what a tensor load brings to a block. Without a multicast, and
    /// without `.cta_group::2`, it is in the same block; with `.cta_group::2` in the block of that
    /// pair that has the given mbarrier's rank in its own (PTX ISA, "cp.async.bulk.tensor").
    pub(super) fn signalled(
        &self,
        (bar, offset): (usize, u32),
        to: usize,
        (multicast, pair): (bool, bool),
    ) -> Result<(usize, u32), String> {
        if pair {
            let odd = self.block(bar).rank % 2;
            let cluster = &self.block(to).cluster;
            let rank = self.block(to).rank & !1 | odd;
            let member = cluster
                .get(rank as usize)
                .copied()
                .filter(|_| multicast || self.block(bar).rank / 2 == rank / 2);
            return member.map(|member| (member, offset)).ok_or_else(|| {
                format!(
                    "the mbarrier is in block {} of the cluster, which is no peer of the destination's",
                    self.block(bar).rank
                )
            });
        }
        if multicast || bar == to {
            return Ok((to, offset));
        }
        Err(format!(
            "the mbarrier is in block {} of the cluster and the destination in block {}: without \
             .cta_group::2 they are in one",
            self.block(bar).rank,
            self.block(to).rank
        ))
    }
}
