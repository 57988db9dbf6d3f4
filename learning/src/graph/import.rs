//! From PyTorch's description of a graph to ours: checked names, numbered values, no traces of the
//! exporting machine.

use std::collections::{BTreeMap, BTreeSet};

use super::error::GraphErrorKind::{Operator, TooLarge, Unsupported};
use super::exported::{
    ExportedGraph, ExportedNode, ExportedProgram, GraphModule, InputSpec, List, Named,
    NamedArgument, OptionalTensor, OutputSpec, SymbolicBool, SymbolicFloat, SymbolicInt,
    SymbolicSize, Tagged, TensorMeta,
};
use super::value::{
    Argument, DataType, Dimension, Graph, GraphInput, InputRole, IntArgument, MemoryFormat, Node,
    NodeOutput, Operation, TensorType, ValueId,
};
use super::{
    DEPTH_MAX, DIMENSIONS_MAX, GraphError, NAME_BYTES_MAX, NODES_MAX, VALUES_MAX, operators,
};

/// The layout of dense tensors, in the schema.
const LAYOUT_STRIDED: u32 = 7;
/// Longest line of a source file in an error, in characters.
const LINE_CHARS_MAX: usize = 120;
/// Most operators that an error names.
const REFUSED_MAX: usize = 20;
/// Longest name of an operator in an error, in characters.
const SHOWN_CHARS_MAX: usize = 100;
/// Prefix of the operators' names.
const ATEN: &str = "torch.ops.aten.";
/// Prefix of the operators of all libraries.
const OPS: &str = "torch.ops.";
/// Prefix of operators with inner graphs.
const HIGHER_ORDER: &str = "torch.ops.higher_order.";

/// The symbols of free sizes, numbered in the order in which they occur.
#[derive(Default)]
pub(super) struct Symbols(Vec<String>);

impl Symbols {
    fn number(&mut self, expression: &str) -> u32 {
        let at = self.0.iter().position(|known| known == expression).unwrap_or_else(|| {
            self.0.push(expression.to_owned());
            self.0.len() - 1
        });
        at as u32
    }
}

pub(super) fn tensor_type(
    meta: &TensorMeta,
    symbols: &mut Symbols,
) -> Result<TensorType, GraphError> {
    let data_type = data_type(meta.dtype)?;
    if meta.layout != LAYOUT_STRIDED {
        let why = "a sparse tensor: only dense tensors are supported; use `.to_dense()`";
        return Err(GraphError::new(Unsupported, why));
    }
    if meta.sizes.len() > DIMENSIONS_MAX {
        let why = format!("a tensor of {} dimensions, at most {DIMENSIONS_MAX}", meta.sizes.len());
        return Err(GraphError::new(TooLarge, why));
    }
    let shape = meta.sizes.iter().map(|size| match size {
        SymbolicSize::AsInt(size) => match u64::try_from(*size) {
            Ok(size) => Ok(Dimension::Fixed(size)),
            Err(_) => Err(GraphError::malformed(format!("a tensor with the size {size}"))),
        },
        SymbolicSize::AsExpr(expression) => {
            Ok(Dimension::Symbol(symbols.number(&expression.expr_str)))
        }
    });
    Ok(TensorType { data_type, shape: shape.collect::<Result<_, _>>()? })
}

fn data_type(number: u32) -> Result<DataType, GraphError> {
    Ok(match number {
        1 => DataType::U8,
        2 => DataType::I8,
        3 => DataType::I16,
        4 => DataType::I32,
        5 => DataType::I64,
        6 => DataType::F16,
        7 => DataType::F32,
        8 => DataType::F64,
        12 => DataType::Bool,
        13 => DataType::Bf16,
        9..=11 => {
            let why = "complex numbers are not supported: use real arithmetic";
            return Err(GraphError::new(Unsupported, why));
        }
        other => {
            let why = format!("the element type {other} is not supported");
            return Err(GraphError::new(Unsupported, why));
        }
    })
}

/// The values by name, and the number of the next one.
struct Scope<'a> {
    names: BTreeMap<String, ValueId>,
    counts: &'a mut Counts,
    /// The number of graphs around this one.
    depth: usize,
    /// Whether gradients flow through its nodes.
    gradients: bool,
}

#[derive(Default)]
struct Counts {
    values: usize,
    nodes: usize,
    /// The first node with an operator that is not supported.
    refused: Option<GraphError>,
    /// The other operators that are not supported.
    also_refused: BTreeSet<String>,
}

impl Counts {
    fn refuse(&mut self, target: &str, error: GraphError) {
        if self.refused.is_none() {
            self.refused = Some(error);
        } else if self.also_refused.len() < REFUSED_MAX {
            self.also_refused.insert(shown(target));
        }
    }

    /// The error that names all refused operators.
    fn refusal(&mut self) -> Option<GraphError> {
        let mut error = self.refused.take()?;
        self.also_refused.retain(|name| !error.why.contains(name.as_str()));
        if !self.also_refused.is_empty() {
            let names: Vec<&str> = self.also_refused.iter().map(String::as_str).collect();
            error.why = format!("{}. Also not supported: {}", error.why, names.join(", "));
        }
        Some(error)
    }
}

impl Scope<'_> {
    fn define(&mut self, name: &str) -> Result<ValueId, GraphError> {
        if self.counts.values == VALUES_MAX {
            let why = format!("the graph has more than {VALUES_MAX} values");
            return Err(GraphError::new(TooLarge, why));
        }
        let id = ValueId(self.counts.values as u32);
        self.counts.values += 1;
        match self.names.insert(name.to_owned(), id) {
            None => Ok(id),
            Some(_) => Err(two_values(name)),
        }
    }

    fn value(&self, name: &str) -> Result<ValueId, GraphError> {
        self.names.get(name).copied().ok_or_else(|| {
            GraphError::malformed(format!("{name:?} is used before a node or an input defines it"))
        })
    }

    fn argument(&self, given: &Tagged) -> Result<Argument, GraphError> {
        Ok(match given {
            Tagged::None(_) | Tagged::OptionalTensor(OptionalTensor::AsNone(_)) => Argument::None,
            Tagged::Tensor(Named { name })
            | Tagged::OptionalTensor(OptionalTensor::AsTensor(Named { name }))
            | Tagged::SymInt(SymbolicInt::AsName(name))
            | Tagged::SymFloat(SymbolicFloat::AsName(name))
            | Tagged::SymBool(SymbolicBool::AsName(name)) => Argument::Value(self.value(name)?),
            Tagged::Int(integer) | Tagged::SymInt(SymbolicInt::AsInt(integer)) => {
                Argument::Int(*integer)
            }
            Tagged::Float(number) | Tagged::SymFloat(SymbolicFloat::AsFloat(number)) => {
                Argument::Float(number.0.to_bits())
            }
            Tagged::Bool(holds) | Tagged::SymBool(SymbolicBool::AsBool(holds)) => {
                Argument::Bool(*holds)
            }
            Tagged::Text(text) if text.len() <= NAME_BYTES_MAX => Argument::Text(text.clone()),
            Tagged::Text(_) => {
                let why = format!("a text argument is longer than {NAME_BYTES_MAX} bytes");
                return Err(GraphError::new(TooLarge, why));
            }
            Tagged::ScalarType(number) => Argument::DataType(data_type(*number)?),
            Tagged::MemoryFormat(number) => Argument::MemoryFormat(match number {
                1 => MemoryFormat::Contiguous,
                2 => MemoryFormat::ChannelsLast,
                3 => MemoryFormat::ChannelsLast3d,
                4 => MemoryFormat::Preserve,
                _ => return Err(GraphError::malformed(format!("memory format {number}"))),
            }),
            Tagged::Layout(LAYOUT_STRIDED) => Argument::Strided,
            Tagged::Layout(_) => {
                let why = "a sparse layout: only dense tensors are supported";
                return Err(GraphError::new(Unsupported, why));
            }
            Tagged::Device(_) => Argument::Device,
            Tagged::Graph(_) => {
                return Err(GraphError::malformed("an operator without inner graphs has one"));
            }
            Tagged::Other(tag) => {
                let why = format!("an argument of the type {:?} is not supported", shown(tag));
                return Err(GraphError::new(Unsupported, why));
            }
            _ => return self.list(given),
        })
    }

    /// An argument with several elements.
    fn list(&self, given: &Tagged) -> Result<Argument, GraphError> {
        Ok(match given {
            Tagged::Tensors(List(all)) => {
                let all = all.iter().map(|named| self.value(&named.name).map(Some));
                Argument::Values(all.collect::<Result<_, _>>()?)
            }
            Tagged::OptionalTensors(List(all)) => {
                let all = all.iter().map(|tensor| match tensor {
                    OptionalTensor::AsTensor(named) => self.value(&named.name).map(Some),
                    OptionalTensor::AsNone(_) => Ok(None),
                });
                Argument::Values(all.collect::<Result<_, _>>()?)
            }
            Tagged::Ints(List(all)) => {
                Argument::Ints(all.iter().map(|&integer| IntArgument::Fixed(integer)).collect())
            }
            Tagged::SymInts(List(all)) => {
                let all = all.iter().map(|integer| match integer {
                    SymbolicInt::AsInt(integer) => Ok(IntArgument::Fixed(*integer)),
                    SymbolicInt::AsName(name) => self.value(name).map(IntArgument::Value),
                });
                Argument::Ints(all.collect::<Result<_, _>>()?)
            }
            Tagged::Floats(List(all)) => {
                Argument::Floats(all.iter().map(|number| number.0.to_bits()).collect())
            }
            Tagged::Bools(List(all)) => Argument::Bools(all.clone()),
            _ => return Err(GraphError::malformed("an argument of an unknown type")),
        })
    }

    fn output(&mut self, given: &Tagged) -> Result<NodeOutput, GraphError> {
        Ok(match given {
            Tagged::None(_) => NodeOutput::None,
            Tagged::Tensor(named) => NodeOutput::Value(self.define(&named.name)?),
            Tagged::OptionalTensor(OptionalTensor::AsTensor(named)) => {
                NodeOutput::Value(self.define(&named.name)?)
            }
            Tagged::OptionalTensor(OptionalTensor::AsNone(_)) => NodeOutput::None,
            Tagged::Tensors(List(all)) => {
                let all = all.iter().map(|named| self.define(&named.name));
                NodeOutput::List(all.collect::<Result<_, _>>()?)
            }
            Tagged::SymInt(SymbolicInt::AsName(name))
            | Tagged::SymFloat(SymbolicFloat::AsName(name))
            | Tagged::SymBool(SymbolicBool::AsName(name)) => NodeOutput::Value(self.define(name)?),
            _ => {
                let why = "a node with a result that is no tensor and no size is not supported";
                return Err(GraphError::new(Unsupported, why));
            }
        })
    }

    /// Appends the node, or the nodes of its inner graph.
    fn node(&mut self, node: &ExportedNode, nodes: &mut Vec<Node>) -> Result<(), GraphError> {
        if self.counts.nodes == NODES_MAX {
            let why = format!("the graph has more than {NODES_MAX} nodes");
            return Err(GraphError::new(TooLarge, why));
        }
        self.counts.nodes += 1;
        if let Some(name) = node.target.strip_prefix(HIGHER_ORDER) {
            return self.inner_graph(name, node, nodes);
        }
        let operation = operation(&node.target)?;
        let arguments = node.inputs.iter().map(|NamedArgument { name, arg }| {
            if name.len() > NAME_BYTES_MAX {
                return Err(GraphError::malformed("the name of an argument is too long"));
            }
            Ok((name.clone(), self.argument(arg)?))
        });
        let arguments = arguments.collect::<Result<_, GraphError>>()?;
        let outputs = node.outputs.iter().map(|output| self.output(output));
        let outputs = outputs.collect::<Result<_, _>>()?;
        nodes.push(Node { operation, gradients: self.gradients, arguments, outputs });
        Ok(())
    }

    /// Appends the nodes of an inner graph, which see its arguments under their own names.
    fn inner_graph(
        &mut self,
        name: &str,
        node: &ExportedNode,
        nodes: &mut Vec<Node>,
    ) -> Result<(), GraphError> {
        let (gradients, inner, given) = match (name, node.inputs.as_slice()) {
            ("wrap_with_set_grad_enabled", [mode, inner, given @ ..]) => match mode.arg {
                Tagged::Bool(enabled) => (enabled, &inner.arg, given),
                _ => return Err(GraphError::malformed("a gradient mode that is no truth value")),
            },
            ("wrap_with_autocast", [_, _, enabled, _, inner, given @ ..]) => match enabled.arg {
                Tagged::Bool(false) => (self.gradients, &inner.arg, given),
                _ => {
                    let why = "automatic casts inside of a model are not supported: convert the \
                               tensors, or set the precision of the whole training";
                    return Err(GraphError::new(Unsupported, why));
                }
            },
            _ => {
                let why = format!(
                    "the operator {} is not supported: control flow that depends on data cannot be \
                     exported; use `torch.where`",
                    shown(&node.target)
                );
                return Err(GraphError::new(Operator, why));
            }
        };
        let Tagged::Graph(inner) = inner else {
            return Err(GraphError::malformed(format!("{name} without an inner graph")));
        };
        if self.depth == DEPTH_MAX {
            let why = format!("inner graphs are nested more than {DEPTH_MAX} deep");
            return Err(GraphError::new(TooLarge, why));
        }
        let graph = &inner.graph;
        if graph.inputs.len() != given.len() || graph.outputs.len() != node.outputs.len() {
            let why = format!("{name} and its inner graph have different numbers of values");
            return Err(GraphError::malformed(why));
        }
        let mut names = BTreeMap::new();
        for (input, NamedArgument { arg, .. }) in graph.inputs.iter().zip(given) {
            names.insert(value_name(input)?.to_owned(), self.value(value_name(arg)?)?);
        }
        let depth = self.depth + 1;
        let mut scope = Scope { names, counts: &mut *self.counts, depth, gradients };
        for node in &graph.nodes {
            scope.traced_node(node, nodes)?;
        }
        let results = graph.outputs.iter().map(|output| scope.value(value_name(output)?));
        let results = results.collect::<Result<Vec<ValueId>, _>>()?;
        let outputs = node.outputs.iter().flat_map(|output| match output {
            Tagged::Tensors(List(all)) => all.iter().map(|named| Ok(named.name.as_str())).collect(),
            other => vec![value_name(other)],
        });
        for (output, id) in outputs.zip(results) {
            let output = output?;
            if self.names.insert(output.to_owned(), id).is_some() {
                return Err(two_values(output));
            }
        }
        Ok(())
    }

    /// As [`node`](Self::node); an error has the line of the model's source.
    fn traced_node(
        &mut self,
        node: &ExportedNode,
        nodes: &mut Vec<Node>,
    ) -> Result<(), GraphError> {
        let Err(error) = self.node(node, nodes) else { return Ok(()) };
        let error = error.at(node.metadata.stack_trace.as_deref().and_then(source_line));
        if error.kind != Operator {
            return Err(error);
        }
        // The rest of the graph is read, so that the error names all operators that are refused.
        self.counts.refuse(&node.target, error);
        node.outputs.iter().try_for_each(|output| self.output(output).map(drop))
    }

    /// The nodes and the outputs.
    fn body(&mut self, graph: &ExportedGraph) -> Result<(Vec<Node>, Vec<Argument>), GraphError> {
        let mut nodes = Vec::new();
        for node in &graph.nodes {
            self.traced_node(node, &mut nodes)?;
        }
        let outputs = graph.outputs.iter().map(|output| self.argument(output));
        Ok((nodes, outputs.collect::<Result<_, _>>()?))
    }
}

/// The name of a tensor or a size.
fn value_name(given: &Tagged) -> Result<&str, GraphError> {
    match given {
        Tagged::Tensor(named) => Ok(&named.name),
        Tagged::SymInt(SymbolicInt::AsName(name)) => Ok(name),
        _ => Err(GraphError::malformed("an inner graph with a value that has no name")),
    }
}

fn two_values(name: &str) -> GraphError {
    GraphError::malformed(format!("two values have the name {name:?}"))
}

/// The name of an operator, as an error shows it.
fn shown(target: &str) -> String {
    target.chars().take(SHOWN_CHARS_MAX).collect()
}

/// The operation of a node's target.
fn operation(target: &str) -> Result<Operation, GraphError> {
    if let Some(name) = target.strip_prefix(ATEN) {
        let name = name.strip_suffix(".default").unwrap_or(name);
        if operators::find(name).is_some() || operators::SIZE_OPERATORS.contains(&name) {
            return Ok(Operation::Aten(name.to_owned()));
        }
        let (target, advice) = (shown(target), operators::advice(name));
        let why = format!("the operator {target} is not supported: {advice}");
        return Err(GraphError::new(Operator, why));
    }
    if target.strip_prefix(OPS).and_then(|name| name.strip_suffix(".default"))
        == Some(operators::GROUPED_PRODUCT)
    {
        return Ok(Operation::Aten(operators::GROUPED_PRODUCT.to_owned()));
    }
    let name = target.rsplit('.').next().unwrap_or(target);
    let module = target.strip_suffix(name).unwrap_or_default();
    let is_known = ["_operator.", "operator.", "math.", "torch."].contains(&module);
    if is_known && operators::SIZE_FUNCTIONS.contains(&name) {
        return Ok(Operation::Size(name.to_owned()));
    }
    let why = format!(
        "the operator {} is not supported: only operators of PyTorch's ATen library are; custom \
         operators are code of their own",
        shown(target)
    );
    Err(GraphError::new(Operator, why))
}

/// The model's own line in a stack trace: the innermost frame that is not in PyTorch.
fn source_line(trace: &str) -> Option<String> {
    let mut frames = Vec::new();
    let mut lines = trace.lines();
    while let Some(line) = lines.next() {
        let Some(place) = line.trim_start().strip_prefix("File \"") else { continue };
        let Some((file, rest)) = place.split_once('"') else { continue };
        let number: String =
            rest.trim_start_matches(", line ").chars().take_while(char::is_ascii_digit).collect();
        let code = lines.next().unwrap_or_default().trim();
        frames.push((file, number, code));
    }
    let own = frames.iter().rev().find(|(file, ..)| !file.contains("/torch/"));
    let (file, number, code) = own.or(frames.last())?;
    let file = file.rsplit('/').next().unwrap_or(file);
    Some(format!("{file}:{number}: {code}").chars().take(LINE_CHARS_MAX).collect())
}

/// Imports a program.
pub(super) fn import(program: ExportedProgram) -> Result<Graph, GraphError> {
    let GraphModule { graph, signature } = program.graph_module;
    if !graph.custom_obj_values.is_empty() {
        let why = "the model has custom objects, which are code of their own";
        return Err(GraphError::new(Unsupported, why));
    }
    let mut counts = Counts::default();
    let names = BTreeMap::new();
    let mut scope = Scope { names, counts: &mut counts, depth: 0, gradients: true };
    let (mut inputs, mut symbols) = (Vec::new(), Symbols::default());
    for spec in &signature.input_specs {
        let (name, role) = match spec {
            InputSpec::Parameter { arg, parameter_name } => {
                (&arg.name, InputRole::Parameter(parameter_name.clone()))
            }
            InputSpec::Buffer { arg, buffer_name } => {
                (&arg.name, InputRole::Buffer(buffer_name.clone()))
            }
            InputSpec::TensorConstant { arg, tensor_constant_name } => {
                (&arg.name, InputRole::Constant(tensor_constant_name.clone()))
            }
            InputSpec::UserInput { arg: Tagged::Tensor(named) } => (&named.name, InputRole::User),
            InputSpec::ConstantInput(_) | InputSpec::UserInput { arg: Tagged::None(_) } => {
                continue;
            }
            InputSpec::UserInput { .. } => {
                let why = "an argument of the model is no tensor: export it with tensors only";
                return Err(GraphError::new(Unsupported, why));
            }
            InputSpec::CustomObj(_) | InputSpec::Token(_) => {
                let why = "the model has custom objects or tokens, which are code of their own";
                return Err(GraphError::new(Unsupported, why));
            }
        };
        let meta = graph
            .tensor_values
            .get(name)
            .ok_or_else(|| GraphError::malformed(format!("the input {name:?} has no type")))?;
        inputs.push(GraphInput { role, tensor: tensor_type(meta, &mut symbols)? });
        scope.define(name)?;
    }
    check_names(&inputs)?;
    check_outputs(&signature.output_specs)?;
    let (nodes, outputs) = scope.body(&graph)?;
    if let Some(error) = counts.refusal() {
        return Err(error);
    }
    let values = counts.values as u32;
    Ok(Graph { inputs, nodes, outputs, values })
}

/// Names identify tensors in updates and files: each occurs once, and is short.
fn check_names(inputs: &[GraphInput]) -> Result<(), GraphError> {
    let mut seen = BTreeSet::new();
    for name in inputs.iter().filter_map(|input| input.role.name()) {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(GraphError::malformed(format!("{name:?} is no name of a tensor")));
        }
        if !seen.insert(name) {
            return Err(GraphError::malformed(format!("two inputs have the name {name:?}")));
        }
    }
    Ok(())
}

/// Outputs are results of the model. Changed buffers are changed in place, and need no output.
fn check_outputs(specs: &[OutputSpec]) -> Result<(), GraphError> {
    let refused = specs.iter().find_map(|spec| match spec {
        OutputSpec::UserOutput(_) | OutputSpec::LossOutput(_) => None,
        OutputSpec::BufferMutation(_) => Some(
            "the model was exported without in-place operators: use `torch.export.export`, and not \
             `run_decompositions()`, for a model with running statistics",
        ),
        _ => Some("the model has outputs other than its results: export its forward pass only"),
    });
    match refused {
        None => Ok(()),
        Some(why) => Err(GraphError::new(Unsupported, why)),
    }
}
