//! The updates that deviating members send, beside an honest member's update of the same rows.

use florin_learning::{ModelSpec, Reference, Training, params};
use florin_sim::Scenario;
use florin_sim::member_updates::{
    CopyTargets, Knowledge, MemberTraining, TrainingResult, updates_to_send,
};
use florin_sim::population::{Member, Population};
use florin_sim::strategy::{CopyMix, Strategy, SybilUpdates};

/// A member with 40 rows.
fn member(strategy: Strategy) -> Member {
    let text = "name = 'a'\nquestion = 'What?'\nrounds = 1\n[population.honest]\ncount = 2\n\
        rows = [40, 40]";
    let scenario = Scenario::read(text, &[]).unwrap();
    let mut member = Population::draw(&scenario, 1).unwrap().members.remove(0);
    member.strategy = strategy;
    member
}

/// The training and the updates of a member with this strategy.
fn act(
    strategy: Strategy,
    knows: &Knowledge<'_>,
    first_update: Option<&[f32]>,
) -> (TrainingResult, Vec<Vec<f32>>) {
    let model = ModelSpec::Softmax { inputs: 64, classes: 10 };
    let base = vec![0.0; model.parameters()];
    let how = Training::sgd(2, 16, 0.1);
    let member = member(strategy);
    let job = MemberTraining {
        member: &member,
        how: &how,
        model: &model,
        base: &base,
        seed: 1,
        round: 1,
        effort: 1.0,
        first_update,
        holdout: &member.rows,
        disclosed: &[0],
        colluders: (0, 1),
    };
    let asked: Vec<u32> = (0..strategy.identities()).collect();
    let learned = job.train_by_strategy(&mut Reference::new(), &asked).unwrap();
    let sent = updates_to_send(&job, &learned, knows);
    (learned, sent.into_iter().map(|sent| sent.delta).collect())
}

fn sent(strategy: Strategy, knows: &Knowledge<'_>) -> Vec<Vec<f32>> {
    act(strategy, knows, None).1
}

fn honest() -> Vec<f32> {
    sent(Strategy::Honest, &Knowledge::default()).remove(0)
}

fn close(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5)
}

fn scaled(delta: &[f32], by: f32) -> Vec<f32> {
    delta.iter().map(|value| value * by).collect()
}

fn sum(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

#[test]
fn a_hedge_sends_two_updates_around_the_honest_one() {
    let (own, knows) = (honest(), Knowledge::default());
    let hedge = sent(Strategy::Hedge { factor: 4.0 }, &knows);
    let [plus, minus] = hedge.as_slice() else { panic!("{} updates", hedge.len()) };
    assert!(close(&scaled(&sum(plus, minus), 0.5), &own));
    let apart = params::norm(&sum(plus, &scaled(minus, -1.0))) / params::norm(&own);
    assert!((apart - 8.0).abs() < 1e-3, "{apart}");
}

#[test]
fn rescaled_copies_differ_in_norm_and_the_first_is_exact() {
    let own = honest();
    let strategy = Strategy::Replicate { identities: 8, updates: SybilUpdates::Rescaled };
    let copies = sent(strategy, &Knowledge::default());
    assert!(copies.len() == 8 && close(&copies[0], &own));
    let norms: Vec<f64> =
        copies[1..].iter().map(|copy| params::norm(copy) / params::norm(&own)).collect();
    let (low, high) = (0.7 * 1.02 - 0.05, 1.3 * 1.02 + 0.05);
    assert!(norms.iter().all(|norm| (low..high).contains(norm)), "{norms:?}");
    assert!(norms.iter().any(|norm| *norm < 0.95) && norms.iter().any(|norm| *norm > 1.05));
}

#[test]
fn longer_training_on_parts_takes_as_many_times_the_steps_as_there_are_parts() {
    let steps = |updates| {
        let strategy = Strategy::Sybil { identities: 4, updates };
        act(strategy, &Knowledge::default(), None).0.steps
    };
    // Each part of 10 rows is one batch.
    assert_eq!(steps(SybilUpdates::Disjoint), 4 * 2);
    assert_eq!(steps(SybilUpdates::DisjointLonger), 4 * 2 * 4);
}

#[test]
fn a_repeated_update_is_trained_once() {
    let (knows, strategy) = (Knowledge::default(), Strategy::Repeat);
    let (learned, first) = act(strategy, &knows, None);
    assert!(learned.steps > 0 && close(&first[0], &honest()));
    let earlier = vec![0.5; first[0].len()];
    let (learned, again) = act(strategy, &knows, Some(&earlier));
    assert_eq!((learned.steps, again), (0, vec![earlier]));
}

#[test]
fn replays_and_copies_reach_back_to_earlier_rounds_and_mix() {
    let of = |value: f32| vec![value; 650];
    let steps = [of(1.0), of(2.0)];
    let targets = |best, second| CopyTargets { best: of(best), second: Some(of(second)) };
    let copy_targets = [targets(3.0, 5.0), targets(4.0, 6.0)];
    let knows = Knowledge { steps: &steps, copy_targets: &copy_targets, ..Knowledge::default() };
    let first = |strategy| sent(strategy, &knows)[0][0];
    let replay = |rounds_back| first(Strategy::Replay { noise: 0.0, rounds_back });
    assert_eq!([0, 1, 2].map(replay), [1.0, 2.0, 0.0], "an older step does not exist");
    let copy = |rounds_back, mix| first(Strategy::Copy { noise: 0.0, rounds_back, mix });
    assert_eq!([0, 1, 2].map(|back| copy(back, CopyMix::None)), [3.0, 4.0, 0.0]);
    assert_eq!(copy(0, CopyMix::SecondBest), 4.0);
    assert!((copy(0, CopyMix::LastStep) - 3.9).abs() < 1e-5, "3 plus 30 % of its norm");
}

#[test]
fn bonds_cover_the_rows_that_a_strategy_declares_for_them() {
    let updates = SybilUpdates::Same;
    for (strategy, multiple) in [
        (Strategy::Honest, 1.0),
        (Strategy::Sybil { identities: 4, updates }, 1.0),
        (Strategy::Hedge { factor: 2.0 }, 1.0),
        (Strategy::Replicate { identities: 4, updates }, 4.0),
        (Strategy::InflateRows { factor: 3.0 }, 1.0),
        (Strategy::InflateBond { factor: 3.0 }, 3.0),
    ] {
        assert_eq!(strategy.bond_multiple(123), multiple, "{strategy:?}");
    }
    let (declared, bonded) = Strategy::InflateBond { factor: 3.0 }.declared_and_bonded_rows(40, 0);
    assert_eq!((declared, bonded), (120, 120));
}
