//! Arguments about an Ethereum chain: the node, the contracts and the limits on gas fees.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use florin_ledger::ethereum::Settings;
use florin_protocol::{Address, Amount, Digest};

use super::{JsonArg, MarketArg, TrustArg, WalletArg};

/// The heading of these arguments in the help of every command.
pub(super) const HEADING: &str = "Ethereum options";

/// Wei in a gwei.
const GWEI: u128 = 1_000_000_000;

/// Where the ledger of a market is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LedgerKind {
    /// An append-only chain in the coordinator's data folder
    #[value(alias = "local")]
    Embedded,
    /// Smart contracts on an Ethereum chain
    Ethereum,
}

/// Confirmations and fee limits of a client on an Ethereum chain.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct SpendingArg {
    /// Blocks until an event counts as final, its own block included [default: 1]
    #[arg(long, value_name = "N", env = "FLORIN_CONFIRMATIONS", help_heading = HEADING,
          value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub(crate) confirmations: Option<u64>,
    /// Highest fee per unit of gas, in gwei [default: 100]
    #[arg(long, value_name = "N", env = "FLORIN_MAX_FEE_GWEI", help_heading = HEADING,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) max_fee_gwei: Option<u64>,
}

impl SpendingArg {
    /// Returns `settings`, overridden by the flags that are set.
    pub(crate) fn apply_to(self, settings: Settings) -> Settings {
        let fee = self.max_fee_gwei.map(|gwei| u128::from(gwei) * GWEI);
        Settings {
            confirmations: self.confirmations.unwrap_or(settings.confirmations),
            fee_max_wei: fee.unwrap_or(settings.fee_max_wei),
            ..settings
        }
    }
}

/// How a command reaches the chain of a market.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct NodeArg {
    /// RPC endpoint of a node of the market's chain, such as http://127.0.0.1:8545 [default: the
    /// node that the coordinator suggests]
    #[arg(long, value_name = "URL", env = "FLORIN_RPC", hide_env_values = true,
          help_heading = HEADING)]
    pub(crate) rpc: Option<String>,
    /// Deployment file of the market's contracts, as written by `florin ledger deploy`; a
    /// coordinator that names other contracts is rejected
    #[arg(long, value_name = "FILE", env = "FLORIN_DEPLOYMENT", help_heading = HEADING)]
    pub(crate) deployment: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) spending: SpendingArg,
}

impl ChainArg {
    /// The market at the coordinator's URL, if one was given.
    pub(crate) fn market(&self) -> Option<MarketArg> {
        let market = self.market.clone()?;
        Some(MarketArg { market, trust: self.trust.clone(), node: self.node.clone() })
    }
}

/// The market on a chain, identified by its coordinator or by its contracts.
#[derive(Debug, Clone, Args)]
pub(crate) struct ChainArg {
    /// URL of the market's coordinator, which publishes the addresses of the contracts
    #[arg(long, value_name = "URL", env = "FLORIN_MARKET")]
    pub(crate) market: Option<String>,
    #[command(flatten)]
    pub(crate) trust: TrustArg,
    #[command(flatten)]
    pub(crate) node: NodeArg,
}

/// `florin ledger deploy`
#[derive(Debug, Args)]
#[command(
    group = clap::ArgGroup::new("counted_in").args(["token", "supply"]).required(true),
    after_help = "Example:\n  florin ledger deploy --rpc http://127.0.0.1:8545 --wallet \
        deployer.json --supply 1000000 --out deployment.toml\n\nThe wallet pays the gas and has no \
        power over the contracts afterwards. The contracts have no owner."
)]
pub(crate) struct LedgerDeploy {
    /// RPC endpoint of a node of the chain, such as http://127.0.0.1:8545
    #[arg(long, value_name = "URL", env = "FLORIN_RPC", hide_env_values = true)]
    pub(crate) rpc: String,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    /// Address of an existing ERC-20 token in which the market counts
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["supply", "holder"])]
    pub(crate) token: Option<Address>,
    /// Deploy a new token with this fixed supply, in FLN
    #[arg(long, value_name = "AMOUNT")]
    pub(crate) supply: Option<Amount>,
    /// Account that receives the whole supply of the new token [default: the wallet]
    #[arg(long, value_name = "ADDRESS", requires = "supply")]
    pub(crate) holder: Option<Address>,
    /// File for the deployment (addresses and block); never overwritten
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) spending: SpendingArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin ledger status`
#[derive(Debug, Args)]
pub(crate) struct LedgerStatus {
    #[command(flatten)]
    pub(crate) chain: ChainArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin ledger verify`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  florin ledger verify --data market/\n  florin ledger verify \
    --market http://127.0.0.1:7700 --head seen-by-ada.json\n  florin ledger verify --deployment \
    deployment.toml --rpc http://127.0.0.1:8545\n\nAn embedded chain is replayed from its genesis, \
    from its file or over HTTP. On Ethereum all state is rebuilt from events and compared with the \
    state of the contracts.")]
pub(crate) struct LedgerVerify {
    /// Embedded ledger: the coordinator's data folder, or a ledger file
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Embedded ledger: check that the chain has the block of this signed head, which another
    /// client saw (a file that `florin ledger head --json` printed); may be repeated
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    pub(crate) head: Vec<PathBuf>,
    /// Embedded ledger: the same for a head that this transaction of an Ethereum chain carries
    /// (`florin ledger anchor`), read from the node of --rpc; may be repeated
    #[arg(long, value_name = "TRANSACTION", conflicts_with = "data")]
    pub(crate) anchor: Vec<Digest>,
    #[command(flatten)]
    pub(crate) chain: ChainArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin ledger head`
#[derive(Debug, Args)]
#[command(
    after_help = "Give the printed JSON to other users of the market: `florin ledger verify \
    --head FILE` proves to them whether the operator shows all of you the same ledger."
)]
pub(crate) struct LedgerHead {
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin ledger anchor`
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  florin ledger anchor --market https://market.example --rpc \
    http://127.0.0.1:8545 --wallet mine.json\n\nThe wallet sends a transaction to itself, with the \
    signed head of the newest block as data, and pays its gas. The operator can then rewrite no \
    block up to this one without contradicting its own signature in public: `florin ledger verify \
    --anchor TRANSACTION` compares them. A market on Ethereum needs no anchor.")]
pub(crate) struct LedgerAnchor {
    /// URL of the coordinator of a market with an embedded ledger
    #[arg(long, value_name = "URL", env = "FLORIN_MARKET")]
    pub(crate) market: String,
    #[command(flatten)]
    pub(crate) trust: TrustArg,
    /// RPC endpoint of a node of any Ethereum chain
    #[arg(long, value_name = "URL", env = "FLORIN_RPC", hide_env_values = true)]
    pub(crate) rpc: String,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    #[command(flatten)]
    pub(crate) spending: SpendingArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin anvil`
#[derive(Debug, Args)]
pub(crate) struct AnvilArgs {
    #[command(flatten)]
    pub(crate) program: AnvilArg,
    /// Write the URL of the chain to this file once the node answers
    #[arg(long, value_name = "FILE")]
    pub(crate) address_file: PathBuf,
}

/// The path of the program `anvil`.
#[derive(Debug, Clone, Args)]
pub(crate) struct AnvilArg {
    /// Foundry's `anvil` program, for a development chain [default: the one on PATH]
    #[arg(long, value_name = "FILE", env = "FLORIN_ANVIL")]
    pub(crate) anvil: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_override_settings() {
        let file = Settings { confirmations: 6, fee_max_wei: 1, ..Settings::default() };
        let asked = SpendingArg { confirmations: None, max_fee_gwei: Some(3) };
        let expected = Settings { fee_max_wei: 3_000_000_000, ..file };
        assert_eq!(asked.apply_to(file), expected);
        let asked = SpendingArg { confirmations: Some(2), max_fee_gwei: None };
        assert_eq!(asked.apply_to(file), Settings { confirmations: 2, ..file });
    }
}
