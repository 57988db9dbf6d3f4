//! `florin trace`: explains the time of rounds by their traces, and writes traces in other formats.

mod damage;
mod predicted;
mod show;

use std::path::Path;

use serde_json::json;

use crate::cli::{TraceCommand, TraceExport};
use crate::failure::{Exit, Failure};
use crate::trace::analysis::clocks;
use crate::trace::analysis::read::{TraceFolder, TraceReadError, read_folder};
use crate::trace::otf2::{self, Otf2Error};

pub(super) fn run(command: TraceCommand) -> anyhow::Result<Exit> {
    match command {
        TraceCommand::Show(arguments) => show::run(&arguments),
        TraceCommand::Export(arguments) => export(&arguments),
    }
}

fn export(arguments: &TraceExport) -> anyhow::Result<Exit> {
    let found = read(&arguments.folder)?;
    let library = otf2::Library::load().map_err(|error| refused(&error))?;
    otf2::write(&library, &found.traces, &arguments.otf2).map_err(|error| refused(&error))?;
    let anchor = arguments.otf2.join("traces.otf2");
    if arguments.json.json {
        crate::show::json(&json!({ "archive": anchor, "damaged_files": damage::to_json(&found) }))?;
        return Ok(Exit::Done);
    }
    damage::print(&found);
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
fn read(folder: &Path) -> Result<TraceFolder, Failure> {
    let failed = |error: TraceReadError| Failure::input(error.code(), error.to_string());
    let mut found = read_folder(folder).map_err(failed)?;
    clocks::align(&mut found.traces);
    Ok(found)
}
