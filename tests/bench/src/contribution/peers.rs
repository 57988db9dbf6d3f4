//! shapiq and pyDVL on the same games, in a separate Python process.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use std::collections::BTreeMap;

use anyhow::Context;
use serde::Deserialize;

use super::curve::{Curve, Trial};
use super::games::BenchGame;

const SCRIPT: &str = include_str!("../../../../xtask/peers/contribution.py");

/// The results of the peers.
#[derive(Default)]
pub(super) struct PeerResults {
    /// One curve per estimator and game, in the order of arrival.
    pub(super) curves: Vec<Curve>,
    /// Versions by package name.
    pub(super) versions: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum PeerOutput {
    Versions {
        versions: BTreeMap<String, String>,
    },
    Trial {
        estimator: String,
        game: String,
        #[serde(flatten)]
        trial: Trial,
    },
}

/// Runs the peers on the games in `folder`, with a time limit of `seconds` per estimator and game.
/// `see` receives a description of each step.
pub(super) fn run(
    games: &[BenchGame],
    folder: &Path,
    packages: &Path,
    seconds: f64,
    mut on_step: impl FnMut(&str),
) -> anyhow::Result<PeerResults> {
    let stderr_file = folder.join("stderr.txt");
    let mut child = Command::new("python3")
        .arg("-c")
        .arg(SCRIPT)
        .arg(folder)
        .args(["--seconds", &seconds.to_string()])
        .env("PYTHONPATH", packages)
        // One thread, like our estimators.
        .envs(
            ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"].map(|name| (name, "1")),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(&stderr_file)?)
        .spawn()
        .context("cannot start python3")?;
    let stdout = child.stdout.take().context("python3 has no output")?;
    let mut found = PeerResults::default();
    let mut trials: Vec<(String, String, Vec<Trial>)> = Vec::new();
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        match serde_json::from_str(&line)
            .with_context(|| format!("unexpected output of the peers: {line:?}"))?
        {
            PeerOutput::Versions { versions } => found.versions = versions,
            PeerOutput::Trial { estimator, game, trial } => match trials.last_mut() {
                Some((who, what, trials)) if *who == estimator && *what == game => {
                    trials.push(trial);
                }
                _ => {
                    on_step(&format!("{game}: {estimator}"));
                    trials.push((estimator, game, vec![trial]));
                }
            },
        }
    }
    let status = child.wait()?;
    let errors = fs::read_to_string(&stderr_file).unwrap_or_default();
    anyhow::ensure!(status.success(), "the peers failed ({status}): {}", errors.trim());
    for (estimator, game, trials) in trials {
        let instances = games.iter().find(|played| played.name == game);
        let instances = instances.map_or(0, |played| played.instances.len());
        found.curves.push(Curve::from_trials(&estimator, &game, &trials, instances));
    }
    Ok(found)
}
