//! The arguments of backup and restore.

use std::path::PathBuf;

use clap::Args;

use super::JsonArg;

/// `florin backup`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  florin backup backups/monday --data market/\n\nA coordinator that uses the data \
    folder makes the backup itself and goes on meanwhile. Wallet, passphrase and TLS keys are not in it, nor, on \
    Ethereum, the wallet's outbox: keep those elsewhere."
)]
pub(crate) struct Backup {
    /// A new folder for the backup
    #[arg(value_name = "DEST")]
    pub(crate) dest: PathBuf,
    /// The coordinator's data folder
    #[arg(long, value_name = "DIR", env = "FLORIN_COORDINATOR_DATA")]
    pub(crate) data: PathBuf,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin restore`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  florin restore backups/monday --data market-again/\n\nEverything is read back \
    before the data folder has its name. Never run two coordinators of one market: stop the old one for good first."
)]
pub(crate) struct Restore {
    /// A backup
    #[arg(value_name = "FROM")]
    pub(crate) from: PathBuf,
    /// A new data folder; nothing is ever overwritten
    #[arg(long, value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// The coordinator's settings: blobs that the backup lacks may be in the bucket that they name
    #[arg(long, value_name = "FILE")]
    pub(crate) settings: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}
