//! What the layers of one shape share on a rank: the symmetric region, buffers, and the rank's state.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use half::bf16;
use mok_comm::{Error as GroupError, Group};
use mok_kernel::failure::{Code, RECORD_WORDS, abort_word};
use mok_kernel::symmetric::SymmetricPlan;
use mok_kernel::unfused::{RankArgs, STATE_WORDS};

use super::config::{MoeConfig, Parts, Path, Transport};
use super::error::{LayerError, of_record};
use super::exchange::{Exchange, Failure};
use super::region::Region;
use super::timeline::Trace;
use super::together;
use super::watch::Watch;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::gemm::GroupedGemm;
use crate::kernels::LayerKernels;
use crate::mailbox::Mailbox;
use crate::memory::Buffer;
use crate::module::Module;
use crate::stream::Stream;

/// Memory and state that a rank's layers of one shape share. They are used one after the other,
/// in the same order on every rank.
///
/// It is made and recovered by all ranks together; a rank that cannot tells the others.
#[derive(Debug)]
pub struct Workspace {
    pub(super) device: Device,
    pub(super) group: Arc<Group>,
    pub(super) config: MoeConfig,
    pub(super) parts: Parts,
    plan: SymmetricPlan,
    region: Region,
    own: Own,
    /// Where words are written beside whatever runs.
    beside: Stream,
    /// What the host knows of a failed call.
    failure: Mutex<Option<LayerError>>,
    recoveries: AtomicU64,
    pub(super) kernels: LayerKernels,
    pub(super) gemm: GroupedGemm,
    /// What the tasks of a pass in one launch wait for; all zero between passes.
    pub(super) words: Option<Buffer<u64>>,
    trace: Mutex<Option<Trace>>,
}

/// Buffers that only this rank touches.
#[derive(Debug)]
struct Own {
    peers: Buffer<u64>,
    state: Buffer<u64>,
    mailbox: Mailbox,
    buffers: Buffers,
}

/// What a forward pass needs beside its schedule.
#[derive(Debug)]
pub(super) struct Buffers {
    /// Tokens that were dispatched, then what the experts gave: of all rows, or of those that are held.
    pub rows: Buffer<bf16>,
    /// Rows as they travel, where the transport needs them in order.
    pub staged: Buffer<bf16>,
    /// Gate, then what the activation gave.
    pub gate: Buffer<bf16>,
    pub up: Buffer<bf16>,
    pub shared_gate: Buffer<bf16>,
    pub shared_up: Buffer<bf16>,
    pub shared_out: Buffer<bf16>,
    /// Rows that a pass computes of each local expert.
    pub sizes: Buffer<u32>,
    pub totals: Buffer<u32>,
    pub counts: Buffer<u32>,
}

impl Own {
    fn new(device: &Device, config: &MoeConfig, parts: &Parts, bases: &[u64]) -> Result<Own> {
        let matrix = |elements: u64| device.buffer_uninit::<bf16>(elements as usize);
        Ok(Own {
            peers: device.buffer_from(bases)?,
            state: device.buffer_zeroed(STATE_WORDS)?,
            mailbox: Mailbox::new(device, RECORD_WORDS)?,
            buffers: Buffers {
                rows: matrix(parts.rows(config.hidden))?,
                staged: matrix(parts.staged())?,
                gate: matrix(parts.rows(config.intermediate))?,
                up: matrix(parts.ups()[0])?,
                shared_gate: matrix(parts.shared(config.shared_intermediate))?,
                shared_up: matrix(parts.ups()[1])?,
                shared_out: matrix(parts.shared(config.hidden))?,
                sizes: device.buffer_zeroed(parts.most_local as usize)?,
                totals: device.buffer_uninit(config.experts as usize)?,
                counts: device.buffer_uninit(parts.counts() as usize)?,
            },
        })
    }
}

impl Workspace {
    /// Collective: allocates this rank's part and maps the peers'. `device` is this rank's alone.
    ///
    /// # Errors
    /// The same kind on every rank: a limit ([`MoeConfig::check`]), ranks that disagree, memory,
    /// peers that can't reach each other, a rank that was lost.
    pub fn new(device: &Device, group: &Arc<Group>, config: &MoeConfig) -> Result<Arc<Workspace>> {
        let kernels = || device.kernels().map(|kernels| kernels.layer().clone());
        let all = || Ok((kernels()?, GroupedGemm::new(device)?));
        Workspace::with_kernels(device, group, config, all)
    }

    /// As [`Workspace::new`], with the entries of another build of the kernels, loaded on this device.
    ///
    /// # Errors
    /// As [`Workspace::new`]; and a module of another device, or without one of the entries.
    pub fn from_module(
        device: &Device,
        group: &Arc<Group>,
        config: &MoeConfig,
        module: &Module,
    ) -> Result<Arc<Workspace>> {
        let all = || {
            let gemm = GroupedGemm::from_module(device, module)?;
            let layer = LayerKernels::of(device.arch()?, |spec| module.kernel(spec))?;
            Ok((layer, gemm))
        };
        Workspace::with_kernels(device, group, config, all)
    }

    fn with_kernels(
        device: &Device,
        group: &Arc<Group>,
        config: &MoeConfig,
        kernels: impl FnOnce() -> Result<(LayerKernels, GroupedGemm)>,
    ) -> Result<Arc<Workspace>> {
        let ranks = group.world_size();
        together(group, config.check(ranks).map_err(Error::from))?;
        agree_on(group, config)?;
        let plan = config.symmetric(ranks);
        let parts = config.parts(ranks);
        let region = Region::new(device, group, config, &plan)?;
        let own = together(
            group,
            Own::new(device, config, &parts, &region.bases(ranks)),
        )?;
        let (kernels, gemm) = together(group, kernels())?;
        let words = match config.path {
            Path::Fused => device.buffer_zeroed(parts.words() as usize).map(Some),
            Path::Unfused => Ok(None),
        };
        // Ranks may differ in it.
        let words = together(group, words)?;
        let workspace = Workspace {
            words,
            trace: Mutex::default(),
            kernels,
            gemm,
            beside: together(group, device.stream())?,
            failure: Mutex::default(),
            device: device.clone(),
            group: group.clone(),
            config: *config,
            parts,
            plan,
            region,
            own,
            recoveries: AtomicU64::new(0),
        };
        // Nobody signals a peer whose region is not cleared yet.
        group.barrier()?;
        Ok(Arc::new(workspace))
    }

    /// What it was made for.
    pub fn config(&self) -> &MoeConfig {
        &self.config
    }

    /// This rank's number and how many there are.
    pub fn rank(&self) -> (usize, usize) {
        (self.group.rank(), self.group.world_size())
    }

    /// The device it is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether a call has failed, on this rank or another, as far as is known now; doesn't wait.
    pub fn status(&self) -> Result<()> {
        if let Some(error) = of_record(&self.own.mailbox.read()?) {
            return Err(self.explained(error).into());
        }
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.clone().map_or(Ok(()), |error| Err(error.into()))
    }

    /// What the device knows of the group's failure, as the group tells it.
    fn explained(&self, error: LayerError) -> LayerError {
        match (error, self.group.failed()) {
            (LayerError::Lost { rank, how: None }, Some(GroupError::RankLost { how, .. })) => {
                let how = Some(how.to_string());
                LayerError::Lost { rank, how }
            }
            (LayerError::Group { wait, .. }, Some(failed)) => {
                let text = failed.to_string();
                LayerError::Group { text, wait }
            }
            (error, _) => error,
        }
    }

    /// Keeps a failure until it is recovered, and gives what the call tells.
    pub(super) fn failed(&self, failure: Failure) -> Error {
        let mut kept = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get_or_insert(failure.kept);
        failure.told
    }

    /// Waits for a stream, and reports what went wrong in the layer's calls on it. If a rank is
    /// lost meanwhile, the wait ends at once; other ways to wait for the stream end by the
    /// deadlines.
    pub fn synchronize(&self, stream: &Stream) -> Result<()> {
        {
            let _watch = self.watch();
            stream.synchronize()?;
        }
        self.status()
    }

    /// While it lives, kernels that wait for other ranks give up once the group has failed. What has
    /// already come from a rank that is gone is still taken.
    fn watch(&self) -> Option<Watch> {
        let (rank, ranks) = self.rank();
        if ranks == 1 || self.config.transport != Transport::Peer {
            return None;
        }
        let backend = self.device.backend().clone();
        // Held by the closure: it may be called as long as the watch lives, which is shorter than
        // the workspace.
        let (word, beside) = (self.region.own() + self.plan.lost, self.beside.clone());
        let give_up = move |error: &GroupError| {
            let (rank, code) = match error {
                GroupError::RankLost { rank, .. } => (rank.rank, Code::Lost),
                GroupError::RankFailed { rank, .. } => (rank.rank, Code::HostCheck),
                _ => (rank, Code::Group),
            };
            let value = abort_word(rank as u32, code);
            // SAFETY: this rank's own word, which is accessed atomically and lives as long as
            // the workspace. Should it fail, the deadlines end the wait.
            let _ = unsafe { backend.write_beside(word, value, beside.handle()) };
        };
        Some(Watch::new(&self.group, give_up))
    }

    /// Waits for all of the device's work, as [`Workspace::synchronize`] for a stream's.
    pub(super) fn drain(&self) -> Result<()> {
        let _watch = self.watch();
        self.device.synchronize()
    }

    /// Collective: after an error, makes the workspace usable again. Waits for the device.
    pub fn recover(&self) -> Result<()> {
        if let Some(exchange) = self.exchange() {
            exchange.abort();
        }
        // Whatever still runs ends by its deadline; what went wrong in it is what is recovered from.
        let _ = self.drain();
        self.group.barrier()?;
        let cleared = || -> Result<()> {
            // SAFETY: the state is this workspace's, and nothing runs that touches it.
            let fill = |ptr: u64, bytes| unsafe { self.device.backend().fill(ptr, 0, bytes, 0) };
            fill(self.own.state.ptr().as_raw(), self.own.state.bytes())?;
            self.own.mailbox.clear()?;
            // A launch leaves them zero, unless it was stopped.
            if let Some(words) = &self.words {
                fill(words.ptr().as_raw(), words.bytes())?;
            }
            // Signals, the abort word and the routes.
            self.region.clear(&self.device, self.plan.x)
        };
        together(&self.group, cleared())?;
        self.region
            .reconnect(&self.device, &self.group, &self.config)?;
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.recoveries.fetch_add(1, Ordering::Relaxed);
        Ok(self.group.barrier()?)
    }

    /// How often it has been recovered.
    pub(super) fn recoveries(&self) -> u64 {
        self.recoveries.load(Ordering::Relaxed)
    }

    pub(super) fn buffers(&self) -> &Buffers {
        &self.own.buffers
    }

    /// Where passes in one launch write their trace.
    pub(super) fn trace(&self) -> MutexGuard<'_, Option<Trace>> {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Address of the rank's state.
    pub(super) fn state(&self) -> u64 {
        self.own.state.ptr().as_raw()
    }

    /// Where this rank's region stands, and its layout.
    pub(super) fn region(&self) -> (u64, &SymmetricPlan) {
        (self.region.own(), &self.plan)
    }

    /// What carries rows, where peers aren't reached.
    pub(super) fn exchange(&self) -> Option<Arc<Exchange>> {
        self.region.exchange()
    }

    pub(super) fn rank_args(&self) -> RankArgs {
        RankArgs {
            peers: self.own.peers.ptr().as_raw(),
            state: self.state(),
            mailbox: self.own.mailbox.ptr().as_raw(),
            rank: self.group.rank() as u32,
            ranks: self.group.world_size() as u32,
            plan: self.plan,
        }
    }
}

impl Drop for Workspace {
    /// Kernels that wait for a rank which is gone would hold up the freeing of their memory.
    fn drop(&mut self) {
        // A failure has nowhere to go.
        let _ = self.drain();
    }
}

/// Fails on all ranks where their settings differ.
fn agree_on(group: &Group, config: &MoeConfig) -> Result<()> {
    let own = settings(config);
    let bytes: Vec<u8> = own
        .iter()
        .flat_map(|(_, value)| value.to_le_bytes())
        .collect();
    let all = group.all_gather(&bytes)?;
    for (rank, theirs) in all.iter().enumerate() {
        for ((what, value), bytes) in own.iter().zip(theirs.chunks(8)) {
            let other = bytes.try_into().map_or(0, u64::from_le_bytes);
            if other != *value {
                return Err(LayerError::Disagreement {
                    what,
                    own_rank: group.rank(),
                    own: shown(what, *value),
                    rank,
                    theirs: shown(what, other),
                }
                .into());
            }
        }
    }
    Ok(())
}

/// Nothing set.
const UNSET: u64 = u64::MAX;

/// What must be the same on all ranks, by name.
fn settings(config: &MoeConfig) -> [(&'static str, u64); 9] {
    let limit = config.swiglu_limit.map(|limit| limit.to_bits().into());
    [
        ("experts", config.experts.into()),
        ("hidden", config.hidden.into()),
        ("intermediate", config.intermediate.into()),
        ("top_k", config.top_k.into()),
        ("max_tokens", config.max_tokens.into()),
        ("shared_intermediate", config.shared_intermediate.into()),
        (
            "schedule_capacity",
            config.schedule_capacity.map_or(UNSET, u64::from),
        ),
        ("swiglu_limit", limit.unwrap_or(UNSET)),
        ("transport", config.transport as u64),
    ]
}

fn shown(what: &str, value: u64) -> String {
    match (what, value) {
        (_, UNSET) => "unset".into(),
        ("transport", 0) => "Peer".into(),
        ("transport", _) => "Nccl".into(),
        ("swiglu_limit", bits) => f32::from_bits(bits as u32).to_string(),
        _ => value.to_string(),
    }
}
