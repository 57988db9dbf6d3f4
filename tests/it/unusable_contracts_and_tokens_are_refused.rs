//! Commands refuse contracts that are no market, tokens that are no ERC-20, and irrecoverable
//! transfers, before they cost anything.

use florin_ledger_ethereum::Deployment;
use florin_protocol::Address;

use crate::support::{On, TestMarket, TestPlan, florin};

/// A deployment file that differs from the market's.
fn other(market: &TestMarket, differs: impl FnOnce(&mut Deployment)) -> String {
    let mut deployment = market.chain().deployment;
    differs(&mut deployment);
    let file = market.file("other.toml");
    std::fs::write(&file, toml::to_string(&deployment).unwrap()).unwrap();
    file
}

#[test]
fn contracts_that_are_no_market_are_refused_by_every_command() {
    let market = TestMarket::open(TestPlan::honest(On::Ethereum, 1));
    let (rpc, real) = (market.chain().anvil.rpc.clone(), market.chain().deployment);
    let (wallet, secret) = (market.file("coordinator.json"), market.file("passphrase"));
    let data = market.file("elsewhere");
    let signing = ["--wallet", &wallet, "--passphrase-file", &secret, "--data", &data];
    let run = ["coordinate", "--listen", "127.0.0.1:0", "--ledger", "ethereum", "--rpc", &rpc];
    let refused = |file: &str, code: &str, word: &str| {
        let look = |what| florin(&["ledger", what, "--rpc", &rpc, "--deployment", file]);
        let coordinate = florin(&[&run[..], &signing, &["--deployment", file]].concat());
        for output in [look("status"), look("verify"), coordinate] {
            let said = output.refused(2, code);
            assert!(said.err.contains(word), "no {word} in {said:?}");
        }
        assert!(!std::path::Path::new(&data).exists(), "no data folder was created for {file}");
    };
    let unused_address = Address([8; 20]);
    let wrong = "WRONG_CONTRACTS";
    refused(&other(&market, |d| d.market = unused_address), wrong, "the address of the market");
    refused(&other(&market, |d| d.registry = unused_address), wrong, "the address of the registry");
    refused(&other(&market, |d| d.token = unused_address), wrong, "uses token");
    refused(&other(&market, |d| d.market = real.token), wrong, "is not a market");
    let late = other(&market, |d| d.block = real.block + 1);
    refused(&late, "BAD_DEPLOYMENT", "existed before block");
    std::fs::write(market.file("bytes.toml"), [0xff, 0xfe, 0]).unwrap();
    refused(&market.file("bytes.toml"), "BAD_DEPLOYMENT", "it is not a text file");
    refused(&market.folder().display().to_string(), "BAD_DEPLOYMENT", "it is a folder");
}

#[test]
fn a_second_coordinator_of_the_same_market_is_refused() {
    let market = TestMarket::open(TestPlan::honest(On::Ethereum, 1));
    let rpc = market.chain().anvil.rpc.clone();
    let file = |name: &str| market.file(name);
    let (data, known) = (file("elsewhere"), file("deployment.toml"));
    let (wallet, secret) = (file("coordinator.json"), file("passphrase"));
    let signing = ["--wallet", &wallet, "--passphrase-file", &secret, "--data", &data];
    let run = ["coordinate", "--listen", "127.0.0.1:0", "--ledger", "ethereum", "--rpc", &rpc];
    let output = florin(&[&run[..], &signing, &["--deployment", &known]].concat());
    output.refused(2, "COORDINATOR_RUNS");
}

#[test]
fn unusable_tokens_are_not_deployed() {
    let market = TestMarket::open(TestPlan::honest(On::Ethereum, 1));
    let (rpc, real) = (market.chain().anvil.rpc.clone(), market.chain().deployment);
    let (wallet, secret) = (market.file("deployer.json"), market.file("passphrase"));
    let out = market.file("made.toml");
    let signing = ["--wallet", &wallet, "--passphrase-file", &secret, "--rpc", &rpc, "--out", &out];
    let deploy = |more: &[&str]| florin(&[&["ledger", "deploy"], &signing[..], more].concat());
    let (zero_address, no_token) = (Address::default().to_string(), real.market.to_string());
    let refused = |more: &[&str], word: &str| {
        let output = deploy(more).refused(1, "INVALID_ARGUMENT");
        assert!(output.err.contains(word), "no {word} in {output:?}");
        assert!(!std::path::Path::new(&out).exists(), "no file remains");
    };
    refused(&["--supply", "0"], "above zero");
    refused(&["--supply", "5", "--holder", &zero_address], "an account with a key");
    refused(&["--token", &zero_address], "no contract at");
    refused(&["--token", &no_token], "is not an ERC-20 token");
    let output = deploy(&[]).expect(2);
    assert!(output.err.contains("--token <ADDRESS>|--supply <AMOUNT>"), "{output:?}");
    // The empty file of a killed deployment does not block the next one.
    std::fs::write(&out, "").unwrap();
    deploy(&["--supply", "5"]).expect(0);
    deploy(&["--supply", "5"]).refused(2, "DEPLOYMENT_EXISTS");
}

#[test]
fn irrecoverable_transfers_are_refused() {
    let market = TestMarket::open(TestPlan::honest(On::Ethereum, 1));
    let real = market.chain().deployment;
    for to in [Address::default(), real.token, real.market, real.registry] {
        let output = market.run_command_as("ann", &["transfer", &to.to_string(), "1"]);
        let output = output.refused(1, "INVALID_ARGUMENT");
        assert!(output.err.contains("lost"), "{output:?}");
    }
    let buyer = market.account("buyer").to_string();
    let transfer =
        market.run_command_as("ann", &["transfer", "--json", &buyer, "1"]).expect(0).json();
    let hash = transfer["transaction"].as_str().unwrap();
    assert!(hash.starts_with("0x") && hash.len() == 66, "a hash as in block explorers: {hash}");
    assert_eq!(transfer["left"], "49000000000000000000");
}
