//! The outbox's guarantees for repeated requests: no executed transaction is repeated, and a
//! reverted one is executed again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use florin_ledger::Ledger;
use florin_ledger::conformance::TestSigner;
use florin_ledger_ethereum::limits::OUTBOX_PRUNE_DEPTH;
use florin_ledger_ethereum::{Deployment, Endpoint, EthereumLedger, Settings, Token, deploy};
use florin_protocol::{Address, WalletSigner};
use serde_json::{Value, json};

use super::faulty_endpoints::{AlteredEndpoint, CrashPoint, CrashingEndpoint};
use super::market::{AnvilMarket, TransactionFault, fln, settings};

/// More calls than any run here needs.
const CALLS_MAX: usize = 200;

/// An account with ten florins, and its outbox.
struct FundedAccount {
    by: TestSigner,
    folder: tempfile::TempDir,
}

impl FundedAccount {
    fn new(scene: &mut AnvilMarket) -> Self {
        let (by, folder) = (scene.new_account(), tempfile::tempdir().unwrap());
        let ledger = scene.open(Arc::clone(&scene.anvil.endpoint), settings(), scene.folder.path());
        ledger.transfer(&scene.funder, by.address(), fln(10)).unwrap();
        scene.mine(8);
        Self { by, folder }
    }

    fn ledger(&self, scene: &AnvilMarket) -> EthereumLedger {
        scene.open(Arc::clone(&scene.anvil.endpoint), settings(), self.folder.path())
    }

    /// A ledger whose process crashes; the endpoint records whether it has.
    fn crashing_ledger(
        &self,
        scene: &AnvilMarket,
        death: CrashPoint,
    ) -> (EthereumLedger, Arc<CrashingEndpoint>) {
        let flaky = CrashingEndpoint::new(&scene.anvil.endpoint, death);
        let endpoint = Arc::clone(&flaky) as Arc<dyn Endpoint>;
        // A live process has the time to detect a displaced nonce; a crashed one ends at once.
        let settings = Settings { write_timeout_ms: 500, displaced_ms: 20, ..settings() };
        let ledger = scene.open(endpoint, settings, self.folder.path());
        flaky.arm();
        (ledger, flaky)
    }
}

fn new_address(scene: &mut AnvilMarket) -> Address {
    scene.new_account().address()
}

#[test]
fn a_completed_transfer_is_not_sent_again_and_an_equal_second_one_is() {
    let mut scene = AnvilMarket::set(50_000);
    for calls in 1..CALLS_MAX {
        let (person, bob) = (FundedAccount::new(&mut scene), new_address(&mut scene));
        let (dying, flaky) = person.crashing_ledger(&scene, CrashPoint::AfterCalls(calls));
        let ended = dying.transfer(&person.by, bob, fln(3));
        drop(dying);
        // Another command with the same wallet runs in between, and resolves the pending
        // transaction.
        person.ledger(&scene).resume(&person.by).unwrap();
        let ledger = person.ledger(&scene);
        if ended.is_err() {
            ledger.transfer(&person.by, bob, fln(3)).unwrap();
        }
        assert_eq!(ledger.balance(bob).unwrap(), fln(3), "crashed after {calls} calls");
        // After a reported success, the same request is a second transfer.
        ledger.transfer(&person.by, bob, fln(3)).unwrap();
        assert_eq!(ledger.balance(bob).unwrap(), fln(6), "crashed after {calls} calls");
        if !flaky.has_crashed() {
            return;
        }
    }
    panic!("a transfer took more than {CALLS_MAX} calls");
}

#[test]
fn unreported_and_reverted_payments_stay_in_the_outbox_regardless_of_age() {
    let mut scene = AnvilMarket::set(110_000);
    let (person, bob) = (FundedAccount::new(&mut scene), new_address(&mut scene));
    let (dying, _) = person.crashing_ledger(&scene, CrashPoint::After("eth_sendRawTransaction"));
    dying.transfer(&person.by, bob, fln(2)).unwrap_err();
    drop(dying);
    scene.anvil.wait_until_mined();
    scene.mine(OUTBOX_PRUNE_DEPTH + 8);
    let ledger = person.ledger(&scene);
    ledger.resume(&person.by).unwrap();
    ledger.transfer(&person.by, bob, fln(2)).unwrap();
    assert_eq!(ledger.balance(bob).unwrap(), fln(2), "its success was not reported");
    ledger.transfer(&person.by, bob, fln(1)).unwrap();
    drop(ledger);
    scene.anvil.reorganise(2);
    scene.mine(OUTBOX_PRUNE_DEPTH + 8);
    let ledger = person.ledger(&scene);
    ledger.resume(&person.by).unwrap();
    assert_eq!(ledger.balance(bob).unwrap(), fln(3), "reported, and then reverted");
}

#[test]
fn a_market_detects_its_reverted_transaction_after_writes_of_another_market() {
    let mut scene = AnvilMarket::set(120_000);
    let (person, bob) = (FundedAccount::new(&mut scene), new_address(&mut scene));
    let token = Token::Existing(scene.deployment.token);
    let folder = scene.folder.path();
    let second = deploy(&scene.anvil.endpoint, &scene.funder, token, settings(), folder).unwrap();
    scene.mine(8);
    let before = scene.nonce(person.by.address(), "latest");
    person.ledger(&scene).transfer(&person.by, bob, fln(2)).unwrap();
    scene.apply_fault(&person.by, TransactionFault::Replaced, 2, before);
    let node = Arc::clone(&scene.anvil.endpoint);
    let there = EthereumLedger::open(node, second, settings(), person.folder.path()).unwrap();
    there.transfer(&person.by, bob, fln(3)).unwrap();
    let here = person.ledger(&scene);
    here.resume(&person.by).unwrap();
    assert_eq!(here.balance(bob).unwrap(), fln(5));
}

#[test]
fn a_reexecution_survives_a_crash_at_every_call() {
    let mut scene = AnvilMarket::set(60_000);
    for calls in 1..CALLS_MAX {
        let (person, bob) = (FundedAccount::new(&mut scene), new_address(&mut scene));
        let before = scene.nonce(person.by.address(), "latest");
        person.ledger(&scene).transfer(&person.by, bob, fln(3)).unwrap();
        // Its success was reported; now it is reverted, and another device uses its nonce.
        scene.apply_fault(&person.by, TransactionFault::Replaced, 3, before);
        let (dying, flaky) = person.crashing_ledger(&scene, CrashPoint::AfterCalls(calls));
        let _ = dying.resume(&person.by);
        drop(dying);
        let ledger = person.ledger(&scene);
        ledger.resume(&person.by).unwrap();
        ledger.resume(&person.by).unwrap();
        assert_eq!(ledger.balance(bob).unwrap(), fln(3), "crashed after {calls} calls");
        assert_eq!(ledger.balance(person.by.address()).unwrap(), fln(7));
        // Its success was reported once: the same request is a second transfer.
        ledger.transfer(&person.by, bob, fln(3)).unwrap();
        assert_eq!(ledger.balance(bob).unwrap(), fln(6), "crashed after {calls} calls");
        if !flaky.has_crashed() {
            return;
        }
    }
    panic!("a re-execution took more than {CALLS_MAX} calls");
}

#[test]
fn a_reverted_transfer_is_not_sent_again_automatically() {
    let mut scene = AnvilMarket::set(70_000);
    let (person, bob) = (FundedAccount::new(&mut scene), new_address(&mut scene));
    let before = scene.nonce(person.by.address(), "latest");
    // A node that returns the receipt only after the cause of the revert has disappeared.
    let shows = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&shows);
    let node = AlteredEndpoint::new(&scene.anvil.endpoint, move |method, answer| match method {
        "eth_getTransactionReceipt" if !seen.load(Ordering::SeqCst) => Ok(Value::Null),
        _ => answer,
    });
    let ledger = scene.open(node, Settings::default(), person.folder.path());
    scene.anvil.request("evm_setAutomine", json!([false]));
    thread::scope(|scope| {
        let sent = scope.spawn(|| ledger.transfer(&person.by, bob, fln(8)));
        while scene.pending_of(person.by.address()).is_empty() {
            thread::sleep(Duration::from_millis(5));
        }
        scene.set_florins(person.by.address(), fln(1));
        scene.resume_mining();
        scene.set_florins(person.by.address(), fln(10));
        shows.store(true, Ordering::SeqCst);
        let error = sent.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("check the ledger's state"), "{error}");
    });
    ledger.resume(&person.by).unwrap();
    assert_eq!(scene.nonce(person.by.address(), "latest"), before + 1);
    assert_eq!(ledger.balance(bob).unwrap(), fln(0));
    // After a check, the caller tries again.
    ledger.transfer(&person.by, bob, fln(8)).unwrap();
    assert_eq!(ledger.balance(bob).unwrap(), fln(8));
}

#[test]
fn two_markets_of_one_wallet_never_use_the_same_nonce() {
    let mut scene = AnvilMarket::set(80_000);
    let (person, bob) = (FundedAccount::new(&mut scene), new_address(&mut scene));
    let token = Token::Existing(scene.deployment.token);
    let folder = scene.folder.path();
    let second: Deployment =
        deploy(&scene.anvil.endpoint, &scene.funder, token, settings(), folder).unwrap();
    let before = scene.nonce(person.by.address(), "latest");
    let (dying, _) = person.crashing_ledger(&scene, CrashPoint::Before("eth_sendRawTransaction"));
    dying.transfer(&person.by, bob, fln(2)).unwrap_err();
    drop(dying);
    // The first market's transaction is signed and was never sent; the second market's nonce
    // follows it.
    let endpoint = Arc::clone(&scene.anvil.endpoint);
    let there = EthereumLedger::open(endpoint, second, settings(), person.folder.path()).unwrap();
    there.transfer(&person.by, bob, fln(3)).unwrap();
    assert_eq!(scene.nonce(person.by.address(), "latest"), before + 2);
    assert_eq!(there.balance(bob).unwrap(), fln(5));
    // The first one's success has not been reported yet.
    let here = person.ledger(&scene);
    here.transfer(&person.by, bob, fln(2)).unwrap();
    assert_eq!(scene.nonce(person.by.address(), "latest"), before + 2);
    here.transfer(&person.by, bob, fln(2)).unwrap();
    assert_eq!(here.balance(bob).unwrap(), fln(7));
}

#[test]
fn a_new_chain_with_the_same_id_starts_with_an_empty_outbox() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        // The same accounts and contracts each time, as after a restart of anvil.
        let mut scene = AnvilMarket::set(100_000);
        let (person, bob) = (FundedAccount::new(&mut scene), new_address(&mut scene));
        let before = scene.nonce(person.by.address(), "latest");
        let node = Arc::clone(&scene.anvil.endpoint);
        let ledger = scene.open(node, settings(), folder.path());
        ledger.transfer(&person.by, bob, fln(3)).unwrap();
        assert_eq!(scene.nonce(person.by.address(), "latest"), before + 1);
        assert_eq!(ledger.balance(bob).unwrap(), fln(3));
        // The genesis blocks of the two chains must differ, so their times must.
        thread::sleep(Duration::from_millis(1_100));
    }
}

#[test]
fn an_unsupported_number_of_confirmations_is_refused() {
    let scene = AnvilMarket::set(90_000);
    for confirmations in [0, 65] {
        let settings = Settings { confirmations, ..settings() };
        let endpoint = Arc::clone(&scene.anvil.endpoint);
        let folder = scene.folder.path();
        let opened = EthereumLedger::open(endpoint, scene.deployment, settings, folder);
        assert!(opened.unwrap_err().to_string().contains("from 1 to 64"), "{confirmations}");
    }
}
