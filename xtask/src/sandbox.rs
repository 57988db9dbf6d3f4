//! Bubblewrap, in whose sandbox the tests run trainers: the system's, or Debian's package unpacked in
//! the checkout, without rights of root.

use std::process::Command;

use crate::debian::DebianProgram;

/// The program, and its package.
pub(crate) const BUBBLEWRAP: DebianProgram = DebianProgram {
    name: "bubblewrap",
    program: "bwrap",
    unpacked: "usr/bin/bwrap",
    packages: &["bubblewrap"],
    advice: "install the package bubblewrap to run the tests of sandboxes",
};

/// Lets a command find the unpacked program behind those of the system.
pub(crate) fn add_to_path(command: &mut Command) {
    let program = BUBBLEWRAP.folder().join(BUBBLEWRAP.unpacked);
    if let Some(folder) = program.parent().filter(|_| program.is_file()) {
        let mut path = std::env::var_os("PATH").unwrap_or_default();
        path.push(":");
        path.push(folder);
        command.env("PATH", path);
    }
}
