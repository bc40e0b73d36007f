//! NCCL as a wire: point-to-point calls in groups, on a communicator that never blocks, so that a
//! rank that is gone or late ends the wait of the others.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::CudaContext;
use cudarc::nccl::sys::{ncclComm_t, ncclUniqueId};
use libloading::Library;
use mok_comm::Group;
use mok_kernel::failure::Wait;

use super::of_group;
use super::wire::{Part, Wire};
use crate::device::Device;
use crate::error::Result;
use crate::layer::config::MoeConfig;
use crate::layer::{LayerError, together};
use crate::stream::{Event, Stream};

/// A path that goes before the names.
const PATH: &str = "MOK_NCCL";
/// Names of the library. (cudarc looks for neither the first, which is all that the wheel holds,
/// nor without a panic.)
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// `ncclResult_t`, as numbers: newer libraries have more of them.
const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;
/// `ncclUint8`.
const BYTE: c_int = 1;

/// `ncclConfig_t` as far as `blocking`, and the word that fills it up; NCCL takes shorter ones for
/// those of older versions.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
}

impl Config {
    fn not_blocking() -> Config {
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            // 2.14, the first that knows `blocking`.
            version: 21400,
            blocking: 0,
            // NCCL_CONFIG_UNDEF_INT.
            cga_cluster_size: c_int::MIN,
        }
    }
}

macro_rules! functions {
    ($($name:ident ( $($arg:ty),* ) -> $result:ty as $symbol:literal;)*) => {
        /// NCCL's functions, looked up once.
        struct Functions {
            $($name: unsafe extern "C" fn($($arg),*) -> $result,)*
        }

        impl Functions {
            fn of(library: &Library) -> Result<Functions, String> {
                Ok(Functions {
                    $($name: {
                        type F = unsafe extern "C" fn($($arg),*) -> $result;
                        // SAFETY: the type is the function's declaration in nccl.h.
                        let found = unsafe { library.get::<F>($symbol.as_bytes()) };
                        *found.map_err(|_| format!("it has no {} (NCCL 2.14 or later is needed)", $symbol))?
                    },)*
                })
            }
        }
    };
}

functions! {
    unique_id(*mut ncclUniqueId) -> c_int as "ncclGetUniqueId";
    init(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut Config) -> c_int as "ncclCommInitRankConfig";
    abort(ncclComm_t) -> c_int as "ncclCommAbort";
    state(ncclComm_t, *mut c_int) -> c_int as "ncclCommGetAsyncError";
    group_start() -> c_int as "ncclGroupStart";
    group_end() -> c_int as "ncclGroupEnd";
    send(*const c_void, usize, c_int, c_int, ncclComm_t, *mut c_void) -> c_int as "ncclSend";
    receive(*mut c_void, usize, c_int, c_int, ncclComm_t, *mut c_void) -> c_int as "ncclRecv";
    error_string(c_int) -> *const c_char as "ncclGetErrorString";
    last_error(ncclComm_t) -> *const c_char as "ncclGetLastError";
}

impl Functions {
    /// The library, loaded when it is first asked for; a failure isn't remembered.
    fn get() -> Result<&'static Functions, LayerError> {
        static LOADED: OnceLock<(Library, Functions)> = OnceLock::new();
        if let Some((_, functions)) = LOADED.get() {
            return Ok(functions);
        }
        let path = std::env::var(PATH).ok().filter(|path| !path.is_empty());
        let names = path.into_iter().chain(NAMES.map(str::to_owned));
        let (mut tried, mut reason) = (Vec::new(), String::new());
        for name in names {
            // SAFETY: opening NCCL runs its initialisers, which it is made for.
            let opened = unsafe { Library::new(&name) }.map_err(in_full);
            let found = opened.and_then(|library| Ok((Functions::of(&library)?, library)));
            match found {
                Ok((functions, library)) => {
                    return Ok(&LOADED.get_or_init(|| (library, functions)).1);
                }
                Err(error) if reason.is_empty() => reason = error,
                Err(_) => {}
            }
            tried.push(name);
        }
        Err(LayerError::NoNccl {
            reason,
            tried: tried.join(", "),
        })
    }

    /// An error for any result but success and "in progress".
    fn check(&self, code: c_int, call: &'static str, comm: ncclComm_t) -> Result<(), LayerError> {
        if code == SUCCESS || code == IN_PROGRESS {
            return Ok(());
        }
        let said = |text: *const c_char| {
            if text.is_null() {
                return String::new();
            }
            // SAFETY: a NUL-terminated text that NCCL keeps.
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned()
        };
        // SAFETY: both take any value, null among them.
        let (name, more) = unsafe { ((self.error_string)(code), (self.last_error)(comm)) };
        let (name, more) = (said(name), said(more));
        let more = more.trim();
        let text = if more.is_empty() {
            format!("{name} ({code})")
        } else {
            format!("{name} ({code}): {more}")
        };
        Err(LayerError::Nccl { call, text })
    }
}

/// What the loader says, beyond that it failed.
fn in_full(error: libloading::Error) -> String {
    match error.source() {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

/// Loads the library, or says why it can't.
pub(in crate::layer) fn check_library() -> Result<(), LayerError> {
    Functions::get().map(drop)
}

/// A communicator; null once it was given up.
struct Comm(ncclComm_t);

// SAFETY: NCCL's communicators may be used from any thread, one at a time; a mutex sees to that.
unsafe impl Send for Comm {}

/// An exchange that is under way: where the stream reaches it, and where it is over.
struct Pending {
    before: Event,
    after: Event,
}

pub(super) struct Nccl {
    functions: &'static Functions,
    device: Device,
    context: Arc<CudaContext>,
    group: Arc<Group>,
    comm: Mutex<Comm>,
    pending: Mutex<Vec<Pending>>,
    deadline: Duration,
}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nccl").finish_non_exhaustive()
    }
}

impl Nccl {
    /// Collective.
    pub fn new(device: &Device, group: &Arc<Group>, config: &MoeConfig) -> Result<Nccl> {
        let context = together(group, device.cudarc_context())?;
        let functions = together(group, Functions::get().map_err(Into::into))?;
        let own = match group.rank() {
            0 => unique_id(functions),
            _ => Ok(Vec::new()),
        };
        let all = group.try_all_gather(own)?;
        let mut id = ncclUniqueId { internal: [0; 128] };
        for (to, from) in id
            .internal
            .iter_mut()
            .zip(all.first().into_iter().flatten())
        {
            *to = *from as c_char;
        }
        let nccl = Nccl {
            functions,
            device: device.clone(),
            context,
            group: group.clone(),
            comm: Mutex::new(Comm(std::ptr::null_mut())),
            pending: Mutex::default(),
            deadline: config.progress_deadline,
        };
        let joined = nccl.join(id, config.start_deadline);
        if let Err(error) = &joined {
            // The others wait in NCCL, not in the group.
            group.abort(error);
        }
        joined?;
        together(group, Ok(()))?;
        Ok(nccl)
    }

    fn join(&self, id: ncclUniqueId, deadline: Duration) -> Result<()> {
        self.bind()?;
        let (rank, ranks) = (self.group.rank(), self.group.world_size());
        let mut comm = self.comm.lock().unwrap_or_else(PoisonError::into_inner);
        let mut config = Config::not_blocking();
        // SAFETY: NCCL writes the communicator, and reads as much of the configuration as its
        // size says; the device's context is current.
        let code = unsafe {
            (self.functions.init)(&mut comm.0, ranks as c_int, id, rank as c_int, &mut config)
        };
        let begun = self
            .functions
            .check(code, "ncclCommInitRankConfig", comm.0)
            .map_err(Into::into);
        let joined = begun.and_then(|()| {
            let until = Instant::now() + deadline;
            self.finish(
                &comm,
                "ncclCommInitRankConfig",
                Wait::Routes,
                (until, deadline),
            )
        });
        if joined.is_err() {
            self.give_up(&mut comm);
        }
        joined
    }

    fn bind(&self) -> Result<(), LayerError> {
        let bound = self.context.bind_to_thread();
        bound.map_err(|error| LayerError::Nccl {
            call: "cuCtxSetCurrent",
            text: error.to_string(),
        })
    }

    /// Waits until a call that went on in NCCL's own threads is over.
    fn finish(
        &self,
        comm: &Comm,
        call: &'static str,
        wait: Wait,
        until: (Instant, Duration),
    ) -> Result<()> {
        let mut pause = Pause::default();
        loop {
            match self.state(comm, call)? {
                SUCCESS => return Ok(()),
                _ => self.may_wait(wait, Some(until))?,
            }
            pause.rest();
        }
    }

    /// What the communicator is at: success or "in progress", else an error.
    fn state(&self, comm: &Comm, call: &'static str) -> Result<c_int> {
        let mut state = SUCCESS;
        if comm.0.is_null() {
            return Ok(SUCCESS);
        }
        // SAFETY: a live communicator; NCCL writes one number.
        let code = unsafe { (self.functions.state)(comm.0, &mut state) };
        self.functions
            .check(code, "ncclCommGetAsyncError", comm.0)?;
        self.functions.check(state, call, comm.0)?;
        Ok(state)
    }

    /// Whether there is still something to wait for.
    fn may_wait(&self, wait: Wait, until: Option<(Instant, Duration)>) -> Result<()> {
        if let Some(error) = self.group.failed() {
            return Err(of_group(error, wait, self.deadline).into());
        }
        match until {
            Some((until, deadline)) if Instant::now() > until => {
                Err(LayerError::Stuck { deadline }.into())
            }
            _ => Ok(()),
        }
    }

    /// Waits for an event; with a deadline, for no longer.
    fn reach(&self, event: &Event, deadline: Option<Duration>) -> Result<()> {
        let until = deadline.map(|deadline| (Instant::now() + deadline, deadline));
        let mut pause = Pause::default();
        while !event.is_done()? {
            self.may_wait(Wait::Results, until)?;
            {
                let comm = self.comm.lock().unwrap_or_else(PoisonError::into_inner);
                self.state(&comm, "ncclSend or ncclRecv")?;
            }
            pause.rest();
        }
        Ok(())
    }

    /// Ends what is under way on a communicator, and frees it.
    fn give_up(&self, comm: &mut Comm) {
        let old = std::mem::replace(&mut comm.0, std::ptr::null_mut());
        if !old.is_null() && self.bind().is_ok() {
            // SAFETY: a communicator that nobody uses from here on. A failure has nowhere to go.
            let _ = unsafe { (self.functions.abort)(old) };
        }
    }

    /// The calls of one exchange, enqueued by the time it returns.
    ///
    /// # Safety
    /// As [`Wire::exchange`].
    unsafe fn enqueue(
        &self,
        comm: &Comm,
        sends: &[Part],
        receives: &[Part],
        stream: &Stream,
    ) -> Result<()> {
        let functions = self.functions;
        // SAFETY: no preconditions.
        let started = unsafe { (functions.group_start)() };
        functions.check(started, "ncclGroupStart", comm.0)?;
        let mut result = Ok(());
        for (peer, (from, to)) in sends.iter().zip(receives).enumerate() {
            let peer = peer as c_int;
            let stream = stream.as_raw();
            if from.bytes > 0 && result.is_ok() {
                let at = std::ptr::without_provenance(from.at as usize);
                // SAFETY: device memory, a live stream, and a communicator with this peer.
                let code = unsafe {
                    (functions.send)(at, from.bytes as usize, BYTE, peer, comm.0, stream)
                };
                result = functions.check(code, "ncclSend", comm.0);
            }
            if to.bytes > 0 && result.is_ok() {
                let at = std::ptr::without_provenance_mut(to.at as usize);
                // SAFETY: as above.
                let code = unsafe {
                    (functions.receive)(at, to.bytes as usize, BYTE, peer, comm.0, stream)
                };
                result = functions.check(code, "ncclRecv", comm.0);
            }
        }
        // SAFETY: a group was started on this thread.
        let ended = unsafe { (functions.group_end)() };
        result?;
        functions.check(ended, "ncclGroupEnd", comm.0)?;
        let until = Instant::now() + self.deadline;
        self.finish(comm, "ncclGroupEnd", Wait::Results, (until, self.deadline))
    }
}

/// A new communicator's id.
fn unique_id(functions: &Functions) -> Result<Vec<u8>, LayerError> {
    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: NCCL writes one id.
    let code = unsafe { (functions.unique_id)(&mut id) };
    functions.check(code, "ncclGetUniqueId", std::ptr::null_mut())?;
    Ok(id.internal.iter().map(|&byte| byte as u8).collect())
}

impl Wire for Nccl {
    unsafe fn exchange(&self, sends: &[Part], receives: &[Part], stream: &Stream) -> Result<()> {
        if sends.iter().chain(receives).all(|part| part.bytes == 0) {
            return Ok(());
        }
        self.bind()?;
        let pending = Pending {
            before: self.device.event()?,
            after: self.device.event()?,
        };
        pending.before.record(stream)?;
        let mut comm = self.comm.lock().unwrap_or_else(PoisonError::into_inner);
        if comm.0.is_null() {
            return Err(LayerError::Nccl {
                call: "ncclSend",
                text: "the communicator was given up: `recover` makes a new one".into(),
            }
            .into());
        }
        // SAFETY: the same contract.
        let enqueued = unsafe { self.enqueue(&comm, sends, receives, stream) };
        if enqueued.is_err() {
            self.give_up(&mut comm);
        }
        enqueued?;
        pending.after.record(stream)?;
        let mut all = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(pending);
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        let pending =
            std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        for Pending { before, after } in pending {
            // What this rank computes first takes as long as it takes; then the others are late.
            let settled = self
                .reach(&before, None)
                .and_then(|()| self.reach(&after, Some(self.deadline)));
            if settled.is_err() {
                self.abort();
                return settled;
            }
        }
        Ok(())
    }

    fn abort(&self) {
        let mut comm = self.comm.lock().unwrap_or_else(PoisonError::into_inner);
        self.give_up(&mut comm);
    }
}

impl Drop for Nccl {
    /// Every call has ended with all ranks' exchanges, so nobody still needs this rank, and
    /// `ncclCommDestroy` would wait for ranks that may be gone.
    fn drop(&mut self) {
        self.abort();
    }
}

/// Polls densely at first, then less so.
#[derive(Default)]
struct Pause(u32);

impl Pause {
    fn rest(&mut self) {
        self.0 = self.0.saturating_add(1);
        if self.0 < 1000 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_says_where_it_was_looked_for() {
        // Whether it is there or not, on this machine; where somebody says that it is, it must load.
        let named = std::env::var(PATH).is_ok_and(|path| std::path::Path::new(&path).exists());
        if let Err(error) = Functions::get() {
            assert!(!named, "{error}");
            let text = error.to_string();
            for part in ["libnccl.so.2", "nvidia-nccl-cu13", "LD_LIBRARY_PATH", PATH] {
                assert!(text.contains(part), "{text}");
            }
        }
    }

    #[test]
    fn the_short_configuration_is_the_headers_first_words() {
        assert_eq!(size_of::<Config>(), 24);
        use cudarc::nccl::sys::ncclConfig_t;
        assert_eq!(
            std::mem::offset_of!(Config, blocking),
            std::mem::offset_of!(ncclConfig_t, blocking)
        );
        assert_eq!(
            std::mem::offset_of!(Config, version),
            std::mem::offset_of!(ncclConfig_t, version)
        );
    }
}
