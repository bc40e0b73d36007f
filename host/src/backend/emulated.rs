//! A GPU that is emulated in this process.

use std::ffi::CStr;
use std::sync::Arc;

use mok_emu::machine::{Config, Launch, Machine};
use mok_emu::program::Program;
use mok_emu::tensor::swizzle::Swizzle as EmulatedSwizzle;
use mok_emu::tensor::tma::{Dtype, Fill, TensorMap};
use parking_lot::MutexGuard;

use super::fleet::{Fleet, Op, State};
use super::{Backend, Code, DeviceInfo, DeviceLimits, Function, Handle, RawLaunch};
use crate::emulator::EmulatorConfig;
use crate::error::{Error, Result};
use crate::tensor_map::{DataType, OutOfBounds, Swizzle, TensorMapSpec};

/// The memory that an emulated GPU says it has.
const MEMORY: usize = 16 << 30;

#[derive(Debug)]
pub(crate) struct Emulated {
    info: DeviceInfo,
    fleet: Arc<Fleet>,
    gpu: usize,
}

impl Emulated {
    /// The GPUs of one machine.
    pub(crate) fn machine(config: &EmulatorConfig, gpus: usize) -> Vec<Emulated> {
        let machine = Machine::new(Config {
            gpus,
            sms: config.sms.max(1),
            seed: config.seed,
            completion: config.completion,
            reverse: config.reverse,
            starved_warp: config.starved_warp,
            held_sms: config.held_sms,
            check: config.check,
            ..Config::default()
        });
        let limits = DeviceLimits {
            sm_count: machine.config().sms,
            max_threads: 1024,
            max_block: [1024, 1024, 64],
            max_shared: machine.config().shared_per_block,
            max_grid: [i32::MAX as u32, 65535, 65535],
            clusters: true,
        };
        let fleet = Arc::new(Fleet::new(machine));
        let device = |gpu| Emulated {
            info: DeviceInfo {
                name: format!("emulated {}", config.arch.name()),
                ordinal: gpu,
                capability: config.arch.capability(),
                limits,
                driver_version: 0,
            },
            fleet: fleet.clone(),
            gpu,
        };
        (0..gpus).map(device).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.fleet.state()
    }

    /// The state after everything that was enqueued.
    fn settled(&self) -> Result<MutexGuard<'_, State>> {
        self.fleet.settled(self.gpu)
    }

    /// Enqueues work that touches these ranges.
    fn enqueue(
        &self,
        call: &'static str,
        stream: Handle,
        ranges: &[(u64, usize)],
        op: Op,
    ) -> Result<()> {
        let mut state = self.state();
        for &(address, bytes) in ranges {
            Fleet::check(&state, call, address, bytes)?;
        }
        state.enqueue(self.gpu, stream, op);
        self.fleet.stir();
        Ok(())
    }

    /// The same number for the GPUs of one machine.
    pub(crate) fn machine_id(&self) -> u64 {
        Arc::as_ptr(&self.fleet).addr() as u64
    }

    /// Memory that kernels of all GPUs of the machine reach.
    pub(crate) fn alloc_shared(&self, bytes: usize) -> Result<Mapped> {
        let mut state = self.state();
        let allocated = state.machine.memory.alloc(self.gpu, bytes as u64);
        let address = allocated.map_err(|error| fault("alloc", error.reason))?;
        Ok(self.mapped(&mut state, address))
    }

    /// Keeps memory of another GPU of the machine that [`Emulated::alloc_shared`] gave.
    pub(crate) fn map_shared(&self, address: u64) -> Result<Mapped> {
        let mut state = self.state();
        if !state.shared.contains_key(&address) {
            return Err(fault("map", format!("{address:#x} isn't shared any more")));
        }
        Ok(self.mapped(&mut state, address))
    }

    fn mapped(&self, state: &mut State, address: u64) -> Mapped {
        *state.shared.entry(address).or_insert(0) += 1;
        Mapped {
            fleet: self.fleet.clone(),
            address,
        }
    }
}

/// Shared memory, as long as anybody maps it.
#[derive(Debug)]
pub(crate) struct Mapped {
    fleet: Arc<Fleet>,
    address: u64,
}

impl Mapped {
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let mut state = self.fleet.state();
        let left = state.shared.get_mut(&self.address).map(|count| {
            *count -= 1;
            *count
        });
        if left == Some(0) {
            state.shared.remove(&self.address);
            // A failure has nowhere to go.
            let _ = state.machine.memory.free(self.address);
        }
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        self.fleet.leave(self.gpu);
    }
}

pub(super) fn fault(call: &'static str, error: impl std::fmt::Display) -> Error {
    Error::Emulator {
        findings: vec![format!("{call}: {error}")],
    }
}

impl Backend for Emulated {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn memory(&self) -> Result<(usize, usize)> {
        let used = self.state().machine.memory.used(self.gpu) as usize;
        Ok((MEMORY.saturating_sub(used), MEMORY))
    }

    fn synchronize(&self) -> Result<()> {
        self.settled().map(drop)
    }

    fn alloc(&self, bytes: usize) -> Result<u64> {
        let mut state = self.state();
        let memory = &mut state.machine.memory;
        let address = memory
            .alloc(self.gpu, bytes as u64)
            .map_err(|error| fault("alloc", error.reason))?;
        memory.make_private(address);
        Ok(address)
    }

    unsafe fn free(&self, address: u64) -> Result<()> {
        // What went wrong before is for whoever waits for it; the memory is freed all the same.
        let settled = self.settled().map(drop);
        let freed = self.state().machine.memory.free(address);
        settled.and(freed.map_err(|error| fault("free", error.reason)))
    }

    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize, stream: Handle) -> Result<()> {
        // SAFETY: a valid host range, by the trait's contract.
        let values = unsafe { std::slice::from_raw_parts(from, bytes) }.into();
        let op = Op::Write { to, values };
        self.enqueue("copy to the device", stream, &[(to, bytes)], op)
    }

    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize, stream: Handle) -> Result<()> {
        let state = self.settled()?;
        if state.is_captured(self.gpu, stream) {
            return Err(fault(
                "copy from the device",
                "the stream is being captured",
            ));
        }
        let values = state.machine.memory.read(from, bytes as u64);
        let values = values.map_err(|error| fault("copy from the device", error.reason))?;
        // SAFETY: a valid host range, by the trait's contract.
        unsafe { values.as_ptr().copy_to_nonoverlapping(to, bytes) };
        Ok(())
    }

    unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize, stream: Handle) -> Result<()> {
        let op = Op::Copy { to, from, bytes };
        let ranges = [(to, bytes), (from, bytes)];
        self.enqueue("copy on the device", stream, &ranges, op)
    }

    unsafe fn fill(&self, to: u64, byte: u8, bytes: usize, stream: Handle) -> Result<()> {
        let op = Op::Fill { to, byte, bytes };
        self.enqueue("fill", stream, &[(to, bytes)], op)
    }

    fn stream_create(&self) -> Result<Handle> {
        Ok(self.state().handle())
    }

    unsafe fn stream_destroy(&self, _: Handle) -> Result<()> {
        Ok(())
    }

    unsafe fn stream_synchronize(&self, _: Handle) -> Result<()> {
        self.synchronize()
    }

    unsafe fn stream_wait(&self, _: Handle, _: Handle) -> Result<()> {
        // One order for all streams.
        Ok(())
    }

    fn event_create(&self) -> Result<Handle> {
        Ok(self.state().handle())
    }

    unsafe fn event_destroy(&self, event: Handle) -> Result<()> {
        self.state().events.remove(&event);
        Ok(())
    }

    unsafe fn event_record(&self, event: Handle, stream: Handle) -> Result<()> {
        self.enqueue("record", stream, &[], Op::Record(event))
    }

    unsafe fn event_synchronize(&self, event: Handle) -> Result<()> {
        let mut state = self.state();
        match state.events.get(&event).copied() {
            Some(recorded) => self.fleet.wait(&mut state, self.gpu, recorded.operation),
            None => Ok(()),
        }
    }

    unsafe fn event_done(&self, event: Handle) -> Result<bool> {
        let state = self.state();
        let recorded = state.events.get(&event);
        Ok(recorded.is_none_or(|event| event.operation <= state.queues[self.gpu].completed))
    }

    unsafe fn event_elapsed(&self, start: Handle, end: Handle) -> Result<f32> {
        let state = self.state();
        match (state.events.get(&start), state.events.get(&end)) {
            (Some(start), Some(end)) => Ok(end.time.saturating_sub(start.time) as f32 / 1e6),
            _ => Err(fault("elapsed", "an event was never recorded")),
        }
    }

    unsafe fn capture_begin(&self, stream: Handle) -> Result<()> {
        self.state().capture_begin(self.gpu, stream)
    }

    unsafe fn capture_end(&self, stream: Handle) -> Result<Handle> {
        self.state().capture_end(self.gpu, stream)
    }

    unsafe fn graph_launch(&self, graph: Handle, _: Handle) -> Result<()> {
        let mut state = self.state();
        for op in state.graphs.get(&graph).cloned().unwrap_or_default() {
            state.push(self.gpu, op);
        }
        self.fleet.stir();
        Ok(())
    }

    unsafe fn graph_destroy(&self, graph: Handle) -> Result<()> {
        self.state().graphs.remove(&graph);
        Ok(())
    }

    unsafe fn captured(&self, stream: Handle) -> Result<bool> {
        Ok(self.state().is_captured(self.gpu, stream))
    }

    unsafe fn write_beside(&self, address: u64, word: u64, _: Handle) -> Result<()> {
        let written = self
            .state()
            .machine
            .memory
            .host_write(address, &word.to_le_bytes());
        self.fleet.stir();
        written.map_err(|error| fault("write", error.reason))
    }

    fn mailbox_alloc(&self, words: usize) -> Result<u64> {
        let mut state = self.state();
        let memory = &mut state.machine.memory;
        let bytes = words as u64 * 8;
        let address = memory.alloc(self.gpu, bytes);
        let address = address.map_err(|error| fault("alloc", error.reason))?;
        let cleared = memory.host_fill(address, 0, bytes);
        cleared.map_err(|error| fault("alloc", error.reason))?;
        Ok(address)
    }

    unsafe fn mailbox_free(&self, address: u64) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { self.free(address) }
    }

    unsafe fn mailbox_read(&self, address: u64, to: &mut [u64]) -> Result<()> {
        let state = self.state();
        let values = state.machine.memory.read(address, 8 * to.len() as u64);
        let values = values.map_err(|error| fault("read", error.reason))?;
        for (word, bytes) in to.iter_mut().zip(values.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        }
        Ok(())
    }

    unsafe fn mailbox_clear(&self, address: u64, words: usize) -> Result<()> {
        let mut state = self.state();
        let cleared = state.machine.memory.host_fill(address, 0, 8 * words as u64);
        cleared.map_err(|error| fault("clear", error.reason))
    }

    fn module_load(&self, code: Code<'_>) -> Result<Handle> {
        let Code::Ptx(text) = code else {
            return Err(fault("load", "the emulator executes PTX, not cubins"));
        };
        let text = text.to_str().map_err(|error| fault("load", error))?;
        let mut state = self.state();
        let program = Program::load(&mut state.machine, self.gpu, text);
        let program = program.map_err(|error| Error::BadPtx {
            reason: error.to_string(),
        })?;
        let handle = state.handle();
        state.modules.insert(handle, program);
        Ok(handle)
    }

    unsafe fn module_unload(&self, module: Handle) -> Result<()> {
        let mut state = self.settled()?;
        if let Some(program) = state.modules.remove(&module) {
            program.unload(&mut state.machine);
        }
        Ok(())
    }

    unsafe fn function(&self, module: Handle, entry: &CStr, _: bool) -> Result<Option<Function>> {
        let mut state = self.state();
        let program = state.modules.get(&module);
        let entry = entry
            .to_str()
            .ok()
            .and_then(|name| program?.entry(name).cloned());
        let Some(entry) = entry else { return Ok(None) };
        let directives = entry.directives;
        let most = directives.required_threads.or(directives.max_threads);
        let function = Function {
            handle: state.handle(),
            max_threads: most.map_or(1024, |[x, y, z]| x.saturating_mul(y).saturating_mul(z)),
            static_shared: entry.static_shared,
            registers: 0,
            params: Some(entry.params.iter().map(|param| param.bytes).collect()),
        };
        state.functions.insert(function.handle, entry);
        Ok(Some(function))
    }

    unsafe fn function_limits(&self, _: Handle, _: u32, _: u32) -> Result<()> {
        Ok(())
    }

    unsafe fn launch(&self, launch: &RawLaunch<'_>) -> Result<()> {
        let mut state = self.state();
        let stream = launch.stream;
        let entry = state.functions.get(&launch.function).cloned();
        let entry = entry.ok_or_else(|| fault("launch", "the kernel is not loaded"))?;
        let mut params = vec![0; entry.param_bytes as usize];
        for (param, arg) in entry.params.iter().zip(launch.args) {
            let to = params.get_mut(param.offset as usize..param.offset as usize + arg.len());
            let to = to.filter(|_| arg.len() == param.bytes as usize);
            let to = to.ok_or_else(|| {
                fault(
                    "launch",
                    format!("`{}` has {} bytes", param.name, param.bytes),
                )
            })?;
            to.copy_from_slice(arg);
        }
        let launch = Launch {
            entry,
            gpu: self.gpu,
            grid: launch.grid,
            block: launch.threads,
            cluster: [launch.cluster, 1, 1],
            dynamic_shared: launch.shared,
            params,
        };
        let fits = state.machine.check_launch(&launch);
        fits.map_err(|error| fault("launch", error))?;
        state.enqueue(self.gpu, stream, Op::Launch(launch, 0));
        self.fleet.stir();
        Ok(())
    }

    fn encode(&self, spec: &TensorMapSpec) -> Result<[u64; 16]> {
        let illegal = |error: String| fault("tensor map", error);
        let dtype = dtype(spec.data_type())
            .ok_or_else(|| illegal(format!("{:?} is not emulated", spec.data_type())))?;
        let mut map = TensorMap::new(
            dtype,
            spec.base().as_raw(),
            spec.dims(),
            &spec.strides(),
            spec.tile(),
        )
        .map_err(illegal)?;
        map.swizzle = match spec.swizzle() {
            Swizzle::None => EmulatedSwizzle::None,
            Swizzle::B32 => EmulatedSwizzle::B32,
            Swizzle::B64 => EmulatedSwizzle::B64,
            Swizzle::B128 => EmulatedSwizzle::B128,
        };
        map.fill = match spec.fill() {
            OutOfBounds::Zero => Fill::Zero,
            OutOfBounds::Nan => Fill::Nan,
        };
        for (to, stride) in map.element_strides.iter_mut().zip(spec.element_strides()) {
            *to = stride;
        }
        map.validate().map_err(illegal)?;
        let bytes = map.to_bytes();
        let mut words = [0; 16];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        }
        Ok(words)
    }
}

fn dtype(ty: DataType) -> Option<Dtype> {
    Some(match ty {
        DataType::U8 => Dtype::U8,
        DataType::U16 => Dtype::U16,
        DataType::U32 => Dtype::U32,
        DataType::I32 => Dtype::S32,
        DataType::U64 => Dtype::U64,
        DataType::I64 => Dtype::S64,
        DataType::F16 => Dtype::F16,
        DataType::Bf16 => Dtype::Bf16,
        DataType::F32 => Dtype::F32,
        DataType::F64 => Dtype::F64,
        _ => return None,
    })
}
