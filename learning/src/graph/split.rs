//! Splits a model that PyTorch exported into what travels and what is frozen.

use std::collections::BTreeMap;

use safetensors::tensor::TensorView;

use super::error::GraphErrorKind::{Unsupported, Weights};
use super::operators::{self, Effect};
use super::value::{
    Argument, DataType, Graph, GraphInput, InputRole, Node, NodeOutput, Operation, ValueId,
};
use super::{GraphError, GraphWeights, WeightTensor};
use crate::model::TensorSpec;

/// Number of names in a message.
const NAMES_SHOWN_MAX: usize = 10;

/// Buffers that training changes without a gradient, such as the running statistics of batch norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferPolicy {
    /// They travel and are averaged like parameters.
    Average,
    /// They stay, and training normalises by them too.
    Freeze,
    /// A model with such buffers is refused.
    Refuse,
}

/// The parts of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphParts {
    /// The canonical bytes of the graph.
    pub graph: Vec<u8>,
    /// The tensors that travel, in the order of the graph's inputs.
    pub tensors: Vec<TensorSpec>,
    /// The initial values of the tensors that travel, one after another.
    pub initial: Vec<f32>,
    /// A safetensors file of the other tensors; `None` if there are none.
    pub frozen: Option<Vec<u8>>,
    /// Numbers of a row that are inputs.
    pub inputs: usize,
}

/// Splits a model into the tensors that travel and the others.
///
/// # Errors
/// Those of [`travelling_inputs`].
pub fn split(
    graph: &Graph,
    weights: &GraphWeights,
    trainable: &[String],
    buffers: BufferPolicy,
) -> Result<GraphParts, GraphError> {
    let travels = travelling_inputs(graph, trainable, buffers)?;
    let mut parts = GraphParts {
        graph: graph.to_bytes(),
        tensors: Vec::new(),
        initial: Vec::new(),
        frozen: None,
        inputs: 0,
    };
    let mut frozen = Vec::new();
    let mut own = weights.tensors.iter();
    for (at, GraphInput { role, tensor }) in graph.inputs.iter().enumerate() {
        let Some(name) = role.name() else {
            let inner = super::model::row_sizes(&tensor.shape)?;
            parts.inputs += inner.iter().product::<i64>() as usize;
            continue;
        };
        let Some(weight) = own.next() else { continue };
        if travels[at] {
            parts.add(name, weight)?;
        } else {
            frozen.push((name, weight));
        }
    }
    parts.frozen = encode_frozen(&frozen)?;
    Ok(parts)
}

/// Whether each input of a graph travels: parameters whose name matches one of the patterns, and
/// buffers by their policy. In a pattern `*` stands for any text.
///
/// # Errors
/// [`GraphError`] for a pattern without a parameter, a parameter that is not `f32`, and buffers that
/// are to be refused.
pub fn travelling_inputs(
    graph: &Graph,
    trainable: &[String],
    buffers: BufferPolicy,
) -> Result<Vec<bool>, GraphError> {
    check_patterns("trainable", graph, trainable)?;
    let changed = changed_buffers(graph);
    let names: Vec<&str> = changed.iter().filter_map(|&at| graph.inputs[at].role.name()).collect();
    if buffers == BufferPolicy::Refuse && !names.is_empty() {
        let why = format!(
            "training changes the statistics {}: choose buffers = \"average\", so that they travel, \
             or \"freeze\", so that training uses them as they are",
            listed(&names)
        );
        return Err(GraphError::new(Unsupported, why));
    }
    let is_used = used_inputs(graph);
    let inputs = graph.inputs.iter().enumerate();
    inputs
        .map(|(at, GraphInput { role, tensor })| {
            let Some(name) = role.name() else { return Ok(false) };
            let travels = match role {
                // A second name of a tied weight has no gradient.
                InputRole::Parameter(_) => {
                    is_used[at] && trainable.iter().any(|pattern| matches(pattern, name))
                }
                _ => buffers == BufferPolicy::Average && changed.contains(&at),
            };
            if travels {
                check_type(name, tensor.data_type)?;
            }
            Ok(travels)
        })
        .collect()
}

impl GraphParts {
    fn add(&mut self, name: &str, weight: &WeightTensor) -> Result<(), GraphError> {
        check_type(name, weight.data_type)?;
        let shape = weight.sizes.iter().map(|&size| size as usize).collect();
        self.tensors.push(TensorSpec { name: name.to_owned(), shape });
        let numbers = weight.bytes.as_chunks::<4>().0;
        self.initial.extend(numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        Ok(())
    }
}

fn check_type(name: &str, data_type: DataType) -> Result<(), GraphError> {
    if data_type == DataType::F32 {
        return Ok(());
    }
    let why = format!(
        "{name} is {data_type}: only f32 is trained. Convert the model by `.float()` before the \
         export, or leave this tensor frozen by trainable = [\"…\"]"
    );
    Err(GraphError::new(Weights, why))
}

/// Whether a node takes each input.
fn used_inputs(graph: &Graph) -> Vec<bool> {
    let mut used = vec![false; graph.values as usize];
    let arguments = graph.nodes.iter().flat_map(|node| &node.arguments);
    let values = arguments.flat_map(|(_, argument)| argument.values());
    values.for_each(|ValueId(id)| used[id as usize] = true);
    used
}

fn encode_frozen(frozen: &[(&str, &WeightTensor)]) -> Result<Option<Vec<u8>>, GraphError> {
    if frozen.is_empty() {
        return Ok(None);
    }
    let refuse = |error: safetensors::SafeTensorError| GraphError::new(Weights, error.to_string());
    let mut views = BTreeMap::new();
    for (name, weight) in frozen {
        let sizes = weight.sizes.iter().map(|&size| size as usize).collect();
        let view = TensorView::new(weight.data_type.to_safetensors(), sizes, &weight.bytes);
        views.insert(*name, view.map_err(refuse)?);
    }
    Ok(Some(safetensors::serialize(views, None).map_err(refuse)?))
}

/// The inputs that are real buffers and that a forward pass in training changes: running statistics,
/// and targets of operators in place.
pub(super) fn changed_buffers(graph: &Graph) -> Vec<usize> {
    let mut changed = Vec::new();
    for node in &graph.nodes {
        if !is_training(node) {
            continue;
        }
        for (name, argument) in &node.arguments {
            if let (true, Argument::Value(ValueId(id))) =
                (STATISTICS.contains(&name.as_str()), argument)
            {
                changed.push(*id as usize);
            }
        }
    }
    changed.extend(changed_in_place(graph).into_iter().map(|(_, input)| input));
    changed.retain(|&at| {
        let input = graph.inputs.get(at);
        input.is_some_and(|input| {
            matches!(input.role, InputRole::Buffer(_)) && input.tensor.data_type.is_float()
        })
    });
    changed.sort_unstable();
    changed.dedup();
    changed
}

/// Whether a node runs as in training: a normalisation of a model that was exported for evaluation
/// leaves its statistics.
fn is_training(node: &Node) -> bool {
    let is_off = |(name, argument): &(String, Argument)| {
        matches!(name.as_str(), "training" | "use_input_stats")
            && *argument == Argument::Bool(false)
    };
    !node.arguments.iter().any(is_off)
}

/// The inputs whose memory an operator changes, each with the operator's node: directly, or through
/// views of it.
pub(super) fn changed_in_place(graph: &Graph) -> Vec<(usize, usize)> {
    // The input whose memory a value shares.
    let mut memory: Vec<Option<usize>> = (0..graph.values as usize).map(|_| None).collect();
    for (at, own) in memory.iter_mut().enumerate().take(graph.inputs.len()) {
        *own = Some(at);
    }
    let mut changed = Vec::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        let Operation::Aten(name) = &node.operation else { continue };
        let Some(effect) = operators::find(name).map(|operator| operator.effect) else { continue };
        let first = node.arguments.first().map(|(_, argument)| argument.values());
        let shared: Vec<usize> = first
            .unwrap_or_default()
            .iter()
            .filter_map(|ValueId(id)| memory.get(*id as usize).copied().flatten())
            .collect();
        match effect {
            Effect::InPlace | Effect::RandomInPlace => {
                changed.extend(shared.iter().map(|&input| (at, input)));
            }
            Effect::View => {}
            _ => continue,
        }
        let Some(&root) = shared.first() else { continue };
        for ValueId(id) in node.outputs.iter().flat_map(NodeOutput::values) {
            memory[id as usize] = Some(root);
        }
    }
    changed
}

/// The arguments by which a normalisation takes its running statistics.
const STATISTICS: [&str; 2] = ["running_mean", "running_var"];

/// Refuses a pattern, under its key, that is the name of no parameter.
pub(super) fn check_patterns(
    key: &str,
    graph: &Graph,
    patterns: &[String],
) -> Result<(), GraphError> {
    let parameters = graph.inputs.iter().filter_map(|input| match &input.role {
        InputRole::Parameter(name) => Some(name.as_str()),
        _ => None,
    });
    let names: Vec<&str> = parameters.collect();
    let unused = |pattern: &&String| !names.iter().any(|name| matches(pattern, name));
    if names.is_empty() {
        return Err(GraphError::new(Unsupported, "the model has no parameters to train"));
    }
    match patterns.iter().find(unused) {
        None => Ok(()),
        Some(pattern) => {
            let why = format!(
                "{key} = {pattern:?} matches no parameter of the model; it has {}",
                listed(&names)
            );
            Err(GraphError::new(Unsupported, why))
        }
    }
}

fn listed(names: &[&str]) -> String {
    let shown = names.iter().take(NAMES_SHOWN_MAX).copied().collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(NAMES_SHOWN_MAX) {
        Some(more @ 1..) => format!("{shown} and {more} more"),
        _ => shown,
    }
}

/// Whether a name is of a pattern, in which `*` stands for any text.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        // The leftmost place leaves most for the parts behind it.
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*", "head.weight", true),
            ("head.*", "head.weight", true),
            ("head.*", "ahead.weight", false),
            ("*lora*", "layers.0.lora_A.weight", true),
            ("*lora*", "lora", true),
            ("*lora*", "loRa", false),
            ("head.weight", "head.weight", true),
            ("head.weight", "head.weight2", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("ab*ba", "aba", false),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
