//! JSON-RPC encoding of numbers, bytes, blocks, receipts and logs.

use std::fmt::LowerHex;

use revm::primitives::{Address, B256, Bytes, Log, U256, hex};
use serde_json::{Value, json};

use super::chain::{
    BASE_FEE, CallRequest, GAS_MAX, InProcessChain, MinedBlock, MinedTransaction, RpcFault, refuse,
};

pub(super) fn quantity(n: impl LowerHex) -> Value {
    Value::String(format!("{n:#x}"))
}

pub(super) fn bytes(data: &[u8]) -> Value {
    Value::String(hex::encode_prefixed(data))
}

fn text<'a>(value: &'a Value, what: &str) -> Result<&'a str, RpcFault> {
    value.as_str().ok_or_else(|| refuse(format!("{what}: expected text, got {value}")))
}

pub(super) fn address(value: &Value) -> Result<Address, RpcFault> {
    let text = text(value, "address")?;
    text.parse().map_err(|error| refuse(format!("address {text}: {error}")))
}

pub(super) fn hash(value: &Value) -> Result<B256, RpcFault> {
    let text = text(value, "hash")?;
    text.parse().map_err(|error| refuse(format!("hash {text}: {error}")))
}

pub(super) fn data(value: &Value) -> Result<Bytes, RpcFault> {
    let text = text(value, "bytes")?;
    hex::decode(text).map(Bytes::from).map_err(|error| refuse(format!("bytes: {error}")))
}

pub(super) fn number(value: &Value) -> Result<u64, RpcFault> {
    let text = text(value, "number")?;
    let digits = text.strip_prefix("0x").unwrap_or_default();
    u64::from_str_radix(digits, 16).map_err(|error| refuse(format!("number {text}: {error}")))
}

/// The block that a tag names; the pending block is the newest, because the mempool is always
/// empty.
pub(super) fn block(value: &Value, chain: &InProcessChain) -> Result<u64, RpcFault> {
    match value.as_str() {
        None if value.is_null() => Ok(chain.height()),
        Some("latest" | "pending" | "safe" | "finalized") => Ok(chain.height()),
        Some("earliest") => Ok(0),
        _ => number(value),
    }
}

/// Fails unless a tag names the newest block.
pub(super) fn newest(value: &Value, chain: &InProcessChain) -> Result<(), RpcFault> {
    let (asked, height) = (block(value, chain)?, chain.height());
    if asked == height {
        Ok(())
    } else {
        Err(refuse(format!("no state of block {asked}: only of the newest block {height}")))
    }
}

pub(super) fn call_request(value: &Value) -> Result<CallRequest, RpcFault> {
    let field = |name: &str| value.get(name).filter(|field| !field.is_null());
    let input = field("data").or_else(|| field("input"));
    let wei = |field: &Value| -> Result<U256, RpcFault> {
        let text = text(field, "value")?;
        text.parse().map_err(|error| refuse(format!("value {text}: {error}")))
    };
    Ok(CallRequest {
        from: field("from").map(address).transpose()?.unwrap_or_default(),
        to: field("to").map(address).transpose()?,
        value: field("value").map(wei).transpose()?.unwrap_or_default(),
        data: input.map(data).transpose()?.unwrap_or_default(),
        gas: field("gas").map(number).transpose()?,
    })
}

pub(super) fn head(number: u64, head: &MinedBlock) -> Value {
    json!({
        "number": quantity(number),
        "hash": head.hash,
        "parentHash": head.parent,
        "timestamp": quantity(head.time),
        "baseFeePerGas": quantity(BASE_FEE),
        "gasLimit": quantity(GAS_MAX),
        "gasUsed": quantity(head.gas),
        "transactions": head.transaction.iter().collect::<Vec<_>>(),
    })
}

pub(super) fn transaction(mined: &MinedTransaction, chain: &InProcessChain) -> Value {
    json!({
        "hash": mined.hash,
        "type": "0x2",
        "from": mined.from,
        "to": mined.to,
        "nonce": quantity(mined.nonce),
        "blockNumber": quantity(mined.block),
        "blockHash": chain.blocks[mined.block as usize].hash,
        "transactionIndex": "0x0",
    })
}

pub(super) fn receipt(mined: &MinedTransaction, chain: &InProcessChain) -> Value {
    let logs = mined.logs.iter().filter(|_| mined.success).enumerate();
    json!({
        "transactionHash": mined.hash,
        "transactionIndex": "0x0",
        "type": "0x2",
        "blockNumber": quantity(mined.block),
        "blockHash": chain.blocks[mined.block as usize].hash,
        "from": mined.from,
        "to": mined.to,
        "contractAddress": mined.created,
        "status": quantity(u8::from(mined.success)),
        "gasUsed": quantity(mined.gas),
        "cumulativeGasUsed": quantity(mined.gas),
        "effectiveGasPrice": quantity(mined.price),
        "logs": logs.map(|(n, log)| entry(mined, n, log, chain)).collect::<Vec<_>>(),
    })
}

fn entry(mined: &MinedTransaction, n: usize, log: &Log, chain: &InProcessChain) -> Value {
    json!({
        "address": log.address,
        "topics": log.topics(),
        "data": bytes(&log.data.data),
        "blockNumber": quantity(mined.block),
        "blockHash": chain.blocks[mined.block as usize].hash,
        "transactionHash": mined.hash,
        "transactionIndex": "0x0",
        "logIndex": quantity(n),
        "removed": false,
    })
}

/// The permitted values of a filter position; `None` permits any.
fn choice<T>(
    value: Option<&Value>,
    parse: impl Fn(&Value) -> Result<T, RpcFault>,
) -> Result<Option<Vec<T>>, RpcFault> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(list)) => list.iter().map(parse).collect::<Result<_, _>>().map(Some),
        Some(one) => Ok(Some(vec![parse(one)?])),
    }
}

pub(super) fn logs(filter: &Value, chain: &InProcessChain) -> Result<Value, RpcFault> {
    let bound = |name: &str| block(filter.get(name).unwrap_or(&Value::Null), chain);
    let (first, last) = (bound("fromBlock")?, bound("toBlock")?);
    if first > last {
        return Err(refuse(format!("blocks {first} to {last}: an empty range")));
    }
    let addresses = choice(filter.get("address"), address)?;
    let topics = filter.get("topics").and_then(Value::as_array).map(Vec::as_slice);
    let topics = topics.unwrap_or_default().iter().map(|topic| choice(Some(topic), hash));
    let topics: Vec<Option<Vec<B256>>> = topics.collect::<Result<_, _>>()?;
    let wanted = |log: &Log| {
        let places = topics.iter().enumerate().all(|(n, allowed)| match allowed {
            None => true,
            Some(allowed) => log.topics().get(n).is_some_and(|topic| allowed.contains(topic)),
        });
        places && addresses.as_ref().is_none_or(|allowed| allowed.contains(&log.address))
    };
    let mut found = Vec::new();
    for hash in chain.blocks_with_logs.range(first..=last).map(|(_, hash)| hash) {
        let mined = &chain.mined[hash];
        let logs = mined.logs.iter().enumerate().filter(|(_, log)| wanted(log));
        found.extend(logs.map(|(n, log)| entry(mined, n, log, chain)));
    }
    Ok(Value::Array(found))
}
