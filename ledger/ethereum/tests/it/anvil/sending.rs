//! Nonces, fees, timeouts, and faults between signature and block.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use alloy_primitives::{U64, U128};
use alloy_sol_types::SolCall;
use florin_ledger::conformance::TestSigner;
use florin_ledger::{Ledger, LedgerError, Refusal, Settlement, SettlementStatus, Terms};
use florin_ledger_ethereum::{
    Deployment, Endpoint, EndpointError, EthereumLedger, FlorinToken, HttpEndpoint, MarketContract,
    Settings, Token, deploy,
};
use florin_protocol::{
    Address, Amount, ChainId, Digest, Micro, Report, RoundNumber, TaskId, Timestamp, WalletSigner,
};
use serde_json::{Value, json};

use super::chain::AnvilNode;
use super::faulty_endpoints::{AlteredEndpoint, CrashPoint, CrashingEndpoint};

const TASK: TaskId = TaskId([3; 32]);

fn fln(n: u64) -> Amount {
    Amount::from_units(u128::from(n) * 1_000_000_000_000_000_000)
}

struct SendingFixture {
    anvil: AnvilNode,
    deployment: Deployment,
    folder: tempfile::TempDir,
    funder: TestSigner,
}

impl SendingFixture {
    fn set() -> Self {
        let anvil = AnvilNode::start(&[]);
        let funder = TestSigner::new(1).unwrap();
        anvil.fund_gas(funder.address());
        let folder = tempfile::tempdir().unwrap();
        let token = Token::New { supply: fln(1_000_000), holder: funder.address() };
        let deployment =
            deploy(&anvil.endpoint, &funder, token, Settings::default(), folder.path()).unwrap();
        Self { anvil, deployment, folder, funder }
    }

    fn ledger(&self, settings: Settings) -> EthereumLedger {
        self.ledger_through(Arc::clone(&self.anvil.endpoint), settings)
    }

    fn ledger_through(&self, endpoint: Arc<dyn Endpoint>, settings: Settings) -> EthereumLedger {
        EthereumLedger::open(endpoint, self.deployment, settings, self.folder.path()).unwrap()
    }

    fn new_account(&self, number: u64) -> TestSigner {
        let person = TestSigner::new(number).unwrap();
        self.anvil.fund_gas(person.address());
        person
    }

    fn nonce(&self) -> u64 {
        let account = self.funder.address().to_string();
        let count = self.anvil.request("eth_getTransactionCount", json!([account, "latest"]));
        serde_json::from_value::<U64>(count).unwrap().to()
    }

    /// Nonce and fee of the only pending transaction, if there is one.
    fn pending_transaction(&self) -> Option<(u64, u128)> {
        let pool = self.anvil.request("txpool_content", json!([]));
        let accounts = pool["pending"].as_object().unwrap();
        let transaction =
            accounts.values().flat_map(|by| by.as_object().unwrap().values()).next()?;
        let nonce: U64 = serde_json::from_value(transaction["nonce"].clone()).unwrap();
        let fee: U128 = serde_json::from_value(transaction["maxFeePerGas"].clone()).unwrap();
        Some((nonce.to(), fee.to()))
    }

    fn open_task(&self, ledger: &dyn Ledger, coordinator: Address, arbiter: Address) {
        let terms = Terms {
            task: TASK,
            buyer: self.funder.address(),
            coordinator,
            arbiter,
            data: fln(100),
            infrastructure: fln(10),
            rounds: 100,
            per_nat_max: fln(1),
            floor_share: Micro::ONE,
            bond_min: fln(1),
            debit_max: fln(1),
            stake_min: fln(1),
            challenge_ms: 600_000,
            unbond_ms: 600_000,
            expires: Timestamp(ledger.now().unwrap().0 + 100_000_000),
        };
        ledger.open_task(&self.funder, &terms).unwrap();
    }

    /// The coordinator's bond covers the whole deposit.
    fn cover(&self, ledger: &dyn Ledger, coordinator: &TestSigner) {
        ledger.transfer(&self.funder, coordinator.address(), fln(110)).unwrap();
        ledger.bond(coordinator, TASK, fln(110)).unwrap();
    }
}

/// Polls until there is a result.
fn poll_until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..2_000 {
        if let Some(found) = look() {
            return found;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("no result within ten seconds")
}

fn expect_gas_error(error: LedgerError) -> String {
    match error {
        LedgerError::Gas(what) => what,
        other => panic!("{other}"),
    }
}

#[test]
fn a_transaction_that_is_not_mined_is_replaced_with_a_higher_fee_and_the_same_nonce() {
    let stage = SendingFixture::set();
    let ledger = stage.ledger(Settings { resubmit_ms: 150, ..Settings::default() });
    let bob = TestSigner::new(2).unwrap().address();
    let before = stage.nonce();
    stage.anvil.request("evm_setAutomine", json!([false]));
    thread::scope(|scope| {
        let sent = scope.spawn(|| ledger.transfer(&stage.funder, bob, fln(5)));
        let (nonce, fee) = poll_until(|| stage.pending_transaction());
        assert_eq!(nonce, before);
        let (again, higher) =
            poll_until(|| stage.pending_transaction().filter(|(_, now)| *now > fee));
        assert_eq!(again, before, "the nonce stays the same");
        assert!(higher >= fee + fee / 10, "nodes require 10 % more: {fee}, then {higher}");
        stage.anvil.request("evm_mine", json!([]));
        sent.join().unwrap().unwrap();
    });
    assert_eq!(stage.nonce(), before + 1);
    assert_eq!(ledger.balance(bob).unwrap(), fln(5));
}

#[test]
fn gas_above_the_limits_is_refused() {
    let stage = SendingFixture::set();
    let (before, bob) = (stage.nonce(), TestSigner::new(2).unwrap().address());
    let cheap = stage.ledger(Settings { fee_max_wei: 1, ..Settings::default() });
    let what = expect_gas_error(cheap.transfer(&stage.funder, bob, fln(5)).unwrap_err());
    assert!(what.contains("above the limit of 1 wei"), "{what}");
    let small = stage.ledger(Settings { gas_max: 30_000, ..Settings::default() });
    let what = expect_gas_error(small.transfer(&stage.funder, bob, fln(5)).unwrap_err());
    assert!(what.contains("above the limit of 30000"), "{what}");
    assert_eq!((stage.nonce(), stage.pending_transaction()), (before, None));
}

#[test]
fn an_account_without_ether_gets_a_specific_error() {
    let stage = SendingFixture::set();
    let ledger = stage.ledger(Settings::default());
    let poor = TestSigner::new(9).unwrap();
    ledger.transfer(&stage.funder, poor.address(), fln(5)).unwrap();
    let error = ledger.transfer(&poor, stage.funder.address(), fln(1)).unwrap_err();
    let what = expect_gas_error(error);
    assert!(what.contains(&poor.address().to_string()) && what.contains("0.000000 ETH"), "{what}");
    ledger.send_ether(&stage.funder, poor.address(), 10_000_000_000_000_000).unwrap();
    ledger.transfer(&poor, stage.funder.address(), fln(1)).unwrap();
    assert_eq!(ledger.balance(poor.address()).unwrap(), fln(4));
}

#[test]
fn two_processes_with_one_wallet_are_serialised() {
    let stage = SendingFixture::set();
    let (before, bob) = (stage.nonce(), TestSigner::new(2).unwrap().address());
    thread::scope(|scope| {
        for _ in 0..2 {
            // Each thread has its own ledger: they share only the outbox.
            scope.spawn(|| {
                let ledger = stage.ledger(Settings::default());
                for _ in 0..5 {
                    ledger.transfer(&stage.funder, bob, fln(1)).unwrap();
                }
            });
        }
    });
    assert_eq!(stage.nonce(), before + 10);
    assert_eq!(stage.ledger(Settings::default()).balance(bob).unwrap(), fln(10));
}

#[test]
fn a_transaction_counts_only_with_enough_confirmations() {
    let stage = SendingFixture::set();
    let ledger = stage.ledger(Settings { confirmations: 3, ..Settings::default() });
    let bob = TestSigner::new(2).unwrap().address();
    let mine = || stage.anvil.request("evm_mine", json!([]));
    let before = stage.nonce();
    thread::scope(|scope| {
        let sent = scope.spawn(|| ledger.transfer(&stage.funder, bob, fln(5)));
        poll_until(|| (stage.nonce() > before).then_some(()));
        assert_eq!(ledger.balance(bob).unwrap(), Amount::ZERO, "one confirmation");
        mine();
        assert_eq!(ledger.balance(bob).unwrap(), Amount::ZERO, "two confirmations");
        assert!(!sent.is_finished());
        mine();
        sent.join().unwrap().unwrap();
    });
    assert_eq!(ledger.balance(bob).unwrap(), fln(5));
}

#[test]
fn after_a_reorganisation_reads_recover_without_resume() {
    let stage = SendingFixture::set();
    let ledger = stage.ledger(Settings::default());
    let bob = TestSigner::new(2).unwrap().address();
    ledger.transfer(&stage.funder, bob, fln(5)).unwrap();
    stage.anvil.reorganise(1);
    // Reads alone fail first and then succeed: neither a write nor `resume` is needed.
    let mut refused = 0;
    poll_until(|| match ledger.bond_of(TASK, bob) {
        Ok(bond) => Some(bond),
        Err(LedgerError::Unavailable(why)) => {
            assert!(why.contains("reorganised"), "{why}");
            refused += 1;
            None
        }
        Err(other) => panic!("{other}"),
    });
    assert!(refused > 0);
    assert_eq!(ledger.balance(bob).unwrap(), fln(5));
}

#[test]
fn the_markets_allowance_is_limited_to_the_amount_of_each_write() {
    let stage = SendingFixture::set();
    let ledger = stage.ledger(Settings::default());
    stage.open_task(&ledger, TestSigner::new(2).unwrap().address(), Address([5; 20]));
    ledger.bond(&stage.funder, TASK, fln(3)).unwrap();
    ledger.bond(&stage.funder, TASK, fln(4)).unwrap();
    let owner = stage.funder.address().0.into();
    let spender = stage.deployment.market.0.into();
    let data = FlorinToken::allowanceCall { owner, spender }.abi_encode();
    let call = json!({ "to": stage.deployment.token, "data": alloy_primitives::Bytes::from(data) });
    let left = stage.anvil.request("eth_call", json!([call, "latest"]));
    assert!(left.as_str().unwrap().trim_start_matches("0x").bytes().all(|c| c == b'0'), "{left}");
}

#[test]
fn a_token_that_reverts_without_a_reason_is_approved() {
    let stage = SendingFixture::set();
    let ledger = stage.ledger(Settings::default());
    stage.open_task(&ledger, TestSigner::new(2).unwrap().address(), Address([5; 20]));
    // As tokens do that were written before revert reasons existed.
    let node = AlteredEndpoint::new(&stage.anvil.endpoint, |_, answer| match answer {
        Err(EndpointError::ErrorResponse { code, message, data: Some(_) }) => {
            Err(EndpointError::ErrorResponse { code, message, data: None })
        }
        answer => answer,
    });
    let ledger = stage.ledger_through(node, Settings::default());
    ledger.bond(&stage.funder, TASK, fln(3)).unwrap();
    let bond = ledger.bond_of(TASK, stage.funder.address()).unwrap();
    assert_eq!(bond.amount, fln(3));
    let before = stage.nonce();
    let error = ledger.bond(&stage.funder, TASK, fln(100_000_000)).unwrap_err();
    let insufficient = matches!(error, LedgerError::Refused(Refusal::Insufficient { .. }));
    assert!(insufficient && stage.nonce() == before, "no unnecessary approval: {error}");
}

#[test]
fn a_leftover_approval_is_reset_to_zero_before_another() {
    let stage = SendingFixture::set();
    let ledger = stage.ledger(Settings::default());
    stage.open_task(&ledger, TestSigner::new(2).unwrap().address(), Address([5; 20]));
    // A process crashes between its approval and its bond, which is never requested again.
    let flaky =
        CrashingEndpoint::new(&stage.anvil.endpoint, CrashPoint::After("eth_sendRawTransaction"));
    let short_timeout = Settings { write_timeout_ms: 30, ..Settings::default() };
    let dying = stage.ledger_through(Arc::clone(&flaky) as Arc<dyn Endpoint>, short_timeout);
    let before = stage.nonce() + 1;
    flaky.arm();
    dying.bond(&stage.funder, TASK, fln(3)).unwrap_err();
    drop(dying);
    // The node mines the approval later, without a waiting client.
    for _ in 0..200 {
        if stage.nonce() == before {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // Some tokens, such as Tether, refuse to change a non-zero approval to another non-zero value.
    ledger.bond(&stage.funder, TASK, fln(4)).unwrap();
    assert_eq!(stage.nonce(), before + 3, "reset, approved, bonded");
    assert_eq!(ledger.bond_of(TASK, stage.funder.address()).unwrap().amount, fln(4));
}

#[test]
fn another_chain_or_address_is_refused() {
    let stage = SendingFixture::set();
    let open = |deployment: Deployment| {
        let endpoint = Arc::clone(&stage.anvil.endpoint);
        EthereumLedger::open(endpoint, deployment, Settings::default(), Path::new("unused"))
            .map(drop)
            .unwrap_err()
            .to_string()
    };
    let chain = open(Deployment { chain: ChainId(1), ..stage.deployment });
    assert!(chain.contains("is on chain 31337, but the market is on chain 1"), "{chain}");
    let empty = open(Deployment { market: Address([8; 20]), ..stage.deployment });
    assert!(empty.contains("has no contract at"), "{empty}");
    let token = open(Deployment { token: Address([8; 20]), ..stage.deployment });
    assert!(token.contains("uses token"), "{token}");
}

#[test]
fn an_unreachable_node_is_retried_and_then_named_without_its_key() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/secret-key", listener.local_addr().unwrap());
    drop(listener);
    let endpoint = HttpEndpoint::new(&url).unwrap();
    let error = endpoint.call("eth_chainId", json!([])).unwrap_err();
    assert!(matches!(error, EndpointError::Unreachable(_)));
    let health = endpoint.health();
    assert_eq!((health.calls, health.failures, health.consecutive_failures), (5, 5, 5));
    let texts = format!("{error} {:?} {}", health.last_failure, endpoint.name());
    assert!(!texts.contains("secret"), "{texts}");
}

#[test]
fn a_mined_transaction_is_not_repeated_if_a_node_has_deleted_its_receipt() {
    let stage = SendingFixture::set();
    let bob = TestSigner::new(2).unwrap().address();
    stage.ledger(Settings::default()).transfer(&stage.funder, bob, fln(5)).unwrap();
    let before = stage.nonce();
    let node = AlteredEndpoint::new(&stage.anvil.endpoint, |method, answer| match method {
        "eth_getTransactionReceipt" => Ok(Value::Null),
        _ => answer,
    });
    let settings = Settings { displaced_ms: 50, write_timeout_ms: 500, ..Settings::default() };
    let ledger = stage.ledger_through(node, settings);
    ledger.resume(&stage.funder).unwrap();
    assert_eq!(stage.nonce(), before);
    assert_eq!(ledger.balance(bob).unwrap(), fln(5));
}

#[test]
fn a_lagging_node_gives_an_error_instead_of_an_old_state() {
    let stage = SendingFixture::set();
    let bob = TestSigner::new(2).unwrap().address();
    stage.ledger(Settings::default()).transfer(&stage.funder, bob, fln(5)).unwrap();
    let node = AlteredEndpoint::new(&stage.anvil.endpoint, |method, answer| match method {
        "eth_blockNumber" => {
            let number: U64 = serde_json::from_value(answer?).unwrap();
            Ok(json!(number - U64::from(1)))
        }
        _ => answer,
    });
    let ledger = stage.ledger_through(node, Settings::default());
    ledger.resume(&stage.funder).unwrap();
    let error =
        ledger.settlement_status(TASK, Report::settlement_id(TASK, RoundNumber(1))).unwrap_err();
    assert!(error.to_string().contains("lags behind"), "{error}");
    assert!(ledger.balance(bob).unwrap_err().to_string().contains("lags behind"));
}

/// An endpoint that posts a settlement whenever the arbiter simulates its cancellation.
struct PostingEndpoint {
    inner: Arc<dyn Endpoint>,
    posts: AtomicU32,
    post: Box<dyn Fn(u32) + Send + Sync>,
}

impl Endpoint for PostingEndpoint {
    fn call(&self, method: &str, params: Value) -> Result<Value, EndpointError> {
        let selector = alloy_primitives::hex::encode(MarketContract::cancelCall::SELECTOR);
        let data = params[0]["data"].as_str().unwrap_or_default();
        if method == "eth_call" && data.starts_with(&format!("0x{selector}")) {
            (self.post)(self.posts.fetch_add(1, Ordering::SeqCst) + 2);
        }
        self.inner.call(method, params)
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}

fn settlement(round: u32, previous_root: Digest) -> Settlement {
    Settlement {
        task: TASK,
        payout: Report::settlement_id(TASK, RoundNumber(round)),
        round: RoundNumber(round),
        report: Digest([1; 32]),
        previous_root,
        root: Digest([u8::try_from(round).unwrap(); 32]),
        data_total: fln(round.into()),
        score_pay_total: Amount::ZERO,
        infrastructure_total: Amount::ZERO,
        improvement_total_nano: 0,
    }
}

#[test]
fn a_task_is_read_although_the_nodes_events_lag_behind_its_state() {
    let stage = SendingFixture::set();
    let ledger = stage.ledger(Settings::default());
    let coordinator = stage.new_account(2);
    stage.open_task(&ledger, coordinator.address(), Address([5; 20]));
    stage.cover(&ledger, &coordinator);
    ledger.post(&coordinator, &settlement(1, Digest::default())).unwrap();
    let expected = ledger.task(TASK).unwrap();
    let reads = AtomicU32::new(0);
    let node = AlteredEndpoint::new(&stage.anvil.endpoint, move |method, answer| match method {
        "eth_getLogs" if reads.fetch_add(1, Ordering::SeqCst) < 5 => Ok(json!([])),
        _ => answer,
    });
    assert_eq!(stage.ledger_through(node, Settings::default()).task(TASK).unwrap(), expected);
}

#[test]
fn an_arbiter_can_cancel_while_the_coordinator_continues_to_post() {
    let stage = SendingFixture::set();
    let (coordinator, arbiter) = (stage.new_account(2), stage.new_account(3));
    let calm = Arc::new(stage.ledger(Settings::default()));
    stage.open_task(&*calm, coordinator.address(), arbiter.address());
    stage.cover(&*calm, &coordinator);
    let poster = Arc::clone(&calm);
    let post = move |round: u32| {
        let last = poster.task(TASK).unwrap().unwrap().pending;
        let previous = last.last().map(|p| p.settlement.root).unwrap_or_default();
        poster.post(&coordinator, &settlement(round, previous)).unwrap();
    };
    post(1);
    let inner = Arc::clone(&stage.anvil.endpoint);
    let disturbed = PostingEndpoint { inner, posts: AtomicU32::new(0), post: Box::new(post) };
    let ledger = stage.ledger_through(Arc::new(disturbed), Settings::default());
    let first = Report::settlement_id(TASK, RoundNumber(1));
    ledger.cancel(&arbiter, TASK, first).unwrap();
    assert_eq!(calm.settlement_status(TASK, first).unwrap(), SettlementStatus::Unknown);
    assert!(calm.task(TASK).unwrap().unwrap().pending.is_empty());
}
