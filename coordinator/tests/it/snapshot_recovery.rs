//! Recovery from a snapshot and the journal suffix equals replay of the whole journal, for any
//! positions of the snapshots and of the crash.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use florin_coordinator::config::JournalSettings as Settings;
use florin_coordinator::host::snapshotter::{STATE_VERSION, to_bytes, with_replay_target};
use florin_engine::{Engine, Event};
use florin_protocol::*;
use florin_store::recovery::OldSegments;
use florin_store::{Journal, JournalEntry, LocalVolume, Snapshot, Volume, journal, recovery};
use proptest::prelude::*;

use crate::crash_recovery::{new_ledger, start, start_with};
use crate::journal_replay::{RandomStep, step};
use crate::support::*;

const OWNER: Digest = Digest([5; 32]);

fn open(folder: &Path) -> (Engine, Journal) {
    let volume: Arc<dyn Volume> = Arc::new(LocalVolume(folder.to_owned()));
    let coordinator = address(COORDINATOR);
    with_replay_target(market(), coordinator, |fold| journal::open(&volume, OWNER, fold)).unwrap()
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn recovery_from_a_snapshot_and_the_journal_suffix_equals_full_replay_after_any_batch(
        steps in prop::collection::vec(step(), 1..80),
        batch in 1..4usize,
        every in 1..6usize,
        retain in any::<bool>(),
    ) {
        let mut world = EngineFixture::with_published_task(5);
        for step in steps {
            if let RandomStep::Wait(ms) = step {
                world.now = world.now.saturating_add_ms(ms);
            }
            if let Some(event) = world.event(step) {
                let _ = world.apply(event);
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let (mut live, mut journal) = open(dir.path());
        for (number, entries) in (1usize..).zip(world.journal.chunks(batch)) {
            let records: Vec<JournalEntry> = entries
                .iter()
                .map(|(now, event): &(Timestamp, Event)| JournalEntry { now: *now, event: event.clone() })
                .collect();
            records.iter().for_each(|record| drop(live.apply(&record.event, record.now).unwrap()));
            journal.append(&records).unwrap();
            if number % every == 0 {
                let at = journal.rotate_segment().unwrap();
                let taken = Snapshot { at, state: to_bytes(live.state()).unwrap() };
                let volume = LocalVolume(dir.path().to_owned());
                let old_segments =
                    if retain { OldSegments::Retain } else { OldSegments::Remove };
                recovery::store_snapshot(&volume, OWNER, &taken, old_segments).unwrap();
            }
            let crashed = tempfile::tempdir().unwrap();
            copy(dir.path(), crashed.path());
            let (again, journal) = open(crashed.path());
            prop_assert_eq!(again.state(), live.state());
            prop_assert_eq!(journal.records(), number as u64);
            prop_assert!(journal.growth().records < every as u64);
        }
        prop_assert_eq!(live.state(), world.engine.state());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_with_snapshots_plays_the_same_rounds_and_recovers_from_the_last() {
    let expected = {
        let (dir, ledger) = (tempfile::tempdir().unwrap(), new_ledger());
        let whole = start(dir.path(), &ledger, 0);
        let played = whole.play().await;
        whole.stop().await;
        played
    };
    for retain in [true, false] {
        let (dir, ledger) = (tempfile::tempdir().unwrap(), new_ledger());
        let settings = Settings { snapshot_events: 3, retain, ..Settings::default() };
        let market = start_with(dir.path(), &ledger, 0, &settings);
        assert_eq!(market.play().await, expected);
        market.wait_until_idle().await;
        let state = market.host.read(|engine, _| engine.state().clone()).await.unwrap();
        market.stop().await;
        let names: Vec<String> = LocalVolume(dir.path().to_owned()).names().unwrap();
        let snapshots = names.iter().filter(|name| name.starts_with("snapshot-")).count();
        assert_eq!(snapshots, 2, "{names:?}");
        assert_eq!(names.iter().any(|name| name == "journal"), retain, "{names:?}");
        // The newest snapshot alone is sufficient for the state.
        let again = start_with(dir.path(), &ledger, 0, &settings);
        let read = again.host.read(|engine, _| engine.state().clone()).await.unwrap();
        assert_eq!(read, state);
        assert_eq!(again.play().await, expected);
        again.stop().await;
    }
}

#[test]
fn the_encoding_of_a_state_has_a_version() {
    let mut world = EngineFixture::in_valuing(4);
    world.apply(world.valued_event()).unwrap();
    world.now = world.now.saturating_add_ms(5_000);
    let _ = world.apply(Event::Tick);
    let bytes = to_bytes(world.engine.state()).unwrap();
    assert_eq!(bytes[..4], STATE_VERSION.to_le_bytes());
    let digest = blob_digest(&bytes).to_string();
    assert_eq!(
        (STATE_VERSION, digest.as_str()),
        (22, "9e83646202692bf4a5e8745c662bba574509b9d67c18d8c3d614132a1dc5cf71"),
        "the encoding of a state has changed: increment STATE_VERSION, and update both values here"
    );
}
