//! Device memory: addresses, buffers, and views into them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::stream::Stream;

/// An address in device memory; what kernels take as a pointer.
///
/// ```
/// let pointer = mok::DevicePtr::from_raw(0x7000_0000);
/// assert_eq!(pointer.byte_add(16).unwrap().as_raw(), 0x7000_0010);
/// assert!(mok::DevicePtr::NULL.is_null());
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct DevicePtr(u64);

impl DevicePtr {
    /// The null address.
    pub const NULL: DevicePtr = DevicePtr(0);

    /// An address that other code allocated (a `CUdeviceptr`).
    pub const fn from_raw(address: u64) -> DevicePtr {
        DevicePtr(address)
    }

    /// The number.
    pub const fn as_raw(self) -> u64 {
        self.0
    }

    /// Whether it is null.
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The address this many bytes on, unless that overflows.
    pub const fn byte_add(self, bytes: u64) -> Option<DevicePtr> {
        match self.0.checked_add(bytes) {
            Some(address) => Some(DevicePtr(address)),
            None => None,
        }
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Device memory for `len` values of `T`, freed when dropped.
///
/// Methods without a stream wait for all work on the device first, so they see
/// what every earlier launch wrote; those with `_on` are ordered on one stream.
///
/// ```no_run
/// let device = mok::Device::cuda(0)?;
/// let buffer = device.buffer_from(&[1.0f32, 2.0, 3.0])?;
/// assert_eq!(buffer.slice(1..)?.to_vec()?, [2.0, 3.0]);
/// # Ok::<(), mok::Error>(())
/// ```
pub struct Buffer<T: Pod> {
    backend: Arc<dyn Backend>,
    ptr: DevicePtr,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// Memory with whatever bits it holds. No memory is taken for 0 bytes: the pointer is null.
    pub(crate) fn uninit(backend: &Arc<dyn Backend>, len: usize) -> Result<Buffer<T>> {
        let limit = isize::MAX as usize;
        let bytes = len
            .checked_mul(size_of::<T>())
            .filter(|&bytes| bytes <= limit)
            .ok_or(Error::TooLarge {
                what: "buffer",
                len,
                size: size_of::<T>(),
                limit,
            })?;
        let ptr = match bytes {
            0 => DevicePtr::NULL,
            _ => DevicePtr(backend.alloc(bytes)?),
        };
        Ok(Buffer {
            backend: backend.clone(),
            ptr,
            len,
            values: PhantomData,
        })
    }

    /// Values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The address of the first value; null for a buffer of 0 bytes.
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// All of it.
    pub fn view(&self) -> Slice<'_, T> {
        Slice {
            backend: &self.backend,
            ptr: self.ptr,
            len: self.len,
            values: PhantomData,
        }
    }

    /// All of it, to write to.
    pub fn view_mut(&mut self) -> SliceMut<'_, T> {
        SliceMut {
            view: Slice {
                backend: &self.backend,
                ptr: self.ptr,
                len: self.len,
                values: PhantomData,
            },
        }
    }

    /// A part.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice<'_, T>> {
        self.view().slice(range)
    }

    /// A part, to write to.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<SliceMut<'_, T>> {
        let view = self.view().slice(range)?;
        Ok(SliceMut { view })
    }

    /// The values, after all work on the device.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.view().to_vec()
    }

    /// Copies the values out, after all work on the device.
    pub fn copy_to(&self, to: &mut [T]) -> Result<()> {
        self.view().copy_to(to)
    }

    /// Copies values in, after all work on the device, and waits until they are there.
    pub fn copy_from(&mut self, from: &[T]) -> Result<()> {
        self.view_mut().copy_from(from)
    }

    /// Sets every byte, after all work on the device, and waits until it is done.
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        self.view_mut().fill(byte)
    }

    /// Sets every byte, on a stream.
    pub fn fill_on(&mut self, byte: u8, stream: &Stream) -> Result<()> {
        self.view_mut().fill_on(byte, stream)
    }

    /// Gives up the memory without freeing it. It lasts as long as the device's context: until the
    /// last of its users, this library's or others', lets go of it.
    pub fn into_raw(self) -> DevicePtr {
        let mut this = self;
        std::mem::replace(&mut this.ptr, DevicePtr::NULL)
    }

    /// Takes over memory that the driver's `cuMemAlloc` gave, and frees it when dropped.
    ///
    /// # Safety
    /// `ptr` was allocated in the device's context by [`Buffer`] or `cuMemAlloc`, holds at
    /// least `len` values, is aligned for them, and nothing else frees it.
    pub unsafe fn from_raw(device: &crate::Device, ptr: DevicePtr, len: usize) -> Buffer<T> {
        Buffer {
            backend: device.backend().clone(),
            ptr,
            len,
            values: PhantomData,
        }
    }
}

impl<T: Pod> Drop for Buffer<T> {
    fn drop(&mut self) {
        if !self.ptr.is_null() {
            // SAFETY: allocated by this backend, and owned; the driver waits for work that uses it.
            // A failed free has nowhere to go: the next call reports a broken context.
            let _ = unsafe { self.backend.free(self.ptr.0) };
        }
    }
}

impl<T: Pod> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

/// A part of a [`Buffer`], to read from.
pub struct Slice<'a, T: Pod> {
    backend: &'a Arc<dyn Backend>,
    ptr: DevicePtr,
    len: usize,
    values: PhantomData<&'a T>,
}

impl<T: Pod> Clone for Slice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Pod> Copy for Slice<'_, T> {}

impl<T: Pod> fmt::Debug for Slice<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = std::any::type_name::<T>();
        write!(f, "[{name}; {}] at {:?}", self.len, self.ptr)
    }
}

impl<'a, T: Pod> Slice<'a, T> {
    /// Values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first value.
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// A part of the part.
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Slice<'a, T>> {
        let len = self.len;
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => len,
        };
        if start > end || end > len {
            return Err(Error::Range { start, end, len });
        }
        // In range of an allocation, so neither the product nor the sum overflows.
        let ptr = DevicePtr(self.ptr.0 + (start * size_of::<T>()) as u64);
        Ok(Slice {
            ptr,
            len: end - start,
            ..self
        })
    }

    /// The values, after all work on the device.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        // Device memory may be larger than the host's, and running out would end the process.
        let mut values = Vec::new();
        values
            .try_reserve_exact(self.len)
            .map_err(|_| Error::HostMemory {
                len: self.len,
                size: size_of::<T>(),
            })?;
        values.resize(self.len, T::zeroed());
        self.copy_to(&mut values)?;
        Ok(values)
    }

    /// Copies the values out, after all work on the device.
    pub fn copy_to(&self, to: &mut [T]) -> Result<()> {
        self.check_len("copy_to", to.len())?;
        self.backend.synchronize()?;
        // SAFETY: waited for below.
        unsafe { self.copy_out(to, 0) }?;
        self.wait(0)
    }

    /// Copies the values out, after the stream's earlier work, and waits for them.
    pub fn copy_to_on(&self, to: &mut [T], stream: &Stream) -> Result<()> {
        self.check_len("copy_to_on", to.len())?;
        stream.check(self.backend, "copy_to_on")?;
        // SAFETY: waited for below.
        unsafe { self.copy_out(to, stream.handle()) }?;
        self.wait(stream.handle())
    }

    /// Copies the values out, after the stream's earlier work, without waiting.
    ///
    /// # Safety
    /// `to` stays alive, and is neither read nor written, until the stream has passed this call.
    pub unsafe fn copy_to_async(&self, to: &mut [T], stream: &Stream) -> Result<()> {
        self.check_len("copy_to_async", to.len())?;
        stream.check(self.backend, "copy_to_async")?;
        // SAFETY: by this function's contract.
        unsafe { self.copy_out(to, stream.handle()) }
    }

    fn check_len(&self, call: &'static str, host: usize) -> Result<()> {
        match host == self.len {
            true => Ok(()),
            false => Err(Error::Length {
                call,
                host,
                device: self.len,
            }),
        }
    }

    fn wait(&self, stream: usize) -> Result<()> {
        // SAFETY: 0 is the default stream; others were checked to be this backend's.
        unsafe { self.backend.stream_synchronize(stream) }
    }

    /// # Safety
    /// As [`Slice::copy_to_async`]; the lengths are equal and the stream is this backend's.
    unsafe fn copy_out(&self, to: &mut [T], stream: usize) -> Result<()> {
        match size_of_val(to) {
            0 => Ok(()),
            // SAFETY: the lengths agree, and the rest is this function's contract.
            bytes => unsafe {
                self.backend
                    .copy_out(to.as_mut_ptr().cast(), self.ptr.0, bytes, stream)
            },
        }
    }

    /// # Safety
    /// As [`SliceMut::copy_from_async`]; the lengths are equal and the stream is this backend's.
    unsafe fn copy_in(&self, from: &[T], stream: usize) -> Result<()> {
        match size_of_val(from) {
            0 => Ok(()),
            // SAFETY: the lengths agree, and the rest is this function's contract.
            bytes => unsafe {
                self.backend
                    .copy_in(self.ptr.0, from.as_ptr().cast(), bytes, stream)
            },
        }
    }
}

/// A part of a [`Buffer`], to write to.
#[derive(Debug)]
pub struct SliceMut<'a, T: Pod> {
    view: Slice<'a, T>,
}

impl<'a, T: Pod> SliceMut<'a, T> {
    /// The same part, to read from.
    pub fn as_slice(&self) -> Slice<'_, T> {
        self.view
    }

    /// Values.
    pub fn len(&self) -> usize {
        self.view.len
    }

    /// Whether it holds no value.
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    /// The address of the first value.
    pub fn ptr(&self) -> DevicePtr {
        self.view.ptr
    }

    /// Copies values in, after all work on the device, and waits until they are there.
    pub fn copy_from(&mut self, from: &[T]) -> Result<()> {
        self.view.check_len("copy_from", from.len())?;
        self.view.backend.synchronize()?;
        // SAFETY: waited for below.
        unsafe { self.view.copy_in(from, 0) }?;
        self.view.wait(0)
    }

    /// Copies values in, after the stream's earlier work, and waits until they are there.
    pub fn copy_from_on(&mut self, from: &[T], stream: &Stream) -> Result<()> {
        self.view.check_len("copy_from_on", from.len())?;
        stream.check(self.view.backend, "copy_from_on")?;
        // SAFETY: waited for below.
        unsafe { self.view.copy_in(from, stream.handle()) }?;
        self.view.wait(stream.handle())
    }

    /// Copies values in, after the stream's earlier work, without waiting.
    ///
    /// # Safety
    /// `from` stays alive and unchanged until the stream has passed this call.
    pub unsafe fn copy_from_async(&mut self, from: &[T], stream: &Stream) -> Result<()> {
        self.view.check_len("copy_from_async", from.len())?;
        stream.check(self.view.backend, "copy_from_async")?;
        // SAFETY: by this function's contract.
        unsafe { self.view.copy_in(from, stream.handle()) }
    }

    /// Copies other device memory in, on a stream.
    pub fn copy_from_device(&mut self, from: Slice<'_, T>, stream: &Stream) -> Result<()> {
        self.view.check_len("copy_from_device", from.len)?;
        stream.check(self.view.backend, "copy_from_device")?;
        if from.backend.identity() != self.view.backend.identity() {
            return Err(Error::OtherDevice {
                call: "copy_from_device",
                what: "source",
            });
        }
        match self.view.len * size_of::<T>() {
            0 => Ok(()),
            // SAFETY: both ranges are live (freeing waits for the stream) and of equal length;
            // they are distinct, since this one is borrowed mutably.
            bytes => unsafe {
                self.view
                    .backend
                    .copy_within(self.view.ptr.0, from.ptr.0, bytes, stream.handle())
            },
        }
    }

    /// Sets every byte, after all work on the device, and waits until it is done.
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        self.view.backend.synchronize()?;
        self.fill_bytes(byte, 0)?;
        self.view.wait(0)
    }

    /// Sets every byte, on a stream.
    pub fn fill_on(&mut self, byte: u8, stream: &Stream) -> Result<()> {
        stream.check(self.view.backend, "fill_on")?;
        self.fill_bytes(byte, stream.handle())
    }

    fn fill_bytes(&mut self, byte: u8, stream: usize) -> Result<()> {
        match self.view.len * size_of::<T>() {
            0 => Ok(()),
            // SAFETY: the range is live (freeing waits for the stream), the stream this backend's.
            bytes => unsafe { self.view.backend.fill(self.view.ptr.0, byte, bytes, stream) },
        }
    }
}
