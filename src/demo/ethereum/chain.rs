//! The demonstration's own Ethereum chain: anvil, the deployed contracts, and tokens and ether for
//! all accounts.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use florin_ledger::Ledger;
use florin_ledger_ethereum::{Deployment, Endpoint, EthereumLedger, Settings};
use florin_participant::{KeystoreStrength, Secret, Wallet};
use florin_protocol::{Address, Amount, WalletSigner};

use crate::anvil;
use crate::cli::AnvilArg;
use crate::demo::children::Children;
use crate::demo::setup::DemoSetup;
use crate::demo::{PATIENCE, words};
use crate::ethereum::node;

/// The well-known recovery phrase of every anvil. It is safe only because the chain ends with this
/// process.
const ANVILS_PHRASE: &str = "test test test test test test test test test test test junk";
/// Ether for gas per wallet: a thousand times what the demonstration needs.
const WEI_EACH: u128 = 5_000_000_000_000_000_000;
/// The account that deploys the contracts and funds the other accounts.
pub(crate) const DEPLOYER: &str = "deployer";

/// A chain with the contracts of a market.
pub(crate) struct DemoChain {
    pub(super) rpc: String,
    pub(super) deployment: Deployment,
    pub(super) deployer: Address,
}

impl DemoChain {
    /// Starts anvil, deploys the contracts, and sends tokens and ether to all accounts.
    pub(crate) fn open(
        children: &mut Children,
        stage: &DemoSetup,
        named: &AnvilArg,
    ) -> anyhow::Result<Self> {
        let address = stage.path("chain-address");
        let program = anvil::program(named);
        let mut call = words(&["anvil", "--address-file", &address, "--anvil"]);
        call.push(program.display().to_string());
        // Check here that anvil starts; otherwise the error would appear only in the log of the
        // child process.
        let probe = std::process::Command::new(&program).arg("--version").output();
        probe.map_err(|error| anvil::missing(&program, &error))?;
        children.start("chain", &call)?;
        let rpc = children.wait_for_file("chain", Path::new(&address), PATIENCE)?;
        let wallet = Wallet::import_phrase(
            Path::new(&stage.path(&format!("{DEPLOYER}.json"))),
            &Secret::new(ANVILS_PHRASE.to_owned()),
            &stage.passphrase()?,
            KeystoreStrength::Light,
        )?;
        let file = stage.path("deployment.toml");
        let supply = Amount::total(stage.balances.iter().map(|(_, purse)| *purse))?;
        let mut call = words(&["ledger", "deploy", "--json", "--rpc", &rpc, "--out", &file]);
        call.extend(["--supply".to_owned(), supply.to_string()]);
        call.extend(stage.signing(DEPLOYER));
        crate::demo::run_json(children, "deployment", &call)?;
        let deployment = node::read_deployment(Path::new(&file))?;
        let opened = Self { rpc, deployment, deployer: wallet.address() };
        opened.fund(stage, &wallet)?;
        Ok(opened)
    }

    fn fund(&self, stage: &DemoSetup, deployer: &Wallet) -> anyhow::Result<()> {
        let outbox = node::outbox(Path::new(&stage.path(&format!("{DEPLOYER}.json"))));
        let ledger = self.ledger(&outbox)?;
        for (account, purse) in &stage.balances {
            ledger
                .send_ether(deployer, *account, WEI_EACH)
                .context("funding accounts with ether")?;
            if !purse.is_zero() {
                ledger
                    .transfer(deployer, *account, *purse)
                    .context("funding accounts with tokens")?;
            }
        }
        Ok(())
    }

    fn ledger(&self, outbox: &Path) -> anyhow::Result<EthereumLedger> {
        let endpoint = node::endpoint(&self.rpc)?;
        Ok(EthereumLedger::open(endpoint, self.deployment, Settings::default(), outbox)?)
    }

    /// The URL of its node.
    pub(crate) fn rpc(&self) -> &str {
        &self.rpc
    }

    /// The RPC endpoint of its node.
    pub(super) fn endpoint(&self) -> anyhow::Result<Arc<dyn Endpoint>> {
        Ok(node::endpoint(&self.rpc)?)
    }
}
