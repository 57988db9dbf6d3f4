//! An order file that fits a model and a data source: `florin rent new`.

use std::path::Path;

use florin_compute::DataClass;
use florin_learning::DataSource;
use florin_learning::select::EngineKind;
use florin_protocol::{Address, Amount};

use super::super::new_task::{
    GRAPH_LEARNING_RATE, absolute_unless_here, graph_lines, list, quoted, shape_for_graph,
    with_section, with_value,
};
use super::super::{FittedTask, NewGraph, relative_to};
use super::OrderSplit;
use crate::cli::EngineArg;
use crate::failure::Failure;

/// The annotated template.
const TEMPLATE: &str = include_str!("template.toml");

/// The engine that checks a new order.
const ENGINE: EngineArg = EngineArg { engine: EngineKind::Auto, threads: 1 };

/// The terms of a new order that have no default.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewOrder<'a> {
    /// The account that computes the step of a dispute.
    pub(crate) referee: Address,
    /// The largest price.
    pub(crate) price_max: Amount,
    /// The readers of the rows.
    pub(crate) data_class: DataClass,
    /// Segments of the order.
    pub(crate) segments: u32,
    /// Distinguishes orders of the same training.
    pub(crate) nonce: u64,
    /// Seed of the training.
    pub(crate) seed: u64,
    /// The patterns of the parameters that stay at home; empty for none.
    pub(crate) at_home: &'a [String],
}

/// Writes the order of a training on a source: on all of its rows. `folder` is the folder of the file.
///
/// # Errors
/// `INVALID_DATA` if the source does not fit, `INVALID_MODEL` if the file that is written would be refused.
pub(crate) fn order_for_graph(
    graph: &NewGraph<'_>,
    source: &DataSource,
    folder: &Path,
    order: &NewOrder<'_>,
) -> anyhow::Result<(FittedTask, Option<OrderSplit>)> {
    let (shape, _) = shape_for_graph(graph, source, folder)?;
    let here = absolute_unless_here(folder)?;
    let written = relative_to(&here, source.clone());
    let classes = format!("{}\n{}", shape.classes, shape.encoding).trim_end().to_owned();
    let settings = [
        ("", "data_class", quoted(order.data_class.name())),
        ("", "referee", quoted(&order.referee.to_string())),
        ("", "nonce", order.nonce.to_string()),
        ("data", "width", shape.width.to_string()),
        ("data", "classes", classes),
        ("rows", "source", quoted(&written.to_string())),
        ("training", "learning_rate", GRAPH_LEARNING_RATE.to_owned()),
        ("order", "segments", order.segments.to_string()),
        ("order", "price_max", quoted(&order.price_max.to_string())),
        ("order", "seed", order.seed.to_string()),
    ];
    let text = settings.iter().fold(TEMPLATE.to_owned(), |file, (section, key, value)| {
        with_value(&file, section, key, value)
    });
    let mut lines = graph_lines(graph, &here);
    lines.extend(split_lines(order.at_home));
    let text = with_section(&text, "[model]\n", "[data]\n", &lines);
    match super::from_text(&text, folder, ENGINE) {
        Ok(draft) => Ok((FittedTask { text, notes: shape.notes }, draft.split)),
        Err(refusal) => {
            let failure = refusal.at(Path::new("the order"), &text);
            let message = format!("{} with {source}: {failure}", graph.file.display());
            Err(Failure::input("INVALID_MODEL", message).into())
        }
    }
}

/// The lines of `[split]`, under a mark if no layer stays at home.
fn split_lines(at_home: &[String]) -> Vec<String> {
    let (mark, patterns) = match at_home {
        [] => ("# ", list(&["stem.*".to_owned()])),
        some => ("", list(some)),
    };
    vec![
        String::new(),
        "# Layers that stay at home, by the names of their parameters, and the rows with them: they are not trained."
            .to_owned(),
        "# Others get the activations behind these layers in place of the rows: docs/renting.md.".to_owned(),
        format!("{mark}[split]"),
        format!("{mark}at_home = {patterns}"),
    ]
}
