//! A read-only view of a chain's file. The database repairs a file when it opens it; this backend
//! stores those writes in memory (copy on write) and never changes the file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Bound;
use std::sync::{PoisonError, RwLock};

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

use crate::embedded::ChainError;

/// Size of a copied page in bytes.
const PAGE_BYTES: u64 = 4_096;
/// Most pages that may change (256 MiB): a repair only rewrites the lists of free pages.
const PAGES_MAX: usize = 64 * 1024;

/// A file with an overlay of changed pages.
#[derive(Debug)]
pub(crate) struct CopyOnWriteFile {
    file: FileBackend,
    changes: RwLock<OverlayChanges>,
}

#[derive(Debug)]
struct OverlayChanges {
    len: u64,
    /// Length of the part of the file that no truncation has removed.
    visible_len: u64,
    /// Changed pages by number.
    pages: BTreeMap<u64, Vec<u8>>,
}

impl CopyOnWriteFile {
    /// An overlay without changes. The file need not be writable.
    pub(crate) fn new(file: File) -> Result<Self, ChainError> {
        let file = FileBackend::new(file)?;
        let len = file.len()?;
        Ok(Self {
            file,
            changes: RwLock::new(OverlayChanges { len, visible_len: len, pages: BTreeMap::new() }),
        })
    }

    /// The current content of a page.
    fn page(&self, over: &OverlayChanges, number: u64) -> io::Result<Vec<u8>> {
        if let Some(page) = over.pages.get(&number) {
            return Ok(page.clone());
        }
        let mut page = vec![0; usize::try_from(PAGE_BYTES).unwrap_or_default()];
        let begin = number.saturating_mul(PAGE_BYTES);
        let there = usize::try_from(over.visible_len.saturating_sub(begin).min(PAGE_BYTES))
            .unwrap_or_default();
        if let Some(there) = page.get_mut(..there).filter(|there| !there.is_empty()) {
            self.file.read(begin, there)?;
        }
        Ok(page)
    }
}

/// The end of `length` bytes from `offset` on.
fn end_of(offset: u64, length: usize) -> u64 {
    offset.saturating_add(u64::try_from(length).unwrap_or(u64::MAX))
}

/// The pages that contain `length` bytes from `offset` on: for each its number, and the first byte
/// and the end within it.
fn page_ranges(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = end_of(offset, length);
    let first = offset.checked_div(PAGE_BYTES).unwrap_or_default();
    (first..end.div_ceil(PAGE_BYTES)).map(move |number| {
        let begin = number.saturating_mul(PAGE_BYTES);
        let within = |at: u64| {
            usize::try_from(at.saturating_sub(begin).min(PAGE_BYTES)).unwrap_or(usize::MAX)
        };
        (number, within(offset), within(end))
    })
}

impl StorageBackend for CopyOnWriteFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.changes.read().unwrap_or_else(PoisonError::into_inner).len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let over = self.changes.read().unwrap_or_else(PoisonError::into_inner);
        if end_of(offset, out.len()) > over.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut rest = out;
        for (number, from, to) in page_ranges(offset, rest.len()) {
            let page = self.page(&over, number)?;
            let piece = page.get(from..to).unwrap_or_default();
            let (now, later) = rest.split_at_mut(piece.len());
            now.copy_from_slice(piece);
            rest = later;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut over = self.changes.write().unwrap_or_else(PoisonError::into_inner);
        if len < over.len {
            over.visible_len = over.visible_len.min(len);
            over.pages.retain(|number, _| number.saturating_mul(PAGE_BYTES) < len);
            let last = len.checked_div(PAGE_BYTES).unwrap_or_default();
            let keep = usize::try_from(len.saturating_sub(last.saturating_mul(PAGE_BYTES)));
            if let (Some(page), Ok(keep)) = (over.pages.get_mut(&last), keep) {
                page.iter_mut().skip(keep).for_each(|byte| *byte = 0);
            }
        }
        over.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut over = self.changes.write().unwrap_or_else(PoisonError::into_inner);
        let mut rest = data;
        for (number, from, to) in page_ranges(offset, data.len()) {
            let mut page = self.page(&over, number)?;
            let (now, later) = rest.split_at(to.saturating_sub(from));
            page.get_mut(from..to).unwrap_or_default().copy_from_slice(now);
            rest = later;
            over.pages.insert(number, page);
            if over.pages.len() > PAGES_MAX {
                let what = format!("the repair in memory would change more than {PAGES_MAX} pages");
                return Err(io::Error::other(what));
            }
        }
        over.len = over.len.max(end_of(offset, data.len()));
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    // A writer locks the file exclusively; readers share their lock.
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::crash_tests::{CrashRng, seed};

    #[test]
    fn reads_return_the_writes_and_the_file_stays_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let before: Vec<u8> = (0..20_000u32).map(|n| n as u8).collect();
        std::fs::write(&path, &before).unwrap();
        let mut permissions = std::fs::metadata(&path).unwrap().permissions();
        permissions.set_readonly(true);
        std::fs::set_permissions(&path, permissions).unwrap();
        let overlay = CopyOnWriteFile::new(File::open(&path).unwrap()).unwrap();
        let (mut plain, mut dice) = (before.clone(), CrashRng(seed()));
        for _ in 0..2_000 {
            let at = dice.below(30_000) as usize;
            let some: Vec<u8> = (0..dice.below(9_000)).map(|n| (n as u8) ^ (at as u8)).collect();
            match dice.below(4) {
                0 => {
                    overlay.set_len(at as u64).unwrap();
                    plain.resize(at, 0);
                }
                1 => {
                    overlay.write(at as u64, &some).unwrap();
                    plain.resize(plain.len().max(at + some.len()), 0);
                    plain[at..at + some.len()].copy_from_slice(&some);
                }
                _ => {
                    let mut out = vec![9; some.len()];
                    let read = overlay.read(at as u64, &mut out);
                    assert_eq!(read.is_ok(), at + some.len() <= plain.len());
                    if read.is_ok() {
                        assert_eq!(out, plain[at..at + some.len()]);
                    }
                }
            }
            assert_eq!(overlay.len().unwrap(), plain.len() as u64);
        }
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }
}
