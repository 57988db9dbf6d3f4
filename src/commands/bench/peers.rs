//! The neighbours: scripts of a few lines in their own language, measured in the same minute.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use serde::Deserialize;

use super::Row;
use crate::show;

/// A neighbour's script.
pub(super) struct Peer {
    /// For messages.
    pub(super) name: &'static str,
    /// Its source.
    pub(super) script: &'static str,
    /// Its arguments.
    pub(super) arguments: Vec<String>,
}

#[derive(Deserialize)]
struct Measured {
    name: String,
    value: f64,
    unit: String,
}

/// Runs a neighbour with the packages of a folder; nothing, with a line that says so, where there is no folder.
pub(super) fn run(peer: &Peer, packages: Option<&Path>) -> anyhow::Result<Vec<Row>> {
    let Some(packages) = packages else {
        anstream::eprintln!(
            "{}{} is left out: name a folder of Python packages with --python{:#}",
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
        .with_context(|| format!("{}: python3 cannot be started", peer.name))?;
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
            let row: Measured =
                serde_json::from_str(line).with_context(|| format!("{}: {line:?}", peer.name))?;
            Ok(Row::plain(row.name, row.value, &row.unit))
        })
        .collect()
}
