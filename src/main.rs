//! The command-line program: parse, dispatch, print what failed, exit. Everything else has a file of its own.
//!
//! `cli` is the command tree, `commands` has a file per command, `compose` picks the concrete parts, `show` prints,
//! `task_file` reads what buyers write, and `demo` runs a whole market on one machine.

mod chain;
mod cli;
mod commands;
mod compose;
mod demo;
mod failure;
mod files;
mod genesis_file;
mod market;
mod parent;
mod show;
mod task_file;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    be_quiet_when_nobody_reads();
    let cli = cli::Cli::parse();
    start_log(cli.verbose);
    // Anvil's keeper ends anvil first.
    if cli.exit_with_parent && !matches!(cli.command, cli::Command::Anvil(_)) {
        parent::exit_with_it();
    }
    let exit = commands::run(cli).unwrap_or_else(|error| {
        failure::tell(&error);
        failure::verdict(&error).1
    });
    ExitCode::from(exit as u8)
}

/// Somebody who closes our pipe (`florin demo | head`) wants no more of us, and no complaint either: the printing
/// macros panic then, and the panic still unwinds, so that everything that must be put away is.
fn be_quiet_when_nobody_reads() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload_as_str().unwrap_or_default();
        if !(said.starts_with("failed printing to stdout") && said.contains("Broken pipe")) {
            tell(panic);
        }
    }));
}

/// Sends the log to standard error: warnings, and more with -v. `RUST_LOG` wins.
fn start_log(verbose: u8) {
    use std::io::IsTerminal;

    use tracing_subscriber::EnvFilter;
    let default = match verbose {
        0 => "warn",
        1 => "warn,florin=info",
        _ => "info,florin=debug",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .init();
}
