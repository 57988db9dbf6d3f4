//! Class effects are evidence of the senders' rows, and every forgery of them is found.

use florin_learning::data::{DataSource, load};
use florin_learning::{Dataset, Reference};
use florin_protocol::{ClassEffects, SHARE_PARTS, SelectionKnob, WorkResult};

use crate::tests::{TestRound, flipped, shard, world_with};
use crate::transcript::{TranscriptSample, replay_transcript, value_and_record};
use crate::{SpotCheckOptions, spot_check_round};

/// The rows of these classes.
fn only(data: &Dataset, classes: &[u32]) -> Dataset {
    let is_one = |row: &usize| classes.contains(&data.labels()[*row]);
    data.subset(&(0..data.rows()).filter(is_one).collect::<Vec<_>>()).unwrap()
}

/// Senders with the classes 1 and 7, with class 4, with flipped labels, and without rows.
fn round(knob: SelectionKnob) -> TestRound {
    let digits = load(&DataSource::Digits).unwrap();
    let shards = [
        Some(only(&shard(&digits, 0), &[1, 7])),
        Some(only(&shard(&digits, 1), &[4])),
        Some(flipped(&shard(&digits, 2))),
        None,
    ];
    world_with(&digits, &shards, |spec| spec.rounds.selection.knob = knob)
}

fn effects(result: &WorkResult) -> &ClassEffects {
    result.valuation.evidence.class_effects.as_ref().unwrap()
}

#[test]
fn shares_show_the_classes_of_the_senders_rows() {
    let result = round(SelectionKnob::Performance).outcome().result;
    let ClassEffects { losses_nano, shares } = effects(&result);
    assert_eq!((losses_nano.len(), shares.len()), (10, 4));
    // ln 10 in nano-nats: the first model knows no class.
    let known = losses_nano.iter().flatten();
    assert!(known.clone().all(|loss| (1_000_000_000..4_000_000_000).contains(loss)));
    let of = |sender: usize, class: usize| u32::from(shares[sender][class]);
    let whole = u32::from(SHARE_PARTS);
    assert!(of(0, 1) + of(0, 7) > whole * 9 / 10, "{:?}", shares[0]);
    assert!(of(1, 4) > whole * 9 / 10, "{:?}", shares[1]);
    assert!(shares[3].is_empty(), "an update without a weight has no shares");
}

#[test]
fn only_knobs_that_balance_classes_have_them_and_they_count_as_units() {
    // Passes beside those of the base model, the stages and the cross-check.
    let more = |knob| {
        let valuation = round(knob).outcome().result.valuation;
        let stages: u64 = valuation.stages.iter().map(|stage| stage.units).sum();
        let check = valuation.evidence.cross_check.map_or(0, |check| check.table.len() as u64);
        (valuation.units - 1 - stages - check, valuation.evidence.class_effects.is_some())
    };
    for knob in [SelectionKnob::Random, SelectionKnob::Fast, SelectionKnob::FairWork] {
        assert_eq!(more(knob), (0, false));
    }
    // One for the base model, and one for each of three updates with a weight.
    for knob in [SelectionKnob::Performance, SelectionKnob::FairAccuracy] {
        assert_eq!(more(knob), (4, true));
    }
}

type Forgery = (&'static str, fn(&mut ClassEffects));

#[test]
fn audits_and_spot_checks_name_every_forgery() {
    let world = round(SelectionKnob::FairAccuracy);
    let honest = world.outcome().result;
    assert_eq!(world.audit(&world.report(Ok(&honest))), []);
    let forgeries: [Forgery; 5] = [
        (".losses_nano", |it| *it.losses_nano[3].as_mut().unwrap() += 11),
        (".losses_nano", |it| it.losses_nano[3] = None),
        (".shares[1]", |it| it.shares[1][4] -= 2),
        (".shares[1]", |it| it.shares[1].clear()),
        (".shares[3]", |it| it.shares[3] = vec![25; 10]),
    ];
    for (line, forge) in forgeries {
        let mut result = honest.clone();
        forge(result.valuation.evidence.class_effects.as_mut().unwrap());
        check_both(&world, &result, &format!("valuation.evidence.class_effects{line}"));
    }
    // A share that is one part away is that of another honest machine.
    let mut near = honest.clone();
    near.valuation.evidence.class_effects.as_mut().unwrap().shares[1][4] -= 1;
    assert_eq!(world.audit(&world.report(Ok(&near))), []);
    let mut without = honest;
    without.valuation.evidence.class_effects = None;
    check_both(&world, &without, "valuation.evidence.class_effects");
}

#[test]
fn a_task_that_does_not_balance_has_none() {
    let world = round(SelectionKnob::Fast);
    let mut result = world.outcome().result;
    result.valuation.evidence.class_effects =
        Some(ClassEffects { losses_nano: vec![None; 10], shares: vec![Vec::new(); 4] });
    check_both(&world, &result, "valuation.evidence.class_effects");
}

/// Whether audit and spot check both name the line first.
fn check_both(world: &TestRound, result: &WorkResult, line: &str) {
    let report = world.report(Ok(result));
    let shown = world.disclosed_rows();
    let inputs = world.audit_inputs(&report, &shown, &[]);
    let spot = SpotCheckOptions { draws: 100, seed: 3 };
    let spotted = spot_check_round(&inputs, spot, &mut Reference::new()).unwrap();
    for found in [world.audit(&report), spotted.mismatches] {
        assert_eq!(found.first().map(|found| found.line.as_str()), Some(line), "{found:?}");
    }
}

#[test]
fn a_transcript_contains_them() {
    let world = round(SelectionKnob::Performance);
    let (drawn, shown) = (world.drawn(), world.disclosed_rows());
    let inputs = world.inputs(&drawn, &shown);
    let recorded = value_and_record(&inputs, &mut Reference::new()).unwrap();
    assert_eq!(effects(&recorded.output.result), effects(&world.outcome().result));
    let transcript = recorded.transcript.unwrap();
    let sample = TranscriptSample { seed: 1, parts_of_32: 32 };
    let replayed = replay_transcript(&inputs, &transcript, sample, &mut Reference::new()).unwrap();
    assert_eq!(replayed.result, recorded.output.result);
}
