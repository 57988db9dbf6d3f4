//! The system's Python, which downloads and unpacks wheels.

use std::path::Path;
use std::process::Command;

use crate::failure::{self, Failure};
use crate::process;

/// The oldest Python for which every pinned package has wheels.
const VERSION_MIN: (u32, u32) = (3, 11);

/// A Python with pip.
pub(crate) struct Python {
    program: &'static str,
    version: (u32, u32),
}

impl Python {
    /// Finds `python3` or `python`, new enough and with pip.
    pub(crate) fn find() -> Result<Self, Failure> {
        let program = ["python3", "python"].into_iter().find(|name| process::is_on_path(name));
        let Some(program) = program else {
            return Err(Failure::new(
                "PYTHON_MISSING",
                "there is no python3 on PATH; libtorch and the test tools are Python packages",
                "install Python 3.11 or later with pip (on Debian: apt-get install python3-pip)",
            ));
        };
        let ask = "import sys; print(sys.version_info[0], sys.version_info[1])";
        let answer = process::capture(Command::new(program).args(["-c", ask]))?;
        let version = answer.as_deref().ok().and_then(parse_version);
        let Some(version) = version.filter(|version| *version >= VERSION_MIN) else {
            let got = match version {
                Some((major, minor)) => format!("{program} is {major}.{minor}"),
                None => format!("{program} does not print its version: {answer:?}"),
            };
            return Err(Failure::new(
                "PYTHON_TOO_OLD",
                got,
                format!("put a Python {}.{} or later first on PATH", VERSION_MIN.0, VERSION_MIN.1),
            ));
        };
        let python = Self { program, version };
        if let Err(output) = process::capture(python.command().args(["-m", "pip", "--version"]))? {
            return Err(Failure::new(
                "PIP_MISSING",
                format!("{program} has no pip:\n{output}"),
                "install it (on Debian: apt-get install python3-pip; elsewhere: python3 -m ensurepip)",
            ));
        }
        Ok(python)
    }

    /// The version, such as `3.11`.
    pub(crate) fn version(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// A command that starts Python.
    pub(crate) fn command(&self) -> Command {
        Command::new(self.program)
    }

    /// A command that starts pip, independent of the user's pip configuration of targets and
    /// prompts.
    fn pip(&self) -> Command {
        let mut pip = self.command();
        pip.args(["-m", "pip"])
            .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
            .env("PIP_NO_INPUT", "1")
            .env("PIP_REQUIRE_VIRTUALENV", "0")
            .env("PIP_USER", "0")
            .env_remove("PIP_TARGET")
            .env_remove("PIP_PREFIX");
        pip
    }

    /// Downloads the wheels that `requirements` pins by hash, without their dependencies.
    ///
    /// The target platform is fixed, so the files do not depend on the system's Python.
    pub(crate) fn download(&self, requirements: &Path, into: &Path) -> Result<(), Failure> {
        let mut pip = self.pip();
        pip.args(["download", "--no-deps", "--require-hashes", "--only-binary=:all:"]).args([
            "--no-cache-dir",
            "--python-version",
            "3.12",
        ]);
        for platform in ["2_28", "2_25", "2_17"] {
            pip.arg("--platform").arg(format!("manylinux_{platform}_x86_64"));
        }
        pip.args(["--platform", "manylinux2014_x86_64"]);
        pip.arg("--dest").arg(into).arg("--requirement").arg(requirements);
        process::run_with_progress(&mut pip)?
            .map_err(|output| failure::from_fetch_output("fetching libtorch", &output))
    }

    /// Installs the packages of `requirements` into their own folder.
    pub(crate) fn install(&self, requirements: &Path, into: &Path) -> Result<(), Failure> {
        self.install_at("--target", requirements, into)
    }

    /// Installs packages that contain programs and libraries, which a target of pip lacks.
    pub(crate) fn install_prefix(&self, requirements: &Path, into: &Path) -> Result<(), Failure> {
        self.install_at("--prefix", requirements, into)
    }

    fn install_at(&self, place: &str, requirements: &Path, into: &Path) -> Result<(), Failure> {
        let mut pip = self.pip();
        pip.args(["install", "--only-binary=:all:", "--no-warn-script-location"]);
        pip.args(["--ignore-installed", place]).arg(into);
        pip.arg("--requirement").arg(requirements);
        let what = format!("installing {}", requirements.display());
        process::run_with_progress(&mut pip)?
            .map_err(|output| failure::from_fetch_output(&what, &output))
    }
}

fn parse_version(answer: &str) -> Option<(u32, u32)> {
    let mut parts = answer.split_whitespace().map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_parsed_from_two_numbers() {
        assert_eq!(parse_version("3 11\n"), Some((3, 11)));
        assert_eq!(parse_version("3"), None);
        assert_eq!(parse_version("three eleven"), None);
    }
}
