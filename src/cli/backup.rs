//! Arguments of `florin backup` and `florin restore`.

use std::path::PathBuf;

use clap::Args;

use super::JsonArg;

/// `florin backup`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  florin backup backups/monday --data market/\n\nA coordinator that is \
        running on the data folder makes the backup itself, without interruption. A backup does \
        not contain the wallet, the passphrase, the TLS keys or, on Ethereum, the wallet's outbox: \
        back them up separately."
)]
pub(crate) struct Backup {
    /// New folder for the backup
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
    after_help = "Example:\n  florin restore backups/monday --data market-again/\n\nThe backup is \
        read back in full before the data folder gets its name. Never run two coordinators of one \
        market: stop the old one for good first."
)]
pub(crate) struct Restore {
    /// Folder of the backup
    #[arg(value_name = "FROM")]
    pub(crate) from: PathBuf,
    /// New data folder; nothing is ever overwritten
    #[arg(long, value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// The coordinator's settings; blobs that the backup lacks are looked up in the bucket named
    /// there
    #[arg(long, value_name = "FILE")]
    pub(crate) settings: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}
