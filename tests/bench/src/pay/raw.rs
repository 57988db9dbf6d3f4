//! Tables as people have them, through `florin task new --data` unchanged: the accuracy beside
//! that of logistic regression on all rows, and the tasks that stall.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Context;
use florin::task_file::{self, FittedTask, Parties, PreparedTask};
use florin_learning::data::from_canonical_bytes;
use florin_learning::{DataSource, Dataset, Evaluator, Reference, Trainer, parallel_map};
use florin_participant::required_bond;
use florin_protocol::{Amount, RoundNumber, TaskSpec, Timestamp};
use florin_sim::market::{
    Arrival, BUYER, COORDINATOR, NextRound, ParticipantAccount, SimulatedMarket, account,
};
use florin_sim::mechanism::{Mechanism, RoundScorer};
use florin_sim::random::{shuffle, stream};
use florin_work::CommittedHoldout;
use indicatif::ProgressBar;

use super::{Measurement, THREADS, python_output};

/// The script that trains logistic regression.
const SCRIPT: &str = include_str!("../../../../xtask/peers/logistic.py");
/// The name of these tasks for `--only`.
pub(super) const NAME: &str = "as it is";
/// The tables, in the folder of raw tables.
const TABLES: [&str; 5] = ["cancer", "digits", "iris", "penguins", "wine"];
/// The tables whose accuracy has a bar.
const WITH_BAR: [&str; 3] = ["cancer", "digits", "wine"];
/// The most by which the accuracy of a task may be below that of logistic regression.
const BEHIND_MAX: f64 = 0.02;
/// One row in five is for the test.
const TEST_SHARE: usize = 5;
/// One row in three of the others is the buyer's.
const HOLDOUT_SHARE: usize = 3;
/// Number of honest members, who share the other rows equally.
const MEMBERS: usize = 6;
/// Milliseconds from the offer to a commit and an upload.
const PROMPT_MS: u64 = 1;

/// A table and the number of its split.
#[derive(Clone, Copy, Debug)]
struct Split {
    table: &'static str,
    seed: u64,
}

/// The outcome of a task.
#[derive(Clone, Copy, Debug)]
struct RawTask {
    accuracy: f64,
    /// Whether it ended before its last round.
    stalled: bool,
}

/// Splits of each table for each seed.
const SPLITS: u64 = 10;

/// Number of tasks of a run with `seeds` seeds.
pub(super) const fn tasks(seeds: u64) -> u64 {
    TABLES.len() as u64 * SPLITS * seeds
}

/// Measures all tables, each with [`SPLITS`] splits for each of `seeds` seeds.
pub(super) fn measure(
    python: &Path,
    folder: &Path,
    first: u64,
    seeds: u64,
    bar: &ProgressBar,
) -> anyhow::Result<Vec<Measurement>> {
    let all = (first..first + SPLITS * seeds).collect::<Vec<u64>>();
    let splits: Vec<Split> = TABLES
        .iter()
        .flat_map(|table| all.iter().map(|seed| Split { table, seed: *seed }))
        .collect();
    let outcomes = parallel_map(THREADS, splits.clone(), |split| {
        let outcome = run_split(folder, split);
        bar.inc(1);
        outcome.with_context(|| format!("the table {}, seed {}", split.table, split.seed))
    });
    let outcomes = outcomes.into_iter().collect::<anyhow::Result<Vec<RawTask>>>()?;
    let peers = logistic_regression(python, folder, &splits)?;
    let per_table = usize::try_from(SPLITS * seeds)?;
    let mut rows = Vec::new();
    for ((table, own), peer) in
        TABLES.iter().zip(outcomes.chunks(per_table)).zip(peers.chunks(per_table))
    {
        let count = own.len() as f64;
        let accuracy = own.iter().map(|task| task.accuracy).sum::<f64>() / count;
        let reached = peer.iter().sum::<f64>() / count;
        let name = |what: &str| format!("{table}, as it is: {what}");
        rows.push(Measurement::plain(name("accuracy"), accuracy, ""));
        rows.push(Measurement::plain(name("accuracy of logistic regression"), reached, ""));
        let behind = (reached - accuracy).max(0.0);
        let behind_name = name("behind logistic regression");
        rows.push(match WITH_BAR.contains(table) {
            true => Measurement::at_most(behind_name, behind, "", BEHIND_MAX),
            false => Measurement::plain(behind_name, behind, ""),
        });
    }
    let stalled = outcomes.iter().filter(|task| task.stalled).count();
    let name = format!("tasks as they are that stalled, of {}", outcomes.len());
    rows.push(Measurement::at_most(name, stalled as f64, "", 0.0));
    Ok(rows)
}

fn folder_name(split: Split) -> String {
    format!("{}-{}", split.table, split.seed)
}

/// Divides a table, and runs the task that fits the buyer's part.
fn run_split(folder: &Path, split: Split) -> anyhow::Result<RawTask> {
    let own = folder.join(folder_name(split));
    fs::create_dir(&own)?;
    let text = fs::read_to_string(folder.join(format!("{}.csv", split.table)))?;
    let (header, rows) = text.split_once('\n').context("the table has a header")?;
    let label = header.trim_end().rsplit(',').next().context("the header has columns")?;
    let mut rows: Vec<&str> = rows.lines().collect();
    shuffle(&mut stream(split.seed, "bench split", [0, 0]), &mut rows);
    let write = |name: &str, rows: &[&str]| {
        fs::write(own.join(name), format!("{header}\n{}\n", rows.join("\n")))
    };
    let source = |name: &str| -> anyhow::Result<DataSource> {
        Ok(format!("{}#{label}", own.join(name).display()).parse()?)
    };
    let (test, train) = rows.split_at(rows.len() / TEST_SHARE);
    let (holdout, members) = train.split_at(train.len() / HOLDOUT_SHARE);
    write("test.csv", test)?;
    write("train.csv", train)?;
    write("holdout.csv", holdout)?;
    let parties = Parties {
        market: TaskSpec::example().market,
        buyer: BUYER,
        coordinator: COORDINATOR,
        now: Timestamp(0),
    };
    let file = own.join("task.toml");
    let task: FittedTask =
        task_file::task_for_data(&source("holdout.csv")?, None, &own, split.seed, &parties)?;
    fs::write(&file, task.text)?;
    let task = task_file::read(&file, &parties)?;
    let load =
        |name: &str| task_file::load_for_task(&task.spec, &source(name)?, &|_| Ok(Vec::new()));
    let mut parts = Vec::new();
    for (number, rows) in members.chunks(members.len().div_ceil(MEMBERS)).enumerate() {
        let name = format!("member-{number}.csv");
        write(&name, rows)?;
        parts.push(load(&name)?);
    }
    play(&task, &parts, &load("test.csv")?)
}

/// Runs a task with honest members until no further round opens.
fn play(task: &PreparedTask, members: &[Dataset], test: &Dataset) -> anyhow::Result<RawTask> {
    let spec = &task.spec;
    let model = florin_work::model_spec(&spec.model);
    let seats: Vec<ParticipantAccount> = (0..)
        .zip(members)
        .map(|(number, rows)| ParticipantAccount {
            account: account(number, 0),
            bond: required_bond(spec, rows.rows() as u64, None),
            extra: Amount::ZERO,
            quote_ms: 0,
        })
        .collect();
    let scorer =
        RoundScorer { mechanism: Mechanism::Florin, excludes_harmful: true, stale_weights: None };
    let holdout = CommittedHoldout::new(from_canonical_bytes(&task.holdout)?);
    let base = task.base_model.clone();
    let mut market = SimulatedMarket::open(spec.clone(), base, holdout, scorer, &seats)?;
    let mut engine = Reference::new();
    let mut rounds = 0;
    while market.next_offer()? == NextRound::Open {
        let base = market.base_model()?;
        let how = florin_work::training(spec, RoundNumber(rounds + 1));
        let mut arrivals = Vec::new();
        for (number, (rows, seat)) in (0..).zip(members.iter().zip(&seats)) {
            let seed = u64::from(rounds) * members.len() as u64 + number;
            let go_on = &mut |_| ControlFlow::Continue(());
            let trained = engine.train(&model, &base, rows, &how, seed, go_on)?;
            arrivals.push(Arrival {
                account: seat.account,
                rows: rows.rows() as u64,
                delta: trained.params.iter().zip(&base).map(|(new, old)| new - old).collect(),
                commit_ms: PROMPT_MS,
                upload_ms: PROMPT_MS,
                base_model: None,
                begun: None,
            });
        }
        market.run_round(arrivals, 1)?;
        rounds += 1;
    }
    let newest: Vec<f64> = market.newest_model()?.into_iter().map(f64::from).collect();
    let right = engine.correct_predictions(&model, &newest, test)?;
    Ok(RawTask { accuracy: right as f64 / test.rows() as f64, stalled: rounds < spec.rounds.count })
}

/// The accuracy of logistic regression, in the order of the splits.
fn logistic_regression(python: &Path, folder: &Path, splits: &[Split]) -> anyhow::Result<Vec<f64>> {
    let printed = python_output(python, SCRIPT, folder)?;
    let accuracy = |split: &Split| -> anyhow::Result<f64> {
        let name = folder_name(*split);
        let mut lines = printed.lines().filter_map(|line| line.split_once(' '));
        let (_, value) =
            lines.find(|(of, _)| *of == name).with_context(|| format!("{name} has no accuracy"))?;
        Ok(value.trim().parse()?)
    };
    splits.iter().map(accuracy).collect()
}
