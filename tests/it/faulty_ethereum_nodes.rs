//! Ethereum nodes that fail or lie: the coordinator waits for an unavailable node, commands refuse
//! a node of another chain, a client never writes to contracts other than the market's, and an
//! account without ether gets a precise error.

use florin_protocol::{Amount, TaskPhase};

use crate::support::chain::TestChain;
use crate::support::process::until;
use crate::support::proxy::Proxy;
use crate::support::{CommandOutput, On, Process, TestMarket, TestPlan, florin};

fn verified(market: &TestMarket) -> CommandOutput {
    let file = market.file("deployment.toml");
    let call = ["ledger", "verify", "--json", "--deployment", &file, "--rpc"];
    florin(&[&call[..], &[&market.chain().anvil.rpc]].concat())
}

#[test]
fn a_node_outage_changes_no_balance() {
    let market = TestMarket::open(TestPlan::honest(On::Ethereum, 2));
    let gate = market.gate.as_ref().unwrap();
    let task = market.publish();
    let mut all = market.start_all(task);
    market.wait_for(task, 1, TaskPhase::Committing);
    gate.shut();
    let outage_reported =
        || market.coordinator.log().contains("the node is unreachable").then_some(());
    until("the coordinator reports the outage", outage_reported);
    gate.open();
    market.wait_for(task, 2, TaskPhase::Committing);
    gate.shut();
    let misses = || market.coordinator.log().matches("the node is unreachable").count() > 1;
    until("the coordinator reports the second outage", || misses().then_some(()));
    gate.open();
    all.iter_mut().for_each(Process::finish);
    let (ledger, last) = (market.ledger(), market.report(task, 2));
    for name in ["ann", "ben", "cy"] {
        let (account, purse) = (market.account(name), "50".parse::<Amount>().unwrap());
        let standing = last.account_totals[&account];
        assert_eq!(ledger.claimed_totals(task, account).unwrap().paid, standing.data, "{name}");
        let held = purse.plus(standing.data).unwrap().minus(standing.debited).unwrap();
        assert_eq!(ledger.balance(account).unwrap(), held, "{name} is paid exactly once");
    }
    assert_eq!(verified(&market).expect(0).json()["mismatching"], 0);
}

#[test]
fn an_account_without_ether_gets_an_error_with_the_required_amount() {
    let mut plan = TestPlan::honest(On::Ethereum, 1);
    plan.participants.truncate(2);
    plan.target = 2;
    plan.provider = false;
    let market = TestMarket::open(plan);
    let (ann, task) = (market.account("ann"), market.publish());
    market.chain().anvil.set_ether(ann, "0x1");
    let mut poor = market.participant(task, "ann");
    assert_eq!(poor.wait().code(), Some(2));
    let log = poor.log();
    for part in ["error[GAS_NOT_PAID]", &ann.to_string(), "0.000001 ETH", "are needed"] {
        assert!(log.contains(part), "no {part} in {log}");
    }
    let buyer = market.account("buyer").to_string();
    market.run_command_as("ann", &["transfer", &buyer, "1"]).refused(2, "GAS_NOT_PAID");
    market.chain().anvil.fuel(ann);
    market.start_all(task).iter_mut().for_each(Process::finish);
    assert_eq!(market.view(task).phase, TaskPhase::Done);
}

#[test]
fn a_node_of_another_chain_is_refused() {
    let market = TestMarket::open(TestPlan::honest(On::Ethereum, 1));
    let id = "\"0x7a69\"".as_bytes();
    let other = Proxy::before(&market.chain().anvil.rpc, "", move |body| {
        match body.windows(id.len()).position(|part| part == id) {
            Some(at) => [&body[..at], b"\"0x1\"", &body[at + id.len()..]].concat(),
            None => body.to_vec(),
        }
    });
    let buyer = market.account("buyer").to_string();
    let output =
        market.run_command(&["balance", &buyer, "--rpc", &other.url]).refused(2, "WRONG_CHAIN");
    assert!(output.err.contains("chain 1") && output.err.contains("chain 31337"), "{output:?}");
    let file = market.file("deployment.toml");
    let call = ["ledger", "verify", "--deployment", &file, "--rpc", &other.url];
    florin(&call).refused(2, "WRONG_CHAIN");
    market.run_command(&["balance", &buyer, "--rpc", "127.0.0.1:8545"]).refused(2, "INVALID_URL");
}

#[test]
fn a_client_never_writes_to_contracts_of_another_market() {
    let market = TestMarket::open(TestPlan::honest(On::Ethereum, 1));
    let contract = market.chain().deployment.market.to_string();
    let token = market.chain().deployment.token.to_string();
    // A coordinator that names its own contract, so that clients would approve it.
    let liar = Proxy::before(&market.url, "/v1/market", move |body| {
        String::from_utf8_lossy(body).replace(&contract, &token).into_bytes()
    });
    let (buyer, ann) = (market.account("buyer").to_string(), market.account("ann"));
    let (wallet, secret) = (market.file("ann.json"), market.file("passphrase"));
    let signing = ["--wallet", &wallet, "--passphrase-file", &secret, "--market", &liar.url];
    let transfer = [&["transfer", &buyer, "1"], &signing[..]].concat();
    florin(&transfer).refused(1, "WRONG_MARKET");
    // An honest coordinator, but of another market than the deployment file names.
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(market.file("passphrase"), folder.path().join("passphrase")).unwrap();
    let other = TestChain::open(folder.path(), &[(ann, "1".parse().unwrap())]);
    let moved = florin_ledger_ethereum::Deployment { token: ann, ..other.deployment };
    std::fs::write(other.deployment_file(), toml::to_string(&moved).unwrap()).unwrap();
    let file = other.deployment_file().display().to_string();
    market
        .run_command_as("ann", &["transfer", &buyer, "1", "--deployment", &file])
        .refused(1, "WRONG_MARKET");
    let right = market.file("deployment.toml");
    market.run_command_as("ann", &["transfer", &buyer, "1", "--deployment", &right]).expect(0);
    assert_eq!(market.ledger().balance(ann).unwrap(), "49".parse().unwrap());
}
