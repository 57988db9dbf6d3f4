//! The destination and the format of the log. If the settings name a collector, request spans are
//! exported to it as well.

use std::io::IsTerminal;

use clap::{Args, ValueEnum};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt};

/// A layer of the tracing subscriber.
pub type LogLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// The verbosity and the format of the log, as flags of the command line.
#[derive(Clone, Copy, Debug, Args)]
pub struct LogOptions {
    /// More log output: -v for events, -vv for details.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Format of the log on standard error: text or json
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        default_value = "text",
        env = "FLORIN_LOG_FORMAT"
    )]
    pub log_format: LogFormat,
}

/// The format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines of text
    Text,
    /// One JSON object per line
    Json,
}

/// Starts the log on standard error: warnings by default, more with -v. `RUST_LOG` takes
/// precedence.
pub fn start(manner: LogOptions, spans: impl IntoIterator<Item = LogLayer>) {
    let default = match manner.verbose {
        0 => "warn",
        1 => "warn,florin=info",
        _ => "info,florin=debug",
    };
    let variable = std::env::var("RUST_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let filter = variable.unwrap_or_else(|| default.parse().expect("the defaults are valid"));
    let ansi = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines: LogLayer = match manner.log_format {
        LogFormat::Text => lines.with_ansi(ansi).with_filter(filter).boxed(),
        // One object per line; a request's id and route are in `span`.
        LogFormat::Json => {
            lines.json().flatten_event(true).with_span_list(false).with_filter(filter).boxed()
        }
    };
    let parts: Vec<LogLayer> = spans.into_iter().chain([lines]).collect();
    tracing_subscriber::registry().with(parts).init();
}
