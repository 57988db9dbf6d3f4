//! The place where the reading thread hands rows over to the trainer, and the only one where either
//! side waits for the other.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use florin_learning::Dataset;
use florin_learning::data::Reservoir;

use super::limits::{NEWS_MAX, QUEUE_FEATURES_MAX, QUEUE_ROWS_MAX, REFUSED_IN_A_ROW_MAX};
use super::news::{FeedCounts, RefusalCode, RowRefusal};
use super::{FeedSettings, ProducerError, SamplePurpose};
use crate::trace;

/// The time since the start of a feed.
pub(super) type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The feed is closed: no further row is wanted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FeedClosed;

/// Reservoir and queue, between the reading thread and the trainer.
pub(super) struct Exchange {
    state: Mutex<ExchangeState>,
    changed: Condvar,
    clock: Clock,
}

struct ExchangeState {
    reservoir: Reservoir,
    /// Rows that were read during a training, oldest first.
    queue: VecDeque<Dataset>,
    is_training: bool,
    is_closed: bool,
    failure: Option<ProducerError>,
    /// Rows seen at the last snapshot.
    seen_at_training: u64,
    refused: u64,
    refused_in_a_row: u64,
    /// The codes of which a refusal was shown.
    shown: BTreeSet<RefusalCode>,
    refusals: VecDeque<RowRefusal>,
    sources_read: u64,
    producer_slow: SideWait,
    trainer_slow: SideWait,
}

/// The time for which one side has waited.
#[derive(Clone, Copy, Debug, Default)]
struct SideWait {
    total: Duration,
    since: Option<Duration>,
}

impl SideWait {
    /// Begins a wait, unless one has begun.
    fn begin(&mut self, now: Duration) {
        self.since.get_or_insert(now);
    }

    fn end(&mut self, now: Duration) {
        self.total = self.until(now);
        self.since = None;
    }

    /// The time so far, with a wait that goes on.
    fn until(&self, now: Duration) -> Duration {
        let open = self.since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        self.total.saturating_add(open)
    }
}

impl ExchangeState {
    fn queued(&self) -> (usize, usize) {
        let add = |(rows, features): (usize, usize), batch: &Dataset| {
            (rows.saturating_add(batch.rows()), features.saturating_add(batch.features().len()))
        };
        self.queue.iter().fold((0, 0), add)
    }

    /// Whether rows may be queued; a single batch always may.
    fn has_room(&self, batch: &Dataset) -> bool {
        let (rows, features) = self.queued();
        self.queue.is_empty()
            || rows.saturating_add(batch.rows()) <= QUEUE_ROWS_MAX
                && features.saturating_add(batch.features().len()) <= QUEUE_FEATURES_MAX
    }

    fn is_ready(&self, need: &FeedSettings) -> bool {
        let seen = self.reservoir.seen();
        self.reservoir.rows() >= need.rows_min
            && seen.saturating_sub(self.seen_at_training) >= need.new_rows_min
    }

    /// Ends a training: the rows that wait enter the reservoir.
    fn resume(&mut self) {
        self.is_training = false;
        while let Some(rows) = self.queue.pop_front() {
            self.add(&rows);
        }
    }

    fn add(&mut self, rows: &Dataset) {
        if let Err(error) = self.reservoir.add(rows) {
            self.failure.get_or_insert(error.into());
        }
    }
}

impl Exchange {
    pub(super) fn new(reservoir: Reservoir, clock: Clock) -> Self {
        let state = ExchangeState {
            reservoir,
            queue: VecDeque::new(),
            is_training: false,
            is_closed: false,
            failure: None,
            seen_at_training: 0,
            refused: 0,
            refused_in_a_row: 0,
            shown: BTreeSet::new(),
            refusals: VecDeque::new(),
            sources_read: 0,
            producer_slow: SideWait::default(),
            trainer_slow: SideWait::default(),
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), clock }
    }

    fn lock(&self) -> MutexGuard<'_, ExchangeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        (self.clock)()
    }

    /// Hands rows over. Waits while a training runs and the queue is full.
    pub(super) fn offer(&self, rows: Dataset) -> Result<(), FeedClosed> {
        let mut state = self.lock();
        let mut span = None;
        while !state.is_closed && state.is_training && !state.has_room(&rows) {
            span.get_or_insert_with(trace::wait_for_trainer);
            state.trainer_slow.begin(self.now());
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.trainer_slow.end(self.now());
        if state.is_closed {
            return Err(FeedClosed);
        }
        if rows.rows() > 0 {
            state.refused_in_a_row = 0;
        }
        match state.is_training {
            true => state.queue.push_back(rows),
            false => state.add(&rows),
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Counts a refusal. Beyond the limit of refusals in a row the feed fails.
    pub(super) fn refuse(&self, refusal: RowRefusal) {
        let mut state = self.lock();
        state.refused = state.refused.saturating_add(1);
        state.refused_in_a_row = state.refused_in_a_row.saturating_add(1);
        let is_beyond = state.refused_in_a_row > REFUSED_IN_A_ROW_MAX;
        if is_beyond {
            state.failure.get_or_insert(ProducerError::Refused { last: refusal.clone() });
            state.is_closed = true;
        }
        self.show(&mut state, refusal);
        self.changed.notify_all();
    }

    /// Shows something that is no refusal, once for its code.
    pub(super) fn note(&self, news: RowRefusal) {
        self.show(&mut self.lock(), news);
    }

    fn show(&self, state: &mut ExchangeState, refusal: RowRefusal) {
        if state.shown.insert(refusal.code) && state.refusals.len() < NEWS_MAX {
            state.refusals.push_back(refusal);
        }
    }

    /// Counts a connection or a file.
    pub(super) fn count_source(&self) {
        let mut state = self.lock();
        state.sources_read = state.sources_read.saturating_add(1);
    }

    pub(super) fn take_refusals(&self) -> Vec<RowRefusal> {
        self.lock().refusals.drain(..).collect()
    }

    pub(super) fn counts(&self) -> FeedCounts {
        let state = self.lock();
        let now = self.now();
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        FeedCounts {
            rows_seen: state.reservoir.seen(),
            rows_in_reservoir: state.reservoir.rows() as u64,
            rows_queued: state.queued().0 as u64,
            refused: state.refused,
            sources_read: state.sources_read,
            producer_slow_ms: ms(state.producer_slow.until(now)),
            trainer_slow_ms: ms(state.trainer_slow.until(now)),
        }
    }

    pub(super) fn is_ready(&self, need: &FeedSettings) -> bool {
        let mut state = self.lock();
        state.resume();
        self.changed.notify_all();
        state.is_ready(need)
    }

    /// The sample; `None` if too few rows came within `limit`.
    pub(super) fn take(
        &self,
        need: &FeedSettings,
        purpose: SamplePurpose,
        limit: Duration,
    ) -> Result<Option<Dataset>, ProducerError> {
        let begun = Instant::now();
        let mut state = self.lock();
        state.resume();
        self.changed.notify_all();
        while !state.is_ready(need) && state.failure.is_none() {
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                break;
            }
            state.producer_slow.begin(self.now());
            self.changed.notify_all();
            let waited = self.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.producer_slow.end(self.now());
        if let Some(failure) = state.failure.take() {
            state.is_closed = true;
            return Err(failure);
        }
        if !state.is_ready(need) {
            return Ok(None);
        }
        let sample = state.reservoir.snapshot()?;
        if purpose == SamplePurpose::Training {
            state.seen_at_training = state.reservoir.seen();
            state.is_training = true;
        }
        Ok(Some(sample))
    }

    pub(super) fn resume(&self) {
        self.lock().resume();
        self.changed.notify_all();
    }

    /// Ends the feed with an error, unless it has ended.
    pub(super) fn fail(&self, error: ProducerError) {
        let mut state = self.lock();
        state.failure.get_or_insert(error);
        state.is_closed = true;
        self.changed.notify_all();
    }

    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Waits for a time, or until the feed is closed.
    pub(super) fn pause(&self, time: Duration) {
        let begun = Instant::now();
        let mut state = self.lock();
        while !state.is_closed {
            let left = time.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return;
            }
            let waited = self.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until a condition on the sides holds: whether the trainer waits for rows, and whether
    /// rows wait for the trainer.
    #[cfg(test)]
    pub(super) fn wait_until(&self, mut holds: impl FnMut(WaitingSides) -> bool) {
        let mut state = self.lock();
        let sides = |state: &ExchangeState| WaitingSides {
            trainer: state.producer_slow.since.is_some(),
            producer: state.trainer_slow.since.is_some(),
        };
        while !holds(sides(&state)) {
            state = self.changed.wait(state).unwrap();
        }
    }
}

/// The sides that wait now.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingSides {
    /// The trainer waits for rows.
    pub(super) trainer: bool,
    /// Read rows wait for the trainer.
    pub(super) producer: bool,
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("counts", &self.counts()).finish_non_exhaustive()
    }
}
