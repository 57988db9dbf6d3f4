//! What an outbox promises to whoever asks again: what was done is not done twice, and what was undone is done anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use florin_ledger::Ledger;
use florin_ledger::conformance::TestSigner;
use florin_ledger::ethereum::{Deployment, Endpoint, EthereumLedger, Settings, Token, deploy};
use florin_ledger::limits::FORGET_DEPTH;
use florin_protocol::{Address, Signer};
use serde_json::{Value, json};

use super::flaky::{Altered, Death, Flaky};
use super::scene::{Fate, Scene, fln, settings};

/// More calls than any run here makes.
const CALLS_MAX: usize = 200;

/// Somebody with ten florins, and an outbox.
struct Person {
    by: TestSigner,
    folder: tempfile::TempDir,
}

impl Person {
    fn new(scene: &mut Scene) -> Self {
        let (by, folder) = (scene.person(), tempfile::tempdir().unwrap());
        let ledger = scene.open(Arc::clone(&scene.anvil.endpoint), settings(), scene.folder.path());
        ledger.transfer(&scene.rich, by.address(), fln(10)).unwrap();
        scene.mine(8);
        Self { by, folder }
    }

    fn ledger(&self, scene: &Scene) -> EthereumLedger {
        scene.open(Arc::clone(&scene.anvil.endpoint), settings(), self.folder.path())
    }

    /// A process that dies; the second says whether it has.
    fn dying(&self, scene: &Scene, death: Death) -> (EthereumLedger, Arc<Flaky>) {
        let flaky = Flaky::new(&scene.anvil.endpoint, death);
        let endpoint = Arc::clone(&flaky) as Arc<dyn Endpoint>;
        // Alive, it has the time to see that a nonce is lost; dead, it ends at once.
        let settings = Settings { patience_ms: 500, displaced_ms: 20, ..settings() };
        let ledger = scene.open(endpoint, settings, self.folder.path());
        flaky.arm();
        (ledger, flaky)
    }
}

fn other(scene: &mut Scene) -> Address {
    scene.person().address()
}

#[test]
fn a_transfer_that_was_seen_through_is_not_sent_again_and_an_equal_one_is() {
    let mut scene = Scene::set(50_000);
    for calls in 1..CALLS_MAX {
        let (person, bob) = (Person::new(&mut scene), other(&mut scene));
        let (dying, flaky) = person.dying(&scene, Death::AfterCalls(calls));
        let ended = dying.transfer(&person.by, bob, fln(3));
        drop(dying);
        // Another command of the same wallet comes in between, and sees to what was left.
        person.ledger(&scene).resume(&person.by).unwrap();
        let ledger = person.ledger(&scene);
        if ended.is_err() {
            ledger.transfer(&person.by, bob, fln(3)).unwrap();
        }
        assert_eq!(ledger.balance(bob).unwrap(), fln(3), "died after {calls} calls");
        // Whoever was told of it, and wants the same again, gets it.
        ledger.transfer(&person.by, bob, fln(3)).unwrap();
        assert_eq!(ledger.balance(bob).unwrap(), fln(6), "died after {calls} calls");
        if !flaky.is_dead() {
            return;
        }
    }
    panic!("a transfer took more than {CALLS_MAX} calls");
}

#[test]
fn neither_a_payment_untold_nor_one_undone_is_forgotten_because_it_is_old() {
    let mut scene = Scene::set(110_000);
    let (person, bob) = (Person::new(&mut scene), other(&mut scene));
    let (dying, _) = person.dying(&scene, Death::After("eth_sendRawTransaction"));
    dying.transfer(&person.by, bob, fln(2)).unwrap_err();
    drop(dying);
    scene.anvil.settle();
    scene.mine(FORGET_DEPTH + 8);
    let ledger = person.ledger(&scene);
    ledger.resume(&person.by).unwrap();
    ledger.transfer(&person.by, bob, fln(2)).unwrap();
    assert_eq!(ledger.balance(bob).unwrap(), fln(2), "nobody had been told of it");
    ledger.transfer(&person.by, bob, fln(1)).unwrap();
    drop(ledger);
    scene.anvil.reorganise(2);
    scene.mine(FORGET_DEPTH + 8);
    let ledger = person.ledger(&scene);
    ledger.resume(&person.by).unwrap();
    assert_eq!(ledger.balance(bob).unwrap(), fln(3), "it was told, and undone");
}

#[test]
fn a_market_sees_what_was_undone_though_another_has_written_since() {
    let mut scene = Scene::set(120_000);
    let (person, bob) = (Person::new(&mut scene), other(&mut scene));
    let token = Token::Existing(scene.deployment.token);
    let folder = scene.folder.path();
    let second = deploy(&scene.anvil.endpoint, &scene.rich, token, settings(), folder).unwrap();
    scene.mine(8);
    let before = scene.nonce(person.by.address(), "latest");
    person.ledger(&scene).transfer(&person.by, bob, fln(2)).unwrap();
    scene.befall(&person.by, Fate::Replaced, 2, before);
    let node = Arc::clone(&scene.anvil.endpoint);
    let there = EthereumLedger::open(node, second, settings(), person.folder.path()).unwrap();
    there.transfer(&person.by, bob, fln(3)).unwrap();
    let here = person.ledger(&scene);
    here.resume(&person.by).unwrap();
    assert_eq!(here.balance(bob).unwrap(), fln(5));
}

#[test]
fn what_is_being_done_anew_survives_a_death_at_every_call() {
    let mut scene = Scene::set(60_000);
    for calls in 1..CALLS_MAX {
        let (person, bob) = (Person::new(&mut scene), other(&mut scene));
        let before = scene.nonce(person.by.address(), "latest");
        person.ledger(&scene).transfer(&person.by, bob, fln(3)).unwrap();
        // It was reported; now it is undone, and another device takes its nonce.
        scene.befall(&person.by, Fate::Replaced, 3, before);
        let (dying, flaky) = person.dying(&scene, Death::AfterCalls(calls));
        let _ = dying.resume(&person.by);
        drop(dying);
        let ledger = person.ledger(&scene);
        ledger.resume(&person.by).unwrap();
        ledger.resume(&person.by).unwrap();
        assert_eq!(ledger.balance(bob).unwrap(), fln(3), "died after {calls} calls");
        assert_eq!(ledger.balance(person.by.address()).unwrap(), fln(7));
        // It was reported once: the same again is another one.
        ledger.transfer(&person.by, bob, fln(3)).unwrap();
        assert_eq!(ledger.balance(bob).unwrap(), fln(6), "died after {calls} calls");
        if !flaky.is_dead() {
            return;
        }
    }
    panic!("a redo took more than {CALLS_MAX} calls");
}

#[test]
fn a_transfer_that_reverts_is_not_sent_again_by_itself() {
    let mut scene = Scene::set(70_000);
    let (person, bob) = (Person::new(&mut scene), other(&mut scene));
    let before = scene.nonce(person.by.address(), "latest");
    // A node that shows the receipt only after the reason for the revert is gone again.
    let shows = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&shows);
    let node = Altered::new(&scene.anvil.endpoint, move |method, answer| match method {
        "eth_getTransactionReceipt" if !seen.load(Ordering::SeqCst) => Ok(Value::Null),
        _ => answer,
    });
    let ledger = scene.open(node, Settings::default(), person.folder.path());
    scene.anvil.ask("evm_setAutomine", json!([false]));
    thread::scope(|scope| {
        let sent = scope.spawn(|| ledger.transfer(&person.by, bob, fln(8)));
        while scene.pending_of(person.by.address()).is_empty() {
            thread::sleep(Duration::from_millis(5));
        }
        scene.set_florins(person.by.address(), fln(1));
        scene.mine_again();
        scene.set_florins(person.by.address(), fln(10));
        shows.store(true, Ordering::SeqCst);
        let error = sent.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("check the ledger's state"), "{error}");
    });
    ledger.resume(&person.by).unwrap();
    assert_eq!(scene.nonce(person.by.address(), "latest"), before + 1);
    assert_eq!(ledger.balance(bob).unwrap(), fln(0));
    // Whoever has looked tries again.
    ledger.transfer(&person.by, bob, fln(8)).unwrap();
    assert_eq!(ledger.balance(bob).unwrap(), fln(8));
}

#[test]
fn two_markets_with_one_wallet_never_give_a_nonce_to_both() {
    let mut scene = Scene::set(80_000);
    let (person, bob) = (Person::new(&mut scene), other(&mut scene));
    let token = Token::Existing(scene.deployment.token);
    let folder = scene.folder.path();
    let second: Deployment =
        deploy(&scene.anvil.endpoint, &scene.rich, token, settings(), folder).unwrap();
    let before = scene.nonce(person.by.address(), "latest");
    let (dying, _) = person.dying(&scene, Death::Before("eth_sendRawTransaction"));
    dying.transfer(&person.by, bob, fln(2)).unwrap_err();
    drop(dying);
    // The first market's transaction is signed and was never sent; the second market's comes after it.
    let endpoint = Arc::clone(&scene.anvil.endpoint);
    let there = EthereumLedger::open(endpoint, second, settings(), person.folder.path()).unwrap();
    there.transfer(&person.by, bob, fln(3)).unwrap();
    assert_eq!(scene.nonce(person.by.address(), "latest"), before + 2);
    assert_eq!(there.balance(bob).unwrap(), fln(5));
    // Nobody was told of the first yet.
    let here = person.ledger(&scene);
    here.transfer(&person.by, bob, fln(2)).unwrap();
    assert_eq!(scene.nonce(person.by.address(), "latest"), before + 2);
    here.transfer(&person.by, bob, fln(2)).unwrap();
    assert_eq!(here.balance(bob).unwrap(), fln(7));
}

#[test]
fn a_new_chain_with_an_old_number_begins_with_an_empty_outbox() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        // The same people and contracts each time, as on an anvil that is started anew.
        let mut scene = Scene::set(100_000);
        let (person, bob) = (Person::new(&mut scene), other(&mut scene));
        let before = scene.nonce(person.by.address(), "latest");
        let node = Arc::clone(&scene.anvil.endpoint);
        let ledger = scene.open(node, settings(), folder.path());
        ledger.transfer(&person.by, bob, fln(3)).unwrap();
        assert_eq!(scene.nonce(person.by.address(), "latest"), before + 1);
        assert_eq!(ledger.balance(bob).unwrap(), fln(3));
        // The next chain is not made in the same second.
        thread::sleep(Duration::from_millis(1_100));
    }
}

#[test]
fn a_depth_that_no_node_can_show_is_refused() {
    let scene = Scene::set(90_000);
    for confirmations in [0, 65] {
        let settings = Settings { confirmations, ..settings() };
        let endpoint = Arc::clone(&scene.anvil.endpoint);
        let folder = scene.folder.path();
        let opened = EthereumLedger::open(endpoint, scene.deployment, settings, folder);
        assert!(opened.unwrap_err().to_string().contains("use 1 to 64"), "{confirmations}");
    }
}
