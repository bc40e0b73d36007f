//! Streams and events.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::CudaStream;

use crate::backend::{Backend, Handle};
use crate::device::Device;
use crate::error::{Error, Result};

/// Work in order. Cheap to clone: clones are the same stream.
///
/// ```no_run
/// let device = mok::Device::cuda(0)?;
/// let stream = device.stream()?;
/// let mut buffer = device.buffer_uninit::<f32>(1024)?;
/// buffer.fill_on(0, &stream)?;
/// stream.synchronize()?;
/// # Ok::<(), mok::Error>(())
/// ```
#[derive(Clone)]
pub struct Stream {
    inner: Arc<StreamInner>,
}

struct StreamInner {
    backend: Arc<dyn Backend>,
    handle: Handle,
    owner: Owner,
}

/// Who destroys a stream.
enum Owner {
    /// This library.
    Us,
    /// The caller, or nobody (the default stream).
    Other,
    /// An object that is kept alive.
    Kept { _keep: Arc<dyn Any + Send + Sync> },
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        if matches!(self.owner, Owner::Us) {
            // SAFETY: created by this backend, and this was the last use. A failure has nowhere to go.
            let _ = unsafe { self.backend.stream_destroy(self.handle) };
        }
    }
}

impl Stream {
    fn with(backend: &Arc<dyn Backend>, handle: Handle, owner: Owner) -> Stream {
        Stream {
            inner: Arc::new(StreamInner {
                backend: backend.clone(),
                handle,
                owner,
            }),
        }
    }

    pub(crate) fn create(backend: &Arc<dyn Backend>) -> Result<Stream> {
        Ok(Stream::with(backend, backend.stream_create()?, Owner::Us))
    }

    pub(crate) fn default_of(backend: &Arc<dyn Backend>) -> Stream {
        Stream::with(backend, 0, Owner::Other)
    }

    /// A stream that other code made (a `CUstream`); it is not destroyed.
    ///
    /// # Safety
    /// `stream` is a stream of the device's context (or null, the default stream), and outlives
    /// every clone of the result.
    pub unsafe fn from_raw(device: &Device, stream: *mut c_void) -> Stream {
        Stream::with(device.backend(), stream.addr(), Owner::Other)
    }

    /// Shares a stream of cudarc's, as candle and burn use them.
    pub fn from_cudarc(device: &Device, stream: Arc<CudaStream>) -> Result<Stream> {
        let cuda = device.cuda_backend("Stream::from_cudarc")?;
        if !cuda.owns(&stream) {
            return Err(Error::OtherDevice {
                call: "Stream::from_cudarc",
                what: "stream",
            });
        }
        let handle = stream.cu_stream().addr();
        Ok(Stream::with(
            device.backend(),
            handle,
            Owner::Kept { _keep: stream },
        ))
    }

    /// The `CUstream`, for other code; null for the default stream.
    pub fn as_raw(&self) -> *mut c_void {
        ptr::without_provenance_mut(self.inner.handle)
    }

    /// Waits until all its work is done, and reports what went wrong in it.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { self.inner.backend.stream_synchronize(self.inner.handle) }
    }

    /// Makes later work wait for an event.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.check(&event.backend, "Stream::wait")?;
        // SAFETY: both live.
        unsafe {
            self.inner
                .backend
                .stream_wait(self.inner.handle, event.handle)
        }
    }

    /// Collects what is enqueued on this stream into a graph, instead of running it, until
    /// [`Stream::end_capture`]. Calls that wait for the device fail until then.
    ///
    /// ```
    /// let device = mok::Device::emulated(mok::EmulatorConfig::default())?;
    /// let stream = device.stream()?;
    /// let mut buffer = device.buffer_from(&[1u8; 16])?;
    /// stream.begin_capture()?;
    /// buffer.fill_on(7, &stream)?;
    /// let graph = stream.end_capture()?;
    /// graph.launch(&stream)?;
    /// stream.synchronize()?;
    /// assert_eq!(buffer.to_vec()?, [7; 16]);
    /// # Ok::<(), mok::Error>(())
    /// ```
    pub fn begin_capture(&self) -> Result<()> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { self.inner.backend.capture_begin(self.inner.handle) }
    }

    /// The graph of what was enqueued since [`Stream::begin_capture`].
    pub fn end_capture(&self) -> Result<Graph> {
        // SAFETY: the stream lives as long as `self`.
        let handle = unsafe { self.inner.backend.capture_end(self.inner.handle) }?;
        Ok(Graph {
            backend: self.inner.backend.clone(),
            handle,
        })
    }

    /// Whether what is enqueued is collected into a graph.
    pub(crate) fn captured(&self) -> Result<bool> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { self.inner.backend.captured(self.inner.handle) }
    }

    pub(crate) fn handle(&self) -> Handle {
        self.inner.handle
    }

    /// Refuses a stream of another device.
    pub(crate) fn check(&self, backend: &Arc<dyn Backend>, call: &'static str) -> Result<()> {
        match self.inner.backend.identity() == backend.identity() {
            true => Ok(()),
            false => Err(Error::OtherDevice {
                call,
                what: "stream",
            }),
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:#x})", self.inner.handle)
    }
}

/// A point in a stream's work.
///
/// ```no_run
/// let device = mok::Device::cuda(0)?;
/// let stream = device.stream()?;
/// let (start, end) = (device.event()?, device.event()?);
/// start.record(&stream)?;
/// // ... launches ...
/// end.record(&stream)?;
/// println!("{} ms", start.elapsed_ms(&end)?);
/// # Ok::<(), mok::Error>(())
/// ```
pub struct Event {
    backend: Arc<dyn Backend>,
    handle: Handle,
}

impl Event {
    pub(crate) fn create(backend: &Arc<dyn Backend>) -> Result<Event> {
        Ok(Event {
            backend: backend.clone(),
            handle: backend.event_create()?,
        })
    }

    /// Marks the end of the stream's present work.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        stream.check(&self.backend, "Event::record")?;
        // SAFETY: both live.
        unsafe { self.backend.event_record(self.handle, stream.handle()) }
    }

    /// Waits until the recorded point is reached.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the event lives.
        unsafe { self.backend.event_synchronize(self.handle) }
    }

    /// Whether the recorded point is reached.
    pub fn is_done(&self) -> Result<bool> {
        // SAFETY: the event lives.
        unsafe { self.backend.event_done(self.handle) }
    }

    /// Milliseconds from this event to a later one, after waiting for that one.
    pub fn elapsed_ms(&self, later: &Event) -> Result<f32> {
        if later.backend.identity() != self.backend.identity() {
            return Err(Error::OtherDevice {
                call: "Event::elapsed_ms",
                what: "event",
            });
        }
        later.synchronize()?;
        // SAFETY: both live.
        unsafe { self.backend.event_elapsed(self.handle, later.handle) }
    }

    /// The `CUevent`, for other code.
    pub fn as_raw(&self) -> *mut c_void {
        ptr::without_provenance_mut(self.handle)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by this backend, and owned. A failure has nowhere to go.
        let _ = unsafe { self.backend.event_destroy(self.handle) };
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:#x})", self.handle)
    }
}

/// Work that was captured once and can be launched again and again. Memory and modules that it
/// uses must outlive it.
pub struct Graph {
    backend: Arc<dyn Backend>,
    handle: Handle,
}

impl Graph {
    /// Enqueues the work.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        stream.check(&self.backend, "Graph::launch")?;
        // SAFETY: both live; what was captured was enqueued under its own calls' contracts.
        unsafe { self.backend.graph_launch(self.handle, stream.handle()) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by this backend, and owned. A failure has nowhere to go.
        let _ = unsafe { self.backend.graph_destroy(self.handle) };
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({:#x})", self.handle)
    }
}
