//! Arguments of `florin quote`.

use std::path::PathBuf;

use clap::Args;
use florin_learning::step_cost::scaling::REPLICAS_MAX;
use florin_learning::training::TrainingError;
use florin_learning::virtual_workers::VIRTUAL_WORKERS_MAX;
use florin_learning::{Betas, Optimizer, Training};
use florin_protocol::Amount;

use super::{EngineArg, JsonArg};

/// `florin quote`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  florin quote net.pt2 --batch 32 --rows 5000 --epochs 2\n  \
    florin quote net.pt2 --batch 32 --save-card laptop.json\n  florin quote net.pt2 --batch 32 --devices \
    laptop.json,server.json --price 1.5\n  florin quote net.pt2 --batch 32 --devices \
    laptop.json,server.json --together 8 --link-rate 120\n  florin quote net.pt2 --batch 32 --devices \
    laptop.json --together 8 --save-step step.toml\n\nWithout --devices this device is measured first, in half a \
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
    /// Also predict a step of all devices together, as ranks of one member with this number of virtual
    /// workers
    #[arg(long, value_name = "WORKERS", requires = "devices",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(VIRTUAL_WORKERS_MAX)))]
    pub(crate) together: Option<u32>,
    /// Microseconds of a transfer without bytes between two of the devices
    #[arg(long, value_name = "US", default_value_t = 100.0, requires = "together",
          value_parser = parse_positive)]
    pub(crate) link_latency: f64,
    /// Megabytes a second of a transfer between two of the devices
    #[arg(long, value_name = "MB/S", default_value_t = 100.0, requires = "together",
          value_parser = parse_positive)]
    pub(crate) link_rate: f64,
    /// Also predict the step on other numbers of replicas from measured steps: a CSV file with the columns
    /// rows (of each replica), replicas, nodes and step_seconds
    #[arg(long, value_name = "FILE")]
    pub(crate) measured: Option<PathBuf>,
    /// The numbers of replicas
    #[arg(long, value_name = "N,…", value_delimiter = ',', requires = "measured",
          default_values_t = [1, 2, 4, 8, 16],
          value_parser = clap::value_parser!(u32).range(1..=i64::from(REPLICAS_MAX)))]
    pub(crate) replicas: Vec<u32>,
    /// Most replicas of a node
    #[arg(long, value_name = "N", default_value_t = 8, requires = "measured",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(REPLICAS_MAX)))]
    pub(crate) replicas_per_node: u32,
    /// Write the card of this device
    #[arg(long, value_name = "FILE")]
    pub(crate) save_card: Option<PathBuf>,
    /// Write the step of one virtual worker's rows as `[task.step]`, for members with devices in a scenario of
    /// `florin sim`; a batch has the workers of --together, or one
    #[arg(long, value_name = "FILE")]
    pub(crate) save_step: Option<PathBuf>,
    /// Rows of the training, for the time of a round
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(crate) rows: Option<u64>,
    /// Passes over the rows in a round
    #[arg(long, value_name = "N", default_value_t = 1, requires = "rows",
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) epochs: u32,
    /// Rule of a step: sgd, adam or adamw
    #[arg(long, value_name = "NAME", default_value = "sgd", value_parser = parse_optimizer)]
    pub(crate) optimizer: Optimizer,
    /// Momentum of sgd
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(crate) momentum: f64,
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

impl Quote {
    /// The training whose steps are quoted; its learning rate changes no time.
    ///
    /// # Errors
    /// [`TrainingError`] for a momentum that is out of bounds or that the optimizer does not have.
    pub(crate) fn training(&self) -> Result<Training, TrainingError> {
        let how = Training {
            optimizer: self.optimizer,
            momentum: self.momentum,
            ..Training::sgd(self.epochs, self.batch, 1.0)
        };
        how.check().map(|()| how)
    }
}

/// The decay rates of Adam's moments change no time.
const BETAS: Betas = Betas { beta1: 0.9, beta2: 0.999 };

fn parse_optimizer(text: &str) -> Result<Optimizer, String> {
    match text {
        "sgd" => Ok(Optimizer::Sgd),
        "adam" => Ok(Optimizer::Adam(BETAS)),
        "adamw" => Ok(Optimizer::AdamW(BETAS)),
        _ => Err("use sgd, adam or adamw".to_owned()),
    }
}

/// Largest latency and rate of a link.
const LINK_MAX: f64 = 1e9;

fn parse_positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && *number <= LINK_MAX);
    number.ok_or_else(|| format!("use a number above 0 and up to {LINK_MAX:e}"))
}
