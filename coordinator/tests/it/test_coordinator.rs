//! A running coordinator behind its router, without sockets, with participants that train on the
//! digits data set.

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode};
use florin_coordinator::host::{HostThreads, ManualClock};
use florin_coordinator::{
    App, Bucket, Config, DataFolder, Host, HostParts, Valuer, WorkValuer, router,
};
use florin_learning::data::{DataSource, canonical_bytes, load};
use florin_learning::{Dataset, EngineKind, Reference, Trainer};
use florin_ledger::{BondState, StakeState};
use florin_protocol::*;
use florin_work::{
    CommittedHoldout, ValuationInputs, clip_update, decode_model, encode_parameters, initial_model,
    model_spec, training,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower::ServiceExt;

use crate::openapi_validation::{TestResponse, assert_request_body, assert_response};
use crate::s3_service::service;
use crate::support::*;

pub(crate) struct TestCoordinator {
    pub(crate) router: Router,
    pub(crate) host: Host,
    pub(crate) running: HostThreads,
    pub(crate) ledger: Arc<FakeLedger>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) spec: TaskSpec,
    pub(crate) id: TaskId,
}

fn digits() -> &'static Dataset {
    static DIGITS: OnceLock<Dataset> = OnceLock::new();
    DIGITS.get_or_init(|| load(&DataSource::Digits).unwrap())
}

pub(crate) fn base_model() -> &'static [u8] {
    static BASE: OnceLock<Vec<u8>> = OnceLock::new();
    BASE.get_or_init(|| initial_model(&spec().model, 7).unwrap())
}

pub(crate) fn holdout() -> Vec<u8> {
    canonical_bytes(&digits().slice(0..300).unwrap())
}

/// A task of two rounds on digits.
pub(crate) fn digits_spec() -> TaskSpec {
    let mut spec = spec();
    spec.base_model = blob_digest(base_model());
    let root = CommittedHoldout::new(digits().slice(0..300).unwrap()).root();
    spec.holdout = Holdout { root, rows: 300, rows_per_round: 150 };
    spec.rounds.count = 2;
    spec
}

/// The rows that an order's seed draws; `exposed` were disclosed before.
pub(crate) fn drawn_rows(spec: &TaskSpec, order: &WorkOrder, exposed: &[u32]) -> Vec<u32> {
    let seed = round_seed(order.scope, &order.commits, &order.entries);
    draw_rows(&spec.holdout, exposed, seed).unwrap()
}

/// The update that participant `i` trains from a model.
pub(crate) fn trained_update(spec: &TaskSpec, from: &[u8], i: u8) -> Vec<u8> {
    trained_update_on(spec, from, 300 + 200 * usize::from(i)..500 + 200 * usize::from(i), i)
}

/// Like [`trained_update`], on these rows.
pub(crate) fn trained_update_on(
    spec: &TaskSpec,
    from: &[u8],
    rows: Range<usize>,
    i: u8,
) -> Vec<u8> {
    let start = decode_model(spec, from).unwrap();
    let data = digits().slice(rows).unwrap();
    let model = model_spec(&spec.model);
    let how = training(spec, RoundNumber::FIRST);
    let mut go_on = |_| ControlFlow::Continue(());
    let end = Reference::new().train(&model, &start, &data, &how, i.into(), &mut go_on).unwrap();
    let mut delta: Vec<f32> = end.params.iter().zip(&start).map(|(a, b)| a - b).collect();
    clip_update(spec, &mut delta);
    encode_parameters(spec, &delta)
}

/// Calls `value` with the inputs of an order of a first round.
pub(crate) fn with_order_inputs<R>(
    spec: &TaskSpec,
    order: &WorkOrder,
    (rows, updates): (&[u8], &Vec<Vec<u8>>),
    value: impl FnOnce(&ValuationInputs<'_>) -> R,
) -> R {
    value(&ValuationInputs {
        spec,
        graph: None,
        base: base_model(),
        row_indices: &drawn_rows(spec, order, &[]),
        disclosed_rows: rows,
        entries: &order.entries,
        updates,
        previous_models: &florin_work::NO_BLOBS,
        earlier_updates: florin_work::EarlierUpdateBlobs::NONE,
        earlier_rows: &florin_work::NO_BLOBS,
        scratch_space: &florin_learning::mapped::UNLIMITED_MEMORY,
    })
}

/// The result of an order of a first round.
pub(crate) fn value_order(
    spec: &TaskSpec,
    order: &WorkOrder,
    (rows, updates): (&[u8], &Vec<Vec<u8>>),
) -> WorkResult {
    let mut engine = florin_learning::engine(EngineKind::Reference, 1).unwrap();
    let value = |inputs: &ValuationInputs<'_>| {
        florin_work::value_and_aggregate(inputs, engine.as_mut()).unwrap().result
    };
    with_order_inputs(spec, order, (rows, updates), value)
}

pub(crate) fn work_valuer() -> Box<dyn Valuer> {
    let engine = florin_learning::engine(EngineKind::Reference, 1).unwrap();
    Box::new(WorkValuer::new(engine, florin_learning::ScratchSpace::memory()))
}

/// A fake ledger with a task's escrow, four bonds and a stake.
pub(crate) fn funded(spec: &TaskSpec) -> Arc<FakeLedger> {
    let ledger = Arc::new(FakeLedger { market: Some(spec.market), ..FakeLedger::default() });
    ledger.open(spec);
    let mut books = ledger.state.lock().unwrap();
    let bond = BondState { amount: fln("5"), release: None };
    books.bonds.extend((1..=4).map(|i| (address(i), bond)));
    let stake = StakeState { amount: fln("20"), release: None };
    books.stakes.insert(address(PROVIDER), stake);
    books.now = Timestamp(1);
    drop(books);
    ledger
}

impl TestCoordinator {
    /// A coordinator on a folder; its ledger has the task's escrow, bonds and a stake.
    pub(crate) fn open(folder: &Path, spec: TaskSpec) -> Self {
        Self::open_with(folder, spec, |_| {})
    }

    /// Like [`Self::open`], with changed settings.
    pub(crate) fn open_with(
        folder: &Path,
        spec: TaskSpec,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let ledger = funded(&spec);
        Self::with(folder, spec, ledger, work_valuer(), change)
    }

    /// A coordinator on a folder and a ledger.
    pub(crate) fn with(
        folder: &Path,
        spec: TaskSpec,
        ledger: Arc<FakeLedger>,
        valuer: Box<dyn Valuer>,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp(1_000)));
        let parts = HostParts {
            ledger: ledger.clone(),
            wallet: Arc::new(SeededWallet::number(COORDINATOR)),
            node: node(COORDINATOR),
            valuers: vec![valuer],
            clock: clock.clone(),
            ledger_endpoint: echo(),
            ledger_copier: None,
        };
        let mut config = Config::new("127.0.0.1:0".parse().unwrap(), folder.to_owned());
        config.arbiters = vec![address(ARBITER)];
        change(&mut config);
        let bucket = Bucket::open(&config.blobs, |name| service().credential(name)).unwrap();
        let folder = DataFolder::open_with_bucket(folder, bucket).unwrap();
        let (host, running) = Host::start(folder, parts).unwrap();
        let wallet = address(COORDINATOR);
        let node = node(COORDINATOR);
        let app = App::new(host.clone(), config, ledger.clone(), node, wallet, echo());
        let id = spec.id();
        Self { router: router(app), host, running, ledger, clock, spec, id }
    }

    pub(crate) async fn stop(self) {
        self.host.stop().await;
        drop(self.router);
        tokio::task::spawn_blocking(move || self.running.join()).await.unwrap();
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        body: impl Into<Body>,
    ) -> (StatusCode, Vec<u8>) {
        send_to(self.router.clone(), method, path, body).await
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Rejection> {
        read(self.send("GET", path, Body::empty()).await)
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Rejection> {
        let body = serde_json::to_vec(body).unwrap();
        let (status, answer) = self.send("POST", path, body.clone()).await;
        if status.is_success() {
            assert_request_body(&Method::POST, &format!("/v1/{path}"), &body);
        }
        read((status, answer))
    }

    /// The code of a rejection.
    pub(crate) async fn rejection_code(
        &self,
        method: &str,
        path: &str,
        body: impl Into<Body>,
    ) -> ErrorCode {
        read::<serde::de::IgnoredAny>(self.send(method, path, body).await).unwrap_err().code
    }

    pub(crate) async fn view(&self) -> TaskView {
        self.get(&format!("tasks/{}", self.id)).await.unwrap()
    }

    /// Gives participants 1 to `last` a bond.
    pub(crate) fn bond(&self, last: u8) {
        let mut books = self.ledger.state.lock().unwrap();
        let bond = BondState { amount: fln("5"), release: None };
        books.bonds.extend((1..=last).map(|i| (address(i), bond)));
    }

    /// Registers four participants and a provider, publishes the task and uploads its blobs.
    pub(crate) async fn publish(&self) {
        self.publish_for(4).await;
    }

    /// Like [`Self::publish`], with `last` participants.
    pub(crate) async fn publish_for(&self, last: u8) {
        for i in 1..=last {
            let () = self.post("registrations", &registration(i, Role::Participant)).await.unwrap();
        }
        let () = self.post("registrations", &registration(PROVIDER, Role::Provider)).await.unwrap();
        self.publish_task().await;
    }

    /// Publishes the task and uploads its blobs.
    pub(crate) async fn publish_task(&self) {
        let _: TaskView = self.post("tasks", &self.spec).await.unwrap();
        let model = format!("blobs/{}", blob_digest(base_model()));
        let rows = format!("tasks/{}/holdout", self.id);
        for (path, bytes) in [(model, base_model().to_vec()), (rows, holdout())] {
            let (status, answer) = self.send("PUT", &path, bytes).await;
            assert_eq!(status, StatusCode::NO_CONTENT, "{}", String::from_utf8_lossy(&answer));
        }
    }

    pub(crate) async fn enrol(&self, i: u8) -> Result<(), Rejection> {
        let (task, sender) = (self.id, address(i));
        let enrol = EnrolRequest::without_invitation(market(), task, sender, Timestamp(1_000_000));
        self.post(&format!("tasks/{task}/enrol"), &node(i).sign(enrol)).await
    }

    /// The header of participant `i`'s update of the running round, and its bytes.
    pub(crate) async fn update(&self, i: u8) -> (UpdateHeader, Vec<u8>) {
        let offer = self.view().await.offer.unwrap().body;
        let path = format!("blobs/{}", offer.base_model);
        let (status, base) = self.send("GET", &path, Body::empty()).await;
        assert_eq!(status, StatusCode::OK);
        let bytes = trained_update(&self.spec, &base, i);
        (update_header(&offer, i, 200, &bytes), bytes)
    }

    pub(crate) async fn commit(&self, header: &UpdateHeader, i: u8) -> Result<(), Rejection> {
        let commit = Commit {
            scope: header.scope,
            sender: header.sender,
            offer: header.offer,
            commitment: header.commitment(),
        };
        self.post(&format!("tasks/{}/commits", self.id), &node(i).sign(commit)).await
    }

    pub(crate) async fn upload(
        &self,
        header: &UpdateHeader,
        bytes: &[u8],
        i: u8,
    ) -> Result<UploadReceipt, Rejection> {
        let path = format!("tasks/{}/updates", self.id);
        read(self.send("POST", &path, upload_body(&node(i).sign(header.clone()), bytes)).await)
    }

    /// Waits until the task is in this phase.
    pub(crate) async fn wait_for_phase(&self, phase: TaskPhase) -> TaskView {
        let mut view = self.view().await;
        let wait = async {
            while view.phase != phase {
                let path = format!("tasks/{}?after={}&wait_ms=5000", self.id, view.sequence);
                view = self.get(&path).await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap();
        view
    }

    /// Four participants commit and upload; returns the receipts.
    pub(crate) async fn play_round(&self) -> Vec<UploadReceipt> {
        self.wait_for_phase(TaskPhase::Committing).await;
        let mut updates = Vec::new();
        for i in 1..=4 {
            updates.push((i, self.update(i).await));
        }
        for (i, (header, _)) in &updates {
            self.commit(header, *i).await.unwrap();
        }
        let mut receipts = Vec::new();
        for (i, (header, bytes)) in &updates {
            receipts.push(self.upload(header, bytes, *i).await.unwrap());
        }
        receipts
    }
}

/// The header of participant `i`'s update, trained on `rows` rows.
pub(crate) fn update_header(offer: &Offer, i: u8, rows: u64, bytes: &[u8]) -> UpdateHeader {
    UpdateHeader {
        scope: offer.scope,
        sender: address(i),
        offer: offer.digest(),
        base_model: offer.base_model,
        rows,
        update: blob_digest(bytes),
        bytes: bytes.len() as u64,
        salt: Digest([i; 32]),
        expires: Timestamp(1_000_000),
    }
}

/// Sends a request to a router, and validates the response against the OpenAPI document.
pub(crate) async fn send_to(
    router: Router,
    method: &str,
    path: &str,
    body: impl Into<Body>,
) -> (StatusCode, Vec<u8>) {
    let (method, path) = (method.parse().unwrap(), format!("/v1/{path}"));
    let request = Request::builder().method(&method).uri(&path).body(body.into()).unwrap();
    let (parts, body) = router.oneshot(request).await.unwrap().into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap().to_vec();
    // The fake ledger RPC echoes the request, which the schema does not allow.
    if path != "/v1/ledger" {
        let answered = TestResponse { status: parts.status, headers: &parts.headers, body: &body };
        assert_response(&method, &path, &answered);
    }
    (parts.status, body)
}

/// The upload body of an update: length, header, bytes.
pub(crate) fn upload_body(header: &Signed<UpdateHeader>, bytes: &[u8]) -> Vec<u8> {
    let header = header.to_bytes();
    let mut body = u32::try_from(header.len()).unwrap().to_le_bytes().to_vec();
    body.extend_from_slice(&header);
    body.extend_from_slice(bytes);
    body
}

pub(crate) fn read<T: DeserializeOwned>(
    (status, body): (StatusCode, Vec<u8>),
) -> Result<T, Rejection> {
    if status.is_success() {
        let body = if body.is_empty() { b"null".to_vec() } else { body };
        return Ok(serde_json::from_slice(&body).unwrap());
    }
    let text = String::from_utf8_lossy(&body).into_owned();
    Err(serde_json::from_slice(&body).unwrap_or_else(|_| panic!("{status}: {text}")))
}
