//! Executes an intent as a mined transaction, exactly once.
//!
//! A transaction is signed, written to the outbox, and only then broadcast; its hash identifies it
//! after any crash. A nonce is never reused for different content: a transaction that no block
//! includes is replaced by a version with a higher fee (replacement transaction). If a
//! reorganisation removes a transaction, its bytes are broadcast again; if it then fails, because
//! the state of the new chain differs, its intent is executed in a new transaction.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use alloy_primitives::B256;
use florin_protocol::{Address, WalletSigner};

use super::confirmation::{FinalStatus, TransactionLocation};
use super::node::{BlockTag, Call, CallResult, NodeClient, TransactionReceipt};
use super::outbox::{Intent, MinedTransaction, Outbox, OutboxEntry};
use super::revert::{RevertReason, decode_revert};
use crate::limits::{LAG_PAUSE, LAG_RETRIES_MAX, OUTBOX_PRUNE_DEPTH, STEPS_MAX};
use florin_ledger::TransactionOutcome;
use florin_ledger::ethereum::Settings;
use florin_ledger::{LedgerError, Refusal};

/// Hex digits of the genesis block's hash in the file names of outboxes.
const GENESIS_DIGITS: usize = 8;
/// Gas added to the estimate, in sixteenths: execution on the next block's state may need a little
/// more.
const GAS_EXTRA_16THS: u64 = 4;

/// The next step towards the execution of an intent.
pub(super) enum PlanStep {
    /// Nothing to do: the state is as requested.
    AlreadyApplied(TransactionOutcome),
    /// Another transaction is required first.
    Prerequisite(Box<(Intent, Call)>),
    /// The transaction that executes the intent.
    Send(Call),
}

/// Plans the execution of an intent on the current state.
pub(super) trait Planner {
    /// The next step.
    ///
    /// # Errors
    /// [`LedgerError::Refused`] if the intent cannot be executed.
    fn plan(&self, from: Address, intent: &Intent) -> Result<PlanStep, LedgerError>;

    /// Whether a successful transaction counts as the intent's execution; one that changed nothing
    /// does not.
    fn is_effective(&self, intent: &Intent, receipt: &TransactionReceipt) -> bool;
}

/// The way in which an intent was executed.
pub(super) enum Execution {
    /// No transaction was needed.
    Stands(TransactionOutcome),
    /// This transaction executed it.
    Mined(TransactionReceipt),
}

/// The result of an attempt to send.
enum SendResult {
    Final(FinalStatus),
    /// Nothing was sent: the transaction would revert with this data.
    WouldRevert(Vec<u8>),
}

/// A repetition of a transaction that a reorganisation reverted: its nonce, and whether its success
/// had been reported to the caller.
#[derive(Clone, Copy)]
struct Reexecution {
    nonce: u64,
    reported: bool,
}

/// Sends the transactions of any number of accounts on one chain.
pub(super) struct Sender {
    pub(super) node: NodeClient,
    pub(super) chain: u64,
    pub(super) settings: Settings,
    folder: PathBuf,
    /// Hash of the genesis block; distinguishes chains with the same id, such as two runs of anvil.
    genesis: B256,
    /// Distinguishes this market's transactions from those of others in the same outboxes.
    market: String,
    account_locks: Mutex<BTreeMap<Address, Arc<Mutex<()>>>>,
    /// The blocks with transactions of each account that has written in this process, one entry for
    /// each block: a reorganisation may have replaced some of these blocks and not others.
    mined_blocks: Mutex<BTreeMap<Address, Vec<MinedTransaction>>>,
    /// The highest confirmed block so far.
    highest_confirmed: AtomicU64,
}

impl Sender {
    /// A sender for one market on one chain. `folder` contains the outboxes.
    /// # Errors
    /// [`LedgerError::Unavailable`] if the node does not return the genesis block.
    pub(super) fn new(
        node: NodeClient,
        chain: u64,
        settings: Settings,
        folder: &Path,
        market: String,
    ) -> Result<Self, LedgerError> {
        let genesis = node.block(BlockTag::Block(0))?.hash;
        let (turns, places, seen) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        let folder = folder.to_owned();
        Ok(Self {
            node,
            chain,
            settings,
            folder,
            genesis,
            market,
            account_locks: turns,
            mined_blocks: places,
            highest_confirmed: seen,
        })
    }

    /// The newest confirmed block. Never older than a block that this process has used before,
    /// although the nodes behind one address may be at different blocks.
    pub(super) fn confirmed_block_monotonic(&self) -> Result<u64, LedgerError> {
        let mine = {
            let places = self.mined_blocks.lock().unwrap_or_else(PoisonError::into_inner);
            places.values().flatten().map(|mined| mined.block).max().unwrap_or_default()
        };
        let mut tip = 0;
        for retry in 0..=LAG_RETRIES_MAX {
            if retry > 0 {
                std::thread::sleep(LAG_PAUSE);
            }
            let seen = self.highest_confirmed.load(Ordering::SeqCst);
            tip = self.node.latest_block_number()?;
            let counted = self.settings.confirmed_block(tip);
            if tip >= mine && counted >= seen {
                self.record_confirmed(counted)?;
                return Ok(counted);
            }
        }
        Err(self.node_lags(&format!("it is at block {tip}; it was at a later block before")))
    }

    /// The newest confirmed block according to the node's current state.
    pub(super) fn confirmed_block_now(&self) -> Result<u64, LedgerError> {
        let counted = self.settings.confirmed_block(self.node.latest_block_number()?);
        self.record_confirmed(counted)?;
        Ok(counted)
    }

    /// Records a confirmed block, if the node has it: a wrong number must not block this process
    /// for ever.
    fn record_confirmed(&self, counted: u64) -> Result<(), LedgerError> {
        if counted > self.highest_confirmed.load(Ordering::SeqCst) {
            if self.node.block_by_number(counted)?.is_none() {
                return Err(self.node_lags(&format!("it has no block {counted}")));
            }
            self.highest_confirmed.fetch_max(counted, Ordering::SeqCst);
        }
        Ok(())
    }

    fn node_lags(&self, what: &str) -> LedgerError {
        LedgerError::Unavailable(format!("{} lags behind: {what}", self.node.0.name()))
    }

    /// Executes an intent. First resolves the transactions that an earlier run left pending; if one
    /// of them executed the same intent and its success has not been reported yet, that success is
    /// the result.
    pub(super) fn execute(
        &self,
        by: &dyn WalletSigner,
        intent: &Intent,
        planner: &dyn Planner,
    ) -> Result<Execution, LedgerError> {
        let turn = self.account_lock(by.address());
        let _mine = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let outbox = self.open_outbox(by.address())?;
        let open = self.resolve_pending(&outbox, by, planner)?;
        // For idempotent intents the contracts decide first: their state is authoritative.
        if intent.is_idempotent() {
            return match self.plan_and_send(&outbox, by, intent, planner, None) {
                Err(error @ LedgerError::Refused(_)) => {
                    let earlier =
                        self.find_unreported(&outbox, &open, intent, planner).ok().flatten();
                    earlier.map(Execution::Mined).ok_or(error)
                }
                carried => carried,
            };
        }
        match self.find_unreported(&outbox, &open, intent, planner)? {
            Some(receipt) => Ok(Execution::Mined(receipt)),
            None => self.plan_and_send(&outbox, by, intent, planner, None),
        }
    }

    /// The receipt of an earlier run's transaction for the same intent whose success has not been
    /// reported: a repeated request returns it. Bond and stake requests depend on the current
    /// amount, so for them only transactions that were pending until now count.
    fn find_unreported(
        &self,
        outbox: &Outbox,
        open: &[u64],
        intent: &Intent,
        planner: &dyn Planner,
    ) -> Result<Option<TransactionReceipt>, LedgerError> {
        for mut entry in outbox.entries()? {
            let Some(mined) = entry.mined_successfully() else { continue };
            let is_it = entry.market == self.market && entry.intent == *intent;
            let counts = intent.reports_late() || open.contains(&entry.nonce);
            if entry.reported || !is_it || !counts {
                continue;
            }
            if !self.is_canonical(&mined)? {
                return Err(self.node_lags("a transaction of an earlier run has just moved"));
            }
            let receipt = self.node.receipt(B256::from(mined.transaction))?;
            let Some(receipt) = receipt.filter(|receipt| receipt.block_hash.0 == mined.hash) else {
                return Err(self.node_lags("it has no receipt of a transaction in its chain"));
            };
            entry.reported = true;
            outbox.put(&entry)?;
            if planner.is_effective(intent, &receipt) {
                let summary = intent.summary();
                tracing::warn!(summary, "an earlier run has executed this; not sent again");
                return Ok(Some(receipt));
            }
        }
        Ok(None)
    }

    /// Resolves the transactions that an earlier run left pending.
    pub(super) fn resume(
        &self,
        by: &dyn WalletSigner,
        planner: &dyn Planner,
    ) -> Result<(), LedgerError> {
        let turn = self.account_lock(by.address());
        let _mine = turn.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.outbox_path(by.address()).exists() {
            return Ok(());
        }
        let outbox = self.open_outbox(by.address())?;
        self.resolve_pending(&outbox, by, planner).map(drop)
    }

    /// Whether a reorganisation has moved or removed transactions of this process. Removed
    /// transactions are broadcast again; those that are restored unchanged are recorded;
    /// [`Sender::resume`] resolves the rest.
    pub(super) fn was_reorganised(&self, planner: &dyn Planner) -> Result<bool, LedgerError> {
        let places = self.mined_blocks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut thrown_back = false;
        for (account, blocks) in places {
            let mut in_place = true;
            for mined in blocks {
                in_place = in_place && self.is_canonical(&mined)?;
            }
            if !in_place && !self.is_restored(account, planner)? {
                thrown_back = true;
            }
        }
        Ok(thrown_back)
    }

    /// Whether all executed transactions of an account are executed again after a reorganisation;
    /// broadcasts those that are not.
    fn is_restored(&self, account: Address, planner: &dyn Planner) -> Result<bool, LedgerError> {
        let turn = self.account_lock(account);
        // A concurrent writer of the account does this as well.
        let Ok(_mine) = turn.try_lock() else { return Ok(false) };
        let Ok(outbox) = Outbox::open(&self.outbox_path(account), 0) else { return Ok(false) };
        if self.restore_all(&outbox, account, planner)? {
            return Ok(true);
        }
        let count = self.node.nonce(account, BlockTag::Latest)?;
        for entry in outbox.entries()?.iter().filter(|entry| entry.nonce >= count) {
            self.broadcast(entry);
        }
        Ok(false)
    }

    /// Whether all executed transactions are in blocks again with the same result; if so, records
    /// their new blocks.
    fn restore_all(
        &self,
        outbox: &Outbox,
        account: Address,
        planner: &dyn Planner,
    ) -> Result<bool, LedgerError> {
        for mut entry in outbox.entries()? {
            if entry.mined.is_none() {
                if entry.reexecutes.is_some() {
                    return Ok(false);
                }
                continue;
            }
            let is_mine = entry.market == self.market;
            match self.locate(account, &entry)? {
                TransactionLocation::Confirmed(receipt)
                    if receipt.succeeded() == entry.mined_successfully().is_some()
                        && (!is_mine || planner.is_effective(&entry.intent, &receipt)) =>
                {
                    entry.mined = Some(MinedTransaction::from_receipt(&receipt));
                    outbox.put(&entry)?;
                }
                _ => return Ok(false),
            }
        }
        self.record_mined_blocks(outbox, account)?;
        Ok(true)
    }

    /// Whether a block is still canonical. Receipts do not show this: nodes delete some, and retain
    /// others too long.
    fn is_canonical(&self, mined: &MinedTransaction) -> Result<bool, LedgerError> {
        match self.node.block_by_number(mined.block)? {
            Some(block) => Ok(block.hash.0 == mined.hash),
            None => Err(self.node_lags(&format!("it has no block {}", mined.block))),
        }
    }

    /// The lock that serialises the writes of an account.
    fn account_lock(&self, account: Address) -> Arc<Mutex<()>> {
        let mut turns = self.account_locks.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(turns.entry(account).or_default())
    }

    /// The path of an account's outbox.
    fn outbox_path(&self, account: Address) -> PathBuf {
        let account = account.to_string();
        let account = account.trim_start_matches("0x").to_ascii_lowercase();
        let first: String = format!("{:x}", self.genesis).chars().take(GENESIS_DIGITS).collect();
        self.folder.join(format!("{}-{first}-{account}.redb", self.chain))
    }

    fn open_outbox(&self, account: Address) -> Result<Outbox, LedgerError> {
        Outbox::open(&self.outbox_path(account), self.settings.write_timeout_ms)
    }

    /// Resolves every unconfirmed entry of the outbox. An entry of another market is only
    /// confirmed, because nonces are consecutive; its success is left for that market to evaluate.
    /// Returns the nonces of the unconfirmed entries.
    fn resolve_pending(
        &self,
        outbox: &Outbox,
        by: &dyn WalletSigner,
        planner: &dyn Planner,
    ) -> Result<Vec<u64>, LedgerError> {
        let open = self.unconfirmed_entries(outbox)?;
        let nonces = open.iter().map(|entry| entry.nonce).collect();
        // Broadcasts all of them first, so that none waits for its predecessor's nonce.
        for entry in &open {
            self.broadcast(entry);
        }
        for entry in open {
            if entry.market == self.market {
                let seen = self.await_confirmation(outbox, by, entry.clone())?;
                self.handle_final_status(outbox, by, planner, &entry, seen)?;
            } else if !entry.must_succeed() {
                self.await_confirmation(outbox, by, entry)?;
            }
        }
        self.record_mined_blocks(outbox, by.address())?;
        Ok(nonces)
    }

    /// The entries that are not known to be in the chain; one query per block. Deletes confirmed
    /// entries that are deep enough, except payments whose success has not been reported.
    fn unconfirmed_entries(&self, outbox: &Outbox) -> Result<Vec<OutboxEntry>, LedgerError> {
        let entries = outbox.entries()?;
        if entries.is_empty() {
            return Ok(entries);
        }
        let tip = self.node.latest_block_number()?;
        let mut known: Vec<(MinedTransaction, bool)> = Vec::new();
        let mut unsettled = Vec::new();
        for entry in entries {
            let Some(mined) = entry.mined else {
                unsettled.push(entry);
                continue;
            };
            let in_place = match known.iter().find(|(other, _)| other.is_in_same_block(&mined)) {
                Some((_, in_place)) => *in_place,
                None => {
                    let in_place = self.is_canonical(&mined)?;
                    known.push((mined, in_place));
                    in_place
                }
            };
            let unreported = mined.succeeded && !entry.reported && entry.intent.reports_late();
            if !in_place {
                unsettled.push(entry);
            } else if mined.block.saturating_add(OUTBOX_PRUNE_DEPTH) < tip && !unreported {
                outbox.remove(entry.nonce)?;
            }
        }
        Ok(unsettled)
    }

    /// Handles the final status of a transaction of an earlier run. If it had succeeded and no
    /// longer does, executes its intent again; its entry stays until the new transaction is
    /// recorded.
    fn handle_final_status(
        &self,
        outbox: &Outbox,
        by: &dyn WalletSigner,
        planner: &dyn Planner,
        entry: &OutboxEntry,
        seen: FinalStatus,
    ) -> Result<(), LedgerError> {
        let (intent, summary) = (&entry.intent, entry.intent.summary());
        match seen {
            FinalStatus::Succeeded(_) if !entry.must_succeed() => return Ok(()),
            FinalStatus::Succeeded(receipt) if planner.is_effective(intent, &receipt) => {
                return Ok(());
            }
            FinalStatus::Reverted | FinalStatus::Displaced if !entry.must_succeed() => {
                tracing::warn!(summary, "a transaction of an earlier run failed");
                return Ok(());
            }
            _ => {}
        }
        let is_redone = |other: &OutboxEntry| other.reexecutes == Some(entry.nonce);
        if !outbox.entries()?.iter().any(is_redone) {
            tracing::warn!(summary, "reverted by a reorganisation; executing it again");
            let redo = Reexecution { nonce: entry.nonce, reported: entry.reported };
            match self.plan_and_send(outbox, by, intent, planner, Some(redo)) {
                Ok(_) => {}
                Err(LedgerError::Refused(refusal)) => {
                    tracing::warn!(summary, %refusal, "it cannot be executed again");
                }
                Err(error) => return Err(error),
            }
        }
        outbox.remove(entry.nonce)
    }

    /// Plans and sends transactions until the intent is executed.
    fn plan_and_send(
        &self,
        outbox: &Outbox,
        by: &dyn WalletSigner,
        intent: &Intent,
        planner: &dyn Planner,
        redo: Option<Reexecution>,
    ) -> Result<Execution, LedgerError> {
        let (mut approved, mut stopped) = (false, None);
        for _ in 0..STEPS_MAX {
            match planner.plan(by.address(), intent)? {
                PlanStep::AlreadyApplied(outcome) => return Ok(Execution::Stands(outcome)),
                PlanStep::Prerequisite(first) => {
                    let (first, call) = *first;
                    // A contract that spends its allowance and requests another one could take the
                    // whole balance.
                    let approves = matches!(first, Intent::Approve(1..));
                    if approves && approved {
                        let what = "the contract requires another approval: it is not the named \
                                    market, its token is non-standard, or the node lags behind \
                                    its own blocks";
                        return Err(Refusal::InvalidArgument(what.to_owned()).into());
                    }
                    let sent = self.send(outbox, by, first, call, None)?;
                    approved |=
                        approves && matches!(sent, SendResult::Final(FinalStatus::Succeeded(_)));
                }
                PlanStep::Send(call) => match self.send(outbox, by, intent.clone(), call, redo)? {
                    SendResult::Final(FinalStatus::Succeeded(receipt)) => {
                        return Ok(Execution::Mined(receipt));
                    }
                    SendResult::Final(_) if !intent.is_idempotent() => {
                        // Plans once more only to return the refusal, if there is one.
                        planner.plan(by.address(), intent)?;
                        return Err(transaction_failed(intent));
                    }
                    // A reverted or displaced transaction is planned again, which returns the
                    // refusal.
                    SendResult::Final(_) => {}
                    // If the plan returns no refusal twice, the revert's reason is the error.
                    SendResult::WouldRevert(data) => {
                        if stopped.as_ref() == Some(&data)
                            && let RevertReason::Refused(refusal)
                            | RevertReason::TokenRevert(refusal) = decode_revert(&data)
                        {
                            return Err(refusal.into());
                        }
                        stopped = Some(data);
                    }
                },
            }
        }
        Err(LedgerError::Unavailable(format!(
            "other transactions were executed first {STEPS_MAX} times; not executed: {}",
            intent.summary()
        )))
    }

    /// Signs, records, broadcasts and awaits one transaction, unless it would revert now.
    fn send(
        &self,
        outbox: &Outbox,
        by: &dyn WalletSigner,
        intent: Intent,
        call: Call,
        redo: Option<Reexecution>,
    ) -> Result<SendResult, LedgerError> {
        let from = by.address();
        self.require_ether(from, call.wei, &intent)?;
        let gas = match self.node.estimate(from, &call)? {
            Ok(gas) => gas,
            Err(data) => return Ok(SendResult::WouldRevert(data)),
        };
        let gas = gas.saturating_add(gas.saturating_mul(GAS_EXTRA_16THS).div_euclid(16));
        if gas > self.settings.gas_max {
            return Err(LedgerError::Gas(format!(
                "up to {gas} gas needed, above the limit of {} (gas_max): {}",
                self.settings.gas_max,
                intent.summary()
            )));
        }
        let fees = self.offer_fees(from, gas, call.wei, self.node.fees()?, &intent)?;
        let next_outbox_nonce = outbox.last_nonce()?.map_or(0, |nonce| nonce.saturating_add(1));
        let nonce = self.node.nonce(from, BlockTag::Latest)?.max(next_outbox_nonce);
        if self.node.nonce(from, BlockTag::Pending)? > nonce {
            return Err(LedgerError::Unavailable(format!(
                "another device's transaction of {from} is pending: wait until it is mined"
            )));
        }
        let Call { to, data, wei } = call;
        let mut entry = OutboxEntry {
            nonce,
            market: self.market.clone(),
            intent,
            to,
            data,
            wei,
            gas,
            versions: Vec::new(),
            mined: None,
            reported: redo.is_some_and(|redo| redo.reported),
            reexecutes: redo.map(|redo| redo.nonce),
        };
        self.sign_version(by, &mut entry, fees)?;
        outbox.put(&entry)?;
        self.broadcast(&entry);
        let seen = self.await_confirmation(outbox, by, entry)?;
        if redo.is_none() && matches!(seen, FinalStatus::Succeeded(_)) {
            self.mark_reported(outbox, nonce)?;
        }
        self.record_mined_blocks(outbox, from)?;
        Ok(SendResult::Final(seen))
    }

    /// Records that the transaction's success is reported to the caller.
    fn mark_reported(&self, outbox: &Outbox, nonce: u64) -> Result<(), LedgerError> {
        match outbox.entry(nonce)? {
            Some(entry) => outbox.put(&OutboxEntry { reported: true, ..entry }),
            None => Ok(()),
        }
    }

    /// Records the blocks of an account's transactions, so that a reorganisation is detected.
    fn record_mined_blocks(&self, outbox: &Outbox, account: Address) -> Result<(), LedgerError> {
        let mut blocks: Vec<MinedTransaction> = Vec::new();
        for mined in outbox.entries()?.into_iter().filter_map(|entry| entry.mined) {
            if !blocks.iter().any(|known| known.is_in_same_block(&mined)) {
                blocks.push(mined);
            }
        }
        self.mined_blocks.lock().unwrap_or_else(PoisonError::into_inner).insert(account, blocks);
        Ok(())
    }

    /// Simulates a call on the latest state (`eth_call`).
    pub(super) fn simulate(&self, from: Address, call: &Call) -> Result<CallResult, LedgerError> {
        self.node.call(Some(from), call, BlockTag::Latest)
    }
}

fn transaction_failed(intent: &Intent) -> LedgerError {
    LedgerError::Unavailable(format!(
        "the transaction failed: check the ledger's state before you try again: {}",
        intent.summary()
    ))
}
