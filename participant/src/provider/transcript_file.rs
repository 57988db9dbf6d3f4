//! The transcript of the last valuation, until its record has a verdict. It is an aid: without it, for example after a
//! crash in the middle of a write, the coordinator values the round itself.

use std::path::{Path, PathBuf};

use florin_protocol::Digest;

/// A file with the digest of a work order and the transcript of its valuation.
pub(super) struct TranscriptFile(PathBuf);

impl TranscriptFile {
    pub(super) fn new(folder: &Path) -> Self {
        Self(folder.join("transcript"))
    }

    /// Replaces the transcript of an earlier order. A transcript that cannot be stored is only logged.
    pub(super) fn write(&self, order: Digest, transcript: Option<&[u8]>) {
        let written = match transcript {
            Some(transcript) => std::fs::write(&self.0, [&order.0, transcript].concat()),
            None => self.remove(),
        };
        if let Err(error) = written {
            let file = self.0.display();
            tracing::warn!(%file, %error, "the transcript of a valuation is not stored");
        }
    }

    /// The transcript of an order, if it is the last one.
    pub(super) fn read(&self, order: Digest) -> Option<Vec<u8>> {
        let mut bytes = std::fs::read(&self.0).ok()?;
        let (own, _) = bytes.split_first_chunk()?;
        if Digest(*own) != order {
            return None;
        }
        Some(bytes.split_off(size_of::<Digest>()))
    }

    fn remove(&self) -> std::io::Result<()> {
        match std::fs::remove_file(&self.0) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_orders_transcript_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = TranscriptFile::new(folder.path());
        let (one, two) = (Digest([1; 32]), Digest([2; 32]));
        assert_eq!(file.read(one), None);
        file.write(one, Some(b"numbers"));
        assert_eq!(file.read(one).unwrap(), b"numbers");
        assert_eq!(file.read(two), None);
        file.write(two, Some(b""));
        assert_eq!((file.read(one), file.read(two).unwrap()), (None, Vec::new()));
        std::fs::write(folder.path().join("transcript"), b"short").unwrap();
        assert_eq!(file.read(two), None);
        file.write(two, None);
        file.write(two, None);
        assert_eq!(file.read(two), None);
    }
}
