//! `florin restore`: restores a backup into a new data folder, after reading and checking all of
//! it.

use std::path::Path;

use anyhow::Context;
use florin_coordinator::Bucket;
use florin_coordinator::backup::{self, BackupFolders, Manifest};
use florin_coordinator::check::{Finding, Severity};

use crate::cli::Restore;
use crate::commands::backup::show_manifest;
use crate::commands::coordinate::check::{self, FolderCheck};
use crate::commands::coordinate::read_settings;
use crate::failure::{Exit, Failure};
use crate::progress::Progress;
use crate::show::{self, NOTE};

pub(super) fn run(arguments: &Restore) -> anyhow::Result<Exit> {
    let bucket = bucket(arguments)?;
    let mut survived = Vec::new();
    let check = |copy: &Path, manifest: &Manifest| {
        survived = check_copy(copy, bucket.as_ref(), manifest)?;
        Ok::<_, anyhow::Error>(())
    };
    let folders = BackupFolders { data: &arguments.data, backup: &arguments.from };
    let made =
        Progress::during(format!("copying and checking {}", arguments.from.display()), || {
            backup::restore(folders, check)
        })?;
    for Finding { part, code, message: what, .. } in &survived {
        anstream::eprintln!(
            "{NOTE}note{NOTE:#}: {part}: {what} [{code}]. The market does not need this part."
        );
    }
    show_manifest(&made, arguments.json)?;
    if !arguments.json.json {
        show::hint(
            "The backup is complete. Start the coordinator on this folder with the same wallet. \
             The folder does not contain anything acknowledged after the backup.",
        );
    }
    Ok(Exit::Done)
}

/// The bucket that may hold blobs that the backup lacks.
fn bucket(arguments: &Restore) -> anyhow::Result<Option<Bucket>> {
    let data = arguments.data.to_str().context("the data folder's name is not UTF-8")?;
    let settings = read_settings(arguments.settings.as_deref(), |variable| match variable {
        "FLORIN_COORDINATOR_DATA" => Some(data.to_owned()),
        // The restore opens no port; the setting is mandatory.
        "FLORIN_COORDINATOR_LISTEN" => Some("127.0.0.1:0".to_owned()),
        _ => None,
    })?;
    check::open_bucket(&settings)
}

/// Checks that a copy matches the manifest and that a coordinator can start on it. Returns the
/// damages that a coordinator tolerates.
fn check_copy(
    copy: &Path,
    bucket: Option<&Bucket>,
    manifest: &Manifest,
) -> anyhow::Result<Vec<Finding>> {
    let FolderCheck { findings, identity, chain } = check::check_folder(copy, bucket)?;
    let bad = findings.parts.iter().find(|part| !part.is_tolerated());
    let block = chain.map(|chain| chain.blocks);
    let what = match bad {
        Some(part) => format!("{}: {} ({})", part.part, part.message, part.code),
        None if identity != manifest.identity => {
            let (found, expected) = (identity.market.genesis, manifest.identity.market.genesis);
            let (by, of) = (identity.coordinator, manifest.identity.coordinator);
            format!(
                "folder: it belongs to coordinator {by} in market {found}, but the manifest names \
                 {of} in market {expected}"
            )
        }
        None if (findings.records, findings.chain) != (manifest.records, manifest.chain) => {
            let (found, expected) = (findings.records, manifest.records);
            format!("journal: it has {found} records, but the manifest names {expected}")
        }
        None if block != manifest.block => {
            format!(
                "ledger: it ends at {}, but the manifest names {}",
                block_label(block),
                block_label(manifest.block)
            )
        }
        None => {
            let damaged =
                findings.parts.into_iter().filter(|part| part.severity == Severity::Damaged);
            return Ok(damaged.collect());
        }
    };
    let message =
        format!("the backup is damaged: {what}. Nothing was restored; use another backup");
    Err(Failure::negative("BACKUP_DAMAGED", message).into())
}

fn block_label(block: Option<u64>) -> String {
    block.map_or("none".to_owned(), |block| format!("block {block}"))
}
