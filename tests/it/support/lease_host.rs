//! A stand-in for the coordinator's part in leases: it answers the paths of orders from one lease, whose
//! records a test writes, and forwards all else to the coordinator.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

use florin_compute::{
    ComputeOrder, LeaseOpening, LeaseRecord, OrderMoney, OrderRequest, OrderView, RecordedAction,
    RecordedLease, beacon_commitment,
};
use florin_ledger::Ledger as _;
use florin_ledger::{RemoteLedger, Terms, TrustAnchors, lease_task};
use florin_protocol::{Blob, Digest, ErrorCode, Rejection, Timestamp, blob_digest};
use serde::Serialize;

use super::proxy::{message, without_keep_alive};

/// The beacon of every lease.
pub(crate) const BEACON: Digest = Digest([77; 32]);

/// The state of the stand-in.
#[derive(Default)]
pub(crate) struct HostState {
    pub(crate) request: Option<OrderRequest>,
    pub(crate) blobs: BTreeMap<Digest, Vec<u8>>,
    pub(crate) states: BTreeMap<Digest, Vec<u8>>,
    pub(crate) lease: Option<RecordedLease>,
    records: Vec<LeaseRecord>,
    /// Whether the next order with an escrow is refused, as by a crash behind it.
    pub(crate) refuses: bool,
}

/// A listening stand-in. Its thread ends with the test's process.
pub(crate) struct LeaseHost {
    pub(crate) url: String,
    state: Arc<Mutex<HostState>>,
}

impl LeaseHost {
    /// Answers before a market at a URL.
    pub(crate) fn before(market: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(HostState { refuses: true, ..HostState::default() }));
        let (upstream, shared) = (market.to_owned(), Arc::clone(&state));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (upstream, state) = (upstream.clone(), Arc::clone(&shared));
                std::thread::spawn(move || serve(client, &upstream, &state));
            }
        });
        Self { url, state }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, HostState> {
        self.state.lock().unwrap()
    }
}

impl HostState {
    pub(crate) fn order(&self) -> &ComputeOrder {
        &self.request.as_ref().unwrap().order
    }

    /// Writes the next record.
    pub(crate) fn push(&mut self, at: Timestamp, action: RecordedAction) {
        let record = LeaseRecord { at, action };
        self.lease.as_mut().unwrap().apply(&record).unwrap();
        self.records.push(record);
    }

    fn missing(&self) -> Vec<Blob> {
        let job = &self.request.as_ref().unwrap().job;
        let all = job.graph.blobs().chain([job.start, job.rows]);
        all.filter(|blob| !self.blobs.contains_key(&blob.digest)).collect()
    }

    fn view(&self) -> OrderView {
        let (order, lease) = (self.order().clone(), self.lease.as_ref());
        let phase = lease.map(|lease| lease.lease().phase());
        let outcome = lease.and_then(|lease| lease.lease().outcome());
        let (phase, deadline) = phase.unwrap_or((florin_compute::Phase::Bidding, Timestamp(0)));
        OrderView {
            id: order.id(),
            missing: self.missing(),
            refused: None,
            opened: lease.map(|lease| lease.opening().opened),
            beacon: beacon_commitment(order.id(), BEACON),
            records: self.records.len() as u32,
            phase,
            deadline,
            provider: None,
            delivered: 0,
            outcome,
            money: outcome.map_or(OrderMoney::Locked, |_| OrderMoney::Settled),
            order,
        }
    }

    fn open(&mut self, body: &[u8], market: &str) -> Result<Vec<u8>, Rejection> {
        let request: OrderRequest = serde_json::from_slice(body).unwrap();
        let order = &request.order;
        let ledger =
            RemoteLedger::connect_with_trust_anchors(market, &TrustAnchors::from_system()).unwrap();
        let escrow = ledger.task(lease_task(order)).unwrap();
        let refused = |code, why: &str| Err(Rejection::new(code, why));
        let Some(escrow) = escrow else { return refused(ErrorCode::NotFunded, "no escrow") };
        let terms: Terms = escrow.terms;
        terms.check_order(order, order.market, escrow_moment(&terms, order)).unwrap();
        if std::mem::take(&mut self.refuses) {
            return refused(ErrorCode::TaskClosed, "the coordinator stops");
        }
        self.request = Some(request);
        Ok(json(&self.view()))
    }

    fn store(&mut self, body: Vec<u8>) {
        self.blobs.insert(blob_digest(&body), body);
        if self.missing().is_empty() {
            let order = self.order().clone();
            let beacon = beacon_commitment(order.id(), BEACON);
            let opening = LeaseOpening { order, opened: Timestamp(1_000_000), beacon };
            self.lease = Some(RecordedLease::open(opening).unwrap());
        }
    }

    fn answer(&mut self, line: &str, body: Vec<u8>, market: &str) -> Result<Vec<u8>, Rejection> {
        let mut words = line.split(' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let parts: Vec<&str> = path.split('/').skip(3).collect();
        match (method, parts.as_slice()) {
            ("POST", []) => self.open(&body, market),
            ("GET", []) => Ok(json(&self.request.iter().map(|_| self.view()).collect::<Vec<_>>())),
            ("GET", [_]) => Ok(json(&self.view())),
            ("GET", [_, "job"]) => Ok(json(&self.request.as_ref().unwrap().job)),
            ("GET", [_, "records"]) => {
                let after = query.split('&').find_map(|pair| pair.strip_prefix("after=")).unwrap();
                Ok(json(&self.records[after.parse::<usize>().unwrap()..].to_vec()))
            }
            ("PUT", [_, "blobs", _]) => {
                self.store(body);
                Ok(b"null".to_vec())
            }
            ("GET", [_, "states", digest]) => Ok(self.states[&digest.parse().unwrap()].clone()),
            other => panic!("{other:?}"),
        }
    }
}

/// The moment at which the terms of an order were made.
fn escrow_moment(terms: &Terms, order: &ComputeOrder) -> Timestamp {
    let life = order.duration_ms_max() + florin_ledger::LEASE_SETTLE_MS;
    Timestamp(terms.expires.0 - life)
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

/// Answers one request, or forwards it and its response; then closes the connection.
fn serve(mut client: TcpStream, upstream: &str, state: &Mutex<HostState>) -> Option<()> {
    let (head, body) = message(&mut client)?;
    let line = head.lines().next()?.to_owned();
    let (status, content) = if line.contains(" /v1/orders") {
        match state.lock().unwrap().answer(&line, body, upstream) {
            Ok(content) => ("HTTP/1.1 200 OK".to_owned(), content),
            Err(rejection) => ("HTTP/1.1 409 Conflict".to_owned(), json(&rejection)),
        }
    } else {
        let mut server = TcpStream::connect(upstream.strip_prefix("http://")?).ok()?;
        server.write_all(without_keep_alive(&head).as_bytes()).ok()?;
        server.write_all(&body).ok()?;
        let (answer, content) = message(&mut server)?;
        (answer.lines().next()?.to_owned(), content)
    };
    let is_state = line.contains("/states/");
    let kind = if is_state { "application/octet-stream" } else { "application/json" };
    let length = content.len();
    let reply = format!(
        "{status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    );
    client.write_all(reply.as_bytes()).ok()?;
    client.write_all(&content).ok()
}
