//! Golden vectors of the valuation and the aggregation: whole rounds in miniature, from the bytes of
//! models, updates and rows to scores in nano-nats and the digest of the next model.
//! `protocol/vectors/valuation.py` recomputes each of them from docs/protocol.md.
//! `FLORIN_BLESS=1 cargo test -p florin-work --lib round_vectors` rewrites the file.

mod duplicates;
mod scene;

use std::path::Path;

use florin_protocol::*;
use serde_json::Value;

use scene::Scene;

/// Sizes of updates that are searched for a round of a kind.
const SIZES_MAX: u32 = 1_600;

fn vector(name: &str, scene: &Scene) -> Value {
    let (mut vector, _) = scene.valued();
    vector["name"] = name.into();
    vector
}

/// The estimators of a round's stages.
fn estimators(result: &WorkResult) -> Vec<ScoreEstimator> {
    result.valuation.stages.iter().map(|stage| stage.estimator).collect()
}

/// The vector of the smallest steps for which the round is `wanted`.
fn searched(
    name: &str,
    scene: impl Fn(f32) -> Scene,
    wanted: impl Fn(&WorkResult) -> bool,
) -> Value {
    let sizes = (1..=SIZES_MAX).map(|size| size as f32 / 4.0);
    let mut found = sizes.map(scene).filter(|scene| wanted(&scene.valued().1));
    vector(name, &found.next().unwrap_or_else(|| panic!("no size of steps gives {name}")))
}

/// The vector of a round whose only stage ends with an estimator.
fn rung(name: &str, updates: usize, last: ScoreEstimator) -> Value {
    let scene = |size| Scene::new(updates, size);
    searched(name, scene, |result| estimators(result) == [last])
}

/// A round whose task balances classes: the last update is harmful, and the second has no weight.
fn classes(knob: SelectionKnob) -> Scene {
    harmful_last(5, 0.5).with(|scene| {
        scene.spec.rounds.selection = Selection { knob, explore: Micro(100_000) };
        scene.rows = vec![10, 0, 10, 20, 10];
    })
}

/// Updates of which the last one goes in the wrong direction.
fn harmful_last(updates: usize, size: f32) -> Scene {
    let mut scene = Scene::new(updates, size);
    scene.deltas.last_mut().unwrap().iter_mut().for_each(|step| *step *= -1.0);
    scene
}

fn rungs() -> Vec<Value> {
    use ScoreEstimator::{Path, Permutations, Shapley};
    let unresolved = |size| {
        Scene::new(65, size).with(|scene| {
            scene.spec.estimator = Estimator::Path { nodes: 3, cross_check_pairs: 1 };
            scene.spec.rounds.format = UpdateFormat::Bf16;
            scene.holdout = scene::dataset(34, 3, 3);
            scene.drawn = (0..34).collect();
        })
    };
    let unchecked = |size| {
        Scene::new(3, size).with(|scene| {
            scene.spec.estimator = Estimator::Path { nodes: 3, cross_check_pairs: 0 };
        })
    };
    let coalitions = |scene: &mut Scene| scene.spec.estimator = Estimator::Coalitions;
    vec![
        vector("a task with coalitions alone", &harmful_last(4, 0.5).with(coalitions)),
        vector("coalitions of 9 updates", &Scene::new(9, 0.5).with(coalitions)),
        rung("3 nodes", 3, Path(3)),
        rung("6 nodes", 3, Path(6)),
        searched("12 nodes", unchecked, |result| estimators(result) == [Path(12)]),
        rung("Shapley values of 4 updates", 4, Shapley),
        rung("32 pairs of permutations of 9 updates", 9, Permutations(32)),
        searched("65 updates that no estimator resolves", unresolved, |result| {
            result.valuation.void_reason() == Some(VoidReason::Unresolved)
        }),
    ]
}

fn stages() -> Vec<Value> {
    use ScoreEstimator::{Path, Shapley};
    let scaled = harmful_last(5, 0.5).with(|scene| {
        scene.spec.rounds.preprocessing = PreprocessingRules {
            norm_scaling: NormScaling::Median,
            weight_cap: 1,
            ..PreprocessingRules::DEFAULT
        };
        scene.deltas[1].iter_mut().for_each(|step| *step *= 0.125);
        scene.deltas[2].iter_mut().for_each(|step| *step *= 3.0);
    });
    // Here the number selects the noise and not the size of the steps.
    let wild = |draw| {
        Scene::new(4, 4.0).with(|scene| {
            let noise = scene::noise(&format!("wild {draw}"), 12);
            scene.deltas[1] = noise.iter().map(|step| step * 16.0).collect();
        })
    };
    let stale = |weight| {
        Scene::new(4, 0.5).with(|scene| {
            scene.spec.rounds.staleness = StalenessRule { rounds: 8, weight };
            scene.staleness = vec![0, 1, 2, 7];
        })
    };
    vec![
        vector("a harmful update, norm scaling and capped weights", &scaled),
        vector("stale updates", &stale(StalenessWeight::InverseRoot)),
        vector("stale updates of a third of the weight", &stale(StalenessWeight::Inverse)),
        searched(
            "a second stage on a higher rung",
            |size| harmful_last(4, size),
            |result| matches!(estimators(result)[..], [Path(a), Path(b)] if a != b),
        ),
        searched(
            "a second opinion that denies scores",
            |size| Scene::new(4, size),
            |result| matches!(estimators(result)[..], [Path(_), Shapley]),
        ),
        searched(
            "a second opinion after an exclusion",
            |size| harmful_last(4, size),
            |result| matches!(estimators(result)[..], [Path(_), Path(_), Shapley]),
        ),
        searched("an exclusion after a second opinion", wild, |result| {
            matches!(estimators(result)[..], [Path(_), Shapley, Shapley])
        }),
        vector(
            "no stage: no update has a weight",
            &Scene::new(3, 0.5).with(|scene| {
                scene.rows = vec![0; 3];
            }),
        ),
        vector(
            "the majority is excluded",
            &harmful_last(3, 0.5).with(|scene| {
                scene.rows = vec![10, 10, 30];
            }),
        ),
        vector("no update remains", &Scene::new(2, -0.5)),
        vector(
            "no improvement",
            &Scene::new(2, -0.25).with(|scene| {
                scene.spec.budget.confidence_z = Micro(4_000_000);
                scene.deltas[0] = vec![0.0; 12];
                scene.deltas[1] = scene::noise("no improvement", 12);
            }),
        ),
    ]
}

/// Rounds of tasks that balance classes.
fn balanced() -> Vec<Value> {
    vec![
        vector("the classes that updates improve", &classes(SelectionKnob::Performance)),
        vector("the same for equal accuracy", &classes(SelectionKnob::FairAccuracy)),
    ]
}

fn models() -> Vec<Value> {
    let mlp = || ModelArchitecture::Mlp { inputs: 3, hidden: vec![4], classes: 3 };
    let by = |format, aggregation, updates| {
        Scene::of(mlp(), updates, 0.25).with(|scene| {
            scene.spec.rounds.format = format;
            scene.spec.rounds.aggregation = aggregation;
            scene.spec.estimator = Estimator::Path { nodes: 3, cross_check_pairs: 0 };
        })
    };
    let baseline = |scene: &mut Scene| {
        scene.holdout = scene::dataset(16, 3, 3);
        scene.drawn = vec![1, 4, 5, 9, 10, 13];
        scene.earlier_drawn = vec![vec![0, 7, 15], vec![2, 3, 8]];
        scene.spec.rounds.baseline_epochs = 8;
        scene.spec.training.batch = 5;
    };
    let momentum = |scene: &mut Scene| {
        scene.spec.training.momentum = Micro(500_000);
        scene.spec.training.weight_decay = Micro(1_000);
        scene.spec.training.clip_gradient = Micro(250_000);
        scene.spec.training.fedprox = Micro(100_000);
    };
    let adamw = |scene: &mut Scene| {
        scene.spec.training.learning_rate = Micro(10_000);
        scene.spec.training.weight_decay = Micro(50_000);
        scene.spec.training.optimizer =
            Optimizer::AdamW { beta1: Micro(900_000), beta2: Micro(990_000) };
        scene.spec.training.schedule = Schedule::Cosine;
        scene.spec.training.warmup_steps = 4;
    };
    // Update 0 is the nearest to its two neighbours, update 1 to all others.
    let line = |scene: &mut Scene| {
        let (middle, way) = (scene.deltas[0].clone(), scene::noise("line", scene.base.len()));
        for (delta, at) in scene.deltas.iter_mut().zip([0.0, 1.0, -1.0, 16.0, 24.0]) {
            *delta = scene::mixed(&middle, 1.0, &way, at / 64.0);
        }
    };
    use Aggregation::{ClippedMean, Krum, Mean, Median, TrimmedMean};
    vec![
        vector(
            "an MLP, int8, trimmed mean",
            &by(UpdateFormat::Int8, TrimmedMean { trim: Micro(300_000) }, 5),
        ),
        vector(
            "an MLP, top_k, clipped mean",
            &by(UpdateFormat::TopK { permille: 400 }, ClippedMean, 4),
        ),
        vector("an MLP, krum", &by(UpdateFormat::F32, Krum { byzantine: 1 }, 5).with(line)),
        vector(
            "an MLP, bf16, krum of too few updates",
            &by(UpdateFormat::Bf16, Krum { byzantine: 1 }, 4),
        ),
        vector(
            "the median and the public baseline",
            &Scene::new(3, 0.25).with(|scene| {
                scene.spec.rounds.aggregation = Median;
                baseline(scene);
            }),
        ),
        vector(
            "the public baseline of an MLP with all settings of the training",
            &by(UpdateFormat::F32, Mean, 3).with(baseline).with(momentum),
        ),
        vector(
            "the public baseline of an MLP by AdamW",
            &by(UpdateFormat::F32, Mean, 3).with(baseline).with(adamw),
        ),
    ]
}

#[test]
fn round_vectors_match_the_committed_ones() {
    let all = [rungs(), stages(), balanced(), models(), duplicates::vectors()].concat();
    let lines: Vec<String> = all.iter().map(Value::to_string).collect();
    let text = format!("[\n{}\n]\n", lines.join(",\n"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../protocol/vectors/valued_rounds.json");
    if std::env::var_os("FLORIN_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    let same = text == committed;
    assert!(same, "{}: was a rule of the valuation changed on purpose?", path.display());
}
