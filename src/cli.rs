//! The command tree and its help texts. Nothing here does anything.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use florin_learning::{DataSource, EngineKind, Partition};
use florin_protocol::{Address, Amount};

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
    /// Stop as soon as standard input closes: for a program that starts this one and must not leave it behind.
    #[arg(long, global = true, hide = true)]
    pub(crate) exit_with_parent: bool,
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a whole market on this machine: eight participants, one provider, ten paid and audited rounds
    Demo(Demo),
    /// For buyers: describe a task, fund it, watch it, fetch its model
    #[command(subcommand)]
    Task(Task),
    /// Run a market: its rounds, and its embedded ledger
    Coordinate(Coordinate),
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
    /// Draw what a task owes you
    Claim(Claim),
    /// Why you were paid what you were paid, round by round, in words
    Statement(Statement),
    /// Recompute a task's reports from public bytes and name the first line that disagrees
    Audit(Audit),
    /// The embedded ledger's own files
    #[command(subcommand)]
    Ledger(LedgerCommand),
    /// Look at data, and cut it into shards
    #[command(subcommand)]
    Data(Data),
    /// What this machine has, what is missing, and what to do about it
    Doctor(Doctor),
    /// Measure this program against its limits and its neighbours
    #[command(hide = true)]
    Bench(Bench),
}

/// Which market.
#[derive(Debug, Clone, Args)]
pub(crate) struct MarketArg {
    /// Where its coordinator listens, such as http://127.0.0.1:7700
    #[arg(long, value_name = "URL", env = "FLORIN_MARKET")]
    pub(crate) market: String,
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

/// `florin demo`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  florin demo\n  florin demo --seed 7 --rounds 5\n  \
    florin demo --json result.json --out report.html --keep market/")]
pub(crate) struct Demo {
    /// Repeats money and scores exactly on one machine
    #[arg(long, default_value_t = crate::demo::plan::SEED)]
    pub(crate) seed: u64,
    /// Rounds of the task
    #[arg(long, default_value_t = crate::demo::plan::ROUNDS,
          value_parser = clap::value_parser!(u32).range(1..=200))]
    pub(crate) rounds: u32,
    /// Which ledger keeps the money
    #[arg(long, value_enum, default_value_t = LedgerKind::Local)]
    pub(crate) ledger: LedgerKind,
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

/// The ledgers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LedgerKind {
    /// The embedded chain
    Local,
    /// An Ethereum chain
    Ethereum,
}

/// `florin task …`
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Write a task file with every key explained
    New(TaskNew),
    /// Check a task file, its holdout and its numbers, without publishing anything
    Check(TaskCheck),
    /// Lock a task's budget on the ledger and open it to participants
    Publish(TaskPublish),
    /// The market's tasks
    List(TaskList),
    /// One task: where it is, its rounds, its money
    Show(TaskShow),
    /// Fetch a task's newest model, its digest checked
    Model(TaskModel),
    /// End a task after its running round and have the rest refunded
    Close(TaskClose),
}

/// `florin task new`
#[derive(Debug, Args)]
pub(crate) struct TaskNew {
    /// Where to write it
    #[arg(default_value = "task.toml")]
    pub(crate) file: PathBuf,
}

/// `florin task check`
#[derive(Debug, Args)]
pub(crate) struct TaskCheck {
    /// The task file
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin task publish`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  florin task publish digits.toml --market http://127.0.0.1:7700 \
    --wallet buyer.json\n\nPublishing the same file again continues where it stopped; nothing is locked twice."
)]
pub(crate) struct TaskPublish {
    /// The task file
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin task list`
#[derive(Debug, Args)]
pub(crate) struct TaskList {
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin task show`
#[derive(Debug, Args)]
pub(crate) struct TaskShow {
    /// The task: its id, or the first digits of it (6 or more)
    pub(crate) task: String,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin task model`
#[derive(Debug, Args)]
pub(crate) struct TaskModel {
    /// The task: its id, or the first digits of it (6 or more)
    pub(crate) task: String,
    /// Where to write the parameters (safetensors)
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Evaluate the model on this data: digits, csv:FILE#LABEL, idx:IMAGES,LABELS, cifar10:FILE,…, florin:FILE
    #[arg(long, value_name = "DATA")]
    pub(crate) evaluate: Option<DataSource>,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin task close`
#[derive(Debug, Args)]
pub(crate) struct TaskClose {
    /// The task: its id, or the first digits of it (6 or more)
    pub(crate) task: String,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
}

/// `florin coordinate`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  florin coordinate --data market/ --wallet coordinator.json \
    --allocate 0x5aAe…=1000000\n  florin coordinate --data market/ --wallet coordinator.json\n\n\
    The first start makes the local chain's genesis, from --genesis or --allocate; tokens are made \
    then and never again.")]
pub(crate) struct Coordinate {
    /// The folder that holds ledger, journal, blobs and node key
    #[arg(long, value_name = "DIR", env = "FLORIN_COORDINATOR_DATA")]
    pub(crate) data: PathBuf,
    /// Address and port to listen on; port 0 takes a free one
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:7700",
        env = "FLORIN_COORDINATOR_LISTEN"
    )]
    pub(crate) listen: SocketAddr,
    /// Write the address that it listens on to this file, once it does
    #[arg(long, value_name = "FILE")]
    pub(crate) address_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    /// Limits on connections and uploads, as TOML; every key is optional
    #[arg(long, value_name = "FILE")]
    pub(crate) settings: Option<PathBuf>,
    /// What the chain begins with: a TOML file with `chain = N` and a table `[allocate]` of ADDRESS = "AMOUNT"
    #[arg(long, value_name = "FILE", conflicts_with = "allocate")]
    pub(crate) genesis: Option<PathBuf>,
    /// An account and the tokens it begins with; may be repeated
    #[arg(long, value_name = "ADDRESS=AMOUNT", value_parser = allocation)]
    pub(crate) allocate: Vec<(Address, Amount)>,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
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

/// `florin wallet …`
#[derive(Debug, Subcommand)]
pub(crate) enum Wallet {
    /// Make a new key file and its recovery phrase
    New(WalletNew),
    /// Make a key file from a recovery phrase, a private key or another key file
    Import(WalletImport),
    /// The address of a key file
    Show(WalletShow),
    /// Copy a key file under a passphrase of its own: a backup, or for another Ethereum tool
    Export(WalletExport),
}

/// `florin wallet new`
#[derive(Debug, Args)]
pub(crate) struct WalletNew {
    /// Where to write the key file; never overwritten
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) passphrase: PassphraseArg,
    /// Print the recovery phrase even where the output is not a terminal
    #[arg(long)]
    pub(crate) show_phrase: bool,
    /// Encrypt with a small work factor: fast, and weaker against somebody who has the file
    #[arg(long, hide = true)]
    pub(crate) light: bool,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin wallet import`
#[derive(Debug, Args)]
#[command(
    after_help = "A phrase or key is asked for on a terminal and read from standard input otherwise; \
    never given as a flag, where everybody on the machine could read it."
)]
pub(crate) struct WalletImport {
    /// Where to write the key file; never overwritten
    pub(crate) file: PathBuf,
    /// Import a private key of 64 hexadecimal digits instead of a recovery phrase
    #[arg(long, conflicts_with = "keystore")]
    pub(crate) key: bool,
    /// Import this key file of another tool, which has the same passphrase
    #[arg(long, value_name = "FILE")]
    pub(crate) keystore: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) passphrase: PassphraseArg,
    /// Encrypt with a small work factor: fast, and weaker against somebody who has the file
    #[arg(long, hide = true)]
    pub(crate) light: bool,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin wallet show`
#[derive(Debug, Args)]
pub(crate) struct WalletShow {
    /// The key file
    #[arg(value_name = "FILE", env = "FLORIN_WALLET")]
    pub(crate) wallet: PathBuf,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin wallet export`
#[derive(Debug, Args)]
pub(crate) struct WalletExport {
    /// Where to write the copy; never overwritten
    pub(crate) to: PathBuf,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    /// Read the copy's passphrase from this file; otherwise from FLORIN_NEW_PASSPHRASE, otherwise it is asked for
    #[arg(long, value_name = "FILE")]
    pub(crate) new_passphrase_file: Option<PathBuf>,
}

/// `florin balance`
#[derive(Debug, Args)]
pub(crate) struct Balance {
    /// Whose [default: the wallet's]
    pub(crate) account: Option<Address>,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    /// The key file whose account is meant; it is not unlocked
    #[arg(long, value_name = "FILE", env = "FLORIN_WALLET")]
    pub(crate) wallet: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin transfer`
#[derive(Debug, Args)]
pub(crate) struct Transfer {
    /// To whom
    pub(crate) to: Address,
    /// How much, in FLN
    pub(crate) amount: Amount,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin claim`
#[derive(Debug, Args)]
pub(crate) struct Claim {
    /// The task: its id, or the first digits of it (6 or more)
    pub(crate) task: String,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    /// Claim for this account; it is paid, whoever sends the claim [default: the wallet's]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) account: Option<Address>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin statement`
#[derive(Debug, Args)]
pub(crate) struct Statement {
    /// The task: its id, or the first digits of it (6 or more)
    pub(crate) task: String,
    /// Whose [default: the wallet's]
    pub(crate) account: Option<Address>,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    /// The key file whose account is meant; it is not unlocked
    #[arg(long, value_name = "FILE", env = "FLORIN_WALLET")]
    pub(crate) wallet: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin audit`
#[derive(Debug, Args)]
#[command(
    after_help = "Trusts nobody: it fetches models, updates, holdout and signatures, checks each digest, \
    recomputes every figure, and compares the result with the report and with the ledger."
)]
pub(crate) struct Audit {
    /// The task: its id, or the first digits of it (6 or more)
    pub(crate) task: String,
    /// Only this round
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) round: Option<u32>,
    #[command(flatten)]
    pub(crate) market: MarketArg,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin ledger …`
#[derive(Debug, Subcommand)]
pub(crate) enum LedgerCommand {
    /// Replay a ledger from its genesis and compare the result with what it says
    Verify(LedgerVerify),
}

/// `florin ledger verify`
#[derive(Debug, Args)]
pub(crate) struct LedgerVerify {
    /// The coordinator's data folder, or a ledger file
    #[arg(long, value_name = "DIR")]
    pub(crate) data: PathBuf,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin data …`
#[derive(Debug, Subcommand)]
pub(crate) enum Data {
    /// Rows, features and labels of a data source
    Show(DataShow),
    /// Cut a data source into shards, with a holdout and a test set if wanted
    Split(DataSplit),
}

/// `florin data show`
#[derive(Debug, Args)]
pub(crate) struct DataShow {
    /// digits, csv:FILE#LABEL, idx:IMAGES,LABELS, cifar10:FILE,…, florin:FILE
    pub(crate) source: DataSource,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin data split`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  florin data split digits --shards 8 --how dirichlet:0.5 --holdout 0.2 --test 0.2 \
    --seed 1 --out shards/"
)]
pub(crate) struct DataSplit {
    /// digits, csv:FILE#LABEL, idx:IMAGES,LABELS, cifar10:FILE,…, florin:FILE
    pub(crate) source: DataSource,
    /// How many shards
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) shards: u32,
    /// How rows are dealt: iid, dirichlet:ALPHA, label:PIECES or file:PATH (a shard number per line)
    #[arg(long, default_value = "iid")]
    pub(crate) how: Partition,
    /// Share of the rows set aside for the buyer's holdout, 0 to 0.9
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    pub(crate) holdout: f64,
    /// Share of the rows set aside for a test set, 0 to 0.9
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    pub(crate) test: f64,
    /// Fewest rows of a shard
    #[arg(long, default_value_t = 1)]
    pub(crate) rows_min: usize,
    /// Repeats the split exactly
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Folder to write to; made if it does not exist
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin doctor`
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Also look at this coordinator's data folder
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
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
    /// Folder of Python packages (torch, numpy) for the neighbours' rows
    #[arg(long, value_name = "DIR")]
    pub(crate) python: Option<PathBuf>,
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

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (0.0..=0.9).contains(&share) { Ok(share) } else { Err("must be from 0 to 0.9".to_owned()) }
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
