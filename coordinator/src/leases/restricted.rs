//! The rows and states of orders that are not public, and checkpoints of all orders: a folder for each order, which no
//! other order and no task reads from. Rows and checkpoints are removed when the lease is over.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use florin_protocol::{Digest, blob_digest};
use florin_store::blobs::hash_file;
use florin_store::{BlobError, OpenedBlob, sync_folder};

/// The folder in a data folder.
pub const RESTRICTED_FOLDER: &str = "restricted";

/// Suffix of a file whose bytes are not complete.
const PARTIAL: &str = "partial";

/// The files of all such folders.
#[derive(Debug)]
pub(super) struct RestrictedFiles {
    root: PathBuf,
    /// Number of writes: two of the same bytes have a temporary file each.
    writes: AtomicU64,
}

impl RestrictedFiles {
    pub(super) fn new(data: &Path) -> Self {
        Self { root: data.join(RESTRICTED_FOLDER), writes: AtomicU64::new(0) }
    }

    fn folder(&self, order: Digest) -> PathBuf {
        self.root.join(order.to_string())
    }

    fn path(&self, order: Digest, digest: Digest) -> PathBuf {
        self.folder(order).join(digest.to_string())
    }

    pub(super) fn contains(&self, order: Digest, digest: Digest) -> bool {
        self.path(order, digest).is_file()
    }

    /// Stores the bytes of a digest durably.
    pub(super) fn put(&self, order: Digest, digest: Digest, bytes: &[u8]) -> Result<(), BlobError> {
        let (folder, path) = (self.folder(order), self.path(order, digest));
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        let partial = path.with_extension(format!("{number}.{PARTIAL}"));
        let written = make_private(&self.root)
            .and_then(|()| fs::create_dir_all(&folder))
            .and_then(|()| File::create(&partial))
            .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&partial, &path))
            .and_then(|()| sync_folder(&folder))
            .and_then(|()| sync_folder(&self.root))
            .and_then(|()| self.root.parent().map_or(Ok(()), sync_folder));
        written.map_err(|error| {
            // The next start would remove it.
            let _ = fs::remove_file(&partial);
            BlobError::from(error)
        })
    }

    /// Opens the file of a digest, after its bytes were compared with it.
    pub(super) fn open(&self, order: Digest, digest: Digest) -> Result<OpenedBlob, BlobError> {
        let path = self.path(order, digest);
        let missing = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => BlobError::Missing(digest),
            _ => BlobError::from(error),
        };
        let (found, length) = hash_file(&path).map_err(missing)?;
        match found == digest {
            true => Ok(OpenedBlob::File(File::open(path).map_err(missing)?, length)),
            false => Err(BlobError::WrongDigest { wanted: digest, found }),
        }
    }

    /// Reads the bytes of a digest, and compares them with it.
    pub(super) fn read(&self, order: Digest, digest: Digest) -> Result<Vec<u8>, BlobError> {
        let bytes = fs::read(self.path(order, digest))?;
        match blob_digest(&bytes) {
            found if found == digest => Ok(bytes),
            found => Err(BlobError::WrongDigest { wanted: digest, found }),
        }
    }

    /// Removes the bytes of digests, if they are there.
    pub(super) fn remove(&self, order: Digest, digests: &[Digest]) -> io::Result<()> {
        for digest in digests {
            absent(fs::remove_file(self.path(order, *digest)))?;
        }
        absent(sync_folder(&self.folder(order)))
    }

    /// Removes all files of an order but some: those of interrupted writes, for example.
    pub(super) fn keep(&self, order: Digest, needed: &BTreeSet<Digest>) -> io::Result<()> {
        for entry in fs::read_dir(self.folder(order))? {
            let entry = entry?;
            let digest = entry.file_name().to_str().and_then(|name| name.parse::<Digest>().ok());
            if !digest.is_some_and(|digest| needed.contains(&digest)) {
                absent(fs::remove_file(entry.path()))?;
            }
        }
        Ok(())
    }

    /// Removes all files of an order.
    pub(super) fn remove_all(&self, order: Digest) -> io::Result<()> {
        absent(fs::remove_dir_all(self.folder(order)))?;
        absent(sync_folder(&self.root))
    }

    /// The orders with files.
    pub(super) fn orders(&self) -> io::Result<Vec<Digest>> {
        let mut orders = Vec::new();
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(orders),
            entries => entries?,
        };
        for entry in entries {
            orders.extend(entry?.file_name().to_str().and_then(|name| name.parse::<Digest>().ok()));
        }
        Ok(orders)
    }
}

/// Creates a folder that no other user of the machine reads.
pub(crate) fn make_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// A file that is not there needs no removal.
pub(super) fn absent(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_belong_to_one_order() {
        let folder = tempfile::tempdir().unwrap();
        let files = RestrictedFiles::new(folder.path());
        assert_eq!(files.orders().unwrap(), []);
        let (one, two) = (Digest([1; 32]), Digest([2; 32]));
        let rows = blob_digest(b"rows");
        files.put(one, rows, b"rows").unwrap();
        assert!(files.contains(one, rows) && !files.contains(two, rows));
        assert_eq!(files.read(one, rows).unwrap(), b"rows");
        assert!(matches!(files.open(one, rows), Ok(OpenedBlob::File(_, 4))));
        assert_eq!(files.orders().unwrap(), [one]);
        files.put(two, rows, b"rows").unwrap();
        files.remove(one, &[rows]).unwrap();
        files.remove(one, &[rows]).unwrap();
        assert!(!files.contains(one, rows) && files.contains(two, rows));
        files.remove_all(two).unwrap();
        files.remove_all(two).unwrap();
        // An interrupted write, and a state that no record names.
        let state = files.folder(one).join(Digest([7; 32]).to_string());
        fs::write(&state, "state").unwrap();
        fs::write(files.path(one, rows).with_extension("3.partial"), "ro").unwrap();
        files.put(one, rows, b"rows").unwrap();
        files.keep(one, &[rows].into()).unwrap();
        assert_eq!(fs::read_dir(files.folder(one)).unwrap().count(), 1);
        assert!(files.contains(one, rows));
        assert_eq!(files.orders().unwrap(), [one]);
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let files = RestrictedFiles::new(folder.path());
        let (order, rows) = (Digest([1; 32]), blob_digest(b"rows"));
        files.put(order, rows, b"sour").unwrap();
        assert!(files.read(order, rows).is_err());
        assert!(files.open(order, rows).is_err());
    }
}
