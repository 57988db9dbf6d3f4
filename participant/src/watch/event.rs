//! Events of an arbiter's watch.

use std::fmt;

use florin_protocol::{Mismatch, RoundNumber, TaskId, Timestamp};
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::audit::RoundAudit;
use crate::event_json;

/// One event. `Display` writes a line for people. The serialised form is an object for programs: the
/// key `event` has the name, and the names of events and keys are stable.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum WatchEvent {
    /// A task is watched from now on.
    TaskWatched {
        /// The task.
        task: TaskId,
        /// Its name.
        name: String,
        /// Its challenge window in milliseconds.
        challenge_ms: u64,
    },
    /// A task is not watched, because the watch has as many tasks as it can have.
    TaskNotWatched {
        /// The task.
        task: TaskId,
        /// The limit.
        tasks_max: usize,
    },
    /// Settlements became final without an audit by this process: before it started, or because it
    /// was too slow.
    FinalWithoutAudit {
        /// The task.
        task: TaskId,
        /// The first round.
        first: RoundNumber,
        /// The last round.
        last: RoundNumber,
    },
    /// The report of a round was audited.
    RoundAudited {
        /// The task.
        task: TaskId,
        /// The result.
        #[serde(flatten, serialize_with = "round_audit")]
        audit: RoundAudit,
    },
    /// A settlement must not become final.
    Objected {
        /// The task.
        task: TaskId,
        /// The round of the settlement.
        round: RoundNumber,
        /// The cause.
        #[serde(flatten)]
        objection: Objection,
        /// When the settlement becomes final, unless it is cancelled.
        final_at: Timestamp,
        /// The action that follows.
        action: WatchAction,
    },
    /// Settlements were cancelled.
    Cancelled {
        /// The task.
        task: TaskId,
        /// The round of the first one.
        round: RoundNumber,
        /// Number of settlements, of this round and of later ones.
        settlements: usize,
    },
    /// A wrong settlement was not cancelled: its challenge window is over, or the ledger refuses it.
    NotCancelled {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
        /// The cause.
        #[serde(rename = "message")]
        why: String,
    },
    /// The file with the evidence could not be written. The settlement is cancelled in any case.
    EvidenceNotStored {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
        /// The cause.
        #[serde(rename = "message")]
        why: String,
    },
    /// A task is over: it is closed, and nothing is pending.
    TaskOver {
        /// The task.
        task: TaskId,
    },
    /// The coordinator or the ledger did not answer, data of a round is missing, or the wallet cannot
    /// pay for a transaction; the watch tries again.
    Retrying {
        /// The cause.
        #[serde(rename = "message")]
        why: String,
    },
}

/// The action of a watch on a settlement that must not become final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchAction {
    /// It cancels the settlement.
    Cancel,
    /// Nothing: a dry run.
    DryRun,
    /// None: settlements that cannot be verified stay.
    Keep,
}

/// Why a settlement must not become final.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "objection", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Objection {
    /// A report differs from its recomputation: that of the settlement's round or of an earlier
    /// one.
    ReportWrong {
        /// The round of the report.
        report_round: RoundNumber,
        /// The first mismatch.
        #[serde(flatten, serialize_with = "event_json::mismatch")]
        first_mismatch: Mismatch,
    },
    /// The settlement or the terms on the ledger differ from the signed report or task.
    SettlementWrong {
        /// The first mismatch.
        #[serde(flatten, serialize_with = "event_json::mismatch")]
        first_mismatch: Mismatch,
    },
    /// The coordinator has no report of the round.
    NoReport,
    /// Data that the audit needs is not available, and little of the challenge window is left.
    Unverifiable {
        /// The cause.
        #[serde(rename = "message")]
        why: String,
    },
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |found: &Mismatch| {
            let Mismatch { line, reported, recomputed } = found;
            format!("{line}: reported {reported}, recomputed {recomputed}")
        };
        match self {
            Self::ReportWrong { report_round, first_mismatch } => {
                write!(f, "the report of round {report_round} is wrong: {}", line(first_mismatch))
            }
            Self::SettlementWrong { first_mismatch: Mismatch { line, reported, recomputed } } => {
                write!(f, "{line}: the report has {reported}, the ledger has {recomputed}")
            }
            Self::NoReport => f.write_str("the coordinator has no report of this round"),
            Self::Unverifiable { why } => write!(f, "it cannot be verified: {why}"),
        }
    }
}

impl WatchEvent {
    /// Whether the event asks for a person's attention.
    #[must_use]
    pub const fn is_alarm(&self) -> bool {
        matches!(
            self,
            Self::Objected { .. }
                | Self::Cancelled { .. }
                | Self::NotCancelled { .. }
                | Self::TaskNotWatched { .. }
        )
    }
}

impl fmt::Display for WatchEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TaskWatched { task, name, challenge_ms } => write!(
                f,
                "task {}: watching {name:?}; a settlement can be cancelled for {challenge_ms} ms",
                task.short()
            ),
            Self::TaskNotWatched { task, tasks_max } => write!(
                f,
                "task {}: not watched, because this process watches {tasks_max} tasks already: \
                 watch it with --task on another machine",
                task.short()
            ),
            Self::FinalWithoutAudit { task, first, last } => write!(
                f,
                "task {}: rounds {first} to {last} are final; this process has not audited them",
                task.short()
            ),
            Self::RoundAudited { task, audit } => {
                let found = match audit.mismatches.len() {
                    0 => "agrees".to_owned(),
                    count => format!("{count} mismatches"),
                };
                write!(f, "task {}: round {} {found}", task.short(), audit.round)
            }
            Self::Objected { task, round, objection, action, .. } => {
                let action = match action {
                    WatchAction::Cancel => "cancelling",
                    WatchAction::DryRun => "not cancelled: dry run",
                    WatchAction::Keep => "not cancelled: --if-unverifiable keep",
                };
                write!(
                    f,
                    "task {}: settlement of round {round}: {objection} ({action})",
                    task.short()
                )
            }
            Self::Cancelled { task, round, settlements } => write!(
                f,
                "task {}: {settlements} settlements cancelled, from round {round} on",
                task.short()
            ),
            Self::NotCancelled { task, round, why } => write!(
                f,
                "task {}: the settlement of round {round} is wrong, but is not cancelled: {why}",
                task.short()
            ),
            Self::EvidenceNotStored { task, round, why } => write!(
                f,
                "task {}: the evidence about round {round} could not be stored: {why}",
                task.short()
            ),
            Self::TaskOver { task } => write!(f, "task {}: over", task.short()),
            Self::Retrying { why } => write!(f, "waiting: {why}"),
        }
    }
}

fn round_audit<S: Serializer>(audit: &RoundAudit, serializer: S) -> Result<S::Ok, S::Error> {
    let line = |found: &Mismatch| {
        let Mismatch { line, reported, recomputed } = found;
        json!({ "line": line, "reported": reported, "recomputed": recomputed })
    };
    let mismatches: Vec<_> = audit.mismatches.iter().map(line).collect();
    json!({ "round": audit.round, "recomputed": audit.recomputed, "mismatches": mismatches })
        .serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_objection_names_its_cause_in_text_and_json() {
        let first_mismatch = Mismatch {
            line: "root".to_owned(),
            reported: "1".to_owned(),
            recomputed: "2".to_owned(),
        };
        let event = WatchEvent::Objected {
            task: TaskId([7; 32]),
            round: RoundNumber(4),
            objection: Objection::ReportWrong { report_round: RoundNumber(3), first_mismatch },
            final_at: Timestamp(9),
            action: WatchAction::DryRun,
        };
        let expected = json!({
            "event": "objected", "task": TaskId([7; 32]), "round": 4,
            "objection": "report_wrong", "report_round": 3,
            "line": "root", "reported": "1", "recomputed": "2",
            "final_at": Timestamp(9), "action": "dry_run",
        });
        assert_eq!(serde_json::to_value(&event).unwrap(), expected);
        let text = event.to_string();
        let stated = "settlement of round 4: the report of round 3 is wrong: root: reported 1, \
                      recomputed 2 (not cancelled: dry run)";
        assert!(text.ends_with(stated), "{text}");
    }
}
