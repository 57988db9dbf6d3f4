//! Metrics of the requests to a bucket.

#[cfg(feature = "bucket")]
use std::sync::Arc;
#[cfg(feature = "bucket")]
use std::sync::atomic::{AtomicBool, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

#[cfg(feature = "bucket")]
use super::BucketError;

/// Counters of requests to a bucket; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct BucketMetrics {
    /// Requests by kind and outcome.
    pub requests: Family<RequestLabels, Counter>,
    #[cfg(feature = "bucket")]
    failing: Arc<AtomicBool>,
}

/// Labels of a request: its kind and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    request: &'static str,
    outcome: &'static str,
}

impl BucketMetrics {
    /// Counts a request. Logs the first failure, and the first success after a failure.
    #[cfg(feature = "bucket")]
    pub(super) fn count_result<T>(&self, request: &'static str, result: &Result<T, BucketError>) {
        match result {
            Err(error) if !matches!(error, BucketError::NoObject(_)) => {
                self.count(request, "failed");
                if !self.failing.swap(true, Ordering::Relaxed) {
                    tracing::error!(%error, request, "requests to the bucket fail");
                }
            }
            other => {
                self.count(request, if other.is_ok() { "ok" } else { "not_found" });
                if self.failing.swap(false, Ordering::Relaxed) {
                    tracing::info!(request, "requests to the bucket succeed again");
                }
            }
        }
    }

    /// Counts a blob whose bytes in the bucket do not match its digest.
    pub fn count_digest_mismatch(&self) {
        self.count("get", "digest_mismatch");
    }

    fn count(&self, request: &'static str, outcome: &'static str) {
        self.requests.get_or_create(&RequestLabels { request, outcome }).inc();
    }

    /// The number of requests with this kind and outcome.
    #[must_use]
    pub fn number(&self, request: &'static str, outcome: &'static str) -> u64 {
        self.requests.get_or_create(&RequestLabels { request, outcome }).get()
    }
}
