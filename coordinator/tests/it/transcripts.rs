//! Records with transcripts: the coordinator replays them instead of valuing the round, and a false one gains
//! nothing.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use axum::http::StatusCode;
use florin_coordinator::{Valuer, ValuerError, WorkValuer};
use florin_learning::{EngineKind, ScratchSpace, engine};
use florin_protocol::*;
use florin_store::BlobStore;
use florin_work::{RecordedRound, ValuationInputs, ValuationOutput};

use crate::support::*;
use crate::test_coordinator::*;

/// Further providers.
const OTHER: u8 = 204;
const THIRD: u8 = 205;

/// Rounds that a valuer computed, and those that it replayed.
#[derive(Default)]
struct ValuerCounts {
    computed: AtomicU32,
    replayed: AtomicU32,
    /// A replay waits for this, if it is set.
    gate: Mutex<Option<mpsc::Receiver<()>>>,
    /// And so does a valuation.
    valuation_gate: Mutex<Option<mpsc::Receiver<()>>>,
}

impl ValuerCounts {
    fn all(&self) -> (u32, u32) {
        (self.computed.load(Ordering::SeqCst), self.replayed.load(Ordering::SeqCst))
    }
}

struct CountingValuer(WorkValuer, Arc<ValuerCounts>);

impl Valuer for CountingValuer {
    fn value_and_aggregate(
        &mut self,
        order: &WorkOrder,
        drawn: &[u32],
        spec: &TaskSpec,
        blobs: &BlobStore,
    ) -> Result<ValuationOutput, ValuerError> {
        self.1.computed.fetch_add(1, Ordering::SeqCst);
        if let Some(gate) = self.1.valuation_gate.lock().unwrap().take() {
            gate.recv().unwrap();
        }
        self.0.value_and_aggregate(order, drawn, spec, blobs)
    }

    fn replay(
        &mut self,
        order: &WorkOrder,
        drawn: &[u32],
        spec: &TaskSpec,
        blobs: &BlobStore,
        transcript: (&[u8], u64),
    ) -> Result<Option<ValuationOutput>, ValuerError> {
        if let Some(gate) = self.1.gate.lock().unwrap().take() {
            gate.recv().unwrap();
        }
        let replayed = self.0.replay(order, drawn, spec, blobs, transcript);
        if matches!(replayed, Ok(Some(_))) {
            self.1.replayed.fetch_add(1, Ordering::SeqCst);
        }
        replayed
    }
}

/// A market in which one provider has an order.
struct Ordered {
    shop: TestCoordinator,
    counts: Arc<ValuerCounts>,
    order: WorkOrder,
}

impl Ordered {
    async fn new(folder: &Path, parts: u32) -> Self {
        let (spec, counts) = (digits_spec(), Arc::new(ValuerCounts::default()));
        let valuer =
            WorkValuer::new(engine(EngineKind::Reference, 1).unwrap(), ScratchSpace::memory());
        let valuer = Box::new(CountingValuer(valuer.with_parts(parts), Arc::clone(&counts)));
        let shop = TestCoordinator::with(folder, spec.clone(), funded(&spec), valuer, |_| {});
        shop.publish().await;
        let (task, expires) = (shop.id, Timestamp(1_000_000));
        let provider = address(PROVIDER);
        let query = node(PROVIDER).sign(WorkRequest { market: market(), task, provider, expires });
        let _ = shop.send("POST", "work/next", serde_json::to_vec(&query).unwrap()).await;
        for i in 1..=4 {
            shop.enrol(i).await.unwrap();
        }
        shop.play_round().await;
        let order: Signed<WorkOrder> = shop.post("work/next?wait_ms=5000", &query).await.unwrap();
        Self { shop, counts, order: order.body }
    }

    fn with_inputs<R>(&self, use_inputs: impl FnOnce(&ValuationInputs<'_>) -> R) -> R {
        let (blobs, order) = (self.shop.host.blobs(), &self.order);
        let updates: Vec<_> = order.entries.iter().map(|e| blobs.read(e.update).unwrap()).collect();
        let rows = blobs.read(order.disclosed_rows).unwrap();
        with_order_inputs(&self.shop.spec, order, (&rows, &updates), use_inputs)
    }

    fn recorded(&self) -> RecordedRound {
        let mut engine = engine(EngineKind::Reference, 1).unwrap();
        self.with_inputs(|inputs| florin_work::value_and_record(inputs, engine.as_mut()).unwrap())
    }

    fn record(&self, result: WorkResult) -> Signed<WorkRecord> {
        self.record_of(PROVIDER, result)
    }

    fn record_of(&self, number: u8, result: WorkResult) -> Signed<WorkRecord> {
        let (order, provider) = (self.order.digest(), address(number));
        node(number).sign(WorkRecord { market: market(), order, provider, result })
    }

    async fn submit(
        &self,
        record: &Signed<WorkRecord>,
        transcript: &[u8],
    ) -> Result<WorkAcceptance, Rejection> {
        read(self.shop.send("POST", "work/transcripts", body(record, transcript)).await)
    }

    /// Lets another provider send records, too.
    async fn add_provider(&self, number: u8) {
        let registered = registration(number, Role::Provider);
        let () = self.shop.post("registrations", &registered).await.unwrap();
        let mut ledger = self.shop.ledger.state.lock().unwrap();
        let stake = ledger.stakes[&address(PROVIDER)];
        ledger.stakes.insert(address(number), stake);
    }

    /// Waits until the round has this number of records.
    async fn wait_for_records(&self, count: usize) {
        let id = self.shop.id;
        let records = move |engine: &florin_engine::Engine, _| engine.open_records(id).len();
        while self.shop.host.read(records).await.unwrap() < count {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    async fn report(&self) -> Report {
        let path = format!("tasks/{}/rounds/1/report", self.shop.id);
        self.shop.get::<Signed<Report>>(&path).await.unwrap().body
    }
}

fn body(record: &Signed<WorkRecord>, transcript: &[u8]) -> Vec<u8> {
    let head = record.to_bytes();
    [&u32::try_from(head.len()).unwrap().to_le_bytes(), head.as_slice(), transcript].concat()
}

/// Every loss of the base model, which the transcript begins with, is stated too high.
fn forged(transcript: &[u8], rows: usize) -> Vec<u8> {
    let mut forged = transcript.to_vec();
    for number in forged[..8 * rows].chunks_mut(8) {
        let loss = f64::from_le_bytes(number.try_into().unwrap());
        number.copy_from_slice(&(loss + 0.01).to_le_bytes());
    }
    forged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transcript_saves_the_coordinator_the_valuation() {
    let dir = tempfile::tempdir().unwrap();
    let ordered = Ordered::new(dir.path(), 2).await;
    let RecordedRound { output, transcript } = ordered.recorded();
    let record = ordered.record(output.result.clone());
    let verdict = ordered.submit(&record, &transcript.unwrap()).await.unwrap();
    assert_eq!(ordered.counts.all(), (0, 1));
    let report = ordered.report().await;
    assert_eq!(
        (report.infrastructure[0].units, verdict.units),
        (verdict.units, output.result.valuation.units)
    );
    assert_eq!(report.infrastructure[0].provider, address(PROVIDER));
    assert_eq!(report.valuation.as_ref(), Some(&output.result.valuation));
    // The model is the coordinator's own aggregate.
    assert_eq!(ordered.shop.host.blobs().read(output.result.model).unwrap(), output.model);
    // The same record again, with any transcript or without one, has the same verdict.
    assert_eq!(ordered.submit(&record, b"other").await.unwrap(), verdict);
    let again: WorkAcceptance = ordered.shop.post("work", &record).await.unwrap();
    assert_eq!(again, verdict);
    assert_eq!(ordered.counts.all(), (0, 1));
    ordered.shop.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_record_is_paid_whatever_its_transcript_says() {
    for false_one in ["forged", "short", "empty", "not asked for"] {
        let dir = tempfile::tempdir().unwrap();
        let parts = if false_one == "not asked for" { 32 } else { 2 };
        let ordered = Ordered::new(dir.path(), parts).await;
        let RecordedRound { output, transcript } = ordered.recorded();
        let transcript = transcript.unwrap();
        let sent = match false_one {
            "forged" => forged(&transcript, 150),
            "short" => transcript[..transcript.len() / 2].to_vec(),
            "empty" => Vec::new(),
            _ => transcript,
        };
        let record = ordered.record(output.result);
        ordered.submit(&record, &sent).await.unwrap();
        assert_eq!(ordered.counts.all(), (1, 0), "{false_one}");
        assert_eq!(ordered.report().await.infrastructure[0].provider, address(PROVIDER));
        ordered.shop.stop().await;
    }
}

/// A provider that states another score, and forges its transcript.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_false_result_with_its_own_transcript_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let ordered = Ordered::new(dir.path(), 2).await;
    let transcript = forged(&ordered.recorded().transcript.unwrap(), 150);
    let mut result = ordered.recorded().output.result;
    result.valuation.scores[0].score_nano += 1_000_000;
    result.valuation.gap_nano -= 1_000_000;
    let refused = ordered.submit(&ordered.record(result), &transcript).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::WorkResultMismatch);
    assert_eq!(ordered.counts.all(), (1, 0));
    ordered.shop.stop().await;
}

/// A record whose honest transcript has another result.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transcript_of_another_result_does_not_help_a_record() {
    let dir = tempfile::tempdir().unwrap();
    let ordered = Ordered::new(dir.path(), 2).await;
    let RecordedRound { output, transcript } = ordered.recorded();
    let mut result = output.result;
    result.metrics.correct_after += 1;
    let record = ordered.record(result);
    let refused = ordered.submit(&record, &transcript.unwrap()).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::WorkResultMismatch);
    assert_eq!(ordered.counts.all(), (1, 1), "replayed, found to differ, and computed");
    ordered.shop.stop().await;
}

/// A record that contradicts the transcript, and arrives during its replay: the coordinator values the round itself,
/// and pays the right one, whichever that is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contradiction_during_a_replay_is_judged_by_the_whole_valuation() {
    let dir = tempfile::tempdir().unwrap();
    let ordered = Ordered::new(dir.path(), 2).await;
    ordered.add_provider(OTHER).await;
    let RecordedRound { output, transcript } = ordered.recorded();
    let mut wrong = output.result.clone();
    wrong.metrics.correct_after += 1;
    let (record, wrong) = (ordered.record(output.result), ordered.record_of(OTHER, wrong));
    let (open, gate) = mpsc::channel();
    *ordered.counts.gate.lock().unwrap() = Some(gate);
    let open_after_both = async {
        ordered.wait_for_records(2).await;
        open.send(()).unwrap();
    };
    let transcript = transcript.unwrap();
    let other = async {
        ordered.wait_for_records(1).await;
        ordered.shop.post::<WorkAcceptance>("work", &wrong).await
    };
    let (paid, refused, ()) =
        tokio::join!(ordered.submit(&record, &transcript), other, open_after_both);
    paid.unwrap();
    // Records behind the first right one are not compared.
    assert_eq!(refused.unwrap_err().code, ErrorCode::WorkOrderClosed);
    assert_eq!(ordered.counts.all(), (1, 1), "replayed, contradicted, and computed");
    assert_eq!(ordered.report().await.infrastructure[0].provider, address(PROVIDER));
    ordered.shop.stop().await;
}

/// A provider that sends no transcript, or a false one, is ready sooner than one that does: while the coordinator
/// computes, the transcript arrives, and its provider is paid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transcript_is_paid_before_a_record_without_one() {
    for (sent, counts) in [("none", (1, 1)), ("false", (1, 1)), ("both false", (1, 0))] {
        let dir = tempfile::tempdir().unwrap();
        let ordered = Ordered::new(dir.path(), 2).await;
        ordered.add_provider(OTHER).await;
        let RecordedRound { output, transcript } = ordered.recorded();
        let transcript = transcript.unwrap();
        let early = ordered.record(output.result.clone());
        let late = ordered.record_of(OTHER, output.result);
        let (open, gate) = mpsc::channel();
        *ordered.counts.valuation_gate.lock().unwrap() = Some(gate);
        let first = async {
            match sent {
                "none" => ordered.shop.post::<WorkAcceptance>("work", &early).await,
                _ => ordered.submit(&early, &forged(&transcript, 150)).await,
            }
        };
        let second = async {
            ordered.wait_for_records(1).await;
            while ordered.counts.all().0 < 1 {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            let bytes = if sent == "both false" { b"numbers" } else { transcript.as_slice() };
            ordered.submit(&late, bytes).await
        };
        let open_after_both = async {
            ordered.wait_for_records(2).await;
            open.send(()).unwrap();
        };
        let (first, second, ()) = tokio::join!(first, second, open_after_both);
        assert_eq!(ordered.counts.all(), counts, "{sent}");
        let (paid, unpaid, number) = match sent {
            "both false" => (first, second, PROVIDER),
            _ => (second, first, OTHER),
        };
        assert!(paid.unwrap().units > 0);
        // It is right, and is not refused as wrong.
        assert_eq!(unpaid.unwrap_err().code, ErrorCode::WorkOrderClosed, "{sent}");
        assert_eq!(ordered.report().await.infrastructure[0].provider, address(number));
        ordered.shop.stop().await;
    }
}

/// A wrong record with a right transcript does not take the place of a right one with its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_transcript_of_a_wrong_record_proves_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let ordered = Ordered::new(dir.path(), 2).await;
    ordered.add_provider(OTHER).await;
    ordered.add_provider(THIRD).await;
    let RecordedRound { output, transcript } = ordered.recorded();
    let transcript = transcript.unwrap();
    let bare = ordered.record(output.result.clone());
    let mut wrong = output.result.clone();
    wrong.metrics.correct_after += 1;
    let wrong = ordered.record_of(OTHER, wrong);
    let right = ordered.record_of(THIRD, output.result);
    let (open, gate) = mpsc::channel();
    *ordered.counts.valuation_gate.lock().unwrap() = Some(gate);
    let after = |records| ordered.wait_for_records(records);
    let bare = ordered.shop.post::<WorkAcceptance>("work", &bare);
    let wrong = async {
        after(1).await;
        ordered.submit(&wrong, &transcript).await
    };
    let right = async {
        after(2).await;
        ordered.submit(&right, &transcript).await
    };
    let open_after_all = async {
        after(3).await;
        open.send(()).unwrap();
    };
    let (bare, wrong, right, ()) = tokio::join!(bare, wrong, right, open_after_all);
    assert_eq!(bare.unwrap_err().code, ErrorCode::WorkOrderClosed);
    assert_eq!(wrong.unwrap_err().code, ErrorCode::WorkResultMismatch);
    assert!(right.unwrap().units > 0);
    assert_eq!(ordered.counts.all(), (1, 1), "the wrong record's transcript was not read");
    assert_eq!(ordered.report().await.infrastructure[0].provider, address(THIRD));
    ordered.shop.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_are_no_record_are_refused_with_their_code() {
    let dir = tempfile::tempdir().unwrap();
    let ordered = Ordered::new(dir.path(), 2).await;
    let record = ordered.record(ordered.recorded().output.result);
    let mut wrong_key = record.clone();
    wrong_key.signature = node(1).sign(record.body.clone()).signature;
    let unknown = node(PROVIDER).sign(WorkRecord { order: Digest([7; 32]), ..record.body.clone() });
    let whole = body(&record, b"");
    let cases = [
        (whole[..3].to_vec(), ErrorCode::Truncated),
        (whole[..whole.len() - 1].to_vec(), ErrorCode::Truncated),
        ([&u32::MAX.to_le_bytes(), &whole[4..]].concat(), ErrorCode::TooLarge),
        ([&whole[..4], &[0xff; 4_000]].concat(), ErrorCode::Malformed),
        (body(&wrong_key, b"numbers"), ErrorCode::InvalidSignature),
        (body(&unknown, b"numbers"), ErrorCode::WorkOrderClosed),
    ];
    for (bytes, code) in cases {
        let found = ordered.shop.rejection_code("POST", "work/transcripts", bytes).await;
        assert_eq!(found, code);
    }
    // Nothing of it is left: the record itself is accepted.
    let (status, _) = ordered.shop.send("POST", "work/transcripts", body(&record, b"")).await;
    assert_eq!(status, StatusCode::OK);
    ordered.shop.stop().await;
}
