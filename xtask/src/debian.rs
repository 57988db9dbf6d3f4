//! Programs of Debian's packages for the tests, unpacked in the checkout without rights of root.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::failure::Failure;
use crate::process;

/// The programs that fetch and unpack packages.
const DEBIAN_TOOLS: [&str; 2] = ["apt-get", "dpkg-deb"];

/// A program with its packages.
#[derive(Clone, Copy)]
pub(crate) struct DebianProgram {
    /// The name of its folder, and in messages.
    pub(crate) name: &'static str,
    /// The program on the path of a system that has it.
    pub(crate) program: &'static str,
    /// The program in the unpacked packages.
    pub(crate) unpacked: &'static str,
    /// The packages, with libraries that a small system lacks.
    pub(crate) packages: &'static [&'static str],
    /// The advice where it cannot be fetched.
    pub(crate) advice: &'static str,
}

impl DebianProgram {
    /// The folder with the unpacked packages.
    pub(crate) fn folder(&self) -> PathBuf {
        process::tools_folder().join(self.name)
    }

    fn is_unpacked(&self) -> bool {
        self.folder().join(self.unpacked).is_file()
    }

    /// Fetches the packages where the system lacks the program and Debian's tools are there. Without it its tests
    /// print that they are skipped: this is no failure.
    pub(crate) fn fetch_if_missing(&self) -> Result<(), Failure> {
        let Self { name, program, packages, advice, .. } = self;
        if process::is_on_path(program) || self.is_unpacked() {
            return Ok(());
        }
        if !DEBIAN_TOOLS.iter().all(|tool| process::is_on_path(tool)) {
            eprintln!("setup: there is no {program}; {advice}");
            return Ok(());
        }
        let folder = self.folder();
        fs::create_dir_all(&folder).map_err(|cause| Failure::file("create", &folder, &cause))?;
        let mut fetch = Command::new("apt-get");
        fetch.current_dir(&folder).args(["download", "--quiet"]).args(*packages);
        if let Err(why) = process::capture(&mut fetch)? {
            let first = why.lines().next().unwrap_or_default();
            eprintln!("setup: {name} cannot be fetched ({first}); {advice}");
            return Ok(());
        }
        let entries =
            fs::read_dir(&folder).map_err(|cause| Failure::file("read", &folder, &cause))?;
        let files = entries.filter_map(Result::ok).map(|entry| entry.path());
        let fetched = files.filter(|file| file.extension().is_some_and(|end| end == "deb"));
        for package in fetched {
            let mut unpack = Command::new("dpkg-deb");
            unpack.arg("-x").arg(&package).arg(&folder);
            if let Err(why) = process::capture(&mut unpack)? {
                eprintln!("setup: {name} cannot be unpacked ({why}); {advice}");
                return Ok(());
            }
        }
        match self.is_unpacked() {
            true => eprintln!("setup: fetched {name}"),
            false => eprintln!("setup: the packages of {name} have no {program}; {advice}"),
        }
        Ok(())
    }
}
