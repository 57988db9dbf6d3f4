//! Runs a task's graph on rows of the holdout before it is published: a graph that fails on them, or
//! whose rows interact, could not be valued.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::Context;
use florin_learning::data::from_canonical_bytes;
use florin_learning::graph::GraphModel;
use florin_learning::trainer::{TrainerCode, TrainerHost};
use florin_learning::{Dataset, Engine, EngineKind, ModelSpec, Training, TrainingStep, mean};
use florin_protocol::{RoundNumber, TaskSpec};

use crate::cli::{EngineArg, SandboxArg};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::task_file::{PreparedTask, refuse};

/// Rows of the holdout on which a training runs once.
const ROWS_TRAINED: usize = 4_096;
/// Rows that run alone, too, spread over the holdout.
const ROWS_ALONE: usize = 16;
/// Rows on which a trainer's gradient is compared with differences of its losses.
const ROWS_DIFFERENTIATED: usize = 256;
/// Distance of these differences, and their largest relative error.
const GRADIENT_STEP: f64 = 1e-4;
const GRADIENT_DIFFERENCE_MAX: f64 = 2e-2;
/// Error of a difference of losses that are rounded.
const GRADIENT_NOISE: f64 = 1e-9;
/// An odd factor that mixes the bits of an index (2⁶⁴ divided by the golden ratio).
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
/// Directions along which it is compared.
const GRADIENT_DIRECTIONS: usize = 4;
/// Largest relative difference of a row's loss alone and among others, in `f64`.
const DIFFERENCE_MAX: f64 = 1e-6;

/// Checks the graph of a task, and returns it; `None` for another model.
///
/// # Errors
/// [`Failure`] with code `MODEL_FAILS`, `MODEL_ROWS_INTERACT` or `MODEL_NOT_TRAINED`.
pub(super) fn check_graph(
    file: &Path,
    ready: &PreparedTask,
    sandbox: &SandboxArg,
    secrets: Vec<PathBuf>,
) -> anyhow::Result<Option<GraphModel>> {
    let spec = &ready.spec;
    let name = if spec.model.trainer().is_some() { "model.code" } else { "model.file" };
    let key = |code, value: &str, expected: &str| refuse(file, code, name, value, expected);
    let loaded = ready.load_graph(spec);
    let Some(graph) = loaded.map_err(|why| key("MODEL_FAILS", "…", &why.message))? else {
        return Ok(None);
    };
    let holdout = from_canonical_bytes(&ready.holdout)?;
    let model = florin_work::task_model(spec, Some(&graph));
    let params = florin_work::decode_model(spec, &ready.base_model)?;
    let mut host = sandbox.host(secrets, std::env::temp_dir());
    host.accepted.push(graph.declaration().digest);
    crate::compose::check_trainer(spec, &host)?;
    if let Some(code) = graph.code() {
        check_no_secrets(code, &host)?;
    }
    let tried = Progress::during("running the model on the holdout", || {
        GraphTrial::run(spec, &params, &model, &holdout, host)
    });
    let GraphTrial { together, alone, is_trained } = tried.map_err(|why| {
        key("MODEL_FAILS", "…", &format!("it does not run on the rows of the holdout: {why}"))
    })?;
    for (row, alone) in alone {
        let together = together[row];
        if (together - alone).abs() > DIFFERENCE_MAX * (1.0 + together.abs()) {
            let right = format!(
                "the loss of row {row} is {together:.9} among other rows and {alone:.9} alone: a row's \
                 loss must not depend on other rows. Use running statistics, or a norm of each row"
            );
            return Err(key("MODEL_ROWS_INTERACT", "…", &right).into());
        }
    }
    if !is_trained {
        let right = "a training changes none of its tensors: the loss does not depend on them";
        return Err(key("MODEL_NOT_TRAINED", "…", right).into());
    }
    Ok(Some(graph))
}

/// Checks that a trainer's losses are the same in a second run, and that its gradient is theirs: two
/// parties must agree, and a wrong gradient would be paid.
fn check_trainer(
    engine: &mut dyn Engine,
    model: &ModelSpec,
    params: &[f64],
    rows: &Dataset,
) -> anyhow::Result<()> {
    let rows = rows.slice(0..rows.rows().min(ROWS_DIFFERENTIATED))?;
    let first = engine.row_losses(model, params, &rows)?;
    let second = engine.row_losses_at(model, &[params, params], &rows)?;
    anyhow::ensure!(
        second.iter().all(|losses| *losses == first),
        "its losses differ between two runs of one model: it must not draw random numbers"
    );
    if !model.has_gradient() {
        return Ok(());
    }
    let (_, gradient) = engine.gradient(model, params, &rows)?;
    let length = gradient.iter().map(|slope| slope * slope).sum::<f64>().sqrt();
    for seed in 0..GRADIENT_DIRECTIONS {
        // Signs that differ from seed to seed, so that a missing part of the gradient shows.
        let mixed = |at: usize| (at as u64 + 1).wrapping_mul(MIX) >> (32 + seed);
        let sign = |at: usize| if mixed(at) & 1 == 0 { 1.0 } else { -1.0 };
        let scale = 1.0 / (params.len() as f64).sqrt();
        let stated: f64 =
            gradient.iter().enumerate().map(|(at, slope)| slope * sign(at) * scale).sum();
        let moved = |way: f64| -> Vec<f64> {
            let step = |(at, value): (usize, &f64)| value + way * GRADIENT_STEP * sign(at) * scale;
            params.iter().enumerate().map(step).collect()
        };
        let found = engine.row_losses_at(model, &[&moved(1.0), &moved(-1.0)], &rows)?;
        let [ahead, behind] = [0, 1].map(|at| found.get(at).map_or(0.0, |losses| mean(losses)));
        let slope = (ahead - behind) / (2.0 * GRADIENT_STEP);
        let tolerance = GRADIENT_DIFFERENCE_MAX * (stated.abs() + length * scale) + GRADIENT_NOISE;
        anyhow::ensure!(
            (slope - stated).abs() <= tolerance,
            "along a direction its gradient is {stated:.9}, and the losses change by {slope:.9}: the \
             verb gradient must return the gradient of the weighted sum of the losses"
        );
    }
    Ok(())
}

/// Refuses code that contains one of the buyer's secrets: all files of the folder are published.
fn check_no_secrets(code: &TrainerCode, host: &TrainerHost) -> anyhow::Result<()> {
    for secret in host.secrets.iter().filter(|secret| secret.is_file()) {
        let bytes = std::fs::read(secret).with_context(|| secret.display().to_string())?;
        if let Some(name) = code.file_with(&bytes) {
            let message = format!(
                "the folder of the code has {}, as {name}, and all its files are published: move the \
                 code into a folder of its own",
                secret.display()
            );
            return Err(Failure::input("TRAINER_SEES_SECRETS", message).into());
        }
    }
    Ok(())
}

/// A graph on the rows of its holdout.
struct GraphTrial {
    /// The loss of each row.
    together: Vec<f64>,
    /// The losses of some rows alone, with their index.
    alone: Vec<(usize, f64)>,
    /// Whether a training changes parameters.
    is_trained: bool,
}

impl GraphTrial {
    /// A training of one epoch, and an evaluation of all rows. An operator that refuses a value fails
    /// the training: an evaluation would give such a row the largest loss.
    fn run(
        spec: &TaskSpec,
        params: &[f32],
        model: &ModelSpec,
        holdout: &Dataset,
        host: TrainerHost,
    ) -> anyhow::Result<Self> {
        let arguments = EngineArg { engine: EngineKind::Auto, threads: 1 };
        let mut engine: Box<dyn Engine> = crate::compose::engine_with_trainers(arguments, host)?;
        let rows = holdout.slice(0..holdout.rows().min(ROWS_TRAINED))?;
        let how = Training { epochs: 1, ..florin_work::training(spec, RoundNumber::FIRST) };
        let go_on = &mut |_: TrainingStep| ControlFlow::Continue(());
        let trained = engine.train(model, params, &rows, &how, 1, go_on)?.params;
        let to_wide = |params: &[f32]| params.iter().map(|value| f64::from(*value)).collect();
        let wide: Vec<f64> = to_wide(params);
        let together = engine.row_losses(model, &wide, holdout)?;
        let step = (holdout.rows() / ROWS_ALONE).max(1);
        let mut alone = Vec::new();
        for row in (0..holdout.rows()).step_by(step) {
            let loss = engine.row_losses(model, &wide, &holdout.slice(row..row + 1)?)?;
            alone.extend(loss.into_iter().map(|loss| (row, loss)));
        }
        let mut is_trained = trained != params;
        if model.is_trainer() {
            let trained: Vec<f64> = to_wide(&trained);
            check_trainer(&mut *engine, model, &wide, &rows)?;
            check_trainer(&mut *engine, model, &trained, &rows)?;
            is_trained &= engine.row_losses(model, &trained, &rows)? != together[..rows.rows()];
        }
        Ok(Self { together, alone, is_trained })
    }
}
