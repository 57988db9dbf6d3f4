//! The command tree and its help texts; no behaviour.

mod account;
mod arbiter;
mod backup;
mod buyer;
mod chain;
mod data;
mod execution;
mod market;
mod producer;
mod quote;
mod rent;
mod silo;
mod sim;
mod tools;
mod trace;
mod wallet;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use florin_learning::EngineKind;
use florin_learning::trainer::{Isolation, TrainerHost};
use florin_participant::WeightsSource;
use florin_protocol::{Address, Amount, Digest};

use crate::log::LogOptions;

pub(crate) use account::{Audit, Balance, Claim, Statement, Transfer};
pub(crate) use arbiter::{
    ArbiterCancel, ArbiterCommand, ArbiterSlash, ArbiterWatch, IfUnverifiable,
};
pub(crate) use backup::{Backup, Restore};
pub(crate) use buyer::{
    Predict, TaskCheck, TaskClose, TaskCode, TaskCohort, TaskCommand, TaskFollow, TaskInvite,
    TaskList, TaskModel, TaskNew, TaskPublish, TaskShow,
};
pub(crate) use chain::{
    AnvilArg, AnvilArgs, ChainArg, LedgerAnchor, LedgerDeploy, LedgerHead, LedgerKind,
    LedgerStatus, LedgerVerify, NodeArg,
};
pub(crate) use data::{DataCommand, DataEncode, DataShow, DataSplit, ModelCommand, ModelShow};
pub(crate) use market::{
    Coordinate, DELTA, ExecuteSegments, ExecutorKind, Experiment, LedgerCommand, NoiseArg,
    OrderExperiment, Page, Participate, Provide,
};
pub(crate) use producer::RowSource;
pub(crate) use quote::Quote;
pub(crate) use rent::{
    AuditArg, MarketTable, RentAudit, RentCheck, RentCommand, RentFetch, RentNew, RentOrder,
    RentStatement, RentWatch,
};
pub(crate) use silo::{SiloClaim, SiloCommand, SiloShow, SiloSplit};
pub(crate) use sim::{
    PlayArg, ScenarioArg, SimCommand, SimCompare, SimFaults, SimList, SimReplay, SimRun, SimSweep,
};
pub(crate) use tools::{Completions, DEMO_ROUNDS, Demo, Doctor, ManualPages};
pub(crate) use trace::{TraceArg, TraceCommand, TraceExport, TraceShow};
pub(crate) use wallet::{WalletCommand, WalletExport, WalletImport, WalletNew, WalletShow};

/// A marketplace for federated learning: buyers lock tokens behind a learning task, participants
/// train on their own data, and payouts follow the measured value of each update.
#[derive(Debug, Parser)]
#[command(
    name = "florin",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "Start with `florin demo`: a complete market on this machine, in a minute.\n\
        Exit codes: 0 = success · 1 = check failed or request refused · 2 = wrong input · 3 = \
        internal or system error · 130 = interrupted"
)]
pub(crate) struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) log: LogOptions,
    /// Exit as soon as standard input closes, so that this process does not outlive the program
    /// that started it.
    #[arg(long, global = true, hide = true)]
    pub(crate) exit_with_parent: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "a process has one command")]
pub(crate) enum Command {
    /// Run a complete market on this machine: eight participants, one provider, ten paid and
    /// audited rounds
    Demo(Demo),
    /// For buyers: write, check, publish, show and close a task, and fetch its model
    #[command(subcommand)]
    Task(TaskCommand),
    /// For renters: write, check and place an order for compute, follow it, and fetch its model
    #[command(subcommand)]
    Rent(RentCommand),
    /// Show the orders, the providers and the prices of a market for compute
    Market(MarketTable),
    /// Show a market in a browser: tasks, rounds, money and compute, as its public routes have them
    Page(Page),
    /// Run a market: its rounds, and its ledger unless the ledger is on Ethereum
    Coordinate(Coordinate),
    /// For coordinators: back up a market's data folder; the coordinator may keep running
    Backup(Backup),
    /// For coordinators: restore a backup into a new data folder and check it
    Restore(Restore),
    /// Train for a task on your own data and earn payouts
    Participate(Participate),
    /// Deposit a stake and evaluate updates for pay
    Provide(Provide),
    /// Create, import, show and export a wallet (the key file that owns your tokens)
    #[command(subcommand)]
    Wallet(WalletCommand),
    /// Show an account's balance, bonds, stake and unclaimed earnings
    Balance(Balance),
    /// Send tokens to another account
    Transfer(Transfer),
    /// For buyers: predict rows by a task's trained model, and measure the predictions
    Predict(Predict),
    /// Withdraw your earnings from a task and apply pending debits of your bond
    Claim(Claim),
    /// For silos: split the pay of one account among its members, and claim it for them
    #[command(subcommand)]
    Silo(SiloCommand),
    /// Explain your payouts from a task, round by round
    Statement(Statement),
    /// Recompute a task's reports from public data and print the first mismatch
    Audit(Audit),
    /// For arbiters: watch the settlements of your tasks, cancel wrong ones, slash deposits
    #[command(subcommand)]
    Arbiter(ArbiterCommand),
    /// Deploy, show and verify a ledger
    #[command(subcommand)]
    Ledger(LedgerCommand),
    /// Inspect a data source and split it into shards
    #[command(subcommand)]
    Data(DataCommand),
    /// Inspect a model that PyTorch exported
    #[command(subcommand)]
    Model(ModelCommand),
    /// Predict the time and the bytes of training a model, on this device and on others
    Quote(Quote),
    /// Simulate markets: what honest and dishonest strategies earn under the real payment code
    #[command(subcommand)]
    Sim(SimCommand),
    /// Analyse the traces of --trace: waits, critical paths, and rounds without a member
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Print the OpenAPI description of the coordinator's HTTP interface (also served at
    /// /openapi.json)
    Openapi(JsonArg),
    /// Check what this machine provides and how to install what is missing
    Doctor(Doctor),
    /// Print the script that completes this program's commands and options in a shell
    Completions(Completions),
    /// Write a manual page for each command
    Man(ManualPages),
    /// Compute the segments in a folder of `florin provide --orders`, which starts this command itself
    #[command(hide = true)]
    ExecuteSegments(ExecuteSegments),
    /// Run a development chain (anvil) until standard input closes, and stop it then
    #[command(hide = true)]
    Anvil(AnvilArgs),
}

/// The market to connect to.
#[derive(Debug, Clone, Args)]
pub(crate) struct MarketArg {
    /// URL of the market's coordinator, such as http://127.0.0.1:7700 or https://market.example
    #[arg(long, value_name = "URL", env = "FLORIN_MARKET")]
    pub(crate) market: String,
    #[command(flatten)]
    pub(crate) trust: TrustArg,
    #[command(flatten)]
    pub(crate) node: NodeArg,
}

/// Another place of a model's frozen weights.
#[derive(Debug, Clone, Args)]
pub(crate) struct WeightsArg {
    /// Take the frozen weights of the task's model from this file or address, if they have the task's
    /// digest, instead of the coordinator
    #[arg(long, value_name = "FILE|URL")]
    pub(crate) weights: Option<WeightsSource>,
}

/// Which TLS certificates a client trusts.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct TrustArg {
    /// Trust an https:// market only with this certificate, or one signed by it (PEM) [default: the
    /// system's trust store]
    #[arg(long, value_name = "FILE", env = "FLORIN_CERTIFICATE")]
    pub(crate) certificate: Option<PathBuf>,
    /// Folder that records each market's coordinator at the first contact; another coordinator at
    /// the same URL is refused later [default: ~/.local/state/florin/markets, which has no markets
    /// of this machine]
    #[arg(long, value_name = "FOLDER", env = "FLORIN_PINS")]
    pub(crate) pins: Option<PathBuf>,
}

/// The wallet that signs.
#[derive(Debug, Clone, Args)]
pub(crate) struct WalletArg {
    /// Wallet: the key file (Ethereum keystore v3)
    #[arg(long, value_name = "FILE", env = "FLORIN_WALLET")]
    pub(crate) wallet: PathBuf,
    #[command(flatten)]
    pub(crate) passphrase: PassphraseArg,
}

impl WalletArg {
    /// The files that no trainer may see.
    pub(crate) fn secrets(&self) -> Vec<PathBuf> {
        [Some(&self.wallet), self.passphrase.passphrase_file.as_ref()]
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }
}

/// The source of the passphrase. It is never a flag, because other users of the machine can read
/// flags.
#[derive(Debug, Clone, Args)]
pub(crate) struct PassphraseArg {
    /// Read the passphrase from the first line of this file [default: FLORIN_PASSPHRASE, otherwise
    /// a prompt]
    #[arg(long, value_name = "FILE")]
    pub(crate) passphrase_file: Option<PathBuf>,
}

/// Parses a command line. A value may start with a minus sign, so that the option's own check names
/// the mistake.
///
/// # Errors
/// Those of clap; also the request for a help text or the version.
pub(crate) fn parse(
    words: impl IntoIterator<Item = OsString>,
) -> Result<(ArgMatches, Cli), clap::Error> {
    let mut command = allow_negative_numbers(Cli::command());
    let matches = command.try_get_matches_from_mut(words)?;
    let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    Ok((matches, cli))
}

fn allow_negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|argument| match argument.get_action().takes_values() {
        true => argument.allow_negative_numbers(true),
        false => argument,
    });
    let names: Vec<String> =
        command.get_subcommands().map(|inner| inner.get_name().to_owned()).collect();
    names
        .into_iter()
        .fold(command, |command, name| command.mut_subcommand(name, allow_negative_numbers))
}

/// Whether the command prints its result, and so also its failure, as JSON: it has a flag `--json`,
/// and the flag is set. The `--json FILE` of a few commands writes a file and does not count.
pub(crate) fn is_json(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some((_, command)) => is_json(command),
        None => matches.try_get_one::<bool>("json").is_ok_and(|flag| flag == Some(&true)),
    }
}

/// As [`is_json`], for a command line that cannot be parsed.
pub(crate) fn requests_json(words: impl IntoIterator<Item = OsString> + Clone) -> bool {
    let is_set = words.clone().into_iter().any(|word| word == "--json");
    let command = named_command(words);
    let flag = command.get_arguments().find(|argument| argument.get_id() == "json");
    is_set && flag.is_some_and(|flag| !flag.get_action().takes_values())
}

/// The settings of environment variables, such as `FLORIN_MARKET=URL`, that replace options of a
/// command line that cannot be parsed. An option is as in clap's messages: `--market <URL>`.
pub(crate) fn variables_for(
    words: impl IntoIterator<Item = OsString>,
    options: &[String],
) -> Vec<String> {
    let command = named_command(words);
    let settings = command.get_arguments().filter_map(|argument| {
        let variable = argument.get_env()?.to_str()?;
        let value = argument.get_value_names()?.first()?;
        let option = format!("--{} <{value}>", argument.get_long()?);
        options.contains(&option).then(|| format!("{variable}={value}"))
    });
    settings.collect()
}

/// The command that the words name.
fn named_command(words: impl IntoIterator<Item = OsString>) -> clap::Command {
    let mut command = Cli::command();
    for word in words.into_iter().skip(1) {
        if let Some(inner) = command.find_subcommand(&word) {
            command = inner.clone();
        }
    }
    command
}

/// Machine-readable output.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct JsonArg {
    /// Print JSON, with amounts as integer strings of base units (10^-18 FLN); a failure is one
    /// line of JSON on standard error
    #[arg(long)]
    pub(crate) json: bool,
}

/// The compute engine.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct EngineArg {
    /// Compute engine: auto, torch, cuda, or reference (plain Rust; no convolutions)
    #[arg(long, value_name = "NAME", default_value_t = EngineKind::Auto, env = "FLORIN_ENGINE")]
    pub(crate) engine: EngineKind,
    /// Number of threads for the engine
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: u16,
}

/// Heading of the arguments of trainers.
pub(crate) const TRAINER: &str = "Trainers";

/// The trainers that this machine runs, and how.
#[derive(Debug, Clone, Args)]
pub(crate) struct TrainerHostArg {
    /// Run the trainer whose code has this digest, in a sandbox without network and home folder: it is
    /// the model of a task, or your own. May be repeated; see docs/trainer.md
    #[arg(long, value_name = "DIGEST", help_heading = TRAINER)]
    pub(crate) accept_trainer: Vec<Digest>,
    #[command(flatten)]
    pub(crate) sandbox: SandboxArg,
}

/// The sandbox of trainers.
#[derive(Debug, Clone, Args)]
pub(crate) struct SandboxArg {
    /// Show this file, folder or device to the trainer, read-only: a virtual environment, a GPU. May
    /// be repeated
    #[arg(long, value_name = "PATH", help_heading = TRAINER)]
    pub(crate) trainer_bind: Vec<PathBuf>,
    /// Stop a run of the trainer after this number of seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600,
        value_parser = clap::value_parser!(u32).range(1..=86_400), help_heading = TRAINER)]
    pub(crate) trainer_limit: u32,
    /// Run the trainer without a sandbox: its code can read your keys and files, and use the network
    #[arg(long, help_heading = TRAINER)]
    pub(crate) unsandboxed: bool,
}

impl TrainerHostArg {
    /// The settings of the engine: `secrets` are shown to no trainer, and files of a run go to
    /// `scratch`.
    pub(crate) fn host(&self, secrets: Vec<PathBuf>, scratch: PathBuf) -> TrainerHost {
        let accepted = self.accept_trainer.iter().map(|digest| digest.0).collect();
        TrainerHost { accepted, ..self.sandbox.host(secrets, scratch) }
    }
}

impl SandboxArg {
    /// The settings of the engine, which runs no trainer yet.
    pub(crate) fn host(&self, secrets: Vec<PathBuf>, scratch: PathBuf) -> TrainerHost {
        let isolation = match self.unsandboxed {
            true => Isolation::Unsandboxed,
            false => Isolation::Sandbox,
        };
        TrainerHost {
            accepted: Vec::new(),
            binds: self.trainer_bind.clone(),
            secrets,
            scratch,
            limit: Duration::from_secs(self.trainer_limit.into()),
            isolation,
        }
    }
}

fn allocation(text: &str) -> Result<(Address, Amount), String> {
    let (address, amount) = text
        .split_once('=')
        .ok_or("write ADDRESS=AMOUNT, such as 0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed=1000")?;
    let address = address.trim().parse::<Address>().map_err(|e| e.to_string())?;
    Ok((address, amount.trim().parse::<Amount>().map_err(|e| e.to_string())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_tree_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn only_the_json_flag_without_a_file_selects_json() {
        let is_json = |arguments: &[&str]| {
            let words = ["florin"].iter().chain(arguments);
            super::is_json(&Cli::command().try_get_matches_from(words).unwrap())
        };
        assert!(is_json(&["doctor", "--json"]));
        assert!(is_json(&["data", "show", "digits", "--json"]));
        for without in [&["doctor"][..], &["openapi"], &["demo", "--json", "result.json"]] {
            assert!(!is_json(without), "{without:?}");
        }
    }

    #[test]
    fn a_wrong_command_line_fails_as_json_if_the_command_has_the_flag() {
        let requests_json = |arguments: &[&str]| {
            let words: Vec<OsString> =
                ["florin"].iter().chain(arguments).map(OsString::from).collect();
            super::requests_json(words)
        };
        for (arguments, expected) in [
            (&["task", "list", "--json", "--bogus"][..], true),
            (&["task", "list", "--bogus"], false),
            (&["demo", "--json"], false),
            (&["demo", "--json", "result.json", "--bogus"], false),
            (&["--json"], false),
            (&["bogus", "--json"], false),
        ] {
            assert_eq!(requests_json(arguments), expected, "{arguments:?}");
        }
    }

    #[test]
    fn missing_options_are_replaced_by_the_variables_of_their_command() {
        let variables = |arguments: &[&str], options: &[&str]| {
            let words = ["florin"].iter().chain(arguments).map(OsString::from);
            let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
            variables_for(words, &options)
        };
        let both = ["--market <URL>", "--wallet <FILE>"];
        assert_eq!(
            variables(&["participate"], &both),
            ["FLORIN_MARKET=URL", "FLORIN_WALLET=FILE"],
            "in the order of the options"
        );
        assert_eq!(variables(&["coordinate"], &["--data <DIR>"]), ["FLORIN_COORDINATOR_DATA=DIR"]);
        assert!(variables(&["participate"], &["--data <SOURCE>", "--task <ID>"]).is_empty());
    }

    #[test]
    fn a_negative_number_reaches_the_check_of_its_option() {
        let words = ["florin", "transfer", "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "-5"];
        let error = super::parse(words.iter().map(OsString::from)).unwrap_err();
        assert_eq!(error.kind(), clap::error::ErrorKind::ValueValidation, "{error}");
    }

    #[test]
    fn an_option_without_effect_on_many_tasks_is_refused_with_all() {
        let all =
            ["florin", "participate", "--all", "--policy", "policy.toml", "--wallet", "me.json"];
        let parse = |more: &[&str]| {
            let words = all.iter().chain(["--market", "http://127.0.0.1:7700"].iter()).chain(more);
            super::parse(words.map(OsString::from))
        };
        for used in [
            &[][..],
            &["--trainer-bind", "/data"],
            &["--seed", "3"],
            &["--clip", "1", "--noise", "1"],
        ] {
            assert!(parse(used).is_ok(), "{used:?}");
        }
        for unused in [
            &["--split", "split.toml"][..],
            &["--rows", "0..5"],
            &["--reservoir", "100"],
            &["--min-rows", "10"],
            &["--new-rows", "10"],
            &["--rank-timeout", "10"],
            &["--rank-plan", "0..4,4..8"],
            &["--rank-reduction", "chunks=8,inner=halving,levels=3,outer=tree"],
            &["--rank-pipeline", "2"],
            &["--rank-private"],
        ] {
            let error = parse(unused).map(|_| ()).unwrap_err();
            assert_eq!(
                error.kind(),
                clap::error::ErrorKind::ArgumentConflict,
                "{unused:?}: {error}"
            );
        }
    }

    #[test]
    fn openapi_accepts_json_like_every_command() {
        assert!(Cli::try_parse_from(["florin", "openapi", "--json"]).is_ok());
    }

    #[test]
    fn an_allocation_names_address_and_amount() {
        let (_, amount) = allocation("0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed=12.5").unwrap();
        assert_eq!(amount.to_string(), "12.5");
        assert!(allocation("0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed").is_err());
    }
}
