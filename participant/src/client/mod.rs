//! The coordinator's HTTP interface as typed methods. This module verifies everything that the
//! coordinator signs against the node key pinned at first contact, so no caller can skip it.

mod error;
mod http;
mod listings;
mod order_list;
mod orders;
#[cfg(test)]
pub(crate) mod tests;
mod uploads;
mod weights;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use florin_learning::graph::GraphModel;
use florin_ledger::TrustAnchors;
use florin_ledger::rpc::LedgerRequest;
use florin_protocol::limits::BLOB_BYTES_MAX;
use florin_protocol::{
    Address, Blob, BlobRequest, Candidates, Canonical, ClaimProof, CloseRequest, Commit, Digest,
    EnrolRequest, ErrorCode, LedgerInfo, MarketInfo, ModelArchitecture, Offer, Registration,
    Report, Role, RoundNumber, RoundScope, Signed, TaskId, TaskSpec, TaskSummary, TaskView,
    Timestamp, UpdateHeader, WorkAcceptance, WorkOrder, WorkRecord, WorkRequest, blob_digest,
};

pub use error::{ClientError, CoordinatorIdentity};
pub use http::{JSON_BYTES_MAX, is_local_market};
pub(crate) use order_list::OrderList;
pub use weights::WeightsSource;

use crate::atomic_file;
use http::Http;

/// Longest pin file, in bytes.
const PIN_BYTES_MAX: u64 = 64 * 1024;
/// Longest long-poll time of a request, in milliseconds.
pub const WAIT_MS_MAX: u64 = 30_000;

/// URL of the coordinator, trusted certificates, and the pin file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// `http://HOST:PORT` or `https://HOST:PORT`.
    pub url: String,
    /// The pin file: stores the coordinator's identity at first contact (trust on first use).
    /// Without it the identity is pinned for the lifetime of the client only.
    pub pin_file: Option<PathBuf>,
    /// Certificates that are trusted for an `https://` URL.
    pub trust: TrustAnchors,
}

impl ClientConfig {
    /// A client without a pin file that trusts the system's certificates.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), pin_file: None, trust: TrustAnchors::from_system() }
    }
}

/// Longest time that a coordinator may take to verify a work record, in milliseconds.
const VERDICT_MS_MAX: u64 = 600_000;

/// A connection to a coordinator: blocking, usable from several threads.
#[derive(Clone, Debug)]
pub struct Client {
    http: Http,
    coordinator: CoordinatorIdentity,
    ledger: LedgerInfo,
    version: String,
    /// The coordinator's clock at the last reading, with the local instant of that reading.
    clock: Arc<Mutex<(Timestamp, Instant)>>,
    trust: TrustAnchors,
    pin_file: Option<PathBuf>,
    /// A place of frozen weights besides the coordinator.
    weights: Option<WeightsSource>,
}

impl Client {
    /// Fetches the coordinator's identity, and compares it with the pinned one.
    ///
    /// # Errors
    /// [`ClientError::CoordinatorChanged`] if it differs; [`ClientError::BadUrl`]; those of any
    /// request.
    pub fn connect(config: &ClientConfig) -> Result<Self, ClientError> {
        let http = Http::new(&config.url, &config.trust)?;
        let info: MarketInfo = http.get("market", 0)?;
        let clock = Arc::new(Mutex::new((info.now, Instant::now())));
        let coordinator = CoordinatorIdentity::from(&info);
        if let Some(path) = &config.pin_file {
            let unread = |why: String| ClientError::InvalidResponse {
                what: path.display().to_string(),
                why,
            };
            match atomic_file::read_limited(path, PIN_BYTES_MAX)? {
                Some(bytes) => {
                    let was: CoordinatorIdentity = serde_json::from_slice(&bytes)
                        .map_err(|error| unread(error.to_string()))?;
                    if was != coordinator {
                        let (pinned, current) = (Box::new(was), Box::new(coordinator));
                        let pin_file = path.clone();
                        return Err(ClientError::CoordinatorChanged { pin_file, pinned, current });
                    }
                }
                None => {
                    let bytes = serde_json::to_vec_pretty(&coordinator)
                        .map_err(|error| unread(error.to_string()))?;
                    path.parent().map_or(Ok(()), atomic_file::create_folder)?;
                    atomic_file::write_atomically(path, &bytes)?;
                }
            }
        }
        let (ledger, version, trust) = (info.ledger, info.version, config.trust.clone());
        let pin_file = config.pin_file.clone();
        Ok(Self { http, coordinator, ledger, version, clock, trust, pin_file, weights: None })
    }

    /// The same client, which takes the frozen weights of models from this place.
    #[must_use]
    pub fn with_weights(mut self, weights: Option<WeightsSource>) -> Self {
        self.weights = weights;
        self
    }

    /// The file that records the coordinator, if there is one.
    #[must_use]
    pub fn pin_file(&self) -> Option<&Path> {
        self.pin_file.as_deref()
    }

    /// The trusted certificates for TLS.
    #[must_use]
    pub const fn trust(&self) -> &TrustAnchors {
        &self.trust
    }

    /// The coordinator's identity.
    #[must_use]
    pub fn coordinator(&self) -> &CoordinatorIdentity {
        &self.coordinator
    }

    /// The ledger that the coordinator uses.
    #[must_use]
    pub const fn ledger(&self) -> &LedgerInfo {
        &self.ledger
    }

    /// The coordinator's software version.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Estimate of the coordinator's current time: the last reading plus the local time since.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let (tick, at) = *self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        tick.saturating_add_ms(u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Sends a message that expires `for_ms` after the coordinator's current time. If the
    /// coordinator rejects it as expired, its clock has jumped since the last reading: the clock is
    /// read again, and the message is sent once more.
    ///
    /// # Errors
    /// Those of the request, or of reading the clock.
    pub fn with_expiry<T>(
        &self,
        for_ms: u64,
        send: impl Fn(Timestamp) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        match send(self.now().saturating_add_ms(for_ms)) {
            Err(ClientError::Rejected(late)) if late.code == ErrorCode::DeadlinePassed => {
                let now = self.market()?.now;
                tracing::debug!(%late, %now, "reading the coordinator's clock again");
                let read = (now, Instant::now());
                *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = read;
                send(now.saturating_add_ms(for_ms))
            }
            result => result,
        }
    }

    /// Fetches the market's information again.
    ///
    /// # Errors
    /// Those of any request.
    pub fn market(&self) -> Result<MarketInfo, ClientError> {
        self.http.get("market", 0)
    }

    /// Registers an account.
    ///
    /// # Errors
    /// A rejection, or those of any request.
    pub fn register(&self, registration: &Registration) -> Result<(), ClientError> {
        self.http.post("registrations", registration, 0)?.discard()
    }

    /// An account's registration in a role; `None` if it has none. Verifies its signatures, the
    /// market, the account and the role.
    ///
    /// # Errors
    /// [`ClientError::UnexpectedContent`], or those of any request.
    pub fn registration(
        &self,
        account: Address,
        role: Role,
    ) -> Result<Option<Registration>, ClientError> {
        let path = format!("registrations/{account}?role={role}");
        let found: Registration = match self.http.get(&path, 0) {
            Err(ClientError::Rejected(rejection))
                if matches!(rejection.code, ErrorCode::NotFound | ErrorCode::NotRegistered) =>
            {
                return Ok(None);
            }
            other => other?,
        };
        // It was valid when the coordinator accepted it; a later expiry does not matter.
        let verified = found.verify(self.coordinator.market, Timestamp::default());
        let wrong = |why| ClientError::UnexpectedContent { what: format!("GET {path}"), why };
        verified.map_err(|error| wrong(error.to_string()))?;
        if found.wallet != account {
            return Err(wrong(format!("it belongs to {}", found.wallet)));
        }
        Ok(Some(found).filter(|found| found.role == role))
    }

    /// Publishes a task whose escrow is on the ledger. Idempotent: a second call returns the same
    /// view.
    ///
    /// # Errors
    /// A rejection, or those of any request.
    pub fn publish(&self, spec: &TaskSpec) -> Result<TaskView, ClientError> {
        let view = self.http.post("tasks", spec, 0)?.json()?;
        self.check_view(view, spec.id())
    }

    /// The bytes of a public JSON document, by its path below `/v1`.
    ///
    /// # Errors
    /// Those of any request.
    pub fn public_document(&self, path: &str) -> Result<Vec<u8>, ClientError> {
        self.http.get_bytes(path, &[], JSON_BYTES_MAX)
    }

    /// The bytes of the embedded chain's answer to a query.
    ///
    /// # Errors
    /// Those of any request.
    pub fn ledger_document(&self, query: &LedgerRequest) -> Result<Vec<u8>, ClientError> {
        self.http.post_for_bytes("ledger", query, JSON_BYTES_MAX)
    }

    /// All tasks.
    ///
    /// # Errors
    /// Those of any request.
    pub fn tasks(&self) -> Result<Vec<TaskSummary>, ClientError> {
        self.http.get("tasks", 0)
    }

    /// The current view of a task.
    ///
    /// # Errors
    /// [`ClientError::UnexpectedContent`] if the specification does not have this id; those of any
    /// request.
    pub fn task(&self, task: TaskId) -> Result<TaskView, ClientError> {
        self.check_view(self.http.get(&format!("tasks/{task}"), 0)?, task)
    }

    /// Long poll: returns the view once its sequence is above `after`, or after `wait_ms` (at most
    /// [`WAIT_MS_MAX`]) the current view.
    ///
    /// # Errors
    /// As [`Client::task`].
    pub fn task_after(
        &self,
        task: TaskId,
        after: u64,
        wait_ms: u64,
    ) -> Result<TaskView, ClientError> {
        let wait_ms = wait_ms.min(WAIT_MS_MAX);
        let path = format!("tasks/{task}?after={after}&wait_ms={wait_ms}");
        self.check_view(self.http.get(&path, wait_ms)?, task)
    }

    fn check_view(&self, view: TaskView, task: TaskId) -> Result<TaskView, ClientError> {
        let wrong = |why| ClientError::UnexpectedContent { what: format!("task {task}"), why };
        if view.id != task || view.spec.id() != task {
            return Err(wrong(format!("the specification's id is {}", view.spec.id())));
        }
        if view.spec.market != self.coordinator.market {
            return Err(wrong("it is a task of another market".to_owned()));
        }
        if let Some(offer) = &view.offer {
            let scope = self.scope(task, view.round);
            self.verify_signature(offer, "the offer")?;
            self.check_scope(offer.body.scope, scope, "the offer")?;
        }
        Ok(view)
    }

    /// A public blob of at most `limit` bytes, checked against its digest.
    ///
    /// # Errors
    /// [`ClientError::WrongDigest`], a rejection (`NOT_FOUND`, `NOT_YET_PUBLIC`), or those of any
    /// request.
    pub fn blob(&self, digest: Digest, limit: u64) -> Result<Vec<u8>, ClientError> {
        let bytes =
            self.http.get_bytes(&format!("blobs/{digest}"), &[], limit.min(BLOB_BYTES_MAX))?;
        check_digest(digest, bytes)
    }

    /// The graph of a task with its frozen weights; `None` if its model is no graph.
    ///
    /// # Errors
    /// Those of [`blob`](Self::blob), and a rejection (`INVALID_TASK`) if it does not fit the task.
    pub fn graph(&self, spec: &TaskSpec) -> Result<Option<GraphModel>, ClientError> {
        florin_work::load_graph(spec, |digest, bytes| self.model_blob(spec, Blob { digest, bytes }))
    }

    /// Whether the caller has named a place of frozen weights.
    pub(crate) fn has_own_weights(&self) -> bool {
        self.weights.is_some()
    }

    /// A blob of a task's model: frozen weights from the place that the caller has named, all else from
    /// the coordinator.
    ///
    /// # Errors
    /// [`ClientError::Weights`], and those of [`blob`](Self::blob).
    pub fn model_blob(&self, spec: &TaskSpec, blob: Blob) -> Result<Vec<u8>, ClientError> {
        match (&spec.model, &self.weights) {
            (ModelArchitecture::Graph(graph), Some(weights)) if graph.frozen == Some(blob) => {
                weights.read(blob)
            }
            _ => self.blob(blob.digest, blob.bytes),
        }
    }

    /// The disclosed holdout rows of a round, at most `limit` bytes. The caller must verify them
    /// against the committed root: [`florin_work::verify_disclosed_rows`].
    ///
    /// # Errors
    /// A rejection (`NOT_YET_PUBLIC` before they are drawn), or those of any request.
    pub fn disclosed_rows(
        &self,
        task: TaskId,
        round: RoundNumber,
        limit: u64,
    ) -> Result<Vec<u8>, ClientError> {
        self.http.get_bytes(&round_path(task, round, "holdout"), &[], limit)
    }

    /// Enrols a participant in a task.
    ///
    /// # Errors
    /// A rejection, or those of any request.
    pub fn enrol(&self, enrol: &Signed<EnrolRequest>) -> Result<(), ClientError> {
        self.http.post(&format!("tasks/{}/enrol", enrol.body.task), enrol, 0)?.discard()
    }

    /// Sends the commitment to an update. Idempotent for an identical message.
    ///
    /// # Errors
    /// A rejection, or those of any request.
    pub fn commit(&self, commit: &Signed<Commit>) -> Result<(), ClientError> {
        self.http.post(&format!("tasks/{}/commits", commit.body.scope.task), commit, 0)?.discard()
    }

    /// A round's report, signed by the coordinator.
    ///
    /// # Errors
    /// [`ClientError::NotSigned`], [`ClientError::UnexpectedContent`] for another round's; a rejection;
    /// those of any request.
    pub fn report(&self, task: TaskId, round: RoundNumber) -> Result<Signed<Report>, ClientError> {
        let report: Signed<Report> = self.http.get(&round_path(task, round, "report"), 0)?;
        let what = format!("the report of round {round}");
        self.verify_signature(&report, &what)?;
        self.check_scope(report.body.scope, self.scope(task, round), &what)?;
        Ok(report)
    }

    /// A round's offer, signed by the coordinator.
    ///
    /// # Errors
    /// As [`Client::report`].
    pub fn offer(&self, task: TaskId, round: RoundNumber) -> Result<Signed<Offer>, ClientError> {
        let offer: Signed<Offer> = self.http.get(&round_path(task, round, "offer"), 0)?;
        let what = format!("the offer of round {round}");
        self.verify_signature(&offer, &what)?;
        self.check_scope(offer.body.scope, self.scope(task, round), &what)?;
        Ok(offer)
    }

    /// The candidates of a round's cohort: those whose digest the offer names.
    ///
    /// # Errors
    /// A rejection, or those of any request.
    pub fn candidates(&self, task: TaskId, round: RoundNumber) -> Result<Candidates, ClientError> {
        self.http.get(&round_path(task, round, "candidates"), 0)
    }

    /// The headers of a reported round's updates, in the order of its entries. The caller must
    /// verify their senders' signatures.
    ///
    /// # Errors
    /// A rejection, or those of any request.
    pub fn headers(
        &self,
        task: TaskId,
        round: RoundNumber,
    ) -> Result<Vec<Signed<UpdateHeader>>, ClientError> {
        self.http.get(&round_path(task, round, "headers"), 0)
    }

    /// The work records that a reported round paid. The caller must verify their providers'
    /// signatures.
    ///
    /// # Errors
    /// A rejection, or those of any request.
    pub fn records(
        &self,
        task: TaskId,
        round: RoundNumber,
    ) -> Result<Vec<Signed<WorkRecord>>, ClientError> {
        self.http.get(&round_path(task, round, "records"), 0)
    }

    /// An account's cumulative totals in the final settlements, with their Merkle proof.
    ///
    /// # Errors
    /// A rejection, or those of any request.
    pub fn proof(&self, task: TaskId, account: Address) -> Result<ClaimProof, ClientError> {
        self.http.get(&format!("tasks/{task}/proof/{account}"), 0)
    }

    /// Ends a task after its current round, at its buyer's request.
    ///
    /// # Errors
    /// A rejection, or those of any request.
    pub fn close(&self, request: &CloseRequest) -> Result<(), ClientError> {
        self.http.post(&format!("tasks/{}/close", request.task), request, 0)?.discard()
    }

    /// Long poll for the next work order of a pledged provider; `None` after `wait_ms` (at most
    /// [`WAIT_MS_MAX`]).
    ///
    /// # Errors
    /// [`ClientError::NotSigned`], [`ClientError::UnexpectedContent`]; a rejection; those of any
    /// request.
    pub fn next_work(
        &self,
        query: &Signed<WorkRequest>,
        wait_ms: u64,
    ) -> Result<Option<Signed<WorkOrder>>, ClientError> {
        let wait_ms = wait_ms.min(WAIT_MS_MAX);
        let path = format!("work/next?wait_ms={wait_ms}");
        let order: Option<Signed<WorkOrder>> =
            self.http.post(&path, query, wait_ms)?.json_if_any()?;
        if let Some(order) = &order {
            self.verify_signature(order, "the work order")?;
            let scope = self.scope(query.body.task, order.body.scope.round);
            self.check_scope(order.body.scope, scope, "the work order")?;
        }
        Ok(order)
    }

    /// A blob that only pledged providers may fetch yet, of at most `limit` bytes, checked against
    /// its digest.
    ///
    /// # Errors
    /// [`ClientError::WrongDigest`]; a rejection; those of any request.
    pub fn work_blob(
        &self,
        request: &Signed<BlobRequest>,
        limit: u64,
    ) -> Result<Vec<u8>, ClientError> {
        let limit = limit.min(BLOB_BYTES_MAX);
        let bytes = self.http.post_for_bytes("work/blob", request, limit)?;
        check_digest(request.body.digest, bytes)
    }

    /// Submits a work record. An identical record gets the same verdict.
    ///
    /// # Errors
    /// A rejection (`WORK_ORDER_CLOSED`, `WORK_RESULT_MISMATCH`), or those of any request.
    pub fn submit_work(&self, record: &Signed<WorkRecord>) -> Result<WorkAcceptance, ClientError> {
        self.http.post("work", record, VERDICT_MS_MAX)?.json()
    }

    fn scope(&self, task: TaskId, round: RoundNumber) -> RoundScope {
        RoundScope { market: self.coordinator.market, task, round }
    }

    fn verify_signature<T: Canonical>(
        &self,
        message: &Signed<T>,
        what: &str,
    ) -> Result<(), ClientError> {
        let key = self.coordinator.node_key;
        message.verify(key).map(|_| ()).map_err(|source| ClientError::NotSigned {
            what: what.to_owned(),
            key,
            source,
        })
    }

    fn check_scope(
        &self,
        got: RoundScope,
        expected: RoundScope,
        what: &str,
    ) -> Result<(), ClientError> {
        if got == expected {
            return Ok(());
        }
        let why = format!(
            "it is about round {} of task {} in market {}/{}, not about round {} of task {} here",
            got.round,
            got.task.short(),
            got.market.chain,
            got.market.genesis.short(),
            expected.round,
            expected.task.short()
        );
        Err(ClientError::UnexpectedContent { what: what.to_owned(), why })
    }
}

fn round_path(task: TaskId, round: RoundNumber, what: &str) -> String {
    format!("tasks/{task}/rounds/{round}/{what}")
}

fn check_digest(expected: Digest, bytes: Vec<u8>) -> Result<Vec<u8>, ClientError> {
    match blob_digest(&bytes) {
        got if got == expected => Ok(bytes),
        got => Err(ClientError::WrongDigest { expected, got }),
    }
}
