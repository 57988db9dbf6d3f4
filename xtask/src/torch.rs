//! libtorch: downloaded into `.libtorch`, unless the user provides one.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{self, Failure};
use crate::python::Python;
use crate::{installation, process};

/// The pinned wheels; also the stamp, so a changed pin causes a new download.
const PINS: &str = include_str!("../libtorch.txt");

/// The version that the bindings require.
const VERSION: &str = "2.11";

/// Folder of the checkout's own copy. `.cargo/config.toml` refers to it.
fn own_folder() -> PathBuf {
    process::root().join(".libtorch")
}

/// The libtorch that the user set in LIBTORCH, if any. Otherwise cargo sets the variable to the
/// checkout's own folder.
fn libtorch_from_env() -> Option<PathBuf> {
    let named = PathBuf::from(env::var_os("LIBTORCH").filter(|value| !value.is_empty())?);
    (named != own_folder()).then_some(named)
}

/// Fetches libtorch, or checks the one in LIBTORCH.
pub(crate) fn fetch_if_missing() -> Result<(), Failure> {
    check_compiler()?;
    if let Some(folder) = libtorch_from_env() {
        return check_user_libtorch(&folder);
    }
    let folder = own_folder();
    if installation::is_installed(&folder, PINS) && folder.join("lib/libtorch_cpu.so").is_file() {
        return Ok(());
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu")) {
        return Err(Failure::new(
            "PLATFORM_UNSUPPORTED",
            "libtorch is fetched for Linux on x86_64 with glibc only",
            format!(
                "install libtorch {VERSION} for this machine yourself and set LIBTORCH to its folder"
            ),
        ));
    }
    let python = Python::find()?;
    let fetch = || {
        let wheels = installation::create_empty_folder("wheels")?;
        python.download(&process::root().join("xtask/libtorch.txt"), &wheels)?;
        installation::install_atomically(&folder, PINS, |partial| {
            unpack(&python, &wheels, partial)
        })?;
        installation::remove(&wheels)
    };
    installation::step(
        "fetching libtorch 2.11 (530 MB to download, 500 MB to keep, once)",
        "libtorch is in .libtorch",
        fetch,
    )
}

fn unpack(python: &Python, wheels: &Path, into: &Path) -> Result<(), Failure> {
    let script = process::root().join("xtask/unpack.py");
    let unpacked = process::capture(python.command().arg(script).arg(wheels).arg(into))?;
    unpacked.map(|_| ()).map_err(|output| failure::from_fetch_output("unpacking libtorch", &output))
}

fn check_user_libtorch(folder: &Path) -> Result<(), Failure> {
    let names = ["libtorch_cpu.so", "libtorch_cpu.dylib"];
    if !names.iter().any(|name| folder.join("lib").join(name).is_file()) {
        return Err(Failure::new(
            "TORCH_MISSING",
            format!("LIBTORCH is {}, and there is no lib/libtorch_cpu.so in it", folder.display()),
            format!(
                "point LIBTORCH to an unpacked libtorch {VERSION}, or unset it: then this command \
                 fetches one"
            ),
        ));
    }
    let version = std::fs::read_to_string(folder.join("build-version")).unwrap_or_default();
    if !version.is_empty() && !version.starts_with(VERSION) {
        return Err(Failure::new(
            "TORCH_VERSION",
            format!("LIBTORCH is {}, which is version {}", folder.display(), version.trim()),
            format!("point LIBTORCH to a libtorch {VERSION}, or unset it"),
        ));
    }
    Ok(())
}

/// The bindings to libtorch contain some C++.
fn check_compiler() -> Result<(), Failure> {
    let named = env::var_os("CXX").is_some_and(|value| !value.is_empty());
    if named || ["c++", "g++", "clang++"].iter().any(|name| process::is_on_path(name)) {
        return Ok(());
    }
    Err(Failure::new(
        "COMPILER_MISSING",
        "there is no C++ compiler on PATH; the bindings to libtorch need one",
        "install one (on Debian: apt-get install g++), or name it in CXX",
    ))
}

/// Configures a command, so that a program that cargo builds or runs finds the right libtorch.
///
/// The checkout's own copy needs no variable: `.cargo/config.toml` refers to it. The LIBTORCH that
/// cargo derived from it is removed, because the next cargo would treat it as a change and rebuild.
pub(crate) fn set_libtorch_env(command: &mut Command) {
    match libtorch_from_env() {
        None => {
            command.env_remove("LIBTORCH");
        }
        Some(folder) => {
            let libraries = folder.join("lib");
            command.env("LD_LIBRARY_PATH", process::prepend_path("LD_LIBRARY_PATH", &libraries));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_user_provided_libtorch_must_exist_and_match_the_version() {
        let folder = env::temp_dir().join(format!("florin-xtask-torch-{}", std::process::id()));
        fs::create_dir_all(folder.join("lib")).unwrap();
        assert_eq!(check_user_libtorch(&folder).unwrap_err().code(), "TORCH_MISSING");
        fs::write(folder.join("lib/libtorch_cpu.so"), "").unwrap();
        assert!(check_user_libtorch(&folder).is_ok());
        fs::write(folder.join("build-version"), "2.4.0+cpu\n").unwrap();
        assert_eq!(check_user_libtorch(&folder).unwrap_err().code(), "TORCH_VERSION");
        fs::write(folder.join("build-version"), "2.11.0+cpu\n").unwrap();
        assert!(check_user_libtorch(&folder).is_ok());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn every_wheel_is_pinned_by_version_and_hash() {
        let lines = PINS.lines().filter(|line| !line.starts_with('#'));
        let text: String = lines.collect::<Vec<_>>().join("\n");
        assert_eq!(text.matches("==").count(), 3);
        assert_eq!(text.matches("--hash=sha256:").count(), 3);
    }
}
