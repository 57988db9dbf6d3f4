//! `florin restore`: brings a backup back as a new data folder, once everything in it was read and found in order.

use std::path::Path;

use florin_coordinator::backup::{self, Manifest};
use florin_coordinator::check::Verdict;

use crate::cli::Restore;
use crate::commands::backup::show_manifest;
use crate::commands::coordinate::check;
use crate::failure::{Exit, Failure};
use crate::show;

pub(super) fn run(arguments: &Restore) -> anyhow::Result<Exit> {
    let made = backup::restore(&arguments.from, &arguments.data, in_order)?;
    show_manifest(&made, arguments.json)?;
    if !arguments.json.json {
        show::hint(
            "Everything was read and is in order. Start the coordinator on it with the same wallet; what was \
             acknowledged after the backup is not in it.",
        );
    }
    Ok(Exit::Done)
}

/// Whether a copy is what the backup says, and nothing in it is damaged.
fn in_order(copy: &Path, manifest: &Manifest) -> anyhow::Result<()> {
    let findings = check::everything(copy)?;
    let bad = findings.parts.iter().find(|part| part.verdict == Verdict::Bad);
    let what = match bad {
        Some(part) => format!("{}: {} ({})", part.part, part.what, part.code),
        None if (findings.records, findings.chain) != (manifest.records, manifest.chain) => {
            let (found, said) = (findings.records, manifest.records);
            format!("journal: {found} records are there, the backup was made of {said}")
        }
        None if copy.join(backup::CHAIN_FILE).exists() != manifest.block.is_some() => {
            "ledger: it is missing, or does not belong to the backup".to_owned()
        }
        None => return Ok(()),
    };
    let message =
        format!("the backup is damaged: {what}. Nothing was restored; use another backup");
    Err(Failure::no("BACKUP_DAMAGED", message).into())
}
