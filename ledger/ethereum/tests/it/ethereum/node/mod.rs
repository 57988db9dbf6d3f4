//! An Ethereum node in the test process: the real virtual machine (revm) and the JSON-RPC methods
//! that a client of the market uses. No mempool, no reorganisations, only the newest state.

mod chain;
mod json;
mod tests;

use std::sync::{Mutex, MutexGuard, PoisonError};

use alloy_consensus::{SignableTransaction, TxEip1559};
use alloy_primitives::{Address, Bytes, Signature, TxKind, U256, hex};
use florin_ledger_ethereum::{Endpoint, EndpointError};
use florin_protocol::WalletSigner;
use serde_json::Value;

use chain::{BASE_FEE, InProcessChain, RpcFault, refuse};

/// A million ether, in wei.
const ETHER: u128 = 1_000_000 * 1_000_000_000_000_000_000;
/// The suggested priority fee per unit of gas, in wei.
const PRIORITY_FEE: u64 = 1_000_000;

/// A signed raw transaction with a gas limit above every need of these tests.
pub(crate) fn sign(
    chain: u64,
    by: &dyn WalletSigner,
    nonce: u64,
    to: TxKind,
    input: &[u8],
) -> String {
    let tx = TxEip1559 {
        chain_id: chain,
        nonce,
        gas_limit: 10_000_000,
        max_fee_per_gas: 2 * u128::from(BASE_FEE),
        max_priority_fee_per_gas: PRIORITY_FEE.into(),
        to,
        input: Bytes::copy_from_slice(input),
        ..TxEip1559::default()
    };
    let signature = by.sign_transaction(tx.signature_hash().0).unwrap();
    let signature = Signature::from_raw(&signature.0).unwrap();
    let mut raw = Vec::new();
    tx.into_signed(signature).eip2718_encode(&mut raw);
    hex::encode_prefixed(raw)
}

/// The node: a chain behind a lock.
pub(crate) struct InProcessNode(Mutex<InProcessChain>);

impl InProcessNode {
    /// A new chain at a time in seconds; only these accounts have ether.
    pub(crate) fn new(chain: u64, time: u64, rich: &[Address]) -> Self {
        let rich: Vec<_> = rich.iter().map(|account| (*account, U256::from(ETHER))).collect();
        Self(Mutex::new(InProcessChain::new(chain, time, &rich)))
    }

    /// Another node with a copy of the chain.
    pub(crate) fn copy(&self) -> Self {
        Self(Mutex::new(self.chain().clone()))
    }

    /// Advances the clock to a time in seconds, for the newest and the next block.
    pub(crate) fn set_time(&self, seconds: u64) {
        self.chain().set_time(seconds);
    }

    fn chain(&self) -> MutexGuard<'_, InProcessChain> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Endpoint for InProcessNode {
    fn call(&self, method: &str, params: Value) -> Result<Value, EndpointError> {
        handle_request(&mut self.chain(), method, &params).map_err(|fault| {
            let RpcFault { code, message, data } = fault;
            EndpointError::ErrorResponse { code, message, data: data.map(Vec::from) }
        })
    }

    fn name(&self) -> String {
        "a node in this process".to_owned()
    }
}

fn handle_request(
    chain: &mut InProcessChain,
    method: &str,
    params: &Value,
) -> Result<Value, RpcFault> {
    let param = |n: usize| params.get(n).unwrap_or(&Value::Null);
    let state = |n: usize| json::newest(param(n), chain);
    match method {
        "eth_chainId" => Ok(json::quantity(chain.id)),
        "eth_blockNumber" => Ok(json::quantity(chain.height())),
        "eth_gasPrice" => Ok(json::quantity(BASE_FEE + PRIORITY_FEE)),
        "eth_maxPriorityFeePerGas" => Ok(json::quantity(PRIORITY_FEE)),
        "eth_getBlockByNumber" => {
            let number = json::block(param(0), chain)?;
            let head = chain.blocks.get(usize::try_from(number).unwrap_or(usize::MAX));
            Ok(head.map_or(Value::Null, |head| json::head(number, head)))
        }
        "eth_getTransactionCount" => {
            state(1)?;
            Ok(json::quantity(chain.account(json::address(param(0))?)?.nonce))
        }
        "eth_getBalance" => {
            state(1)?;
            Ok(json::quantity(chain.account(json::address(param(0))?)?.balance))
        }
        "eth_getCode" => {
            state(1)?;
            Ok(json::bytes(&chain.code(json::address(param(0))?)?))
        }
        "eth_call" => {
            state(1)?;
            Ok(json::bytes(&chain.call(json::call_request(param(0))?)?))
        }
        "eth_estimateGas" => {
            state(1)?;
            Ok(json::quantity(chain.estimate_gas(json::call_request(param(0))?)?))
        }
        "eth_sendRawTransaction" => Ok(json::bytes(chain.send(&json::data(param(0))?)?.as_slice())),
        "eth_getTransactionReceipt" => {
            let mined = chain.mined.get(&json::hash(param(0))?);
            Ok(mined.map_or(Value::Null, |mined| json::receipt(mined, chain)))
        }
        "eth_getTransactionByHash" => {
            let mined = chain.mined.get(&json::hash(param(0))?);
            Ok(mined.map_or(Value::Null, |mined| json::transaction(mined, chain)))
        }
        "eth_getLogs" => json::logs(param(0), chain),
        _ => Err(refuse(format!("this node has no method {method}"))),
    }
}
