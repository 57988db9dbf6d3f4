//! A node that dies at a chosen call, and stays dead: to the client that is as if the client had died.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use florin_ledger::ethereum::{Endpoint, EndpointError};
use serde_json::Value;

/// Where a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// Before this call reaches the node.
    Before(&'static str),
    /// After it did, before its answer is read.
    After(&'static str),
    /// Never.
    Never,
}

pub(crate) struct Flaky {
    inner: Arc<dyn Endpoint>,
    death: Death,
    armed: AtomicBool,
    dead: AtomicBool,
}

impl Flaky {
    pub(crate) fn new(inner: &Arc<dyn Endpoint>, death: Death) -> Arc<Self> {
        let (armed, dead) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { inner: Arc::clone(inner), death, armed, dead })
    }

    /// From now on it can die.
    pub(crate) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    fn is_time_before(&self, method: &str) -> bool {
        self.armed.load(Ordering::SeqCst) && matches!(self.death, Death::Before(at) if at == method)
    }

    fn is_time_after(&self, method: &str) -> bool {
        self.armed.load(Ordering::SeqCst) && matches!(self.death, Death::After(at) if at == method)
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }
}

impl Endpoint for Flaky {
    fn call(&self, method: &str, params: Value) -> Result<Value, EndpointError> {
        let gone = || EndpointError::Unreachable("the process is dead".to_owned());
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
