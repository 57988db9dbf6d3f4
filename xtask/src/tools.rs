//! Third-party packages: reference implementations for the tests in Python and JavaScript, and peer
//! implementations for the benchmarks.

use std::path::PathBuf;
use std::process::Command;

use crate::failure::{self, Failure};
use crate::python::Python;
use crate::{installation, process};

const PYTHON_PINS: &str = "protocol/vectors/requirements.txt";
const NODE_FOLDER: &str = "protocol/vectors";
const PACKAGE_PINS: &str = "python/requirements.txt";
const HTTP_PINS: &str = "tests/schemathesis/requirements.txt";
const S3_PINS: &str = "tests/s3/requirements.txt";
const BENCH_PINS: &str = "xtask/peers/requirements.txt";
const LIBRARY_PINS: &str = "xtask/peers/library-requirements.txt";
const OPENMPI_PINS: &str = "xtask/peers/openmpi-requirements.txt";
const FLOWER_PINS: &str = "xtask/peers/flower-requirements.txt";
const SIMULATOR_PINS: &str = "xtask/peers/simulation-requirements.txt";
const CONTRIBUTION_PINS: &str = "xtask/peers/contribution-requirements.txt";
const TABLES_PINS: &str = "xtask/peers/tables-requirements.txt";
const CONTRACT_PINS: &str = "contracts/requirements.txt";

/// Folder of the vector tests' Python packages; the tests add it to PYTHONPATH.
pub(crate) fn vector_packages_folder() -> PathBuf {
    process::tools_folder().join("python")
}

/// Installs the Python packages of the vector tests.
pub(crate) fn python_if_missing() -> Result<(), Failure> {
    let python = Python::find()?;
    packages_if_missing(
        &python,
        PYTHON_PINS,
        &vector_packages_folder(),
        "the vector tests' Python packages",
    )
}

/// Installs what the tests of the Python package need, in the folder where they look for it.
pub(crate) fn package_requirements_if_missing() -> Result<(), Failure> {
    let folder = process::tools_folder().join("package");
    let name = "NumPy, pandas and mypy for the Python package (230 MB on disk)";
    packages_if_missing(&Python::find()?, PACKAGE_PINS, &folder, name)
}

/// Installs the fuzzing client for the coordinator's HTTP interface, in the folder where the tests
/// look for it.
pub(crate) fn http_client_if_missing() -> Result<(), Failure> {
    let folder = process::tools_folder().join("http");
    packages_if_missing(&Python::find()?, HTTP_PINS, &folder, "schemathesis")
}

/// Installs the S3 service in which the tests store blobs, in the folder where the tests look for
/// it.
pub(crate) fn bucket_service_if_missing() -> Result<(), Failure> {
    let folder = process::tools_folder().join("s3");
    packages_if_missing(&Python::find()?, S3_PINS, &folder, "moto, an S3 service")
}

/// Installs the peer implementations of the training and aggregation benchmarks. Returns their
/// folder.
pub(crate) fn bench_if_missing() -> Result<PathBuf, Failure> {
    let folder = process::tools_folder().join("bench");
    let python = Python::find()?;
    packages_if_missing(
        &python,
        BENCH_PINS,
        &folder,
        "PyTorch and NumPy for comparison (5 GB on disk)",
    )?;
    Ok(folder)
}

/// Installs the libraries whose models `cargo xtask bench models --library` compares. Returns their
/// folder.
pub(crate) fn libraries_if_missing() -> Result<PathBuf, Failure> {
    let folder = process::tools_folder().join("library");
    let name = "PyTorch, torchvision, timm, transformers and peft (5 GB on disk)";
    packages_if_missing(&Python::find()?, LIBRARY_PINS, &folder, name)?;
    Ok(folder)
}

/// Installs the peer implementations of `cargo xtask bench contribution`. Returns their own folder:
/// their NumPy version conflicts with PyTorch's.
pub(crate) fn contribution_bench_if_missing() -> Result<PathBuf, Failure> {
    let folder = process::tools_folder().join("contribution");
    let python = Python::find()?;
    packages_if_missing(
        &python,
        CONTRIBUTION_PINS,
        &folder,
        "shapiq and pyDVL for comparison (1 GB on disk)",
    )?;
    Ok(folder)
}

/// Installs Open MPI, one of the launchers of `cargo xtask bench devices`. Returns its folder.
pub(crate) fn openmpi_if_missing() -> Result<PathBuf, Failure> {
    let folder = process::tools_folder().join("openmpi");
    let python = Python::find()?;
    let name = "Open MPI (7 MB to download)";
    installed_if_missing(&python, OPENMPI_PINS, &folder, name, Python::install_prefix)?;
    Ok(folder)
}

/// Installs the packages that contain the tables of `cargo xtask bench pay`. Returns their folder.
pub(crate) fn tables_if_missing() -> Result<PathBuf, Failure> {
    let folder = process::tools_folder().join("tables");
    let name = "scikit-learn and palmerpenguins, which contain tables (300 MB on disk)";
    packages_if_missing(&Python::find()?, TABLES_PINS, &folder, name)?;
    Ok(folder)
}

/// Installs Flower, the peer implementation of `cargo xtask bench server --peer flower`. Returns
/// its folder.
pub(crate) fn flower_bench_if_missing() -> Result<PathBuf, Failure> {
    let folder = process::tools_folder().join("flower");
    let python = Python::find()?;
    packages_if_missing(&python, FLOWER_PINS, &folder, "Flower for comparison (300 MB on disk)")?;
    Ok(folder)
}

/// Installs the peer implementations of `cargo xtask bench sim --peer …`. Returns their folder.
pub(crate) fn simulators_if_missing() -> Result<PathBuf, Failure> {
    let folder = process::tools_folder().join("simulation");
    let python = Python::find()?;
    let name = "pfl-research and Flower's simulation for comparison (5 GB on disk)";
    packages_if_missing(&python, SIMULATOR_PINS, &folder, name)?;
    Ok(folder)
}

/// Installs the static analysis tools for the contracts. Returns their folder.
pub(crate) fn contract_checks_if_missing() -> Result<PathBuf, Failure> {
    let folder = process::tools_folder().join("contracts");
    let python = Python::find()?;
    packages_if_missing(&python, CONTRACT_PINS, &folder, "halmos and slither (300 MB on disk)")?;
    Ok(folder)
}

fn packages_if_missing(
    python: &Python,
    pins: &str,
    folder: &std::path::Path,
    name: &str,
) -> Result<(), Failure> {
    installed_if_missing(python, pins, folder, name, Python::install)
}

fn installed_if_missing(
    python: &Python,
    pins: &str,
    folder: &std::path::Path,
    name: &str,
    install: fn(&Python, &std::path::Path, &std::path::Path) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let requirements = process::root().join(pins);
    let text = std::fs::read_to_string(&requirements)
        .map_err(|cause| Failure::file("read", &requirements, &cause))?;
    // Binary packages match one minor version of Python only.
    let stamp = format!("python {}\n{text}", python.version());
    if installation::is_installed(folder, &stamp) {
        return Ok(());
    }
    installation::step(&format!("fetching {name}"), "installed", || {
        installation::install_atomically(folder, &stamp, |partial| {
            install(python, &requirements, partial)
        })
    })
}

/// Installs the JavaScript package of the vector tests at its locked version.
pub(crate) fn node_if_missing() -> Result<(), Failure> {
    npm_if_missing(NODE_FOLDER, "the vector tests' JavaScript package")
}

/// Installs a folder's npm packages at the versions of its package-lock.json, without running their
/// scripts.
pub(crate) fn npm_if_missing(folder: &str, name: &str) -> Result<(), Failure> {
    let folder = process::root().join(folder);
    let lock = folder.join("package-lock.json");
    let stamp =
        std::fs::read_to_string(&lock).map_err(|cause| Failure::file("read", &lock, &cause))?;
    let modules = folder.join("node_modules");
    if installation::is_installed(&modules, &stamp) {
        return Ok(());
    }
    for program in ["node", "npm"] {
        if !process::is_on_path(program) {
            return Err(Failure::new(
                "NPM_MISSING",
                format!("there is no {program} on PATH; {name} comes from npm"),
                "install Node.js 18 or later with npm (on Debian: apt-get install npm)",
            ));
        }
    }
    installation::step(&format!("fetching {name}"), "installed", || {
        let mut npm = Command::new("npm");
        npm.current_dir(&folder).args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
        process::run_with_progress(&mut npm)?
            .map_err(|output| failure::from_fetch_output("npm ci", &output))?;
        installation::write_stamp(&modules, &stamp)
    })
}
