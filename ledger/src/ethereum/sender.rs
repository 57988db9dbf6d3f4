//! From an intent to a mined transaction, exactly once.
//!
//! A transaction is signed, kept in the outbox, and only then broadcast; what happens next to it, whatever stops this
//! process, can be found out from its hash. The same nonce is never given to another content: a transaction that no
//! block takes goes out again with a higher fee. If a reorganisation throws one out, its bytes go out again; if it then
//! fails, because the chain is another one now, its intent is carried out anew.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use alloy_primitives::B256;
use florin_protocol::{Address, Signer};

use super::node::{Answer, At, Call, Node, Receipt};
use super::outbox::{Entry, Intent, Mined, Outbox};
use super::settings::Settings;
use super::transit::{Look, Seen};
use crate::api::{LedgerError, Refusal};
use crate::limits::{FORGET_DEPTH, STEPS_MAX};
use crate::transaction::Outcome;

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
        Ok(self.settings.counted(self.node.tip()?))
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
    /// broadcast again, and what came back as it was is over; [`Sender::resume`] sees to the rest.
    pub(super) fn was_thrown_back(&self, planner: &dyn Planner) -> Result<bool, LedgerError> {
        let youngest = self.youngest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut thrown_back = false;
        for (account, mined) in youngest {
            if self.is_in_place(&mined)? {
                continue;
            }
            let others = thrown_back;
            thrown_back = true;
            let turn = self.turn(account);
            let Ok(_mine) = turn.try_lock() else { continue };
            // Whoever writes for the account now sees to it as well.
            let Ok(outbox) = Outbox::open(&self.file(account), 0) else { continue };
            if self.came_back(&outbox, account, planner)? {
                thrown_back = others;
                continue;
            }
            let count = self.node.nonce(account, At::Latest)?;
            for entry in outbox.entries()? {
                if entry.nonce >= count {
                    self.broadcast(&entry);
                }
            }
        }
        Ok(thrown_back)
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
                continue;
            }
            match self.look(account, &entry)? {
                Look::Deep(receipt)
                    if receipt.succeeded() && planner.is_effective(&entry.intent, &receipt) =>
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
        let tip = self.node.tip()?;
        let mut entries = outbox.entries()?;
        // What lies deep in the chain is forgotten before anything is judged: nodes forget its receipts too.
        let is_deep =
            |entry: &Entry| entry.mined.is_some_and(|m| m.block.saturating_add(FORGET_DEPTH) < tip);
        for entry in entries.iter().filter(|entry| is_deep(entry)) {
            outbox.remove(entry.nonce)?;
        }
        entries.retain(|entry| !is_deep(entry));
        let youngest = entries.iter().filter_map(|entry| entry.mined).max_by_key(|m| m.block);
        let all_in_place = match &youngest {
            Some(mined) => self.is_in_place(mined)?,
            None => true,
        };
        let mut found = Vec::new();
        for entry in entries {
            match entry.mined {
                Some(_) if all_in_place => {}
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
        let mut before = None;
        for _ in 0..STEPS_MAX {
            match planner.plan(by.address(), intent)? {
                Step::Stands(outcome) => return Ok(Carried::Stands(outcome)),
                Step::First(first) => {
                    let (first, call) = *first;
                    // A market that takes what it was allowed and asks again would take all there is.
                    if matches!(first, Intent::Approve(_)) && before.as_ref() == Some(&first) {
                        let what = "the contract asks for the same approval again: it is not the \
                                    market that it says it is, or its token is a strange one";
                        return Err(Refusal::Meaningless(what.to_owned()).into());
                    }
                    self.send(outbox, by, first.clone(), call)?;
                    before = Some(first);
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
        self.has(from, call.wei, &intent)?;
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
