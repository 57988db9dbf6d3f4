//! Files that were compared with their digests a short while ago.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use florin_protocol::Digest;

use super::OpenedBlob;

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
