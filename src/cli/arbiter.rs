//! Arguments of the arbiter's commands.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use florin_protocol::{Address, Amount};

use super::{EngineArg, JsonArg, MarketArg, TrainerHostArg, WalletArg};

/// `florin arbiter …`
#[derive(Debug, Subcommand)]
pub(crate) enum ArbiterCommand {
    /// Audit every settlement of your tasks as it is posted, and cancel wrong ones within their
    /// challenge windows
    Watch(ArbiterWatch),
    /// Cancel the pending settlement of a round, and all later ones of its task
    Cancel(ArbiterCancel),
    /// Take an amount from a participant's bond or a provider's pledged stake
    Slash(ArbiterSlash),
}

/// `florin arbiter watch`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  florin arbiter watch --market https://market.example --wallet \
    arbiter.json\n\nEach report is audited as `florin audit` does it. A settlement is cancelled if \
    its report is wrong, if it differs from its signed report, if it has no report, or if data that \
    the audit needs stays unavailable until a quarter of the challenge window is left. The evidence \
    is stored in the state folder first. May be stopped and started again at any moment: Ctrl-C \
    exits with code 0. With --json each event is one JSON object."
)]
pub(crate) struct ArbiterWatch {
    /// Watch only this task, until it is over: its id, or the first digits (6 or more) [default:
    /// every task whose arbiter is the wallet]
    #[arg(long, value_name = "ID")]
    pub(crate) task: Option<String>,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    /// Print what would be cancelled, and cancel nothing. A named task may have another arbiter
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The action on a settlement whose data stays unavailable until a quarter of its challenge
    /// window is left
    #[arg(long, value_enum, default_value_t = IfUnverifiable::Cancel)]
    pub(crate) if_unverifiable: IfUnverifiable,
    /// Directory for the evidence of cancelled settlements [default: a folder next to the wallet]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    #[command(flatten)]
    pub(crate) trainers: TrainerHostArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// The decision about settlements that cannot be verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum IfUnverifiable {
    /// Cancel it: the task ends, and its remaining budget is refunded
    Cancel,
    /// Keep it: it becomes final without an audit
    Keep,
}

/// `florin arbiter cancel`
#[derive(Debug, Args)]
#[command(
    after_help = "The coordinator ends a task after a cancelled settlement, and the remaining \
    budget is refunded. On a terminal the command asks first; otherwise --yes is required."
)]
pub(crate) struct ArbiterCancel {
    /// Task id, or its first digits (6 or more)
    #[arg(long, value_name = "ID")]
    pub(crate) task: String,
    /// Cancel the settlement of this round and of all later ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) round: u32,
    /// The reason, for the file with the evidence in the state folder
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
    /// Directory for the evidence [default: a folder next to the wallet]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin arbiter slash`
#[derive(Debug, Args)]
#[command(
    after_help = "The ledger records the digest of the evidence (BLAKE3, as b3sum prints it), \
    not the file: keep the file. Slashed tokens go to the treasury, from which no account can take \
    them. On a terminal the command asks first; otherwise --yes is required."
)]
pub(crate) struct ArbiterSlash {
    /// Task id, or its first digits (6 or more)
    #[arg(long, value_name = "ID")]
    pub(crate) task: String,
    /// The participant, or with --stake the provider
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) account: Address,
    /// The amount; if less is left, all that is left is taken
    #[arg(long, value_name = "FLN")]
    pub(crate) amount: Amount,
    /// Take it from the stake that the account pledged to the task, not from its bond
    #[arg(long)]
    pub(crate) stake: bool,
    /// File with the evidence
    #[arg(long, value_name = "FILE")]
    pub(crate) evidence: PathBuf,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}
