//! Arguments of the long-running commands: coordinate, participate, provide.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use florin_participant::ArbiterPolicy;
use florin_protocol::{Address, Amount, Digest, Micro};

use super::chain::{
    HEADING, LedgerAnchor, LedgerDeploy, LedgerHead, LedgerKind, LedgerStatus, LedgerVerify,
    NodeArg,
};
use super::execution::ExecutionArg;
use super::producer::{ReservoirArg, RowSource};
use super::{
    EngineArg, JsonArg, MarketArg, TRAINER, TraceArg, TrainerHostArg, WalletArg, WeightsArg,
    allocation,
};
use crate::task_file::parse_rows;

/// Help heading of the TLS options of `florin coordinate`.
const TLS: &str = "TLS";
/// Help heading of the options about clip and noise.
const PRIVACY: &str = "Privacy of rows";
/// Help heading of the options about a trainer of one's own.
/// δ, unless --delta is given.
pub(crate) const DELTA: f64 = 1e-5;
/// Help heading of the options about --check.
const CHECK: &str = "Check";

/// `florin coordinate`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  florin coordinate --data market/ --wallet coordinator.json \
    --allocate 0x5aAe…=1000000\n  florin coordinate --data market/ --wallet coordinator.json\n  \
    florin coordinate --data market/ --wallet coordinator.json --ledger ethereum \
    --deployment deployment.toml --rpc http://127.0.0.1:8545\n\n\
    With the embedded ledger, the first start creates the genesis from --genesis or --allocate. \
    No tokens are created after that.")]
pub(crate) struct Coordinate {
    /// Data folder with ledger, journal, blobs and node key; may also be set in the settings
    #[arg(long, value_name = "DIR", env = "FLORIN_COORDINATOR_DATA")]
    pub(crate) data: Option<PathBuf>,
    /// Address and port to listen on; port 0 selects a free port. Default: the settings' address,
    /// or 127.0.0.1:7700
    #[arg(long, value_name = "ADDRESS", env = "FLORIN_COORDINATOR_LISTEN")]
    pub(crate) listen: Option<SocketAddr>,
    /// Write the address to this file once the coordinator listens
    #[arg(long, value_name = "FILE")]
    pub(crate) address_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    /// Settings file (TOML): limits on connections, uploads and rates, and the tables [rate],
    /// [tls], [http2], [otlp] and [ethereum]; every key is optional, see docs/operations.md
    #[arg(long, value_name = "FILE")]
    pub(crate) settings: Option<PathBuf>,
    /// Certificate and its chain (PEM); the port then accepts only TLS
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = TLS)]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_certificate", help_heading = TLS)]
    pub(crate) tls_key: Option<PathBuf>,
    /// For trials: create a self-signed certificate in the data folder, or use the existing one;
    /// participants need its file
    #[arg(long, conflicts_with = "tls_certificate", help_heading = TLS)]
    pub(crate) tls_self_signed: bool,
    /// Genesis file (TOML) with `chain = N` and a table `[allocate]` of ADDRESS = "AMOUNT"
    #[arg(long, value_name = "FILE", conflicts_with = "allocate")]
    pub(crate) genesis: Option<PathBuf>,
    /// Initial balance of an account in the genesis, at the first start only; may be repeated
    #[arg(long, value_name = "ADDRESS=AMOUNT", value_parser = allocation)]
    pub(crate) allocate: Vec<(Address, Amount)>,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    #[command(flatten)]
    pub(crate) trainers: TrainerHostArg,
    /// Ledger of the market
    #[arg(long, value_enum, default_value_t = LedgerKind::Embedded)]
    pub(crate) ledger: LedgerKind,
    #[command(flatten)]
    pub(crate) node: NodeArg,
    /// Do not run: read the whole data folder back and report its state. No coordinator may use the
    /// folder meanwhile; for a running coordinator, check a backup instead
    #[arg(long, help_heading = CHECK)]
    pub(crate) check: bool,
    #[command(flatten)]
    pub(crate) trace: TraceArg,
    /// With --check: print JSON
    #[arg(long, requires = "check", help_heading = CHECK)]
    pub(crate) json: bool,
    /// RPC endpoint that the coordinator suggests to clients [default: --rpc, unless it seems to
    /// contain a secret]
    #[arg(long, value_name = "URL", help_heading = HEADING)]
    pub(crate) public_rpc: Option<String>,
}

/// `florin participate`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  florin participate --market http://127.0.0.1:7700 --task 3fa9c1 \
    --wallet me.json --data csv:scans.csv#digit --max-bond 20 --arbiter 0x5aAe…\n\nWith --all it takes part in many tasks: \
    florin participate --all --policy policy.toml --wallet me.json --arbiter 0x5aAe…\n\nMay be stopped and started again at any moment: \
    the participant resumes its round. With --json each event is one JSON object."
)]
pub(crate) struct Participate {
    /// Task id, or its first digits (6 or more)
    #[arg(long, value_name = "ID", required_unless_present_any = ["all", "policy", "dry_run"])]
    pub(crate) task: Option<String>,
    /// Take part in the tasks that pay best for this device and these rows, by a policy, until stopped;
    /// see docs/policy.md
    #[arg(long, requires = "policy", conflicts_with_all = ["task", "data", "shard", "max_bond",
        "min_pay", "invitation", "experiment", "trainer", "rows", "split", "reservoir", "min_rows",
        "new_rows", "rank_timeout", "rank_plan", "rank_reduction", "rank_pipeline", "rank_cut",
        "rank_private"])]
    pub(crate) all: bool,
    /// With --all: the policy (TOML): which rows may go to which tasks, and the limits
    #[arg(long, value_name = "FILE", requires = "all", conflicts_with = "task")]
    pub(crate) policy: Option<PathBuf>,
    /// With --all: only show which tasks would be joined, and why the others are not
    #[arg(long, requires = "all", conflicts_with = "task")]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    /// Training data, encoded as the task declares: csv:FILE#LABEL, parquet:FILE#LABEL,
    /// npy:FEATURES,LABELS, npz:FILE#LABELS, safetensors:FILE#LABELS, idx:IMAGES,LABELS, cifar10:FILE,…, images:FOLDER, text:FILE, text:FILE#LENGTH, florin:FILE, digits.
    /// Rows that a running program writes: growing:FOLDER#LABEL, unix:PATH#LABEL,
    /// tcp:127.0.0.1:PORT#LABEL; see docs/producers.md
    #[arg(long, value_name = "SOURCE", required_unless_present_any = ["shard", "all", "policy", "dry_run"])]
    pub(crate) data: Option<RowSource>,
    #[command(flatten)]
    pub(crate) reservoir: ReservoirArg,
    /// Use only the rows from A to B, B excluded
    #[arg(long, value_name = "A..B", value_parser = parse_rows, requires = "data")]
    pub(crate) rows: Option<Range<usize>>,
    /// Shard file, as written by `florin data split`; the same as --data florin:FILE
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    pub(crate) shard: Option<PathBuf>,
    /// Directory for persistent state [default: a folder next to the wallet]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// The most to deposit as bond in total, with every top-up after a debit; rows beyond the bond
    /// do not count. Required without a terminal and with --json; on a terminal the program
    /// otherwise asks before it bonds
    #[arg(long, value_name = "FLN")]
    pub(crate) max_bond: Option<Amount>,
    /// Take part only if the floor of a round, in equal parts for cohort_target updates, is at least
    /// this
    #[arg(long, value_name = "FLN")]
    pub(crate) min_pay: Option<Amount>,
    /// Take part although a round's training is predicted to take longer than a round: without this
    /// option nothing is deposited then
    #[arg(long)]
    pub(crate) accept_slow_training: bool,
    /// The buyer's invitation, or a file with it, for a task that requires one
    #[arg(long, value_name = "TEXT|FILE")]
    pub(crate) invitation: Option<String>,
    /// For a silo: take part only if the ledger has the split of this file for your account, so that
    /// its members are paid as agreed; see `florin silo split --file`
    #[arg(long, value_name = "FILE")]
    pub(crate) split: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) arbiters: ArbiterArg,
    /// Train from this initial model although the buyer chose its parameters; such a model can read
    /// rows out of updates. May be repeated
    #[arg(long, value_name = "DIGEST")]
    pub(crate) accept_model: Vec<Digest>,
    /// Go on after an alarm: a report that contradicts a receipt or itself, a model that the updates
    /// do not give, or rows whose labels contradict your own. By default the participation ends and requests the bond back
    #[arg(long)]
    pub(crate) continue_on_alarm: bool,
    #[command(flatten)]
    pub(crate) noise: NoiseArg,
    #[command(flatten)]
    pub(crate) trainer: TrainerArg,
    /// Have each round's training computed by a provider: the terms of its orders (TOML); see docs/renting.md
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["all", "noise", "trainer", "experiment"])]
    pub(crate) rent: Option<PathBuf>,
    /// Variant of the local training. Its seed is a secret that follows from the wallet, the task,
    /// the round and this number
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) execution: ExecutionArg,
    /// Misbehave, for the demonstration
    #[arg(long, value_enum, hide = true, conflicts_with = "noise")]
    pub(crate) experiment: Option<Experiment>,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    #[command(flatten)]
    pub(crate) weights: WeightsArg,
    #[command(flatten)]
    pub(crate) trace: TraceArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// A trainer of the participant's own.
#[derive(Debug, Args)]
pub(crate) struct TrainerArg {
    /// Train with the program `trainer` in this folder instead of the built-in engine, in a sandbox
    /// without network and home folder; see docs/trainer.md
    #[arg(long, value_name = "DIR", conflicts_with_all = ["noise", "experiment"],
        help_heading = TRAINER)]
    pub(crate) trainer: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) host: TrainerHostArg,
}

/// Clip and noise of the updates.
#[derive(Debug, Args)]
pub(crate) struct NoiseArg {
    /// Clip the gradient of each row to this norm, and add noise, so that an update reveals little
    /// about any one row: differential privacy with the ε that each round prints. A norm of 1 is a
    /// usual beginning
    #[arg(long, value_name = "NORM", requires = "noise", help_heading = PRIVACY)]
    pub(crate) clip: Option<Micro>,
    /// Standard deviation of the noise on each sum of clipped gradients, in multiples of --clip,
    /// 0.1 to 1000. More lowers ε, and pay
    #[arg(long, value_name = "FACTOR", requires = "clip", help_heading = PRIVACY)]
    pub(crate) noise: Option<Micro>,
    /// End the participation before a round after which ε would be above this, over all tasks of the
    /// state folder [default: 8]
    #[arg(long, value_name = "E", requires = "noise", help_heading = PRIVACY)]
    pub(crate) epsilon_max: Option<Micro>,
    /// The probability with which the bound ε may fail; less than a tenth of one in the number of
    /// rows
    #[arg(long, value_name = "P", default_value_t = DELTA, requires = "noise", help_heading = PRIVACY)]
    pub(crate) delta: f64,
}

/// The arbiters that may take a deposit.
#[derive(Debug, Args)]
pub(crate) struct ArbiterArg {
    /// Accept this account as the arbiter of a task: it can cancel settlements and take deposits.
    /// May be repeated
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) arbiter: Vec<Address>,
    /// Accept a task whose arbiter is its coordinator: one account then decides the pay and can take
    /// deposits
    #[arg(long)]
    pub(crate) trust_coordinator: bool,
}

impl ArbiterArg {
    pub(crate) fn policy(&self) -> ArbiterPolicy {
        let (accepted, trusts_coordinator) = (self.arbiter.clone(), self.trust_coordinator);
        ArbiterPolicy { accepted, trusts_coordinator }
    }
}

/// Dishonest behaviours that the market must not pay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Experiment {
    /// Submit random numbers
    Noise,
    /// Train on flipped labels
    Flip,
    /// Submit the unchanged model
    Idle,
}

/// Dishonest behaviours that audits of orders must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrderExperiment {
    /// Train only every second segment
    Lazy,
}

/// Where executors run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ExecutorKind {
    /// Processes of this machine
    Processes,
    /// Jobs of Slurm
    Slurm,
    /// Jobs of Kubernetes
    Kubernetes,
}

impl ExecutorKind {
    /// Its name in policies.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Processes => "processes",
            Self::Slurm => "slurm",
            Self::Kubernetes => "kubernetes",
        }
    }
}

/// `florin execute-segments`
#[derive(Debug, Args)]
pub(crate) struct ExecuteSegments {
    /// The folder of the work
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    /// Network interface of the transfers between ranks
    #[arg(long, value_name = "NAME")]
    pub(crate) rank_interface: Option<String>,
}

/// `florin provide`
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("offers").args(["orders", "list"]).multiple(true))]
#[command(after_help = "Orders for compute: florin provide --orders orders.toml --market \
    http://127.0.0.1:7700 --wallet me.json\n\nMay be stopped and started again at any moment. With \
    --json each event is one JSON object.")]
pub(crate) struct Provide {
    /// Task to evaluate, until it ends: its id, or the first digits (6 or more) [default: every
    /// task that pays providers]
    #[arg(long, value_name = "ID")]
    pub(crate) task: Option<String>,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    /// The most to deposit as stake in total, also after slashes. A task that requires more is
    /// skipped
    #[arg(long, value_name = "FLN", required_unless_present_any = ["orders", "list", "unlist",
        "dry_run", "backend", "experiment"])]
    pub(crate) max_stake: Option<Amount>,
    /// Take part in orders for compute instead of tasks: bid, audit and referee by this policy
    /// (TOML), which has the limits of all deposits; see docs/providing.md
    #[arg(long, value_name = "FILE", conflicts_with_all = ["task", "max_stake", "arbiter",
        "trust_coordinator", "weights", "accept_trainer"])]
    pub(crate) orders: Option<PathBuf>,
    /// List the cores of this machine by this file (TOML): measure a card, deposit a stake, and prove the devices
    /// by probes until the listing ends; alone or with --orders; see docs/providing.md
    #[arg(long, value_name = "FILE", conflicts_with_all = ["task", "max_stake", "arbiter",
        "trust_coordinator", "weights", "accept_trainer", "experiment"])]
    pub(crate) list: Option<PathBuf>,
    /// With --list: end the listing of an earlier run, and wait for the stake
    #[arg(long, requires = "list", conflicts_with = "orders")]
    pub(crate) unlist: bool,
    /// Deposit nothing. With --orders: only show the orders that take bids, with the expected pay, the deposit and the
    /// time of each, and why others are left out. With --list alone: the deposits, and the expected earnings
    #[arg(long, requires = "offers", conflicts_with_all = ["experiment", "unlist"])]
    pub(crate) dry_run: bool,
    /// With --orders: compute segments by executors on the devices of the policy's [executors] table: processes
    /// of this machine, or jobs of Slurm or Kubernetes; see docs/providing.md
    #[arg(
        long,
        value_enum,
        value_name = "NAME",
        requires = "orders",
        conflicts_with = "experiment"
    )]
    pub(crate) backend: Option<ExecutorKind>,
    /// With --orders: misbehave, for the demonstration
    #[arg(long, value_enum, hide = true, requires = "orders")]
    pub(crate) experiment: Option<OrderExperiment>,
    #[command(flatten)]
    pub(crate) arbiters: ArbiterArg,
    /// Directory for persistent state [default: a folder next to the wallet]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    #[command(flatten)]
    pub(crate) weights: WeightsArg,
    #[command(flatten)]
    pub(crate) trainers: TrainerHostArg,
    #[command(flatten)]
    pub(crate) trace: TraceArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin ledger …`
#[derive(Debug, Subcommand)]
pub(crate) enum LedgerCommand {
    /// Deploy a market's contracts on an Ethereum chain
    Deploy(LedgerDeploy),
    /// Show a market's contracts: the chain, their balances, whether the node answers
    Status(LedgerStatus),
    /// Show the newest block that the operator of an embedded ledger has signed
    Head(LedgerHead),
    /// Write the newest signed block of an embedded ledger into a transaction on Ethereum
    Anchor(LedgerAnchor),
    /// Rebuild a ledger's state from its history and compare it with the recorded state
    Verify(LedgerVerify),
}

/// `florin page`
#[derive(Debug, Args)]
#[command(
    after_help = "A coordinator serves the same page at its own address. This command serves it for a market whose \
        coordinator does not, or where you trust this program's check of the reports more than the \
        coordinator's. It answers on this machine alone, and carries queries alone."
)]
pub(crate) struct Page {
    #[command(flatten)]
    pub(crate) market: MarketArg,
    /// Address and port of the page, on this machine; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7780")]
    pub(crate) listen: SocketAddr,
}
