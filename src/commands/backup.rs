//! `florin backup`: backs up a coordinator's data folder; the coordinator may be running.

use florin_coordinator::backup::{self, BackupError, BackupFolders, Manifest};
use florin_coordinator::control;
use florin_store::DataFolderError;

use crate::cli::{Backup, JsonArg};
use crate::failure::{Exit, Failure};
use crate::progress::Progress;
use crate::show;

pub(super) fn run(arguments: &Backup) -> anyhow::Result<Exit> {
    let data = &arguments.data;
    if !data.is_dir() {
        let message = format!("{} is not a data folder", data.display());
        return Err(Failure::input("DATA_FOLDER_NOT_FOUND", message).into());
    }
    let progress = Progress::start(format!("copying {}", data.display()));
    let folders = BackupFolders { data, backup: &arguments.dest };
    let made = match backup::backup_offline(folders) {
        Err(BackupError::Folder(DataFolderError::InUse(_))) => {
            // The coordinator has another working directory: send an absolute path.
            let backup = std::path::absolute(&arguments.dest)?;
            control::request_backup(BackupFolders { data, backup: &backup })?
        }
        other => other?,
    };
    drop(progress);
    show_manifest(&made, arguments.json)?;
    if !arguments.json.json {
        let place = arguments.dest.display();
        show::hint(&format!("Restore and check with: florin restore {place} --data NEW"));
    }
    Ok(Exit::Done)
}

/// Prints the contents of a backup.
pub(super) fn show_manifest(made: &Manifest, json: JsonArg) -> anyhow::Result<()> {
    if json.json {
        return show::json(made);
    }
    let ledger =
        made.block.map_or("on Ethereum: not included".to_owned(), |n| format!("block {n}"));
    show::facts(&[
        ("coordinator", made.identity.coordinator.to_string()),
        ("genesis", made.identity.market.genesis.to_string()),
        ("journal", format!("{} records", made.records)),
        ("ledger", ledger),
        ("files", format!("{}, {} bytes", made.files, show::thousands(&made.bytes.to_string()))),
    ]);
    Ok(())
}
