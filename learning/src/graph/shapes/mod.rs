//! Shapes and costs of a graph without running it: every operator's rule on concrete sizes.
//!
//! The sizes of the free dimensions, such as the number of rows, are given; so a task checks a
//! graph for a few of them before anything is computed, and a quote knows memory and work.

mod call;
mod convolutions;
mod elements;
mod products;
mod reductions;
mod views;

use super::error::GraphErrorKind::{Malformed, TooLarge, Unsupported};
use super::operators::{self, Effect};
use super::size_function;
pub(crate) use super::size_function::{Number, floor_div};
use super::value::{Argument, DataType, Dimension, Graph, Node, NodeOutput, Operation, ValueId};
use super::{DIMENSIONS_MAX, GraphError};
pub(crate) use call::{Call, axis};
pub(crate) use convolutions::{spatial_rank, spread};
pub(crate) use views::limited;

/// Type and sizes of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorShape {
    /// The type of its elements.
    pub data_type: DataType,
    /// Its sizes, outermost first.
    pub sizes: Vec<u64>,
}

impl TensorShape {
    fn new(data_type: DataType, sizes: impl Into<Vec<u64>>) -> Self {
        Self { data_type, sizes: sizes.into() }
    }

    fn with(&self, sizes: impl Into<Vec<u64>>) -> Self {
        Self::new(self.data_type, sizes)
    }

    fn of_type(&self, data_type: DataType) -> Self {
        Self { data_type, sizes: self.sizes.clone() }
    }

    /// Number of elements; saturates.
    pub fn elements(&self) -> u64 {
        self.sizes.iter().fold(1, |product: u64, &size| product.saturating_mul(size))
    }

    /// Bytes of its elements; saturates.
    pub fn bytes(&self) -> u64 {
        self.elements().saturating_mul(self.data_type.bytes() as u64)
    }
}

/// A value whose tensor has a shape and no elements.
#[derive(Debug, Clone)]
pub(crate) enum Shaped {
    Unknown,
    Tensor(TensorShape),
    List(Vec<TensorShape>),
    Number(Number),
}

/// Shapes, memory and work of a graph at one size of its free dimensions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GraphCost {
    /// The shapes of the tensors that each node computes, in order.
    pub nodes: Vec<Vec<TensorShape>>,
    /// The floating-point operations of each node.
    pub node_flops: Vec<u64>,
    /// The shapes of the graph's outputs.
    pub outputs: Vec<TensorShape>,
    /// Floating-point operations of a forward pass; a multiplication with an addition counts as two.
    pub flops: u64,
    /// Bytes of all tensors that nodes compute, without views: a training holds at most these.
    pub activation_bytes: u64,
}

/// The shapes and costs of a checked graph. `symbols` has the size of each free dimension.
///
/// # Errors
/// [`GraphError`] if the sizes contradict an operator, if a shape depends on data, and if the tensors
/// have more than `bytes_max` bytes in all.
pub fn graph_cost(graph: &Graph, symbols: &[u64], bytes_max: u64) -> Result<GraphCost, GraphError> {
    infer(graph, symbols, bytes_max).map(|(cost, _)| cost)
}

/// The shape of each value; see [`graph_cost`].
pub(crate) fn value_shapes(
    graph: &Graph,
    symbols: &[u64],
    bytes_max: u64,
) -> Result<Vec<Shaped>, GraphError> {
    infer(graph, symbols, bytes_max).map(|(_, values)| values)
}

pub(crate) fn infer(
    graph: &Graph,
    symbols: &[u64],
    bytes_max: u64,
) -> Result<(GraphCost, Vec<Shaped>), GraphError> {
    let mut values = vec![Shaped::Unknown; graph.values as usize];
    for (value, input) in values.iter_mut().zip(&graph.inputs) {
        let sizes = input.tensor.shape.iter().map(|dimension| match dimension {
            Dimension::Fixed(size) => Ok(*size),
            Dimension::Symbol(number) => symbols.get(*number as usize).copied().ok_or_else(|| {
                GraphError::new(Malformed, format!("no size for the free dimension {number}"))
            }),
        });
        let sizes = sizes.collect::<Result<Vec<u64>, _>>()?;
        *value = Shaped::Tensor(TensorShape::new(input.tensor.data_type, sizes));
    }
    let mut cost = GraphCost::default();
    for (at, node) in graph.nodes.iter().enumerate() {
        let refuse =
            |error: GraphError| GraphError { why: format!("node {at}: {}", error.why), ..error };
        let (results, flops) = node_shapes(node, &values).map_err(refuse)?;
        let mut shapes = Vec::new();
        for result in &results {
            match result {
                Shaped::Tensor(shape) => shapes.push(shape.clone()),
                Shaped::List(list) => shapes.extend(list.iter().cloned()),
                Shaped::Number(_) | Shaped::Unknown => {}
            }
        }
        if shapes.iter().any(|shape| shape.sizes.len() > DIMENSIONS_MAX) {
            let why = format!("a tensor of more than {DIMENSIONS_MAX} dimensions");
            return Err(refuse(GraphError::new(TooLarge, why)));
        }
        cost.flops = cost.flops.saturating_add(flops);
        cost.node_flops.push(flops);
        if !is_view(node) {
            let bytes = shapes.iter().fold(0_u64, |sum, shape| sum.saturating_add(shape.bytes()));
            let bytes = bytes.saturating_add(attention_bytes(node, &values));
            cost.activation_bytes = cost.activation_bytes.saturating_add(bytes);
            if cost.activation_bytes > bytes_max {
                let why = format!("the tensors of the model have more than {bytes_max} bytes");
                return Err(refuse(GraphError::new(TooLarge, why)));
            }
        }
        store(node, results, &mut values).map_err(refuse)?;
        cost.nodes.push(shapes);
    }
    for output in &graph.outputs {
        if let Argument::Value(ValueId(id)) = output
            && let Shaped::Tensor(shape) = &values[*id as usize]
        {
            cost.outputs.push(shape.clone());
        }
    }
    Ok((cost, values))
}

/// Bytes of the two matrices of scores that an attention has in an evaluation.
fn attention_bytes(node: &Node, values: &[Shaped]) -> u64 {
    let name = match &node.operation {
        Operation::Aten(name) | Operation::Size(name) => name.as_str(),
    };
    if name != "scaled_dot_product_attention" {
        return 0;
    }
    let call = Call { node, values };
    let (Ok(query), Ok(key)) = (call.tensor("query"), call.tensor("key")) else { return 0 };
    let (Some((_, rows)), [.., keys, _]) = (query.sizes.split_last(), key.sizes.as_slice()) else {
        return 0;
    };
    let scores = rows.iter().fold(*keys, |product, &size| product.saturating_mul(size));
    scores.saturating_mul(2 * query.data_type.bytes() as u64)
}

/// Operators that return a view or a copy.
const COPYING_VIEWS: [&str; 3] = ["reshape", "flatten.using_ints", "contiguous"];

pub(crate) fn is_view(node: &Node) -> bool {
    match &node.operation {
        Operation::Size(_) => true,
        // It copies what has no view of the new shape, such as an expanded tensor.
        Operation::Aten(name) if COPYING_VIEWS.contains(&name.as_str()) => false,
        Operation::Aten(name) => operators::find(name).is_none_or(|operator| {
            matches!(
                operator.effect,
                Effect::View | Effect::InPlace | Effect::RandomInPlace | Effect::Assertion
            )
        }),
    }
}

/// The results of a node, and its floating-point operations.
fn node_shapes(node: &Node, values: &[Shaped]) -> Result<(Vec<Shaped>, u64), GraphError> {
    let call = Call { node, values };
    match &node.operation {
        Operation::Size(name) => {
            let operands = node.arguments.iter().map(|(_, argument)| call.number_of(argument));
            let operands: Option<Vec<Number>> = operands.collect();
            let found = operands.and_then(|operands| size_function::evaluate(name, &operands));
            let why =
                || GraphError::new(Unsupported, format!("the function {name} of these values"));
            found.map(|number| (vec![Shaped::Number(number)], 0)).ok_or_else(why)
        }
        Operation::Aten(name) => {
            let rules = [
                call::creation,
                elements::rule,
                views::rule,
                products::rule,
                convolutions::rule,
                reductions::rule,
            ];
            for rule in rules {
                if let Some((results, flops)) = rule(name, &call)? {
                    return Ok((results, flops));
                }
            }
            let why =
                format!("the shape of the result of {name} is not known: it may depend on data");
            Err(GraphError::new(Unsupported, why))
        }
    }
}

/// The result of a rule: `None` if the operator is another rule's.
type RuleResult = Result<Option<(Vec<Shaped>, u64)>, GraphError>;

/// One tensor with one operation for each element.
fn one(shape: TensorShape) -> RuleResult {
    let flops = shape.elements();
    Ok(Some((vec![Shaped::Tensor(shape)], flops)))
}

/// One tensor that is only moved.
fn moved(shape: TensorShape) -> RuleResult {
    Ok(Some((vec![Shaped::Tensor(shape)], 0)))
}

fn store(node: &Node, results: Vec<Shaped>, values: &mut [Shaped]) -> Result<(), GraphError> {
    let mut results = results.into_iter();
    for output in &node.outputs {
        match (output, results.next()) {
            (NodeOutput::None, _) => {}
            (NodeOutput::Value(ValueId(id)), Some(result)) => values[*id as usize] = result,
            (NodeOutput::List(ids), Some(Shaped::List(list))) if ids.len() == list.len() => {
                for (ValueId(id), shape) in ids.iter().zip(list) {
                    values[*id as usize] = Shaped::Tensor(shape);
                }
            }
            _ => {
                let why = "the operator has other results than the graph states";
                return Err(GraphError::new(Malformed, why));
            }
        }
    }
    Ok(())
}

fn mismatch(why: impl Into<String>) -> GraphError {
    GraphError::new(Malformed, why)
}
