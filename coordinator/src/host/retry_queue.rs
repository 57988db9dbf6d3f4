//! A worker's retry queue: it returns new jobs at once and failed jobs again after an exponential
//! back-off.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
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

#[derive(Debug)]
pub(super) struct RetryQueue<T> {
    new_jobs: Receiver<T>,
    delayed: Vec<(Instant, RetryJob<T>)>,
}

impl<T> RetryQueue<T> {
    pub(super) const fn new(new_jobs: Receiver<T>) -> Self {
        Self { new_jobs, delayed: Vec::new() }
    }

    /// The next job; blocks until one is ready. `None` when every sender is dropped.
    pub(super) fn next(&mut self) -> Option<RetryJob<T>> {
        let first = (0..self.delayed.len()).min_by_key(|i| self.delayed[*i].0);
        let Some(first) = first else {
            return self.new_jobs.recv().ok().map(RetryJob::new);
        };
        let wait = self.delayed[first].0.saturating_duration_since(Instant::now());
        match self.new_jobs.recv_timeout(wait) {
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
        let (send, receive) = crossbeam_channel::unbounded();
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
    fn an_idle_worker_takes_the_next_job_while_others_are_busy() {
        let (send, receive) = crossbeam_channel::unbounded();
        let (mut first, mut second) = (RetryQueue::new(receive.clone()), RetryQueue::new(receive));
        for job in ["long", "short", "third", "fourth"] {
            send.send(job).unwrap();
        }
        assert_eq!(first.next().unwrap().job, "long");
        let mut retried = None;
        for job in ["short", "third", "fourth"] {
            let next = second.next().unwrap();
            assert_eq!(next.job, job, "while the long job runs");
            retried = Some(next);
        }
        second.requeue_after(retried.unwrap(), Duration::from_millis(1));
        assert_eq!(second.next().unwrap().job, "fourth", "after its pause, as no new job is there");
        drop(second);
        send.send("last").expect("one worker is left");
        let waiting = std::thread::spawn(move || {
            [first.next(), first.next()].map(|job| job.map(|job| job.job))
        });
        drop(send);
        assert_eq!(waiting.join().unwrap(), [Some("last"), None]);
        let (send, receive) = crossbeam_channel::unbounded();
        drop(RetryQueue::new(receive));
        assert!(send.send("no worker is left").is_err());
    }

    #[test]
    fn an_io_error_is_transient_and_a_missing_blob_is_a_failure() {
        let io = BlobError::from(std::io::Error::other("EIO"));
        assert!(matches!(RetryReason::from(io), RetryReason::Transient(_)));
        let missing = BlobError::Missing(florin_protocol::Digest([1; 32]));
        assert!(matches!(RetryReason::from(missing), RetryReason::Failed(_)));
    }
}
