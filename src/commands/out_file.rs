//! The file that a command writes: an existing one is never overwritten.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::Context;

use crate::failure::Failure;

/// Refuses a path at which there is a file, a folder or a broken link. A device or a pipe loses nothing.
///
/// # Errors
/// `FILE_EXISTS`.
pub(super) fn refuse_existing(out: &Path) -> Result<(), Failure> {
    let is_taken = match out.metadata() {
        Ok(found) => found.is_file() || found.is_dir(),
        Err(_) => out.symlink_metadata().is_ok(),
    };
    if !is_taken {
        return Ok(());
    }
    let message = format!(
        "{} already exists, and nothing is overwritten: choose another file with --out, or remove it",
        out.display()
    );
    Err(Failure::input("FILE_EXISTS", message))
}

/// The same for a trained model; the file that it was made from may be written again.
///
/// # Errors
/// `FILE_EXISTS`.
pub(super) fn refuse_existing_but(from: Option<&Path>, out: &Path) -> Result<(), Failure> {
    if from == Some(out) { Ok(()) } else { refuse_existing(out) }
}

/// Writes a file whole or not at all: beside it first, so that a full disk leaves nothing under its name. A device or
/// a pipe is written to as it is.
///
/// # Errors
/// Those of the file, with its name, and those of `write`.
pub(super) fn write_whole_file(
    out: &Path,
    write: impl FnOnce(&mut File) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let shown = || out.display().to_string();
    if out.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return write(&mut File::options().write(true).open(out).with_context(shown)?);
    }
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    let beside = out.with_file_name(format!(".{name}.{}-partial", std::process::id()));
    let written = File::create(&beside)
        .with_context(shown)
        .and_then(|mut file| write(&mut file))
        .and_then(|()| std::fs::rename(&beside, out).with_context(shown));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written
}

/// Writes bytes as [`write_whole_file`] does.
///
/// # Errors
/// Those of the file, with its name.
pub(super) fn write_bytes(out: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    write_whole_file(out, |file| file.write_all(bytes).with_context(|| out.display().to_string()))
}

/// Creates a file with a text. After a failure there is none.
///
/// # Errors
/// `FILE_EXISTS`, and those of the file.
pub(super) fn create_text(path: &Path, text: &str) -> anyhow::Result<()> {
    let shown = || path.display().to_string();
    let mut file = match File::options().write(true).create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let message =
                format!("{} already exists and is not overwritten: choose another name", shown());
            return Err(Failure::input("FILE_EXISTS", message).into());
        }
        other => other.with_context(shown)?,
    };
    let written = file.write_all(text.as_bytes()).with_context(shown);
    if written.is_err() {
        // A part of the file would be in the way of the next try.
        let _ = std::fs::remove_file(path);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_no_file_and_no_part_of_one() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("net.safetensors");
        let failed = write_whole_file(&out, |file| {
            file.write_all(b"a part")?;
            anyhow::bail!("the disk is full")
        });
        assert!(failed.is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        write_whole_file(&out, |file| Ok(file.write_all(b"all")?)).unwrap();
        assert_eq!(std::fs::read(&out).unwrap(), b"all");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let nowhere = write_whole_file(&folder.path().join("missing/x"), |_| Ok(())).unwrap_err();
        assert_eq!(crate::failure::classify(&nowhere).0, "FILE_NOT_FOUND");
    }

    #[cfg(unix)]
    #[test]
    fn a_device_is_written_to_as_it_is() {
        let null = Path::new("/dev/null");
        assert!(refuse_existing(null).is_ok());
        write_whole_file(null, |file| Ok(file.write_all(b"all")?)).unwrap();
        assert!(!null.metadata().unwrap().is_file());
    }
}
