//! The comparison workload is reproducible, a model learns from it, and a market simulates the same
//! one.

use florin_ledger::limits::PENDING_MAX;
use florin_sim::workload::{Clients, Workload};

#[test]
fn federated_averaging_is_deterministic_and_the_model_learns() {
    let workload = Workload::draw(Clients::Dirichlet(100), 3).unwrap();
    // Four fifths of 1,797 digits.
    assert_eq!(workload.rows(), 1_437);
    let after = |threads| {
        let mut game = workload.fedavg();
        (0..30).for_each(|_| game.round(20, threads).unwrap());
        (game.params().to_vec(), game.accuracy().unwrap())
    };
    let (params, accuracy) = after(1);
    assert_eq!((params.clone(), accuracy), after(2));
    assert_eq!((params, accuracy), after(5));
    assert!(accuracy > 0.4, "{accuracy}");
    assert!(accuracy > workload.fedavg().accuracy().unwrap() + 0.2, "{accuracy}");
}

#[test]
fn the_exported_workload_has_every_row_once_and_the_initial_model() {
    let workload = Workload::draw(Clients::Dirichlet(50), 4).unwrap();
    let exported = workload.to_json();
    let numbers = |of: &serde_json::Value| -> Vec<u64> {
        of.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
    };
    let mut rows: Vec<u64> =
        exported["clients"].as_array().unwrap().iter().flat_map(numbers).collect();
    rows.extend(numbers(&exported["test_rows"]));
    rows.sort_unstable();
    assert_eq!(rows, (0..1_797).collect::<Vec<_>>());
    let start: Vec<f32> = exported["initial_params"]
        .as_array()
        .unwrap()
        .iter()
        .map(|w| w.as_f64().unwrap() as f32)
        .collect();
    assert_eq!(start, workload.fedavg().params());
    let many = Workload::draw(Clients::WithReplacement(30), 4).unwrap().to_json();
    assert!(
        many["clients"].as_array().unwrap().iter().all(|own| own.as_array().unwrap().len() == 20)
    );
}

#[test]
fn the_market_simulates_the_same_clients_and_conserves_money() {
    let workload = Workload::draw(Clients::Dirichlet(40), 5).unwrap();
    let scenario = workload.scenario(10, 4, 16).unwrap();
    let mut game = workload.simulation(&scenario).unwrap();
    while game.wait_for_round().unwrap() {
        game.run_round(2).unwrap();
        game.measure_accuracy().unwrap();
    }
    let played = game.finish().unwrap();
    assert!(played.balanced);
    assert_eq!(played.rounds.len(), 4);
    assert!(played.rounds.iter().all(|round| round.updates == 10));
    assert_eq!(played.members.iter().map(|member| member.rows).sum::<usize>(), workload.rows());
    assert!(played.rounds.last().unwrap().accuracy > played.accuracy_before);
}

#[test]
fn short_rounds_wait_when_too_many_settlements_are_pending() {
    // At most 64 settlements may be pending; these rounds take milliseconds, and a challenge window
    // a second.
    let rounds = PENDING_MAX as u32 + 6;
    let workload = Workload::draw(Clients::Dirichlet(20), 6).unwrap();
    let scenario = workload.scenario(3, rounds, 4).unwrap();
    let mut game = workload.simulation(&scenario).unwrap();
    while game.wait_for_round().unwrap() {
        game.run_round(1).unwrap();
    }
    let played = game.finish().unwrap();
    assert!(played.balanced);
    assert_eq!(played.rounds.len(), rounds as usize);
    let ended: Vec<u64> = played.rounds.iter().map(|round| round.at_ms).collect();
    let pauses: Vec<u64> = ended.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let (longest, others) = (pauses[PENDING_MAX - 1], &pauses[..PENDING_MAX - 1]);
    assert!(longest > 500 && others.iter().all(|pause| *pause < 20), "{pauses:?}");
}
