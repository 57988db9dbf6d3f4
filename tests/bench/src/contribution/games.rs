//! The games of the comparison: published synthetic games, each as a complete table with its exact
//! values.

use std::fs;
use std::path::Path;

use anyhow::Context;
use florin_contribution::games::{SyntheticGame, TableGame};
use serde::Serialize;

use super::curve::budgets;

/// The ratio of two consecutive budgets.
const BUDGET_RATIO: f64 = 1.35;
/// The largest budget, if the number of coalitions is larger.
const BUDGET_MAX: u64 = 100_000;

/// An instance of a game.
pub(super) struct Instance {
    /// Seed of the instance and of the estimators.
    pub(super) seed: u64,
    /// The values v(S) of all coalitions.
    pub(super) table: TableGame,
    /// The exact Shapley values.
    pub(super) exact: Vec<f64>,
}

impl Instance {
    /// Creates an instance and computes its exact values.
    pub(super) fn new(seed: u64, table: TableGame) -> Self {
        let exact = table.shapley();
        Self { seed, table, exact }
    }
}

/// A game with several instances.
pub(super) struct BenchGame {
    /// Name in files and JSON.
    pub(super) name: String,
    /// Title in tables and plots.
    pub(super) title: String,
    /// Number of players.
    pub(super) players: usize,
    /// The instances.
    pub(super) instances: Vec<Instance>,
    /// The budgets of the estimators, in evaluations, ascending.
    pub(super) budgets: Vec<u64>,
}

impl BenchGame {
    /// Creates a game, with budgets for its number of players.
    pub(super) fn new(
        name: impl Into<String>,
        title: impl Into<String>,
        players: usize,
        instances: Vec<Instance>,
    ) -> Self {
        let last = (1_u64 << players).min(BUDGET_MAX);
        let budgets = budgets(2 * players as u64, last, BUDGET_RATIO);
        Self { name: name.into(), title: title.into(), players, instances, budgets }
    }
}

type Make = fn(usize, u64) -> SyntheticGame;

/// The published synthetic games; `instances` is a list of (number of players, number of
/// instances).
pub(super) fn formulas(instances: [(usize, u64); 2]) -> anyhow::Result<Vec<BenchGame>> {
    let kinds: [(&str, Make); 4] = [
        ("saturating", SyntheticGame::saturating),
        ("coverage", SyntheticGame::coverage),
        ("interaction", SyntheticGame::interaction),
        ("voting", SyntheticGame::voting),
    ];
    let mut all = Vec::new();
    for (players, instances) in instances {
        for (kind, make) in kinds {
            let instances = (1..=instances)
                .map(|seed| {
                    Ok(Instance::new(seed, TableGame::from_game(&mut make(players, seed))?))
                })
                .collect::<anyhow::Result<_>>()?;
            let title = format!("{kind}, n = {players}");
            all.push(BenchGame::new(format!("{kind}-{players}"), title, players, instances));
        }
    }
    Ok(all)
}

#[derive(Serialize)]
struct GameFile<'a> {
    name: &'a str,
    budgets: &'a [u64],
    instances: Vec<InstanceFile<'a>>,
}

#[derive(Serialize)]
struct InstanceFile<'a> {
    file: String,
    seed: u64,
    players: usize,
    exact: &'a [f64],
}

/// Writes all games into `folder`: `games.json`, and for each instance a file of 2^players
/// little-endian doubles, indexed by the coalition's bit mask (bit 0 is player 0).
pub(super) fn write(games: &[BenchGame], folder: &Path) -> anyhow::Result<()> {
    let mut index = Vec::new();
    for game in games {
        let mut instances = Vec::new();
        for (at, instance) in game.instances.iter().enumerate() {
            let file = format!("{}-{at}.f64", game.name);
            let bytes: Vec<u8> =
                instance.table.value_table().iter().flat_map(|worth| worth.to_le_bytes()).collect();
            let path = folder.join(&file);
            fs::write(&path, bytes).with_context(|| path.display().to_string())?;
            let (seed, exact) = (instance.seed, instance.exact.as_slice());
            instances.push(InstanceFile { file, seed, players: game.players, exact });
        }
        index.push(GameFile { name: &game.name, budgets: &game.budgets, instances });
    }
    let path = folder.join("games.json");
    fs::write(&path, serde_json::to_vec(&index)?).with_context(|| path.display().to_string())
}
