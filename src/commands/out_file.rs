//! The file that a command writes: an existing one is never overwritten.

use std::path::Path;

use crate::failure::Failure;

/// Refuses a path at which there is something.
///
/// # Errors
/// `FILE_EXISTS`.
pub(super) fn refuse_existing(out: &Path) -> Result<(), Failure> {
    // A link to nothing is something, too.
    if out.symlink_metadata().is_err() {
        return Ok(());
    }
    let message = format!(
        "{} already exists, and nothing is overwritten: choose another file with --out, or remove it",
        out.display()
    );
    Err(Failure::input("FILE_EXISTS", message))
}
