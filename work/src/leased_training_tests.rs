//! Orders on models of PyTorch: providers, auditors and referees have one result.

use std::collections::BTreeMap;
use std::path::Path;

use florin_compute::{AuditTerms, ComputeJob, ComputeOrder, Deposits};
use florin_learning::checkpoint::TrainingState;
use florin_learning::data::{DataSource, canonical_bytes, load};
use florin_learning::engine::{Engine, TrainError};
use florin_learning::graph::{BufferPolicy, GraphParts, read_archive, split};
use florin_learning::{Dataset, EngineKind, Reference, engine, tensors};
use florin_protocol::*;

use crate::graph::load_declared;
use crate::{
    GraphOutput, JobRows, LeasedTraining, LeasedTrainingError, SegmentStart, compute_class,
    declared_graph, delivered_state,
};

/// Steps of a segment. The last segment of the 18 steps has three.
const STEPS: u32 = 5;

/// An order with its job and its blobs.
struct TestOrder {
    order: ComputeOrder,
    job: ComputeJob,
    blobs: BTreeMap<Digest, Vec<u8>>,
}

fn trainer() -> Box<dyn Engine> {
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
        let loss = ModelLoss::CrossEntropy { label_smoothing: Micro::ZERO };
        let graph = declared_graph(&parts, GraphOutput { outputs: 3, targets: 0, loss });
        blob(parts.graph.clone());
        parts.frozen.clone().map(&mut blob);
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
    let example = ComputeOrder::example();
    ComputeOrder {
        job: job.digest(),
        class: compute_class(&*trainer()).unwrap(),
        segments: 4,
        steps: STEPS,
        step_us_max: 1_000_000,
        deposits: Deposits { stake: Amount::from_units(100_000), ..example.deposits },
        audit: AuditTerms { share: 250_000, auditors: 1, colluding: 0, ..example.audit },
        ..example
    }
}

fn bytes(state: &TrainingState) -> Vec<u8> {
    state.to_bytes().unwrap()
}

fn digest(state: &TrainingState) -> Digest {
    Digest(state.digest())
}

/// The start of each segment, and the state after the last one; each segment on an engine of its own, from bytes.
fn segments(training: &LeasedTraining) -> (Vec<SegmentStart>, TrainingState) {
    let mut starts: Vec<SegmentStart> = Vec::new();
    let mut state = training.initial();
    for segment in 0..4 {
        let start = training.start(segment, digest(&state), &bytes(&state)).unwrap();
        state = training.end_of_segment(&mut *trainer(), &start).unwrap();
        starts.push(start);
    }
    (starts, state)
}

#[test]
fn each_segment_has_one_end_for_every_party() {
    let betas = Optimizer::AdamW { beta1: Micro(900_000), beta2: Micro(990_000) };
    // Statistics of batches; dropout and the moments of an optimizer.
    for (name, optimizer) in [("resnet", Optimizer::Sgd), ("vit", betas)] {
        let test = TestOrder::new(name, optimizer);
        test.order.check_job(&test.job).unwrap();
        let training = test.load().unwrap();
        let (starts, last) = segments(&training);
        assert_eq!(starts[0], training.first());
        let steps: Vec<u64> = starts.iter().map(|start| start.state().step()).collect();
        assert_eq!((steps, last.step()), (vec![0, 5, 10, 15], 18), "{name}");
        // An auditor of each segment starts from a state that it was served.
        let audited = test.load().unwrap();
        for (number, start) in starts.iter().enumerate() {
            let end = starts.get(number + 1).map_or(&last, SegmentStart::state);
            let trace = audited.trace_of_segment(&mut *trainer(), start).unwrap();
            assert_eq!(trace.len(), STEPS as usize);
            assert_eq!(trace.last(), Some(&digest(end)), "{name} {number}");
            // Each side of a dispute has the states of the trace, and a referee computes the next step.
            let mut before = start.state().clone();
            for (step, expected) in (0..).zip(&trace) {
                let at = (number as u32, step);
                let ruled = audited.ruling(&mut *trainer(), at, digest(&before), &bytes(&before));
                assert_eq!(ruled.as_ref(), Ok(expected), "{name} {number} {step}");
                before = audited.state_in_segment(&mut *trainer(), start, step + 1).unwrap();
                assert_eq!(digest(&before), *expected, "{name} {number} {step}");
            }
        }
        assert!(last.mean_loss() < 1.5, "{}", last.mean_loss());
    }
}

/// A referee of private rows: those of the disputed step alone lead to the same state.
#[test]
fn a_step_is_ruled_from_its_rows_alone() {
    let betas = Optimizer::AdamW { beta1: Micro(900_000), beta2: Micro(990_000) };
    for (name, optimizer) in [("resnet", Optimizer::Sgd), ("vit", betas)] {
        let test = TestOrder::new(name, optimizer);
        let training = test.load().unwrap();
        let load = |rows: JobRows<'_>| {
            LeasedTraining::load_with(&test.order, &test.job, rows, |digest, _| {
                assert_ne!(digest, test.job.rows.digest, "the rows were read");
                Ok::<_, Rejection>(test.blobs[&digest].clone())
            })
        };
        let (mut state, mut begun) = (training.initial(), training.first());
        let mut batches = Vec::new();
        for step in 1..=18_u64 {
            let batch = training.step_rows(step);
            let (segment, before) = ((step - 1) as u32 / STEPS, (step - 1) as u32 % STEPS);
            let place = (segment, before);
            let (from, start) = (digest(&state), bytes(&state));
            if before == 0 {
                begun = training.start(segment, from, &start).unwrap();
            }
            let expected = training.ruling(&mut *trainer(), place, from, &start);
            let alone = load(JobRows::OfStep(step, &batch)).unwrap();
            let ruled = alone.ruling(&mut *trainer(), place, from, &start);
            assert_eq!(ruled, expected, "{name} {step}");
            // The rows of one step are those of no other.
            let known = step % 18 + 1;
            let other = load(JobRows::OfStep(known, &training.step_rows(known))).unwrap();
            let refused = other.ruling(&mut *trainer(), place, from, &start);
            assert_eq!(refused, Err(LeasedTrainingError::Rows { step, known }));
            batches.push(florin_learning::data::from_canonical_bytes(&batch).unwrap().rows());
            state = training.state_in_segment(&mut *trainer(), &begun, before + 1).unwrap();
            assert_eq!(Ok(digest(&state)), expected);
        }
        // Each epoch has eight batches of sixteen rows and one of five.
        let epoch = [16, 16, 16, 16, 16, 16, 16, 16, 5];
        assert_eq!(batches, [epoch, epoch].concat());
        // Behind the last step nothing is trained.
        let behind = training.step_rows(19);
        let alone = load(JobRows::OfStep(19, &behind)).unwrap();
        let stays = alone.ruling(&mut *trainer(), (3, 3), digest(&state), &bytes(&state));
        assert_eq!(stays, Ok(digest(&state)));
        let wrong = load(JobRows::OfStep(18, &training.step_rows(17))).unwrap_err();
        assert_eq!(wrong.code, ErrorCode::InvalidTask);
        // A step on zeros can be measured.
        let measured = load(JobRows::StandIn).unwrap();
        assert_eq!(measured.first(), training.first());
        measured.state_in_segment(&mut *trainer(), &measured.first(), 2).unwrap();
        let job = ComputeJob { row_count: 1 << 32, ..test.job.clone() };
        let order =
            ComputeOrder { job: job.digest(), segments: 1, steps: u32::MAX, ..test.order.clone() };
        let huge = TestOrder { order, job, blobs: test.blobs.clone() };
        let loaded =
            LeasedTraining::load_with(&huge.order, &huge.job, JobRows::StandIn, |digest, _| {
                Ok::<_, Rejection>(huge.blobs[&digest].clone())
            });
        assert!(loaded.unwrap_err().message.contains("do not fit"), "{name}");
    }
}

/// A provider whose fake state claims to be after other steps would leave later segments without an end.
#[test]
fn a_state_after_other_steps_is_no_start() {
    let test = TestOrder::new("resnet", Optimizer::Sgd);
    let training = test.load().unwrap();
    let (starts, last) = segments(&training);
    for (segment, state) in [(1, &last), (1, starts[2].state()), (2, starts[1].state()), (4, &last)]
    {
        let error = training.start(segment, digest(state), &bytes(state)).unwrap_err();
        let from = u64::from(segment * STEPS);
        let step = state.step();
        assert_eq!(error, LeasedTrainingError::NoStart { segment, step, from });
        let ruled = training.ruling(&mut *trainer(), (segment, 0), digest(state), &bytes(state));
        assert!(matches!(ruled, Err(LeasedTrainingError::NoStart { .. })), "{segment}");
    }
    let error = training.start(1, digest(&last), &bytes(starts[1].state())).unwrap_err();
    assert_eq!(error, LeasedTrainingError::Digest);
    let mut damaged = bytes(starts[1].state());
    let at = damaged.len() - 4;
    damaged[at..].copy_from_slice(&f32::NAN.to_le_bytes());
    let error = training.start(1, digest(starts[1].state()), &damaged).unwrap_err();
    assert!(error.to_string().contains("not finite"), "{error}");
}

/// Another order continues after two segments, and counts its own from 0.
#[test]
fn an_order_continues_another_one() {
    let test = TestOrder::new("resnet", Optimizer::Sgd);
    let (starts, last) = segments(&test.load().unwrap());
    let start = digest(starts[2].state());
    let order = ComputeOrder { first_segment: 2, segments: 2, start, ..test.order.clone() };
    let rest = TestOrder { order, ..test };
    let training = rest.load().unwrap();
    let first = training.start(0, start, &bytes(starts[2].state())).unwrap();
    let middle = training.end_of_segment(&mut *trainer(), &first).unwrap();
    let end = training.end_of_segment(&mut *trainer(), &first.next(middle)).unwrap();
    assert_eq!(digest(&end), digest(&last));
    // A bidder sees that such an order has no start.
    let other = training.initial();
    assert!(training.start(0, digest(&other), &bytes(&other)).is_err());
}

/// A renter cannot order a training whose segments have no end.
#[test]
fn a_step_that_diverges_is_left_out() {
    let mut test = TestOrder::new("resnet", Optimizer::Sgd);
    test.job.training.learning_rate = Micro(100_000_000);
    test.job.training.weight_decay = Micro(1_000_000);
    test.order.job = test.job.digest();
    let training = test.load().unwrap();
    let (starts, last) = segments(&training);
    assert_eq!(last.step(), 18);
    let is_finite = |state: &TrainingState| state.params().iter().all(|number| number.is_finite());
    assert!(starts.iter().all(|start| is_finite(start.state())) && is_finite(&last));
    let mut diverged = 0;
    for start in &starts {
        let trace = training.trace_of_segment(&mut *trainer(), start).unwrap();
        let mut before = start.state().clone();
        for (step, expected) in (1..).zip(&trace) {
            let state = training.state_in_segment(&mut *trainer(), start, step).unwrap();
            assert_eq!(digest(&state), *expected);
            let is_left_out = state.step() > before.step() && state.params() == before.params();
            diverged += u32::from(is_left_out);
            before = state;
        }
    }
    assert!(diverged > 0, "no step diverged");
}

#[test]
fn other_work_has_another_end() {
    let test = TestOrder::new("resnet", Optimizer::Sgd);
    let training = test.load().unwrap();
    let honest = training.end_of_segment(&mut *trainer(), &training.first()).unwrap();
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
        let end = loaded.end_of_segment(&mut *trainer(), &loaded.first()).unwrap();
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
        ("the job is not the one", refused(|test| test.job.seed += 1)),
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
fn an_engine_of_another_class_is_refused() {
    let test = TestOrder::new("resnet", Optimizer::Sgd);
    let training = test.load().unwrap();
    let error = training.end_of_segment(&mut Reference::new(), &training.first()).unwrap_err();
    assert!(matches!(error, LeasedTrainingError::Class { .. }), "{error}");
    let order = ComputeOrder { class: Digest([5; 32]), ..test.order.clone() };
    let other = TestOrder { order, ..test };
    let training = other.load().unwrap();
    let error = training.end_of_segment(&mut *trainer(), &training.first()).unwrap_err();
    assert!(error.to_string().contains("not of the order's class"), "{error}");
    let none = florin_learning::engine::InputError::Segments { engine: "chosen" };
    let plain = LeasedTrainingError::Training(TrainError::from(none));
    assert!(plain.to_string().contains("trains no segments"));
}

#[test]
fn a_result_is_the_state_after_the_delivered_segments() {
    let test = TestOrder::new("vit", Optimizer::Sgd);
    let training = test.load().unwrap();
    let (starts, last) = segments(&training);
    let result = |delivered, state: &TrainingState| {
        delivered_state(&test.order, &test.job, delivered, (digest(state), &bytes(state)))
    };
    // Four segments of five steps have the eighteen steps of the job.
    assert_eq!(result(4, &last), Ok(last.clone()));
    assert_eq!(result(3, starts[3].state()).unwrap().step(), 15);
    let early = LeasedTrainingError::NoResult { step: 15, from: 18 };
    assert_eq!(result(4, starts[3].state()), Err(early));
    let of_other = (digest(&last), &*bytes(starts[3].state()));
    let wrong = delivered_state(&test.order, &test.job, 3, of_other);
    assert_eq!(wrong, Err(LeasedTrainingError::Digest));
    let job = ComputeJob { seed: 6, ..test.job.clone() };
    let wrong = delivered_state(&test.order, &job, 4, (digest(&last), &bytes(&last)));
    assert!(matches!(wrong, Err(LeasedTrainingError::Job(_))));
}
