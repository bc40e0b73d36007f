//! The machine: GPUs, their blocks and warps, memory, and time.
//!
//! A warp's registers are 32 lanes wide; its threads run together while they agree. Each
//! fragment of a warp is a set of threads at one instruction; fragments split at branches,
//! meet again where their instruction numbers do, and progress independently.
//!
//! One seed fixes one interleaving: which warp runs next, for how long, and when asynchronous
//! work completes.

mod barrier;
mod blocks;

mod events;
mod pool;
mod random;
mod schedule;
mod tensor;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub use barrier::{MOST_ARRIVALS, Mbarrier, NamedBarrier};
pub use blocks::LaunchError;
pub use events::{Event, Issuer, Piece, Place, Work};
pub(crate) use pool::{Apart, RegisterPool};
pub use random::Random;
pub use schedule::Outcome;
pub(crate) use tensor::{Allocation, BlockTensor, Joint, TensorMemory, TensorWork};

use crate::check::Check;
use crate::code::{Entry, Slot};
use crate::memory::Memory;
use crate::report::{Finding, FindingKind};

/// When asynchronous work completes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completion {
    /// At times that the seed chooses.
    #[default]
    Random,
    /// As soon as it is issued.
    Early,
    /// Only when nothing else can run.
    Late,
}

/// What a machine is like.
#[derive(Clone, Debug)]
pub struct Config {
    /// GPUs.
    pub gpus: usize,
    /// Streaming multiprocessors of each.
    pub sms: u32,
    /// Shared memory of one SM, in bytes.
    pub shared_per_sm: u32,
    /// The most shared memory of one block, in bytes, beyond the system's KiB.
    pub shared_per_block: u32,
    /// Threads that one SM holds.
    pub threads_per_sm: u32,
    /// Blocks that one SM holds.
    pub blocks_per_sm: u32,
    /// Fixes the interleaving.
    pub seed: u64,
    /// When asynchronous work completes.
    pub completion: Completion,
    /// Starts blocks in reverse order.
    pub reverse: bool,
    /// Warps of this number in their block run only when nothing else can.
    pub starved_warp: Option<u32>,
    /// SMs that hold nothing, as if other work had them.
    pub held_sms: u32,
    /// Whether races, proxies, uninitialised values and products in flight are checked.
    pub check: bool,
    /// The most instructions of one run, all warps together; past it the run ends with a finding.
    pub instruction_limit: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            gpus: 1,
            sms: 4,
            shared_per_sm: 228 << 10,
            shared_per_block: 227 << 10,
            threads_per_sm: 2048,
            blocks_per_sm: 32,
            seed: 0,
            completion: Completion::Random,
            reverse: false,
            starved_warp: None,
            held_sms: 0,
            check: true,
            instruction_limit: u64::MAX,
        }
    }
}

/// A kernel to run.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel.
    pub entry: Arc<Entry>,
    /// On which GPU.
    pub gpu: usize,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Blocks of a cluster.
    pub cluster: [u32; 3],
    /// Dynamic shared memory, in bytes.
    pub dynamic_shared: u32,
    /// The parameters' bytes.
    pub params: Vec<u8>,
}

/// A launch that has begun.
#[derive(Debug)]
pub(crate) struct Grid {
    pub launch: Launch,
    /// The next cluster to start.
    pub next: u64,
    pub clusters: u64,
    /// Blocks that have not ended.
    pub left: u64,
    pub number: u64,
}

/// One block.
#[derive(Debug)]
pub(crate) struct Block {
    pub grid: usize,
    pub index: [u32; 3],
    /// Blocks of its cluster, by rank.
    pub cluster: Arc<Vec<usize>>,
    pub rank: u32,
    pub sm: u32,
    pub gpu: usize,
    /// From address 0; the first KiB is the system's.
    pub shared: Vec<u8>,
    pub mbarriers: BTreeMap<u32, Mbarrier>,
    pub named: [NamedBarrier; 16],
    pub pool: RegisterPool,
    pub tensor: BlockTensor,
    /// Whether it has seen that a request for another cluster was refused.
    pub refused: bool,
    pub warps: Vec<usize>,
    /// Warps that have not ended.
    pub live: u32,
    pub threads: u32,
}

/// A cluster's barrier.
#[derive(Debug, Default)]
pub(crate) struct ClusterBarrier {
    pub phase: u64,
    pub arrived: u32,
}

/// Why a fragment does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It can run.
    Ready,
    /// For the rest of its warp, at a collective instruction.
    Lanes,
    /// At a named barrier of the block, in this phase.
    Barrier(u32, u64),
    /// At the cluster's barrier.
    Cluster(u64),
    /// For a phase of an mbarrier: of which block, where, which phase.
    Mbarrier(usize, u32, u64),
    /// For bulk groups of its threads.
    Bulk {
        /// How many may be unfinished.
        pending: u32,
        /// Only their reads.
        read: bool,
    },
    /// For wgmma groups of its warpgroup.
    Wgmma(u32),
    /// Until a time.
    Sleep(u64),
    /// For so many registers of the block's pool.
    Registers(u32),
    /// For so many columns of tensor memory, of one block or of a pair.
    Columns(u32, u32),
}

/// Threads of a warp that are at the same instruction.
#[derive(Clone, Debug)]
pub(crate) struct Fragment {
    pub mask: u32,
    pub pc: u32,
    pub wait: Wait,
}

/// A thread's bulk groups: what of each is unfinished.
#[derive(Clone, Debug, Default)]
pub(crate) struct BulkGroups {
    /// Number of the group that is being filled.
    pub current: u64,
    /// Unfinished (group, reads left, writes left).
    pub open: VecDeque<(u64, u32, u32)>,
}

/// What a thread looked at, for reports of those who wait for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Looked {
    /// A phase of an mbarrier: of which block, where, which phase.
    Mbarrier(usize, u32, u64),
    /// Some bytes, and their value.
    Value(Place, u32, u64),
}

/// Arrivals of a warp whose threads come to a barrier on their own, one part after another: the
/// warp has arrived when the last of its threads has (PTX ISA, "barrier").
#[derive(Clone, Debug, Default)]
pub(crate) struct Gathered {
    /// For a named barrier: who has come, how many true predicates they brought, and how many
    /// threads the barrier waits for (`None` for all).
    pub named: BTreeMap<u32, (u32, u32, Option<u32>)>,
    /// Who has come to the cluster's barrier.
    pub cluster: u32,
}

/// 32 threads.
#[derive(Debug)]
pub(crate) struct Warp {
    pub block: usize,
    pub number: u32,
    /// Threads that exist and have not ended.
    pub live: u32,
    pub registers: Vec<[u64; 32]>,
    pub carry: u32,
    /// Phase of the cluster barrier that this warp arrived in.
    pub cluster_phase: u64,
    pub fragments: Vec<Fragment>,
    pub local: Vec<u8>,
    pub bulk: Vec<BulkGroups>,
    /// Copies of `cp.async` that are not committed, and committed groups.
    pub copies: Vec<crate::exec::SmallCopy>,
    pub copy_groups: VecDeque<Vec<crate::exec::SmallCopy>>,
    /// wgmma issued and not committed, and committed groups, by descriptor of the call.
    pub wgmma: VecDeque<Vec<crate::exec::IssuedWgmma>>,
    pub wgmma_open: Vec<crate::exec::IssuedWgmma>,
    /// Loads from tensor memory and stores there that happen at their wait.
    pub tensor_loads: Vec<crate::exec::IssuedLoad>,
    pub tensor_stores: Vec<crate::exec::IssuedStore>,
    /// Whether stores to tensor memory, and loads from it, were not waited for.
    pub tensor_open: [bool; 2],
    /// Polls since the machine last progressed.
    pub polls: (u64, u32),
    /// Threads that have polled since then.
    pub polled: u32,
    /// What its threads last looked at that others change.
    pub looked: Vec<(u32, Looked)>,
    /// Threads that have arrived at a barrier with a reduction, and wait for the result.
    pub reducing: u32,
    /// Threads that have arrived at barriers where the rest of the warp has not.
    pub gathered: Gathered,
    pub entry: Arc<Entry>,
    /// Registers a thread that it owns, where `setmaxnreg` has an effect.
    pub owned: u32,
    /// `setmaxnreg` executed.
    pub resized: u32,
    /// Its number in the checker.
    pub checked: u32,
}

impl Warp {
    /// Notes what threads looked at, in place of what they looked at before.
    pub fn look(&mut self, threads: u32, at: Looked) {
        for (of, _) in &mut self.looked {
            *of &= !threads;
        }
        self.looked.retain(|(of, _)| *of != 0);
        self.looked.push((threads, at));
    }

    pub fn lanes(&self, slot: Slot) -> &[u64; 32] {
        &self.registers[slot as usize]
    }
}

/// The machine.
#[derive(Debug)]
pub struct Machine {
    /// Device memory.
    pub memory: Memory,
    pub(crate) config: Config,
    pub(crate) random: Random,
    /// Nanoseconds.
    pub(crate) time: u64,
    pub(crate) grids: Vec<Option<Grid>>,
    pub(crate) waiting: Vec<VecDeque<usize>>,
    pub(crate) blocks: Vec<Option<Box<Block>>>,
    pub(crate) clusters: BTreeMap<usize, ClusterBarrier>,
    pub(crate) warps: Vec<Option<Box<Warp>>>,
    /// Tensor memory, by GPU and SM, where it was used.
    pub(crate) tensors: BTreeMap<(usize, u32), TensorMemory>,
    /// `tcgen05.commit` executed.
    pub(crate) commits: u64,
    pub(crate) ready: Vec<usize>,
    pub(crate) events: events::Queue,
    /// Counts whatever another thread could see.
    pub(crate) progress: u64,
    pub(crate) clock_reads: u64,
    /// How often time has jumped since a turn last made progress.
    pub(crate) jumps: u32,
    /// Whether time may not jump: see [`Machine::hold_time`].
    pub(crate) time_held: bool,
    /// Whether a launch has ended in this slice.
    pub(crate) launch_ended: bool,
    pub(crate) usage: Vec<Vec<blocks::Usage>>,
    pub(crate) findings: Vec<Finding>,
    pub(crate) suppressed: u64,
    pub(crate) instructions: u64,
    pub(crate) launched: u64,
    pub(crate) check: Option<Box<Check>>,
}

/// Findings beyond this number are only counted.
const MOST_FINDINGS: usize = 100;

impl Machine {
    /// A machine with empty memory.
    pub fn new(config: Config) -> Machine {
        let gpus = config.gpus.max(1);
        Machine {
            memory: Memory::noting(config.check),
            random: Random::new(config.seed),
            time: 0,
            grids: Vec::new(),
            waiting: (0..gpus).map(|_| VecDeque::new()).collect(),
            blocks: Vec::new(),
            clusters: BTreeMap::new(),
            warps: Vec::new(),
            tensors: BTreeMap::new(),
            commits: 0,
            ready: Vec::new(),
            events: events::Queue::default(),
            progress: 0,
            clock_reads: 0,
            jumps: 0,
            time_held: false,
            launch_ended: false,
            usage: vec![vec![blocks::Usage::default(); config.sms.max(1) as usize]; gpus],
            findings: Vec::new(),
            suppressed: 0,
            instructions: 0,
            launched: 0,
            check: config.check.then(|| Box::new(Check::of(gpus))),
            config,
        }
    }

    /// What it is like.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Simulated nanoseconds since it was made.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Thread-instructions executed.
    pub fn instructions(&self) -> u64 {
        self.instructions
    }

    /// What was found so far, and how many more findings were only counted.
    pub fn findings(&self) -> (&[Finding], u64) {
        (&self.findings, self.suppressed)
    }

    /// Takes the findings out.
    pub fn take_findings(&mut self) -> Vec<Finding> {
        self.suppressed = 0;
        std::mem::take(&mut self.findings)
    }

    pub(crate) fn find(&mut self, finding: Finding) {
        let known = |other: &Finding| {
            (other.kind, other.line, &other.entry, &other.message)
                == (finding.kind, finding.line, &finding.entry, &finding.message)
        };
        if self.findings.len() >= MOST_FINDINGS || self.findings.iter().any(known) {
            self.suppressed += 1;
        } else {
            self.findings.push(finding);
        }
    }

    /// Reports something about the instruction that a fragment of a warp is at.
    pub(crate) fn report(
        &mut self,
        warp: &Warp,
        pc: u32,
        lane: Option<u32>,
        kind: FindingKind,
        message: String,
    ) {
        let block = self.blocks[warp.block].as_ref();
        let finding = Finding {
            kind,
            entry: warp.entry.name.clone(),
            line: warp
                .entry
                .code
                .get(pc as usize)
                .map_or(0, |instruction| instruction.line),
            gpu: block.map_or(0, |block| block.gpu),
            block: block.map_or([0; 3], |block| block.index),
            thread: lane.map(|lane| warp.number * 32 + lane),
            message,
        };
        self.find(finding);
    }

    pub(crate) fn block(&self, block: usize) -> &Block {
        self.blocks[block]
            .as_deref()
            .expect("a block lives as long as its warps and its cluster")
    }

    pub(crate) fn block_mut(&mut self, block: usize) -> &mut Block {
        self.blocks[block]
            .as_deref_mut()
            .expect("a block lives as long as its warps and its cluster")
    }
}
