//! Reading of files, with gzip decompression, and into memory with a limit.

use std::fs::File;
use std::io::{Cursor, Read};
use std::path::Path;

use flate2::read::GzDecoder;

use super::{FILE_BYTES_MAX, LoadError};

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A file that is read from its start.
pub(super) struct OpenFile {
    /// Its bytes, decompressed if it starts with the gzip magic number, for any file name.
    pub(super) reader: Box<dyn Read>,
    pub(super) is_gzip: bool,
}

/// Opens a file, plain or gzipped.
pub(super) fn open(path: &Path) -> Result<OpenFile, LoadError> {
    let unreadable = |source| LoadError::Unreadable { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(unreadable)?;
    let mut start = Vec::new();
    file.by_ref().take(2).read_to_end(&mut start).map_err(unreadable)?;
    let is_gzip = start == GZIP_MAGIC;
    let whole = Cursor::new(start).chain(file);
    let reader: Box<dyn Read> = match is_gzip {
        true => Box::new(GzDecoder::new(whole)),
        false => Box::new(whole),
    };
    Ok(OpenFile { reader, is_gzip })
}

/// The whole file, decompressed.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    let OpenFile { reader, is_gzip } = open(path)?;
    let path_of = || path.to_owned();
    limited(reader, path, |source| match is_gzip {
        true => LoadError::BrokenGzip { path: path_of(), source },
        false => LoadError::Unreadable { path: path_of(), source },
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
