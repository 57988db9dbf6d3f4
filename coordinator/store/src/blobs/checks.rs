//! Files of blobs: their lengths, and those that were compared with their digests a short while ago.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use florin_protocol::Digest;

use super::{BlobStore, OpenedBlob};
use crate::error::BlobError;

/// How long a comparison counts: a damaged disk is noticed after that.
const CHECK_LIFE: Duration = Duration::from_secs(60);
/// Most files that are remembered. Beyond, all are forgotten.
const CHECKS_MAX: usize = 1_024;

/// A file and its content, as far as the system knows: device, inode, length, and the time of the last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileVersion {
    place: (u64, u64),
    length: u64,
    changed: (i64, i64),
}

impl FileVersion {
    fn of(found: &Metadata) -> Self {
        let (place, changed) = ((found.dev(), found.ino()), (found.ctime(), found.ctime_nsec()));
        Self { place, length: found.len(), changed }
    }
}

/// The comparisons of the last minute.
#[derive(Debug, Default)]
pub(super) struct LateChecks {
    known: Mutex<BTreeMap<Digest, (FileVersion, Instant)>>,
}

impl LateChecks {
    /// Opens a file that was compared lately; `None` for any other, also for one that cannot be opened.
    pub(super) fn open(&self, digest: Digest, path: &Path) -> Option<OpenedBlob> {
        let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&digest)?;
        let file = File::open(path).ok()?;
        let version = FileVersion::of(&file.metadata().ok()?);
        let is_known = known.0 == version && known.1.elapsed() < CHECK_LIFE;
        is_known.then_some(OpenedBlob::File(file, version.length))
    }

    /// Remembers a file that was compared just now.
    pub(super) fn remember(&self, digest: Digest, file: &File) {
        let Ok(found) = file.metadata() else { return };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= CHECKS_MAX {
            known.clear();
        }
        known.insert(digest, (FileVersion::of(&found), Instant::now()));
    }
}

impl BlobStore {
    /// The length of a blob with a file of its own; `None` for a small one, and for a blob that the folder lacks.
    #[must_use]
    pub fn file_bytes(&self, digest: Digest) -> Option<u64> {
        let found = fs::metadata(self.path(digest)).ok()?;
        (found.is_file() && !self.packs.contains(digest)).then_some(found.len())
    }

    /// As [`Self::open_checked`], and a file that was compared with its digest within the last minute, and was not
    /// written since, is not read again: many readers of a large blob cost one comparison.
    ///
    /// # Errors
    /// [`BlobError`].
    pub fn open_lately_checked(&self, digest: Digest) -> Result<OpenedBlob, BlobError> {
        if let Some(opened) = self.checks.open(digest, &self.path(digest)) {
            return Ok(opened);
        }
        let opened = self.open_checked(digest)?;
        if let OpenedBlob::File(file, _) = &opened {
            self.checks.remember(digest, file);
        }
        Ok(opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::PACKED_BYTES_MAX;

    /// A minute is too long to wait for a file that was written again.
    #[test]
    fn a_file_that_was_written_since_its_comparison_is_compared_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = BlobStore::open(folder.path()).unwrap();
        let bytes = vec![7; PACKED_BYTES_MAX + 1];
        let digest = store.put(&bytes).unwrap();
        assert_eq!(store.file_bytes(digest), Some(bytes.len() as u64));
        let length = |opened: OpenedBlob| match opened {
            OpenedBlob::File(_, length) => length,
            OpenedBlob::Bytes(bytes) => bytes.len() as u64,
        };
        for _ in 0..2 {
            assert_eq!(length(store.open_lately_checked(digest).unwrap()), bytes.len() as u64);
        }
        assert!(store.checks.open(digest, &store.path(digest)).is_some(), "it is known");
        let mut damaged = bytes;
        damaged[100] = 8;
        fs::write(store.path(digest), &damaged).unwrap();
        assert!(matches!(store.open_lately_checked(digest), Err(BlobError::WrongDigest { .. })));
        assert!(store.open_lately_checked(Digest([1; 32])).is_err());
    }
}
