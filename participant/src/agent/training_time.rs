//! The predicted time of a round's training, beside the time that the task gives a round for it.

use std::fmt;
use std::time::Duration;

use florin_learning::engine::TrainingQuote;
use florin_protocol::format_ms;
use serde::Serialize;

const MS_PER_SECOND: f64 = 1e3;
/// Fewer bytes show the latency of a connection instead of its rate.
const SAMPLE_BYTES_MIN: u64 = 256 << 10;

/// The predicted time of a round's training and the task's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RoundTrainingTime {
    /// Milliseconds of the training by the slowest measured step: of this process alone, divided by the
    /// number of processes.
    pub training_ms: u64,
    /// Milliseconds in which the base model arrives, at the rate of the task's files; `None` if unknown.
    pub download_ms: Option<u64>,
    /// Milliseconds from a round's offer to the last commit.
    pub round_ms: u64,
    /// Processes that share the training.
    pub processes: u32,
    /// Whether the time exceeds that of a round.
    pub is_beyond: bool,
}

/// The comparison of a predicted time with the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrainingVerdict {
    /// At most half of the time.
    Fits,
    /// More than half of it, or more than all of it by processes whose speeds are unknown.
    Close,
    /// More than all of it, by one process that was measured.
    Beyond,
}

impl RoundTrainingTime {
    /// `round_ms` is the time from the offer to the last commit.
    pub(super) fn new(
        quote: &TrainingQuote,
        download: Option<Duration>,
        round_ms: u64,
        processes: u32,
    ) -> Self {
        let processes = processes.max(1);
        let seconds = quote.steps as f64 * quote.step_seconds_most / f64::from(processes);
        // Saturates for times that no number of milliseconds has.
        let training_ms = (seconds * MS_PER_SECOND) as u64;
        let download_ms = download.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let all = training_ms.saturating_add(download_ms.unwrap_or(0));
        Self { training_ms, download_ms, round_ms, processes, is_beyond: all > round_ms }
    }

    /// Milliseconds from the offer to the commit, as far as they are known.
    #[must_use]
    pub fn total_ms(&self) -> u64 {
        self.training_ms.saturating_add(self.download_ms.unwrap_or(0))
    }

    pub(super) fn verdict(&self) -> TrainingVerdict {
        match self.total_ms() {
            // The speeds of the other processes are measured at the first training.
            _ if self.is_beyond && self.processes == 1 => TrainingVerdict::Beyond,
            total if total > self.round_ms / 2 => TrainingVerdict::Close,
            _ => TrainingVerdict::Fits,
        }
    }
}

impl fmt::Display for RoundTrainingTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (round, all) = (format_ms(self.round_ms), format_ms(self.total_ms()));
        let by = match self.processes {
            1 => "on this process".to_owned(),
            more => format!("on {more} processes, if all are as fast as this one"),
        };
        let model = match self.download_ms {
            Some(ms) => format!(", of which the base model's arrival takes {}", format_ms(ms)),
            None => String::new(),
        };
        write!(f, "a round's training takes up to {all} {by}{model}; a round has {round} for it")
    }
}

/// The rate at which the coordinator's files arrive.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DownloadRate {
    bytes: u64,
    time: Duration,
}

impl DownloadRate {
    /// Adds a file that has arrived.
    pub(super) fn add(&mut self, bytes: usize, time: Duration) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        self.time = self.time.saturating_add(time);
    }

    /// The time in which `bytes` bytes arrive; `None` before enough have.
    pub(super) fn time_of(&self, bytes: u64) -> Option<Duration> {
        if self.bytes < SAMPLE_BYTES_MIN {
            return None;
        }
        let seconds = self.time.as_secs_f64() * (bytes as f64 / self.bytes as f64);
        Duration::try_from_secs_f64(seconds).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 steps of 0.1 seconds, of which the slowest took `step_seconds_most`.
    fn quote(step_seconds_most: f64) -> TrainingQuote {
        TrainingQuote { steps: 100, step_seconds: 0.1, step_seconds_most, step_bytes: 1 }
    }

    #[test]
    fn the_upper_end_and_the_download_count_against_the_round() {
        let time = |most: f64, download: Option<u64>, processes: u32| {
            let download = download.map(Duration::from_millis);
            let time = RoundTrainingTime::new(&quote(most), download, 20_000, processes);
            (time.total_ms(), time.verdict())
        };
        assert_eq!(time(0.1, None, 1), (10_000, TrainingVerdict::Fits));
        assert_eq!(time(0.1, Some(1), 1), (10_001, TrainingVerdict::Close));
        assert_eq!(time(0.2, None, 1), (20_000, TrainingVerdict::Close));
        assert_eq!(time(0.2, Some(1), 1), (20_001, TrainingVerdict::Beyond));
        assert_eq!(time(0.8, None, 8), (10_000, TrainingVerdict::Fits));
        assert_eq!(time(8.0, None, 8), (100_000, TrainingVerdict::Close), "others may be faster");
        assert_eq!(time(f64::INFINITY, None, 1), (u64::MAX, TrainingVerdict::Beyond));
    }

    #[test]
    fn a_rate_needs_a_sample_of_some_size() {
        let mut rate = DownloadRate::default();
        rate.add(200 << 10, Duration::from_secs(2));
        assert_eq!(rate.time_of(1), None);
        rate.add(200 << 10, Duration::from_secs(2));
        assert_eq!(rate.time_of(800 << 10), Some(Duration::from_secs(8)));
    }

    #[test]
    fn a_line_has_both_times_and_the_processes() {
        let of = |download, processes| {
            let time = RoundTrainingTime::new(&quote(0.5), download, 20_000, processes);
            time.to_string()
        };
        assert_eq!(
            of(None, 1),
            "a round's training takes up to 50 s on this process; a round has 20 s for it"
        );
        let text = of(Some(Duration::from_secs(3)), 2);
        assert!(text.contains("up to 28 s on 2 processes") && text.contains("takes 3 s"), "{text}");
    }
}
