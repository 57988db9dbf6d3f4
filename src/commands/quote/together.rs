//! The quote of a step that all devices compute together, as ranks of one member.

use florin_learning::Training;
use florin_learning::graph::Graph;
use florin_learning::step_cost::{DeviceCard, StepWork, TogetherStep, step_together};
use florin_learning::virtual_workers::TransferCost;
use serde_json::json;

use super::{no_card, refused, update_bytes};
use crate::cli::Quote;
use crate::failure::Failure;
use crate::show::{self, TextTable};

/// A step of all devices, with the optimizer's work on the first one.
#[derive(Debug)]
pub(super) struct QuotedTogether {
    step: TogetherStep,
    optimizer_seconds: f64,
}

impl QuotedTogether {
    fn seconds(&self) -> f64 {
        self.step.seconds + self.optimizer_seconds
    }
}

/// Predicts the step. A batch with fewer rows than workers has as many workers as rows.
///
/// # Errors
/// `INVALID_CARD`; the codes of graphs; `INVALID_QUOTE` for more devices than ranks of a member.
pub(super) fn quote(
    how: &Training,
    (graph, travels): (&Graph, &[bool]),
    cards: &[(String, DeviceCard)],
    arguments: &Quote,
    workers: u32,
) -> anyhow::Result<QuotedTogether> {
    let workers = workers.min(arguments.batch);
    let rows = u64::from(arguments.batch.div_ceil(workers));
    let work = StepWork::of(graph, &graph.free_sizes(rows), |at| travels[at]);
    let work = work.map_err(|error| refused(&error))?;
    let mut seconds = Vec::new();
    for (name, card) in cards {
        seconds.push(card.predict(&work).map_err(|error| no_card(name, &error))?.seconds);
    }
    let alpha = arguments.link_latency * 1e-6;
    let link = TransferCost { alpha, beta: 1e-6 / arguments.link_rate };
    let bytes = update_bytes(graph, travels);
    let step = step_together(&seconds, workers, bytes / size_of::<f32>() as u64, link);
    let step = step.map_err(|error| Failure::input("INVALID_QUOTE", error.to_string()))?;
    let optimizer = StepWork::of_optimizer(how, bytes as f64);
    let first = cards
        .first()
        .map(|(name, card)| card.predict(&optimizer).map_err(|error| no_card(name, &error)));
    let optimizer_seconds = first.transpose()?.map_or(0.0, |predicted| predicted.seconds);
    Ok(QuotedTogether { step, optimizer_seconds })
}

/// Prints the workers of each device, and the time of the step.
pub(super) fn print(cards: &[(String, DeviceCard)], quoted: &QuotedTogether) {
    let step = &quoted.step;
    let mut table = TextTable::new(&["together", ">virtual workers"]);
    for ((name, _), own) in cards.iter().zip(&step.workers) {
        table.row(vec![name.as_str().into(), format!("{}..{}", own.start, own.end).into()]);
    }
    anstream::println!();
    table.print();
    anstream::println!();
    let ms = |seconds: f64| format!("{:.2} ms", 1e3 * seconds);
    show::facts(&[
        ("step of all devices", ms(quoted.seconds())),
        ("of it the optimizer", ms(quoted.optimizer_seconds)),
        ("of it the reduction", ms(step.reduction_seconds)),
        ("of it the parameters", ms(step.broadcast_seconds)),
        ("plan of the reduction", step.reduction.to_string()),
    ]);
}

pub(super) fn json(quoted: &QuotedTogether) -> serde_json::Value {
    let step = &quoted.step;
    json!({
        "step_seconds": quoted.seconds(),
        "optimizer_seconds": quoted.optimizer_seconds,
        "workers": step.workers,
        "reduction": step.reduction,
        "reduction_seconds": step.reduction_seconds,
        "broadcast_seconds": step.broadcast_seconds,
    })
}
