//! Arguments of the commands about an account: balance, transfer, claim, statement, audit.

use std::path::PathBuf;

use clap::Args;
use florin_protocol::{Address, Amount};

use super::{
    ChainArg, DELTA, EngineArg, JsonArg, MarketArg, TrainerHostArg, WalletArg, WeightsArg,
};

/// `florin balance`
#[derive(Debug, Args)]
pub(crate) struct Balance {
    /// The account [default: the wallet's]
    pub(crate) account: Option<Address>,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    /// Key file of the account; it is not unlocked
    #[arg(long, value_name = "FILE", env = "FLORIN_WALLET")]
    pub(crate) wallet: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin transfer`
#[derive(Debug, Args)]
pub(crate) struct Transfer {
    /// The account that receives the tokens
    pub(crate) to: Address,
    /// The amount in FLN
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
#[command(
    after_help = "With --from-state, --deployment and --rpc the coordinator is not contacted: \
    what was final on the chain is paid even if the market is gone.\n\nExample:\n  florin claim \
    3f9a1c --wallet ada.json --from-state --deployment deployment.toml \\\n    --rpc \
    http://127.0.0.1:8545"
)]
pub(crate) struct Claim {
    /// Task id, or its first digits (6 or more)
    pub(crate) task: String,
    #[command(flatten)]
    pub(crate) market: ChainArg,
    /// Prove the earnings with the reports that `florin participate` stored, instead of asking the
    /// coordinator for a proof [default of DIR: the folder next to the wallet]
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    pub(crate) from_state: Option<Option<PathBuf>>,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    /// Claim for this account; the payout goes to this account, not to the sender [default: the
    /// wallet's]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) account: Option<Address>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin statement`
#[derive(Debug, Args)]
pub(crate) struct Statement {
    /// Task id, or its first digits (6 or more)
    pub(crate) task: String,
    /// The account [default: the wallet's]
    pub(crate) account: Option<Address>,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    /// Key file of the account; it is not unlocked
    #[arg(long, value_name = "FILE", env = "FLORIN_WALLET")]
    pub(crate) wallet: Option<PathBuf>,
    /// State folder of the participation; its record of ε is shown beside the public reports
    /// [default: the folder next to the wallet]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// δ of every ε that is shown
    #[arg(long, value_name = "P", default_value_t = DELTA)]
    pub(crate) delta: f64,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin audit`
#[derive(Debug, Args)]
#[command(
    after_help = "The audit does not trust the coordinator. It fetches models, updates, holdout \
        rows and signatures, checks each digest, recomputes every value, and compares the result \
        with the report and with the ledger."
)]
pub(crate) struct Audit {
    /// Task id, or its first digits (6 or more)
    pub(crate) task: String,
    /// Audit only this round
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) round: Option<u32>,
    /// Also check the reports against the receipts in this folder (a participant's --state)
    #[arg(long, value_name = "DIR")]
    pub(crate) receipts: Option<PathBuf>,
    /// Recompute only Q scores and coalition values per round, drawn at random; the model, losses,
    /// metrics, units and payouts are still checked in full
    #[arg(long, value_name = "Q", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) spot_check: Option<u32>,
    /// Seed of the draw of --spot-check, to repeat it
    #[arg(long, value_name = "N", requires = "spot_check")]
    pub(crate) seed: Option<u64>,
    /// Folder for temporary files when the updates of a round exceed 2 GiB; must be on a disk, not
    /// on an in-memory file system
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) scratch: PathBuf,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    #[command(flatten)]
    pub(crate) weights: WeightsArg,
    #[command(flatten)]
    pub(crate) trainers: TrainerHostArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}
