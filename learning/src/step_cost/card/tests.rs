//! The suite, the work of its graphs, and predictions by a card.

use super::*;

fn card() -> DeviceCard {
    let seconds = WORK_KINDS.iter().map(|kind| ((*kind).to_owned(), 1e-9)).collect();
    let engine = "torch".to_owned();
    DeviceCard {
        version: VERSION,
        engine,
        threads: 1,
        seconds,
        error: 0.1,
        points: 40,
        power: None,
    }
}

#[test]
fn the_suite_has_every_kind_of_work_and_loads() {
    let mut covered = [0.0; WORK_KINDS.len()];
    for case in cases() {
        let (model, start) = case.model().unwrap();
        assert!(!start.is_empty() && !model.to_string().is_empty());
        for &batch in &case.batches {
            let sizes = case.graph.free_sizes(batch.into());
            let work = StepWork::of(&case.graph, &sizes, |_| true).unwrap();
            let work = work.with_optimizer(&case.training(batch));
            assert_eq!(data(&case, batch).unwrap().rows(), batch as usize);
            covered.iter_mut().zip(work.amounts).for_each(|(sum, own)| *sum += own);
        }
    }
    for (kind, amount) in WORK_KINDS.iter().zip(covered) {
        assert!(amount > 0.0, "no step of the suite has {kind}");
    }
}

#[test]
fn the_work_of_a_perceptron_is_its_products() {
    let case = cases().swap_remove(0);
    let work = |batch: u64, trains: bool| {
        let sizes = case.graph.free_sizes(batch);
        let amounts = StepWork::of(&case.graph, &sizes, |_| trains).unwrap().amounts;
        let at = |name: &str| amounts[WORK_KINDS.iter().position(|kind| *kind == name).unwrap()];
        (at("product_flops"), at("product_calls"), at("parameter_bytes"))
    };
    // Two layers of 16 by 16 and one of 16 by 32; the first one has no gradient of its input.
    let forward = |rows: f64| 2.0 * rows * (2.0 * 16.0 * 16.0 + 16.0 * 32.0);
    assert_eq!(work(8, false), (forward(8.0), 3.0, 0.0));
    let (flops, calls, bytes) = work(8, true);
    assert_eq!(flops, 3.0 * forward(8.0) - 2.0 * 8.0 * 16.0 * 16.0);
    assert_eq!((calls, bytes), (8.0, 4.0 * (2.0 * (256.0 + 16.0) + 512.0 + 32.0)));
    assert_eq!(work(16, true).0, 2.0 * flops);
}

#[test]
fn a_card_predicts_with_a_band_and_other_cards_are_refused() {
    let work = StepWork { amounts: [2.0; WORK_KINDS.len()] };
    let found = card().predict(&work).unwrap();
    let seconds = 2e-9 * WORK_KINDS.len() as f64;
    assert!((found.seconds - seconds).abs() < 1e-15);
    assert!((found.least - 0.7 * seconds).abs() < 1e-15 && found.most > found.seconds);
    let json = serde_json::to_string(&card()).unwrap();
    assert_eq!(serde_json::from_str::<DeviceCard>(&json).unwrap(), card());
    let refused = |card: DeviceCard| card.predict(&work).unwrap_err().to_string();
    assert!(refused(DeviceCard { version: 1, ..card() }).contains("its version is 1, not 2"));
    let mut lacks = card();
    lacks.seconds.remove("norm_bytes");
    assert!(refused(lacks).contains("no time of norm_bytes"));
    let mut wrong = card();
    wrong.seconds.insert("norm_bytes".to_owned(), f64::NAN);
    assert!(refused(wrong).contains("no time of norm_bytes"));
}
