//! Several workers side by side: who has the least to do gets the next job, so that a long or failing one holds up
//! nobody else's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// What a worker's jobs come through. When it is dropped, the job is done.
#[derive(Debug)]
pub(super) struct Load<T> {
    pub(super) job: T,
    busy: Arc<AtomicUsize>,
}

impl<T> Drop for Load<T> {
    fn drop(&mut self) {
        self.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The workers, for whoever has jobs for them.
#[derive(Debug)]
pub(super) struct Lanes<T> {
    lanes: Vec<(Sender<Load<T>>, Arc<AtomicUsize>)>,
}

impl<T> Lanes<T> {
    /// So many workers, and what each of them hears.
    pub(super) fn new(count: usize) -> (Self, Vec<Receiver<Load<T>>>) {
        let one = |_| {
            let (sender, receiver) = channel();
            ((sender, Arc::default()), receiver)
        };
        let (lanes, receivers) = (0..count).map(one).unzip();
        (Self { lanes }, receivers)
    }

    /// Gives a job to the worker with the fewest; `false` where it has gone.
    pub(super) fn send(&self, job: T) -> bool {
        let least = self.lanes.iter().min_by_key(|(_, busy)| busy.load(Ordering::Relaxed));
        let Some((sender, busy)) = least else { return false };
        busy.fetch_add(1, Ordering::Relaxed);
        sender.send(Load { job, busy: Arc::clone(busy) }).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_job_holds_up_nobody() {
        let (lanes, mut heard) = Lanes::new(2);
        let (second, first) = (heard.pop().unwrap(), heard.pop().unwrap());
        assert!(lanes.send("long"));
        let long = first.recv().unwrap();
        for short in ["a", "b", "c"] {
            assert!(lanes.send(short));
            assert_eq!(second.recv().unwrap().job, short, "while the long one is being done");
        }
        drop(long);
        assert!(lanes.send("d"));
        assert_eq!(first.recv().unwrap().job, "d");
        drop(first);
        assert!(!lanes.send("nobody hears it"));
    }
}
