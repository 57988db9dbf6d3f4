//! The audit: everything about a task that can be computed is computed again, and nobody's word is
//! taken for it.
//!
//! | what | how |
//! |---|---|
//! | offers, reports | signed by the coordinator's node key, each continuing the one before |
//! | updates | headers signed by their senders' registered node keys, bytes of the stated digests |
//! | work | records signed by their providers, one paid, as many units as the report says |
//! | scores, model | recomputed from the bytes, once the holdout is public |
//! | weights to root | recomputed from the scores, exactly |
//! | money | the ledger holds what the last final report says |
//!
//! Where something differs, the first line is named. Where something cannot be checked yet, that is
//! said too: silence about it would look like agreement.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use florin_learning::Engine;
use florin_ledger::{Ledger, LedgerError, Settlement, SettlementStatus, TaskState};
use florin_protocol::{
    Address, Amount, Canonical, Code, Digest, NodeKey, Offer, Report, Role, Round, RoundOutcome,
    Signed, TaskId, TaskSpec, TaskView, UpdateHeader, WorkRecord,
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

/// Audits the reported rounds of `rounds`, or all, and the ledger. `heard` is told about every
/// audited round. The chain is followed from round 1 in any case.
///
/// # Errors
/// [`AuditError`] where the audit could not be carried out.
pub fn audit_task(
    client: &Client,
    ledger: &dyn Ledger,
    task: TaskId,
    rounds: Option<RangeInclusive<u32>>,
    engine: &mut dyn Engine,
    heard: &mut dyn FnMut(&RoundAudit),
) -> Result<AuditReport, AuditError> {
    let view = client.task(task)?;
    let range = rounds.unwrap_or(1..=view.reported);
    let (first, last) = (*range.start(), *range.end());
    if first == 0 || last > view.reported || (first > last && view.reported > 0) {
        return Err(AuditError::NoSuchRounds { first, last, reported: view.reported });
    }
    let mut auditor = Auditor::new(client, &view)?;
    let mut audited = Vec::new();
    let mut reports: Vec<Report> = Vec::new();
    for round in (1..=view.reported).map(Round) {
        let report = client.report(task, round)?.body;
        if (first..=last).contains(&round.0) {
            let audit = auditor.audit(&report, reports.last(), engine)?;
            heard(&audit);
            audited.push(audit);
        } else {
            let before = reports.last().map_or(Digest(task.0), Report::digest);
            if report.previous != before {
                audited.push(chain_broken(&report, before));
            }
        }
        reports.push(report);
    }
    let ledger = match audited.is_empty() {
        true => Vec::new(),
        false => audit_ledger(ledger, &view.spec, &reports)?,
    };
    let not_yet = auditor.holdout.is_none().then_some(WITHOUT_HOLDOUT);
    Ok(AuditReport { task, rounds: audited, ledger, not_yet })
}

/// Audits one round, without the ledger.
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
    Auditor::new(client, &view)?.audit(&report, before.as_ref(), engine)
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
    spec: &'a TaskSpec,
    /// Absent before it is public.
    holdout: Option<Vec<u8>>,
    keys: BTreeMap<(Address, Role), Option<NodeKey>>,
}

impl<'a> Auditor<'a> {
    fn new(client: &'a Client, view: &'a TaskView) -> Result<Self, AuditError> {
        let spec = &view.spec;
        let holdout = match view.holdout_public {
            true => public(client.blob(spec.holdout.digest, holdout_bytes(spec)))?,
            false => None,
        };
        Ok(Self { client, spec, holdout, keys: BTreeMap::new() })
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
        self.signatures(&headers, &mut found)?;
        self.work(report, &records, &mut found)?;
        let headers: Vec<UpdateHeader> = headers.into_iter().map(|signed| signed.body).collect();
        let papers = Papers { report, before, offer: &offer, headers: &headers };
        let recomputed = match self.bytes(report, &mut found)? {
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

    /// Whether every header was signed by the node key that its sender registered.
    fn signatures(
        &mut self,
        headers: &[Signed<UpdateHeader>],
        found: &mut Vec<Difference>,
    ) -> Result<(), AuditError> {
        for (i, header) in headers.iter().enumerate() {
            let line = format!("headers[{i}].signature");
            self.signed_by(header, header.body.sender, Role::Participant, line, found)?;
        }
        Ok(())
    }

    /// Whether every paid record exists, is its provider's, and states what was paid.
    fn work(
        &mut self,
        report: &Report,
        records: &[Signed<WorkRecord>],
        found: &mut Vec<Difference>,
    ) -> Result<(), AuditError> {
        for (i, paid) in report.infrastructure.iter().enumerate() {
            let line = |field: &str| format!("infrastructure[{i}].{field}");
            let record = records.iter().find(|record| record.body.digest() == paid.record);
            let Some(record) = record else {
                found.push(difference(
                    line("record"),
                    &paid.record,
                    &"no such record is published",
                ));
                continue;
            };
            self.signed_by(record, paid.provider, Role::Provider, line("record"), found)?;
            if record.body.provider != paid.provider {
                found.push(difference(line("provider"), &paid.provider, &record.body.provider));
            }
            let units = record.body.result.valuation.units;
            if units != paid.units {
                found.push(difference(line("units"), &paid.units, &units));
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
        let complete = updates.len() == report.entries.len();
        Ok(base.filter(|_| complete).map(|base| Bytes { base, updates }))
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
        let Bytes { base, updates } = bytes;
        let inputs = AuditInputs {
            round: Inputs { spec: self.spec, base, holdout, entries: &report.entries, updates },
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

/// Whether the ledger holds what the reports say: every pending settlement as its report states it,
/// and the root and totals of the last final one.
fn audit_ledger(
    ledger: &dyn Ledger,
    spec: &TaskSpec,
    reports: &[Report],
) -> Result<Vec<Difference>, AuditError> {
    let task = spec.id();
    let Some(state) = ledger.task(task)? else {
        return Ok(vec![difference("ledger", &"the reports settle it", &"no such task")]);
    };
    let mut found = Vec::new();
    let mut last_final = None;
    for report in reports {
        match ledger.settlement(task, report.payout)? {
            SettlementStatus::Final => last_final = Some(report),
            SettlementStatus::Pending => pending(&state, report, &mut found),
            SettlementStatus::Unknown => {}
        }
    }
    let (root, data, infrastructure) = last_final.map_or_else(
        || (Digest::default(), Amount::ZERO, Amount::ZERO),
        |report| (report.root, report.data_total, report.infrastructure_total),
    );
    let table = [
        ("ledger.root", root.to_string(), state.root.to_string()),
        ("ledger.data_paid", data.to_string(), state.data_paid.to_string()),
        (
            "ledger.infrastructure_paid",
            infrastructure.to_string(),
            state.infrastructure_paid.to_string(),
        ),
    ];
    for (line, reported, held) in table {
        if reported != held {
            found.push(difference(line, &reported, &held));
        }
    }
    Ok(found)
}

fn pending(state: &TaskState, report: &Report, found: &mut Vec<Difference>) {
    let posted = state
        .pending
        .iter()
        .map(|pending| &pending.settlement)
        .find(|settlement| settlement.payout == report.payout);
    let expected = settlement_of(report);
    if posted != Some(&expected) {
        let line = format!("ledger.pending[{}]", report.scope.round);
        found.push(difference(line, &format!("{expected:?}"), &format!("{posted:?}")));
    }
}

/// The settlement that a report makes.
fn settlement_of(report: &Report) -> Settlement {
    let debits = report.lines.iter().filter(|line| !line.debit.is_zero());
    let mut debits: Vec<(Address, Amount)> =
        debits.map(|line| (line.account, line.debit)).collect();
    debits.sort_unstable_by_key(|(account, _)| *account);
    Settlement {
        task: report.scope.task,
        payout: report.payout,
        round: report.scope.round,
        report: report.digest(),
        previous_root: report.root_before,
        root: report.root,
        data_total: report.data_total,
        infrastructure_total: report.infrastructure_total,
        debits,
    }
}

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
