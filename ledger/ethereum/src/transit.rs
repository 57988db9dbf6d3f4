//! One transaction from its signature to its confirmation: signed, broadcast, polled, rebroadcast
//! and replaced with a higher fee, until it is confirmed or its nonce is taken.

use std::time::Duration;

use alloy_consensus::{SignableTransaction, TxEip1559};
use alloy_primitives::{Signature, TxKind, U256};
use florin_protocol::{Address, WalletSigner};

use super::endpoint::EndpointError;
use super::node::{At, Fees, Receipt};
use super::outbox::{Attempt, Entry, Intent, Mined, Outbox};
use super::sender::Sender;
use crate::limits::ATTEMPTS_MAX;
use florin_ledger::LedgerError;

/// Part of a node's error message for an account that cannot pay the transaction.
const TOO_POOR: &str = "insufficient funds";
/// First pause between two polls of the chain, in milliseconds; each further pause is half as long
/// again.
const POLL_MS_FIRST: u64 = 4;
/// Interval at which the same bytes are broadcast again, in milliseconds: a node may have dropped
/// them.
const REPEAT_MS: u64 = 2_000;
/// Time that a failed poll counts towards the timeout, in milliseconds, in addition to the pause
/// after it: a node that accepts connections and never responds must not block a wallet for hours.
const FAILED_LOOK_MS: u64 = 10_000;
/// Blocks whose state every node still has.
const STATES_KEPT: u64 = 100;
/// Waiting time after which a log message names the transaction, in milliseconds.
const TELL_MS: u64 = 5_000;

/// The final status of one transaction.
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
                "gas costs {now} wei per unit, above the limit of {limit} wei: wait, or raise the \
                 limit (--max-fee-gwei, or fee_max_wei in a file); not sent: {}",
                intent.summary()
            )));
        }
        // Twice the base fee covers the increase of six full blocks.
        let fee = fees.base.saturating_mul(2).saturating_add(fees.tip).min(limit);
        self.has(from, fee.saturating_mul(gas.into()).saturating_add(wei), intent)?;
        Ok((fee, fees.tip.min(fee)))
    }

    /// Fails if an account has less than `wei`.
    pub(super) fn has(&self, from: Address, wei: u128, intent: &Intent) -> Result<(), LedgerError> {
        if wei == 0 {
            return Ok(());
        }
        let has = self.node.ether(from)?;
        if has >= wei {
            return Ok(());
        }
        Err(LedgerError::Gas(format!(
            "{from} has {} ETH, but up to {} ETH are needed: send ether to it; not sent: {}",
            ether_text(has),
            ether_text(wei),
            intent.summary()
        )))
    }

    /// Signs a version of the transaction and adds it to the entry.
    pub(super) fn sign(
        &self,
        by: &dyn WalletSigner,
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

    /// Sends the newest version that the account can pay for to the node. Only the chain shows
    /// whether it was accepted.
    pub(super) fn broadcast(&self, entry: &Entry) {
        for attempt in entry.attempts.iter().rev() {
            let hash = attempt.hash();
            match self.node.send(&attempt.raw) {
                Ok(()) => return,
                Err(EndpointError::Answered { message, .. }) => {
                    tracing::debug!(%hash, message, "the node rejected the transaction");
                    // "already known" and "nonce too low" are among these errors: the receipt
                    // decides.
                    if !message.contains(TOO_POOR) {
                        return;
                    }
                }
                Err(EndpointError::Unreachable(why)) => {
                    tracing::warn!(%hash, why, "the node may not have received the transaction");
                    return;
                }
            }
        }
    }

    /// Waits until one version of a broadcast transaction is confirmed, or none ever will be;
    /// rebroadcasts it and raises its fee meanwhile. An entry that had succeeded before and now
    /// fails stays unchanged: the sender executes its intent again.
    pub(super) fn see_through(
        &self,
        outbox: &Outbox,
        by: &dyn WalletSigner,
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
                            tracing::warn!(%error, "cannot replace it with a higher fee now");
                        }
                    }
                    if waited.saturating_sub(repeated) >= REPEAT_MS {
                        repeated = waited;
                        self.broadcast(&entry);
                    }
                }
                Err(LedgerError::Unavailable(why)) if waited < self.settings.patience_ms => {
                    tracing::debug!(why, "polling for a transaction failed");
                    waited = waited.saturating_add(FAILED_LOOK_MS);
                }
                Err(error) => return Err(error),
            }
            if waited >= self.settings.patience_ms {
                return Err(self.out_of_patience(&entry));
            }
            std::thread::sleep(Duration::from_millis(pause));
            if waited < TELL_MS && waited.saturating_add(pause) >= TELL_MS {
                tracing::info!(
                    summary = entry.intent.summary(),
                    "waiting for a block to include it"
                );
            }
            waited = waited.saturating_add(pause);
            pause = pause.saturating_mul(3).div_euclid(2).min(self.settings.poll_ms_max.max(1));
        }
    }

    /// How long a nonce must have been taken; at most half of the timeout.
    fn displaced_ms(&self) -> u64 {
        self.settings.displaced_ms.min(self.settings.patience_ms.div_euclid(2))
    }

    /// Deletes an entry whose nonce another transaction has taken, unless its intent must be
    /// executed again.
    fn let_go(
        &self,
        outbox: &Outbox,
        by: &dyn WalletSigner,
        entry: &Entry,
    ) -> Result<(), LedgerError> {
        if self.is_ours(by.address(), entry)? {
            let what = "the node has this transaction in a block, but no receipt of it";
            return Err(LedgerError::Unavailable(what.to_owned()));
        }
        if entry.is_promised() { Ok(()) } else { outbox.remove(entry.nonce) }
    }

    fn out_of_patience(&self, entry: &Entry) -> LedgerError {
        let hash = entry.attempts.last().map(Attempt::hash).unwrap_or_default();
        LedgerError::Unavailable(format!(
            "transaction {hash} has fewer than {} confirmations after {} s; it stays in the outbox \
             and is resumed later: {}",
            self.settings.confirmations,
            self.settings.patience_ms.div_euclid(1_000),
            entry.intent.summary()
        ))
    }

    /// Locates a transaction.
    pub(super) fn look(&self, from: Address, entry: &Entry) -> Result<Look, LedgerError> {
        for attempt in entry.attempts.iter().rev() {
            let Some(receipt) = self.node.receipt(attempt.hash())? else { continue };
            if self.node.is_in_chain(&receipt)? {
                let deep = receipt.block() <= self.counted()?;
                return Ok(if deep { Look::Deep(receipt) } else { Look::Shallow });
            }
        }
        // Only a confirmed block proves that the nonce is taken permanently.
        let taken = self.node.nonce(from, At::Block(self.counted()?))? > entry.nonce;
        Ok(if taken { Look::Displaced } else { Look::Nowhere })
    }

    /// Whether one of our versions has taken its nonce, judged by its block: nodes delete receipts,
    /// and some never had them. Returns false for blocks older than the states that nodes have.
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

    /// Signs a replacement transaction with a higher fee, up to the limit.
    fn raise(
        &self,
        outbox: &Outbox,
        by: &dyn WalletSigner,
        entry: &mut Entry,
    ) -> Result<(), LedgerError> {
        let Some(last) = entry.attempts.last() else { return Ok(()) };
        let now = self.node.fees()?;
        // Above this number only if the base fee exceeds the last offer: each such step at least
        // doubles the fee.
        if entry.attempts.len() >= ATTEMPTS_MAX && now.base <= last.fee {
            return Ok(());
        }
        // Nodes accept a replacement from a fee increase of 10 % on.
        let more = |fee: u128| fee.saturating_add(fee.div_euclid(8)).saturating_add(1);
        let tip = more(last.tip).max(now.tip);
        let fee = more(last.fee).max(now.base.saturating_mul(2).saturating_add(tip));
        let hash = last.hash();
        if fee > self.settings.fee_max_wei {
            let limit = self.settings.fee_max_wei;
            tracing::warn!(%hash, fee, limit, "not mined yet, and the limit allows no higher fee");
            return Ok(());
        }
        let needed = fee.saturating_mul(entry.gas.into()).saturating_add(entry.wei);
        self.has(by.address(), needed, &entry.intent)?;
        tracing::info!(%hash, fee, tip, "not mined yet; replacing it with a higher fee");
        self.sign(by, entry, (fee, tip))?;
        outbox.put(entry)
    }
}

/// The location of a transaction.
pub(super) enum Look {
    Deep(Receipt),
    Shallow,
    Nowhere,
    Displaced,
}

/// Wei as ether, with six decimals, rounded up.
fn ether_text(wei: u128) -> String {
    let millionths = wei.div_ceil(1_000_000_000_000);
    let (whole, rest) = (millionths.div_euclid(1_000_000), millionths.rem_euclid(1_000_000));
    format!("{whole}.{rest:06}")
}
