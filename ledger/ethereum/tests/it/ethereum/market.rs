//! A market on a node in this process: the contracts as committed, and a ledger on them.

use std::path::Path;
use std::sync::Arc;

use alloy_primitives::TxKind;
use florin_ledger::Ledger;
use florin_ledger::conformance::TestSigner;
use florin_ledger_ethereum::{Deployment, Endpoint, EthereumLedger, Settings, Token, deploy};
use florin_protocol::{Address, Amount, WalletSigner};
use serde_json::json;
use tempfile::TempDir;

use super::node::{InProcessNode, sign};

/// Anvil's chain id; any other would do.
const CHAIN: u64 = 31_337;
/// The number of the deployer's key.
const DEPLOYER: u64 = 1_000;

/// A chain with a new market, created once and copied for each test.
pub(crate) struct MarketTemplate {
    node: InProcessNode,
    deployment: Deployment,
}

/// A market with its own node, ledger and outbox.
pub(crate) struct InProcessMarket {
    pub(crate) node: Arc<InProcessNode>,
    pub(crate) ledger: EthereumLedger,
    pub(crate) outbox: TempDir,
}

impl InProcessMarket {
    /// Calls the market's contract without the client, which would not send a call without effect.
    pub(crate) fn call_directly(&self, by: &dyn WalletSigner, call: &[u8]) {
        let account = format!("{}", by.address());
        let count = self.node.call("eth_getTransactionCount", json!([account, "latest"])).unwrap();
        let count = count.as_str().unwrap().trim_start_matches("0x");
        let nonce = u64::from_str_radix(count, 16).unwrap();
        let to = TxKind::Call(self.ledger.deployment().market.0.into());
        let raw = sign(CHAIN, by, nonce, to, call);
        let hash = self.node.call("eth_sendRawTransaction", json!([raw])).unwrap();
        let receipt = self.node.call("eth_getTransactionReceipt", json!([hash])).unwrap();
        assert_eq!(receipt["status"], "0x1", "{receipt}");
    }

    /// Replaces the client by a new one, which has only the outbox.
    pub(crate) fn reopen(&mut self) {
        self.ledger = open(&self.node, *self.ledger.deployment(), self.outbox.path());
    }
}

fn open(node: &Arc<InProcessNode>, deployment: Deployment, outbox: &Path) -> EthereumLedger {
    let endpoint: Arc<dyn Endpoint> = Arc::clone(node) as _;
    EthereumLedger::open(endpoint, deployment, Settings::default(), outbox).unwrap()
}

/// A folder in memory if the system has one, because outboxes wait for their disk.
fn temp_dir_in_memory() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

impl MarketTemplate {
    /// Deploys the contracts at a time in seconds, and funds every account with the same amount,
    /// and with ether.
    pub(crate) fn new(people: &[Address], funds: Amount, seconds: u64) -> Self {
        let deployer = TestSigner::new(DEPLOYER).unwrap();
        let rich: Vec<_> = people.iter().map(|person| person.0.into()).collect();
        let rich = [rich, vec![deployer.address().0.into()]].concat();
        let node = Arc::new(InProcessNode::new(CHAIN, seconds, &rich));
        let endpoint: Arc<dyn Endpoint> = Arc::clone(&node) as _;
        let outbox = temp_dir_in_memory();
        let supply = Amount::total(people.iter().map(|_| funds)).unwrap();
        let token = Token::New { supply, holder: deployer.address() };
        let settings = Settings::default();
        let deployment = deploy(&endpoint, &deployer, token, settings, outbox.path()).unwrap();
        let ledger = open(&node, deployment, outbox.path());
        for person in people {
            ledger.transfer(&deployer, *person, funds).unwrap();
        }
        Self { node: node.copy(), deployment }
    }

    /// A market that shares no state with others.
    pub(crate) fn market(&self) -> InProcessMarket {
        let (node, outbox) = (Arc::new(self.node.copy()), temp_dir_in_memory());
        let ledger = open(&node, self.deployment, outbox.path());
        InProcessMarket { node, ledger, outbox }
    }
}
