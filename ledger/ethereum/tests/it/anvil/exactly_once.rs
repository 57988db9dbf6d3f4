//! Exactly-once payment: a crash at each step of a settlement, combined with reorganisations and
//! with dropped or replaced transactions.

use std::sync::Arc;
use std::thread;
#[expect(clippy::disallowed_types, reason = "a recovery has a time limit")]
use std::time::{Duration, Instant};

use florin_ledger::conformance::TestSigner;
use florin_ledger::{
    Claim, ClaimOutcome, Ledger, LedgerError, PostOutcome, Refusal, Settlement, SettlementStatus,
    Terms,
};
use florin_ledger_ethereum::{Endpoint, Settings};
use florin_protocol::merkle::{ClaimTotals, ClaimTree};
use florin_protocol::{
    Address, Amount, Digest, Micro, Report, RoundNumber, TaskId, Timestamp, WalletSigner,
};
use serde_json::json;

use super::faulty_endpoints::{CrashPoint, CrashingEndpoint};
use super::market::{AnvilMarket, TransactionFault, fln, settings, short_timeout};

/// Time limit of a recovery.
const RECOVERY_MAX: Duration = Duration::from_secs(10);
/// Maximum number of retries by the caller.
const RETRIES_MAX: usize = 20;
const CHALLENGE_MS: u64 = 60_000;
/// Empty blocks between the setup and the blocks that a reorganisation may remove.
const EMPTY_BLOCKS: u64 = 8;

/// The steps of a settlement (S0–S2 until planned, S3 signed and recorded, S4 broadcast, S5 mined,
/// S6 reported as done), and the crash point of each.
const STEPS: [(&str, CrashPoint); 7] = [
    ("S0 before anything", CrashPoint::Before("eth_blockNumber")),
    ("S1 planning", CrashPoint::Before("eth_call")),
    ("S2 planned", CrashPoint::Before("eth_estimateGas")),
    ("S3 recorded", CrashPoint::Before("eth_sendRawTransaction")),
    ("S4 broadcast", CrashPoint::After("eth_sendRawTransaction")),
    ("S5 mined", CrashPoint::Before("eth_getTransactionReceipt")),
    ("S6 done", CrashPoint::Never),
];

const FAULTS: [TransactionFault; 3] =
    [TransactionFault::Undisturbed, TransactionFault::Dropped, TransactionFault::Replaced];
/// The delay of a late transaction.
const LATE: Duration = Duration::from_millis(150);

/// The write that is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InterruptedWrite {
    Post,
    Claim,
}

/// Retries a write until the ledger reports success, as the coordinator does.
fn retry_until_done<T>(
    ledger: &dyn Ledger,
    by: &dyn WalletSigner,
    mut act: impl FnMut() -> Result<T, LedgerError>,
) -> Result<T, Refusal> {
    let mut last = String::new();
    for _ in 0..RETRIES_MAX {
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
    panic!("no success in {RETRIES_MAX} attempts: {last}")
}

/// A task with one settlement that pays one account.
struct SettlementCase {
    what: String,
    coordinator: TestSigner,
    alice: Address,
    settlement: Settlement,
    claim: Claim,
    refund: Amount,
}

impl SettlementCase {
    fn open(scene: &mut AnvilMarket, ledger: &dyn Ledger, what: String) -> Self {
        let (coordinator, alice) = (scene.new_account(), scene.new_account());
        let mut task = TaskId([7; 32]);
        task.0[..8].copy_from_slice(&scene.number().to_le_bytes());
        let terms = Terms {
            task,
            buyer: scene.funder.address(),
            coordinator: coordinator.address(),
            // Its own arbiter, so that no bond is required.
            arbiter: coordinator.address(),
            data: fln(20),
            infrastructure: fln(5),
            rounds: 2,
            per_nat_max: fln(1),
            floor_share: Micro::ONE,
            bond_min: fln(1),
            debit_max: fln(1),
            stake_min: fln(1),
            challenge_ms: CHALLENGE_MS,
            unbond_ms: CHALLENGE_MS,
            expires: Timestamp(ledger.now().unwrap().0 + 100_000_000),
        };
        ledger.open_task(&scene.funder, &terms).unwrap();
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
            score_pay_total: Amount::ZERO,
            infrastructure_total: Amount::ZERO,
            improvement_total_nano: 0,
        };
        let proof = tree.proof(alice, totals).unwrap();
        let claim = Claim { task, account: alice, totals, proof };
        Self { what, coordinator, alice, settlement, claim, refund: fln(18) }
    }

    /// Waits until the settlement's window is over, and finalises it.
    fn finalize(&self, scene: &AnvilMarket, ledger: &dyn Ledger) {
        let (by, task) = (&self.coordinator, self.settlement.task);
        scene.wait(CHALLENGE_MS + 1_000);
        retry_until_done(ledger, by, || ledger.finalize(by, task)).unwrap();
        let status =
            retry_until_done(ledger, by, || ledger.settlement_status(task, self.settlement.payout));
        assert_eq!(status.unwrap(), SettlementStatus::Final, "{}", self.what);
    }

    /// Checks that every amount is paid once, to the last unit, and stays so.
    fn assert_paid_once(&self, scene: &AnvilMarket, ledger: &dyn Ledger) {
        let (what, by, task) = (&self.what, &self.coordinator, self.settlement.task);
        assert_eq!(ledger.balance(self.alice).unwrap(), fln(7), "{what}");
        let again = ledger.claim(by, &self.claim);
        assert!(matches!(again, Err(LedgerError::Refused(Refusal::NothingToClaim))), "{what}");
        let before = ledger.balance(scene.funder.address()).unwrap();
        let refund = retry_until_done(ledger, by, || ledger.close(by, task)).unwrap();
        assert_eq!(refund, self.refund, "{what}");
        let after = ledger.balance(scene.funder.address()).unwrap();
        assert_eq!(after.minus(before).unwrap(), self.refund, "{what}");
        let books = ledger.task(task).unwrap().unwrap();
        assert_eq!((books.owed, books.refunded), (Amount::ZERO, self.refund), "{what}");
    }
}

/// The settings: a process that does not crash gets the time it needs.
fn settings_for(death: CrashPoint) -> Settings {
    if death == CrashPoint::Never { settings() } else { short_timeout() }
}

/// One combination, from the opening of a task to its end.
#[expect(clippy::disallowed_types, reason = "a recovery has a time limit")]
fn combination(
    scene: &mut AnvilMarket,
    leg: InterruptedWrite,
    (step, death): (&str, CrashPoint),
    depth: u64,
    fate: TransactionFault,
) {
    let folder = tempfile::tempdir().unwrap();
    let steady = scene.open(Arc::clone(&scene.anvil.endpoint), settings(), folder.path());
    let what = format!("{leg:?}, {step}, reorganised {depth}, {fate:?}");
    let case = SettlementCase::open(scene, &steady, what);
    let (what, by) = (&case.what, &case.coordinator);
    eprintln!("{what}");
    if leg == InterruptedWrite::Claim {
        assert_eq!(steady.post(by, &case.settlement).unwrap(), PostOutcome::Posted);
        case.finalize(scene, &steady);
    }
    drop(steady);
    scene.mine(EMPTY_BLOCKS);
    // The process that crashes.
    let before = scene.nonce(by.address(), "latest");
    let flaky = CrashingEndpoint::new(&scene.anvil.endpoint, death);
    let ledger =
        scene.open(Arc::clone(&flaky) as Arc<dyn Endpoint>, settings_for(death), folder.path());
    if fate != TransactionFault::Undisturbed && step.starts_with("S4") {
        scene.anvil.request("evm_setAutomine", json!([false]));
    }
    flaky.arm();
    let ended = match leg {
        InterruptedWrite::Post => ledger.post(by, &case.settlement).map(drop),
        InterruptedWrite::Claim => ledger.claim(by, &case.claim).map(drop),
    };
    assert_eq!(ended.is_ok(), death == CrashPoint::Never, "{what}: {ended:?}");
    drop(ledger);
    scene.apply_fault(by, fate, depth, before);
    assert_eq!(scene.anvil.chain_fault(), None, "{what}: anvil has lost blocks");
    // The process after the restart.
    let begun = Instant::now();
    let ledger = scene.open(Arc::clone(&scene.anvil.endpoint), settings(), folder.path());
    ledger.resume(by).unwrap();
    // A write that was reported as done is not repeated by the caller: the outbox alone must
    // preserve it.
    let reported = death == CrashPoint::Never;
    if leg == InterruptedWrite::Post {
        if !reported {
            retry_until_done(&ledger, by, || ledger.post(by, &case.settlement)).unwrap();
        }
        case.finalize(scene, &ledger);
    }
    if leg == InterruptedWrite::Post || !reported {
        match retry_until_done(&ledger, by, || ledger.claim(by, &case.claim)) {
            Ok(ClaimOutcome { paid, .. }) => assert_eq!(paid, fln(7), "{what}"),
            Err(refusal) => assert_eq!(refusal, Refusal::NothingToClaim, "{what}"),
        }
    }
    let took = begun.elapsed();
    assert!(took < RECOVERY_MAX, "{what}: {took:?}");
    case.assert_paid_once(scene, &ledger);
}

/// A transfer, for which the contracts cannot recognise a repetition: the outbox alone ensures that
/// it is executed once. A caller without a success report repeats the request.
fn transfer(
    scene: &mut AnvilMarket,
    (step, death): (&str, CrashPoint),
    depth: u64,
    fate: TransactionFault,
) {
    let what = format!("transfer, {step}, reorganised {depth}, {fate:?}");
    let folder = tempfile::tempdir().unwrap();
    let steady = scene.open(Arc::clone(&scene.anvil.endpoint), settings(), folder.path());
    let (by, alice) = (scene.new_account(), scene.new_account().address());
    steady.transfer(&scene.funder, by.address(), fln(10)).unwrap();
    drop(steady);
    scene.mine(EMPTY_BLOCKS);
    let before = scene.nonce(by.address(), "latest");
    let flaky = CrashingEndpoint::new(&scene.anvil.endpoint, death);
    let ledger =
        scene.open(Arc::clone(&flaky) as Arc<dyn Endpoint>, settings_for(death), folder.path());
    if fate == TransactionFault::Delayed
        || fate != TransactionFault::Undisturbed && step.starts_with("S4")
    {
        scene.anvil.request("evm_setAutomine", json!([false]));
    }
    flaky.arm();
    // A transfer needs no block number: one crash point less.
    let reported = ledger.transfer(&by, alice, fln(3)).is_ok();
    assert_eq!(reported, !flaky.has_crashed() && fate != TransactionFault::Delayed, "{what}");
    drop(ledger);
    scene.apply_fault(&by, fate, depth, before);
    let ledger = scene.open(Arc::clone(&scene.anvil.endpoint), settings(), folder.path());
    thread::scope(|scope| {
        scope.spawn(|| {
            if fate == TransactionFault::Delayed {
                thread::sleep(LATE);
                scene.resume_mining();
            }
        });
        ledger.resume(&by).unwrap();
        if !reported {
            retry_until_done(&ledger, &by, || ledger.transfer(&by, alice, fln(3))).unwrap();
        }
    });
    scene.mine(2);
    ledger.resume(&by).unwrap();
    assert_eq!(ledger.balance(alice).unwrap(), fln(3), "{what}");
    assert_eq!(ledger.balance(by.address()).unwrap(), fln(7), "{what}");
}

/// Every crash point, every depth, every one of these faults.
fn run_combinations(
    first: u64,
    fates: &[TransactionFault],
    mut combination: impl FnMut(&mut AnvilMarket, (&str, CrashPoint), u64, TransactionFault),
) {
    let mut scene = AnvilMarket::set(first);
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
    run_combinations(10_000, &FAULTS, |scene, step, depth, fate| {
        combination(scene, InterruptedWrite::Post, step, depth, fate)
    });
}

#[test]
fn a_claim_pays_exactly_once_despite_crashes_and_reorganisations() {
    run_combinations(20_000, &FAULTS, |scene, step, depth, fate| {
        combination(scene, InterruptedWrite::Claim, step, depth, fate)
    });
}

#[test]
fn a_transfer_is_executed_exactly_once_despite_crashes_and_reorganisations() {
    run_combinations(
        30_000,
        &[
            TransactionFault::Undisturbed,
            TransactionFault::Dropped,
            TransactionFault::Replaced,
            TransactionFault::Delayed,
        ],
        transfer,
    );
}

#[test]
fn a_settlement_is_posted_again_if_a_reorganisation_changed_its_predecessor() {
    let mut scene = AnvilMarket::set(40_000);
    let folder = tempfile::tempdir().unwrap();
    let ledger = scene.open(Arc::clone(&scene.anvil.endpoint), settings(), folder.path());
    let case = SettlementCase::open(&mut scene, &ledger, "two settlements".to_owned());
    let (by, first) = (&case.coordinator, case.settlement);
    let second = Settlement {
        payout: Report::settlement_id(first.task, RoundNumber(2)),
        round: RoundNumber(2),
        previous_root: first.root,
        ..first
    };
    scene.mine(EMPTY_BLOCKS);
    ledger.post(by, &first).unwrap();
    ledger.post(by, &second).unwrap();
    // Both are removed and broadcast again a minute later: the second one's list names a time that
    // no longer exists.
    scene.anvil.reorganise(3);
    scene.anvil.request("evm_increaseTime", json!([60]));
    scene.mine(1);
    assert!(matches!(
        ledger.settlement_status(first.task, second.payout),
        Err(LedgerError::Unavailable(_))
    ));
    ledger.resume(by).unwrap();
    for settlement in [first, second] {
        let status = ledger.settlement_status(first.task, settlement.payout).unwrap();
        assert_eq!(status, SettlementStatus::Pending, "{}", settlement.round);
    }
}
