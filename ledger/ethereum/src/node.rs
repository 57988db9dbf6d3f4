//! A typed JSON-RPC client: the requests that a market sends to a node.

use std::sync::Arc;

use alloy_primitives::{B256, Bytes, U64, U128, U256};
use florin_protocol::Address;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::endpoint::{Endpoint, EndpointError};
use crate::limits::{LOG_PAGES_MAX, LOGS_MAX};
use florin_ledger::LedgerError;

/// A block tag: the state to which a request refers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockTag {
    /// The state after the newest block.
    Latest,
    /// The state with the pending transactions.
    Pending,
    /// The state after this block.
    Block(u64),
}

impl BlockTag {
    fn tag(self) -> Value {
        match self {
            Self::Latest => json!("latest"),
            Self::Pending => json!("pending"),
            Self::Block(number) => json!(format!("{number:#x}")),
        }
    }
}

/// A contract call, or a transaction without a nonce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// `None` to create a contract.
    pub(super) to: Option<Address>,
    pub(super) data: Vec<u8>,
    pub(super) wei: u128,
}

impl Call {
    pub(super) fn for_contract(to: Address, call: &impl alloy_sol_types::SolCall) -> Self {
        Self { to: Some(to), data: call.abi_encode(), wei: 0 }
    }

    fn to_json(&self, from: Option<Address>) -> Value {
        let mut object = json!({ "data": Bytes::copy_from_slice(&self.data) });
        if let Value::Object(fields) = &mut object {
            let mut put = |name: &str, value: Option<String>| {
                value.map(|text| fields.insert(name.to_owned(), Value::String(text)));
            };
            put("from", from.map(hex_address));
            put("to", self.to.map(hex_address));
            put("value", (self.wei > 0).then(|| format!("{:#x}", self.wei)));
        }
        object
    }
}

fn hex_address(address: Address) -> String {
    format!("{:#x}", alloy_primitives::Address::from(address.0))
}

/// The result of a simulated call.
#[derive(Debug)]
pub(super) enum CallResult {
    /// The returned bytes.
    Returned(Vec<u8>),
    /// The contract reverted with this data.
    Reverted(Vec<u8>),
}

/// A mined block, with the fields that are used here.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeBlock {
    pub(super) hash: B256,
    /// Unix time in seconds.
    pub(super) timestamp: U64,
    pub(super) base_fee_per_gas: Option<U128>,
    /// The hashes of its transactions.
    #[serde(default)]
    pub(super) transactions: Vec<B256>,
}

/// The receipt of a mined transaction.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TransactionReceipt {
    pub(super) transaction_hash: B256,
    pub(super) status: U64,
    pub(super) block_number: U64,
    pub(super) block_hash: B256,
    pub(super) contract_address: Option<alloy_primitives::Address>,
    pub(super) logs: Vec<Log>,
}

impl TransactionReceipt {
    pub(super) fn succeeded(&self) -> bool {
        self.status == U64::from(1)
    }

    pub(super) fn block(&self) -> u64 {
        self.block_number.to()
    }
}

/// A transaction, with the fields that are used here.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeTransaction {
    pub(super) from: alloy_primitives::Address,
    pub(super) input: Bytes,
    /// `None` while it is pending.
    pub(super) block_number: Option<U64>,
    pub(super) block_hash: Option<B256>,
}

/// One event log of a contract.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Log {
    pub(super) address: alloy_primitives::Address,
    pub(super) topics: Vec<B256>,
    pub(super) data: Bytes,
    pub(super) block_number: Option<U64>,
}

/// A filter of event logs.
#[derive(Clone, Debug)]
pub(super) struct Filter {
    pub(super) contract: Address,
    pub(super) first: u64,
    pub(super) last: u64,
    /// The permitted values of each topic; empty for any value.
    pub(super) topics: Vec<Vec<B256>>,
}

/// The network's current fees per unit of gas, in wei.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fees {
    pub(super) base_fee: u128,
    pub(super) priority_fee: u128,
}

/// A client of one node.
#[derive(Clone, Debug)]
pub(super) struct NodeClient(pub(super) Arc<dyn Endpoint>);

impl NodeClient {
    fn raw(&self, method: &str, params: Value) -> Result<Value, EndpointError> {
        self.0.call(method, params)
    }

    fn request<T: DeserializeOwned>(&self, method: &str, params: Value) -> Result<T, LedgerError> {
        let result = self.raw(method, params).map_err(|error| self.unavailable(method, &error))?;
        self.parse(method, result)
    }

    fn parse<T: DeserializeOwned>(&self, method: &str, result: Value) -> Result<T, LedgerError> {
        serde_json::from_value(result).map_err(|error| {
            let name = self.0.name();
            LedgerError::Unavailable(format!("{name}: invalid response to {method}: {error}"))
        })
    }

    pub(super) fn unavailable(&self, method: &str, error: &EndpointError) -> LedgerError {
        LedgerError::Unavailable(format!("{}, {method}: {error}", self.0.name()))
    }

    pub(super) fn chain_id(&self) -> Result<u64, LedgerError> {
        self.request::<U64>("eth_chainId", json!([])).map(|id| id.to())
    }

    /// The number of the newest block.
    pub(super) fn latest_block_number(&self) -> Result<u64, LedgerError> {
        self.request::<U64>("eth_blockNumber", json!([])).map(|number| number.to())
    }

    pub(super) fn block(&self, at: BlockTag) -> Result<NodeBlock, LedgerError> {
        let block =
            self.request::<Option<NodeBlock>>("eth_getBlockByNumber", json!([at.tag(), false]))?;
        block.ok_or_else(|| {
            let name = self.0.name();
            LedgerError::Unavailable(format!("{name} has no block {}", at.tag()))
        })
    }

    /// The block with this number; `None` if the node does not have it.
    pub(super) fn block_by_number(&self, number: u64) -> Result<Option<NodeBlock>, LedgerError> {
        self.request("eth_getBlockByNumber", json!([BlockTag::Block(number).tag(), false]))
    }

    /// Whether a receipt's block is canonical: nodes may return receipts of blocks that a
    /// reorganisation has removed.
    pub(super) fn is_canonical(&self, receipt: &TransactionReceipt) -> Result<bool, LedgerError> {
        let block = self.block_by_number(receipt.block())?;
        Ok(block.is_some_and(|block| block.hash == receipt.block_hash))
    }

    /// Simulates a call (`eth_call`).
    pub(super) fn call(
        &self,
        from: Option<Address>,
        call: &Call,
        at: BlockTag,
    ) -> Result<CallResult, LedgerError> {
        let method = "eth_call";
        match self.raw(method, json!([call.to_json(from), at.tag()])) {
            Ok(result) => {
                let bytes: Bytes = self.parse(method, result)?;
                Ok(CallResult::Returned(bytes.to_vec()))
            }
            Err(EndpointError::ErrorResponse { data: Some(data), .. }) => {
                Ok(CallResult::Reverted(data))
            }
            Err(EndpointError::ErrorResponse { message, .. }) if message.contains("revert") => {
                Ok(CallResult::Reverted(Vec::new()))
            }
            Err(error) => Err(self.unavailable(method, &error)),
        }
    }

    /// Calls a getter of a contract.
    pub(super) fn call_getter<C: alloy_sol_types::SolCall>(
        &self,
        contract: Address,
        getter: &C,
        at: BlockTag,
    ) -> Result<C::Return, LedgerError> {
        let name = self.0.name();
        match self.call(None, &Call::for_contract(contract, getter), at)? {
            CallResult::Returned(bytes) => C::abi_decode_returns(&bytes).map_err(|error| {
                LedgerError::Unavailable(format!(
                    "{name}: {contract} returned an invalid result of {} ({error}): is it the \
                     market's contract?",
                    C::SIGNATURE
                ))
            }),
            CallResult::Reverted(_) => Err(LedgerError::Unavailable(format!(
                "{name}: {contract} reverted {}: is it the market's contract?",
                C::SIGNATURE
            ))),
        }
    }

    /// The gas estimate of a transaction, or the data with which it would revert.
    pub(super) fn estimate(
        &self,
        from: Address,
        call: &Call,
    ) -> Result<Result<u64, Vec<u8>>, LedgerError> {
        let method = "eth_estimateGas";
        match self.raw(method, json!([call.to_json(Some(from))])) {
            Ok(result) => Ok(Ok(self.parse::<U64>(method, result)?.to())),
            Err(EndpointError::ErrorResponse { data: Some(data), .. }) => Ok(Err(data)),
            Err(EndpointError::ErrorResponse { message, .. }) if message.contains("revert") => {
                Ok(Err(Vec::new()))
            }
            Err(error) => Err(self.unavailable(method, &error)),
        }
    }

    /// The number of an account's transactions in blocks, or with the pending ones.
    pub(super) fn nonce(&self, account: Address, at: BlockTag) -> Result<u64, LedgerError> {
        let params = json!([hex_address(account), at.tag()]);
        self.request::<U64>("eth_getTransactionCount", params).map(|count| count.to())
    }

    /// The balance of an account in wei.
    pub(super) fn ether(&self, account: Address) -> Result<u128, LedgerError> {
        let params = json!([hex_address(account), BlockTag::Latest.tag()]);
        let wei = self.request::<U256>("eth_getBalance", params)?;
        Ok(wei.saturating_to())
    }

    pub(super) fn has_code(&self, contract: Address) -> Result<bool, LedgerError> {
        let params = json!([hex_address(contract), BlockTag::Latest.tag()]);
        Ok(!self.request::<Bytes>("eth_getCode", params)?.is_empty())
    }

    /// The current fees. If the node does not support priority fees, they are derived from its gas
    /// price.
    pub(super) fn fees(&self) -> Result<Fees, LedgerError> {
        let base = self.block(BlockTag::Latest)?.base_fee_per_gas.unwrap_or_default().to::<u128>();
        let tip = match self.raw("eth_maxPriorityFeePerGas", json!([])) {
            Ok(result) => self.parse::<U128>("eth_maxPriorityFeePerGas", result)?.to(),
            Err(EndpointError::ErrorResponse { .. }) => {
                self.request::<U128>("eth_gasPrice", json!([]))?.to::<u128>().saturating_sub(base)
            }
            Err(error) => return Err(self.unavailable("eth_maxPriorityFeePerGas", &error)),
        };
        Ok(Fees { base_fee: base, priority_fee: tip })
    }

    /// Sends a signed transaction.
    pub(super) fn send(&self, raw: &[u8]) -> Result<(), EndpointError> {
        let params = json!([Bytes::copy_from_slice(raw)]);
        self.raw("eth_sendRawTransaction", params).map(drop)
    }

    pub(super) fn receipt(&self, hash: B256) -> Result<Option<TransactionReceipt>, LedgerError> {
        self.request("eth_getTransactionReceipt", json!([hash]))
    }

    pub(super) fn transaction(&self, hash: B256) -> Result<Option<NodeTransaction>, LedgerError> {
        self.request("eth_getTransactionByHash", json!([hash]))
    }

    /// Event logs, oldest first. A range that the node refuses is split in halves.
    pub(super) fn logs(&self, filter: &Filter, blocks_max: u64) -> Result<Vec<Log>, LedgerError> {
        let mut logs = Vec::new();
        let (mut first, mut most) = (filter.first, blocks_max.max(1));
        let mut pages = 0usize;
        while first <= filter.last {
            pages = pages.saturating_add(1);
            if pages > LOG_PAGES_MAX || logs.len() > LOGS_MAX {
                let (name, from, to) = (self.0.name(), filter.first, filter.last);
                return Err(LedgerError::Unavailable(format!(
                    "{name}: blocks {from} to {to} have too many events for one read (limits: \
                     {LOGS_MAX} events, {LOG_PAGES_MAX} requests)"
                )));
            }
            let last = first.saturating_add(most.saturating_sub(1)).min(filter.last);
            match self.logs_page(filter, first, last) {
                Ok(found) => {
                    logs.extend(found);
                    first = last.saturating_add(1);
                }
                Err(EndpointError::ErrorResponse { .. }) if last > first => {
                    most = last.saturating_sub(first).saturating_add(1).div_ceil(2);
                }
                Err(error) => return Err(self.unavailable("eth_getLogs", &error)),
            }
        }
        Ok(logs)
    }

    fn logs_page(&self, filter: &Filter, first: u64, last: u64) -> Result<Vec<Log>, EndpointError> {
        let topics: Vec<Value> = filter
            .topics
            .iter()
            .map(|any| if any.is_empty() { Value::Null } else { json!(any) })
            .collect();
        let params = json!([{
            "address": hex_address(filter.contract),
            "fromBlock": BlockTag::Block(first).tag(),
            "toBlock": BlockTag::Block(last).tag(),
            "topics": topics,
        }]);
        let result = self.raw("eth_getLogs", params)?;
        serde_json::from_value(result)
            .map_err(|error| EndpointError::Unreachable(format!("invalid event logs: {error}")))
    }
}
