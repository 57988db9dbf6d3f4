//! Faulty endpoints. One fails at a chosen call and stays unreachable, which for the ledger equals
//! a crash of its process at that call. One alters the node's responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use florin_ledger_ethereum::{Endpoint, EndpointError};
use serde_json::Value;

/// The point at which a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CrashPoint {
    /// Before this call reaches the node.
    Before(&'static str),
    /// After the call reached the node, before its response is read.
    After(&'static str),
    /// After this many calls, before the response to the last of them is read.
    AfterCalls(usize),
    /// Never.
    Never,
}

pub(crate) struct CrashingEndpoint {
    inner: Arc<dyn Endpoint>,
    crash_point: CrashPoint,
    armed: AtomicBool,
    crashed: AtomicBool,
    calls: AtomicUsize,
}

impl CrashingEndpoint {
    pub(crate) fn new(inner: &Arc<dyn Endpoint>, death: CrashPoint) -> Arc<Self> {
        let (armed, dead) = (AtomicBool::new(false), AtomicBool::new(false));
        let calls = AtomicUsize::new(0);
        Arc::new(Self { inner: Arc::clone(inner), crash_point: death, armed, crashed: dead, calls })
    }

    /// Starts the countdown to the crash.
    pub(crate) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    fn is_time_before(&self, method: &str) -> bool {
        self.armed.load(Ordering::SeqCst)
            && matches!(self.crash_point, CrashPoint::Before(at) if at == method)
    }

    fn is_time_after(&self, method: &str) -> bool {
        let is_time = match self.crash_point {
            CrashPoint::After(at) => at == method,
            CrashPoint::AfterCalls(count) => self.calls.fetch_add(1, Ordering::SeqCst) + 1 >= count,
            CrashPoint::Before(_) | CrashPoint::Never => false,
        };
        self.armed.load(Ordering::SeqCst) && is_time
    }

    pub(crate) fn has_crashed(&self) -> bool {
        self.crashed.load(Ordering::SeqCst)
    }
}

impl Endpoint for CrashingEndpoint {
    fn call(&self, method: &str, params: Value) -> Result<Value, EndpointError> {
        let gone = || EndpointError::Unreachable("the process has crashed".to_owned());
        if self.is_time_before(method) {
            self.crashed.store(true, Ordering::SeqCst);
        }
        if self.has_crashed() {
            return Err(gone());
        }
        let answer = self.inner.call(method, params);
        if self.is_time_after(method) {
            self.crashed.store(true, Ordering::SeqCst);
            return Err(gone());
        }
        answer
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}

/// A function that alters a node's response to a method.
type AlterResponse =
    dyn Fn(&str, Result<Value, EndpointError>) -> Result<Value, EndpointError> + Send + Sync;

/// An endpoint with altered responses.
pub(crate) struct AlteredEndpoint {
    inner: Arc<dyn Endpoint>,
    alter: Box<AlterResponse>,
}

impl AlteredEndpoint {
    pub(crate) fn new(
        inner: &Arc<dyn Endpoint>,
        alter: impl Fn(&str, Result<Value, EndpointError>) -> Result<Value, EndpointError>
        + Send
        + Sync
        + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { inner: Arc::clone(inner), alter: Box::new(alter) })
    }
}

impl Endpoint for AlteredEndpoint {
    fn call(&self, method: &str, params: Value) -> Result<Value, EndpointError> {
        (self.alter)(method, self.inner.call(method, params))
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}
