//! Tensor maps in device memory: the unit that copies keeps its own view of them, which only
//! `fence.proxy.tensormap` brings up to date (PTX ISA, "Proxies").
//!
//! A map in device memory, whoever wrote it, is used after an acquire of it in the same block. Maps
//! among a kernel's parameters and in constant memory need none.

use super::Check;
use super::clock::Agent;
use super::shadow::Id;
use crate::report::FindingKind;
use crate::tensor::tma::BYTES;

/// Words of a map.
const WORDS: usize = BYTES / 4;

/// An acquire of a map.
#[derive(Clone, Debug)]
pub(super) struct Acquired {
    agent: Agent,
    clock: u32,
    lane: u32,
    /// Who had written its words then.
    writes: [Id; WORDS],
}

impl Acquired {
    /// Who wrote its words is forgotten.
    pub fn forget(&mut self) {
        self.writes = [0; WORDS];
    }
}

impl Check {
    fn map_writes(&mut self, address: u64) -> [Id; WORDS] {
        std::array::from_fn(|word| {
            let cell = self.global.cell(address / 4 + word as u64);
            cell.map_or(0, |cell| cell.last_write())
        })
    }

    /// A lane acquires the map at an address.
    pub(crate) fn acquire_map(&mut self, lane: u32, address: u64) {
        let writes = self.map_writes(address);
        let Some(record) = self.ordinary(lane, None) else {
            return;
        };
        if let Some(state) = self.state() {
            state.group_mut(lane).told = true;
        }
        let block = self.warps[self.now.warp as usize].domain.block;
        let known = self.maps.entry((block, address)).or_default();
        let acquired = Acquired {
            agent: record.agent,
            clock: record.clock,
            lane,
            writes,
        };
        // The last one of a lane covers those before it.
        let same = |other: &&mut Acquired| (other.agent, other.lane) == (record.agent, lane);
        match known.iter_mut().find(same) {
            Some(other) => *other = acquired,
            None => known.push(acquired),
        }
    }

    /// A lane copies through the map at an address.
    pub(crate) fn use_map(&mut self, lane: u32, address: u64) {
        let writes = self.map_writes(address);
        let block = self.warps[self.now.warp as usize].domain.block;
        let acquires = self
            .maps
            .get(&(block, address))
            .cloned()
            .unwrap_or_default();
        let Some(state) = self.state() else { return };
        let known = &state.group(lane).known.seen;
        let before =
            |acquired: &&Acquired| known.has(acquired.agent, acquired.clock, acquired.lane);
        let covered: Vec<_> = acquires.iter().filter(before).collect();
        if covered.iter().any(|acquired| acquired.writes == writes) {
            return;
        }
        let message = match covered.first() {
            None => format!(
                "uses the tensor map at {address:#x} in device memory, which no fence.proxy.tensormap::generic.acquire of its block made visible"
            ),
            Some(_) => format!(
                "uses the tensor map at {address:#x}, which was written after its fence.proxy.tensormap::generic.acquire"
            ),
        };
        self.report(FindingKind::Proxy, Some(lane), 0, message);
    }

    pub(super) fn end_maps(&mut self, block: usize) {
        self.maps.retain(|key, _| key.0 != block);
    }
}
