//! `florin trace`: explains the time of rounds by their traces, and writes traces in other formats.

mod predicted;
mod show;

use std::path::Path;

use crate::cli::{TraceCommand, TraceExport};
use crate::failure::{Exit, Failure};
use crate::trace::analysis::clocks;
use crate::trace::analysis::read::{ProcessTrace, TraceReadError, read_folder};
use crate::trace::otf2::{self, Otf2Error};

pub(super) fn run(command: TraceCommand) -> anyhow::Result<Exit> {
    match command {
        TraceCommand::Show(arguments) => show::run(&arguments),
        TraceCommand::Export(arguments) => export(&arguments),
    }
}

fn export(arguments: &TraceExport) -> anyhow::Result<Exit> {
    let traces = read(&arguments.folder)?;
    let library = otf2::Library::load().map_err(|error| refused(&error))?;
    otf2::write(&library, &traces, &arguments.otf2).map_err(|error| refused(&error))?;
    let anchor = arguments.otf2.join("traces.otf2");
    anstream::println!("written to {}: read it with otf2-print, or with Vampir", anchor.display());
    Ok(Exit::Done)
}

fn refused(error: &Otf2Error) -> Failure {
    match error {
        Otf2Error::Call { .. } => Failure::fault(error.code(), error.to_string()),
        _ => Failure::input(error.code(), error.to_string()),
    }
}

/// Reads a folder, and shifts all times to the coordinator's clock.
fn read(folder: &Path) -> Result<Vec<ProcessTrace>, Failure> {
    let failed = |error: TraceReadError| Failure::input(error.code(), error.to_string());
    let mut traces = read_folder(folder).map_err(failed)?;
    clocks::align(&mut traces);
    Ok(traces)
}
