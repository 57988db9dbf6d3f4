//! A fake coordinator: one task, no deadlines except those that a test expires, and injected faults
//! that auditors and agents must detect.

mod settling;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use florin_learning::{EngineKind, engine};
use florin_ledger::{EmbeddedChain, Ledger};
use florin_protocol::{
    AbandonReason, Address, Amount, BlobRequest, Candidate, Candidates, Canonical, ClaimProof,
    Commit, Digest, EnrolRequest, ErrorCode, LedgerInfo, MarketInfo, MissingReason, NodeSigner,
    Offer, Registration, Rejection, Report, ReportInputs, Role, RoundNumber, RoundScope,
    RoundTimes, SelectionReason, Signed, Standing, TaskPhase, TaskSpec, TaskSummary, TaskView,
    Timestamp, UpdateEntry, UpdateHeader, UpdateReceipt, UploadReceipt, WalletSigner,
    WorkAcceptance, WorkOrder, WorkRecord, WorkRequest, WorkResult, blob_digest, claim_tree,
    close_round,
};
use florin_work::{
    CommittedHoldout, EarlierUpdateBlobs, ValuationInputs, ValuationOutput, initial_model,
    value_and_aggregate,
};

pub(crate) use super::fault::Fault;
use super::response::{FakeResponse, json, reject};
use super::{rows, wallet};

pub(super) struct ClosedRound {
    offer: Offer,
    candidates: Candidates,
    pub(super) report: Report,
    headers: Vec<Signed<UpdateHeader>>,
    records: Vec<Signed<WorkRecord>>,
}

pub(super) struct FakeCoordinator {
    pub(super) spec: TaskSpec,
    pub(super) node: NodeSigner,
    pub(super) ledger: Arc<EmbeddedChain>,
    pub(super) phase: TaskPhase,
    pub(super) sequence: u64,
    pub(super) enrolled: Vec<Address>,
    pub(super) registrations: BTreeMap<(Address, Role), Registration>,
    /// The requests before which a registration gave way ([`Fault::FullMarket`]).
    pub(super) evicted_before: BTreeSet<String>,
    pub(super) offer: Option<Offer>,
    /// The candidates of that offer.
    candidates: Candidates,
    pub(super) commits: BTreeMap<Address, Commit>,
    pub(super) updates: BTreeMap<Address, (Signed<UpdateHeader>, UpdateReceipt)>,
    pub(super) closed_rounds: Vec<ClosedRound>,
    pub(super) blobs: BTreeMap<Digest, Vec<u8>>,
    pub(super) holdout: CommittedHoldout,
    pub(super) order: Option<WorkOrder>,
    pub(super) wants_provider: bool,
    pub(super) faults: Vec<Fault>,
    pub(super) requests: Vec<String>,
}

impl FakeCoordinator {
    pub(super) fn new(
        spec: TaskSpec,
        node: NodeSigner,
        ledger: Arc<EmbeddedChain>,
        wants_provider: bool,
    ) -> Self {
        let model = initial_model(&spec.model, 1).unwrap();
        Self {
            spec,
            node,
            ledger,
            phase: TaskPhase::Enrolling,
            sequence: 1,
            enrolled: Vec::new(),
            registrations: BTreeMap::new(),
            evicted_before: BTreeSet::new(),
            offer: None,
            candidates: Candidates::default(),
            commits: BTreeMap::new(),
            updates: BTreeMap::new(),
            closed_rounds: Vec::new(),
            blobs: BTreeMap::from([(blob_digest(&model), model)]),
            holdout: CommittedHoldout::new(rows(180, 99)),
            order: None,
            wants_provider,
            faults: Vec::new(),
            requests: Vec::new(),
        }
    }

    pub(super) fn get(&self, parts: &[&str]) -> FakeResponse {
        let round = |text: &str| text.parse::<usize>().ok()?.checked_sub(1);
        let past = |text: &str| match round(text).and_then(|round| self.closed_rounds.get(round)) {
            Some(past) => Ok(past),
            None => reject(ErrorCode::NotYetPublic),
        };
        match parts {
            ["market"] => json(&MarketInfo {
                version: "test".to_owned(),
                market: self.spec.market,
                coordinator: self.spec.coordinator,
                node_key: self.node.key(),
                ledger: LedgerInfo::Embedded,
                now: self.now(),
            }),
            ["registrations", who] => {
                let who: Address = who.parse().unwrap();
                let known = self.registrations.values().find(|known| known.wallet == who);
                known.map_or_else(|| reject(ErrorCode::NotRegistered), json)
            }
            ["tasks"] => json(&vec![self.summary()]),
            ["tasks", id] if *id == self.spec.id().to_string() => json(&self.view()),
            ["tasks", _] => reject(ErrorCode::UnknownTask),
            ["tasks", _, "rounds", r, "report"] => json(&self.node.sign(past(r)?.report.clone())),
            ["tasks", _, "rounds", r, "offer"] => json(&self.node.sign(past(r)?.offer.clone())),
            ["tasks", _, "rounds", r, "candidates"] => json(&past(r)?.candidates),
            ["tasks", _, "rounds", r, "holdout"] => self.disclosed_rows_response(&past(r)?.report),
            ["tasks", _, "rounds", r, "headers"] => json(&past(r)?.headers),
            ["tasks", _, "rounds", r, "records"] => json(&past(r)?.records),
            ["tasks", _, "proof", who] => self.proof(who.parse().unwrap()),
            ["blobs", digest] => self.blob(digest.parse().unwrap()),
            _ => reject(ErrorCode::NotFound),
        }
    }

    pub(super) fn post(&mut self, parts: &[&str], body: &[u8]) -> FakeResponse {
        let read = |_: serde_json::Error| Rejection::new(ErrorCode::Malformed, "not JSON");
        self.evict_before(parts)?;
        match parts {
            ["registrations"] => {
                let registration: Registration = serde_json::from_slice(body).map_err(read)?;
                self.check_expiry(registration.expires)?;
                registration.verify(self.spec.market, Timestamp(5)).unwrap();
                self.registrations.insert((registration.wallet, registration.role), registration);
            }
            ["tasks", _, "enrol"] => {
                let enrol: Signed<EnrolRequest> = serde_json::from_slice(body).map_err(read)?;
                self.check_expiry(enrol.body.expires)?;
                let tries = self.requests.iter().filter(|line| line.ends_with("/enrol")).count();
                if self.faults.contains(&Fault::LaggingNode) && tries <= 2 {
                    return reject(ErrorCode::BondTooSmall);
                }
                self.enrol(enrol.body.sender);
            }
            ["tasks", _, "commits"] => {
                let commit: Signed<Commit> = serde_json::from_slice(body).map_err(read)?;
                self.commit(&commit.body)?;
            }
            ["tasks", _, "updates"] => return self.update(body),
            ["work", "next"] => {
                let query: Signed<WorkRequest> = serde_json::from_slice(body).map_err(read)?;
                self.check_expiry(query.body.expires)?;
                assert!(self.ledger.is_pledged(query.body.task, query.body.provider).unwrap());
                return match &self.order {
                    Some(order) => json(&self.node.sign(order.clone())),
                    None => Ok(Vec::new()),
                };
            }
            ["work", "blob"] => {
                let request: Signed<BlobRequest> = serde_json::from_slice(body).map_err(read)?;
                self.check_expiry(request.body.expires)?;
                self.requests.push(format!("work/blob {}", request.body.digest));
                return self.blob(request.body.digest);
            }
            ["work"] => {
                let record: Signed<WorkRecord> = serde_json::from_slice(body).map_err(read)?;
                return self.accept_work(&record);
            }
            ["work", "transcripts"] if !self.has_fault(Fault::NoTranscripts) => {
                let (length, rest) = body.split_at(4);
                let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
                let (record, transcript) = rest.split_at(length);
                assert!(!transcript.is_empty());
                return self.accept_work(&Signed::from_bytes(record).unwrap());
            }
            _ => return reject(ErrorCode::NotFound),
        }
        Ok(Vec::new())
    }

    fn now(&self) -> Timestamp {
        if self.has_fault(Fault::ClockAhead) { Timestamp(3_600_005) } else { Timestamp(5) }
    }

    fn check_expiry(&self, at: Timestamp) -> Result<(), Rejection> {
        if self.now() <= at { Ok(()) } else { reject(ErrorCode::DeadlinePassed) }
    }

    fn set_phase(&mut self, phase: TaskPhase) {
        self.phase = phase;
        self.sequence += 1;
    }

    fn scope(&self) -> RoundScope {
        let round = RoundNumber(self.closed_rounds.len() as u32 + 1);
        RoundScope { market: self.spec.market, task: self.spec.id(), round }
    }

    fn summary(&self) -> TaskSummary {
        TaskSummary {
            id: self.spec.id(),
            name: self.spec.name.clone(),
            phase: self.phase,
            round: self.scope().round,
            rounds: self.spec.rounds.count,
            enrolled: self.enrolled.len() as u32,
            data: self.spec.budget.data,
            infrastructure: self.spec.budget.infrastructure,
            data_paid: Amount::ZERO,
            infrastructure_paid: Amount::ZERO,
        }
    }

    fn view(&self) -> TaskView {
        let reported = self.closed_rounds.len() as u32;
        let round =
            self.offer.as_ref().map_or(RoundNumber(reported.max(1)), |offer| offer.scope.round);
        TaskView {
            sequence: self.sequence,
            now: self.now(),
            id: self.spec.id(),
            spec: self.spec.clone(),
            phase: self.phase,
            phase_ends: None,
            round,
            reported,
            finalised: if self.settles_immediately() { reported } else { 0 },
            enrolled: self.enrolled.len() as u32,
            committed: self.commits.len() as u32,
            revealed: self.updates.len() as u32,
            offer: self.offer.clone().map(|offer| self.node.sign(offer)),
            model: self.model(),
            missing_blobs: Vec::new(),
            holdout_missing: false,
            waiting: None,
            end: None,
        }
    }

    fn model(&self) -> Digest {
        self.closed_rounds.last().map_or(self.spec.base_model, |past| past.report.model)
    }

    pub(super) fn commitments(&self) -> Vec<(Address, Digest)> {
        self.commits.values().map(|commit| (commit.sender, commit.commitment)).collect()
    }

    fn blob(&self, digest: Digest) -> FakeResponse {
        let Some(bytes) = self.blobs.get(&digest) else {
            return reject(ErrorCode::NotFound);
        };
        let mut bytes = bytes.clone();
        if self.has_fault(Fault::WrongBytes) {
            bytes[10] ^= 1;
        }
        Ok(bytes)
    }

    fn enrol(&mut self, sender: Address) {
        if !self.enrolled.contains(&sender) {
            self.enrolled.push(sender);
            self.enrolled.sort_unstable();
            self.sequence += 1;
        }
        if self.phase == TaskPhase::Enrolling {
            self.open_round();
        }
    }

    pub(super) fn pass_commit_deadline(&mut self) {
        assert_eq!(self.phase, TaskPhase::Committing);
        self.enrolled.retain(|sender| self.commits.contains_key(sender));
        self.close_round_and_settle(&[]);
    }

    /// All enrolled accounts, and those that were candidates before.
    fn next_candidates(&self) -> Candidates {
        let valued = self.closed_rounds.iter().rev().find(|past| !past.report.entries.is_empty());
        let seed = valued.map(|past| past.report.holdout.seed).unwrap_or_default();
        let with = |standing| move |who: &Address| (*who, Candidate { standing, quote_ms: 0 });
        let before = self.candidates.accounts.keys().map(with(Standing::Absent));
        let now = self.enrolled.iter().map(with(Standing::Eligible));
        Candidates { seed, accounts: before.chain(now).collect() }
    }

    /// Opens a round as soon as enough participants are enrolled.
    fn open_round(&mut self) {
        if (self.enrolled.len() as u32) < self.spec.rounds.cohort_target {
            return self.set_phase(TaskPhase::Enrolling);
        }
        let before = self.closed_rounds.last().map(|past| &past.report);
        let mut pool = self.spec.pool_for_round(self.scope().round, before).unwrap();
        if self.has_fault(Fault::SmallPool) {
            pool = pool.minus(Amount::from_units(1)).unwrap();
        }
        let lie = self.has_fault(Fault::WrongBase) && before.is_some();
        self.candidates = self.next_candidates();
        let candidates = &self.candidates;
        let opened = Timestamp(5);
        let commit_by = opened.saturating_add_ms(self.spec.rounds.train_ms);
        self.offer = Some(Offer {
            scope: self.scope(),
            base_model: if lie { self.spec.base_model } else { self.model() },
            previous_report: before.map_or(Digest(self.spec.id().0), Report::digest),
            cohort: self.enrolled.clone(),
            reasons: vec![SelectionReason::Drawn; self.enrolled.len()],
            candidates: candidates.digest(),
            opened,
            commit_by,
            reveal_by: commit_by.saturating_add_ms(1),
            pool,
        });
        self.commits.clear();
        self.updates.clear();
        self.set_phase(TaskPhase::Committing);
    }

    fn commit(&mut self, commit: &Commit) -> Result<(), Rejection> {
        match self.commits.get(&commit.sender) {
            Some(known) if known == commit => return Ok(()),
            Some(_) => return reject(ErrorCode::ConflictingMessage),
            None if self.phase != TaskPhase::Committing => {
                return reject(ErrorCode::DeadlinePassed);
            }
            None => {}
        }
        assert_eq!(commit.offer, self.offer.as_ref().unwrap().digest());
        self.commits.insert(commit.sender, commit.clone());
        if self.commits.len() == self.enrolled.len() {
            self.set_phase(TaskPhase::Revealing);
        }
        Ok(())
    }

    fn update(&mut self, body: &[u8]) -> FakeResponse {
        let (length, rest) = body.split_at(4);
        let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
        let (header, bytes) = rest.split_at(length);
        let header = Signed::<UpdateHeader>::from_bytes(header).unwrap();
        let sender = header.body.sender;
        let key = self.registrations[&(sender, Role::Participant)].node_key;
        header.verify(key).unwrap();
        assert_eq!(header.body.update, blob_digest(bytes));
        let receipt = match self.updates.get(&sender) {
            Some((known, receipt)) if *known == header => receipt.clone(),
            Some(_) => return reject(ErrorCode::ConflictingMessage),
            None if self.phase != TaskPhase::Revealing => return reject(ErrorCode::TooEarly),
            None => {
                assert_eq!(self.commits[&sender].commitment, header.body.commitment());
                let update = header.body.digest();
                let order = self.order_of(sender);
                UpdateReceipt {
                    scope: header.body.scope,
                    sender,
                    update,
                    at: Timestamp(6),
                    commit_position: order,
                }
            }
        };
        self.blobs.insert(header.body.update, bytes.to_vec());
        self.updates.insert(sender, (header, receipt.clone()));
        if self.updates.len() == self.enrolled.len() && self.phase == TaskPhase::Revealing {
            self.start_valuation();
        }
        let signer = match self.has_fault(Fault::ForgedReceipt) {
            true => NodeSigner::from_seed(&[9; 32]),
            false => self.node.clone(),
        };
        let update =
            if self.has_fault(Fault::OtherReceipt) { Digest([1; 32]) } else { receipt.update };
        // Accounts 2 and 9: the coordinator, and a stranger.
        let account = if self.has_fault(Fault::ForgedWalletSignature) { 9 } else { 2 };
        let receipt = UpdateReceipt { update, ..receipt };
        json(&UploadReceipt::sign(receipt, &signer, &wallet(account)).unwrap())
    }

    fn entries(&self) -> Vec<UpdateEntry> {
        let bond = |sender| self.ledger.bond_of(self.spec.id(), sender).unwrap().amount;
        let entry = |(header, _): &(Signed<UpdateHeader>, UpdateReceipt)| {
            let header = &header.body;
            UpdateEntry {
                sender: header.sender,
                header: header.digest(),
                update: header.update,
                salt: header.salt,
                rows_declared: header.rows,
                rows_counted: self.spec.rows_counted(header.rows, bond(header.sender)),
                bond: bond(header.sender),
                commit_position: self.order_of(header.sender),
                staleness: 0,
            }
        };
        self.updates.values().map(entry).collect()
    }

    /// Commits are numbered in the order of their senders.
    fn order_of(&self, sender: Address) -> u32 {
        self.commits.keys().position(|who| *who == sender).unwrap() as u32 + 1
    }

    fn start_valuation(&mut self) {
        self.set_phase(TaskPhase::Valuing);
        if self.wants_provider {
            let (offer, entries) = (self.offer.clone().unwrap(), self.entries());
            let shown = self.disclosed_rows(&self.draw(&offer, &entries).1);
            let holdout = blob_digest(&shown);
            self.blobs.insert(holdout, shown);
            for rows in self.earlier_rows() {
                self.blobs.insert(blob_digest(&rows), rows);
            }
            self.order = Some(WorkOrder {
                scope: self.scope(),
                base_model: self.model(),
                disclosed_rows: holdout,
                commits: self.commitments(),
                entries,
                due: Timestamp::MAX,
                previous_models: self.earlier_models(),
                earlier_updates: self.last_updates(),
                earlier_rows: self.earlier_rows().iter().map(|rows| blob_digest(rows)).collect(),
            });
        } else {
            self.close_round_and_settle(&[]);
        }
    }

    fn accept_work(&mut self, record: &Signed<WorkRecord>) -> FakeResponse {
        let key = self.registrations[&(record.body.provider, Role::Provider)].node_key;
        record.verify(key).unwrap();
        if self.order.as_ref().map(Canonical::digest) != Some(record.body.order) {
            return reject(ErrorCode::WorkOrderClosed);
        }
        self.order = None;
        let units = record.body.result.valuation.units;
        self.close_round_and_settle(std::slice::from_ref(record));
        json(&WorkAcceptance { units })
    }

    /// Closes the round: writes its report, posts its settlement, and opens the next round or ends
    /// the task.
    fn close_round_and_settle(&mut self, records: &[Signed<WorkRecord>]) {
        let offer = self.offer.take().unwrap();
        let mut entries = self.entries();
        if self.has_fault(Fault::LostUpdate) {
            entries.remove(0);
        }
        if self.has_fault(Fault::MoreRows) {
            entries[0].rows_declared += 1;
        }
        let mut outcome = self.value_round(&offer, &entries);
        if let (true, Ok(outcome)) = (self.has_fault(Fault::TrapModel), &mut outcome) {
            let parameters = vec![0.5; 15];
            outcome.model = florin_work::encode_parameters(&self.spec, &parameters);
            outcome.result.model = blob_digest(&outcome.model);
        }
        let mut result = outcome.as_ref().map(|outcome| outcome.result.clone());
        if let (true, Ok(result)) = (self.has_fault(Fault::WrongScore), &mut result) {
            result.valuation.scores[0].score_nano += 50_000_000;
        }
        let records = self.paid_records(records);
        let report = self.report(&offer, &entries, result.as_ref().map_err(|why| **why), &records);
        if let Ok(outcome) = outcome {
            self.blobs.insert(outcome.result.model, outcome.model);
        }
        let headers = self.updates.values().map(|(header, _)| header.clone());
        let has_entry =
            |h: &Signed<UpdateHeader>| entries.iter().any(|e| e.sender == h.body.sender);
        let headers = headers.filter(has_entry).collect();
        let candidates = self.candidates.clone();
        self.closed_rounds.push(ClosedRound { offer, candidates, report, headers, records });
        self.post_to_ledger();
        if self.closed_rounds.len() as u32 == self.spec.rounds.count {
            self.close_on_ledger();
            self.set_phase(TaskPhase::Done);
        } else {
            self.open_round();
        }
    }

    fn value_round(
        &self,
        offer: &Offer,
        entries: &[UpdateEntry],
    ) -> Result<ValuationOutput, AbandonReason> {
        if entries.is_empty() {
            return Err(AbandonReason::TooFewUpdates { got: 0, needed: 1 });
        }
        if self.has_fault(Fault::AbandonedRound) && offer.scope.round == RoundNumber(2) {
            return Err(AbandonReason::ValuationFailed);
        }
        let updates: Vec<Vec<u8>> =
            entries.iter().map(|entry| self.blobs[&entry.update].clone()).collect();
        let drawn = self.draw(offer, entries).1;
        let previous = self.earlier_models();
        let previous: Vec<Vec<u8>> = previous.iter().map(|of| self.blobs[of].clone()).collect();
        let named = self.last_updates();
        let last: Vec<Vec<u8>> = named.iter().map(|(_, of)| self.blobs[of].clone()).collect();
        let inputs = ValuationInputs {
            spec: &self.spec,
            graph: None,
            base: &self.blobs[&offer.base_model],
            row_indices: &drawn,
            disclosed_rows: &self.holdout.disclose(&drawn).unwrap().to_bytes(),
            entries,
            updates: &updates,
            previous_models: &previous,
            earlier_updates: EarlierUpdateBlobs { ids: &named, bytes: &last },
            earlier_rows: &self.earlier_rows(),
            scratch_space: &florin_learning::mapped::UNLIMITED_MEMORY,
        };
        let mut engine = engine(EngineKind::Reference, 1).unwrap();
        value_and_aggregate(&inputs, engine.as_mut()).map_err(|_| AbandonReason::ValuationFailed)
    }

    /// The records that the report pays: the received ones, unless a fault is injected.
    fn paid_records(&self, records: &[Signed<WorkRecord>]) -> Vec<Signed<WorkRecord>> {
        let Some(came) = records.first() else {
            return Vec::new();
        };
        let mut body = came.body.clone();
        if self.has_fault(Fault::OtherResult) {
            body.result.valuation.loss_before_nano += 1_000;
            return vec![wallet(5).node_signer().sign(body)];
        }
        if self.has_fault(Fault::UnpledgedProvider) {
            body.provider = wallet(6).address();
            return vec![wallet(6).node_signer().sign(body)];
        }
        match self.closed_rounds.first() {
            Some(first) if self.has_fault(Fault::SameRecord) => first.records.clone(),
            _ => records.to_vec(),
        }
    }

    fn report(
        &self,
        offer: &Offer,
        entries: &[UpdateEntry],
        result: Result<&WorkResult, AbandonReason>,
        records: &[Signed<WorkRecord>],
    ) -> Report {
        let (seed, drawn) = self.draw(offer, entries);
        let absent = offer.cohort.iter().filter(|who| !entries.iter().any(|e| e.sender == **who));
        let missing: Vec<_> = absent
            .map(|who| match self.commits.contains_key(who) {
                true => (*who, MissingReason::NoReveal),
                false => (*who, MissingReason::NoCommit),
            })
            .collect();
        let units = result.map_or(0, |result| result.valuation.units);
        let work: Vec<_> =
            records.iter().map(|r| (r.body.provider, r.body.digest(), units)).collect();
        let mut report = close_round(&ReportInputs {
            spec: &self.spec,
            offer,
            previous_report: self.closed_rounds.last().map(|past| &past.report),
            commits: &self.commitments(),
            entries,
            times: &RoundTimes {
                commits: vec![Timestamp(5); self.commits.len()],
                commits_closed: Timestamp(5),
                updates: vec![Timestamp(6); entries.len()],
                ..RoundTimes::default()
            },
            missing: &missing,
            holdout_rows: &drawn,
            result,
            verified_work: &work,
        })
        .unwrap();
        report.holdout.seed = seed;
        if self.has_fault(Fault::WrongPayout) {
            let line = &mut report.lines[0];
            line.payout = line.payout.plus(Amount::from_units(1)).unwrap();
        }
        report
    }

    fn proof(&self, account: Address) -> FakeResponse {
        let root = self.ledger.task(self.spec.id()).unwrap().unwrap().root;
        let last = self.closed_rounds.iter().rposition(|past| past.report.root == root);
        let shown = last.map(|last| last - usize::from(self.has_fault(Fault::OldProof)));
        let Some(past) = shown.and_then(|shown| self.closed_rounds.get(shown)) else {
            return reject(ErrorCode::NotYetPublic);
        };
        let standing = past.report.account_totals.get(&account).copied().unwrap_or_default();
        let totals = standing.claim_totals().unwrap();
        let tree = claim_tree(&past.report.account_totals).unwrap();
        json(&ClaimProof {
            round: past.report.scope.round,
            root: past.report.root,
            totals,
            proof: tree.proof(account, totals).unwrap_or_default(),
        })
    }
}
