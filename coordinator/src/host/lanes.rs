//! One queue for several workers: whoever is free takes the next job, so that long or failing ones hold up the others
//! only when every worker has one.

use std::collections::VecDeque;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::delayed::Incoming;

#[derive(Debug)]
struct Queue<T> {
    jobs: Mutex<(VecDeque<T>, bool)>,
    changed: Condvar,
}

impl<T> Queue<T> {
    fn lock(&self) -> MutexGuard<'_, (VecDeque<T>, bool)> {
        // Nobody panics while it is locked.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where jobs are put. When it is dropped, workers end after what is queued.
#[derive(Debug)]
pub(super) struct Lanes<T>(Arc<Queue<T>>);

/// One worker's end of it.
#[derive(Debug)]
pub(super) struct Lane<T>(Arc<Queue<T>>);

impl<T> Lanes<T> {
    /// For so many workers.
    pub(super) fn new(count: usize) -> (Self, Vec<Lane<T>>) {
        let jobs = Mutex::new((VecDeque::new(), false));
        let queue = Arc::new(Queue { jobs, changed: Condvar::new() });
        let lanes = (0..count).map(|_| Lane(Arc::clone(&queue))).collect();
        (Self(queue), lanes)
    }

    /// Queues a job; `false` where every worker has gone.
    pub(super) fn send(&self, job: T) -> bool {
        self.0.lock().0.push_back(job);
        self.0.changed.notify_one();
        Arc::strong_count(&self.0) > 1
    }
}

impl<T> Drop for Lanes<T> {
    fn drop(&mut self) {
        self.0.lock().1 = true;
        self.0.changed.notify_all();
    }
}

impl<T> Incoming<T> for Lane<T> {
    fn take(&self, wait: Option<Duration>) -> Result<T, RecvTimeoutError> {
        let until = wait.and_then(|wait| Instant::now().checked_add(wait));
        let mut queue = self.0.lock();
        loop {
            if let Some(job) = queue.0.pop_front() {
                return Ok(job);
            }
            if queue.1 {
                return Err(RecvTimeoutError::Disconnected);
            }
            let Some(until) = until else {
                queue = self.0.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(RecvTimeoutError::Timeout);
            }
            let waited = self.0.changed.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_free_takes_the_next_job_whatever_the_others_have() {
        let (lanes, mut all) = Lanes::new(2);
        let (second, first) = (all.pop().unwrap(), all.pop().unwrap());
        for job in ["long", "short", "third", "fourth"] {
            assert!(lanes.send(job));
        }
        assert_eq!(first.take(None).unwrap(), "long");
        for job in ["short", "third", "fourth"] {
            assert_eq!(second.take(None).unwrap(), job, "while the long one is being done");
        }
        let soon = Some(Duration::from_millis(1));
        assert_eq!(second.take(soon), Err(RecvTimeoutError::Timeout));
        drop(second);
        assert!(lanes.send("last"), "one is left");
        let waiting = std::thread::spawn(move || (first.take(None), first.take(None)));
        drop(lanes);
        assert_eq!(waiting.join().unwrap(), (Ok("last"), Err(RecvTimeoutError::Disconnected)));
        let (lanes, all) = Lanes::new(1);
        drop(all);
        assert!(!lanes.send("nobody hears it"));
    }
}
