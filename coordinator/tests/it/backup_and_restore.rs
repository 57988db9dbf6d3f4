//! A backup of a running market is crash-consistent: it is restored with a check, the market
//! continues, and no payout is posted twice, even if the ledger is further than the backup.

use std::fs;
use std::path::Path;

use florin_coordinator::backup::{self, BackupError, BackupFolders, Manifest};
use florin_coordinator::check::{Severity, check};
use florin_coordinator::config::JournalSettings;
use florin_coordinator::control::back_up;
use florin_protocol::*;

use crate::crash_recovery::{TestHost, new_ledger, start, start_with, try_start};

#[derive(Debug, thiserror::Error)]
enum RestoreError {
    #[error(transparent)]
    Backup(#[from] BackupError),
    #[error("{0}")]
    Check(String),
}

/// Whether a digest is a synthetic one: the fixtures reference a base model and updates without
/// uploading them.
#[expect(clippy::unnecessary_wraps, reason = "a bucket can fail")]
fn is_synthetic(digest: Digest) -> Result<bool, String> {
    Ok(digest.0.iter().all(|byte| *byte == digest.0[0]))
}

fn check_copy(copy: &Path, manifest: &Manifest) -> Result<(), RestoreError> {
    let found = check(copy, None, Some(&is_synthetic))
        .map_err(|error| RestoreError::Check(error.to_string()))?;
    let usable = found.parts.iter().all(|part| part.is_tolerated());
    if usable && (found.records, found.chain) == (manifest.records, manifest.chain) {
        return Ok(());
    }
    Err(RestoreError::Check(format!("{found:?}")))
}

/// Plays until the first round has its report.
async fn play_one_round(market: &TestHost) {
    let mut changes = market.host.changes();
    loop {
        changes.mark_unchanged();
        let at = market.phase().await;
        let id = market.id;
        let reported = market.host.read(move |engine, _| {
            engine.state().tasks.get(&id).map_or(0, |task| task.rounds.len())
        });
        if reported.await.unwrap() > 0 {
            return;
        }
        market.send_events(at.map(|(phase, _)| phase)).await;
        if market.phase().await == at {
            changes.changed().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_a_running_market_comes_back_and_pays_nothing_twice() {
    for retain in [true, false] {
        let (dir, ledger) = (tempfile::tempdir().unwrap(), new_ledger());
        let (data, dest) = (dir.path().join("data"), dir.path().join("backup"));
        let settings = JournalSettings { snapshot_events: 4, retain, ..JournalSettings::default() };
        let market = start_with(&data, &ledger, 0, &settings);
        play_one_round(&market).await;
        let manifest =
            back_up(&market.host, BackupFolders { data: &data, backup: &dest }).await.unwrap();
        assert!(manifest.records > 5 && manifest.files > 1, "{manifest:?}");
        // The market and the ledger continue to the end: three rounds are paid.
        let (reports, refund) = market.play().await;
        market.stop().await;
        let finals = ledger.state.lock().unwrap().final_settlements.clone();
        assert_eq!((reports.len(), finals.len()), (3, 3));
        // The restored coordinator has one round at most, and its ledger has all.
        let again = dir.path().join("again");
        assert_eq!(
            backup::restore(BackupFolders { data: &again, backup: &dest }, check_copy).unwrap(),
            manifest
        );
        let market = start_with(&again, &ledger, 0, &settings);
        assert_eq!(market.host.read(|engine, _| engine.state().tasks.len()).await.unwrap(), 1);
        assert_eq!(market.play().await, (reports, refund));
        market.stop().await;
        assert_eq!(
            ledger.state.lock().unwrap().final_settlements,
            finals,
            "no settlement is posted twice"
        );
    }
}

/// Backs a stopped market up. The last thread of the market, or a process that another test starts at
/// this moment, may hold the folder's lock for a little longer.
async fn back_up_free_folder(folders: BackupFolders<'_>) -> Result<Manifest, BackupError> {
    for _ in 0..100 {
        match backup::backup_offline(folders) {
            Err(busy) if busy.to_string().contains("[DATA_FOLDER_IN_USE]") => {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            done => return done,
        }
    }
    panic!("the data folder stays in use");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_or_incomplete_backup_is_not_restored_and_no_file_is_overwritten() {
    let (dir, ledger) = (tempfile::tempdir().unwrap(), new_ledger());
    let (data, dest) = (dir.path().join("data"), dir.path().join("backup"));
    let market = start(&data, &ledger, 0);
    play_one_round(&market).await;
    let busy = backup::backup_offline(BackupFolders { data: &data, backup: &dest }).unwrap_err();
    assert!(busy.to_string().contains("[DATA_FOLDER_IN_USE]"), "{busy}");
    market.stop().await;
    let copy = BackupFolders { data: &data, backup: &dest };
    back_up_free_folder(copy).await.unwrap();
    let twice = back_up_free_folder(copy).await.unwrap_err();
    assert!(twice.to_string().contains("[FOLDER_NOT_EMPTY]"), "{twice}");
    let refused =
        backup::restore(BackupFolders { data: &data, backup: &dest }, check_copy).unwrap_err();
    assert!(refused.to_string().contains("[FOLDER_NOT_EMPTY]"), "{refused}");
    let again = dir.path().join("again");
    // A flipped byte in each file in turn.
    let pack = fs::read_dir(dest.join("blobs/packs")).unwrap().next().unwrap().unwrap().path();
    for path in [dest.join("journal"), pack] {
        let whole = fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 1;
        fs::write(&path, &flipped).unwrap();
        let refused =
            backup::restore(BackupFolders { data: &again, backup: &dest }, check_copy).unwrap_err();
        assert!(matches!(refused, RestoreError::Check(_)), "{refused}");
        assert!(!again.exists());
        // A missing file.
        fs::remove_file(&path).unwrap();
        let refused =
            backup::restore(BackupFolders { data: &again, backup: &dest }, check_copy).unwrap_err();
        assert!(matches!(refused, RestoreError::Check(_)), "{refused}");
        fs::write(&path, &whole).unwrap();
    }
    backup::restore(BackupFolders { data: &again, backup: &dest }, check_copy).unwrap();
    // An incomplete copy has no manifest, which is written last.
    fs::remove_file(dest.join("backup.json")).unwrap();
    let refused = backup::restore(
        BackupFolders { data: &dir.path().join("more"), backup: &dest },
        check_copy,
    )
    .unwrap_err();
    assert!(refused.to_string().contains("[BACKUP_INCOMPLETE]"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_with_damage_that_a_start_tolerates_is_restored() {
    let (dir, ledger) = (tempfile::tempdir().unwrap(), new_ledger());
    let (data, dest) = (dir.path().join("data"), dir.path().join("backup"));
    let settings = JournalSettings { snapshot_events: 4, ..JournalSettings::default() };
    let market = start_with(&data, &ledger, 0, &settings);
    play_one_round(&market).await;
    market.host.blobs().put(b"an unreferenced blob.").unwrap();
    market.host.blobs().put(b"another such blob").unwrap();
    market.stop().await;
    backup::backup_offline(BackupFolders { data: &data, backup: &dest }).unwrap();
    // The newest snapshot, and the unreferenced blob.
    let mut snapshots: Vec<_> = walk(&dest);
    snapshots.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with("snapshot-"));
    let pack = dest.join("blobs/packs/0000000000.pack");
    let spare = fs::read(&pack).unwrap();
    let spare = spare.windows(21).position(|bytes| bytes == b"an unreferenced blob.").unwrap();
    for (path, at) in [(snapshots.iter().max().unwrap(), 200), (&pack, spare)] {
        let mut bytes = fs::read(path).unwrap();
        bytes[at] ^= 1;
        fs::write(path, bytes).unwrap();
    }
    let again = dir.path().join("again");
    backup::restore(BackupFolders { data: &again, backup: &dest }, check_copy).unwrap();
    let market = start_with(&again, &ledger, 0, &settings);
    market.play().await;
    market.stop().await;
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn symlinks_in_a_data_folder_are_followed_and_a_dangling_one_is_an_error() {
    use std::os::unix::fs::symlink;
    let (dir, ledger) = (tempfile::tempdir().unwrap(), new_ledger());
    let data = dir.path().join("data");
    let market = start(&data, &ledger, 0);
    play_one_round(&market).await;
    let large = market.host.blobs().put(&vec![7; 200_000]).unwrap();
    market.stop().await;
    // An operator moved the journal, the packs and some blobs to a larger disk.
    let elsewhere = dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let first = format!("blobs/{}", &large.to_string()[..2]);
    for (number, name) in ["journal", "blobs/packs", &first].into_iter().enumerate() {
        let moved = elsewhere.join(number.to_string());
        fs::rename(data.join(name), &moved).unwrap();
        symlink(&moved, data.join(name)).unwrap();
    }
    // A start accepts them, and so does a backup.
    start(&data, &ledger, 0).stop().await;
    let dest = dir.path().join("backup");
    backup::backup_offline(BackupFolders { data: &data, backup: &dest }).unwrap();
    let restored = dir.path().join("again");
    backup::restore(BackupFolders { data: &restored, backup: &dest }, check_copy).unwrap();
    assert!(walk(&restored).iter().any(|path| path.ends_with(large.to_string())));
    assert!(!restored.join("journal").is_symlink());
    symlink(dir.path().join("nowhere"), data.join("blobs/zz")).unwrap();
    let refused =
        backup::backup_offline(BackupFolders { data: &data, backup: &dir.path().join("more") })
            .unwrap_err();
    assert!(refused.to_string().contains("[BACKUP_FAILED]"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_reads_every_file_and_reports_each_damage() {
    let (dir, ledger) = (tempfile::tempdir().unwrap(), new_ledger());
    let settings = JournalSettings { snapshot_events: 4, ..JournalSettings::default() };
    let market = start_with(dir.path(), &ledger, 0, &settings);
    market.play().await;
    market.host.blobs().put(b"an unreferenced blob.").unwrap();
    market.host.blobs().put(&vec![7; 200_000]).unwrap();
    let running = check(dir.path(), None, None).unwrap_err();
    assert!(running.to_string().contains("[DATA_FOLDER_IN_USE]"), "{running}");
    market.stop().await;
    let look = || check(dir.path(), None, None).unwrap();
    let bad = || {
        let found = look();
        let bad = found.parts.iter().filter(|part| part.severity == Severity::Damaged);
        bad.map(|part| part.code).collect::<Vec<_>>()
    };
    let found = look();
    let spare = found.parts.iter().find(|part| part.message.contains("unreferenced")).unwrap();
    assert!(spare.bytes >= 200_021, "{found:?}");
    let count = |name: &str| found.parts.iter().find(|part| part.part == name).unwrap().count;
    assert!(count("journal") > 10 && count("snapshots") >= 2 && count("packs") > 5, "{found:?}");
    // The fixtures never upload the updates or the base model.
    assert_eq!(bad(), ["BLOB_MISSING"], "{found:?}");
    let everything_elsewhere = |_: Digest| Ok(true);
    assert!(check(dir.path(), None, Some(&everything_elsewhere)).unwrap().is_intact());
    let names: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("snapshot-"))
        .collect();
    let snapshot = dir.path().join(&names[0]);
    let whole = fs::read(&snapshot).unwrap();
    let mut flipped = whole.clone();
    flipped[200] ^= 1;
    fs::write(&snapshot, flipped).unwrap();
    assert_eq!(bad(), ["SNAPSHOT_DAMAGED", "BLOB_MISSING"]);
    fs::write(&snapshot, whole).unwrap();
    let large = dir.path().join("blobs");
    let path =
        walk(&large).into_iter().find(|path| path.ends_with(name_of(&[7; 200_000]))).unwrap();
    fs::write(&path, vec![8; 200_000]).unwrap();
    assert_eq!(bad(), ["BLOB_DAMAGED", "BLOB_MISSING"]);
    fs::remove_file(&path).unwrap();
    let journal = dir.path().join("journal");
    let mut bytes = fs::read(&journal).unwrap();
    bytes[300] ^= 1;
    fs::write(&journal, bytes).unwrap();
    assert_eq!(bad(), ["JOURNAL_DAMAGED"]);
}

fn name_of(bytes: &[u8]) -> String {
    blob_digest(bytes).to_string()
}

fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(walk(&path)) } else { found.push(path) }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_creates_no_files_and_a_missing_journal_is_not_recreated() {
    let (dir, ledger) = (tempfile::tempdir().unwrap(), new_ledger());
    let market = start(dir.path(), &ledger, 0);
    play_one_round(&market).await;
    market.stop().await;
    fs::remove_file(dir.path().join("lock")).unwrap();
    let before = walk(dir.path());
    check(dir.path(), None, Some(&is_synthetic)).unwrap();
    assert_eq!(walk(dir.path()), before);
    fs::remove_file(dir.path().join("journal")).unwrap();
    let error = try_start(dir.path(), &ledger).unwrap_err();
    assert!(error.contains("[JOURNAL_MISSING]"), "{error}");
    assert!(!dir.path().join("journal").exists());
}
