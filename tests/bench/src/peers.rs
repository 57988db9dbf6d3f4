//! The peers: short scripts around other libraries, measured in the same run.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use serde::Deserialize;

use super::Measurement;
use florin::show;

/// A peer's script.
pub(super) struct Peer {
    /// Name for messages.
    pub(super) name: &'static str,
    /// Source of the script.
    pub(super) script: &'static str,
    /// Arguments of the script.
    pub(super) arguments: Vec<String>,
}

#[derive(Deserialize)]
struct PeerRow {
    name: String,
    value: f64,
    unit: String,
}

/// Runs a peer with the Python packages of a folder. Without a folder, prints a note and returns no
/// rows.
pub(super) fn run(peer: &Peer, packages: Option<&Path>) -> anyhow::Result<Vec<Measurement>> {
    let Some(packages) = packages else {
        anstream::eprintln!(
            "{}{} is skipped: set a folder of Python packages with --python{:#}",
            show::NOTE,
            peer.name,
            show::NOTE
        );
        return Ok(Vec::new());
    };
    let output = Command::new("python3")
        .arg("-c")
        .arg(peer.script)
        .args(&peer.arguments)
        .env("PYTHONPATH", packages)
        .output()
        .with_context(|| format!("{}: cannot start python3", peer.name))?;
    anyhow::ensure!(
        output.status.success(),
        "{} failed ({}): {}",
        peer.name,
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    String::from_utf8(output.stdout)?
        .lines()
        .map(|line| {
            let row: PeerRow =
                serde_json::from_str(line).with_context(|| format!("{}: {line:?}", peer.name))?;
            Ok(Measurement::plain(row.name, row.value, &row.unit))
        })
        .collect()
}
