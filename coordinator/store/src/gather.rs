//! When a batch waits for more to share its sync: whatever a sync makes durable, it costs the processor as much as several
//! small updates do.
//!
//! Who comes alone waits only right behind a crowd. Where many shared the batch before, more are about to come, and waiting
//! a little for them saves most of the syncs (as `commit_delay` and `commit_siblings` do in `PostgreSQL`).

use std::time::Duration;

/// How long a batch waits.
const GATHER_TIME: Duration = Duration::from_millis(1);
/// How many of the batch before make the next one wait.
const CROWD: usize = 4;

/// How many shared the last sync.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gather {
    last: usize,
}

impl Gather {
    /// Sleeps if others are about to come. Called when the first of a batch is there.
    pub fn wait(self) {
        self.time().into_iter().for_each(std::thread::sleep);
    }

    fn time(self) -> Option<Duration> {
        (self.last >= CROWD).then_some(GATHER_TIME)
    }

    /// So many share the sync of this batch.
    pub const fn shared(&mut self, by: usize) {
        self.last = by;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_alone_does_not_wait_and_who_comes_behind_many_does() {
        let mut gather = Gather::default();
        assert_eq!(gather.time(), None);
        for (by, time) in [(CROWD - 1, None), (CROWD, Some(GATHER_TIME)), (1, None), (0, None)] {
            gather.shared(by);
            assert_eq!(gather.time(), time, "behind {by}");
        }
    }
}
