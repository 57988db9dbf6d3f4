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
pub(super) struct Job<T> {
    pub(super) what: T,
    /// Attempts that failed for a reason that may lie in the job.
    pub(super) failures: u32,
    /// Consecutive attempts that failed for a transient reason of the machine.
    waits: u32,
}

/// Why a job is retried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// The job failed, possibly because of its inputs: the number of attempts is limited.
    Failed(String),
    /// The machine has no space, or a read failed. The reason does not lie in the job, so the
    /// number of attempts is unlimited.
    Waits(String),
}

impl std::fmt::Display for Again {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Failed(why) | Self::Waits(why)) = self;
        f.write_str(why)
    }
}

impl From<BlobError> for Again {
    fn from(error: BlobError) -> Self {
        let why = error.to_string();
        if error.is_passing() { Self::Waits(why) } else { Self::Failed(why) }
    }
}

impl<T> Job<T> {
    const fn new(what: T) -> Self {
        Self { what, failures: 0, waits: 0 }
    }
}

/// The receiving end of a channel of jobs.
pub(super) trait Incoming<T> {
    /// Receives the next job; blocks until one arrives, or at most for `wait`.
    ///
    /// # Errors
    /// The time is up, or every sender is dropped.
    fn take(&self, wait: Option<Duration>) -> Result<T, RecvTimeoutError>;
}

impl<T> Incoming<T> for Receiver<T> {
    fn take(&self, wait: Option<Duration>) -> Result<T, RecvTimeoutError> {
        match wait {
            None => self.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(wait) => self.recv_timeout(wait),
        }
    }
}

#[derive(Debug)]
pub(super) struct Delayed<T, I = Receiver<T>> {
    incoming: I,
    waiting: Vec<(Instant, Job<T>)>,
}

impl<T, I: Incoming<T>> Delayed<T, I> {
    pub(super) const fn new(incoming: I) -> Self {
        Self { incoming, waiting: Vec::new() }
    }

    /// The next job; blocks until one is ready. `None` when every sender is dropped.
    pub(super) fn next(&mut self) -> Option<Job<T>> {
        let first = (0..self.waiting.len()).min_by_key(|i| self.waiting[*i].0);
        let Some(first) = first else {
            return self.incoming.take(None).ok().map(Job::new);
        };
        let wait = self.waiting[first].0.saturating_duration_since(Instant::now());
        match self.incoming.take(Some(wait)) {
            Ok(what) => Some(Job::new(what)),
            Err(RecvTimeoutError::Timeout) => Some(self.waiting.swap_remove(first).1),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Schedules a job again after a pause.
    pub(super) fn later(&mut self, job: Job<T>, wait: Duration) {
        self.waiting.push((Instant::now() + wait, job));
    }

    /// Schedules a failed job again after its back-off.
    pub(super) fn again(&mut self, job: Job<T>, why: &Again) {
        let (doubled, job) = match why {
            Again::Failed(_) => {
                (job.failures, Job { failures: job.failures.saturating_add(1), waits: 0, ..job })
            }
            Again::Waits(_) => (job.waits, Job { waits: job.waits.saturating_add(1), ..job }),
        };
        self.later(job, BACKOFF_MIN.saturating_mul(1 << doubled.min(16)).min(BACKOFF_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_job_backs_off_without_blocking_other_jobs() {
        let (send, receive) = std::sync::mpsc::channel();
        let mut jobs = Delayed::new(receive);
        send.send("fails").unwrap();
        let failed = jobs.next().unwrap();
        jobs.again(failed, &Again::Failed("broken".to_owned()));
        send.send("works").unwrap();
        assert_eq!(jobs.next().unwrap().what, "works");
        let again = jobs.next().unwrap();
        assert_eq!((again.what, again.failures), ("fails", 1));
        // A full disk never counts as a failure of the job.
        let full =
            Again::from(BlobError::from(std::io::Error::from(std::io::ErrorKind::StorageFull)));
        assert!(matches!(full, Again::Waits(_)), "{full:?}");
        jobs.again(again, &full);
        let waited = jobs.next().unwrap();
        assert_eq!((waited.what, waited.failures, waited.waits), ("fails", 1, 1));
        drop(send);
        assert!(jobs.next().is_none());
    }

    #[test]
    fn an_io_error_is_transient_and_a_missing_blob_is_a_failure() {
        let io = BlobError::from(std::io::Error::other("EIO"));
        assert!(matches!(Again::from(io), Again::Waits(_)));
        let missing = BlobError::Missing(florin_protocol::Digest([1; 32]));
        assert!(matches!(Again::from(missing), Again::Failed(_)));
    }
}
