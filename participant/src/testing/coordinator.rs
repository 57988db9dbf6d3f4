//! A fake coordinator: one task, no deadlines except those that a test expires, and injected faults
//! that auditors and agents must detect.

use std::collections::BTreeMap;
use std::sync::Arc;

use florin_learning::{EngineKind, engine};
use florin_ledger::{Claim, EmbeddedChain, Ledger, Settlement};
use florin_protocol::{
    AbandonReason, Address, Amount, BlobRequest, Canonical, ClaimProof, Commit, Digest,
    EnrolRequest, ErrorCode, LedgerInfo, MarketInfo, MissingReason, NodeSigner, Offer,
    Registration, Rejection, Report, ReportInputs, Role, RoundNumber, RoundOutcome, RoundScope,
    Signed, TaskPhase, TaskSpec, TaskSummary, TaskView, Timestamp, UpdateEntry, UpdateHeader,
    UpdateReceipt, WalletSigner, WorkAcceptance, WorkOrder, WorkRecord, WorkRequest, WorkResult,
    blob_digest, claim_tree, close_round,
};
use florin_work::{
    CommittedHoldout, EarlierUpdateBlobs, ValuationInputs, ValuationOutput, initial_model,
    value_and_aggregate,
};
use serde::Serialize;

pub(crate) use super::lie::Lie;
use super::{rows, wallet};

pub(super) struct Past {
    offer: Offer,
    pub(super) report: Report,
    headers: Vec<Signed<UpdateHeader>>,
    records: Vec<Signed<WorkRecord>>,
}

pub(super) struct State {
    pub(super) spec: TaskSpec,
    pub(super) node: NodeSigner,
    pub(super) ledger: Arc<EmbeddedChain>,
    pub(super) phase: TaskPhase,
    pub(super) sequence: u64,
    pub(super) enrolled: Vec<Address>,
    pub(super) registrations: BTreeMap<(Address, Role), Registration>,
    pub(super) offer: Option<Offer>,
    pub(super) commits: BTreeMap<Address, Commit>,
    pub(super) updates: BTreeMap<Address, (Signed<UpdateHeader>, UpdateReceipt)>,
    pub(super) past: Vec<Past>,
    pub(super) blobs: BTreeMap<Digest, Vec<u8>>,
    pub(super) holdout: CommittedHoldout,
    pub(super) order: Option<WorkOrder>,
    pub(super) wants_provider: bool,
    pub(super) lies: Vec<Lie>,
    pub(super) heard: Vec<String>,
}

pub(super) type Answer = Result<Vec<u8>, Rejection>;

pub(super) fn json(value: &impl Serialize) -> Answer {
    Ok(serde_json::to_vec(value).unwrap())
}

pub(super) fn refuse<T>(code: ErrorCode) -> Result<T, Rejection> {
    Err(Rejection::new(code, "rejected by the fake coordinator"))
}

impl State {
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
            offer: None,
            commits: BTreeMap::new(),
            updates: BTreeMap::new(),
            past: Vec::new(),
            blobs: BTreeMap::from([(blob_digest(&model), model)]),
            holdout: CommittedHoldout::new(rows(180, 99)),
            order: None,
            wants_provider,
            lies: Vec::new(),
            heard: Vec::new(),
        }
    }

    pub(super) fn get(&self, parts: &[&str]) -> Answer {
        let round = |text: &str| text.parse::<usize>().ok()?.checked_sub(1);
        let past = |text: &str| match round(text).and_then(|round| self.past.get(round)) {
            Some(past) => Ok(past),
            None => refuse(ErrorCode::NotYetPublic),
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
                known.map_or_else(|| refuse(ErrorCode::NotRegistered), json)
            }
            ["tasks"] => json(&vec![self.summary()]),
            ["tasks", id] if *id == self.spec.id().to_string() => json(&self.view()),
            ["tasks", _] => refuse(ErrorCode::UnknownTask),
            ["tasks", _, "rounds", r, "report"] => json(&self.node.sign(past(r)?.report.clone())),
            ["tasks", _, "rounds", r, "offer"] => json(&self.node.sign(past(r)?.offer.clone())),
            ["tasks", _, "rounds", r, "holdout"] => self.shown_again(&past(r)?.report),
            ["tasks", _, "rounds", r, "headers"] => json(&past(r)?.headers),
            ["tasks", _, "rounds", r, "records"] => json(&past(r)?.records),
            ["tasks", _, "proof", who] => self.proof(who.parse().unwrap()),
            ["blobs", digest] => self.blob(digest.parse().unwrap()),
            _ => refuse(ErrorCode::NotFound),
        }
    }

    pub(super) fn post(&mut self, parts: &[&str], body: &[u8]) -> Answer {
        let read = |_: serde_json::Error| Rejection::new(ErrorCode::Malformed, "not JSON");
        match parts {
            ["registrations"] => {
                let said: Registration = serde_json::from_slice(body).map_err(read)?;
                self.expire(said.expires)?;
                said.verify(self.spec.market, Timestamp(5)).unwrap();
                self.registrations.insert((said.wallet, said.role), said);
            }
            ["tasks", _, "enrol"] => {
                let said: Signed<EnrolRequest> = serde_json::from_slice(body).map_err(read)?;
                self.expire(said.body.expires)?;
                let tries = self.heard.iter().filter(|line| line.ends_with("/enrol")).count();
                if self.lies.contains(&Lie::NodeBehind) && tries <= 2 {
                    return refuse(ErrorCode::BondTooSmall);
                }
                self.enrol(said.body.sender);
            }
            ["tasks", _, "commits"] => {
                let said: Signed<Commit> = serde_json::from_slice(body).map_err(read)?;
                self.commit(&said.body)?;
            }
            ["tasks", _, "updates"] => return self.update(body),
            ["work", "next"] => {
                let said: Signed<WorkRequest> = serde_json::from_slice(body).map_err(read)?;
                self.expire(said.body.expires)?;
                assert!(self.ledger.is_pledged(said.body.task, said.body.provider).unwrap());
                return match &self.order {
                    Some(order) => json(&self.node.sign(order.clone())),
                    None => Ok(Vec::new()),
                };
            }
            ["work", "blob"] => {
                let said: Signed<BlobRequest> = serde_json::from_slice(body).map_err(read)?;
                self.expire(said.body.expires)?;
                self.heard.push(format!("work/blob {}", said.body.digest));
                return self.blob(said.body.digest);
            }
            ["work"] => {
                let said: Signed<WorkRecord> = serde_json::from_slice(body).map_err(read)?;
                return self.record(&said);
            }
            _ => return refuse(ErrorCode::NotFound),
        }
        Ok(Vec::new())
    }

    fn now(&self) -> Timestamp {
        if self.lies(Lie::ClockAhead) { Timestamp(3_600_005) } else { Timestamp(5) }
    }

    fn expire(&self, at: Timestamp) -> Result<(), Rejection> {
        if self.now() <= at { Ok(()) } else { refuse(ErrorCode::DeadlinePassed) }
    }

    pub(super) fn lies(&self, lie: Lie) -> bool {
        self.lies.contains(&lie)
    }

    fn change(&mut self, phase: TaskPhase) {
        self.phase = phase;
        self.sequence += 1;
    }

    fn scope(&self) -> RoundScope {
        let round = RoundNumber(self.past.len() as u32 + 1);
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
        }
    }

    fn view(&self) -> TaskView {
        let reported = self.past.len() as u32;
        let round =
            self.offer.as_ref().map_or(RoundNumber(reported.max(1)), |offer| offer.scope.round);
        TaskView {
            sequence: self.sequence,
            now: self.now(),
            id: self.spec.id(),
            spec: self.spec.clone(),
            phase: self.phase,
            round,
            reported,
            finalised: if self.is_final_at_once() { reported } else { 0 },
            enrolled: self.enrolled.len() as u32,
            committed: self.commits.len() as u32,
            revealed: self.updates.len() as u32,
            offer: self.offer.clone().map(|offer| self.node.sign(offer)),
            model: self.model(),
            missing_blobs: Vec::new(),
            holdout_missing: false,
        }
    }

    fn model(&self) -> Digest {
        self.past.last().map_or(self.spec.base_model, |past| past.report.model)
    }

    pub(super) fn said(&self) -> Vec<(Address, Digest)> {
        self.commits.values().map(|said| (said.sender, said.commitment)).collect()
    }

    fn blob(&self, digest: Digest) -> Answer {
        let Some(bytes) = self.blobs.get(&digest) else {
            return refuse(ErrorCode::NotFound);
        };
        let mut bytes = bytes.clone();
        if self.lies(Lie::WrongBytes) {
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
            self.open();
        }
    }

    pub(super) fn pass_commit_deadline(&mut self) {
        assert_eq!(self.phase, TaskPhase::Committing);
        self.enrolled.retain(|sender| self.commits.contains_key(sender));
        self.settle(&[]);
    }

    /// Opens a round as soon as enough participants are enrolled.
    fn open(&mut self) {
        if (self.enrolled.len() as u32) < self.spec.rounds.cohort_target {
            return self.change(TaskPhase::Enrolling);
        }
        let before = self.past.last().map(|past| &past.report);
        let mut pool = self.spec.pool_for_round(self.scope().round, before).unwrap();
        if self.lies(Lie::SmallPool) {
            pool = pool.minus(Amount::from_units(1)).unwrap();
        }
        let lie = self.lies(Lie::WrongBase) && before.is_some();
        self.offer = Some(Offer {
            scope: self.scope(),
            base_model: if lie { self.spec.base_model } else { self.model() },
            previous_report: before.map_or(Digest(self.spec.id().0), Report::digest),
            cohort: self.enrolled.clone(),
            opened: Timestamp(5),
            commit_by: Timestamp(6),
            reveal_by: Timestamp(7),
            pool,
        });
        self.commits.clear();
        self.updates.clear();
        self.change(TaskPhase::Committing);
    }

    fn commit(&mut self, said: &Commit) -> Result<(), Rejection> {
        match self.commits.get(&said.sender) {
            Some(known) if known == said => return Ok(()),
            Some(_) => return refuse(ErrorCode::ConflictingMessage),
            None if self.phase != TaskPhase::Committing => {
                return refuse(ErrorCode::DeadlinePassed);
            }
            None => {}
        }
        assert_eq!(said.offer, self.offer.as_ref().unwrap().digest());
        self.commits.insert(said.sender, said.clone());
        if self.commits.len() == self.enrolled.len() {
            self.change(TaskPhase::Revealing);
        }
        Ok(())
    }

    fn update(&mut self, body: &[u8]) -> Answer {
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
            Some(_) => return refuse(ErrorCode::ConflictingMessage),
            None if self.phase != TaskPhase::Revealing => return refuse(ErrorCode::TooEarly),
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
            self.value();
        }
        let signer = match self.lies(Lie::ForgedReceipt) {
            true => NodeSigner::from_seed(&[9; 32]),
            false => self.node.clone(),
        };
        let update = if self.lies(Lie::OtherReceipt) { Digest([1; 32]) } else { receipt.update };
        json(&signer.sign(UpdateReceipt { update, ..receipt }))
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
            }
        };
        self.updates.values().map(entry).collect()
    }

    /// Commits are numbered in the order of their senders.
    fn order_of(&self, sender: Address) -> u32 {
        self.commits.keys().position(|who| *who == sender).unwrap() as u32 + 1
    }

    fn value(&mut self) {
        self.change(TaskPhase::Valuing);
        if self.wants_provider {
            let (offer, entries) = (self.offer.clone().unwrap(), self.entries());
            let shown = self.shown(&self.draw(&offer, &entries).1);
            let holdout = blob_digest(&shown);
            self.blobs.insert(holdout, shown);
            self.order = Some(WorkOrder {
                scope: self.scope(),
                base_model: self.model(),
                disclosed_rows: holdout,
                commits: self.said(),
                entries,
                due: Timestamp::MAX,
                previous_models: self.earlier_models(),
                earlier_updates: self.last_updates(),
            });
        } else {
            self.settle(&[]);
        }
    }

    fn record(&mut self, said: &Signed<WorkRecord>) -> Answer {
        let key = self.registrations[&(said.body.provider, Role::Provider)].node_key;
        said.verify(key).unwrap();
        if self.order.as_ref().map(Canonical::digest) != Some(said.body.order) {
            return refuse(ErrorCode::WorkOrderClosed);
        }
        self.order = None;
        let units = said.body.result.valuation.units;
        self.settle(std::slice::from_ref(said));
        json(&WorkAcceptance { units })
    }

    /// Closes the round: writes its report, posts its settlement, and opens the next round or ends
    /// the task.
    fn settle(&mut self, records: &[Signed<WorkRecord>]) {
        let offer = self.offer.take().unwrap();
        let mut entries = self.entries();
        if self.lies(Lie::LostUpdate) {
            entries.remove(0);
        }
        if self.lies(Lie::MoreRows) {
            entries[0].rows_declared += 1;
        }
        let outcome = self.work(&offer, &entries);
        let mut result = outcome.as_ref().map(|outcome| outcome.result.clone());
        if let (true, Ok(result)) = (self.lies(Lie::WrongScore), &mut result) {
            result.valuation.scores[0].score_nano += 50_000_000;
        }
        let records = self.paid(records);
        let report = self.report(&offer, &entries, result.as_ref().map_err(|why| **why), &records);
        if let Ok(outcome) = outcome {
            self.blobs.insert(outcome.result.model, outcome.model);
        }
        let headers = self.updates.values().map(|(header, _)| header.clone());
        let kept = |h: &Signed<UpdateHeader>| entries.iter().any(|e| e.sender == h.body.sender);
        let headers = headers.filter(kept).collect();
        self.past.push(Past { offer, report, headers, records });
        self.post_to_ledger();
        if self.past.len() as u32 == self.spec.rounds.count {
            self.ledger.close(&wallet(2), self.spec.id()).unwrap();
            self.change(TaskPhase::Done);
        } else {
            self.open();
        }
    }

    fn work(
        &self,
        offer: &Offer,
        entries: &[UpdateEntry],
    ) -> Result<ValuationOutput, AbandonReason> {
        if entries.is_empty() {
            return Err(AbandonReason::TooFewUpdates { got: 0, needed: 1 });
        }
        if self.lies(Lie::Abandons) && offer.scope.round == RoundNumber(2) {
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
            base: &self.blobs[&offer.base_model],
            row_indices: &drawn,
            disclosed_rows: &self.holdout.disclose(&drawn).unwrap().to_bytes(),
            entries,
            updates: &updates,
            previous_models: &previous,
            earlier_updates: EarlierUpdateBlobs { ids: &named, bytes: &last },
            scratch_space: &florin_learning::mapped::UNLIMITED_MEMORY,
        };
        let mut engine = engine(EngineKind::Reference, 1).unwrap();
        value_and_aggregate(&inputs, engine.as_mut()).map_err(|_| AbandonReason::ValuationFailed)
    }

    /// The records that the report pays: the received ones, unless a fault is injected.
    fn paid(&self, records: &[Signed<WorkRecord>]) -> Vec<Signed<WorkRecord>> {
        let Some(came) = records.first() else {
            return Vec::new();
        };
        let mut body = came.body.clone();
        if self.lies(Lie::OtherResult) {
            body.result.valuation.loss_before_nano += 1_000;
            return vec![wallet(5).node_signer().sign(body)];
        }
        if self.lies(Lie::Accomplice) {
            body.provider = wallet(6).address();
            return vec![wallet(6).node_signer().sign(body)];
        }
        match self.past.first() {
            Some(first) if self.lies(Lie::SameRecord) => first.records.clone(),
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
            previous_report: self.past.last().map(|past| &past.report),
            commits: &self.said(),
            entries,
            missing: &missing,
            holdout_rows: &drawn,
            result,
            verified_work: &work,
        })
        .unwrap();
        report.holdout.seed = seed;
        if self.lies(Lie::WrongPayout) {
            let line = &mut report.lines[0];
            line.payout = line.payout.plus(Amount::from_units(1)).unwrap();
        }
        report
    }

    fn post_to_ledger(&self) {
        let report = &self.past.last().unwrap().report;
        if report.outcome != RoundOutcome::Settled || self.lies(Lie::NeverPosted) {
            return;
        }
        let mut before = self.past.iter().rev().skip(1).map(|past| &past.report);
        let before = before.find(|report| report.outcome == RoundOutcome::Settled);
        let mut settlement = Settlement {
            task: self.spec.id(),
            payout: report.settlement_id,
            round: report.scope.round,
            report: report.digest(),
            previous_root: before.map_or(Digest::default(), |report| report.root),
            root: report.root,
            data_total: report.data_total,
            infrastructure_total: report.infrastructure_total,
        };
        if self.lies(Lie::OtherReport) {
            settlement.report = Digest([1; 32]);
        }
        self.ledger.post(&wallet(2), &settlement).unwrap();
        if self.lies(Lie::NoReport) {
            let round = RoundNumber(99);
            let payout = Report::settlement_id(self.spec.id(), round);
            let previous_root = settlement.root;
            let more = Settlement { round, payout, previous_root, ..settlement };
            self.ledger.post(&wallet(2), &more).unwrap();
        }
        if self.is_final_at_once() {
            while self.ledger.finalize(&wallet(2), self.spec.id()).unwrap() == 0 {}
            self.prove_debits(report);
        }
    }

    /// Proves the round's debits to the ledger, which takes them from the bonds.
    fn prove_debits(&self, report: &Report) {
        let tree = claim_tree(&report.account_totals).unwrap();
        for line in report.lines.iter().filter(|line| !line.debit.is_zero()) {
            let (task, account) = (self.spec.id(), line.account);
            let totals = report.account_totals[&account].claim_totals().unwrap();
            let proof = tree.proof(account, totals).unwrap();
            self.ledger.claim(&wallet(2), &Claim { task, account, totals, proof }).unwrap();
        }
    }

    /// Without a challenge window every settlement is final when it is posted; with one, none
    /// becomes final during a test.
    fn is_final_at_once(&self) -> bool {
        self.spec.budget.challenge_ms == 0
    }

    fn proof(&self, account: Address) -> Answer {
        let root = self.ledger.task(self.spec.id()).unwrap().unwrap().root;
        let last = self.past.iter().rposition(|past| past.report.root == root);
        let shown = last.map(|last| last - usize::from(self.lies(Lie::OldProof)));
        let Some(past) = shown.and_then(|shown| self.past.get(shown)) else {
            return refuse(ErrorCode::NotYetPublic);
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
