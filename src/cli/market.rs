//! The arguments of those who keep a market running: coordinator, participant, provider.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use florin_learning::DataSource;
use florin_protocol::{Address, Amount};

use super::chain::{HEADING, LedgerDeploy, LedgerKind, LedgerStatus, LedgerVerify, NodeArg};
use super::{EngineArg, MarketArg, WalletArg, allocation, rows};

/// Where `florin coordinate --help` lists what TLS takes.
const TLS: &str = "TLS";
/// Where it lists what --check takes.
const CHECK: &str = "Check";

/// `florin coordinate`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  florin coordinate --data market/ --wallet coordinator.json \
    --allocate 0x5aAe…=1000000\n  florin coordinate --data market/ --wallet coordinator.json\n  \
    florin coordinate --data market/ --wallet coordinator.json --ledger ethereum \
    --deployment deployment.toml --rpc http://127.0.0.1:8545\n\n\
    With the embedded ledger the first start makes its genesis, from --genesis or --allocate; tokens are made \
    then and never again.")]
pub(crate) struct Coordinate {
    /// The folder that holds ledger, journal, blobs and node key, unless the settings name it
    #[arg(long, value_name = "DIR", env = "FLORIN_COORDINATOR_DATA")]
    pub(crate) data: Option<PathBuf>,
    /// Address and port to listen on; port 0 takes a free one. 127.0.0.1:7700 unless said here or in the settings
    #[arg(long, value_name = "ADDRESS", env = "FLORIN_COORDINATOR_LISTEN")]
    pub(crate) listen: Option<SocketAddr>,
    /// Write the address that it listens on to this file, once it does
    #[arg(long, value_name = "FILE")]
    pub(crate) address_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    /// Limits on connections, uploads and rates, and tables [rate], [tls], [http2], [otlp] and [ethereum], as TOML; every key
    /// is optional, and docs/operations.md lists them
    #[arg(long, value_name = "FILE")]
    pub(crate) settings: Option<PathBuf>,
    /// The certificate and its chain, in PEM: the port then speaks TLS, and nothing else
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = TLS)]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// The certificate's private key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate", help_heading = TLS)]
    pub(crate) tls_key: Option<PathBuf>,
    /// For trials: make a certificate in the data folder, or use the one made before; participants need its file
    #[arg(long, conflicts_with = "tls_certificate", help_heading = TLS)]
    pub(crate) tls_self_signed: bool,
    /// What the chain begins with: a TOML file with `chain = N` and a table `[allocate]` of ADDRESS = "AMOUNT"
    #[arg(long, value_name = "FILE", conflicts_with = "allocate")]
    pub(crate) genesis: Option<PathBuf>,
    /// An account and the tokens it begins with; may be repeated
    #[arg(long, value_name = "ADDRESS=AMOUNT", value_parser = allocation)]
    pub(crate) allocate: Vec<(Address, Amount)>,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    /// Which ledger keeps the money
    #[arg(long, value_enum, default_value_t = LedgerKind::Embedded)]
    pub(crate) ledger: LedgerKind,
    #[command(flatten)]
    pub(crate) node: NodeArg,
    /// Run nothing: read the data folder back, whole, and say what is in order. No coordinator may use it meanwhile; of a
    /// running one, make a backup and check that
    #[arg(long, help_heading = CHECK)]
    pub(crate) check: bool,
    /// With --check: print JSON
    #[arg(long, requires = "check", help_heading = CHECK)]
    pub(crate) json: bool,
    /// The node that is suggested to everybody else [default: --rpc, unless it seems to hold a secret]
    #[arg(long, value_name = "URL", help_heading = HEADING)]
    pub(crate) public_rpc: Option<String>,
}

/// `florin participate`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  florin participate --market http://127.0.0.1:7700 --task 3fa9c1 \
    --wallet me.json --data csv:scans.csv#digit\n\nMay be stopped and started again at any moment: \
    it continues its round."
)]
pub(crate) struct Participate {
    /// The task: its id, or the first digits of it (6 or more)
    #[arg(long, value_name = "ID")]
    pub(crate) task: String,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    /// Your rows: digits, csv:FILE#LABEL, idx:IMAGES,LABELS, cifar10:FILE,…, florin:FILE
    #[arg(long, value_name = "SOURCE", required_unless_present = "shard")]
    pub(crate) data: Option<DataSource>,
    /// Use only rows A to B of it, B not included
    #[arg(long, value_name = "A..B", value_parser = rows, requires = "data")]
    pub(crate) rows: Option<Range<usize>>,
    /// Your rows as a file that `florin data split` wrote; short for --data florin:FILE
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    pub(crate) shard: Option<PathBuf>,
    /// Where it keeps what it must not forget [default: a folder beside the wallet]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// Most to put at risk [default: what all your rows take]; rows beyond the bond do not count
    #[arg(long, value_name = "AMOUNT")]
    pub(crate) bond: Option<Amount>,
    /// An arbiter you trust besides the coordinator; about any other one you are warned. May be repeated
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) accept_arbiter: Vec<Address>,
    /// Seed of the local training [default: follows from the account]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Behave badly, for the demonstration
    #[arg(long, value_enum, hide = true)]
    pub(crate) experiment: Option<Experiment>,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
}

/// Ways to behave that the market must not pay for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Experiment {
    /// Send random numbers
    Noise,
    /// Train on flipped labels
    Flip,
    /// Send the unchanged model
    Idle,
}

/// `florin provide`
#[derive(Debug, Args)]
pub(crate) struct Provide {
    /// The task to serve, to its end: its id, or the first digits of it (6 or more) [default: every task that pays]
    #[arg(long, value_name = "ID")]
    pub(crate) task: Option<String>,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    /// Most to put at risk [default: what the tasks ask for]
    #[arg(long, value_name = "AMOUNT")]
    pub(crate) stake: Option<Amount>,
    /// Where it keeps what it must not forget [default: a folder beside the wallet]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
}

/// `florin ledger …`
#[derive(Debug, Subcommand)]
pub(crate) enum LedgerCommand {
    /// Put a market's contracts on an Ethereum chain
    Deploy(LedgerDeploy),
    /// A market's contracts at a glance: the chain, what they hold, whether the node answers
    Status(LedgerStatus),
    /// Rebuild a ledger's state from its history and compare it with what it says
    Verify(LedgerVerify),
}
