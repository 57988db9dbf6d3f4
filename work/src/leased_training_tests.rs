//! Orders on models of PyTorch: providers, auditors and referees have one result.

use std::collections::BTreeMap;
use std::path::Path;

use florin_compute::{AuditTerms, ComputeJob, ComputeOrder, Deposits, PARTS, Windows};
use florin_learning::checkpoint::TrainingState;
use florin_learning::data::{DataSource, canonical_bytes, load};
use florin_learning::graph::{BufferPolicy, GraphParts, read_archive, split};
use florin_learning::{Dataset, EngineKind, Trainer, engine, tensors};
use florin_protocol::*;

use crate::graph::load_declared;
use crate::{LeasedTraining, LeasedTrainingError};

/// Steps of a segment. The last segment of the 18 steps has three.
const STEPS: u32 = 5;

/// An order with its job and its blobs.
struct TestOrder {
    order: ComputeOrder,
    job: ComputeJob,
    blobs: BTreeMap<Digest, Vec<u8>>,
}

fn trainer() -> Box<dyn florin_learning::engine::Engine> {
    engine(EngineKind::Torch, 1).unwrap()
}

fn parts(name: &str) -> GraphParts {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../learning/data/graphs");
    let (graph, weights) = read_archive(&folder.join(format!("{name}.pt2"))).unwrap();
    split(&graph, &weights, &["*".to_owned()], BufferPolicy::Average).unwrap()
}

/// Digits, by their remainder of a division by the three classes of the models.
fn rows() -> Dataset {
    let digits = load(&DataSource::Digits).unwrap().slice(0..133).unwrap();
    let labels = digits.labels().iter().map(|label| label % 3).collect();
    Dataset::new(digits.features().to_vec(), labels, digits.width(), 3).unwrap()
}

impl TestOrder {
    fn new(name: &str, optimizer: Optimizer) -> Self {
        let parts = parts(name);
        let mut blobs = BTreeMap::new();
        let mut blob = |bytes: Vec<u8>| {
            let blob = Blob { digest: blob_digest(&bytes), bytes: bytes.len() as u64 };
            blobs.insert(blob.digest, bytes);
            blob
        };
        let shape = |tensor: &florin_learning::TensorSpec| TensorShape {
            name: tensor.name.clone(),
            shape: tensor.shape.iter().map(|&size| size as u32).collect(),
        };
        let graph = GraphModel {
            form: GraphForm::Operators,
            graph: blob(parts.graph.clone()),
            frozen: parts.frozen.clone().map(&mut blob),
            inputs: parts.inputs as u32,
            targets: 0,
            outputs: 3,
            loss: ModelLoss::CrossEntropy { label_smoothing: Micro::ZERO },
            tensors: parts.tensors.iter().map(shape).collect(),
        };
        let all = [Some(&parts.graph), parts.frozen.as_ref()];
        let loaded = load_declared(&graph, &mut |digest, _| {
            let found = all.into_iter().flatten().find(|bytes| blob_digest(bytes) == digest);
            Ok::<_, Rejection>(found.cloned().unwrap())
        });
        let model = florin_learning::ModelSpec::Graph(Box::new(loaded.unwrap()));
        let start = blob(tensors::encode(&model, &parts.initial).unwrap());
        let rows_blob = blob(canonical_bytes(&rows()));
        // Eight batches of sixteen rows and one of five, once, and again.
        let training = Training {
            epochs: 2,
            batch: 16,
            learning_rate: Micro(20_000),
            optimizer,
            ..TaskSpec::example().training
        };
        let (row_count, seed) = (133, 5);
        let job = ComputeJob {
            graph,
            start,
            rows: rows_blob,
            row_count,
            training,
            virtual_workers: 4,
            seed,
        };
        let mut order = order(&job);
        order.start = Digest(crate::initial_state(&job, &parts.initial).digest());
        Self { order, job, blobs }
    }

    fn load(&self) -> Result<LeasedTraining, Rejection> {
        LeasedTraining::load(&self.order, &self.job, |digest, bytes| {
            let found = self.blobs.get(&digest).cloned();
            assert_eq!(found.as_ref().map(|found| found.len() as u64), Some(bytes));
            Ok(found.unwrap())
        })
    }
}

fn order(job: &ComputeJob) -> ComputeOrder {
    let units = Amount::from_units;
    ComputeOrder {
        market: MarketId { chain: ChainId(1), genesis: Digest([3; 32]) },
        renter: Address([1; 20]),
        referee: Address([2; 20]),
        job: job.digest(),
        class: Digest([5; 32]),
        start: Digest([6; 32]),
        first_segment: 0,
        nonce: 1,
        segments: 4,
        steps: STEPS,
        price_max: units(20_000),
        step_us_max: 1_000_000,
        deposits: Deposits {
            bid_bond: units(300),
            stake: units(100_000),
            audit_bond: units(8_000),
            default_fine: units(500),
        },
        audit: AuditTerms { share: 250_000, auditors: 1, colluding: 0, fee: units(700) },
        windows: Windows {
            bid: 1_000,
            reveal: 1_000,
            fund: 1_000,
            slack: 2 * PARTS,
            segment: 500,
            draw: 1_000,
            audit: 1_000,
            answer: 100,
        },
    }
}

/// The state at the start of each segment, and the last one; each segment on an engine of its own, from bytes.
fn segments(training: &LeasedTraining) -> Vec<TrainingState> {
    let mut states = vec![training.initial()];
    for _ in 0..4 {
        let bytes = states.last().unwrap().to_bytes().unwrap();
        let from = training.state(&bytes).unwrap();
        states.push(training.end_of_segment(&mut *trainer(), &from).unwrap());
    }
    states
}

#[test]
fn each_segment_has_one_end_on_every_machine_of_a_class() {
    let betas = Optimizer::AdamW { beta1: Micro(900_000), beta2: Micro(990_000) };
    // Statistics of batches; dropout and the moments of an optimizer.
    for (name, optimizer) in [("resnet", Optimizer::Sgd), ("vit", betas)] {
        let test = TestOrder::new(name, optimizer);
        test.order.check_job(&test.job).unwrap();
        let training = test.load().unwrap();
        let states = segments(&training);
        let steps: Vec<u64> = states.iter().map(TrainingState::step).collect();
        assert_eq!(steps, [0, 5, 10, 15, 18], "{name}");
        // An auditor of the last segment starts from a state that it was served.
        let audited = test.load().unwrap();
        for (number, pair) in states.windows(2).enumerate() {
            let mut engine = trainer();
            let trace = audited.trace_of_segment(&mut *engine, &pair[0]).unwrap();
            assert_eq!(trace.len(), STEPS as usize);
            assert_eq!(trace.last(), Some(&Digest(pair[1].digest())), "{name} {number}");
            // Each side of a dispute has the states of the trace, and a referee computes the next step.
            let mut before = pair[0].clone();
            for (step, digest) in trace.iter().enumerate() {
                let state =
                    audited.state_in_segment(&mut *trainer(), &pair[0], step as u32 + 1).unwrap();
                assert_eq!(Digest(state.digest()), *digest, "{name} {number} {step}");
                let ruled = audited.step(&mut *trainer(), &before).unwrap();
                assert_eq!(Digest(ruled.digest()), *digest, "{name} {number} {step}");
                before = ruled;
            }
        }
        assert!(states[4].mean_loss() < 1.5, "{}", states[4].mean_loss());
    }
}

#[test]
fn other_work_has_another_end() {
    let test = TestOrder::new("resnet", Optimizer::Sgd);
    let training = test.load().unwrap();
    let honest = training.end_of_segment(&mut *trainer(), &training.initial()).unwrap();
    let changes: [fn(&mut ComputeJob); 4] = [
        |job| job.seed += 1,
        |job| job.virtual_workers = 2,
        |job| job.training.learning_rate = Micro(20_001),
        |job| job.training.batch = 15,
    ];
    for change in changes {
        let mut job = test.job.clone();
        change(&mut job);
        let segments = job.steps().div_ceil(u64::from(STEPS)) as u32;
        let order = ComputeOrder { job: job.digest(), segments, ..test.order.clone() };
        let other = TestOrder { order, job, blobs: test.blobs.clone() };
        let loaded = other.load().unwrap();
        let end = loaded.end_of_segment(&mut *trainer(), &loaded.initial()).unwrap();
        assert_ne!(end.digest(), honest.digest());
    }
}

#[test]
fn a_job_that_is_not_the_orders_is_refused() {
    let test = TestOrder::new("resnet", Optimizer::Sgd);
    let refused = |change: fn(&mut TestOrder)| {
        let TestOrder { order, job, blobs } = &test;
        let mut other = TestOrder { order: order.clone(), job: job.clone(), blobs: blobs.clone() };
        change(&mut other);
        other.load().unwrap_err().to_string()
    };
    for (why, error) in [
        ("commitment", refused(|test| test.job.seed += 1)),
        ("segments is 5", refused(|test| test.order.segments = 5)),
        ("other initial parameters", refused(|test| test.order.start = Digest([9; 32]))),
        (
            "another digest",
            refused(|test| {
                let rows = test.job.rows.digest;
                test.blobs.get_mut(&rows).unwrap()[100] ^= 1;
            }),
        ),
        (
            "rows",
            refused(|test| {
                test.job.row_count = 132;
                test.order.job = test.job.digest();
            }),
        ),
    ] {
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[test]
fn a_state_inside_a_segment_is_no_start() {
    let test = TestOrder::new("resnet", Optimizer::Sgd);
    let training = test.load().unwrap();
    let mut engine = trainer();
    let inside = training.state_in_segment(&mut *engine, &training.initial(), 3).unwrap();
    let error = training.end_of_segment(&mut *engine, &inside).unwrap_err();
    assert_eq!(error, LeasedTrainingError::NoStart { step: 3, steps: STEPS, total: 18 });
    let last = segments(&training).pop().unwrap();
    let error = training.end_of_segment(&mut *engine, &last).unwrap_err();
    assert_eq!(error, LeasedTrainingError::NoStart { step: 18, steps: STEPS, total: 18 });
    assert_eq!(training.step(&mut *engine, &last).unwrap(), last, "nothing follows the last step");
    let first = training.state_in_segment(&mut *engine, &training.initial(), 0).unwrap();
    assert_eq!(first, training.initial());
    // The plain engine has other bits, and says that it cannot.
    let mut plain = florin_learning::Reference::new();
    let error = training.end_of_segment(&mut plain as &mut dyn Trainer, &training.initial());
    assert!(error.unwrap_err().to_string().contains("trains no segments"));
}
