//! The events of a participant and of a provider for a trace (`--trace`), with the target
//! [`TARGET`]. Without a subscriber for this target each of them costs one atomic read.
//!
//! The process first records its own account (`member`), because the file of a trace belongs to one
//! process. `receive` is the moment at which it reads an offer, or the request for its update;
//! `send` is the start of a request with a commit, an update or a work record.

use std::time::{Duration, Instant};

use florin_protocol::{Address, RoundNumber, TaskId, TaskPhase, TaskView};
use tracing::span::EnteredSpan;
use tracing::{Level, Span, event, field, trace_span};

/// The target of all events and spans of a trace.
const TARGET: &str = "florin::trace";
/// Least duration of a span of training steps: shorter ones would slow the training.
const STEPS_TIME_MIN: Duration = Duration::from_millis(10);

/// Records the account of this process, and whether it is a participant or a provider.
pub(crate) fn member(role: &'static str, member: Address) {
    event!(name: "member", target: TARGET, Level::TRACE, role, member = %member);
}

/// A request with this message starts.
pub(crate) fn send(kind: &'static str, key: RoundKey, bytes: u64) {
    let RoundKey { task, round, member } = key;
    event!(name: "send", target: TARGET, Level::TRACE, kind, task = task.short(),
        round = round.0, member = %member, bytes);
}

/// A message is read.
pub(crate) fn receive(kind: &'static str, key: RoundKey) {
    let RoundKey { task, round, member } = key;
    event!(name: "receive", target: TARGET, Level::TRACE, kind, task = task.short(),
        round = round.0, member = %member);
}

/// A wait of rows that a producer wrote: a training runs, and the queue is full.
pub(crate) fn wait_for_trainer() -> EnteredSpan {
    trace_span!(target: TARGET, "wait for trainer").entered()
}

/// The messages of a round that one account sends and receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundKey {
    pub(crate) task: TaskId,
    pub(crate) round: RoundNumber,
    pub(crate) member: Address,
}

/// The work of a span.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// A long poll: the member waits for the coordinator.
    Wait,
    /// Reads and checks a report.
    ReadReport,
    /// Fetches the base model.
    FetchModel,
    /// Waits for rows of its producer.
    AwaitRows,
    /// Trains.
    Train,
    /// Signs and sends a commit.
    Commit,
    /// Uploads an update.
    Upload,
    /// Claims pay.
    Claim,
    /// Fetches the inputs of a work order and values the round.
    Value,
    /// Sends a work record.
    Submit,
}

impl Work {
    /// The span of this work.
    pub(crate) fn span(self, task: TaskId, round: RoundNumber) -> Span {
        let (task, round) = (task.short(), round.0);
        match self {
            Self::Wait => trace_span!(target: TARGET, "wait", task, round),
            Self::ReadReport => trace_span!(target: TARGET, "read report", task, round),
            Self::FetchModel => trace_span!(target: TARGET, "fetch model", task, round),
            Self::AwaitRows => trace_span!(target: TARGET, "wait for rows", task, round),
            Self::Train => trace_span!(target: TARGET, "train", task, round),
            Self::Commit => trace_span!(target: TARGET, "commit", task, round),
            Self::Upload => trace_span!(target: TARGET, "upload", task, round),
            Self::Claim => trace_span!(target: TARGET, "claim", task, round),
            Self::Value => trace_span!(target: TARGET, "value", task, round),
            Self::Submit => trace_span!(target: TARGET, "submit", task, round),
        }
    }
}

/// The rounds of which this member has read the offer, and the request for its update.
#[derive(Debug, Default)]
pub(crate) struct ReadMessages {
    offer: Option<RoundNumber>,
    reveal: Option<RoundNumber>,
}

impl ReadMessages {
    /// Records the messages to `member` that this view is the first to show.
    pub(crate) fn note(&mut self, view: &TaskView, member: Address) {
        let key = RoundKey { task: view.id, round: view.round, member };
        let offer = view.offer.as_ref();
        if !offer.is_some_and(|offer| offer.body.cohort.contains(&member)) {
            return;
        }
        if self.offer < Some(view.round) && view.phase == TaskPhase::Committing {
            self.offer = Some(view.round);
            receive("offer", key);
        }
        if self.reveal < Some(view.round) && view.phase == TaskPhase::Revealing {
            self.reveal = Some(view.round);
            receive("reveal", key);
        }
    }
}

/// Spans of consecutive training steps.
#[derive(Debug, Default)]
pub(crate) struct StepSpans {
    open: Option<(EnteredSpan, Instant, u64)>,
}

impl StepSpans {
    /// Records that this number of steps is done.
    pub(crate) fn note(&mut self, done: u64) {
        if !tracing::enabled!(target: TARGET, Level::TRACE) {
            return;
        }
        if let Some((span, begun, first)) = &self.open {
            if begun.elapsed() < STEPS_TIME_MIN {
                return;
            }
            span.record("steps", done.saturating_sub(*first));
        }
        // The span before ends first.
        self.open = None;
        let span = trace_span!(target: TARGET, "steps", first = done, steps = field::Empty);
        self.open = Some((span.entered(), Instant::now(), done));
    }
}
