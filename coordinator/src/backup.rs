//! Backup of a data folder, running or at rest, and its way back.
//!
//! A backup is what a power cut at one moment could have left. In a running coordinator that moment is one in which the
//! engine's thread does nothing else: it closes the journal's newest segment and opens a reader of the ledger. So no
//! settlement is in the copied ledger whose report is not in the copied journal: reports are in the journal before they
//! are posted. Everything else is copied while the market goes on: closed segments and snapshots do not change, and a
//! blob was durable before the journal spoke of it, so that a later look at the blobs finds all that are needed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use florin_ledger::{ChainCopy, ChainError};
use florin_protocol::Digest;
use serde::{Deserialize, Serialize};

use crate::identity::{Identity, IdentityError};
use florin_store::{FolderError, blobs, history, is_full, lock, newest, snapshot, sync_folder};

/// The file that makes a folder a backup; written last.
const MANIFEST: &str = "backup.json";
/// The form of a backup.
const FORMAT: u32 = 1;
/// The embedded chain's file in a data folder.
pub const CHAIN_FILE: &str = "ledger.redb";

/// What a backup says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The form of the backup.
    pub format: u32,
    /// Whose data it is.
    pub identity: Identity,
    /// Records in the journal.
    pub records: u64,
    /// Their chain value.
    pub chain: Digest,
    /// The newest block of the embedded chain; none where the market is on Ethereum.
    pub block: Option<u64>,
    /// Files copied, without this one.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Why there is no backup, or none was restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// Something is there already.
    #[error(
        "{0} is there and not empty: name a new folder; nothing is ever overwritten [FOLDER_NOT_EMPTY]"
    )]
    NotEmpty(PathBuf),
    /// Where a restore would copy to first.
    #[error(
        "{0} is there, where the copy is made before it gets its name; a restore that was killed leaves it: remove \
         it, or name another folder [FOLDER_NOT_EMPTY]"
    )]
    InTheWay(PathBuf),
    /// No backup, or one that was cut off.
    #[error("{path} is no finished backup ({why}): make another one [BACKUP_UNFINISHED]")]
    Unfinished {
        /// Which folder.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The folder is used, or cannot be.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// It does not say whose it is.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The embedded chain.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The journal could not be closed.
    #[error("the journal could not be closed for a backup: {0} [JOURNAL_UNUSABLE]")]
    Journal(String),
    /// The system said no.
    #[error("{path}: {source} [BACKUP_FAILED]")]
    Failed {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What is copied, and up to where.
pub struct Moment {
    /// Whose data it is.
    pub identity: Identity,
    /// Records that are in the backup, and their chain value.
    pub at: florin_store::Position,
    /// Whether segments that begin behind them are left out: those of a running coordinator.
    pub running: bool,
    /// The ledger at that moment, if it is an embedded one.
    pub chain: Option<ChainCopy>,
}

/// Copies a data folder as it was at a moment into a new folder.
///
/// # Errors
/// [`BackupError`]; what was copied by then stays, and is no backup.
pub fn copy(data: &Path, dest: &Path, moment: Moment) -> Result<Manifest, BackupError> {
    make_new(dest)?;
    let mut copier = Copier { files: 0, bytes: 0 };
    let at = moment.at.records;
    let mut names = names(data)?;
    names.retain(|name| {
        let segment = history::number(name).is_some_and(|n| n < at || !moment.running);
        let snapshot = snapshot::number(name).is_some_and(|n| n <= at);
        segment || snapshot || name == newest::FILE && !moment.running
    });
    if moment.running {
        // The segment that begins at the end has nothing in it yet: a new one takes its place.
        names.retain(|name| history::number(name) != Some(at));
        let owner = crate::host::owner(moment.identity.market, moment.identity.coordinator);
        let volume = florin_store::Local(dest.to_owned());
        history::begin_segment(&volume, owner, moment.at)
            .and_then(|_| newest::write(&volume, owner, moment.at))
            .map_err(|source| failed(dest, source))?;
    }
    for name in &names {
        copier.file(&data.join(name), &dest.join(name))?;
    }
    moment.identity.write(dest).map_err(|source| failed(dest, source))?;
    let block = match moment.chain {
        Some(chain) => Some(chain.write(&dest.join(CHAIN_FILE))?.number),
        None => None,
    };
    copier.blobs(&data.join("blobs"), &dest.join("blobs"))?;
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

/// The same of a folder that nobody uses.
///
/// # Errors
/// [`BackupError`].
pub fn copy_at_rest(data: &Path, dest: &Path) -> Result<Manifest, BackupError> {
    let _lock: File = lock(data)?;
    let file = data.join(CHAIN_FILE);
    let chain =
        if file.exists() { Some(florin_ledger::LocalChain::begin_copy_of(&file)?) } else { None };
    let identity = Identity::read(data)?;
    let volume = florin_store::Local(data.to_owned());
    let Identity { market, coordinator } = identity;
    let owner = crate::host::owner(market, coordinator);
    let read = crate::host::keeper::with_fold(market, coordinator, |fold| {
        history::read_back(&volume, owner, fold, None)
    });
    let at = read.map_err(|error| BackupError::Journal(error.to_string()))?.at;
    copy(data, dest, Moment { identity, at, running: false, chain })
}

/// What a backup says of itself.
///
/// # Errors
/// [`BackupError::Unfinished`].
pub fn manifest(from: &Path) -> Result<Manifest, BackupError> {
    let unfinished = |why: String| BackupError::Unfinished { path: from.to_owned(), why };
    let text = fs::read(from.join(MANIFEST)).map_err(|e| unfinished(format!("{MANIFEST}: {e}")))?;
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|e| unfinished(format!("{MANIFEST}: {e}")))?;
    if manifest.format != FORMAT {
        let why = format!("its form is {}, this program reads {FORMAT}", manifest.format);
        return Err(unfinished(why));
    }
    Ok(manifest)
}

/// Copies a backup to a new data folder, which has its name only once `check` found it in order.
///
/// # Errors
/// [`BackupError`], or what `check` says; there is no data folder then.
pub fn restore<E: From<BackupError>>(
    from: &Path,
    data: &Path,
    check: impl FnOnce(&Path, &Manifest) -> Result<(), E>,
) -> Result<Manifest, E> {
    let manifest = manifest(from)?;
    if !is_empty(data)? {
        return Err(BackupError::NotEmpty(data.to_owned()).into());
    }
    // Without a slash behind it, or the folder beside it would lie in it.
    let data = &data.components().collect::<PathBuf>();
    let mut unfinished = data.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let unfinished = PathBuf::from(unfinished);
    // What a restore leaves that is killed, or somebody's own: it is not ours to say.
    if !is_empty(&unfinished)? {
        return Err(BackupError::InTheWay(unfinished).into());
    }
    let brought = bring(from, &unfinished)
        .map_err(E::from)
        .and_then(|()| check(&unfinished, &manifest))
        // Lost or damaged, the manifest has it too: without it a start could take the folder for a new one.
        .and_then(|()| {
            let written = manifest.identity.write(&unfinished);
            written.map_err(|source| E::from(failed(&unfinished, source)))
        })
        .and_then(|()| put_in_place(&unfinished, data).map_err(E::from));
    if brought.is_err()
        && unfinished.exists()
        && let Err(error) = fs::remove_dir_all(&unfinished)
    {
        tracing::warn!(folder = %unfinished.display(), %error, "what was copied is still there");
    }
    brought.map(|()| manifest)
}

fn bring(from: &Path, to: &Path) -> Result<(), BackupError> {
    make_new(to)?;
    let mut copier = Copier { files: 0, bytes: 0 };
    for name in names(from)?.iter().filter(|name| *name != MANIFEST) {
        copier.file(&from.join(name), &to.join(name))?;
    }
    copier.blobs(&from.join("blobs"), &to.join("blobs"))?;
    sync_folder(to).map_err(|source| failed(to, source))
}

/// Makes the data folder of what is finished.
fn put_in_place(finished: &Path, data: &Path) -> Result<(), BackupError> {
    if data.is_dir() {
        fs::remove_dir(data).map_err(|source| failed(data, source))?;
    }
    fs::rename(finished, data).map_err(|source| failed(data, source))?;
    let parent = data.parent().filter(|parent| !parent.as_os_str().is_empty());
    sync_folder(parent.unwrap_or(Path::new("."))).map_err(|source| failed(data, source))
}

/// Counts what it copies, and makes it durable.
struct Copier {
    files: u64,
    bytes: u64,
}

impl Copier {
    fn file(&mut self, from: &Path, to: &Path) -> Result<(), BackupError> {
        let copied = fs::copy(from, to)
            .map_err(|source| failed(if is_full(&source) { to } else { from }, source))?;
        let synced = File::options().write(true).open(to).and_then(|file| file.sync_all());
        synced.map_err(|source| failed(to, source))?;
        self.files = self.files.saturating_add(1);
        self.bytes = self.bytes.saturating_add(copied);
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
}

fn write_manifest(dest: &Path, manifest: &Manifest) -> io::Result<()> {
    sync_folder(dest)?;
    let mut file = File::create_new(dest.join(MANIFEST))?;
    file.write_all(&serde_json::to_vec_pretty(manifest)?)?;
    file.sync_all()?;
    sync_folder(dest)
}

/// The names of a folder's files, but for those that only a running coordinator has. A link stands for what it leads to,
/// as it does for a coordinator; one that leads nowhere is an error.
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
