//! The operators that this engine has, and graphs that it can run.

use std::collections::BTreeSet;

use crate::graph::shapes::{Call, Shaped, TensorShape, value_shapes};
use crate::graph::{
    Argument, Effect, Graph, GraphError, NodeOutput, Operation, ROW_BYTES_MAX, ValueId,
    find_operator,
};

/// The operators of this engine, without their overloads.
pub(super) const OPERATORS: &[&str] = &[
    "__and__",
    "__or__",
    "_log_softmax",
    "_softmax",
    "_to_copy",
    "abs",
    "absolute",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "add",
    "add_",
    "addcdiv",
    "addcmul",
    "addmm",
    "alias",
    "all",
    "amax",
    "amin",
    "any",
    "arange",
    "argmax",
    "argmin",
    "avg_pool1d",
    "avg_pool2d",
    "baddbmm",
    "batch_norm",
    "bernoulli_",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "bmm",
    "broadcast_to",
    "cat",
    "ceil",
    "celu",
    "chunk",
    "clamp",
    "clamp_",
    "clamp_max",
    "clamp_min",
    "clip",
    "clone",
    "concat",
    "concatenate",
    "constant_pad_nd",
    "contiguous",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "copy_",
    "cos",
    "cumsum",
    "detach",
    "diff",
    "div",
    "div_",
    "divide",
    "dot",
    "dropout",
    "dropout_",
    "einsum",
    "elu",
    "elu_",
    "embedding",
    "empty",
    "empty_like",
    "eq",
    "erf",
    "exp",
    "expand",
    "expand_as",
    "expm1",
    "feature_dropout",
    "fill_",
    "flatten",
    "flip",
    "floor",
    "floor_divide",
    "full",
    "full_like",
    "gather",
    "ge",
    "gelu",
    "glu",
    "group_norm",
    "gt",
    "hardsigmoid",
    "hardsigmoid_",
    "hardswish",
    "hardswish_",
    "hardtanh",
    "hardtanh_",
    "index",
    "index_select",
    "instance_norm",
    "isinf",
    "isnan",
    "layer_norm",
    "le",
    "leaky_relu",
    "leaky_relu_",
    "lerp",
    "lift_fresh_copy",
    "linalg_vector_norm",
    "linear",
    "linspace",
    "log",
    "log1p",
    "log_sigmoid",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "lt",
    "masked_fill",
    "masked_fill_",
    "matmul",
    "max",
    "max_pool1d",
    "max_pool2d",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mish",
    "mish_",
    "mm",
    "movedim",
    "mul",
    "mul_",
    "multiply",
    "mv",
    "narrow",
    "native_layer_norm",
    "ne",
    "neg",
    "negative",
    "new_empty",
    "new_full",
    "new_ones",
    "new_zeros",
    "norm",
    "numpy_T",
    "one_hot",
    "ones",
    "ones_like",
    "pad",
    "permute",
    "pow",
    "reciprocal",
    "relu",
    "relu6",
    "relu6_",
    "relu_",
    "remainder",
    "repeat",
    "repeat_interleave",
    "reshape",
    "reshape_as",
    "rms_norm",
    "roll",
    "rsqrt",
    "rsub",
    "scalar_tensor",
    "scaled_dot_product_attention",
    "select",
    "selu",
    "selu_",
    "sigmoid",
    "sigmoid_",
    "sign",
    "silu",
    "silu_",
    "sin",
    "slice",
    "softmax",
    "softplus",
    "split",
    "split_with_sizes",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "sub",
    "sub_",
    "subtract",
    "sum",
    "swapaxes",
    "swapdims",
    "t",
    "take_along_dim",
    "tanh",
    "tanh_",
    "tensor_split",
    "tile",
    "to",
    "transpose",
    "tril",
    "triu",
    "true_divide",
    "type_as",
    "unbind",
    "unflatten",
    "unsqueeze",
    "upsample_bilinear2d",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "var",
    "view",
    "view_as",
    "where",
    "zero_",
    "zeros",
    "zeros_like",
    "sym_size",
    "sym_numel",
];

/// Overloads of these operators that this engine lacks.
const MISSING_OVERLOADS: &[&str] = &["clamp.Tensor", "view.dtype", "pow.Scalar", "movedim.intlist"];

/// The operators of a graph that this engine lacks, each once, in alphabetical order; also those that
/// change a tensor in place that has a view which is used later.
pub(in crate::reference) fn missing_operators(graph: &Graph) -> Vec<String> {
    let mut missing: BTreeSet<String> = BTreeSet::new();
    for node in &graph.nodes {
        let Operation::Aten(name) = &node.operation else { continue };
        let base = name.split('.').next().unwrap_or(name);
        let is_assertion =
            find_operator(name).is_some_and(|operator| operator.effect == Effect::Assertion);
        if !is_assertion
            && (!OPERATORS.contains(&base) || MISSING_OVERLOADS.contains(&name.as_str()))
        {
            missing.insert(name.clone());
        }
    }
    missing.extend(changed_views(graph));
    missing.into_iter().collect()
}

/// Operators whose result may share the memory of their first argument.
const COPYING_VIEWS: &[&str] = &["reshape", "flatten", "contiguous", "to", "type_as"];

/// In-place operators on a tensor that is used later under another number: values here are copies.
fn changed_views(graph: &Graph) -> BTreeSet<String> {
    let mut root: Vec<u32> = (0..graph.values).collect();
    let mut last_use: Vec<usize> = vec![0; graph.values as usize];
    for (at, node) in graph.nodes.iter().enumerate() {
        for ValueId(id) in node.arguments.iter().flat_map(|(_, argument)| argument.values()) {
            last_use[id as usize] = at;
        }
    }
    for ValueId(id) in graph.outputs.iter().flat_map(Argument::values) {
        last_use[id as usize] = usize::MAX;
    }
    let mut found = BTreeSet::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        let Operation::Aten(name) = &node.operation else { continue };
        let effect = find_operator(name).map(|operator| operator.effect);
        let Some((_, Argument::Value(ValueId(first)))) = node.arguments.first() else { continue };
        let base = name.split('.').next().unwrap_or(name);
        let outputs: Vec<u32> =
            node.outputs.iter().flat_map(NodeOutput::values).map(|ValueId(id)| id).collect();
        let is_in_place = matches!(effect, Some(Effect::InPlace | Effect::RandomInPlace));
        if effect == Some(Effect::View) || COPYING_VIEWS.contains(&base) || is_in_place {
            for id in &outputs {
                root[*id as usize] = root[*first as usize];
            }
        }
        if is_in_place {
            let own = root[*first as usize];
            let is_other = |id: &u32| id != first && !outputs.contains(id);
            let is_used = |id: u32| root[id as usize] == own && last_use[id as usize] > at;
            if (0..graph.values).filter(is_other).any(is_used) {
                found.insert(name.clone());
            }
        }
    }
    found
}

/// Bytes of the tensors of a run of `rows` rows in `f32`: views are copies here, and windows of images
/// are copied.
///
/// # Errors
/// [`GraphError`] if the tensors of the graph exceed its own limit.
pub(in crate::reference) fn run_bytes(graph: &Graph, rows: usize) -> Result<u64, GraphError> {
    let rows = rows as u64;
    let shapes = value_shapes(graph, &[rows], ROW_BYTES_MAX.saturating_mul(rows))?;
    let of_values = shapes.iter().map(|shape| match shape {
        Shaped::Tensor(tensor) => tensor.bytes(),
        Shaped::List(list) => list.iter().fold(0, |sum: u64, own| sum.saturating_add(own.bytes())),
        Shaped::Number(_) | Shaped::Unknown => 0,
    });
    let values = of_values.fold(0, u64::saturating_add);
    let of_windows = graph.nodes.iter().map(|node| {
        let Operation::Aten(name) = &node.operation else { return 0 };
        let output = node.outputs.iter().flat_map(NodeOutput::values).next();
        match output.map(|ValueId(id)| &shapes[id as usize]) {
            Some(Shaped::Tensor(output)) => {
                window_bytes(name, &Call { node, values: &shapes }, output)
            }
            _ => 0,
        }
    });
    Ok(of_windows.fold(values, u64::saturating_add))
}

/// Bytes of the windows of a convolution or a pooling, and of the scores of an attention.
fn window_bytes(name: &str, call: &Call<'_>, output: &TensorShape) -> u64 {
    let product = |sizes: &[u64]| sizes.iter().fold(1, |all: u64, size| all.saturating_mul(*size));
    if name.starts_with("conv") {
        let Ok(weight) = call.tensor("weight") else { return 0 };
        let outputs = output.sizes.get(1).copied().unwrap_or(1).max(1);
        let windows = (output.bytes() / outputs).saturating_mul(weight.elements());
        // Each group has its own channels: its share of the weight belongs to each of its outputs.
        return windows / weight.sizes.first().copied().unwrap_or(1).max(1)
            * u64::try_from(call.int_or("groups", 1)).unwrap_or(1);
    }
    if name.contains("pool") {
        // One size stands for both dimensions.
        let kernel = call.sizes("kernel_size").map_or(4, |sizes| match sizes.as_slice() {
            [size] => size.saturating_mul(*size),
            sizes => product(sizes),
        });
        return output.bytes().saturating_mul(kernel);
    }
    if name == "scaled_dot_product_attention" {
        let (Ok(query), Ok(key)) = (call.tensor("query"), call.tensor("key")) else { return 0 };
        let ([rows @ .., _], [.., keys, _]) = (query.sizes.as_slice(), key.sizes.as_slice()) else {
            return 0;
        };
        return product(rows).saturating_mul(*keys).saturating_mul(16);
    }
    0
}
