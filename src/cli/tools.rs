//! Arguments of `florin demo`, `doctor`, `completions`, `man`, `bench` and `fuzz`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use clap_complete::Shell;
use florin_protocol::UpdateFormat;

use super::{AnvilArg, EngineArg, JsonArg, LedgerKind};

/// `florin demo`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  florin demo\n  florin demo --seed 7 --rounds 5\n  \
    florin demo --ledger ethereum --anvil path/to/anvil\n  \
    florin demo --json result.json --out report.html --keep market/")]
pub(crate) struct Demo {
    /// Seed; repeats payouts and scores exactly on the same machine
    #[arg(long, default_value_t = crate::demo::plan::SEED)]
    pub(crate) seed: u64,
    /// Number of rounds
    #[arg(long, default_value_t = crate::demo::plan::ROUNDS,
          value_parser = clap::value_parser!(u32).range(1..=200))]
    pub(crate) rounds: u32,
    /// Format of the updates: f32, bf16, int8, or top_k:N for the largest N of 1000 values
    #[arg(long, default_value = "f32", value_parser = crate::demo::plan::format)]
    pub(crate) format: UpdateFormat,
    /// Ledger of the market
    #[arg(long, value_enum, default_value_t = LedgerKind::Embedded)]
    pub(crate) ledger: LedgerKind,
    #[command(flatten)]
    pub(crate) anvil: AnvilArg,
    /// Write the result as JSON to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the HTML report to this file
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
    /// Also check this coordinator data folder
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) anvil: AnvilArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin completions`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    florin completions bash > ~/.local/share/bash-completion/completions/florin\n  \
    florin completions zsh > ~/.zfunc/_florin\n  \
    florin completions fish > ~/.config/fish/completions/florin.fish")]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// `florin man`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  florin man --out ~/.local/share/man/man1 && man florin-task-show"
)]
pub(crate) struct ManualPages {
    /// Folder for the pages, one for each command; created if it does not exist. Existing pages are
    /// replaced
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

/// `florin bench`
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// The benchmark
    #[arg(value_enum)]
    pub(crate) name: BenchName,
    /// Write the rows as JSON to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Folder of Python packages for the peers' rows (torch, numpy; for contribution shapiq, pyDVL)
    #[arg(long, value_name = "DIR")]
    pub(crate) python: Option<PathBuf>,
    /// server, round, sim: a peer to measure in the same run, as fetched by `cargo xtask bench`;
    /// sim accepts several
    #[arg(long, value_enum)]
    pub(crate) peer: Vec<PeerArg>,
    #[command(flatten)]
    pub(crate) contribution: BenchContribution,
    #[command(flatten)]
    pub(crate) listener: BenchListener,
    #[command(flatten)]
    pub(crate) uploads: BenchUploads,
    #[command(flatten)]
    pub(crate) soak: BenchSoak,
    #[command(flatten)]
    pub(crate) wire: BenchWire,
}

/// Options of `florin bench wire`.
#[derive(Debug, Args)]
pub(crate) struct BenchWire {
    /// wire: number of tasks trained in each format, with seeds 1 to N
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(2..=100))]
    pub(crate) seeds: u64,
}

/// Peers that are measured only on request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PeerArg {
    /// Flower: a SuperLink and four SuperNodes; for sim its simulator
    Flower,
    /// sim: Apple's pfl-research
    Pfl,
}

/// Options of `florin bench listener`.
#[derive(Debug, Args)]
pub(crate) struct BenchListener {
    /// listener: number of concurrent bad connections
    #[arg(long, value_name = "N", default_value_t = 2_000,
          value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) connections: u32,
}

/// Options of `florin bench uploads`.
#[derive(Debug, Args)]
pub(crate) struct BenchUploads {
    /// uploads: number of concurrent large updates; fewer if the disk lacks space
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) uploads: u32,
    /// uploads: size of each update, in MB
    #[arg(long, value_name = "MB", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(1..=4_000))]
    pub(crate) megabytes: u32,
}

/// Options of `florin bench soak`.
#[derive(Debug, Args)]
pub(crate) struct BenchSoak {
    /// soak: duration in minutes
    #[arg(long, value_name = "N", default_value_t = 30,
          value_parser = clap::value_parser!(u32).range(1..=10_080))]
    pub(crate) minutes: u32,
    /// soak: number of participants, each in its own process
    #[arg(long, value_name = "N", default_value_t = 50,
          value_parser = clap::value_parser!(u32).range(2..=500))]
    pub(crate) participants: u32,
    /// soak: seconds between kills; participant, provider and coordinator take turns
    #[arg(long, value_name = "S", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) kill_every: u32,
}

/// Options of `florin bench contribution`.
#[derive(Debug, Args)]
pub(crate) struct BenchContribution {
    /// contribution: fewer games and rounds; a few minutes instead of an hour
    #[arg(long)]
    pub(crate) quick: bool,
    /// contribution: measure only the time of exact values and path integrals beside libtorch; a
    /// minute, without peers
    #[arg(long, conflicts_with_all = ["quick", "rounds", "idx"])]
    pub(crate) speed: bool,
    /// contribution: training rounds for each kind, seed and number of players
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=50))]
    pub(crate) rounds: Option<u32>,
    /// contribution: also use the MNIST-like IDX files of this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) idx: Option<PathBuf>,
    /// contribution, attacks: write plots into this folder and refresh the tables of its
    /// contribution.md; wire: the table of its operations.md
    #[arg(long, value_name = "DIR")]
    pub(crate) docs: Option<PathBuf>,
}

/// `florin fuzz`
#[derive(Debug, Args)]
pub(crate) struct Fuzz {
    /// Duration in seconds, after the corpus
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub(crate) seconds: u32,
    /// Seed of the mutations
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Corpus: a folder with one folder of inputs per target; a failing input is added to it
    #[arg(long, value_name = "DIR", default_value = "tests/fuzz")]
    pub(crate) corpus: PathBuf,
    /// Add up to N small inputs with distinct behaviour to the corpus of each target
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) add: u32,
    /// Run only this target, in this process
    #[arg(long, value_name = "NAME")]
    pub(crate) target: Option<String>,
    /// With --target: treat an outcome that contains this text as a panic, to test that the fuzzer
    /// reaches it
    #[arg(long, value_name = "TEXT", requires = "target")]
    pub(crate) inject: Option<String>,
    /// With --target: write each input to this file before it is tried
    #[arg(long, value_name = "FILE", requires = "target")]
    pub(crate) input: Option<PathBuf>,
}

/// The benchmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchName {
    /// Aggregation of updates with millions of floats
    Aggregate,
    /// Training steps of one participant
    Train,
    /// Durable transfers
    Ledger,
    /// Updates that a coordinator accepts per second, and the cost of each
    Server,
    /// A round of four participants, each in its own process
    Round,
    /// Honest requests beside thousands of slow, idle and dribbling connections
    Listener,
    /// Concurrent large uploads, beside copying and hashing the same bytes
    Uploads,
    /// Recovery from a journal of a million events, with and without snapshots
    Recovery,
    /// A market in which a process is killed every minute
    Soak,
    /// Earnings of attackers in the demonstration's market, beside their honest earnings
    Attacks,
    /// Shapley values of updates, beside shapiq and pyDVL
    Contribution,
    /// A simulated round beside other simulators, and the overhead of the market
    Sim,
    /// The update formats: their size, and their effect on the accuracy of the demonstration's
    /// model
    Wire,
}
