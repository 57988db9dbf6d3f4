//! The time of exact values and path integrals, beside the same arithmetic in libtorch.

use florin_contribution::games::TableGame;
use florin_learning::timing::{self, SyntheticRound};
use florin_learning::{CoalitionMasks, Engine, EngineKind, ModelSpec};

use super::super::Measurement;
use super::clock;
use super::ours::OURS;

/// Features, hidden units and classes of the measured model.
const MODEL: (usize, usize, usize) = (784, 64, 10);
/// Players of the exact computation.
const EXACT_PLAYERS: usize = 10;
/// Holdout rows.
const ROWS: usize = 1_000;
/// Maximum time of the exact computation on one core, in seconds.
const EXACT_SECONDS_MAX: f64 = 0.15;
/// Minimum speed-up over libtorch evaluating one coalition after the other.
const EXACT_RATIO_MIN: f64 = 20.0;
/// Number of runs; the fastest one counts.
const REPEATS: usize = 5;

/// Participants of the large path integral.
const PATH_PLAYERS: usize = 1_000;
/// Distinct updates for it, used in turn.
const PATH_DISTINCT: usize = 8;
/// Groups of rows from which a market with this many participants estimates standard errors.
const PATH_GROUPS: usize = 32;
/// Maximum cost of the path integral: this many validation passes plus one pass over the updates.
const PATH_PASSES: f64 = 3.0;
/// Maximum growth of the memory, as a fraction of the size of the additional updates.
const PATH_MEMORY_SHARE_MAX: f64 = 0.1;

fn model() -> ModelSpec {
    let (inputs, hidden, classes) = MODEL;
    ModelSpec::Mlp { inputs, hidden: vec![hidden], classes }
}

/// All rows of this file.
pub(super) fn rows() -> anyhow::Result<Vec<Measurement>> {
    let mut rows = exact()?;
    rows.extend(path()?);
    Ok(rows)
}

/// The rows of the exact computation.
fn exact() -> anyhow::Result<Vec<Measurement>> {
    let problem = SyntheticRound::generate(model(), EXACT_PLAYERS, ROWS, 1)?;
    let masks = CoalitionMasks::all(EXACT_PLAYERS)?;
    let mut clock = clock::seconds;
    let mut fastest = f64::INFINITY;
    for _ in 0..REPEATS {
        let start = clock();
        let timed = timing::coalitions(&problem, &masks, 1, &mut clock)?;
        let worths = timed.losses.iter().map(|loss| timed.losses[0] - loss).collect();
        std::hint::black_box(TableGame::new(EXACT_PLAYERS, worths)?.shapley());
        fastest = fastest.min(clock() - start);
    }
    let what = format!("exact, n = {EXACT_PLAYERS}, {}, {ROWS} rows, one core", problem.model);
    let mut rows =
        vec![Measurement::at_most(format!("{OURS} {what}"), fastest, "s", EXACT_SECONDS_MAX)];
    rows.extend(beside_libtorch(&problem, &masks, fastest, &mut clock)?);
    Ok(rows)
}

#[cfg(feature = "torch")]
fn beside_libtorch(
    problem: &SyntheticRound,
    masks: &CoalitionMasks,
    ours: f64,
    clock: &mut dyn FnMut() -> f64,
) -> anyhow::Result<Vec<Measurement>> {
    use florin_learning::torch::{Torch, TorchDevice};
    let mut torch = Torch::new(TorchDevice::Cpu, 1)?;
    let mut fastest = f64::INFINITY;
    for _ in 0..2 {
        fastest = fastest.min(timing::one_by_one(problem, masks, &mut torch, clock)?.seconds);
    }
    Ok(vec![
        Measurement::plain("libtorch, one coalition after the other, one core", fastest, "s"),
        Measurement::at_least("times as fast as that loop", fastest / ours, "×", EXACT_RATIO_MIN),
    ])
}

#[cfg(not(feature = "torch"))]
fn beside_libtorch(
    _problem: &SyntheticRound,
    _masks: &CoalitionMasks,
    _ours: f64,
    _clock: &mut dyn FnMut() -> f64,
) -> anyhow::Result<Vec<Measurement>> {
    Ok(Vec::new())
}

/// The rows of a path integral over many updates.
fn path() -> anyhow::Result<Vec<Measurement>> {
    let problem = SyntheticRound::generate(model(), PATH_DISTINCT, ROWS, 2)?;
    let kind = if cfg!(feature = "torch") { EngineKind::Torch } else { EngineKind::Reference };
    let mut engine = florin_learning::engine(kind, 1)?;
    let few = PATH_PLAYERS / 10;
    fastest_path(&problem, few, 1, engine.as_mut())?;
    let peak = peak_bytes();
    let timed = fastest_path(&problem, PATH_PLAYERS, 1, engine.as_mut())?;
    let grown = peak.zip(peak_bytes()).map(|(before, after)| after - before);
    let grouped = fastest_path(&problem, PATH_PLAYERS, PATH_GROUPS, engine.as_mut())?;
    let allowed = PATH_PASSES * timed.validation + timed.reading;
    let name = format!("{OURS} path, n = {PATH_PLAYERS}, {}, {ROWS} rows, one core", problem.model);
    let mut rows = vec![
        Measurement::plain(&name, timed.gradients + timed.values, "s"),
        Measurement::plain(
            "of it the gradients, and the losses at both ends of the path",
            timed.gradients,
            "s",
        ),
        Measurement::plain("of it the pass over the updates", timed.values, "s"),
        Measurement::plain("one validation pass: a gradient over all rows", timed.validation, "s"),
        Measurement::plain("one pass over the updates: their norms", timed.reading, "s"),
        Measurement::at_most(
            format!("{name}: ÷ ({PATH_PASSES} validation passes + one pass over the updates)"),
            (timed.gradients + timed.values) / allowed,
            "",
            1.0,
        ),
        Measurement::plain(
            format!("the same with standard errors, by {PATH_GROUPS} groups of rows"),
            grouped.gradients + grouped.values,
            "s",
        ),
    ];
    if let Some(grown) = grown {
        let more = (PATH_PLAYERS - few) * problem.base.len() * size_of::<f32>();
        let name =
            format!("memory growth from {few} to {PATH_PLAYERS} updates, relative to their size");
        rows.push(Measurement::at_most(name, grown / more as f64, "", PATH_MEMORY_SHARE_MAX));
    }
    Ok(rows)
}

/// The fastest of several runs.
fn fastest_path(
    problem: &SyntheticRound,
    updates: usize,
    groups: usize,
    engine: &mut dyn Engine,
) -> anyhow::Result<timing::PathTiming> {
    let mut clock = clock::seconds;
    let mut run = || timing::path(problem, updates, groups, engine, 1, &mut clock);
    let mut best = run()?;
    for _ in 1..REPEATS {
        let timed = run()?;
        if timed.gradients + timed.values < best.gradients + best.values {
            best = timed;
        }
    }
    Ok(best)
}

/// Peak resident memory of this process in bytes; `None` if the system does not report it.
fn peak_bytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1_024.0)
}
