//! The arguments about key files.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{JsonArg, PassphraseArg, WalletArg};

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
