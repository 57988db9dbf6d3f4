//! The cut of a graph by the measured costs of its nodes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Instant;

use tch::{TchError, Tensor};

use super::super::net::GraphNet;
use super::stage::segments;
use super::travel::message_bytes;
use crate::engine::{BackendError, TrainError};
use crate::graph::{
    Effect, Graph, Node, Operation, Place, RunMode, RunObserver, RunValues, Segments, ValueId,
    find_operator,
};
use crate::pipeline::{
    Cut, CutError, CutProblem, FirstPart, MemoryLimits, NodeCost, cut, cut_with_first_part,
};
use crate::ranks::{RankError, RankErrorCode};
use crate::torch::batches::Rows;
use crate::virtual_workers::TransferCost;

/// Measured runs; the least seconds of each node count.
const MEASUREMENTS: u32 = 3;

/// The ranks of a pipeline.
#[derive(Debug, Clone, Copy)]
pub(in crate::torch) struct CutRanks<'a> {
    /// The seconds of each rank relative to those of the measuring one, above 0.
    pub(in crate::torch) slowness: &'a [f64],
    /// The link from each rank but the last to the next.
    pub(in crate::torch) links: &'a [TransferCost],
    /// The memory of the ranks, if it is limited.
    pub(in crate::torch) memory: Option<MemoryLimits<'a>>,
}

/// The costs of a graph's nodes for one micro-batch.
#[derive(Debug)]
pub(super) struct MeasuredCosts {
    pub(super) nodes: Vec<NodeCost>,
    pub(super) boundary_bytes: Vec<u64>,
    pub(super) can_cut: Vec<bool>,
}

/// Cuts a graph such that the slowest stage takes least, by the measured costs of its nodes on the rows of
/// one micro-batch.
///
/// The forward seconds of a node are measured. Its backward seconds are its share of the measured backward
/// pass, in proportion to its forward seconds. Its saved bytes are those of its results, without views.
/// The bytes of a cut are those of the values that cross it, as they travel.
///
/// # Errors
/// [`BackendError`] if an operator fails, [`RankErrorCode::PlanInvalid`] if no cut has as many parts as
/// there are ranks.
pub(in crate::torch) fn pipeline_cut(
    net: &GraphNet<'_>,
    views: &[Tensor],
    rows: &Rows,
    ranks: &CutRanks<'_>,
) -> Result<Cut, TrainError> {
    let costs = measured_costs(net, views, rows)?;
    let problem = CutProblem {
        nodes: &costs.nodes,
        boundary_bytes: &costs.boundary_bytes,
        can_cut: &costs.can_cut,
        slowness: ranks.slowness,
        links: ranks.links,
        memory: ranks.memory,
    };
    Ok(cut(&problem).map_err(|error| no_cut(&error))?)
}

/// As [`pipeline_cut`] where the first rank also computes the nodes from `last` on. The first part can end at
/// the positions `first_cuts`. The transfer from the last other rank back to the first one is not counted.
///
/// # Errors
/// As [`pipeline_cut`].
pub(in crate::torch) fn private_cut(
    net: &GraphNet<'_>,
    views: &[Tensor],
    rows: &Rows,
    ranks: &CutRanks<'_>,
    (first_cuts, last): (&[bool], usize),
) -> Result<Cut, TrainError> {
    let costs = measured_costs(net, views, rows)?;
    let (nodes, of_last) = costs.nodes.split_at(last);
    let problem = CutProblem {
        nodes,
        boundary_bytes: &costs.boundary_bytes[..=last],
        can_cut: &costs.can_cut[..=last],
        slowness: ranks.slowness,
        links: ranks.links,
        memory: ranks.memory,
    };
    let other_seconds =
        of_last.iter().map(|node| node.forward_seconds + node.backward_seconds).sum();
    let first = FirstPart { can_end: &first_cuts[..=last], other_seconds };
    let mut found = cut_with_first_part(&problem, &first).map_err(|error| no_cut(&error))?;
    found.ranges.push(last..costs.nodes.len());
    Ok(found)
}

fn no_cut(error: &CutError) -> RankError {
    let why = format!("{error}: state another --rank-cut or --rank-pipeline");
    RankError::new(RankErrorCode::PlanInvalid, why)
}

pub(super) fn measured_costs(
    net: &GraphNet<'_>,
    views: &[Tensor],
    rows: &Rows,
) -> Result<MeasuredCosts, BackendError> {
    let segments = segments(net);
    let count = net.program.graph.nodes.len();
    let slots = views.iter().map(Tensor::f_zeros_like).collect::<Result<Vec<_>, _>>()?;
    let before: Vec<Tensor> =
        net.buffers_of(views).map(Tensor::f_detach_copy).collect::<Result<_, _>>()?;
    let mut clock = NodeClock::new(&net.program.graph);
    let mut backward_seconds = f64::INFINITY;
    // The first run has the starts of libraries.
    for _ in 0..=MEASUREMENTS {
        let mode = RunMode::Training;
        let found = net.observed_gradient(views, rows, mode, 1.0, &slots, &mut clock);
        let seconds = clock.since.elapsed().as_secs_f64();
        for (view, before) in net.buffers_of(views).zip(&before) {
            view.shallow_clone().f_copy_(before)?;
        }
        let _losses = found.map_err(BackendError::from)?;
        backward_seconds = backward_seconds.min(seconds);
    }
    let forward_seconds: f64 = clock.seconds.iter().sum();
    let factor = if forward_seconds > 0.0 { backward_seconds / forward_seconds } else { 0.0 };
    let parameter_bytes = parameter_bytes(net, &segments);
    let nodes = (0..count).map(|node| NodeCost {
        forward_seconds: clock.seconds[node],
        backward_seconds: clock.seconds[node] * factor,
        parameter_bytes: parameter_bytes[node],
        saved_bytes: clock.saved_bytes[node],
    });
    let boundary_bytes = boundary_bytes(&segments, &clock.bytes, count);
    let can_cut = segments.can_cut().to_vec();
    Ok(MeasuredCosts { nodes: nodes.collect(), boundary_bytes, can_cut })
}

/// The bytes of the parameters of which each node is the first user.
fn parameter_bytes(net: &GraphNet<'_>, segments: &Segments) -> Vec<u64> {
    let mut bytes = vec![0; net.program.graph.nodes.len()];
    for (input, place) in net.program.places.iter().enumerate() {
        if let (Place::Travels { range, .. }, Some(node)) = (place, segments.first_use(input))
            && let Some(own) = bytes.get_mut(node)
        {
            *own += (range.len() * size_of::<f32>()) as u64;
        }
    }
    bytes
}

/// The bytes that cross each position.
fn boundary_bytes(segments: &Segments, bytes: &BTreeMap<ValueId, u64>, nodes: usize) -> Vec<u64> {
    let mut changes = vec![0_i128; nodes + 2];
    for (id, first, last) in segments.spans() {
        let own = i128::from(bytes.get(&id).copied().unwrap_or(0));
        changes[first] += own;
        changes[last.min(nodes) + 1] -= own;
    }
    let mut live = 0;
    let sums = changes.into_iter().take(nodes + 1).map(|change| {
        live += change;
        u64::try_from(live).unwrap_or(0)
    });
    sums.collect()
}

/// Measures the seconds of nodes and the bytes of values.
struct NodeClock {
    since: Instant,
    seconds: Vec<f64>,
    saved_bytes: Vec<u64>,
    bytes: BTreeMap<ValueId, u64>,
    is_view: Vec<bool>,
    runs: u32,
}

impl NodeClock {
    fn new(graph: &Graph) -> Self {
        let is_view = graph.nodes.iter().map(is_view).collect();
        let nodes = graph.nodes.len();
        let seconds = vec![f64::INFINITY; nodes];
        let (saved_bytes, bytes) = (vec![0; nodes], BTreeMap::new());
        Self { since: Instant::now(), seconds, saved_bytes, bytes, is_view, runs: 0 }
    }
}

impl RunObserver for NodeClock {
    fn begin(&mut self, inputs: &[Tensor]) -> Result<(), TchError> {
        self.runs += 1;
        for (id, tensor) in inputs.iter().enumerate() {
            self.bytes.insert(ValueId(id as u32), bytes_of(tensor)?);
        }
        Ok(())
    }

    fn before_node(&mut self, _: usize) -> Result<(), TchError> {
        self.since = Instant::now();
        Ok(())
    }

    fn after_node(&mut self, node: usize, values: RunValues<'_>) -> Result<(), TchError> {
        let seconds = self.since.elapsed().as_secs_f64();
        self.seconds[node] = self.seconds[node].min(seconds);
        if self.runs > 1 {
            return Ok(());
        }
        for (id, tensor) in values.tensors() {
            if let Entry::Vacant(empty) = self.bytes.entry(id) {
                let bytes = *empty.insert(bytes_of(tensor)?);
                self.saved_bytes[node] += if self.is_view[node] { 0 } else { bytes };
            }
        }
        Ok(())
    }

    fn end_forward(&mut self) -> Result<(), TchError> {
        self.since = Instant::now();
        Ok(())
    }
}

fn is_view(node: &Node) -> bool {
    let Operation::Aten(name) = &node.operation else { return true };
    find_operator(name).is_some_and(|operator| operator.effect == Effect::View)
}

fn bytes_of(tensor: &Tensor) -> Result<u64, TchError> {
    message_bytes(tensor).map_err(|error| TchError::Torch(error.why))
}
