//! The arguments of the demonstration, the doctor and the benchmarks.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use florin_protocol::UpdateFormat;

use super::{AnvilArg, EngineArg, JsonArg, LedgerKind};

/// `florin demo`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  florin demo\n  florin demo --seed 7 --rounds 5\n  \
    florin demo --ledger ethereum --anvil path/to/anvil\n  \
    florin demo --json result.json --out report.html --keep market/")]
pub(crate) struct Demo {
    /// Repeats money and scores exactly on one machine
    #[arg(long, default_value_t = crate::demo::plan::SEED)]
    pub(crate) seed: u64,
    /// Rounds of the task
    #[arg(long, default_value_t = crate::demo::plan::ROUNDS,
          value_parser = clap::value_parser!(u32).range(1..=200))]
    pub(crate) rounds: u32,
    /// How updates are written: f32, bf16, int8, or top_k:N for the largest N of 1000 numbers
    #[arg(long, default_value = "f32", value_parser = crate::demo::plan::format)]
    pub(crate) format: UpdateFormat,
    /// Which ledger keeps the money
    #[arg(long, value_enum, default_value_t = LedgerKind::Embedded)]
    pub(crate) ledger: LedgerKind,
    #[command(flatten)]
    pub(crate) anvil: AnvilArg,
    /// Write the outcome as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the report here
    #[arg(long, value_name = "FILE", default_value = "florin-demo.html")]
    pub(crate) out: PathBuf,
    /// Keep wallets, shards, logs and the ledger in this new folder
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
}

/// `florin doctor`
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Also look at this coordinator's data folder
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) anvil: AnvilArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin bench`
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// What to measure
    #[arg(value_enum)]
    pub(crate) name: BenchName,
    /// Write the rows as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Folder of Python packages (torch, numpy; for contribution shapiq, pyDVL) for the neighbours' rows
    #[arg(long, value_name = "DIR")]
    pub(crate) python: Option<PathBuf>,
    /// server, round, sim: a neighbour to measure in the same run, which `cargo xtask bench` fetches; sim takes several
    #[arg(long, value_enum)]
    pub(crate) peer: Vec<PeerArg>,
    #[command(flatten)]
    pub(crate) contribution: BenchContribution,
    #[command(flatten)]
    pub(crate) door: BenchDoor,
    #[command(flatten)]
    pub(crate) uploads: BenchUploads,
    #[command(flatten)]
    pub(crate) soak: BenchSoak,
    #[command(flatten)]
    pub(crate) wire: BenchWire,
}

/// What only `florin bench wire` listens to.
#[derive(Debug, Args)]
pub(crate) struct BenchWire {
    /// wire: tasks that are trained in each format, one for each seed from 1 on
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(2..=100))]
    pub(crate) seeds: u64,
}

/// Neighbours that are measured only where somebody asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PeerArg {
    /// Flower: a SuperLink and four SuperNodes; for sim its simulation
    Flower,
    /// sim: Apple's pfl-research
    Pfl,
}

/// What only `florin bench door` listens to.
#[derive(Debug, Args)]
pub(crate) struct BenchDoor {
    /// door: bad connections at once
    #[arg(long, value_name = "N", default_value_t = 2_000,
          value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) connections: u32,
}

/// What only `florin bench uploads` listens to.
#[derive(Debug, Args)]
pub(crate) struct BenchUploads {
    /// uploads: large updates at once; fewer where the disk has no room for them
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) uploads: u32,
    /// uploads: size of each, in MB
    #[arg(long, value_name = "MB", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(1..=4_000))]
    pub(crate) megabytes: u32,
}

/// What only `florin bench soak` listens to.
#[derive(Debug, Args)]
pub(crate) struct BenchSoak {
    /// soak: for how long
    #[arg(long, value_name = "N", default_value_t = 30,
          value_parser = clap::value_parser!(u32).range(1..=10_080))]
    pub(crate) minutes: u32,
    /// soak: participants, each a process of its own
    #[arg(long, value_name = "N", default_value_t = 50,
          value_parser = clap::value_parser!(u32).range(2..=500))]
    pub(crate) participants: u32,
    /// soak: seconds from one kill to the next; participant, provider and coordinator take turns
    #[arg(long, value_name = "S", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) kill_every: u32,
}

/// What only `florin bench contribution` listens to.
#[derive(Debug, Args)]
pub(crate) struct BenchContribution {
    /// contribution: a few minutes instead of an hour, on fewer games and rounds
    #[arg(long)]
    pub(crate) quick: bool,
    /// contribution: only how long exact values and paths take beside libtorch, in a minute and without peers
    #[arg(long, conflicts_with_all = ["quick", "rounds", "idx"])]
    pub(crate) speed: bool,
    /// contribution: training rounds of each kind, seed and number of players
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=50))]
    pub(crate) rounds: Option<u32>,
    /// contribution: also rounds on the MNIST-like IDX files of this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) idx: Option<PathBuf>,
    /// contribution, attacks: write plots into this folder, and refresh the tables of its contribution.md; wire: the
    /// table of its operations.md
    #[arg(long, value_name = "DIR")]
    pub(crate) docs: Option<PathBuf>,
}

/// `florin fuzz`
#[derive(Debug, Args)]
pub(crate) struct Fuzz {
    /// For how long, beyond the corpus itself
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub(crate) seconds: u32,
    /// What repeats a run, as far as its time goes
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// The folder with a folder of inputs for each target; what breaks something is added to it
    #[arg(long, value_name = "DIR", default_value = "tests/fuzz")]
    pub(crate) corpus: PathBuf,
    /// Add so many small inputs to each target's folder that behave in a way of their own
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) keep: u32,
    /// Only this target, in this process
    #[arg(long, value_name = "NAME")]
    pub(crate) target: Option<String>,
    /// With --target: take whatever behaves like this for a panic, to see that the target gets there
    #[arg(long, value_name = "TEXT", requires = "target")]
    pub(crate) plant: Option<String>,
    /// With --target: write each input here before it is tried
    #[arg(long, value_name = "FILE", requires = "target")]
    pub(crate) input: Option<PathBuf>,
}

/// The benchmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchName {
    /// Aggregating updates of millions of floats
    Aggregate,
    /// One participant's training steps
    Train,
    /// Durable transfers
    Ledger,
    /// Updates that a coordinator takes, and what each costs it
    Server,
    /// A round of four participants, each a process of its own
    Round,
    /// Honest requests beside thousands of slow, idle and dribbling connections
    Door,
    /// Large updates at once, beside copying and hashing the same bytes
    Uploads,
    /// A start on a journal of a million events, with snapshots and without
    Recovery,
    /// A market in which somebody is killed every minute
    Soak,
    /// What attackers of the demonstration's market earn, beside what they earn honestly
    Attacks,
    /// What updates are worth, beside shapiq and pyDVL
    Contribution,
    /// A simulated round beside other simulators', and what the market adds to it
    Sim,
    /// The formats of updates: bytes, and what they cost the demonstration's model in accuracy
    Wire,
}
