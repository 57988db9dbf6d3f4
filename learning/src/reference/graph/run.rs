//! A run of a graph: the value of each node from those before it, on a tape.

use std::sync::Arc;

use rand_chacha::ChaCha20Rng;

use super::tape::{Tape, Var};
use super::tensor::{Elements, Tensor, broadcast_strides, strided};
use super::{RunFailure, elements, norms, products, selection, views, windows};
use crate::graph::shapes::{Call, Number, Shaped};
use crate::graph::{
    Argument, DataType, Effect, Graph, Node, NodeOutput, Operation, RunMode, ValueId, find_operator,
};
use crate::reference::real::Real;

/// The value of a node or an input.
#[derive(Debug, Clone)]
enum Value {
    Tensor(Tensor),
    List(Vec<Tensor>),
}

/// The tensors of a node; `None` if the operator is another rule's.
pub(super) type Results = Result<Option<Vec<Tensor>>, RunFailure>;

/// A run of a graph. Numbers such as sizes are known before it, from the shapes.
pub(super) struct Run<'a, T> {
    pub(super) tape: Tape<T>,
    pub(super) mode: RunMode,
    /// Whether a training normalises by running statistics.
    pub(super) has_frozen_statistics: bool,
    /// Draws of dropout.
    pub(super) random: ChaCha20Rng,
    /// Buffers that the run changes, with their new numbers.
    pub(super) changed: Vec<(ValueId, Vec<T>)>,
    shapes: &'a [Shaped],
    values: Vec<Option<Value>>,
}

/// A node during a run.
pub(super) struct NodeCall<'a> {
    pub(super) call: Call<'a>,
    /// The operator's name with its overload, without the mark of an in-place form.
    pub(super) name: &'a str,
    /// The name without the overload.
    pub(super) base: &'a str,
    /// The sizes of the first result.
    pub(super) sizes: Vec<usize>,
    /// Whether the first result has real numbers.
    pub(super) is_real: bool,
    is_bool: bool,
}

impl NodeCall<'_> {
    /// Whether the first result has truth values.
    pub(super) fn is_bool(&self) -> bool {
        self.is_bool
    }
}

impl<'a, T: Real> Run<'a, T> {
    pub(super) fn new(shapes: &'a [Shaped], mode: RunMode, random: ChaCha20Rng) -> Self {
        Self {
            tape: Tape::new(),
            mode,
            has_frozen_statistics: false,
            random,
            changed: Vec::new(),
            shapes,
            values: vec![None; shapes.len()],
        }
    }

    /// Sets an input.
    pub(super) fn set(&mut self, ValueId(id): ValueId, tensor: Tensor) {
        self.values[id as usize] = Some(Value::Tensor(tensor));
    }

    /// Runs all nodes; returns the graph's first tensor among its outputs.
    pub(super) fn finish(&mut self, graph: &Graph) -> Result<Tensor, RunFailure> {
        for (at, node) in graph.nodes.iter().enumerate() {
            self.node(node).map_err(|failure| failure.at_node(at))?;
        }
        let outputs = graph.outputs.iter().filter_map(|output| match output {
            Argument::Value(ValueId(id)) => match self.values.get(*id as usize) {
                Some(Some(Value::Tensor(tensor))) => Some(tensor.clone()),
                _ => None,
            },
            _ => None,
        });
        outputs.into_iter().next().ok_or_else(|| RunFailure::graph("the graph has no output"))
    }

    fn node(&mut self, node: &Node) -> Result<(), RunFailure> {
        let Operation::Aten(full) = &node.operation else { return Ok(()) };
        let effect = find_operator(full).map(|operator| operator.effect);
        let Some(first) = node.outputs.iter().flat_map(NodeOutput::values).next() else {
            return Ok(());
        };
        if effect == Some(Effect::Assertion) {
            return Ok(());
        }
        let (sizes, data_type) = match self.shapes.get(first.0 as usize) {
            Some(Shaped::Tensor(shape)) => {
                (shape.sizes.iter().map(|&size| size as usize).collect(), Some(shape.data_type))
            }
            Some(Shaped::List(list)) => (Vec::new(), list.first().map(|shape| shape.data_type)),
            Some(Shaped::Number(_)) => return Ok(()),
            _ => return Err(RunFailure::graph("the shape of a value is not known")),
        };
        let is_real = data_type.is_some_and(DataType::is_float);
        let is_bool = data_type == Some(DataType::Bool);
        let base = full.split('.').next().unwrap_or(full);
        let is_in_place = matches!(effect, Some(Effect::InPlace | Effect::RandomInPlace));
        let base = if is_in_place { base.trim_end_matches('_') } else { base };
        let call = Call { node, values: self.shapes };
        let node_call = NodeCall { call, name: full, base, sizes, is_real, is_bool };
        let mut results = self.evaluate(&node_call)?;
        if !node.gradients {
            for tensor in &mut results {
                if let Elements::Real(var) = tensor.elements {
                    tensor.elements = Elements::Real(self.tape.detach(var));
                }
            }
        }
        if is_in_place
            && let (Some(Argument::Value(id)), Some(result)) =
                (node.arguments.first().map(|(_, argument)| argument), results.first())
        {
            self.set(*id, result.clone());
        }
        self.store(node, results)
    }

    fn evaluate(&mut self, node: &NodeCall<'_>) -> Result<Vec<Tensor>, RunFailure> {
        let rules = [
            elements::rule::<T>,
            views::rule::<T>,
            products::rule::<T>,
            norms::rule::<T>,
            windows::rule::<T>,
            selection::rule::<T>,
        ];
        for rule in rules {
            if let Some(results) = rule(self, node)? {
                return Ok(results);
            }
        }
        Err(RunFailure::graph(format!("this engine has no operator {}", node.name)))
    }

    fn store(&mut self, node: &Node, results: Vec<Tensor>) -> Result<(), RunFailure> {
        match node.outputs.as_slice() {
            [NodeOutput::Value(ValueId(id))]
                if matches!(self.shapes[*id as usize], Shaped::List(_)) =>
            {
                self.values[*id as usize] = Some(Value::List(results));
            }
            [NodeOutput::List(ids)] if ids.len() == results.len() => {
                for (id, result) in ids.iter().zip(results) {
                    self.set(*id, result);
                }
            }
            outputs => {
                for (output, result) in outputs.iter().zip(results) {
                    if let NodeOutput::Value(id) = output {
                        self.set(*id, result);
                    }
                }
            }
        }
        Ok(())
    }

    /// A tensor of an argument, or a number as a tensor without dimensions; `None` if it is missing.
    pub(super) fn optional(&mut self, node: &NodeCall<'_>, name: &str) -> Option<Tensor> {
        if let Argument::Value(ValueId(id)) = node.call.argument(name)?
            && let Some(Some(Value::Tensor(tensor))) = self.values.get(*id as usize)
        {
            return Some(tensor.clone());
        }
        Some(match node.call.number(name)? {
            Number::Int(integer) => Tensor::whole(Vec::new(), vec![integer]),
            Number::Bool(holds) => Tensor::whole(Vec::new(), vec![holds.into()]),
            Number::Float(number) => {
                Tensor::real(Vec::new(), self.tape.leaf(vec![T::from_f64(number)], false))
            }
        })
    }

    pub(super) fn tensor(&mut self, node: &NodeCall<'_>, name: &str) -> Result<Tensor, RunFailure> {
        self.optional(node, name)
            .ok_or_else(|| RunFailure::graph(format!("the argument {name} is missing")))
    }

    /// The first argument.
    pub(super) fn first(&mut self, node: &NodeCall<'_>) -> Result<Tensor, RunFailure> {
        let first = node.call.node.arguments.first();
        self.tensor(node, first.map_or("self", |(name, _)| name.as_str()))
    }

    /// A list of tensors; `None` stands for a missing one.
    pub(super) fn tensors(
        &self,
        node: &NodeCall<'_>,
        name: &str,
    ) -> Result<Vec<Option<Tensor>>, RunFailure> {
        let wrong = || RunFailure::graph(format!("the argument {name} is no list of tensors"));
        let value = |ValueId(id): &ValueId| self.values.get(*id as usize).and_then(Option::as_ref);
        match node.call.argument(name).ok_or_else(wrong)? {
            Argument::Values(ids) => {
                let tensors = ids.iter().map(|id| match id.as_ref().map(value) {
                    None => Ok(None),
                    Some(Some(Value::Tensor(tensor))) => Ok(Some(tensor.clone())),
                    Some(_) => Err(wrong()),
                });
                tensors.collect()
            }
            Argument::Value(id) => match value(id) {
                Some(Value::List(list)) => Ok(list.iter().cloned().map(Some).collect()),
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }

    /// The value number of an argument.
    pub(super) fn id(node: &NodeCall<'_>, name: &str) -> Option<ValueId> {
        match node.call.argument(name)? {
            Argument::Value(id) => Some(*id),
            _ => None,
        }
    }

    /// The elements as real numbers.
    pub(super) fn real(&mut self, tensor: &Tensor) -> Var {
        match &tensor.elements {
            Elements::Real(var) => *var,
            Elements::Whole(numbers) => {
                let numbers = numbers.iter().map(|&number| T::from_f64(number as f64)).collect();
                self.tape.leaf(numbers, false)
            }
        }
    }

    /// Which elements are not 0.
    pub(super) fn truth(&self, tensor: &Tensor) -> Arc<Vec<i64>> {
        let is_one = |holds: bool| i64::from(holds);
        Arc::new(match &tensor.elements {
            Elements::Real(var) => {
                let numbers = self.tape.numbers(*var);
                numbers.iter().map(|number| is_one(*number != T::ZERO)).collect()
            }
            Elements::Whole(numbers) => numbers.iter().map(|number| is_one(*number != 0)).collect(),
        })
    }

    pub(super) fn shapes(&self) -> &'a [Shaped] {
        self.shapes
    }

    /// The elements as whole numbers, without the part behind the point.
    pub(super) fn whole(&self, tensor: &Tensor) -> Arc<Vec<i64>> {
        match &tensor.elements {
            Elements::Real(var) => {
                let numbers = self.tape.numbers(*var);
                Arc::new(numbers.iter().map(|number| number.to_f64() as i64).collect())
            }
            Elements::Whole(numbers) => Arc::clone(numbers),
        }
    }

    /// The tensor with elements at other places.
    pub(super) fn rearranged(
        &mut self,
        tensor: &Tensor,
        sizes: Vec<usize>,
        index: Vec<u32>,
    ) -> Tensor {
        match &tensor.elements {
            Elements::Real(var) => Tensor::real(sizes, self.tape.take(*var, Arc::new(index))),
            Elements::Whole(numbers) => {
                let at = |&index: &u32| numbers.get(index as usize).copied().unwrap_or(0);
                Tensor::whole(sizes, index.iter().map(at).collect())
            }
        }
    }

    /// The tensor repeated to larger sizes.
    pub(super) fn spread(&mut self, tensor: &Tensor, sizes: &[usize]) -> Tensor {
        if tensor.sizes == sizes {
            return tensor.clone();
        }
        let index = strided(sizes, &broadcast_strides(&tensor.sizes, sizes), 0);
        self.rearranged(tensor, sizes.to_vec(), index)
    }

    /// The elements as real numbers, repeated to larger sizes.
    pub(super) fn spread_real(&mut self, tensor: &Tensor, sizes: &[usize]) -> Var {
        let spread = self.spread(tensor, sizes);
        self.real(&spread)
    }

    /// One number in all places.
    pub(super) fn constant(&mut self, count: usize, number: f64) -> Var {
        self.tape.leaf(vec![T::from_f64(number); count], false)
    }

    pub(super) fn add(&mut self, a: Var, b: Var) -> Var {
        self.tape.zip(a, b, |a, b| (a + b, T::ONE, T::ONE))
    }

    pub(super) fn subtract(&mut self, a: Var, b: Var) -> Var {
        self.tape.zip(a, b, |a, b| (a - b, T::ONE, T::ZERO - T::ONE))
    }

    pub(super) fn multiply(&mut self, a: Var, b: Var) -> Var {
        self.tape.zip(a, b, |a, b| (a * b, b, a))
    }

    pub(super) fn divide(&mut self, a: Var, b: Var) -> Var {
        self.tape.zip(a, b, |a, b| (a / b, T::ONE / b, T::ZERO - a / (b * b)))
    }

    pub(super) fn scale(&mut self, source: Var, factor: f64) -> Var {
        let factor = T::from_f64(factor);
        self.tape.map(source, |x| (x * factor, factor))
    }

    /// Each number `times` times, one after another: the inverse of a sum.
    pub(super) fn repeat(&mut self, source: Var, times: usize) -> Var {
        let count = self.tape.numbers(source).len();
        let index = (0..count as u32).flat_map(|at| std::iter::repeat_n(at, times));
        self.tape.take(source, Arc::new(index.collect()))
    }

    /// Multiplies with draws of a random tensor: `1 / (1 − share)` with the probability `1 − share`,
    /// otherwise 0.
    pub(super) fn drop_out(&mut self, source: Var, share: f64) -> Var {
        let count = self.tape.numbers(source).len();
        let left = T::from_f64(if share < 1.0 { 1.0 / (1.0 - share) } else { 0.0 });
        let draws = (0..count).map(|_| match crate::rng::uniform(&mut self.random) < share {
            true => T::ZERO,
            false => left,
        });
        let draws = draws.collect();
        let draws = self.tape.leaf(draws, false);
        self.multiply(source, draws)
    }
}
