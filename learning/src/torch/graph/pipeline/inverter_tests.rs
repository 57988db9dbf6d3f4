//! The rows and labels that another rank can compute from what it receives: rows by a linear inverter of the
//! values that cross the first cut, and labels by a trial of each at the last part.

use std::path::Path;

use tch::{Device, Kind, Tensor};

use super::super::micro_batches::MicroBatch;
use super::super::net::program;
use super::super::{GraphNet, generator};
use super::stage::{Stage, StagePlan, owner_ends};
use super::travel::unpack;
use crate::data::{DataSource, Dataset, load};
use crate::graph::{
    BufferPolicy, GraphDeclaration, GraphForm, GraphLoss, GraphModel, GraphParts, Place,
    read_archive, split,
};
use crate::pipeline::PartPlacement::EndsTogether;
use crate::pipeline::PipelineValue;
use crate::torch::batches::Rows;
use crate::torch::{Torch, TorchDevice};

/// Rows for the inverter, and those that it has not seen.
const TRAINED: i64 = 900;
const UNSEEN: i64 = 400;
/// The weight of the inverter's penalty, relative to the mean square of its inputs.
const RIDGE: f64 = 1e-3;
const CLASSES: i64 = 10;

/// The model of the handwritten digits, its start, and its rows.
fn digits() -> (GraphModel, Vec<f32>, Dataset) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/images/digits.pt2");
    let (graph, weights) = read_archive(&file).unwrap();
    let parts = split(&graph, &weights, &["*".to_owned()], BufferPolicy::Average).unwrap();
    let GraphParts { graph, tensors, initial, frozen, inputs } = parts;
    let declaration = GraphDeclaration {
        form: GraphForm::Operators,
        digest: [1; 32],
        inputs,
        targets: 0,
        outputs: CLASSES as usize,
        loss: GraphLoss::CrossEntropy { label_smoothing: 0.0 },
        tensors,
    };
    let model = GraphModel::load(declaration, &graph, frozen.as_deref()).unwrap();
    (model, initial, load(&DataSource::Digits).unwrap())
}

/// The tensors of a message, each with the rows first, in one matrix.
fn matrix(values: &[PipelineValue]) -> Tensor {
    let tensors = values.iter().filter_map(|value| match value {
        PipelineValue::Tensor(tensor) => Some(unpack(tensor, Device::Cpu).unwrap()),
        _ => None,
    });
    let rows = |tensor: Tensor| tensor.flatten(1, -1).to_kind(Kind::Double);
    Tensor::cat(&tensors.map(rows).collect::<Vec<_>>(), 1)
}

/// The mean square of an inverter's error for unseen rows, relative to their variance.
fn inverter_error(inputs: &Tensor, rows: &Tensor) -> f64 {
    let parts = |all: &Tensor| {
        let trained = all.narrow(0, 0, TRAINED);
        let mean = trained.mean_dim([0_i64].as_slice(), true, Kind::Double);
        (trained - &mean, all.narrow(0, TRAINED, UNSEEN) - mean)
    };
    let ((x, x_unseen), (y, y_unseen)) = (parts(inputs), parts(rows));
    let products = x.matmul(&x.tr());
    let penalty = products.trace() * (RIDGE / TRAINED as f64);
    let penalised = &products + Tensor::eye(TRAINED, (Kind::Double, Device::Cpu)) * penalty;
    let weights = Tensor::linalg_solve(&penalised, &y, true);
    let found = x_unseen.matmul(&x.tr()).matmul(&weights);
    let square = |tensor: Tensor| tensor.square().sum(Kind::Double).double_value(&[]);
    square(found - &y_unseen) / square(y_unseen)
}

fn micro_batch(rows: Rows) -> MicroBatch {
    let share = 1.0 / rows.len() as f64;
    MicroBatch { number: 0, rows, worker_seed: 1, share, weight: 1.0 }
}

#[test]
fn an_inverter_finds_less_of_the_rows_behind_a_deeper_first_part() {
    let _generator = generator();
    let (model, start, data) = digits();
    let net = GraphNet::new(&model, program(&model).unwrap(), Device::Cpu, Kind::Float).unwrap();
    let params = Tensor::from_slice(&net.align(&start));
    let views = || net.aligned_views(&params).unwrap();
    let engine = Torch::new(TorchDevice::Cpu, 1).unwrap();
    let rows = engine.graph_rows(&data, 0..(TRAINED + UNSEEN) as usize).unwrap();
    let pixels = rows.numbers.to_kind(Kind::Double);
    let batch = micro_batch(rows);
    let (ends, nodes) = (owner_ends(&net), net.program.graph.nodes.len());
    let last = ends.last_part(3).unwrap();
    let first: Vec<usize> = (0..last).filter(|&at| ends.first_cuts(last)[at]).collect();
    let mut errors = Vec::new();
    for at in [first[0], first[first.len() / 2], first[first.len() - 1]] {
        let plan = StagePlan::new(&net, vec![0..at, at..last, last..nodes], EndsTogether).unwrap();
        let mut stage = Stage::new(&net, &plan, 0, views()).unwrap();
        let inputs = matrix(&stage.forward(&batch, &[]).unwrap());
        errors.push(inverter_error(&inputs, &pixels));
        let (operation, error) =
            (&net.program.graph.nodes[at - 1].operation, errors.last().unwrap());
        println!("behind node {at} of {nodes}, {operation:?}: error {error:.4}");
    }
    assert!(errors[0] < 0.2 && errors.is_sorted() && errors[2] > 2.0 * errors[0], "{errors:?}");
}

#[test]
fn a_trial_of_each_label_at_the_start_of_the_last_part_finds_the_labels() {
    let _generator = generator();
    let (model, mut start, data) = digits();
    // The example's head begins at zero, that of a later round does not.
    for place in &program(&model).unwrap().places {
        if let Place::Travels { range, sizes, .. } = place
            && sizes.first() == Some(&CLASSES)
        {
            for (number, value) in (0_u16..).zip(&mut start[range.clone()]) {
                *value = (f32::from(number) * 1.7).sin() * 0.3;
            }
        }
    }
    let net = GraphNet::new(&model, program(&model).unwrap(), Device::Cpu, Kind::Float).unwrap();
    let params = Tensor::from_slice(&net.align(&start));
    let views = || net.aligned_views(&params).unwrap();
    let engine = Torch::new(TorchDevice::Cpu, 1).unwrap();
    let count = 200;
    let rows = || engine.graph_rows(&data, 0..count).unwrap();
    let (ends, nodes) = (owner_ends(&net), net.program.graph.nodes.len());
    let last = ends.last_part(3).unwrap();
    let first = ends.first_cuts(last).iter().position(|&can| can).unwrap();
    let plan =
        StagePlan::new(&net, vec![0..first, first..last, last..nodes], EndsTogether).unwrap();
    let stage = |part| Stage::new(&net, &plan, part, views()).unwrap();
    let honest = micro_batch(rows());
    let values = stage(0).forward(&honest, &[]).unwrap();
    let values = stage(1).forward(&honest, &values).unwrap();
    // The gradient that returns for these labels.
    let slots = net.aligned_views(&params.zeros_like()).unwrap();
    let returned = |labels: Tensor| {
        let batch = micro_batch(Rows { labels, ..rows() });
        let mut last = stage(2);
        assert!(last.forward(&batch, &values).unwrap().is_empty());
        matrix(&last.backward(&batch, &[], &slots).unwrap().0)
    };
    let seen = returned(rows().labels);
    let distances = (0..CLASSES).map(|class| {
        let tried = returned(rows().labels.full_like(class));
        (tried - &seen).square().sum_dim_intlist([1_i64].as_slice(), false, Kind::Double)
    });
    let found = Tensor::stack(&distances.collect::<Vec<_>>(), 0).argmin(0, false);
    let right = found.eq_tensor(&rows().labels).sum(Kind::Int64).int64_value(&[]);
    println!("{right} of {count} labels");
    assert!(right > 9 * count as i64 / 10, "{right}");
}
