//! A worker's jobs: new ones at once, those that failed again after a while.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// First wait after a failure; doubled with each further one.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest wait after a failure.
pub(super) const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// A job and how often it has failed.
#[derive(Debug)]
pub(super) struct Job<T> {
    pub(super) what: T,
    pub(super) failures: u32,
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
            return self.incoming.take(None).ok().map(|what| Job { what, failures: 0 });
        };
        let wait = self.waiting[first].0.saturating_duration_since(Instant::now());
        match self.incoming.take(Some(wait)) {
            Ok(what) => Some(Job { what, failures: 0 }),
            Err(RecvTimeoutError::Timeout) => Some(self.waiting.swap_remove(first).1),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Puts a job back for later.
    pub(super) fn later(&mut self, job: Job<T>, wait: Duration) {
        self.waiting.push((Instant::now() + wait, job));
    }

    /// Puts a job back that failed.
    pub(super) fn again(&mut self, job: Job<T>) {
        let wait = BACKOFF_MIN.saturating_mul(1 << job.failures.min(16)).min(BACKOFF_MAX);
        let failures = job.failures.saturating_add(1);
        self.later(Job { failures, ..job }, wait);
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
        jobs.again(failed);
        send.send("works").unwrap();
        assert_eq!(jobs.next().unwrap().what, "works");
        let again = jobs.next().unwrap();
        assert_eq!((again.what, again.failures), ("fails", 1));
        drop(send);
        assert!(jobs.next().is_none());
    }
}
