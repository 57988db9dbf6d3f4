//! Signed heads of an embedded ledger in transactions of an Ethereum chain, for readers who do not
//! trust the ledger's operator.
//!
//! The transaction goes from an account to itself, with the head's canonical bytes as data. It needs
//! no contract: any wallet that can set a transaction's data can send one.

use std::path::Path;
use std::sync::Arc;

use alloy_primitives::B256;
use florin_ledger::ethereum::Settings;
use florin_ledger::{LedgerError, Refusal, SignedHead, TxId};
use florin_protocol::{Address, Canonical, Timestamp, WalletSigner};

use super::contracts::to_address;
use super::endpoint::Endpoint;
use super::node::{Call, NodeClient, TransactionReceipt};
use super::outbox::Intent;
use super::revert::digest;
use super::sender::{Execution, PlanStep, Planner, Sender};

/// A head that a transaction carries, and the evidence of its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnchoredHead {
    /// The head, with the signature of the ledger's operator, which is not verified here.
    pub head: SignedHead,
    /// The account that sent the transaction.
    pub sender: Address,
    /// The block of the transaction.
    pub block: u64,
    /// The block's time: the head was signed before it.
    pub time: Timestamp,
}

/// The transaction that writes `data`.
pub(super) fn anchor_call(account: Address, data: &[u8]) -> Call {
    Call { to: Some(account), data: data.to_vec(), wei: 0 }
}

/// Plans anchors, and nothing else.
struct Anchors;

impl Planner for Anchors {
    fn plan(&self, from: Address, intent: &Intent) -> Result<PlanStep, LedgerError> {
        match intent {
            Intent::Anchor(data) => Ok(PlanStep::Send(anchor_call(from, data))),
            other => {
                let what = format!("a reorganisation reverted \"{}\": repeat it", other.summary());
                Err(Refusal::NotFound(what).into())
            }
        }
    }

    fn is_effective(&self, _: &Intent, _: &TransactionReceipt) -> bool {
        true
    }
}

/// Writes a head into a transaction, and waits for the confirmations that `settings` require. Returns
/// the transaction.
///
/// # Errors
/// [`LedgerError`]; `Gas` if the wallet cannot pay the gas.
pub fn anchor_head(
    endpoint: &Arc<dyn Endpoint>,
    by: &dyn WalletSigner,
    head: &SignedHead,
    settings: Settings,
    outbox: &Path,
) -> Result<TxId, LedgerError> {
    let node = NodeClient(Arc::clone(endpoint));
    let chain = node.chain_id()?;
    let sender = Sender::new(node, chain, settings, outbox, format!("anchor-{chain}"))?;
    match sender.execute(by, &Intent::Anchor(head.to_bytes()), &Anchors)? {
        Execution::Mined(receipt) => Ok(digest(receipt.transaction_hash)),
        Execution::Stands(_) => Err(LedgerError::Unavailable("no transaction was sent".to_owned())),
    }
}

/// The head in a mined transaction. A recent block can still be replaced: its reader chooses how deep
/// an anchor must be.
///
/// # Errors
/// [`LedgerError::Refused`] with `NotFound` if the node has no such transaction in its chain, with
/// `InvalidArgument` if its data is no signed head; [`LedgerError::Unavailable`].
pub fn anchored_head(
    endpoint: &Arc<dyn Endpoint>,
    transaction: TxId,
) -> Result<AnchoredHead, LedgerError> {
    let node = NodeClient(Arc::clone(endpoint));
    let missing = || {
        let what = format!("{} has no mined transaction {transaction}", node.0.name());
        LedgerError::from(Refusal::NotFound(what))
    };
    let found = node.transaction(B256::from(transaction.0))?.ok_or_else(missing)?;
    let number = found.block_number.ok_or_else(missing)?.to();
    let block = node.block_by_number(number)?.ok_or_else(missing)?;
    if found.block_hash != Some(block.hash) {
        return Err(missing());
    }
    let head = SignedHead::from_bytes(&found.input).map_err(|error| {
        let what = format!("transaction {transaction} carries no signed head: {error}");
        LedgerError::from(Refusal::InvalidArgument(what))
    })?;
    let time = Timestamp(block.timestamp.to::<u64>().saturating_mul(1_000));
    Ok(AnchoredHead { head, sender: to_address(found.from), block: number, time })
}
