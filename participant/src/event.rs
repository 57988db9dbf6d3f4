//! Events of a participant or provider, emitted while it runs.

use std::fmt;

use florin_protocol::{
    Address, Amount, Digest, Mismatch, Rejection, RoundNumber, SelectionReason, Statement, TaskId,
    Timestamp, nats,
};
use serde::Serialize;

use crate::agent::{ParticipationQuote, RoundTrainingTime};
use crate::claim_summary::ClaimSummary;
use crate::event_json;
use crate::privacy::{PrivacyPlan, RoundPrivacy};
use crate::producer::ProducerNews;
use crate::statement::statement_line;

/// One event. `Display` writes a line for people. The serialised form is an object for programs: the
/// key `event` has the name, amounts are in base units, and the names of events and keys are stable.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ParticipantEvent {
    /// The participant runs an experimental behaviour.
    Experiment {
        /// The behaviour's name.
        behaviour: &'static str,
    },
    /// The coordinator registered the wallet and its node key.
    Registered {
        /// The account.
        account: Address,
    },
    /// The bond was raised.
    Bonded {
        /// The amount added.
        #[serde(serialize_with = "event_json::amount")]
        added: Amount,
        /// The resulting bond.
        #[serde(serialize_with = "event_json::amount")]
        bond: Amount,
    },
    /// The bond after joining, if nothing was added or if it does not cover all rows.
    BondCoverage {
        /// The bond.
        #[serde(serialize_with = "event_json::amount")]
        bond: Amount,
        /// Number of rows that it covers.
        covered: u64,
        /// Number of rows that the participant trains on.
        rows: u64,
    },
    /// A training on this device, before the bond.
    TrainingQuoted {
        /// Steps of a round.
        steps: u64,
        /// Microseconds of a step.
        step_micros: u64,
        /// Bytes of the tensors of a step at once, beside parameters, rows and the optimizer's state.
        step_bytes: u64,
    },
    /// A training takes more than half of a round, or longer than one.
    TrainingSlow {
        /// The predicted time and the limit.
        #[serde(flatten)]
        time: RoundTrainingTime,
    },
    /// The offer and the risk of the task, before the bond.
    Quoted {
        /// The quote.
        #[serde(flatten)]
        quote: ParticipationQuote,
    },
    /// A bond that a debit made too small stays below what the rows require.
    BondNotRestored {
        /// The bond at risk, less debits that are not applied yet.
        #[serde(serialize_with = "event_json::amount")]
        bond: Amount,
        /// Number of rows that count; 0 below the task's minimum.
        covered: u64,
        /// Number of rows that the participant trains on.
        rows: u64,
        /// The task's minimum bond.
        #[serde(serialize_with = "event_json::amount")]
        least: Amount,
        /// Whether the wallet has the funds; then the limit on the bond is reached.
        has_funds: bool,
    },
    /// The rows of a round were not compared with the participant's own.
    RowsNotCompared {
        /// The round.
        round: RoundNumber,
        /// The cause.
        #[serde(rename = "message")]
        why: String,
    },
    /// The disclosed rows give other labels to the participant's features; it leaves the task.
    LabelsContradict {
        /// The last round compared.
        round: RoundNumber,
        /// Disclosed rows whose features the participant has, over all rounds compared.
        matching: u64,
        /// Those of them with another label.
        contradicting: u64,
    },
    /// The participant is enrolled in the task.
    Enrolled {
        /// The task.
        task: TaskId,
    },
    /// The coordinator rejected a repeated enrolment.
    NotEnrolled {
        /// The task.
        task: TaskId,
        /// The coordinator's rejection.
        #[serde(flatten)]
        rejection: Rejection,
    },
    /// Rounds were reported before this start; the events of their reports follow.
    EarlierReports {
        /// Number of rounds.
        rounds: u32,
        /// Whether the task is over.
        is_over: bool,
    },
    /// The participant is selected for a round.
    Selected {
        /// The round.
        round: RoundNumber,
        /// The round's pool: the most that it can pay for data.
        #[serde(serialize_with = "event_json::amount")]
        pool: Amount,
        /// Number of selected participants.
        #[serde(rename = "selected")]
        cohort: usize,
        /// Why it was selected.
        reason: SelectionReason,
    },
    /// The participant is not selected for a round.
    NotSelected {
        /// The round.
        round: RoundNumber,
    },
    /// The privacy loss that the participation can expect, before the bond.
    PrivacyPlanned {
        /// The plan.
        #[serde(flatten)]
        plan: PrivacyPlan,
    },
    /// A round's training with noise is about to begin, and is charged.
    PrivacySpent {
        /// The privacy loss.
        #[serde(flatten)]
        spent: RoundPrivacy,
    },
    /// News of a coupled producer.
    Producer {
        /// The news.
        #[serde(flatten)]
        news: ProducerNews,
    },
    /// An update was trained.
    Trained {
        /// The round.
        round: RoundNumber,
        /// Number of rows that it was trained on.
        rows: usize,
        /// Mean loss over the last epoch, in millionths of a nat; absent if no training ran.
        loss_micro: Option<u64>,
        /// Duration in milliseconds.
        ms: u64,
    },
    /// An update from before a restart, or a late one, was found on disk.
    UpdateRecovered {
        /// The round.
        round: RoundNumber,
        /// The round that it was trained in.
        trained_in: RoundNumber,
    },
    /// The residual of a round cannot be read, so the next update does not add it.
    ResidualUnreadable {
        /// The round.
        round: RoundNumber,
        /// The cause.
        #[serde(rename = "message")]
        why: String,
    },
    /// The coordinator accepted the commit.
    Committed {
        /// The round.
        round: RoundNumber,
    },
    /// The coordinator accepted the update, and the receipt is on disk.
    ReceiptStored {
        /// The round.
        round: RoundNumber,
        /// Digest of its header.
        update: Digest,
    },
    /// The participant submits no update in a round; the next round starts afresh.
    RoundFailed {
        /// The round.
        round: RoundNumber,
        /// The stable error code.
        code: &'static str,
        /// The cause.
        #[serde(rename = "message")]
        why: String,
    },
    /// A round with an update of this participant was reported.
    Reported {
        /// The participant's statement of the round.
        #[serde(flatten, serialize_with = "event_json::statement")]
        statement: Box<Statement>,
    },
    /// A round without an update of this participant was reported.
    ReportedWithoutUpdate {
        /// The round.
        round: RoundNumber,
    },
    /// The report of a round omits an update that has a receipt.
    ReceiptNotHonoured {
        /// The round.
        round: RoundNumber,
        /// Digest of the update's header.
        update: Digest,
    },
    /// A report contradicts itself, its offer or the previous report.
    ReportInconsistent {
        /// The round.
        round: RoundNumber,
        /// The first mismatch.
        #[serde(flatten, serialize_with = "event_json::mismatch")]
        first_mismatch: Mismatch,
    },
    /// The model after a round is not the base model plus the aggregate of the round's updates.
    ModelMismatch {
        /// The round.
        round: RoundNumber,
        /// The first mismatch.
        #[serde(flatten, serialize_with = "event_json::mismatch")]
        first_mismatch: Mismatch,
    },
    /// The ledger holds other settlements than those of the reports.
    LedgerMismatch {
        /// The first mismatch.
        #[serde(flatten, serialize_with = "event_json::mismatch")]
        first_mismatch: Mismatch,
    },
    /// Tokens were claimed.
    Claimed {
        /// The task.
        task: TaskId,
        /// The amounts of this claim, and the cumulative totals.
        #[serde(flatten, serialize_with = "event_json::claim")]
        drawn: ClaimSummary,
    },
    /// The bond is back in the wallet.
    BondReturned {
        /// The amount.
        #[serde(serialize_with = "event_json::amount")]
        amount: Amount,
    },
    /// Withdrawal of the bond was requested; the bond stays locked for some time.
    BondLocked {
        /// When it can be withdrawn.
        until: Timestamp,
    },
    /// The coordinator announced on the ledger that it will close the task before its expiry. Until
    /// the announcement is withdrawn, this participant sends no update.
    CloseAnnounced {
        /// When the close is possible.
        at: Timestamp,
    },
    /// The ledger accepted an objection to an announced close, with the receipt of a round that was
    /// not settled.
    CloseObjected {
        /// The round.
        round: RoundNumber,
        /// The coordinator's bond, which went to the treasury.
        #[serde(serialize_with = "event_json::amount")]
        taken: Amount,
    },
    /// The stake was raised.
    Staked {
        /// The amount added.
        #[serde(serialize_with = "event_json::amount")]
        added: Amount,
        /// The resulting stake.
        #[serde(serialize_with = "event_json::amount")]
        stake: Amount,
    },
    /// The stake was pledged to a task.
    Pledged {
        /// The task.
        task: TaskId,
    },
    /// The coordinator answered this provider's first query for a task's work: from now on it holds
    /// work orders for this provider until they are due.
    Ready {
        /// The task.
        task: TaskId,
    },
    /// The provider does not serve a task.
    TaskSkipped {
        /// The task.
        task: TaskId,
        /// The cause.
        #[serde(rename = "message")]
        why: String,
    },
    /// The coordinator issued a work order.
    WorkOrdered {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
        /// Number of updates to evaluate.
        updates: usize,
    },
    /// A work order was executed.
    WorkComputed {
        /// The round.
        round: RoundNumber,
        /// Units of work: passes over the holdout.
        units: u64,
        /// Duration in milliseconds.
        ms: u64,
    },
    /// A result from before a restart was found in the guard's records.
    WorkRecovered {
        /// The round.
        round: RoundNumber,
    },
    /// The coordinator verified a work record and will pay it.
    WorkAccepted {
        /// The round.
        round: RoundNumber,
        /// Units that are paid.
        units: u64,
    },
    /// The coordinator rejected a work record.
    WorkRejected {
        /// The round.
        round: RoundNumber,
        /// The coordinator's rejection.
        #[serde(flatten)]
        rejection: Rejection,
    },
    /// A work order could not be executed.
    WorkFailed {
        /// The round.
        round: RoundNumber,
        /// The cause.
        #[serde(rename = "message")]
        why: String,
    },
    /// A transient error; the operation is retried.
    Retrying {
        /// The error.
        #[serde(rename = "message")]
        why: String,
    },
    /// The task is finished for this participant or provider.
    Finished {
        /// The task.
        task: TaskId,
    },
    /// Stopped on request; a restart continues from here.
    Stopped,
}

impl ParticipantEvent {
    /// Start of the text of [`ParticipantEvent::Ready`]; scripts wait for it in a provider's output.
    pub const READY_PREFIX: &str = "ready: work orders of task";

    /// Whether an operator should look at it: the coordinator broke the protocol, or the labels of
    /// the task contradict the participant's own.
    #[must_use]
    pub const fn is_alarm(&self) -> bool {
        matches!(
            self,
            Self::ReceiptNotHonoured { .. }
                | Self::ReportInconsistent { .. }
                | Self::ModelMismatch { .. }
                | Self::LedgerMismatch { .. }
                | Self::LabelsContradict { .. }
        )
    }
}

impl fmt::Display for ParticipantEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Experiment { behaviour } => {
                write!(f, "EXPERIMENT: this participant is not honest (behaviour: {behaviour})")
            }
            Self::Selected { round, pool, cohort, reason } => {
                let (others, pool) = (cohort.saturating_sub(1), pool.short());
                let (why, s) = (reason.name(), if others == 1 { "" } else { "s" });
                write!(f, "round {round}: selected with {others} other{s} ({why}); pool {pool} FLN")
            }
            Self::EarlierReports { rounds, is_over } => write!(
                f,
                "{}rounds 1 to {rounds} were reported before this start; reading their reports",
                if *is_over { "the task is over; " } else { "" }
            ),
            Self::NotSelected { round } => write!(f, "round {round}: not selected"),
            Self::Trained { round, rows, loss_micro, ms } => {
                write!(f, "round {round}: trained on {rows} rows in {ms} ms")?;
                match loss_micro {
                    Some(micro) => write!(f, ", loss {}", nats(i128::from(*micro) * 1_000)),
                    None => Ok(()),
                }
            }
            Self::UpdateRecovered { round, trained_in } => {
                write!(f, "round {round}: found the update that was trained in round {trained_in}")
            }
            Self::ResidualUnreadable { round, why } => write!(
                f,
                "round {round}: its residual cannot be read, so the next update omits it: {why}"
            ),
            Self::Committed { round } => write!(f, "round {round}: committed"),
            Self::ReceiptStored { round, update } => {
                write!(f, "round {round}: uploaded, receipt for {}", update.short())
            }
            Self::RoundFailed { round, code, why } => {
                write!(f, "round {round}: no update submitted: {why} [{code}]")
            }
            Self::Reported { statement } => statement_line(f, statement),
            Self::ReportedWithoutUpdate { round } => {
                write!(f, "round {round}: reported without an update of this participant")
            }
            other if other.is_alarm() => other.fmt_alarm(f),
            other => other.fmt_joining(f),
        }
    }
}

impl ParticipantEvent {
    fn fmt_alarm(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReceiptNotHonoured { round, update } => write!(
                f,
                "ALARM round {round}: the coordinator receipted update {update}, but its report \
                 does not have it; keep the receipt"
            ),
            Self::ReportInconsistent { round, first_mismatch: first } => write!(
                f,
                "ALARM round {round}: the report is wrong at {}: it states {}, but {} is expected",
                first.line, first.reported, first.recomputed
            ),
            Self::ModelMismatch { round, first_mismatch: first } => write!(
                f,
                "ALARM round {round}: the next model does not follow from the public updates. {} is \
                 {}, but {} is expected",
                first.line, first.reported, first.recomputed
            ),
            Self::LedgerMismatch { first_mismatch: first } => write!(
                f,
                "ALARM: the reports state {} for {}, but the ledger holds {}. The coordinator may \
                 have signed other reports for other readers",
                first.reported, first.line, first.recomputed
            ),
            Self::LabelsContradict { round, matching, contradicting } => write!(
                f,
                "ALARM round {round}: {contradicting} of {matching} validation rows that are also \
                 in this participant's data have another label there, so that honest work would \
                 be scored as harmful; leaving the task. Compare the numbering of the labels with \
                 the buyer's. After the task has ended, the same command withdraws the bond"
            ),
            _ => Ok(()),
        }
    }
}

impl ParticipantEvent {
    fn fmt_joining(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registered { account } => write!(f, "registered {account}"),
            Self::Bonded { added, bond } => {
                write!(f, "bonded {} FLN; {} FLN at risk", added.short(), bond.short())
            }
            Self::Enrolled { task } => write!(f, "enrolled in task {}", task.short()),
            Self::NotEnrolled { task, rejection } => {
                write!(f, "not enrolled again in task {}: {rejection}", task.short())
            }
            Self::Quoted { quote } => write!(f, "{quote}"),
            Self::TrainingQuoted { steps, step_micros, step_bytes } => write!(
                f,
                "a round's training takes about {:.1} s on this process: {steps} steps of {:.1} ms, with \
                 {:.1} MiB of tensors at once",
                *steps as f64 * *step_micros as f64 / 1e6,
                *step_micros as f64 / 1e3,
                *step_bytes as f64 / 1_048_576.0
            ),
            Self::TrainingSlow { time } => write!(f, "warning: {time}"),
            Self::PrivacyPlanned { plan } => write!(f, "{plan}"),
            Self::PrivacySpent { spent } => write!(f, "{spent}"),
            Self::Producer { news } => write!(f, "{news}"),
            Self::BondNotRestored { bond, covered, rows, least, has_funds } => {
                let why = match has_funds {
                    true => "the limit on the bond (--max-bond) is reached",
                    false => "the wallet has too little for a higher bond",
                };
                write!(f, "the bond is {} FLN after debits: {why}; ", bond.short())?;
                match covered {
                    0 => write!(
                        f,
                        "below {} FLN no round selects this participant, which now waits for \
                         its pay, its bond, or funds",
                        least.short()
                    ),
                    _ => write!(f, "{covered} of {rows} rows count"),
                }
            }
            Self::BondCoverage { bond, covered, rows } if covered < rows => write!(
                f,
                "the bond of {} FLN covers {covered} of {rows} rows; only covered rows count",
                bond.short()
            ),
            Self::BondCoverage { bond, .. } => {
                write!(f, "the existing bond of {} FLN covers all rows", bond.short())
            }
            Self::RowsNotCompared { round, why } => write!(
                f,
                "round {round}: its rows were not compared with this participant's labels: {why}"
            ),
            other => other.fmt_payments_and_work(f),
        }
    }
}

impl ParticipantEvent {
    fn fmt_payments_and_work(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claimed { task, drawn: ClaimSummary { paid, taken, totals } } => {
                match paid.is_zero() {
                    true => f.write_str("nothing new to claim")?,
                    false => write!(f, "claimed {} FLN", paid.short())?,
                }
                write!(f, "; task {} has paid {} FLN in total", task.short(), totals.paid.short())?;
                if taken.is_zero() {
                    return Ok(());
                }
                write!(f, ", and {} FLN were debited from the bond", taken.short())
            }
            Self::BondReturned { amount } => {
                write!(f, "withdrew the bond of {} FLN", amount.short())
            }
            Self::BondLocked { until } => write!(
                f,
                "the bond is locked until {until}, so that late debits of the last settlement can \
                 still be applied"
            ),
            Self::CloseAnnounced { at } => write!(
                f,
                "the coordinator will close the task from {at} on; no further update is sent"
            ),
            Self::CloseObjected { round, taken } => write!(
                f,
                "objected to the close: round {round} is not settled. The coordinator's bond of {} \
                 FLN went to the treasury",
                taken.short()
            ),
            Self::Staked { added, stake } => {
                write!(f, "staked {} FLN; {} FLN at risk", added.short(), stake.short())
            }
            Self::Pledged { task } => write!(f, "pledged the stake to task {}", task.short()),
            Self::Ready { task } => {
                write!(f, "{} {} are held for this provider", Self::READY_PREFIX, task.short())
            }
            Self::TaskSkipped { task, why } => write!(f, "skipping task {}: {why}", task.short()),
            Self::WorkOrdered { task, round, updates } => {
                write!(f, "task {} round {round}: {updates} updates to evaluate", task.short())
            }
            Self::WorkComputed { round, units, ms } => {
                write!(f, "round {round}: computed {units} units of work in {ms} ms")
            }
            Self::WorkRecovered { round } => {
                write!(f, "round {round}: found the result from before the restart")
            }
            Self::WorkAccepted { round, units } => {
                write!(f, "round {round}: {units} units verified; they will be paid")
            }
            Self::WorkRejected { round, rejection } => {
                write!(f, "round {round}: work rejected: {rejection}")
            }
            Self::WorkFailed { round, why } => write!(f, "round {round}: work failed: {why}"),
            Self::Retrying { why } => write!(f, "retrying: {why}"),
            Self::Finished { task } => write!(f, "task {} is finished", task.short()),
            Self::Stopped => f.write_str("stopped; run the same command again to continue"),
            _ => Ok(()),
        }
    }
}
