//! From an intent to a mined transaction, exactly once.
//!
//! A transaction is signed, kept in the outbox, and only then broadcast; what happens next to it, whatever stops this
//! process, can be found out from its hash. The same nonce is never given to another content: a transaction that no
//! block takes goes out again with a higher fee. If a reorganisation throws one out, its bytes go out again; if it then
//! fails, because the chain is another one now, its intent is carried out anew.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alloy_consensus::{SignableTransaction, TxEip1559};
use alloy_primitives::{B256, Signature, TxKind, U256};
use florin_protocol::{Address, Signer};

use super::endpoint::EndpointError;
use super::node::{Answer, At, Call, Fees, Node, Receipt};
use super::outbox::{Attempt, Entry, Intent, Mined, Outbox};
use super::settings::Settings;
use crate::api::LedgerError;
use crate::limits::{ATTEMPTS_MAX, FORGET_DEPTH, STEPS_MAX};
use crate::transaction::Outcome;

/// First pause between two looks at the chain, in milliseconds; grows by half each time.
const POLL_MS_FIRST: u64 = 4;
/// After how long the same bytes go out again, in milliseconds: a node may have dropped them.
const REPEAT_MS: u64 = 2_000;
/// Gas beyond the estimate, in sixteenths: the next block's state may take a little more.
const GAS_EXTRA_16THS: u64 = 4;

/// What to do next about an intent.
pub(super) enum Step {
    /// Everything is as it asks for.
    Stands(Outcome),
    /// Something else has to be done first.
    First(Intent, Call),
    /// This does it.
    Send(Call),
}

/// Knows how an intent is carried out as things stand.
pub(super) trait Planner {
    /// What to do next about it.
    ///
    /// # Errors
    /// [`LedgerError::Refused`] if it cannot be carried out.
    fn plan(&self, from: Address, intent: &Intent) -> Result<Step, LedgerError>;

    /// Whether a transaction may stand in for an intent's result: a success that did nothing may not.
    fn is_effective(&self, intent: &Intent, receipt: &Receipt) -> bool;
}

/// How an intent was carried out.
pub(super) enum Carried {
    /// Nothing was needed.
    Stands(Outcome),
    /// By this transaction.
    By(Receipt),
}

/// What became of one transaction.
enum Seen {
    Done(Receipt),
    Reverted,
    /// Another transaction of the account took its nonce.
    Displaced,
}

/// Sends for any number of accounts on one chain.
pub(super) struct Sender {
    pub(super) node: Node,
    pub(super) chain: u64,
    pub(super) settings: Settings,
    folder: PathBuf,
    /// Sets this market's outboxes apart from others' in the same folder.
    name: String,
    turns: Mutex<BTreeMap<Address, Arc<Mutex<()>>>>,
    /// The youngest transaction of each account that has written here. As long as it is in its block, everything before
    /// it is too.
    youngest: Mutex<BTreeMap<Address, Mined>>,
}

impl Sender {
    pub(super) fn new(
        node: Node,
        chain: u64,
        settings: Settings,
        folder: &Path,
        name: String,
    ) -> Self {
        let (turns, youngest) = (Mutex::default(), Mutex::default());
        Self { node, chain, settings, folder: folder.to_owned(), name, turns, youngest }
    }

    /// The newest block that counts as having happened.
    pub(super) fn confirmed(&self) -> Result<u64, LedgerError> {
        Ok(self.node.tip()?.saturating_sub(self.settings.confirmations.saturating_sub(1)))
    }

    /// Carries an intent out. What an earlier run left over is seen through first; if the same intent was among that,
    /// it is done.
    pub(super) fn carry_out(
        &self,
        by: &dyn Signer,
        intent: &Intent,
        planner: &dyn Planner,
    ) -> Result<Carried, LedgerError> {
        let turn = self.turn(by.address());
        let _mine = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let outbox = self.outbox(by.address())?;
        let resumed = self.resolve(&outbox, by, planner)?;
        if let Some((_, receipt)) = resumed.into_iter().find(|(left, _)| left == intent) {
            return Ok(Carried::By(receipt));
        }
        self.pursue(&outbox, by, intent, planner)
    }

    /// Sees through what an earlier run left over.
    pub(super) fn resume(&self, by: &dyn Signer, planner: &dyn Planner) -> Result<(), LedgerError> {
        let turn = self.turn(by.address());
        let _mine = turn.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.file(by.address()).exists() {
            return Ok(());
        }
        let outbox = self.outbox(by.address())?;
        self.resolve(&outbox, by, planner).map(drop)
    }

    /// Whether a reorganisation has moved or thrown out what an account of this process had sent. What was thrown out is
    /// broadcast again; [`Sender::resume`] sees to the rest.
    pub(super) fn was_thrown_back(&self) -> Result<bool, LedgerError> {
        let youngest = self.youngest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut thrown_back = false;
        for (account, mined) in youngest {
            if self.is_in_place(&mined)? {
                continue;
            }
            thrown_back = true;
            let turn = self.turn(account);
            let Ok(_mine) = turn.try_lock() else { continue };
            let count = self.node.nonce(account, At::Latest)?;
            for entry in self.outbox(account)?.entries()? {
                if entry.nonce >= count {
                    self.broadcast(&entry);
                }
            }
        }
        Ok(thrown_back)
    }

    fn is_in_place(&self, mined: &Mined) -> Result<bool, LedgerError> {
        let receipt = self.node.receipt(B256::from(mined.transaction))?;
        Ok(receipt.is_some_and(|receipt| receipt.block_hash.0 == mined.hash))
    }

    fn turn(&self, account: Address) -> Arc<Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(turns.entry(account).or_default())
    }

    fn file(&self, account: Address) -> PathBuf {
        let account = account.to_string();
        let account = account.trim_start_matches("0x").to_ascii_lowercase();
        self.folder.join(format!("{}-{account}.redb", self.name))
    }

    fn outbox(&self, account: Address) -> Result<Outbox, LedgerError> {
        Outbox::open(&self.file(account), self.settings.patience_ms)
    }

    /// Deals with everything that is in the outbox, and returns what had not been mined before.
    fn resolve(
        &self,
        outbox: &Outbox,
        by: &dyn Signer,
        planner: &dyn Planner,
    ) -> Result<Vec<(Intent, Receipt)>, LedgerError> {
        let entries = outbox.entries()?;
        let youngest = entries.iter().filter_map(|entry| entry.mined).max_by_key(|m| m.block);
        let all_in_place = match &youngest {
            Some(mined) => self.is_in_place(mined)?,
            None => true,
        };
        let tip = if entries.is_empty() { 0 } else { self.node.tip()? };
        let mut found = Vec::new();
        for entry in entries {
            match entry.mined {
                Some(mined) if all_in_place => {
                    if mined.block.saturating_add(FORGET_DEPTH) < tip {
                        outbox.remove(entry.nonce)?;
                    }
                }
                mined => {
                    let intent = entry.intent.clone();
                    let seen = self.see_through(outbox, by, entry)?;
                    found.extend(self.after(outbox, by, planner, &intent, mined, seen)?);
                }
            }
        }
        self.note(outbox, by.address())?;
        Ok(found)
    }

    /// What follows from the fate of a transaction that was left over. One that had been reported as done and is not
    /// any more is done anew.
    fn after(
        &self,
        outbox: &Outbox,
        by: &dyn Signer,
        planner: &dyn Planner,
        intent: &Intent,
        mined: Option<Mined>,
        seen: Seen,
    ) -> Result<Option<(Intent, Receipt)>, LedgerError> {
        let summary = intent.summary();
        match seen {
            Seen::Done(receipt) if mined.is_none() => return Ok(Some((intent.clone(), receipt))),
            Seen::Done(receipt) if planner.is_effective(intent, &receipt) => return Ok(None),
            Seen::Reverted | Seen::Displaced if mined.is_none() => {
                tracing::warn!(summary, "a transaction of an earlier run came to nothing");
                return Ok(None);
            }
            _ => tracing::warn!(summary, "undone by a reorganisation of the chain; doing it again"),
        }
        match self.pursue(outbox, by, intent, planner) {
            Ok(_) => {}
            Err(LedgerError::Refused(refusal)) => {
                tracing::warn!(summary, %refusal, "it cannot be done again");
            }
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    /// Plans and sends until the intent is carried out.
    fn pursue(
        &self,
        outbox: &Outbox,
        by: &dyn Signer,
        intent: &Intent,
        planner: &dyn Planner,
    ) -> Result<Carried, LedgerError> {
        for _ in 0..STEPS_MAX {
            match planner.plan(by.address(), intent)? {
                Step::Stands(outcome) => return Ok(Carried::Stands(outcome)),
                Step::First(before, call) => {
                    self.send(outbox, by, before, call)?;
                }
                Step::Send(call) => {
                    // What reverts, or was displaced, is planned anew: that finds the reason.
                    if let Some(Seen::Done(receipt)) =
                        self.send(outbox, by, intent.clone(), call)?
                    {
                        return Ok(Carried::By(receipt));
                    }
                }
            }
        }
        Err(LedgerError::Unavailable(format!(
            "other transactions came first {STEPS_MAX} times; not done: {}",
            intent.summary()
        )))
    }

    /// Signs, keeps, broadcasts and sees through one transaction; nothing if it would revert now.
    fn send(
        &self,
        outbox: &Outbox,
        by: &dyn Signer,
        intent: Intent,
        call: Call,
    ) -> Result<Option<Seen>, LedgerError> {
        let from = by.address();
        let Ok(gas) = self.node.estimate(from, &call)? else {
            return Ok(None);
        };
        let gas = gas.saturating_add(gas.saturating_mul(GAS_EXTRA_16THS).div_euclid(16));
        if gas > self.settings.gas_max {
            return Err(LedgerError::Gas(format!(
                "it would take up to {gas} gas, above the limit of {} (gas_max): {}",
                self.settings.gas_max,
                intent.summary()
            )));
        }
        let fees = self.affordable(from, gas, call.wei, self.node.fees()?, &intent)?;
        let kept = outbox.entries()?.last().map_or(0, |entry| entry.nonce.saturating_add(1));
        let nonce = self.node.nonce(from, At::Pending)?.max(kept);
        let Call { to, data, wei } = call;
        let mut entry =
            Entry { nonce, intent, to, data, wei, gas, attempts: Vec::new(), mined: None };
        self.sign(by, &mut entry, fees)?;
        outbox.put(&entry)?;
        self.broadcast(&entry);
        let seen = self.see_through(outbox, by, entry)?;
        self.note(outbox, from)?;
        Ok(Some(seen))
    }

    /// The fees to offer, if they are within the limit and the account can pay them.
    fn affordable(
        &self,
        from: Address,
        gas: u64,
        wei: u128,
        fees: Fees,
        intent: &Intent,
    ) -> Result<(u128, u128), LedgerError> {
        let limit = self.settings.fee_max_wei;
        let now = fees.base.saturating_add(fees.tip);
        if now > limit {
            return Err(LedgerError::Gas(format!(
                "a unit of gas costs {now} wei now, above the limit of {limit} wei: wait, or raise \
                 the limit; not sent: {}",
                intent.summary()
            )));
        }
        // Twice the base fee lasts for six full blocks.
        let fee = fees.base.saturating_mul(2).saturating_add(fees.tip).min(limit);
        let most = fee.saturating_mul(gas.into()).saturating_add(wei);
        let has = self.node.ether(from)?;
        if has < most {
            return Err(LedgerError::Gas(format!(
                "{from} has {} ETH, but up to {} ETH are needed: send it some; not sent: {}",
                ether_text(has),
                ether_text(most),
                intent.summary()
            )));
        }
        Ok((fee, fees.tip.min(fee)))
    }

    /// Signs a version of the transaction and adds it to the entry.
    fn sign(
        &self,
        by: &dyn Signer,
        entry: &mut Entry,
        (fee, tip): (u128, u128),
    ) -> Result<(), LedgerError> {
        let to = entry
            .to
            .map_or(TxKind::Create, |to| TxKind::Call(alloy_primitives::Address::from(to.0)));
        let transaction = TxEip1559 {
            chain_id: self.chain,
            nonce: entry.nonce,
            gas_limit: entry.gas,
            max_fee_per_gas: fee,
            max_priority_fee_per_gas: tip,
            to,
            value: U256::from(entry.wei),
            input: entry.data.clone().into(),
            ..TxEip1559::default()
        };
        let signature = by.sign_transaction(transaction.signature_hash().0)?;
        let signature = Signature::from_raw_array(&signature.0)
            .map_err(|error| florin_protocol::SignError(error.to_string()))?;
        let signed = transaction.into_signed(signature);
        let mut raw = Vec::new();
        signed.eip2718_encode(&mut raw);
        entry.attempts.push(Attempt { raw, hash: signed.hash().0, fee, tip });
        Ok(())
    }

    /// Hands the newest version to the node. Whether that helped shows on the chain, and nowhere else.
    fn broadcast(&self, entry: &Entry) {
        let Some(newest) = entry.attempts.last() else { return };
        match self.node.send(&newest.raw) {
            Ok(()) => {}
            // "already known" and "nonce too low" among them: the receipt tells.
            Err(EndpointError::Answered { message, .. }) => {
                tracing::debug!(hash = %newest.hash(), message, "the node did not take it");
            }
            Err(EndpointError::Unreachable(why)) => {
                tracing::warn!(hash = %newest.hash(), why, "the node may not have got it");
            }
        }
    }

    /// Waits until one version is deep enough in the chain, or none ever will be.
    fn see_through(
        &self,
        outbox: &Outbox,
        by: &dyn Signer,
        mut entry: Entry,
    ) -> Result<Seen, LedgerError> {
        let (mut waited, mut pause) = (0u64, POLL_MS_FIRST);
        let (mut repeated, mut raised, mut taken) = (None, 0u64, None);
        loop {
            let look = self.look(by.address(), &entry);
            if !matches!(look, Ok(Look::Displaced)) {
                taken = None;
            }
            match look {
                Ok(Look::Deep(receipt)) => {
                    entry.mined = Some(Mined {
                        block: receipt.block(),
                        hash: receipt.block_hash.0,
                        transaction: receipt.transaction_hash.0,
                    });
                    outbox.put(&entry)?;
                    return Ok(if receipt.succeeded() {
                        Seen::Done(receipt)
                    } else {
                        Seen::Reverted
                    });
                }
                Ok(Look::Displaced) => {
                    let since = *taken.get_or_insert(waited);
                    if waited.saturating_sub(since) >= self.settings.displaced_ms {
                        outbox.remove(entry.nonce)?;
                        return Ok(Seen::Displaced);
                    }
                }
                Ok(Look::Shallow) => {}
                Ok(Look::Nowhere) => {
                    if waited.saturating_sub(raised) >= self.settings.resubmit_ms {
                        raised = waited;
                        self.raise(outbox, by, &mut entry)?;
                    }
                    if repeated.is_none_or(|at| waited.saturating_sub(at) >= REPEAT_MS) {
                        repeated = Some(waited);
                        self.broadcast(&entry);
                    }
                }
                Err(LedgerError::Unavailable(why)) if waited < self.settings.patience_ms => {
                    tracing::debug!(why, "looking for a transaction");
                }
                Err(error) => return Err(error),
            }
            if waited >= self.settings.patience_ms {
                return Err(self.out_of_patience(&entry));
            }
            std::thread::sleep(Duration::from_millis(pause));
            waited = waited.saturating_add(pause);
            pause = pause.saturating_mul(3).div_euclid(2).min(self.settings.poll_ms_max.max(1));
        }
    }

    fn out_of_patience(&self, entry: &Entry) -> LedgerError {
        let hash = entry.attempts.last().map(Attempt::hash).unwrap_or_default();
        LedgerError::Unavailable(format!(
            "transaction {hash} is not {} blocks deep after {} s; it stays in the outbox and will \
             be seen through: {}",
            self.settings.confirmations,
            self.settings.patience_ms.div_euclid(1_000),
            entry.intent.summary()
        ))
    }

    /// Where a transaction is.
    fn look(&self, from: Address, entry: &Entry) -> Result<Look, LedgerError> {
        for attempt in entry.attempts.iter().rev() {
            if let Some(receipt) = self.node.receipt(attempt.hash())? {
                let deep =
                    self.settings.confirmations <= 1 || receipt.block() <= self.confirmed()?;
                return Ok(if deep { Look::Deep(receipt) } else { Look::Shallow });
            }
        }
        // Only what is deep enough itself has taken the nonce for good.
        let taken = self.node.nonce(from, At::Block(self.confirmed()?))? > entry.nonce;
        Ok(if taken { Look::Displaced } else { Look::Nowhere })
    }

    /// Signs the same transaction with a higher fee, as far as the limit goes.
    fn raise(
        &self,
        outbox: &Outbox,
        by: &dyn Signer,
        entry: &mut Entry,
    ) -> Result<(), LedgerError> {
        let Some(last) = entry.attempts.last() else { return Ok(()) };
        if entry.attempts.len() >= ATTEMPTS_MAX {
            return Ok(());
        }
        // Nodes take a replacement from a tenth more on.
        let more = |fee: u128| fee.saturating_add(fee.div_euclid(8)).saturating_add(1);
        let now = self.node.fees()?;
        let tip = more(last.tip).max(now.tip);
        let fee = more(last.fee).max(now.base.saturating_mul(2).saturating_add(tip));
        let hash = last.hash();
        if fee > self.settings.fee_max_wei {
            let limit = self.settings.fee_max_wei;
            tracing::warn!(%hash, fee, limit, "it waits, and the limit allows no higher fee");
            return Ok(());
        }
        tracing::info!(%hash, fee, tip, "no block has taken it; going out again with a higher fee");
        self.sign(by, entry, (fee, tip))?;
        outbox.put(entry)
    }

    /// Remembers how far an account has come, to see a reorganisation.
    fn note(&self, outbox: &Outbox, account: Address) -> Result<(), LedgerError> {
        let entries = outbox.entries()?;
        let mined = entries.iter().filter_map(|entry| entry.mined).max_by_key(|m| m.block);
        let mut youngest = self.youngest.lock().unwrap_or_else(PoisonError::into_inner);
        match mined {
            Some(mined) => youngest.insert(account, mined),
            None => youngest.remove(&account),
        };
        Ok(())
    }

    /// What a call would come to now.
    pub(super) fn attempt(&self, from: Address, call: &Call) -> Result<Answer, LedgerError> {
        self.node.call(Some(from), call, At::Latest)
    }
}

enum Look {
    Deep(Receipt),
    Shallow,
    Nowhere,
    Displaced,
}

/// Wei as ether, to six places, rounded up.
fn ether_text(wei: u128) -> String {
    let millionths = wei.div_ceil(1_000_000_000_000);
    let (whole, rest) = (millionths.div_euclid(1_000_000), millionths.rem_euclid(1_000_000));
    format!("{whole}.{rest:06}")
}
