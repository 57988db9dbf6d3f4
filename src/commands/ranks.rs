//! The processes of one participation: rank 0 takes part in the task, the others compute parts of its
//! trainings.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use florin_learning::checkpoint::{CheckpointNews, CheckpointSettings};
use florin_learning::engine::TrainError;
use florin_learning::memory::{MemoryNews, MemorySettings};
use florin_learning::ranks::{
    RankError, RankErrorCode, RankNews, RankNotify, RankPlace, RankRows, RankSettings, Ranks,
    check_plan,
};
use florin_learning::select::EngineOptions;
use florin_learning::{Dataset, EngineKind, ModelSpec, Precision};
use florin_participant::{AgentError, Shutdown};
use florin_protocol::{ModelArchitecture, TaskId, TaskSpec};
use serde_json::json;

use super::participate::state_folder;
use crate::cli::Participate;
use crate::compose;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::show::{self, JsonEvent};

/// The version of the messages of ranks, and of the bits that they compute.
const RANK_PROTOCOL: &str = "3";
/// The time between two files with the state of a training.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(60);

/// The place of this process among others, if a launcher started several.
///
/// # Errors
/// `RANK_ENVIRONMENT_INVALID`.
pub(super) fn place() -> anyhow::Result<Option<RankPlace>> {
    let place = RankPlace::from_environment(|name| std::env::var(name).ok());
    place.map_err(|error| failure(&RankError::from(error)))
}

/// Whether this process has rows: with `--rank-private`, rank 0 alone.
pub(super) fn has_rows(arguments: &Participate, place: Option<&RankPlace>) -> bool {
    !arguments.execution.rank_private || place.is_none_or(|place| place.rank == 0)
}

/// Refuses virtual workers, and several processes, where a training has none.
///
/// # Errors
/// `RANKS_UNSUPPORTED`; `RANK_PLAN_INVALID` for a private pipeline that is none.
pub(super) fn check(
    arguments: &Participate,
    spec: &TaskSpec,
    place: Option<&RankPlace>,
) -> anyhow::Result<()> {
    let is_pipeline = arguments.execution.rank_pipeline.is_some();
    if arguments.execution.rank_private {
        check_private(arguments, place).map_err(|error| failure(&error))?;
    }
    if place.is_none() && arguments.execution.virtual_workers.is_none() && !is_pipeline {
        return Ok(());
    }
    let unsupported = |why: String| Err(failure(&RankError::new(RankErrorCode::Unsupported, why)));
    if is_pipeline && place.is_none() {
        return unsupported(
            "a pipeline needs several processes: start a multiple of --rank-pipeline by torchrun, mpirun \
             or srun"
                .to_owned(),
        );
    }
    if is_pipeline && arguments.execution.precision != Precision::F32 {
        return unsupported("a pipeline has products of 32 bits: leave out --precision".to_owned());
    }
    let is_graph = matches!(spec.model, ModelArchitecture::Graph(_));
    let why = if !is_graph || spec.model.trainer().is_some() {
        "only models that PyTorch exported train by virtual workers and on several processes, and this \
         task has another one"
    } else if arguments.engine.engine == EngineKind::Reference {
        "the engine `reference` trains on one process without virtual workers: use --engine torch"
    } else if arguments.rent.is_some() {
        "a provider computes rented trainings: leave out ranks and virtual workers, which the file of --rent states"
    } else if arguments.noise.noise.is_some() || arguments.trainer.trainer.is_some() {
        "trainings with noise, and those of a program of your own, run on one process"
    } else if arguments.experiment.is_some() {
        "an experiment runs on one process"
    } else {
        return Ok(());
    };
    unsupported(format!("{why}: leave out --virtual-workers, and start one process"))
}

/// Refuses `--rank-private` without the ranks of one pipeline.
fn check_private(arguments: &Participate, place: Option<&RankPlace>) -> Result<(), RankError> {
    let Some(pipeline) = arguments.execution.pipeline() else {
        let why =
            "--rank-private cuts the graph: state --rank-pipeline with the number of processes";
        return Err(RankError::new(RankErrorCode::PlanInvalid, why));
    };
    place.map_or(Ok(()), |place| pipeline.place(place.rank, place.size).map(|_| ()))
}

/// Meets the other processes. One of them without rows has no `data`.
///
/// # Errors
/// The codes of [`RankErrorCode`].
pub(super) fn join(
    arguments: &Participate,
    spec: &TaskSpec,
    data: Option<&Dataset>,
    place: RankPlace,
) -> anyhow::Result<Ranks> {
    let execution = arguments.execution.settings(Some(place.size));
    if let Some(plan) = &arguments.execution.rank_plan {
        let parts = arguments.execution.rank_pipeline.unwrap_or(1);
        check_plan(&plan.0, place.size / parts, execution.virtual_workers.unwrap_or(1))
            .map_err(|error| failure(&error))?;
    }
    let device = compose::engine(arguments.engine)?.name().to_owned();
    let text = |value: &dyn std::fmt::Display| value.to_string();
    let facts = [
        ("the task", text(&spec.id())),
        ("the model", text(&spec.consent_digest())),
        ("--seed", text(&arguments.seed)),
        ("--virtual-workers", text(&execution.virtual_workers.unwrap_or(1))),
        ("--precision", text(&execution.precision)),
        ("--rank-pipeline", text(&arguments.execution.rank_pipeline.unwrap_or(1))),
        ("the protocol of ranks", RANK_PROTOCOL.to_owned()),
        ("the version of the program", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    let facts = facts.map(|(name, value)| (name.to_owned(), value)).into();
    let settings = RankSettings {
        place,
        device,
        interface: interface(arguments),
        limit: Duration::from_secs(arguments.execution.rank_timeout),
        pinned: arguments.execution.rank_plan.clone().map(|plan| plan.0),
        reduction: arguments.execution.rank_reduction,
        overlaps: None,
        pipeline: arguments.execution.pipeline(),
        rows: match (data, arguments.execution.rank_private) {
            (None, _) => RankRows::Absent,
            (Some(data), true) => RankRows::own(data),
            (Some(data), false) => RankRows::shared(data),
        },
        memory: memory(
            &state_folder(arguments.state.as_deref(), &arguments.wallet.wallet),
            arguments.json.json,
        ),
        memory_bytes: execution.memory_bytes,
    };
    Ranks::join(settings, &facts, notify(arguments.json.json)).map_err(|error| failure(&error))
}

/// The first of the interfaces that PyTorch's variable may list.
fn interface(arguments: &Participate) -> Option<String> {
    let names = arguments.execution.rank_interface.as_deref()?;
    names.split(',').map(str::trim).find(|name| !name.is_empty()).map(str::to_owned)
}

/// Shows news of ranks.
fn notify(is_json: bool) -> RankNotify {
    Box::new(move |news: &RankNews| {
        if is_json {
            show::json_line(&JsonEvent { event: "ranks", fields: json!(news) });
        } else {
            anstream::eprintln!("{news}");
        }
    })
}

/// The options of the engine of rank 0, or of a process that is alone.
pub(super) fn options(
    ranks: Option<Ranks>,
    state: &Path,
    task: TaskId,
    is_json: bool,
) -> EngineOptions {
    let gpu = ranks.as_ref().map_or(0, |ranks| ranks.place().local);
    let file = state.join(format!("training-{}.safetensors", task.short()));
    let notify = Arc::new(move |news: &CheckpointNews| match is_json {
        true => show::json_line(&JsonEvent { event: "checkpoint", fields: json!(news) }),
        false => anstream::eprintln!("{news}"),
    });
    let checkpoints = Some(CheckpointSettings { file, every: CHECKPOINT_EVERY, notify });
    EngineOptions { ranks, checkpoints, memory: Some(memory(state, is_json)), gpu }
}

/// The place of tensors that leave the memory, and their news.
fn memory(state: &Path, is_json: bool) -> MemorySettings {
    let notify = Arc::new(move |news: &MemoryNews| match is_json {
        true => show::json_line(&JsonEvent { event: "memory", fields: json!(news) }),
        false => anstream::eprintln!("{news}"),
    });
    MemorySettings { folder: state.to_owned(), notify }
}

/// The model of a rank beside rank 0, which must accept it as rank 0 does.
///
/// # Errors
/// `MODEL_NOT_DERIVED`, and the codes of fetching the graph.
pub(super) fn model(
    arguments: &Participate,
    market: &MarketConnection,
    spec: &TaskSpec,
) -> anyhow::Result<ModelSpec> {
    let model = spec.consent_digest();
    if !arguments.accept_model.contains(&model) {
        return Err(AgentError::ModelNotDerived { task: spec.id(), model }.into());
    }
    let graph = market.graph(spec)?;
    Ok(florin_work::task_model(spec, graph.as_ref()))
}

/// Computes parts of the trainings of rank 0, until its participation has ended.
///
/// # Errors
/// The codes of [`RankErrorCode`]; `TRAINING_FAILED`.
pub(super) fn serve(
    arguments: &Participate,
    data: Option<&Dataset>,
    model: &ModelSpec,
    mut ranks: Ranks,
    shutdown: &Shutdown,
) -> anyhow::Result<Exit> {
    let rank = ranks.place().rank;
    if !arguments.json.json {
        show::hint(&format!("Rank {rank} computes parts of the trainings of rank 0."));
    }
    let mut go_on = || match shutdown.is_requested() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    match ranks.serve(arguments.engine.engine, model, data, &mut go_on) {
        Ok(()) => {}
        Err(TrainError::Ranks(error)) => return Err(failure(&error)),
        Err(error) => {
            let message = format!("rank {rank}: {error}");
            return Err(Failure::negative("TRAINING_FAILED", message).into());
        }
    }
    if arguments.json.json {
        let fields = json!({ "rank": rank });
        show::json_line(&JsonEvent { event: "rank_ended", fields });
    }
    Ok(Exit::Done)
}

fn failure(error: &RankError) -> anyhow::Error {
    match error.code.is_input() {
        true => Failure::input(error.code.as_str(), error.why.clone()).into(),
        false => Failure::negative(error.code.as_str(), error.why.clone()).into(),
    }
}
