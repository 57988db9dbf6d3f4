//! Golden vectors of the ledger's types: a signed transaction for each action, a genesis, and a
//! block. The keys derive from public numbers.

use borsh::BorshSchema;
use florin_compute::{
    Bid, ComputeAction, ComputeOrder, DataClass, LeaseAction, ListingAction, ListingTerms, Secret,
    SignedMessage, StepTimes,
};
use florin_ledger::conformance::TestSigner;
use florin_ledger::embedded::BlockHeader;
use florin_ledger::{Action, Block, Genesis, SignedTransaction, Transaction};
use florin_protocol::*;
use serde::Serialize;
use serde_json::{Value, json};

use super::actions::{examples, settlement};

fn operator() -> NodeSigner {
    NodeSigner::from_seed(&[0x42; 32])
}

fn signer(number: u64) -> TestSigner {
    TestSigner::new(number).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn message<T: Canonical + BorshSchema + Serialize>(name: &str, body: &T) -> Value {
    json!({
        "name": name,
        "kind": T::DOMAIN.strip_prefix("florin v1 ").unwrap(),
        "type": T::declaration(),
        "value": body,
        "bytes": hex(&body.to_bytes()),
        "digest": body.digest(),
    })
}

fn genesis() -> Genesis {
    Genesis {
        chain_id: ChainId(7_700),
        operator: signer(1).address(),
        operator_key: operator().key(),
        allocations: vec![
            (signer(1).address(), "1000000".parse().unwrap()),
            (signer(2).address(), "0.000000000000000001".parse().unwrap()),
        ],
        created: Timestamp(1_700_000_000_000),
    }
}

fn transaction(nonce: u64, action: Action) -> Transaction {
    Transaction { market: genesis().market(), from: signer(1).address(), nonce, action }
}

/// A signed transaction with all digests on the way to its signature.
fn transaction_vector(name: &str, nonce: u64, action: &Action) -> Value {
    let transaction = transaction(nonce, action.clone());
    let signed: SignedTransaction = transaction.clone().sign(&signer(1)).unwrap();
    signed.clone().verify(genesis().market()).unwrap();
    let mut vector = message(name, &signed);
    vector["summary"] = json!(action.summary());
    vector["action_digest"] = json!(action.digest());
    vector["id"] = json!(transaction.id());
    vector["market"] = json!(transaction.market);
    vector["hash"] = json!(hex(&transaction.signing_hash()));
    vector["wallet"] = json!(transaction.from);
    vector["wallet_signature"] = json!(hex(&signed.signature.0));
    vector
}

/// A block of two transactions after the genesis. Its digest of changed rows is a number: the rows
/// are not part of the protocol.
fn block() -> Block {
    let actions = examples().into_iter().map(|(action, _)| action).take(2);
    let transactions: Vec<SignedTransaction> = (0..)
        .zip(actions)
        .map(|(nonce, action)| transaction(nonce, action).sign(&signer(1)).unwrap())
        .collect();
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 transactions");
    hasher.update(&borsh::to_vec(&transactions).unwrap());
    let header = BlockHeader {
        number: 1,
        parent: genesis().digest(),
        time: Timestamp(1_700_000_001_000),
        transactions: Digest(*hasher.finalize().as_bytes()),
        changes: Digest([0x61; 32]),
    };
    Block { header: operator().sign(header), transactions }
}

/// Each action on a lease.
fn lease_actions() -> Vec<ComputeAction> {
    let digest = |number| Digest([number; 32]);
    let times = StepTimes::new(vec![900, 500]).unwrap();
    let bid = Bid { per_second: "0.001".parse().unwrap(), devices: 2, times };
    let secret = Secret { end: digest(0x73), salt: digest(0x74) };
    let (segment, salt) = (3, digest(0x72));
    vec![
        ComputeAction::SealBid(digest(0x70)),
        ComputeAction::OpenBid { bid, salt },
        ComputeAction::JoinAudit,
        ComputeAction::Fund,
        ComputeAction::Deliver { segment, leaf: digest(0x71) },
        ComputeAction::Draw(digest(0x75)),
        ComputeAction::Serve { segment, start: digest(0x76) },
        ComputeAction::SealEnd { segment, sealed: digest(0x77) },
        ComputeAction::OpenLeaf { segment, secret, salt_before: salt },
        ComputeAction::OpenEnd { segment, secret },
        ComputeAction::Answer(digest(0x78)),
        ComputeAction::Rule(digest(0x79)),
        ComputeAction::Expire,
    ]
}

/// A signed message on the example listing.
fn listing_action(name: &str, message_body: SignedMessage) -> Value {
    let terms = ListingTerms::example().unwrap();
    let body =
        ListingAction { listing: terms.id(), by: signer(1).address(), message: message_body };
    let signed = body.sign(terms.market, &signer(1)).unwrap();
    signed.verify(terms.market).unwrap();
    let mut vector = message(name, &body);
    vector["summary"] = json!(name);
    vector["market"] = json!(terms.market);
    vector["hash"] = json!(hex(&body.signing_hash(terms.market)));
    vector["wallet"] = json!(body.by);
    vector["wallet_signature"] = json!(hex(&signed.signature.0));
    vector
}

/// A signed action on a lease of the example order.
fn lease_action(nonce: u32, action: ComputeAction) -> Value {
    let order = ComputeOrder::example();
    let body = LeaseAction { order: order.id(), by: signer(1).address(), nonce, action };
    let signed = body.clone().sign(order.market, &signer(1)).unwrap();
    signed.verify(order.market).unwrap();
    let mut vector = message(body.action.name(), &body);
    vector["summary"] = json!(body.action.name());
    vector["market"] = json!(order.market);
    vector["hash"] = json!(hex(&body.signing_hash(order.market)));
    vector["wallet"] = json!(body.by);
    vector["wallet_signature"] = json!(hex(&signed.signature.0));
    vector
}

pub(crate) fn vectors() -> Value {
    let mut vectors = vec![message("a genesis", &genesis())];
    for (nonce, (action, when)) in (0..).zip(examples()) {
        let action_name = match serde_json::to_value(&action).unwrap() {
            Value::Object(object) => object.keys().next().unwrap().clone(),
            name => name.as_str().unwrap().to_owned(),
        };
        let name = format!("{action_name} {when}");
        vectors.push(transaction_vector(name.trim_end(), nonce, &action));
    }
    let settled = settlement(TaskId([0xab; 32]), SettlementId([0xcd; 32]));
    vectors.push(message("a settlement", &settled));
    let block = block();
    let mut header = message("a block header", &block.header.body);
    header["node_key"] = json!(operator().key());
    header["signature"] = json!(block.header.signature);
    vectors.push(header);
    vectors.push(message("a signed block header", &block.header));
    vectors.push(message("a block", &block));
    for class in [DataClass::Public, DataClass::Buyer, DataClass::Private] {
        let order = ComputeOrder { data_class: class, ..ComputeOrder::example() };
        vectors.push(message(&format!("an order for compute on {} rows", class.name()), &order));
    }
    vectors.push(message("a listing of devices", &ListingTerms::example().unwrap()));
    let (seed, root) = (Digest([0x7a; 32]), Digest([0x7b; 32]));
    vectors.push(listing_action("a computed probe", SignedMessage::Computed { seed, root }));
    vectors.push(listing_action("the end of the listing", SignedMessage::Withdraw));
    let actions = (0..).zip(lease_actions());
    vectors.extend(actions.map(|(nonce, action)| lease_action(nonce, action)));
    vectors.into()
}
