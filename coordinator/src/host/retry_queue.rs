//! A worker's retry queue: it returns new jobs at once and failed jobs again after an exponential
//! back-off.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use florin_store::BlobError;

/// First back-off after a failure; doubled after each further failure.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest back-off.
pub(super) const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// A job with its number of failures.
#[derive(Debug)]
pub(super) struct RetryJob<T> {
    pub(super) job: T,
    /// Attempts that failed for a reason that may lie in the job.
    pub(super) failures: u32,
    /// Consecutive attempts that failed for a transient reason of the machine.
    transient_failures: u32,
}

/// Why a job is retried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RetryReason {
    /// The job failed, possibly because of its inputs: the number of attempts is limited.
    Failed(String),
    /// The machine has no space, or a read failed. The reason does not lie in the job, so the
    /// number of attempts is unlimited.
    Transient(String),
}

impl std::fmt::Display for RetryReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Failed(why) | Self::Transient(why)) = self;
        f.write_str(why)
    }
}

impl From<BlobError> for RetryReason {
    fn from(error: BlobError) -> Self {
        let why = error.to_string();
        if error.is_transient() { Self::Transient(why) } else { Self::Failed(why) }
    }
}

impl<T> RetryJob<T> {
    const fn new(job: T) -> Self {
        Self { job, failures: 0, transient_failures: 0 }
    }
}

/// The receiving end of a channel of jobs.
pub(super) trait JobReceiver<T> {
    /// Receives the next job; blocks until one arrives, or at most for `wait`.
    ///
    /// # Errors
    /// The time is up, or every sender is dropped.
    fn recv_within(&self, wait: Option<Duration>) -> Result<T, RecvTimeoutError>;
}

impl<T> JobReceiver<T> for Receiver<T> {
    fn recv_within(&self, wait: Option<Duration>) -> Result<T, RecvTimeoutError> {
        match wait {
            None => self.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(wait) => self.recv_timeout(wait),
        }
    }
}

#[derive(Debug)]
pub(super) struct RetryQueue<T, I = Receiver<T>> {
    new_jobs: I,
    delayed: Vec<(Instant, RetryJob<T>)>,
}

impl<T, I: JobReceiver<T>> RetryQueue<T, I> {
    pub(super) const fn new(new_jobs: I) -> Self {
        Self { new_jobs, delayed: Vec::new() }
    }

    /// The next job; blocks until one is ready. `None` when every sender is dropped.
    pub(super) fn next(&mut self) -> Option<RetryJob<T>> {
        let first = (0..self.delayed.len()).min_by_key(|i| self.delayed[*i].0);
        let Some(first) = first else {
            return self.new_jobs.recv_within(None).ok().map(RetryJob::new);
        };
        let wait = self.delayed[first].0.saturating_duration_since(Instant::now());
        match self.new_jobs.recv_within(Some(wait)) {
            Ok(what) => Some(RetryJob::new(what)),
            Err(RecvTimeoutError::Timeout) => Some(self.delayed.swap_remove(first).1),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Schedules a job again after a pause.
    pub(super) fn requeue_after(&mut self, job: RetryJob<T>, wait: Duration) {
        self.delayed.push((Instant::now() + wait, job));
    }

    /// Schedules a failed job again after its back-off.
    pub(super) fn retry(&mut self, job: RetryJob<T>, why: &RetryReason) {
        let (doubled, job) = match why {
            RetryReason::Failed(_) => (
                job.failures,
                RetryJob { failures: job.failures.saturating_add(1), transient_failures: 0, ..job },
            ),
            RetryReason::Transient(_) => (
                job.transient_failures,
                RetryJob { transient_failures: job.transient_failures.saturating_add(1), ..job },
            ),
        };
        self.requeue_after(job, BACKOFF_MIN.saturating_mul(1 << doubled.min(16)).min(BACKOFF_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_job_backs_off_without_blocking_other_jobs() {
        let (send, receive) = std::sync::mpsc::channel();
        let mut jobs = RetryQueue::new(receive);
        send.send("fails").unwrap();
        let failed = jobs.next().unwrap();
        jobs.retry(failed, &RetryReason::Failed("broken".to_owned()));
        send.send("works").unwrap();
        assert_eq!(jobs.next().unwrap().job, "works");
        let again = jobs.next().unwrap();
        assert_eq!((again.job, again.failures), ("fails", 1));
        // A full disk never counts as a failure of the job.
        let full = RetryReason::from(BlobError::from(std::io::Error::from(
            std::io::ErrorKind::StorageFull,
        )));
        assert!(matches!(full, RetryReason::Transient(_)), "{full:?}");
        jobs.retry(again, &full);
        let waited = jobs.next().unwrap();
        assert_eq!((waited.job, waited.failures, waited.transient_failures), ("fails", 1, 1));
        drop(send);
        assert!(jobs.next().is_none());
    }

    #[test]
    fn an_io_error_is_transient_and_a_missing_blob_is_a_failure() {
        let io = BlobError::from(std::io::Error::other("EIO"));
        assert!(matches!(RetryReason::from(io), RetryReason::Transient(_)));
        let missing = BlobError::Missing(florin_protocol::Digest([1; 32]));
        assert!(matches!(RetryReason::from(missing), RetryReason::Failed(_)));
    }
}
