//! The stored terms of a listing, and the measurement of the storage.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use florin_compute::ListingTerms;
use florin_protocol::{Address, Digest, MarketId};

use crate::atomic_file::{
    FileError, create_folder, private_open_options, read_limited, sync_parent, write_atomically,
};
use crate::locked_file::{LockError, LockedFile};

/// The file with the terms of the newest listing.
const FILE: &str = "listing.json";
/// The beginning of the names of files with the terms of ended listings.
const ENDED: &str = "listing-ended-";
/// The beginning of the names of files with the terms of listings of other accounts or markets.
const OTHER: &str = "listing-other-";
/// Most files that are read of each kind.
const FILES_MAX: usize = 64;
/// Longest file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Bytes of the file that measures the storage: 16 MiB.
const STORAGE_BYTES: usize = 16 << 20;

/// A stored listing cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It is damaged, or of another version.
    #[error(
        "{path} is no record of a listing of this version ({why}). Its listing may have a stake. Move the file to \
         another folder, and start with --unlist: this ends all open listings of the account",
        path = path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The defect.
        why: String,
    },
    /// The file system.
    #[error(transparent)]
    File(#[from] FileError),
}

impl RecordError {
    /// The stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Damaged { .. } => "LISTING_RECORD_INVALID",
            Self::File(error) => error.code(),
        }
    }
}

/// The account whose listings are meant, and its market.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lister {
    pub(super) market: MarketId,
    pub(super) provider: Address,
}

impl Lister {
    pub(super) fn has(self, terms: &ListingTerms) -> bool {
        terms.market == self.market && terms.provider == self.provider
    }
}

/// Locks the folder for the process that proves its listings: two would answer each probe, and open two listings.
pub(super) fn lock(folder: &Path) -> Result<LockedFile, LockError> {
    create_folder(folder)?;
    LockedFile::open(&folder.join("listing.lock"))
}

fn read_record(path: &Path) -> Result<Option<ListingTerms>, RecordError> {
    let Some(bytes) = read_limited(path, FILE_BYTES_MAX)? else { return Ok(None) };
    let damaged = |error: serde_json::Error| {
        let (path, why) = (path.to_owned(), error.to_string());
        RecordError::Damaged { path, why }
    };
    Ok(Some(serde_json::from_slice(&bytes).map_err(damaged)?))
}

/// The paths and the terms in a folder whose names begin so, at most [`FILES_MAX`].
fn records(folder: &Path, start: &str) -> Result<Vec<(PathBuf, ListingTerms)>, RecordError> {
    let is_record = |name: &str| name.starts_with(start) && name.ends_with(".json");
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_record(name)).collect();
    names.sort_unstable();
    let mut found = Vec::new();
    for path in names.into_iter().take(FILES_MAX).map(|name| folder.join(name)) {
        if let Some(terms) = read_record(&path)? {
            found.push((path, terms));
        }
    }
    Ok(found)
}

/// The stored terms of an account's newest listing. Those of another account or market are set aside under their id,
/// and found again by their own account.
pub(super) fn stored(folder: &Path, lister: Lister) -> Result<Option<ListingTerms>, RecordError> {
    let newest = folder.join(FILE);
    match read_record(&newest)? {
        Some(terms) if lister.has(&terms) => return Ok(Some(terms)),
        Some(terms) => rename(&newest, &folder.join(format!("{OTHER}{}.json", terms.id())))?,
        None => {}
    }
    let own = records(folder, OTHER)?.into_iter().find(|(_, terms)| lister.has(terms));
    let Some((path, terms)) = own else { return Ok(None) };
    rename(&path, &newest)?;
    Ok(Some(terms))
}

fn rename(from: &Path, to: &Path) -> Result<(), FileError> {
    let moved = std::fs::rename(from, to).and_then(|()| sync_parent(to));
    moved.map_err(|source| FileError::new("write", to, source))
}

/// Lays the terms of the newest listing aside: its stake has not returned yet.
pub(super) fn set_aside(folder: &Path, listing: Digest) -> Result<(), FileError> {
    rename(&folder.join(FILE), &folder.join(format!("{ENDED}{listing}.json")))
}

/// The ended listings of an account that were laid aside.
pub(super) fn aside(folder: &Path, lister: Lister) -> Result<Vec<Digest>, RecordError> {
    let own = records(folder, ENDED)?.into_iter().filter(|(_, terms)| lister.has(terms));
    Ok(own.map(|(_, terms)| terms.id()).collect())
}

/// Forgets a listing that was laid aside; without one nothing happens.
pub(super) fn forget(folder: &Path, listing: Digest) -> Result<(), FileError> {
    let path = folder.join(format!("{ENDED}{listing}.json"));
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(FileError::new("remove", &path, error))
        }
        _ => Ok(()),
    }
}

/// Stores the terms of a listing durably.
pub(super) fn store(folder: &Path, terms: &ListingTerms) -> Result<(), FileError> {
    create_folder(folder)?;
    let path = folder.join(FILE);
    let bytes = serde_json::to_vec_pretty(terms);
    let bytes = bytes.map_err(|error| FileError::new("write", &path, error.into()))?;
    write_atomically(&path, &bytes)
}

/// Bytes per second that the storage of a folder writes durably.
///
/// # Errors
/// [`FileError`].
pub fn measure_storage(folder: &Path) -> Result<u64, FileError> {
    create_folder(folder)?;
    let path = folder.join("storage-measurement");
    let failed = |source| FileError::new("write", &path, source);
    let began = Instant::now();
    let written = (|| {
        let mut file =
            private_open_options().write(true).create(true).truncate(true).open(&path)?;
        file.write_all(&vec![1; STORAGE_BYTES])?;
        file.sync_all()
    })();
    let seconds = began.elapsed().as_secs_f64();
    let removed = std::fs::remove_file(&path);
    written.and(removed).map_err(failed)?;
    Ok((STORAGE_BYTES as f64 / seconds.max(1e-9)) as u64)
}
