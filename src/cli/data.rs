//! Arguments of `florin data`: show, encode and split a data source.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use florin_learning::{DataSource, PartitionScheme};
use florin_protocol::Digest;

use super::{ChainArg, JsonArg};
use crate::task_file::BuffersName;

/// `florin data …`
#[derive(Debug, Subcommand)]
pub(crate) enum DataCommand {
    /// Show the columns and labels of a data source, and their encoding in a new task
    Show(DataShow),
    /// Encode a data source as a task declares, into a file that may exceed the memory
    Encode(DataEncode),
    /// Split a data source into shards, optionally with a holdout and a test set
    Split(DataSplit),
}

/// `florin data show`
#[derive(Debug, Args)]
pub(crate) struct DataShow {
    /// Data source: csv:FILE#LABEL, parquet:FILE#LABEL, npy:FEATURES,LABELS, npz:FILE#LABELS, safetensors:FILE#LABELS, idx:IMAGES,LABELS,
    /// cifar10:FILE,…, images:FOLDER, text:FILE, text:FILE#LENGTH, florin:FILE, digits
    pub(crate) source: DataSource,
    /// A tokenizer.json of Hugging Face, for text:FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Tokens of a row
    #[arg(long, value_name = "N", default_value_t = 128, requires = "tokenizer")]
    pub(crate) length: usize,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin model …`
#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Show the tensors and operators of a model that `torch.export.save` wrote
    Show(ModelShow),
}

/// `florin model show`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  python -c 'import torch; torch.export.save(torch.export.export(\
    model, (x,)), \"net.pt2\")'\n  florin model show net.pt2\n\nNo code of the model is executed, and no \
    pickle is opened. The digest names the graph without its weights: two exports of one model have \
    the same."
)]
pub(crate) struct ModelShow {
    /// A .pt2 file
    pub(crate) file: PathBuf,
    /// Size of each free dimension, such as the rows of a batch, for which work and memory are stated
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) rows: u32,
    /// Mark the tensors that travel if only parameters whose name fits are trained, such as "head.*"
    /// or "*lora*", and state the bytes of an update; may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub(crate) trainable: Vec<String>,
    /// Running statistics, such as those of batch norm: average them with the updates, freeze them,
    /// or refuse a model that has them
    #[arg(long, value_enum, default_value = "refuse", requires = "trainable")]
    pub(crate) buffers: BuffersName,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin data encode`
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  florin data encode images:train --task 3fa9c1 --market \
        http://127.0.0.1:7700 --out train.florin\n  florin participate --data florin:train.florin …\n\n\
        Images, documents and the rows of CSV, Parquet and .npy files are read part after part.")]
pub(crate) struct DataEncode {
    /// Data source: csv:FILE#LABEL, parquet:FILE#LABEL, npy:FEATURES,LABELS, npz:FILE#LABELS, safetensors:FILE#LABELS, idx:IMAGES,LABELS,
    /// cifar10:FILE,…, images:FOLDER, text:FILE, text:FILE#LENGTH, florin:FILE, digits
    pub(crate) source: DataSource,
    /// Encode the rows as this task file declares, or with --market the task with this id
    #[arg(long, value_name = "FILE|ID")]
    pub(crate) task: String,
    /// Use the tokenizer of this task of a market, as for participate. May be repeated
    #[arg(long, value_name = "DIGEST")]
    pub(crate) accept_model: Vec<Digest>,
    /// The file to write; refused if it exists
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) market: ChainArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin data split`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  florin data split digits --shards 8 --partition dirichlet:0.5 \
        --holdout 0.2 --test 0.2 --seed 1 --out shards/"
)]
pub(crate) struct DataSplit {
    /// Data source: csv:FILE#LABEL, parquet:FILE#LABEL, npy:FEATURES,LABELS, npz:FILE#LABELS, safetensors:FILE#LABELS, idx:IMAGES,LABELS,
    /// cifar10:FILE,…, images:FOLDER, text:FILE, text:FILE#LENGTH, florin:FILE, digits
    pub(crate) source: DataSource,
    /// Encode the rows as this task file declares; without it, features must be numbers and are
    /// used as they are
    #[arg(long, value_name = "FILE")]
    pub(crate) task: Option<PathBuf>,
    /// Number of shards
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) shards: u32,
    /// Partition of the rows: iid, dirichlet:ALPHA, label:PIECES or file:PATH (one shard number per
    /// line)
    #[arg(long, default_value = "iid")]
    pub(crate) partition: PartitionScheme,
    /// Fraction of the rows for the buyer's holdout, 0 to 0.9
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    pub(crate) holdout: f64,
    /// Fraction of the rows for a test set, 0 to 0.9
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    pub(crate) test: f64,
    /// Minimum number of rows per shard
    #[arg(long, default_value_t = 1)]
    pub(crate) rows_min: usize,
    /// Seed of the split
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Output folder; created if it does not exist, refused if it has files of an earlier split
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (0.0..=0.9).contains(&share) { Ok(share) } else { Err("must be from 0 to 0.9".to_owned()) }
}
