//! `protocol/vectors/schema.json`, the schema of every signed or hashed type, generated from the
//! types; the tables of `docs/protocol.md`, generated from the schema; the vectors of the ledger's
//! types, which `check.py` encodes by the schema; and those of leases. After a deliberate change,
//! `FLORIN_BLESS=1 cargo test -p florin-ledger --test it schema` rewrites all of them.

mod actions;
mod catalogue;
mod constants;
mod lease_cases;
mod lease_draws;
mod lease_example;
mod lease_recorder;
mod leases;
mod tables;
mod vectors;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use florin_compute::{
    ComputeJob, ComputeOrder, LeaseAction, LeaseRecord, ListingAction, ListingRecord, ListingTerms,
};
use florin_ledger::embedded::BlockHeader;
use florin_ledger::{Action, Block, Genesis, Settlement, SignedTransaction, Transaction};
use florin_protocol::*;
use serde_json::{Value, json};

use catalogue::Catalogue;

const NODE_OF_SENDER: &str = "node key of the sender";
const NODE_OF_COORDINATOR: &str = "node key of the coordinator";
const NOT_SIGNED: &str = "not signed";
const INVITATION: &str =
    "wallet of the buyer: Invitation(bytes32 task,bytes32 nonce,address account,uint64 expires)";
const REGISTRATION: &str = "wallet and node key: Registration(address wallet,bytes32 nodeKey,string \
     role,uint64 expires)";
const TRANSACTION: &str = "wallet of `from`: Transaction(address from,uint64 nonce,string \
     summary,bytes32 action)";

const LEASE_ACTION: &str = "wallet of `by`: LeaseAction(bytes32 order,address account,uint64 \
     nonce,string summary,bytes32 action)";

const LISTING_ACTION: &str =
    "wallet of `by`: ListingAction(bytes32 listing,address account,string summary,bytes32 action)";

/// The whole schema.
fn schema() -> Value {
    let mut catalogue = Catalogue::default();
    catalogue.message::<TaskSpec>(NOT_SIGNED);
    catalogue.message::<Invitation>(INVITATION);
    catalogue.message::<Registration>(REGISTRATION);
    catalogue.message::<EnrolRequest>(NODE_OF_SENDER);
    catalogue.message::<Candidates>("as its digest in an offer");
    catalogue.message::<Offer>(NODE_OF_COORDINATOR);
    catalogue.message::<Commit>(NODE_OF_SENDER);
    catalogue.message::<UpdateHeader>(NODE_OF_SENDER);
    catalogue.message::<UpdateReceipt>(NODE_OF_COORDINATOR);
    catalogue.message::<WorkRequest>(NODE_OF_SENDER);
    catalogue.message::<WorkOrder>(NODE_OF_COORDINATOR);
    catalogue.message::<BlobRequest>(NODE_OF_SENDER);
    catalogue.message::<WorkRecord>(NODE_OF_SENDER);
    catalogue.message::<Report>(NODE_OF_COORDINATOR);
    catalogue.message::<Action>("as part of its transaction");
    catalogue.message::<Transaction>(TRANSACTION);
    catalogue.message::<SignedTransaction>(NOT_SIGNED);
    catalogue.message::<Settlement>("as part of its transaction");
    catalogue.message::<ComputeJob>("as its digest in an order");
    catalogue.message::<ComputeOrder>("as its digest, the order's id");
    catalogue.message::<LeaseAction>(LEASE_ACTION);
    catalogue.message::<ListingTerms>("as its digest, the listing's id");
    catalogue.message::<ListingAction>(LISTING_ACTION);
    catalogue.message::<Genesis>(NOT_SIGNED);
    catalogue.message::<BlockHeader>("node key of the chain's operator");
    catalogue.message::<Block>(NOT_SIGNED);
    // Every node key signs this form on the wire: body ‖ signature.
    catalogue.message::<Signed<UpdateHeader>>(NOT_SIGNED);
    catalogue.message::<Signed<BlockHeader>>(NOT_SIGNED);
    // Records of leases and of listings are served as JSON.
    catalogue.json_form::<LeaseRecord>();
    catalogue.json_form::<ListingRecord>();
    // utoipa does not follow tuples.
    catalogue.json_form::<MissingReason>();
    json!({
        "messages": catalogue.messages,
        "types": catalogue.types(),
        "actions": actions::actions(),
        "constants": constants::constants(),
    })
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Asserts that a generated file is as committed; `FLORIN_BLESS` writes it first.
fn assert_committed(path: &Path, text: &str) {
    if std::env::var_os("FLORIN_BLESS").is_some() {
        fs::write(path, text).unwrap();
    }
    let same = fs::read_to_string(path).unwrap() == text;
    assert!(same, "{} differs: was a layout changed on purpose?", path.display());
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap() + "\n"
}

#[test]
fn the_committed_schema_describes_the_types() {
    assert_committed(&repository().join("protocol/vectors/schema.json"), &pretty(&schema()));
}

#[test]
fn the_tables_of_the_documentation_are_the_schema() {
    let path = repository().join("docs/protocol.md");
    let text = fs::read_to_string(&path).unwrap();
    assert_committed(&path, &tables::with_tables(&text, &schema()));
}

#[test]
fn the_ledgers_vectors_match_the_committed_ones() {
    let vectors = vectors::vectors();
    assert_committed(&repository().join("protocol/vectors/ledger.json"), &pretty(&vectors));
}

#[test]
fn the_vectors_of_leases_match_the_committed_ones() {
    let folder = repository().join("protocol/vectors");
    assert_committed(&folder.join("leases.json"), &pretty(&leases::formulas()));
    // Whole leases are long, and have a line each.
    let lines: Vec<String> = leases::leases().iter().map(Value::to_string).collect();
    let text = format!("[\n{}\n]\n", lines.join(",\n"));
    assert_committed(&folder.join("whole_leases.json"), &text);
}

/// Every type that the two crates hash as a message is in the schema.
#[test]
fn the_schema_has_every_canonical_message() {
    let mut declared = BTreeSet::new();
    let folders = [
        "protocol/src",
        "protocol/src/selection",
        "protocol/compute/src",
        "protocol/compute/src/lease",
        "protocol/compute/src/listing",
        "ledger/src",
        "ledger/src/embedded",
    ];
    for folder in folders {
        for file in fs::read_dir(repository().join(folder)).unwrap() {
            let path = file.unwrap().path();
            if path.is_dir() {
                continue;
            }
            let text = fs::read_to_string(path).unwrap();
            let names = text.lines().filter_map(|line| line.strip_prefix("impl Canonical for "));
            declared.extend(names.map(|name| name.trim_end_matches(" {").to_owned()));
        }
    }
    // Leases and listings follow from their records, and their digests are the reports of settlements.
    // Their types have no JSON form: docs/lease-protocol.md has the layouts, and whole_leases.json the
    // bytes of leases. No vector has those of a listing.
    assert!(declared.remove("Lease") && declared.remove("Listing"));
    // No account sends it: it names the contracts of a market (docs/ethereum.md).
    assert!(declared.remove("ContractAddresses"));
    let schema = schema();
    let messages = schema["messages"].as_array().unwrap();
    let known = messages.iter().map(|message| message["type"].as_str().unwrap().to_owned());
    let known: BTreeSet<String> = known.filter(|name| !name.starts_with("Signed<")).collect();
    assert_eq!(declared, known);
}
