//! A market is recorded at the first contact: another coordinator at its URL is refused, and so is
//! a ledger that has lost or replaced a block that its operator signed.

use std::path::Path;

use florin_ledger_ethereum::{Endpoint, HttpEndpoint};
use serde_json::json;

use crate::support::chain::AnvilProcess;
use crate::support::process::{CommandOutput, command, florin};
use crate::support::{On, TestMarket, TestPlan};

fn balance(market: &TestMarket, pins: &str) -> CommandOutput {
    let buyer = market.account("buyer").to_string();
    florin(&["balance", &buyer, "--market", &market.url, "--pins", pins])
}

/// The only file in `folder` whose name has this end.
fn file_with_end(folder: &str, end: &str) -> std::path::PathBuf {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut found: Vec<_> = files.filter(|path| path.to_str().unwrap().ends_with(end)).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn transfer(market: &TestMarket, amount: &str) {
    let to = market.account("ann").to_string();
    market.run_command_as("buyer", &["transfer", &to, amount]).expect(0);
}

#[test]
fn another_coordinator_and_a_rewritten_ledger_are_refused() {
    let mut market = TestMarket::open(TestPlan::honest(On::Embedded, 1));
    let (pins, data, backup) =
        (market.file("pins"), market.file("coordinator"), market.file("backup"));
    transfer(&market, "1");
    florin(&["backup", &backup, "--data", &data]).expect(0);
    transfer(&market, "2");
    balance(&market, &pins).expect(0);
    let head = market.run_command(&["ledger", "head", "--json"]).expect(0);
    let seen = market.file("seen.json");
    std::fs::write(&seen, &head.out).unwrap();
    let verify = ["ledger", "verify", "--head", &seen, "--market", &market.url.clone()];
    let found = florin(&[&verify[..], &["--json"]].concat()).expect(0).json();
    assert_eq!(
        (&found["blocks"], &found["head"]),
        (&head.json()["number"], &head.json()["digest"])
    );
    assert_eq!(found["heads_compared"], 1);

    let chain = AnvilProcess::start(market.folder());
    let anchored = anchor(&market, &chain.rpc);
    let verify_anchor =
        ["ledger", "verify", "--anchor", &anchored, "--rpc", &chain.rpc, "--market", &market.url];
    let verify_anchor = verify_anchor.map(str::to_owned);
    let verify_anchor: Vec<&str> = verify_anchor.iter().map(String::as_str).collect();
    let found = florin(&[&verify_anchor[..], &["--json"]].concat()).expect(0).json();
    assert_eq!(found["heads_compared"], 1);

    // The operator restores an old backup: the last transfer is gone.
    market.coordinator.kill();
    std::fs::rename(&data, market.file("lost")).unwrap();
    florin(&["restore", &backup, "--data", &data]).expect(0);
    market.start_coordinator_again();
    let lost = balance(&market, &pins).refused(1, "LEDGER_FORK");
    assert!(lost.err.contains("ends before that block"), "{}", lost.err);
    florin(&verify).refused(1, "LEDGER_FORK");
    florin(&verify_anchor).refused(1, "LEDGER_FORK");
    // Another block takes its number.
    transfer(&market, "3");
    let other = balance(&market, &pins).refused(1, "LEDGER_FORK");
    assert!(other.err.contains("now serves a block"), "{}", other.err);
    florin(&verify).refused(1, "LEDGER_FORK");
    florin(&["ledger", "verify", "--market", &market.url]).expect(0);

    // The user accepts the announced backup, as the message asks.
    let recorded = file_with_end(&pins, ".head.json");
    assert!(other.err.contains(recorded.to_str().unwrap()), "{}", other.err);
    std::fs::remove_file(&recorded).unwrap();
    balance(&market, &pins).expect(0);
    // A head that the operator did not sign is no evidence against it.
    let text = std::fs::read_to_string(&recorded).unwrap();
    let mut changed: serde_json::Value = serde_json::from_str(&text).unwrap();
    changed["signed"]["body"]["time"] = 1.into();
    std::fs::write(&recorded, changed.to_string()).unwrap();
    balance(&market, &pins).refused(1, "INVALID_HEAD");
    std::fs::write(&recorded, "{}").unwrap();
    balance(&market, &pins).refused(2, "INVALID_HEAD");
    std::fs::write(&recorded, text).unwrap();

    another_coordinator_is_refused(&market, &pins);
}

/// Anchors the newest head on an Ethereum chain; returns the transaction.
fn anchor(market: &TestMarket, rpc: &str) -> String {
    let anchor = ["ledger", "anchor", "--rpc", rpc];
    // A wallet without ether.
    market.run_command_as("ann", &anchor).refused(2, "GAS_NOT_PAID");
    let endpoint = HttpEndpoint::new(rpc).unwrap();
    let account = market.account("ann").to_string();
    endpoint.call("anvil_setBalance", json!([account, "0x3635c9adc5dea00000"])).unwrap();
    let anchored = market.run_command_as("ann", &[&anchor[..], &["--json"]].concat()).expect(0);
    let anchored = anchored.json();
    let head = market.run_command(&["ledger", "head", "--json"]).expect(0).json();
    assert_eq!((&anchored["number"], &anchored["digest"]), (&head["number"], &head["digest"]));
    let transaction = anchored["transaction"].as_str().unwrap().to_owned();
    let verify = ["ledger", "verify", "--market", &market.url, "--anchor"];
    florin(&[&verify[..], &[&transaction]].concat()).refused(2, "NO_NODE");
    let unknown = format!("0x{}", "17".repeat(32));
    florin(&[&verify[..], &[&unknown, "--rpc", rpc]].concat()).refused(2, "INVALID_ANCHOR");
    transaction
}

fn another_coordinator_is_refused(market: &TestMarket, pins: &str) {
    let mut files = std::fs::read_dir(pins).unwrap().map(|file| file.unwrap().path());
    let pin = files.find(|path| !path.to_str().unwrap().ends_with(".head.json")).unwrap();
    let text = std::fs::read_to_string(&pin).unwrap();
    let coordinator = market.account("coordinator").to_string();
    assert!(text.contains(&coordinator), "{text}");
    std::fs::write(&pin, text.replace(&coordinator, &format!("0x{}", "11".repeat(20)))).unwrap();
    let changed = balance(market, pins).refused(2, "COORDINATOR_CHANGED");
    assert!(changed.err.contains(pin.to_str().unwrap()), "{}", changed.err);
    std::fs::remove_file(&pin).unwrap();
    balance(market, pins).expect(0);
    assert_eq!(std::fs::read_to_string(&pin).unwrap(), text);
    // Without a folder that is named, a market on this machine is not recorded.
    let home = market.file("home");
    let buyer = market.account("buyer").to_string();
    let call = ["balance", &buyer, "--market", &market.url];
    let output = command(&call).env("HOME", &home).env_remove("XDG_STATE_HOME").output().unwrap();
    assert!(output.status.success() && !Path::new(&home).exists());
}
