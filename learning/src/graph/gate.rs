//! Gates of stochastic depth that are drawn as `floor(keep + rand)`: 1 with the probability `keep`,
//! otherwise 0. A residual is divided by `keep` and multiplied by its gate, so that an evaluation, in
//! which each gate has its mean, uses it as it is.

use super::value::{Argument, Graph, Node, NodeOutput, Operation, ValueId};

/// A gate, by the numbers of its nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Gate {
    /// The node that draws numbers from 0 to 1.
    pub(super) draw: usize,
    /// The node that rounds them down after `keep` was added.
    pub(super) floor: usize,
    /// The probability of a 1: the mean.
    pub(super) keep: f64,
}

/// The gates of a graph. No other node takes the numbers that are drawn for one.
pub(super) fn gates(graph: &Graph) -> Vec<Gate> {
    let draws = graph.nodes.iter().enumerate().filter(|(_, node)| is(node, &["rand"]));
    draws.filter_map(|(draw, node)| gate(graph, draw, node)).collect()
}

fn gate(graph: &Graph, draw: usize, node: &Node) -> Option<Gate> {
    let [sum] = users(graph, result(node)?)[..] else { return None };
    let shifted = &graph.nodes[sum];
    let keep = shifted.arguments.iter().find(|(name, _)| name == "other");
    let keep = match (is(shifted, &["add.Tensor", "add.Scalar"]), keep) {
        (true, Some((_, Argument::Float(bits)))) => f64::from_bits(*bits),
        _ => return None,
    };
    let is_plain = shifted.arguments.len() == 2 && (0.0..=1.0).contains(&keep);
    let floors = users(graph, result(shifted)?);
    let floor = *floors.first()?;
    let rounds = match is(&graph.nodes[floor], &["floor"]) {
        true => floors.len() == 1,
        false => is(&graph.nodes[floor], &["floor_"]),
    };
    (is_plain && rounds).then_some(Gate { draw, floor, keep })
}

fn is(node: &Node, names: &[&str]) -> bool {
    matches!(&node.operation, Operation::Aten(name) if names.contains(&name.as_str()))
}

/// The only result of a node.
fn result(node: &Node) -> Option<ValueId> {
    match node.outputs.as_slice() {
        [NodeOutput::Value(id)] => Some(*id),
        _ => None,
    }
}

/// The nodes that take a value, in order; none for an output of the graph.
fn users(graph: &Graph, value: ValueId) -> Vec<usize> {
    if graph.outputs.iter().any(|output| output.values().contains(&value)) {
        return Vec::new();
    }
    let takes =
        |node: &Node| node.arguments.iter().any(|(_, argument)| argument.values().contains(&value));
    let nodes = graph.nodes.iter().enumerate();
    nodes.filter(|(_, node)| takes(node)).map(|(at, _)| at).collect()
}
