//! Prepares a fresh clone: fetches libtorch and the tools that the tests compare with.

use std::fs::{self, File};
use std::process::ExitCode;

use crate::failure::Failure;
use crate::{contracts, page, process, sandbox, slurm, tools, torch};

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
    tools::package_requirements_if_missing()?;
    tools::http_client_if_missing()?;
    tools::bucket_service_if_missing()?;
    tools::node_if_missing()?;
    page::install_test_tools()?;
    sandbox::BUBBLEWRAP.fetch_if_missing()?;
    slurm::SLURM.fetch_if_missing()?;
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
