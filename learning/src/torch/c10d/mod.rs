//! c10d, PyTorch's own library of collectives, from the libtorch that is loaded: a store for the
//! rendezvous of processes, and point-to-point and collective transfers of tensors by Gloo.

use std::ffi::{CString, c_char, c_int, c_void};
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::fd::IntoRawFd;
use std::ptr::{self, NonNull};
use std::time::Duration;
use std::{fmt, slice};

use tch::{Device, Kind, Tensor};
use thiserror::Error;

use super::dispatch::take_text;

/// A call of c10d failed.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[error("{why}")]
pub(crate) struct C10dError {
    /// The first line of c10d's message.
    pub(crate) why: String,
    /// The kind of failure, as far as the message shows it.
    pub(crate) kind: C10dFailure,
}

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum C10dFailure {
    /// The time limit was reached.
    TimedOut,
    /// The process at the other end is gone.
    Closed,
    /// There is no such network interface, or no address for it.
    NoInterface,
    /// Any other failure.
    Other,
}

impl C10dError {
    fn new(text: &str) -> Self {
        let why = text.lines().next().unwrap_or_default().trim().to_owned();
        let has = |words: &[&str]| words.iter().any(|word| why.contains(word));
        let kind = if has(&["imed out", "timeout", "Timeout"]) {
            C10dFailure::TimedOut
        } else if has(&["closed", "reset", "refused", "Broken pipe", "failed to recv"]) {
            C10dFailure::Closed
        } else if has(&["interface", "ifa", "address"]) {
            C10dFailure::NoInterface
        } else {
            C10dFailure::Other
        };
        Self { why, kind }
    }
}

/// An object of c10d.cpp that this side owns.
struct Handle(NonNull<c_void>);

// SAFETY: stores, groups and transfers of c10d belong to no thread, and have locks of their own.
#[expect(unsafe_code, reason = "c10d's objects may move to another thread")]
unsafe impl Send for Handle {}

impl Handle {
    fn as_ptr(&self) -> *mut c_void {
        self.0.as_ptr()
    }
}

#[expect(unsafe_code, reason = "the functions of c10d.cpp")]
unsafe extern "C" {
    fn florin_c10d_store(
        host: *const c_char,
        port: u16,
        listener: c_int,
        processes: i64,
        timeout_ms: i64,
        prefix: *const c_char,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn florin_c10d_store_set(
        store: *const c_void,
        key: *const c_char,
        bytes: *const u8,
        length: usize,
    ) -> *mut c_char;
    fn florin_c10d_store_get(
        store: *const c_void,
        key: *const c_char,
        timeout_ms: i64,
        bytes: *mut *mut u8,
        length: *mut usize,
    ) -> *mut c_char;
    fn florin_c10d_store_check(
        store: *const c_void,
        key: *const c_char,
        is_there: *mut bool,
    ) -> *mut c_char;
    fn florin_c10d_store_count(
        store: *const c_void,
        key: *const c_char,
        sum: *mut i64,
    ) -> *mut c_char;
    fn florin_c10d_free_bytes(bytes: *mut u8);
    fn florin_c10d_store_free(store: *mut c_void);
    fn florin_c10d_group(
        store: *const c_void,
        rank: c_int,
        size: c_int,
        timeout_ms: i64,
        interface: *const c_char,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn florin_c10d_group_free(group: *mut c_void);
    fn florin_c10d_send(
        group: *const c_void,
        tensor: *const c_void,
        to: c_int,
        tag: c_int,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn florin_c10d_receive(
        group: *const c_void,
        tensor: *const c_void,
        from: c_int,
        tag: c_int,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn florin_c10d_broadcast(
        group: *const c_void,
        tensor: *const c_void,
        root: c_int,
        timeout_ms: i64,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn florin_c10d_wait(work: *const c_void, timeout_ms: i64) -> *mut c_char;
    fn florin_c10d_work_free(work: *mut c_void);
    fn florin_cpu_capability() -> *mut c_char;
}

/// Where the processes of a group find each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreAddress<'a> {
    /// Host of the store's server.
    pub(crate) host: &'a str,
    /// Its port.
    pub(crate) port: u16,
    /// Whether the server runs in this process.
    pub(crate) serves: bool,
    /// Begins every key.
    pub(crate) prefix: &'a str,
    /// Number of processes.
    pub(crate) processes: u32,
}

/// The store of a rendezvous: values by key, on a server that every process reaches.
pub(crate) struct TcpStore(Handle);

impl fmt::Debug for TcpStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TcpStore")
    }
}

impl TcpStore {
    /// Connects to the server, for at most `limit`.
    #[expect(unsafe_code, reason = "a call of c10d.cpp")]
    pub(crate) fn connect(at: &StoreAddress<'_>, limit: Duration) -> Result<Self, C10dError> {
        let (host, prefix) = (text(at.host)?, text(at.prefix)?);
        let listener = match at.serves {
            true => listener(at.host, at.port)?.into_raw_fd(),
            false => -1,
        };
        let mut out = ptr::null_mut();
        // SAFETY: both texts end with zero and outlive the call, and `out` is a place for a pointer.
        let error = unsafe {
            florin_c10d_store(
                host.as_ptr(),
                at.port,
                listener,
                at.processes.into(),
                milliseconds(limit),
                prefix.as_ptr(),
                &raw mut out,
            )
        };
        check(error)?;
        made(out).map(Self)
    }

    /// Whether a process has set a key.
    #[expect(unsafe_code, reason = "a call of c10d.cpp")]
    pub(crate) fn has(&self, key: &str) -> Result<bool, C10dError> {
        let (key, mut is_there) = (text(key)?, false);
        // SAFETY: the store lives, the key outlives the call, and the place receives a truth value.
        check(unsafe {
            florin_c10d_store_check(self.0.as_ptr(), key.as_ptr(), &raw mut is_there)
        })?;
        Ok(is_there)
    }

    /// Adds 1 to the number of a key, and returns the sum.
    #[expect(unsafe_code, reason = "a call of c10d.cpp")]
    pub(crate) fn count(&self, key: &str) -> Result<i64, C10dError> {
        let (key, mut sum) = (text(key)?, 0);
        // SAFETY: as above, with a place for a number.
        check(unsafe { florin_c10d_store_count(self.0.as_ptr(), key.as_ptr(), &raw mut sum) })?;
        Ok(sum)
    }

    /// Sets the value of a key.
    #[expect(unsafe_code, reason = "a call of c10d.cpp")]
    pub(crate) fn set(&self, key: &str, value: &[u8]) -> Result<(), C10dError> {
        let key = text(key)?;
        // SAFETY: the store lives; key and value outlive the call.
        check(unsafe {
            florin_c10d_store_set(self.0.as_ptr(), key.as_ptr(), value.as_ptr(), value.len())
        })
    }

    /// The value of a key, as soon as a process has set it.
    #[expect(unsafe_code, reason = "a call of c10d.cpp, which returns bytes")]
    pub(crate) fn get(&self, key: &str, limit: Duration) -> Result<Vec<u8>, C10dError> {
        let key = text(key)?;
        let (mut bytes, mut length) = (ptr::null_mut(), 0);
        // SAFETY: the store lives, the key outlives the call, and the places receive bytes and length.
        check(unsafe {
            florin_c10d_store_get(
                self.0.as_ptr(),
                key.as_ptr(),
                milliseconds(limit),
                &raw mut bytes,
                &raw mut length,
            )
        })?;
        // SAFETY: without an error `bytes` has `length` bytes, which are copied and freed once.
        let value = unsafe {
            let value = slice::from_raw_parts(bytes, length).to_vec();
            florin_c10d_free_bytes(bytes);
            value
        };
        Ok(value)
    }
}

impl Drop for TcpStore {
    #[expect(unsafe_code, reason = "frees an object of c10d.cpp")]
    fn drop(&mut self) {
        // SAFETY: the handle is freed once.
        unsafe { florin_c10d_store_free(self.0.as_ptr()) }
    }
}

/// A process among the processes of a group.
pub(crate) struct ProcessGroup(Handle);

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProcessGroup")
    }
}

/// A transfer that runs. It holds the tensor.
#[must_use = "a transfer ends when it was waited for"]
pub(crate) struct Transfer {
    work: Handle,
    _tensor: Tensor,
}

impl ProcessGroup {
    /// Joins the group of a store, on a network interface or on the one of this machine's host name.
    #[expect(unsafe_code, reason = "a call of c10d.cpp")]
    pub(crate) fn join(
        store: &TcpStore,
        rank: u32,
        size: u32,
        interface: Option<&str>,
        limit: Duration,
    ) -> Result<Self, C10dError> {
        let name = text(interface.unwrap_or_default())?;
        let mut out = ptr::null_mut();
        // SAFETY: the store lives, the name outlives the call, and `out` is a place for a pointer.
        check(unsafe {
            florin_c10d_group(
                store.0.as_ptr(),
                rank as c_int,
                size as c_int,
                milliseconds(limit),
                name.as_ptr(),
                &raw mut out,
            )
        })?;
        made(out).map(Self)
    }

    /// Sends a tensor of the CPU to a rank.
    #[expect(unsafe_code, reason = "a call of c10d.cpp")]
    pub(crate) fn send(&self, tensor: &Tensor, to: u32, tag: u32) -> Result<Transfer, C10dError> {
        self.transfer(tensor, |tensor, out| {
            // SAFETY: the group lives, and the transfer holds the tensor until its end.
            unsafe { florin_c10d_send(self.0.as_ptr(), tensor, to as c_int, tag as c_int, out) }
        })
    }

    /// Receives a tensor of the CPU from a rank.
    #[expect(unsafe_code, reason = "a call of c10d.cpp")]
    pub(crate) fn receive(
        &self,
        tensor: &Tensor,
        from: u32,
        tag: u32,
    ) -> Result<Transfer, C10dError> {
        self.transfer(tensor, |tensor, out| {
            // SAFETY: as in `send`.
            unsafe {
                florin_c10d_receive(self.0.as_ptr(), tensor, from as c_int, tag as c_int, out)
            }
        })
    }

    /// Gives the tensor of the root to every rank.
    #[expect(unsafe_code, reason = "a call of c10d.cpp")]
    pub(crate) fn broadcast(
        &self,
        tensor: &Tensor,
        root: u32,
        limit: Duration,
    ) -> Result<Transfer, C10dError> {
        self.transfer(tensor, |tensor, out| {
            // SAFETY: as in `send`.
            unsafe {
                let limit = milliseconds(limit);
                florin_c10d_broadcast(self.0.as_ptr(), tensor, root as c_int, limit, out)
            }
        })
    }

    fn transfer(
        &self,
        tensor: &Tensor,
        start: impl FnOnce(*const c_void, *mut *mut c_void) -> *mut c_char,
    ) -> Result<Transfer, C10dError> {
        debug_assert!(tensor.device() == Device::Cpu && tensor.kind() != Kind::Bool);
        let mut out = ptr::null_mut();
        check(start(tensor.as_ptr().cast(), &raw mut out))?;
        Ok(Transfer { work: made(out)?, _tensor: tensor.shallow_clone() })
    }
}

impl Drop for ProcessGroup {
    #[expect(unsafe_code, reason = "frees an object of c10d.cpp")]
    fn drop(&mut self) {
        // SAFETY: the handle is freed once.
        unsafe { florin_c10d_group_free(self.0.as_ptr()) }
    }
}

impl Transfer {
    /// Waits until the transfer has ended.
    #[expect(unsafe_code, reason = "a call of c10d.cpp")]
    pub(crate) fn wait(self, limit: Duration) -> Result<(), C10dError> {
        // SAFETY: the handle lives until `self` is dropped.
        check(unsafe { florin_c10d_wait(self.work.as_ptr(), milliseconds(limit)) })
    }
}

impl Drop for Transfer {
    #[expect(unsafe_code, reason = "frees an object of c10d.cpp")]
    fn drop(&mut self) {
        // SAFETY: the handle is freed once.
        unsafe { florin_c10d_work_free(self.work.as_ptr()) }
    }
}

/// The vector instructions that libtorch's kernels use on this processor, such as `AVX2`.
#[expect(unsafe_code, reason = "a call of c10d.cpp")]
pub(crate) fn cpu_capability() -> String {
    // SAFETY: the function has no precondition, and its text is freed once.
    take_text(unsafe { florin_cpu_capability() }).unwrap_or_default()
}

/// A socket at the address of the rendezvous alone: the store has no authentication, so it must not
/// listen on other networks. An address that belongs to a gateway of this machine is replaced by all.
fn listener(host: &str, port: u16) -> Result<TcpListener, C10dError> {
    let bound = match TcpListener::bind((host, port)) {
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
            TcpListener::bind(("0.0.0.0", port))
        }
        bound => bound,
    };
    bound.map_err(|error| C10dError::new(&error.to_string()))
}

fn milliseconds(limit: Duration) -> i64 {
    i64::try_from(limit.as_millis()).unwrap_or(i64::MAX).max(1)
}

fn text(text: &str) -> Result<CString, C10dError> {
    CString::new(text).map_err(|error| C10dError::new(&error.to_string()))
}

fn made(handle: *mut c_void) -> Result<Handle, C10dError> {
    NonNull::new(handle).map(Handle).ok_or_else(|| C10dError::new("c10d returned no object"))
}

fn check(error: *mut c_char) -> Result<(), C10dError> {
    take_text(error).map_or(Ok(()), |text| Err(C10dError::new(&text)))
}
