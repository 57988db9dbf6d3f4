//! The arguments of the incentive laboratory.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use florin_faults::Bug;
use florin_sim::scenario::Change;

use super::JsonArg;

/// `florin sim`
#[derive(Debug, Subcommand)]
pub(crate) enum Sim {
    /// The scenarios that come with the program, and what each asks
    List(SimList),
    /// Print a scenario as TOML, every key written out
    Show(SimShow),
    /// Play a scenario over its seeds, and say what everybody earned
    #[command(after_help = "Examples:\n  florin sim run copying\n  \
        florin sim run copying --set task.commit_reveal=false --out without/\n  \
        florin sim run my.toml --seeds 30 --json")]
    Run(SimRun),
    /// Look for the strategy that gains most against a scenario's mechanism, and measure it on fresh seeds
    #[command(after_help = "Examples:\n  florin sim attack attacks --out attacks/\n  \
        florin sim attack attacks --set task.bond_per_row=0.5 --seeds 5")]
    Attack(SimRun),
    /// Play one game again, named SEED@COMMIT, and hold it against what a results folder has of it
    Replay(SimReplay),
    /// Play a scenario for every combination of some values; go on where an earlier sweep was stopped
    Sweep(SimSweep),
    /// Results beside each other, and what differs beyond chance
    Compare(SimCompare),
    /// Whole tasks while messages get lost, processes die and disks fail; an auditor says what must not be
    Faults(SimFaults),
}

/// `florin sim list`
#[derive(Debug, Args)]
pub(crate) struct SimList {
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// Which scenario, and what is changed in it.
#[derive(Debug, Args)]
pub(crate) struct ScenarioArg {
    /// A scenario that comes with the program (`florin sim list`), or a file ending in .toml; to replay, also a folder
    /// that `florin sim run --out` wrote
    pub(crate) scenario: String,
    /// Change a key of it, such as population.honest.count=8; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) changes: Vec<Change>,
}

/// `florin sim show`
#[derive(Debug, Args)]
pub(crate) struct SimShow {
    #[command(flatten)]
    pub(crate) what: ScenarioArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// How an experiment is played.
#[derive(Debug, Args)]
pub(crate) struct PlayArg {
    /// The first seed, instead of the scenario's
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// How many seeds, instead of the scenario's
    #[arg(long, value_name = "N")]
    pub(crate) seeds: Option<u32>,
    /// Games at once; all cores unless said. It changes nothing but the time
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
    /// Write scenario, figures, members and rounds into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin sim replay`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  florin sim replay 7@0123456789ab results/\n  \
    florin sim replay 7@0123456789ab copying --set task.commit_reveal=false")]
pub(crate) struct SimReplay {
    /// The game, as the column `game` of a results folder names it
    #[arg(value_name = "SEED@COMMIT")]
    pub(crate) game: String,
    // Here the scenario may also be a folder that `florin sim run --out` wrote.
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
    /// A key and the values it shall have, such as task.withheld=0,1,2,3; may be repeated
    #[arg(long, value_name = "KEY=V1,V2,…", required = true)]
    pub(crate) vary: Vec<String>,
    /// Play so many combinations only, drawn from all of them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) draw: Option<u32>,
    /// Folder for the results, one folder in it for each combination
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin sim compare`
#[derive(Debug, Args)]
pub(crate) struct SimCompare {
    /// Folder with results
    pub(crate) a: PathBuf,
    /// Another one
    pub(crate) b: PathBuf,
    /// More of them, for the page
    pub(crate) more: Vec<PathBuf>,
    /// Write a page with plots of all of them into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin sim faults`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  florin sim faults --seeds 20000\n  \
    florin sim faults --seed 17        one seed, with everything that happens in it")]
pub(crate) struct SimFaults {
    /// How many seeds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) seeds: Option<u64>,
    /// The first seed; without --seeds this one alone, with its trace
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Rounds of each seed's task
    #[arg(long, value_name = "N", default_value_t = florin_faults::ROUNDS,
        value_parser = clap::value_parser!(u32).range(1..=50))]
    pub(crate) rounds: u32,
    /// Seeds at once; all cores unless said. It changes nothing but the time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub(crate) threads: Option<u16>,
    /// Plant a bug around the market's code, to see that it is found
    #[arg(long, value_name = "NAME", hide = true)]
    pub(crate) bug: Option<Bug>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}
