//! Golden vectors: this crate's bytes equal the committed ones, and independent programs in other
//! languages compute the same. After a deliberate change of a layout,
//! `FLORIN_BLESS=1 cargo test -p florin-protocol --test golden_vectors` rewrites them, and the
//! fuzzer's seeds that have the same layouts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;
use florin_protocol::*;
use serde_json::{Value, json};

#[path = "golden_vectors/checkers.rs"]
mod checkers;
#[path = "golden_vectors/earlier_updates.rs"]
mod earlier_updates;
#[path = "golden_vectors/graphs.rs"]
mod graphs;
#[path = "golden_vectors/reports.rs"]
mod reports;
#[path = "golden_vectors/rounds.rs"]
mod rounds;
#[path = "golden_vectors/selections.rs"]
mod selections;
#[path = "golden_vectors/specs.rs"]
mod specs;
#[path = "golden_vectors/values.rs"]
mod values;

use earlier_updates::earlier_updates;
use reports::{abandoned_report, settled_round, void_report};
use rounds::{confirmations, gaps, rounds};
use selections::selections;
use specs::{spec, specs};
use values::{receipts, values};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors")
}

struct TestWallet(PrivateKeySigner);

impl WalletSigner for TestWallet {
    fn address(&self) -> Address {
        Address(self.0.address().into_array())
    }
    fn sign_typed_data(&self, hash: [u8; 32]) -> Result<WalletSignature, SignError> {
        let signature =
            self.0.sign_hash_sync(&hash.into()).map_err(|e| SignError(e.to_string()))?;
        Ok(WalletSignature(signature.as_bytes()))
    }
}

fn wallet(n: u8) -> TestWallet {
    TestWallet(PrivateKeySigner::from_slice(&[n; 32]).unwrap())
}

fn node() -> NodeSigner {
    NodeSigner::from_seed(&[0x42; 32])
}

fn market() -> MarketId {
    MarketId { chain: ChainId(7_700), genesis: Digest([0xfe; 32]) }
}

fn fln(text: &str) -> Amount {
    text.parse().unwrap()
}

fn micro(text: &str) -> Micro {
    text.parse().unwrap()
}

/// A task with the seed of its initial parameters.
fn task_message(name: &str, spec: &TaskSpec) -> Value {
    let mut vector = message(name, spec);
    vector["model_seed"] = json!(spec.model_seed().to_string());
    vector
}

fn message<T: Canonical + serde::Serialize + Clone>(name: &str, body: &T) -> Value {
    let signed = node().sign(body.clone());
    json!({
        "name": name,
        "kind": T::DOMAIN.strip_prefix("florin v1 ").unwrap(),
        "value": body,
        "bytes": hex(&body.to_bytes()),
        "digest": body.digest(),
        "node_key": node().key(),
        "signature": signed.signature,
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Reasons of three selected accounts.
const REASONS: [SelectionReason; 3] =
    [SelectionReason::Best, SelectionReason::Explored, SelectionReason::Newcomer];

fn messages() -> Value {
    let [mlp, cnn, softmax] = specs();
    let scope = RoundScope { market: market(), task: mlp.id(), round: RoundNumber(1) };
    let mut cohort = [wallet(5).address(), wallet(6).address(), wallet(7).address()];
    cohort.sort_unstable();
    let offer = Offer {
        scope,
        base_model: mlp.base_model,
        previous_report: Digest(mlp.id().0),
        cohort: cohort.to_vec(),
        reasons: REASONS.to_vec(),
        candidates: Digest([0x55; 32]),
        opened: Timestamp(1_000),
        commit_by: Timestamp(601_000),
        reveal_by: Timestamp(661_000),
        pool: fln("100"),
    };
    let header = |sender| UpdateHeader {
        scope,
        sender,
        offer: offer.digest(),
        base_model: mlp.base_model,
        rows: 150,
        update: Digest([0x33; 32]),
        bytes: 38_800,
        salt: Digest([0x44; 32]),
        expires: Timestamp(661_000),
    };
    let commit = Commit {
        scope,
        sender: cohort[0],
        offer: offer.digest(),
        commitment: header(cohort[0]).commitment(),
    };
    let receipt = UpdateReceipt {
        scope,
        sender: cohort[0],
        update: header(cohort[0]).digest(),
        at: Timestamp(602_000),
        commit_position: 1,
    };
    let (order, record, report) = settled_round(&mlp, &offer, &cohort, &header);
    let mut update = message("an update header", &header(cohort[0]));
    update["commitment"] = json!(header(cohort[0]).commitment());
    update["frame"] = json!(hex(&frame(header(cohort[0]))));
    let [enrol, invited] = enrolments(cohort);
    let abandoned = abandoned_report(&mlp, &report, RoundNumber(2), 5);
    let last = abandoned_report(&mlp, &report, RoundNumber(mlp.rounds.count), 2);
    let void = void_report(&mlp, &report, &record);
    json!([
        task_message("a task for an MLP", &mlp),
        task_message("a task for a CNN with trimmed mean", &cnn),
        task_message("a task for softmax regression with Krum", &softmax),
        message("an enrolment", &enrol),
        message("an enrolment with an invitation", &invited),
        message("an invitation", &invitation(None)),
        message("an offer", &offer),
        message("a commit", &commit),
        update,
        message("a receipt", &receipt),
        message("a request for work", &work_request(&order)),
        message("a request for a blob", &blob_request(&order)),
        message("a work order", &order),
        message("a work record", &record),
        message("a settled round's report", &report),
        message("a void round's report with a floor", &void),
        message("an abandoned last round's report with withheld pay", &last),
        message("an abandoned round's report", &abandoned),
    ])
}

/// All messages, with those of graphs.
fn all_messages() -> Value {
    let mut all = messages();
    let graphs = graphs::graphs();
    let graphs = graphs.iter().map(|(name, spec)| task_message(name, spec));
    all.as_array_mut().unwrap().extend(graphs);
    all
}

/// The body of an upload: the length of the signed header, the signed header, and the update.
fn frame(header: UpdateHeader) -> Vec<u8> {
    let signed = node().sign(header).to_bytes();
    let length = u32::try_from(signed.len()).unwrap().to_le_bytes();
    [&length[..], &signed, b"safetensors"].concat()
}

fn work_request(order: &WorkOrder) -> WorkRequest {
    let (market, task) = (market(), order.scope.task);
    WorkRequest { market, task, provider: wallet(8).address(), expires: Timestamp(700_000) }
}

fn blob_request(order: &WorkOrder) -> BlobRequest {
    BlobRequest {
        market: market(),
        task: order.scope.task,
        digest: order.entries[0].update,
        sender: wallet(8).address(),
        expires: Timestamp(700_000),
    }
}

/// Two enrolments, the second one with an invitation.
fn enrolments(cohort: [Address; 3]) -> [EnrolRequest; 2] {
    let [mlp, _, softmax] = specs();
    let enrol = |task, sender, invitation| EnrolRequest {
        market: market(),
        task,
        sender,
        invitation,
        quote_ms: 1_500,
        at_once: 1,
        expires: Timestamp(5_000),
    };
    let invited = invitation(Some(cohort[1]));
    [enrol(mlp.id(), cohort[0], None), enrol(softmax.id(), cohort[1], Some(invited))]
}

fn registrations() -> Value {
    let one = |role: Role, expires| {
        let (wallet, node) = (wallet(1), node());
        let r = Registration::sign(market(), &wallet, &node, role, Timestamp(expires)).unwrap();
        json!({
            "name": role.as_str(),
            "market": market(),
            "wallet": r.wallet,
            "node_key": r.node_key,
            "role": role.as_str(),
            "expires": expires,
            "hash": hex(&Registration::signing_hash(market(), r.wallet, r.node_key, role, Timestamp(expires))),
            "wallet_signature": r.wallet_signature,
            "node_signature": r.node_signature,
        })
    };
    json!([one(Role::Participant, 1), one(Role::Provider, u64::MAX), one(Role::Coordinator, 0)])
}

fn close_requests() -> Value {
    let task = TaskId([0x66; 32]);
    let request = CloseRequest::sign(market(), &wallet(1), task).unwrap();
    json!([{
        "name": "a buyer ends its task",
        "market": market(),
        "wallet": wallet(1).address(),
        "task": task,
        "hash": hex(&CloseRequest::signing_hash(market(), task)),
        "wallet_signature": request.signature,
    }])
}

fn invitation(account: Option<Address>) -> Invitation {
    let [_, _, softmax] = specs();
    let (task, nonce) = (softmax.id(), Digest([0x88; 32]));
    let expires = Timestamp(1_700_000_000_000);
    let terms = InvitationTerms { market: market(), task, nonce, account, expires };
    terms.sign(&wallet(1)).unwrap()
}

fn invitations() -> Value {
    let one = |name: &str, account| {
        let signed = invitation(account);
        json!({
            "name": name,
            "market": market(),
            "wallet": wallet(1).address(),
            "task": signed.task,
            "nonce": signed.nonce,
            "account": signed.account,
            "expires": signed.expires,
            "hash": hex(&signed.terms().signing_hash()),
            "wallet_signature": signed.signature,
            "text": signed.to_string(),
        })
    };
    json!([
        one("an invitation for the first account that uses it", None),
        one("an invitation for one account", Some(wallet(6).address())),
    ])
}

fn apportionments() -> Value {
    let one = |name: &str, pool: u128, weights: &[u128]| {
        let parts = split_by_weight(Amount::from_units(pool), weights).unwrap();
        json!({
            "name": name,
            "pool": pool.to_string(),
            "weights": weights.iter().map(u128::to_string).collect::<Vec<_>>(),
            "parts": parts.iter().map(|p| p.units().to_string()).collect::<Vec<_>>(),
        })
    };
    let steps: Vec<u128> = (1..=101).map(|n| n * n * 7_919).collect();
    json!([
        one("three equal weights", 10, &[1, 1, 1]),
        one("ties go to the earlier", 3, &[5, 5, 5, 5]),
        one("zero gets nothing", 1_000_000_007, &[0, 1, 0, 2]),
        one("a hundred and one", 10u128.pow(21) + 13, &steps),
        one("the largest numbers", u128::MAX, &[u128::MAX / 3, u128::MAX / 3, 7]),
    ])
}

fn trees() -> Value {
    let one = |n: u8| {
        // Some accounts are only paid, some only debited, some both.
        let leaves: Vec<(Address, merkle::ClaimTotals)> = (0..n)
            .map(|i| {
                let units = u128::from(i).pow(3) * 10u128.pow(17) + u128::from(i);
                let paid = Amount::from_units(if i % 5 == 3 { 0 } else { units });
                let debited = Amount::from_units(if i % 3 == 0 { units / 7 } else { 0 });
                (Address([i.wrapping_mul(37); 20]), merkle::ClaimTotals { paid, debited })
            })
            .collect();
        let tree = merkle::ClaimTree::new(leaves.clone());
        let row = |account: &Address, totals: &merkle::ClaimTotals| {
            json!([account, totals.paid.units().to_string(), totals.debited.units().to_string()])
        };
        json!({
            "name": format!("{n} accounts"),
            "leaves": leaves.iter().map(|(a, t)| row(a, t)).collect::<Vec<_>>(),
            "root": tree.root(),
            "proofs": leaves.iter().map(|(a, t)| tree.proof(*a, *t).unwrap()).collect::<Vec<_>>(),
        })
    };
    [1, 2, 3, 4, 5, 8, 13, 32, 100].map(one).to_vec().into()
}

/// Consecutive rounds of one small holdout, each drawn by its seed from the rows that earlier
/// rounds left.
fn draws() -> Value {
    let one = |name: &str, rows: u32, rows_per_round: u32, rounds: u32| {
        let holdout = Holdout { root: Digest([1; 32]), rows, rows_per_round };
        let mut exposed = Vec::new();
        let rounds: Vec<Value> = (0..rounds)
            .map(|round| {
                let seed = blob_digest(&round.to_le_bytes());
                let drawn = draw_rows(&holdout, &exposed, seed).unwrap();
                exposed.extend(&drawn);
                json!({ "seed": seed, "drawn": drawn })
            })
            .collect();
        json!({ "name": name, "rows": rows, "rows_per_round": rows_per_round, "rounds": rounds })
    };
    json!([
        one("two of two", 2, 2, 1),
        one("the last round takes what is left", 12, 4, 3),
        one("a demonstration", 808, 101, 8),
        one("a range that is rejected now and then", 100_000, 50, 3),
    ])
}

/// Cohorts before and after the first round with an accepted update.
fn cohorts() -> Value {
    let one = |name: &str, round: u32, members: u8, asked: usize| {
        let (task, holdout) = (TaskId([7; 32]), Digest([8; 32]));
        let members: Vec<Address> = (1..=members).map(|i| Address([i; 20])).collect();
        let first = (round == 1).then(|| first_cohort_seed(task, holdout, &members));
        let seed = first.unwrap_or(Digest([9; 32]));
        let drawn = draw_cohort(seed, RoundNumber(round), members.iter().copied(), asked);
        json!({
            "name": name,
            "task": task,
            "holdout": first.map(|_| holdout),
            "round": round,
            "eligible": members,
            "asked": asked,
            "seed": seed,
            "drawn": drawn,
        })
    };
    json!([
        one("four of nine in round 1", 1, 9, 4),
        one("fewer than asked", 1, 2, 4),
        one("a later round", 2, 9, 4),
        one("twenty of a hundred", 77, 100, 20),
    ])
}

/// Rows of one feature and a label, disclosed with their proofs.
fn holdouts() -> Value {
    let one = |rows: u32| {
        let dataset_digest = Digest([0x99; 32]);
        let row = |i: u32| [(i as f32 / 3.0).to_le_bytes(), (i % 10).to_le_bytes()].concat();
        let leaf = |i| holdout::leaf(i, holdout::blinding_factor(dataset_digest, i), &row(i));
        let tree = HoldoutTree::new((0..rows).map(leaf).collect());
        let disclose = |index| DisclosedRow {
            index,
            blinding_factor: holdout::blinding_factor(dataset_digest, index),
            row: row(index),
            proof: tree.proof(index).unwrap(),
        };
        let disclosed = DisclosedRows { rows: (0..rows).step_by(3).map(disclose).collect() };
        let bytes = disclosed.to_bytes();
        json!({
            "name": format!("{rows} rows"),
            "dataset_digest": dataset_digest,
            "rows": (0..rows).map(|i| hex(&row(i))).collect::<Vec<_>>(),
            "root": tree.root(),
            "disclosed": (0..rows).step_by(3).collect::<Vec<_>>(),
            "bytes": hex(&bytes),
            "digest": blob_digest(&bytes),
        })
    };
    [1, 2, 3, 4, 5, 7, 8, 13].map(one).to_vec().into()
}

fn vectors() -> BTreeMap<&'static str, Value> {
    BTreeMap::from([
        ("messages", all_messages()),
        ("values", values()),
        ("registrations", registrations()),
        ("close_requests", close_requests()),
        ("invitations", invitations()),
        ("receipts", receipts()),
        ("apportionments", apportionments()),
        ("trees", trees()),
        ("draws", draws()),
        ("cohorts", cohorts()),
        ("selections", selections()),
        ("holdouts", holdouts()),
        ("gaps", gaps()),
        ("confirmations", confirmations()),
        ("earlier_updates", earlier_updates()),
        ("rounds", rounds()),
    ])
}

#[test]
fn canonical_bytes_match_the_committed_vectors() {
    for (name, value) in vectors() {
        let path = folder().join(format!("{name}.json"));
        assert_committed(&path, text_of(name, &value).as_bytes());
    }
}

/// The JSON text of a file; rounds are long, and have a line each.
fn text_of(name: &str, value: &Value) -> String {
    match (name, value.as_array()) {
        ("rounds", Some(rounds)) => {
            let lines: Vec<String> = rounds.iter().map(Value::to_string).collect();
            format!("[\n{}\n]\n", lines.join(",\n"))
        }
        _ => serde_json::to_string_pretty(value).unwrap() + "\n",
    }
}

/// Asserts that a generated file is as committed; `FLORIN_BLESS` writes it first.
fn assert_committed(path: &Path, bytes: &[u8]) {
    if std::env::var_os("FLORIN_BLESS").is_some() {
        std::fs::write(path, bytes).unwrap();
    }
    let same = std::fs::read(path).unwrap() == bytes;
    assert!(same, "{} differs: was a layout changed on purpose?", path.display());
}

/// The inputs from which the fuzzer of the program starts: the tasks' canonical bytes and JSON
/// bodies, each after the number of its kind, and the template of task files.
#[test]
fn fuzz_seeds_of_tasks_match_the_vectors() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let corpus = root.join("tests/fuzz/corpus");
    for vector in
        all_messages().as_array().unwrap().iter().filter(|vector| vector["kind"] == "task")
    {
        let file = format!("seed-{}", vector["name"].as_str().unwrap().replace(' ', "-"));
        let spec: TaskSpec = serde_json::from_value(vector["value"].clone()).unwrap();
        let bytes = [vec![0], spec.to_bytes()].concat();
        assert_committed(&corpus.join("messages").join(&file), &bytes);
        let body = [vec![0], vector["value"].to_string().into_bytes()].concat();
        assert_committed(&corpus.join("bodies").join(&file), &body);
    }
    for (at, vector) in invitations().as_array().unwrap().iter().enumerate() {
        let text = vector["text"].as_str().unwrap();
        assert_committed(&corpus.join(format!("invitation/seed-{at}")), text.as_bytes());
    }
    let template = std::fs::read_to_string(root.join("src/task_file/template.toml")).unwrap();
    let filled = template.replace("@SALT@", "42");
    assert_committed(&corpus.join("task_file/seed-template"), filled.as_bytes());
}

#[test]
fn every_committed_report_decodes_and_reencodes() {
    for vector in all_messages().as_array().unwrap() {
        if vector["kind"] == "report" {
            let report: Report = serde_json::from_value(vector["value"].clone()).unwrap();
            assert_eq!(json!(report.digest()), vector["digest"]);
            assert_eq!(Report::from_bytes(&report.to_bytes()).unwrap(), report);
            let mut longer = report.to_bytes();
            longer.push(0);
            assert!(Report::from_bytes(&longer).is_err(), "trailing bytes must be refused");
        }
    }
}
