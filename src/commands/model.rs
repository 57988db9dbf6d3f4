//! `florin model show`: the tensors and operators of a model that PyTorch exported.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;

use anyhow::Context;
use florin_learning::graph::{
    Graph, GraphCost, GraphError, GraphInput, InputRole, Operation, graph_cost, read_archive_from,
    travelling_inputs,
};
use florin_protocol::Digest;
use serde_json::{Value, json};

use crate::cli::ModelShow;
use crate::failure::{Exit, Failure};
use crate::progress::Progress;
use crate::show::{self, TextTable};

/// Most tensors that the text output lists; `--json` lists all.
const TENSORS_SHOWN_MAX: usize = 200;

pub(super) fn show(arguments: &ModelShow) -> anyhow::Result<Exit> {
    let file = &arguments.file;
    let source = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    let name = format!("reading {}", file.display());
    let read = Progress::during(name, || read_archive_from(source));
    let (graph, weights) = read.map_err(|error| failure(&error))?;
    let counts = operators(&graph);
    let digest = Digest(graph.digest());
    let travels = travelling(&graph, arguments).map_err(|error| failure(&error))?;
    let update = travels.as_deref().map(|travels| UpdateSize::of(&graph, travels));
    let cost = graph_cost(&graph, &graph.free_sizes(arguments.rows.into()), u64::MAX);
    if arguments.json.json {
        let inputs: Vec<_> = graph
            .inputs
            .iter()
            .enumerate()
            .map(|(at, input)| input_json(input, travels.as_ref().map(|travels| travels[at])))
            .collect();
        show::json(&json!({
            "digest": digest,
            "nodes": graph.nodes.len(),
            "operators": counts,
            "rows": arguments.rows,
            "flops": cost.as_ref().ok().map(|cost| cost.flops),
            "activation_bytes": cost.as_ref().ok().map(|cost| cost.activation_bytes),
            "update_numbers": update.map(|update| update.numbers),
            "update_bytes": update.map(UpdateSize::bytes),
            "cost_unknown": cost.as_ref().err().map(ToString::to_string),
            "inputs": inputs,
        }))?;
        return Ok(Exit::Done);
    }
    let parameters: u64 = graph
        .inputs
        .iter()
        .filter(|input| matches!(input.role, InputRole::Parameter(_)))
        .filter_map(elements)
        .sum();
    let bytes: usize = weights.tensors.iter().map(|tensor| tensor.bytes.len()).sum();
    let mut facts = vec![
        ("model", file.display().to_string()),
        ("digest", digest.to_string()),
        ("parameters", show::thousands(&parameters.to_string())),
        ("weights", format!("{} bytes", show::thousands(&bytes.to_string()))),
        ("nodes", show::thousands(&graph.nodes.len().to_string())),
        ("batch", batch_text(arguments.rows, &cost)),
    ];
    facts.extend(update.map(|update| ("update", update.to_string())));
    show::facts(&facts);
    anstream::println!();
    tensor_table(&graph, travels.as_deref()).print();
    if let Some(more @ 1..) = graph.inputs.len().checked_sub(TENSORS_SHOWN_MAX) {
        show::hint(&format!("{more} more tensors: --json lists all."));
    }
    anstream::println!();
    let mut table = TextTable::new(&["operator", ">nodes"]);
    for (name, count) in counts {
        table.row([name.into(), count.to_string().into()]);
    }
    table.print();
    Ok(Exit::Done)
}

fn input_json(input: &GraphInput, travels: Option<bool>) -> Value {
    json!({
        "role": role(&input.role),
        "name": input.role.name(),
        "type": input.tensor.data_type.to_string(),
        "shape": input.tensor.shape.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "elements": elements(input),
        "travels": travels,
    })
}

fn batch_text(rows: u32, cost: &Result<GraphCost, GraphError>) -> String {
    match cost {
        Ok(cost) => format!(
            "{rows} rows: {} floating-point operations forward, {} bytes of intermediate results",
            show::thousands(&cost.flops.to_string()),
            show::thousands(&cost.activation_bytes.to_string())
        ),
        Err(error) => format!("work and memory are not known: {error}"),
    }
}

fn tensor_table(graph: &Graph, travels: Option<&[bool]>) -> TextTable {
    let mut columns = vec!["tensor", "role", "type", ">elements"];
    columns.extend(travels.map(|_| "travels"));
    let mut table = TextTable::new(&columns);
    for (at, input) in graph.inputs.iter().enumerate().take(TENSORS_SHOWN_MAX) {
        let elements = elements(input).map(|size| show::thousands(&size.to_string()));
        let mut cells = vec![
            input.role.name().unwrap_or("–").into(),
            role(&input.role).into(),
            input.tensor.to_string().into(),
            elements.unwrap_or_else(|| "–".to_owned()).into(),
        ];
        cells.extend(travels.map(|travels| if travels[at] { "yes" } else { "–" }.into()));
        table.row(cells);
    }
    table
}

/// Whether each input travels with an update; `None` if no pattern is given.
fn travelling(graph: &Graph, arguments: &ModelShow) -> Result<Option<Vec<bool>>, GraphError> {
    match arguments.trainable.as_slice() {
        [] => Ok(None),
        patterns => travelling_inputs(graph, patterns, arguments.buffers.policy()).map(Some),
    }
}

/// The size of an update.
#[derive(Debug, Clone, Copy)]
struct UpdateSize {
    tensors: usize,
    numbers: u64,
}

impl UpdateSize {
    fn of(graph: &Graph, travels: &[bool]) -> Self {
        let inputs = || graph.inputs.iter().zip(travels).filter(|(_, travels)| **travels);
        let numbers = inputs().filter_map(|(input, _)| elements(input)).sum();
        Self { tensors: inputs().count(), numbers }
    }

    /// The bytes of its numbers in `f32`, without the header of the file.
    const fn bytes(self) -> u64 {
        self.numbers * size_of::<f32>() as u64
    }
}

impl fmt::Display for UpdateSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [numbers, bytes] =
            [self.numbers, self.bytes()].map(|count| show::thousands(&count.to_string()));
        let tensors = if self.tensors == 1 { "tensor" } else { "tensors" };
        write!(f, "{numbers} numbers in {} {tensors}: {bytes} bytes in f32", self.tensors)
    }
}

/// The number of elements of a parameter, buffer or constant.
fn elements(input: &GraphInput) -> Option<u64> {
    input.role.name()?;
    Some(input.tensor.fixed_sizes()?.iter().product())
}

fn role(role: &InputRole) -> &'static str {
    match role {
        InputRole::Parameter(_) => "parameter",
        InputRole::Buffer(_) => "buffer",
        InputRole::Constant(_) => "constant",
        InputRole::User => "input",
    }
}

/// The number of nodes of each operator.
fn operators(graph: &Graph) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for node in &graph.nodes {
        let (Operation::Aten(name) | Operation::Size(name)) = &node.operation;
        *counts.entry(name.as_str()).or_default() += 1;
    }
    counts
}

/// The failure of reading a model.
fn failure(error: &GraphError) -> anyhow::Error {
    Failure::negative(error.code(), error.to_string()).into()
}
