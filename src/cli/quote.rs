//! Arguments of `florin quote`.

use std::path::PathBuf;

use clap::Args;
use florin_protocol::Amount;

use super::{EngineArg, JsonArg};

/// `florin quote`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  florin quote net.pt2 --batch 32 --rows 5000 --epochs 2\n  \
    florin quote net.pt2 --batch 32 --save-card laptop.json\n  florin quote net.pt2 --batch 32 --devices \
    laptop.json,server.json --price 1.5\n\nWithout --devices this device is measured first, in half a \
    minute. docs/devices.md explains the figures and their errors.")]
pub(crate) struct Quote {
    /// A .pt2 file
    pub(crate) file: PathBuf,
    /// Rows of a step
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) batch: u32,
    /// Cards of devices, as written by --save-card
    #[arg(long, value_name = "CARD,…", value_delimiter = ',', conflicts_with = "save_card")]
    pub(crate) devices: Vec<PathBuf>,
    /// Write the card of this device
    #[arg(long, value_name = "FILE")]
    pub(crate) save_card: Option<PathBuf>,
    /// Rows of the training, for the time of a round
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(crate) rows: Option<u64>,
    /// Passes over the rows in a round
    #[arg(long, value_name = "N", default_value_t = 1, requires = "rows",
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) epochs: u32,
    /// Train only parameters whose name fits, such as "head.*" or "*lora*"; may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub(crate) trainable: Vec<String>,
    /// Price of a device for an hour, for the cost of a round
    #[arg(long, value_name = "FLN", requires = "rows")]
    pub(crate) price: Option<Amount>,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}
