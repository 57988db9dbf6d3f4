//! The commands for a ledger on Ethereum: `ledger deploy`, `ledger status`, and `ledger verify`,
//! which trusts neither the node nor the coordinator.

use std::io::{Read, Write};
use std::net::TcpStream;

use florin_protocol::TaskPhase;

use crate::support::proxy::Proxy;
use crate::support::{On, Process, TestMarket, TestPlan, florin};

#[test]
fn a_market_is_deployed_shown_and_verified() {
    let market = TestMarket::open(TestPlan::honest(On::Ethereum, 1));
    let (rpc, known) = (market.chain().anvil.rpc.clone(), market.file("deployment.toml"));
    let (wallet, secret) = (market.file("deployer.json"), market.file("passphrase"));
    let signing = ["--wallet", &wallet, "--passphrase-file", &secret, "--rpc", &rpc];
    let deploy =
        |more: &[&str]| florin(&[&["ledger", "deploy", "--json"], &signing[..], more].concat());
    deploy(&["--supply", "7", "--out", &known]).refused(2, "DEPLOYMENT_EXISTS");
    let second = market.file("second.toml");
    let token = market.chain().deployment.token.to_string();
    let made = deploy(&["--token", &token, "--out", &second]).expect(0).json();
    assert_eq!(made["deployment"]["token"], token.as_str());
    assert_eq!(made["costs"].as_array().unwrap().len(), 2, "market and registry: {made:#}");
    assert!(made["costs"][0]["gas"].as_u64().unwrap() > 500_000, "{made:#}");
    deploy(&["--supply", "7", "--out", &second]).refused(2, "DEPLOYMENT_EXISTS");

    let look = |what: &str, file: &str| {
        florin(&["ledger", what, "--json", "--deployment", file, "--rpc", &rpc]).expect(0).json()
    };
    assert_eq!(look("verify", &second)["tasks"], 0);
    let task = market.run();
    let status = florin(&["ledger", "status", "--json", "--market", &market.url]).expect(0).json();
    assert_eq!(
        (&status["tasks"], &status["open"], &status["pending"]),
        (&1.into(), &0.into(), &0.into())
    );
    assert_eq!(status["escrow"], "0");
    assert_eq!(status["stakes"], "5000000000000000000", "the provider's stake remains");
    let status_text = florin(&["ledger", "status", "--market", &market.url]).expect(0).out;
    assert!(
        status_text.contains("answered all") && status_text.contains("1, 0 of them open"),
        "{status_text}"
    );
    let found = look("verify", &known);
    assert_eq!((&found["tasks"], &found["mismatching"]), (&1.into(), &0.into()), "{found:#}");

    // A node that changes a single number.
    let held = market.ledger().balance(market.chain().deployment.market).unwrap().units();
    assert!(held > 0, "task {task}: the contract holds the stake");
    let (truth, lie) = (format!("\"0x{held:064x}\""), format!("\"0x{:064x}\"", held - 1));
    let liar = Proxy::before(&rpc, "", move |body| {
        String::from_utf8_lossy(body).replace(&truth, &lie).into_bytes()
    });
    let call = ["ledger", "verify", "--deployment", &known, "--rpc", &liar.url];
    let output = florin(&call).refused(1, "LEDGER_DIFFERS");
    assert!(
        output.err.contains("values of the contract differ from the market's events"),
        "{output:?}"
    );
}

#[test]
fn options_of_the_other_ledger_are_refused() {
    let market = TestMarket::open(TestPlan::honest(On::Ethereum, 1));
    let host = market.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    let head = format!("POST /v1/ledger HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
    write!(stream, "{head}content-length: 8\r\n\r\n\"market\"").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let contract = market.chain().deployment.market.to_string();
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("NOT_FOUND"), "{answer}");
    assert!(answer.contains(&contract) && answer.contains("Ethereum chain 31337"), "{answer}");

    let (wallet, secret) = (market.file("coordinator.json"), market.file("passphrase"));
    let start = |more: &[&str]| {
        let data = market.file("elsewhere");
        let at =
            ["coordinate", "--data", &data, "--listen", "127.0.0.1:0", "--engine", "reference"];
        let signing = ["--wallet", &wallet, "--passphrase-file", &secret];
        florin(&[&at[..], &signing, more].concat())
    };
    let (rpc, file) = (market.chain().anvil.rpc.clone(), market.file("deployment.toml"));
    let ann = market.account("ann").to_string();
    start(&["--rpc", &rpc, "--allocate", &format!("{ann}=1")]).refused(2, "NODE_NOT_NEEDED");
    start(&["--ledger", "ethereum", "--rpc", &rpc]).refused(2, "NO_NODE");
    start(&["--ledger", "ethereum", "--deployment", &file]).refused(2, "NO_NODE");
    let both = ["--ledger", "ethereum", "--rpc", &rpc, "--deployment", &file, "--allocate"];
    start(&[&both[..], &[&format!("{ann}=1")]].concat()).refused(2, "GENESIS_NOT_NEEDED");
    let missing = market.file("nowhere.toml");
    start(&["--ledger", "ethereum", "--rpc", &rpc, "--deployment", &missing])
        .refused(2, "FILE_NOT_FOUND");

    let embedded = TestMarket::open(TestPlan::honest(On::Embedded, 1));
    embedded.run_command(&["balance", &ann, "--rpc", &rpc]).refused(2, "NODE_NOT_NEEDED");
    embedded.run_command(&["ledger", "status"]).refused(2, "LEDGER_IS_EMBEDDED");
    embedded.run_command(&["ledger", "verify"]).expect(0);
    let head = market.file("head.json");
    std::fs::write(&head, embedded.run_command(&["ledger", "head", "--json"]).expect(0).out)
        .unwrap();
    market.run_command(&["ledger", "verify", "--head", &head]).refused(2, "HEAD_NOT_NEEDED");
    market.run_command(&["ledger", "head"]).refused(2, "LEDGER_NOT_EMBEDDED");
    florin(&["ledger", "verify"]).refused(2, "NO_MARKET");
}

#[test]
fn publishing_waits_for_a_coordinator_that_requires_more_confirmations() {
    let mut plan = TestPlan::honest(On::Ethereum, 1);
    plan.confirmations = 3;
    plan.participants.truncate(2);
    plan.target = 2;
    let market = TestMarket::open(plan);
    let published =
        market.run_command_as("buyer", &["task", "publish", "--json", &market.file("task.toml")]);
    let published = published.expect(0);
    assert!(published.err.contains("retrying: no escrow is open"), "{published:?}");
    let task = published.json()["task"].as_str().unwrap().parse().unwrap();
    market.start_all(task).iter_mut().for_each(Process::finish);
    assert_eq!(market.view(task).phase, TaskPhase::Done);
}
