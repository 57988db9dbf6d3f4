//! Bubblewrap, in whose sandbox the tests run trainers: the system's, or Debian's package unpacked in
//! the checkout, without rights of root.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::failure::Failure;
use crate::process;

/// The program, and its package.
const PROGRAM: &str = "bwrap";
const PACKAGE: &str = "bubblewrap";
/// The programs that fetch and unpack the package.
const DEBIAN_TOOLS: [&str; 2] = ["apt-get", "dpkg-deb"];

/// The folder with the unpacked program.
fn folder() -> PathBuf {
    process::tools_folder().join(PACKAGE)
}

fn program_folder() -> PathBuf {
    folder().join("usr/bin")
}

/// Fetches bubblewrap where the system has none and Debian's tools are there. Without it the tests of
/// sandboxes print that they are skipped: this is no failure.
pub(crate) fn fetch_if_missing() -> Result<(), Failure> {
    if process::is_on_path(PROGRAM) || program_folder().join(PROGRAM).is_file() {
        return Ok(());
    }
    let advice = "install the package bubblewrap to run the tests of sandboxes";
    if !DEBIAN_TOOLS.iter().all(|tool| process::is_on_path(tool)) {
        eprintln!("setup: there is no {PROGRAM}; {advice}");
        return Ok(());
    }
    let folder = folder();
    fs::create_dir_all(&folder).map_err(|cause| Failure::file("create", &folder, &cause))?;
    let mut fetch = Command::new("apt-get");
    fetch.current_dir(&folder).args(["download", "--quiet", PACKAGE]);
    if let Err(why) = process::capture(&mut fetch)? {
        let first = why.lines().next().unwrap_or_default();
        eprintln!("setup: bubblewrap cannot be fetched ({first}); {advice}");
        return Ok(());
    }
    let entries = fs::read_dir(&folder).map_err(|cause| Failure::file("read", &folder, &cause))?;
    let files = entries.filter_map(Result::ok).map(|entry| entry.path());
    let Some(package) =
        files.into_iter().find(|file| file.extension().is_some_and(|end| end == "deb"))
    else {
        eprintln!("setup: apt-get fetched no package; {advice}");
        return Ok(());
    };
    let mut unpack = Command::new("dpkg-deb");
    unpack.arg("-x").arg(&package).arg(&folder);
    match process::capture(&mut unpack)? {
        Ok(_) => eprintln!("setup: fetched bubblewrap"),
        Err(why) => eprintln!("setup: bubblewrap cannot be unpacked ({why}); {advice}"),
    }
    Ok(())
}

/// Lets a command find the unpacked program behind those of the system.
pub(crate) fn add_to_path(command: &mut Command) {
    let folder = program_folder();
    if folder.join(PROGRAM).is_file() {
        let mut path = std::env::var_os("PATH").unwrap_or_default();
        path.push(":");
        path.push(folder);
        command.env("PATH", path);
    }
}
