//! `florin model show`: the tensors and operators of a model that PyTorch exported.

use std::collections::BTreeMap;
use std::fs::File;

use anyhow::Context;
use florin_learning::graph::{
    Graph, GraphCost, GraphError, GraphInput, InputRole, Operation, graph_cost, read_archive_from,
};
use florin_protocol::Digest;
use serde_json::json;

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
    let cost = graph_cost(&graph, &graph.free_sizes(arguments.rows.into()), u64::MAX);
    if arguments.json.json {
        let inputs: Vec<_> = graph
            .inputs
            .iter()
            .map(|input| {
                json!({
                    "role": role(&input.role),
                    "name": input.role.name(),
                    "type": input.tensor.data_type.to_string(),
                    "shape": input.tensor.shape.iter().map(ToString::to_string).collect::<Vec<_>>(),
                    "elements": elements(input),
                })
            })
            .collect();
        show::json(&json!({
            "digest": digest,
            "nodes": graph.nodes.len(),
            "operators": counts,
            "rows": arguments.rows,
            "flops": cost.as_ref().ok().map(|cost| cost.flops),
            "activation_bytes": cost.as_ref().ok().map(|cost| cost.activation_bytes),
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
    show::facts(&[
        ("model", file.display().to_string()),
        ("digest", digest.to_string()),
        ("parameters", show::thousands(&parameters.to_string())),
        ("weights", format!("{} bytes", show::thousands(&bytes.to_string()))),
        ("nodes", show::thousands(&graph.nodes.len().to_string())),
        ("batch", batch_text(arguments.rows, &cost)),
    ]);
    anstream::println!();
    tensor_table(&graph).print();
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

fn tensor_table(graph: &Graph) -> TextTable {
    let mut table = TextTable::new(&["tensor", "role", "type", ">elements"]);
    for input in graph.inputs.iter().take(TENSORS_SHOWN_MAX) {
        let elements = elements(input).map(|size| show::thousands(&size.to_string()));
        table.row([
            input.role.name().unwrap_or("–").into(),
            role(&input.role).into(),
            input.tensor.to_string().into(),
            elements.unwrap_or_else(|| "–".to_owned()).into(),
        ]);
    }
    table
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
