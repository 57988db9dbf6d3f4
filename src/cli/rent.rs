//! Arguments of the commands about compute: `florin rent …` and `florin market`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use florin_compute::DataClass;
use florin_learning::DataSource;
use florin_protocol::{Address, Amount};

use super::{EngineArg, JsonArg, MarketArg, PassphraseArg, WalletArg};
use crate::task_file::{BuffersName, ImageArgument, LossName};

/// `florin rent …`
#[derive(Debug, Subcommand)]
pub(crate) enum RentCommand {
    /// Write an order file that explains every key, for a model of PyTorch and its rows
    New(RentNew),
    /// Check an order file, its model and its rows, and show the quote, without ordering
    Check(RentCheck),
    /// Lock an order's escrow on the ledger, open the order to providers, and upload its job
    Order(RentOrder),
    /// Follow an order live, until its settlement is final: bids, segments, audits, disputes, pay
    Watch(RentWatch),
    /// Fetch the trained model of an order, and check record, job and digest
    Fetch(RentFetch),
    /// Order the segments that an earlier order left, from its last delivered state
    Continue(RentContinue),
    /// Audit your own order on private rows, until its settlement is final
    Audit(RentAudit),
    /// Explain the deposits, the pay and the losses of each account of an order, or of one account in all orders
    Statement(RentStatement),
}

/// A data class by its name.
fn data_class(text: &str) -> Result<DataClass, String> {
    DataClass::from_name(text).ok_or_else(|| "use public, buyer or private".to_owned())
}

/// `florin rent new`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  florin rent new order.toml --model net.pt2 --data csv:rows.csv#label \
        --price 20 \\\n    --referee 0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed\n\nThe model of an \
        order is public. `data_class` in the file decides who may read its rows."
)]
pub(crate) struct RentNew {
    /// Path of the new order file
    #[arg(default_value = "order.toml")]
    pub(crate) file: PathBuf,
    /// The model: a file that `torch.export.save` wrote, of PyTorch 2.8 to 2.11
    #[arg(long, value_name = "FILE.pt2")]
    pub(crate) model: PathBuf,
    /// The rows to train on: a source as for `florin task new --data`
    #[arg(long, value_name = "SOURCE")]
    pub(crate) data: DataSource,
    /// The most that the training costs without its audits
    #[arg(long, value_name = "FLN")]
    pub(crate) price: Amount,
    /// The account that computes the one step that a dispute ends with; neither yours nor the
    /// coordinator's
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) referee: Address,
    /// The readers of the rows: public (all accounts), buyer (the provider and drawn auditors) or private (the
    /// provider; you audit)
    #[arg(long, value_name = "CLASS", default_value = "public", value_parser = data_class)]
    pub(crate) data_class: DataClass,
    /// Number of segments: the unit of delivery, audit and pay
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) segments: u32,
    /// The meaning of the model's output
    #[arg(long, value_enum, default_value = "cross_entropy")]
    pub(crate) loss: LossName,
    /// Train only parameters whose name fits, such as "head.*"; may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub(crate) trainable: Vec<String>,
    /// Let layers stay at home: parameters whose name fits, such as "stem.*"; may be repeated. Others get the activations
    /// behind them in place of the rows
    #[arg(long, value_name = "PATTERN")]
    pub(crate) at_home: Vec<String>,
    /// Running statistics, such as those of batch norm
    #[arg(long, value_enum, default_value = "refuse")]
    pub(crate) buffers: BuffersName,
    /// The images that a row becomes: CHANNELSxHEIGHTxWIDTH; by default those that the model takes
    #[arg(long, value_name = "3x64x64")]
    pub(crate) image: Option<ImageArgument>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin rent check`
#[derive(Debug, Args)]
pub(crate) struct RentCheck {
    /// The order file
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// How an order is placed.
#[derive(Debug, Args)]
pub(crate) struct PlaceArg {
    /// Lock the escrow without a question; required without a terminal and with --json
    #[arg(long)]
    pub(crate) yes: bool,
    /// Follow the order until its settlement is final
    #[arg(long)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) audit: AuditArg,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin rent order`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  florin rent order order.toml --market http://127.0.0.1:7700 --wallet \
        renter.json\n\nOrdering the same file again resumes an interrupted order; the escrow is \
        locked only once. Another `nonce` in the file is another order."
)]
pub(crate) struct RentOrder {
    /// The order file
    pub(crate) file: PathBuf,
    /// Order only the segments that this order left: its id, or the first digits (6 or more)
    #[arg(long, value_name = "ID")]
    pub(crate) after: Option<String>,
    #[command(flatten)]
    pub(crate) place: PlaceArg,
}

/// `florin rent continue`
#[derive(Debug, Args)]
#[command(after_help = "The same as: florin rent order FILE --after ID")]
pub(crate) struct RentContinue {
    /// The earlier order: its id, or the first digits (6 or more)
    pub(crate) order: String,
    /// The order file
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) place: PlaceArg,
}

/// `florin rent watch`
#[derive(Debug, Args)]
#[command(
    after_help = "Each recorded action is one line, and with --json one JSON object. Ends with exit \
        code 0 when the settlement is final."
)]
pub(crate) struct RentWatch {
    /// Order id, or its first digits (6 or more)
    pub(crate) order: String,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin rent fetch`
#[derive(Debug, Args)]
pub(crate) struct RentFetch {
    /// Order id, or its first digits (6 or more)
    pub(crate) order: String,
    /// File for the parameters (safetensors); FILE.pt2 for the whole model, which PyTorch loads
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// The model that the order was made from: the whole model is written from it
    #[arg(long, value_name = "FILE.pt2")]
    pub(crate) from: Option<PathBuf>,
    /// The renter's wallet: the result of an order that is not public is for its renter alone
    #[arg(long, value_name = "FILE", env = "FLORIN_WALLET")]
    pub(crate) wallet: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) passphrase: PassphraseArg,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin rent audit`
#[derive(Debug, Args)]
#[command(
    after_help = "`florin rent order` audits an order on private rows itself. Interrupted, it is resumed \
        by this command: an audit that is late costs your bond, and the provider is paid."
)]
pub(crate) struct RentAudit {
    /// Order id, or its first digits (6 or more)
    pub(crate) order: String,
    #[command(flatten)]
    pub(crate) audit: AuditArg,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// How a renter audits its own order.
#[derive(Debug, Args)]
pub(crate) struct AuditArg {
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    /// Folder for states and salts of the audits [default: next to the wallet]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}

/// `florin rent statement`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  florin rent statement 93b7a421\n  florin rent statement --of \
        0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed\n\n`--of` answers what the devices of an account \
        earned in an hour, and why it lost a deposit."
)]
pub(crate) struct RentStatement {
    /// Order id, or its first digits (6 or more)
    #[arg(required_unless_present = "of")]
    pub(crate) order: Option<String>,
    /// Only this account [default: all accounts of the order]
    pub(crate) account: Option<Address>,
    /// All orders and listings in which this account has a part, and what an hour earned: an address, or a key file
    #[arg(long, value_name = "ADDRESS|FILE", conflicts_with_all = ["order", "account"])]
    pub(crate) of: Option<String>,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin market`
#[derive(Debug, Args)]
#[command(
    after_help = "Every number follows from the records of the orders, whose signatures and rules are \
        checked here. Exit code 1 if a record is invalid."
)]
pub(crate) struct MarketTable {
    #[command(flatten)]
    pub(crate) market: MarketArg,
    /// Write a page with plots and the same tables into this file (HTML)
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}
