//! The memory of a coordinator over time, across its restarts.

use std::time::{Duration, Instant};

/// Warm-up: tables, threads and caches are allocated at their first use after a start.
const WARM: Duration = Duration::from_secs(30);

/// A sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemorySample {
    /// Time since the start of the benchmark.
    pub(super) at: Duration,
    /// Number of reported rounds so far.
    pub(super) rounds: u32,
    /// Resident memory, in MiB.
    pub(super) mib: f64,
}

/// All samples, grouped by process.
#[derive(Debug)]
pub(super) struct MemoryHistory {
    lives: Vec<Vec<MemorySample>>,
    newest: Instant,
}

impl Default for MemoryHistory {
    fn default() -> Self {
        Self { lives: vec![Vec::new()], newest: Instant::now() }
    }
}

impl MemoryHistory {
    pub(super) fn add(&mut self, look: MemorySample) {
        self.newest = Instant::now();
        if let Some(life) = self.lives.last_mut() {
            life.push(look);
        }
    }

    /// Starts the samples of a new process.
    pub(super) fn restarted(&mut self) {
        self.lives.push(Vec::new());
    }

    /// The time of the last sample.
    pub(super) fn last(&self) -> Option<Duration> {
        self.all().last().map(|look| look.at)
    }

    fn all(&self) -> impl DoubleEndedIterator<Item = &MemorySample> {
        self.lives.iter().flatten()
    }

    /// Resident memory in MiB after `share` per cent of the time.
    pub(super) fn at(&self, share: u32) -> f64 {
        let end = self.last().unwrap_or_default() * share / 100;
        let by_then = self.all().take_while(|look| look.at <= end).last();
        by_then.map_or(0.0, |look| look.mib)
    }

    /// The maximum over all samples, in MiB.
    pub(super) fn highest(&self) -> f64 {
        self.all().map(|look| look.mib).fold(0.0, f64::max)
    }

    /// The number of rounds that were reported `ago` before now.
    pub(super) fn rounds_before(&self, ago: Duration) -> Option<u32> {
        let now = self.last()?.saturating_add(self.newest.elapsed());
        let then = now.checked_sub(ago)?;
        let look = self.all().take_while(|look| look.at <= then).last()?;
        (look.rounds > 0).then_some(look.rounds)
    }

    /// Growth per round in KiB: the least-squares slope over the longest process lifetime, without
    /// its warm-up.
    pub(super) fn growth_kib(&self) -> f64 {
        let Some(life) = self.lives.iter().max_by_key(|life| life.len()) else {
            return 0.0;
        };
        let warm = life.first().map_or(Duration::ZERO, |first| first.at.saturating_add(WARM));
        let looks: Vec<(f64, f64)> = life
            .iter()
            .filter(|look| look.at >= warm)
            .map(|look| (f64::from(look.rounds), look.mib * 1_024.0))
            .collect();
        let many = f64::from(u32::try_from(looks.len()).unwrap_or(u32::MAX));
        let middle = |of: fn(&(f64, f64)) -> f64| looks.iter().map(of).sum::<f64>() / many;
        let (x, y) = (middle(|look| look.0), middle(|look| look.1));
        let with: f64 = looks.iter().map(|look| (look.0 - x) * (look.1 - y)).sum();
        let of: f64 = looks.iter().map(|look| (look.0 - x) * (look.0 - x)).sum();
        if of > 0.0 { with / of } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(seconds: u64, rounds: u32, mib: f64) -> MemorySample {
        MemorySample { at: Duration::from_secs(seconds), rounds, mib }
    }

    #[test]
    fn growth_is_measured_over_the_longest_lifetime_after_its_warm_up() {
        let mut memory = MemoryHistory::default();
        for life in 0..3u32 {
            // The warm-up is steep. After it, the second and longest lifetime grows by 2 MiB in ten
            // rounds, the others by 20.
            memory.add(look(u64::from(life) * 100, life * 20, 1.0));
            let (steps, each) = if life == 1 { (20, 0.2) } else { (10, 2.0) };
            for step in 0..=steps {
                let at = u64::from(life) * 100 + 40 + u64::from(step);
                memory.add(look(at, life * 20 + step, 50.0 + f64::from(step) * each));
            }
            memory.restarted();
        }
        let grows = memory.growth_kib();
        assert!((grows - 204.8).abs() < 1e-9, "{grows}");
        assert!((memory.highest() - 70.0).abs() < 1e-9);
        assert!((memory.at(100) - 70.0).abs() < 1e-9);
        assert!((memory.at(0) - 1.0).abs() < 1e-9);
        assert!(MemoryHistory::default().growth_kib().abs() < 1e-9);
    }
}
