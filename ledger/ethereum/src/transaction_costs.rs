//! The costs of transactions according to the chain: for reports, not for bookkeeping.

use std::sync::Arc;

use alloy_primitives::{U64, U128};
use florin_protocol::Address;
use serde::Deserialize;
use serde_json::json;

use super::Endpoint;
use crate::contracts::to_address;
use florin_ledger::LedgerError;

/// The cost of one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionCost {
    /// The sender.
    pub sender: Address,
    /// The contract that it created, if any.
    pub created: Option<Address>,
    /// Gas used.
    pub gas: u64,
    /// Gas used times the effective gas price, in wei.
    pub wei: u128,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CostReceipt {
    from: alloy_primitives::Address,
    gas_used: U64,
    #[serde(default)]
    effective_gas_price: U128,
    contract_address: Option<alloy_primitives::Address>,
}

/// The cost of every transaction in the blocks `first` to `last`, oldest first; one request for
/// each block.
///
/// # Errors
/// [`LedgerError::Unavailable`], also from a node without `eth_getBlockReceipts`.
pub fn transaction_costs(
    endpoint: &Arc<dyn Endpoint>,
    first: u64,
    last: u64,
) -> Result<Vec<TransactionCost>, LedgerError> {
    let method = "eth_getBlockReceipts";
    let lost =
        |what: String| LedgerError::Unavailable(format!("{}, {method}: {what}", endpoint.name()));
    let mut all = Vec::new();
    for block in first..=last {
        let found = endpoint.call(method, json!([format!("{block:#x}")]));
        let found = found.map_err(|error| lost(error.to_string()))?;
        let receipts: Vec<CostReceipt> =
            serde_json::from_value(found).map_err(|error| lost(error.to_string()))?;
        all.extend(receipts.into_iter().map(|receipt| {
            let gas = receipt.gas_used.to::<u64>();
            let price = receipt.effective_gas_price.to::<u128>();
            TransactionCost {
                sender: to_address(receipt.from),
                created: receipt.contract_address.map(to_address),
                gas,
                wei: price.saturating_mul(u128::from(gas)),
            }
        }));
    }
    Ok(all)
}
