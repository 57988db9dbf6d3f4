//! The origins of a graph's values: rows, parameters, or both.
//!
//! A value is raw if it is a row, or follows from rows on a way without a learned product. A product, a convolution, an embedding or a recurrent layer with a parameter ends the way of a row:
//! its results are learned. Sums with a parameter, norms and activations do not: they can be undone. So a
//! value that adds the rows to learned values is raw, too. Only the sizes of a tensor are not raw.

use super::operators::{self, GROUPED_PRODUCT};
use super::segments::{Classes, ELEMENT, join, written};
use super::value::{Graph, Node, NodeOutput, Operation, ValueId};

/// Operators that multiply rows with a matrix, or look them up in one.
const PRODUCTS: [&str; 26] = [
    "linear",
    "matmul",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "mv",
    "einsum",
    "bilinear",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv1d.padding",
    "conv2d.padding",
    "conv3d.padding",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "embedding",
    "lstm.input",
    "gru.input",
    "rnn_tanh.input",
    "rnn_relu.input",
    "lstm_cell",
    "gru_cell",
    GROUPED_PRODUCT,
];
/// Those that add their first argument to a product.
const SUMS_WITH_PRODUCTS: [&str; 2] = ["addmm", "baddbmm"];
/// Arguments that are added to a product: also the state of a recurrent layer, of which a gate lets a part
/// pass.
const ADDED: [&str; 5] = ["bias", "b_ih", "b_hh", "hx", "cx"];
/// Operators that use nothing of their first argument but its sizes and type.
const LIKE: [&str; 9] = [
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "rand_like",
];

/// The origin of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueOrigin {
    /// Neither rows nor parameters.
    Public,
    /// Parameters alone.
    Parameter,
    /// Rows, by a learned product.
    Learned,
    /// Rows, on a way without one.
    Raw,
}

/// The origin of each value of a checked graph. The inputs are rows, parameters or neither.
pub(super) fn value_origins(
    graph: &Graph,
    is_row: &[bool],
    is_parameter: &[bool],
) -> Vec<ValueOrigin> {
    let count = graph.values as usize;
    let (mut memory, mut names) = (Classes::new(count), Classes::new(count));
    for node in &graph.nodes {
        join(node, &mut memory, &mut names);
    }
    // Classes of values that share a memory into which raw values were written.
    let mut is_raw_memory = vec![false; count];
    loop {
        let mut has_changed = false;
        let mut origins = vec![ValueOrigin::Public; count];
        for (input, origin) in origins.iter_mut().take(graph.inputs.len()).enumerate() {
            let has = |flags: &[bool]| flags.get(input).copied().unwrap_or(false);
            let is_raw = has(is_row) || is_raw_memory[memory.root(input)];
            *origin = match (is_raw, has(is_parameter)) {
                (true, _) => ValueOrigin::Raw,
                (false, true) => ValueOrigin::Parameter,
                (false, false) => ValueOrigin::Public,
            };
        }
        for node in &graph.nodes {
            let origin = origin_of(node, &origins);
            for ValueId(id) in node.outputs.iter().flat_map(NodeOutput::values) {
                let at = id as usize;
                let is_raw = is_raw_memory[memory.root(at)];
                origins[at] = if is_raw { ValueOrigin::Raw } else { origin };
            }
            if origin == ValueOrigin::Raw {
                for ValueId(id) in written(node) {
                    let class = memory.root(id as usize);
                    has_changed |= !is_raw_memory[class];
                    is_raw_memory[class] = true;
                }
            }
        }
        if !has_changed {
            return origins;
        }
    }
}

/// The origin of a node's results.
fn origin_of(node: &Node, origins: &[ValueOrigin]) -> ValueOrigin {
    let name = match &node.operation {
        Operation::Size(name) if name != ELEMENT => return ValueOrigin::Public,
        Operation::Size(name) => name.as_str(),
        Operation::Aten(name) if operators::SIZE_OPERATORS.contains(&name.as_str()) => {
            return ValueOrigin::Public;
        }
        Operation::Aten(name) => name.as_str(),
    };
    let skipped = usize::from(LIKE.contains(&name));
    let is_product = PRODUCTS.contains(&name);
    let (mut has_raw, mut has_learned, mut has_parameter, mut has_factor) =
        (false, false, false, false);
    for (at, (argument, value)) in node.arguments.iter().enumerate().skip(skipped) {
        let is_added =
            (at == 0 && SUMS_WITH_PRODUCTS.contains(&name)) || ADDED.contains(&argument.as_str());
        for ValueId(id) in value.values() {
            match origins[id as usize] {
                ValueOrigin::Public => {}
                ValueOrigin::Raw if is_added => return ValueOrigin::Raw,
                ValueOrigin::Raw => has_raw = true,
                ValueOrigin::Learned => has_learned = true,
                ValueOrigin::Parameter => {
                    has_parameter = true;
                    has_factor |= is_product && !is_added;
                }
            }
        }
    }
    match (has_raw, has_learned) {
        (true, _) if !has_factor => ValueOrigin::Raw,
        (true, _) | (false, true) => ValueOrigin::Learned,
        (false, false) if has_parameter => ValueOrigin::Parameter,
        (false, false) => ValueOrigin::Public,
    }
}
