//! Arguments of `florin demo`, `doctor`, `completions` and `man`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;
use florin_protocol::{TOP_K_PERMILLE_MAX, UpdateFormat};

use super::{AnvilArg, EngineArg, JsonArg, LedgerKind, TrustArg};

/// Default number of rounds of `florin demo`.
pub(crate) const DEMO_ROUNDS: u32 = 10;

/// `florin demo`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  florin demo\n  florin demo --seed 7 --rounds 5\n  \
    florin demo --ledger ethereum --anvil path/to/anvil\n  \
    florin demo --json result.json --out report.html --keep market/")]
pub(crate) struct Demo {
    /// Run a market for compute instead: ten orders, three providers of which one cheats, auditors and a
    /// referee
    #[arg(long, conflicts_with_all = ["rounds", "format", "ledger"])]
    pub(crate) compute: bool,
    /// Seed; repeats payouts and scores exactly on the same machine
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Number of rounds
    #[arg(long, default_value_t = DEMO_ROUNDS,
          value_parser = clap::value_parser!(u32).range(1..=200))]
    pub(crate) rounds: u32,
    /// Format of the updates: f32, bf16, int8, or top_k:N for the largest N of 1000 values
    #[arg(long, default_value = "f32", value_parser = update_format)]
    pub(crate) format: UpdateFormat,
    /// Ledger of the market
    #[arg(long, value_enum, default_value_t = LedgerKind::Embedded)]
    pub(crate) ledger: LedgerKind,
    #[command(flatten)]
    pub(crate) anvil: AnvilArg,
    /// Write the result as JSON to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the HTML report to this file
    #[arg(long, value_name = "FILE", default_value = "florin-demo.html")]
    pub(crate) out: PathBuf,
    /// Keep wallets, shards, logs and the ledger in this new folder
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) engine: EngineArg,
}

/// `florin doctor`
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Also check this coordinator data folder
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Also check this market: that its coordinator answers, and who can rewrite its ledger
    #[arg(long, value_name = "URL", env = "FLORIN_MARKET")]
    pub(crate) market: Option<String>,
    #[command(flatten)]
    pub(crate) trust: TrustArg,
    #[command(flatten)]
    pub(crate) anvil: AnvilArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin completions`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    florin completions bash > ~/.local/share/bash-completion/completions/florin\n  \
    florin completions zsh > ~/.zfunc/_florin\n  \
    florin completions fish > ~/.config/fish/completions/florin.fish")]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// `florin man`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  florin man --out ~/.local/share/man/man1 && man florin-task-show"
)]
pub(crate) struct ManualPages {
    /// Folder for the pages, one for each command; created if it does not exist. Existing pages are
    /// replaced
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

/// Parses an update format from the command line.
fn update_format(text: &str) -> Result<UpdateFormat, String> {
    let permille = |n: &u16| (1..=TOP_K_PERMILLE_MAX).contains(n);
    match (text, text.strip_prefix("top_k:")) {
        ("f32", _) => Ok(UpdateFormat::F32),
        ("bf16", _) => Ok(UpdateFormat::Bf16),
        ("int8", _) => Ok(UpdateFormat::Int8),
        (_, Some(share)) => match share.parse().ok().filter(permille) {
            Some(permille) => Ok(UpdateFormat::TopK { permille }),
            None => Err("write top_k:1 to top_k:500, in thousandths of the parameters".to_owned()),
        },
        _ => Err("write f32, bf16, int8, or top_k:N".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_format_is_a_name_with_the_share_of_top_k() {
        for (text, format) in [
            ("f32", UpdateFormat::F32),
            ("bf16", UpdateFormat::Bf16),
            ("int8", UpdateFormat::Int8),
            ("top_k:50", UpdateFormat::TopK { permille: 50 }),
        ] {
            assert_eq!(update_format(text).unwrap(), format);
        }
        for text in ["", "f16", "top_k", "top_k:0", "top_k:501", "top_k:x", "int8:1"] {
            assert!(update_format(text).is_err(), "{text}");
        }
    }
}
