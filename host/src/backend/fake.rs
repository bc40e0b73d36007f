//! Memory of this process as a device, for tests of everything above the backend.
//! It launches nothing: it keeps what it was asked to launch.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::Mutex;

use super::{Backend, Code, DeviceInfo, DeviceLimits, Function, Handle, RawLaunch};
use crate::error::Result;
use crate::tensor_map::TensorMapSpec;

/// A launch as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launched {
    pub grid: [u32; 3],
    pub threads: [u32; 3],
    pub cluster: u32,
    pub shared: u32,
    pub stream: Handle,
    pub args: Vec<Vec<u8>>,
}

/// Everything that is alive, and everything that was launched.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub memory: HashMap<u64, Box<[u128]>>,
    pub handles: Vec<Handle>,
    pub launched: Vec<Launched>,
    next: Handle,
}

impl State {
    fn handle(&mut self) -> Handle {
        self.next += 1;
        self.handles.push(self.next);
        self.next
    }

    fn drop_handle(&mut self, handle: Handle) {
        let at = self.handles.iter().position(|&alive| alive == handle);
        self.handles.remove(at.expect("a handle that is alive"));
    }
}

#[derive(Debug)]
pub(crate) struct Fake {
    info: DeviceInfo,
    pub state: Mutex<State>,
}

impl Fake {
    pub(crate) fn new() -> Fake {
        let limits = DeviceLimits {
            sm_count: 4,
            max_threads: 1024,
            max_block: [1024, 1024, 64],
            max_shared: 227 * 1024,
            max_grid: [1 << 30, 65535, 65535],
            clusters: true,
        };
        let info = DeviceInfo {
            name: "fake".into(),
            ordinal: 0,
            capability: (9, 0),
            limits,
            driver_version: 0,
        };
        Fake {
            info,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

impl Backend for Fake {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn memory(&self) -> Result<(usize, usize)> {
        Ok((1, 2))
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn alloc(&self, bytes: usize) -> Result<u64> {
        let mut memory = vec![0u128; bytes.div_ceil(16)].into_boxed_slice();
        let address = memory.as_mut_ptr().expose_provenance() as u64;
        self.state().memory.insert(address, memory);
        Ok(address)
    }

    unsafe fn free(&self, address: u64) -> Result<()> {
        let freed = self.state().memory.remove(&address);
        freed.expect("memory that is alive");
        Ok(())
    }

    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize, _: Handle) -> Result<()> {
        // SAFETY: valid ranges, by the trait's contract.
        unsafe { from.copy_to(pointer(to), bytes) };
        Ok(())
    }

    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize, _: Handle) -> Result<()> {
        // SAFETY: valid ranges, by the trait's contract.
        unsafe { to.copy_from(pointer(from), bytes) };
        Ok(())
    }

    unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize, _: Handle) -> Result<()> {
        // SAFETY: valid ranges, by the trait's contract.
        unsafe { pointer(to).copy_from(pointer(from), bytes) };
        Ok(())
    }

    unsafe fn fill(&self, to: u64, byte: u8, bytes: usize, _: Handle) -> Result<()> {
        // SAFETY: a valid range, by the trait's contract.
        unsafe { pointer(to).write_bytes(byte, bytes) };
        Ok(())
    }

    fn stream_create(&self) -> Result<Handle> {
        Ok(self.state().handle())
    }

    unsafe fn stream_destroy(&self, stream: Handle) -> Result<()> {
        self.state().drop_handle(stream);
        Ok(())
    }

    unsafe fn stream_synchronize(&self, _: Handle) -> Result<()> {
        Ok(())
    }

    unsafe fn stream_wait(&self, _: Handle, _: Handle) -> Result<()> {
        Ok(())
    }

    fn event_create(&self) -> Result<Handle> {
        Ok(self.state().handle())
    }

    unsafe fn event_destroy(&self, event: Handle) -> Result<()> {
        self.state().drop_handle(event);
        Ok(())
    }

    unsafe fn event_record(&self, _: Handle, _: Handle) -> Result<()> {
        Ok(())
    }

    unsafe fn event_synchronize(&self, _: Handle) -> Result<()> {
        Ok(())
    }

    unsafe fn event_done(&self, _: Handle) -> Result<bool> {
        Ok(true)
    }

    unsafe fn event_elapsed(&self, _: Handle, _: Handle) -> Result<f32> {
        Ok(1.0)
    }

    unsafe fn capture_begin(&self, _: Handle) -> Result<()> {
        Ok(())
    }

    unsafe fn capture_end(&self, _: Handle) -> Result<Handle> {
        Ok(self.state().handle())
    }

    unsafe fn graph_launch(&self, _: Handle, _: Handle) -> Result<()> {
        Ok(())
    }

    unsafe fn graph_destroy(&self, graph: Handle) -> Result<()> {
        self.state().drop_handle(graph);
        Ok(())
    }

    unsafe fn captured(&self, _: Handle) -> Result<bool> {
        Ok(false)
    }

    unsafe fn write_beside(&self, address: u64, word: u64, beside: Handle) -> Result<()> {
        // SAFETY: valid ranges, by the trait's contract.
        unsafe { self.copy_in(address, word.to_le_bytes().as_ptr(), 8, beside) }
    }

    fn mailbox_alloc(&self, words: usize) -> Result<u64> {
        self.alloc(8 * words)
    }

    unsafe fn mailbox_free(&self, address: u64) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { self.free(address) }
    }

    unsafe fn mailbox_read(&self, address: u64, to: &mut [u64]) -> Result<()> {
        // SAFETY: valid ranges, by the trait's contract.
        unsafe {
            pointer(address)
                .cast::<u64>()
                .copy_to(to.as_mut_ptr(), to.len())
        };
        Ok(())
    }

    unsafe fn mailbox_clear(&self, address: u64, words: usize) -> Result<()> {
        // SAFETY: a valid range, by the trait's contract.
        unsafe { self.fill(address, 0, 8 * words, 0) }
    }

    fn module_load(&self, _: Code<'_>) -> Result<Handle> {
        Ok(self.state().handle())
    }

    unsafe fn module_unload(&self, module: Handle) -> Result<()> {
        self.state().drop_handle(module);
        Ok(())
    }

    unsafe fn function(&self, _: Handle, entry: &CStr, _: bool) -> Result<Option<Function>> {
        let function = Function {
            handle: 1,
            max_threads: 1024,
            static_shared: 0,
            registers: 32,
            params: None,
        };
        Ok((entry != c"missing").then_some(function))
    }

    unsafe fn function_limits(&self, _: Handle, _: u32, _: u32) -> Result<()> {
        Ok(())
    }

    unsafe fn launch(&self, launch: &RawLaunch<'_>) -> Result<()> {
        self.state().launched.push(Launched {
            grid: launch.grid,
            threads: launch.threads,
            cluster: launch.cluster,
            shared: launch.shared,
            stream: launch.stream,
            args: launch.args.iter().map(|bytes| bytes.to_vec()).collect(),
        });
        Ok(())
    }

    fn encode(&self, spec: &TensorMapSpec) -> Result<[u64; 16]> {
        let mut map = [0; 16];
        map[0] = spec.base().as_raw();
        map[15] = !0;
        Ok(map)
    }
}
