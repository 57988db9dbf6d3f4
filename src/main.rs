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
mod log;
mod market;
mod otlp;
mod parent;
mod show;
mod task_file;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;

use failure::Failure;

/// How a panic of the printing macros begins.
const UNPRINTED: &str = "failed printing to stdout";

/// The system's allocator keeps what many threads have given back, and a coordinator grew by it: decision 33.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    leave_unprinted_to_main();
    let cli = cli::Cli::parse();
    // A coordinator's settings have a say in where its log goes.
    // What a simulated coordinator complains of is simulated too.
    let simulated = matches!(cli.command, cli::Command::Sim(_)) && cli.verbose == 0;
    if !matches!(cli.command, cli::Command::Coordinate(_)) && !simulated {
        log::start(cli.log(), None);
    }
    // Anvil's keeper ends anvil first.
    if cli.exit_with_parent && !matches!(cli.command, cli::Command::Anvil(_)) {
        parent::exit_with_it();
    }
    let done = catch_unwind(AssertUnwindSafe(|| commands::run(cli)));
    let done = match done {
        Ok(done) => done,
        Err(panic) => match unprinted(panic.as_ref()) {
            Some(why) => Err(Failure::fault("OUTPUT_FAILED", why).into()),
            None => resume_unwind(panic),
        },
    };
    let exit = done.unwrap_or_else(|error| {
        failure::tell(&error);
        failure::verdict(&error).1
    });
    ExitCode::from(exit as u8)
}

/// What a panic of the printing macros says; `None` for any other.
fn unprinted(panic: &(dyn Any + Send)) -> Option<&str> {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    said.filter(|said| said.starts_with(UNPRINTED))
}

/// Where standard output takes nothing, the printing macros panic: that still unwinds, so that everything that must be put
/// away is, and `main` says why. Somebody who closes our pipe (`florin demo | head`) wants no more of us, and no complaint
/// either: anstream's macros, which all of the program prints with, say nothing then.
fn leave_unprinted_to_main() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload_as_str().unwrap_or_default();
        if !said.starts_with(UNPRINTED) {
            tell(panic);
        }
    }));
}
