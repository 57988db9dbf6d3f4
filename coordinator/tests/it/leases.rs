//! Leases of compute at a coordinator with the embedded ledger: from the order to the settlement, also with restarts,
//! missing bytes and hostile requests.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Request, StatusCode};
use florin_compute::*;
use florin_coordinator::host::{HostThreads, ManualClock};
use florin_coordinator::leases::{LEASES_FILE, read_leases};
use florin_coordinator::{App, Clock, Config, DataFolder, Host, HostParts, backup, router};
use florin_learning::checkpoint::TrainingState;
use florin_learning::data::{DataSource, canonical_bytes, load};
use florin_learning::graph::{BufferPolicy, read_archive, split};
use florin_learning::{Dataset, ModelSpec, tensors};
use florin_ledger::{EmbeddedChain, Genesis, Ledger, Terms, lease_task};
use florin_protocol::*;
use florin_work::{LeasedTraining, initial_state};
use tower::ServiceExt;

use crate::support::*;
use crate::test_coordinator::*;

const LENDER: u8 = 1;
const AUDITORS: [u8; 2] = [2, 3];
const CHALLENGE_MS: u64 = 1_000;

/// A job with the bytes of its blobs.
struct TestJob {
    job: ComputeJob,
    blobs: BTreeMap<Digest, Vec<u8>>,
    initial: TrainingState,
}

fn test_job() -> TestJob {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../learning/data/graphs/mlp.pt2");
    let (graph, weights) = read_archive(&archive).unwrap();
    let parts = split(&graph, &weights, &["*".to_owned()], BufferPolicy::Average).unwrap();
    let mut blobs = BTreeMap::new();
    let mut blob = |bytes: Vec<u8>| {
        let blob = Blob { digest: blob_digest(&bytes), bytes: bytes.len() as u64 };
        blobs.insert(blob.digest, bytes);
        blob
    };
    let digits = load(&DataSource::Digits).unwrap().slice(0..80).unwrap();
    let labels = digits.labels().iter().map(|label| label % 3).collect();
    let narrow = digits.features().chunks(digits.width()).flat_map(|row| row[20..28].to_vec());
    let rows = Dataset::new(narrow.collect(), labels, 8, 3).unwrap();
    let shape = |tensor: &florin_learning::TensorSpec| TensorShape {
        name: tensor.name.clone(),
        shape: tensor.shape.iter().map(|&size| size as u32).collect(),
    };
    let graph = GraphModel {
        form: GraphForm::Operators,
        graph: blob(parts.graph.clone()),
        frozen: parts.frozen.clone().map(&mut blob),
        inputs: parts.inputs as u32,
        targets: 0,
        outputs: 3,
        loss: ModelLoss::CrossEntropy { label_smoothing: Micro::ZERO },
        tensors: parts.tensors.iter().map(shape).collect(),
    };
    let read = |digest, _| Ok::<_, Rejection>(blobs_of(&parts, digest));
    let spec = TaskSpec { model: ModelArchitecture::Graph(graph.clone()), ..TaskSpec::example() };
    let declared = florin_work::load_graph(&spec, read).unwrap().unwrap();
    let model = ModelSpec::Graph(Box::new(declared));
    let mut blob = |bytes: Vec<u8>| {
        let blob = Blob { digest: blob_digest(&bytes), bytes: bytes.len() as u64 };
        blobs.insert(blob.digest, bytes);
        blob
    };
    let start = blob(tensors::encode(&model, &parts.initial).unwrap());
    let rows = blob(canonical_bytes(&rows));
    // Twenty steps of four rows.
    let training = Training { epochs: 1, batch: 4, ..TaskSpec::example().training };
    let job =
        ComputeJob { graph, start, rows, row_count: 80, training, virtual_workers: 2, seed: 5 };
    let initial = initial_state(&job, &parts.initial);
    TestJob { job, blobs, initial }
}

fn blobs_of(parts: &florin_learning::graph::GraphParts, digest: Digest) -> Vec<u8> {
    let all = [Some(&parts.graph), parts.frozen.as_ref()];
    all.into_iter().flatten().find(|bytes| blob_digest(bytes) == digest).cloned().unwrap()
}

/// A coordinator with the embedded ledger, under one clock.
struct LeaseMarket {
    chain: Arc<EmbeddedChain>,
    clock: Arc<ManualClock>,
    host: Host,
    running: HostThreads,
    router: axum::Router,
    job: TestJob,
    order: ComputeOrder,
    id: Digest,
}

/// The code of a rejection, which is printed: a failed test shows its messages.
fn rejection(bytes: &[u8]) -> ErrorCode {
    let rejection: Rejection = serde_json::from_slice(bytes).unwrap();
    eprintln!("{rejection}");
    rejection.code
}

fn wallet(n: u8) -> SeededWallet {
    SeededWallet::number(n)
}

fn chain(folder: &Path, clock: &Arc<ManualClock>) -> Arc<EmbeddedChain> {
    let path = folder.join("ledger.redb");
    if !path.exists() {
        let genesis = Genesis {
            chain_id: ChainId(31_337),
            operator: address(COORDINATOR),
            operator_key: node(COORDINATOR).key(),
            allocations: (1..=9)
                .chain([BUYER, COORDINATOR])
                .map(|n| (address(n), fln("1000")))
                .collect(),
            created: clock.now(),
        };
        EmbeddedChain::create(&path, &genesis).unwrap();
    }
    let clock = Arc::clone(clock);
    let time = Arc::new(move || clock.now());
    Arc::new(EmbeddedChain::open(&path, node(COORDINATOR), time).unwrap())
}

impl LeaseMarket {
    /// A coordinator in a folder, with an order that is not opened yet.
    fn open(folder: &Path) -> Self {
        Self::open_at(folder, Timestamp(1_000_000))
    }

    fn open_at(folder: &Path, now: Timestamp) -> Self {
        let clock = Arc::new(ManualClock::new(now));
        std::fs::create_dir_all(folder).unwrap();
        let chain = chain(folder, &clock);
        let copied = Arc::clone(&chain);
        let parts = HostParts {
            ledger: chain.clone(),
            wallet: Arc::new(wallet(COORDINATOR)),
            node: node(COORDINATOR),
            valuers: vec![work_valuer()],
            clock: clock.clone(),
            ledger_endpoint: echo(),
            ledger_copier: Some(Arc::new(move || copied.begin_snapshot())),
        };
        let (host, running) = Host::start(DataFolder::open(folder).unwrap(), parts).unwrap();
        let config = Config::new("127.0.0.1:0".parse().unwrap(), folder.to_owned());
        let (ledger, own) = (chain.clone(), address(COORDINATOR));
        let app = App::new(host.clone(), config, ledger, node(COORDINATOR), own, echo());
        let job = test_job();
        let example = ComputeOrder::example();
        let order = ComputeOrder {
            market: Ledger::market(chain.as_ref()),
            renter: address(BUYER),
            referee: address(ARBITER),
            job: job.job.digest(),
            start: Digest(job.initial.digest()),
            segments: 4,
            steps: 5,
            price_max: Amount::from_units(20_000),
            step_us_max: 1_000,
            deposits: Deposits { stake: Amount::from_units(200_000), ..example.deposits.clone() },
            ..example
        };
        let id = order.id();
        let router = router(app);
        Self { chain, clock, host, running, router, job, order, id }
    }

    async fn stop(self) -> Timestamp {
        self.host.stop().await;
        drop(self.router);
        tokio::task::spawn_blocking(move || self.running.join()).await.unwrap();
        self.clock.now()
    }

    async fn send(&self, method: &str, path: &str, body: Vec<u8>) -> Result<Vec<u8>, ErrorCode> {
        let (status, bytes) = send_to(self.router.clone(), method, path, body).await;
        match status.is_success() {
            true => Ok(bytes),
            false => Err(rejection(&bytes)),
        }
    }

    async fn view(&self) -> OrderView {
        let bytes = self.send("GET", &format!("orders/{}", self.id), Vec::new()).await.unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    /// The lease from its public record.
    async fn lease(&self) -> RecordedLease {
        let mut lease = RecordedLease::open(self.view().await.opening().unwrap()).unwrap();
        let path = format!("orders/{}/records?after=0", self.id);
        let bytes = self.send("GET", &path, Vec::new()).await.unwrap();
        for record in serde_json::from_slice::<Vec<LeaseRecord>>(&bytes).unwrap() {
            lease.apply(&record).unwrap();
        }
        lease
    }

    fn lock_escrow(&self) {
        let market = Ledger::market(self.chain.as_ref());
        let own = address(COORDINATOR);
        let terms = Terms::from_order(&self.order, market, own, CHALLENGE_MS, self.clock.now());
        self.chain.open_task(&wallet(BUYER), &terms.unwrap()).unwrap();
    }

    async fn open_order(&self) -> Result<Vec<u8>, ErrorCode> {
        let request = OrderRequest { order: self.order.clone(), job: self.job.job.clone() };
        self.send("POST", "orders", serde_json::to_vec(&request).unwrap()).await
    }

    async fn put_blobs(&self) {
        for (digest, bytes) in &self.job.blobs {
            let path = format!("orders/{}/blobs/{digest}", self.id);
            self.send("PUT", &path, bytes.clone()).await.unwrap();
        }
    }

    async fn act(&self, n: u8, action: ComputeAction) -> Result<(), ErrorCode> {
        let nonce = self.lease().await.next_nonce(address(n));
        let body = LeaseAction { order: self.id, by: address(n), nonce, action };
        let signed = body.sign(self.order.market, &wallet(n)).unwrap();
        self.act_as_signed(&signed).await
    }

    async fn act_as_signed(&self, signed: &SignedLeaseAction) -> Result<(), ErrorCode> {
        let path = format!("orders/{}/actions", self.id);
        self.send("POST", &path, serde_json::to_vec(signed).unwrap()).await.map(drop)
    }

    fn deposit(&self, n: u8, amount: Amount) {
        self.chain.bond(&wallet(n), lease_task(&self.order), amount).unwrap();
    }

    /// A state of the job's training in which every step is left out.
    fn state_after(&self, steps: u64) -> TrainingState {
        (0..steps).fold(self.job.initial.clone(), |state, _| state.without_next_step())
    }

    /// The secret of a delivered segment.
    fn secret(&self, segment: u32) -> Secret {
        let end = self.state_after(u64::from(segment + 1) * 5);
        Secret { end: Digest(end.digest()), salt: Digest([segment as u8; 32]) }
    }

    async fn put_state(&self, n: u8, state: Digest, bytes: Vec<u8>) -> Result<(), ErrorCode> {
        let upload = StateUpload { order: self.id, by: address(n), state };
        let signature = upload.sign(self.order.market, &wallet(n)).unwrap();
        let request = Request::builder()
            .method("PUT")
            .uri(format!("/v1/orders/{}/states/{state}", self.id))
            .header("state-account", address(n).to_string())
            .header("state-signature", signature.to_string());
        let request = request.body(axum::body::Body::from(bytes)).unwrap();
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let bytes = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        match status == StatusCode::NO_CONTENT {
            true => Ok(()),
            false => Err(rejection(&bytes)),
        }
    }

    async fn serve(&self, steps: u64) {
        let state = self.state_after(steps);
        self.put_state(LENDER, Digest(state.digest()), state.to_bytes().unwrap()).await.unwrap();
    }

    fn wait(&self, ms: u64) {
        self.clock.set(self.clock.now().saturating_add_ms(ms));
        self.host.leases().apply_due();
    }

    fn bid(&self) -> Bid {
        // Twenty steps of 1 ms at 50,000 units of a second: 1,000 units.
        let times = StepTimes::new(vec![1_000]).unwrap();
        Bid { per_second: Amount::from_units(50_000), devices: 1, times }
    }

    /// Opens the order, and plays it until its provider has delivered everything.
    async fn deliver_all(&self) {
        self.award().await;
        self.deposit(LENDER, self.order.deposits.stake);
        self.act(LENDER, ComputeAction::Fund).await.unwrap();
        for segment in 0..4 {
            self.clock.set(self.clock.now().saturating_add_ms(5));
            let leaf = segment_leaf(self.id, address(LENDER), segment, self.secret(segment));
            self.act(LENDER, ComputeAction::Deliver { segment, leaf }).await.unwrap();
        }
    }

    /// Opens the order, and plays it until it is awarded.
    async fn award(&self) {
        self.lock_escrow();
        self.open_order().await.unwrap();
        self.put_blobs().await;
        let deposits = self.order.deposits.clone();
        self.deposit(LENDER, deposits.bid_bond);
        let (salt, bid) = (Digest([9; 32]), self.bid());
        let sealed = bid_commitment(self.id, address(LENDER), &bid, salt);
        self.act(LENDER, ComputeAction::SealBid(sealed)).await.unwrap();
        for auditor in AUDITORS {
            self.deposit(auditor, deposits.audit_bond);
            self.act(auditor, ComputeAction::JoinAudit).await.unwrap();
        }
        self.wait(self.order.windows.bid + 1);
        self.act(LENDER, ComputeAction::OpenBid { bid, salt }).await.unwrap();
    }

    /// The drawn segment.
    async fn drawn(&self) -> u32 {
        self.host.leases().apply_due();
        self.lease().await.lease().audited().next().unwrap().0
    }

    /// The audit, in which all agree.
    async fn audit(&self) {
        let segment = self.drawn().await;
        let steps = u64::from(segment) * 5;
        self.serve(steps).await;
        let start = Digest(self.state_after(steps).digest());
        self.act(LENDER, ComputeAction::Serve { segment, start }).await.unwrap();
        let secret = Secret { salt: Digest([7; 32]), ..self.secret(segment) };
        for n in AUDITORS {
            let sealed = end_commitment(self.id, address(n), segment, secret);
            self.act(n, ComputeAction::SealEnd { segment, sealed }).await.unwrap();
        }
        for n in AUDITORS {
            self.act(n, ComputeAction::OpenEnd { segment, secret }).await.unwrap();
        }
        self.serve(20).await;
        let before = segment.checked_sub(1).map_or(Digest::default(), |b| self.secret(b).salt);
        let opened =
            ComputeAction::OpenLeaf { segment, secret: self.secret(segment), salt_before: before };
        self.act(LENDER, opened).await.unwrap();
        if segment != 3 {
            let last = ComputeAction::OpenLeaf {
                segment: 3,
                secret: self.secret(3),
                salt_before: Digest::default(),
            };
            self.act(LENDER, last).await.unwrap();
        }
    }

    /// Waits until the order is settled on the ledger.
    async fn settled(&self) -> OrderView {
        for _ in 0..600 {
            let view = self.view().await;
            if view.money.is_final() {
                return view;
            }
            self.wait(CHALLENGE_MS / 4);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("not settled: {:?}", self.view().await);
    }
}

fn balance(market: &LeaseMarket, n: u8) -> u128 {
    market.chain.balance(address(n)).unwrap().units()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_runs_from_the_order_to_its_settlement() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::open(dir.path());
    let before = balance(&market, BUYER);
    market.deliver_all().await;
    market.audit().await;
    let view = market.settled().await;
    assert_eq!(view.outcome, Some(LeaseOutcome::Settled));
    let lease = market.lease().await;
    let result = lease.lease().result().unwrap();
    let path = format!("orders/{}/states/{result}", market.id);
    let bytes = market.send("GET", &path, Vec::new()).await.unwrap();
    let blobs = &market.job.blobs;
    let read = |digest, _| Ok::<_, Rejection>(blobs[&digest].clone());
    let training = LeasedTraining::load(&market.order, &market.job.job, read).unwrap();
    assert_eq!(training.state(result, &bytes).unwrap().step(), 20);
    // Every balance is that of the lease's books.
    for claim in florin_ledger::lease_claims(lease.lease()) {
        market.chain.claim(&wallet(BUYER), &claim).unwrap();
    }
    let books = lease.lease().books();
    let owed = |n: u8| books.balance(ComputeAccount::Owed(address(n))).units();
    assert!(owed(LENDER) > 0 && owed(2) == 700 && owed(3) == 700);
    let spent = owed(LENDER) + owed(2) + owed(3);
    assert_eq!(balance(&market, BUYER), before - spent);
    assert_eq!(balance(&market, LENDER) + 200_500, fln("1000").units() + owed(LENDER));
    assert_eq!(balance(&market, COORDINATOR), fln("1000").units());
    market.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_changes_nothing_and_defaults_apply_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::open(dir.path());
    market.deliver_all().await;
    let drawn = market.drawn().await;
    let (view, lease) = (market.view().await, market.lease().await);
    let now = market.stop().await;
    // A day passes. What was left of the phase at its last record is left again.
    let later = now.saturating_add_ms(86_400_000);
    let market = LeaseMarket::open_at(dir.path(), later);
    market.host.leases().apply_due();
    let again = market.view().await;
    assert_eq!((again.phase, again.records), (view.phase, view.records + 1));
    let left = view.deadline.ms_since(lease.last());
    assert_eq!(again.deadline, later.saturating_add_ms(left));
    assert_eq!(market.lease().await.lease().leaves(), lease.lease().leaves());
    assert_eq!(market.drawn().await, drawn);
    // The provider serves no start: it loses its stake, and the renter has its escrow.
    market.wait(market.order.windows.audit + 1);
    let view = market.settled().await;
    assert_eq!(view.outcome, Some(LeaseOutcome::Slashed { segment: drawn }));
    let task = lease_task(&market.order);
    assert_eq!(market.chain.treasury().unwrap(), market.order.deposits.stake);
    let bond = market.chain.bond_of(task, address(LENDER)).unwrap();
    assert_eq!(bond.amount, market.order.deposits.bid_bond);
    assert_eq!(balance(&market, BUYER), fln("1000").units());
    market.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_and_actions_without_money_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut market = LeaseMarket::open(dir.path());
    assert_eq!(market.open_order().await, Err(ErrorCode::NotFunded));
    market.lock_escrow();
    // Another order has another task.
    market.order.nonce += 1;
    assert_eq!(market.open_order().await, Err(ErrorCode::NotFunded));
    market.order.nonce -= 1;
    let segments = market.order.segments;
    market.order.segments = 5;
    assert_eq!(market.open_order().await, Err(ErrorCode::InvalidOrder));
    market.order.segments = segments;
    market.open_order().await.unwrap();
    market.open_order().await.unwrap();
    let seal = |nonce, digest| {
        let (order, by) = (market.id, address(LENDER));
        let action = ComputeAction::SealBid(Digest([digest; 32]));
        LeaseAction { order, by, nonce, action }
    };
    let signed = seal(0, 1).sign(market.order.market, &wallet(LENDER)).unwrap();
    assert_eq!(market.act_as_signed(&signed).await, Err(ErrorCode::TooEarly));
    market.put_blobs().await;
    assert_eq!(market.act_as_signed(&signed).await, Err(ErrorCode::BondTooSmall));
    market.deposit(LENDER, market.order.deposits.bid_bond);
    let forged = SignedLeaseAction { body: seal(0, 2), signature: signed.signature };
    assert_eq!(market.act_as_signed(&forged).await, Err(ErrorCode::InvalidSignature));
    let later = seal(1, 1).sign(market.order.market, &wallet(LENDER)).unwrap();
    assert_eq!(market.act_as_signed(&later).await, Err(ErrorCode::LeaseRefused));
    market.act_as_signed(&signed).await.unwrap();
    // The same action again is the same record; another one with its number is none.
    market.act_as_signed(&signed).await.unwrap();
    let other = seal(0, 3).sign(market.order.market, &wallet(LENDER)).unwrap();
    assert_eq!(market.act_as_signed(&other).await, Err(ErrorCode::LeaseRefused));
    assert_eq!(market.view().await.records, 1);
    for action in [ComputeAction::Draw(Digest([1; 32])), ComputeAction::Expire] {
        assert_eq!(market.act(2, action).await, Err(ErrorCode::LeaseRefused));
    }
    market.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_of_other_accounts_steps_and_bytes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::open(dir.path());
    market.deliver_all().await;
    let segment = market.drawn().await;
    let steps = u64::from(segment) * 5;
    let start = market.state_after(steps);
    let (digest, bytes) = (Digest(start.digest()), start.to_bytes().unwrap());
    let serve = |state| ComputeAction::Serve { segment, start: state };
    assert_eq!(market.act(LENDER, serve(digest)).await, Err(ErrorCode::LeaseRefused));
    let taken = market.put_state(2, digest, bytes.clone()).await;
    assert_eq!(taken, Err(ErrorCode::LeaseRefused));
    let taken = market.put_state(LENDER, Digest([1; 32]), bytes.clone()).await;
    assert_eq!(taken, Err(ErrorCode::Malformed));
    let taken = market.put_state(LENDER, digest, vec![0; 100]).await;
    assert_eq!(taken, Err(ErrorCode::Malformed));
    let taken = market.put_state(LENDER, digest, vec![0; 10_000_000]).await;
    assert_eq!(taken, Err(ErrorCode::TooLarge));
    // A state after other steps is no start of the segment.
    market.serve(steps + 1).await;
    let wrong = Digest(market.state_after(steps + 1).digest());
    assert_eq!(market.act(LENDER, serve(wrong)).await, Err(ErrorCode::LeaseRefused));
    // The places of a lease are few.
    market.serve(steps + 2).await;
    market.serve(steps).await;
    let state = market.state_after(steps + 3);
    let taken = market.put_state(LENDER, Digest(state.digest()), state.to_bytes().unwrap()).await;
    assert_eq!(taken, Err(ErrorCode::LeaseRefused));
    market.act(LENDER, serve(digest)).await.unwrap();
    market.stop().await;
}

/// Places that a winner takes before it has a stake would be missing for the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_before_the_delivery_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::open(dir.path());
    market.award().await;
    let state = market.state_after(5);
    let (digest, bytes) = (Digest(state.digest()), state.to_bytes().unwrap());
    let taken = market.put_state(LENDER, digest, bytes.clone()).await;
    assert_eq!(taken, Err(ErrorCode::LeaseRefused));
    market.deposit(LENDER, market.order.deposits.stake);
    market.act(LENDER, ComputeAction::Fund).await.unwrap();
    let taken = market.put_state(LENDER, digest, bytes).await;
    assert_eq!(taken, Err(ErrorCode::LeaseRefused));
    market.stop().await;
}

/// A renter fills its own places only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renter_has_a_limit_of_open_orders() {
    let dir = tempfile::tempdir().unwrap();
    let mut market = LeaseMarket::open(dir.path());
    for nonce in 100..164 {
        market.order.nonce = nonce;
        market.lock_escrow();
        market.open_order().await.unwrap();
    }
    market.order.nonce = 164;
    market.lock_escrow();
    assert_eq!(market.open_order().await, Err(ErrorCode::LimitReached));
    market.stop().await;
}

/// An order names a digest before any account has shown that it has the bytes: those of a task's holdout stay
/// secret.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_reads_no_blob_that_was_not_uploaded_for_orders() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::open(dir.path());
    let (digest, bytes) = market.job.blobs.iter().next().unwrap();
    market.host.blobs().put(bytes).unwrap();
    market.lock_escrow();
    market.open_order().await.unwrap();
    let path = format!("orders/{}/blobs/{digest}", market.id);
    assert_eq!(market.send("GET", &path, Vec::new()).await, Err(ErrorCode::NotFound));
    assert_eq!(market.view().await.missing.len(), market.job.blobs.len());
    let wrong = market.send("PUT", &path, vec![1; bytes.len()]).await;
    assert_eq!(wrong, Err(ErrorCode::Malformed));
    let other = format!("orders/{}/blobs/{}", market.id, Digest([1; 32]));
    assert_eq!(market.send("PUT", &other, vec![1]).await, Err(ErrorCode::NotFound));
    market.send("PUT", &path, bytes.clone()).await.unwrap();
    assert_eq!(market.send("GET", &path, Vec::new()).await.as_ref(), Ok(bytes));
    market.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_whose_blobs_do_not_arrive_returns_its_escrow() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::open(dir.path());
    market.lock_escrow();
    market.open_order().await.unwrap();
    market.wait(600_001);
    let view = market.settled().await;
    assert!(view.refused.unwrap().contains("did not arrive"));
    assert_eq!(balance(&market, BUYER), fln("1000").units());
    market.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_backup_settles_what_its_ledger_has_not() {
    let dir = tempfile::tempdir().unwrap();
    let (data, copy, restored) =
        (dir.path().join("data"), dir.path().join("copy"), dir.path().join("restored"));
    let market = LeaseMarket::open(&data);
    market.deliver_all().await;
    market.audit().await;
    // The ledger of the backup is from before the settlement, and the records from after it.
    let moment = market.host.checkpoint().await.unwrap();
    let now = market.clock.now();
    let market_blobs = market.job.blobs.len();
    market.settled().await;
    let folders = backup::BackupFolders { data: &data, backup: &copy };
    backup::copy(folders, moment).unwrap();
    market.stop().await;
    let read = read_leases(&copy).unwrap().unwrap();
    assert_eq!((read.orders, read.blobs.len()), (1, market_blobs + 2));
    let folders = backup::BackupFolders { data: &restored, backup: &copy };
    backup::restore(folders, |_, _| Ok::<_, backup::BackupError>(())).unwrap();
    let market = LeaseMarket::open_at(&restored, now);
    assert_eq!(market.view().await.outcome, Some(LeaseOutcome::Settled));
    let task = lease_task(&market.order);
    for _ in 0..600 {
        if market.chain.task(task).unwrap().unwrap().closed {
            break;
        }
        market.wait(CHALLENGE_MS / 4);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let paid = market.chain.task(task).unwrap().unwrap().infrastructure_paid;
    let books = market.lease().await.lease().books().clone();
    let owed = |n: u8| books.balance(ComputeAccount::Owed(address(n)));
    assert_eq!(paid, Amount::total([owed(LENDER), owed(2), owed(3)]).unwrap());
    market.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_records_are_found_before_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::open(dir.path());
    assert_eq!(read_leases(dir.path()).unwrap(), None);
    market.lock_escrow();
    market.open_order().await.unwrap();
    market.stop().await;
    let read = read_leases(dir.path()).unwrap().unwrap();
    assert_eq!((read.orders, read.records), (1, 0));
    let file = dir.path().join(LEASES_FILE);
    std::fs::write(&file, b"no database").unwrap();
    let error = read_leases(dir.path()).unwrap_err();
    assert!(error.to_string().ends_with("[LEASES_UNUSABLE]"), "{error}");
    let found = florin_coordinator::check::check(dir.path(), None, None).unwrap();
    assert!(found.parts.iter().any(|part| part.code == "LEASES_UNUSABLE"));
    assert_eq!(std::fs::read(&file).unwrap(), b"no database", "a check changes nothing");
}
