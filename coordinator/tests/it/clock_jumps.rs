//! A coordinator restarted with its clock set ahead or back continues: its time never runs
//! backwards, due deadlines pass, and no round is paid twice.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use florin_engine::Event;
use florin_protocol::{RoundNumber, Timestamp};

use crate::crash_recovery::{TestHost, ends, events, new_ledger, posted, start, start_at};
use crate::support::FakeLedger;

/// The time at which the task is played, in milliseconds.
const PLAYED: u64 = 1_000;
/// After every deadline of a round, and before the task's expiry.
const LATER: Timestamp = Timestamp(PLAYED + 100_000);
/// Before the first event.
const EARLIER: Timestamp = Timestamp(0);

/// A journal to truncate after any record, with the ledger's settlements and the expected result.
struct Cuts {
    journal: Vec<u8>,
    expected: (Vec<florin_protocol::Digest>, florin_protocol::Amount),
    ledger: Arc<FakeLedger>,
}

impl Cuts {
    async fn of_a_whole_task() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ledger = new_ledger();
        let whole = start(dir.path(), &ledger, 0);
        let expected = whole.play().await;
        whole.stop().await;
        let journal = fs::read(dir.path().join("journal")).unwrap();
        Self { journal, expected, ledger }
    }

    /// The ends of all records.
    fn ends(&self) -> Vec<usize> {
        ends(&self.journal).split_off(1)
    }

    fn start(
        &self,
        end: usize,
        now: Timestamp,
        ledger: &Arc<FakeLedger>,
    ) -> (TestHost, tempfile::TempDir) {
        let known = posted(&self.journal[..end]);
        let settled = self.ledger.state.lock().unwrap().final_settlements.clone();
        let known = settled.into_iter().filter(|settlement| known.contains(&settlement.round));
        ledger.state.lock().unwrap().final_settlements.extend(known);
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("journal"), &self.journal[..end]).unwrap();
        (start_at(dir.path(), ledger, now), dir)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_with_an_earlier_clock_gives_the_same_reports_and_pays_once() {
    let cuts = Cuts::of_a_whole_task().await;
    for end in cuts.ends() {
        let ledger = new_ledger();
        let (host, _dir) = cuts.start(end, EARLIER, &ledger);
        let played = host.play().await;
        let now = host.host.read(|engine, _| engine.state().now).await.unwrap();
        host.stop().await;
        assert_eq!((played, now), (cuts.expected.clone(), Timestamp(PLAYED)), "cut at {end}");
        let (settled, again) = (&cuts.ledger.state, &ledger.state);
        assert_eq!(
            again.lock().unwrap().final_settlements,
            settled.lock().unwrap().final_settlements,
            "cut at {end}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_with_a_later_clock_ends_what_was_due_and_pays_each_round_once() {
    let cuts = Cuts::of_a_whole_task().await;
    for end in cuts.ends() {
        let valued = |event: &Event| matches!(event, Event::RoundValued { .. });
        let before = events(&cuts.journal[..end]).into_iter().filter(valued).count();
        let ledger = new_ledger();
        let (host, _dir) = cuts.start(end, LATER, &ledger);
        let (reports, _) = host.play().await;
        host.stop().await;
        assert_eq!(reports.len(), 3, "cut at {end}");
        assert_eq!(reports[..before], cuts.expected.0[..before], "cut at {end}");
        let settled: Vec<RoundNumber> = ledger
            .state
            .lock()
            .unwrap()
            .final_settlements
            .iter()
            .map(|settlement| settlement.round)
            .collect();
        let once: BTreeSet<RoundNumber> = settled.iter().copied().collect();
        assert!(settled.is_sorted() && once.len() == settled.len(), "cut at {end}: {settled:?}");
    }
}
