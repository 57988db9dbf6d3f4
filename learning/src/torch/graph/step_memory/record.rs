//! Records a step on few rows: its trace, and the buffers that can be computed again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tch::{TchError, Tensor};

use super::run::torch_error;
use crate::engine::BackendError;
use crate::graph::{
    Effect, Node, NodeOutput, Operation, RunMode, RunObserver, RunValues, ValueId, find_operator,
};
use crate::memory::{LastAlive, MemoryTrace, Recompute, SavedBuffer, TapeEvent, TapeEventKind};
use crate::step_cost::is_product;
use crate::torch::batches::Rows;
use crate::torch::graph::net::{GraphFailure, GraphNet};
use crate::torch::tape::{NoRestore, Tape};

/// Rows of the first recording: one row may be computed by other kernels than several.
const RECORDED_ROWS_MIN: u32 = 2;
/// libtorch's convolutions are other kernels for more rows.
const MANY_ROWS: u32 = 16;
/// Recordings of a step, each of twice the rows of the one before it.
const RECORDINGS_MAX: usize = 8;
/// Largest relative error of a trace that is used, on a recording of twice its rows.
const TRACE_TOLERANCE: f64 = 0.01;
/// Nodes that are run again for one buffer, at most, and the bound of the search for them.
const RECIPE_NODES_MAX: usize = 6;

/// A way to compute a buffer again: nodes and the tensors that they read.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Recipe {
    /// In the order of the graph.
    pub(super) nodes: Vec<usize>,
    /// Inputs of the graph.
    pub(super) graph_inputs: Vec<ValueId>,
    /// Values in other buffers.
    pub(super) values: Vec<(ValueId, usize)>,
    /// The value whose memory is the buffer.
    pub(super) output: ValueId,
}

/// A recorded step.
pub(super) struct Recorded {
    pub(super) trace: MemoryTrace,
    /// By buffer.
    pub(super) recipes: BTreeMap<usize, Recipe>,
}

/// The allocations that the forward pass of a recording has shown.
#[derive(Debug, Default)]
struct Seen {
    last_alive: LastAlive,
    /// The allocation of each value.
    allocation_of: BTreeMap<ValueId, usize>,
    /// The last value that a node wrote to an allocation.
    writer: BTreeMap<usize, ValueId>,
    /// Allocations and inputs to which an operator wrote in place, not through their last value: their
    /// values at a node do not follow from the graph.
    tainted: BTreeSet<usize>,
    tainted_inputs: BTreeSet<ValueId>,
    /// Whether an operator wrote to older memory.
    writes_older: bool,
}

impl Seen {
    /// An operator writes to its first argument.
    fn written(&mut self, target: ValueId, inputs: usize) {
        if (target.0 as usize) < inputs {
            self.tainted_inputs.insert(target);
        }
        match self.allocation_of.get(&target) {
            Some(allocation) if self.writer.get(allocation) != Some(&target) => {
                self.tainted.insert(*allocation);
            }
            None if (target.0 as usize) >= inputs => self.writes_older = true,
            _ => {}
        }
    }
}

struct StepRecorder<'t> {
    tape: &'t Tape<'t>,
    nodes: &'t [Node],
    /// Number of the graph's inputs.
    inputs: usize,
    seen: Seen,
}

impl RunObserver for StepRecorder<'_> {
    fn begin(&mut self, inputs: &[Tensor]) -> Result<(), TchError> {
        let allocations = inputs.iter().filter_map(|input| self.tape.allocation(input));
        self.seen.last_alive.extend(allocations.map(|allocation| (allocation, None)));
        Ok(())
    }

    fn before_node(&mut self, node: usize) -> Result<(), TchError> {
        self.tape.mark(node).map_err(torch_error)
    }

    fn after_node(&mut self, node: usize, values: RunValues<'_>) -> Result<(), TchError> {
        // A value that lives here is there while the next node runs.
        let next = (node + 1).min(self.nodes.len().saturating_sub(1));
        for (id, tensor) in values.tensors() {
            let Some(allocation) = self.tape.allocation(tensor) else { continue };
            if let Some(last) = self.seen.last_alive.entry(allocation).or_insert(Some(next)) {
                *last = next;
            }
            self.seen.allocation_of.insert(id, allocation);
        }
        let own = &self.nodes[node];
        if matches!(effect(own), Some(Effect::InPlace | Effect::RandomInPlace)) {
            let first = own.arguments.first().map(|(_, argument)| argument.values());
            let inputs = self.inputs;
            first.into_iter().flatten().for_each(|target| self.seen.written(target, inputs));
        }
        if effect(own).is_some_and(|effect| effect != Effect::View) {
            for id in own.outputs.iter().flat_map(NodeOutput::values) {
                if let Some(&allocation) = self.seen.allocation_of.get(&id) {
                    self.seen.writer.insert(allocation, id);
                }
            }
        }
        Ok(())
    }

    fn end_forward(&mut self) -> Result<(), TchError> {
        self.tape.mark(self.nodes.len()).map_err(torch_error)
    }
}

fn effect(node: &Node) -> Option<Effect> {
    match &node.operation {
        Operation::Aten(name) => find_operator(name).map(|operator| operator.effect),
        _ => None,
    }
}

/// Records a step of `planned` rows on few rows of a batch, and on twice as many, until a trace predicts the
/// next recording, or predicts that the next one takes more than `bytes` bytes. `None` if none does: then the
/// memory depends on the numbers.
pub(super) fn record(
    net: &GraphNet<'_>,
    views: &[Tensor],
    rows: &Rows,
    planned: u32,
    bytes: u64,
) -> Result<Option<Recorded>, BackendError> {
    let slots = views.iter().map(Tensor::f_zeros_like).collect::<Result<Vec<_>, _>>()?;
    let run = |count: u32| record_once(net, views, &slots, &few(rows, count)?);
    // A step on two rows has a smaller one beside it: its last batch may have one row.
    let mut count = if planned == RECORDED_ROWS_MIN { 1 } else { RECORDED_ROWS_MIN.min(planned) };
    // The first step of a graph has allocations of its own, such as those of a library's start.
    let mut earlier = Vec::new();
    for _ in 0..2 {
        (earlier, ..) = match run(count) {
            Err(failure) if failure.is_out_of_memory() => return Ok(None),
            recorded => recorded?,
        };
    }
    let mut found: Option<Recorded> = None;
    for _ in 0..RECORDINGS_MAX {
        let (last, next) = (count, (count * 2).min(planned));
        // The best trace that the memory allows.
        if found.as_ref().is_some_and(|found| found.trace.peak(next) > bytes) {
            return Ok(found);
        }
        let (events, seen, peak) = match run(next) {
            Ok(recorded) => recorded,
            // A GPU's blocks may leave less room than there is memory.
            Err(failure) if failure.is_out_of_memory() => return Ok(found),
            Err(failure) => return Err(failure.into()),
        };
        let is_predicted = found.as_ref().is_some_and(|found| {
            let error = found.trace.peak(next) as f64 / peak.max(1) as f64 - 1.0;
            error.abs() <= TRACE_TOLERANCE
        });
        let trace = MemoryTrace::new((&earlier, last), (&events, next), &seen.last_alive).ok();
        found = trace.map(|trace| {
            let recipes = Kitchen::new(net, &trace, &seen).recipes();
            Recorded { trace, recipes }
        });
        if found.is_some() && (is_predicted && next > MANY_ROWS || next == planned) {
            return Ok(found);
        }
        (earlier, count) = (events, next);
    }
    Ok(None)
}

/// The first rows, again and again if there are fewer.
fn few(rows: &Rows, count: u32) -> Result<Rows, TchError> {
    let all = rows.len().max(1) as i64;
    let places: Vec<i64> = (0..i64::from(count)).map(|row| row % all).collect();
    let places = Tensor::f_from_slice(&places)?.f_to_device(rows.labels.device())?;
    rows.select(&places)
}

/// The events of a step, its allocations, and the most bytes of them at once.
fn record_once(
    net: &GraphNet<'_>,
    views: &[Tensor],
    slots: &[Tensor],
    rows: &Rows,
) -> Result<(Vec<TapeEvent>, Seen, u64), GraphFailure> {
    let tape = Tape::new(net.device, true, Arc::new(NoRestore))?;
    let (nodes, inputs) = (&net.program.graph.nodes, net.program.graph.inputs.len());
    let mut recorder = StepRecorder { tape: &tape, nodes, inputs, seen: Seen::default() };
    let before: Vec<Tensor> =
        net.buffers_of(views).map(Tensor::f_detach_copy).collect::<Result<_, _>>()?;
    let recording = tape.record(true)?;
    let found = net.observed_gradient(views, rows, RunMode::Training, 1.0, slots, &mut recorder);
    drop(recording);
    for (view, before) in net.buffers_of(views).zip(&before) {
        view.shallow_clone().f_copy_(before)?;
    }
    let _losses = found?;
    // The backward pass has ended.
    tape.mark(nodes.len() + 1)?;
    let (events, seen) = (tape.events(), recorder.seen);
    let peak = peak_of(&events);
    Ok((events, seen, peak))
}

/// The most bytes of the allocations of a recording at once.
fn peak_of(events: &[TapeEvent]) -> u64 {
    let (mut sizes, mut live, mut peak) = (Vec::new(), 0_i64, 0_i64);
    for event in events {
        match event.kind {
            TapeEventKind::Allocate => {
                sizes.push(event.bytes);
                live += event.bytes;
                peak = peak.max(live);
            }
            TapeEventKind::Free => live -= sizes.get(event.number).copied().unwrap_or(0),
            _ => {}
        }
    }
    u64::try_from(peak).unwrap_or(0)
}

/// Finds the ways to compute buffers again.
struct Kitchen<'a> {
    nodes: &'a [Node],
    inputs: usize,
    producer: BTreeMap<ValueId, usize>,
    /// The buffer of each allocation.
    buffer_of: BTreeMap<usize, usize>,
    trace: &'a MemoryTrace,
    seen: &'a Seen,
}

impl<'a> Kitchen<'a> {
    fn new(net: &'a GraphNet<'_>, trace: &'a MemoryTrace, seen: &'a Seen) -> Self {
        let graph = &net.program.graph;
        let outputs = |node: &Node| node.outputs.iter().flat_map(NodeOutput::values).collect();
        let producer = graph.nodes.iter().enumerate();
        let producer = producer.flat_map(|(at, node)| {
            let ids: Vec<ValueId> = outputs(node);
            ids.into_iter().map(move |id| (id, at))
        });
        let buffers = trace.buffers().iter().enumerate();
        Self {
            nodes: &graph.nodes,
            inputs: graph.inputs.len(),
            producer: producer.collect(),
            buffer_of: buffers.map(|(at, buffer)| (buffer.allocation, at)).collect(),
            trace,
            seen,
        }
    }

    fn recipes(&self) -> BTreeMap<usize, Recipe> {
        let buffers = self.trace.buffers().iter().enumerate();
        if self.seen.writes_older {
            return BTreeMap::new();
        }
        let recipe = |(buffer, own): (usize, &SavedBuffer)| {
            let &output = self.seen.writer.get(&own.allocation)?;
            let mut recipe =
                Recipe { nodes: Vec::new(), graph_inputs: Vec::new(), values: Vec::new(), output };
            let mut visited = BTreeSet::new();
            self.add(buffer, output, &mut recipe, &mut visited)?;
            recipe.nodes.sort_unstable();
            recipe.graph_inputs.sort_unstable();
            recipe.graph_inputs.dedup();
            Some((buffer, recipe))
        };
        buffers.filter_map(recipe).collect()
    }

    /// Adds the nodes that compute a value; `None` if that is not possible, or not worth it.
    fn add(
        &self,
        buffer: usize,
        value: ValueId,
        recipe: &mut Recipe,
        visited: &mut BTreeSet<ValueId>,
    ) -> Option<()> {
        if !visited.insert(value) {
            return Some(());
        }
        let is_tainted =
            self.seen.allocation_of.get(&value).is_some_and(|own| self.seen.tainted.contains(own));
        if is_tainted || self.seen.tainted_inputs.contains(&value) {
            return None;
        }
        if (value.0 as usize) < self.inputs {
            recipe.graph_inputs.push(value);
            return Some(());
        }
        // A value that is saved, and that no later node has changed.
        let allocation = self.seen.allocation_of.get(&value);
        let saved = allocation.and_then(|allocation| {
            let is_last = self.seen.writer.get(allocation) == Some(&value);
            self.buffer_of.get(allocation).filter(|_| is_last)
        });
        if let Some(&saved) = saved.filter(|&&saved| saved != buffer) {
            recipe.values.push((value, saved));
            return Some(());
        }
        let &at = self.producer.get(&value)?;
        let node = &self.nodes[at];
        if !is_repeatable(node) || recipe.nodes.len() >= RECIPE_NODES_MAX {
            return None;
        }
        recipe.nodes.push(at);
        for id in node.arguments.iter().flat_map(|(_, argument)| argument.values()) {
            self.add(buffer, id, recipe, visited)?;
        }
        Some(())
    }
}

/// Whether a node gives the same result again, in less time than a product.
fn is_repeatable(node: &Node) -> bool {
    let Operation::Aten(name) = &node.operation else { return false };
    let is_plain = matches!(effect(node), Some(Effect::Pure | Effect::View | Effect::InPlace));
    is_plain && !is_product(name)
}

impl Recipe {
    /// The buffers that it reads.
    pub(super) fn inputs(&self) -> Vec<usize> {
        let mut inputs: Vec<usize> = self.values.iter().map(|(_, buffer)| *buffer).collect();
        inputs.sort_unstable();
        inputs.dedup();
        inputs
    }
}

/// The recipes with their times.
pub(super) fn ways(recorded: &Recorded, rows: u32) -> Vec<Recompute> {
    let seconds = recorded.trace.mark_seconds(rows);
    let of_node = |node: &usize| seconds.get(node).copied().unwrap_or(0.0);
    let recipes = recorded.recipes.iter();
    recipes
        .map(|(&buffer, recipe)| Recompute {
            buffer,
            seconds: recipe.nodes.iter().map(of_node).sum(),
            inputs: recipe.inputs(),
        })
        .collect()
}
