//! The installation of a fetched tool: a folder with a stamp that identifies its content.
//!
//! Each tool is fetched into a temporary folder with a stamp file, and then renamed into place. A
//! folder without the right stamp counts as missing, so a second run repairs an interrupted setup,
//! and does nothing after a complete one.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::failure::Failure;
use crate::process;

/// The stamp file, which identifies a folder's content.
const STAMP: &str = "florin-stamp.txt";

/// Whether the stamp of `folder` equals `stamp`.
pub(crate) fn is_installed(folder: &Path, stamp: &str) -> bool {
    fs::read_to_string(folder.join(STAMP)).is_ok_and(|found| found == stamp)
}

/// Writes the stamp of `folder`; must be the last file written.
pub(crate) fn write_stamp(folder: &Path, stamp: &str) -> Result<(), Failure> {
    let path = folder.join(STAMP);
    fs::write(&path, stamp).map_err(|cause| Failure::file("write", &path, &cause))
}

/// Fills and stamps a temporary folder, and replaces `folder` by it.
pub(crate) fn install_atomically(
    folder: &Path,
    stamp: &str,
    fill: impl FnOnce(&Path) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let partial = create_empty_folder("partial")?;
    fill(&partial)?;
    write_stamp(&partial, stamp)?;
    remove(folder)?;
    fs::rename(&partial, folder).map_err(|cause| Failure::file("create", folder, &cause))
}

/// An empty folder of this name beside the tools, on the same file system as the final folders.
pub(crate) fn create_empty_folder(name: &str) -> Result<PathBuf, Failure> {
    let path = process::tools_folder().join(name);
    remove(&path)?;
    fs::create_dir_all(&path).map_err(|cause| Failure::file("create", &path, &cause))?;
    Ok(path)
}

/// Removes a folder if it exists.
pub(crate) fn remove(folder: &Path) -> Result<(), Failure> {
    if !folder.exists() {
        return Ok(());
    }
    fs::remove_dir_all(folder).map_err(|cause| Failure::file("remove", folder, &cause))
}

/// Prints a line before and after a step, the latter with its duration.
pub(crate) fn step(
    doing: &str,
    done: &str,
    work: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    eprintln!("setup: {doing}");
    let start = Instant::now();
    work()?;
    eprintln!("setup: {done} ({:.0} s)", start.elapsed().as_secs_f64());
    Ok(())
}
