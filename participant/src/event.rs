//! What happened, told while it happens.

use std::fmt;

use florin_protocol::{Address, Amount, Digest, Rejection, Round, Statement, TaskId, Tick, nats};
use florin_work::Difference;

use crate::agent::Drawn;

/// A step of a participant's or provider's work. `Display` is a line for a person.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// It runs with a behaviour that is not honest work.
    Experiment {
        /// The behaviour's name.
        behaviour: &'static str,
    },
    /// Wallet and node key are known to the coordinator now.
    Registered {
        /// The account.
        account: Address,
    },
    /// A bond was raised.
    Bonded {
        /// What was added.
        added: Amount,
        /// What is at risk now.
        bond: Amount,
    },
    /// The bond that was there already is enough.
    BondStands {
        /// What is at risk.
        bond: Amount,
        /// Rows that it covers, of those that are trained on.
        covered: u64,
        /// Rows that are trained on.
        rows: u64,
    },
    /// The task's participants include this one now.
    Enrolled {
        /// The task.
        task: TaskId,
    },
    /// The coordinator refused to enrol it again.
    NotEnrolled {
        /// The task.
        task: TaskId,
        /// The coordinator's answer.
        rejection: Rejection,
    },
    /// The task's arbiter is neither its coordinator nor one that the participant accepts.
    UnknownArbiter {
        /// The task's arbiter.
        arbiter: Address,
    },
    /// A round asks this participant.
    Asked {
        /// The round.
        round: Round,
        /// The most it can pay for data.
        pool: Amount,
        /// How many are asked.
        cohort: usize,
    },
    /// A round asks others.
    NotAsked {
        /// The round.
        round: Round,
    },
    /// An update was computed.
    Trained {
        /// The round.
        round: Round,
        /// Rows it was trained on.
        rows: usize,
        /// Mean loss over the last epoch, in millionths of a nat; absent if nothing was trained.
        loss_micro: Option<u64>,
        /// How long it took, in milliseconds.
        ms: u64,
    },
    /// An update that was computed before a restart was found on disk.
    TrainedBefore {
        /// The round.
        round: Round,
    },
    /// What the update of a round left out cannot be read, so the next one does not carry it.
    ResidualLost {
        /// The round.
        round: Round,
        /// Why.
        why: String,
    },
    /// The commit was taken.
    Committed {
        /// The round.
        round: Round,
    },
    /// The update was taken, and its receipt is on disk.
    Receipted {
        /// The round.
        round: Round,
        /// Digest of its header.
        update: Digest,
    },
    /// This participant's part of a round is lost; the next one begins afresh.
    RoundLost {
        /// The round.
        round: Round,
        /// The stable code.
        code: &'static str,
        /// Why.
        why: String,
    },
    /// A round was reported and this participant is in it.
    Reported {
        /// What it says about this participant.
        statement: Box<Statement>,
    },
    /// A round was reported without this participant.
    ReportedWithout {
        /// The round.
        round: Round,
    },
    /// A receipt was given, but the report does not have the update.
    ReceiptIgnored {
        /// The round.
        round: Round,
        /// Digest of the update's header.
        update: Digest,
    },
    /// A report contradicts itself, its offer, or the report before.
    ReportWrong {
        /// The round.
        round: Round,
        /// The first line that disagrees.
        first: Difference,
    },
    /// Tokens were drawn.
    Claimed {
        /// The task.
        task: TaskId,
        /// What was drawn now, and in all.
        drawn: Drawn,
    },
    /// The bond is back in the wallet.
    BondReturned {
        /// How much.
        amount: Amount,
    },
    /// The bond was asked back and stays at risk for a while.
    BondHeld {
        /// Until when.
        until: Tick,
    },
    /// A stake was raised.
    Staked {
        /// What was added.
        added: Amount,
        /// What is at risk now.
        stake: Amount,
    },
    /// The stake stands for a task.
    Pledged {
        /// The task.
        task: TaskId,
    },
    /// The coordinator knows that this provider asks for the task's work: what it orders from now
    /// on waits for this provider until it is due.
    Ready {
        /// The task.
        task: TaskId,
    },
    /// A task cannot be served.
    TaskSkipped {
        /// The task.
        task: TaskId,
        /// Why.
        why: String,
    },
    /// Work was given.
    Ordered {
        /// The task.
        task: TaskId,
        /// The round.
        round: Round,
        /// Updates to value.
        updates: usize,
    },
    /// Work was done.
    Worked {
        /// The round.
        round: Round,
        /// Passes over the holdout.
        units: u64,
        /// How long it took, in milliseconds.
        ms: u64,
    },
    /// Work that was done before a restart was found in the records.
    WorkedBefore {
        /// The round.
        round: Round,
    },
    /// Work was verified and will be paid.
    WorkTaken {
        /// The round.
        round: Round,
        /// Units that are paid.
        units: u64,
    },
    /// Work was not taken.
    WorkRefused {
        /// The round.
        round: Round,
        /// The coordinator's answer.
        rejection: Rejection,
    },
    /// Work could not be done.
    WorkFailed {
        /// The round.
        round: Round,
        /// Why.
        why: String,
    },
    /// Something passes, and is tried again.
    Retrying {
        /// What failed.
        why: String,
    },
    /// Everything is done for this task.
    Finished {
        /// The task.
        task: TaskId,
    },
    /// Stopped as asked; it goes on from here when it is started again.
    Stopped,
}

impl Event {
    /// How the line of [`Event::Ready`] begins, for whoever waits for it in a provider's output.
    pub const READY: &str = "ready: orders of task";

    /// Whether somebody should look at it: the other side did something it must not do.
    #[must_use]
    pub const fn is_alarm(&self) -> bool {
        matches!(self, Self::ReceiptIgnored { .. } | Self::ReportWrong { .. })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Experiment { behaviour } => {
                write!(f, "EXPERIMENT: this participant does not work honestly ({behaviour})")
            }
            Self::Registered { account } => write!(f, "registered {account}"),
            Self::Bonded { added, bond } => write!(f, "bonded {added} FLN; {bond} FLN at risk"),
            Self::BondStands { bond, covered, rows } if covered < rows => write!(
                f,
                "the bond of {bond} FLN covers {covered} of {rows} rows; only those count"
            ),
            Self::BondStands { bond, .. } => write!(f, "the bond of {bond} FLN is enough"),
            Self::Enrolled { task } => write!(f, "enrolled in task {}", task.short()),
            Self::NotEnrolled { task, rejection } => {
                write!(f, "not enrolled again in task {}: {rejection}", task.short())
            }
            Self::UnknownArbiter { arbiter } => write!(
                f,
                "WARNING: arbiter {arbiter} is neither the coordinator nor one you accept; it may \
                 cancel settlements before they are final, and take from your bond"
            ),
            Self::Asked { round, pool, cohort } => {
                write!(
                    f,
                    "round {round}: asked with {} others; up to {pool} FLN",
                    cohort.saturating_sub(1)
                )
            }
            Self::NotAsked { round } => write!(f, "round {round}: not asked this time"),
            Self::Trained { round, rows, loss_micro, ms } => {
                write!(f, "round {round}: trained on {rows} rows in {ms} ms")?;
                match loss_micro {
                    Some(micro) => write!(f, ", loss {}", nats(i128::from(*micro) * 1_000)),
                    None => Ok(()),
                }
            }
            Self::TrainedBefore { round } => {
                write!(f, "round {round}: found the update that was trained before the restart")
            }
            Self::ResidualLost { round, why } => {
                write!(
                    f,
                    "round {round}: what its update left out is lost, the next goes on: {why}"
                )
            }
            Self::Committed { round } => write!(f, "round {round}: committed"),
            Self::Receipted { round, update } => {
                write!(f, "round {round}: uploaded, receipt for {}", update.short())
            }
            Self::RoundLost { round, code, why } => {
                write!(f, "round {round}: no update from us: {why} [{code}]")
            }
            Self::Reported { statement } => statement_line(f, statement),
            Self::ReportedWithout { round } => write!(f, "round {round}: reported without us"),
            Self::ReceiptIgnored { round, update } => write!(
                f,
                "ALARM round {round}: the coordinator receipted update {update}, but its report \
                 does not have it; keep the receipt"
            ),
            Self::ReportWrong { round, first } => write!(
                f,
                "ALARM round {round}: the report is wrong at {}: it says {}, and {} follows",
                first.line, first.reported, first.recomputed
            ),
            other => other.money_and_work(f),
        }
    }
}

impl Event {
    fn money_and_work(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claimed { task, drawn: Drawn { paid, taken, totals } } => {
                write!(f, "claimed {paid} FLN; task {} paid {} in all", task.short(), totals.paid)?;
                if taken.is_zero() {
                    return Ok(());
                }
                write!(f, ", and {taken} FLN of debits were taken from the bond")
            }
            Self::BondReturned { amount } => write!(f, "the bond of {amount} FLN is back"),
            Self::BondHeld { until } => write!(
                f,
                "the bond stays at risk until {until}: what the last settlement debits can be proven \
                 until then"
            ),
            Self::Staked { added, stake } => write!(f, "staked {added} FLN; {stake} FLN at risk"),
            Self::Pledged { task } => write!(f, "pledged the stake to task {}", task.short()),
            Self::Ready { task } => {
                write!(f, "{} {} wait for us from now on", Self::READY, task.short())
            }
            Self::TaskSkipped { task, why } => write!(f, "task {} is skipped: {why}", task.short()),
            Self::Ordered { task, round, updates } => {
                write!(f, "task {} round {round}: {updates} updates to value", task.short())
            }
            Self::Worked { round, units, ms } => {
                write!(f, "round {round}: {units} units of work in {ms} ms")
            }
            Self::WorkedBefore { round } => {
                write!(f, "round {round}: found the result from before the restart")
            }
            Self::WorkTaken { round, units } => {
                write!(f, "round {round}: {units} units verified, to be paid")
            }
            Self::WorkRefused { round, rejection } => {
                write!(f, "round {round}: work not taken: {rejection}")
            }
            Self::WorkFailed { round, why } => write!(f, "round {round}: work failed: {why}"),
            Self::Retrying { why } => write!(f, "trying again: {why}"),
            Self::Finished { task } => write!(f, "task {} is done", task.short()),
            Self::Stopped => f.write_str("stopped; start again to go on"),
            _ => Ok(()),
        }
    }
}

fn statement_line(f: &mut fmt::Formatter<'_>, statement: &Statement) -> fmt::Result {
    write!(f, "round {}: earned {} FLN", statement.round, statement.payout)?;
    if !statement.debit.is_zero() {
        write!(f, ", debited {} FLN", statement.debit)?;
    }
    write!(f, ". {}", statement.why)
}
