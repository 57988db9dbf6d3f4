//! The arguments of a buyer.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use florin_learning::DataSource;

use super::{EngineArg, JsonArg, MarketArg, WalletArg};

/// `florin task …`
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Write a task file with every key explained
    New(TaskNew),
    /// Check a task file, its holdout and its numbers, without publishing anything
    Check(TaskCheck),
    /// Lock a task's budget on the ledger and open it to participants
    Publish(TaskPublish),
    /// The market's tasks
    List(TaskList),
    /// One task: where it is, its rounds, its money
    Show(TaskShow),
    /// Fetch a task's newest model, its digest checked
    Model(TaskModel),
    /// End a task after its running round and have the rest refunded
    Close(TaskClose),
}

/// `florin task new`
#[derive(Debug, Args)]
pub(crate) struct TaskNew {
    /// Where to write it
    #[arg(default_value = "task.toml")]
    pub(crate) file: PathBuf,
}

/// `florin task check`
#[derive(Debug, Args)]
pub(crate) struct TaskCheck {
    /// The task file
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin task publish`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  florin task publish digits.toml --market http://127.0.0.1:7700 \
    --wallet buyer.json\n\nPublishing the same file again continues where it stopped; nothing is locked twice."
)]
pub(crate) struct TaskPublish {
    /// The task file
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin task list`
#[derive(Debug, Args)]
pub(crate) struct TaskList {
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin task show`
#[derive(Debug, Args)]
pub(crate) struct TaskShow {
    /// The task: its id, or the first digits of it (6 or more)
    pub(crate) task: String,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin task model`
#[derive(Debug, Args)]
pub(crate) struct TaskModel {
    /// The task: its id, or the first digits of it (6 or more)
    pub(crate) task: String,
    /// Where to write the parameters (safetensors)
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Evaluate the model on this data: digits, csv:FILE#LABEL, idx:IMAGES,LABELS, cifar10:FILE,…, florin:FILE
    #[arg(long, value_name = "DATA")]
    pub(crate) evaluate: Option<DataSource>,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin task close`
#[derive(Debug, Args)]
pub(crate) struct TaskClose {
    /// The task: its id, or the first digits of it (6 or more)
    pub(crate) task: String,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
}
