//! A coordinator with the embedded ledger under one clock, and a lease whose training leaves out every step.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Request, StatusCode};
use florin_compute::*;
use florin_coordinator::host::{HostThreads, ManualClock};
use florin_coordinator::{App, Clock, Config, DataFolder, Host, HostParts, router};
use florin_learning::checkpoint::TrainingState;
use florin_learning::data::{DataSource, canonical_bytes, load};
use florin_learning::graph::{BufferPolicy, read_archive, split};
use florin_learning::{Dataset, tensors};
use florin_ledger::{EmbeddedChain, Genesis, Ledger, Terms, lease_task};
use florin_protocol::*;
use florin_work::{GraphOutput, declared_graph, initial_state, model_spec};
use tower::ServiceExt;

use crate::support::*;
use crate::test_coordinator::*;

pub(crate) const LENDER: u8 = 1;
pub(crate) const AUDITORS: [u8; 2] = [2, 3];
pub(crate) const CHALLENGE_MS: u64 = 1_000;

/// A job with the bytes of its blobs.
pub(crate) struct TestJob {
    pub(crate) job: ComputeJob,
    pub(crate) blobs: BTreeMap<Digest, Vec<u8>>,
    pub(crate) initial: TrainingState,
}

pub(crate) fn test_job() -> TestJob {
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
    let loss = ModelLoss::CrossEntropy { label_smoothing: Micro::ZERO };
    let graph = declared_graph(&parts, GraphOutput { outputs: 3, targets: 0, loss });
    blob(parts.graph.clone());
    parts.frozen.clone().map(&mut blob);
    let model = model_spec(&ModelArchitecture::Graph(graph.clone()));
    let start = blob(tensors::encode(&model, &parts.initial).unwrap());
    let rows = blob(canonical_bytes(&rows));
    // Twenty steps of four rows.
    let training = Training { epochs: 1, batch: 4, ..TaskSpec::example().training };
    let job =
        ComputeJob { graph, start, rows, row_count: 80, training, virtual_workers: 2, seed: 5 };
    let initial = initial_state(&job, &parts.initial);
    TestJob { job, blobs, initial }
}

/// A coordinator with the embedded ledger, under one clock.
pub(crate) struct LeaseMarket {
    pub(crate) chain: Arc<EmbeddedChain>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) host: Host,
    pub(crate) running: HostThreads,
    pub(crate) router: axum::Router,
    pub(crate) job: TestJob,
    pub(crate) order: ComputeOrder,
    pub(crate) id: Digest,
}

/// The code of a rejection, which is printed: a failed test shows its messages.
fn rejection(bytes: &[u8]) -> ErrorCode {
    let rejection: Rejection = serde_json::from_slice(bytes).unwrap();
    eprintln!("{rejection}");
    rejection.code
}

pub(crate) fn wallet(n: u8) -> SeededWallet {
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
    pub(crate) fn open(folder: &Path) -> Self {
        Self::open_at(folder, Timestamp(1_000_000))
    }

    pub(crate) fn open_at(folder: &Path, now: Timestamp) -> Self {
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
        let mut config = Config::new("127.0.0.1:0".parse().unwrap(), folder.to_owned());
        config.arbiters = vec![address(ARBITER)];
        config.listings.probe_ms_min = 30;
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

    pub(crate) async fn stop(self) -> Timestamp {
        self.host.stop().await;
        drop(self.router);
        tokio::task::spawn_blocking(move || self.running.join()).await.unwrap();
        self.clock.now()
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, ErrorCode> {
        let (status, bytes) = send_to(self.router.clone(), method, path, body).await;
        match status.is_success() {
            true => Ok(bytes),
            false => Err(rejection(&bytes)),
        }
    }

    /// As [`Self::send`], with a header.
    pub(crate) async fn send_with(
        &self,
        method: &str,
        path: &str,
        (name, value): (&str, String),
        body: Vec<u8>,
    ) -> Result<Vec<u8>, ErrorCode> {
        let request = Request::builder().method(method).uri(format!("/v1/{path}"));
        let request = request.header(name, value).body(axum::body::Body::from(body)).unwrap();
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let bytes = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        match status.is_success() {
            true => Ok(bytes.to_vec()),
            false => Err(rejection(&bytes)),
        }
    }

    pub(crate) async fn view(&self) -> OrderView {
        let bytes = self.send("GET", &format!("orders/{}", self.id), Vec::new()).await.unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    /// The lease from its public record.
    pub(crate) async fn lease(&self) -> RecordedLease {
        let mut lease = RecordedLease::open(self.view().await.opening().unwrap()).unwrap();
        let path = format!("orders/{}/records?after=0", self.id);
        let bytes = self.send("GET", &path, Vec::new()).await.unwrap();
        for record in serde_json::from_slice::<Vec<LeaseRecord>>(&bytes).unwrap() {
            lease.apply(&record).unwrap();
        }
        lease
    }

    pub(crate) fn lock_escrow(&self) {
        let market = Ledger::market(self.chain.as_ref());
        let own = address(COORDINATOR);
        let terms = Terms::from_order(&self.order, market, own, CHALLENGE_MS, self.clock.now());
        self.chain.open_task(&wallet(BUYER), &terms.unwrap()).unwrap();
    }

    pub(crate) async fn open_order(&self) -> Result<Vec<u8>, ErrorCode> {
        let request = OrderRequest { order: self.order.clone(), job: self.job.job.clone() };
        self.send("POST", "orders", serde_json::to_vec(&request).unwrap()).await
    }

    pub(crate) async fn put_blobs(&self) {
        for (digest, bytes) in &self.job.blobs {
            let path = format!("orders/{}/blobs/{digest}", self.id);
            self.send("PUT", &path, bytes.clone()).await.unwrap();
        }
    }

    pub(crate) async fn act(&self, n: u8, action: ComputeAction) -> Result<(), ErrorCode> {
        let nonce = self.lease().await.next_nonce(address(n));
        let body = LeaseAction { order: self.id, by: address(n), nonce, action };
        let signed = body.sign(self.order.market, &wallet(n)).unwrap();
        self.act_as_signed(&signed).await
    }

    pub(crate) async fn act_as_signed(&self, signed: &SignedLeaseAction) -> Result<(), ErrorCode> {
        let path = format!("orders/{}/actions", self.id);
        self.send("POST", &path, serde_json::to_vec(signed).unwrap()).await.map(drop)
    }

    pub(crate) fn deposit(&self, n: u8, amount: Amount) {
        self.chain.bond(&wallet(n), lease_task(&self.order), amount).unwrap();
    }

    /// A state of the job's training in which every step is left out.
    pub(crate) fn state_after(&self, steps: u64) -> TrainingState {
        (0..steps).fold(self.job.initial.clone(), |state, _| state.without_next_step())
    }

    /// The secret of a delivered segment.
    pub(crate) fn secret(&self, segment: u32) -> Secret {
        let end = self.state_after(u64::from(segment + 1) * 5);
        Secret { end: Digest(end.digest()), salt: Digest([segment as u8; 32]) }
    }

    pub(crate) async fn put_state(
        &self,
        n: u8,
        state: Digest,
        bytes: Vec<u8>,
    ) -> Result<(), ErrorCode> {
        let upload = StateUpload { order: self.id, by: address(n), state };
        let signature = upload.sign(self.order.market, &wallet(n)).unwrap();
        let headers =
            [("state-account", address(n).to_string()), ("state-signature", signature.to_string())];
        self.put_with(&format!("orders/{}/states/{state}", self.id), &headers, bytes).await
    }

    /// Uploads bytes with headers.
    pub(crate) async fn put_with(
        &self,
        path: &str,
        headers: &[(&str, String)],
        bytes: Vec<u8>,
    ) -> Result<(), ErrorCode> {
        let request = Request::builder().method("PUT").uri(format!("/v1/{path}"));
        let request = headers.iter().fold(request, |all, (name, value)| all.header(*name, value));
        let request = request.body(axum::body::Body::from(bytes)).unwrap();
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let bytes = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        match status == StatusCode::NO_CONTENT {
            true => Ok(()),
            false => Err(rejection(&bytes)),
        }
    }

    pub(crate) async fn serve(&self, steps: u64) {
        let state = self.state_after(steps);
        self.put_state(LENDER, Digest(state.digest()), state.to_bytes().unwrap()).await.unwrap();
    }

    pub(crate) fn wait(&self, ms: u64) {
        self.clock.set(self.clock.now().saturating_add_ms(ms));
        self.host.leases().apply_due();
    }

    pub(crate) fn bid(&self) -> Bid {
        // Twenty steps of 1 ms at 50,000 units of a second: 1,000 units.
        let times = StepTimes::new(vec![1_000]).unwrap();
        Bid { per_second: Amount::from_units(50_000), devices: 1, times }
    }

    /// Opens the order, and plays it until its provider has delivered everything.
    pub(crate) async fn deliver_all(&self) {
        self.fund().await;
        self.deliver(0..4).await;
    }

    /// Opens the order, and plays it until it is funded.
    pub(crate) async fn fund(&self) {
        self.award().await;
        self.deposit(LENDER, self.order.deposits.stake);
        self.act(LENDER, ComputeAction::Fund).await.unwrap();
    }

    /// Delivers some of the four segments. The host draws audits at any moment behind the last one.
    pub(crate) async fn deliver(&self, segments: std::ops::Range<u32>) {
        for segment in segments {
            self.clock.set(self.clock.now().saturating_add_ms(5));
            let leaf = segment_leaf(self.id, address(LENDER), segment, self.secret(segment));
            self.act(LENDER, ComputeAction::Deliver { segment, leaf }).await.unwrap();
        }
    }

    /// Opens the order, and plays it until it is awarded.
    pub(crate) async fn award(&self) {
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
    pub(crate) async fn drawn(&self) -> u32 {
        self.host.leases().apply_due();
        self.lease().await.lease().audited().next().unwrap().0
    }

    /// The audit, in which all agree.
    pub(crate) async fn audit(&self) {
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
    pub(crate) async fn settled(&self) -> OrderView {
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
