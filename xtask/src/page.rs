//! `cargo xtask page`: compiles what the coordinator's page computes in a browser.

use std::fs;
use std::process::{Command, ExitCode};

use crate::failure::Failure;
use crate::{cargo, process, tools};

/// Folder of the page's tests, with their npm packages.
const TESTS: &str = "tests/page";
/// The target of a browser.
const TARGET: &str = "wasm32-unknown-unknown";
/// The committed module, which the coordinator serves.
const MODULE: &str = "coordinator/page/assets/florin.wasm.gz";

/// Installs the browser and the checkers of the page's tests at their locked versions.
pub(crate) fn install_test_tools() -> Result<(), Failure> {
    tools::npm_if_missing(TESTS, "a browser for the tests of the page")
}

/// `cargo xtask page`.
pub(crate) fn run() -> Result<ExitCode, Failure> {
    let arguments = [
        "build",
        "--locked",
        "-p",
        "florin-page",
        "--lib",
        "--profile",
        "page",
        "--target",
        TARGET,
    ];
    if !process::run(cargo::command().args(arguments))?.success() {
        return Err(Failure::new(
            "PAGE_NOT_BUILT",
            format!("florin-page was not built for {TARGET}"),
            format!("read the message above; `rustup target add {TARGET}` installs the target"),
        ));
    }
    let built = process::root().join("target").join(TARGET).join("page/florin_page.wasm");
    let output = Command::new("gzip")
        .args(["-9", "-n", "-c"])
        .arg(&built)
        .output()
        .map_err(|cause| Failure::file("compress", &built, &cause))?;
    if !output.status.success() {
        let cause = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Failure::new(
            "PAGE_NOT_BUILT",
            format!("gzip failed: {cause}"),
            "install gzip",
        ));
    }
    let module = process::root().join(MODULE);
    fs::write(&module, &output.stdout).map_err(|cause| Failure::file("write", &module, &cause))?;
    eprintln!("page: {MODULE} has {} bytes", output.stdout.len());
    Ok(ExitCode::SUCCESS)
}
