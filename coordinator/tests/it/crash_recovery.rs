//! Crash recovery: a coordinator that stops after any record continues with the same reports and
//! the same settlements, each posted once.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use borsh::BorshDeserialize;
use florin_coordinator::config::JournalSettings;
use florin_coordinator::host::{HostThreads, ManualClock};
use florin_coordinator::{DataFolder, Host, HostParts, Valuer, ValuerError};
use florin_engine::state::TaskState;
use florin_engine::{Effect, Engine, Event};
use florin_protocol::*;
use florin_store::{BlobStore, JournalEntry};
use florin_work::ValuationOutput;

use crate::support::*;
use florin_store::faulty_volume::FaultyVolume;

/// A valuer whose result depends only on the order, after failing `faults` times. In the first
/// round one update is harmful.
struct OrderValuer {
    faults: u32,
}

impl Valuer for OrderValuer {
    fn value_and_aggregate(
        &mut self,
        order: &WorkOrder,
        _: &[u32],
        _: &TaskSpec,
        _: &BlobStore,
    ) -> Result<ValuationOutput, ValuerError> {
        if self.faults > 0 {
            self.faults -= 1;
            return Err(ValuerError::Fault("injected fault".to_owned()));
        }
        let model = order.digest().0.to_vec();
        let scores = order.entries.iter().zip(1..).map(|(entry, i)| UpdateScore {
            account: entry.sender,
            score_nano: i * 10_000_000,
            error_nano: 1_000_000,
            excluded: false,
            preprocessing: florin_protocol::Preprocessing::default(),
        });
        let mut scores: Vec<UpdateScore> = scores.collect();
        if order.scope.round == RoundNumber(1) {
            (scores[0].score_nano, scores[0].excluded) = (-50_000_000, true);
        }
        let helped = scores.iter().filter(|score| !score.excluded);
        let total_nano = helped.map(|score| score.score_nano).sum();
        let valuation = Valuation {
            loss_before_nano: 2_000_000_000,
            loss_after_nano: 2_000_000_000 - total_nano,
            total_nano,
            gap_nano: 0,
            model_loss_nano: 0,
            stages: Vec::new(),
            scores,
            units: 5,
            evidence: ValuationEvidence::default(),
        };
        let (metrics, digest) = (ModelMetrics::default(), blob_digest(&model));
        let result = WorkResult { valuation, baseline: None, metrics, model: digest };
        Ok(ValuationOutput { result, model })
    }
}

pub(crate) struct TestHost {
    pub(crate) host: Host,
    running: HostThreads,
    pub(crate) id: TaskId,
}

pub(crate) fn parts(ledger: &Arc<FakeLedger>, faults: u32) -> HostParts {
    HostParts {
        ledger: ledger.clone(),
        wallet: Arc::new(SeededWallet::number(COORDINATOR)),
        node: node(COORDINATOR),
        valuers: vec![Box::new(OrderValuer { faults })],
        clock: Arc::new(ManualClock::new(Timestamp(1_000))),
        ledger_endpoint: echo(),
        ledger_copier: None,
    }
}

pub(crate) fn start(folder: &Path, ledger: &Arc<FakeLedger>, faults: u32) -> TestHost {
    start_with(folder, ledger, faults, &JournalSettings::default())
}

/// Starts a host and returns its error, if any.
pub(crate) fn try_start(folder: &Path, ledger: &Arc<FakeLedger>) -> Result<(), String> {
    let folder = DataFolder::open(folder).map_err(|error| error.to_string())?;
    Host::start(folder, parts(ledger, 0)).map(|_| ()).map_err(|error| error.to_string())
}

pub(crate) fn start_with(
    folder: &Path,
    ledger: &Arc<FakeLedger>,
    faults: u32,
    settings: &JournalSettings,
) -> TestHost {
    let folder = DataFolder::open(folder).unwrap();
    folder.blobs().put(&all_rows().0).unwrap();
    let (host, running) = Host::start_with(folder, parts(ledger, faults), settings).unwrap();
    TestHost { host, running, id: spec().id() }
}

/// Starts with a clock set to `now`.
pub(crate) fn start_at(folder: &Path, ledger: &Arc<FakeLedger>, now: Timestamp) -> TestHost {
    let folder = DataFolder::open(folder).unwrap();
    folder.blobs().put(&all_rows().0).unwrap();
    let parts = HostParts { clock: Arc::new(ManualClock::new(now)), ..parts(ledger, 0) };
    let (host, running) = Host::start(folder, parts).unwrap();
    TestHost { host, running, id: spec().id() }
}

pub(crate) fn new_ledger() -> Arc<FakeLedger> {
    let ledger = Arc::new(FakeLedger::default());
    ledger.open(&spec());
    ledger
}

impl TestHost {
    pub(crate) async fn stop(self) {
        self.host.stop().await;
        let running = self.running;
        drop(self.host);
        tokio::task::spawn_blocking(move || running.join()).await.unwrap();
    }

    pub(crate) async fn phase(&self) -> Option<(TaskPhase, u64)> {
        let id = self.id;
        let read = move |engine: &Engine, _| {
            engine.state().tasks.get(&id).map(|task| (task.phase(), task.sequence))
        };
        self.host.read(read).await.unwrap()
    }

    /// Sends the events that the participants would send in this phase.
    pub(crate) async fn send_events(&self, phase: Option<TaskPhase>) {
        let id = self.id;
        let world = self.host.read(move |engine, now| EngineFixture {
            engine: engine.clone(),
            spec: spec(),
            id,
            now,
            journal: Vec::new(),
        });
        let world = world.await.unwrap();
        if world.engine.state().tasks.get(&id).map(TaskState::phase) != phase {
            // The phase has changed meanwhile.
            return;
        }
        let mut events = Vec::new();
        match phase {
            None => {
                events
                    .extend((1..=4).map(|i| Event::Registered(registration(i, Role::Participant))));
                let spec = spec().into();
                events.push(Event::TaskPublished {
                    spec,
                    model_bytes: MODEL_BYTES,
                    update_bytes: MODEL_BYTES,
                });
            }
            Some(TaskPhase::AwaitingBlobs) => {
                events.push(Event::BlobArrived { task: id, digest: spec().base_model });
                let digest = blob_digest(&all_rows().0);
                events.push(Event::HoldoutArrived { task: id, digest });
            }
            Some(TaskPhase::Enrolling) => events.extend((1..=4).map(|i| world.enrol_event(i))),
            Some(TaskPhase::Committing) => events.extend((1..=4).map(|i| world.commit_event(i))),
            Some(TaskPhase::Revealing) => events.extend((1..=4).map(|i| world.reveal_event(i))),
            Some(_) => {}
        }
        for event in events {
            // After a restart, some events are repeats and some are too late.
            let _ = self.host.write(event).await;
        }
    }

    /// Waits until no effect is outstanding: after a task's end its last rounds are still archived.
    pub(crate) async fn wait_until_idle(&self) {
        let idle = async {
            while !self.host.read(|engine, _| engine.pending_effects().is_empty()).await.unwrap() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), idle).await.expect("an effect never ends");
    }

    /// Plays the task to its end; returns the digests of its reports, and the refund.
    pub(crate) async fn play(&self) -> (Vec<Digest>, Amount) {
        let mut changes = self.host.changes();
        let played = async {
            loop {
                changes.mark_unchanged();
                let at = self.phase().await;
                let phase = at.map(|(phase, _)| phase);
                if phase == Some(TaskPhase::Done) {
                    return;
                }
                self.send_events(phase).await;
                if self.phase().await == at {
                    changes.changed().await.unwrap();
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(30), played).await.expect("the task hangs");
        let id = self.id;
        let end = self.host.read(move |engine, _| {
            let task = &engine.state().tasks[&id];
            (task.rounds.iter().map(|ended| ended.report).collect(), task.refund.unwrap())
        });
        end.await.unwrap()
    }
}

/// The offsets at which the journal's header and each of its records end.
pub(crate) fn ends(journal: &[u8]) -> Vec<usize> {
    let mut ends = vec![128];
    while let Some(head) = journal.get(ends[ends.len() - 1]..).filter(|rest| rest.len() >= 8) {
        ends.push(ends[ends.len() - 1] + (40 + length(head)).next_multiple_of(64));
    }
    ends
}

/// The payload length of the record at the start of these bytes.
fn length(record: &[u8]) -> usize {
    usize::try_from(u32::from_le_bytes(record[..4].try_into().unwrap())).unwrap()
}

/// The records of a journal.
pub(crate) fn records(journal: &[u8]) -> Vec<JournalEntry> {
    let ends = ends(journal);
    let payload = |at: usize| &journal[at + 8..at + 8 + length(&journal[at..])];
    let payloads = ends[..ends.len() - 1].iter().map(|at| payload(*at));
    payloads.flat_map(|bytes| Vec::<JournalEntry>::try_from_slice(bytes).unwrap()).collect()
}

/// The events of a journal.
pub(crate) fn events(journal: &[u8]) -> Vec<Event> {
    records(journal).into_iter().map(|record| record.event).collect()
}

/// The rounds whose settlements are posted according to a journal.
pub(crate) fn posted(journal: &[u8]) -> Vec<RoundNumber> {
    let round = |event| match event {
        Event::SettlementPosted { round, .. } => Some(round),
        _ => None,
    };
    events(journal).into_iter().filter_map(round).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_after_any_record_gives_the_same_reports_and_pays_once() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = new_ledger();
    let whole = start(dir.path(), &ledger, 0);
    let expected = whole.play().await;
    whole.stop().await;
    assert_eq!(expected.0.len(), 3);
    let (settled, claims) = {
        let books = ledger.state.lock().unwrap();
        assert_eq!(books.claims_at_close, Some(1), "the debit is proven before the close");
        (books.final_settlements.clone(), books.claims.clone())
    };
    assert_eq!((settled.len(), claims.len()), (3, 1));
    let journal = fs::read(dir.path().join("journal")).unwrap();
    let ends = ends(&journal);
    assert!(ends.len() > 30, "{} records", ends.len());
    let proven = |end: usize| {
        events(&journal[..end]).iter().any(|event| matches!(event, Event::DebitsProven { .. }))
    };
    assert!(proven(journal.len()));
    for end in ends {
        // The crash happens before the ledger has any later transaction, or after it has all of
        // them.
        for ledger_ahead in [false, true] {
            let again = tempfile::tempdir().unwrap();
            fs::write(again.path().join("journal"), &journal[..end]).unwrap();
            let ledger = if ledger_ahead { ledger.clone() } else { new_ledger() };
            if !ledger_ahead {
                let posted = posted(&journal[..end]);
                let known = settled.iter().filter(|settlement| posted.contains(&settlement.round));
                ledger.state.lock().unwrap().final_settlements.extend(known.copied());
            }
            let host = start(again.path(), &ledger, 0);
            let (reports, refund) = host.play().await;
            host.stop().await;
            assert_eq!((&reports, refund), (&expected.0, expected.1), "{end} {ledger_ahead}");
            assert_eq!(
                ledger.state.lock().unwrap().final_settlements,
                settled,
                "{end} {ledger_ahead}"
            );
            // Proven once, also if the crash happens between the claim and its journal record.
            let count = ledger.state.lock().unwrap().claims.len();
            assert_eq!(count, usize::from(ledger_ahead || !proven(end)), "{end} {ledger_ahead}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_valuation_is_retried() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = new_ledger();
    let whole = start(dir.path(), &ledger, 2);
    let (reports, _) = whole.play().await;
    assert_eq!(reports.len(), 3);
    assert_eq!(ledger.state.lock().unwrap().final_settlements.len(), 3);
    whole.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unresponsive_ledger_delays_the_settlement_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = new_ledger();
    ledger.state.lock().unwrap().is_unavailable = true;
    let host = start(dir.path(), &ledger, 0);
    while host.phase().await.is_none_or(|(phase, _)| phase != TaskPhase::Settling) {
        let phase = host.phase().await.map(|(phase, _)| phase);
        host.send_events(phase).await;
    }
    host.stop().await;
    let host = start(dir.path(), &ledger, 0);
    assert_eq!(host.phase().await.unwrap().0, TaskPhase::Settling);
    ledger.state.lock().unwrap().is_unavailable = false;
    assert_eq!(host.play().await.0.len(), 3);
    assert_eq!(ledger.state.lock().unwrap().posts, 3);
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_stays_open_until_its_debits_are_proven_across_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = new_ledger();
    ledger.state.lock().unwrap().refuses_claims = true;
    let host = start(dir.path(), &ledger, 0);
    while ledger.state.lock().unwrap().final_settlements.len() < 3 {
        host.send_events(host.phase().await.map(|(phase, _)| phase)).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    host.stop().await;
    let host = start(dir.path(), &ledger, 0);
    let wanted = host.host.read(|engine, _| engine.pending_effects()).await.unwrap();
    assert!(!wanted.iter().any(|effect| matches!(effect, Effect::CloseTask { .. })), "{wanted:?}");
    ledger.state.lock().unwrap().refuses_claims = false;
    host.play().await;
    host.stop().await;
    let books = ledger.state.lock().unwrap();
    assert_eq!((books.claims.len(), books.claims_at_close), (1, Some(1)));
    let claim = &books.claims[0];
    assert!(!claim.totals.debited.is_zero(), "{claim:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_rejects_writes_and_serves_reads_until_it_has_space() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, room) = (new_ledger(), Arc::new(Mutex::new(4_000)));
    let folder = DataFolder::open(dir.path()).unwrap();
    let under = room.clone();
    folder.blobs().put(&all_rows().0).unwrap();
    let volume = FaultyVolume::with_free_space(dir.path(), under);
    let (host, running) =
        Host::start_on(folder, parts(&ledger, 0), &JournalSettings::default(), volume).unwrap();
    let shop = TestHost { host, running, id: spec().id() };
    let mut refused = None;
    for i in 1..=100 {
        let event = Event::Registered(registration(i, Role::Participant));
        if let Err(rejection) = shop.host.write(event).await {
            refused = Some((i, rejection.code));
            break;
        }
    }
    let (first, code) = refused.unwrap();
    assert_eq!(code, ErrorCode::StorageFull);
    let known = |shop: &TestHost| {
        let host = shop.host.clone();
        async move { host.read(|engine, _| engine.state().registrations.len()).await.unwrap() }
    };
    assert_eq!(known(&shop).await, usize::from(first) - 1);
    let again = Event::Registered(registration(first, Role::Participant));
    assert_eq!(shop.host.write(again.clone()).await.unwrap_err().code, ErrorCode::StorageFull);
    *room.lock().unwrap() = 10_000_000;
    shop.host.write(again).await.unwrap();
    assert_eq!(known(&shop).await, usize::from(first));
    assert_eq!(shop.play().await.0.len(), 3);
    shop.stop().await;
    let shop = start(dir.path(), &ledger, 0);
    assert_eq!(shop.phase().await.unwrap().0, TaskPhase::Done);
    shop.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_coordinator_on_the_same_folder_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = new_ledger();
    let first = start(dir.path(), &ledger, 0);
    let error = DataFolder::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("[DATA_FOLDER_IN_USE]"), "{error}");
    first.stop().await;
    start(dir.path(), &ledger, 0).stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_of_another_market_or_with_a_flipped_byte_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = new_ledger();
    let host = start(dir.path(), &ledger, 0);
    host.send_events(None).await;
    host.stop().await;
    let path = dir.path().join("journal");
    let mut bytes = fs::read(&path).unwrap();
    bytes[200] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let folder = DataFolder::open(dir.path()).unwrap();
    let error = Host::start(folder, parts(&ledger, 0)).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("record 1 at byte 128"), "{error}");
    assert!(error.to_string().contains("[JOURNAL_CORRUPT]"), "{error}");
    bytes[200] ^= 1;
    bytes[30] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let folder = DataFolder::open(dir.path()).unwrap();
    let error = Host::start(folder, parts(&ledger, 0)).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("[JOURNAL_HEADER_DAMAGED]"), "{error}");
    bytes[30] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let folder = DataFolder::open(dir.path()).unwrap();
    let error = Host::start(
        folder,
        HostParts { wallet: Arc::new(SeededWallet::number(COORDINATOR + 1)), ..parts(&ledger, 0) },
    )
    .map(|_| ())
    .unwrap_err();
    assert!(error.to_string().contains("[JOURNAL_OWNER_MISMATCH]"), "{error}");
}
