//! Arguments of the buyer's commands: `florin task …` and `florin predict`.

use std::ops::Range;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use florin_learning::DataSource;
use florin_protocol::Address;

use super::{
    EngineArg, JsonArg, MarketArg, SandboxArg, TRAINER, TrainerHostArg, WalletArg, WeightsArg,
};
use crate::task_file::{BuffersName, ImageArgument, LossName, parse_rows};

/// `florin task …`
#[derive(Debug, Subcommand)]
pub(crate) enum TaskCommand {
    /// Write a task file that explains every key
    New(TaskNew),
    /// Check a task file and its holdout, and estimate pay, cost and accuracy, without publishing
    Check(TaskCheck),
    /// Lock a task's budget on the ledger and open the task to participants
    Publish(TaskPublish),
    /// List the market's tasks
    List(TaskList),
    /// Show the state, the rounds and the payments of a task
    Show(TaskShow),
    /// Follow a task live, until it is done: phase, participants, scores, payouts, money left
    Follow(TaskFollow),
    /// Recompute a round's cohort, and show why each account was selected
    Cohort(TaskCohort),
    /// Fetch the newest model of a task and check its digest
    Model(TaskModel),
    /// Fetch the code of a task whose model is a trainer, to read it
    Code(TaskCode),
    /// Sign invitations to a task that admits invited accounts only
    Invite(TaskInvite),
    /// Close a task after its current round and refund the unspent budget
    Close(TaskClose),
}

/// `florin task new`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  florin task new --data csv:patients.csv#diagnosis --out patients.toml\n\n\
        With --data the file fits the table: its rows are the holdout, and model, encoding, rounds \
        and rows per round follow from them. Without --data it is a commented example.\n\n\
        With --model the task trains a model of PyTorch:\n  florin task new --model net.pt2 --data \
        csv:patients.csv#age --loss squared --out age.toml"
)]
pub(crate) struct TaskNew {
    /// Path of the new task file
    #[arg(default_value = "task.toml")]
    pub(crate) file: PathBuf,
    /// The buyer's labelled rows, which become the holdout: csv:FILE#LABEL, parquet:FILE#LABEL,
    /// npy:FEATURES,LABELS, npz:FILE#LABELS, safetensors:FILE#LABELS, idx:IMAGES,LABELS, cifar10:FILE,…, images:FOLDER, text:FILE, text:FILE#LENGTH, florin:FILE, digits
    #[arg(long, value_name = "SOURCE")]
    pub(crate) data: Option<DataSource>,
    /// Another way to give the path
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    pub(crate) out: Option<PathBuf>,
    /// A model of the buyer's: a file that `torch.export.save` wrote, of PyTorch 2.8 to 2.11
    #[arg(long, value_name = "FILE.pt2", requires = "data")]
    pub(crate) model: Option<PathBuf>,
    /// The model as a program: a folder with a file `trainer`, see docs/trainer.md
    #[arg(long, value_name = "DIR", requires = "initial", requires = "data",
        conflicts_with = "model", help_heading = TRAINER)]
    pub(crate) trainer: Option<PathBuf>,
    /// The trainer's initial parameters: a safetensors file of F32 tensors
    #[arg(long, value_name = "FILE", requires = "trainer", help_heading = TRAINER)]
    pub(crate) initial: Option<PathBuf>,
    /// The trainer has the verb `gradient`: path integrals value the updates, not coalitions
    #[arg(long, requires = "trainer", help_heading = TRAINER)]
    pub(crate) gradient: bool,
    /// The meaning of the model's output
    #[arg(long, value_enum, default_value = "cross_entropy")]
    pub(crate) loss: LossName,
    /// Largest loss of a row in the valuation, in units of the loss
    #[arg(long, value_name = "NUMBER")]
    pub(crate) loss_bound: Option<f64>,
    /// Train only parameters whose name fits, such as "head.*" or "*lora*"; may be repeated
    #[arg(long, value_name = "PATTERN", requires = "model")]
    pub(crate) trainable: Vec<String>,
    /// Running statistics, such as those of batch norm: average them with the updates, freeze them,
    /// or refuse a model that has them
    #[arg(long, value_enum, default_value = "refuse", requires = "model")]
    pub(crate) buffers: BuffersName,
    /// The images that a row becomes: CHANNELSxHEIGHTxWIDTH, or HEIGHTxWIDTH for three channels; by
    /// default those that the model takes
    #[arg(long, value_name = "3x64x64", requires = "data")]
    pub(crate) image: Option<ImageArgument>,
    /// A tokenizer.json of Hugging Face, by which a text:FILE becomes rows of tokens
    #[arg(long, value_name = "FILE", requires = "model", conflicts_with = "image")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Tokens of a row; by default those that the model takes
    #[arg(long, value_name = "N", requires = "tokenizer",
          value_parser = clap::value_parser!(u32).range(2..=1_048_576))]
    pub(crate) length: Option<u32>,
    /// The tokenizer's token behind each document, such as "<|endoftext|>"
    #[arg(long, value_name = "TOKEN", requires = "tokenizer")]
    pub(crate) end_of_text: Option<String>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin task check`
#[derive(Debug, Args)]
pub(crate) struct TaskCheck {
    /// The task file
    pub(crate) file: PathBuf,
    /// Skip the simulations that estimate pay, cost and accuracy, and their refusals
    #[arg(long)]
    pub(crate) no_quote: bool,
    #[command(flatten)]
    pub(crate) sandbox: SandboxArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin task publish`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  florin task publish digits.toml --market http://127.0.0.1:7700 \
        --wallet buyer.json\n\nPublishing the same file again resumes an interrupted publication; \
        the budget is locked only once."
)]
pub(crate) struct TaskPublish {
    /// The task file
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    #[command(flatten)]
    pub(crate) sandbox: SandboxArg,
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
    /// Task id, or its first digits (6 or more)
    pub(crate) task: String,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin task follow`
#[derive(Debug, Args)]
#[command(
    after_help = "On a terminal the current phase is redrawn in place; into a pipe each change is \
        one line, and with --json one JSON object. Ends with exit code 0 when the task is done."
)]
pub(crate) struct TaskFollow {
    /// Task id, or its first digits (6 or more)
    pub(crate) task: String,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin task cohort`
#[derive(Debug, Args)]
#[command(after_help = "Exit code 1 if the coordinator's offer has another cohort.")]
pub(crate) struct TaskCohort {
    /// Task id, or its first digits (6 or more)
    pub(crate) task: String,
    /// The round [default: the newest]
    #[arg(long, value_name = "N")]
    pub(crate) round: Option<u32>,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin task model`
#[derive(Debug, Args)]
pub(crate) struct TaskModel {
    /// Task id, or its first digits (6 or more)
    pub(crate) task: String,
    /// File for the parameters (safetensors); FILE.pt2 for the whole model, which PyTorch loads
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// The model that the task was made from: the whole model is written from it
    #[arg(long, value_name = "FILE.pt2")]
    pub(crate) from: Option<PathBuf>,
    /// Evaluate the model on this data source, encoded as the task declares: digits,
    /// csv:FILE#LABEL, parquet:FILE#LABEL, npy:FEATURES,LABELS, npz:FILE#LABELS, safetensors:FILE#LABELS, idx:IMAGES,LABELS, cifar10:FILE,…, text:FILE#LENGTH,
    /// florin:FILE
    #[arg(long, value_name = "DATA")]
    pub(crate) evaluate: Option<DataSource>,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    #[command(flatten)]
    pub(crate) weights: WeightsArg,
    #[command(flatten)]
    pub(crate) trainers: TrainerHostArg,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin task code`
#[derive(Debug, Args)]
pub(crate) struct TaskCode {
    /// Task id, or its first digits (6 or more)
    pub(crate) task: String,
    /// A new folder for the files. Nothing of them is run
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin predict`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  florin predict 3fa9c1 --data csv:new.csv#label --out predictions.csv\n\nThe \
        rows are encoded as the task declares, and have labels: the metrics compare them with the \
        predictions. Write any known label into the column if they have none, and ignore the metrics."
)]
pub(crate) struct Predict {
    /// Task id, or its first digits (6 or more)
    pub(crate) task: String,
    /// The rows: a source as for participate --data
    #[arg(long, value_name = "SOURCE")]
    pub(crate) data: DataSource,
    /// Use only the rows from A to B, B excluded
    #[arg(long, value_name = "A..B", value_parser = parse_rows)]
    pub(crate) rows: Option<Range<usize>>,
    /// A CSV file for the predictions, one line for each row
    #[arg(long, value_name = "FILE.csv")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    #[command(flatten)]
    pub(crate) weights: WeightsArg,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin task invite`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  florin task invite 3fa9c1 --count 8 --market http://127.0.0.1:7700 \
        --wallet buyer.json > invitations.txt\n\nNothing is sent to the market. Each invitation \
        admits one account, once; the task's file needs [members] admission = \"invitation\"."
)]
pub(crate) struct TaskInvite {
    /// Task id, or its first digits (6 or more)
    pub(crate) task: String,
    /// Number of invitations
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub(crate) count: u16,
    /// The only account that can use it [default: the first account that does]
    #[arg(long, value_name = "ADDRESS", conflicts_with = "count")]
    pub(crate) account: Option<Address>,
    /// Expiry, such as "7 d" or 2030-01-31 [default: the task's]
    #[arg(long, value_name = "TIME")]
    pub(crate) expires: Option<String>,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin task close`
#[derive(Debug, Args)]
pub(crate) struct TaskClose {
    /// Task id, or its first digits (6 or more)
    pub(crate) task: String,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}
