//! The audit: everything about a task that can be computed is computed again, and nobody's word is
//! taken for it.
//!
//! | what | how |
//! |---|---|
//! | offers, reports | signed by the coordinator's node key, each continuing the one before |
//! | updates | headers signed by their senders' registered node keys, bytes of the stated digests |
//! | work | records signed by pledged providers, each paid once, with the report's own result |
//! | scores, model | recomputed from the bytes, once the holdout is public |
//! | weights to root | recomputed from the scores, exactly |
//! | money | every settlement on the ledger is a report's, and every settled report has one |
//! | receipts | whoever has one finds its update among the round's entries |
//!
//! Where something differs, the first line is named. Where something cannot be checked, or not yet,
//! that is said too: silence about it would look like agreement.

mod books;
mod receipts;
#[cfg(test)]
mod tests;
mod work;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use florin_learning::Engine;
use florin_ledger::{Ledger, LedgerError};
use florin_protocol::{
    Address, Canonical, Code, Digest, NodeKey, Offer, Receipt, Report, Role, Round, RoundOutcome,
    Signed, TaskId, TaskSpec, TaskView, UpdateHeader,
};
use florin_work::{AuditInputs, Difference, Inputs, WorkError, audit_round as recompute};

use crate::client::{Client, ClientError};
use crate::provider::{ORDER_BYTES_MAX, holdout_bytes};
use crate::recheck::{difference, recheck};

/// What the audit of a task found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditReport {
    /// The task.
    pub task: TaskId,
    /// One for each audited round.
    pub rounds: Vec<RoundAudit>,
    /// Lines in which the ledger disagrees with the reports.
    pub ledger: Vec<Difference>,
    /// What could not be checked, and when it can be.
    pub not_yet: Option<NotYet>,
    /// What can never be checked any more, and why.
    pub untold: Vec<String>,
}

/// What the audit of a round found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundAudit {
    /// The round.
    pub round: Round,
    /// How it ended, as its report says.
    pub outcome: RoundOutcome,
    /// Whether its scores and its model were recomputed.
    pub recomputed: bool,
    /// Lines that disagree, the first first.
    pub differences: Vec<Difference>,
}

/// Something that is not public yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotYet {
    /// What was checked without it.
    pub checked: &'static str,
    /// What waits for it.
    pub waits: &'static str,
}

impl NotYet {
    /// The stable code.
    pub const CODE: &'static str = "NOT_YET_PUBLIC";
}

impl std::fmt::Display for NotYet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the holdout is published after the last round, so that nobody can train on it. \
             Checked without it: {}. Waits for it: {} [{}]",
            self.checked,
            self.waits,
            Self::CODE
        )
    }
}

const WITHOUT_HOLDOUT: NotYet = NotYet {
    checked: "signatures, the chain of reports, update bytes, weights, payouts, debits, running \
              totals, root, and the ledger",
    waits: "scores, their errors, and the aggregated model",
};

impl AuditReport {
    /// How many lines disagree.
    #[must_use]
    pub fn differences(&self) -> usize {
        self.rounds.iter().map(|round| round.differences.len()).sum::<usize>() + self.ledger.len()
    }

    /// Rounds whose scores and model were recomputed.
    #[must_use]
    pub fn recomputed(&self) -> usize {
        self.rounds.iter().filter(|round| round.recomputed).count()
    }

    /// The first line that disagrees, with its round; without one where the ledger disagrees.
    #[must_use]
    pub fn first(&self) -> Option<(Option<Round>, &Difference)> {
        let of_rounds = self
            .rounds
            .iter()
            .find_map(|round| round.differences.first().map(|line| (Some(round.round), line)));
        of_rounds.or_else(|| self.ledger.first().map(|line| (None, line)))
    }
}

/// Why an audit could not be carried out. Not a finding: findings are in [`AuditReport`].
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// No such rounds.
    #[error("rounds {first} to {last} were asked for, but {reported} rounds are reported")]
    NoSuchRounds {
        /// First asked for.
        first: u32,
        /// Last asked for.
        last: u32,
        /// How many there are.
        reported: u32,
    },
    /// The coordinator.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The engine, or inputs that nobody could work with.
    #[error("round {round}: {source}")]
    Work {
        /// The round.
        round: Round,
        /// What is wrong.
        source: WorkError,
    },
}

impl AuditError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoSuchRounds { .. } => "NO_SUCH_ROUNDS",
            Self::Client(error) => error.code(),
            Self::Ledger(error) => crate::ledger_code(error),
            Self::Work { .. } => "AUDIT_FAILED",
        }
    }
}

/// Audits the reported rounds of `rounds`, or all, and the ledger. `receipts` are the caller's own,
/// as [`crate::kept_receipts`] finds them: each must have its update in its round's report. `heard`
/// is told about every audited round. The chain is followed from round 1 in any case.
///
/// # Errors
/// [`AuditError`] where the audit could not be carried out.
pub fn audit_task(
    client: &Client,
    ledger: &dyn Ledger,
    task: TaskId,
    rounds: Option<RangeInclusive<u32>>,
    receipts: &[Signed<Receipt>],
    engine: &mut dyn Engine,
    heard: &mut dyn FnMut(&RoundAudit),
) -> Result<AuditReport, AuditError> {
    let view = client.task(task)?;
    let range = rounds.unwrap_or(1..=view.reported);
    let (first, last) = (*range.start(), *range.end());
    if first == 0 || last > view.reported || (first > last && view.reported > 0) {
        return Err(AuditError::NoSuchRounds { first, last, reported: view.reported });
    }
    let mut auditor = Auditor::new(client, Some(ledger), &view)?;
    let mut audited = Vec::new();
    let mut reports: Vec<Report> = Vec::new();
    for round in (1..=view.reported).map(Round) {
        let report = client.report(task, round)?.body;
        if (first..=last).contains(&round.0) {
            let mut audit = auditor.audit(&report, reports.last(), engine)?;
            let key = client.coordinator().node_key;
            audit.differences.extend(receipts::ignored(&report, receipts, key));
            heard(&audit);
            audited.push(audit);
        } else {
            auditor.remember_paid(&report);
            let before = reports.last().map_or(Digest(task.0), Report::digest);
            if report.previous != before {
                audited.push(chain_broken(&report, before));
            }
        }
        reports.push(report);
    }
    let ledger = books::audit(client, ledger, &view.spec, &mut reports)?;
    let not_yet = auditor.holdout.is_none().then_some(WITHOUT_HOLDOUT);
    Ok(AuditReport { task, rounds: audited, ledger, not_yet, untold: auditor.untold })
}

/// Audits one round, without the ledger and the rounds before: whether its work was paid before,
/// and its provider pledged, only [`audit_task`] can see.
///
/// # Errors
/// As [`audit_task`].
pub fn audit_round(
    client: &Client,
    task: TaskId,
    round: Round,
    engine: &mut dyn Engine,
) -> Result<RoundAudit, AuditError> {
    let view = client.task(task)?;
    if round.0 == 0 || round.0 > view.reported {
        let (first, last) = (round.0, round.0);
        return Err(AuditError::NoSuchRounds { first, last, reported: view.reported });
    }
    let before = match round.0.checked_sub(1) {
        None | Some(0) => None,
        Some(before) => Some(client.report(task, Round(before))?.body),
    };
    let report = client.report(task, round)?.body;
    Auditor::new(client, None, &view)?.audit(&report, before.as_ref(), engine)
}

fn chain_broken(report: &Report, before: Digest) -> RoundAudit {
    RoundAudit {
        round: report.scope.round,
        outcome: report.outcome,
        recomputed: false,
        differences: vec![difference("previous", &report.previous, &before)],
    }
}

/// What a round was computed from.
struct Bytes {
    base: Vec<u8>,
    updates: Vec<Vec<u8>>,
    /// The model that the round before began with; absent in round 1.
    previous: Option<Vec<u8>>,
}

/// What a round's report says of itself and its neighbours.
struct Papers<'a> {
    report: &'a Report,
    before: Option<&'a Report>,
    offer: &'a Offer,
    headers: &'a [UpdateHeader],
}

struct Auditor<'a> {
    client: &'a Client,
    ledger: Option<&'a dyn Ledger>,
    spec: &'a TaskSpec,
    /// Absent before it is public.
    holdout: Option<Vec<u8>>,
    keys: BTreeMap<(Address, Role), Option<NodeKey>>,
    /// Work records that were paid, and in which round first.
    paid: BTreeMap<Digest, Round>,
    untold: Vec<String>,
}

impl<'a> Auditor<'a> {
    fn new(
        client: &'a Client,
        ledger: Option<&'a dyn Ledger>,
        view: &'a TaskView,
    ) -> Result<Self, AuditError> {
        let spec = &view.spec;
        let holdout = match view.holdout_public {
            true => public(client.blob(spec.holdout.digest, holdout_bytes(spec)))?,
            false => None,
        };
        let (keys, paid) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { client, ledger, spec, holdout, keys, paid, untold: Vec::new() })
    }

    fn audit(
        &mut self,
        report: &Report,
        before: Option<&Report>,
        engine: &mut dyn Engine,
    ) -> Result<RoundAudit, AuditError> {
        let (task, round) = (report.scope.task, report.scope.round);
        let offer = self.client.offer(task, round)?.body;
        let headers = self.client.headers(task, round)?;
        let records = self.client.records(task, round)?;
        let mut found = Vec::new();
        self.signatures(report, &headers, &mut found)?;
        self.work(report, &records, &mut found)?;
        let headers: Vec<UpdateHeader> = headers.into_iter().map(|signed| signed.body).collect();
        let papers = Papers { report, before, offer: &offer, headers: &headers };
        let recomputed = match self.bytes(report, before, &mut found)? {
            Some(bytes) if found.is_empty() => {
                self.recompute(&papers, &bytes, engine, &mut found)?
            }
            _ => false,
        };
        if !recomputed {
            found.extend(recheck(self.spec, &offer, report, before));
        }
        Ok(RoundAudit { round, outcome: report.outcome, recomputed, differences: found })
    }

    /// Whether every header was signed by the node key that its sender registered, and is what its
    /// entry and its commit say.
    fn signatures(
        &mut self,
        report: &Report,
        headers: &[Signed<UpdateHeader>],
        found: &mut Vec<Difference>,
    ) -> Result<(), AuditError> {
        if headers.len() != report.entries.len() {
            found.push(difference("entries", &report.entries.len(), &headers.len()));
        }
        for (i, header) in headers.iter().enumerate() {
            let line = format!("headers[{i}].signature");
            self.signed_by(header, header.body.sender, Role::Participant, line, found)?;
        }
        for (i, (entry, header)) in report.entries.iter().zip(headers).enumerate() {
            let header = &header.body;
            let committed = report.commits.iter().find(|(sender, _)| *sender == entry.sender);
            let committed = committed.map_or_else(|| "none".to_owned(), |(_, c)| c.to_string());
            let table = [
                ("header", entry.header.to_string(), header.digest().to_string()),
                ("sender", entry.sender.to_string(), header.sender.to_string()),
                ("update", entry.update.to_string(), header.update.to_string()),
                ("rows_declared", entry.rows_declared.to_string(), header.rows.to_string()),
                ("commitment", committed, header.commitment().to_string()),
            ];
            for (field, reported, signed) in table.iter().filter(|(_, a, b)| a != b) {
                found.push(difference(format!("entries[{i}].{field}"), reported, signed));
            }
        }
        Ok(())
    }

    fn signed_by<T: Canonical>(
        &mut self,
        message: &Signed<T>,
        account: Address,
        role: Role,
        line: String,
        found: &mut Vec<Difference>,
    ) -> Result<(), AuditError> {
        let key = match self.keys.get(&(account, role)) {
            Some(key) => *key,
            None => {
                let key = self.client.registration(account, role)?.map(|known| known.node_key);
                self.keys.insert((account, role), key);
                key
            }
        };
        let Some(key) = key else {
            found.push(difference(
                line,
                &"signed",
                &format!("{account} is not a registered {role}"),
            ));
            return Ok(());
        };
        if let Err(error) = message.verify(key) {
            found.push(difference(line, &"signed", &format!("{error} (node key {key})")));
        }
        Ok(())
    }

    /// The base model and the updates, if their bytes are what the report says.
    fn bytes(
        &self,
        report: &Report,
        before: Option<&Report>,
        found: &mut Vec<Difference>,
    ) -> Result<Option<Bytes>, AuditError> {
        let limit = florin_work::model_bytes(self.spec);
        let total = limit.saturating_mul(report.entries.len() as u64);
        if total > ORDER_BYTES_MAX {
            let line = difference("entries", &format!("{total} bytes"), &"more than is audited");
            found.push(line);
            return Ok(None);
        }
        let base = self.blob("base_model", report.base_model, limit, found)?;
        let mut updates = Vec::with_capacity(report.entries.len());
        for (i, entry) in report.entries.iter().enumerate() {
            let line = format!("entries[{i}].update");
            updates.extend(self.blob(&line, entry.update, limit, found)?);
        }
        let previous = match before {
            Some(before) => self.blob("previous.base_model", before.base_model, limit, found)?,
            None => None,
        };
        let complete =
            updates.len() == report.entries.len() && previous.is_some() == before.is_some();
        Ok(base.filter(|_| complete).map(|base| Bytes { base, updates, previous }))
    }

    fn blob(
        &self,
        line: &str,
        digest: Digest,
        limit: u64,
        found: &mut Vec<Difference>,
    ) -> Result<Option<Vec<u8>>, AuditError> {
        match self.client.blob(digest, limit) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(ClientError::WrongDigest { expected, got }) => {
                found.push(difference(line, &expected, &got));
                Ok(None)
            }
            Err(ClientError::Rejected(rejection)) => {
                found.push(difference(line, &digest, &rejection));
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Scores, model, and all that follows. Returns whether there was a holdout to do it with.
    fn recompute(
        &self,
        papers: &Papers<'_>,
        bytes: &Bytes,
        engine: &mut dyn Engine,
        found: &mut Vec<Difference>,
    ) -> Result<bool, AuditError> {
        let Some(holdout) = &self.holdout else {
            return Ok(false);
        };
        let Papers { report, before, offer, headers } = *papers;
        let Bytes { base, updates, previous } = bytes;
        let previous = previous.as_deref();
        let inputs = AuditInputs {
            round: Inputs {
                spec: self.spec,
                base,
                holdout,
                entries: &report.entries,
                updates,
                previous,
            },
            offer,
            report,
            before,
            headers,
        };
        let round = report.scope.round;
        let differs =
            recompute(&inputs, engine).map_err(|source| AuditError::Work { round, source })?;
        found.extend(differs);
        Ok(true)
    }
}

/// What a rejection with `NOT_YET_PUBLIC` is: no error, but nothing.
fn public(bytes: Result<Vec<u8>, ClientError>) -> Result<Option<Vec<u8>>, ClientError> {
    match bytes {
        Err(ClientError::Rejected(rejection)) if rejection.code == Code::NotYetPublic => Ok(None),
        other => other.map(Some),
    }
}
