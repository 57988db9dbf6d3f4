//! The events of rounds for a trace (`--trace`), with the target [`TARGET`]. Without a subscriber for
//! this target each of them costs one atomic read.
//!
//! | event | time |
//! |---|---|
//! | `phase` | the first moment at which others can see a task's new phase |
//! | `send` | an offer, or the request for an update, becomes visible to a member |
//! | `receive` | the last byte of a commit or of an update has arrived |
//! | `refused` | a commit that had arrived is refused |
//!
//! | span | work |
//! |---|---|
//! | `journal`, `store` | a write that is durable at its end |
//! | `ledger` | a call of the ledger |
//! | `disclose`, `value` | work between the reveal and the report |

use std::collections::BTreeMap;

use florin_engine::state::{RunningRound, TaskState};
use florin_protocol::{Address, RoundNumber, SelectionReason, TaskId, TaskPhase, UpdateHeader};
use tracing::{Level, Span, event, trace_span};

/// The target of all events and spans of a trace.
const TARGET: &str = "florin::trace";

/// The phases that the trace contains already.
#[derive(Debug, Default)]
pub(crate) struct TracedPhases(BTreeMap<TaskId, (RoundNumber, TaskPhase)>);

impl TracedPhases {
    /// Records a task's phase, if it is a new one, and the messages that become visible with it.
    pub(crate) fn note(&mut self, id: TaskId, task: &TaskState) {
        if !tracing::enabled!(target: TARGET, Level::TRACE) {
            return;
        }
        let running = task.running();
        let known = self.0.get(&id).map(|(round, _)| *round);
        let round = running.map(|running| running.offer.scope.round).or(known);
        let Some(round) = round else { return };
        let now = (round, task.phase());
        if self.0.get(&id) == Some(&now) {
            return;
        }
        self.0.insert(id, now);
        let (short, phase) = (id.short(), phase_name(now.1));
        let (need, by_ms) = running.map_or((0, 0), |running| needed(task, running));
        let (least, continuing) = (task.spec.rounds.cohort_min, running.map_or(0, continuing));
        event!(name: "phase", target: TARGET, Level::TRACE, task = short, round = round.0, phase,
            need, by_ms, least, continuing);
        let Some(running) = running else {
            if now.1 == TaskPhase::Done {
                self.0.remove(&id);
            }
            return;
        };
        let send = |kind: &'static str, member: &Address| {
            event!(name: "send", target: TARGET, Level::TRACE, kind, task = short,
                round = round.0, member = %member);
        };
        match now.1 {
            TaskPhase::Committing => {
                running.offer.cohort.iter().for_each(|member| send("offer", member));
            }
            TaskPhase::Revealing => {
                running.commits.keys().for_each(|member| send("reveal", member));
            }
            _ => {}
        }
    }
}

/// The number of messages that end the phase of a running round, and the milliseconds until its
/// deadline, from the offer on.
fn needed(task: &TaskState, running: &RunningRound) -> (u64, u64) {
    let (offer, target) = (&running.offer, u64::from(task.spec.rounds.cohort_target));
    match task.phase() {
        TaskPhase::Committing => {
            let need = target.min(offer.cohort.len() as u64);
            (need, offer.commit_by.ms_since(offer.opened))
        }
        TaskPhase::Revealing => {
            (running.commits.len() as u64, offer.reveal_by.ms_since(offer.opened))
        }
        _ => (0, 0),
    }
}

/// Number of members whose trainings began in an earlier round: their updates would be late.
fn continuing(running: &RunningRound) -> u64 {
    let reasons = running.offer.reasons.iter();
    reasons.filter(|reason| **reason == SelectionReason::Continues).count() as u64
}

/// The name of a phase in a trace.
const fn phase_name(phase: TaskPhase) -> &'static str {
    match phase {
        TaskPhase::AwaitingBlobs => "awaiting-blobs",
        TaskPhase::Enrolling => "enrol",
        TaskPhase::Committing => "commit",
        TaskPhase::Revealing => "reveal",
        TaskPhase::Valuing => "value",
        TaskPhase::Settling => "settle",
        TaskPhase::Closing => "close",
        TaskPhase::Done => "done",
    }
}

/// A commit has arrived.
pub(crate) fn commit_received(task: TaskId, round: RoundNumber, member: Address) {
    event!(name: "receive", target: TARGET, Level::TRACE, kind = "commit", task = task.short(),
        round = round.0, member = %member);
}

/// A commit that had arrived is refused: it has no effect.
pub(crate) fn commit_refused(task: TaskId, round: RoundNumber, member: Address) {
    event!(name: "refused", target: TARGET, Level::TRACE, kind = "commit", task = task.short(),
        round = round.0, member = %member);
}

/// The last byte of an update has arrived.
pub(crate) fn update_received(header: &UpdateHeader) {
    event!(name: "receive", target: TARGET, Level::TRACE, kind = "update",
        task = header.scope.task.short(), round = header.scope.round.0, member = %header.sender,
        bytes = header.bytes);
}

/// A work record has arrived.
pub(crate) fn record_received(task: TaskId, round: RoundNumber, provider: Address) {
    event!(name: "receive", target: TARGET, Level::TRACE, kind = "record", task = task.short(),
        round = round.0, member = %provider);
}

/// An upload, from its header to its receipt.
pub(crate) fn receive_update(header: &UpdateHeader) -> Span {
    trace_span!(target: TARGET, "receive update", task = header.scope.task.short(),
        round = header.scope.round.0, member = %header.sender, bytes = header.bytes)
}

/// Makes an update durable, with the event that refers to it.
pub(crate) fn store_update(header: &UpdateHeader) -> Span {
    trace_span!(target: TARGET, "store", task = header.scope.task.short(),
        round = header.scope.round.0, member = %header.sender, bytes = header.bytes)
}

/// Makes a round's blob durable.
pub(crate) fn store_blob(task: TaskId, round: RoundNumber) -> Span {
    trace_span!(target: TARGET, "store", task = task.short(), round = round.0)
}

/// One append to the journal, with its fsync.
pub(crate) fn append(records: usize) -> Span {
    trace_span!(target: TARGET, "journal", records)
}

/// One call of the ledger for a task.
pub(crate) fn ledger_call(job: &'static str, task: TaskId, round: Option<RoundNumber>) -> Span {
    let round = round.map_or(0, |round| round.0);
    trace_span!(target: TARGET, "ledger", job, task = task.short(), round)
}

/// Work between the reveal and the report: `disclose` or `value`.
pub(crate) fn work(name: &'static str, task: TaskId, round: RoundNumber) -> Span {
    match name {
        "disclose" => {
            trace_span!(target: TARGET, "disclose", task = task.short(), round = round.0)
        }
        _ => trace_span!(target: TARGET, "value", task = task.short(), round = round.0),
    }
}
