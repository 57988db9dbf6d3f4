//! The audit of a task: recomputes everything that can be recomputed from public data, and trusts
//! no party's statement.
//!
//! | object | check |
//! |---|---|
//! | offers, reports | signed by the coordinator's node key, each linked to its predecessor |
//! | updates | headers signed by their senders' registered node keys, bytes match their digests |
//! | work | records signed by pledged providers, each paid once, with the report's result |
//! | rows | drawn by the round's seed, never twice, with proofs under the committed root |
//! | scores, model | recomputed from the bytes, round by round as they are reported |
//! | weights to root | recomputed from the scores, exactly |
//! | money | each settlement on the ledger matches a report, and each settled report has one |
//! | receipts | each given receipt has its update among the round's entries |
//!
//! Mismatches are listed with the first one first. Checks that are no longer possible are listed as
//! well, because silence about them would look like agreement.

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
use florin_protocol::limits::GLOBAL_DELTAS_MAX;
use florin_protocol::{
    Address, Canonical, Digest, EarlierUpdates, NodeKey, Offer, Report, Role, RoundNumber,
    RoundOutcome, RoundScope, Signed, TaskId, TaskSpec, TaskView, UpdateHeader, UpdateReceipt,
};
use florin_work::{
    AuditInputs, EarlierUpdateBlobs, Mismatch, SpotCheckOptions, SpotCheckResult, ValuationInputs,
    WorkError, audit_round as recompute, spot_check_round,
};

use crate::blob_cache::{BlobCache, CachedBlob, EMPTY_MODEL, byte_slices};
use crate::client::{Client, ClientError};
use crate::provider::{ORDER_BYTES_MAX, work_room};
use crate::report_check::{difference, recheck};

/// Scope and depth of an audit.
#[derive(Clone, Debug, Default)]
pub struct Scrutiny<'a> {
    /// Only these rounds; by default all reported rounds.
    pub rounds: Option<RangeInclusive<u32>>,
    /// The caller's own receipts, as [`crate::kept_receipts`] reads them: each must have its update
    /// in its round's report.
    pub receipts: &'a [Signed<UpdateReceipt>],
    /// Spot check: recompute only a sample of the scores and coalitions of each round; by default
    /// all. Round `r` samples with `seed + r`.
    pub spot: Option<SpotCheckOptions>,
    /// Scratch folder for a round's decoded updates if they exceed the memory limit (2 GiB); by
    /// default the current folder.
    pub scratch: Option<&'a Path>,
}

/// The result of a task's audit.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditReport {
    /// The task.
    pub task: TaskId,
    /// One entry for each audited round.
    pub rounds: Vec<RoundAudit>,
    /// Mismatches between the ledger and the reports.
    pub ledger: Vec<Mismatch>,
    /// Checks that are no longer possible, with reasons.
    pub untold: Vec<String>,
}

/// The result of a round's audit.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundAudit {
    /// The round.
    pub round: RoundNumber,
    /// The round's outcome according to its report.
    pub outcome: RoundOutcome,
    /// Whether its scores and its model were recomputed, as far as requested.
    pub recomputed: bool,
    /// The sample that was recomputed, in a spot check.
    pub spotted: Option<SpotCheckResult>,
    /// The mismatches, in the order of the report.
    pub differences: Vec<Mismatch>,
}

impl AuditReport {
    /// Number of mismatches.
    #[must_use]
    pub fn differences(&self) -> usize {
        self.rounds.iter().map(|round| round.differences.len()).sum::<usize>() + self.ledger.len()
    }

    /// Number of rounds whose scores and model were recomputed.
    #[must_use]
    pub fn recomputed(&self) -> usize {
        self.rounds.iter().filter(|round| round.recomputed).count()
    }

    /// The first mismatch, with its round; without a round if it is on the ledger.
    #[must_use]
    pub fn first(&self) -> Option<(Option<RoundNumber>, &Mismatch)> {
        let of_rounds = self
            .rounds
            .iter()
            .find_map(|round| round.differences.first().map(|line| (Some(round.round), line)));
        of_rounds.or_else(|| self.ledger.first().map(|line| (None, line)))
    }
}

/// Errors that prevent an audit. Mismatches are not errors; they are in [`AuditReport`].
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The rounds do not exist.
    #[error("rounds {first} to {last} were requested, but {reported} rounds are reported")]
    NoSuchRounds {
        /// First requested round.
        first: u32,
        /// Last requested round.
        last: u32,
        /// Number of reported rounds.
        reported: u32,
    },
    /// An error of the client.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// An error of the ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// An error of the engine, or of inputs that no engine can use.
    #[error("round {round}: {source}")]
    Work {
        /// The round.
        round: RoundNumber,
        /// The reason.
        source: WorkError,
    },
}

impl AuditError {
    /// The stable error code.
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

/// Audits the reported rounds that the options select, and the ledger. Calls the callback after
/// every audited round. The chain of reports is checked from round 1 in any case.
///
/// # Errors
/// [`AuditError`] if the audit could not be completed.
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
    for round in (1..=view.reported).map(RoundNumber) {
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
            if report.previous_report != before {
                audited.push(chain_broken(&report, before));
            }
        }
        auditor.pass(&report);
        reports.push(report);
    }
    let ledger = books::audit(client, ledger, &view.spec, &mut reports)?;
    Ok(AuditReport { task, rounds: audited, ledger, untold: auditor.untold })
}

/// Audits one round without the ledger; of earlier rounds it uses only the disclosed holdout rows,
/// models and updates. It cannot check whether the round's work was paid before and whether its
/// provider had pledged a stake: see [`audit_task`].
///
/// # Errors
/// As [`audit_task`].
pub fn audit_round(
    client: &Client,
    task: TaskId,
    round: RoundNumber,
    engine: &mut dyn Engine,
) -> Result<RoundAudit, AuditError> {
    let view = client.task(task)?;
    if round.0 == 0 || round.0 > view.reported {
        let (first, last) = (round.0, round.0);
        return Err(AuditError::NoSuchRounds { first, last, reported: view.reported });
    }
    let mut auditor = Auditor::new(client, None, &view, &Scrutiny::default());
    let mut before = None;
    for earlier in (1..round.0).map(RoundNumber) {
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
        differences: vec![difference("previous", &report.previous_report, &before)],
    }
}

/// The blobs that a round was computed from.
struct Bytes {
    /// The round's base model, and the base models of earlier rounds, the latest first, up to the
    /// protocol's limit.
    models: Vec<CachedBlob>,
    /// The disclosed holdout rows of the round; empty if there were too few updates.
    shown: Vec<u8>,
    /// The round's updates, then the updates of earlier rounds that they are compared with.
    updates: Vec<CachedBlob>,
    /// Senders and digests of the updates of earlier rounds.
    named: Vec<(Address, Digest)>,
}

/// A round's report with the documents that it depends on.
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
    /// Digests of the base models of earlier rounds, the latest first.
    earlier: Vec<Digest>,
    /// The updates that earlier rounds published.
    shown: EarlierUpdates,
    /// The holdout rows that earlier rounds disclosed.
    exposed: Vec<u32>,
    /// Cached models of the last recomputed round.
    models: BlobCache,
    /// Its cached updates, as far as the next round may be compared with them.
    updates: BlobCache,
    spot: Option<SpotCheckOptions>,
    scratch: &'a Path,
    keys: BTreeMap<(Address, Role), Option<NodeKey>>,
    /// Paid work records, with the first round that paid each.
    paid: BTreeMap<Digest, RoundNumber>,
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
        let (models, updates) = (BlobCache::for_models(), BlobCache::for_updates());
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

    /// Advances to the next round.
    fn pass(&mut self, report: &Report) {
        self.earlier.insert(0, report.base_model);
        self.exposed.extend(&report.holdout.rows);
        self.shown.add_report(report);
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

    /// Checks that every header is signed by the node key that its sender registered, and matches
    /// its entry and its commit.
    fn signatures(
        &mut self,
        report: &Report,
        headers: &[Signed<UpdateHeader>],
        found: &mut Vec<Mismatch>,
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
        found: &mut Vec<Mismatch>,
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

    /// Fetches the base model, the updates and the rows, if they are available and have the digests
    /// in the report. The rows have Merkle proofs instead of a digest; the recomputation verifies
    /// them.
    fn bytes(
        &self,
        report: &Report,
        found: &mut Vec<Mismatch>,
    ) -> Result<Option<Bytes>, AuditError> {
        let limit = florin_work::model_bytes(self.spec);
        let of_update = florin_work::update_bytes(self.spec);
        let models = limit.saturating_mul(self.earlier.len().min(GLOBAL_DELTAS_MAX) as u64);
        // A decoded update has the length of a model.
        let decoded = limit.max(of_update);
        let total = decoded.saturating_mul(report.entries.len() as u64).saturating_add(models);
        if total > ORDER_BYTES_MAX {
            let line =
                difference("entries", &format!("{total} bytes"), &"more than the audit's limit");
            found.push(line);
            return Ok(None);
        }
        let began = self.earlier.iter().take(GLOBAL_DELTAS_MAX).copied();
        let began: Vec<Digest> = [report.base_model].into_iter().chain(began).collect();
        let models = self.models.get_or_fetch(began.iter().copied(), |at, digest| {
            let line = if at == 0 { "base_model" } else { "an earlier base_model" };
            self.blob(line, digest, limit, found)
        })?;
        let named = self.shown.reference_updates(self.spec.rounds.preprocessing, limit);
        let sent = report.entries.iter().map(|entry| entry.update);
        let sent = sent.chain(named.iter().map(|(_, update)| *update));
        let updates = self.updates.get_or_fetch(sent, |at, digest| {
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

    /// Caches the blobs that the next round may need. After a round that did not improve the model,
    /// the next round is compared with the same earlier updates and with those of this round.
    fn keep(&mut self, report: &Report, bytes: &Bytes) {
        let Bytes { models, updates, .. } = bytes;
        let better = report.is_productive();
        let wanted = if better { report.entries.len() } else { updates.len() };
        self.models.replace(models);
        self.updates.replace(updates.get(..wanted).unwrap_or_default());
    }

    /// Fetches the disclosed holdout rows of the round; empty if none were drawn.
    fn shown_rows(
        &self,
        report: &Report,
        found: &mut Vec<Mismatch>,
    ) -> Result<Option<Vec<u8>>, AuditError> {
        if !self.spec.has_quorum(report.entries.len()) {
            return Ok(Some(Vec::new()));
        }
        let limit = self.spec.holdout.disclosed_bytes_max(self.spec.data.width);
        let RoundScope { task, round, .. } = report.scope;
        match self.client.shown(task, round, limit) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(ClientError::Rejected(rejection)) => {
                found.push(difference("holdout.rows", &"disclosed", &rejection));
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
        found: &mut Vec<Mismatch>,
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

    /// Recomputes rows, scores, model and everything that follows from them.
    fn recompute(
        &self,
        papers: &Papers<'_>,
        bytes: &Bytes,
        engine: &mut dyn Engine,
        found: &mut Vec<Mismatch>,
    ) -> Result<Option<SpotCheckResult>, AuditError> {
        let Papers { report, before, offer, headers } = *papers;
        let Bytes { models, shown, updates, named } = bytes;
        let (began, sent) = (byte_slices(models), byte_slices(updates));
        let (base, previous) = began.split_first().unwrap_or((&EMPTY_MODEL, &[]));
        let (own, last) = sent.split_at(report.entries.len().min(sent.len()));
        let room = work_room(self.scratch);
        let inputs = AuditInputs {
            round: ValuationInputs {
                spec: self.spec,
                base,
                row_indices: &report.holdout.rows,
                disclosed_rows: shown,
                entries: &report.entries,
                updates: &own,
                previous_models: &previous,
                earlier_updates: EarlierUpdateBlobs { ids: named, bytes: &last },
                scratch_space: &room,
            },
            offer,
            report,
            previous_report: before,
            earlier_models: &self.earlier,
            earlier_updates: &self.shown,
            used_rows: &self.exposed,
            headers,
        };
        let round = report.scope.round;
        let failed = |source| AuditError::Work { round, source };
        let Some(spot) = self.spot else {
            found.extend(recompute(&inputs, engine).map_err(failed)?);
            return Ok(None);
        };
        let seed = spot.seed.wrapping_add(round.0.into());
        let looked =
            spot_check_round(&inputs, SpotCheckOptions { seed, ..spot }, engine).map_err(failed)?;
        found.extend(looked.mismatches.iter().cloned());
        Ok(Some(looked))
    }
}
