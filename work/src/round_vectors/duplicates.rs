//! Vectors of near-duplicates: every reason to reject an update, and what does not count.

use florin_protocol::*;
use serde_json::Value;

use super::scene::{Scene, mixed, noise};
use super::vector;

/// 406 parameters, from which on noise is evidence.
const MODEL: ModelArchitecture = ModelArchitecture::Softmax { inputs: 57, classes: 7 };
const PARAMETERS: usize = 406;

fn own(label: &str) -> Vec<f32> {
    noise(label, PARAMETERS)
}

/// An honest update: a common direction, which improves the model, and an own part.
fn honest(label: &str) -> Vec<f32> {
    let [way] = &Scene::of(MODEL, 1, 1.0).deltas[..] else { unreachable!("one update") };
    mixed(way, 1.0, &own(label), 0.5)
}

fn large() -> Scene {
    let mut scene = Scene::of(MODEL, 11, 0.0);
    let (old, older) = (own("last delta"), own("delta before"));
    let (sent_by_0, sent_by_8) = (honest("earlier 0"), honest("earlier 8"));
    scene.previous_models = vec![old.iter().map(|step| -step).collect()];
    scene.previous_models.push(mixed(&old, -1.0, &older, -1.0));
    scene.earlier_updates = vec![(0, sent_by_0.clone()), (8, sent_by_8.clone())];
    let with_noise = |of: &[f32], label: &str| mixed(of, 1.0, &own(label), 0.25);
    let first = honest("update 0");
    scene.deltas = vec![
        first.clone(),
        honest("update 1"),
        honest("update 2"),
        // Half of update 1, which was committed before.
        honest("update 1").iter().map(|step| step * 0.5).collect(),
        // A copy of update 0 under noise.
        with_noise(&first, "noise 4"),
        // A combination of both global deltas, and one of them under noise.
        mixed(&old, 1.0, &older, 0.5),
        with_noise(&old, "noise 6"),
        // An update that sender 0 sent in an earlier round.
        sent_by_0,
        // The own update of an earlier round, also if entry 9 sends it first.
        sent_by_8.clone(),
        sent_by_8.iter().map(|step| step * 2.0).collect(),
        honest("update 10"),
    ];
    scene.positions = vec![1, 2, 3, 4, 5, 6, 7, 8, 10, 9, 11];
    scene.spec.rounds.format = UpdateFormat::Bf16;
    scene.spec.estimator = Estimator::Path { nodes: 1, cross_check_pairs: 0 };
    for delta in &mut scene.deltas {
        delta.iter_mut().for_each(|step| *step /= 64.0);
    }
    scene.drawn = vec![0, 3];
    scene
}

/// In a model of fewer than 400 parameters only a copy up to scale is rejected.
fn small() -> Scene {
    Scene::new(5, 0.25).with(|scene| {
        scene.deltas[0] = scene.deltas[3].iter().map(|step| step * 2.0).collect();
        scene.deltas[1] = scene.deltas[4].clone();
        scene.deltas[1][0] += 0.001;
        scene.positions = vec![2, 3, 4, 1, 5];
    })
}

pub(super) fn vectors() -> Vec<Value> {
    let (large, small) = (large(), small());
    let (_, result) = large.valued();
    let matches = result.valuation.scores.iter().map(|score| score.preprocessing.duplicate_of);
    let rejected: Vec<bool> = matches.map(|found| found.is_some()).collect();
    let expected = [3, 4, 5, 6, 7, 9];
    assert_eq!(rejected, (0..11).map(|at| expected.contains(&at)).collect::<Vec<_>>());
    vec![
        vector("near-duplicates of 406 parameters", &large),
        vector("near-duplicates of 12 parameters", &small),
    ]
}
