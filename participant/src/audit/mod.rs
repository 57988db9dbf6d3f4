//! The audit of a task: recomputes everything that can be recomputed from public data, and trusts
//! no party's statement.
//!
//! | object | check |
//! |---|---|
//! | cohorts, deadlines | recomputed from the published candidates and all earlier reports |
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

mod model;
mod receipts;
mod rows;
mod selection;
pub(crate) mod settlements;
mod sharing;
#[cfg(test)]
pub(crate) mod tests;
mod unavailable;
mod work;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use florin_learning::Engine;
use florin_learning::graph::GraphModel;
use florin_ledger::{Ledger, LedgerError};
use florin_protocol::limits::GLOBAL_DELTAS_MAX;
use florin_protocol::{
    Address, Canonical, Digest, EarlierUpdates, Mismatch, NodeKey, Offer, Report, Role,
    RoundNumber, RoundOutcome, Signed, TaskId, TaskSpec, UpdateHeader, UpdateReceipt, check_report,
};
use florin_work::{
    AuditInputs, EarlierUpdateBlobs, SpotCheckOptions, SpotCheckResult, ValuationInputs, WorkError,
    audit_round as recompute, spot_check_round,
};

use crate::blob_cache::{BlobCache, CachedBlob, EMPTY_MODEL, byte_slices};
use crate::client::{Client, ClientError};
use crate::provider::{ORDER_BYTES_MAX, scratch_space};
use crate::retry::Transient;
pub(crate) use rows::RowBytes;
use selection::SelectionAudit;

/// Scope and depth of an audit.
#[derive(Clone, Debug, Default)]
pub struct AuditOptions<'a> {
    /// Only these rounds; by default all reported rounds.
    pub rounds: Option<RangeInclusive<u32>>,
    /// The caller's own receipts, as [`crate::stored_receipts`] reads them: each must have its update
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
    pub unverifiable: Vec<String>,
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
    pub spot_check: Option<SpotCheckResult>,
    /// The mismatches, in the order of the report.
    pub mismatches: Vec<Mismatch>,
}

impl AuditReport {
    /// Number of mismatches.
    #[must_use]
    pub fn mismatch_count(&self) -> usize {
        self.rounds.iter().map(|round| round.mismatches.len()).sum::<usize>() + self.ledger.len()
    }

    /// Number of rounds whose scores and model were recomputed.
    #[must_use]
    pub fn recomputed_count(&self) -> usize {
        self.rounds.iter().filter(|round| round.recomputed).count()
    }

    /// The first mismatch, with its round; without a round if it is on the ledger.
    #[must_use]
    pub fn first_mismatch(&self) -> Option<(Option<RoundNumber>, &Mismatch)> {
        let of_rounds = self
            .rounds
            .iter()
            .find_map(|round| round.mismatches.first().map(|line| (Some(round.round), line)));
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
            Self::NoSuchRounds { .. } => "ROUNDS_OUT_OF_RANGE",
            Self::Client(error) => error.code(),
            Self::Ledger(error) => crate::ledger_code(error),
            Self::Work { .. } => "AUDIT_FAILED",
        }
    }
}

impl Transient for AuditError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Client(error) => error.is_transient(),
            Self::Ledger(error) => error.is_transient(),
            Self::NoSuchRounds { .. } | Self::Work { .. } => false,
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
    options: &AuditOptions<'_>,
    engine: &mut dyn Engine,
    on_round: &mut dyn FnMut(&RoundAudit),
) -> Result<AuditReport, AuditError> {
    let view = client.task(task)?;
    let range = options.rounds.clone().unwrap_or(1..=view.reported);
    let (first, last) = (*range.start(), *range.end());
    if first == 0 || last > view.reported || (first > last && view.reported > 0) {
        return Err(AuditError::NoSuchRounds { first, last, reported: view.reported });
    }
    let mut auditor = Auditor::new(client, Some(ledger), view.spec.clone(), options);
    let mut audited = Vec::new();
    let mut reports: Vec<Report> = Vec::new();
    for round in (1..=view.reported).map(RoundNumber) {
        let report = client.report(task, round)?.body;
        if (first..=last).contains(&round.0) {
            let mut audit = auditor.audit(&report, reports.last(), engine)?;
            let key = client.coordinator().node_key;
            audit.mismatches.extend(receipts::unhonoured_receipts(&report, options.receipts, key));
            on_round(&audit);
            audited.push(audit);
        } else {
            auditor.record_payments(&report);
            let before = reports.last().map_or(Digest(task.0), Report::digest);
            if report.previous_report != before {
                audited.push(chain_broken(&report, before));
            }
        }
        auditor.advance(&report);
        reports.push(report);
    }
    let ledger = settlements::audit(client, ledger, &view.spec, &mut reports)?;
    Ok(AuditReport { task, rounds: audited, ledger, unverifiable: auditor.unverifiable })
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
    let mut auditor = Auditor::new(client, None, view.spec, &AuditOptions::default());
    let mut before = None;
    for earlier in (1..round.0).map(RoundNumber) {
        let report = client.report(task, earlier)?.body;
        auditor.advance(&report);
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
        spot_check: None,
        mismatches: vec![Mismatch::new("previous_report", &report.previous_report, &before)],
    }
}

/// The blobs that a round was computed from.
struct RoundBlobs {
    /// The round's base model, and the base models of earlier rounds, the latest first, up to the
    /// protocol's limit.
    models: Vec<CachedBlob>,
    /// The disclosed holdout rows of the round; empty if there were too few updates.
    disclosed_rows: RowBytes,
    /// The round's updates, then the updates of earlier rounds that they are compared with.
    updates: Vec<CachedBlob>,
    /// Senders and digests of the updates of earlier rounds.
    earlier_updates: Vec<(Address, Digest)>,
    /// The disclosed rows of earlier rounds that train the public baseline.
    earlier_rows: Vec<RowBytes>,
}

/// A round's report with the documents that it depends on.
struct RoundDocuments<'a> {
    report: &'a Report,
    before: Option<&'a Report>,
    offer: &'a Offer,
    headers: &'a [UpdateHeader],
}

pub(crate) struct Auditor<'a> {
    client: &'a Client,
    ledger: Option<&'a dyn Ledger>,
    spec: TaskSpec,
    /// Digests of the base models of earlier rounds, the latest first.
    earlier_models: Vec<Digest>,
    /// The updates that earlier rounds published.
    earlier_updates: EarlierUpdates,
    /// The holdout rows that earlier rounds disclosed.
    disclosed_rows: Vec<u32>,
    /// The earlier rounds whose rows train the public baseline, with the rows if they were fetched.
    baseline_rounds: BTreeMap<RoundNumber, Option<RowBytes>>,
    /// Cached models of the last recomputed round.
    models: BlobCache,
    /// Its cached updates, as far as the next round may be compared with them.
    updates: BlobCache,
    /// The task's graph, once a round was recomputed.
    graph: Option<GraphModel>,
    spot: Option<SpotCheckOptions>,
    scratch: PathBuf,
    keys: BTreeMap<(Address, Role), NodeKey>,
    /// Paid work records, with the first round that paid each.
    paid: BTreeMap<Digest, RoundNumber>,
    selection: SelectionAudit,
    unverifiable: Vec<String>,
    /// Lines of the round whose data the coordinator did not give, or not with its digest: a later
    /// request may succeed.
    unavailable: RefCell<BTreeSet<String>>,
}

impl<'a> Auditor<'a> {
    pub(crate) fn new(
        client: &'a Client,
        ledger: Option<&'a dyn Ledger>,
        spec: TaskSpec,
        options: &AuditOptions<'a>,
    ) -> Self {
        Self {
            client,
            ledger,
            spec,
            earlier_models: Vec::new(),
            earlier_updates: EarlierUpdates::default(),
            disclosed_rows: Vec::new(),
            baseline_rounds: BTreeMap::new(),
            models: BlobCache::for_models(),
            updates: BlobCache::for_updates(),
            graph: None,
            spot: options.spot,
            scratch: options.scratch.unwrap_or(Path::new(".")).to_owned(),
            keys: BTreeMap::new(),
            paid: BTreeMap::new(),
            selection: SelectionAudit::default(),
            unverifiable: Vec::new(),
            unavailable: RefCell::default(),
        }
    }

    /// Advances to the next round.
    pub(crate) fn advance(&mut self, report: &Report) {
        self.earlier_models.insert(0, report.base_model);
        self.disclosed_rows.extend(&report.holdout.rows);
        self.advance_baseline(report);
        self.earlier_updates.add_report(report);
        self.selection.advance(&self.spec, report);
    }

    /// Audits the next round. May be called again for the same round, until the caller advances.
    pub(crate) fn audit(
        &mut self,
        report: &Report,
        before: Option<&Report>,
        engine: &mut dyn Engine,
    ) -> Result<RoundAudit, AuditError> {
        let (task, round) = (report.scope.task, report.scope.round);
        self.unavailable.borrow_mut().clear();
        let offer = self.client.offer(task, round)?.body;
        let headers = self.client.headers(task, round)?;
        let records = self.client.records(task, round)?;
        let mut found = Vec::new();
        self.check_headers(report, &headers, &mut found)?;
        self.check_paid_work(report, &records, &mut found)?;
        self.check_selection(&offer, report, &mut found)?;
        let headers: Vec<UpdateHeader> = headers.into_iter().map(|signed| signed.body).collect();
        let papers = RoundDocuments { report, before, offer: &offer, headers: &headers };
        let mut spotted = None;
        let recomputed = match self.fetch_blobs(report, &mut found)? {
            Some(bytes) if found.is_empty() => {
                if self.graph.is_none() {
                    self.graph = self.client.graph(&self.spec)?;
                }
                spotted = self.recompute_round(&papers, &bytes, engine, &mut found)?;
                self.cache_blobs(report, &bytes, None);
                true
            }
            _ => false,
        };
        if !recomputed {
            found.extend(check_report(&self.spec, &offer, report, before, &self.disclosed_rows));
        }
        Ok(RoundAudit {
            round,
            outcome: report.outcome,
            recomputed,
            spot_check: spotted,
            mismatches: found,
        })
    }

    /// Checks that every header is signed by the node key that its sender registered, and matches
    /// its entry and its commit.
    fn check_headers(
        &mut self,
        report: &Report,
        headers: &[Signed<UpdateHeader>],
        found: &mut Vec<Mismatch>,
    ) -> Result<(), AuditError> {
        if headers.len() != report.entries.len() {
            found.push(Mismatch::new("entries", &report.entries.len(), &headers.len()));
        }
        for (i, header) in headers.iter().enumerate() {
            let line = format!("headers[{i}].signature");
            self.check_signature(header, header.body.sender, Role::Participant, line, found)?;
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
                found.push(Mismatch::new(format!("entries[{i}].{field}"), reported, signed));
            }
        }
        Ok(())
    }

    fn check_signature<T: Canonical>(
        &mut self,
        message: &Signed<T>,
        account: Address,
        role: Role,
        line: String,
        found: &mut Vec<Mismatch>,
    ) -> Result<(), AuditError> {
        let key = match self.keys.get(&(account, role)) {
            Some(key) => Some(*key),
            None => {
                let key = self.client.registration(account, role)?.map(|known| known.node_key);
                self.keys.extend(key.map(|key| ((account, role), key)));
                key
            }
        };
        let Some(key) = key else {
            let unknown = format!("{account} is not a registered {role}");
            found.push(self.unavailable(line, &"signed", &unknown));
            return Ok(());
        };
        if let Err(error) = message.verify(key) {
            found.push(Mismatch::new(line, &"signed", &format!("{error} (node key {key})")));
        }
        Ok(())
    }

    /// Fetches the base model, the updates and the rows, if they are available and have the digests
    /// in the report. The rows have Merkle proofs instead of a digest; the recomputation verifies
    /// them.
    fn fetch_blobs(
        &self,
        report: &Report,
        found: &mut Vec<Mismatch>,
    ) -> Result<Option<RoundBlobs>, AuditError> {
        let limit = florin_work::model_bytes(&self.spec);
        let of_update = florin_work::update_bytes(&self.spec);
        let models = limit.saturating_mul(self.earlier_models.len().min(GLOBAL_DELTAS_MAX) as u64);
        // A decoded update has the length of a model.
        let decoded = limit.max(of_update);
        let total = decoded.saturating_mul(report.entries.len() as u64).saturating_add(models);
        if total > ORDER_BYTES_MAX {
            let line =
                Mismatch::new("entries", &format!("{total} bytes"), &"more than the audit's limit");
            found.push(line);
            return Ok(None);
        }
        let began = self.earlier_models.iter().take(GLOBAL_DELTAS_MAX).copied();
        let began: Vec<Digest> = [report.base_model].into_iter().chain(began).collect();
        let models = self.models.get_or_fetch(began.iter().copied(), |at, digest| {
            let line = if at == 0 { "base_model" } else { "an earlier base_model" };
            self.fetch_blob(line, digest, limit, found)
        })?;
        let named = self.earlier_updates.reference_updates(self.spec.rounds.preprocessing, limit);
        let sent = report.entries.iter().map(|entry| entry.update);
        let sent = sent.chain(named.iter().map(|(_, update)| *update));
        let updates = self.updates.get_or_fetch(sent, |at, digest| {
            let line = match at.checked_sub(report.entries.len()).and_then(|at| named.get(at)) {
                None => format!("entries[{at}].update"),
                Some((sender, _)) => format!("the update of {sender} in an earlier round"),
            };
            self.fetch_blob(&line, digest, of_update, found)
        })?;
        let complete = models.len() == began.len()
            && updates.len() == report.entries.len().saturating_add(named.len());
        let shown = self.fetch_disclosed_rows(report, found)?.filter(|_| complete);
        let Some(earlier_rows) = self.fetch_earlier_rows(report, found)? else { return Ok(None) };
        Ok(shown.map(|shown| RoundBlobs {
            models,
            disclosed_rows: shown,
            updates,
            earlier_updates: named,
            earlier_rows,
        }))
    }

    /// Caches the blobs that the next round may need, with its base model if that was recomputed.
    /// After a round that did not improve the model, the next round is compared with the same
    /// earlier updates and with those of this round.
    fn cache_blobs(&mut self, report: &Report, bytes: &RoundBlobs, next: Option<&CachedBlob>) {
        let RoundBlobs { models, updates, .. } = bytes;
        self.cache_rows(report, bytes);
        let better = report.is_productive();
        let wanted = if better { report.entries.len() } else { updates.len() };
        self.models.replace(next.into_iter().chain(models));
        self.updates.replace(updates.iter().take(wanted));
    }

    fn fetch_blob(
        &self,
        line: &str,
        digest: Digest,
        limit: u64,
        found: &mut Vec<Mismatch>,
    ) -> Result<Option<Vec<u8>>, AuditError> {
        match self.client.blob(digest, limit) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(ClientError::WrongDigest { expected, got }) => {
                found.push(self.unavailable(line, &expected, &got));
                Ok(None)
            }
            Err(ClientError::Rejected(rejection)) => {
                found.push(self.unavailable(line, &digest, &rejection));
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Recomputes rows, scores, model and everything that follows from them.
    fn recompute_round(
        &self,
        documents: &RoundDocuments<'_>,
        bytes: &RoundBlobs,
        engine: &mut dyn Engine,
        found: &mut Vec<Mismatch>,
    ) -> Result<Option<SpotCheckResult>, AuditError> {
        let round = documents.report.scope.round;
        let Some(spot) = self.spot else {
            let recomputed =
                self.with_inputs(documents, bytes, |inputs| recompute(inputs, engine))?;
            found.extend(recomputed);
            return Ok(None);
        };
        let seed = spot.seed.wrapping_add(round.0.into());
        let options = SpotCheckOptions { seed, ..spot };
        let looked =
            self.with_inputs(documents, bytes, |inputs| spot_check_round(inputs, options, engine))?;
        found.extend(looked.mismatches.iter().cloned());
        Ok(Some(looked))
    }

    /// Calls `compute` with the inputs of a round.
    fn with_inputs<T>(
        &self,
        documents: &RoundDocuments<'_>,
        bytes: &RoundBlobs,
        compute: impl FnOnce(&AuditInputs<'_>) -> Result<T, WorkError>,
    ) -> Result<T, AuditError> {
        let RoundDocuments { report, before, offer, headers } = *documents;
        let RoundBlobs {
            models,
            disclosed_rows: shown,
            updates,
            earlier_updates: named,
            earlier_rows,
        } = bytes;
        let (began, sent) = (byte_slices(models), byte_slices(updates));
        let (base, previous) = began.split_first().unwrap_or((&EMPTY_MODEL, &[]));
        let (own, last) = sent.split_at(report.entries.len().min(sent.len()));
        let room = scratch_space(&self.scratch);
        let inputs = AuditInputs {
            round: ValuationInputs {
                spec: &self.spec,
                graph: self.graph.as_ref(),
                base,
                row_indices: &report.holdout.rows,
                disclosed_rows: shown,
                entries: &report.entries,
                updates: &own,
                previous_models: &previous,
                earlier_updates: EarlierUpdateBlobs { ids: named, bytes: &last },
                earlier_rows,
                scratch_space: &room,
            },
            offer,
            report,
            previous_report: before,
            earlier_models: &self.earlier_models,
            earlier_updates: &self.earlier_updates,
            used_rows: &self.disclosed_rows,
            headers,
        };
        compute(&inputs).map_err(|source| AuditError::Work { round: report.scope.round, source })
    }
}
