//! What was asked of a bucket, and what became of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::BucketError;

/// Counters of requests to a bucket; cheap to copy.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Requests by kind and outcome.
    pub requests: Family<Request, Counter>,
    failing: Arc<AtomicBool>,
}

/// Which request, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Request {
    request: &'static str,
    outcome: &'static str,
}

impl Seen {
    /// Counts a request. The first that fails and the first that does not fail any more are logged.
    pub(super) fn ended<T>(&self, request: &'static str, result: &Result<T, BucketError>) {
        match result {
            Err(error) if !matches!(error, BucketError::NoObject(_)) => {
                self.count(request, "failed");
                if !self.failing.swap(true, Ordering::Relaxed) {
                    tracing::error!(%error, request, "the bucket does not do its work");
                }
            }
            other => {
                self.count(request, if other.is_ok() { "done" } else { "absent" });
                if self.failing.swap(false, Ordering::Relaxed) {
                    tracing::info!(request, "the bucket does its work again");
                }
            }
        }
    }

    /// Counts a blob whose bytes in the bucket are not its own.
    pub fn wrong(&self) {
        self.count("get", "wrong");
    }

    fn count(&self, request: &'static str, outcome: &'static str) {
        self.requests.get_or_create(&Request { request, outcome }).inc();
    }

    /// How many requests of this kind ended so.
    #[must_use]
    pub fn number(&self, request: &'static str, outcome: &'static str) -> u64 {
        self.requests.get_or_create(&Request { request, outcome }).get()
    }
}
