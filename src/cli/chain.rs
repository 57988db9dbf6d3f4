//! The arguments about an Ethereum chain: which node, which contracts, how much may be spent.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use florin_ledger_ethereum::Settings;
use florin_protocol::{Address, Amount};

use super::{JsonArg, TrustArg, WalletArg};

/// The heading of these arguments in every command's help.
pub(super) const HEADING: &str = "Where the market is on Ethereum";

/// Wei in a gwei.
const GWEI: u128 = 1_000_000_000;

/// The ledgers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LedgerKind {
    /// The coordinator's own chain, in its data folder
    #[value(alias = "local")]
    Embedded,
    /// Contracts on an Ethereum chain
    Ethereum,
}

/// What a client does on an Ethereum chain.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct SpendingArg {
    /// How many blocks deep something must be before it counts, its own block included [default: 1]
    #[arg(long, value_name = "N", env = "FLORIN_CONFIRMATIONS", help_heading = HEADING,
          value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub(crate) confirmations: Option<u64>,
    /// Most that a unit of gas may cost, in gwei [default: 100]
    #[arg(long, value_name = "N", env = "FLORIN_MAX_FEE_GWEI", help_heading = HEADING,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) max_fee_gwei: Option<u64>,
}

impl SpendingArg {
    /// These settings, with what was asked for.
    pub(crate) fn over(self, settings: Settings) -> Settings {
        let fee = self.max_fee_gwei.map(|gwei| u128::from(gwei) * GWEI);
        Settings {
            confirmations: self.confirmations.unwrap_or(settings.confirmations),
            fee_max_wei: fee.unwrap_or(settings.fee_max_wei),
            ..settings
        }
    }
}

/// How a market's chain is reached.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct NodeArg {
    /// A node of the market's chain, such as http://127.0.0.1:8545 [default: the one that the coordinator suggests]
    #[arg(long, value_name = "URL", env = "FLORIN_RPC", hide_env_values = true,
          help_heading = HEADING)]
    pub(crate) rpc: Option<String>,
    /// The market's contracts, as `florin ledger deploy` wrote them: a coordinator that names others is refused
    #[arg(long, value_name = "FILE", env = "FLORIN_DEPLOYMENT", help_heading = HEADING)]
    pub(crate) deployment: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) spending: SpendingArg,
}

/// Which market of which chain: named by its coordinator, or by its contracts.
#[derive(Debug, Clone, Args)]
pub(crate) struct ChainArg {
    /// Where the market's coordinator listens; it says where the contracts are
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
    after_help = "Example:\n  florin ledger deploy --rpc http://127.0.0.1:8545 --wallet deployer.json \
    --supply 1000000 --out deployment.toml\n\nThe wallet pays the gas and has no power over the \
    contracts afterwards: nobody has."
)]
pub(crate) struct LedgerDeploy {
    /// A node of the chain, such as http://127.0.0.1:8545
    #[arg(long, value_name = "URL", env = "FLORIN_RPC", hide_env_values = true)]
    pub(crate) rpc: String,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    /// An ERC-20 that exists, to count everything in
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["supply", "holder"])]
    pub(crate) token: Option<Address>,
    /// A new token: so many FLN are made, and never any more
    #[arg(long, value_name = "AMOUNT")]
    pub(crate) supply: Option<Amount>,
    /// Who receives all of the new token [default: the wallet]
    #[arg(long, value_name = "ADDRESS", requires = "supply")]
    pub(crate) holder: Option<Address>,
    /// Where to write what was deployed; never overwritten
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
    --deployment deployment.toml --rpc http://127.0.0.1:8545\n\nAn embedded chain is replayed from its genesis. \
    On Ethereum all state is rebuilt from events and compared with what the contracts say.")]
pub(crate) struct LedgerVerify {
    /// An embedded chain: the coordinator's data folder, or a ledger file
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) chain: ChainArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin anvil`
#[derive(Debug, Args)]
pub(crate) struct Anvil {
    #[command(flatten)]
    pub(crate) program: AnvilArg,
    /// Write the chain's address to this file, once it answers
    #[arg(long, value_name = "FILE")]
    pub(crate) address_file: PathBuf,
}

/// Which anvil.
#[derive(Debug, Clone, Args)]
pub(crate) struct AnvilArg {
    /// The program `anvil` of Foundry, for a development chain [default: the one on PATH]
    #[arg(long, value_name = "FILE", env = "FLORIN_ANVIL")]
    pub(crate) anvil: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_goes_over_the_settings() {
        let file = Settings { confirmations: 6, fee_max_wei: 1, ..Settings::default() };
        let asked = SpendingArg { confirmations: None, max_fee_gwei: Some(3) };
        let expected = Settings { fee_max_wei: 3_000_000_000, ..file };
        assert_eq!(asked.over(file), expected);
        let asked = SpendingArg { confirmations: Some(2), max_fee_gwei: None };
        assert_eq!(asked.over(file), Settings { confirmations: 2, ..file });
    }
}
