//! The work of a training step.

use crate::graph::{
    Argument, Graph, GraphError, InputRole, Node, Operation, Shaped, TensorShape, infer, is_view,
};

/// The kinds of work, in the order of [`StepWork::amounts`].
pub const WORK_KINDS: [&str; 20] = [
    "steps",
    "parameters",
    "parameter_bytes",
    "views",
    "light_calls",
    "element_bytes",
    "function_bytes",
    "moved_bytes",
    "product_calls",
    "product_bytes",
    "product_flops",
    "convolution_calls",
    "convolution_bytes",
    "convolution_flops",
    "norm_calls",
    "norm_bytes",
    "attention_calls",
    "attention_flops",
    "optimizer_calls",
    "optimizer_bytes",
];

const STEPS: usize = 0;
const PARAMETERS: usize = 1;
const VIEWS: usize = 3;
const LIGHT: usize = 4;
const ELEMENT: usize = 5;
const FUNCTION: usize = 6;
const MOVED: usize = 7;
/// Calls, bytes and operations of these follow each other.
const PRODUCT: usize = 8;
const CONVOLUTION: usize = 11;
const NORM: usize = 14;
const ATTENTION: usize = 16;
const OPTIMIZER: usize = 18;
/// Operators of the loss, forward and backward, and their passes over the outputs.
const LOSS_CALLS: f64 = 8.0;
const LOSS_PASSES: f64 = 4.0;
/// Operators that a recurrent layer runs for each step of a sequence.
const RECURRENT_CALLS: f64 = 12.0;

/// Operators that compute a function of each element in many instructions, or draw random numbers.
const FUNCTIONS: [&str; 22] = [
    "gelu",
    "silu",
    "exp",
    "log",
    "tanh",
    "sigmoid",
    "softmax",
    "log_softmax",
    "erf",
    "sin",
    "cos",
    "pow",
    "dropout",
    "mish",
    "elu",
    "selu",
    "celu",
    "softplus",
    "logsigmoid",
    "expm1",
    "log1p",
    "logsumexp",
];

/// The work of a step: forward pass, backward pass and the change of the parameters, by plain gradient descent
/// unless an [optimizer](StepWork::with_optimizer) is added.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepWork {
    /// By the kinds of [`WORK_KINDS`].
    pub amounts: [f64; WORK_KINDS.len()],
}

impl StepWork {
    /// The work of a step at a size of each free dimension. `trains` decides which inputs have gradients.
    ///
    /// # Errors
    /// [`GraphError`] as [`graph_cost`](crate::graph::graph_cost).
    pub fn of(
        graph: &Graph,
        sizes: &[u64],
        trains: impl Fn(usize) -> bool,
    ) -> Result<Self, GraphError> {
        let (cost, values) = infer(graph, sizes, u64::MAX)?;
        let mut amounts = [0.0; WORK_KINDS.len()];
        amounts[STEPS] = 1.0;
        let mut has_gradient = vec![false; values.len()];
        for (at, input) in graph.inputs.iter().enumerate() {
            let is_trained = matches!(input.role, InputRole::Parameter(_)) && trains(at);
            has_gradient[at] = is_trained;
            if let (true, Shaped::Tensor(shape)) = (is_trained, &values[at]) {
                amounts[PARAMETERS] += 1.0;
                amounts[PARAMETERS + 1] += shape.bytes() as f64;
            }
        }
        for ((node, shapes), &flops) in graph.nodes.iter().zip(&cost.nodes).zip(&cost.node_flops) {
            let Operation::Aten(name) = &node.operation else { continue };
            let arguments = tensors(node);
            let is_tracked = node.gradients && arguments.iter().any(|&at| has_gradient[at]);
            let passes = if is_tracked { 2.0 } else { 1.0 };
            for id in node.outputs.iter().flat_map(|output| output.values()) {
                has_gradient[id.0 as usize] |= is_tracked;
            }
            if is_view(node) {
                amounts[VIEWS] += passes;
                continue;
            }
            let read: u64 = arguments.iter().map(|&at| bytes(&values[at])).sum();
            let written: u64 = shapes.iter().map(TensorShape::bytes).sum();
            let moved = (read + written) as f64 * passes;
            // A product has a pass for the gradient of each of its first two tensors.
            let gradients = arguments.iter().take(2).filter(|&&at| has_gradient[at]).count();
            let passes_of_product = 1.0 + gradients as f64;
            let flops_of_all = flops as f64 * passes_of_product;
            match kind(name, flops) {
                Kind::Product(at) => {
                    amounts[at] += passes_of_product;
                    amounts[at + 1] += moved;
                    amounts[at + 2] += flops_of_all;
                }
                Kind::Norm => {
                    amounts[NORM] += passes;
                    amounts[NORM + 1] += moved;
                }
                Kind::Attention => {
                    amounts[ATTENTION] += passes;
                    amounts[ATTENTION + 1] += flops_of_all;
                }
                Kind::Recurrent => {
                    let longest = arguments.first().map_or(1, |&at| longest(&values[at]));
                    amounts[LIGHT] += passes * RECURRENT_CALLS * longest as f64;
                    amounts[PRODUCT + 2] += flops_of_all;
                }
                Kind::Light(at) => {
                    amounts[LIGHT] += passes;
                    amounts[at] += moved;
                }
            }
        }
        // The loss and its gradient: a softmax over the outputs, or a difference.
        let outputs: u64 = cost.outputs.iter().take(1).map(TensorShape::bytes).sum();
        amounts[LIGHT] += LOSS_CALLS;
        amounts[FUNCTION] += LOSS_PASSES * outputs as f64;
        Ok(Self { amounts })
    }

    pub(super) fn none() -> Self {
        Self { amounts: [0.0; WORK_KINDS.len()] }
    }

    /// Bytes of the parameters that train.
    pub(super) fn parameter_bytes(&self) -> f64 {
        self.amounts[PARAMETERS + 1]
    }

    pub(super) fn add_optimizer(&mut self, calls: f64, bytes: f64) {
        self.amounts[OPTIMIZER] += calls;
        self.amounts[OPTIMIZER + 1] += bytes;
    }
}

/// The kind of an operator, with its place among the amounts.
enum Kind {
    Product(usize),
    Norm,
    Attention,
    Recurrent,
    Light(usize),
}

/// Whether an operator multiplies matrices, or is a convolution, an attention or a recurrent layer.
#[cfg(feature = "torch")]
pub(crate) fn is_product(name: &str) -> bool {
    matches!(kind(name, 1), Kind::Product(_) | Kind::Attention | Kind::Recurrent)
}

fn kind(name: &str, flops: u64) -> Kind {
    let base = name.split('.').next().unwrap_or(name);
    match base {
        "linear" | "mm" | "addmm" | "bmm" | "baddbmm" | "matmul" | "einsum" | "mv" | "dot"
        | "_grouped_mm" => Kind::Product(PRODUCT),
        "scaled_dot_product_attention" => Kind::Attention,
        "lstm" | "gru" | "rnn_tanh" | "rnn_relu" => Kind::Recurrent,
        _ if base.starts_with("conv") => Kind::Product(CONVOLUTION),
        _ if base.ends_with("_norm") => Kind::Norm,
        _ if FUNCTIONS.contains(&base.trim_end_matches('_').trim_start_matches('_')) => {
            Kind::Light(FUNCTION)
        }
        _ if flops == 0 => Kind::Light(MOVED),
        _ => Kind::Light(ELEMENT),
    }
}

/// The longest side of a batch of sequences, without their last dimension.
fn longest(value: &Shaped) -> u64 {
    match value {
        Shaped::Tensor(shape) => {
            shape.sizes.iter().rev().skip(1).take(1).copied().max().unwrap_or(1)
        }
        _ => 1,
    }
}

/// The values among the arguments of a node.
fn tensors(node: &Node) -> Vec<usize> {
    let values = node
        .arguments
        .iter()
        .filter(|(_, argument)| matches!(argument, Argument::Value(_) | Argument::Values(_)));
    values.flat_map(|(_, argument)| argument.values()).map(|id| id.0 as usize).collect()
}

fn bytes(value: &Shaped) -> u64 {
    match value {
        Shaped::Tensor(shape) => shape.bytes(),
        Shaped::List(shapes) => shapes.iter().map(TensorShape::bytes).sum(),
        Shaped::Unknown | Shaped::Number(_) => 0,
    }
}
