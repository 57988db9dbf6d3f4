//! The stored terms of a listing, and the measurement of the storage.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use florin_compute::ListingTerms;

use crate::atomic_file::{
    FileError, create_folder, private_open_options, read_limited, write_atomically,
};

/// The file with the terms of the newest listing.
const FILE: &str = "listing.json";
/// Longest file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Bytes of the file that measures the storage: 16 MiB.
const STORAGE_BYTES: usize = 16 << 20;

/// The stored terms of the newest listing; `None` without one, or if they are of another version.
pub(super) fn stored(folder: &Path) -> Result<Option<ListingTerms>, FileError> {
    let bytes = read_limited(&folder.join(FILE), FILE_BYTES_MAX)?;
    Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
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
