//! From an intent to a mined transaction, exactly once.
//!
//! A transaction is signed, kept in the outbox, and only then broadcast; what happens next to it, whatever stops this
//! process, can be found out from its hash. The same nonce is never given to another content: a transaction that no
//! block takes goes out again with a higher fee. If a reorganisation throws one out, its bytes go out again; if it then
//! fails, because the chain is another one now, its intent is carried out anew.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alloy_primitives::B256;
use florin_protocol::{Address, Signer};

use super::node::{Answer, At, Call, Node, Receipt};
use super::outbox::{Entry, Intent, Mined, Outbox};
use super::refusals::{Reverted, read};
use super::transit::{Look, Seen};
use crate::limits::{FORGET_DEPTH, LAG_RETRIES_MAX, STEPS_MAX};
use florin_ledger::Outcome;
use florin_ledger::ethereum::Settings;
use florin_ledger::{LedgerError, Refusal};

/// Pause before a node that lags behind is asked again.
const LAG_PAUSE: Duration = Duration::from_millis(100);
/// Digits of a chain's first block in the names of its outboxes.
const GENESIS_DIGITS: usize = 8;
/// Gas beyond the estimate, in sixteenths: the next block's state may take a little more.
const GAS_EXTRA_16THS: u64 = 4;

/// What to do next about an intent.
pub(super) enum Step {
    /// Everything is as it asks for.
    Stands(Outcome),
    /// Something else has to be done first.
    First(Box<(Intent, Call)>),
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

/// What became of an attempt to send.
enum Sent {
    Seen(Seen),
    /// Nothing was sent: it would revert, with these bytes.
    WouldRevert(Vec<u8>),
}

/// What a transaction does anew: the nonce of the one that a reorganisation undid, and whether its sender had been told.
#[derive(Clone, Copy)]
struct Redo {
    of: u64,
    answered: bool,
}

/// Sends for any number of accounts on one chain.
pub(super) struct Sender {
    pub(super) node: Node,
    pub(super) chain: u64,
    pub(super) settings: Settings,
    folder: PathBuf,
    /// The first block's hash sets chains with one number apart: every new anvil is another one.
    genesis: B256,
    /// Sets this market's transactions apart from others' in the same outboxes.
    market: String,
    turns: Mutex<BTreeMap<Address, Arc<Mutex<()>>>>,
    /// Where the transactions of each account that has written here are, one for each block: a reorganisation may have
    /// taken some of those blocks and not others.
    places: Mutex<BTreeMap<Address, Vec<Mined>>>,
    /// The newest block that has counted so far.
    seen: AtomicU64,
}

impl Sender {
    /// # Errors
    /// [`LedgerError::Unavailable`] if the node does not show the chain's first block.
    pub(super) fn new(
        node: Node,
        chain: u64,
        settings: Settings,
        folder: &Path,
        market: String,
    ) -> Result<Self, LedgerError> {
        let genesis = node.block(At::Block(0))?.hash;
        let (turns, places, seen) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        let folder = folder.to_owned();
        Ok(Self { node, chain, settings, folder, genesis, market, turns, places, seen })
    }

    /// The newest block that counts as having happened: never an older one than this process has gone by before, though
    /// nodes behind one address are not equally far.
    pub(super) fn confirmed(&self) -> Result<u64, LedgerError> {
        let mine = {
            let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
            places.values().flatten().map(|mined| mined.block).max().unwrap_or_default()
        };
        let mut tip = 0;
        for retry in 0..=LAG_RETRIES_MAX {
            if retry > 0 {
                std::thread::sleep(LAG_PAUSE);
            }
            let seen = self.seen.load(Ordering::SeqCst);
            tip = self.node.tip()?;
            let counted = self.settings.counted(tip);
            if tip >= mine && counted >= seen {
                self.see(counted)?;
                return Ok(counted);
            }
        }
        Err(self.behind(&format!("it is at block {tip}, and was further before")))
    }

    /// The newest block that counts, as the node has it now.
    pub(super) fn counted(&self) -> Result<u64, LedgerError> {
        let counted = self.settings.counted(self.node.tip()?);
        self.see(counted)?;
        Ok(counted)
    }

    /// Remembers a block to go by, if the node has it: a wrong number must not blind this process for ever.
    fn see(&self, counted: u64) -> Result<(), LedgerError> {
        if counted > self.seen.load(Ordering::SeqCst) {
            if self.node.block_if_any(counted)?.is_none() {
                return Err(self.behind(&format!("it has no block {counted}")));
            }
            self.seen.fetch_max(counted, Ordering::SeqCst);
        }
        Ok(())
    }

    fn behind(&self, what: &str) -> LedgerError {
        LedgerError::Unavailable(format!("{} is behind: {what}", self.node.0.name()))
    }

    /// Carries an intent out. What an earlier run left over is seen through first; if the same intent was among that,
    /// and nobody has been told yet that it is done, it is done.
    pub(super) fn carry_out(
        &self,
        by: &dyn Signer,
        intent: &Intent,
        planner: &dyn Planner,
    ) -> Result<Carried, LedgerError> {
        let turn = self.turn(by.address());
        let _mine = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let outbox = self.outbox(by.address())?;
        let open = self.resolve(&outbox, by, planner)?;
        // What the contracts let happen once is asked of them first: they know best.
        if intent.is_repeatable() {
            return match self.pursue(&outbox, by, intent, planner, None) {
                Err(error @ LedgerError::Refused(_)) => {
                    let earlier = self.unanswered(&outbox, &open, intent, planner).ok().flatten();
                    earlier.map(Carried::By).ok_or(error)
                }
                carried => carried,
            };
        }
        match self.unanswered(&outbox, &open, intent, planner)? {
            Some(receipt) => Ok(Carried::By(receipt)),
            None => self.pursue(&outbox, by, intent, planner, None),
        }
    }

    /// What an earlier run got done for the same intent, and told nobody. Whoever asks again hears of it now. Who bonds
    /// or stakes looks first how much there is: for them only what was open until now counts.
    fn unanswered(
        &self,
        outbox: &Outbox,
        open: &[u64],
        intent: &Intent,
        planner: &dyn Planner,
    ) -> Result<Option<Receipt>, LedgerError> {
        for mut entry in outbox.entries()? {
            let Some(mined) = entry.has_succeeded() else { continue };
            let is_it = entry.market == self.market && entry.intent == *intent;
            let counts = intent.is_told_late() || open.contains(&entry.nonce);
            if entry.answered || !is_it || !counts {
                continue;
            }
            if !self.is_in_place(&mined)? {
                return Err(self.behind("a transaction of an earlier run has just moved"));
            }
            let receipt = self.node.receipt(B256::from(mined.transaction))?;
            let Some(receipt) = receipt.filter(|receipt| receipt.block_hash.0 == mined.hash) else {
                return Err(self.behind("it has no receipt of what is in its chain"));
            };
            entry.answered = true;
            outbox.put(&entry)?;
            if planner.is_effective(intent, &receipt) {
                let summary = intent.summary();
                tracing::warn!(summary, "an earlier run has sent this; it is done, not sent again");
                return Ok(Some(receipt));
            }
        }
        Ok(None)
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
    /// broadcast again, and what came back as it was is over; [`Sender::resume`] sees to the rest.
    pub(super) fn was_thrown_back(&self, planner: &dyn Planner) -> Result<bool, LedgerError> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut thrown_back = false;
        for (account, blocks) in places {
            let mut in_place = true;
            for mined in blocks {
                in_place = in_place && self.is_in_place(&mined)?;
            }
            if !in_place && !self.is_back(account, planner)? {
                thrown_back = true;
            }
        }
        Ok(thrown_back)
    }

    /// Whether all that an account had done is done again after a reorganisation; what is not yet is broadcast.
    fn is_back(&self, account: Address, planner: &dyn Planner) -> Result<bool, LedgerError> {
        let turn = self.turn(account);
        // Whoever writes for the account now sees to it as well.
        let Ok(_mine) = turn.try_lock() else { return Ok(false) };
        let Ok(outbox) = Outbox::open(&self.file(account), 0) else { return Ok(false) };
        if self.came_back(&outbox, account, planner)? {
            return Ok(true);
        }
        let count = self.node.nonce(account, At::Latest)?;
        for entry in outbox.entries()?.iter().filter(|entry| entry.nonce >= count) {
            self.broadcast(entry);
        }
        Ok(false)
    }

    /// Whether everything that was done is in blocks again and did the same: then it is noted where.
    fn came_back(
        &self,
        outbox: &Outbox,
        account: Address,
        planner: &dyn Planner,
    ) -> Result<bool, LedgerError> {
        for mut entry in outbox.entries()? {
            if entry.mined.is_none() {
                if entry.redo_of.is_some() {
                    return Ok(false);
                }
                continue;
            }
            let is_mine = entry.market == self.market;
            match self.look(account, &entry)? {
                Look::Deep(receipt)
                    if receipt.succeeded() == entry.has_succeeded().is_some()
                        && (!is_mine || planner.is_effective(&entry.intent, &receipt)) =>
                {
                    entry.mined = Some(Mined::of(&receipt));
                    outbox.put(&entry)?;
                }
                _ => return Ok(false),
            }
        }
        self.note(outbox, account)?;
        Ok(true)
    }

    /// Whether a block is in the chain still. Receipts would not tell: nodes forget some, and keep others too long.
    fn is_in_place(&self, mined: &Mined) -> Result<bool, LedgerError> {
        match self.node.block_if_any(mined.block)? {
            Some(block) => Ok(block.hash.0 == mined.hash),
            None => Err(self.behind(&format!("it has no block {}", mined.block))),
        }
    }

    fn turn(&self, account: Address) -> Arc<Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(turns.entry(account).or_default())
    }

    fn file(&self, account: Address) -> PathBuf {
        let account = account.to_string();
        let account = account.trim_start_matches("0x").to_ascii_lowercase();
        let first: String = format!("{:x}", self.genesis).chars().take(GENESIS_DIGITS).collect();
        self.folder.join(format!("{}-{first}-{account}.redb", self.chain))
    }

    fn outbox(&self, account: Address) -> Result<Outbox, LedgerError> {
        Outbox::open(&self.file(account), self.settings.patience_ms)
    }

    /// Deals with everything that is in the outbox. What was for another market is seen into a block, because nonces
    /// follow each other, and left for that market to judge. Returns the nonces of what was open.
    fn resolve(
        &self,
        outbox: &Outbox,
        by: &dyn Signer,
        planner: &dyn Planner,
    ) -> Result<Vec<u64>, LedgerError> {
        let open = self.unsettled(outbox)?;
        let nonces = open.iter().map(|entry| entry.nonce).collect();
        // All of them first, so that none has to wait for the nonce before it.
        for entry in &open {
            self.broadcast(entry);
        }
        for entry in open {
            if entry.market == self.market {
                let seen = self.see_through(outbox, by, entry.clone())?;
                self.after(outbox, by, planner, &entry, seen)?;
            } else if !entry.is_promised() {
                self.see_through(outbox, by, entry)?;
            }
        }
        self.note(outbox, by.address())?;
        Ok(nonces)
    }

    /// What is not known to be in the chain, each by its own block. What is, and lies deep, is forgotten; a payment that
    /// nobody has been told of is not, however deep it lies.
    fn unsettled(&self, outbox: &Outbox) -> Result<Vec<Entry>, LedgerError> {
        let entries = outbox.entries()?;
        if entries.is_empty() {
            return Ok(entries);
        }
        let tip = self.node.tip()?;
        let mut known: Vec<(Mined, bool)> = Vec::new();
        let mut unsettled = Vec::new();
        for entry in entries {
            let Some(mined) = entry.mined else {
                unsettled.push(entry);
                continue;
            };
            let in_place = match known.iter().find(|(other, _)| other.is_beside(&mined)) {
                Some((_, in_place)) => *in_place,
                None => {
                    let in_place = self.is_in_place(&mined)?;
                    known.push((mined, in_place));
                    in_place
                }
            };
            let untold = mined.succeeded && !entry.answered && entry.intent.is_told_late();
            if !in_place {
                unsettled.push(entry);
            } else if mined.block.saturating_add(FORGET_DEPTH) < tip && !untold {
                outbox.remove(entry.nonce)?;
            }
        }
        Ok(unsettled)
    }

    /// What follows from the fate of a transaction that was left over. One that had succeeded and does not any more is
    /// done anew; its record stays until the new one is on record.
    fn after(
        &self,
        outbox: &Outbox,
        by: &dyn Signer,
        planner: &dyn Planner,
        entry: &Entry,
        seen: Seen,
    ) -> Result<(), LedgerError> {
        let (intent, summary) = (&entry.intent, entry.intent.summary());
        match seen {
            Seen::Done(_) if !entry.is_promised() => return Ok(()),
            Seen::Done(receipt) if planner.is_effective(intent, &receipt) => return Ok(()),
            Seen::Reverted | Seen::Displaced if !entry.is_promised() => {
                tracing::warn!(summary, "a transaction of an earlier run came to nothing");
                return Ok(());
            }
            _ => {}
        }
        let is_redone = |other: &Entry| other.redo_of == Some(entry.nonce);
        if !outbox.entries()?.iter().any(is_redone) {
            tracing::warn!(summary, "undone by a reorganisation of the chain; doing it again");
            let redo = Redo { of: entry.nonce, answered: entry.answered };
            match self.pursue(outbox, by, intent, planner, Some(redo)) {
                Ok(_) => {}
                Err(LedgerError::Refused(refusal)) => {
                    tracing::warn!(summary, %refusal, "it cannot be done again");
                }
                Err(error) => return Err(error),
            }
        }
        outbox.remove(entry.nonce)
    }

    /// Plans and sends until the intent is carried out.
    fn pursue(
        &self,
        outbox: &Outbox,
        by: &dyn Signer,
        intent: &Intent,
        planner: &dyn Planner,
        redo: Option<Redo>,
    ) -> Result<Carried, LedgerError> {
        let (mut approved, mut stopped) = (false, None);
        for _ in 0..STEPS_MAX {
            match planner.plan(by.address(), intent)? {
                Step::Stands(outcome) => return Ok(Carried::Stands(outcome)),
                Step::First(first) => {
                    let (first, call) = *first;
                    // A market that takes what it was allowed and asks again would take all there is.
                    let approves = matches!(first, Intent::Approve(1..));
                    if approves && approved {
                        let what = "the contract asks for an approval again: it is not the market \
                                    that it says it is, its token is a strange one, or the node \
                                    lags behind its own blocks";
                        return Err(Refusal::Meaningless(what.to_owned()).into());
                    }
                    let sent = self.send(outbox, by, first, call, None)?;
                    approved |= approves && matches!(sent, Sent::Seen(Seen::Done(_)));
                }
                Step::Send(call) => match self.send(outbox, by, intent.clone(), call, redo)? {
                    Sent::Seen(Seen::Done(receipt)) => return Ok(Carried::By(receipt)),
                    Sent::Seen(_) if !intent.is_repeatable() => {
                        // Only to hear the reason, if there still is one.
                        planner.plan(by.address(), intent)?;
                        return Err(came_to_nothing(intent));
                    }
                    // What reverts, or was displaced, is planned anew: that finds the reason.
                    Sent::Seen(_) => {}
                    // Unless the plan finds none, twice.
                    Sent::WouldRevert(data) => {
                        if stopped.as_ref() == Some(&data)
                            && let Reverted::Refused(refusal) | Reverted::Foreign(refusal) =
                                read(&data)
                        {
                            return Err(refusal.into());
                        }
                        stopped = Some(data);
                    }
                },
            }
        }
        Err(LedgerError::Unavailable(format!(
            "other transactions came first {STEPS_MAX} times; not done: {}",
            intent.summary()
        )))
    }

    /// Signs, keeps, broadcasts and sees through one transaction, unless it would revert now.
    fn send(
        &self,
        outbox: &Outbox,
        by: &dyn Signer,
        intent: Intent,
        call: Call,
        redo: Option<Redo>,
    ) -> Result<Sent, LedgerError> {
        let from = by.address();
        self.has(from, call.wei, &intent)?;
        let gas = match self.node.estimate(from, &call)? {
            Ok(gas) => gas,
            Err(data) => return Ok(Sent::WouldRevert(data)),
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
        let kept = outbox.last_nonce()?.map_or(0, |nonce| nonce.saturating_add(1));
        let nonce = self.node.nonce(from, At::Latest)?.max(kept);
        if self.node.nonce(from, At::Pending)? > nonce {
            return Err(LedgerError::Unavailable(format!(
                "another device's transaction of {from} waits for a block: wait for it too"
            )));
        }
        let Call { to, data, wei } = call;
        let mut entry = Entry {
            nonce,
            market: self.market.clone(),
            intent,
            to,
            data,
            wei,
            gas,
            attempts: Vec::new(),
            mined: None,
            answered: redo.is_some_and(|redo| redo.answered),
            redo_of: redo.map(|redo| redo.of),
        };
        self.sign(by, &mut entry, fees)?;
        outbox.put(&entry)?;
        self.broadcast(&entry);
        let seen = self.see_through(outbox, by, entry)?;
        if redo.is_none() && matches!(seen, Seen::Done(_)) {
            self.answer(outbox, nonce)?;
        }
        self.note(outbox, from)?;
        Ok(Sent::Seen(seen))
    }

    /// Remembers that whoever asked for a transaction is told now.
    fn answer(&self, outbox: &Outbox, nonce: u64) -> Result<(), LedgerError> {
        match outbox.entry(nonce)? {
            Some(entry) => outbox.put(&Entry { answered: true, ..entry }),
            None => Ok(()),
        }
    }

    /// Remembers where an account's transactions are, to see a reorganisation.
    fn note(&self, outbox: &Outbox, account: Address) -> Result<(), LedgerError> {
        let mut blocks: Vec<Mined> = Vec::new();
        for mined in outbox.entries()?.into_iter().filter_map(|entry| entry.mined) {
            if !blocks.iter().any(|known| known.is_beside(&mined)) {
                blocks.push(mined);
            }
        }
        self.places.lock().unwrap_or_else(PoisonError::into_inner).insert(account, blocks);
        Ok(())
    }

    /// What a call would come to now.
    pub(super) fn attempt(&self, from: Address, call: &Call) -> Result<Answer, LedgerError> {
        self.node.call(Some(from), call, At::Latest)
    }
}

fn came_to_nothing(intent: &Intent) -> LedgerError {
    LedgerError::Unavailable(format!(
        "its transaction came to nothing: look how things stand before you try again: {}",
        intent.summary()
    ))
}
