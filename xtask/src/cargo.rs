//! The cargo that runs xtask.

use std::env;
use std::process::{Command, Stdio};

use crate::{process, sandbox, torch};

/// The cargo that runs xtask, with the environment of a plain shell: the variables that cargo sets
/// for xtask would cause rebuilds. Builds are not incremental unless the environment requests it:
/// the incremental state of the workspace takes more disk than everything else in the target folder,
/// and only a plain `cargo build` after an edit profits from it.
pub(crate) fn command() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(process::root()).stdin(Stdio::null());
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    if env::var_os("CARGO_INCREMENTAL").is_none() {
        cargo.env("CARGO_INCREMENTAL", "0");
    }
    torch::set_libtorch_env(&mut cargo);
    sandbox::add_to_path(&mut cargo);
    cargo
}
