//! Backup and restore of a data folder, running or at rest.
//!
//! A backup is crash-consistent: it equals a state that a power failure at one point in time could
//! have left. In a running coordinator, the engine's thread closes the journal's newest segment and
//! opens a read transaction on the ledger, and does nothing else in between. Every settlement in
//! the copied ledger therefore has its report in the copied journal, because a report is journaled
//! before it is posted. All other files are copied while the coordinator continues: closed segments
//! and snapshots do not change, and a blob is durable before the journal refers to it, so a later
//! copy of the blobs contains all that the journal needs.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use florin_ledger::ChainError;
use florin_protocol::Digest;
use serde::{Deserialize, Serialize};

use crate::host::snapshotter::with_replay_target;
use crate::host::{BackupPoint, CheckpointError};
use crate::identity::{Identity, IdentityError};
use crate::leases::{LEASES_FILE, LeaseStoreError, RESTRICTED_FOLDER, make_private};
use florin_store::{
    DataFolderError, FolderLock, blobs, is_full, lock, newest_segment, recovery, segment, snapshot,
    sync_folder,
};

/// The file that marks a folder as a complete backup. It is written last.
const MANIFEST: &str = "backup.json";
/// Version of the backup format.
const FORMAT: u32 = 1;
/// The embedded chain's file in a data folder.
pub const CHAIN_FILE: &str = "ledger.redb";

/// The manifest of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the backup format.
    pub format: u32,
    /// The owner of the data.
    pub identity: Identity,
    /// Number of records in the journal.
    pub records: u64,
    /// Chain hash after the last record.
    pub chain: Digest,
    /// The newest block of the embedded chain; `None` for a market on Ethereum.
    pub block: Option<u64>,
    /// Number of files copied, without this one.
    pub files: u64,
    /// Bytes in these files.
    pub bytes: u64,
}

/// Why a backup or a restore failed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The destination is not empty.
    #[error(
        "{0} is not empty: name a new folder; existing files are never overwritten \
         [FOLDER_NOT_EMPTY]"
    )]
    NotEmpty(PathBuf),
    /// The staging folder of a restore is not empty.
    #[error(
        "{0} is not empty, and a restore needs it as its staging folder. An interrupted restore \
         leaves it behind: remove it, or name another folder [FOLDER_NOT_EMPTY]"
    )]
    StagingNotEmpty(PathBuf),
    /// Not a backup, or an incomplete one.
    #[error("{path} is not a complete backup ({why}): make another one [BACKUP_INCOMPLETE]")]
    Incomplete {
        /// The folder.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// The folder is in use, or cannot be used.
    #[error(transparent)]
    Folder(#[from] DataFolderError),
    /// The folder has no identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The embedded chain cannot be copied.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The records of leases cannot be copied.
    #[error(transparent)]
    Leases(#[from] LeaseStoreError),
    /// The journal could not be rotated or read.
    #[error("the journal could not be prepared for a backup: {0} [JOURNAL_UNUSABLE]")]
    Journal(String),
    /// A system call failed.
    #[error("{path}: {source} [BACKUP_FAILED]")]
    Failed {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl From<CheckpointError> for BackupError {
    fn from(error: CheckpointError) -> Self {
        match error {
            CheckpointError::Chain(error) => Self::Chain(error),
            CheckpointError::Leases(error) => Self::Leases(error),
            error @ (CheckpointError::Stopping(_) | CheckpointError::Journal(_)) => {
                Self::Journal(error.to_string())
            }
        }
    }
}

/// A data folder and a backup of it.
#[derive(Debug, Clone, Copy)]
pub struct BackupFolders<'a> {
    /// The data folder of a coordinator.
    pub data: &'a Path,
    /// The folder of the backup.
    pub backup: &'a Path,
}

/// Copies a data folder, as of `moment`, into a new folder.
///
/// # Errors
/// [`BackupError`]; files copied before the error remain, without a manifest.
pub fn copy(folders: BackupFolders<'_>, moment: BackupPoint) -> Result<Manifest, BackupError> {
    let BackupFolders { data, backup: dest } = folders;
    make_new(dest)?;
    let mut copier = BackupWriter { files: 0, bytes: 0 };
    let at = moment.at.records;
    let mut names = names(data)?;
    names.retain(|name| {
        let is_segment = segment::segment_number(name).is_some_and(|n| n < at || !moment.running);
        let is_snapshot = snapshot::number(name).is_some_and(|n| n <= at);
        let is_idle = name == newest_segment::FILE || name == LEASES_FILE;
        is_segment || is_snapshot || is_idle && !moment.running
    });
    if moment.running {
        // The segment that begins at the position is still empty: a new one replaces it.
        names.retain(|name| segment::segment_number(name) != Some(at));
        let owner = moment.identity.owner();
        let volume = florin_store::LocalVolume(dest.to_owned());
        segment::begin_segment(&volume, owner, moment.at)
            .and_then(|_| newest_segment::write(&volume, owner, moment.at))
            .map_err(|source| failed(dest, source))?;
    }
    for name in &names {
        copier.file(&data.join(name), &dest.join(name))?;
    }
    moment.identity.write(dest).map_err(|source| failed(dest, source))?;
    if let Some(leases) = &moment.leases {
        leases.write(&dest.join(LEASES_FILE))?;
        copier.count(&dest.join(LEASES_FILE))?;
    }
    let block = match moment.chain {
        Some(chain) => Some(chain.write(&dest.join(CHAIN_FILE))?.number),
        None => None,
    };
    copier.blobs(&data.join("blobs"), &dest.join("blobs"))?;
    copier.restricted(&data.join(RESTRICTED_FOLDER), &dest.join(RESTRICTED_FOLDER))?;
    let manifest = Manifest {
        format: FORMAT,
        identity: moment.identity,
        records: moment.at.records,
        chain: moment.at.chain,
        block,
        files: copier.files,
        bytes: copier.bytes,
    };
    write_manifest(dest, &manifest).map_err(|source| failed(dest, source))?;
    Ok(manifest)
}

/// Copies a data folder that no process uses.
///
/// # Errors
/// [`BackupError`].
pub fn backup_offline(folders: BackupFolders<'_>) -> Result<Manifest, BackupError> {
    let data = folders.data;
    let _lock: FolderLock = lock(data)?;
    let file = data.join(CHAIN_FILE);
    let chain = if file.exists() {
        Some(florin_ledger::EmbeddedChain::begin_snapshot_of_file(&file)?)
    } else {
        None
    };
    let identity = Identity::read(data)?;
    let volume = florin_store::LocalVolume(data.to_owned());
    let Identity { market, coordinator } = identity;
    let owner = identity.owner();
    let read = with_replay_target(market, coordinator, |fold| {
        recovery::recover(&volume, owner, fold, None)
    });
    let at = read.map_err(|error| BackupError::Journal(error.to_string()))?.at;
    copy(folders, BackupPoint { identity, at, running: false, chain, leases: None })
}

/// The manifest of a backup.
///
/// # Errors
/// [`BackupError::Incomplete`].
pub fn manifest(from: &Path) -> Result<Manifest, BackupError> {
    let unfinished = |why: String| BackupError::Incomplete { path: from.to_owned(), why };
    let text = fs::read(from.join(MANIFEST)).map_err(|e| unfinished(format!("{MANIFEST}: {e}")))?;
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|e| unfinished(format!("{MANIFEST}: {e}")))?;
    if manifest.format != FORMAT {
        let why =
            format!("its format is {}, and this program reads format {FORMAT}", manifest.format);
        return Err(unfinished(why));
    }
    Ok(manifest)
}

/// Copies a backup to a new data folder. The folder gets its name only after `check` has accepted
/// the copy.
///
/// # Errors
/// [`BackupError`], or the error of `check`. The data folder does not exist then.
pub fn restore<E: From<BackupError>>(
    BackupFolders { data, backup: from }: BackupFolders<'_>,
    check: impl FnOnce(&Path, &Manifest) -> Result<(), E>,
) -> Result<Manifest, E> {
    let manifest = manifest(from)?;
    if !is_empty(data)? {
        return Err(BackupError::NotEmpty(data.to_owned()).into());
    }
    // Without a trailing slash, which would put the staging folder inside the data folder.
    let data = &data.components().collect::<PathBuf>();
    let mut unfinished = data.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let unfinished = PathBuf::from(unfinished);
    // Left by an interrupted restore, or unrelated files: only the operator can decide.
    if !is_empty(&unfinished)? {
        return Err(BackupError::StagingNotEmpty(unfinished).into());
    }
    let brought = copy_to_staging(from, &unfinished)
        .map_err(E::from)
        .and_then(|()| check(&unfinished, &manifest))
        // If the identity file was lost or damaged, the manifest has it too. Without it, a
        // coordinator could take the folder for a new one.
        .and_then(|()| {
            let written = manifest.identity.write(&unfinished);
            written.map_err(|source| E::from(failed(&unfinished, source)))
        })
        .and_then(|()| rename_into_place(&unfinished, data).map_err(E::from));
    if brought.is_err()
        && unfinished.exists()
        && let Err(error) = fs::remove_dir_all(&unfinished)
    {
        tracing::warn!(folder = %unfinished.display(), %error, "the incomplete copy was not removed");
    }
    brought.map(|()| manifest)
}

fn copy_to_staging(from: &Path, to: &Path) -> Result<(), BackupError> {
    make_new(to)?;
    let mut copier = BackupWriter { files: 0, bytes: 0 };
    for name in names(from)?.iter().filter(|name| *name != MANIFEST) {
        copier.file(&from.join(name), &to.join(name))?;
    }
    copier.blobs(&from.join("blobs"), &to.join("blobs"))?;
    copier.restricted(&from.join(RESTRICTED_FOLDER), &to.join(RESTRICTED_FOLDER))?;
    sync_folder(to).map_err(|source| failed(to, source))
}

/// Renames the complete copy to the data folder.
fn rename_into_place(finished: &Path, data: &Path) -> Result<(), BackupError> {
    if data.is_dir() {
        fs::remove_dir(data).map_err(|source| failed(data, source))?;
    }
    fs::rename(finished, data).map_err(|source| failed(data, source))?;
    let parent = data.parent().filter(|parent| !parent.as_os_str().is_empty());
    sync_folder(parent.unwrap_or(Path::new("."))).map_err(|source| failed(data, source))
}

/// Copies files durably and counts them.
struct BackupWriter {
    files: u64,
    bytes: u64,
}

impl BackupWriter {
    fn file(&mut self, from: &Path, to: &Path) -> Result<(), BackupError> {
        let copied = fs::copy(from, to)
            .map_err(|source| failed(if is_full(&source) { to } else { from }, source))?;
        let synced = File::options().write(true).open(to).and_then(|file| file.sync_all());
        synced.map_err(|source| failed(to, source))?;
        self.files = self.files.saturating_add(1);
        self.bytes = self.bytes.saturating_add(copied);
        Ok(())
    }

    /// Counts a file that was written durably.
    fn count(&mut self, file: &Path) -> Result<(), BackupError> {
        let about = fs::metadata(file).map_err(|source| failed(file, source))?;
        self.files = self.files.saturating_add(1);
        self.bytes = self.bytes.saturating_add(about.len());
        Ok(())
    }

    fn blobs(&mut self, from: &Path, to: &Path) -> Result<(), BackupError> {
        let packs = to.join("packs");
        fs::create_dir_all(&packs).map_err(|source| failed(&packs, source))?;
        if from.join("packs").is_dir() {
            let mut found = names(&from.join("packs"))?;
            found.sort();
            for name in found {
                self.file(&from.join("packs").join(&name), &packs.join(&name))?;
            }
        }
        sync_folder(&packs).map_err(|source| failed(&packs, source))?;
        for (_, path) in blobs::files(from).map_err(|source| failed(from, source))? {
            let place = path
                .strip_prefix(from)
                .map_err(|error| failed(&path, io::Error::other(error.to_string())))?;
            let to = to.join(place);
            if let Some(folder) = to.parent() {
                fs::create_dir_all(folder).map_err(|source| failed(folder, source))?;
                self.file(&path, &to)?;
                sync_folder(folder).map_err(|source| failed(folder, source))?;
                let above = folder.parent().map_or(Ok(()), sync_folder);
                above.map_err(|source| failed(folder, source))?;
            }
        }
        sync_folder(to).map_err(|source| failed(to, source))
    }

    /// Copies the files of restricted orders. The rows of one whose lease ends meanwhile are removed, and are not
    /// copied.
    fn restricted(&mut self, from: &Path, to: &Path) -> Result<(), BackupError> {
        let orders = match fs::read_dir(from) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            orders => orders.map_err(|source| failed(from, source))?,
        };
        make_private(to).map_err(|source| failed(to, source))?;
        for order in orders {
            let order = order.map_err(|source| failed(from, source))?;
            if order.file_name().to_str().is_some_and(|name| name.parse::<Digest>().is_ok()) {
                self.restricted_order(&order.path(), &to.join(order.file_name()))?;
            }
        }
        sync_folder(to).map_err(|source| failed(to, source))
    }

    fn restricted_order(&mut self, from: &Path, to: &Path) -> Result<(), BackupError> {
        let is_gone = |source: &io::Error| source.kind() == io::ErrorKind::NotFound;
        let files = match fs::read_dir(from) {
            Err(error) if is_gone(&error) => return Ok(()),
            files => files.map_err(|source| failed(from, source))?,
        };
        fs::create_dir_all(to).map_err(|source| failed(to, source))?;
        for file in files {
            let file = file.map_err(|source| failed(from, source))?;
            if file.file_name().to_str().is_none_or(|name| name.parse::<Digest>().is_err()) {
                // Of a write that has not ended.
                continue;
            }
            match self.file(&file.path(), &to.join(file.file_name())) {
                Err(BackupError::Failed { source, .. }) if is_gone(&source) => {}
                copied => copied?,
            }
        }
        sync_folder(to).map_err(|source| failed(to, source))
    }
}

fn write_manifest(dest: &Path, manifest: &Manifest) -> io::Result<()> {
    sync_folder(dest)?;
    let mut file = File::create_new(dest.join(MANIFEST))?;
    file.write_all(&serde_json::to_vec_pretty(manifest)?)?;
    file.sync_all()?;
    sync_folder(dest)
}

/// The names of a folder's files, without the lock file. A symbolic link counts as its target, as
/// it does for a coordinator. A dangling link is an error.
fn names(folder: &Path) -> Result<Vec<String>, BackupError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(|source| failed(folder, source))? {
        let entry = entry.map_err(|source| failed(folder, source))?;
        let about = fs::metadata(entry.path()).map_err(|source| failed(&entry.path(), source))?;
        if about.is_file() && entry.file_name() != "lock" {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    Ok(names)
}

fn is_empty(folder: &Path) -> Result<bool, BackupError> {
    match fs::read_dir(folder) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(source) => Err(failed(folder, source)),
    }
}

fn make_new(folder: &Path) -> Result<(), BackupError> {
    if !is_empty(folder)? {
        return Err(BackupError::NotEmpty(folder.to_owned()));
    }
    fs::create_dir_all(folder).map_err(|source| failed(folder, source))
}

fn failed(path: &Path, source: io::Error) -> BackupError {
    BackupError::Failed { path: path.to_owned(), source }
}
