//! Benchmarks of the embedded chain: durable transfers, signature verification, and the database
//! alone for comparison. `florin-bench ledger` calls them and provides the stopwatch.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use florin_protocol::{
    Address, Amount, ChainId, MarketId, NodeSigner, Timestamp, VerifyError, WalletSignature,
    address_of_key, recover_wallet,
};
use k256::ecdsa;
use redb::{Database, TableDefinition};

use crate::action::Action;
use crate::api::{LedgerError, Refusal};
use crate::conformance::TestSigner;
use crate::embedded::{ChainError, EmbeddedChain, Genesis};
use crate::limits::BLOCK_TRANSACTIONS_MAX;
use crate::transaction::{SignedTransaction, Transaction, VerifiedTransaction, verify_on_threads};

/// Transfers per second that the chain must reach on two cores.
const TRANSFERS_PER_SECOND_MIN: u64 = 150_000;
/// Accounts among which the transfers move money.
const ACCOUNTS: u64 = 1_000;
/// Repetitions, of which the fastest counts: the least affected by other load of the machine.
const REPEATS: usize = 3;
/// Signatures that are made and verified for the second measurement.
const SIGNATURES: u64 = 4_000;

/// One measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerMeasurement {
    /// The name of the measured quantity.
    pub name: String,
    /// The measured value.
    pub value: u64,
    /// The unit of the value.
    pub unit: &'static str,
    /// The required minimum, if there is one.
    pub bar: Option<u64>,
}

impl LedgerMeasurement {
    fn new(name: impl Into<String>, value: u64, bar: Option<u64>) -> Self {
        Self { name: name.into(), value, unit: "/s", bar }
    }
}

/// The error of a benchmark.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The chain's file failed.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The chain failed.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The database of the comparison failed.
    #[error("the database for comparison: {0}")]
    Database(String),
    /// A valid transfer or signature was refused.
    #[error("a transaction of the benchmark was refused: {0}")]
    Refused(#[from] Refusal),
    /// A test key could not sign.
    #[error(transparent)]
    Signing(#[from] florin_protocol::SignError),
}

/// Returns microseconds since a fixed moment.
pub type Stopwatch<'a> = &'a dyn Fn() -> u128;

fn per_second(count: u64, micros: u128) -> u64 {
    let rate = u128::from(count).saturating_mul(1_000_000).checked_div(micros.max(1));
    rate.and_then(|rate| u64::try_from(rate).ok()).unwrap_or(u64::MAX)
}

/// Measures `count` transfers among 1,000 accounts in blocks of 1,000 in a new chain in `folder`,
/// the rate of signature verification, and the database alone with the same number of rows and
/// bytes in each commit.
///
/// # Errors
/// [`BenchError`].
pub fn transfers(
    folder: &Path,
    count: u64,
    micros: Stopwatch<'_>,
) -> Result<Vec<LedgerMeasurement>, BenchError> {
    let mut rows = Vec::new();
    let (mut rate, mut block_bytes) = (0, 0);
    // Every account sends once and receives once per block: its balance and its nonce change.
    let changed = usize::try_from(ACCOUNTS.saturating_mul(2)).unwrap_or(usize::MAX);
    let mut bare_rate = 0;
    for repeat in 0..REPEATS {
        let (this, bytes) =
            measure_chain(&folder.join(format!("bench-ledger-{repeat}")), count, micros)?;
        (rate, block_bytes) = (this.max(rate), bytes);
        let file = folder.join(format!("bench-redb-{repeat}"));
        bare_rate = measure_redb(&file, count, block_bytes, changed, micros)?.max(bare_rate);
    }
    let bar = Some(TRANSFERS_PER_SECOND_MIN);
    rows.push(LedgerMeasurement::new(
        "transfers into durable, linked, signed blocks of 1,000",
        rate,
        bar,
    ));
    let name =
        format!("redb alone, {changed} rows and {block_bytes} bytes in each commit, as transfers");
    rows.push(LedgerMeasurement::new(name, bare_rate, None));
    for threads in [1, 2] {
        let name = format!("account signatures checked, {threads} threads");
        rows.push(LedgerMeasurement::new(name, measure_signatures(threads, micros)?, None));
    }
    rows.extend(recoveries(micros)?);
    Ok(rows)
}

/// Measures the recovery of accounts from wallet signatures, with the library in use and with the one
/// before it, in turns; the fastest turn of each counts.
///
/// # Errors
/// [`BenchError`].
pub fn recoveries(micros: Stopwatch<'_>) -> Result<[LedgerMeasurement; 2], BenchError> {
    let (mut ours, mut other) = (0, 0);
    for _ in 0..REPEATS {
        ours = measure_recovery(recover_wallet, micros)?.max(ours);
        other = measure_recovery(recover_by_k256, micros)?.max(other);
    }
    let row = |library: &str, rate| {
        let name = format!("accounts recovered from signatures by {library}, 1 thread");
        LedgerMeasurement::new(name, rate, None)
    };
    Ok([row("libsecp256k1", ours), row("k256, for comparison", other)])
}

fn bench_address(number: u64) -> Address {
    let mut address = [0xbe; 20];
    let hash = blake3::hash(&number.to_le_bytes());
    address.iter_mut().zip(hash.as_bytes()).for_each(|(to, from)| *to = *from);
    Address(address)
}

fn genesis(operator: &NodeSigner) -> Genesis {
    let rich = Amount::from_units(1_000_000_000_000_000_000_000_000);
    Genesis {
        chain_id: ChainId(1),
        operator: bench_address(0),
        operator_key: operator.key(),
        allocations: (0..ACCOUNTS).map(|n| (bench_address(n), rich)).collect(),
        created: Timestamp(0),
    }
}

/// Transfers that count as verified; their signatures are dummies.
fn verified_transfers(market: MarketId, count: u64) -> Vec<Result<VerifiedTransaction, Refusal>> {
    let amount = Amount::from_units(1_000_000_000_000_000);
    (0..count)
        .map(|n| {
            let round = n.checked_div(ACCOUNTS).unwrap_or_default();
            let from = n.checked_rem(ACCOUNTS).unwrap_or_default();
            let step = round.checked_rem(ACCOUNTS.saturating_sub(1)).unwrap_or_default();
            let to = from.saturating_add(step).saturating_add(1).checked_rem(ACCOUNTS);
            let transaction = Transaction {
                market,
                from: bench_address(from),
                nonce: round,
                action: Action::Transfer { to: bench_address(to.unwrap_or_default()), amount },
            };
            let signed = SignedTransaction { transaction, signature: WalletSignature([0x5a; 65]) };
            let bytes = borsh::object_length(&signed).unwrap_or_default();
            Ok(VerifiedTransaction::new_unchecked(signed, bytes))
        })
        .collect()
}

/// Transfers per second, and the bytes of a block.
fn measure_chain(
    path: &Path,
    count: u64,
    micros: Stopwatch<'_>,
) -> Result<(u64, usize), BenchError> {
    let operator = NodeSigner::from_seed(&[1; 32]);
    let market = EmbeddedChain::create(path, &genesis(&operator))?;
    let chain = EmbeddedChain::open(path, operator, Arc::new(|| Timestamp(1)))?;
    let transactions = verified_transfers(market, count);
    let started = micros();
    let answers = chain.submit_verified(transactions)?;
    let rate = per_second(count, micros().saturating_sub(started));
    answers.into_iter().collect::<Result<Vec<_>, _>>()?;
    let bytes = match chain.block(1)? {
        Some(block) => borsh::object_length(&block).map_err(ChainError::from)?,
        None => 0,
    };
    Ok((rate, bytes))
}

/// Measures the database with the same number of rows and bytes, without chain, signatures, hashes
/// and rules.
fn measure_redb(
    path: &Path,
    count: u64,
    block: usize,
    changed: usize,
    micros: Stopwatch<'_>,
) -> Result<u64, BenchError> {
    const BLOCKS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("blocks");
    const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");
    let failed = |error: redb::Error| BenchError::Database(error.to_string());
    let run = || -> Result<u64, redb::Error> {
        let database = Database::create(path)?;
        let body = vec![0x5a; block];
        let mut keys: Vec<[u8; 20]> = (0u64..).take(changed).map(|n| bench_address(n).0).collect();
        keys.sort_unstable();
        let per_block = u64::try_from(BLOCK_TRANSACTIONS_MAX).unwrap_or(u64::MAX);
        let commits = count.div_ceil(per_block);
        let started = micros();
        for number in 0..commits {
            let mut write = database.begin_write()?;
            write.set_two_phase_commit(true);
            {
                write.open_table(BLOCKS)?.insert(number, body.as_slice())?;
                let mut rows = write.open_table(ROWS)?;
                let value = u128::from(number).to_le_bytes();
                for key in &keys {
                    rows.insert(key.as_slice(), value.as_slice())?;
                }
            }
            write.commit()?;
        }
        Ok(per_second(count, micros().saturating_sub(started)))
    };
    run().map_err(failed)
}

fn measure_signatures(threads: usize, micros: Stopwatch<'_>) -> Result<u64, BenchError> {
    let by = TestSigner::new(1)?;
    let market = genesis(&NodeSigner::from_seed(&[1; 32])).market();
    let from = florin_protocol::WalletSigner::address(&by);
    let transactions = (0..SIGNATURES)
        .map(|nonce| {
            let action =
                Action::Transfer { to: bench_address(nonce), amount: Amount::from_units(1) };
            Transaction { market, from, nonce, action }.sign(&by)
        })
        .collect::<Result<Vec<_>, _>>()?;
    let threads = NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN);
    let started = micros();
    let verdicts = verify_on_threads(market, transactions, threads);
    let rate = per_second(SIGNATURES, micros().saturating_sub(started));
    verdicts.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(rate)
}

/// Recovers the account that signed a hash.
type Recovery = fn([u8; 32], &WalletSignature) -> Result<Address, VerifyError>;

/// The recovery of [`recover_wallet`] by the library that it used before decision 51.
fn recover_by_k256(hash: [u8; 32], signature: &WalletSignature) -> Result<Address, VerifyError> {
    let (rs, v) = signature.0.split_at(64);
    let recovered = ecdsa::Signature::from_slice(rs).and_then(|signature| {
        let recovery = ecdsa::RecoveryId::new(v == [28], false);
        ecdsa::VerifyingKey::recover_from_prehash(&hash, &signature, recovery)
    });
    recovered.map(|key| address_of_key(&key)).map_err(|_| VerifyError::InvalidSignature)
}

fn measure_recovery(recover: Recovery, micros: Stopwatch<'_>) -> Result<u64, BenchError> {
    let by = TestSigner::new(1)?;
    let account = florin_protocol::WalletSigner::address(&by);
    let hashes = (0..SIGNATURES).map(|number| *blake3::hash(&number.to_le_bytes()).as_bytes());
    let signed = hashes
        .map(|hash| Ok((hash, florin_protocol::WalletSigner::sign_typed_data(&by, hash)?)))
        .collect::<Result<Vec<_>, BenchError>>()?;
    let started = micros();
    let all = signed.iter().all(|(hash, signature)| recover(*hash, signature) == Ok(account));
    let rate = per_second(SIGNATURES, micros().saturating_sub(started));
    if all { Ok(rate) } else { Err(Refusal::InvalidSignature.into()) }
}
