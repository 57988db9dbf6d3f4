//! Pipelines whose rows stay with their owner: the bits, what leaves the owner, and what it accepts.

use std::ops::Range;
use std::sync::Mutex;

use tch::{Device, Kind, Tensor};

use super::super::GraphNet;
use super::super::generator;
use super::super::micro_batches::MicroBatches;
use super::super::step_memory::StepMemory;
use super::super::tests::models;
use super::super::virtual_workers::VirtualGradients;
use super::links::MessageTag;
use super::local::LocalPipeline;
use super::rank::check_cut;
use super::stage::{StagePlan, owner_ends, segments};
use super::tests::{PipelineCase, SEED, bits, difference};
use super::travel::pack;
use crate::data::Dataset;
use crate::engine::TrainError;
use crate::pipeline::PartPlacement::EndsTogether;
use crate::pipeline::{MessageKind, PipelineTensor, PipelineValue, decode_message, encode_message};
use crate::ranks::{PipelinePlace, RankErrorCode, RankSpeed, RankTraining};
use crate::torch::batches::Rows;
use crate::torch::descent::Batch;
use crate::torch::partial_sums::{PartialSums, ReadyElements};
use crate::torch::peers::{Arrival, CutCosts, FoundCut, Peers, ReceivedSum, TAIL};

/// A number that stands for secrets of the owner.
const SECRET: f64 = 7.25e7;

fn place(processes: u32) -> PipelinePlace {
    let (process, replica, replicas) = (0, 0, 1);
    PipelinePlace { process, processes, placement: EndsTogether, replica, replicas }
}

/// Some cuts into `parts` parts, with the smallest last part.
fn cuts(net: &GraphNet<'_>, parts: usize) -> Vec<Vec<Range<usize>>> {
    let (ends, nodes) = (owner_ends(net), net.program.graph.nodes.len());
    let Ok(last) = ends.last_part(parts) else { return Vec::new() };
    let can_cut = segments(net).can_cut().to_vec();
    let first: Vec<usize> = (0..last).filter(|&at| ends.first_cuts(last)[at]).collect();
    let of_first = |&first: &usize| {
        let inner: Vec<usize> = (first + 1..last).filter(|&at| can_cut[at]).collect();
        let count = parts - 3;
        if inner.len() < count {
            return None;
        }
        let inner = (1..=count).map(|at| inner[at * inner.len() / (count + 1)]);
        let starts: Vec<usize> = [0, first].into_iter().chain(inner).chain([last, nodes]).collect();
        Some(starts.windows(2).map(|pair| pair[0]..pair[1]).collect())
    };
    let step = first.len().div_ceil(4).max(1);
    first.iter().step_by(step).filter_map(of_first).collect()
}

/// The parameters of a rank beside the owner: the owner's are a number that is none.
fn params_of_others(net: &GraphNet<'_>, plan: &StagePlan, params: &Tensor) -> Tensor {
    let (own, shared) = (params.copy(), plan.shared(net).unwrap());
    for (tensor, range) in net.aligned_ranges().into_iter().enumerate() {
        if !shared[tensor] {
            let mut place = own.narrow(0, range.start as i64, range.len() as i64);
            let _ = place.fill_(f64::NAN);
        }
    }
    own
}

/// Rows of another content.
fn garbage(batch: &Batch) -> Batch {
    let Rows { numbers, labels } = &batch.rows;
    let rows = Rows { numbers: numbers.full_like(f64::NAN), labels: labels.full_like(-9) };
    Batch { step: batch.step, rows }
}

struct PrivateRun<'n> {
    pipeline: LocalPipeline<'n>,
    batch: Batch,
    garbage: Batch,
    workers: u32,
}

impl<'n> PrivateRun<'n> {
    fn new(
        case: &PipelineCase,
        net: &'n GraphNet<'n>,
        ranges: &[Range<usize>],
        workers: u32,
    ) -> Self {
        let plan = StagePlan::new(net, ranges.to_vec(), EndsTogether).unwrap();
        let (params, others) = (case.params(net), params_of_others(net, &plan, &case.params(net)));
        let params = |process| if process == 0 { params.copy() } else { others.copy() };
        let pipeline = LocalPipeline::with_params(net, &plan, &params).unwrap();
        let batch = case.batch();
        let garbage = garbage(&batch);
        Self { pipeline, batch, garbage, workers }
    }

    fn gradient(&mut self, net: &GraphNet<'_>) -> Result<Tensor, TrainError> {
        let parts = |batch| MicroBatches::new(net, batch, self.workers, SEED, 1.0);
        let (own, others) = (parts(&self.batch), parts(&self.garbage));
        self.pipeline.gradient_of(&|process| if process == 0 { &own } else { &others })
    }
}

#[test]
fn private_pipelines_have_the_bits_of_one_process_without_rows_elsewhere() {
    let _generator = generator();
    crate::torch::threads::set_threads(1);
    let mut covered = Vec::new();
    for name in models() {
        let case = PipelineCase::new(&name, 11);
        let net = case.net();
        for (parts, workers) in [(3, 1), (3, 4), (4, 5)] {
            let expected = case.alone(&net, workers);
            for ranges in cuts(&net, parts) {
                let mut run = PrivateRun::new(&case, &net, &ranges, workers);
                let found = run.gradient(&net);
                let found = found.unwrap_or_else(|error| panic!("{name} {ranges:?}: {error}"));
                let why = difference(&net, &bits(&found), &expected);
                assert_eq!(why, None, "{name} cut at {ranges:?}, {workers} workers");
                let again = bits(&run.gradient(&net).unwrap());
                assert!(again == bits(&found), "{name} {ranges:?}: another second step");
                covered.push(name.clone());
            }
        }
    }
    covered.dedup();
    println!("{covered:?}");
    for name in ["mlp", "resnet", "gpt", "vit"] {
        assert!(covered.iter().any(|own| own == name), "{name} has no private cut: {covered:?}");
    }
}

/// The values at the first cut and the gradients at the last one leave the owner in a step, and nothing else.
#[test]
fn neither_rows_nor_gradients_of_parameters_leave_the_owner() {
    let _generator = generator();
    crate::torch::threads::set_threads(1);
    for name in ["resnet", "gpt"] {
        let case = PipelineCase::new(name, 8);
        let net = case.net();
        let segments = segments(&net);
        assert!(!cuts(&net, 4).is_empty(), "{name}");
        for ranges in cuts(&net, 4) {
            let mut run = PrivateRun::new(&case, &net, &ranges, 4);
            drop(run.gradient(&net).unwrap());
            let sent = &run.pipeline.links.sent;
            let of_owner: Vec<_> =
                sent.iter().filter(|((from, _, _), _)| [0, 3].contains(from)).collect();
            assert_eq!(of_owner.len(), 2 * 4, "{name}: two messages for each micro-batch");
            for ((from, to, MessageTag { kind, .. }), message) in of_owner {
                let values = decode_message(message).unwrap();
                let (position, wanted) = match from {
                    0 => (ranges[0].end, (1, MessageKind::Activation)),
                    _ => (ranges[3].start, (2, MessageKind::Gradient)),
                };
                assert_eq!((*to, *kind), wanted);
                assert_eq!(values.len(), segments.crossing(position).len(), "{name} {ranges:?}");
                assert!(!has_row(message, &run.batch.rows), "{name} {ranges:?}: a row is sent");
            }
        }
    }
}

/// Whether a message has four neighbouring numbers of a row that are not equal.
fn has_row(message: &[u8], rows: &Rows) -> bool {
    let numbers = Vec::<f32>::try_from(rows.numbers.view([-1])).unwrap();
    let is_one = |own: &&[f32]| own.iter().all(|one| *one != 0.0) && own[0] != own[1];
    let parts: Vec<&[f32]> = numbers.windows(4).filter(is_one).take(64).collect();
    let as_bytes: Vec<&[u8]> = parts.iter().map(|own| bytemuck::cast_slice(own)).collect();
    as_bytes.iter().any(|part| message.windows(part.len()).any(|own| own == *part))
}

#[test]
fn a_cut_that_would_send_rows_or_parameters_is_refused() {
    let case = PipelineCase::new("resnet", 4);
    let net = case.net();
    let all = cuts(&net, 3);
    let (first, last) = (all[0][0].end, all[0][2].start);
    let pinned = |cut: &str| check_cut(&net, &place(2), &CutCosts::Pinned(cut.parse().unwrap()));
    assert_eq!(pinned(&format!("cut={first},{last}")), Ok(()));
    let error = pinned(&format!("cut={first}")).unwrap_err();
    assert_eq!(error.code, RankErrorCode::PlanInvalid);
    let mut raw = Vec::new();
    for name in models() {
        let case = PipelineCase::new(&name, 4);
        let net = case.net();
        let (ends, can_cut) = (owner_ends(&net), segments(&net).can_cut().to_vec());
        let Ok(last) = ends.last_part(3) else { continue };
        let first = ends.first_cuts(last).iter().position(|&can| can).unwrap();
        for at in (1..first).filter(|&at| can_cut[at]) {
            let costs = CutCosts::Pinned(format!("cut={at},{last}").parse().unwrap());
            let error = check_cut(&net, &place(2), &costs).unwrap_err();
            assert_eq!(error.code, RankErrorCode::PlanInvalid);
            let why = format!("in front of node {at} the rows cross the cut");
            let begins = format!("at which the second part can begin is {first}");
            if error.why.contains(&why) {
                assert!(error.why.contains(&begins), "{name}: {error}");
                raw.push((name.clone(), at));
            }
        }
    }
    println!("{raw:?}");
    assert!(!raw.is_empty(), "no model of the tests has rows that cross a position");
}

/// A change of a message.
type Change<'c> = &'c dyn Fn(&mut Vec<PipelineValue>);

/// A message of another rank in place of the honest one.
fn forged(
    case: &PipelineCase,
    from: u32,
    kind: MessageKind,
    change: Change<'_>,
) -> Result<Tensor, TrainError> {
    let net = case.net();
    let ranges = &cuts(&net, 3)[0];
    let mut run = PrivateRun::new(case, &net, ranges, 2);
    drop(run.gradient(&net).unwrap());
    let to = if kind == MessageKind::Activation { from + 1 } else { from - 1 };
    let place = (from, to, MessageTag { kind, micro_batch: 1 });
    let sent = run.pipeline.links.sent.iter().find(|(own, _)| *own == place).unwrap();
    let mut values = decode_message(&sent.1).unwrap();
    change(&mut values);
    run.pipeline.links.forged = Some((place, encode_message(&values).unwrap()));
    let found = run.gradient(&net);
    assert!(run.pipeline.links.forged.is_none(), "the message was sent");
    found
}

fn tensor(values: &mut [PipelineValue]) -> &mut PipelineTensor {
    let found = values.iter_mut().find_map(|value| match value {
        PipelineValue::Tensor(tensor) => Some(tensor),
        _ => None,
    });
    found.unwrap()
}

#[test]
fn the_owner_refuses_values_of_other_forms() {
    use MessageKind::{Activation, Gradient};
    let _generator = generator();
    crate::torch::threads::set_threads(1);
    let case = PipelineCase::new("resnet", 8);
    let changes: [(&str, Change<'_>); 7] = [
        ("fewer values", &|values| drop(values.pop())),
        ("an integer", &|values| values[0] = PipelineValue::Int(1 << 40)),
        ("a list", &|values| values[0] = PipelineValue::Tensors(Vec::new())),
        ("other sizes", &|values| {
            tensor(values).form.sizes.insert(0, 1);
            tensor(values).form.strides.insert(0, 1);
        }),
        ("one row", &|values| {
            let own = tensor(values);
            let row = own.bytes.len() / own.form.sizes[0] as usize;
            own.form.sizes[0] = 1;
            own.bytes.truncate(row);
        }),
        ("a long message", &|values| {
            let numbers = Tensor::zeros(1 << 22, (Kind::Float, Device::Cpu));
            values.push(PipelineValue::Tensor(pack(&numbers).unwrap()));
        }),
        ("a large memory", &|values| {
            let own = tensor(values);
            own.form.strides[0] <<= 24;
        }),
    ];
    for kind in [Activation, Gradient] {
        for (name, change) in &changes {
            match forged(&case, 1, kind, *change) {
                Err(TrainError::Ranks(error)) => {
                    assert_eq!(error.code, RankErrorCode::Differs, "{kind:?} {name}: {error}");
                }
                found => panic!("{kind:?} {name}: {found:?}"),
            }
        }
    }
    // Numbers are not looked at: the loss, or the parameters, are none, and no update is sent.
    let not_a_number = |values: &mut Vec<PipelineValue>| {
        bytemuck::cast_slice_mut::<u8, f32>(&mut tensor(values).bytes).fill(f32::NAN);
    };
    for kind in [Activation, Gradient] {
        let found = forged(&case, 1, kind, &not_a_number).unwrap();
        assert!(!bool::try_from(found.isfinite().all()).unwrap(), "{kind:?}");
    }
}

/// Peers of rank 0 that record what it gives to all.
#[derive(Debug)]
struct RecordedPeers {
    place: PipelinePlace,
    cut: Vec<Range<usize>>,
    given: Mutex<Vec<Tensor>>,
}

struct Arrived;

impl Arrival for Arrived {
    fn wait(self: Box<Self>) -> Result<(), TrainError> {
        Ok(())
    }
}

impl Peers for RecordedPeers {
    fn rank(&self) -> u32 {
        0
    }
    fn announce(&mut self, _: &RankTraining, _: &Dataset) -> Result<(), TrainError> {
        Ok(())
    }
    fn needs_speeds(&self) -> bool {
        false
    }
    fn assign(&mut self, _: Option<RankSpeed>, _: u32, _: u64) -> Result<(), TrainError> {
        Ok(())
    }
    fn own(&self, parts: usize) -> Range<usize> {
        0..parts
    }
    fn owner(&self, _: usize) -> u32 {
        0
    }
    fn can_audit(&self, _: usize) -> bool {
        false
    }
    fn overlaps(&self) -> bool {
        true
    }
    fn bucket_bytes(&self) -> u64 {
        256
    }
    fn reduce(
        &mut self,
        _: &mut PartialSums,
        _: usize,
        _: &ReadyElements,
        _: Option<u64>,
    ) -> Result<Option<ReceivedSum>, TrainError> {
        Ok(None)
    }
    fn pipeline(&self) -> Option<PipelinePlace> {
        Some(self.place)
    }
    fn cut_costs(&self) -> CutCosts {
        CutCosts::Known(self.cut.clone())
    }
    fn agree_on_cut(&mut self, found: Option<FoundCut>) -> Result<Vec<Range<usize>>, TrainError> {
        Ok(found.unwrap().nodes)
    }
    fn send(&mut self, _: &Tensor, _: u32, _: u32, _: usize) -> Result<(), TrainError> {
        Ok(())
    }
    fn receive(&mut self, _: &Tensor, _: u32, _: u32) -> Result<(), TrainError> {
        Ok(())
    }
    fn finish_sends(&mut self) -> Result<(), TrainError> {
        Ok(())
    }
    fn broadcast(&mut self, tensor: &Tensor) -> Result<Box<dyn Arrival>, TrainError> {
        self.given.lock().unwrap().push(tensor.copy());
        Ok(Box::new(Arrived))
    }
}

#[test]
fn parameters_of_the_owner_never_travel() {
    let _generator = generator();
    crate::torch::threads::set_threads(1);
    for name in ["mlp", "resnet", "gpt"] {
        let case = PipelineCase::new(name, 8);
        let net = case.net();
        for cut in cuts(&net, 3) {
            let plan = StagePlan::new(&net, cut.clone(), EndsTogether).unwrap();
            let (shared, params) = (plan.shared(&net).unwrap(), case.params(&net));
            let mut expected = 0;
            for (tensor, range) in net.aligned_ranges().into_iter().enumerate() {
                let value = if shared[tensor] { 0.5 } else { SECRET };
                let _ = params.narrow(0, range.start as i64, range.len() as i64).fill_(value);
                expected += if shared[tensor] { range.len() as i64 } else { 0 };
            }
            assert!(shared.contains(&false), "{name} {cut:?}");
            let place = place(2);
            let mut peers = RecordedPeers { place, cut, given: Mutex::default() };
            let memory = StepMemory::in_parts(2);
            let mut gradients = VirtualGradients::new(&net, 4, SEED, &params, memory).unwrap();
            gradients.share(&mut peers).unwrap();
            gradients.end_sharing().unwrap();
            let before: i64 =
                peers.given.lock().unwrap().drain(..).map(|own| own.numel() as i64).sum();
            assert_eq!(before, TAIL, "{name}: parameters travel in front of the cut");
            gradients.use_plan(&case.batch(), &mut peers).unwrap();
            gradients.share(&mut peers).unwrap();
            gradients.end_sharing().unwrap();
            let given = std::mem::take(&mut *peers.given.lock().unwrap());
            for own in &given {
                let has_secret = bool::try_from(own.eq(SECRET).any()).unwrap();
                assert!(!has_secret, "{name}: {own:?}");
            }
            let numbers: i64 = given.iter().map(|own| own.numel() as i64).sum();
            let most = 2 * (2 * expected + TAIL);
            assert!(numbers >= 2 * (expected + TAIL) && numbers <= most, "{name}: {numbers}");
        }
    }
}
