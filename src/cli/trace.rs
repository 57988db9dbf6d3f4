//! Arguments of traces.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::JsonArg;

/// Where to write a trace.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct TraceArg {
    /// Write a trace of the rounds into this folder, in Chrome's format, and in OTF2 where its
    /// library is installed; see `florin trace show`
    #[arg(long, value_name = "DIR", env = "FLORIN_TRACE")]
    pub(crate) trace: Option<PathBuf>,
}

/// `florin trace`
#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Print for each round its phases, the waits and their causes, and the critical path
    #[command(after_help = "Examples:\n  florin trace show traces/\n  \
        florin trace show traces/ --without 3\n  florin trace show traces/ --deadline 30 --json")]
    Show(TraceShow),
    /// Write a trace in another format
    #[command(after_help = "Example:\n  florin trace export traces/ --otf2 archive/\n  \
        otf2-print archive/traces.otf2")]
    Export(TraceExport),
}

/// `florin trace show`
#[derive(Debug, Args)]
pub(crate) struct TraceShow {
    /// The folder of --trace, with the files of all processes
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// Predict each round without this member: its number in the table of members, or the first
    /// digits of its account
    #[arg(long, value_name = "MEMBER")]
    pub(crate) without: Option<String>,
    /// Predict each round with this deadline of the commits, in seconds after the offer
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) deadline: Option<f64>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// `florin trace export`
#[derive(Debug, Args)]
pub(crate) struct TraceExport {
    /// The folder of --trace, with the files of all processes
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// Write an OTF2 archive into this new folder. Requires the OTF2 library, version 3; FLORIN_OTF2
    /// is its file if it is not installed where the system looks
    #[arg(long, value_name = "OUT")]
    pub(crate) otf2: PathBuf,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// Longest deadline in seconds: a year.
const SECONDS_MAX: f64 = 31_536_000.0;

fn seconds(text: &str) -> Result<f64, String> {
    let right = || format!("use seconds above 0, up to {SECONDS_MAX}");
    let value: f64 = text.parse().map_err(|_| right())?;
    (value > 0.0 && value <= SECONDS_MAX).then_some(value).ok_or_else(right)
}
