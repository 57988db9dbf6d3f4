//! The chain on a real file: normal operation, restarts, damaged files and snapshots.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use florin_protocol::{Amount, ChainId, TaskId, WalletSignature, WalletSigner};
use tempfile::TempDir;

use super::*;
use crate::action::Action;
use crate::api::{Ledger, Terms};
use crate::conformance::{self, Fixture, INITIAL_BALANCE, SIGNER_COUNT, TestLedger, TestSigner};
use crate::embedded::block::{sign_block, transactions_digest};
use crate::state::changes_digest;
use crate::transaction::Transaction;

pub(super) const START: u64 = 1_000_000;
const TASK: TaskId = TaskId([1; 32]);

pub(super) fn operator() -> NodeSigner {
    NodeSigner::from_seed(&[7; 32])
}

pub(super) fn signer(n: u64) -> TestSigner {
    TestSigner::new(n).unwrap()
}

pub(super) fn genesis(accounts: u64) -> Genesis {
    Genesis {
        chain_id: ChainId(1_337),
        operator: Address([1; 20]),
        operator_key: operator().key(),
        allocations: (0..accounts).map(|n| (signer(n).address(), INITIAL_BALANCE)).collect(),
        created: Timestamp(START),
    }
}

pub(super) fn clock_at(now: &Arc<AtomicU64>) -> LedgerClock {
    let now = Arc::clone(now);
    Arc::new(move || Timestamp(now.load(Ordering::SeqCst)))
}

fn fixed_clock() -> LedgerClock {
    Arc::new(|| Timestamp(START))
}

fn florins(n: u64) -> Amount {
    Amount::from_units(u128::from(n) * 1_000_000_000_000_000_000)
}

pub(super) fn transfer(market: MarketId, from: u64, nonce: u64, to: u64) -> SignedTransaction {
    let by = signer(from);
    let action = Action::Transfer { to: signer(to).address(), amount: florins(1) };
    Transaction { market, from: by.address(), nonce, action }.sign(&by).unwrap()
}

fn new_chain(folder: &TempDir) -> (std::path::PathBuf, EmbeddedChain) {
    let path = folder.path().join("ledger");
    EmbeddedChain::create(&path, &genesis(4)).unwrap();
    let chain = EmbeddedChain::open(&path, operator(), fixed_clock()).unwrap();
    (path, chain)
}

struct EmbeddedFixture(TempDir, AtomicU64);

impl Fixture for EmbeddedFixture {
    fn new_ledger(&self) -> TestLedger {
        let path = self.0.path().join(self.1.fetch_add(1, Ordering::SeqCst).to_string());
        EmbeddedChain::create(&path, &genesis(SIGNER_COUNT as u64)).unwrap();
        let now = Arc::new(AtomicU64::new(START));
        let ledger = EmbeddedChain::open(&path, operator(), clock_at(&now)).unwrap();
        TestLedger {
            ledger: Box::new(ledger),
            signers: (0..SIGNER_COUNT as u64)
                .map(|n| Box::new(signer(n)) as Box<dyn WalletSigner>)
                .collect(),
            advance: Box::new(move |ms| _ = now.fetch_add(ms, Ordering::SeqCst)),
            is_clock_exact: true,
        }
    }
}

#[test]
fn the_embedded_chain_passes_the_conformance_suite() {
    conformance::run(&EmbeddedFixture(tempfile::tempdir().unwrap(), AtomicU64::new(0))).unwrap();
}

#[test]
fn a_restart_restores_head_state_and_balances() {
    let folder = tempfile::tempdir().unwrap();
    let (path, chain) = new_chain(&folder);
    chain.transfer(&signer(0), signer(1).address(), florins(5)).unwrap();
    chain.stake(&signer(1), florins(7)).unwrap();
    let (head, state) = (chain.head(), chain.state());
    drop(chain);
    let chain = EmbeddedChain::open(&path, operator(), fixed_clock()).unwrap();
    assert_eq!((chain.head(), chain.state()), (head, state));
    assert_eq!(
        chain.balance(signer(1).address()).unwrap(),
        INITIAL_BALANCE.minus(florins(2)).unwrap()
    );
    let digest = chain.state().digest().unwrap();
    drop(chain);
    let found = EmbeddedChain::verify(&path).unwrap();
    assert_eq!((found.blocks, found.transactions, found.state), (2, 2, digest));
}

#[test]
fn a_transfer_needs_the_accounts_signature_market_and_nonce() {
    let folder = tempfile::tempdir().unwrap();
    let (_, chain) = new_chain(&folder);
    let market = chain.chain_market();
    let good = transfer(market, 0, 0, 1);
    let mut stolen = good.clone();
    stolen.transaction.from = signer(2).address();
    let mut raised = good.clone();
    raised.transaction.action = Action::Transfer { to: signer(1).address(), amount: florins(100) };
    let mut high = good.clone();
    high.signature.0[64] ^= 7;
    let mut elsewhere = good.clone();
    elsewhere.transaction.market.chain = ChainId(1);
    let zeros = SignedTransaction { signature: WalletSignature([0; 65]), ..good.clone() };
    let cases = [
        (stolen, Refusal::InvalidSignature),
        (raised, Refusal::InvalidSignature),
        (high, Refusal::InvalidSignature),
        (zeros, Refusal::InvalidSignature),
        (elsewhere, Refusal::WrongMarket),
        (transfer(market, 0, 1, 1), Refusal::WrongNonce { got: 1, expected: 0 }),
    ];
    for (transaction, refusal) in cases {
        match chain.submit(transaction) {
            Err(LedgerError::Refused(got)) => assert_eq!(got, refusal),
            other => panic!("{other:?} instead of {refusal:?}"),
        }
    }
    assert_eq!(chain.head().number, 0, "a refused transaction makes no block");
    chain.submit(good.clone()).unwrap();
    // A replay is not a second transfer, and it does not return the first outcome either: two
    // callers with the same account and the same action would sign the same bytes, and both would
    // assume that their own transfer was executed.
    let again = chain.submit(good.clone());
    assert!(matches!(again, Err(LedgerError::Refused(Refusal::WrongNonce { .. }))), "{again:?}");
    assert_eq!(
        chain.balance(signer(1).address()).unwrap(),
        INITIAL_BALANCE.plus(florins(1)).unwrap()
    );
    let (from, id) = (good.transaction.from, good.transaction.id());
    assert_eq!(
        chain.transaction_status(from, 0, id),
        TransactionStatus::Executed(TransactionOutcome::Done)
    );
    assert_eq!(chain.transaction_status(from, 1, Digest([1; 32])), TransactionStatus::NotExecuted);
    assert_eq!(chain.transaction_status(from, 0, Digest([1; 32])), TransactionStatus::Unknown);
}

#[test]
fn a_batch_becomes_one_block_without_the_refused_transactions() {
    let folder = tempfile::tempdir().unwrap();
    let (path, chain) = new_chain(&folder);
    let market = chain.chain_market();
    let mut batch: Vec<_> = (0..50).map(|n| transfer(market, 0, n, 1)).collect();
    batch.push(transfer(market, 0, 90, 1));
    let mut forged = transfer(market, 1, 0, 2);
    forged.signature.0[5] ^= 1;
    batch.insert(10, forged);
    let answers = chain.submit_many(batch).unwrap();
    assert_eq!(answers.len(), 52);
    assert_eq!(answers[10], Err(Refusal::InvalidSignature));
    assert_eq!(answers[51], Err(Refusal::WrongNonce { got: 90, expected: 50 }));
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 50);
    assert_eq!(chain.head().number, 1);
    assert_eq!(chain.block(1).unwrap().unwrap().transactions.len(), 50);
    assert_eq!(chain.block(2).unwrap(), None);
    let many: Vec<_> = (0..1_001).map(|n| transfer(market, 1, n, 2)).collect();
    let answers = chain.submit_many(many).unwrap();
    // FUNDS are 1,000 FLN, and 50 FLN were received.
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(chain.head().number, 3, "1,000 and 1");
    drop(chain);
    EmbeddedChain::verify(&path).unwrap();
}

/// A chain with a task on it.
fn chain_with_a_task(folder: &TempDir) -> (std::path::PathBuf, EmbeddedChain) {
    let (path, chain) = new_chain(folder);
    let [buyer, coordinator, arbiter] = [0, 1, 2].map(|n| signer(n).address());
    let terms = Terms {
        task: TASK,
        buyer,
        coordinator,
        arbiter,
        data: florins(1),
        infrastructure: Amount::ZERO,
        rounds: 1,
        per_nat_max: Amount::from_units(1),
        floor_share: florin_protocol::Micro::ONE,
        bond_min: florins(1),
        debit_max: florins(1),
        stake_min: florins(1),
        challenge_ms: 1_000,
        unbond_ms: 1_000,
        expires: Timestamp(START + 10_000),
    };
    chain.open_task(&signer(0), &terms).unwrap();
    (path, chain)
}

fn finalize(market: MarketId, by: u64) -> SignedTransaction {
    let by = signer(by);
    let action = Action::Finalize { task: TASK };
    Transaction { market, from: by.address(), nonce: 0, action }.sign(&by).unwrap()
}

#[test]
fn a_transaction_that_changes_nothing_makes_no_block() {
    let folder = tempfile::tempdir().unwrap();
    let (_, chain) = chain_with_a_task(&folder);
    let (head, state) = (chain.head(), chain.state());
    // Unfunded keys: an attacker can create any number of them.
    for stranger in 100..110 {
        let idle = finalize(chain.chain_market(), stranger);
        let (from, id) = (idle.transaction.from, idle.transaction.id());
        assert_eq!(chain.submit(idle).unwrap(), TransactionOutcome::Finalised(0));
        assert_eq!(chain.transaction_status(from, 0, id), TransactionStatus::NotExecuted);
    }
    assert_eq!((chain.head(), chain.state()), (head, state));
    // In a batch with an effective transaction it is left out as well.
    let market = chain.chain_market();
    let batch = vec![finalize(market, 100), transfer(market, 3, 0, 1), finalize(market, 101)];
    let answers = chain.submit_many(batch).unwrap();
    assert_eq!(
        answers,
        [
            Ok(TransactionOutcome::Finalised(0)),
            Ok(TransactionOutcome::Done),
            Ok(TransactionOutcome::Finalised(0))
        ]
    );
    assert_eq!(chain.head().number, head.number + 1);
    assert_eq!(chain.block(chain.head().number).unwrap().unwrap().transactions.len(), 1);
}

#[test]
fn a_block_with_a_transaction_that_changes_nothing_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let (path, chain) = chain_with_a_task(&folder);
    let (head, transactions) = (chain.head(), vec![finalize(chain.chain_market(), 100)]);
    drop(chain);
    let bytes = borsh::to_vec(&transactions).unwrap();
    let header = BlockHeader {
        number: head.number + 1,
        parent: head.digest,
        time: head.time,
        transactions: transactions_digest(&bytes),
        changes: changes_digest(&[]),
    };
    let sealed = sign_block(header, &bytes, |header| operator().sign(*header).signature);
    let store = Store::open(open_file(&path).unwrap()).unwrap();
    store.commit(header.number, &sealed.bytes, &[]).unwrap();
    drop(store);
    let error = EmbeddedChain::open(&path, operator(), fixed_clock()).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("it changes nothing"), "{error}");
}

#[test]
fn concurrent_callers_share_blocks_and_lose_no_transaction() {
    let folder = tempfile::tempdir().unwrap();
    let (path, chain) = new_chain(&folder);
    thread::scope(|scope| {
        for n in 0..4 {
            let chain = &chain;
            // Two threads per account: their nonces race.
            scope.spawn(move || {
                for _ in 0..40 {
                    chain.transfer(&signer(n % 2), signer(3).address(), florins(1)).unwrap();
                }
            });
        }
    });
    assert_eq!(
        chain.balance(signer(3).address()).unwrap(),
        INITIAL_BALANCE.plus(florins(160)).unwrap()
    );
    assert_eq!(chain.state().supply().unwrap(), INITIAL_BALANCE.mul_div_down(4, 1).unwrap());
    drop(chain);
    assert_eq!(EmbeddedChain::verify(&path).unwrap().transactions, 160);
}

#[test]
fn block_time_never_decreases() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    EmbeddedChain::create(&path, &genesis(4)).unwrap();
    let now = Arc::new(AtomicU64::new(START - 500));
    let chain = EmbeddedChain::open(&path, operator(), clock_at(&now)).unwrap();
    assert_eq!(chain.now().unwrap(), Timestamp(START), "not before the genesis");
    let mut times = Vec::new();
    for tick in [START + 10, START + 5, 0, START + 11] {
        now.store(tick, Ordering::SeqCst);
        chain.transfer(&signer(0), signer(1).address(), florins(1)).unwrap();
        times.push(chain.head().time.0 - START);
    }
    assert_eq!(times, [10, 10, 10, 11]);
}

#[test]
fn a_file_that_cannot_be_opened_gives_a_specific_error() {
    let folder = tempfile::tempdir().unwrap();
    let (path, chain) = new_chain(&folder);
    let open = |operator| EmbeddedChain::open(&path, operator, fixed_clock()).map(|_| ());
    let locked = open(operator()).unwrap_err();
    assert!(matches!(locked, ChainError::Locked), "{locked}");
    assert!(locked.to_string().contains("[LEDGER_LOCKED]"));
    assert!(matches!(EmbeddedChain::verify(&path), Err(ChainError::Locked)));
    assert!(matches!(EmbeddedChain::create(&path, &genesis(4)), Err(ChainError::Exists(_))));
    drop(chain);
    let other = NodeSigner::from_seed(&[8; 32]);
    assert!(matches!(open(other), Err(ChainError::WrongOperator { .. })));
    open(operator()).unwrap();
    let missing = folder.path().join("missing");
    let missing = EmbeddedChain::open(&missing, operator(), fixed_clock());
    assert!(matches!(missing, Err(ChainError::Missing(_))));
    let text = folder.path().join("text");
    for bytes in [b"".as_slice(), b"no ledger", &[0; 10_000]] {
        fs::write(&text, bytes).unwrap();
        let error = EmbeddedChain::open(&text, operator(), fixed_clock()).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("[LEDGER_CORRUPT]"), "{error}");
    }
}

#[test]
fn verify_and_snapshot_change_no_byte_of_the_file_even_after_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let (path, chain) = new_chain(&folder);
    for _ in 0..20 {
        chain.transfer(&signer(0), signer(1).address(), florins(1)).unwrap();
    }
    // The file of an open chain equals the file after a killed process: the database must repair
    // it.
    let left = folder.path().join("left");
    fs::copy(&path, &left).unwrap();
    drop(chain);
    for path in [path, left] {
        let before = fs::read(&path).unwrap();
        assert_eq!(EmbeddedChain::verify(&path).unwrap().transactions, 20);
        drop(EmbeddedChain::begin_snapshot_of_file(&path).unwrap());
        assert!(fs::read(&path).unwrap() == before, "{} was changed", path.display());
        // Two readers may share the file; a writer may not open it meanwhile.
        let looking = EmbeddedChain::begin_snapshot_of_file(&path).unwrap();
        EmbeddedChain::verify(&path).unwrap();
        let writing = EmbeddedChain::open(&path, operator(), fixed_clock());
        assert!(matches!(writing, Err(ChainError::Locked)));
        drop(looking);
        EmbeddedChain::open(&path, operator(), fixed_clock()).unwrap();
    }
}

#[test]
fn an_invalid_genesis_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let (a, b) = (signer(0).address(), signer(1).address());
    let most = Amount::from_units(u128::MAX);
    for allocations in [
        vec![(a, Amount::ZERO)],
        vec![(a, INITIAL_BALANCE), (a, INITIAL_BALANCE)],
        vec![(a, most), (b, most)],
    ] {
        let bad = Genesis { allocations, ..genesis(0) };
        assert!(matches!(EmbeddedChain::create(&path, &bad), Err(ChainError::BadGenesis(_))));
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "no file is left behind");
}

/// Writes one more block and opens the file again: reveals damage that only shows when pages are
/// reused.
fn assert_writable(path: &Path, chain: EmbeddedChain) {
    chain.transfer(&signer(0), signer(1).address(), florins(1)).unwrap();
    let state = chain.state();
    drop(chain);
    assert_eq!(EmbeddedChain::open(path, operator(), fixed_clock()).unwrap().state(), state);
}

#[test]
fn every_flipped_byte_is_detected_or_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    EmbeddedChain::create(&path, &genesis(40)).unwrap();
    let chain = EmbeddedChain::open(&path, operator(), fixed_clock()).unwrap();
    let market = chain.chain_market();
    for nonce in 0..6 {
        let batch = (0..40).map(|n| transfer(market, n, nonce, n + 1)).collect();
        assert!(chain.submit_many(batch).unwrap().iter().all(Result::is_ok));
    }
    let (head, state) = (chain.head(), chain.state());
    // The file after kill -9 (not closed), and after a clean shutdown.
    let killed = fs::read(&path).unwrap();
    drop(chain);
    let closed = fs::read(&path).unwrap();
    let victim = folder.path().join("victim");
    let (mut found, mut harmless) = (0, 0);
    for (name, image) in [("killed", killed), ("closed", closed)] {
        let used: Vec<usize> = (0..image.len()).filter(|at| image[*at] != 0).collect();
        // Every byte of both headers, and a sample of all non-zero bytes.
        let header = (0..16).chain(512..584).chain(4_096..4_096 + 320);
        let spread = used.iter().copied().step_by((used.len() / 500).max(1));
        for (n, at) in header.chain(spread).enumerate() {
            let mut flipped = image.clone();
            flipped[at] ^= 1 << (n % 8);
            fs::write(&victim, &flipped).unwrap();
            match EmbeddedChain::open(&victim, operator(), fixed_clock()) {
                Ok(chain) => {
                    assert_eq!(chain.head(), head, "{name}: byte {at}");
                    assert_eq!(chain.state(), state, "{name}: byte {at}");
                    harmless += 1;
                    if harmless % 8 == 0 {
                        assert_writable(&victim, chain);
                    }
                }
                Err(_) => found += 1,
            }
        }
        // The bit that selects the valid commit: if it were reset, the last block would be lost
        // without an error.
        for bit in 0..8 {
            let mut flipped = image.clone();
            flipped[4_096 + 9] ^= 1 << bit;
            fs::write(&victim, &flipped).unwrap();
            if let Ok(chain) = EmbeddedChain::open(&victim, operator(), fixed_clock()) {
                assert_eq!((chain.head(), chain.state()), (head, state.clone()), "{name}: {bit}");
            }
        }
    }
    println!("{found} detected, {harmless} harmless");
    assert!(found > 500, "{found} detected, {harmless} harmless");
}

#[test]
fn an_older_copy_of_the_database_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let (path, chain) = new_chain(&folder);
    chain.transfer(&signer(0), signer(1).address(), florins(1)).unwrap();
    drop(chain);
    let older = fs::read(&path).unwrap();
    let chain = EmbeddedChain::open(&path, operator(), fixed_clock()).unwrap();
    chain.transfer(&signer(0), signer(1).address(), florins(1)).unwrap();
    drop(chain);
    let mut newer = fs::read(&path).unwrap();
    // The first page is current; the database behind it is one block older.
    newer.truncate(4_096);
    newer.extend_from_slice(&older[4_096..]);
    fs::write(&path, newer).unwrap();
    let error = EmbeddedChain::open(&path, operator(), fixed_clock()).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("block 2 was acknowledged"), "{error}");
}

#[test]
fn a_block_rewritten_without_the_right_signatures_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let (path, chain) = new_chain(&folder);
    let market = chain.chain_market();
    chain.submit(transfer(market, 0, 0, 1)).unwrap();
    chain.submit(transfer(market, 0, 1, 1)).unwrap();
    let mut block = chain.block(2).unwrap().unwrap();
    drop(chain);
    // A consistent database with a block that the operator did not sign, or with a transaction that
    // its account did not sign.
    let rewrite = |block: &Block| {
        let store = Store::open(open_file(&path).unwrap()).unwrap();
        store.commit(2, &block.to_bytes(), &[]).unwrap();
    };
    let open = || {
        EmbeddedChain::open(&path, operator(), fixed_clock()).map(|_| ()).unwrap_err().to_string()
    };
    let good = block.clone();
    block.transactions[0].signature.0[3] ^= 1;
    rewrite(&block);
    assert!(open().contains("block 2: its transactions do not match the signed digest"));
    block = good.clone();
    block.header.signature = NodeSigner::from_seed(&[9; 32]).sign(block.header.body).signature;
    rewrite(&block);
    assert!(open().contains("block 2"), "{}", open());
    block = good.clone();
    block.header.body.time = Timestamp(START + 1);
    rewrite(&block);
    assert!(open().contains("block 2"), "{}", open());
    rewrite(&good);
    EmbeddedChain::verify(&path).unwrap();
    // The operator can sign a block whose transaction lacks its account's signature: only the full
    // verification detects it.
    block.transactions[0].signature.0[3] ^= 1;
    let bytes = borsh::to_vec(&block.transactions).unwrap();
    let header =
        BlockHeader { transactions: block::transactions_digest(&bytes), ..good.header.body };
    block.header = operator().sign(header);
    rewrite(&block);
    let error = EmbeddedChain::verify(&path).unwrap_err().to_string();
    assert!(error.contains("block 2: the signature of transaction 0 is invalid"), "{error}");
}

#[test]
fn a_snapshot_is_the_chain_at_one_moment_despite_concurrent_writes() {
    let dir = tempfile::tempdir().unwrap();
    let (path, to) = (dir.path().join("ledger.redb"), dir.path().join("copy.redb"));
    EmbeddedChain::create(&path, &genesis(3)).unwrap();
    let chain = EmbeddedChain::open(&path, operator(), Arc::new(|| Timestamp(START))).unwrap();
    let (payer, payee) = (signer(0), signer(1).address());
    let one = Amount::from_units(1);
    for _ in 0..3 {
        chain.transfer(&payer, payee, one).unwrap();
    }
    let (head, balance) = (chain.head(), chain.balance(payee).unwrap());
    let copy = chain.begin_snapshot().unwrap();
    for _ in 0..300 {
        chain.transfer(&payer, payee, one).unwrap();
    }
    let copied = copy.write(&to).unwrap();
    assert_eq!((copied.number, copied.digest), (head.number, head.digest));
    let found = EmbeddedChain::verify(&to).unwrap();
    assert_eq!((found.blocks, found.operator), (head.number, chain.genesis().operator));
    let again = EmbeddedChain::open(&to, operator(), Arc::new(|| Timestamp(START))).unwrap();
    assert_eq!((again.head(), again.balance(payee).unwrap()), (head, balance));
    again.transfer(&payer, payee, one).unwrap();
    drop(again);
    // A snapshot overwrites no file, and a chain that is open elsewhere cannot be copied from its
    // file.
    let twice = chain.begin_snapshot().unwrap().write(&to).unwrap_err();
    assert!(matches!(twice, ChainError::Exists(_)), "{twice}");
    assert!(matches!(EmbeddedChain::begin_snapshot_of_file(&path), Err(ChainError::Locked)));
    let blocks = chain.head().number;
    drop(chain);
    let rest = dir.path().join("rest.redb");
    assert_eq!(
        EmbeddedChain::begin_snapshot_of_file(&path).unwrap().write(&rest).unwrap().number,
        blocks
    );
    assert_eq!(EmbeddedChain::verify(&rest).unwrap().blocks, blocks);
}
