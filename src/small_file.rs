//! Reads a small text file that a person wrote: policies, task files, orders, splits.

use std::io::Read;
use std::path::Path;

use anyhow::Context;

use crate::failure::Failure;

/// The limits of a small text file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SmallFile {
    /// The file in words, with its article: `a policy`.
    pub(crate) kind: &'static str,
    /// The code of a file that is too long or no text.
    pub(crate) code: &'static str,
    /// Most bytes.
    pub(crate) bytes_max: u64,
}

impl SmallFile {
    /// Reads the text of a file or a pipe. No more than the limit is read: a device has no length, and
    /// no end.
    ///
    /// # Errors
    /// The file's code; those of opening and reading a file.
    pub(crate) fn read(self, path: &Path) -> anyhow::Result<String> {
        let Self { kind, code, bytes_max } = self;
        let shown = path.display();
        let invalid = |why: String| Failure::input(code, format!("{shown}: {why}"));
        let file = std::fs::File::open(path).with_context(|| shown.to_string())?;
        let mut bytes = Vec::new();
        let limit = bytes_max.saturating_add(1);
        file.take(limit).read_to_end(&mut bytes).with_context(|| shown.to_string())?;
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > bytes_max {
            let why = format!("it is longer than {bytes_max} bytes, the most that {kind} has");
            return Err(invalid(why).into());
        }
        String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            let read = error.as_bytes();
            let line = read.iter().take(at).filter(|byte| **byte == b'\n').count() + 1;
            let byte = read.get(at).copied().unwrap_or_default();
            let why = format!(
                "line {line} is no text in UTF-8: byte {at} is 0x{byte:02x}. Write {kind} as UTF-8"
            );
            invalid(why).into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Exit, classify};

    const FILE: SmallFile = SmallFile { kind: "a test", code: "INVALID_POLICY", bytes_max: 8 };

    fn refused(content: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.toml");
        std::fs::write(&path, content).unwrap();
        let error = FILE.read(&path).unwrap_err();
        assert_eq!(classify(&error), ("INVALID_POLICY".to_owned(), Exit::Input), "{error:#}");
        error.to_string()
    }

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.toml");
        std::fs::write(&path, "12345678").unwrap();
        assert_eq!(FILE.read(&path).unwrap(), "12345678");
        assert!(refused(b"123456789").contains("longer than 8 bytes, the most that a test has"));
        let error = FILE.read(&folder.path().join("gone")).unwrap_err();
        assert_eq!(classify(&error).0, "FILE_NOT_FOUND");
    }

    #[test]
    fn bytes_that_are_no_text_are_named_with_their_line() {
        let why = refused(b"a\nb\xff");
        assert!(why.contains("line 2") && why.contains("byte 3 is 0xff"), "{why}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_device_without_an_end_is_refused() {
        let error = FILE.read(Path::new("/dev/zero")).unwrap_err();
        assert!(error.to_string().contains("longer than 8 bytes"), "{error}");
    }
}
