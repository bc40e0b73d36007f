//! Launches, their blocks on SMs, and what happens when they end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::{
    Block, BulkGroups, ClusterBarrier, Fragment, Grid, Launch, Machine, NamedBarrier, RegisterPool,
    Wait, Warp,
};
use crate::code::{LaneMask, SHARED_START, Special};

/// What a launch asks for that can't be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchError {
    /// The kernel.
    pub entry: String,
    /// What is wrong.
    pub reason: String,
}

impl std::fmt::Display for LaunchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.entry, self.reason)
    }
}

impl std::error::Error for LaunchError {}

/// What an SM holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    threads: u32,
    shared: u32,
    blocks: u32,
}

/// The most local memory of a thread, as on sm_90.
const MOST_LOCAL: u32 = 512 << 10;

fn volume(of: [u32; 3]) -> u64 {
    of.iter()
        .fold(1, |product: u64, &n| product.saturating_mul(n.into()))
}

fn place(number: u64, extent: [u32; 3]) -> [u32; 3] {
    let [x, y, _] = extent.map(u64::from);
    [
        (number % x) as u32,
        (number / x % y) as u32,
        (number / (x * y)) as u32,
    ]
}

impl Machine {
    /// Checks a launch and puts it behind those before it on its GPU. It runs with [`Machine::run`].
    /// Gives its number.
    pub fn launch(&mut self, launch: Launch) -> Result<u64, LaunchError> {
        let number = self.reserve_launch();
        self.launch_reserved(launch, number).map(|()| number)
    }

    /// A number for a launch that is enqueued now and given to the machine later, when what is
    /// before it on its stream is over: what ended before this call is ordered before it.
    pub fn reserve_launch(&mut self) -> u64 {
        self.launched += 1;
        self.launched
    }

    /// As [`Machine::launch`], with a number of [`Machine::reserve_launch`], used once.
    pub fn launch_reserved(&mut self, launch: Launch, number: u64) -> Result<(), LaunchError> {
        self.check_launch(&launch)?;
        let blocks = volume(launch.grid);
        let per_cluster = volume(launch.cluster);
        let gpu = launch.gpu;
        let grid = Grid {
            next: 0,
            clusters: blocks / per_cluster,
            left: blocks,
            number,
            launch,
        };
        let slot = self
            .grids
            .iter()
            .position(Option::is_none)
            .unwrap_or_else(|| {
                self.grids.push(None);
                self.grids.len() - 1
            });
        self.grids[slot] = Some(grid);
        self.waiting[gpu].push_back(slot);
        Ok(())
    }

    /// What of a launch can't be; [`Machine::launch`] asks by itself.
    pub fn check_launch(&self, launch: &Launch) -> Result<(), LaunchError> {
        self.check(launch).map_err(|reason| LaunchError {
            entry: launch.entry.name.clone(),
            reason,
        })
    }

    /// Whether a launch has ended.
    pub fn is_done(&self, number: u64) -> bool {
        let runs = |grid: &Grid| grid.number == number && grid.left > 0;
        !self.grids.iter().flatten().any(runs)
    }

    fn check(&self, launch: &Launch) -> Result<(), String> {
        let entry = &launch.entry;
        let directives = &entry.directives;
        if launch.gpu >= self.waiting.len() {
            return Err(format!("there is no GPU {}", launch.gpu));
        }
        let threads = volume(launch.block);
        if threads == 0 || threads > 1024 {
            return Err(format!("{threads} threads in a block are not 1 to 1024"));
        }
        if let Some(required) = directives
            .required_threads
            .filter(|required| *required != launch.block)
        {
            return Err(format!(
                "a block of {:?} threads, but the kernel requires {required:?}",
                launch.block
            ));
        }
        if directives
            .max_threads
            .is_some_and(|max| threads > volume(max))
        {
            return Err(format!(
                "{threads} threads in a block are over the kernel's `.maxntid`"
            ));
        }
        if let Some(required) = directives
            .cluster
            .filter(|required| *required != launch.cluster)
        {
            return Err(format!(
                "clusters of {:?}, but the kernel requires {required:?}",
                launch.cluster
            ));
        }
        let per_cluster = volume(launch.cluster);
        if per_cluster == 0 || per_cluster > 16 {
            return Err(format!("{per_cluster} blocks in a cluster are not 1 to 16"));
        }
        for (axis, (grid, cluster)) in ["x", "y", "z"]
            .iter()
            .zip(launch.grid.iter().zip(launch.cluster))
        {
            if *grid == 0 || grid % cluster != 0 {
                return Err(format!(
                    "{grid} blocks along {axis} are no multiple of clusters of {cluster}"
                ));
            }
        }
        let shared = u64::from(entry.dynamic_shared) - u64::from(SHARED_START)
            + u64::from(launch.dynamic_shared);
        if shared > u64::from(self.config.shared_per_block) {
            return Err(format!(
                "{shared} bytes of shared memory are over {}",
                self.config.shared_per_block
            ));
        }
        if entry.local_bytes > MOST_LOCAL {
            return Err(format!(
                "{} bytes of local memory a thread are over {MOST_LOCAL}",
                entry.local_bytes
            ));
        }
        let open = self.config.sms.saturating_sub(self.config.held_sms).max(1);
        if entry.pairs && open < 2 {
            return Err("`.cta_group::2` takes two SMs, and one is open".into());
        }
        let room = u64::from(open) * self.blocks_in_an_sm(launch);
        if room < per_cluster {
            return Err(format!(
                "a cluster of {per_cluster} blocks runs side by side, but {open} SMs have room for {room}"
            ));
        }
        if launch.params.len() != entry.param_bytes as usize {
            return Err(format!(
                "{} bytes of parameters, but the kernel has {}",
                launch.params.len(),
                entry.param_bytes
            ));
        }
        Ok(())
    }

    /// How many blocks of a launch an empty SM has room for.
    fn blocks_in_an_sm(&self, launch: &Launch) -> u64 {
        let shared = u64::from(launch.entry.dynamic_shared) + u64::from(launch.dynamic_shared);
        let by_shared = u64::from(self.config.shared_per_sm) / shared.max(1);
        let by_threads = u64::from(self.config.threads_per_sm) / volume(launch.block).max(1);
        by_shared
            .min(by_threads)
            .min(self.config.blocks_per_sm.into())
    }

    /// Starts as many clusters as there is room for. Launches of a GPU run one after the other.
    pub(crate) fn start_blocks(&mut self) {
        for gpu in 0..self.waiting.len() {
            while let Some(&slot) = self.waiting[gpu].front() {
                match &self.grids[slot] {
                    Some(grid) if grid.left == 0 => {
                        self.grids[slot] = None;
                        self.waiting[gpu].pop_front();
                    }
                    Some(grid) if grid.next < grid.clusters => {
                        if !self.start_cluster(gpu, slot) {
                            break;
                        }
                    }
                    _ => break,
                }
            }
        }
    }

    fn start_cluster(&mut self, gpu: usize, slot: usize) -> bool {
        let Some(grid) = &self.grids[slot] else {
            return false;
        };
        let launch = grid.launch.clone();
        let count = volume(launch.cluster);
        let threads = volume(launch.block) as u32;
        let shared = launch.entry.dynamic_shared + launch.dynamic_shared;
        let fits = |usage: &Usage| {
            usage.threads + threads <= self.config.threads_per_sm
                && usage.shared + shared <= self.config.shared_per_sm
                && usage.blocks < self.config.blocks_per_sm
        };
        // Blocks of a cluster run side by side; which SMs they get is the seed's choice.
        let mut usage = self.usage[gpu].clone();
        let open = usage
            .len()
            .saturating_sub(self.config.held_sms as usize)
            .max(1);
        let first = self.random.below(open as u64) as usize;
        let mut sms = Vec::new();
        for _ in 0..count {
            // The two blocks of a pair have a tensor core each.
            let peer = (launch.entry.pairs && sms.len() % 2 == 1)
                .then(|| sms.last().copied())
                .flatten();
            let Some(sm) = (0..open)
                .map(|step| (first + step) % open)
                .filter(|&sm| fits(&usage[sm]) && peer != Some(sm as u32))
                .min_by_key(|&sm| usage[sm].blocks)
            else {
                return false;
            };
            usage[sm].threads += threads;
            usage[sm].shared += shared;
            usage[sm].blocks += 1;
            sms.push(sm as u32);
        }
        self.usage[gpu] = usage;
        self.progress += 1;
        let Some(grid) = &mut self.grids[slot] else {
            return false;
        };
        let number = if self.config.reverse {
            grid.clusters - 1 - grid.next
        } else {
            grid.next
        };
        grid.next += 1;
        let mut per_axis = [0; 3];
        for (to, (grid, cluster)) in per_axis
            .iter_mut()
            .zip(launch.grid.iter().zip(launch.cluster))
        {
            *to = grid / cluster;
        }
        let cluster_index = place(number, per_axis);
        let members: Vec<usize> = (0..count).map(|_| self.free_block()).collect();
        let members = Arc::new(members);
        self.clusters.insert(members[0], ClusterBarrier::default());
        for (rank, (&block, &sm)) in members.iter().zip(&sms).enumerate() {
            let inside = place(rank as u64, launch.cluster);
            let mut index = [0; 3];
            for axis in 0..3 {
                index[axis] = cluster_index[axis] * launch.cluster[axis] + inside[axis];
            }
            self.blocks[block] = Some(Box::new(Block {
                grid: slot,
                index,
                cluster: members.clone(),
                rank: rank as u32,
                sm,
                gpu,
                shared: vec![0; shared as usize],
                mbarriers: BTreeMap::new(),
                named: std::array::from_fn(|_| NamedBarrier::default()),
                pool: RegisterPool::of(threads.div_ceil(32)),
                tensor: super::BlockTensor::default(),
                refused: false,
                warps: Vec::new(),
                live: threads.div_ceil(32),
                threads,
            }));
            for warp in 0..threads.div_ceil(32) {
                self.start_warp(&launch, block, warp, cluster_index, inside);
            }
        }
        true
    }

    /// Cancels a cluster of a block's launch that has not started: the index of its first block.
    pub(crate) fn cancel_cluster(&mut self, block: usize) -> Option<[u32; 3]> {
        let slot = self.block(block).grid;
        let reverse = self.config.reverse;
        let grid = self.grids[slot].as_mut()?;
        if grid.next >= grid.clusters {
            return None;
        }
        let number = match reverse {
            true => grid.clusters - 1 - grid.next,
            false => grid.next,
        };
        grid.next += 1;
        let cluster = grid.launch.cluster;
        grid.left -= volume(cluster);
        let per_axis = std::array::from_fn(|axis| grid.launch.grid[axis] / cluster[axis]);
        let index = place(number, per_axis);
        self.progress += 1;
        Some(std::array::from_fn(|axis| index[axis] * cluster[axis]))
    }

    /// A free place for a block; it is taken when something is put there.
    fn free_block(&mut self) -> usize {
        self.blocks.push(None);
        self.blocks.len() - 1
    }

    fn start_warp(
        &mut self,
        launch: &Launch,
        block: usize,
        number: u32,
        cluster: [u32; 3],
        inside: [u32; 3],
    ) {
        let entry = launch.entry.clone();
        let threads = volume(launch.block) as u32;
        let lanes = (threads - 32 * number).min(32);
        let live = if lanes == 32 {
            u32::MAX
        } else {
            (1 << lanes) - 1
        };
        let mut registers = vec![[0u64; 32]; entry.slots as usize];
        for &(slot, value) in &entry.constants {
            registers[slot as usize] = [value; 32];
        }
        for &(slot, special) in &entry.specials {
            for lane in 0..32 {
                let value =
                    self.special(special, launch, block, number * 32 + lane, cluster, inside);
                registers[slot as usize][lane as usize] = value;
            }
        }
        let checked = self.check_start(launch, block, number, live);
        let warp = Warp {
            checked,
            block,
            number,
            live,
            registers,
            carry: 0,
            cluster_phase: 0,
            fragments: vec![Fragment {
                mask: live,
                pc: 0,
                wait: Wait::Ready,
            }],
            local: vec![0; 32 * entry.local_bytes as usize],
            bulk: vec![BulkGroups::default(); 32],
            copies: Vec::new(),
            copy_groups: VecDeque::new(),
            wgmma: VecDeque::new(),
            wgmma_open: Vec::new(),
            tensor_loads: Vec::new(),
            tensor_stores: Vec::new(),
            tensor_open: [false; 2],
            polls: (0, 0),
            polled: 0,
            looked: Vec::new(),
            reducing: 0,
            gathered: super::Gathered::default(),
            owned: entry.launch_registers.unwrap_or(0),
            resized: 0,
            entry,
        };
        let id = self
            .warps
            .iter()
            .position(Option::is_none)
            .unwrap_or_else(|| {
                self.warps.push(None);
                self.warps.len() - 1
            });
        self.warps[id] = Some(Box::new(warp));
        self.block_mut(block).warps.push(id);
        self.ready.push(id);
    }

    fn special(
        &self,
        special: Special,
        launch: &Launch,
        block: usize,
        thread: u32,
        cluster: [u32; 3],
        inside: [u32; 3],
    ) -> u64 {
        let block = self.block(block);
        let lane = thread % 32;
        let value = match special {
            Special::Tid(axis) => place(thread.into(), launch.block)[axis as usize],
            Special::Ntid(axis) => launch.block[axis as usize],
            Special::Ctaid(axis) => block.index[axis as usize],
            Special::Nctaid(axis) => launch.grid[axis as usize],
            Special::LaneId => lane,
            Special::WarpId => thread / 32,
            Special::NWarpId => volume(launch.block).div_ceil(32) as u32,
            Special::SmId => block.sm,
            Special::NSmId => self.config.sms,
            Special::GridId => self.grids[block.grid]
                .as_ref()
                .map_or(0, |grid| grid.number as u32),
            Special::ClusterId(axis) => cluster[axis as usize],
            Special::NClusterId(axis) => launch.grid[axis as usize] / launch.cluster[axis as usize],
            Special::ClusterCtaid(axis) => inside[axis as usize],
            Special::ClusterNctaid(axis) => launch.cluster[axis as usize],
            Special::ClusterCtarank => block.rank,
            Special::ClusterNctarank => block.cluster.len() as u32,
            Special::LaneMask(kind) => {
                let eq = 1u32 << lane;
                match kind {
                    LaneMask::Eq => eq,
                    LaneMask::Lt => eq - 1,
                    LaneMask::Le => eq | (eq - 1),
                    LaneMask::Gt => !(eq | (eq - 1)),
                    LaneMask::Ge => !(eq - 1),
                }
            }
            Special::DynamicSharedSize => launch.dynamic_shared,
            Special::TotalSharedSize => launch.entry.dynamic_shared + launch.dynamic_shared,
            Special::SharedStart => SHARED_START,
            Special::SharedAddress(offset) => block.rank << 24 | offset & 0x00ff_ffff,
            Special::IsExplicitCluster => u32::from(volume(launch.cluster) > 1),
            Special::Zero | Special::Reserved => 0,
            Special::WarpSize => 32,
        };
        value.into()
    }

    /// A warp has ended; with the last one of a cluster, its blocks end.
    pub(crate) fn end_warp(&mut self, block: usize) {
        self.progress += 1;
        let ended = self.block_mut(block);
        ended.live -= 1;
        if ended.live > 0 {
            // Threads that have ended no longer count at barriers without a count.
            self.settle_named(block);
            return;
        }
        let members = ended.cluster.clone();
        self.settle_cluster(&members);
        // Shared memory of a block lives until its cluster has ended, for the others' sake.
        if members.iter().any(|&member| self.block(member).live > 0) {
            return;
        }
        for &member in members.iter() {
            self.end_tensor(member);
            let Some(block) = self.blocks[member].take() else {
                continue;
            };
            self.check_end_block(member);
            let usage = &mut self.usage[block.gpu][block.sm as usize];
            usage.threads -= block.threads;
            usage.shared -= block.shared.len() as u32;
            usage.blocks -= 1;
            if let Some(grid) = &mut self.grids[block.grid] {
                grid.left -= 1;
                if grid.left == 0 {
                    let number = grid.number;
                    self.launch_ended = true;
                    self.check_end_launch(number);
                }
            }
        }
        self.clusters.remove(&members[0]);
    }
}
