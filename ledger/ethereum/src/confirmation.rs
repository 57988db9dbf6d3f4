//! One transaction from its signature to its confirmation: signed, broadcast, polled, rebroadcast
//! and replaced with a higher fee, until it is confirmed or its nonce is taken.

use std::time::Duration;

use alloy_consensus::{SignableTransaction, TxEip1559};
use alloy_primitives::{Signature, TxKind, U256};
use florin_protocol::{Address, WalletSigner};

use super::endpoint::EndpointError;
use super::node::{BlockTag, Fees, TransactionReceipt};
use super::outbox::{Intent, MinedTransaction, Outbox, OutboxEntry, TransactionVersion};
use super::sender::Sender;
use crate::limits::TRANSACTION_VERSIONS_MAX;
use florin_ledger::LedgerError;

/// Part of a node's error message for an account that cannot pay the transaction.
const INSUFFICIENT_FUNDS: &str = "insufficient funds";
/// First pause between two polls of the chain, in milliseconds; each further pause is half as long
/// again.
const POLL_MS_FIRST: u64 = 4;
/// Interval at which the same bytes are broadcast again, in milliseconds: a node may have dropped
/// them.
const REBROADCAST_MS: u64 = 2_000;
/// Time that a failed poll counts towards the timeout, in milliseconds, in addition to the pause
/// after it: a node that accepts connections and never responds must not block a wallet for hours.
const FAILED_POLL_MS: u64 = 10_000;
/// Blocks whose state every node still has.
const STATE_HISTORY_BLOCKS: u64 = 100;
/// Waiting time after which a log message names the transaction, in milliseconds.
const WAIT_LOG_MS: u64 = 5_000;

/// The final status of one transaction.
pub(super) enum FinalStatus {
    Succeeded(TransactionReceipt),
    Reverted,
    /// Another transaction of the account took its nonce.
    Displaced,
}

impl Sender {
    /// The fees to offer, if they are within the limit and the account can pay them.
    pub(super) fn offer_fees(
        &self,
        from: Address,
        gas: u64,
        wei: u128,
        fees: Fees,
        intent: &Intent,
    ) -> Result<(u128, u128), LedgerError> {
        let limit = self.settings.fee_max_wei;
        let now = fees.base_fee.saturating_add(fees.priority_fee);
        if now > limit {
            return Err(LedgerError::Gas(format!(
                "gas costs {now} wei per unit, above the limit of {limit} wei: wait, or raise the \
                 limit (--max-fee-gwei, or fee_max_wei in a file); not sent: {}",
                intent.summary()
            )));
        }
        // Twice the base fee covers the increase of six full blocks.
        let fee = fees.base_fee.saturating_mul(2).saturating_add(fees.priority_fee).min(limit);
        self.require_ether(from, fee.saturating_mul(gas.into()).saturating_add(wei), intent)?;
        Ok((fee, fees.priority_fee.min(fee)))
    }

    /// Fails if an account has less than `wei`.
    pub(super) fn require_ether(
        &self,
        from: Address,
        wei: u128,
        intent: &Intent,
    ) -> Result<(), LedgerError> {
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
    pub(super) fn sign_version(
        &self,
        by: &dyn WalletSigner,
        entry: &mut OutboxEntry,
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
        entry.versions.push(TransactionVersion {
            raw,
            hash: signed.hash().0,
            max_fee: fee,
            priority_fee: tip,
        });
        Ok(())
    }

    /// Sends the newest version that the account can pay for to the node. Only the chain shows
    /// whether it was accepted.
    pub(super) fn broadcast(&self, entry: &OutboxEntry) {
        for attempt in entry.versions.iter().rev() {
            let hash = attempt.hash();
            match self.node.send(&attempt.raw) {
                Ok(()) => return,
                Err(EndpointError::ErrorResponse { message, .. }) => {
                    tracing::debug!(%hash, message, "the node rejected the transaction");
                    // "already known" and "nonce too low" are among these errors: the receipt
                    // decides.
                    if !message.contains(INSUFFICIENT_FUNDS) {
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
    pub(super) fn await_confirmation(
        &self,
        outbox: &Outbox,
        by: &dyn WalletSigner,
        mut entry: OutboxEntry,
    ) -> Result<FinalStatus, LedgerError> {
        let promised = entry.must_succeed();
        let (mut waited, mut pause) = (0u64, POLL_MS_FIRST);
        let (mut repeated, mut raised, mut taken) = (0u64, 0u64, None);
        loop {
            let look = self.locate(by.address(), &entry);
            if !matches!(look, Ok(TransactionLocation::Displaced)) {
                taken = None;
            }
            match look {
                Ok(TransactionLocation::Confirmed(receipt)) => {
                    if receipt.succeeded() || !promised {
                        entry.mined = Some(MinedTransaction::from_receipt(&receipt));
                        outbox.put(&entry)?;
                    }
                    return Ok(if receipt.succeeded() {
                        FinalStatus::Succeeded(receipt)
                    } else {
                        FinalStatus::Reverted
                    });
                }
                Ok(TransactionLocation::Displaced) => {
                    let since = *taken.get_or_insert(waited);
                    if waited.saturating_sub(since) >= self.displaced_ms() {
                        self.drop_displaced(outbox, by, &entry)?;
                        return Ok(FinalStatus::Displaced);
                    }
                }
                Ok(TransactionLocation::Unconfirmed) => {}
                Ok(TransactionLocation::NotMined) => {
                    if waited.saturating_sub(raised) >= self.settings.resubmit_ms {
                        raised = waited;
                        if let Err(error) = self.replace_with_higher_fee(outbox, by, &mut entry) {
                            tracing::warn!(%error, "cannot replace it with a higher fee now");
                        }
                    }
                    if waited.saturating_sub(repeated) >= REBROADCAST_MS {
                        repeated = waited;
                        self.broadcast(&entry);
                    }
                }
                Err(LedgerError::Unavailable(why)) if waited < self.settings.write_timeout_ms => {
                    tracing::debug!(why, "polling for a transaction failed");
                    waited = waited.saturating_add(FAILED_POLL_MS);
                }
                Err(error) => return Err(error),
            }
            if waited >= self.settings.write_timeout_ms {
                return Err(self.confirmation_timeout(&entry));
            }
            std::thread::sleep(Duration::from_millis(pause));
            if waited < WAIT_LOG_MS && waited.saturating_add(pause) >= WAIT_LOG_MS {
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
        self.settings.displaced_ms.min(self.settings.write_timeout_ms.div_euclid(2))
    }

    /// Deletes an entry whose nonce another transaction has taken, unless its intent must be
    /// executed again.
    fn drop_displaced(
        &self,
        outbox: &Outbox,
        by: &dyn WalletSigner,
        entry: &OutboxEntry,
    ) -> Result<(), LedgerError> {
        if self.is_ours(by.address(), entry)? {
            let what = "the node has this transaction in a block, but no receipt of it";
            return Err(LedgerError::Unavailable(what.to_owned()));
        }
        if entry.must_succeed() { Ok(()) } else { outbox.remove(entry.nonce) }
    }

    fn confirmation_timeout(&self, entry: &OutboxEntry) -> LedgerError {
        let hash = entry.versions.last().map(TransactionVersion::hash).unwrap_or_default();
        LedgerError::Unavailable(format!(
            "transaction {hash} has fewer than {} confirmations after {} s; it stays in the outbox \
             and is resumed later: {}",
            self.settings.confirmations,
            self.settings.write_timeout_ms.div_euclid(1_000),
            entry.intent.summary()
        ))
    }

    /// Locates a transaction.
    pub(super) fn locate(
        &self,
        from: Address,
        entry: &OutboxEntry,
    ) -> Result<TransactionLocation, LedgerError> {
        for attempt in entry.versions.iter().rev() {
            let Some(receipt) = self.node.receipt(attempt.hash())? else { continue };
            if self.node.is_canonical(&receipt)? {
                let deep = receipt.block() <= self.confirmed_block_now()?;
                return Ok(if deep {
                    TransactionLocation::Confirmed(receipt)
                } else {
                    TransactionLocation::Unconfirmed
                });
            }
        }
        // Only a confirmed block proves that the nonce is taken permanently.
        let taken =
            self.node.nonce(from, BlockTag::Block(self.confirmed_block_now()?))? > entry.nonce;
        Ok(if taken { TransactionLocation::Displaced } else { TransactionLocation::NotMined })
    }

    /// Whether one of our versions has taken its nonce, judged by its block: nodes delete receipts,
    /// and some never had them. Returns false for blocks older than the states that nodes have.
    fn is_ours(&self, from: Address, entry: &OutboxEntry) -> Result<bool, LedgerError> {
        let last = self.confirmed_block_now()?;
        let (mut before, mut after) = (last.saturating_sub(STATE_HISTORY_BLOCKS), last);
        if self.node.nonce(from, BlockTag::Block(before))? > entry.nonce {
            return Ok(false);
        }
        while after.saturating_sub(before) > 1 {
            let middle = before.saturating_add(after.saturating_sub(before).div_euclid(2));
            if self.node.nonce(from, BlockTag::Block(middle))? > entry.nonce {
                after = middle;
            } else {
                before = middle;
            }
        }
        let block = self.node.block(BlockTag::Block(after))?;
        Ok(entry.versions.iter().any(|attempt| block.transactions.contains(&attempt.hash())))
    }

    /// Signs a replacement transaction with a higher fee, up to the limit.
    fn replace_with_higher_fee(
        &self,
        outbox: &Outbox,
        by: &dyn WalletSigner,
        entry: &mut OutboxEntry,
    ) -> Result<(), LedgerError> {
        let Some(last) = entry.versions.last() else { return Ok(()) };
        let now = self.node.fees()?;
        // Above this number only if the base fee exceeds the last offer: each such step at least
        // doubles the fee.
        if entry.versions.len() >= TRANSACTION_VERSIONS_MAX && now.base_fee <= last.max_fee {
            return Ok(());
        }
        // Nodes accept a replacement from a fee increase of 10 % on.
        let more = |fee: u128| fee.saturating_add(fee.div_euclid(8)).saturating_add(1);
        let tip = more(last.priority_fee).max(now.priority_fee);
        let fee = more(last.max_fee).max(now.base_fee.saturating_mul(2).saturating_add(tip));
        let hash = last.hash();
        if fee > self.settings.fee_max_wei {
            let limit = self.settings.fee_max_wei;
            tracing::warn!(%hash, fee, limit, "not mined yet, and the limit allows no higher fee");
            return Ok(());
        }
        let needed = fee.saturating_mul(entry.gas.into()).saturating_add(entry.wei);
        self.require_ether(by.address(), needed, &entry.intent)?;
        tracing::info!(%hash, fee, tip, "not mined yet; replacing it with a higher fee");
        self.sign_version(by, entry, (fee, tip))?;
        outbox.put(entry)
    }
}

/// The location of a transaction.
pub(super) enum TransactionLocation {
    Confirmed(TransactionReceipt),
    Unconfirmed,
    NotMined,
    Displaced,
}

/// Wei as ether, with six decimals, rounded up.
fn ether_text(wei: u128) -> String {
    let millionths = wei.div_ceil(1_000_000_000_000);
    let (whole, rest) = (millionths.div_euclid(1_000_000), millionths.rem_euclid(1_000_000));
    format!("{whole}.{rest:06}")
}
