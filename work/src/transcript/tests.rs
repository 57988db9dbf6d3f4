//! An honest transcript has the round's result, and a forged number is found wherever it is drawn.

use std::path::Path;

use florin_contribution::SeededRng;
use florin_learning::data::load;
use florin_learning::graph::{BufferPolicy, GraphModel, read_archive, split};
use florin_learning::{DataSource, Dataset, Reference, tensors};
use florin_protocol::*;

use super::gradient::{Multipliers, PROJECTIONS, check_group, check_sum};
use super::sample::{ReplayDraws, RowGroups};
use super::*;
use crate::graph::load_declared;
use crate::tests::{TestRound, flipped, shard, world, world_with};
use crate::{CommittedHoldout, GraphOutput, compare_results, declared_graph, value_and_aggregate};

/// Everything is computed again.
const ALL: TranscriptSample = TranscriptSample { seed: 1, parts_of_32: 32 };

struct RecordedScene {
    name: &'static str,
    round: TestRound,
    graph: Option<GraphModel>,
}

impl RecordedScene {
    fn new(name: &'static str, round: TestRound) -> Self {
        Self { name, round, graph: None }
    }

    /// A round of a model of PyTorch, valued by groups of rows.
    fn graph(name: &'static str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../learning/data/graphs");
        let (graph, weights) = read_archive(&folder.join(format!("{name}.pt2"))).unwrap();
        let parts = split(&graph, &weights, &["*".to_owned()], BufferPolicy::Average).unwrap();
        let loss = ModelLoss::CrossEntropy { label_smoothing: Micro::ZERO };
        let declared = declared_graph(&parts, GraphOutput { outputs: 3, targets: 0, loss });
        let all = [Some(&parts.graph), parts.frozen.as_ref()];
        let loaded = load_declared(&declared, &mut |digest, _| {
            let found = all.into_iter().flatten().find(|bytes| blob_digest(bytes) == digest);
            Ok::<_, Rejection>(found.cloned().unwrap())
        });
        let loaded = loaded.unwrap();
        let model = florin_learning::ModelSpec::Graph(Box::new(loaded.clone()));
        let digits = load(&DataSource::Digits).unwrap();
        let labels = digits.labels().iter().map(|label| label % 3).collect();
        let rows = Dataset::new(digits.features().to_vec(), labels, digits.width(), 3).unwrap();
        let mut round = world_with(&digits, &[None, None, None], |_| ());
        round.committed = CommittedHoldout::new(rows.slice(0..500).unwrap());
        round.base = tensors::encode(&model, &parts.initial).unwrap();
        let mut rng = SeededRng::new(7, 0);
        for update in &mut round.updates {
            let step = |_: &f32| (rng.below(2_001) as f32 - 1_000.0) * 2e-5;
            let steps: Vec<f32> = parts.initial.iter().map(step).collect();
            *update = tensors::encode(&model, &steps).unwrap();
        }
        let spec = &mut round.spec;
        spec.model = ModelArchitecture::Graph(declared);
        spec.data.classes = 3;
        (spec.base_model, spec.holdout.root) = (blob_digest(&round.base), round.committed.root());
        Self { name, round, graph: Some(loaded) }
    }

    fn with_inputs<R>(&self, use_inputs: impl FnOnce(&ValuationInputs<'_>) -> R) -> R {
        let drawn = self.round.drawn();
        // The graph's rows have labels of their own, so they are disclosed without a proof of the draw.
        let shown = self.round.committed.disclose(&drawn).unwrap().to_bytes();
        let inputs =
            ValuationInputs { graph: self.graph.as_ref(), ..self.round.inputs(&drawn, &shown) };
        use_inputs(&inputs)
    }

    fn record(&self) -> (ValuationOutput, Vec<u8>) {
        let recorded =
            self.with_inputs(|inputs| value_and_record(inputs, &mut Reference::new()).unwrap());
        (recorded.output, recorded.transcript.unwrap())
    }

    fn replay(
        &self,
        transcript: &[u8],
        sample: TranscriptSample,
    ) -> Result<ValuationOutput, WorkError> {
        self.with_inputs(|inputs| {
            replay_transcript(inputs, transcript, sample, &mut Reference::new())
        })
    }

    fn refusal(&self, transcript: &[u8], sample: TranscriptSample) -> String {
        match self.replay(transcript, sample) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{}: a forged transcript was accepted", self.name),
        }
    }
}

/// Two shards of digits, and one with wrong labels, which is excluded.
fn digits(change: impl FnOnce(&mut TaskSpec)) -> TestRound {
    let digits = load(&DataSource::Digits).unwrap();
    let shards =
        [Some(shard(&digits, 0)), Some(shard(&digits, 1)), Some(flipped(&shard(&digits, 2)))];
    world_with(&digits, &shards, change)
}

fn scenes() -> Vec<RecordedScene> {
    let baseline = |optimizer| {
        digits(|spec| {
            spec.rounds.baseline_epochs = 2;
            spec.training.optimizer = optimizer;
            spec.training.momentum = Micro::ZERO;
        })
    };
    let adam = Optimizer::AdamW { beta1: Micro(900_000), beta2: Micro(990_000) };
    vec![
        RecordedScene::new("softmax, one excluded, one idle", world()),
        RecordedScene::new("a public baseline", baseline(Optimizer::Sgd)),
        RecordedScene::new("a public baseline by AdamW", baseline(adam)),
        RecordedScene::new("coalitions", digits(|spec| spec.estimator = Estimator::Coalitions)),
        RecordedScene::new("no weights", {
            let mut world = world();
            world.entries.iter_mut().for_each(|entry| entry.rows_counted = 0);
            world
        }),
        RecordedScene::graph("resnet"),
    ]
}

#[test]
fn a_replay_has_the_recorded_result_and_that_of_the_engine() {
    for scene in scenes() {
        let name = scene.name;
        let (recorded, transcript) = scene.record();
        let direct =
            scene.with_inputs(|inputs| value_and_aggregate(inputs, &mut Reference::new()).unwrap());
        compare_results(&direct.result, &recorded.result)
            .unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!(direct.model, recorded.model, "{name}");
        for sample in [ALL, TranscriptSample { seed: 5, parts_of_32: 2 }] {
            assert_eq!(scene.replay(&transcript, sample).unwrap(), recorded, "{name}");
        }
        // Not the first bytes of a longer one, and not a shorter one.
        let longer = [transcript.as_slice(), &[0; 8]].concat();
        assert!(scene.refusal(&longer, ALL).contains("8 bytes after"), "{name}");
        for length in [0, 7, transcript.len() / 2, transcript.len() - 1] {
            scene.refusal(&transcript[..length], ALL);
        }
    }
}

/// Every number of a transcript is checked: with all parts drawn, no change of any of them is accepted.
#[test]
fn a_replay_of_all_parts_finds_any_changed_number() {
    for (number, scene) in scenes().iter().enumerate() {
        let changes = if scene.graph.is_some() { 8 } else { 40 };
        let (_, transcript) = scene.record();
        let mut rng = SeededRng::new(3, number as u64);
        for change in 0..changes {
            let at = rng.below(transcript.len() as u64 / 8) as usize * 8;
            let mut forged = transcript.clone();
            let stated = f64::from_le_bytes(*forged[at..].first_chunk().unwrap());
            // States are other bytes than numbers, and change by a bit.
            let moved = match stated.is_finite() && stated.abs() < 1e6 {
                true => (stated + 1e-6 * stated.abs().max(1.0)).to_le_bytes(),
                false => (stated.to_bits() ^ 1).to_le_bytes(),
            };
            forged[at..at + 8].copy_from_slice(&moved);
            let found = scene.replay(&forged, ALL);
            assert!(found.is_err(), "{}: change {change} at {at} of seed 3", scene.name);
        }
        for bits in [f64::NAN, f64::INFINITY] {
            let mut forged = transcript.clone();
            forged[..8].copy_from_slice(&bits.to_le_bytes());
            scene.refusal(&forged, ALL);
        }
    }
}

/// One forged group of 32 is found with the probability of its draw, and several evaluations with more.
#[test]
fn a_forged_group_is_found_as_often_as_it_is_drawn() {
    let scene = RecordedScene::new("softmax", world());
    let (_, transcript) = scene.record();
    let rows = scene.round.drawn().len();
    let groups = RowGroups::of(rows);
    assert_eq!(groups.count, 32);
    // The first evaluation is that of the losses at the base model.
    let forge = |group: usize| {
        let mut forged = transcript.clone();
        for row in groups.range(group) {
            let loss = f64::from_le_bytes(*forged[8 * row..].first_chunk().unwrap());
            forged[8 * row..8 * row + 8].copy_from_slice(&(loss + 1e-5).to_le_bytes());
        }
        forged
    };
    const SEEDS: u64 = 600;
    let found = (0..SEEDS).filter(|seed| {
        let sample = TranscriptSample { seed: *seed, parts_of_32: 4 };
        scene.replay(&forge(*seed as usize % 32), sample).is_err()
    });
    let found = found.count() as f64 / SEEDS as f64;
    // Four of 32 groups: within three standard deviations.
    let deviation = (0.125 * 0.875 / SEEDS as f64).sqrt();
    assert!((found - 0.125).abs() < 3.0 * deviation, "{found} of seeds 0 to {SEEDS}");
}

#[test]
fn draws_are_distinct_uniform_and_at_least_one() {
    let draw = |seed, parts_of_32, count| {
        ReplayDraws::new(TranscriptSample { seed, parts_of_32 }).draw(count)
    };
    for (parts, count, wanted) in
        [(2, 32, 2), (2, 16, 1), (3, 16, 2), (0, 32, 1), (40, 32, 32), (2, 1, 1), (32, 5, 5)]
    {
        let drawn = draw(1, parts, count);
        assert_eq!(drawn.len(), wanted, "{parts} of {count}");
        assert!(drawn.is_sorted_by(|a, b| a < b) && drawn.iter().all(|group| *group < count));
    }
    let mut times = [0_u32; 32];
    (0..3_200).for_each(|seed| draw(seed, 2, 32).iter().for_each(|group| times[*group] += 1));
    // 200 each, with a standard deviation of 13.7.
    assert!(times.iter().all(|times| times.abs_diff(200) < 60), "{times:?}");
    let mut draws = ReplayDraws::new(TranscriptSample { seed: 1, parts_of_32: 2 });
    let evaluations: Vec<Vec<usize>> = (0..20).map(|_| draws.draw(32)).collect();
    assert!(evaluations.iter().any(|drawn| *drawn != evaluations[0]), "each one has its own draw");
}

/// A provider that states another gradient, with any products that have its sum: some group has wrong ones.
#[test]
fn a_wrong_gradient_needs_wrong_products() {
    let mut rng = SeededRng::new(11, 0);
    let groups = RowGroups::of(320);
    let mut number = || rng.below(2_001) as f64 - 1_000.0;
    let own: Vec<Vec<f64>> = (0..32).map(|_| (0..50).map(|_| number()).collect()).collect();
    let mean_of = |at: usize| own.iter().map(|gradient| gradient[at]).sum::<f64>() / 32.0;
    let honest: Vec<f64> = (0..50).map(mean_of).collect();
    let multipliers = Multipliers::of(&honest);
    let products: Vec<[f64; PROJECTIONS]> =
        own.iter().map(|own| multipliers.products(own)).collect();
    check_sum(&multipliers, &honest, &products, groups).unwrap();
    (0..32).for_each(|group| check_group(&multipliers, products[group], &own[group]).unwrap());

    let forged: Vec<f64> = honest.iter().map(|slope| slope * 1.001).collect();
    let multipliers = Multipliers::of(&forged);
    let mut products: Vec<[f64; PROJECTIONS]> =
        own.iter().map(|own| multipliers.products(own)).collect();
    let error = check_sum(&multipliers, &forged, &products, groups).unwrap_err();
    assert!(error.to_string().contains("the gradient halfway"), "{error}");
    // One group takes the difference: the sum is right, and this group is wrong.
    let wanted = multipliers.products(&forged);
    for (projection, wanted) in wanted.into_iter().enumerate() {
        let rest: f64 = products[1..].iter().map(|products| products[projection]).sum();
        products[0][projection] = 32.0 * wanted - rest;
    }
    check_sum(&multipliers, &forged, &products, groups).unwrap();
    check_group(&multipliers, products[0], &own[0]).unwrap_err();
    (1..32).for_each(|group| check_group(&multipliers, products[group], &own[group]).unwrap());
}

/// Two changes that cancel for every sign of three are easy to find. They do not cancel for multipliers.
#[test]
fn a_wrong_gradient_is_not_found_by_trying() {
    let groups = RowGroups::of(320);
    let own = vec![vec![0.01; 50]; 32];
    for seed in 0..2_000 {
        let mut forged = own[0].clone();
        forged[0] += 1_000.0;
        forged[1] += 1_000.0 + f64::from(seed) * 1e-9;
        let multipliers = Multipliers::of(&forged);
        let products: Vec<[f64; PROJECTIONS]> =
            own.iter().map(|own| multipliers.products(own)).collect();
        check_sum(&multipliers, &forged, &products, groups).unwrap_err();
    }
    // Numbers whose squares overflow, and products that are no numbers.
    let huge = vec![1e200; 50];
    let multipliers = Multipliers::of(&huge);
    check_sum(&multipliers, &huge, &[multipliers.products(&huge); 32], groups).unwrap_err();
    check_group(&multipliers, [f64::NAN; PROJECTIONS], &own[0]).unwrap_err();
}

/// Numbers that are equal and have other bits, and losses within the tolerance of sums: the report states the digest
/// of the model and the losses of the baseline to the last digit.
#[test]
fn a_baseline_is_compared_bit_by_bit() {
    let scene =
        RecordedScene::new("a public baseline", digits(|spec| spec.rounds.baseline_epochs = 2));
    let (output, transcript) = scene.record();
    assert!(output.result.baseline.unwrap().is_adopted());
    let start = tensors_start(&transcript);
    // The first pixel of digits is empty, so that its weights stay at their zeros.
    let zero = transcript[start..].as_chunks::<4>().0.iter().position(|bytes| *bytes == [0; 4]);
    let mut forged = transcript.clone();
    forged[start + 4 * zero.unwrap() + 3] = 0x80;
    assert!(scene.refusal(&forged, ALL).contains("the training of the public baseline"));
    // The right predictions of the adopted model, by groups, and its losses come last.
    let mut forged = transcript;
    let rows = scene.round.drawn().len();
    let from = forged.len() - 8 * (rows + 32 + rows);
    for number in forged[from..from + 8 * rows].as_chunks_mut::<8>().0 {
        *number = (f64::from_le_bytes(*number) + 9e-9).to_le_bytes();
    }
    assert!(scene.refusal(&forged, ALL).contains("the losses of the public baseline"));
}

/// Where the tensors of the last state of a transcript begin.
fn tensors_start(transcript: &[u8]) -> usize {
    let at = transcript.windows(9).rposition(|bytes| bytes == b"\"training");
    let header = at.expect("a state has a header with this entry");
    let end = transcript[header..].windows(2).position(|bytes| bytes == b"}}").unwrap();
    (header + end + 2).next_multiple_of(8)
}

#[test]
fn rounds_that_no_transcript_can_have_are_valued_without_one() {
    // A baseline whose parameters grow without bound.
    let mut round = digits(|spec| spec.rounds.baseline_epochs = 2);
    round.spec.rounds.baseline_epochs = 8;
    round.spec.training.weight_decay = Micro::ONE;
    round.spec.training.learning_rate = Micro(100_000_000);
    let scene = RecordedScene::new("a diverging baseline", round);
    let recorded =
        scene.with_inputs(|inputs| value_and_record(inputs, &mut Reference::new()).unwrap());
    assert!(recorded.transcript.is_none());
    let direct =
        scene.with_inputs(|inputs| value_and_aggregate(inputs, &mut Reference::new()).unwrap());
    compare_results(&direct.result, &recorded.output.result).unwrap();
}
