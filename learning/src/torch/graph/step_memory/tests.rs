//! Steps within a memory: predicted and measured sizes, and the bits of steps by plans.

use super::*;
use crate::graph::{BufferPolicy, NotObserved};
use crate::model::ModelSpec;
use crate::torch::graph::generator;
use crate::torch::graph::net::program;
use crate::torch::graph::tests::{ALL, GraphTask, models};
use crate::torch::tape::NoRestore;
use tch::{Device, Kind};

/// A model with its parameters on a device, and rows.
struct MemoryCase {
    device: Device,
    task: GraphTask,
    rows: Rows,
}

impl MemoryCase {
    fn new(name: &str, rows: usize, device: Device) -> Self {
        let task = GraphTask::load(name, ALL, BufferPolicy::Average);
        let of_device = match device {
            Device::Cpu => crate::torch::TorchDevice::Cpu,
            _ => crate::torch::TorchDevice::Gpu,
        };
        let engine = crate::torch::Torch::new(of_device, 1).unwrap();
        let all = engine.graph_rows(&task.rows, 0..task.rows.rows()).unwrap();
        let places: Vec<i64> = (0..rows).map(|row| (row % all.len()) as i64).collect();
        let rows = all.select(&Tensor::from_slice(&places).to_device(device)).unwrap();
        Self { device, task, rows }
    }

    fn net(&self) -> GraphNet<'_> {
        let ModelSpec::Graph(model) = &self.task.model else { panic!("a graph") };
        GraphNet::new(model, program(model).unwrap(), self.device, Kind::Float).unwrap()
    }

    fn record(&self, net: &GraphNet<'_>) -> Result<Option<Recorded>, BackendError> {
        record(net, &self.views(net), &self.rows, self.rows.len() as u32, u64::MAX)
    }

    fn views(&self, net: &GraphNet<'_>) -> Vec<Tensor> {
        net.views(&Tensor::from_slice(&self.task.start).to_device(self.device)).unwrap()
    }
}

/// The gradient of a step, its losses, and the bytes of its tensors at once.
fn measured(
    net: &GraphNet<'_>,
    case: &MemoryCase,
    planned: Option<&PlannedTape<'_>>,
) -> (Vec<f32>, Vec<f32>, u64) {
    let views = case.views(net);
    let flat = Tensor::zeros(case.task.start.len() as i64, (Kind::Float, case.device));
    let slots = net.views(&flat).unwrap();
    let found = match planned {
        Some(planned) => {
            let losses = planned.gradient(net, &views, &case.rows, 0.5, &slots, &mut NotObserved);
            (losses.map_err(BackendError::from).unwrap(), planned.tape.peak())
        }
        None => {
            let tape = Tape::new(case.device, false, Arc::new(NoRestore)).unwrap();
            let recording = tape.record(false).unwrap();
            let losses = net.gradient(&views, &case.rows, RunMode::Training, 0.5, &slots);
            drop(recording);
            (losses.map_err(BackendError::from).unwrap(), tape.peak())
        }
    };
    let numbers = |tensor: &Tensor| {
        Vec::<f32>::try_from(tensor.to_device(Device::Cpu).to_kind(Kind::Float)).unwrap()
    };
    (numbers(&flat), numbers(&found.0), found.1)
}

/// Of a disk that is slow enough for any recomputation.
const RATES: MemoryRates = MemoryRates { write: 1e3, read: 1e3, fresh: f64::INFINITY };

#[test]
fn a_trace_of_few_rows_predicts_the_memory_of_many() {
    let _generator = generator();
    crate::torch::threads::set_threads(1);
    for name in models() {
        for rows in [1, 7, 24] {
            let case = MemoryCase::new(&name, rows, Device::Cpu);
            let net = case.net();
            let recorded = case.record(&net).unwrap();
            let Some(recorded) = recorded else {
                println!("{name} {rows}: no trace");
                continue;
            };
            let predicted = recorded.trace.peak(rows as u32);
            let (_, _, peak) = measured(&net, &case, None);
            let ratio = predicted as f64 / peak as f64;
            println!("{name} {rows}: {predicted} predicted, {peak} measured, {ratio:.3}");
            assert!((ratio - 1.0).abs() <= 0.01, "{name} {rows}");
        }
    }
}

#[test]
fn a_step_by_a_plan_has_the_same_bits_within_the_limit() {
    let _generator = generator();
    crate::torch::threads::set_threads(1);
    let settings = MemorySettings::default();
    let mut planned = [0_usize; 3];
    for name in models() {
        let case = MemoryCase::new(&name, 24, Device::Cpu);
        let net = case.net();
        tch::manual_seed(7);
        let (gradient, losses, _) = measured(&net, &case, None);
        let rows = case.rows.len() as u32;
        for percent in [90, 75, 60, 50, 40, 30] {
            for by_recomputing in [false, true] {
                let recorded = case.record(&net).unwrap();
                let Some(recorded) = recorded else { break };
                let limit = recorded.trace.peak(rows) * percent / 100;
                let mut again = ways(&recorded, rows);
                again.iter_mut().for_each(|way| way.seconds = 0.0);
                let again = if by_recomputing { again } else { Vec::new() };
                let plan = match admit(&recorded.trace, rows, (0, limit), RATES, &again) {
                    Admission::FitsByPlan(plan) => *plan,
                    Admission::Fits { .. } => panic!("{name} fits into {percent} %"),
                    Admission::TooLarge { needed, .. } => {
                        println!("{name} {percent} %: too large, {needed} of {limit}");
                        planned[2] += 1;
                        continue;
                    }
                };
                let (offloaded, recomputed) =
                    (plan.bytes(SavedRule::Offload), plan.bytes(SavedRule::Recompute));
                let predicted = plan.peak;
                let planned_tape =
                    PlannedTape::new(&net, &recorded, plan, (&settings, None)).unwrap();
                for again in 0..2 {
                    tch::manual_seed(7);
                    let found = measured(&net, &case, Some(&planned_tape));
                    println!(
                        "{name} {percent} % {again}: {} measured, {predicted} planned of {limit}, \
                         {offloaded} offloaded, {recomputed} recomputed",
                        found.2
                    );
                    assert!(found.0 == gradient, "{name} {percent} %: another gradient");
                    assert!(found.1 == losses, "{name} {percent} %: other losses");
                    // Views of restored memory have a few bytes of their own.
                    let most = predicted + predicted / 1_000;
                    assert!(found.2 <= most.min(limit), "{name} {percent} %: {}", found.2);
                }
                planned[usize::from(recomputed > 0)] += 1;
            }
        }
    }
    println!("{planned:?} by offloading, with recomputation, too large");
    assert!(planned[0] > 0 && planned[1] > 0);
}

/// Rows of a step on a GPU, and the least bytes of one that is compared: blocks of its allocator are small
/// beside such tensors.
const GPU_ROWS: usize = 32_768;
const GPU_BYTES_MIN: u64 = 64 << 20;
/// Share of a GPU's tensors by which its blocks may exceed a plan.
const GPU_BLOCKS: f64 = 0.1;

#[test]
fn a_gpu_offloads_to_its_host_with_the_same_bits() {
    if crate::torch::gpu::probe().gpus == 0 {
        println!("SKIPPED: no GPU");
        return;
    }
    let _generator = generator();
    let settings = MemorySettings::default();
    let (mut planned, mut problems) = (0, Vec::new());
    let places = gpu_of(Device::Cuda(0)).map(HostPlaces::new);
    for name in models() {
        let case = MemoryCase::new(&name, GPU_ROWS, Device::Cuda(0));
        let net = case.net();
        let once = |planned: Option<&PlannedTape<'_>>| {
            tch::manual_seed(7);
            measured(&net, &case, planned)
        };
        // The first step makes workspaces of libraries.
        once(None);
        let (gradient, losses, peak) = once(None);
        // Some kernels of a GPU add in another order each time.
        let is_exact = once(None).0 == gradient && once(None).0 == gradient;
        let Some(recorded) = case.record(&net).unwrap() else {
            println!("{name}: no trace");
            continue;
        };
        let rows = case.rows.len() as u32;
        let ratio = recorded.trace.peak(rows) as f64 / peak as f64;
        println!("{name}: {peak} bytes, predicted {ratio:.3}, exact: {is_exact}");
        if peak < GPU_BYTES_MIN {
            continue;
        }
        if (ratio - 1.0).abs() > GPU_BLOCKS {
            problems.push(format!("{name}: predicted {ratio:.3}"));
        }
        for percent in [80, 65, 50] {
            let limit = recorded.trace.peak(rows) * percent / 100;
            let again = ways(&recorded, rows);
            let rates = store::rates(net.device, &settings.folder).unwrap();
            let plan = match admit(&recorded.trace, rows, (0, limit), rates, &again) {
                Admission::FitsByPlan(plan) => *plan,
                other => {
                    println!("{name} {percent} %: {other:?}");
                    continue;
                }
            };
            let offloaded = plan.bytes(SavedRule::Offload);
            let planned_tape =
                PlannedTape::new(&net, &recorded, plan, (&settings, places.as_ref())).unwrap();
            for _ in 0..3 {
                let found = once(Some(&planned_tape));
                println!("{name} {percent} %: {} of {limit}, {offloaded} offloaded", found.2);
                let of = [
                    ("another gradient", is_exact && found.0 != gradient),
                    ("other losses", found.1 != losses),
                    ("too much", found.2 as f64 > limit as f64 * (1.0 + GPU_BLOCKS)),
                ];
                let of = of.iter().filter(|(_, holds)| *holds);
                problems.extend(of.map(|(what, _)| format!("{name} {percent} %: {what}")));
            }
            planned += usize::from(offloaded > 0);
        }
    }
    println!("{planned} plans");
    assert!(planned > 0 && problems.is_empty(), "{problems:#?}");
}
