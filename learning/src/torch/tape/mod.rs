//! A tape of a training step: the tensors that libtorch saves for the backward pass, in order, and the
//! memory of all tensors. A saved tensor can be released after the forward pass, and restored when the
//! backward pass uses it.

use std::ffi::{c_char, c_void};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use tch::{Device, Tensor};

use super::dispatch::{called, made};
use super::side_stream::{gpu_of, synchronize};
use crate::engine::BackendError;
use crate::memory::{TapeEvent, TapeEventKind};

/// Restores the memory of saved tensors that were released.
pub(super) trait RestoreSaved: Send + Sync {
    /// The memory of saved tensor `number` as a flat tensor of bytes; `None` if that fails.
    fn restore(&self, number: usize) -> Option<Tensor>;
}

/// Restores nothing: for a tape of which no tensor is released.
#[derive(Debug)]
pub(super) struct NoRestore;

impl RestoreSaved for NoRestore {
    fn restore(&self, _: usize) -> Option<Tensor> {
        None
    }
}

#[repr(C)]
struct RawEvent {
    kind: i32,
    number: i64,
    bytes: i64,
    nanoseconds: i64,
}

type RawRestore = extern "C" fn(*mut c_void, i64) -> *mut c_void;

#[expect(unsafe_code, reason = "the functions of tape.cpp")]
unsafe extern "C" {
    fn florin_tape_new(
        logs: bool,
        restore: RawRestore,
        context: *mut c_void,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn florin_tape_free(tape: *mut c_void);
    fn florin_tape_enter(
        tape: *const c_void,
        saves: bool,
        gpu: bool,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn florin_tape_leave(recording: *mut c_void);
    fn florin_tape_mark(tape: *const c_void, number: i64);
    fn florin_tape_saved(tape: *const c_void) -> i64;
    fn florin_tape_restart(tape: *const c_void);
    fn florin_tape_bytes(tape: *const c_void, live: *mut i64, peak: *mut i64);
    fn florin_tape_events(tape: *const c_void, length: *mut usize) -> *const RawEvent;
    fn florin_tape_memory(tape: *const c_void, number: i64, out: *mut *mut c_void) -> *mut c_char;
    fn florin_tape_allocation(tape: *const c_void, tensor: *const c_void) -> i64;
    fn florin_tape_offset(tensor: *const c_void) -> i64;
    fn florin_tape_release(tape: *const c_void, number: i64) -> *mut c_char;
}

/// The tape of a device's steps.
pub(super) struct Tape<'r> {
    handle: NonNull<c_void>,
    /// The number of its GPU.
    gpu: Option<usize>,
    logs: bool,
    /// The context of the callback; it outlives the handle.
    _restore: Box<Arc<dyn RestoreSaved + 'r>>,
}

// SAFETY: tape.cpp guards the state of a tape by a lock.
#[expect(unsafe_code, reason = "the tape has a lock")]
unsafe impl Send for Tape<'_> {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "the tape has a lock")]
unsafe impl Sync for Tape<'_> {}

/// A thread is recorded while this lives.
#[must_use = "the recording ends with it"]
pub(super) struct Recording<'t> {
    handle: NonNull<c_void>,
    /// It ends in its thread.
    _tape: PhantomData<(&'t (), *const ())>,
}

impl<'r> Tape<'r> {
    /// A tape; with `logs` it has all events.
    #[expect(unsafe_code, reason = "a call of tape.cpp")]
    pub(super) fn new(
        device: Device,
        logs: bool,
        restore: Arc<dyn RestoreSaved + 'r>,
    ) -> Result<Self, BackendError> {
        let mut restore = Box::new(restore);
        let context: *mut Arc<dyn RestoreSaved + 'r> = &raw mut *restore;
        let mut out = ptr::null_mut();
        // SAFETY: the context outlives the tape, as a field of it, and `out` is a place for a pointer.
        called(unsafe { florin_tape_new(logs, restore_saved, context.cast(), &raw mut out) })?;
        let handle = made(out, "tape")?;
        Ok(Self { handle, gpu: gpu_of(device), logs, _restore: restore })
    }

    /// Records this thread: its allocations, and with `saves` the tensors that its forward passes save.
    #[expect(unsafe_code, reason = "a call of tape.cpp")]
    pub(super) fn record(&self, saves: bool) -> Result<Recording<'_>, BackendError> {
        let mut out = ptr::null_mut();
        let gpu = self.gpu.is_some();
        // SAFETY: the tape lives, and `out` is a place for a pointer.
        called(unsafe { florin_tape_enter(self.handle.as_ptr(), saves, gpu, &raw mut out) })?;
        Ok(Recording { handle: made(out, "tape")?, _tape: PhantomData })
    }

    /// Writes a mark among the events, once a GPU has computed all that was asked of it.
    #[expect(unsafe_code, reason = "a call of tape.cpp")]
    pub(super) fn mark(&self, number: usize) -> Result<(), BackendError> {
        if let Some(gpu) = self.gpu.filter(|_| self.logs) {
            synchronize(gpu)?;
        }
        // SAFETY: the tape lives.
        unsafe { florin_tape_mark(self.handle.as_ptr(), number as i64) };
        Ok(())
    }

    /// The number of saved tensors so far.
    #[expect(unsafe_code, reason = "a call of tape.cpp")]
    pub(super) fn saved(&self) -> usize {
        // SAFETY: the tape lives.
        unsafe { florin_tape_saved(self.handle.as_ptr()) as usize }
    }

    /// Forgets saved tensors, allocations and events, before the next step.
    #[expect(unsafe_code, reason = "a call of tape.cpp")]
    pub(super) fn restart(&self) {
        // SAFETY: the tape lives.
        unsafe { florin_tape_restart(self.handle.as_ptr()) }
    }

    /// The largest memory of tensors at once since the last start, in bytes, without older ones.
    #[expect(unsafe_code, reason = "a call of tape.cpp")]
    pub(super) fn peak(&self) -> u64 {
        let (mut live, mut peak) = (0, 0);
        // SAFETY: the tape lives, and both places receive numbers.
        unsafe { florin_tape_bytes(self.handle.as_ptr(), &raw mut live, &raw mut peak) };
        u64::try_from(peak).unwrap_or(0)
    }

    /// All events since the last start.
    #[expect(unsafe_code, reason = "a call of tape.cpp, which returns events")]
    pub(super) fn events(&self) -> Vec<TapeEvent> {
        let mut length = 0;
        // SAFETY: the tape lives, no other thread records it, and it owns `length` events.
        let raw = unsafe {
            let events = florin_tape_events(self.handle.as_ptr(), &raw mut length);
            if length == 0 {
                return Vec::new();
            }
            slice::from_raw_parts(events, length)
        };
        raw.iter().map(RawEvent::event).collect()
    }

    /// The memory of a saved tensor; `None` if it was released or if its graph has ended.
    #[expect(unsafe_code, reason = "a call of tape.cpp, which returns a tensor")]
    pub(super) fn memory(&self, number: usize) -> Result<Option<Tensor>, BackendError> {
        let mut out = ptr::null_mut();
        // SAFETY: the tape lives, and `out` receives a tensor or null.
        called(unsafe { florin_tape_memory(self.handle.as_ptr(), number as i64, &raw mut out) })?;
        // SAFETY: without an error the tensor is owned by nothing else.
        Ok((!out.is_null()).then(|| unsafe { Tensor::from_ptr(out.cast()) }))
    }

    /// The number of the allocation of a tensor's memory; `None` if that is older than the tape.
    #[expect(unsafe_code, reason = "a call of tape.cpp")]
    pub(super) fn allocation(&self, tensor: &Tensor) -> Option<usize> {
        // SAFETY: both objects live.
        let number =
            unsafe { florin_tape_allocation(self.handle.as_ptr(), tensor.as_ptr().cast()) };
        usize::try_from(number).ok()
    }

    /// The place of a tensor's first element in its memory, in elements.
    #[expect(unsafe_code, reason = "a call of tape.cpp")]
    pub(super) fn offset(&self, tensor: &Tensor) -> i64 {
        // SAFETY: the tensor lives.
        unsafe { florin_tape_offset(tensor.as_ptr().cast()) }
    }

    /// Releases a saved tensor.
    #[expect(unsafe_code, reason = "a call of tape.cpp")]
    pub(super) fn release(&self, number: usize) -> Result<(), BackendError> {
        // SAFETY: the tape lives.
        called(unsafe { florin_tape_release(self.handle.as_ptr(), number as i64) })
    }
}

impl Drop for Tape<'_> {
    #[expect(unsafe_code, reason = "frees an object of tape.cpp")]
    fn drop(&mut self) {
        // SAFETY: the handle is freed once.
        unsafe { florin_tape_free(self.handle.as_ptr()) }
    }
}

impl Drop for Recording<'_> {
    #[expect(unsafe_code, reason = "frees an object of tape.cpp")]
    fn drop(&mut self) {
        // SAFETY: the handle is freed once, in the thread that made it.
        unsafe { florin_tape_leave(self.handle.as_ptr()) }
    }
}

impl RawEvent {
    fn event(&self) -> TapeEvent {
        let kind = match self.kind {
            0 => TapeEventKind::Allocate,
            1 => TapeEventKind::Free,
            2 => TapeEventKind::Mark,
            3 => TapeEventKind::Save,
            _ => TapeEventKind::Use,
        };
        let number = usize::try_from(self.number).unwrap_or(0);
        TapeEvent { kind, number, bytes: self.bytes, nanoseconds: self.nanoseconds }
    }
}

/// Called by tape.cpp in a backward pass.
#[expect(unsafe_code, reason = "a callback of C++, with a pointer to its context")]
extern "C" fn restore_saved(context: *mut c_void, number: i64) -> *mut c_void {
    // SAFETY: the context is the box of the tape, which lives.
    let restore = unsafe { &*context.cast::<Arc<dyn RestoreSaved>>() };
    let found = usize::try_from(number).ok().and_then(|number| restore.restore(number));
    // C++ owns the tensor from now on.
    found.map_or(ptr::null_mut(), |tensor| ManuallyDrop::new(tensor).as_mut_ptr().cast())
}
