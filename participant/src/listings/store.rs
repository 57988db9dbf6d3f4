//! The stored terms of a listing, and the measurement of the storage.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use florin_compute::ListingTerms;
use florin_protocol::Digest;

use crate::atomic_file::{
    FileError, create_folder, private_open_options, read_limited, sync_parent, write_atomically,
};
use crate::locked_file::{LockError, LockedFile};

/// The file with the terms of the newest listing.
const FILE: &str = "listing.json";
/// The beginning of the names of files with the terms of ended listings.
const ASIDE: &str = "listing-ended-";
/// Most ended listings whose stakes are looked at.
const ASIDE_MAX: usize = 64;
/// Longest file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Bytes of the file that measures the storage: 16 MiB.
const STORAGE_BYTES: usize = 16 << 20;

/// Locks the folder for the process that proves its listings: two would answer each probe, and open two listings.
pub(super) fn lock(folder: &Path) -> Result<LockedFile, LockError> {
    create_folder(folder)?;
    LockedFile::open(&folder.join("listing.lock"))
}

/// The stored terms of the newest listing; `None` without one, or if they are of another version.
pub(super) fn stored(folder: &Path) -> Result<Option<ListingTerms>, FileError> {
    let bytes = read_limited(&folder.join(FILE), FILE_BYTES_MAX)?;
    Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// Lays the terms of the newest listing aside: its stake has not returned yet.
pub(super) fn set_aside(folder: &Path, listing: Digest) -> Result<(), FileError> {
    let path = folder.join(FILE);
    let aside = folder.join(format!("{ASIDE}{listing}.json"));
    let moved = std::fs::rename(&path, &aside).and_then(|()| sync_parent(&path));
    moved.map_err(|source| FileError::new("write", &path, source))
}

/// The listings that were laid aside, at most [`ASIDE_MAX`].
pub(super) fn aside(folder: &Path) -> Vec<Digest> {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let listing = |name: String| name.strip_prefix(ASIDE)?.strip_suffix(".json")?.parse().ok();
    let found = names.filter_map(|entry| listing(entry.file_name().into_string().ok()?));
    found.take(ASIDE_MAX).collect()
}

/// Forgets a listing that was laid aside.
pub(super) fn forget(folder: &Path, listing: Digest) -> Result<(), FileError> {
    let path = folder.join(format!("{ASIDE}{listing}.json"));
    std::fs::remove_file(&path).map_err(|source| FileError::new("remove", &path, source))
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
