//! Prepares a fresh clone: fetches libtorch and the tools that the tests compare with.
//!
//! Each tool is fetched into a temporary folder with a stamp file that identifies its content, and
//! then renamed into place. A folder without the right stamp counts as missing, so a second run
//! repairs an interrupted setup, and does nothing after a complete one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use crate::failure::Failure;
use crate::{contracts, process, tools, torch};

/// The stamp file, which identifies a folder's content.
const STAMP: &str = "florin-stamp.txt";

/// `cargo xtask setup`.
pub(crate) fn run() -> Result<ExitCode, Failure> {
    fetch_all()?;
    eprintln!("setup: ready");
    Ok(ExitCode::SUCCESS)
}

/// Fetches everything that is missing for building and testing.
pub(crate) fn fetch_all() -> Result<(), Failure> {
    let _lock = lock()?;
    torch::fetch_if_missing()?;
    tools::python_if_missing()?;
    tools::http_client_if_missing()?;
    tools::bucket_service_if_missing()?;
    tools::node_if_missing()?;
    contracts::install()
}

/// Fetches everything that is missing for building.
pub(crate) fn fetch_build_tools() -> Result<(), Failure> {
    let _lock = lock()?;
    torch::fetch_if_missing()
}

/// Fetches everything that is missing for a development chain.
pub(crate) fn fetch_chain_tools() -> Result<(), Failure> {
    let _lock = lock()?;
    contracts::install()
}

/// Allows one setup at a time in a checkout; the lock is released when the process ends.
fn lock() -> Result<File, Failure> {
    let folder = process::tools_folder();
    fs::create_dir_all(&folder).map_err(|cause| Failure::file("create", &folder, &cause))?;
    let path = folder.join("setup.lock");
    let file = File::create(&path).map_err(|cause| Failure::file("create", &path, &cause))?;
    if file.try_lock().is_err() {
        eprintln!("setup: waiting for another setup of this checkout");
        file.lock().map_err(|cause| Failure::file("lock", &path, &cause))?;
    }
    Ok(file)
}

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
