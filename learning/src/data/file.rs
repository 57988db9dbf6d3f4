//! Reading of files into memory, with a limit and with gzip decompression.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;

use super::{FILE_BYTES_MAX, LoadError};

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The whole file, decompressed if it starts with the gzip magic number, for any file name.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    let unreadable = |source| LoadError::Unreadable { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(unreadable)?;
    let mut start = Vec::new();
    file.by_ref().take(2).read_to_end(&mut start).map_err(unreadable)?;
    let whole = std::io::Cursor::new(start.clone()).chain(file);
    if start != GZIP_MAGIC {
        return limited(whole, path, unreadable);
    }
    limited(GzDecoder::new(whole), path, |source| LoadError::BrokenGzip {
        path: path.to_owned(),
        source,
    })
}

/// All bytes of a reader, up to the limit on a file.
pub(super) fn limited(
    from: impl Read,
    path: &Path,
    failed: impl Fn(std::io::Error) -> LoadError,
) -> Result<Vec<u8>, LoadError> {
    let mut bytes = Vec::new();
    let read = from.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if read as u64 > FILE_BYTES_MAX {
        return Err(LoadError::FileTooLarge { path: path.to_owned() });
    }
    Ok(bytes)
}
