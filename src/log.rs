//! The destination and the format of the log. If the settings name a collector, request spans are
//! exported to it as well.

use std::io::IsTerminal;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt};

use crate::cli::LogFormat;

/// A layer of the tracing subscriber.
pub(crate) type LogLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// The verbosity and the format of the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogOptions {
    /// The number of `-v` flags.
    pub(crate) verbose: u8,
    /// Text or JSON.
    pub(crate) format: LogFormat,
}

/// Starts the log on standard error: warnings by default, more with -v. `RUST_LOG` takes
/// precedence.
pub(crate) fn start(manner: LogOptions, spans: Option<LogLayer>) {
    let default = match manner.verbose {
        0 => "warn",
        1 => "warn,florin=info",
        _ => "info,florin=debug",
    };
    let variable = std::env::var("RUST_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let filter = variable.unwrap_or_else(|| default.parse().expect("the defaults are valid"));
    let ansi = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines: LogLayer = match manner.format {
        LogFormat::Text => lines.with_ansi(ansi).with_filter(filter).boxed(),
        // One object per line; a request's id and route are in `span`.
        LogFormat::Json => {
            lines.json().flatten_event(true).with_span_list(false).with_filter(filter).boxed()
        }
    };
    let parts: Vec<LogLayer> = spans.into_iter().chain([lines]).collect();
    tracing_subscriber::registry().with(parts).init();
}
