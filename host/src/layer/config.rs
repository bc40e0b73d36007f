//! What a layer is like, and what it needs.

use std::time::Duration;

use mok_kernel::failure::Wait;
use mok_kernel::forward::words;
use mok_kernel::route::{
    MAX_EXPERTS, MAX_RANKS, MAX_TOKENS, MAX_TOP_K, SEGMENT, chunks, local_experts,
};
use mok_kernel::schedule::forward::LEAST_PLACES;
use mok_kernel::symmetric::SymmetricPlan;

use super::error::LayerError;
use super::fused::{held, strips};
use crate::gemm::Tickets;

/// Sizes of rows are multiples of this.
const GRAIN: u32 = 64;
/// The largest hidden and intermediate size; beyond it offsets inside a rank's rows would not fit.
const MAX_SIZE: u32 = 1 << 18;
/// The longest deadline.
const MAX_DEADLINE: Duration = Duration::from_secs(1 << 32);

/// How tokens travel between ranks. Both give the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Kernels read and write the other ranks' memory: it must be reachable, by NVLink or PCIe
    /// within a host, by NVLink between hosts. Nothing waits for the host, and calls can be
    /// captured in graphs.
    #[default]
    Peer,
    /// NCCL's all-to-all, for ranks without peer access. `schedule` and `forward` synchronise with
    /// the host, so they return when the exchange is over, errors come from the call itself, and
    /// a capture is an error. libnccl is loaded when the first workspace of several ranks is made.
    /// The tokens of all routes are held twice more, in ordinary memory.
    ///
    /// Emulated devices have no NCCL: there the exchange goes through the [`Group`], over the host,
    /// between threads or processes; everything else is the same.
    ///
    /// [`Group`]: super::Group
    Nccl,
}

/// How a forward pass is launched. Both give the same bits, and ranks may differ in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Path {
    /// A launch for each step.
    #[default]
    Unfused,
    /// One launch after the schedule's, in which rows are dispatched, multiplied and combined minibatch by
    /// minibatch. With [`Transport::Peer`]; gate and up must lie alike (see
    /// [`GateUpCall::fits`](crate::gemm::GateUpCall::fits)).
    Fused,
}

impl Transport {
    /// Whether this machine has the library that the transport needs on GPUs; loads it. Emulated
    /// devices and a single rank need none.
    pub fn check_library(self) -> Result<(), LayerError> {
        match self {
            Transport::Peer => Ok(()),
            Transport::Nccl => super::exchange::check_library(),
        }
    }
}

/// A mixture-of-experts layer: its sizes, and the settings of its calls. The same on every rank.
///
/// ```
/// use mok::layer::MoeConfig;
///
/// // 8 experts of 128, hidden size 256, 2 experts a token, up to 1,000 tokens a rank.
/// let config = MoeConfig::new(8, 256, 128, 2, 1000).with_shared(64);
/// config.check(4)?;
/// println!("{} bytes on each of 4 ranks", config.memory(4)?.total());
/// # Ok::<(), mok::layer::LayerError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeConfig {
    /// Routed experts of the layer, on all ranks together: 1 to 1,024.
    pub experts: u32,
    /// Hidden size: a multiple of 64.
    pub hidden: u32,
    /// Intermediate size of a routed expert: a multiple of 64.
    pub intermediate: u32,
    /// Experts of a token: 1 to 32.
    pub top_k: u32,
    /// The most tokens of a rank in one call: 0 to 2^20.
    pub max_tokens: u32,
    /// Intermediate size of the shared expert, a multiple of 64; 0 if there is none.
    pub shared_intermediate: u32,
    /// Rows that each rank has room for, each expert's padded to a multiple of 128; a multiple of
    /// 128. `None` takes twice an even share, or all that can come where that is less.
    pub schedule_capacity: Option<u32>,
    /// Clamps gate to at most this, and up to within it, before the activation.
    pub swiglu_limit: Option<f32>,
    /// How long a rank waits for the others at the start of a call.
    pub start_deadline: Duration,
    /// How long a rank waits for the others after that.
    pub progress_deadline: Duration,
    /// How tokens travel between ranks.
    pub transport: Transport,
    /// How a forward pass is launched.
    pub path: Path,
    /// With [`Path::Fused`], rows whose gate-and-up comes before any of their down: the grain in which products
    /// follow each other. A multiple of 128, at least 256; a quarter of [`macrobatch_rows`](Self::macrobatch_rows) is
    /// the most that is made use of. No bit depends on it.
    pub minibatch_rows: u32,
    /// With [`Path::Fused`], rows whose activations are held at once, which bounds the memory for them; places that
    /// have been combined are used again. A multiple of 128, at least 1,024. No bit depends on it.
    pub macrobatch_rows: u32,
}

/// Device memory of one rank, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerMemory {
    /// What peers reach.
    pub symmetric: u64,
    /// What only the rank reaches: shared between the layers of one workspace.
    pub workspace: u64,
    /// Of each schedule.
    pub schedule: u64,
}

impl LayerMemory {
    /// With one schedule.
    pub fn total(&self) -> u64 {
        self.symmetric + self.workspace + self.schedule
    }
}

impl MoeConfig {
    /// A layer without a shared expert, with the default settings.
    pub fn new(
        experts: u32,
        hidden: u32,
        intermediate: u32,
        top_k: u32,
        max_tokens: u32,
    ) -> MoeConfig {
        MoeConfig {
            experts,
            hidden,
            intermediate,
            top_k,
            max_tokens,
            shared_intermediate: 0,
            schedule_capacity: None,
            swiglu_limit: None,
            start_deadline: Duration::from_secs(600),
            progress_deadline: Duration::from_secs(30),
            transport: Transport::Peer,
            path: Path::Unfused,
            minibatch_rows: 2048,
            macrobatch_rows: 32_768,
        }
    }

    /// With a shared expert of this intermediate size.
    pub fn with_shared(mut self, intermediate: u32) -> Self {
        self.shared_intermediate = intermediate;
        self
    }

    /// With room for this many rows on each rank.
    pub fn with_schedule_capacity(mut self, rows: u32) -> Self {
        self.schedule_capacity = Some(rows);
        self
    }

    /// With the activation's inputs clamped.
    pub fn with_swiglu_limit(mut self, limit: f32) -> Self {
        self.swiglu_limit = Some(limit);
        self
    }

    /// With these deadlines.
    pub fn with_deadlines(mut self, start: Duration, progress: Duration) -> Self {
        (self.start_deadline, self.progress_deadline) = (start, progress);
        self
    }

    /// With this transport.
    pub fn with_transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Launched like this.
    pub fn with_path(mut self, path: Path) -> Self {
        self.path = path;
        self
    }

    /// With minibatches of this many rows.
    pub fn with_minibatch_rows(mut self, rows: u32) -> Self {
        self.minibatch_rows = rows;
        self
    }

    /// With macrobatches of this many rows.
    pub fn with_macrobatch_rows(mut self, rows: u32) -> Self {
        self.macrobatch_rows = rows;
        self
    }

    /// Checks the limits, for this many ranks.
    pub fn check(&self, ranks: usize) -> Result<(), LayerError> {
        let range = |what, value: u64, least: u64, most: u64| {
            let error = LayerError::Range {
                what,
                value,
                least,
                most,
            };
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                Err(error)
            }
        };
        let multiple = |what, value: u32, of: u32| match value % of {
            0 => Ok(()),
            _ => Err(LayerError::Multiple {
                what,
                value: value.into(),
                of: of.into(),
            }),
        };
        range("ranks", ranks as u64, 1, MAX_RANKS.into())?;
        range("experts", self.experts.into(), 1, MAX_EXPERTS.into())?;
        range("top_k", self.top_k.into(), 1, MAX_TOP_K.into())?;
        range("max_tokens", self.max_tokens.into(), 0, MAX_TOKENS.into())?;
        let sizes = [
            ("hidden", self.hidden),
            ("intermediate", self.intermediate),
            ("shared_intermediate", self.shared_intermediate),
        ];
        for (what, value) in sizes {
            multiple(what, value, GRAIN)?;
            if what != "shared_intermediate" || value != 0 {
                range(what, value.into(), GRAIN.into(), MAX_SIZE.into())?;
            }
        }
        if let Some(rows) = self.schedule_capacity {
            multiple("schedule_capacity", rows, SEGMENT)?;
            range("schedule_capacity", rows.into(), 0, MAX_ROWS)?;
        }
        for (what, rows, least) in [
            ("minibatch_rows", self.minibatch_rows, LEAST_MINIBATCH),
            ("macrobatch_rows", self.macrobatch_rows, LEAST_MACROBATCH),
        ] {
            multiple(what, rows, SEGMENT)?;
            range(what, rows.into(), least, MAX_ROWS)?;
        }
        if (self.path, self.transport) == (Path::Fused, Transport::Nccl) {
            return Err(LayerError::FusedExchange);
        }
        if let Some(value) = self.swiglu_limit
            && !(value > 0.0 && value.is_finite())
        {
            return Err(LayerError::SwigluLimit { value });
        }
        let deadlines = [
            ("start_deadline", self.start_deadline),
            ("progress_deadline", self.progress_deadline),
        ];
        for (what, value) in deadlines {
            if value.is_zero() || value > MAX_DEADLINE {
                return Err(LayerError::DeadlineRange {
                    what,
                    value,
                    most: MAX_DEADLINE,
                });
            }
        }
        Ok(())
    }

    /// How long a rank waits for the others there.
    pub(super) fn deadline(&self, wait: Wait) -> Duration {
        match wait {
            Wait::Routes | Wait::Tokens => self.start_deadline,
            Wait::Schedule | Wait::Results => self.progress_deadline,
        }
    }

    /// Rows that each rank has room for, at most 2^31.
    pub fn capacity(&self, ranks: usize) -> u32 {
        if let Some(rows) = self.schedule_capacity {
            return rows;
        }
        // Whatever the sizes are, checked or not, no product of these overflows.
        let (ranks, experts) = (ranks.max(1) as u128, u128::from(self.experts.max(1)));
        let local = experts.div_ceil(ranks);
        let tokens = ranks * u128::from(self.max_tokens);
        let routes = tokens.saturating_mul(u128::from(self.top_k));
        let share = routes.saturating_mul(local).div_ceil(experts);
        let padding = local * u128::from(SEGMENT - 1);
        let rows = routes.min(share.saturating_mul(2)).saturating_add(padding);
        let segments = rows
            .div_ceil(SEGMENT.into())
            .min(MAX_ROWS as u128 / SEGMENT as u128);
        segments as u32 * SEGMENT
    }

    /// The device memory that each rank needs, asked before anything is allocated.
    pub fn memory(&self, ranks: usize) -> Result<LayerMemory, LayerError> {
        self.check(ranks)?;
        let plan = self.symmetric(ranks);
        let parts = self.parts(ranks);
        let (symmetric, own) = match self.transport {
            Transport::Peer => (plan.bytes, 0),
            Transport::Nccl => (0, plan.bytes),
        };
        Ok(LayerMemory {
            symmetric,
            workspace: own + parts.workspace() + Tickets::BYTES,
            schedule: parts.schedule(),
        })
    }

    pub(super) fn symmetric(&self, ranks: usize) -> SymmetricPlan {
        SymmetricPlan::new(ranks as u32, self.max_tokens, self.top_k, self.hidden)
    }

    pub(super) fn parts(&self, ranks: usize) -> Parts {
        let (chunk_tokens, chunks) = chunks(self.max_tokens, ranks as u32, self.top_k);
        let tokens = self.max_tokens.next_multiple_of(SEGMENT);
        Parts {
            capacity: self.capacity(ranks),
            chunk_tokens,
            chunks,
            most_local: (0..ranks as u32)
                .map(|rank| local_experts(rank, self.experts, ranks as u32))
                .max()
                .unwrap_or(0),
            shared_rows: if self.shared_intermediate == 0 {
                0
            } else {
                tokens
            },
            config: *self,
        }
    }
}

/// The most rows: what a tensor map counts.
const MAX_ROWS: u64 = 1 << 31;
/// The fewest rows of a minibatch: as many as the widest tile of any architecture has.
const LEAST_MINIBATCH: u64 = 256;
/// The fewest rows of a macrobatch: minibatches that are under way at once.
const LEAST_MACROBATCH: u64 = LEAST_PLACES as u64 * LEAST_MINIBATCH;

/// Sizes of a rank's buffers, in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    pub capacity: u32,
    pub chunk_tokens: u32,
    pub chunks: u32,
    /// Experts of the rank that has most.
    pub most_local: u32,
    /// Rows of the shared expert's buffers.
    pub shared_rows: u32,
    config: MoeConfig,
}

impl Parts {
    /// Rows whose activations are held at once.
    pub fn held(&self) -> u32 {
        match self.config.path {
            Path::Fused => held(&self.config, self.capacity),
            Path::Unfused => self.capacity,
        }
    }

    /// bf16 of a matrix with a row for each route whose activations are held.
    pub fn rows(&self, columns: u32) -> u64 {
        u64::from(self.held()) * u64::from(columns)
    }

    /// bf16 of up's product, and of the shared expert's: one launch keeps nothing of it.
    pub fn ups(&self) -> [u64; 2] {
        let config = &self.config;
        match config.path {
            Path::Fused => [0; 2],
            Path::Unfused => [
                self.rows(config.intermediate),
                self.shared(config.shared_intermediate),
            ],
        }
    }

    /// bf16 of the rows as they travel.
    pub fn staged(&self) -> u64 {
        match self.config.transport {
            Transport::Peer => 0,
            Transport::Nccl => self.rows(self.config.hidden),
        }
    }

    /// Words of the lists of routes and of rows as they travel, and of the former's inverse.
    pub fn lists(&self) -> [u64; 3] {
        match self.config.transport {
            Transport::Peer => [0; 3],
            Transport::Nccl => [self.routes(), self.capacity.into(), self.routes()],
        }
    }

    /// The most routes of a rank's tokens.
    pub fn routes(&self) -> u64 {
        u64::from(self.config.max_tokens) * u64::from(self.config.top_k)
    }

    /// bf16 of a matrix with a row for each token.
    pub fn shared(&self, columns: u32) -> u64 {
        u64::from(self.shared_rows) * u64::from(columns)
    }

    /// u64 of what the tasks of a pass in one launch wait for.
    pub fn words(&self) -> u64 {
        let [routed, shared] = strips(self.capacity, self.shared_rows);
        match self.config.path {
            Path::Fused => words(routed, shared),
            Path::Unfused => 0,
        }
    }

    /// u32 of the counts.
    pub fn counts(&self) -> u64 {
        u64::from(self.chunks) * u64::from(self.most_local)
    }

    fn workspace(&self) -> u64 {
        let config = &self.config;
        let routed = self.rows(config.hidden) + self.rows(config.intermediate);
        let shared = self.shared(config.hidden) + self.shared(config.shared_intermediate);
        let ups: u64 = self.ups().iter().sum();
        2 * (routed + shared + ups + self.staged())
            + 8 * self.words()
            + 4 * (self.counts() + u64::from(config.experts) + u64::from(self.most_local))
    }

    fn schedule(&self) -> u64 {
        let lists: u64 = self.lists().iter().sum();
        4 * (u64::from(self.capacity) + u64::from(self.most_local) + self.routes() + lists + 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest layer that the limits allow, over all ranks.
    fn largest(transport: Transport) -> MoeConfig {
        let config = MoeConfig::new(MAX_EXPERTS, MAX_SIZE, MAX_SIZE, MAX_TOP_K, MAX_TOKENS);
        config.with_shared(MAX_SIZE).with_transport(transport)
    }

    #[test]
    fn the_largest_layer_has_sizes() {
        let ranks = MAX_RANKS as usize;
        for transport in [Transport::Peer, Transport::Nccl] {
            let config = largest(transport);
            // Twice an even share of 72 * 2^20 * 32 routes is less than the limit.
            let share = 2 * (1u64 << 25) * 72 * 15 / 1024 + 15 * 127;
            assert_eq!(
                u64::from(config.capacity(ranks)),
                share.next_multiple_of(128)
            );
            let memory = config.memory(ranks).unwrap();
            let slots = 2 * (1u64 << 20 << 5 << 18);
            assert!(memory.total() > slots, "{memory:?}");
            let all = config.with_schedule_capacity(1 << 31);
            let rows = 2 * ((1u64 << 31) << 18);
            assert!(all.memory(ranks).unwrap().workspace > 3 * rows);
            let parts = all.parts(ranks);
            assert_eq!(parts.rows(MAX_SIZE), 1 << 49);
            assert_eq!(parts.routes(), 1 << 25);
        }
    }

    /// One launch holds a macrobatch, or all rows where those are fewer, each strip of them in a place of its own.
    #[test]
    fn macrobatches_bound_the_activations() {
        let config = MoeConfig::new(8, 4096, 1024, 4, 1 << 20).with_path(Path::Fused);
        let workspace = |config: &MoeConfig| config.memory(8).unwrap().workspace;
        let row = 2 * (4096 + 1024);
        let held = [1024, 2048, 1 << 20].map(|rows| {
            let parts = config.with_macrobatch_rows(rows).parts(8);
            assert_eq!(parts.held(), rows);
            u64::from(parts.held())
        });
        let bytes = [1024, 2048, 1 << 20].map(|rows| workspace(&config.with_macrobatch_rows(rows)));
        for (held, bytes) in held.windows(2).zip(bytes.windows(2)) {
            assert_eq!(bytes[1] - bytes[0], row * (held[1] - held[0]));
        }
        let few = config
            .with_schedule_capacity(256)
            .with_macrobatch_rows(1 << 31);
        assert_eq!(few.parts(8).held(), 2 * 256);
        let largest = largest(Transport::Peer).with_path(Path::Fused);
        largest.with_macrobatch_rows(1 << 31).memory(72).unwrap();
    }

    #[test]
    fn no_size_is_too_large_to_ask_for() {
        let config = MoeConfig::new(u32::MAX, u32::MAX, u32::MAX, u32::MAX, u32::MAX);
        for ranks in [0, 1, 72, usize::MAX] {
            assert_eq!(config.capacity(ranks), 1 << 31);
            assert!(config.memory(ranks).is_err());
        }
        let nothing = MoeConfig::new(0, 0, 0, 0, 0);
        assert_eq!(nothing.capacity(0), 128);
    }
}
