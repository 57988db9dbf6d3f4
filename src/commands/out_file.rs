//! The file that a command writes: an existing one is never overwritten.

use std::path::Path;

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
