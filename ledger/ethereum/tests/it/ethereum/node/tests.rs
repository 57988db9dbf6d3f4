//! Tests of the in-process node itself.

use alloy_primitives::{Address, TxKind, U256, hex};
use alloy_sol_types::{SolCall, SolConstructor, SolError, SolValue};
use florin_ledger::conformance::TestSigner;
use florin_ledger_ethereum::{Endpoint, EndpointError, FlorinToken, MarketContract};
use florin_protocol::WalletSigner;
use serde_json::{Value, json};

use super::{InProcessNode, sign};

const CHAIN: u64 = 31_337;

fn signed(by: &TestSigner, nonce: u64, to: TxKind, input: &[u8]) -> String {
    sign(CHAIN, by, nonce, to, input)
}

struct NodeFixture {
    node: InProcessNode,
    alice: TestSigner,
    token: Address,
    market: Address,
}

fn receipt(node: &InProcessNode, hash: &Value) -> Value {
    node.call("eth_getTransactionReceipt", json!([hash])).unwrap()
}

fn deploy(
    node: &InProcessNode,
    by: &TestSigner,
    nonce: u64,
    code: &[u8],
    arguments: &[u8],
) -> Address {
    let raw = signed(by, nonce, TxKind::Create, &[code, arguments].concat());
    let hash = node.call("eth_sendRawTransaction", json!([raw])).unwrap();
    let receipt = receipt(node, &hash);
    assert_eq!(receipt["status"], "0x1", "{receipt}");
    receipt["contractAddress"].as_str().unwrap().parse().unwrap()
}

fn node_fixture() -> NodeFixture {
    let alice = TestSigner::new(0).unwrap();
    let holder: Address = alice.address().0.into();
    let node = InProcessNode::new(CHAIN, 1_000, &[holder]);
    let supply = FlorinToken::constructorCall { supply: U256::from(500), holder };
    let token = deploy(&node, &alice, 0, &FlorinToken::BYTECODE, &supply.abi_encode());
    let arguments = MarketContract::constructorCall { token_: token }.abi_encode();
    let market = deploy(&node, &alice, 1, &MarketContract::BYTECODE, &arguments);
    NodeFixture { node, alice, token, market }
}

impl NodeFixture {
    fn call(&self, to: Address, call: &[u8]) -> Result<Vec<u8>, EndpointError> {
        let data = hex::encode_prefixed(call);
        let answer = self.node.call("eth_call", json!([{ "to": to, "data": data }, "latest"]))?;
        Ok(hex::decode(answer.as_str().unwrap()).unwrap())
    }

    fn send(&self, nonce: u64, to: Address, call: &[u8]) -> Result<Value, EndpointError> {
        let raw = signed(&self.alice, nonce, TxKind::Call(to), call);
        self.node.call("eth_sendRawTransaction", json!([raw]))
    }

    fn clock(&self) -> u64 {
        let answer = self.call(self.market, &MarketContract::clockCall {}.abi_encode());
        u64::abi_decode(&answer.unwrap()).unwrap()
    }
}

#[test]
fn contract_calls_work_and_the_contracts_clock_is_the_nodes() {
    let bench = node_fixture();
    let account = bench.alice.address().0.into();
    let call = FlorinToken::balanceOfCall { account }.abi_encode();
    let balance = U256::abi_decode(&bench.call(bench.token, &call).unwrap()).unwrap();
    assert_eq!(balance, U256::from(500));
    assert_eq!(bench.clock(), 1_000_000);
    let copy = bench.node.copy();
    bench.node.set_time(1_007);
    assert_eq!(bench.clock(), 1_007_000);
    let height = |node: &InProcessNode| node.call("eth_blockNumber", json!([])).unwrap();
    assert_eq!((height(&bench.node), height(&copy)), (json!("0x3"), json!("0x2")));
    let head = bench.node.call("eth_getBlockByNumber", json!(["0x3", false])).unwrap();
    let parent = bench.node.call("eth_getBlockByNumber", json!(["0x2", false])).unwrap();
    assert_eq!((&head["timestamp"], &head["parentHash"]), (&json!("0x3ef"), &parent["hash"]));
    assert_eq!(bench.node.call("eth_getBlockByNumber", json!(["0x4", false])), Ok(Value::Null));
}

#[test]
fn a_transfer_has_the_expected_gas_log_and_receipt() {
    let bench = node_fixture();
    let to = Address::repeat_byte(7);
    let call = FlorinToken::transferCall { to, value: U256::from(20) }.abi_encode();
    let from: Address = bench.alice.address().0.into();
    let question =
        json!([{ "from": from, "to": bench.token, "data": hex::encode_prefixed(&call) }]);
    let price = bench.node.call("eth_estimateGas", question).unwrap();
    let hash = bench.send(2, bench.token, &call).unwrap();
    let receipt = receipt(&bench.node, &hash);
    assert_eq!(receipt["status"], "0x1");
    let number = |value: &Value| u64::from_str_radix(&value.as_str().unwrap()[2..], 16).unwrap();
    let (price, used) = (number(&price), number(&receipt["gasUsed"]));
    assert!((50_000..52_000).contains(&used) && (used..used + 4_000).contains(&price), "{used}");
    let logs = |filter: Value| bench.node.call("eth_getLogs", json!([filter])).unwrap();
    let found = logs(json!({ "fromBlock": "0x0", "address": bench.token }));
    assert_eq!(found.as_array().unwrap().len(), 2, "the mint, and the transfer");
    let topics = json!([null, from.into_word()]);
    let filter = json!({ "fromBlock": "0x0", "address": [bench.token], "topics": &topics });
    let found = logs(filter);
    assert_eq!(found, receipt["logs"]);
    assert_eq!(found[0]["data"], hex::encode_prefixed(U256::from(20).to_be_bytes_vec()));
    let before = logs(json!({ "fromBlock": "0x0", "toBlock": "0x2", "topics": topics }));
    assert_eq!(before, json!([]));
    let count = bench.node.call("eth_getTransactionCount", json!([from, "latest"])).unwrap();
    assert_eq!(count, "0x3");
}

#[test]
fn a_revert_returns_its_data_and_a_wrong_nonce_is_refused() {
    let bench = node_fixture();
    let (task, amount) = ([5; 32].into(), 3_u128);
    let call = MarketContract::bondCall { id: task, amount }.abi_encode();
    let unknown = MarketContract::UnknownTask { task }.abi_encode();
    match bench.call(bench.market, &call) {
        Err(EndpointError::ErrorResponse { code: 3, data: Some(data), .. }) => {
            assert_eq!(data, unknown)
        }
        other => panic!("{other:?}"),
    }
    let hash = bench.send(2, bench.market, &call).unwrap();
    let receipt = receipt(&bench.node, &hash);
    assert_eq!((&receipt["status"], &receipt["logs"]), (&json!("0x0"), &json!([])));
    for (nonce, words) in [(2, "already known"), (1, "nonce too low"), (4, "leaves a gap")] {
        let call = if nonce == 2 { call.clone() } else { Vec::new() };
        let refused = bench.send(nonce, bench.market, &call).unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
    let old = bench.node.call("eth_getBalance", json!([bench.token, "0x1"])).unwrap_err();
    assert!(old.to_string().contains("no state of block 1"), "{old}");
    let strange = bench.node.call("eth_mining", json!([])).unwrap_err();
    assert!(strange.to_string().contains("no method eth_mining"), "{strange}");
}
