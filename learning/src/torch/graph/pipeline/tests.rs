//! The gradients of pipelines, bit by bit, against those of one process.

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use super::super::micro_batches::{MicroBatch, MicroBatches};
use super::super::net::program;
use super::super::step_memory::StepMemory;
use super::super::tests::{ALL, GraphTask, is_random, models};
use super::super::virtual_workers::{VirtualGradients, summed_loss};
use super::super::{GraphNet, generator};
use super::cost::{CutRanks, measured_costs, pipeline_cut};
use super::local::LocalPipeline;
use super::stage::{Stage, StagePlan, segments};
use crate::data::Dataset;
use crate::graph::BufferPolicy;
use crate::model::ModelSpec;
use crate::pipeline::{PartPlacement, PinnedCut};
use crate::rng::{Purpose, below, rng};
use crate::step_cost::DrawnStep;
use crate::torch::batches::Rows;
use crate::torch::descent::Batch;
use crate::torch::peers::TAIL;
use crate::torch::{Torch, TorchDevice};
use crate::training::Precision;
use crate::virtual_workers::TransferCost;

/// The seed of a training.
pub(super) const SEED: u64 = 11;
/// Positions of a graph that a test tries.
const POSITIONS_MAX: usize = 40;

/// A model with rows.
pub(super) struct PipelineCase {
    name: String,
    model: ModelSpec,
    start: Vec<f32>,
    rows: Rows,
}

impl PipelineCase {
    pub(super) fn new(name: &str, rows: usize) -> Self {
        let GraphTask { model, start, rows: data, .. } =
            GraphTask::load(name, ALL, BufferPolicy::Average);
        Self::of(name.to_owned(), model, start, (&data, rows))
    }

    fn drawn(seed: u64) -> Self {
        let DrawnStep { name, model, start, rows } = DrawnStep::new(seed).unwrap();
        let count = rows.rows().min(12);
        Self::of(name, model, start, (&rows, count))
    }

    fn of(
        name: String,
        model: ModelSpec,
        start: Vec<f32>,
        (data, count): (&Dataset, usize),
    ) -> Self {
        let engine = Torch::new(TorchDevice::Cpu, 1).unwrap();
        let all = engine.graph_rows(data, 0..data.rows()).unwrap();
        let places: Vec<i64> = (0..count).map(|row| (row % all.len()) as i64).collect();
        let rows = all.select(&Tensor::from_slice(&places)).unwrap();
        Self { name, model, start, rows }
    }

    pub(super) fn net(&self) -> GraphNet<'_> {
        let ModelSpec::Graph(model) = &self.model else { panic!("a graph") };
        GraphNet::new(model, program(model).unwrap(), Device::Cpu, Kind::Float).unwrap()
    }

    /// Aligned parameters with a tail.
    pub(super) fn params(&self, net: &GraphNet<'_>) -> Tensor {
        let mut aligned = net.align(&self.start);
        aligned.resize(aligned.len() + TAIL as usize, 0.0);
        Tensor::from_slice(&aligned)
    }

    pub(super) fn batch(&self) -> Batch {
        Batch { step: 3, rows: self.rows.part(0, self.rows.len()).unwrap() }
    }

    /// The bits of the gradient of one process, with those of the loss.
    pub(super) fn alone(&self, net: &GraphNet<'_>, workers: u32) -> Vec<i32> {
        let params = self.params(net);
        let memory = StepMemory::in_parts(usize::MAX);
        let mut gradients = VirtualGradients::new(net, workers, SEED, &params, memory).unwrap();
        gradients.compute(&self.batch(), None, None).unwrap();
        bits(&gradients.total().unwrap().0)
    }

    /// The same of a pipeline.
    fn pipelined(&self, net: &GraphNet<'_>, ranges: &[Range<usize>], workers: u32) -> Vec<i32> {
        let plan = StagePlan::new(net, ranges.to_vec(), PartPlacement::Separate).unwrap();
        let params = self.params(net);
        let before = bits(&params);
        let mut pipeline = LocalPipeline::new(net, &plan, &params).unwrap();
        let batch = self.batch();
        let batches = MicroBatches::new(net, &batch, workers, SEED, 1.0);
        let first = pipeline.gradient(&batches);
        let first = first.unwrap_or_else(|error| panic!("{} {ranges:?}: {error}", self.name));
        let tail = first.narrow(0, first.numel() as i64 - TAIL, TAIL);
        assert!(summed_loss(&tail).unwrap().is_finite(), "{}", self.name);
        // A second step reuses the memory of the first.
        let again = pipeline.gradient(&batches).unwrap();
        assert!(bits(&first) == bits(&again), "{} {ranges:?}: another second step", self.name);
        assert!(bits(&params) == before, "{}: other parameters", self.name);
        bits(&first)
    }
}

pub(super) fn bits(tensor: &Tensor) -> Vec<i32> {
    Vec::try_from(tensor.view_dtype(Kind::Int)).unwrap()
}

/// Where two gradients differ.
pub(super) fn difference(net: &GraphNet<'_>, found: &[i32], expected: &[i32]) -> Option<String> {
    let at = found.iter().zip(expected).position(|(one, other)| one != other)?;
    let place = net.aligned_ranges().iter().position(|range| range.contains(&at));
    let count = found.iter().zip(expected).filter(|(one, other)| one != other).count();
    let number = |bits: &[i32]| f32::from_bits(bits[at].cast_unsigned());
    let (found, expected) = (number(found), number(expected));
    Some(format!("{count} numbers, first of tensor {place:?}: {found} for {expected}"))
}

fn ranges(cuts: &[usize], nodes: usize) -> Vec<Range<usize>> {
    let starts = [0].into_iter().chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain([nodes]);
    starts.zip(ends).map(|(start, end)| start..end).collect()
}

/// The positions at which a graph can be cut.
fn positions(net: &GraphNet<'_>) -> Vec<usize> {
    let segments = segments(net);
    (0..segments.can_cut().len()).filter(|&at| segments.can_cut()[at]).collect()
}

#[test]
fn gradients_of_two_stages_have_the_bits_of_one_process_for_all_cuts() {
    let _generator = generator();
    crate::torch::threads::set_threads(1);
    let mut wrong = Vec::new();
    for name in models() {
        let case = PipelineCase::new(&name, 6);
        let net = case.net();
        let nodes = net.program.graph.nodes.len();
        let expected = case.alone(&net, 1);
        let all = positions(&net);
        let step = all.len().div_ceil(POSITIONS_MAX).max(1);
        println!("{name}: {} of {nodes} positions, random: {}", all.len(), is_random(&name));
        assert!(!all.is_empty() || nodes == 1, "{name} cannot be cut");
        for &at in all.iter().step_by(step) {
            let found = case.pipelined(&net, &ranges(&[at], nodes), 1);
            if let Some(why) = difference(&net, &found, &expected) {
                wrong.push(format!("{name} at {at}: {why}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn steps_of_pipelines_have_the_bits_of_virtual_workers() {
    let _generator = generator();
    crate::torch::threads::set_threads(1);
    let seed = 5;
    println!("seed {seed}");
    let mut random = rng(seed, Purpose::Directions, 0);
    for name in models() {
        let case = PipelineCase::new(&name, 17);
        let net = case.net();
        let nodes = net.program.graph.nodes.len();
        let all = positions(&net);
        for workers in 1..=8 {
            let expected = case.alone(&net, workers);
            let parts = if all.is_empty() { 1 } else { 1 + below(&mut random, 4) as usize };
            let mut cuts: Vec<usize> =
                (1..parts).map(|_| all[below(&mut random, all.len() as u64) as usize]).collect();
            cuts.sort_unstable();
            cuts.dedup();
            let found = case.pipelined(&net, &ranges(&cuts, nodes), workers);
            let found = difference(&net, &found, &expected);
            assert_eq!(found, None, "{name} cut at {cuts:?}, {workers} workers");
        }
    }
}

#[test]
fn drawn_graphs_have_the_bits_of_virtual_workers() {
    let _generator = generator();
    crate::torch::threads::set_threads(1);
    for seed in 0..24 {
        let case = PipelineCase::drawn(seed);
        let net = case.net();
        let nodes = net.program.graph.nodes.len();
        let all = positions(&net);
        let mut random = rng(seed, Purpose::Directions, 1);
        let workers = 1 + below(&mut random, 4) as u32;
        let expected = case.alone(&net, workers);
        let mut cuts: Vec<usize> = (0..=below(&mut random, 3))
            .filter(|_| !all.is_empty())
            .map(|_| all[below(&mut random, all.len() as u64) as usize])
            .collect();
        cuts.sort_unstable();
        cuts.dedup();
        println!("seed {seed}: {}, {workers} workers, cut at {cuts:?}", case.name);
        let found = case.pipelined(&net, &ranges(&cuts, nodes), workers);
        assert_eq!(difference(&net, &found, &expected), None, "seed {seed}");
    }
}

#[test]
fn the_cut_by_measured_costs_trains_to_the_same_bits() {
    let _generator = generator();
    crate::torch::threads::set_threads(1);
    let link = TransferCost { alpha: 1e-5, beta: 1e-9 };
    for name in ["mlp", "resnet", "gpt"] {
        let case = PipelineCase::new(name, 12);
        let net = case.net();
        let nodes = net.program.graph.nodes.len();
        let views = net.aligned_views(&case.params(&net)).unwrap();
        let costs = measured_costs(&net, &views, &case.rows).unwrap();
        assert_eq!((costs.nodes.len(), costs.boundary_bytes.len()), (nodes, nodes + 1));
        assert_eq!(costs.can_cut, segments(&net).can_cut());
        for parts in 1..=3 {
            let links = vec![link; parts - 1];
            let slowness = vec![1.0; parts];
            let ranks = CutRanks { slowness: &slowness, links: &links, memory: None };
            let cut = pipeline_cut(&net, &views, &case.rows, &ranks).unwrap();
            println!("{name}: {cut:?}");
            assert_eq!(cut.ranges.len(), parts);
            let pinned: Vec<String> =
                cut.ranges[1..].iter().map(|range| range.start.to_string()).collect();
            let pinned: PinnedCut = format!("cut={}", pinned.join(",")).parse().unwrap();
            assert_eq!(pinned.ranges(&costs.can_cut, parts).unwrap(), cut.ranges);
            let found = case.pipelined(&net, &cut.ranges, 4);
            let found = difference(&net, &found, &case.alone(&net, 4));
            assert_eq!(found, None, "{name} in {parts} parts");
        }
    }
}

/// The bytes of the cut's costs are those of the messages, whose heads are left out.
#[test]
fn the_bytes_of_a_cut_are_those_of_its_messages() {
    let _generator = generator();
    crate::torch::threads::set_threads(1);
    let case = PipelineCase::new("mlp", 8);
    let net = case.net();
    let nodes = net.program.graph.nodes.len();
    let views = net.aligned_views(&case.params(&net)).unwrap();
    let costs = measured_costs(&net, &views, &case.rows).unwrap();
    for at in positions(&net) {
        let plan = StagePlan::new(&net, ranges(&[at], nodes), PartPlacement::Separate).unwrap();
        let mut pipeline = LocalPipeline::new(&net, &plan, &case.params(&net)).unwrap();
        let batch = case.batch();
        let batches = MicroBatches::new(&net, &batch, 1, SEED, 1.0);
        let _gradient = pipeline.gradient(&batches).unwrap();
        let (bytes, sent) = (costs.boundary_bytes[at], pipeline.sent_bytes());
        assert!(bytes > 0 && sent > bytes && sent <= 2 * bytes + 500, "{at}: {bytes}, {sent}");
    }
}

#[test]
fn wrong_plans_and_products_of_16_bits_are_refused() {
    let case = PipelineCase::new("resnet", 4);
    let net = case.net();
    let nodes = net.program.graph.nodes.len();
    let refused = |ranges: Vec<Range<usize>>| {
        StagePlan::new(&net, ranges, PartPlacement::Separate).unwrap_err().why
    };
    let segments = segments(&net);
    let forbidden = (1..nodes).find(|&at| !segments.can_cut()[at]);
    if let Some(at) = forbidden {
        assert!(refused(ranges(&[at], nodes)).contains(&format!("node {at}")));
    }
    assert!(refused(ranges(&[], nodes - 1)).contains("other nodes"));
    assert!(refused(ranges(&[2], nodes)[1..].to_vec()).contains("node 2"));
    assert!(refused(vec![0..0, 0..nodes]).contains("node 0"));
    let half = case.net().with_precision(Precision::Bf16);
    let why = StagePlan::new(&half, ranges(&[], nodes), PartPlacement::Separate).unwrap_err().why;
    assert!(why.contains("32 bits"), "{why}");
}

#[test]
fn messages_of_another_cut_are_refused() {
    let _generator = generator();
    crate::torch::threads::set_threads(1);
    let case = PipelineCase::new("mlp", 4);
    let net = case.net();
    let nodes = net.program.graph.nodes.len();
    let at = positions(&net)[0];
    let plan = StagePlan::new(&net, ranges(&[at], nodes), PartPlacement::Separate).unwrap();
    let params = case.params(&net);
    let views = || net.aligned_views(&params).unwrap();
    let rows = case.rows.part(0, case.rows.len()).unwrap();
    let batch = MicroBatch { number: 0, rows, worker_seed: 1, share: 0.25, weight: 1.0 };
    let mut first = Stage::new(&net, &plan, 0, views()).unwrap();
    let mut last = Stage::new(&net, &plan, 1, views()).unwrap();
    assert!(last.forward(&batch, &[]).is_err());
    assert!(first.backward(&batch, &[], &views()).is_err());
    let sent = first.forward(&batch, &[]).unwrap();
    assert!(first.backward(&batch, &[], &views()).is_err());
    assert!(last.forward(&batch, &sent).is_ok());
    assert!(Stage::new(&net, &plan, 2, views()).is_err());
}
