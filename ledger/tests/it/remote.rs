//! The ledger over HTTP: the conformance suite, and lost responses.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread;

use florin_ledger::conformance::{
    self, Fixture, INITIAL_BALANCE, SIGNER_COUNT, TestLedger, TestSigner,
};
use florin_ledger::rpc::{LedgerRequest, handle_request};
use florin_ledger::{BlockSource, EmbeddedChain, Genesis, Ledger, LedgerError, RemoteLedger};
use florin_protocol::{Address, Amount, Canonical, ChainId, NodeSigner, Timestamp, WalletSigner};
use tempfile::TempDir;

const HONEST: u8 = 0;
/// Executes a transaction and closes the connection without a response.
const LOSES_RESPONSES: u8 = 1;
/// Closes the connection without executing the transaction.
const LOSES_REQUESTS: u8 = 2;
/// Responds with status 503.
const BUSY: u8 = 3;

struct FaultyServer {
    url: String,
    mode: Arc<AtomicU8>,
    now: Arc<AtomicU64>,
    _folder: TempDir,
}

fn signer(n: usize) -> TestSigner {
    TestSigner::new(n as u64).unwrap()
}

fn start_server() -> FaultyServer {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let operator = NodeSigner::from_seed(&[3; 32]);
    let genesis = Genesis {
        chain_id: ChainId(5),
        operator: Address([1; 20]),
        operator_key: operator.key(),
        allocations: (0..SIGNER_COUNT).map(|n| (signer(n).address(), INITIAL_BALANCE)).collect(),
        created: Timestamp(1_000),
    };
    EmbeddedChain::create(&path, &genesis).unwrap();
    let now = Arc::new(AtomicU64::new(1_000));
    let clock = Arc::clone(&now);
    let clock = Arc::new(move || Timestamp(clock.load(Ordering::SeqCst)));
    let chain = Arc::new(EmbeddedChain::open(&path, operator, clock).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let mood = Arc::new(AtomicU8::new(HONEST));
    let shared = Arc::clone(&mood);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (chain, mood) = (Arc::clone(&chain), Arc::clone(&shared));
            thread::spawn(move || serve_connection(&stream.unwrap(), &chain, &mood));
        }
    });
    FaultyServer { url, mode: mood, now, _folder: folder }
}

/// Minimal HTTP: requests and responses with a content length.
fn serve_connection(stream: &TcpStream, chain: &EmbeddedChain, mood: &AtomicU8) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        reader.read_line(&mut line).ok()?;
        assert!(line.is_empty() || line.starts_with("POST /v1/ledger "), "{line}");
        loop {
            let mut header = String::new();
            if reader.read_line(&mut header).ok()? == 0 {
                return None;
            }
            if header.trim().is_empty() {
                break;
            }
            let (name, value) = header.split_once(':').unwrap();
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let request: LedgerRequest = serde_json::from_slice(&body).unwrap();
        let write = matches!(request, LedgerRequest::Submit(_));
        let mood = mood.load(Ordering::SeqCst);
        if write && mood == LOSES_REQUESTS {
            return None;
        }
        let response = serde_json::to_vec(&handle_request(chain, request)).unwrap();
        if write && mood == LOSES_RESPONSES {
            return None;
        }
        let status = if mood == BUSY { "503 Busy" } else { "200 OK" };
        // One write: two small ones would wait for a delayed acknowledgement (Nagle's algorithm).
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", response.len());
        let mut stream = stream;
        stream.write_all(&[head.as_bytes(), &response].concat()).ok()?;
    }
}

struct RemoteFixture;

impl Fixture for RemoteFixture {
    fn new_ledger(&self) -> TestLedger {
        let server = start_server();
        let ledger = RemoteLedger::connect(&server.url).unwrap();
        TestLedger {
            ledger: Box::new(ledger),
            signers: (0..SIGNER_COUNT)
                .map(|n| Box::new(signer(n)) as Box<dyn WalletSigner>)
                .collect(),
            advance: Box::new(move |ms| _ = server.now.fetch_add(ms, Ordering::SeqCst)),
            is_clock_exact: true,
        }
    }
}

#[test]
fn the_remote_ledger_passes_the_conformance_suite() {
    conformance::run(&RemoteFixture).unwrap();
}

#[test]
fn after_a_lost_response_the_status_is_queried_and_nothing_is_executed_twice() {
    let server = start_server();
    let ledger = RemoteLedger::connect(&server.url).unwrap();
    let (alice, bob) = (signer(0), signer(1).address());
    let one = Amount::from_units(1);
    let balance = || ledger.balance(bob).unwrap();
    server.mode.store(LOSES_RESPONSES, Ordering::SeqCst);
    ledger.transfer(&alice, bob, one).unwrap();
    assert_eq!(balance(), INITIAL_BALANCE.plus(one).unwrap());
    server.mode.store(LOSES_REQUESTS, Ordering::SeqCst);
    match ledger.transfer(&alice, bob, one) {
        Err(LedgerError::Unavailable(what)) => {
            assert!(what.contains("has not been executed so far"), "{what}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(balance(), INITIAL_BALANCE.plus(one).unwrap());
    server.mode.store(BUSY, Ordering::SeqCst);
    match ledger.balance(bob) {
        Err(LedgerError::Unavailable(what)) => assert!(what.contains("503"), "{what}"),
        other => panic!("{other:?}"),
    }
    server.mode.store(HONEST, Ordering::SeqCst);
    ledger.transfer(&alice, bob, one).unwrap();
    assert_eq!(balance(), INITIAL_BALANCE.plus(Amount::from_units(2)).unwrap());
    // A refusal is returned as a refusal.
    let refused = ledger.transfer(&alice, bob, Amount::ZERO);
    assert!(matches!(refused, Err(LedgerError::Refused(_))), "{refused:?}");
}

#[test]
fn an_unreachable_coordinator_is_an_error_at_once() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = RemoteLedger::connect(&format!("http://{free}")).unwrap_err();
    assert!(error.to_string().contains("[LEDGER_UNAVAILABLE]"), "{error}");
}

#[test]
fn any_client_can_follow_the_chain_from_its_genesis() {
    let server = start_server();
    let ledger = RemoteLedger::connect(&server.url).unwrap();
    let (alice, bob) = (signer(0), signer(1).address());
    for n in 1..=3 {
        ledger.transfer(&alice, bob, Amount::from_units(n)).unwrap();
    }
    let genesis = ledger.genesis().unwrap();
    let mut parent = genesis.digest();
    let mut state = florin_ledger::state::LedgerState::from_genesis(&genesis.allocations);
    let mut number = 0;
    while let Some(block) = ledger.block(number + 1).unwrap() {
        let header = block.header.verify(genesis.operator_key).unwrap();
        assert_eq!((header.number, header.parent), (number + 1, parent));
        for signed in block.transactions {
            let checked = signed.verify(genesis.market()).unwrap();
            florin_ledger::state::apply(&mut state, checked.transaction(), header.time).unwrap();
        }
        parent = block.header.digest();
        number += 1;
    }
    assert_eq!(number, 3);
    assert_eq!(ledger.head().unwrap().digest, parent);
    assert_eq!(state.balance(bob), ledger.balance(bob).unwrap());
}
