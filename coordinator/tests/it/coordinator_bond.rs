//! The coordinator deposits the bond that covers its settlements, once, and withdraws it after the
//! close. An operator names the arbiters that may slash it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use florin_coordinator::host::{JobProgress, LedgerJob, REFUSED_RETRY_PAUSE, advance};
use florin_engine::Event;
use florin_ledger::{EmbeddedChain, Genesis, Ledger, Objection, Settlement, Slash, Terms};
use florin_protocol::*;

use crate::support::*;
use crate::test_coordinator::*;

const WINDOW_MS: u64 = 1_000;

/// A ledger with a task of 90 FLN for data and 9 FLN for infrastructure in three rounds: 33 FLN a
/// round.
struct LedgerFixture {
    chain: EmbeddedChain,
    now: Arc<AtomicU64>,
    task: TaskId,
    _folder: tempfile::TempDir,
}

fn wallet() -> SeededWallet {
    SeededWallet::number(COORDINATOR)
}

impl LedgerFixture {
    /// A ledger on which the coordinator has this balance.
    fn new(balance: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.redb");
        let allocations = vec![(address(BUYER), fln("1000")), (address(COORDINATOR), fln(balance))];
        let genesis = Genesis {
            chain_id: ChainId(31_337),
            operator: address(COORDINATOR),
            operator_key: node(COORDINATOR).key(),
            allocations,
            created: Timestamp(1),
        };
        EmbeddedChain::create(&path, &genesis).unwrap();
        let now = Arc::new(AtomicU64::new(10));
        let clock = Arc::clone(&now);
        let read = move || Timestamp(clock.load(Ordering::SeqCst));
        let chain = EmbeddedChain::open(&path, node(COORDINATOR), Arc::new(read)).unwrap();
        let mut spec = spec();
        spec.budget.infrastructure = fln("9");
        spec.budget.floor_share = Micro::ONE;
        spec.budget.challenge_ms = WINDOW_MS;
        let task = spec.id();
        chain.open_task(&SeededWallet::number(BUYER), &Terms::from_spec(&spec)).unwrap();
        Self { chain, now, task, _folder: folder }
    }

    fn wait_ms(&self, ms: u64) {
        self.now.fetch_add(ms, Ordering::SeqCst);
    }

    fn bond(&self) -> Amount {
        self.chain.bond_of(self.task, address(COORDINATOR)).unwrap().amount
    }

    /// The job that posts a round with this total for data, as a coordinator creates it after every
    /// start.
    fn post(&self, round: u32, total: &str) -> LedgerJob {
        let previous = self.chain.task(self.task).unwrap().unwrap();
        let last = previous.pending.last().map_or(previous.root, |last| last.settlement.root);
        let settlement = Settlement {
            task: self.task,
            payout: Report::settlement_id(self.task, RoundNumber(round)),
            round: RoundNumber(round),
            report: Digest([1; 32]),
            previous_root: last,
            root: Digest([round as u8; 32]),
            data_total: fln(total),
            score_pay_total: Amount::ZERO,
            infrastructure_total: Amount::ZERO,
            improvement_total_nano: 0,
        };
        LedgerJob::Post { settlement, predecessor: None }
    }

    fn advance(&self, mut job: LedgerJob) -> JobProgress {
        advance(&mut job, &self.chain, &wallet()).unwrap()
    }

    fn expect_posted(&self, job: LedgerJob) {
        let JobProgress::Done(event) = self.advance(job) else { panic!("not posted") };
        assert!(matches!(*event, Event::SettlementPosted { .. }), "{event:?}");
    }

    fn expect_wait(&self, job: LedgerJob, pause: Duration) {
        let JobProgress::Wait(wait) = self.advance(job) else { panic!("done") };
        assert_eq!(wait, pause);
    }
}

#[test]
fn a_settlement_is_covered_before_it_is_posted_and_once_despite_a_crash() {
    let ledger = LedgerFixture::new("1000");
    // 20 for the settlement and a round's 33 for the next one.
    ledger.expect_wait(ledger.post(1, "20"), Duration::ZERO);
    assert_eq!(ledger.bond(), fln("53"));
    // After a crash between the deposit and the post, the job begins again.
    let again = ledger.post(1, "20");
    ledger.expect_posted(again.clone());
    ledger.expect_posted(again);
    assert_eq!(ledger.bond(), fln("53"));
    ledger.expect_posted(ledger.post(2, "53"));
    // 54 are pending, and 99 for three rounds: at most the budget of 99.
    ledger.expect_wait(ledger.post(3, "54"), Duration::ZERO);
    assert_eq!(ledger.bond(), fln("99"));
    ledger.expect_posted(ledger.post(3, "54"));
    assert_eq!(ledger.chain.balance(address(COORDINATOR)).unwrap(), fln("901"));
}

#[test]
fn final_pay_needs_no_cover_and_a_slashed_or_returning_bond_is_filled_up() {
    let ledger = LedgerFixture::new("1000");
    ledger.expect_wait(ledger.post(1, "20"), Duration::ZERO);
    ledger.expect_posted(ledger.post(1, "20"));
    ledger.wait_ms(WINDOW_MS + 1);
    ledger.chain.finalize(&wallet(), ledger.task).unwrap();
    ledger.expect_posted(ledger.post(2, "60"));
    let (task, account) = (ledger.task, address(COORDINATOR));
    let amount = fln("50");
    let slash = Slash { task, account, stake: false, amount, evidence: Digest([2; 32]) };
    ledger.chain.slash(&SeededWallet::number(ARBITER), &slash).unwrap();
    ledger.chain.unbond(&wallet(), task).unwrap();
    // 41 are not final, and 66 for two rounds: at most the 79 that are left of the budget.
    ledger.expect_wait(ledger.post(3, "61"), Duration::ZERO);
    assert_eq!(ledger.bond(), fln("79"));
    ledger.expect_posted(ledger.post(3, "61"));
}

#[test]
fn a_settlement_waits_while_the_wallet_has_too_little_for_the_bond() {
    let ledger = LedgerFixture::new("19");
    ledger.expect_wait(ledger.post(1, "20"), REFUSED_RETRY_PAUSE);
    assert_eq!(ledger.bond(), Amount::ZERO, "a bond that covers nothing is not deposited");
    ledger.chain.transfer(&SeededWallet::number(BUYER), address(COORDINATOR), fln("6")).unwrap();
    // Everything that the wallet has, up to what later settlements need.
    ledger.expect_wait(ledger.post(1, "20"), Duration::ZERO);
    assert_eq!(ledger.bond(), fln("25"));
    ledger.expect_posted(ledger.post(1, "20"));
}

#[test]
fn the_bond_returns_after_the_close_as_soon_as_the_ledger_allows_it() {
    let ledger = LedgerFixture::new("1000");
    let return_bond = || LedgerJob::ReturnBond { task: ledger.task };
    let is_returned = |progress| match progress {
        JobProgress::Done(event) => *event == Event::BondReturned { task: ledger.task },
        JobProgress::Wait(_) => false,
    };
    let last = spec().rounds.count;
    ledger.expect_wait(ledger.post(last, "20"), Duration::ZERO);
    ledger.expect_posted(ledger.post(last, "20"));
    ledger.wait_ms(WINDOW_MS + 1);
    ledger.chain.close(&wallet(), ledger.task).unwrap();
    // Two windows after the post: 999 ms from now.
    ledger.expect_wait(return_bond(), Duration::from_millis(WINDOW_MS));
    ledger.wait_ms(WINDOW_MS - 1);
    assert!(is_returned(ledger.advance(return_bond())));
    assert_eq!(ledger.chain.balance(address(COORDINATOR)).unwrap(), fln("1000"));
    assert!(is_returned(ledger.advance(return_bond())), "nothing is left");
}

#[test]
fn a_close_before_the_last_round_waits_for_its_announced_moment() {
    let ledger = LedgerFixture::new("1000");
    let close = || LedgerJob::Close { task: ledger.task };
    ledger.expect_wait(ledger.post(1, "20"), Duration::ZERO);
    ledger.expect_posted(ledger.post(1, "20"));
    ledger.expect_wait(close(), Duration::from_secs(1));
    ledger.wait_ms(WINDOW_MS + 1);
    // Not final yet: the first attempt finalises it, the second announces the close.
    let pause = florin_coordinator::host::CHALLENGE_POLL_INTERVAL;
    ledger.expect_wait(close(), pause);
    ledger.expect_wait(close(), pause);
    assert!(ledger.chain.task(ledger.task).unwrap().unwrap().closes_at.is_some());
    // An objection costs the bond; the close is announced again.
    let receipt = LedgerReceipt {
        task: ledger.task,
        round: RoundNumber(2),
        sender: address(BUYER),
        update: Digest([1; 32]),
    };
    let hash = receipt.signing_hash(ChainId(31_337));
    let objection = Objection { receipt, signature: wallet().sign_typed_data(hash).unwrap() };
    let taken = ledger.chain.object(&SeededWallet::number(BUYER), &objection).unwrap();
    assert!(taken >= fln("20") && ledger.bond().is_zero(), "{taken}");
    ledger.wait_ms(WINDOW_MS);
    ledger.expect_wait(close(), pause);
    ledger.wait_ms(WINDOW_MS);
    let JobProgress::Done(event) = ledger.advance(close()) else { panic!("not closed") };
    let refund = fln("79");
    assert_eq!(*event, Event::TaskClosed { task: ledger.task, refund });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_whose_arbiter_is_not_listed_is_refused() {
    for (arbiters, arbiter, accepted) in [
        (vec![], ARBITER, false),
        (vec![PROVIDER], ARBITER, false),
        (vec![PROVIDER, ARBITER], ARBITER, true),
        (vec![], COORDINATOR, true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let task = TaskSpec { arbiter: address(arbiter), ..digits_spec() };
        let listed = arbiters.iter().map(|n| address(*n)).collect();
        let coordinator =
            TestCoordinator::open_with(folder.path(), task.clone(), |c| c.arbiters = listed);
        let published: Result<TaskView, Rejection> = coordinator.post("tasks", &task).await;
        let refused = published.err();
        assert_eq!(refused.is_none(), accepted, "{arbiters:?}: {refused:?}");
        if let Some(rejection) = refused {
            assert_eq!(rejection.code, ErrorCode::ArbiterNotAccepted);
            assert!(rejection.message.contains("setting arbiters"), "{rejection}");
        }
        coordinator.stop().await;
    }
}
