//! Recovery: replays every block from genesis and compares the result with the stored state.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::thread;

use florin_protocol::{Canonical, Digest, MarketId};

use crate::api::TxId;
use crate::embedded::block::{Block, ChainHead, Genesis, transactions_digest};
use crate::embedded::store::Store;
use crate::embedded::{ChainError, Verification};
use crate::limits::RECENT_MAX;
use crate::state::{ApplyError, Draft, LedgerState, changes_digest};
use crate::transaction::{TransactionOutcome, verify_on_threads};

/// The outcomes of the newest transactions, block by block, for clients that lost a response.
#[derive(Debug, Default)]
pub(crate) struct RecentOutcomes {
    blocks: VecDeque<Vec<(TxId, TransactionOutcome)>>,
    count: usize,
}

impl RecentOutcomes {
    /// Adds a block's outcomes and drops the oldest beyond [`RECENT_MAX`].
    pub(crate) fn add(&mut self, outcomes: Vec<(TxId, TransactionOutcome)>) {
        self.count = self.count.saturating_add(outcomes.len());
        self.blocks.push_back(outcomes);
        while self.count > RECENT_MAX {
            let Some(oldest) = self.blocks.pop_front() else { break };
            self.count = self.count.saturating_sub(oldest.len());
        }
    }

    /// The outcome of a transaction, if it is among the recent ones.
    pub(crate) fn outcome(&self, id: TxId) -> Option<TransactionOutcome> {
        let mut newest_first = self.blocks.iter().rev().flatten();
        newest_first.find_map(|(other, outcome)| (*other == id).then_some(*outcome))
    }
}

/// A chain as loaded from its file.
#[derive(Debug)]
pub(crate) struct LoadedChain {
    pub(crate) genesis: Genesis,
    pub(crate) state: LedgerState,
    pub(crate) head: ChainHead,
    pub(crate) recent: RecentOutcomes,
    pub(crate) transactions: u64,
}

impl LoadedChain {
    /// A chain without blocks.
    ///
    /// # Errors
    /// [`ChainError::Corrupt`] for a genesis that violates a rule.
    pub(crate) fn from_genesis(genesis: Genesis) -> Result<Self, ChainError> {
        if let Some(fault) = genesis.validation_error() {
            return Err(ChainError::corrupt(format!("table meta, row genesis: {fault}")));
        }
        Ok(Self {
            state: LedgerState::from_genesis(&genesis.allocations),
            head: ChainHead::from_genesis(&genesis),
            genesis,
            recent: RecentOutcomes::default(),
            transactions: 0,
        })
    }

    /// The summary of a chain whose blocks were all verified.
    ///
    /// # Errors
    /// [`ChainError`] of encoding the state.
    pub(crate) fn verification(&self) -> Result<Verification, ChainError> {
        Ok(Verification {
            market: self.genesis.market(),
            operator: self.genesis.operator,
            operator_key: self.genesis.operator_key,
            blocks: self.head.number,
            head: self.head.digest,
            transactions: self.transactions,
            state: self.state.digest()?,
        })
    }
}

/// Which signatures are verified when a chain is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignatureChecks {
    /// Only the head's: account signatures were verified before the transactions were stored, and
    /// the operator's signature of the head covers every byte of them.
    HeadOnly,
    /// All: every account signature and every block signature.
    All,
}

/// Loads a chain and replays it from genesis.
pub(crate) fn load_and_replay(
    store: &Store,
    trust: SignatureChecks,
) -> Result<LoadedChain, ChainError> {
    let genesis = Genesis::from_bytes(&store.genesis()?)
        .map_err(|error| ChainError::corrupt(format!("table meta, row genesis: {error}")))?;
    let witness = store.last_acknowledged()?;
    if witness.is_none() {
        tracing::warn!("the ledger's first page does not name the newest acknowledged block");
    }
    let mut loaded = LoadedChain::from_genesis(genesis)?;
    let mut witnessed = witness.is_none_or(|w| w.number == 0 && w.digest == loaded.head.digest);
    let mut last = None;
    store.each_block(|number, bytes| {
        let block = replay_block(&mut loaded, number, bytes, trust)?;
        witnessed |= witness.is_some_and(|w| w.number == number && w.digest == loaded.head.digest);
        last = Some(block);
        Ok(())
    })?;
    if let Some(block) = last {
        block
            .header
            .verify(loaded.genesis.operator_key)
            .map_err(|error| ChainError::in_block(loaded.head.number, error))?;
    }
    if !witnessed {
        let number = witness.map_or(0, |w| w.number);
        return Err(ChainError::corrupt(format!(
            "block {number} was acknowledged, but the chain ends at block {} or has another block {number}",
            loaded.head.number
        )));
    }
    if let Some(table) = loaded.state.first_differing_table(&store.state()?) {
        return Err(ChainError::corrupt(format!(
            "table {table} does not equal the result of the blocks up to {}",
            loaded.head.number
        )));
    }
    Ok(loaded)
}

/// Verifies one block and applies it to the loaded state.
pub(crate) fn replay_block(
    loaded: &mut LoadedChain,
    number: u64,
    bytes: &[u8],
    trust: SignatureChecks,
) -> Result<Block, ChainError> {
    let fault = |what: String| ChainError::in_block(number, what);
    let block = Block::from_bytes(bytes).map_err(|error| fault(error.to_string()))?;
    let header = &block.header;
    if header.body.number != number {
        return Err(fault(format!("its header has block number {}", header.body.number)));
    }
    match trust {
        SignatureChecks::HeadOnly => loaded.head.verify_link(&header.body),
        SignatureChecks::All => loaded.head.verify_next(header, loaded.genesis.operator_key),
    }
    .map_err(fault)?;
    let head_bytes = header.to_bytes().len();
    let transactions = bytes.get(head_bytes..).unwrap_or_default();
    if transactions_digest(transactions) != header.body.transactions {
        return Err(fault("its transactions do not match the signed digest".to_owned()));
    }
    let market = loaded.genesis.market();
    if trust == SignatureChecks::All {
        check_signatures(&block, market).map_err(fault)?;
    }
    let (outcomes, changes) = replay(&loaded.state, &block, market).map_err(fault)?;
    if changes.1 != header.body.changes {
        return Err(fault(
            "the changes of its transactions do not match the signed digest".to_owned(),
        ));
    }
    loaded.state.merge(changes.0);
    loaded.recent.add(outcomes);
    loaded.head = ChainHead::from_header(header);
    let count = u64::try_from(block.transactions.len()).unwrap_or(u64::MAX);
    loaded.transactions = loaded.transactions.saturating_add(count);
    Ok(block)
}

fn check_signatures(block: &Block, market: MarketId) -> Result<(), String> {
    let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let verdicts = verify_on_threads(market, block.transactions.clone(), threads);
    match verdicts.iter().position(Result::is_err) {
        Some(position) => Err(format!("the signature of transaction {position} is invalid")),
        None => Ok(()),
    }
}

type Replayed = (Vec<(TxId, TransactionOutcome)>, (crate::state::Changes, Digest));

/// Executes the transactions of a block on a state.
fn replay(state: &LedgerState, block: &Block, market: MarketId) -> Result<Replayed, String> {
    let mut draft = Draft::new(state);
    let mut outcomes = Vec::with_capacity(block.transactions.len());
    for (position, signed) in block.transactions.iter().enumerate() {
        let fault = |what: String| format!("transaction {position}: {what}");
        let transaction = &signed.transaction;
        if transaction.market != market {
            return Err(fault("it was signed for another chain or market".to_owned()));
        }
        let applied = draft
            .apply(transaction, block.header.body.time)
            .map_err(|error: ApplyError| fault(error.to_string()))?;
        if !applied.changed {
            return Err(fault("it changes nothing, so it must not be in a block".to_owned()));
        }
        outcomes.push((transaction.id(), applied.outcome));
    }
    let changes = draft.into_changes();
    let rows = changes.rows().map_err(|error| error.to_string())?;
    let digest = changes_digest(&rows);
    Ok((outcomes, (changes, digest)))
}
