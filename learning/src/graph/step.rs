//! A node's operation, resolved: the operator that it calls, and what an evaluation does differently.

use super::evaluation::HardActivation;
use super::gate;
use super::grouped;
use super::interpreter::{InterpreterError, graph_error};
use super::operators::{self, Effect};
use super::value::{Argument, Graph, Node, Operation};
use crate::torch::dispatch::AtenOperator as Aten;

/// Properties of a node that decide how it runs in an evaluation.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NodeTraits {
    /// Whether it normalises and has running statistics.
    pub(super) has_statistics: bool,
    /// Whether it is a recurrent layer.
    pub(super) is_recurrent: bool,
}

/// A node's operation, resolved.
pub(super) enum Step {
    /// Calls an operator.
    Call { operation: Aten, effect: Effect, traits: NodeTraits },
    /// Fills its argument with draws of 0 or 1; in evaluation with their mean, so that stochastic depth
    /// and dropout, which divide by it, have no effect.
    Bernoulli { operation: Aten, fill: Aten },
    /// Draws the numbers of a gate of stochastic depth; in an evaluation they are zeros.
    Draw { operation: Aten, zeros: Aten },
    /// Rounds the numbers of a gate down; in an evaluation they have their mean.
    Gate { operation: Aten, fill: Aten, mean: f64 },
    /// Creates a tensor of zeros. PyTorch's `empty` returns what is in memory, which may be a secret
    /// of the process.
    Zeros { operation: Aten },
    /// Normalises by statistics of the batch, or by its running ones.
    BatchNorm { operation: Aten },
    /// An activation of pieces of lines.
    Hard { operation: Aten, activation: HardActivation },
    /// Attention; in evaluation from its definition, with the same operators on every device.
    Attention { operation: Aten, definition: Aten },
    /// Multiplies groups of rows with a matrix each, by its definition.
    Grouped,
    /// Evaluates a function of sizes.
    Size(String),
    /// Does nothing.
    Skip,
}

impl NodeTraits {
    fn new(node: &Node) -> Self {
        let has = |wanted: &str| {
            node.arguments
                .iter()
                .any(|(name, argument)| name == wanted && *argument != Argument::None)
        };
        Self { has_statistics: has("running_mean"), is_recurrent: has("num_layers") }
    }
}

/// The steps of all nodes.
pub(super) fn steps(graph: &Graph) -> Result<Vec<Step>, InterpreterError> {
    let steps = graph.nodes.iter().enumerate().map(|(at, node)| Step::new(at, node));
    let mut steps = steps.collect::<Result<Vec<_>, _>>()?;
    for gate in gate::gates(graph) {
        let find = |node: usize, name: &str, overload: &str| {
            Aten::find(name, overload).map_err(|source| InterpreterError::Operator { node, source })
        };
        let zeros = find(gate.draw, "aten::zeros", "")?;
        let fill = find(gate.floor, "aten::fill", "Scalar")?;
        let fill_in_place = find(gate.floor, "aten::fill_", "Scalar")?;
        let own = std::mem::replace(&mut steps[gate.draw], Step::Skip);
        if let Step::Call { operation, .. } = own {
            steps[gate.draw] = Step::Draw { operation, zeros };
        }
        let own = std::mem::replace(&mut steps[gate.floor], Step::Skip);
        if let Step::Call { operation, effect, .. } = own {
            let fill = if effect == Effect::InPlace { fill_in_place } else { fill };
            steps[gate.floor] = Step::Gate { operation, fill, mean: gate.keep };
        }
    }
    Ok(steps)
}

impl Step {
    fn new(at: usize, node: &Node) -> Result<Self, InterpreterError> {
        let name = match &node.operation {
            Operation::Size(name) if operators::SIZE_FUNCTIONS.contains(&name.as_str()) => {
                return Ok(Self::Size(name.clone()));
            }
            Operation::Size(name) => {
                return Err(graph_error(at, format!("the function {name} is not supported")));
            }
            Operation::Aten(name) => name,
        };
        let found = operators::find(name);
        let is_size = operators::SIZE_OPERATORS.contains(&name.as_str());
        let effect = match found {
            Some(operator) => operator.effect,
            None if is_size => Effect::Pure,
            None => return Err(graph_error(at, format!("the operator {name} is not supported"))),
        };
        if effect == Effect::Assertion {
            return Ok(Self::Skip);
        }
        if name == grouped::NAME {
            return Ok(Self::Grouped);
        }
        let zeros = match name.as_str() {
            "empty.memory_format" => Some("zeros"),
            "new_empty" => Some("new_zeros"),
            "empty_like" => Some("zeros_like"),
            _ => None,
        };
        let (base, overload) =
            zeros.unwrap_or(name).split_once('.').unwrap_or((zeros.unwrap_or(name), ""));
        let find = |base: &str, overload: &str| {
            Aten::find(&format!("aten::{base}"), overload)
                .map_err(|source| InterpreterError::Operator { node: at, source })
        };
        let operation = find(base, overload)?;
        if name == "bernoulli_.float" {
            return Ok(Self::Bernoulli { operation, fill: find("fill_", "Scalar")? });
        }
        let traits = NodeTraits::new(node);
        if let Some(activation) = HardActivation::named(base) {
            return Ok(Self::Hard { operation, activation });
        }
        Ok(match zeros {
            None if base == "batch_norm" && traits.has_statistics => Self::BatchNorm { operation },
            None if base == "scaled_dot_product_attention" => {
                let definition = find("_scaled_dot_product_attention_math", "")?;
                Self::Attention { operation, definition }
            }
            Some(_) => Self::Zeros { operation },
            None => Self::Call { operation, effect, traits },
        })
    }

    /// Whether it is a normalisation with running statistics.
    pub(super) fn has_statistics(&self) -> bool {
        match self {
            Self::BatchNorm { .. } => true,
            Self::Call { traits, .. } => traits.has_statistics,
            _ => false,
        }
    }
}
