//! Exactly-once payment: a crash at each step of a settlement, combined with reorganisations and
//! with dropped or replaced transactions.

use std::sync::Arc;
use std::thread;
#[expect(clippy::disallowed_types, reason = "a recovery has a time limit")]
use std::time::{Duration, Instant};

use florin_ledger::conformance::TestSigner;
use florin_ledger::{
    Claim, Claimed, Ledger, LedgerError, Posted, Refusal, Settlement, SettlementStatus, Terms,
};
use florin_ledger_ethereum::{Endpoint, Settings};
use florin_protocol::merkle::{ClaimTotals, ClaimTree};
use florin_protocol::{
    Address, Amount, Digest, Report, RoundNumber, TaskId, Timestamp, WalletSigner,
};
use serde_json::json;

use super::flaky::{Death, Flaky};
use super::scene::{Fate, Scene, fln, hasty, settings};

/// Time limit of a recovery.
const RECOVERY_MAX: Duration = Duration::from_secs(10);
/// Maximum number of retries by the caller.
const INSIST_MAX: usize = 20;
const CHALLENGE_MS: u64 = 60_000;
/// Empty blocks between the setup and the blocks that a reorganisation may remove.
const GROUND: u64 = 8;

/// The steps of a settlement (S0–S2 until planned, S3 signed and recorded, S4 broadcast, S5 mined,
/// S6 reported as done), and the crash point of each.
const STEPS: [(&str, Death); 7] = [
    ("S0 before anything", Death::Before("eth_blockNumber")),
    ("S1 planning", Death::Before("eth_call")),
    ("S2 planned", Death::Before("eth_estimateGas")),
    ("S3 recorded", Death::Before("eth_sendRawTransaction")),
    ("S4 broadcast", Death::After("eth_sendRawTransaction")),
    ("S5 mined", Death::Before("eth_getTransactionReceipt")),
    ("S6 done", Death::Never),
];

const FATES: [Fate; 3] = [Fate::Left, Fate::Dropped, Fate::Replaced];
/// The delay of a late transaction.
const LATE: Duration = Duration::from_millis(150);

/// The write that is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leg {
    Post,
    Claim,
}

/// Retries a write until the ledger reports success, as the coordinator does.
fn insist<T>(
    ledger: &dyn Ledger,
    by: &dyn WalletSigner,
    mut act: impl FnMut() -> Result<T, LedgerError>,
) -> Result<T, Refusal> {
    let mut last = String::new();
    for _ in 0..INSIST_MAX {
        match act() {
            Ok(done) => return Ok(done),
            Err(LedgerError::Unavailable(why)) => {
                last = why;
                ledger.resume(by).unwrap();
            }
            Err(LedgerError::Refused(refusal)) => return Err(refusal),
            Err(other) => panic!("{other}"),
        }
    }
    panic!("no success in {INSIST_MAX} attempts: {last}")
}

/// A task with one settlement that pays one account.
struct Case {
    what: String,
    coordinator: TestSigner,
    alice: Address,
    settlement: Settlement,
    claim: Claim,
    refund: Amount,
}

impl Case {
    fn open(scene: &mut Scene, ledger: &dyn Ledger, what: String) -> Self {
        let (coordinator, alice) = (scene.person(), scene.person());
        let mut task = TaskId([7; 32]);
        task.0[..8].copy_from_slice(&scene.number().to_le_bytes());
        let terms = Terms {
            task,
            buyer: scene.rich.address(),
            coordinator: coordinator.address(),
            arbiter: alice.address(),
            data: fln(20),
            infrastructure: fln(5),
            bond_min: fln(1),
            debit_max: fln(1),
            stake_min: fln(1),
            challenge_ms: CHALLENGE_MS,
            unbond_ms: CHALLENGE_MS,
            expires: Timestamp(ledger.now().unwrap().0 + 100_000_000),
        };
        ledger.open_task(&scene.rich, &terms).unwrap();
        let alice = alice.address();
        let totals = ClaimTotals { paid: fln(7), debited: Amount::ZERO };
        let tree = ClaimTree::new([(alice, totals)]);
        let settlement = Settlement {
            task,
            payout: Report::settlement_id(task, RoundNumber(1)),
            round: RoundNumber(1),
            report: Digest([9; 32]),
            previous_root: Digest::default(),
            root: tree.root(),
            data_total: fln(7),
            infrastructure_total: Amount::ZERO,
        };
        let proof = tree.proof(alice, totals).unwrap();
        let claim = Claim { task, account: alice, totals, proof };
        Self { what, coordinator, alice, settlement, claim, refund: fln(18) }
    }

    /// Waits until the settlement's window is over, and finalises it.
    fn finalize(&self, scene: &Scene, ledger: &dyn Ledger) {
        let (by, task) = (&self.coordinator, self.settlement.task);
        scene.wait(CHALLENGE_MS + 1_000);
        insist(ledger, by, || ledger.finalize(by, task)).unwrap();
        let status = insist(ledger, by, || ledger.settlement(task, self.settlement.payout));
        assert_eq!(status.unwrap(), SettlementStatus::Final, "{}", self.what);
    }

    /// Checks that every amount is paid once, to the last unit, and stays so.
    fn is_paid_once(&self, scene: &Scene, ledger: &dyn Ledger) {
        let (what, by, task) = (&self.what, &self.coordinator, self.settlement.task);
        assert_eq!(ledger.balance(self.alice).unwrap(), fln(7), "{what}");
        let again = ledger.claim(by, &self.claim);
        assert!(matches!(again, Err(LedgerError::Refused(Refusal::NothingToClaim))), "{what}");
        let before = ledger.balance(scene.rich.address()).unwrap();
        let refund = insist(ledger, by, || ledger.close(by, task)).unwrap();
        assert_eq!(refund, self.refund, "{what}");
        let after = ledger.balance(scene.rich.address()).unwrap();
        assert_eq!(after.minus(before).unwrap(), self.refund, "{what}");
        let books = ledger.task(task).unwrap().unwrap();
        assert_eq!((books.owed, books.refunded), (Amount::ZERO, self.refund), "{what}");
    }
}

/// The settings: a process that does not crash gets the time it needs.
fn patience(death: Death) -> Settings {
    if death == Death::Never { settings() } else { hasty() }
}

/// One combination, from the opening of a task to its end.
#[expect(clippy::disallowed_types, reason = "a recovery has a time limit")]
fn combination(scene: &mut Scene, leg: Leg, (step, death): (&str, Death), depth: u64, fate: Fate) {
    let folder = tempfile::tempdir().unwrap();
    let steady = scene.open(Arc::clone(&scene.anvil.endpoint), settings(), folder.path());
    let what = format!("{leg:?}, {step}, reorganised {depth}, {fate:?}");
    let case = Case::open(scene, &steady, what);
    let (what, by) = (&case.what, &case.coordinator);
    eprintln!("{what}");
    if leg == Leg::Claim {
        assert_eq!(steady.post(by, &case.settlement).unwrap(), Posted::New);
        case.finalize(scene, &steady);
    }
    drop(steady);
    scene.mine(GROUND);
    // The process that crashes.
    let before = scene.nonce(by.address(), "latest");
    let flaky = Flaky::new(&scene.anvil.endpoint, death);
    let ledger =
        scene.open(Arc::clone(&flaky) as Arc<dyn Endpoint>, patience(death), folder.path());
    if fate != Fate::Left && step.starts_with("S4") {
        scene.anvil.ask("evm_setAutomine", json!([false]));
    }
    flaky.arm();
    let ended = match leg {
        Leg::Post => ledger.post(by, &case.settlement).map(drop),
        Leg::Claim => ledger.claim(by, &case.claim).map(drop),
    };
    assert_eq!(ended.is_ok(), death == Death::Never, "{what}: {ended:?}");
    drop(ledger);
    scene.befall(by, fate, depth, before);
    assert_eq!(scene.anvil.fault(), None, "{what}: anvil has lost blocks");
    // The process after the restart.
    let begun = Instant::now();
    let ledger = scene.open(Arc::clone(&scene.anvil.endpoint), settings(), folder.path());
    ledger.resume(by).unwrap();
    // A write that was reported as done is not repeated by the caller: the outbox alone must
    // preserve it.
    let reported = death == Death::Never;
    if leg == Leg::Post {
        if !reported {
            insist(&ledger, by, || ledger.post(by, &case.settlement)).unwrap();
        }
        case.finalize(scene, &ledger);
    }
    if leg == Leg::Post || !reported {
        match insist(&ledger, by, || ledger.claim(by, &case.claim)) {
            Ok(Claimed { paid, .. }) => assert_eq!(paid, fln(7), "{what}"),
            Err(refusal) => assert_eq!(refusal, Refusal::NothingToClaim, "{what}"),
        }
    }
    let took = begun.elapsed();
    assert!(took < RECOVERY_MAX, "{what}: {took:?}");
    case.is_paid_once(scene, &ledger);
}

/// A transfer, for which the contracts cannot recognise a repetition: the outbox alone ensures that
/// it is executed once. A caller without a success report repeats the request.
fn transfer(scene: &mut Scene, (step, death): (&str, Death), depth: u64, fate: Fate) {
    let what = format!("transfer, {step}, reorganised {depth}, {fate:?}");
    let folder = tempfile::tempdir().unwrap();
    let steady = scene.open(Arc::clone(&scene.anvil.endpoint), settings(), folder.path());
    let (by, alice) = (scene.person(), scene.person().address());
    steady.transfer(&scene.rich, by.address(), fln(10)).unwrap();
    drop(steady);
    scene.mine(GROUND);
    let before = scene.nonce(by.address(), "latest");
    let flaky = Flaky::new(&scene.anvil.endpoint, death);
    let ledger =
        scene.open(Arc::clone(&flaky) as Arc<dyn Endpoint>, patience(death), folder.path());
    if fate == Fate::Late || fate != Fate::Left && step.starts_with("S4") {
        scene.anvil.ask("evm_setAutomine", json!([false]));
    }
    flaky.arm();
    // A transfer needs no block number: one crash point less.
    let reported = ledger.transfer(&by, alice, fln(3)).is_ok();
    assert_eq!(reported, !flaky.is_dead() && fate != Fate::Late, "{what}");
    drop(ledger);
    scene.befall(&by, fate, depth, before);
    let ledger = scene.open(Arc::clone(&scene.anvil.endpoint), settings(), folder.path());
    thread::scope(|scope| {
        scope.spawn(|| {
            if fate == Fate::Late {
                thread::sleep(LATE);
                scene.mine_again();
            }
        });
        ledger.resume(&by).unwrap();
        if !reported {
            insist(&ledger, &by, || ledger.transfer(&by, alice, fln(3))).unwrap();
        }
    });
    scene.mine(2);
    ledger.resume(&by).unwrap();
    assert_eq!(ledger.balance(alice).unwrap(), fln(3), "{what}");
    assert_eq!(ledger.balance(by.address()).unwrap(), fln(7), "{what}");
}

/// Every crash point, every depth, every one of these faults.
fn battery(
    first: u64,
    fates: &[Fate],
    mut combination: impl FnMut(&mut Scene, (&str, Death), u64, Fate),
) {
    let mut scene = Scene::set(first);
    for step in STEPS {
        for depth in 0..=6 {
            for fate in fates {
                combination(&mut scene, step, depth, *fate);
            }
        }
    }
}

#[test]
fn a_settlement_is_posted_exactly_once_despite_crashes_and_reorganisations() {
    battery(10_000, &FATES, |scene, step, depth, fate| {
        combination(scene, Leg::Post, step, depth, fate)
    });
}

#[test]
fn a_claim_pays_exactly_once_despite_crashes_and_reorganisations() {
    battery(20_000, &FATES, |scene, step, depth, fate| {
        combination(scene, Leg::Claim, step, depth, fate)
    });
}

#[test]
fn a_transfer_is_executed_exactly_once_despite_crashes_and_reorganisations() {
    battery(30_000, &[Fate::Left, Fate::Dropped, Fate::Replaced, Fate::Late], transfer);
}

#[test]
fn a_settlement_is_posted_again_if_a_reorganisation_changed_its_predecessor() {
    let mut scene = Scene::set(40_000);
    let folder = tempfile::tempdir().unwrap();
    let ledger = scene.open(Arc::clone(&scene.anvil.endpoint), settings(), folder.path());
    let case = Case::open(&mut scene, &ledger, "two settlements".to_owned());
    let (by, first) = (&case.coordinator, case.settlement);
    let second = Settlement {
        payout: Report::settlement_id(first.task, RoundNumber(2)),
        round: RoundNumber(2),
        previous_root: first.root,
        ..first
    };
    scene.mine(GROUND);
    ledger.post(by, &first).unwrap();
    ledger.post(by, &second).unwrap();
    // Both are removed and broadcast again a minute later: the second one's list names a time that
    // no longer exists.
    scene.anvil.reorganise(3);
    scene.anvil.ask("evm_increaseTime", json!([60]));
    scene.mine(1);
    assert!(matches!(
        ledger.settlement(first.task, second.payout),
        Err(LedgerError::Unavailable(_))
    ));
    ledger.resume(by).unwrap();
    for settlement in [first, second] {
        let status = ledger.settlement(first.task, settlement.payout).unwrap();
        assert_eq!(status, SettlementStatus::Pending, "{}", settlement.round);
    }
}
