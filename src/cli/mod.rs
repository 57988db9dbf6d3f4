//! The command tree and its help texts. Nothing here does anything.

mod account;
mod buyer;
mod chain;
mod data;
mod keeping;
mod market;
mod sim;
mod tools;
mod wallet;

use std::ops::Range;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use florin_learning::EngineKind;
use florin_protocol::{Address, Amount};

use crate::log::Manner;

pub(crate) use account::{Audit, Balance, Claim, Statement, Transfer};
pub(crate) use buyer::{
    Task, TaskCheck, TaskClose, TaskList, TaskModel, TaskNew, TaskPublish, TaskShow,
};
pub(crate) use chain::{
    Anvil, AnvilArg, ChainArg, LedgerDeploy, LedgerKind, LedgerStatus, NodeArg,
};
pub(crate) use data::{Data, DataShow, DataSplit};
pub(crate) use keeping::{Backup, Restore};
pub(crate) use market::{Coordinate, Experiment, LedgerCommand, Participate, Provide};
pub(crate) use sim::{
    PlayArg, ScenarioArg, Sim, SimCompare, SimFaults, SimList, SimReplay, SimRun, SimSweep,
};
pub(crate) use tools::{Bench, BenchName, BenchSoak, BenchUploads, Demo, Doctor, Fuzz, PeerArg};
pub(crate) use wallet::{Wallet, WalletExport, WalletImport, WalletNew, WalletShow};

/// A marketplace for trained models: buyers lock tokens behind a learning task, participants train on their own data,
/// and everybody is paid for what their work was measurably worth.
#[derive(Debug, Parser)]
#[command(
    name = "florin",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "Begin with `florin demo`: a whole market on this machine, in a minute.\n\
        Exit codes: 0 done · 1 the answer is no (differences, a refusal) · 2 wrong input · 3 something broke"
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Say more: -v what happens, -vv how.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// How the log's lines look on standard error: text for people, json for programs
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        default_value = "text",
        env = "FLORIN_LOG_FORMAT"
    )]
    pub(crate) log_format: LogFormat,
    /// Stop as soon as standard input closes: for a program that starts this one and must not leave it behind.
    #[arg(long, global = true, hide = true)]
    pub(crate) exit_with_parent: bool,
}

impl Cli {
    /// How the log is kept.
    pub(crate) const fn log(&self) -> Manner {
        Manner { verbose: self.verbose, format: self.log_format }
    }
}

/// How a log's lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a whole market on this machine: eight participants, one provider, ten paid and audited rounds
    Demo(Demo),
    /// For buyers: describe a task, fund it, watch it, fetch its model
    #[command(subcommand)]
    Task(Task),
    /// Run a market: its rounds, and its ledger unless that is on Ethereum
    Coordinate(Coordinate),
    /// For coordinators: copy a market's data folder, while it runs or not
    Backup(Backup),
    /// For coordinators: bring a backup back, checked, as a new data folder
    Restore(Restore),
    /// Train for a task on your own data, and be paid for it
    Participate(Participate),
    /// Stake compute and do the checkable work of a task
    Provide(Provide),
    /// Make, import, show and export the key file that your tokens belong to
    #[command(subcommand)]
    Wallet(Wallet),
    /// What an account holds: wallet, bonds, stake, and what it is owed
    Balance(Balance),
    /// Send tokens to another account
    Transfer(Transfer),
    /// Draw what a task owes you, and have debits taken by proof
    Claim(Claim),
    /// Why you were paid what you were paid, round by round, in words
    Statement(Statement),
    /// Recompute a task's reports from public bytes and name the first line that disagrees
    Audit(Audit),
    /// The ledger itself: deploy it, look at it, verify it
    #[command(subcommand)]
    Ledger(LedgerCommand),
    /// Look at data, and cut it into shards
    #[command(subcommand)]
    Data(Data),
    /// The incentive laboratory: what honesty and its alternatives earn, on the code that pays
    #[command(subcommand)]
    Sim(Sim),
    /// Print the OpenAPI description of a coordinator's interface, which it also serves at /openapi.json
    Openapi,
    /// What this machine has, what is missing, and what to do about it
    Doctor(Doctor),
    /// Measure this program against its limits and its neighbours
    #[command(hide = true)]
    Bench(Bench),
    /// Hand this program millions of broken inputs
    #[command(hide = true)]
    Fuzz(Fuzz),
    /// Run anvil until standard input closes: a development chain that nobody leaves behind
    #[command(hide = true)]
    Anvil(Anvil),
}

/// Which market.
#[derive(Debug, Clone, Args)]
pub(crate) struct MarketArg {
    /// Where its coordinator listens, such as http://127.0.0.1:7700 or https://market.example
    #[arg(long, value_name = "URL", env = "FLORIN_MARKET")]
    pub(crate) market: String,
    #[command(flatten)]
    pub(crate) trust: TrustArg,
    #[command(flatten)]
    pub(crate) node: NodeArg,
}

/// Whom to believe that a market is the one it says.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct TrustArg {
    /// Believe an https:// market only with this certificate, or one signed by it (PEM) [default: who this system trusts]
    #[arg(long, value_name = "FILE", env = "FLORIN_CERTIFICATE")]
    pub(crate) certificate: Option<PathBuf>,
}

/// Whose key.
#[derive(Debug, Clone, Args)]
pub(crate) struct WalletArg {
    /// The key file (keystore v3, as other Ethereum tools read and write it)
    #[arg(long, value_name = "FILE", env = "FLORIN_WALLET")]
    pub(crate) wallet: PathBuf,
    #[command(flatten)]
    pub(crate) passphrase: PassphraseArg,
}

/// Where the passphrase comes from. Never a flag: flags are visible to everybody on the machine.
#[derive(Debug, Clone, Args)]
pub(crate) struct PassphraseArg {
    /// Read the passphrase from this file's first line; otherwise from FLORIN_PASSPHRASE, otherwise it is asked for
    #[arg(long, value_name = "FILE")]
    pub(crate) passphrase_file: Option<PathBuf>,
}

/// For programs.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct JsonArg {
    /// Print JSON: the same figures, amounts as integer strings of base units (10^-18 FLN)
    #[arg(long)]
    pub(crate) json: bool,
}

/// What computes.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct EngineArg {
    /// What trains and evaluates: auto, torch, cuda, or reference (plain Rust; no convolutions)
    #[arg(long, value_name = "NAME", default_value_t = EngineKind::Auto, env = "FLORIN_ENGINE")]
    pub(crate) engine: EngineKind,
    /// Threads it may use
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: u16,
}

fn allocation(text: &str) -> Result<(Address, Amount), String> {
    let (address, amount) = text
        .split_once('=')
        .ok_or("write ADDRESS=AMOUNT, such as 0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed=1000")?;
    let address = address.trim().parse::<Address>().map_err(|e| e.to_string())?;
    Ok((address, amount.trim().parse::<Amount>().map_err(|e| e.to_string())?))
}

/// A range of rows as `A..B`, B not included.
pub(crate) fn rows(text: &str) -> Result<Range<usize>, String> {
    let wrong =
        || format!("{text:?} is not a range of rows: write A..B with A < B, such as 0..500");
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let parse = |t: &str| t.trim().parse::<usize>().map_err(|_| wrong());
    let (from, to) = (parse(from)?, parse(to)?);
    if from < to { Ok(from..to) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_tree_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn rows_are_a_rising_range() {
        assert_eq!(rows("0..500").unwrap(), 0..500);
        for text in ["", "5", "5..5", "6..5", "a..b", "-1..5", "1...5"] {
            assert!(rows(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_allocation_names_address_and_amount() {
        let (_, amount) = allocation("0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed=12.5").unwrap();
        assert_eq!(amount.to_string(), "12.5");
        assert!(allocation("0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed").is_err());
    }
}
