//! `florin-bench contribution`: our estimators, shapiq and pyDVL on the same games in one run.

mod clock;
mod curve;
mod games;
mod ours;
mod peers;
mod plot;
mod report;
mod rounds;
mod speed;
mod targets;
mod training;

use std::collections::BTreeMap;
use std::path::Path;

use florin_learning::{Engine, EngineKind};
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde_json::{Value, json};

pub(super) use report::{refresh_page, write_rows};

use super::Measurement;
use crate::arguments::BenchArgs;
use curve::Curve;
use florin::progress::progress_bar;
use florin::show;
use games::{BenchGame, Instance};
use rounds::{GradientResults, Samplers, Utility};
use training::{TrainingRound, TrainingTask, regimes};

/// Number of real rounds that every estimator and every peer evaluates; the other rounds are
/// evaluated only by the estimators that a market uses.
const COMPARED_ROUNDS: usize = 6;
/// Maximum number of CNN rounds per regime and seed.
const CNN_ROUNDS_MAX: u32 = 2;

/// The marker of the speed table in the documentation.
const SPEED: &str = "speed";

/// The size of a run.
struct Extent {
    /// Instances per game, by number of players.
    instances: [(usize, u64); 2],
    /// Seeds of each training run.
    seeds: u64,
    /// Number of valued rounds at the start of each training run.
    rounds: u32,
    /// Processor time in seconds for each estimator on each game.
    seconds: f64,
}

impl Extent {
    fn from_args(arguments: &BenchArgs) -> Self {
        let asked = arguments.contribution.rounds;
        if arguments.contribution.quick {
            return Self {
                instances: [(10, 2), (20, 2)],
                seeds: 1,
                rounds: asked.unwrap_or(1),
                seconds: 2.0,
            };
        }
        Self { instances: [(10, 5), (20, 3)], seeds: 3, rounds: asked.unwrap_or(4), seconds: 10.0 }
    }
}

/// All measurements.
struct ContributionResults {
    games: Vec<BenchGame>,
    curves: Vec<Curve>,
    /// By the description of the rounds.
    gradient_results: Vec<(String, Vec<GradientResults>)>,
    versions: BTreeMap<String, String>,
    machine: String,
    extent: String,
}

/// A progress line.
struct ProgressLine(Option<ProgressBar>);

impl ProgressLine {
    fn new() -> Self {
        let bar = progress_bar(ProgressDrawTarget::stderr(), "{spinner} {elapsed} {msg}");
        Self((!bar.is_hidden()).then_some(bar))
    }

    /// Shows the next part of the run.
    fn part(&self, what: &str) {
        match &self.0 {
            Some(bar) => bar.set_message(what.to_owned()),
            None => anstream::eprintln!("{}{what}{:#}", show::DIM, show::DIM),
        }
    }

    /// Shows the progress within a part, on a terminal only.
    fn step(&self, what: &str) {
        if let Some(bar) = &self.0 {
            bar.set_message(what.to_owned());
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Returns all measurements, and the rows with targets.
pub(super) fn run(arguments: &BenchArgs) -> anyhow::Result<(Value, Vec<Measurement>)> {
    let extent = Extent::from_args(arguments);
    let progress = ProgressLine::new();
    progress.part("exact values and path integrals beside libtorch");
    let speed = speed::rows()?;
    if arguments.contribution.speed {
        drop(progress);
        if let Some(folder) = &arguments.contribution.docs {
            write_rows(folder, SPEED, &speed)?;
        }
        return Ok((json!({ "rows": speed, "machine": machine() }), speed));
    }

    progress.part("published synthetic games");
    let mut measured = ContributionResults {
        games: games::formulas(extent.instances)?,
        curves: Vec::new(),
        gradient_results: Vec::new(),
        versions: BTreeMap::new(),
        machine: machine(),
        extent: String::new(),
    };
    let mut rows = real_rounds(arguments, &extent, &mut measured, &progress)?;
    compare(arguments.python.as_deref(), &extent, &mut measured, &progress)?;
    drop(progress);

    rows.extend(targets::games(&measured.curves));
    rows.extend(targets::steps(&measured.curves));
    rows.extend(targets::overhead(&measured.curves));
    report::print(&measured);
    if let Some(folder) = &arguments.contribution.docs {
        report::write(folder, &rows, &measured)?;
        write_rows(folder, SPEED, &speed)?;
    }
    rows.extend(speed);
    let numbers = json!({
        "rows": rows,
        "curves": measured.curves,
        "rounds": measured.gradient_results,
        "versions": measured.versions,
        "machine": measured.machine,
        "extent": measured.extent,
    });
    Ok((numbers, rows))
}

/// A series of rounds to value: the task, the number of participants and the number of rounds.
struct Series {
    task: TrainingTask,
    players: usize,
    rounds: u32,
}

fn real_rounds(
    arguments: &BenchArgs,
    extent: &Extent,
    measured: &mut ContributionResults,
    progress: &ProgressLine,
) -> anyhow::Result<Vec<Measurement>> {
    let mut engine = engine()?;
    let few = extent.rounds.min(CNN_ROUNDS_MAX);
    let rounds = extent.rounds;
    let mut all = vec![
        Series { task: TrainingTask::digits_mlp()?, players: 10, rounds },
        Series { task: TrainingTask::digits_mlp()?, players: 20, rounds },
    ];
    // The reference engine has no convolutions.
    if cfg!(feature = "torch") {
        all.push(Series { task: TrainingTask::digits_cnn()?, players: 10, rounds: few });
    }
    if let Some(folder) = &arguments.contribution.idx {
        all.push(Series { task: TrainingTask::idx(folder)?, players: 10, rounds: few });
    }
    let mut rows = Vec::new();
    let mut valued = Vec::new();
    for series in all {
        let (found, count) = one_series(&series, extent, engine.as_mut(), measured, progress)?;
        rows.extend(found);
        valued.push(format!("{count} of {} with n = {}", series.task.model, series.players));
    }
    measured.extent = format!(
        "{} instances of each game of 10 players and {} of 20; real rounds: {}, of which {} were \
         evaluated by all estimators, and all by `path` and `odd`; up to {} s of processor time \
         for each estimator on each game",
        extent.instances[0].1,
        extent.instances[1].1,
        valued.join(", "),
        COMPARED_ROUNDS,
        extent.seconds
    );
    Ok(rows)
}

/// Trains and values the rounds of one series and stores the games; returns the rows, and the
/// number of rounds.
fn one_series(
    series: &Series,
    extent: &Extent,
    engine: &mut dyn Engine,
    measured: &mut ContributionResults,
    progress: &ProgressLine,
) -> anyhow::Result<(Vec<Measurement>, usize)> {
    let Series { task, players, rounds } = series;
    let players = *players;
    let what = format!("{} rounds, n = {players}", task.name);
    progress.part(&format!("{what}: training"));
    let mut trained: Vec<TrainingRound> = Vec::new();
    for regime in regimes() {
        for seed in 1..=extent.seeds {
            trained.extend(task.rounds(&regime, players, *rounds, seed, engine)?);
        }
    }
    let every = trained.len().div_ceil(COMPARED_ROUNDS).max(1);
    let mut samplers = Samplers::new(players);
    let (mut inside, mut compared, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for (at, round) in trained.iter().enumerate() {
        progress.step(&format!("{what}: {} of {}, all 2^{players}", at + 1, trained.len()));
        let instance = rounds::instance(task, round, Utility::Loss, threads)?;
        samplers.value(&instance)?;
        inside.push(rounds::evaluate_gradient_estimators(task, round, &instance.exact, engine)?);
        if at % every == 0 {
            compared.push(numbered(instance, at));
            if task.name == "mlp" {
                let steps_of = rounds::instance(task, round, Utility::Accuracy, threads)?;
                steps.push(numbered(steps_of, at));
            }
        }
    }
    let game = format!("{}-loss-{players}", task.name);
    let rows = targets::rounds(task.name, players, &inside, &samplers.curves(&game));
    measured.curves.extend(rounds::points(&inside, &game));
    let title = format!("{} loss, n = {players}", task.name);
    measured.games.push(BenchGame::new(game, title, players, compared));
    if !steps.is_empty() {
        let game = format!("{}-accuracy-{players}", task.name);
        let title = format!("{} accuracy, n = {players}", task.name);
        measured.games.push(BenchGame::new(game, title, players, steps));
    }
    measured.gradient_results.push((what, inside));
    Ok((rows, trained.len()))
}

/// The rounds of one training run share a seed, but estimators need a different seed for each.
fn numbered(instance: Instance, at: usize) -> Instance {
    Instance { seed: 1 + at as u64, ..instance }
}

/// Runs our estimators, then the peers, on all games.
fn compare(
    packages: Option<&Path>,
    extent: &Extent,
    measured: &mut ContributionResults,
    progress: &ProgressLine,
) -> anyhow::Result<()> {
    progress.part("our estimators on all games");
    for named in ours::all_estimators()? {
        for game in &measured.games {
            progress.step(&format!("{}: {}", game.title, named.name));
            measured.curves.push(ours::curve(&named, game, extent.seconds)?);
        }
    }
    let Some(packages) = packages else {
        anstream::eprintln!(
            "{}shapiq and pyDVL are skipped: set a folder of Python packages with --python{:#}",
            show::NOTE,
            show::NOTE
        );
        return Ok(());
    };
    progress.part("shapiq and pyDVL on all games");
    let folder = tempfile::Builder::new().prefix("florin-bench-").tempdir()?;
    games::write(&measured.games, folder.path())?;
    let found = peers::run(&measured.games, folder.path(), packages, extent.seconds, |what| {
        progress.step(what);
    })?;
    measured.curves.extend(found.curves);
    measured.versions = found.versions;
    Ok(())
}

/// The libtorch engine if it is built in, otherwise the reference engine.
fn engine() -> anyhow::Result<Box<dyn Engine>> {
    let kind = if cfg!(feature = "torch") { EngineKind::Torch } else { EngineKind::Reference };
    Ok(florin_learning::engine(kind, 1)?)
}

/// A description of the machine.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find(|line| line.starts_with("model name"));
    let model =
        model.and_then(|line| line.split_once(": ")).map_or("an unknown CPU", |(_, name)| name);
    format!("{cores} cores of {model}, no GPU")
}
