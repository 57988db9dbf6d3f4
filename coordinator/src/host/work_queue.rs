//! A multi-producer, multi-consumer (MPMC) queue for a pool of workers: an idle worker takes the
//! next job, so long or failing jobs delay others only when every worker has one.

use std::collections::VecDeque;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::retry_queue::JobReceiver;

#[derive(Debug)]
struct QueueState<T> {
    jobs: VecDeque<T>,
    /// Whether the sender is gone.
    is_closed: bool,
}

#[derive(Debug)]
struct Queue<T> {
    state: Mutex<QueueState<T>>,
    changed: Condvar,
}

impl<T> Queue<T> {
    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sending end. After it is dropped, the workers finish the queued jobs and end.
#[derive(Debug)]
pub(super) struct WorkSender<T>(Arc<Queue<T>>);

/// One worker's receiving end.
#[derive(Debug)]
pub(super) struct WorkReceiver<T>(Arc<Queue<T>>);

impl<T> WorkSender<T> {
    /// Creates a queue for `count` workers.
    pub(super) fn channel(count: usize) -> (Self, Vec<WorkReceiver<T>>) {
        let state = Mutex::new(QueueState { jobs: VecDeque::new(), is_closed: false });
        let queue = Arc::new(Queue { state, changed: Condvar::new() });
        let lanes = (0..count).map(|_| WorkReceiver(Arc::clone(&queue))).collect();
        (Self(queue), lanes)
    }

    /// Queues a job; returns `false` if every worker has ended.
    pub(super) fn send(&self, job: T) -> bool {
        self.0.lock().jobs.push_back(job);
        self.0.changed.notify_one();
        Arc::strong_count(&self.0) > 1
    }
}

impl<T> Drop for WorkSender<T> {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl<T> JobReceiver<T> for WorkReceiver<T> {
    fn recv_within(&self, wait: Option<Duration>) -> Result<T, RecvTimeoutError> {
        let until = wait.and_then(|wait| Instant::now().checked_add(wait));
        let mut queue = self.0.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Ok(job);
            }
            if queue.is_closed {
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
    fn an_idle_worker_takes_the_next_job_while_others_are_busy() {
        let (lanes, mut all) = WorkSender::channel(2);
        let (second, first) = (all.pop().unwrap(), all.pop().unwrap());
        for job in ["long", "short", "third", "fourth"] {
            assert!(lanes.send(job));
        }
        assert_eq!(first.recv_within(None).unwrap(), "long");
        for job in ["short", "third", "fourth"] {
            assert_eq!(second.recv_within(None).unwrap(), job, "while the long job runs");
        }
        let soon = Some(Duration::from_millis(1));
        assert_eq!(second.recv_within(soon), Err(RecvTimeoutError::Timeout));
        drop(second);
        assert!(lanes.send("last"), "one worker is left");
        let waiting =
            std::thread::spawn(move || (first.recv_within(None), first.recv_within(None)));
        drop(lanes);
        assert_eq!(waiting.join().unwrap(), (Ok("last"), Err(RecvTimeoutError::Disconnected)));
        let (lanes, all) = WorkSender::channel(1);
        drop(all);
        assert!(!lanes.send("no worker is left"));
    }
}
