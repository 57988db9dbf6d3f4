//! Group commit: a batch may wait briefly for more writers to share its fsync. An fsync costs as
//! much processor time as several small updates, independent of the number of bytes.
//!
//! A batch waits only if the previous batch had many writers, because more are then likely to
//! follow. Waiting a little for them saves most of the fsyncs. `PostgreSQL` does the same with
//! `commit_delay` and `commit_siblings`.

use std::time::Duration;

/// Delay of a batch.
const COMMIT_DELAY: Duration = Duration::from_millis(1);
/// Writers in the previous batch from which on the next batch waits.
const COMMIT_SIBLINGS: usize = 4;

/// The number of writers that shared the last fsync.
#[derive(Clone, Copy, Debug, Default)]
pub struct GroupCommit {
    last_batch_size: usize,
}

impl GroupCommit {
    /// Sleeps if more writers are likely to follow. Call it when the first writer of a batch has
    /// arrived.
    pub fn wait(self) {
        self.delay().into_iter().for_each(std::thread::sleep);
    }

    fn delay(self) -> Option<Duration> {
        (self.last_batch_size >= COMMIT_SIBLINGS).then_some(COMMIT_DELAY)
    }

    /// Notes how many writers shared the fsync of this batch.
    pub const fn note_batch(&mut self, by: usize) {
        self.last_batch_size = by;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_commit_waits_only_after_a_large_batch() {
        let mut gather = GroupCommit::default();
        assert_eq!(gather.delay(), None);
        for (by, time) in [
            (COMMIT_SIBLINGS - 1, None),
            (COMMIT_SIBLINGS, Some(COMMIT_DELAY)),
            (1, None),
            (0, None),
        ] {
            gather.note_batch(by);
            assert_eq!(gather.delay(), time, "after {by} writers");
        }
    }
}
