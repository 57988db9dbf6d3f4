//! A whole small market for tests: the real ledger on a temporary file, and a coordinator of one
//! page behind real HTTP. It does what an honest one does, one task at a time and without
//! deadlines, unless a test asks it to lie.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use florin_learning::data::canonical_bytes;
use florin_learning::{Dataset, EngineKind, engine};
use florin_ledger::{Genesis, Ledger, LocalChain, Settlement, Terms};
use florin_protocol::{
    AbandonReason, Address, Aggregation, Amount, BlobRequest, Budget, Canonical, ChainId,
    ClaimProof, Closing, Code, Commit, DataSchema, Digest, Enrol, Entry, Estimator, Holdout,
    Market as MarketId, MarketInfo, Micro, Model, NodeSigner, Offer, Phase, Receipt, Registration,
    Rejection, Report, Role, Round, RoundRules, Scope, Signed, Signer, TaskId, TaskSpec,
    TaskSummary, TaskView, Tick, Training, UpdateHeader, WorkOrder, WorkQuery, WorkRecord,
    WorkVerdict, blob_digest, close_round, totals_tree,
};
use florin_work::{Inputs, carry_out, initial_model};
use serde::Serialize;

use crate::client::{Client, ClientConfig};
use crate::secret::Secret;
use crate::wallet::Wallet;

pub(crate) fn wallet(number: u8) -> Wallet {
    Wallet::from_key(&Secret::new(format!("{number:064x}"))).unwrap()
}

pub(crate) fn fln(text: &str) -> Amount {
    text.parse().unwrap()
}

/// Three overlapping clusters of four features, row by row from a stream of numbers.
pub(crate) fn rows(count: usize, seed: u64) -> Dataset {
    let mut hasher = blake3::Hasher::new_derive_key("florin test rows");
    hasher.update(&seed.to_le_bytes());
    let mut bytes = vec![0; count * 4];
    hasher.finalize_xof().fill(&mut bytes);
    let mut features = Vec::new();
    let mut labels = Vec::new();
    for (row, noise) in bytes.chunks(4).enumerate() {
        let label = row % 3;
        labels.push(label as u32);
        for (column, byte) in noise.iter().enumerate() {
            let centre = if column == label { 1.0 } else { 0.0 };
            features.push(centre + f32::from(*byte) / 255.0);
        }
    }
    Dataset::new(features, labels, 4, 3).unwrap()
}

/// A task of three rounds for one participant. Its digests are those of [`rows`] and of seed 1.
pub(crate) fn spec() -> TaskSpec {
    spec_in(MarketId { chain: ChainId(31_415), genesis: Digest([7; 32]) }, 1)
}

fn spec_in(market: MarketId, cohort: u32) -> TaskSpec {
    let model = Model::Softmax { inputs: 4, classes: 3 };
    TaskSpec {
        version: 1,
        market,
        buyer: wallet(1).address(),
        coordinator: wallet(2).address(),
        arbiter: wallet(3).address(),
        name: "clusters".to_owned(),
        salt: 0,
        base_model: blob_digest(&initial_model(&model, 1).unwrap()),
        model,
        data: DataSchema { width: 4, classes: 3 },
        holdout: Holdout { digest: blob_digest(&canonical_bytes(&rows(60, 99))), rows: 60 },
        training: Training {
            epochs: 2,
            batch: 8,
            learning_rate: Micro(100_000),
            momentum: Micro::ZERO,
            weight_decay: Micro::ZERO,
            clip_gradient: Micro::ZERO,
            fedprox: Micro::ZERO,
        },
        rounds: RoundRules {
            count: 3,
            cohort_min: 1,
            cohort_target: cohort,
            over_selection: 0,
            enrol_ms: 60_000,
            train_ms: 60_000,
            reveal_ms: 60_000,
            value_ms: 60_000,
            delta_norm_max: Micro(5_000_000),
            aggregation: Aggregation::Mean,
        },
        estimator: Estimator::Path { nodes: 3 },
        budget: Budget {
            data: fln("30"),
            infrastructure: fln("6"),
            per_nat_max: fln("20"),
            withheld: Micro(500_000),
            bond_min: fln("1"),
            bond_per_row: fln("0.05"),
            debit_max: fln("1"),
            stake_min: fln("5"),
            per_unit: fln("0.1"),
            challenge_ms: 0,
            unbond_ms: 0,
        },
        expires: Tick::NEVER,
    }
}

/// How the coordinator lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// Receipts are signed by somebody else.
    ForgedReceipt,
    /// Receipts are for another update.
    OtherReceipt,
    /// The report leaves a receipted update out.
    LostUpdate,
    /// The report pays more than the scores earn.
    WrongPayout,
    /// The report states a better score, and pays for it.
    WrongScore,
    /// The second offer begins with another model.
    WrongBase,
    /// Blobs have a flipped byte.
    WrongBytes,
    /// Every request is answered with "later".
    Away,
}

struct Past {
    offer: Offer,
    report: Report,
    headers: Vec<Signed<UpdateHeader>>,
    records: Vec<Signed<WorkRecord>>,
}

struct State {
    spec: TaskSpec,
    node: NodeSigner,
    ledger: Arc<LocalChain>,
    phase: Phase,
    sequence: u64,
    enrolled: Vec<Address>,
    registrations: BTreeMap<(Address, Role), Registration>,
    offer: Option<Offer>,
    commits: BTreeMap<Address, Commit>,
    updates: BTreeMap<Address, (Signed<UpdateHeader>, Receipt)>,
    past: Vec<Past>,
    blobs: BTreeMap<Digest, Vec<u8>>,
    order: Option<WorkOrder>,
    wants_provider: bool,
    lies: Vec<Lie>,
    heard: Vec<String>,
}

/// The market: dropped, it is gone.
pub(crate) struct Market {
    pub(crate) ledger: Arc<LocalChain>,
    pub(crate) task: TaskId,
    pub(crate) spec: TaskSpec,
    pub(crate) url: String,
    state: Arc<(Mutex<State>, Condvar)>,
    pub(crate) folder: tempfile::TempDir,
}

impl Market {
    /// Opens a market with one funded task for `cohort` participants. Wallets 1 to 9 have 1,000 FLN
    /// each; 1 is the buyer, 2 the coordinator, 3 the arbiter.
    pub(crate) fn begin(cohort: u32, wants_provider: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = NodeSigner::from_seed(&[42; 32]);
        let genesis = Genesis {
            chain_id: ChainId(31_415),
            operator: wallet(2).address(),
            operator_key: node.key(),
            allocations: (1..10).map(|n| (wallet(n).address(), fln("1000"))).collect(),
            created: Tick(1),
        };
        let path = folder.path().join("ledger");
        let market = LocalChain::create(&path, &genesis).unwrap();
        let ticks = AtomicU64::new(10);
        let clock = Arc::new(move || Tick(ticks.fetch_add(1, Ordering::Relaxed)));
        let ledger = Arc::new(LocalChain::open(&path, node.clone(), clock).unwrap());
        let spec = spec_in(market, cohort);
        ledger.open_task(&wallet(1), &Terms::of(&spec)).unwrap();
        let model = initial_model(&spec.model, 1).unwrap();
        let holdout = canonical_bytes(&rows(60, 99));
        let state = State {
            spec: spec.clone(),
            node,
            ledger: Arc::clone(&ledger),
            phase: Phase::Enrolling,
            sequence: 1,
            enrolled: Vec::new(),
            registrations: BTreeMap::new(),
            offer: None,
            commits: BTreeMap::new(),
            updates: BTreeMap::new(),
            past: Vec::new(),
            blobs: [model, holdout].into_iter().map(|b| (blob_digest(&b), b)).collect(),
            order: None,
            wants_provider,
            lies: Vec::new(),
            heard: Vec::new(),
        };
        let state = Arc::new((Mutex::new(state), Condvar::new()));
        let url = serve(Arc::clone(&state));
        Self { ledger, task: spec.id(), spec, url, state, folder }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&ClientConfig { url: self.url.clone(), pin: None }).unwrap()
    }

    pub(crate) fn lie(&self, lie: Lie) {
        self.state.0.lock().unwrap().lies.push(lie);
    }

    pub(crate) fn be_honest(&self) {
        self.state.0.lock().unwrap().lies.clear();
    }

    /// How many requests began so: `POST tasks/…/commits`.
    pub(crate) fn heard(&self, method: &str, end: &str) -> usize {
        let state = self.state.0.lock().unwrap();
        state.heard.iter().filter(|line| line.starts_with(method) && line.ends_with(end)).count()
    }
}

type Answer = Result<Vec<u8>, Rejection>;

fn json(value: &impl Serialize) -> Answer {
    Ok(serde_json::to_vec(value).unwrap())
}

fn refuse<T>(code: Code) -> Result<T, Rejection> {
    Err(Rejection::new(code, "as the test has it"))
}

/// Serves on a free port, a thread for each connection, until the program ends.
fn serve(state: Arc<(Mutex<State>, Condvar)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let state = Arc::clone(&state);
            std::thread::spawn(move || stream.map(|stream| converse(&stream, &state)));
        }
    });
    url
}

fn converse(stream: &TcpStream, state: &(Mutex<State>, Condvar)) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let mut words = line.split_whitespace();
    let method = words.next().unwrap().to_owned();
    let path = words.next().unwrap().trim_start_matches("/v1/").to_owned();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        let header = header.trim().to_lowercase();
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if header.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let (status, answer) = match answer(&method, &path, &body, state) {
        Ok(bytes) if bytes.is_empty() => (204, bytes),
        Ok(bytes) => (200, bytes),
        Err(rejection) if rejection.code == Code::StorageFull => (507, json(&rejection).unwrap()),
        Err(rejection) => (409, json(&rejection).unwrap()),
    };
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        answer.len()
    );
    let mut stream = stream;
    let _ = stream.write_all(&[head.as_bytes(), &answer].concat());
}

fn answer(method: &str, path: &str, body: &[u8], state: &(Mutex<State>, Condvar)) -> Answer {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let number = |key: &str| {
        query.split('&').find_map(|part| part.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
    };
    let (lock, changed) = state;
    let mut state = lock.lock().unwrap();
    state.heard.push(format!("{method} {path}"));
    if state.lies.contains(&Lie::Away) {
        return refuse(Code::StorageFull);
    }
    if let (Some(after), Some(wait_ms)) = (number("after"), number("wait_ms")) {
        let waiting = |state: &mut State| state.sequence <= after;
        let wait = Duration::from_millis(wait_ms);
        state = changed.wait_timeout_while(state, wait, waiting).unwrap().0;
    }
    if let (None, Some(wait_ms)) = (number("after"), number("wait_ms")) {
        let waiting = |state: &mut State| state.order.is_none() && state.phase != Phase::Done;
        let wait = Duration::from_millis(wait_ms);
        state = changed.wait_timeout_while(state, wait, waiting).unwrap().0;
    }
    let before = state.sequence;
    let parts: Vec<&str> = path.split('/').collect();
    let answer = match method {
        "GET" => state.get(&parts),
        _ => state.post(&parts, body),
    };
    if state.sequence != before {
        changed.notify_all();
    }
    answer
}

impl State {
    fn get(&self, parts: &[&str]) -> Answer {
        let round = |text: &str| text.parse::<usize>().ok()?.checked_sub(1);
        let past = |text: &str| match round(text).and_then(|round| self.past.get(round)) {
            Some(past) => Ok(past),
            None => refuse(Code::NotYetPublic),
        };
        match parts {
            ["market"] => json(&MarketInfo {
                version: "test".to_owned(),
                market: self.spec.market,
                coordinator: self.spec.coordinator,
                node_key: self.node.key(),
                now: Tick(5),
            }),
            ["registrations", who] => {
                let who: Address = who.parse().unwrap();
                let known = self.registrations.values().find(|known| known.wallet == who);
                known.map_or_else(|| refuse(Code::NotRegistered), json)
            }
            ["tasks"] => json(&vec![self.summary()]),
            ["tasks", id] if *id == self.spec.id().to_string() => json(&self.view()),
            ["tasks", _] => refuse(Code::UnknownTask),
            ["tasks", _, "rounds", r, "report"] => json(&self.node.sign(past(r)?.report.clone())),
            ["tasks", _, "rounds", r, "offer"] => json(&self.node.sign(past(r)?.offer.clone())),
            ["tasks", _, "rounds", r, "headers"] => json(&past(r)?.headers),
            ["tasks", _, "rounds", r, "records"] => json(&past(r)?.records),
            ["tasks", _, "proof", who] => self.proof(who.parse().unwrap()),
            ["blobs", digest] => self.blob(digest.parse().unwrap(), false),
            _ => refuse(Code::NotFound),
        }
    }

    fn post(&mut self, parts: &[&str], body: &[u8]) -> Answer {
        let read = |_: serde_json::Error| Rejection::new(Code::Malformed, "not JSON");
        match parts {
            ["registrations"] => {
                let said: Registration = serde_json::from_slice(body).map_err(read)?;
                said.verify(self.spec.market, Tick(5)).unwrap();
                self.registrations.insert((said.wallet, said.role), said);
            }
            ["tasks", _, "enrol"] => {
                let said: Signed<Enrol> = serde_json::from_slice(body).map_err(read)?;
                self.enrol(said.body.sender);
            }
            ["tasks", _, "commits"] => {
                let said: Signed<Commit> = serde_json::from_slice(body).map_err(read)?;
                self.commit(&said.body)?;
            }
            ["tasks", _, "updates"] => return self.update(body),
            ["work", "next"] => {
                let said: Signed<WorkQuery> = serde_json::from_slice(body).map_err(read)?;
                assert!(self.ledger.pledged(said.body.task, said.body.provider).unwrap());
                return match &self.order {
                    Some(order) => json(&self.node.sign(order.clone())),
                    None => Ok(Vec::new()),
                };
            }
            ["work", "blob"] => {
                let said: Signed<BlobRequest> = serde_json::from_slice(body).map_err(read)?;
                return self.blob(said.body.digest, true);
            }
            ["work"] => {
                let said: Signed<WorkRecord> = serde_json::from_slice(body).map_err(read)?;
                return self.record(&said);
            }
            _ => return refuse(Code::NotFound),
        }
        Ok(Vec::new())
    }

    fn lies(&self, lie: Lie) -> bool {
        self.lies.contains(&lie)
    }

    fn change(&mut self, phase: Phase) {
        self.phase = phase;
        self.sequence += 1;
    }

    fn scope(&self) -> Scope {
        let round = Round(self.past.len() as u32 + 1);
        Scope { market: self.spec.market, task: self.spec.id(), round }
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
        let round = self.offer.as_ref().map_or(Round(reported.max(1)), |offer| offer.scope.round);
        TaskView {
            sequence: self.sequence,
            now: Tick(5),
            id: self.spec.id(),
            spec: self.spec.clone(),
            phase: self.phase,
            round,
            reported,
            finalised: reported,
            enrolled: self.enrolled.len() as u32,
            committed: self.commits.len() as u32,
            revealed: self.updates.len() as u32,
            offer: self.offer.clone().map(|offer| self.node.sign(offer)),
            model: self.model(),
            wanted: Vec::new(),
            holdout_public: self.phase == Phase::Done,
        }
    }

    fn model(&self) -> Digest {
        self.past.last().map_or(self.spec.base_model, |past| past.report.model)
    }

    fn blob(&self, digest: Digest, order: bool) -> Answer {
        let hidden = digest == self.spec.holdout.digest && self.phase != Phase::Done;
        let Some(bytes) = self.blobs.get(&digest) else {
            return refuse(Code::NotFound);
        };
        if hidden && !order {
            return refuse(Code::NotYetPublic);
        }
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
        if self.phase == Phase::Enrolling
            && self.enrolled.len() as u32 == self.spec.rounds.cohort_target
        {
            self.open();
        }
    }

    fn open(&mut self) {
        let before = self.past.last().map(|past| &past.report);
        let pool = self.spec.pool_of_round(self.scope().round, before).unwrap();
        let lie = self.lies(Lie::WrongBase) && before.is_some();
        self.offer = Some(Offer {
            scope: self.scope(),
            base_model: if lie { self.spec.base_model } else { self.model() },
            previous: before.map_or(Digest(self.spec.id().0), Report::digest),
            cohort: self.enrolled.clone(),
            opened: Tick(5),
            commit_by: Tick(6),
            reveal_by: Tick(7),
            pool,
        });
        self.commits.clear();
        self.updates.clear();
        self.change(Phase::Committing);
    }

    fn commit(&mut self, said: &Commit) -> Result<(), Rejection> {
        match self.commits.get(&said.sender) {
            Some(known) if known == said => return Ok(()),
            Some(_) => return refuse(Code::Conflicting),
            None if self.phase != Phase::Committing => return refuse(Code::DeadlinePassed),
            None => {}
        }
        assert_eq!(said.offer, self.offer.as_ref().unwrap().digest());
        self.commits.insert(said.sender, said.clone());
        if self.commits.len() == self.enrolled.len() {
            self.change(Phase::Revealing);
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
            Some(_) => return refuse(Code::Conflicting),
            None if self.phase != Phase::Revealing => return refuse(Code::TooEarly),
            None => {
                assert_eq!(self.commits[&sender].commitment, header.body.commitment());
                let update = header.body.digest();
                Receipt { scope: header.body.scope, sender, update, at: Tick(6) }
            }
        };
        self.blobs.insert(header.body.update, bytes.to_vec());
        self.updates.insert(sender, (header, receipt.clone()));
        if self.updates.len() == self.enrolled.len() && self.phase == Phase::Revealing {
            self.value();
        }
        let signer = match self.lies(Lie::ForgedReceipt) {
            true => NodeSigner::from_seed(&[9; 32]),
            false => self.node.clone(),
        };
        let update = if self.lies(Lie::OtherReceipt) { Digest([1; 32]) } else { receipt.update };
        json(&signer.sign(Receipt { update, ..receipt }))
    }

    fn entries(&self) -> Vec<Entry> {
        let bond = |sender| self.ledger.bond_of(self.spec.id(), sender).unwrap().amount;
        let entry = |(header, _): &(Signed<UpdateHeader>, Receipt)| {
            let header = &header.body;
            Entry {
                sender: header.sender,
                header: header.digest(),
                update: header.update,
                rows_declared: header.rows,
                rows_counted: self.spec.rows_counted(header.rows, bond(header.sender)),
                bond: bond(header.sender),
            }
        };
        self.updates.values().map(entry).collect()
    }

    fn value(&mut self) {
        self.change(Phase::Valuing);
        if self.wants_provider {
            self.order = Some(WorkOrder {
                scope: self.scope(),
                base_model: self.model(),
                holdout: self.spec.holdout.digest,
                entries: self.entries(),
                due: Tick::NEVER,
            });
        } else {
            self.settle(&[]);
        }
    }

    fn record(&mut self, said: &Signed<WorkRecord>) -> Answer {
        let key = self.registrations[&(said.body.provider, Role::Provider)].node_key;
        said.verify(key).unwrap();
        if self.order.as_ref().map(Canonical::digest) != Some(said.body.order) {
            return refuse(Code::WorkGone);
        }
        self.order = None;
        let units = said.body.result.valuation.units;
        self.settle(std::slice::from_ref(said));
        json(&WorkVerdict { units })
    }

    fn settle(&mut self, records: &[Signed<WorkRecord>]) {
        let offer = self.offer.take().unwrap();
        let mut entries = self.entries();
        if self.lies(Lie::LostUpdate) {
            entries.remove(0);
        }
        let updates: Vec<Vec<u8>> =
            entries.iter().map(|entry| self.blobs[&entry.update].clone()).collect();
        let inputs = Inputs {
            spec: &self.spec,
            base: &self.blobs[&offer.base_model],
            holdout: &self.blobs[&self.spec.holdout.digest],
            entries: &entries,
            updates: &updates,
        };
        let mut engine = engine(EngineKind::Reference, 1).unwrap();
        let outcome = match entries.is_empty() {
            true => Err(AbandonReason::TooFewUpdates { got: 0, needed: 1 }),
            false => {
                carry_out(&inputs, engine.as_mut()).map_err(|_| AbandonReason::ValuationFailed)
            }
        };
        let mut result = outcome.as_ref().map(|outcome| outcome.result.clone());
        if let (true, Ok(result)) = (self.lies(Lie::WrongScore), &mut result) {
            result.valuation.scores[0].score_nano += 50_000_000;
        }
        let commits: Vec<_> =
            self.commits.values().map(|said| (said.sender, said.commitment)).collect();
        let work: Vec<_> = records
            .iter()
            .map(|r| (r.body.provider, r.body.digest(), r.body.result.valuation.units))
            .collect();
        let before = self.past.last().map(|past| &past.report);
        let mut report = close_round(&Closing {
            spec: &self.spec,
            offer: &offer,
            before,
            commits: &commits,
            entries: &entries,
            missing: &[],
            result: result.as_ref().map_err(|reason| **reason),
            work: &work,
        })
        .unwrap();
        if self.lies(Lie::WrongPayout) {
            let line = &mut report.lines[0];
            line.payout = line.payout.plus(Amount::from_units(1)).unwrap();
        }
        if let Ok(outcome) = outcome {
            self.blobs.insert(outcome.result.model, outcome.model);
        }
        self.post_to_ledger(&report);
        let headers = self.updates.values().map(|(header, _)| header.clone());
        let kept = |h: &Signed<UpdateHeader>| entries.iter().any(|e| e.sender == h.body.sender);
        let headers = headers.filter(kept).collect();
        self.past.push(Past { offer, report, headers, records: records.to_vec() });
        if self.past.len() as u32 == self.spec.rounds.count {
            self.ledger.close(&wallet(2), self.spec.id()).unwrap();
            self.change(Phase::Done);
        } else {
            self.open();
        }
    }

    fn post_to_ledger(&self, report: &Report) {
        let debits = report.lines.iter().filter(|line| !line.debit.is_zero());
        let settlement = Settlement {
            task: self.spec.id(),
            payout: report.payout,
            round: report.scope.round,
            report: report.digest(),
            previous_root: report.root_before,
            root: report.root,
            data_total: report.data_total,
            infrastructure_total: report.infrastructure_total,
            debits: debits.map(|line| (line.account, line.debit)).collect(),
        };
        self.ledger.post(&wallet(2), &settlement).unwrap();
        while self.ledger.finalize(&wallet(2), self.spec.id()).unwrap() == 0 {}
    }

    fn proof(&self, account: Address) -> Answer {
        let Some(past) = self.past.last() else {
            return refuse(Code::NotYetPublic);
        };
        let standing = past.report.standings.get(&account).copied().unwrap_or_default();
        let total = standing.data.plus(standing.infrastructure).unwrap();
        let tree = totals_tree(&past.report.standings).unwrap();
        json(&ClaimProof {
            round: past.report.scope.round,
            root: past.report.root,
            total,
            proof: tree.proof(account, total).unwrap_or_default(),
        })
    }
}
