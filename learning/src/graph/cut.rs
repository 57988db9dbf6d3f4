//! A graph cut in two, so that its first part stays with the owner of the rows (split learning: Vepakomma, Gupta,
//! Swedish and Raskar, *Split learning for health*, 2018).
//!
//! ```text
//! rows ── first part, frozen, at home ──▶ activations ── rest: trained elsewhere, on activations as its rows
//! ```
//!
//! The cut is behind the last node that reads a parameter of the first part, and at or in front of the first node that reads
//! another one: at the position where the fewest numbers of a row cross. The rules of [`Segments`] hold, and those of
//! [`value_origins`]: no value crosses that follows from rows without a learned product, or from parameters alone.

use std::collections::BTreeMap;
use std::ops::Range;

use super::error::GraphErrorKind::Unsupported;
use super::segments::{Segments, output};
use super::shapes::{Shaped, value_shapes};
use super::size_function::Number;
use super::split::{check_patterns, matches};
use super::value::{
    Argument, DataType, Dimension, Graph, GraphInput, GraphWeights, InputRole, IntArgument, Node,
    NodeOutput, Operation, TensorType, ValueId,
};
use super::value_origins::{ValueOrigin, value_origins};
use super::{BufferPolicy, GraphDeclaration, GraphError, GraphForm, GraphLoss, GraphModel, split};
use crate::data::{Dataset, DatasetError, WIDTH_MAX};
use crate::engine::{Engine, EvalError};
use crate::model::ModelSpec;

/// Most positions at which [`CutGraph::find`] cuts.
const CUTS_TRIED_MAX: usize = 4_096;
/// Rows of which activations are computed at a time.
const ROWS_AT_ONCE: usize = 1_024;
/// Numbers of rows by which sizes that follow from them are recognised: no other rule gives the same at all of them.
const PROBED_ROWS: [u64; 5] = [2, 3, 5, 8, 67];
/// Bytes of the tensors of a probe: nothing is computed.
const PROBE_BYTES_MAX: u64 = u64::MAX;

/// The parts of a cut graph.
#[derive(Debug, Clone)]
pub struct CutGraph {
    /// Nodes of the first part.
    pub first_nodes: usize,
    /// Nodes of the whole graph.
    pub nodes: usize,
    /// The parameters of the first part.
    pub at_home: Vec<String>,
    /// Numbers of a row that cross the cut.
    pub crossing: usize,
    /// The graph behind the cut. Its inputs are the crossing values, and then the tensors that its nodes read.
    pub rest: Graph,
    /// The weights of the rest.
    pub rest_weights: GraphWeights,
    first: GraphModel,
}

/// The activations of rows cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum ActivationError {
    /// Rows are shorter than the first part's inputs.
    #[error("a row has {width} numbers, and the model takes {inputs}")]
    Width {
        /// Numbers of a row.
        width: usize,
        /// Numbers that the first part takes.
        inputs: usize,
    },
    /// The first part has not the same numbers for each row.
    #[error("the first part computed {numbers} numbers for {rows} rows")]
    Numbers {
        /// Rows.
        rows: usize,
        /// Numbers of all rows.
        numbers: usize,
    },
    /// The engine failed, or the rows do not fit the model.
    #[error(transparent)]
    Evaluation(#[from] EvalError),
    /// One is not finite, or they are more than fit in memory.
    #[error("the activations are no data set: {0}")]
    Dataset(#[from] DatasetError),
}

/// A value that crosses a cut.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Crossing {
    /// A tensor of rows, with the sizes of one row.
    Rows(Vec<u64>),
    /// The number of rows.
    Count,
    /// A constant size.
    Size(i64),
}

/// The analysis of a graph: cuts, origins and shapes of its values.
struct Analysis {
    segments: Segments,
    origins: Vec<ValueOrigin>,
    /// The shapes of all values, by the probed numbers of rows.
    shapes: Vec<Vec<Shaped>>,
}

impl Analysis {
    fn new(graph: &Graph) -> Result<Self, GraphError> {
        let has = |role: fn(&InputRole) -> bool| -> Vec<bool> {
            graph.inputs.iter().map(|input| role(&input.role)).collect()
        };
        let is_row = has(|role| matches!(role, InputRole::User));
        let is_parameter = has(|role| matches!(role, InputRole::Parameter(_)));
        let shapes = |rows: u64| value_shapes(graph, &graph.free_sizes(rows), PROBE_BYTES_MAX);
        Ok(Self {
            segments: Segments::new(graph, &is_row),
            origins: value_origins(graph, &is_row, &is_parameter),
            shapes: PROBED_ROWS.into_iter().map(shapes).collect::<Result<_, _>>()?,
        })
    }

    /// The values that cross a position, if the rest can take all of them.
    fn crossing(&self, position: usize) -> Result<Vec<(ValueId, Crossing)>, String> {
        if self.segments.can_cut().get(position) != Some(&true) {
            return Err("a tensor that crosses is changed in place".to_owned());
        }
        let values = self.segments.crossing(position).into_iter();
        let crossing = values.map(|id| Ok((id, self.kind(id)?)));
        let crossing: Vec<(ValueId, Crossing)> = crossing.collect::<Result<_, String>>()?;
        match crossing.iter().any(|(_, kind)| matches!(kind, Crossing::Rows(_))) {
            true => Ok(crossing),
            false => Err("no tensor of rows crosses".to_owned()),
        }
    }

    fn kind(&self, ValueId(id): ValueId) -> Result<Crossing, String> {
        let shapes = self.shapes.iter().filter_map(|shapes| shapes.get(id as usize));
        let mut sizes = Vec::new();
        let mut tensors = Vec::new();
        for shape in shapes {
            match shape {
                Shaped::Number(Number::Int(size)) => sizes.push(*size),
                Shaped::Tensor(tensor) => tensors.push(tensor),
                _ => {}
            }
        }
        if sizes.len() == PROBED_ROWS.len() {
            return kind_of_size(&sizes);
        }
        if tensors.len() != PROBED_ROWS.len() {
            return Err("a value that is no tensor crosses".to_owned());
        }
        let mut inner: Option<&[u64]> = None;
        for (tensor, rows) in tensors.into_iter().zip(PROBED_ROWS) {
            if tensor.data_type != DataType::F32 {
                return Err(format!("a tensor of {} and not of f32 crosses", tensor.data_type));
            }
            match tensor.sizes.as_slice() {
                [first, own @ ..] if *first == rows && inner.is_none_or(|other| other == own) => {
                    inner = Some(own);
                }
                _ => return Err("a tensor that has not one part for each row crosses".to_owned()),
            }
        }
        match self.origins.get(id as usize) {
            Some(ValueOrigin::Learned) => Ok(Crossing::Rows(inner.unwrap_or_default().to_vec())),
            Some(ValueOrigin::Raw) => {
                Err("rows cross, or values that follow from them without a learned product"
                    .to_owned())
            }
            _ => Err("a value that follows from no row crosses".to_owned()),
        }
    }
}

/// A size by its values for the probed numbers of rows.
fn kind_of_size(sizes: &[i64]) -> Result<Crossing, String> {
    let is_count = sizes.iter().zip(PROBED_ROWS).all(|(size, rows)| *size == rows.cast_signed());
    match sizes {
        _ if is_count => Ok(Crossing::Count),
        [first, others @ ..] if others.iter().all(|other| other == first) => {
            Ok(Crossing::Size(*first))
        }
        _ => Err("a size that changes with the number of rows crosses".to_owned()),
    }
}

impl CutGraph {
    /// Cuts a graph behind the parameters whose names match a pattern, in which `*` stands for any text.
    ///
    /// # Errors
    /// [`GraphError`] for a pattern without a parameter, if another parameter is read in front of one of them, if none is
    /// left to be trained, and if values cross every position between both parts that the rest cannot take.
    pub fn new(
        graph: &Graph,
        weights: &GraphWeights,
        at_home: &[String],
    ) -> Result<Self, GraphError> {
        check_patterns("at_home", graph, at_home)?;
        let analysis = Analysis::new(graph)?;
        let positions = positions(graph, &analysis.segments, at_home)?;
        let mut best: Option<(u64, usize)> = None;
        let mut refusal = String::new();
        for position in positions {
            match analysis.crossing(position) {
                Ok(crossing) => {
                    let numbers = numbers(&crossing);
                    if best.is_none_or(|(fewest, _)| numbers <= fewest) {
                        best = Some((numbers, position));
                    }
                }
                Err(why) => refusal = format!("in front of node {position} {why}"),
            }
        }
        let Some((_, position)) = best else {
            let why = format!(
                "the graph cannot be cut behind at_home = {at_home:?}: {refusal}. Choose other layers"
            );
            return Err(GraphError::new(Unsupported, why));
        };
        Self::at(graph, weights, &analysis, position)
    }

    /// The cut of a graph with this rest: the model of an order that was made from it. Of the first positions alone, as long graphs
    /// have more.
    ///
    /// # Errors
    /// [`GraphError`] for an invalid graph.
    pub fn find(
        graph: &Graph,
        weights: &GraphWeights,
        is_rest: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Option<Self>, GraphError> {
        let analysis = Analysis::new(graph)?;
        let no_weights = GraphWeights::default();
        for position in (1..graph.nodes.len()).take(CUTS_TRIED_MAX) {
            let Ok(crossing) = analysis.crossing(position) else { continue };
            let Ok((rest, _)) = rest(graph, &no_weights, position, &crossing) else { continue };
            if is_rest(&rest.to_bytes()) {
                return Self::at(graph, weights, &analysis, position).map(Some);
            }
        }
        Ok(None)
    }

    fn at(
        graph: &Graph,
        weights: &GraphWeights,
        analysis: &Analysis,
        position: usize,
    ) -> Result<Self, GraphError> {
        let refused = |why: String| GraphError::new(Unsupported, why);
        let crossing = analysis.crossing(position).map_err(refused)?;
        let width = usize::try_from(numbers(&crossing)).unwrap_or(usize::MAX);
        if !(1..=WIDTH_MAX).contains(&width) {
            let why = format!("{width} numbers of a row cross the cut: at most {WIDTH_MAX} may");
            return Err(GraphError::new(Unsupported, why));
        }
        let (rest, rest_weights) = rest(graph, weights, position, &crossing)?;
        let (first, first_weights) = first(graph, weights, position, &crossing)?;
        let names = first.inputs.iter().filter_map(|input| match &input.role {
            InputRole::Parameter(name) => Some(name.clone()),
            _ => None,
        });
        Ok(Self {
            first_nodes: position,
            nodes: graph.nodes.len(),
            at_home: names.collect(),
            crossing: width,
            rest,
            rest_weights,
            first: frozen_model(&first, &first_weights, width)?,
        })
    }

    /// Numbers of a row that the first part takes.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.first.declaration().inputs
    }

    /// The rows of the rest: the results of the first part, in evaluation and rounded to `f32`, with the numbers of `data`
    /// behind the inputs, which are targets, and its labels.
    ///
    /// # Errors
    /// [`ActivationError`].
    pub fn activations(
        &self,
        data: &Dataset,
        engine: &mut dyn Engine,
    ) -> Result<Dataset, ActivationError> {
        let (width, inputs) = (data.width(), self.inputs());
        let targets = width.checked_sub(inputs).ok_or(ActivationError::Width { width, inputs })?;
        let width = self.crossing + targets;
        let model = ModelSpec::Graph(Box::new(self.first.clone()));
        let mut features = Vec::with_capacity(data.rows().saturating_mul(width));
        let mut from = 0;
        while from < data.rows() {
            let to = data.rows().min(from + ROWS_AT_ONCE);
            let rows = self.inputs_of(data, from..to)?;
            let outputs = engine.row_outputs(&model, &[], &rows)?;
            if outputs.len() != rows.rows().saturating_mul(self.crossing) {
                let (rows, numbers) = (rows.rows(), outputs.len());
                return Err(ActivationError::Numbers { rows, numbers });
            }
            for (row, outputs) in (from..to).zip(outputs.chunks_exact(self.crossing)) {
                features.extend(outputs.iter().map(|&number| number as f32));
                features.extend_from_slice(&data.row(row)[self.inputs()..]);
            }
            from = to;
        }
        Ok(Dataset::new(features, data.labels().to_vec(), width, data.classes())?)
    }

    /// Some rows without their targets and labels, which the first part does not take.
    fn inputs_of(&self, data: &Dataset, rows: Range<usize>) -> Result<Dataset, DatasetError> {
        let labels = vec![0; rows.len()];
        let features = rows.flat_map(|row| &data.row(row)[..self.inputs()]).copied();
        Dataset::new(features.collect(), labels, self.inputs(), 1)
    }
}

/// Numbers of a row that cross.
fn numbers(crossing: &[(ValueId, Crossing)]) -> u64 {
    let of = |kind: &Crossing| match kind {
        Crossing::Rows(sizes) => sizes.iter().fold(1_u64, |all, &size| all.saturating_mul(size)),
        Crossing::Count | Crossing::Size(_) => 0,
    };
    crossing.iter().fold(0, |all: u64, (_, kind)| all.saturating_add(of(kind)))
}

/// The positions between the parameters that stay and the others.
fn positions(
    graph: &Graph,
    segments: &Segments,
    at_home: &[String],
) -> Result<Range<usize>, GraphError> {
    let refuse = |why: String| GraphError::new(Unsupported, why);
    let (mut last, mut others): (Option<usize>, BTreeMap<usize, &str>) = (None, BTreeMap::new());
    for (at, input) in graph.inputs.iter().enumerate() {
        let InputRole::Parameter(name) = &input.role else { continue };
        let Some((from, to)) = segments.uses(at) else { continue };
        match at_home.iter().any(|pattern| matches(pattern, name)) {
            true => last = last.max(Some(to)),
            false => drop(others.insert(from, name)),
        }
    }
    let Some(last) = last else {
        return Err(refuse(format!("no node reads a parameter of at_home = {at_home:?}")));
    };
    let Some((&next, _)) = others.last_key_value() else {
        return Err(refuse("at_home leaves no parameter to train".to_owned()));
    };
    if let Some((_, name)) = others.range(..=last).next() {
        let why = format!(
            "{name} is read in front of a parameter of at_home = {at_home:?}: let it stay at home, too"
        );
        return Err(refuse(why));
    }
    let first = others.first_key_value().map_or(next, |(at, _)| *at);
    Ok(last + 1..first + 1)
}

/// The graph in front of a position, with one output: the crossing tensors of a row, one after another.
fn first(
    graph: &Graph,
    weights: &GraphWeights,
    position: usize,
    crossing: &[(ValueId, Crossing)],
) -> Result<(Graph, GraphWeights), GraphError> {
    let mut part = PartOfGraph::default();
    let nodes = graph.nodes.get(..position).unwrap_or_default();
    let rows = |at: usize| matches!(graph.inputs[at].role, InputRole::User);
    part.add_inputs(graph, weights, nodes, &rows);
    part.add_nodes(nodes);
    let flat: Vec<Option<ValueId>> = crossing
        .iter()
        .filter_map(|(id, kind)| match kind {
            Crossing::Rows(sizes) => Some((id, sizes)),
            Crossing::Count | Crossing::Size(_) => None,
        })
        .map(|(id, sizes)| {
            let numbers = sizes.iter().product::<u64>().cast_signed();
            let shape = vec![IntArgument::Fixed(-1), IntArgument::Fixed(numbers)];
            let own = part.renumbered(&Argument::Value(*id));
            Some(part.add_node("reshape", [("self", own), ("shape", Argument::Ints(shape))]))
        })
        .collect();
    let tensors = ("tensors", Argument::Values(flat));
    let output = part.add_node("cat", [tensors, ("dim", Argument::Int(1))]);
    part.finish(vec![Argument::Value(output)])
}

/// The graph behind a position, whose rows are the crossing tensors.
fn rest(
    graph: &Graph,
    weights: &GraphWeights,
    position: usize,
    crossing: &[(ValueId, Crossing)],
) -> Result<(Graph, GraphWeights), GraphError> {
    let mut part = PartOfGraph::default();
    for (id, kind) in crossing {
        let Crossing::Rows(sizes) = kind else { continue };
        let inner = sizes.iter().map(|&size| Dimension::Fixed(size));
        let shape = [Dimension::Symbol(0)].into_iter().chain(inner).collect();
        let tensor = TensorType { data_type: DataType::F32, shape };
        part.add_input(*id, GraphInput { role: InputRole::User, tensor });
    }
    let nodes = graph.nodes.get(position..).unwrap_or_default();
    part.add_inputs(graph, weights, nodes, &|_| false);
    for (id, kind) in crossing {
        match kind {
            Crossing::Rows(_) => {}
            Crossing::Count => {
                let rows = ("self", Argument::Value(ValueId(0)));
                let count = part.add_node("sym_size.int", [rows, ("dim", Argument::Int(0))]);
                part.numbers.insert(*id, count);
            }
            Crossing::Size(size) => drop(part.sizes.insert(*id, *size)),
        }
    }
    part.add_nodes(nodes);
    // Other outputs than the one that the loss reads can be values of the first part.
    let output = output(graph).map(|id| part.renumbered(&Argument::Value(id)));
    part.finish(output.into_iter().collect())
}

/// A part of a graph, with numbers of its own for the values.
#[derive(Debug, Default)]
struct PartOfGraph {
    graph: Graph,
    weights: GraphWeights,
    /// The number of each value of the whole graph.
    numbers: BTreeMap<ValueId, ValueId>,
    /// Values of the whole graph that are constant sizes here.
    sizes: BTreeMap<ValueId, i64>,
}

impl PartOfGraph {
    fn next(&mut self) -> ValueId {
        let id = ValueId(self.graph.values);
        self.graph.values += 1;
        id
    }

    fn add_input(&mut self, whole: ValueId, input: GraphInput) {
        let own = self.next();
        self.numbers.insert(whole, own);
        self.graph.inputs.push(input);
    }

    /// Adds the inputs that nodes read, and those that are always there. Weights are in the order of all inputs that are no
    /// rows.
    fn add_inputs(
        &mut self,
        graph: &Graph,
        weights: &GraphWeights,
        nodes: &[Node],
        is_always: &dyn Fn(usize) -> bool,
    ) {
        let arguments = nodes.iter().flat_map(|node| &node.arguments);
        let read: std::collections::BTreeSet<ValueId> =
            arguments.flat_map(|(_, argument)| argument.values()).collect();
        let mut own = weights.tensors.iter();
        for ((at, input), id) in graph.inputs.iter().enumerate().zip((0..).map(ValueId)) {
            let is_row = input.role == InputRole::User;
            let weight = if is_row { None } else { own.next() };
            if self.numbers.contains_key(&id) || !(read.contains(&id) || is_always(at)) {
                continue;
            }
            self.add_input(id, input.clone());
            self.weights.tensors.extend(weight.cloned());
        }
    }

    fn add_nodes(&mut self, nodes: &[Node]) {
        for node in nodes {
            let arguments = node.arguments.iter();
            let arguments =
                arguments.map(|(name, argument)| (name.clone(), self.renumbered(argument)));
            let arguments = arguments.collect();
            let mut number = |whole: &ValueId| {
                let own = self.next();
                self.numbers.insert(*whole, own);
                own
            };
            let outputs = node.outputs.iter().map(|output| match output {
                NodeOutput::None => NodeOutput::None,
                NodeOutput::Value(id) => NodeOutput::Value(number(id)),
                NodeOutput::List(ids) => NodeOutput::List(ids.iter().map(&mut number).collect()),
            });
            let outputs = outputs.collect();
            let (operation, gradients) = (node.operation.clone(), node.gradients);
            self.graph.nodes.push(Node { operation, gradients, arguments, outputs });
        }
    }

    /// Adds a node that the whole graph does not have. Returns its result.
    fn add_node<const N: usize>(
        &mut self,
        name: &str,
        arguments: [(&str, Argument); N],
    ) -> ValueId {
        let arguments = arguments.map(|(name, argument)| (name.to_owned(), argument)).to_vec();
        let id = self.next();
        let (operation, outputs) = (Operation::Aten(name.to_owned()), vec![NodeOutput::Value(id)]);
        self.graph.nodes.push(Node { operation, gradients: true, arguments, outputs });
        id
    }

    /// An argument with the numbers of this part.
    fn renumbered(&self, argument: &Argument) -> Argument {
        // A value that is not there has a number that the check refuses.
        let number = |id: &ValueId| self.numbers.get(id).copied().unwrap_or(ValueId(u32::MAX));
        let size = |id: &ValueId| self.sizes.get(id).copied();
        match argument {
            Argument::Value(id) => {
                size(id).map_or_else(|| Argument::Value(number(id)), Argument::Int)
            }
            Argument::Values(ids) => {
                Argument::Values(ids.iter().map(|id| id.as_ref().map(number)).collect())
            }
            Argument::Ints(integers) => {
                let own = |integer: &IntArgument| match integer {
                    IntArgument::Fixed(fixed) => IntArgument::Fixed(*fixed),
                    IntArgument::Value(id) => {
                        size(id).map_or_else(|| IntArgument::Value(number(id)), IntArgument::Fixed)
                    }
                };
                Argument::Ints(integers.iter().map(own).collect())
            }
            other => other.clone(),
        }
    }

    fn finish(mut self, outputs: Vec<Argument>) -> Result<(Graph, GraphWeights), GraphError> {
        self.graph.outputs = outputs;
        self.graph.check()?;
        Ok((self.graph, self.weights))
    }
}

/// A graph without trained tensors, whose output has `outputs` numbers for each row.
fn frozen_model(
    graph: &Graph,
    weights: &GraphWeights,
    outputs: usize,
) -> Result<GraphModel, GraphError> {
    let parts = split(graph, weights, &[], BufferPolicy::Freeze)?;
    let declaration = GraphDeclaration {
        form: GraphForm::Operators,
        digest: *blake3::hash(&parts.graph).as_bytes(),
        inputs: parts.inputs,
        targets: 0,
        outputs,
        // Outputs alone are evaluated.
        loss: GraphLoss::Squared { bound: 1.0 },
        tensors: Vec::new(),
    };
    GraphModel::load(declaration, &parts.graph, parts.frozen.as_deref())
}

#[cfg(all(test, feature = "torch"))]
#[path = "cut_tests.rs"]
mod tests;
