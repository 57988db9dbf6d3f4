//! The step of a model as the laboratory's scenarios have it: work, memory and plans of one virtual worker.

use std::path::Path;

use anyhow::Context;
use florin_learning::graph::{Graph, GraphWeights};
use florin_learning::step_cost::{DeviceCard, StepWork, WORK_KINDS};
use florin_sim::scenario::{StepPlan, TaskStep};
use toml::Table;

use super::{memory, no_card, refused};
use crate::cli::Quote;
use crate::failure::Failure;

/// The step on the rows of one of `--together` workers. Seconds are those of the first card.
///
/// # Errors
/// The codes of graphs; `INVALID_CARD`; `INVALID_QUOTE` for a step that no scenario may have;
/// `STEP_NOT_RECORDED` without libtorch, and for a step whose memory
/// depends on the numbers.
pub(super) fn quote(
    arguments: &Quote,
    model: (&Graph, &GraphWeights, &[String]),
    (travels, update_bytes): (&[bool], u64),
    cards: &[(String, DeviceCard)],
) -> anyhow::Result<TaskStep> {
    let (graph, _, _) = model;
    let workers = arguments.together.unwrap_or(1).min(arguments.batch);
    let rows = arguments.batch.div_ceil(workers);
    let work = StepWork::of(graph, &graph.free_sizes(rows.into()), |at| travels[at]);
    let work = work.map_err(|error| refused(&error))?;
    let seconds = cards.first().map(|(name, card)| {
        card.predict(&work).map(|step| step.seconds).map_err(|error| no_card(name, &error))
    });
    let memory = memory::planned(arguments, model, rows).ok_or_else(|| {
        let why = "the memory of a step of this model is unknown: --save-step needs a build with \
                   libtorch, and a model whose tensors do not depend on the numbers in its rows";
        Failure::negative("STEP_NOT_RECORDED", why.to_owned())
    })?;
    let plans = memory.plans.iter();
    let kinds = WORK_KINDS.iter().zip(work.amounts).filter(|(_, amount)| *amount > 0.0);
    let step = TaskStep {
        workers,
        parameters: update_bytes / size_of::<f32>() as u64,
        bytes: memory.bytes,
        seconds: seconds.transpose()?,
        work: kinds.map(|(kind, amount)| ((*kind).to_owned(), amount)).collect(),
        plans: plans
            .map(|plan| StepPlan { bytes: plan.bytes, slow_down: plan.slow_down })
            .collect(),
    };
    // A scenario would refuse it.
    step.check().map_err(|error| Failure::input("INVALID_QUOTE", error.to_string()))?;
    Ok(step)
}

/// Writes the step as the part `[task.step]` of a scenario.
pub(super) fn write(step: &TaskStep, path: &Path) -> anyhow::Result<()> {
    let named = |name: &str, inside: Table| {
        let mut table = Table::new();
        table.insert(name.to_owned(), inside.into());
        table
    };
    let scenario = named("task", named("step", Table::try_from(step)?));
    let text = toml::to_string(&scenario)?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
