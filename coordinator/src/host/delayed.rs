//! A worker's jobs: new ones at once, those that failed again after a while.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use florin_store::BlobError;

/// First wait after a failure; doubled with each further one.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest wait after a failure.
pub(super) const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// A job and how often it has failed.
#[derive(Debug)]
pub(super) struct Job<T> {
    pub(super) what: T,
    /// Tries that failed for a reason of the job's own.
    pub(super) failures: u32,
    /// Tries in a row that only had to wait.
    waits: u32,
}

/// Why a job comes again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// It failed, which may be its own fault: so many times and no more.
    Failed(String),
    /// The machine has no room for it, or does not let it read: that says nothing of the job.
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

/// Where new jobs come from.
pub(super) trait Incoming<T> {
    /// The next one; waits for it as long as it takes, or no longer than this.
    ///
    /// # Errors
    /// None came in time, or nobody can send any more.
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

    /// The next job, when there is one; `None` when nobody can send any more.
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

    /// Puts a job back for later.
    pub(super) fn later(&mut self, job: Job<T>, wait: Duration) {
        self.waiting.push((Instant::now() + wait, job));
    }

    /// Puts a job back that failed, or has to wait.
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
    fn a_failed_job_waits_and_does_not_hold_up_the_others() {
        let (send, receive) = std::sync::mpsc::channel();
        let mut jobs = Delayed::new(receive);
        send.send("fails").unwrap();
        let failed = jobs.next().unwrap();
        jobs.again(failed, &Again::Failed("broken".to_owned()));
        send.send("works").unwrap();
        assert_eq!(jobs.next().unwrap().what, "works");
        let again = jobs.next().unwrap();
        assert_eq!((again.what, again.failures), ("fails", 1));
        // Waiting for room is no failure, however often.
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
    fn a_disk_that_does_not_read_is_waited_for_and_a_blob_that_is_not_there_is_a_failure() {
        let io = BlobError::from(std::io::Error::other("EIO"));
        assert!(matches!(Again::from(io), Again::Waits(_)));
        let missing = BlobError::Missing(florin_protocol::Digest([1; 32]));
        assert!(matches!(Again::from(missing), Again::Failed(_)));
    }
}
