//! One transaction on its way: signed, broadcast, looked for, sent again, until it is deep enough or never will be.

use std::time::Duration;

use alloy_consensus::{SignableTransaction, TxEip1559};
use alloy_primitives::{Signature, TxKind, U256};
use florin_protocol::{Address, Signer};

use super::endpoint::EndpointError;
use super::node::{At, Fees, Receipt};
use super::outbox::{Attempt, Entry, Intent, Mined, Outbox};
use super::sender::Sender;
use crate::limits::ATTEMPTS_MAX;
use florin_ledger::LedgerError;

/// What nodes say of a version that the account cannot pay for.
const TOO_POOR: &str = "insufficient funds";
/// First pause between two looks at the chain, in milliseconds; grows by half each time.
const POLL_MS_FIRST: u64 = 4;
/// After how long the same bytes go out again, in milliseconds: a node may have dropped them.
const REPEAT_MS: u64 = 2_000;
/// What a look without an answer counts as, in milliseconds, beyond the pause after it: a node that takes questions and
/// never answers must not hold a wallet for hours.
const FAILED_LOOK_MS: u64 = 10_000;
/// Blocks whose states every node has.
const STATES_KEPT: u64 = 100;
/// After how long somebody who waits is told what for, in milliseconds.
const TELL_MS: u64 = 5_000;

/// What became of one transaction.
pub(super) enum Seen {
    Done(Receipt),
    Reverted,
    /// Another transaction of the account took its nonce.
    Displaced,
}

impl Sender {
    /// The fees to offer, if they are within the limit and the account can pay them.
    pub(super) fn affordable(
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
                 the limit (--max-fee-gwei, or fee_max_wei in a file); not sent: {}",
                intent.summary()
            )));
        }
        // Twice the base fee lasts for six full blocks.
        let fee = fees.base.saturating_mul(2).saturating_add(fees.tip).min(limit);
        self.has(from, fee.saturating_mul(gas.into()).saturating_add(wei), intent)?;
        Ok((fee, fees.tip.min(fee)))
    }

    pub(super) fn has(&self, from: Address, wei: u128, intent: &Intent) -> Result<(), LedgerError> {
        if wei == 0 {
            return Ok(());
        }
        let has = self.node.ether(from)?;
        if has >= wei {
            return Ok(());
        }
        Err(LedgerError::Gas(format!(
            "{from} has {} ETH, but up to {} ETH are needed: send it some; not sent: {}",
            ether_text(has),
            ether_text(wei),
            intent.summary()
        )))
    }

    /// Signs a version of the transaction and adds it to the entry.
    pub(super) fn sign(
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

    /// Hands the newest version that the account can pay for to the node. Whether that helped shows on the chain, and
    /// nowhere else.
    pub(super) fn broadcast(&self, entry: &Entry) {
        for attempt in entry.attempts.iter().rev() {
            let hash = attempt.hash();
            match self.node.send(&attempt.raw) {
                Ok(()) => return,
                Err(EndpointError::Answered { message, .. }) => {
                    tracing::debug!(%hash, message, "the node did not take it");
                    // "already known" and "nonce too low" among the others: the receipt tells.
                    if !message.contains(TOO_POOR) {
                        return;
                    }
                }
                Err(EndpointError::Unreachable(why)) => {
                    tracing::warn!(%hash, why, "the node may not have got it");
                    return;
                }
            }
        }
    }

    /// Waits until one version of what was broadcast is deep enough in the chain, or none ever will be; goes on to repeat
    /// and raise it meanwhile. An entry that was promised, and came to
    /// nothing, stays on record as it was: its sender replaces it.
    pub(super) fn see_through(
        &self,
        outbox: &Outbox,
        by: &dyn Signer,
        mut entry: Entry,
    ) -> Result<Seen, LedgerError> {
        let promised = entry.is_promised();
        let (mut waited, mut pause) = (0u64, POLL_MS_FIRST);
        let (mut repeated, mut raised, mut taken) = (0u64, 0u64, None);
        loop {
            let look = self.look(by.address(), &entry);
            if !matches!(look, Ok(Look::Displaced)) {
                taken = None;
            }
            match look {
                Ok(Look::Deep(receipt)) => {
                    if receipt.succeeded() || !promised {
                        entry.mined = Some(Mined::of(&receipt));
                        outbox.put(&entry)?;
                    }
                    return Ok(if receipt.succeeded() {
                        Seen::Done(receipt)
                    } else {
                        Seen::Reverted
                    });
                }
                Ok(Look::Displaced) => {
                    let since = *taken.get_or_insert(waited);
                    if waited.saturating_sub(since) >= self.displaced_ms() {
                        self.let_go(outbox, by, &entry)?;
                        return Ok(Seen::Displaced);
                    }
                }
                Ok(Look::Shallow) => {}
                Ok(Look::Nowhere) => {
                    if waited.saturating_sub(raised) >= self.settings.resubmit_ms {
                        raised = waited;
                        if let Err(error) = self.raise(outbox, by, &mut entry) {
                            tracing::warn!(%error, "it cannot go out with a higher fee now");
                        }
                    }
                    if waited.saturating_sub(repeated) >= REPEAT_MS {
                        repeated = waited;
                        self.broadcast(&entry);
                    }
                }
                Err(LedgerError::Unavailable(why)) if waited < self.settings.patience_ms => {
                    tracing::debug!(why, "looking for a transaction");
                    waited = waited.saturating_add(FAILED_LOOK_MS);
                }
                Err(error) => return Err(error),
            }
            if waited >= self.settings.patience_ms {
                return Err(self.out_of_patience(&entry));
            }
            std::thread::sleep(Duration::from_millis(pause));
            if waited < TELL_MS && waited.saturating_add(pause) >= TELL_MS {
                tracing::info!(summary = entry.intent.summary(), "waiting for a block to take it");
            }
            waited = waited.saturating_add(pause);
            pause = pause.saturating_mul(3).div_euclid(2).min(self.settings.poll_ms_max.max(1));
        }
    }

    /// How long a nonce must have been taken; patience must not end before.
    fn displaced_ms(&self) -> u64 {
        self.settings.displaced_ms.min(self.settings.patience_ms.div_euclid(2))
    }

    /// Takes leave of an entry whose nonce somebody else has, unless it is to be done anew.
    fn let_go(&self, outbox: &Outbox, by: &dyn Signer, entry: &Entry) -> Result<(), LedgerError> {
        if self.is_ours(by.address(), entry)? {
            let what = "the node has our transaction in a block, and no receipt";
            return Err(LedgerError::Unavailable(what.to_owned()));
        }
        if entry.is_promised() { Ok(()) } else { outbox.remove(entry.nonce) }
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
    pub(super) fn look(&self, from: Address, entry: &Entry) -> Result<Look, LedgerError> {
        for attempt in entry.attempts.iter().rev() {
            let Some(receipt) = self.node.receipt(attempt.hash())? else { continue };
            if self.node.is_in_chain(&receipt)? {
                let deep = receipt.block() <= self.counted()?;
                return Ok(if deep { Look::Deep(receipt) } else { Look::Shallow });
            }
        }
        // Only what is deep enough itself has taken the nonce for good.
        let taken = self.node.nonce(from, At::Block(self.counted()?))? > entry.nonce;
        Ok(if taken { Look::Displaced } else { Look::Nowhere })
    }

    /// Whether one of our versions has taken its nonce, by the block that it is in: nodes forget receipts, and some never
    /// had them. Of older blocks than nodes keep states of, nothing is known.
    fn is_ours(&self, from: Address, entry: &Entry) -> Result<bool, LedgerError> {
        let last = self.counted()?;
        let (mut before, mut after) = (last.saturating_sub(STATES_KEPT), last);
        if self.node.nonce(from, At::Block(before))? > entry.nonce {
            return Ok(false);
        }
        while after.saturating_sub(before) > 1 {
            let middle = before.saturating_add(after.saturating_sub(before).div_euclid(2));
            if self.node.nonce(from, At::Block(middle))? > entry.nonce {
                after = middle;
            } else {
                before = middle;
            }
        }
        let block = self.node.block(At::Block(after))?;
        Ok(entry.attempts.iter().any(|attempt| block.transactions.contains(&attempt.hash())))
    }

    /// Signs the same transaction with a higher fee, as far as the limit goes.
    fn raise(
        &self,
        outbox: &Outbox,
        by: &dyn Signer,
        entry: &mut Entry,
    ) -> Result<(), LedgerError> {
        let Some(last) = entry.attempts.last() else { return Ok(()) };
        let now = self.node.fees()?;
        // Beyond that only where the market has left it behind: each such step doubles the fee at least.
        if entry.attempts.len() >= ATTEMPTS_MAX && now.base <= last.fee {
            return Ok(());
        }
        // Nodes take a replacement from a tenth more on.
        let more = |fee: u128| fee.saturating_add(fee.div_euclid(8)).saturating_add(1);
        let tip = more(last.tip).max(now.tip);
        let fee = more(last.fee).max(now.base.saturating_mul(2).saturating_add(tip));
        let hash = last.hash();
        if fee > self.settings.fee_max_wei {
            let limit = self.settings.fee_max_wei;
            tracing::warn!(%hash, fee, limit, "it waits, and the limit allows no higher fee");
            return Ok(());
        }
        let needed = fee.saturating_mul(entry.gas.into()).saturating_add(entry.wei);
        self.has(by.address(), needed, &entry.intent)?;
        tracing::info!(%hash, fee, tip, "no block has taken it; going out again with a higher fee");
        self.sign(by, entry, (fee, tip))?;
        outbox.put(entry)
    }
}

/// Where a transaction is.
pub(super) enum Look {
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
