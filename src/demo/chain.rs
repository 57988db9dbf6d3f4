//! The demonstration's own Ethereum chain: anvil, the contracts on it, and tokens and ether for everybody.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use florin_ledger::Ledger;
use florin_ledger_ethereum::{Deployment, Endpoint, EthereumLedger, Settings};
use florin_participant::{Secret, Strength, Wallet};
use florin_protocol::{Address, Amount, Signer};

use super::children::Children;
use super::stage::Stage;
use super::{PATIENCE, words};
use crate::chain;
use crate::cli::AnvilArg;
use crate::commands::anvil;

/// The recovery phrase that every anvil begins with. The whole world knows it: it is worth what a chain is worth that
/// ends with this process.
const ANVILS_PHRASE: &str = "test test test test test test test test test test test junk";
/// Gas money for each wallet: a thousand times what the demonstration takes.
const WEI_EACH: u128 = 5_000_000_000_000_000_000;
/// Who deploys and funds.
pub(super) const DEPLOYER: &str = "deployer";

/// A chain with a market on it.
pub(super) struct Chain {
    pub(super) rpc: String,
    pub(super) deployment: Deployment,
    pub(super) deployer: Address,
}

impl Chain {
    /// Starts anvil, deploys, and gives everybody tokens and ether.
    pub(super) fn open(
        children: &mut Children,
        stage: &Stage,
        named: &AnvilArg,
    ) -> anyhow::Result<Self> {
        let address = stage.path("chain-address");
        let program = anvil::program(named);
        let mut call = words(&["anvil", "--address-file", &address, "--anvil"]);
        call.push(program.display().to_string());
        // What keeps anvil would say the same into its log.
        let probe = std::process::Command::new(&program).arg("--version").output();
        probe.map_err(|error| anvil::missing(&program, &error))?;
        children.start("chain", &call)?;
        let rpc = children.wait_for_file("chain", Path::new(&address), PATIENCE)?;
        let wallet = Wallet::import_phrase(
            Path::new(&stage.path(&format!("{DEPLOYER}.json"))),
            &Secret::new(ANVILS_PHRASE.to_owned()),
            &stage.passphrase()?,
            Strength::Light,
        )?;
        let file = stage.path("deployment.toml");
        let supply = Amount::total(stage.purses.iter().map(|(_, purse)| *purse))?;
        let mut call = words(&["ledger", "deploy", "--json", "--rpc", &rpc, "--out", &file]);
        call.extend(["--supply".to_owned(), supply.to_string()]);
        call.extend(stage.signing(DEPLOYER));
        super::answer(children, "deployment", &call)?;
        let deployment = chain::read_deployment(Path::new(&file))?;
        let opened = Self { rpc, deployment, deployer: wallet.address() };
        opened.fund(stage, &wallet)?;
        Ok(opened)
    }

    fn fund(&self, stage: &Stage, deployer: &Wallet) -> anyhow::Result<()> {
        let outbox = chain::outbox(Path::new(&stage.path(&format!("{DEPLOYER}.json"))));
        let ledger = self.ledger(&outbox)?;
        for (account, purse) in &stage.purses {
            ledger.send_ether(deployer, *account, WEI_EACH).context("ether for everybody")?;
            if !purse.is_zero() {
                ledger.transfer(deployer, *account, *purse).context("tokens for everybody")?;
            }
        }
        Ok(())
    }

    fn ledger(&self, outbox: &Path) -> anyhow::Result<EthereumLedger> {
        let endpoint = chain::endpoint(&self.rpc)?;
        Ok(EthereumLedger::open(endpoint, self.deployment, Settings::default(), outbox)?)
    }

    /// The way to its node.
    pub(super) fn endpoint(&self) -> anyhow::Result<Arc<dyn Endpoint>> {
        Ok(chain::endpoint(&self.rpc)?)
    }
}
