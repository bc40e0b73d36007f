//! A GPU that is emulated in this process.
//!
//! Streams are one: work runs in the order in which it was enqueued, launches when something
//! waits for them.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mok_emu::code::Entry;
use mok_emu::machine::{Config, Launch, Machine};
use mok_emu::program::Program;
use mok_emu::tensor::swizzle::Swizzle as EmulatedSwizzle;
use mok_emu::tensor::tma::{Dtype, Fill, TensorMap};

use super::{Backend, Code, DeviceInfo, DeviceLimits, Function, Handle, RawLaunch};
use crate::emulator::EmulatorConfig;
use crate::error::{Error, Result};
use crate::tensor_map::{DataType, OutOfBounds, Swizzle, TensorMapSpec};

/// The memory that an emulated GPU says it has.
const MEMORY: usize = 16 << 30;

#[derive(Debug)]
struct State {
    machine: Machine,
    modules: HashMap<Handle, Program>,
    functions: HashMap<Handle, Arc<Entry>>,
    /// Simulated nanoseconds at which events were recorded.
    events: HashMap<Handle, u64>,
    next: Handle,
}

impl State {
    fn handle(&mut self) -> Handle {
        self.next += 1;
        self.next
    }

    /// Runs what was launched. What the machine found is an error, once.
    fn settle(&mut self) -> Result<()> {
        self.machine.run();
        let findings = self.machine.take_findings();
        match findings.is_empty() {
            true => Ok(()),
            false => Err(Error::Emulator {
                findings: findings.iter().map(ToString::to_string).collect(),
            }),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Emulated {
    info: DeviceInfo,
    state: Mutex<State>,
}

impl Emulated {
    pub(crate) fn new(config: &EmulatorConfig) -> Emulated {
        let machine = Machine::new(Config {
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
        let info = DeviceInfo {
            name: "emulated sm_90a".into(),
            ordinal: 0,
            capability: (9, 0),
            limits,
            driver_version: 0,
        };
        let state = State {
            machine,
            modules: HashMap::new(),
            functions: HashMap::new(),
            events: HashMap::new(),
            next: 0,
        };
        Emulated {
            info,
            state: Mutex::new(state),
        }
    }

    /// A panic of another thread in the emulator leaves its state as it is.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state after everything that was enqueued.
    fn settled(&self) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        state.settle()?;
        Ok(state)
    }
}

fn fault(call: &'static str, error: impl std::fmt::Display) -> Error {
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
        let used = self.state().machine.memory.used(0) as usize;
        Ok((MEMORY.saturating_sub(used), MEMORY))
    }

    fn synchronize(&self) -> Result<()> {
        self.settled().map(drop)
    }

    fn alloc(&self, bytes: usize) -> Result<u64> {
        let mut state = self.state();
        let allocated = state.machine.memory.alloc(0, bytes as u64);
        allocated.map_err(|error| fault("alloc", error.reason))
    }

    unsafe fn free(&self, address: u64) -> Result<()> {
        let mut state = self.settled()?;
        let freed = state.machine.memory.free(address);
        freed.map_err(|error| fault("free", error.reason))
    }

    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize, _: Handle) -> Result<()> {
        // SAFETY: a valid host range, by the trait's contract.
        let values = unsafe { std::slice::from_raw_parts(from, bytes) };
        let copied = self.settled()?.machine.memory.host_write(to, values);
        copied.map_err(|error| fault("copy to the device", error.reason))
    }

    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize, _: Handle) -> Result<()> {
        let state = self.settled()?;
        let values = state.machine.memory.read(from, bytes as u64);
        let values = values.map_err(|error| fault("copy from the device", error.reason))?;
        // SAFETY: a valid host range, by the trait's contract.
        unsafe { values.as_ptr().copy_to_nonoverlapping(to, bytes) };
        Ok(())
    }

    unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize, _: Handle) -> Result<()> {
        let mut state = self.settled()?;
        let values = state
            .machine
            .memory
            .read(from, bytes as u64)
            .map(<[u8]>::to_vec);
        let copied = values.and_then(|values| state.machine.memory.host_write(to, &values));
        copied.map_err(|error| fault("copy on the device", error.reason))
    }

    unsafe fn fill(&self, to: u64, byte: u8, bytes: usize, _: Handle) -> Result<()> {
        let filled = self
            .settled()?
            .machine
            .memory
            .host_write(to, &vec![byte; bytes]);
        filled.map_err(|error| fault("fill", error.reason))
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

    unsafe fn event_record(&self, event: Handle, _: Handle) -> Result<()> {
        let mut state = self.settled()?;
        let time = state.machine.time();
        state.events.insert(event, time);
        Ok(())
    }

    unsafe fn event_synchronize(&self, _: Handle) -> Result<()> {
        self.synchronize()
    }

    unsafe fn event_done(&self, _: Handle) -> Result<bool> {
        // It was reached when it was recorded.
        Ok(true)
    }

    unsafe fn event_elapsed(&self, start: Handle, end: Handle) -> Result<f32> {
        let state = self.state();
        match (state.events.get(&start), state.events.get(&end)) {
            (Some(&start), Some(&end)) => Ok(end.saturating_sub(start) as f32 / 1e6),
            _ => Err(fault("elapsed", "an event was never recorded")),
        }
    }

    fn module_load(&self, code: Code<'_>) -> Result<Handle> {
        let Code::Ptx(text) = code else {
            return Err(fault("load", "the emulator executes PTX, not cubins"));
        };
        let text = text.to_str().map_err(|error| fault("load", error))?;
        let mut state = self.state();
        let program = Program::load(&mut state.machine, 0, text);
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
        let launched = state.machine.launch(Launch {
            entry,
            gpu: 0,
            grid: launch.grid,
            block: launch.threads,
            cluster: [launch.cluster, 1, 1],
            dynamic_shared: launch.shared,
            params,
        });
        launched.map(drop).map_err(|error| fault("launch", error))
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
