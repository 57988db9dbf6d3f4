//! Updates in the formats int8 and top_k: a restart gives the same bytes, and each residual is
//! added to the next update exactly once.

use std::ops::ControlFlow;

use florin_protocol::{Digest, UpdateFormat};

use super::super::training::training_seed;
use super::*;

const TOP_K: UpdateFormat = UpdateFormat::TopK { permille: 300 };

fn market(format: UpdateFormat) -> TestMarket {
    TestMarket::start_with(1, false, |spec| spec.rounds.format = format)
}

/// The signed update of a round: digests of the update and of its base model.
fn signed(market: &TestMarket, person: &TestParticipant, round: u32) -> Option<(Digest, Digest)> {
    let path = person.config.folder.join("guard");
    let guard = SigningGuard::open(&path, person.wallet.node_signer()).unwrap();
    let signed = guard.signed_update_for(market.spec.market, market.task, RoundNumber(round))?;
    Some((signed.header.body.update, signed.header.body.base_model))
}

/// The expected update digest and residual of a round, computed from its signed base model.
fn expected(
    market: &TestMarket,
    person: &TestParticipant,
    round: u32,
    carried: Option<&[f32]>,
) -> (Digest, Option<Vec<f32>>) {
    let (_, base) = signed(market, person, round).unwrap();
    let spec = &market.spec;
    let bytes = market.client().blob(base, florin_work::model_bytes(spec)).unwrap();
    let base = florin_work::decode_model(spec, &bytes).unwrap();
    let seed = training_seed(&person.wallet, person.config.seed, market.task, RoundNumber(round));
    let trained = engine(EngineKind::Reference, 1)
        .unwrap()
        .train(
            &florin_work::model_spec(&spec.model),
            &base,
            &person.data,
            &florin_work::training(spec, RoundNumber(round)),
            seed,
            &mut |_| ControlFlow::Continue(()),
        )
        .unwrap();
    let delta = trained.params.iter().zip(&base).map(|(own, base)| own - base).collect();
    let written = florin_work::encode_update(spec, delta, carried, seed).unwrap();
    (blob_digest(&written.bytes), written.residual)
}

fn sent(market: &TestMarket, person: &TestParticipant, round: u32) -> Digest {
    signed(market, person, round).unwrap().0
}

#[test]
fn the_next_update_adds_the_residual() {
    let market = market(TOP_K);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let done = person.run(&market, None).unwrap();
    assert!(done.finished && done.claimed > Amount::ZERO, "{:?}", done.statements);
    let mut carried = None;
    for round in 1..=3 {
        let (update, residual) = expected(&market, &person, round, carried.as_deref());
        assert_eq!(sent(&market, &person, round), update, "round {round}");
        let bare = expected(&market, &person, round, None).0;
        assert_eq!(
            update == bare,
            round == 1,
            "round {round}: adding a residual changes the update"
        );
        carried = residual;
    }
    let folder = person.config.folder.join(market.task.to_string());
    for round in 1..=3 {
        let left = folder.join(format!("{round}/residual.safetensors"));
        assert!(!left.exists(), "the residual of round {round} is removed");
    }
}

#[test]
fn a_restart_after_any_event_sends_the_same_bytes() {
    for format in [UpdateFormat::Int8, TOP_K] {
        let digests = |stop: Option<usize>, lose_file: bool| {
            let market = market(format);
            let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
            let first = person.run(&market, stop).unwrap();
            if lose_file {
                // As if the process had been killed between the residual and the update.
                let folder = person.config.folder.join(market.task.to_string());
                for round in 1..=3 {
                    let _ =
                        std::fs::remove_file(folder.join(format!("{round}/update.safetensors")));
                }
            }
            if !first.finished {
                assert!(person.run(&market, None).unwrap().finished, "{format:?} {stop:?}");
            }
            assert!(
                person.failed_round_codes().is_empty(),
                "{format:?} {stop:?}: {:?}",
                person.failed_round_codes()
            );
            let all = (1..=3).map(|round| sent(&market, &person, round)).collect::<Vec<_>>();
            (all, person.events)
        };
        let (whole, events) = digests(None, false);
        for stop in 1..events.len() {
            assert_eq!(digests(Some(stop), false).0, whole, "{format:?}, stopped after {stop}");
        }
        let trained = |event: &ParticipantEvent| matches!(event, ParticipantEvent::Trained { .. });
        for (at, _) in events.iter().enumerate().filter(|(_, event)| trained(event)) {
            assert_eq!(digests(Some(at + 1), true).0, whole, "{format:?}, lost after {at}");
        }
    }
}

#[test]
fn a_missed_round_without_a_model_change_is_ignored() {
    let market = market(TOP_K);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let fails = Arc::clone(&person.engine.fails_next);
    let done = person.run_until(&market, |event| {
        match event {
            ParticipantEvent::Reported { statement } if statement.round == RoundNumber(1) => {
                fails.store(true, Ordering::SeqCst);
            }
            ParticipantEvent::RoundFailed { .. } => market.pass_commit_deadline(),
            _ => {}
        }
        false
    });
    assert!(done.unwrap().finished);
    assert_eq!(person.failed_round_codes(), ["TRAINING_DIVERGED"]);
    assert_eq!(signed(&market, &person, 2), None);
    let (_, left_out) = expected(&market, &person, 1, None);
    let carrying = expected(&market, &person, 3, left_out.as_deref()).0;
    assert_eq!(sent(&market, &person, 3), carrying);
}

#[test]
fn the_residual_of_an_update_without_a_receipt_is_dropped() {
    let market = market(TOP_K);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let asked_twice = |event: &ParticipantEvent| {
        matches!(event, ParticipantEvent::Selected { round: RoundNumber(2), .. })
    };
    assert!(!person.run_until(&market, asked_twice).unwrap().finished);
    // As if other participants had changed the model without this one.
    let folder = person.config.folder.join(market.task.to_string());
    std::fs::remove_file(folder.join("1/receipt.json")).unwrap();
    // Training of the round may have finished before the stop; then it runs again.
    let _ = std::fs::remove_file(folder.join("2/update.safetensors"));
    assert!(person.run(&market, None).unwrap().finished);
    assert_eq!(sent(&market, &person, 2), expected(&market, &person, 2, None).0);
}

#[test]
fn a_residual_is_added_again_after_an_abandoned_round() {
    for stop in [None, Some(RoundNumber(2)), Some(RoundNumber(3))] {
        let market = market(TOP_K);
        market.inject(Fault::AbandonedRound);
        let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
        if let Some(stop) = stop {
            let asked = |event: &ParticipantEvent| matches!(event, ParticipantEvent::Selected { round, .. } if *round == stop);
            assert!(!person.run_until(&market, asked).unwrap().finished);
        }
        assert!(person.run(&market, None).unwrap().finished);
        let bases = [2, 3].map(|round| signed(&market, &person, round).unwrap().1);
        assert_eq!(bases[0], bases[1], "round 2 did not change the model");
        let (_, left_out) = expected(&market, &person, 1, None);
        for round in [2, 3] {
            let carrying = expected(&market, &person, round, left_out.as_deref()).0;
            assert_eq!(sent(&market, &person, round), carrying, "round {round}, {stop:?}");
        }
        let folder = person.config.folder.join(market.task.to_string());
        for round in 1..=3 {
            let left = folder.join(format!("{round}/residual.safetensors"));
            assert!(!left.exists(), "the residual of round {round} is removed");
        }
    }
}

#[test]
fn no_residual_is_added_while_the_model_is_unchanged() {
    let market = market(TOP_K);
    market.inject(Fault::LostUpdate);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    person.config.continues_on_alarm = true;
    person.run(&market, None).unwrap();
    for round in 1..=3 {
        let (update, base) = signed(&market, &person, round).unwrap();
        assert_eq!(base, market.spec.base_model);
        assert_eq!(update, expected(&market, &person, round, None).0, "round {round}");
    }
}

#[test]
fn an_unreadable_residual_is_dropped_with_an_event() {
    let market = market(TOP_K);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    let asked_twice = |event: &ParticipantEvent| {
        matches!(event, ParticipantEvent::Selected { round: RoundNumber(2), .. })
    };
    assert!(!person.run_until(&market, asked_twice).unwrap().finished);
    let folder = person.config.folder.join(market.task.to_string());
    // Training of the round may have finished before the stop; then it runs again.
    let _ = std::fs::remove_file(folder.join("2/update.safetensors"));
    std::fs::write(folder.join("1/residual.safetensors"), b"torn").unwrap();
    assert!(person.run(&market, None).unwrap().finished);
    let lost = |event: &&ParticipantEvent| {
        matches!(event, ParticipantEvent::ResidualUnreadable { round: RoundNumber(1), .. })
    };
    assert_eq!(person.events.iter().filter(lost).count(), 1, "{:?}", person.events);
    assert_eq!(sent(&market, &person, 2), expected(&market, &person, 2, None).0);
}
