//! Arguments of `florin wallet`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{JsonArg, PassphraseArg, WalletArg};

/// `florin wallet …`
#[derive(Debug, Subcommand)]
pub(crate) enum WalletCommand {
    /// Create a new key file and its recovery phrase
    New(WalletNew),
    /// Create a key file from a recovery phrase, a private key or another key file
    Import(WalletImport),
    /// Print the address of a key file
    Show(WalletShow),
    /// Copy a key file under a new passphrase: for a backup or another Ethereum tool
    Export(WalletExport),
}

/// `florin wallet new`
#[derive(Debug, Args)]
pub(crate) struct WalletNew {
    /// Path of the new key file; never overwritten
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) passphrase: PassphraseArg,
    /// Print the recovery phrase even if the output is not a terminal
    #[arg(long)]
    pub(crate) show_phrase: bool,
    /// Encrypt with a low scrypt cost: fast, and weaker against an attacker who has the file
    #[arg(long, hide = true)]
    pub(crate) light: bool,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin wallet import`
#[derive(Debug, Args)]
#[command(
    after_help = "The phrase or key is read from a prompt on a terminal, and from standard input \
        otherwise. It is never a flag, because other users of the machine can read flags."
)]
pub(crate) struct WalletImport {
    /// Path of the new key file; never overwritten
    pub(crate) file: PathBuf,
    /// Import a private key (64 hexadecimal digits) instead of a recovery phrase
    #[arg(long, conflicts_with = "keystore")]
    pub(crate) key: bool,
    /// Import this key file of another tool; the passphrase stays the same
    #[arg(long, value_name = "FILE")]
    pub(crate) keystore: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) passphrase: PassphraseArg,
    /// Encrypt with a low scrypt cost: fast, and weaker against an attacker who has the file
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
    /// Path of the copy; never overwritten
    pub(crate) to: PathBuf,
    #[command(flatten)]
    pub(crate) wallet: WalletArg,
    /// Read the copy's passphrase from this file [default: FLORIN_NEW_PASSPHRASE, otherwise a
    /// prompt]
    #[arg(long, value_name = "FILE")]
    pub(crate) new_passphrase_file: Option<PathBuf>,
}
