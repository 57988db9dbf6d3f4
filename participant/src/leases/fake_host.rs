//! A coordinator of one order for tests, behind real HTTP and beside a real ledger in memory. It
//! applies defaults at once: a phase ends as soon as a test asks for it, or by its deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use florin_compute::{
    Checkpoint, ComputeAction, ComputeJob, ComputeOrder, LeaseOpening, LeaseRecord, OrderChanges,
    OrderMoney, OrderView, Phase, RecordedAction, RecordedLease, Secret, SignedLeaseAction,
    beacon_commitment, segment_leaf,
};
use florin_learning::data::canonical_bytes;
use florin_learning::graph::{BufferPolicy, read_archive, split};
use florin_learning::{Dataset, tensors};
use florin_ledger::{EmbeddedChain, Genesis, Ledger, Settlement, Terms, lease_claims, lease_task};
use florin_protocol::{
    Amount, Blob, Canonical, ChainId, Digest, ErrorCode, LedgerInfo, MarketInfo, Micro,
    ModelArchitecture, ModelLoss, NodeSigner, Rejection, TaskSpec, Timestamp, Training,
    WalletSigner, blob_digest,
};

use crate::testing::{fln, wallet};

/// Challenge window of the order's task.
pub(super) const CHALLENGE_MS: u64 = 1_000;
/// Rows of the job.
const ROWS: u32 = 40;
const BEACON: Digest = Digest([79; 32]);

/// The wallets of the parties.
pub(super) const RENTER: u8 = 1;
pub(super) const HOST: u8 = 2;
pub(super) const REFEREE: u8 = 3;

/// The clock of host and ledger: the system's, and what a test adds.
#[derive(Clone, Default)]
pub(super) struct HostClock(Arc<AtomicU64>);

impl HostClock {
    pub(super) fn now(&self) -> Timestamp {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        Timestamp(now + self.0.load(Ordering::Relaxed))
    }

    pub(super) fn advance(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::Relaxed);
    }
}

/// The order and its job, with their blobs.
pub(super) struct HostedOrder {
    pub(super) order: ComputeOrder,
    job: ComputeJob,
    blobs: BTreeMap<Digest, Vec<u8>>,
}

/// A misbehaviour of the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum HostFault {
    /// Every request fails.
    Down,
    /// The settlement waits.
    HeldSettlement,
    /// The order is no longer listed.
    Hidden,
    /// The blobs of the job are missing.
    LostBlobs,
    /// Refused and unopened orders of others are listed before the order.
    Junk,
    /// The record has actions that no account signed.
    ForgedRecord,
    /// Each checkpoint is refused for now: no disk space, for example.
    LostCheckpoints,
    /// The lease takes no checkpoints.
    NoCheckpoints,
}

/// The coordinator.
pub(super) struct FakeHost {
    pub(super) ledger: Arc<EmbeddedChain>,
    pub(super) clock: HostClock,
    node: NodeSigner,
    hosted: HostedOrder,
    pub(super) lease: RecordedLease,
    records: Vec<LeaseRecord>,
    states: BTreeMap<Digest, Vec<u8>>,
    /// The states that the provider left, with their salts.
    pub(super) checkpoints: BTreeMap<Digest, Digest>,
    money: OrderMoney,
    /// The deadline of the bids is over once as many accounts have acted.
    pub(super) parties: usize,
    pub(super) faults: BTreeSet<HostFault>,
}

/// A response, or a rejection.
type HostResponse = Result<Vec<u8>, Rejection>;

fn json(value: &impl serde::Serialize) -> HostResponse {
    Ok(serde_json::to_vec(value).unwrap())
}

fn rejected(code: ErrorCode, why: &dyn std::fmt::Display) -> Rejection {
    Rejection::new(code, why.to_string())
}

/// Replaces the action of a record, but not its signature.
fn forge(record: &mut LeaseRecord) {
    if let RecordedAction::Signed(signed) = &mut record.action {
        signed.body.action = ComputeAction::SealBid(BEACON);
    }
}

impl HostedOrder {
    /// A softmax regression: 40 steps in eight segments of five.
    pub(super) fn new(market: florin_protocol::MarketId) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../learning/data/graphs");
        let (graph, weights) = read_archive(&folder.join("softmax.pt2")).unwrap();
        let parts = split(&graph, &weights, &["*".to_owned()], BufferPolicy::Average).unwrap();
        let mut blobs = BTreeMap::new();
        let mut blob = |bytes: Vec<u8>| {
            let blob = Blob { digest: blob_digest(&bytes), bytes: bytes.len() as u64 };
            blobs.insert(blob.digest, bytes);
            blob
        };
        let loss = ModelLoss::CrossEntropy { label_smoothing: Micro::ZERO };
        let output = florin_work::GraphOutput { outputs: 3, targets: 0, loss };
        let declared = florin_work::declared_graph(&parts, output);
        blob(parts.graph.clone());
        parts.frozen.clone().map(&mut blob);
        let model = florin_work::model_spec(&ModelArchitecture::Graph(declared.clone()));
        let features = (0..ROWS * 8).map(|at| at as f32 / 400.0).collect();
        let rows = Dataset::new(features, (0..ROWS).map(|at| at % 3).collect(), 8, 3).unwrap();
        let job = ComputeJob {
            graph: declared,
            start: blob(tensors::encode(&model, &parts.initial).unwrap()),
            rows: blob(canonical_bytes(&rows)),
            row_count: ROWS.into(),
            training: Training { epochs: 4, batch: 4, ..TaskSpec::example().training },
            virtual_workers: 4,
            seed: 5,
        };
        let start = Digest(florin_work::initial_state(&job, &parts.initial).digest());
        let order = order(market, job.digest(), start);
        Self { order, job, blobs }
    }
}

fn order(market: florin_protocol::MarketId, job: Digest, start: Digest) -> ComputeOrder {
    let example = ComputeOrder::example();
    let class = florin_work::compute_class(&super::toy_engine::ToyEngine::default()).unwrap();
    ComputeOrder {
        market,
        renter: wallet(RENTER).address(),
        referee: wallet(REFEREE).address(),
        job,
        class,
        start,
        segments: 8,
        steps: 5,
        price_max: fln("40"),
        step_us_max: 1_000_000,
        deposits: florin_compute::Deposits {
            bid_bond: fln("4"),
            stake: fln("120"),
            audit_bond: fln("8"),
            default_fine: fln("4"),
        },
        audit: florin_compute::AuditTerms {
            share: 250_000,
            auditors: 2,
            colluding: 0,
            fee: fln("1"),
        },
        windows: florin_compute::Windows {
            bid: 20_000,
            reveal: 20_000,
            fund: 20_000,
            slack: 2_000_000,
            segment: 20_000,
            draw: 20_000,
            audit: 20_000,
            answer: 20_000,
        },
        ..example
    }
}

impl FakeHost {
    /// Opens the order on a new ledger, and serves it. Returns the URL.
    pub(super) fn start(parties: usize) -> (Arc<Mutex<Self>>, String) {
        let clock = HostClock::default();
        let node = NodeSigner::from_seed(&[42; 32]);
        let genesis = Genesis {
            chain_id: ChainId(31_415),
            operator: wallet(HOST).address(),
            operator_key: node.key(),
            allocations: (1..10).map(|number| (wallet(number).address(), fln("1000"))).collect(),
            created: Timestamp(1),
        };
        let of_ledger = clock.clone();
        let ledger =
            EmbeddedChain::in_memory(&genesis, node.clone(), Arc::new(move || of_ledger.now()));
        let ledger = Arc::new(ledger.unwrap());
        let hosted = HostedOrder::new(ledger.market());
        let order = hosted.order.clone();
        let host = wallet(HOST);
        let opened = clock.now();
        let terms =
            Terms::from_order(&order, order.market, host.address(), CHALLENGE_MS, opened).unwrap();
        ledger.open_task(&wallet(RENTER), &terms).unwrap();
        ledger.bond(&host, terms.task, order.escrow().unwrap()).unwrap();
        let beacon = beacon_commitment(order.id(), BEACON);
        let lease = RecordedLease::open(LeaseOpening { order, opened, beacon }).unwrap();
        let own = Self {
            ledger,
            clock,
            node,
            hosted,
            lease,
            records: Vec::new(),
            states: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            money: OrderMoney::Locked,
            parties,
            faults: BTreeSet::new(),
        };
        let own = Arc::new(Mutex::new(own));
        let url = serve(Arc::clone(&own));
        (own, url)
    }

    fn has(&self, fault: HostFault) -> bool {
        self.faults.contains(&fault)
    }

    fn record(&mut self, action: RecordedAction) -> Result<(), Rejection> {
        let record = LeaseRecord { at: self.clock.now().max(self.lease.last()), action };
        let applied = self.lease.apply(&record);
        applied.map_err(|error| rejected(ErrorCode::InvalidTask, &error))?;
        self.records.push(record);
        Ok(())
    }

    /// Ends phases that are over, and settles a lease that is over.
    fn tick(&mut self) {
        let (phase, deadline) = self.lease.lease().phase();
        let is_bid = phase == Phase::Bidding && self.records.len() >= self.parties;
        if is_bid {
            let left = deadline.ms_since(self.clock.now()).saturating_add(1);
            self.clock.advance(left);
        }
        if phase == Phase::Delivered {
            self.record(RecordedAction::Beacon(BEACON)).unwrap();
        } else if phase != Phase::Over && self.clock.now() > deadline {
            let is_used = self.use_checkpoints().is_ok();
            if !is_used {
                self.record(RecordedAction::Expired).unwrap();
            }
        } else if phase == Phase::Over
            && self.money == OrderMoney::Locked
            && !self.has(HostFault::HeldSettlement)
        {
            self.settle();
            self.money = OrderMoney::Settled;
        }
    }

    /// Uses the checkpoints that the provider left, if they are those of its leaves.
    fn use_checkpoints(&mut self) -> Result<(), Rejection> {
        let lease = self.lease.lease();
        let missing = || rejected(ErrorCode::NotFound, &"no such checkpoint");
        let provider = lease.award().ok_or_else(missing)?.provider;
        let mut all = Vec::new();
        for segment in lease.checkpoints_needed() {
            let leaf = lease.leaves()[segment as usize];
            let secrets =
                self.checkpoints.iter().map(|(end, salt)| Secret { end: *end, salt: *salt });
            let mut secrets = secrets
                .filter(|secret| segment_leaf(lease.id(), provider, segment, *secret) == leaf);
            all.push(Checkpoint { segment, secret: secrets.next().ok_or_else(missing)? });
        }
        self.record(RecordedAction::Checkpoints(all))
    }

    /// Posts the settlement, and proves its debits; the owners claim their pay.
    fn settle(&self) {
        let (host, ledger) = (wallet(HOST), &self.ledger);
        let lease = self.lease.lease();
        let task = lease_task(lease.order());
        if let Some(settlement) = Settlement::from_lease(lease).unwrap() {
            ledger.post(&host, &settlement).unwrap();
            self.clock.advance(CHALLENGE_MS + 1);
            ledger.finalize(&host, task).unwrap();
            let debits = lease_claims(lease).into_iter();
            for claim in debits.filter(|claim| claim.totals.paid.is_zero()) {
                ledger.claim(&host, &claim).unwrap();
            }
        }
        ledger.close(&host, task).unwrap();
        self.clock.advance(2 * CHALLENGE_MS + 1);
    }

    fn view(&self) -> OrderView {
        let lease = self.lease.lease();
        let (phase, deadline) = lease.phase();
        OrderView {
            id: lease.order().id(),
            order: lease.order().clone(),
            missing: Vec::new(),
            refused: None,
            opened: Some(self.lease.opening().opened),
            beacon: self.lease.opening().beacon,
            records: self.lease.length(),
            phase,
            deadline,
            provider: lease.award().map(|award| award.provider),
            delivered: lease.leaves().len() as u32,
            outcome: lease.outcome(),
            money: self.money,
        }
    }

    /// The list of orders: the newest first.
    fn views(&self) -> Vec<OrderView> {
        let own = self.view();
        let junk = |number: u64| {
            let order = ComputeOrder { nonce: 10_000 + number, ..own.order.clone() };
            let (opened, records, phase) = (None, 0, Phase::Over);
            let refused = number.is_multiple_of(2).then(|| "no blobs".to_owned());
            let id = order.id();
            OrderView { id, order, opened, records, phase, refused, ..own.clone() }
        };
        let count = if self.has(HostFault::Junk) { 256 } else { 0 };
        (0..count).map(junk).chain([own.clone()]).collect()
    }

    fn listed(&self) -> Vec<OrderView> {
        if self.has(HostFault::Hidden) { Vec::new() } else { self.views() }
    }

    fn respond(&mut self, method: &str, (path, salt): (&str, &str), body: &[u8]) -> HostResponse {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let parts: Vec<&str> = path.split('/').collect();
        let unknown = || rejected(ErrorCode::NotFound, &path);
        let digest = |text: &str| text.parse::<Digest>().map_err(|_| unknown());
        match (method, parts.as_slice()) {
            ("GET", ["market"]) => json(&MarketInfo {
                version: "test".to_owned(),
                market: self.ledger.market(),
                coordinator: wallet(HOST).address(),
                node_key: self.node.key(),
                ledger: LedgerInfo::Embedded,
                now: self.clock.now(),
            }),
            ("GET", ["orders"]) => json(&self.listed()),
            ("GET", ["orders", "changes"]) => {
                let orders = self.listed();
                json(&OrderChanges { run: 1, is_whole: true, orders, ..OrderChanges::default() })
            }
            ("GET", ["orders", _]) => json(&self.view()),
            ("GET", ["orders", _, "job"]) => json(&self.hosted.job),
            ("GET", ["orders", _, "records"]) => {
                let after = query.split('&').find_map(|part| part.strip_prefix("after="));
                let after: usize = after.and_then(|after| after.parse().ok()).unwrap();
                let mut records = self.records.get(after..).unwrap_or_default().to_vec();
                if self.has(HostFault::ForgedRecord) {
                    records.iter_mut().for_each(forge);
                }
                json(&records)
            }
            ("GET", ["orders", _, "blobs", _]) if self.has(HostFault::LostBlobs) => Err(unknown()),
            ("GET", ["orders", _, "blobs", blob]) => {
                self.hosted.blobs.get(&digest(blob)?).cloned().ok_or_else(unknown)
            }
            ("GET", ["orders", _, "states", state]) => {
                self.states.get(&digest(state)?).cloned().ok_or_else(unknown)
            }
            ("PUT", ["orders", _, "states", state]) => {
                self.states.insert(digest(state)?, body.to_vec());
                Ok(Vec::new())
            }
            ("PUT", ["orders", ..]) if self.has(HostFault::LostCheckpoints) => {
                Err(rejected(ErrorCode::LimitReached, &"no place"))
            }
            ("PUT", ["orders", ..]) if self.has(HostFault::NoCheckpoints) => {
                Err(rejected(ErrorCode::LeaseRefused, &"no checkpoints"))
            }
            ("PUT", ["orders", _, "checkpoints", state]) => {
                let (state, salt) = (digest(state)?, digest(salt)?);
                self.states.insert(state, body.to_vec());
                self.checkpoints.insert(state, salt);
                Ok(Vec::new())
            }
            ("POST", ["orders", _, "actions"]) => self.act(body),
            _ => Err(unknown()),
        }
    }

    fn act(&mut self, body: &[u8]) -> HostResponse {
        let action: SignedLeaseAction = serde_json::from_slice(body).unwrap();
        let by = action.body.by;
        let served = match action.body.action {
            ComputeAction::Serve { start, .. } => Some(start),
            ComputeAction::OpenLeaf { segment: 7, secret, .. } => Some(secret.end),
            _ => None,
        };
        if served.is_some_and(|state| !self.states.contains_key(&state)) {
            return Err(rejected(ErrorCode::NotFound, &"the state was not uploaded"));
        }
        let mut next = self.lease.lease().clone();
        let applied = next.apply(by, &action.body.action, self.clock.now());
        applied.map_err(|error| rejected(ErrorCode::InvalidTask, &error))?;
        let needed = next.books().bond_needed(by).unwrap();
        let bond = self.ledger.bond_of(lease_task(next.order()), by).unwrap().amount;
        if bond < needed {
            return Err(rejected(ErrorCode::BondTooSmall, &"deposit first"));
        }
        self.record(RecordedAction::Signed(Box::new(action)))?;
        Ok(Vec::new())
    }

    /// The balance of a wallet without its bonds.
    pub(super) fn balance(&self, number: u8) -> Amount {
        self.ledger.balance(wallet(number).address()).unwrap()
    }
}

/// Serves on a free port until the process ends. Returns the URL.
fn serve(host: Arc<Mutex<FakeHost>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let host = Arc::clone(&host);
            std::thread::spawn(move || stream.map(|stream| answer(&stream, &host)));
        }
    });
    url
}

fn answer(stream: &TcpStream, host: &Mutex<FakeHost>) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let mut words = line.split_whitespace();
    let method = words.next().unwrap().to_owned();
    let path = words.next().unwrap().trim_start_matches("/v1/").to_owned();
    let (mut length, mut salt) = (0, String::new());
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        let header = header.trim().to_lowercase();
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if let Some(value) = header.strip_prefix("state-salt:") {
            value.trim().clone_into(&mut salt);
        }
        if header.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let mut host = host.lock().unwrap();
    let response = match host.has(HostFault::Down) {
        true => Err(rejected(ErrorCode::StorageFull, &"down")),
        false => {
            host.tick();
            host.respond(&method, (&path, &salt), &body)
        }
    };
    drop(host);
    let (status, bytes) = match response {
        Ok(bytes) if bytes.is_empty() => (204, bytes),
        Ok(bytes) => (200, bytes),
        Err(rejection) if rejection.code == ErrorCode::StorageFull => {
            (507, json(&rejection).unwrap())
        }
        Err(rejection) => (409, json(&rejection).unwrap()),
    };
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        bytes.len()
    );
    let mut stream = stream;
    let _ = stream.write_all(&[head.as_bytes(), &bytes].concat());
}
