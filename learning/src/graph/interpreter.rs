//! Runs a graph by libtorch's operators, with gradients.

use std::ops::Range;

use tch::{Kind, TchError, Tensor, no_grad, no_grad_guard};
use thiserror::Error;

use super::GraphError;
use super::evaluation::{BatchNorm, copy_with_gradient};
use super::grouped;
use super::held::Held;
use super::observer::{NotObserved, RunObserver, RunValues};
use super::operators::Effect;
use super::size_function;
use super::step::{NodeTraits, Step, steps};
use super::value::{Argument, Graph, InputRole, Node, NodeOutput, RunMode, ValueId, WeightTensor};
use crate::torch::dispatch::{Argument as Given, AtenError, AtenOperator as Aten, Value};

/// Results of a run: the tensors among the graph's outputs, in order.
pub type GraphRun = Vec<Tensor>;

/// A graph cannot be run.
#[derive(Debug, Error)]
pub enum InterpreterError {
    /// An operator failed.
    #[error("node {node}: {source}")]
    Operator {
        /// The number of the node.
        node: usize,
        /// The failure.
        source: AtenError,
    },
    /// The graph breaks a rule.
    #[error(transparent)]
    Invalid(#[from] GraphError),
    /// A value has another type than its place.
    #[error("node {node}: {why}")]
    Graph {
        /// The number of the node.
        node: usize,
        /// The reason.
        why: String,
    },
    /// The inputs do not fit the graph.
    #[error("the model has {wanted} inputs, {given} were given")]
    Inputs {
        /// Number of the graph's inputs.
        wanted: usize,
        /// Number of the given tensors.
        given: usize,
    },
    /// libtorch failed.
    #[error(transparent)]
    Torch(#[from] TchError),
}

/// The share of ones that `bernoulli_` draws by default.
const BERNOULLI_SHARE: f64 = 0.5;

/// A value during a run.
#[derive(Debug)]
pub(crate) enum Slot {
    Empty,
    Tensor(Tensor),
    Tensors(Vec<Tensor>),
    Int(i64),
    Float(f64),
    Bool(bool),
}

impl WeightTensor {
    /// The tensor, on the CPU.
    ///
    /// # Errors
    /// [`TchError`] if the bytes do not match the sizes.
    pub fn to_tensor(&self) -> Result<Tensor, TchError> {
        let kind = self.data_type.kind();
        let sizes: Vec<i64> = self.sizes.iter().map(|&size| size as i64).collect();
        Tensor::f_from_data_size(&self.bytes, &sizes, kind)
    }
}

/// A graph with its operators found and its values' last uses known.
pub struct Interpreter<'g> {
    pub(super) graph: &'g Graph,
    steps: Vec<Step>,
    /// The values that each node uses last.
    dead: Vec<Vec<ValueId>>,
    device: String,
    /// Whether real numbers have 64 bits, also where the graph states another type.
    is_double: bool,
    /// Whether training normalises by the running statistics too, and leaves them.
    has_frozen_statistics: bool,
}

impl<'g> Interpreter<'g> {
    /// Finds all operators. `device` is libtorch's name of one, such as `cpu` or `cuda:0`; with
    /// `meta`, a run computes types and shapes only.
    ///
    /// # Errors
    /// [`InterpreterError::Invalid`] for a graph that breaks a rule, [`InterpreterError::Operator`] for
    /// an operator that this version of libtorch does not have.
    pub fn new(graph: &'g Graph, device: &str) -> Result<Self, InterpreterError> {
        graph.check()?;
        let steps = steps(graph)?;
        let dead = last_uses(graph);
        let device = device.to_owned();
        Ok(Self { graph, steps, dead, device, is_double: false, has_frozen_statistics: false })
    }

    /// The same in `f64`: the caller passes real inputs of that type.
    #[must_use]
    pub fn in_double(self) -> Self {
        Self { is_double: true, ..self }
    }

    /// The same with running statistics that training uses and does not change.
    #[must_use]
    pub fn with_frozen_statistics(self) -> Self {
        Self { has_frozen_statistics: true, ..self }
    }

    /// Whether a training normalises by statistics of the batch, so that rows depend on each other.
    pub(crate) fn trains_by_batch_statistics(&self) -> bool {
        !self.has_frozen_statistics && self.steps.iter().any(Step::has_statistics)
    }

    /// Runs the graph on `inputs`, in the order of the graph's inputs. In training, running statistics
    /// are changed in place.
    ///
    /// # Errors
    /// [`InterpreterError`].
    pub fn run(&self, inputs: &[Tensor], mode: RunMode) -> Result<GraphRun, InterpreterError> {
        self.run_observed(inputs, mode, &mut NotObserved)
    }

    /// The same with an observer of each node.
    ///
    /// # Errors
    /// [`InterpreterError`], also of the observer.
    pub(crate) fn run_observed(
        &self,
        given: &[Tensor],
        mode: RunMode,
        observer: &mut dyn RunObserver,
    ) -> Result<GraphRun, InterpreterError> {
        if given.len() != self.graph.inputs.len() {
            let (wanted, given) = (self.graph.inputs.len(), given.len());
            return Err(InterpreterError::Inputs { wanted, given });
        }
        let copies = mode == RunMode::Evaluation;
        let inputs = self.graph.inputs.iter().zip(given).map(|(input, tensor)| {
            // An evaluation counts no batches.
            Ok(Slot::Tensor(match input.role {
                InputRole::Buffer(_) if copies => copy_with_gradient(tensor)?,
                _ => tensor.shallow_clone(),
            }))
        });
        let mut values = inputs.collect::<Result<Vec<Slot>, TchError>>()?;
        values.resize_with(self.graph.values as usize, || Slot::Empty);
        observer.begin(given)?;
        self.run_nodes(0..self.graph.nodes.len(), &mut values, mode, observer)?;
        let outputs = self.graph.outputs.iter().filter_map(|output| match output {
            Argument::Value(ValueId(id)) => match &values[*id as usize] {
                Slot::Tensor(tensor) => Some(tensor.shallow_clone()),
                _ => None,
            },
            _ => None,
        });
        Ok(outputs.collect())
    }

    /// Runs consecutive nodes. A value ends with its last use in the graph.
    pub(super) fn run_nodes(
        &self,
        nodes: Range<usize>,
        values: &mut [Slot],
        mode: RunMode,
        observer: &mut dyn RunObserver,
    ) -> Result<(), InterpreterError> {
        for at in nodes {
            let (node, step) = (&self.graph.nodes[at], &self.steps[at]);
            observer.before_node(at)?;
            let results = if node.gradients {
                self.step(at, node, step, values, mode)?
            } else {
                no_grad(|| self.step(at, node, step, values, mode))?
            };
            let results = if self.is_double { in_double(results)? } else { results };
            store(at, node, results, values)?;
            for &ValueId(dead) in &self.dead[at] {
                values[dead as usize] = Slot::Empty;
            }
            observer.after_node(at, RunValues::new(values))?;
        }
        Ok(())
    }

    /// Runs some nodes of a training again, without gradients, from the tensors that they read; returns
    /// the tensor of a value. Running statistics stay as they are.
    ///
    /// # Errors
    /// [`InterpreterError`] if an operator fails, or if a value is missing.
    pub(crate) fn rerun(
        &self,
        nodes: &[usize],
        given: impl IntoIterator<Item = (ValueId, Tensor)>,
        wanted: ValueId,
    ) -> Result<Tensor, InterpreterError> {
        let mut values: Vec<Slot> = Vec::new();
        values.resize_with(self.graph.values as usize, || Slot::Empty);
        for (ValueId(id), tensor) in given {
            let is_statistic = self.graph.inputs.get(id as usize);
            let is_statistic =
                is_statistic.is_some_and(|input| matches!(input.role, InputRole::Buffer(_)));
            let tensor = if is_statistic { tensor.f_detach_copy()? } else { tensor };
            values[id as usize] = Slot::Tensor(tensor);
        }
        let _without = no_grad_guard();
        for &at in nodes {
            let (node, step) = (&self.graph.nodes[at], &self.steps[at]);
            let results = self.step(at, node, step, &values, RunMode::Training)?;
            store(at, node, results, &mut values)?;
        }
        let last = nodes.last().copied().unwrap_or(0);
        match values.swap_remove(wanted.0 as usize) {
            Slot::Tensor(tensor) => Ok(tensor),
            _ => Err(graph_error(last, "a tensor cannot be computed again")),
        }
    }

    fn step(
        &self,
        at: usize,
        node: &Node,
        step: &Step,
        values: &[Slot],
        mode: RunMode,
    ) -> Result<Vec<Value>, InterpreterError> {
        match step {
            Step::Skip => Ok(Vec::new()),
            Step::Size(name) => {
                let operands = node.arguments.iter().map(|(_, argument)| operand(argument, values));
                let operands = operands.collect::<Option<Vec<_>>>();
                let result = match (name.as_str(), node.arguments.as_slice()) {
                    ("getitem", [(_, list), (_, index)]) => element(list, index, values),
                    _ => operands
                        .and_then(|operands| size_function::evaluate(name, &operands))
                        .map(Value::from),
                };
                let why = || format!("the function {name} of these values");
                result.map(|value| vec![value]).ok_or_else(|| graph_error(at, why()))
            }
            Step::Zeros { operation } => self.call(at, node, operation, values, |name, given| {
                (name != "memory_format" || operation.name().ends_with("_like")).then_some(given)
            }),
            Step::Bernoulli { operation, fill } => match mode {
                RunMode::Training => self.call(at, node, operation, values, |_, given| Some(given)),
                RunMode::Evaluation => self.fill_with_mean(at, node, fill, values),
            },
            Step::Draw { operation, zeros } => {
                let is_drawn = mode == RunMode::Training;
                let operation = if is_drawn { operation } else { zeros };
                self.call(at, node, operation, values, |_, given| Some(given))
            }
            Step::Gate { fill, mean, .. } if mode == RunMode::Evaluation => {
                fill_gate(at, node, fill, *mean, values)
            }
            Step::BatchNorm { .. } if mode == RunMode::Evaluation => {
                self.batch_norm(at, node, values)
            }
            Step::Hard { activation, .. } if mode == RunMode::Evaluation => {
                let input = first_tensor(at, node, values)?;
                Ok(vec![Value::Tensor(activation.evaluate(input)?)])
            }
            Step::Attention { definition, .. } if mode == RunMode::Evaluation => {
                let results = self.call(at, node, definition, values, |name, given| {
                    Some(in_evaluation(Effect::Pure, NodeTraits::default(), name, given))
                })?;
                first_by_heads(results)
            }
            Step::Grouped => grouped_product(at, node, values),
            Step::Call { operation, effect, traits } if mode == RunMode::Evaluation => {
                self.call(at, node, operation, values, |name, given| {
                    Some(in_evaluation(*effect, *traits, name, given))
                })
            }
            Step::Call { operation, .. }
            | Step::Gate { operation, .. }
            | Step::BatchNorm { operation }
            | Step::Hard { operation, .. }
            | Step::Attention { operation, .. } => {
                let by_running = self.has_frozen_statistics && step.has_statistics();
                self.call(at, node, operation, values, |name, given| {
                    let is_switch = matches!(name, "training" | "use_input_stats");
                    Some(if by_running && is_switch { Given::Bool(false) } else { given })
                })
            }
        }
    }

    fn fill_with_mean(
        &self,
        at: usize,
        node: &Node,
        fill: &Aten,
        values: &[Slot],
    ) -> Result<Vec<Value>, InterpreterError> {
        let held = |wanted: &str| {
            let found = node.arguments.iter().find(|(name, _)| name == wanted);
            found.and_then(|(_, argument)| Held::new(argument, values))
        };
        let target = held("self").ok_or_else(|| graph_error(at, "an argument is missing"))?;
        let share = held("p").unwrap_or(Held::Plain(Given::Float(BERNOULLI_SHARE)));
        let arguments =
            [(None, target.given(&self.device)), (Some("value"), share.given(&self.device))];
        fill.call(&arguments).map_err(|source| InterpreterError::Operator { node: at, source })
    }

    fn batch_norm(
        &self,
        at: usize,
        node: &Node,
        values: &[Slot],
    ) -> Result<Vec<Value>, InterpreterError> {
        let given = node
            .arguments
            .iter()
            .map(|(name, argument)| Held::new(argument, values).map(|held| (name.as_str(), held)));
        let held = given.collect::<Option<Vec<_>>>();
        let held = held.ok_or_else(|| graph_error(at, "a value of another type"))?;
        let mut norm = BatchNorm::default();
        for (name, held) in &held {
            norm.set(name, held.given(&self.device));
        }
        let result = norm.evaluate()?.ok_or_else(|| graph_error(at, "an argument is missing"))?;
        Ok(vec![Value::Tensor(result)])
    }

    fn call(
        &self,
        at: usize,
        node: &Node,
        operation: &Aten,
        values: &[Slot],
        change: impl for<'a> Fn(&str, Given<'a>) -> Option<Given<'a>>,
    ) -> Result<Vec<Value>, InterpreterError> {
        let held = node.arguments.iter().map(|(_, argument)| {
            let held = Held::new(argument, values)?;
            Some(if self.is_double { held.in_double(argument) } else { held })
        });
        let held: Vec<Held<'_>> = held
            .collect::<Option<_>>()
            .ok_or_else(|| graph_error(at, "a value of another type"))?;
        let given: Vec<(Option<&str>, Given<'_>)> = node
            .arguments
            .iter()
            .zip(&held)
            .filter_map(|((name, _), held)| {
                change(name, held.given(&self.device)).map(|given| (Some(name.as_str()), given))
            })
            .collect();
        operation.call(&given).map_err(|source| InterpreterError::Operator { node: at, source })
    }
}

/// The numbers of a gate of stochastic depth, all with their mean.
fn fill_gate(
    at: usize,
    node: &Node,
    fill: &Aten,
    mean: f64,
    values: &[Slot],
) -> Result<Vec<Value>, InterpreterError> {
    let input = Given::Tensor(first_tensor(at, node, values)?);
    let arguments = [(None, input), (Some("value"), Given::Float(mean))];
    fill.call(&arguments).map_err(|source| InterpreterError::Operator { node: at, source })
}

fn grouped_product(
    at: usize,
    node: &Node,
    values: &[Slot],
) -> Result<Vec<Value>, InterpreterError> {
    let given = |name| named_tensor(at, node, name, values);
    let product = grouped::product(given("input")?, given("weight")?, given("offs")?)?;
    Ok(vec![Value::Tensor(product)])
}

/// The argument in evaluation mode.
fn in_evaluation<'a>(
    effect: Effect,
    traits: NodeTraits,
    name: &str,
    given: Given<'a>,
) -> Given<'a> {
    match (effect, name) {
        // A recurrent layer trains without dropout: its kernels have gradients in training only.
        (_, "dropout") => Given::Float(0.0),
        (_, "train") => Given::Bool(traits.is_recurrent),
        // A normalisation without running statistics uses those of its input, as PyTorch does.
        (Effect::Pure, "training" | "use_input_stats") if traits.has_statistics => {
            Given::Bool(false)
        }
        // A random slope has its mean.
        (Effect::Random | Effect::RandomInPlace, "training") => Given::Bool(false),
        (Effect::Pure, "dropout_p") => Given::Float(0.0),
        _ => given,
    }
}

/// The first result, the attention, with the heads of a position side by side in memory, as libtorch's
/// own kernels return it.
fn first_by_heads(results: Vec<Value>) -> Result<Vec<Value>, InterpreterError> {
    let first = results.into_iter().take(1).map(|result| match result {
        Value::Tensor(tensor) if tensor.dim() == 4 => {
            let by_position = tensor.f_transpose(1, 2)?.f_contiguous()?;
            Ok(Value::Tensor(by_position.f_transpose(1, 2)?))
        }
        other => Ok(other),
    });
    first.collect()
}

/// The first argument of a node, a tensor.
fn first_tensor<'a>(
    at: usize,
    node: &Node,
    values: &'a [Slot],
) -> Result<&'a Tensor, InterpreterError> {
    let first = node.arguments.first().map(|(name, _)| name.as_str());
    named_tensor(at, node, first.unwrap_or_default(), values)
}

/// An argument of a node, a tensor.
fn named_tensor<'a>(
    at: usize,
    node: &Node,
    wanted: &str,
    values: &'a [Slot],
) -> Result<&'a Tensor, InterpreterError> {
    let found = node.arguments.iter().find(|(name, _)| name == wanted);
    let found = found.and_then(|(_, argument)| match argument {
        Argument::Value(ValueId(id)) => values.get(*id as usize),
        _ => None,
    });
    match found {
        Some(Slot::Tensor(tensor)) => Ok(tensor),
        _ => Err(graph_error(at, "an argument is missing")),
    }
}

/// The results with real numbers of 64 bits.
fn in_double(results: Vec<Value>) -> Result<Vec<Value>, TchError> {
    let wide = |tensor: Tensor| match tensor.f_kind()? {
        Kind::Float | Kind::Half | Kind::BFloat16 => tensor.f_to_kind(Kind::Double),
        _ => Ok(tensor),
    };
    let result = |value| {
        Ok(match value {
            Value::Tensor(tensor) => Value::Tensor(wide(tensor)?),
            Value::Tensors(all) => {
                Value::Tensors(all.into_iter().map(wide).collect::<Result<_, TchError>>()?)
            }
            other => other,
        })
    };
    results.into_iter().map(result).collect()
}

pub(super) fn graph_error(node: usize, why: impl Into<String>) -> InterpreterError {
    InterpreterError::Graph { node, why: why.into() }
}

/// The values that each node of a checked graph uses last.
fn last_uses(graph: &Graph) -> Vec<Vec<ValueId>> {
    let mut last: Vec<Option<usize>> = vec![None; graph.values as usize];
    for (at, node) in graph.nodes.iter().enumerate() {
        let used = node.arguments.iter().flat_map(|(_, argument)| argument.values());
        // A result without a use ends at once.
        for ValueId(id) in used.chain(node.outputs.iter().flat_map(NodeOutput::values)) {
            last[id as usize] = Some(at);
        }
    }
    for ValueId(id) in graph.outputs.iter().flat_map(Argument::values) {
        last[id as usize] = None;
    }
    let mut dead = vec![Vec::new(); graph.nodes.len()];
    for (id, last) in last.into_iter().enumerate() {
        if let Some(at) = last {
            dead[at].push(ValueId(id as u32));
        }
    }
    dead
}

impl From<size_function::Number> for Value {
    fn from(number: size_function::Number) -> Self {
        match number {
            size_function::Number::Int(integer) => Self::Int(integer),
            size_function::Number::Float(number) => Self::Float(number),
            size_function::Number::Bool(holds) => Self::Bool(holds),
        }
    }
}

/// The operand of a function of sizes.
fn operand(argument: &Argument, values: &[Slot]) -> Option<size_function::Number> {
    use size_function::Number;
    Some(match argument {
        Argument::Int(integer) => Number::Int(*integer),
        Argument::Float(bits) => Number::Float(f64::from_bits(*bits)),
        Argument::Bool(holds) => Number::Bool(*holds),
        Argument::Value(ValueId(id)) => match &values[*id as usize] {
            Slot::Int(integer) => Number::Int(*integer),
            Slot::Float(number) => Number::Float(*number),
            Slot::Bool(holds) => Number::Bool(*holds),
            _ => return None,
        },
        _ => return None,
    })
}

/// An element of a list.
fn element(list: &Argument, index: &Argument, values: &[Slot]) -> Option<Value> {
    let size_function::Number::Int(index) = operand(index, values)? else { return None };
    let place = |length: usize| {
        let length = i64::try_from(length).ok()?;
        usize::try_from(if index < 0 { index.checked_add(length)? } else { index }).ok()
    };
    match list {
        Argument::Value(ValueId(id)) => match &values[*id as usize] {
            Slot::Tensors(tensors) => tensors
                .get(place(tensors.len())?)
                .map(|tensor| Value::Tensor(tensor.shallow_clone())),
            _ => None,
        },
        Argument::Values(ids) => {
            let ValueId(id) = (*ids.get(place(ids.len())?)?)?;
            match &values[id as usize] {
                Slot::Tensor(tensor) => Some(Value::Tensor(tensor.shallow_clone())),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Stores the results of a node under their numbers.
fn store(
    at: usize,
    node: &Node,
    results: Vec<Value>,
    values: &mut [Slot],
) -> Result<(), InterpreterError> {
    let mut results = results.into_iter();
    for output in &node.outputs {
        match (output, results.next()) {
            (NodeOutput::None, _) => {}
            (NodeOutput::Value(ValueId(id)), Some(result)) => {
                values[*id as usize] = match result {
                    Value::Tensor(tensor) => Slot::Tensor(tensor),
                    Value::Tensors(tensors) => Slot::Tensors(tensors),
                    Value::Int(integer) => Slot::Int(integer),
                    Value::Float(number) => Slot::Float(number),
                    Value::Bool(holds) => Slot::Bool(holds),
                    Value::None => Slot::Empty,
                };
            }
            (NodeOutput::List(ids), Some(Value::Tensors(tensors)))
                if ids.len() == tensors.len() =>
            {
                for (&ValueId(id), tensor) in ids.iter().zip(tensors) {
                    values[id as usize] = Slot::Tensor(tensor);
                }
            }
            _ => {
                return Err(graph_error(
                    at,
                    "the operator has other results than the graph states",
                ));
            }
        }
    }
    Ok(())
}
