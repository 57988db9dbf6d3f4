//! How long exact values and paths take, beside the same arithmetic on libtorch.

use florin_contribution::games::Table;
use florin_learning::measure::{self, Problem};
use florin_learning::{Engine, EngineKind, Masks, ModelSpec};

use super::super::Row;
use super::clock;
use super::ours::OURS;

/// Features, hidden units and classes of the model that is timed.
const MODEL: (usize, usize, usize) = (784, 64, 10);
/// Players of the exact value.
const EXACT_PLAYERS: usize = 10;
/// Rows that judge.
const ROWS: usize = 1_000;
/// Seconds that the exact value may take on one core.
const EXACT_SECONDS_MAX: f64 = 0.15;
/// Times as fast as one coalition after the other on libtorch.
const EXACT_RATIO_MIN: f64 = 20.0;
/// The fastest of so many runs counts.
const REPEATS: usize = 5;

/// Participants of the long path.
const PATH_PLAYERS: usize = 1_000;
/// Updates that are made for it, and handed out in turn.
const PATH_DISTINCT: usize = 8;
/// Groups of rows from which a market has the standard errors of so many participants.
const PATH_GROUPS: usize = 32;
/// The path may cost so many validation passes and one pass over the updates.
const PATH_PASSES: f64 = 3.0;
/// The share of the updates' own size that more of them may add to the memory.
const PATH_MEMORY_SHARE_MAX: f64 = 0.1;

fn model() -> ModelSpec {
    let (inputs, hidden, classes) = MODEL;
    ModelSpec::Mlp { inputs, hidden: vec![hidden], classes }
}

/// All rows of this file.
pub(super) fn rows() -> anyhow::Result<Vec<Row>> {
    let mut rows = exact()?;
    rows.extend(path()?);
    Ok(rows)
}

/// The rows of the exact value.
fn exact() -> anyhow::Result<Vec<Row>> {
    let problem = Problem::drawn(model(), EXACT_PLAYERS, ROWS, 1)?;
    let masks = Masks::all(EXACT_PLAYERS)?;
    let mut clock = clock::seconds;
    let mut fastest = f64::INFINITY;
    for _ in 0..REPEATS {
        let start = clock();
        let timed = measure::coalitions(&problem, &masks, 1, &mut clock)?;
        let worths = timed.losses.iter().map(|loss| timed.losses[0] - loss).collect();
        std::hint::black_box(Table::new(EXACT_PLAYERS, worths)?.shapley());
        fastest = fastest.min(clock() - start);
    }
    let what = format!("exact, n = {EXACT_PLAYERS}, {}, {ROWS} rows, one core", problem.model);
    let mut rows = vec![Row::at_most(format!("{OURS} {what}"), fastest, "s", EXACT_SECONDS_MAX)];
    rows.extend(beside_libtorch(&problem, &masks, fastest, &mut clock)?);
    Ok(rows)
}

#[cfg(feature = "torch")]
fn beside_libtorch(
    problem: &Problem,
    masks: &Masks,
    ours: f64,
    clock: &mut dyn FnMut() -> f64,
) -> anyhow::Result<Vec<Row>> {
    use florin_learning::torch::{Processor, Torch};
    let mut torch = Torch::new(Processor::Cpu, 1)?;
    let mut fastest = f64::INFINITY;
    for _ in 0..2 {
        fastest = fastest.min(measure::one_by_one(problem, masks, &mut torch, clock)?.seconds);
    }
    Ok(vec![
        Row::plain("libtorch, one coalition after the other, one core", fastest, "s"),
        Row::at_least("times as fast as that loop", fastest / ours, "×", EXACT_RATIO_MIN),
    ])
}

#[cfg(not(feature = "torch"))]
fn beside_libtorch(
    _problem: &Problem,
    _masks: &Masks,
    _ours: f64,
    _clock: &mut dyn FnMut() -> f64,
) -> anyhow::Result<Vec<Row>> {
    Ok(Vec::new())
}

/// The rows of a path over many updates.
fn path() -> anyhow::Result<Vec<Row>> {
    let problem = Problem::drawn(model(), PATH_DISTINCT, ROWS, 2)?;
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
        Row::plain(&name, timed.gradients + timed.values, "s"),
        Row::plain("of it the gradients, and the losses at both ends", timed.gradients, "s"),
        Row::plain("of it the pass over the updates", timed.values, "s"),
        Row::plain("one validation pass: a gradient over all rows", timed.validation, "s"),
        Row::plain("one pass over the updates: their lengths", timed.reading, "s"),
        Row::at_most(
            format!("{name}: ÷ ({PATH_PASSES} validation passes + one over the updates)"),
            (timed.gradients + timed.values) / allowed,
            "",
            1.0,
        ),
        Row::plain(
            format!("the same with standard errors, by {PATH_GROUPS} groups of rows"),
            grouped.gradients + grouped.values,
            "s",
        ),
    ];
    if let Some(grown) = grown {
        let more = (PATH_PLAYERS - few) * problem.base.len() * size_of::<f32>();
        let name = format!("memory of {PATH_PLAYERS} over {few} updates, of those updates' size");
        rows.push(Row::at_most(name, grown / more as f64, "", PATH_MEMORY_SHARE_MAX));
    }
    Ok(rows)
}

/// The run of several that cost least.
fn fastest_path(
    problem: &Problem,
    updates: usize,
    groups: usize,
    engine: &mut dyn Engine,
) -> anyhow::Result<measure::PathTimed> {
    let mut clock = clock::seconds;
    let mut run = || measure::path(problem, updates, groups, engine, 1, &mut clock);
    let mut best = run()?;
    for _ in 1..REPEATS {
        let timed = run()?;
        if timed.gradients + timed.values < best.gradients + best.values {
            best = timed;
        }
    }
    Ok(best)
}

/// The most memory this process ever had, in bytes; `None` where the system does not tell.
fn peak_bytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1_024.0)
}
