//! A program from its arguments to its exit code: parses them, runs the command, prints a failure.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;

use crate::failure::{self, Exit, Failure};
use crate::trace::TraceSession;
use crate::{cli, commands, exit_with_parent, file_size_limit, log, usage};

/// The prefix of the panic message of the printing macros.
const PRINT_PANIC_PREFIX: &str = "failed printing to stdout";

/// The format of a failure on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureFormat {
    /// Lines of text for people.
    Text,
    /// One line of JSON.
    Json,
}

/// The program `florin`.
pub fn main() -> ExitCode {
    let (matches, cli) = match cli::parse(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(error) => return ExitCode::from(usage::print(&error) as u8),
    };
    // `florin coordinate` starts its own log, because its settings choose where spans are sent. The
    // warnings of a simulated coordinator belong to the simulation and are not logged.
    let simulated = matches!(cli.command, cli::Command::Sim(_)) && cli.log.verbose == 0;
    let format = match cli::is_json(&matches) {
        true => FailureFormat::Json,
        false => FailureFormat::Text,
    };
    if let Err(error) = file_size_limit::fail_writes_beyond() {
        return run(format, || Err(anyhow::Error::new(error).context("cannot listen for signals")));
    }
    let trace = match TraceSession::start(&cli.command) {
        Ok(trace) => trace,
        Err(error) => return run(format, || Err(error)),
    };
    if !matches!(cli.command, cli::Command::Coordinate(_)) && !simulated {
        log::start(cli.log, trace.as_ref().map(TraceSession::layer));
    }
    // `florin anvil` stops its child process first and then exits on its own.
    if cli.exit_with_parent && !matches!(cli.command, cli::Command::Anvil(_)) {
        exit_with_parent::exit_with_parent();
    }
    let exit = run(format, || commands::run(cli, trace.as_ref()));
    if let Some(trace) = trace {
        trace.finish();
    }
    exit
}

/// Runs a command, prints its failure on standard error and returns the exit code of the process.
pub fn run(format: FailureFormat, command: impl FnOnce() -> anyhow::Result<Exit>) -> ExitCode {
    silence_print_panics();
    let done = match catch_unwind(AssertUnwindSafe(command)) {
        Ok(done) => done,
        Err(panic) => match print_panic_message(panic.as_ref()) {
            Some(why) => Err(Failure::fault("OUTPUT_FAILED", why).into()),
            None => resume_unwind(panic),
        },
    };
    let exit = done.unwrap_or_else(|error| {
        match format {
            FailureFormat::Json => failure::print_json_error(&error),
            FailureFormat::Text => failure::print_error(&error),
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
/// when standard output cannot be written. The panic unwinds, so every destructor runs, and [`run`]
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
