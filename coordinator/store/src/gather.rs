//! Group commit: a batch may wait briefly for more writers to share its fsync. An fsync costs as
//! much processor time as several small updates, independent of the number of bytes.
//!
//! A batch waits only if the previous batch had many writers, because more are then likely to
//! follow. Waiting a little for them saves most of the fsyncs. `PostgreSQL` does the same with
//! `commit_delay` and `commit_siblings`.

use std::time::Duration;

/// Delay of a batch.
const GATHER_TIME: Duration = Duration::from_millis(1);
/// Writers in the previous batch from which on the next batch waits.
const CROWD: usize = 4;

/// The number of writers that shared the last fsync.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gather {
    last: usize,
}

impl Gather {
    /// Sleeps if more writers are likely to follow. Call it when the first writer of a batch has
    /// arrived.
    pub fn wait(self) {
        self.time().into_iter().for_each(std::thread::sleep);
    }

    fn time(self) -> Option<Duration> {
        (self.last >= CROWD).then_some(GATHER_TIME)
    }

    /// Notes how many writers shared the fsync of this batch.
    pub const fn shared(&mut self, by: usize) {
        self.last = by;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_commit_waits_only_after_a_large_batch() {
        let mut gather = Gather::default();
        assert_eq!(gather.time(), None);
        for (by, time) in [(CROWD - 1, None), (CROWD, Some(GATHER_TIME)), (1, None), (0, None)] {
            gather.shared(by);
            assert_eq!(gather.time(), time, "after {by} writers");
        }
    }
}
