//! A graph as the model of a task: which of its tensors travel, which are frozen, which numbers of a
//! row its inputs take, and what its output means.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use safetensors::SafeTensors;

use super::error::GraphErrorKind::{Malformed, TooLarge, Unsupported, Weights};
use super::operators::{self, Effect};
use super::split::{changed_buffers, changed_in_place};
use super::value::{
    Argument, DataType, Dimension, Graph, InputRole, Node, NodeOutput, Operation, ValueId,
};
use super::weights::are_finite;
use super::{GraphError, WeightTensor, gate, graph_cost};
use crate::engine::EVAL_CHUNK_ROWS;
use crate::loss::BoundedLoss;
use crate::model::TensorSpec;
use crate::trainer::TrainerCode;

/// Largest total of the intermediate results of an evaluation's chunk of rows, in bytes: chunks of
/// larger models have fewer rows.
const CHUNK_BYTES: u64 = 512 << 20;
/// Largest total of the intermediate results of one row, in bytes.
pub const ROW_BYTES_MAX: u64 = 8 << 30;

/// The loss of a row of a graph's output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GraphLoss {
    /// Cross-entropy of the row's label.
    CrossEntropy {
        /// Share of the probability that training spreads over all classes.
        label_smoothing: f64,
    },
    /// Mean cross-entropy of the tokens of a row: of the next token, or of the targets, of which
    /// negative ones are left out.
    TokenCrossEntropy {
        /// Share of the probability that training spreads over all classes.
        label_smoothing: f64,
    },
    /// Mean binary cross-entropy of the outputs with targets of 0 or 1.
    Binary,
    /// Mean squared difference of outputs and targets.
    Squared {
        /// Largest loss of a row in an evaluation.
        bound: f64,
    },
    /// Mean absolute difference of outputs and targets.
    Absolute {
        /// Largest loss of a row in an evaluation.
        bound: f64,
    },
    /// Mean Huber loss of the differences of outputs and targets.
    Huber {
        /// The difference at which the square ends.
        delta: f64,
        /// Largest loss of a row in an evaluation.
        bound: f64,
    },
    /// The output itself.
    Output {
        /// Largest loss of a row in an evaluation.
        bound: f64,
    },
}

impl GraphLoss {
    /// The bounded loss of a row whose loss is `loss`, and its derivative: for the losses that a trainer
    /// may have. One that is not a number counts as the largest.
    pub(crate) fn bound(self, loss: f64, classes: usize) -> (f64, f64) {
        let (bounded, slope) = match self {
            Self::Output { bound } => {
                let share = libm::tanh(loss / bound);
                (bound * share, 1.0 - share * share)
            }
            // No cross-entropy is negative, and `max` would hide one that is not a number.
            _ if loss < 0.0 => (0.0, 0.0),
            _ => BoundedLoss::new(classes).of_cross_entropy(loss),
        };
        match bounded.is_nan() {
            true => (self.largest(classes), 0.0),
            false => (bounded, slope),
        }
    }

    /// The largest bounded loss of a row whose output has this many classes.
    pub(crate) fn largest(self, classes: usize) -> f64 {
        match self {
            Self::CrossEntropy { .. } | Self::TokenCrossEntropy { .. } => {
                BoundedLoss::new(classes).largest()
            }
            Self::Binary => BoundedLoss::new(2).largest(),
            Self::Squared { bound }
            | Self::Absolute { bound }
            | Self::Huber { bound, .. }
            | Self::Output { bound } => bound,
        }
    }
}

/// The part of a model that computes its losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphForm {
    /// A graph of operators.
    Operators,
    /// A trainer.
    Trainer {
        /// Whether it computes gradients.
        has_gradient: bool,
    },
}

/// A task's declaration of a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphDeclaration {
    /// The part of the model that the digest names.
    pub form: GraphForm,
    /// Digest of the graph, or of the trainer's code: the identity of the model.
    pub digest: [u8; 32],
    /// Numbers of a row that are inputs.
    pub inputs: usize,
    /// Numbers of a row that are targets, behind the inputs.
    pub targets: usize,
    /// Size of the last dimension of the output.
    pub outputs: usize,
    /// The loss of a row.
    pub loss: GraphLoss,
    /// The tensors that travel, in their order in the parameters.
    pub tensors: Vec<TensorSpec>,
}

/// A graph as a task's model: its declaration, and its program or code once that is loaded.
#[derive(Debug, Clone)]
pub struct GraphModel {
    declaration: GraphDeclaration,
    program: Option<Arc<GraphProgram>>,
    code: Option<Arc<TrainerCode>>,
}

/// The place of a tensor or of numbers that a graph's input takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// Travelling numbers, with their sizes; `is_buffer` if training changes them without a gradient.
    Travels { range: Range<usize>, sizes: Vec<i64>, is_buffer: bool },
    /// A frozen tensor, by its index.
    Frozen(usize),
    /// Numbers of a row, and the sizes of one row's tensor.
    Row { range: Range<usize>, sizes: Vec<i64> },
}

/// A graph with its frozen tensors, checked against a declaration.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GraphProgram {
    pub(crate) graph: Graph,
    /// One for each input of the graph.
    pub(crate) places: Vec<Place>,
    pub(crate) frozen: Vec<WeightTensor>,
    /// Rows of a chunk of an evaluation.
    pub(crate) chunk_rows: usize,
    /// Whether statistics that training would change are frozen.
    pub(crate) has_frozen_statistics: bool,
    /// Whether an operator can refuse a value that parameters decide.
    pub(crate) refuses_values: bool,
}

impl PartialEq for GraphModel {
    /// Equal declarations: the digest in them determines the program.
    fn eq(&self, other: &Self) -> bool {
        self.declaration == other.declaration
    }
}

impl fmt::Display for GraphModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.declaration.digest;
        let kind = if self.is_trainer() { "trainer" } else { "graph" };
        write!(f, "{kind} {a:02x}{b:02x}{c:02x}{d:02x}")
    }
}

impl GraphModel {
    /// A model whose graph is not loaded: its parameters can be read and written.
    pub fn new(declaration: GraphDeclaration) -> Self {
        Self { declaration, program: None, code: None }
    }

    /// The model with its graph, from canonical bytes, and its frozen tensors, from a safetensors file;
    /// or with its trainer's code. The caller has compared the digests.
    ///
    /// # Errors
    /// [`GraphError`] if one of them is invalid, or does not fit the declaration.
    pub fn load(
        declaration: GraphDeclaration,
        graph: &[u8],
        frozen: Option<&[u8]>,
    ) -> Result<Self, GraphError> {
        if let GraphForm::Trainer { .. } = declaration.form {
            let code = TrainerCode::from_bytes(graph)
                .map_err(|why| GraphError::new(Malformed, format!("the trainer's code {why}")))?;
            return Ok(Self { declaration, program: None, code: Some(Arc::new(code)) });
        }
        let program = GraphProgram::new(&declaration, Graph::from_bytes(graph)?, frozen)?;
        Ok(Self { declaration, program: Some(Arc::new(program)), code: None })
    }

    /// Whether the model is a trainer.
    pub fn is_trainer(&self) -> bool {
        matches!(self.declaration.form, GraphForm::Trainer { .. })
    }

    /// Whether the gradient of the loss can be computed.
    pub fn has_gradient(&self) -> bool {
        !matches!(self.declaration.form, GraphForm::Trainer { has_gradient: false })
    }

    /// The loaded code of a trainer.
    pub fn code(&self) -> Option<&TrainerCode> {
        self.code.as_deref()
    }

    /// The smallest and the largest bounded loss of a row.
    pub(crate) fn loss_range(&self) -> (f64, f64) {
        let largest = self.declaration.loss.largest(self.declaration.outputs);
        match self.declaration.loss {
            GraphLoss::Output { .. } => (-largest, largest),
            _ => (0.0, largest),
        }
    }

    /// The declaration.
    pub fn declaration(&self) -> &GraphDeclaration {
        &self.declaration
    }

    /// The loaded graph.
    pub(crate) fn program(&self) -> Option<&GraphProgram> {
        self.program.as_deref()
    }

    /// Floating-point operations of a forward pass of one row; 0 for a graph that is not loaded.
    ///
    /// # Errors
    /// [`GraphError`] if the intermediate results of a row have more than `bytes_max` bytes.
    pub fn row_flops(&self, bytes_max: u64) -> Result<u64, GraphError> {
        let cost = self.program().map(|program| graph_cost(&program.graph, &[1], bytes_max));
        Ok(cost.transpose()?.unwrap_or_default().flops)
    }

    /// The tokens of a row, if its first input has them; all inputs of a graph that is not loaded.
    pub(crate) fn tokens_of_row(&self) -> usize {
        if let Some(program) = self.program() {
            return program.first_row_input().len();
        }
        self.declaration.inputs
    }

    /// Numbers of a row.
    pub(crate) fn width(&self) -> usize {
        self.declaration.inputs + self.declaration.targets
    }

    /// Number of classes of a row's label.
    pub(crate) fn classes(&self) -> usize {
        match self.declaration.loss {
            GraphLoss::CrossEntropy { .. } => self.declaration.outputs,
            _ => 1,
        }
    }
}

impl GraphProgram {
    fn new(
        declaration: &GraphDeclaration,
        graph: Graph,
        frozen: Option<&[u8]>,
    ) -> Result<Self, GraphError> {
        let file = frozen.map(SafeTensors::deserialize).transpose().map_err(|error| {
            GraphError::new(Weights, format!("the frozen weights are no safetensors file: {error}"))
        })?;
        let mut travelling = Travelling::new(&declaration.tensors);
        let mut program = Self {
            places: Vec::with_capacity(graph.inputs.len()),
            frozen: Vec::new(),
            chunk_rows: 1,
            has_frozen_statistics: false,
            refuses_values: refuses_values(&graph),
            graph,
        };
        program.check_changes()?;
        let mut row = 0;
        for input in &program.graph.inputs {
            let place = match (&input.role, input.role.name()) {
                (InputRole::User, _) | (_, None) => {
                    let sizes = row_sizes(&input.tensor.shape)?;
                    let numbers = sizes.iter().product::<i64>() as usize;
                    row += numbers;
                    Place::Row { range: row - numbers..row, sizes }
                }
                (role, Some(name)) => match travelling.take(name) {
                    Some((spec, range)) => {
                        if !has_type_of(&input.tensor.shape, input.tensor.data_type, spec) {
                            let why = format!(
                                "the task trains {name} as f32 of {:?}, and the graph has {}",
                                spec.shape, input.tensor
                            );
                            return Err(GraphError::new(Weights, why));
                        }
                        let sizes = spec.shape.iter().map(|&size| size as i64).collect();
                        let is_buffer = !matches!(role, InputRole::Parameter(_));
                        Place::Travels { range, sizes, is_buffer }
                    }
                    None => {
                        let tensor = frozen_tensor(file.as_ref(), name, &input.tensor)?;
                        program.frozen.push(tensor);
                        Place::Frozen(program.frozen.len() - 1)
                    }
                },
            };
            program.places.push(place);
        }
        travelling.check_all_taken()?;
        let is_frozen = |at: &usize| matches!(program.places[*at], Place::Frozen(_));
        program.has_frozen_statistics = changed_buffers(&program.graph).iter().any(is_frozen);
        if row != declaration.inputs {
            let stated = declaration.inputs;
            let why =
                format!("the graph takes {row} numbers of a row, and the task states {stated}");
            return Err(GraphError::new(Malformed, why));
        }
        program.chunk_rows = program.check_output(declaration)?;
        Ok(program)
    }

    /// Refuses operators that change a parameter, a constant or a row in place, directly or through a
    /// view, and random ones that have no evaluation: a forward pass is a function of its inputs.
    fn check_changes(&self) -> Result<(), GraphError> {
        let gates = gate::gates(&self.graph);
        for (at, node) in self.graph.nodes.iter().enumerate() {
            let Operation::Aten(name) = &node.operation else { continue };
            let effect = operators::find(name).map(|operator| operator.effect);
            let is_random = matches!(effect, Some(Effect::Random | Effect::RandomInPlace))
                && !gates.iter().any(|gate| gate.draw == at);
            if is_random && !operators::RANDOM_IN_TRAINING_ONLY.contains(&name.as_str()) {
                let why = format!(
                    "{name} draws random numbers in an evaluation, too, and two machines would have \
                     different losses: use dropout, or noise as an input"
                );
                return Err(GraphError::new(Unsupported, why));
            }
        }
        for (node, input) in changed_in_place(&self.graph) {
            let (Operation::Aten(name) | Operation::Size(name)) = &self.graph.nodes[node].operation;
            if !matches!(self.graph.inputs[input].role, InputRole::Buffer(_)) {
                let why = format!(
                    "{name} changes an input, a parameter or a constant of the model in place: change \
                     a copy"
                );
                return Err(GraphError::new(Unsupported, why));
            }
        }
        Ok(())
    }

    /// Checks the shape of the output for two numbers of rows. Returns the rows of a chunk.
    fn check_output(&self, declaration: &GraphDeclaration) -> Result<usize, GraphError> {
        for rows in [2, 3] {
            let found = graph_cost(&self.graph, &[rows], ROW_BYTES_MAX)?;
            let Some(output) = found.outputs.first() else {
                return Err(GraphError::new(Unsupported, "the model returns no tensor"));
            };
            let [first, inner @ ..] = output.sizes.as_slice() else {
                return Err(GraphError::without_rows());
            };
            let wanted = self.output_of_row(declaration);
            let is_scalar = inner.is_empty() && wanted == [1];
            if *first != rows || !(inner == wanted || is_scalar) || !output.data_type.is_float() {
                let why = format!(
                    "for {rows} rows the model's first output is {} of {:?}, and the loss needs \
                     {wanted:?} real numbers for each row",
                    output.data_type, output.sizes
                );
                return Err(GraphError::new(Unsupported, why));
            }
        }
        // An evaluation runs in `f64`.
        let bytes =
            graph_cost(&self.graph, &[1], ROW_BYTES_MAX)?.activation_bytes.saturating_mul(2);
        let rows = (CHUNK_BYTES / bytes.max(1)).clamp(1, EVAL_CHUNK_ROWS as u64);
        let mut rows = 1 << rows.ilog2();
        // Work can grow faster than the rows.
        while rows > 1 && graph_cost(&self.graph, &[rows], CHUNK_BYTES).is_err() {
            rows /= 2;
        }
        Ok(rows as usize)
    }

    /// The rows, at most `rows`, whose intermediate results in a training have at most `bytes` bytes; at
    /// least one.
    #[cfg(feature = "torch")]
    pub(crate) fn rows_within(&self, bytes: u64, rows: usize) -> usize {
        let mut within = rows.max(1);
        while within > 1 && graph_cost(&self.graph, &[within as u64], bytes).is_err() {
            within /= 2;
        }
        within
    }

    /// The sizes of a row's output that the loss needs.
    fn output_of_row(&self, declaration: &GraphDeclaration) -> Vec<u64> {
        let outputs = declaration.outputs as u64;
        match declaration.loss {
            GraphLoss::TokenCrossEntropy { .. } => {
                let tokens = match declaration.targets {
                    0 => self.first_row_input().len(),
                    targets => targets,
                };
                vec![tokens as u64, outputs]
            }
            _ => vec![outputs],
        }
    }

    /// The numbers of a row that the first input takes: the tokens of a language model.
    pub(crate) fn first_row_input(&self) -> Range<usize> {
        let rows = self.places.iter().find_map(|place| match place {
            Place::Row { range, .. } => Some(range.clone()),
            _ => None,
        });
        rows.unwrap_or(0..0)
    }

    /// Whether training changes travelling numbers without a gradient.
    pub(crate) fn has_travelling_buffers(&self) -> bool {
        self.places.iter().any(|place| matches!(place, Place::Travels { is_buffer: true, .. }))
    }
}

/// Operators that refuse probabilities beyond 0 and 1, or indices beyond a size.
const VALUE_CHECKS: [&str; 18] = [
    "binary_cross_entropy",
    "cross_entropy_loss",
    "embedding",
    "gather",
    "index.Tensor",
    "index_add",
    "index_put",
    "index_put_",
    "index_select",
    "nll_loss",
    "one_hot",
    "scatter.src",
    "scatter.value",
    "scatter_.src",
    "scatter_.value",
    "scatter_add",
    "scatter_add_",
    "take_along_dim",
];

/// Whether an operator checks values that do not come from the rows or a frozen tensor alone.
fn refuses_values(graph: &Graph) -> bool {
    // Whether a value follows from a parameter.
    let mut follows: Vec<bool> =
        graph.inputs.iter().map(|input| matches!(input.role, InputRole::Parameter(_))).collect();
    follows.resize(graph.values as usize, false);
    for node in &graph.nodes {
        let follows_from =
            |argument: &Argument| argument.values().iter().any(|ValueId(id)| follows[*id as usize]);
        let checks = matches!(&node.operation, Operation::Aten(name) if VALUE_CHECKS.contains(&name.as_str()));
        // The table of an embedding, or the tensor that is indexed, may have any values.
        let is_checked = |(name, _): &&(String, Argument)| {
            !matches!(name.as_str(), "weight" | "src" | "values" | "source")
                && (name != "self" || node.is_loss())
        };
        if checks
            && node.arguments.iter().filter(is_checked).any(|(_, argument)| follows_from(argument))
        {
            return true;
        }
        if node.arguments.iter().any(|(_, argument)| follows_from(argument)) {
            for ValueId(id) in node.outputs.iter().flat_map(NodeOutput::values) {
                follows[id as usize] = true;
            }
        }
    }
    false
}

impl Node {
    /// Whether it checks its first argument: a loss of probabilities, or a code of classes.
    fn is_loss(&self) -> bool {
        matches!(&self.operation, Operation::Aten(name) if name.contains("cross_entropy") || name == "one_hot")
    }
}

/// The tensors that travel, with their ranges in the parameters.
struct Travelling<'a> {
    left: BTreeMap<&'a str, (&'a TensorSpec, Range<usize>)>,
}

impl<'a> Travelling<'a> {
    fn new(tensors: &'a [TensorSpec]) -> Self {
        let mut from = 0;
        let left = tensors.iter().map(|tensor| {
            let range = from..from + tensor.elements();
            from = range.end;
            (tensor.name.as_str(), (tensor, range))
        });
        Self { left: left.collect() }
    }

    fn take(&mut self, name: &str) -> Option<(&'a TensorSpec, Range<usize>)> {
        self.left.remove(name)
    }

    fn check_all_taken(&self) -> Result<(), GraphError> {
        match self.left.keys().next() {
            None => Ok(()),
            Some(name) => {
                let why = format!("the task trains {name}, and the graph has no such tensor");
                Err(GraphError::new(Weights, why))
            }
        }
    }
}

/// Whether a tensor of the graph is the declared one: real numbers of the same sizes.
fn has_type_of(shape: &[Dimension], data_type: DataType, spec: &TensorSpec) -> bool {
    let sizes = spec.shape.iter().map(|&size| Dimension::Fixed(size as u64));
    data_type == DataType::F32 && sizes.eq(shape.iter().copied())
}

/// The sizes of one row's part of an input: without its first dimension, the rows.
pub(super) fn row_sizes(shape: &[Dimension]) -> Result<Vec<i64>, GraphError> {
    let advice = "export it with dynamic_shapes that name the first dimension of each input: \
                  torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim(\"rows\")},))";
    let fixed = |dimension: &Dimension| match dimension {
        Dimension::Fixed(size) => i64::try_from(*size).ok(),
        Dimension::Symbol(_) => None,
    };
    let inner = shape.get(1..).unwrap_or_default();
    let sizes: Option<Vec<i64>> = inner.iter().map(fixed).collect();
    let product =
        |sizes: &Vec<i64>| sizes.iter().try_fold(1_i64, |product, &size| product.checked_mul(size));
    match (shape.first(), sizes) {
        (Some(Dimension::Symbol(0)), Some(sizes))
            if product(&sizes).is_some_and(|numbers| numbers <= super::ROW_NUMBERS_MAX) =>
        {
            Ok(sizes)
        }
        (Some(Dimension::Symbol(_)), _) => {
            let why = format!("an input has another free dimension than the rows: {advice}");
            Err(GraphError::new(Unsupported, why))
        }
        _ => {
            let why = format!("the model is exported for a fixed number of rows: {advice}");
            Err(GraphError::new(Unsupported, why))
        }
    }
}

/// A frozen tensor of the file, of the graph's type and sizes.
fn frozen_tensor(
    file: Option<&SafeTensors<'_>>,
    name: &str,
    wanted: &super::TensorType,
) -> Result<WeightTensor, GraphError> {
    let refuse = |why: String| GraphError::new(Weights, format!("{name}: {why}"));
    let found = file.and_then(|file| file.tensor(name).ok());
    let found = found.ok_or_else(|| refuse("the frozen weights have no such tensor".to_owned()))?;
    let sizes = wanted.fixed_sizes().ok_or_else(|| refuse("its sizes are not fixed".to_owned()))?;
    let stored: Vec<u64> = found.shape().iter().map(|&size| size as u64).collect();
    let data_type = DataType::from_safetensors(found.dtype());
    if data_type != Some(wanted.data_type) || stored != sizes {
        let stored = format!("{:?} of {stored:?}", found.dtype());
        return Err(refuse(format!("its values are {stored}, and the graph has {wanted}")));
    }
    if !are_finite(wanted.data_type, found.data()) {
        return Err(refuse("one of its values is infinite or not a number".to_owned()));
    }
    if found.data().len() as u64 > super::WEIGHT_BYTES_MAX {
        return Err(GraphError::new(TooLarge, format!("{name} is too large")));
    }
    Ok(WeightTensor { data_type: wanted.data_type, sizes, bytes: found.data().to_vec() })
}
