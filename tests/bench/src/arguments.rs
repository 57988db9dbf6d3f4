//! The arguments of `florin-bench`.

use std::path::PathBuf;

use clap::{Args, Parser, ValueEnum};
use florin::failure::Failure;
use florin::log::LogOptions;

/// Measures Florin against its limits and against peers.
#[derive(Debug, Parser)]
#[command(name = "florin-bench", version, max_term_width = 100, arg_required_else_help = true)]
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
    #[command(flatten)]
    pub(crate) pay: BenchPay,
    #[command(flatten)]
    pub(crate) models: BenchModels,
    #[command(flatten)]
    pub(crate) devices: BenchDevices,
    #[command(flatten)]
    pub(crate) keys: BenchKeys,
    #[command(flatten)]
    pub(crate) rounds: BenchRounds,
    #[command(flatten)]
    pub(crate) compute: BenchCompute,
    #[command(flatten)]
    pub(crate) log: LogOptions,
}

/// Options of `florin-bench wire`.
#[derive(Debug, Args)]
pub(crate) struct BenchWire {
    /// wire: number of tasks trained in each format, with seeds 1 to N
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(2..=100))]
    pub(crate) seeds: u64,
}

/// Options of `florin-bench rounds`.
#[derive(Debug, Args)]
pub(crate) struct BenchRounds {
    /// rounds: number of members of the simulated market
    #[arg(long, value_name = "N", default_value_t = 200,
          value_parser = clap::value_parser!(u32).range(40..=10_000))]
    pub(crate) members: u32,
    /// rounds: number of rounds of each task
    #[arg(long = "task-rounds", id = "task_rounds", value_name = "N", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(5..=1_000))]
    pub(crate) rounds: u32,
}

/// Options of `florin-bench compute`.
#[derive(Debug, Args)]
pub(crate) struct BenchCompute {
    /// compute: only choose the settings of the policies, on seeds that measure nothing
    #[arg(long)]
    pub(crate) choose: bool,
}

/// Largest first seed: all seeds of a benchmark are below 2^63, as in a scenario.
const FIRST_SEED_MAX: u64 = 1 << 62;

/// Options of `florin-bench pay`, `rounds`, `compute` and `models`.
#[derive(Debug, Args)]
pub(crate) struct BenchPay {
    /// pay, rounds: number of tasks per figure
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(2..=1_000))]
    pub(crate) tasks: u64,
    /// pay, rounds: seed of the first task
    #[arg(long, value_name = "SEED", default_value_t = 101,
          value_parser = clap::value_parser!(u64).range(..=FIRST_SEED_MAX))]
    pub(crate) first_seed: u64,
    /// pay, rounds: only the markets whose name contains this text; compute: only such parts (schedule,
    /// decision, cores, leases, laboratory, orders, listings, valuation); models --library: only such models, by one of several texts with commas
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,
}

/// Refuses a text of `--only` that is in no name.
///
/// # Errors
/// `UNKNOWN_NAME`, with all names.
pub(crate) fn check_only(only: Option<&str>, names: &[impl AsRef<str>]) -> Result<(), Failure> {
    match only {
        Some(only) if !names.iter().any(|name| name.as_ref().contains(only)) => {
            let names: Vec<String> =
                names.iter().map(|name| format!("{:?}", name.as_ref())).collect();
            let message =
                format!("--only {only:?} is in no name: use a part of {}", names.join(", "));
            Err(Failure::input("UNKNOWN_NAME", message))
        }
        _ => Ok(()),
    }
}

/// Options of `florin-bench models`.
#[derive(Debug, Args)]
pub(crate) struct BenchModels {
    /// models: threads of an operation, here and in PyTorch
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) threads: u16,
    /// models: on the first GPU
    #[arg(long)]
    pub(crate) cuda: bool,
    /// models: also measure torch.compile, which takes minutes
    #[arg(long)]
    pub(crate) compile: bool,
    /// models: compare a step of each of 370 models of torchvision, timm and transformers with
    /// PyTorch, which takes half an hour
    #[arg(long, conflicts_with_all = ["cuda", "compile"])]
    pub(crate) library: bool,
    /// models: measure the memory that the valuation of updates of 100 million numbers takes; it
    /// needs 8 GB of disk
    #[arg(long, conflicts_with_all = ["cuda", "compile", "library"])]
    pub(crate) memory: bool,
    /// The number of updates that a process of `--memory` values
    #[arg(long, hide = true, requires = "exported")]
    pub(crate) memory_of: Option<usize>,
    /// The folder of the exported model
    #[arg(long, hide = true)]
    pub(crate) exported: Option<PathBuf>,
}

/// Options of `florin-bench devices`.
#[derive(Debug, Args)]
pub(crate) struct BenchDevices {
    /// devices: folder of Open MPI, as fetched by `cargo xtask bench`
    #[arg(long, value_name = "DIR")]
    pub(crate) openmpi: Option<PathBuf>,
    /// devices: only the predictions of `florin quote`
    #[arg(long)]
    pub(crate) quotes: bool,
    /// devices: only the memory of steps
    #[arg(long)]
    pub(crate) step_memory: bool,
    /// devices: only steps on the first GPU: within a part of its memory, and on several processes
    #[arg(long)]
    pub(crate) gpu: bool,
    /// devices: only transfers behind computation, on a slow link
    #[arg(long)]
    pub(crate) overlap: bool,
    /// devices: only the fit of Pollux's step times to its published measurements: the folder
    /// simulator/traces of the branch osdi21-artifact of petuum/adaptdl
    #[arg(long, value_name = "DIR")]
    pub(crate) pollux: Option<PathBuf>,
    /// devices: only assignments of workers to ranks
    #[arg(long)]
    pub(crate) assignments: bool,
    /// devices: only graphs in parts on several processes
    #[arg(long)]
    pub(crate) pipelines: bool,
    /// devices: only reductions of one vector, beside c10d's and Open MPI's
    #[arg(long)]
    pub(crate) reduce: bool,
    /// The numbers of a vector that this process reduces with others
    #[arg(long, hide = true)]
    pub(crate) reduce_elements: Option<usize>,
    /// The work of one process, as JSON
    #[arg(long, hide = true)]
    pub(crate) rank_work: Option<String>,
    /// The number of processes that this one starts for the work
    #[arg(long, hide = true, requires = "rank_work")]
    pub(crate) start: Option<u32>,
}

/// Options of `florin-bench keys`.
#[derive(Debug, Args)]
pub(crate) struct BenchKeys {
    /// keys: the figures that tests measured, as lines of JSON; `cargo xtask bench` writes them
    #[arg(long, value_name = "FILE")]
    pub(crate) figures: Option<PathBuf>,
}

/// Peers that are measured only on request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PeerArg {
    /// Flower: a SuperLink and four SuperNodes; for sim its simulator
    Flower,
    /// sim: Apple's pfl-research
    Pfl,
}

/// Options of `florin-bench listener`.
#[derive(Debug, Args)]
pub(crate) struct BenchListener {
    /// listener: number of concurrent bad connections
    #[arg(long, value_name = "N", default_value_t = 2_000,
          value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) connections: u32,
}

/// Options of `florin-bench uploads`.
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

/// Options of `florin-bench soak`.
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

/// Options of `florin-bench contribution`.
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

/// The benchmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchName {
    /// Aggregation of updates with millions of floats
    Aggregate,
    /// Training steps of one participant
    Train,
    /// Training steps and valuation of exported models beside PyTorch
    Models,
    /// Trainings on several processes beside PyTorch's DistributedDataParallel
    Devices,
    /// Durable transfers
    Ledger,
    /// Updates that a coordinator accepts per second, and the cost of each
    Server,
    /// A round of four participants, each in its own process
    Round,
    /// Selection, deadlines and asynchronous rounds beside Oort, TiFL, REFL and random selection
    Rounds,
    /// The devices of a provider: completion times beside whole nodes, Optimus and Gavel, and the time
    /// of a decision
    Compute,
    /// Honest requests beside thousands of slow, idle and dribbling connections
    Listener,
    /// Concurrent large uploads, beside copying and hashing the same bytes
    Uploads,
    /// The time of an event of a trace, and of those of a round
    Traces,
    /// Recovery from a journal of a million events, with and without snapshots
    Recovery,
    /// A market in which a process is killed every minute
    Soak,
    /// Earnings of attackers in the demonstration's market, beside their honest earnings
    Attacks,
    /// Earnings of honest members and of attackers on real tables, with softmax regression and a
    /// network
    Pay,
    /// Shapley values of updates, beside shapiq and pyDVL
    Contribution,
    /// A simulated round beside other simulators, and the overhead of the market
    Sim,
    /// The most that a key can take, the price of shutting a market, rows read from updates, gas, and
    /// signature checks
    Keys,
    /// The page in a browser, and its cost with a thousand viewers
    Page,
    /// The update formats: their size, and their effect on the accuracy of the demonstration's
    /// model
    Wire,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_seed_without_room_for_more_is_refused() {
        let parse = |seed: &str| BenchArgs::try_parse_from(["b", "rounds", "--first-seed", seed]);
        assert!(parse("18446744073709551615").is_err());
        assert_eq!(parse("101").unwrap().pay.first_seed, 101);
    }

    #[test]
    fn a_text_of_only_that_is_in_no_name_is_refused_with_the_names() {
        let names = ["buffered", "silos"];
        assert!(check_only(None, &names).is_ok() && check_only(Some("silo"), &names).is_ok());
        let failure = check_only(Some("nonsense"), &names).unwrap_err();
        let text = failure.to_string();
        assert!(text.contains("nonsense") && text.contains("\"buffered\", \"silos\""), "{text}");
        let (code, exit) = florin::failure::classify(&failure.into());
        assert_eq!((code.as_str(), exit), ("UNKNOWN_NAME", florin::failure::Exit::Input));
    }
}
