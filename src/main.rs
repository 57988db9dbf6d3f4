//! The command-line program: parses the arguments, runs the command, prints a failure, exits.
//!
//! `cli` is the command tree, `commands` has one file per command, `compose` selects the engine and
//! the ledger, `show` prints, `task_file` reads task files, and `demo` runs a complete market on
//! one machine.

mod cli;
mod commands;
mod compose;
mod demo;
#[cfg(feature = "ethereum")]
mod ethereum;
#[cfg(not(feature = "ethereum"))]
#[path = "without_ethereum.rs"]
mod ethereum;
mod exit_with_parent;
mod failure;
mod genesis_file;
mod log;
mod market;
mod open_files;
#[cfg(feature = "otlp")]
mod otlp;
#[cfg(not(feature = "otlp"))]
#[path = "without_otlp.rs"]
mod otlp;
mod progress;
mod show;
mod task_file;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use mimalloc::MiMalloc;

use failure::Failure;

/// The prefix of the panic message of the printing macros.
const PRINT_PANIC_PREFIX: &str = "failed printing to stdout";

/// The default allocator retains freed memory per thread, so a coordinator's resident memory grew:
/// decision 33.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    silence_print_panics();
    let matches = cli::Cli::command().get_matches();
    let cli = cli::Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    // `florin coordinate` starts its own log, because its settings choose where spans are sent. The
    // warnings of a simulated coordinator belong to the simulation and are not logged.
    let simulated = matches!(cli.command, cli::Command::Sim(_)) && cli.verbose == 0;
    if !matches!(cli.command, cli::Command::Coordinate(_)) && !simulated {
        log::start(cli.log(), None);
    }
    // `florin anvil` stops its child process first and then exits on its own.
    if cli.exit_with_parent && !matches!(cli.command, cli::Command::Anvil(_)) {
        exit_with_parent::exit_with_parent();
    }
    let done = catch_unwind(AssertUnwindSafe(|| commands::run(cli)));
    let done = match done {
        Ok(done) => done,
        Err(panic) => match print_panic_message(panic.as_ref()) {
            Some(why) => Err(Failure::fault("OUTPUT_FAILED", why).into()),
            None => resume_unwind(panic),
        },
    };
    let exit = done.unwrap_or_else(|error| {
        match cli::is_json(&matches) {
            true => failure::print_json_error(&error),
            false => failure::print_error(&error),
        }
        failure::classify(&error).1
    });
    ExitCode::from(exit as u8)
}

/// The message of a panic of the printing macros; `None` for any other panic.
fn print_panic_message(panic: &(dyn Any + Send)) -> Option<&str> {
    let message = panic.downcast_ref::<String>().map(String::as_str);
    message.filter(|text| text.starts_with(PRINT_PANIC_PREFIX))
}

/// Installs a panic hook that stays silent for panics of the printing macros. These macros panic
/// when standard output cannot be written. The panic unwinds, so every destructor runs, and `main`
/// reports the failure. A closed pipe (`florin demo | head`) is no failure: anstream's macros,
/// which the whole program prints with, ignore it.
fn silence_print_panics() {
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic.payload_as_str().unwrap_or_default();
        if !message.starts_with(PRINT_PANIC_PREFIX) {
            default_hook(panic);
        }
    }));
}
