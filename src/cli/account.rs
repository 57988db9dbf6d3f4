//! The arguments about what somebody owns and why.

use std::path::PathBuf;

use clap::Args;
use florin_protocol::{Address, Amount};

use super::{EngineArg, JsonArg, MarketArg, WalletArg};

/// `florin balance`
#[derive(Debug, Args)]
pub(crate) struct Balance {
    /// Whose [default: the wallet's]
    pub(crate) account: Option<Address>,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    /// The key file whose account is meant; it is not unlocked
    #[arg(long, value_name = "FILE", env = "FLORIN_WALLET")]
    pub(crate) wallet: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin transfer`
#[derive(Debug, Args)]
pub(crate) struct Transfer {
    /// To whom
    pub(crate) to: Address,
    /// How much, in FLN
    pub(crate) amount: Amount,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin claim`
#[derive(Debug, Args)]
pub(crate) struct Claim {
    /// The task: its id, or the first digits of it (6 or more)
    pub(crate) task: String,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    /// Claim for this account; it is paid, whoever sends the claim [default: the wallet's]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) account: Option<Address>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin statement`
#[derive(Debug, Args)]
pub(crate) struct Statement {
    /// The task: its id, or the first digits of it (6 or more)
    pub(crate) task: String,
    /// Whose [default: the wallet's]
    pub(crate) account: Option<Address>,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    /// The key file whose account is meant; it is not unlocked
    #[arg(long, value_name = "FILE", env = "FLORIN_WALLET")]
    pub(crate) wallet: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin audit`
#[derive(Debug, Args)]
#[command(
    after_help = "Trusts nobody: it fetches models, updates, the rows of the holdout and signatures, checks each digest, \
    recomputes every figure, and compares the result with the report and with the ledger."
)]
pub(crate) struct Audit {
    /// The task: its id, or the first digits of it (6 or more)
    pub(crate) task: String,
    /// Only this round
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) round: Option<u32>,
    /// Also hold the reports against the receipts that a participant keeps in this folder (its --state)
    #[arg(long, value_name = "DIR")]
    pub(crate) receipts: Option<PathBuf>,
    /// Recompute only so many scores and coalitions of each round, drawn at random; the model, its losses and metrics,
    /// units and money in full
    #[arg(long, value_name = "Q", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) spot_check: Option<u32>,
    /// Draw them by this seed, to repeat a spot check
    #[arg(long, value_name = "N", requires = "spot_check")]
    pub(crate) seed: Option<u64>,
    /// Where a round's updates go if there are more than 2 GiB of them: not on a file system that is itself memory
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) scratch: PathBuf,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}
