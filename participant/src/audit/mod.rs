//! The audit: everything about a task that can be computed is computed again, and nobody's word is
//! taken for it.
//!
//! | what | how |
//! |---|---|
//! | offers, reports | signed by the coordinator's node key, each continuing the one before |
//! | updates | headers signed by their senders' registered node keys, bytes of the stated digests |
//! | work | records signed by pledged providers, each paid once, with the report's own result |
//! | rows | drawn by the seed that the round comes to, never twice, proven to be those committed to |
//! | scores, model | recomputed from the bytes, round by round as they are reported |
//! | weights to root | recomputed from the scores, exactly |
//! | money | every settlement on the ledger is a report's, and every settled report has one |
//! | receipts | whoever has one finds its update among the round's entries |
//!
//! Where something differs, the first line is named. Where something cannot be checked any more, that
//! is said too: silence about it would look like agreement.

mod books;
mod receipts;
#[cfg(test)]
mod tests;
mod work;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use florin_learning::Engine;
use florin_ledger::{Ledger, LedgerError};
use florin_protocol::limits::PUBLIC_STEPS_MAX;
use florin_protocol::{
    Address, Canonical, Digest, EarlierUpdates, NodeKey, Offer, Receipt, Report, Role, Round,
    RoundOutcome, Scope, Signed, TaskId, TaskSpec, TaskView, UpdateHeader,
};
use florin_work::{
    AuditInputs, Difference, Inputs, LastUpdates, Spot, Spotted, WorkError,
    audit_round as recompute, spot_check_round,
};

use crate::client::{Client, ClientError};
use crate::kept::{Fetched, Kept, NO_MODEL, views};
use crate::provider::{ORDER_BYTES_MAX, work_room};
use crate::recheck::{difference, recheck};

/// What to audit, and how closely.
#[derive(Clone, Debug, Default)]
pub struct Scrutiny<'a> {
    /// Only these rounds; all that are reported without it.
    pub rounds: Option<RangeInclusive<u32>>,
    /// The caller's own receipts, as [`crate::kept_receipts`] finds them: each must have its update
    /// in its round's report.
    pub receipts: &'a [Signed<Receipt>],
    /// Recompute only so many scores and coalitions of each round; everything without it. Round `r`
    /// draws them by `seed + r`.
    pub spot: Option<Spot>,
    /// The folder for a round's updates where there are more than memory takes (2 GiB, decoded); the current one without
    /// it.
    pub scratch: Option<&'a Path>,
}

/// What the audit of a task found.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditReport {
    /// The task.
    pub task: TaskId,
    /// One for each audited round.
    pub rounds: Vec<RoundAudit>,
    /// Lines in which the ledger disagrees with the reports.
    pub ledger: Vec<Difference>,
    /// What can never be checked any more, and why.
    pub untold: Vec<String>,
}

/// What the audit of a round found.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundAudit {
    /// The round.
    pub round: Round,
    /// How it ended, as its report says.
    pub outcome: RoundOutcome,
    /// Whether its scores and its model were recomputed, as far as was asked for.
    pub recomputed: bool,
    /// How much of it was recomputed, where only a part was asked for.
    pub spotted: Option<Spotted>,
    /// Lines that disagree, the first first.
    pub differences: Vec<Difference>,
}

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

/// Audits the reported rounds that `scrutiny` names, and the ledger. `heard` is told about every
/// audited round. The chain is followed from round 1 in any case.
///
/// # Errors
/// [`AuditError`] where the audit could not be carried out.
pub fn audit_task(
    client: &Client,
    ledger: &dyn Ledger,
    task: TaskId,
    scrutiny: &Scrutiny<'_>,
    engine: &mut dyn Engine,
    heard: &mut dyn FnMut(&RoundAudit),
) -> Result<AuditReport, AuditError> {
    let view = client.task(task)?;
    let range = scrutiny.rounds.clone().unwrap_or(1..=view.reported);
    let (first, last) = (*range.start(), *range.end());
    if first == 0 || last > view.reported || (first > last && view.reported > 0) {
        return Err(AuditError::NoSuchRounds { first, last, reported: view.reported });
    }
    let mut auditor = Auditor::new(client, Some(ledger), &view, scrutiny);
    let mut audited = Vec::new();
    let mut reports: Vec<Report> = Vec::new();
    for round in (1..=view.reported).map(Round) {
        let report = client.report(task, round)?.body;
        if (first..=last).contains(&round.0) {
            let mut audit = auditor.audit(&report, reports.last(), engine)?;
            let key = client.coordinator().node_key;
            audit.differences.extend(receipts::ignored(&report, scrutiny.receipts, key));
            heard(&audit);
            audited.push(audit);
        } else {
            auditor.remember_paid(&report);
            let before = reports.last().map_or(Digest(task.0), Report::digest);
            if report.previous != before {
                audited.push(chain_broken(&report, before));
            }
        }
        auditor.pass(&report);
        reports.push(report);
    }
    let ledger = books::audit(client, ledger, &view.spec, &mut reports)?;
    Ok(AuditReport { task, rounds: audited, ledger, untold: auditor.untold })
}

/// Audits one round, without the ledger; of the rounds before, only their rows of the holdout are
/// looked at. Whether its work was paid before, and its provider pledged, only [`audit_task`] can see.
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
    let mut auditor = Auditor::new(client, None, &view, &Scrutiny::default());
    let mut before = None;
    for earlier in (1..round.0).map(Round) {
        let report = client.report(task, earlier)?.body;
        auditor.pass(&report);
        before = Some(report);
    }
    let report = client.report(task, round)?.body;
    auditor.audit(&report, before.as_ref(), engine)
}

fn chain_broken(report: &Report, before: Digest) -> RoundAudit {
    RoundAudit {
        round: report.scope.round,
        outcome: report.outcome,
        recomputed: false,
        spotted: None,
        differences: vec![difference("previous", &report.previous, &before)],
    }
}

/// What a round was computed from.
struct Bytes {
    /// The model that it began with, and those that the rounds before began with, the latest first, as many as count.
    models: Vec<Fetched>,
    /// The rows that judge it; empty where too few updates came.
    shown: Vec<u8>,
    /// Its updates, and behind them those of earlier rounds that they are held against.
    updates: Vec<Fetched>,
    /// Who sent these, and their digests.
    named: Vec<(Address, Digest)>,
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
    /// Digests of the models that the rounds before began with, the latest first.
    earlier: Vec<Digest>,
    /// The updates that they showed.
    shown: EarlierUpdates,
    /// The rows of the holdout that judged the rounds before.
    exposed: Vec<u32>,
    /// The models of the round that was recomputed last.
    models: Kept,
    /// Its updates, as far as the next one may be held against them.
    updates: Kept,
    spot: Option<Spot>,
    scratch: &'a Path,
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
        scrutiny: &Scrutiny<'a>,
    ) -> Self {
        let (keys, paid) = (BTreeMap::new(), BTreeMap::new());
        let (earlier, exposed, untold) = (Vec::new(), Vec::new(), Vec::new());
        let (spot, scratch) = (scrutiny.spot, scrutiny.scratch.unwrap_or(Path::new(".")));
        let (spec, shown) = (&view.spec, EarlierUpdates::default());
        let (models, updates) = (Kept::models(), Kept::updates());
        Self {
            client,
            ledger,
            spec,
            earlier,
            shown,
            exposed,
            models,
            updates,
            spot,
            scratch,
            keys,
            paid,
            untold,
        }
    }

    /// Goes on to the round after this one.
    fn pass(&mut self, report: &Report) {
        self.earlier.insert(0, report.base_model);
        self.exposed.extend(&report.holdout.rows);
        self.shown.pass(report);
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
        let mut spotted = None;
        let recomputed = match self.bytes(report, &mut found)? {
            Some(bytes) if found.is_empty() => {
                spotted = self.recompute(&papers, &bytes, engine, &mut found)?;
                self.keep(report, &bytes);
                true
            }
            _ => false,
        };
        if !recomputed {
            found.extend(recheck(self.spec, &offer, report, before, &self.exposed));
        }
        Ok(RoundAudit { round, outcome: report.outcome, recomputed, spotted, differences: found })
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

    /// The base model, the updates and the rows, if they are there and have the digests that the
    /// report says. The rows have proofs instead, which are looked at when they are used.
    fn bytes(
        &self,
        report: &Report,
        found: &mut Vec<Difference>,
    ) -> Result<Option<Bytes>, AuditError> {
        let limit = florin_work::model_bytes(self.spec);
        let of_update = florin_work::update_bytes(self.spec);
        let models = limit.saturating_mul(self.earlier.len().min(PUBLIC_STEPS_MAX) as u64);
        // Decoded, an update is as long as a model.
        let decoded = limit.max(of_update);
        let total = decoded.saturating_mul(report.entries.len() as u64).saturating_add(models);
        if total > ORDER_BYTES_MAX {
            let line = difference("entries", &format!("{total} bytes"), &"more than is audited");
            found.push(line);
            return Ok(None);
        }
        let began = self.earlier.iter().take(PUBLIC_STEPS_MAX).copied();
        let began: Vec<Digest> = [report.base_model].into_iter().chain(began).collect();
        let models = self.models.with_others(began.iter().copied(), |at, digest| {
            let line = if at == 0 { "base_model" } else { "an earlier base_model" };
            self.blob(line, digest, limit, found)
        })?;
        let named = self.shown.held_against(self.spec.rounds.protection, limit);
        let sent = report.entries.iter().map(|entry| entry.update);
        let sent = sent.chain(named.iter().map(|(_, update)| *update));
        let updates = self.updates.with_others(sent, |at, digest| {
            let line = match at.checked_sub(report.entries.len()).and_then(|at| named.get(at)) {
                None => format!("entries[{at}].update"),
                Some((sender, _)) => format!("the update of {sender} in an earlier round"),
            };
            self.blob(&line, digest, of_update, found)
        })?;
        let complete = models.len() == began.len()
            && updates.len() == report.entries.len().saturating_add(named.len());
        let shown = self.shown_rows(report, found)?.filter(|_| complete);
        Ok(shown.map(|shown| Bytes { models, shown, updates, named }))
    }

    /// Keeps what the next round may need too: after one that came to nothing it is held against the same updates and
    /// those of this one.
    fn keep(&mut self, report: &Report, bytes: &Bytes) {
        let Bytes { models, updates, .. } = bytes;
        let better = report.came_to_something();
        let wanted = if better { report.entries.len() } else { updates.len() };
        self.models.keep(models);
        self.updates.keep(updates.get(..wanted).unwrap_or_default());
    }

    /// The rows that judge the round, if some were drawn.
    fn shown_rows(
        &self,
        report: &Report,
        found: &mut Vec<Difference>,
    ) -> Result<Option<Vec<u8>>, AuditError> {
        if !self.spec.is_round(report.entries.len()) {
            return Ok(Some(Vec::new()));
        }
        let limit = self.spec.holdout.shown_bytes_max(self.spec.data.width);
        let Scope { task, round, .. } = report.scope;
        match self.client.shown(task, round, limit) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(ClientError::Rejected(rejection)) => {
                found.push(difference("holdout.rows", &"shown", &rejection));
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
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

    /// Rows, scores, model, and all that follows.
    fn recompute(
        &self,
        papers: &Papers<'_>,
        bytes: &Bytes,
        engine: &mut dyn Engine,
        found: &mut Vec<Difference>,
    ) -> Result<Option<Spotted>, AuditError> {
        let Papers { report, before, offer, headers } = *papers;
        let Bytes { models, shown, updates, named } = bytes;
        let (began, sent) = (views(models), views(updates));
        let (base, previous) = began.split_first().unwrap_or((&NO_MODEL, &[]));
        let (own, last) = sent.split_at(report.entries.len().min(sent.len()));
        let room = work_room(self.scratch);
        let inputs = AuditInputs {
            round: Inputs {
                spec: self.spec,
                base,
                drawn: &report.holdout.rows,
                holdout: shown,
                entries: &report.entries,
                updates: &own,
                previous: &previous,
                last: LastUpdates { named, bytes: &last },
                room: &room,
            },
            offer,
            report,
            before,
            earlier: &self.earlier,
            shown: &self.shown,
            exposed: &self.exposed,
            headers,
        };
        let round = report.scope.round;
        let failed = |source| AuditError::Work { round, source };
        let Some(spot) = self.spot else {
            found.extend(recompute(&inputs, engine).map_err(failed)?);
            return Ok(None);
        };
        let seed = spot.seed.wrapping_add(round.0.into());
        let looked = spot_check_round(&inputs, Spot { seed, ..spot }, engine).map_err(failed)?;
        found.extend(looked.differences.iter().cloned());
        Ok(Some(looked))
    }
}
