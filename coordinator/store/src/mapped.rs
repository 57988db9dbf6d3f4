//! A blob's bytes, which may exceed memory: the system reads a mapped file where it is accessed, and drops pages when it
//! needs memory.

use std::fs::File;
use std::io;
use std::ops::Deref;

use memmap2::Mmap;

/// Bytes in memory, or of a memory-mapped file.
#[derive(Debug)]
pub struct MappedBytes(ByteStorage);

#[derive(Debug)]
enum ByteStorage {
    Memory(Vec<u8>),
    File(Mmap),
}

impl MappedBytes {
    /// Maps all bytes of a file. The file must not be changed or truncated while it is mapped;
    /// files that are stored under their digest never are.
    ///
    /// # Errors
    /// The system's error.
    #[expect(unsafe_code, reason = "mapping a file has no safe interface")]
    pub fn file(file: &File) -> io::Result<Self> {
        // SAFETY: the caller does not change the file. If another process truncates it, access
        // ends this process (SIGBUS); if another process changes it, the bytes differ and their
        // digest is wrong.
        let map = unsafe { Mmap::map(file)? };
        Ok(Self(ByteStorage::File(map)))
    }
}

impl From<Vec<u8>> for MappedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(ByteStorage::Memory(bytes))
    }
}

impl Deref for MappedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            ByteStorage::Memory(bytes) => bytes,
            ByteStorage::File(map) => map,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_mapped_file_reads_like_memory() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"a delta's bytes").unwrap();
        assert_eq!(&*MappedBytes::file(&file).unwrap(), b"a delta's bytes");
        assert_eq!(&*MappedBytes::from(b"a delta's bytes".to_vec()), b"a delta's bytes");
        assert!(MappedBytes::file(&tempfile::tempfile().unwrap()).unwrap().is_empty());
    }
}
