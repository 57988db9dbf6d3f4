//! A blob's bytes, which may be larger than memory: a mapped file is read by the system where it is touched, and forgotten
//! again when memory is wanted for something else.

use std::fs::File;
use std::io;
use std::ops::Deref;

use memmap2::Mmap;

/// Bytes in memory, or a file's.
#[derive(Debug)]
pub struct Mapped(Source);

#[derive(Debug)]
enum Source {
    Memory(Vec<u8>),
    File(Mmap),
}

impl Mapped {
    /// A file's bytes, all of them. Nobody may change or shorten the file while it is mapped: files
    /// that are kept under their digest never are.
    ///
    /// # Errors
    /// What the system said.
    #[expect(unsafe_code, reason = "mapping a file; there is no safe way")]
    pub fn file(file: &File) -> io::Result<Self> {
        // SAFETY: the caller keeps the file as it is. One that somebody else shortens nevertheless
        // ends the process (SIGBUS), one that is changed gives other bytes, whose digest is wrong.
        let map = unsafe { Mmap::map(file)? };
        Ok(Self(Source::File(map)))
    }
}

impl From<Vec<u8>> for Mapped {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Source::Memory(bytes))
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Source::Memory(bytes) => bytes,
            Source::File(map) => map,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_reads_like_memory() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"a delta's bytes").unwrap();
        assert_eq!(&*Mapped::file(&file).unwrap(), b"a delta's bytes");
        assert_eq!(&*Mapped::from(b"a delta's bytes".to_vec()), b"a delta's bytes");
        assert!(Mapped::file(&tempfile::tempfile().unwrap()).unwrap().is_empty());
    }
}
