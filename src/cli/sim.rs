//! Arguments of the simulator, `florin sim`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use florin_faults::Bug;
use florin_sim::scenario::SettingOverride;

use super::{JsonArg, TraceArg};

/// `florin sim`
#[derive(Debug, Subcommand)]
pub(crate) enum SimCommand {
    /// List the built-in scenarios and the question of each
    List(SimList),
    /// Print a scenario as TOML with every key
    Show(SimShow),
    /// Run a scenario over its seeds and print the earnings of each group
    #[command(after_help = "Examples:\n  florin sim run copying\n  \
        florin sim run copying --set task.commit_reveal=false --out without/\n  \
        florin sim run my.toml --seeds 30 --json")]
    Run(SimRun),
    /// Search for the strategy that gains most under a scenario's rules, and measure it on fresh
    /// seeds
    #[command(after_help = "Examples:\n  florin sim attack attacks --out attacks/\n  \
        florin sim attack attacks --set task.bond_per_row=0.5 --seeds 5")]
    Attack(SimRun),
    /// Repeat one simulation, named SEED@COMMIT, and compare it with a results folder
    Replay(SimReplay),
    /// Run a scenario for every combination of given values; an interrupted sweep resumes
    Sweep(SimSweep),
    /// Compare results folders and print the significant differences
    Compare(SimCompare),
    /// Run whole tasks with lost messages, crashed processes and failing disks; an auditor checks
    /// the invariants
    Faults(SimFaults),
}

/// `florin sim list`
#[derive(Debug, Args)]
pub(crate) struct SimList {
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// A scenario and the keys that are changed in it.
#[derive(Debug, Args)]
pub(crate) struct ScenarioArg {
    /// A built-in scenario (`florin sim list`) or a file ending in .toml; for replay also a folder
    /// written by `florin sim run --out`
    pub(crate) scenario: String,
    /// Set a key of the scenario, such as population.honest.count=8; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) changes: Vec<SettingOverride>,
}

/// `florin sim show`
#[derive(Debug, Args)]
pub(crate) struct SimShow {
    #[command(flatten)]
    pub(crate) scenario: ScenarioArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// Seeds and threads of an experiment.
#[derive(Debug, Args)]
pub(crate) struct PlayArg {
    /// First seed [default: the scenario's]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Number of seeds [default: the scenario's]
    #[arg(long, value_name = "N")]
    pub(crate) seeds: Option<u32>,
    /// Simulations run in parallel [default: all cores]; does not change the results
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub(crate) threads: Option<u16>,
}

/// `florin sim run` and `florin sim attack`
#[derive(Debug, Args)]
pub(crate) struct SimRun {
    #[command(flatten)]
    pub(crate) what: ScenarioArg,
    #[command(flatten)]
    pub(crate) play: PlayArg,
    /// Write the scenario, the figures, the members and the rounds into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) trace: TraceArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin sim replay`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  florin sim replay 7@0123456789ab results/\n  \
    florin sim replay 7@0123456789ab copying --set task.commit_reveal=false")]
pub(crate) struct SimReplay {
    /// The simulation, as in the column `run` of a results folder
    #[arg(value_name = "SEED@COMMIT")]
    pub(crate) run: String,
    // For replay, the scenario may also be a folder that `florin sim run --out` wrote.
    #[command(flatten)]
    pub(crate) what: ScenarioArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin sim sweep`
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  florin sim sweep noise --vary task.bond_per_row=0.01,0.1,1 \
    --vary population.noise.strategy.scale=0.5,1,2 --out bonds/")]
pub(crate) struct SimSweep {
    #[command(flatten)]
    pub(crate) what: ScenarioArg,
    #[command(flatten)]
    pub(crate) play: PlayArg,
    /// A key and its values, such as task.confidence_z=0,1,2,3; may be repeated
    #[arg(long, value_name = "KEY=V1,V2,…", required = true)]
    pub(crate) vary: Vec<String>,
    /// Run only N combinations, drawn at random
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) draw: Option<u32>,
    /// Results folder, with one subfolder per combination
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin sim compare`
#[derive(Debug, Args)]
pub(crate) struct SimCompare {
    /// Results folder
    pub(crate) a: PathBuf,
    /// Second results folder
    pub(crate) b: PathBuf,
    /// Further results folders, for the page
    pub(crate) more: Vec<PathBuf>,
    /// Write an HTML page with plots of all results into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin sim faults`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  florin sim faults --seeds 20000\n  \
    florin sim faults --seed 17        one seed, with its trace")]
pub(crate) struct SimFaults {
    /// Number of seeds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) seeds: Option<u64>,
    /// First seed; without --seeds only this seed, with its trace
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Rounds of each task
    #[arg(long, value_name = "N", default_value_t = florin_faults::ROUNDS,
        value_parser = clap::value_parser!(u32).range(1..=50))]
    pub(crate) rounds: u32,
    /// Seeds run in parallel [default: all cores]; does not change the results
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub(crate) threads: Option<u16>,
    /// Inject a bug around the market's code, to test that the auditor finds it
    #[arg(long, value_name = "NAME", hide = true)]
    pub(crate) bug: Option<Bug>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}
