//! Faulty endpoints. One fails at a chosen call and stays unreachable, which for the ledger equals
//! a crash of its process at that call. One alters the node's responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use florin_ledger_ethereum::{Endpoint, EndpointError};
use serde_json::Value;

/// The point at which a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// Before this call reaches the node.
    Before(&'static str),
    /// After the call reached the node, before its response is read.
    After(&'static str),
    /// After this many calls, before the response to the last of them is read.
    AfterCalls(usize),
    /// Never.
    Never,
}

pub(crate) struct Flaky {
    inner: Arc<dyn Endpoint>,
    death: Death,
    armed: AtomicBool,
    dead: AtomicBool,
    calls: AtomicUsize,
}

impl Flaky {
    pub(crate) fn new(inner: &Arc<dyn Endpoint>, death: Death) -> Arc<Self> {
        let (armed, dead) = (AtomicBool::new(false), AtomicBool::new(false));
        let calls = AtomicUsize::new(0);
        Arc::new(Self { inner: Arc::clone(inner), death, armed, dead, calls })
    }

    /// Starts the countdown to the crash.
    pub(crate) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    fn is_time_before(&self, method: &str) -> bool {
        self.armed.load(Ordering::SeqCst) && matches!(self.death, Death::Before(at) if at == method)
    }

    fn is_time_after(&self, method: &str) -> bool {
        let is_time = match self.death {
            Death::After(at) => at == method,
            Death::AfterCalls(count) => self.calls.fetch_add(1, Ordering::SeqCst) + 1 >= count,
            Death::Before(_) | Death::Never => false,
        };
        self.armed.load(Ordering::SeqCst) && is_time
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }
}

impl Endpoint for Flaky {
    fn call(&self, method: &str, params: Value) -> Result<Value, EndpointError> {
        let gone = || EndpointError::Unreachable("the process has crashed".to_owned());
        if self.is_time_before(method) {
            self.dead.store(true, Ordering::SeqCst);
        }
        if self.is_dead() {
            return Err(gone());
        }
        let answer = self.inner.call(method, params);
        if self.is_time_after(method) {
            self.dead.store(true, Ordering::SeqCst);
            return Err(gone());
        }
        answer
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}

/// A function that alters a node's response to a method.
type Alter =
    dyn Fn(&str, Result<Value, EndpointError>) -> Result<Value, EndpointError> + Send + Sync;

/// An endpoint with altered responses.
pub(crate) struct Altered {
    inner: Arc<dyn Endpoint>,
    alter: Box<Alter>,
}

impl Altered {
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

impl Endpoint for Altered {
    fn call(&self, method: &str, params: Value) -> Result<Value, EndpointError> {
        (self.alter)(method, self.inner.call(method, params))
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}
