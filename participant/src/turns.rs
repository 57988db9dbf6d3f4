//! The turns of a device that trains for several tasks: one training at a time, the earliest
//! deadline of commits first. A running training is not interrupted.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use florin_protocol::Timestamp;

use crate::shutdown::Shutdown;

/// Time between two looks at a shutdown request.
const LOOK: Duration = Duration::from_millis(100);

/// The queue of a device. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct TrainingTurns(Arc<(Mutex<TurnQueue>, Condvar)>);

#[derive(Debug, Default)]
struct TurnQueue {
    /// Whether trainings are held back.
    closed: bool,
    /// Whether a training has the device.
    busy: bool,
    /// The number of the next request.
    next: u64,
    /// The waiting trainings: deadline, and number of the request.
    waiting: BTreeSet<(Timestamp, u64)>,
}

/// A training that asks for the device.
#[derive(Clone, Copy, Debug)]
pub struct TurnRequest {
    /// The deadline of commits, by the coordinator's clock: it orders the queue.
    pub commit_by: Timestamp,
    /// The time until then: a training that waits longer is of no use.
    pub left: Duration,
}

/// The device's turn of one training; it ends when this is dropped.
#[derive(Debug)]
pub struct TrainingTurn {
    turns: TrainingTurns,
    waited: bool,
}

impl TrainingTurns {
    fn queue(&self) -> MutexGuard<'_, TurnQueue> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether trainings may begin.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.queue().closed
    }

    /// Lets trainings begin, or holds back all that have not begun.
    pub fn set_open(&self, open: bool) {
        self.queue().closed = !open;
        self.0.1.notify_all();
    }

    /// Waits for the device; `None` if the time of the request is over or shutdown is requested.
    #[must_use]
    pub fn acquire(&self, request: TurnRequest, shutdown: &Shutdown) -> Option<TrainingTurn> {
        let start = Instant::now();
        let mut queue = self.queue();
        let place = (request.commit_by, queue.next);
        queue.next = queue.next.saturating_add(1);
        queue.waiting.insert(place);
        let mut waited = false;
        loop {
            let is_first = queue.waiting.first() == Some(&place);
            if is_first && !queue.busy && !queue.closed {
                queue.waiting.remove(&place);
                queue.busy = true;
                return Some(TrainingTurn { turns: self.clone(), waited });
            }
            if shutdown.is_requested() || start.elapsed() >= request.left {
                queue.waiting.remove(&place);
                // The next one may have waited only for this.
                self.0.1.notify_all();
                return None;
            }
            waited = true;
            let left = request.left.saturating_sub(start.elapsed()).min(LOOK);
            queue = self.0.1.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl TrainingTurn {
    /// Whether the training had to wait.
    #[must_use]
    pub const fn has_waited(&self) -> bool {
        self.waited
    }
}

impl Drop for TrainingTurn {
    fn drop(&mut self) {
        self.turns.queue().busy = false;
        self.turns.0.1.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn request(commit_by: u64, left: Duration) -> TurnRequest {
        TurnRequest { commit_by: Timestamp(commit_by), left }
    }

    fn wait_for(turns: &TrainingTurns, waiting: usize) {
        while turns.queue().waiting.len() < waiting {
            std::thread::yield_now();
        }
    }

    #[test]
    fn trainings_run_one_at_a_time_and_the_earliest_deadline_first() {
        let (turns, shutdown) = (TrainingTurns::default(), Shutdown::new());
        let first = turns.acquire(request(9, LONG), &shutdown).unwrap();
        assert!(!first.has_waited());
        let (sender, order) = mpsc::channel();
        std::thread::scope(|scope| {
            for (count, deadline) in [30_u64, 10, 20].into_iter().enumerate() {
                let (own, shutdown, sender) = (turns.clone(), &shutdown, sender.clone());
                scope.spawn(move || {
                    let turn = own.acquire(request(deadline, LONG), shutdown).unwrap();
                    assert!(turn.has_waited() && own.queue().busy);
                    sender.send(deadline).unwrap();
                });
                wait_for(&turns, count + 1);
            }
            // An earlier deadline does not interrupt the training that runs.
            assert!(order.try_recv().is_err());
            drop(first);
        });
        drop(sender);
        assert_eq!(order.iter().collect::<Vec<_>>(), [10, 20, 30]);
    }

    #[test]
    fn a_request_ends_with_its_time_or_with_a_shutdown() {
        let (turns, shutdown) = (TrainingTurns::default(), Shutdown::new());
        let busy = turns.acquire(request(1, LONG), &shutdown).unwrap();
        assert!(turns.acquire(request(2, Duration::ZERO), &shutdown).is_none());
        shutdown.request();
        assert!(turns.acquire(request(2, LONG), &shutdown).is_none());
        drop(busy);
        assert!(turns.queue().waiting.is_empty(), "a request that has ended blocks no other");
        assert!(turns.acquire(request(3, Duration::ZERO), &shutdown).is_some(), "it is free");
    }

    #[test]
    fn no_training_begins_while_the_turns_are_closed() {
        let (turns, shutdown) = (TrainingTurns::default(), Shutdown::new());
        turns.set_open(false);
        assert!(turns.acquire(request(1, Duration::ZERO), &shutdown).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| turns.acquire(request(1, LONG), &shutdown).is_some());
            wait_for(&turns, 1);
            turns.set_open(true);
            assert!(waiting.join().unwrap());
        });
        assert!(turns.is_open());
    }
}
