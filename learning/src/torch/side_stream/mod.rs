//! Copies between the memory of a GPU and that of the host beside computations, and a GPU's free memory.

use std::ffi::{c_char, c_void};
use std::ptr::{self, NonNull};

use tch::{Device, Tensor};

use super::dispatch::{called, made};
use crate::engine::BackendError;

#[expect(unsafe_code, reason = "the functions of side_stream.cpp")]
unsafe extern "C" {
    fn florin_side_stream_new(gpu: i64, out: *mut *mut c_void) -> *mut c_char;
    fn florin_side_stream_free(side: *mut c_void);
    fn florin_side_stream_copy(
        side: *const c_void,
        source: *const c_void,
        target: *const c_void,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn florin_side_stream_is_done(event: *const c_void, out: *mut bool) -> *mut c_char;
    fn florin_side_stream_join(side: *const c_void, event: *const c_void) -> *mut c_char;
    fn florin_side_stream_event_free(event: *mut c_void);
    fn florin_side_stream_host_memory(bytes: i64, out: *mut *mut c_void) -> *mut c_char;
    fn florin_side_stream_free_bytes(gpu: i64, out: *mut i64) -> *mut c_char;
    fn florin_side_stream_synchronize(gpu: i64) -> *mut c_char;
    fn florin_side_stream_release_host_memory(gpu: i64) -> *mut c_char;
    fn florin_side_stream_repeatable(repeatable: bool) -> bool;
}

/// A stream of a GPU beside the one that computes.
#[derive(Debug)]
pub(super) struct SideStream {
    handle: NonNull<c_void>,
}

/// A copy that was begun. Its tensors must live until it is joined.
#[derive(Debug)]
pub(super) struct SideCopy {
    handle: NonNull<c_void>,
}

// SAFETY: streams and events of libtorch may be used from any thread.
#[expect(unsafe_code, reason = "objects of side_stream.cpp have no thread of their own")]
unsafe impl Send for SideStream {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "objects of side_stream.cpp have no thread of their own")]
unsafe impl Send for SideCopy {}

impl SideStream {
    /// A stream of GPU `gpu`.
    #[expect(unsafe_code, reason = "a call of side_stream.cpp")]
    pub(super) fn new(gpu: usize) -> Result<Self, BackendError> {
        let mut out = ptr::null_mut();
        // SAFETY: `out` is a place for a pointer.
        called(unsafe { florin_side_stream_new(gpu as i64, &raw mut out) })?;
        Ok(Self { handle: made(out, "stream")? })
    }

    /// Begins to copy a flat tensor to another one, one of which is in [`host_memory`], behind all that this
    /// thread has computed so far.
    #[expect(unsafe_code, reason = "a call of side_stream.cpp")]
    pub(super) fn copy(&self, source: &Tensor, target: &Tensor) -> Result<SideCopy, BackendError> {
        let mut out = ptr::null_mut();
        let (source, target) = (source.as_ptr().cast(), target.as_ptr().cast());
        // SAFETY: the stream and both tensors live, and `out` is a place for a pointer.
        called(unsafe {
            florin_side_stream_copy(self.handle.as_ptr(), source, target, &raw mut out)
        })?;
        Ok(SideCopy { handle: made(out, "stream")? })
    }

    /// Puts all that this thread computes from now on behind a copy. The host does not wait.
    #[expect(unsafe_code, reason = "a call of side_stream.cpp")]
    pub(super) fn join(&self, copy: &SideCopy) -> Result<(), BackendError> {
        // SAFETY: both objects live.
        called(unsafe { florin_side_stream_join(self.handle.as_ptr(), copy.handle.as_ptr()) })
    }
}

impl SideCopy {
    /// Whether the GPU has copied all.
    #[expect(unsafe_code, reason = "a call of side_stream.cpp")]
    pub(super) fn is_done(&self) -> Result<bool, BackendError> {
        let mut done = false;
        // SAFETY: the event lives, and `done` is a place for a truth value.
        called(unsafe { florin_side_stream_is_done(self.handle.as_ptr(), &raw mut done) })?;
        Ok(done)
    }
}

/// The number of a GPU; `None` for the CPU.
pub(super) fn gpu_of(device: Device) -> Option<usize> {
    match device {
        Device::Cuda(number) => Some(number),
        _ => None,
    }
}

/// Flat memory of the host that a GPU copies without a detour.
#[expect(unsafe_code, reason = "a call of side_stream.cpp, which returns a tensor")]
pub(super) fn host_memory(bytes: usize) -> Result<Tensor, BackendError> {
    let mut out = ptr::null_mut();
    // SAFETY: `out` receives a tensor.
    called(unsafe { florin_side_stream_host_memory(bytes as i64, &raw mut out) })?;
    let made = made(out, "tensor")?;
    // SAFETY: the tensor is owned by nothing else.
    Ok(unsafe { Tensor::from_ptr(made.as_ptr().cast()) })
}

/// Returns the host's memory that no tensor has to the system, once GPU `gpu` has copied all.
#[expect(unsafe_code, reason = "a call of side_stream.cpp")]
pub(super) fn release_host_memory(gpu: usize) -> Result<(), BackendError> {
    // SAFETY: the call has a number alone.
    called(unsafe { florin_side_stream_release_host_memory(gpu as i64) })
}

/// While it lives, convolutions of GPUs add in the same order each time, which may take longer.
#[derive(Debug)]
pub(super) struct RepeatableConvolutions {
    before: bool,
}

impl RepeatableConvolutions {
    /// From now on.
    #[expect(unsafe_code, reason = "a call of side_stream.cpp")]
    pub(super) fn start() -> Self {
        // SAFETY: the call has a truth value alone.
        Self { before: unsafe { florin_side_stream_repeatable(true) } }
    }
}

impl Drop for RepeatableConvolutions {
    #[expect(unsafe_code, reason = "a call of side_stream.cpp")]
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { florin_side_stream_repeatable(self.before) };
    }
}

/// Bytes of GPU `gpu` that libtorch can allocate.
#[expect(unsafe_code, reason = "a call of side_stream.cpp")]
pub(super) fn free_bytes(gpu: usize) -> Result<u64, BackendError> {
    let mut bytes = 0;
    // SAFETY: `bytes` is a place for a number.
    called(unsafe { florin_side_stream_free_bytes(gpu as i64, &raw mut bytes) })?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Waits until GPU `gpu` has computed all that was asked of it.
#[expect(unsafe_code, reason = "a call of side_stream.cpp")]
pub(super) fn synchronize(gpu: usize) -> Result<(), BackendError> {
    // SAFETY: the call has a number alone.
    called(unsafe { florin_side_stream_synchronize(gpu as i64) })
}

impl Drop for SideStream {
    #[expect(unsafe_code, reason = "frees an object of side_stream.cpp")]
    fn drop(&mut self) {
        // SAFETY: the handle is freed once.
        unsafe { florin_side_stream_free(self.handle.as_ptr()) }
    }
}

impl Drop for SideCopy {
    #[expect(unsafe_code, reason = "frees an object of side_stream.cpp")]
    fn drop(&mut self) {
        // SAFETY: the handle is freed once.
        unsafe { florin_side_stream_event_free(self.handle.as_ptr()) }
    }
}
