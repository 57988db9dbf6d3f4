//! Computed probes against their verifier.

use florin_compute::DrawnProbe;
use florin_learning::field_products::PlainFieldProducts;

use super::*;

const SEED: Digest = Digest([3; 32]);
/// Some read states are not saved.
const SHAPE: ProbeShape = ProbeShape { devices: 2, filled: 8, reads: 80 };

fn devices(count: u32) -> ProbeDevices {
    (0..count).map(|_| Box::new(PlainFieldProducts::default()) as Box<dyn FieldProducts>).collect()
}

fn computed() -> ComputedProbe {
    let progress = ProbeProgress::default();
    let computed = ComputedProbe::compute(SEED, SHAPE, &mut devices(2), &progress).unwrap();
    assert_eq!(progress.links(), SHAPE.states());
    computed
}

#[test]
fn a_verifier_accepts_every_draw_of_a_computed_probe() {
    let probe = computed();
    let mut products = PlainFieldProducts::default();
    // 4 draws of 32 links of 176: saved and recomputed states of both devices.
    for byte in 0..4 {
        let secret = Digest([byte; 32]);
        let drawn = DrawnProbe { shape: SHAPE, seed: SEED, root: probe.root(), secret };
        let shown = probe.show(secret, &mut products).unwrap();
        assert_eq!(shown.check(&drawn), Ok(()));
    }
}

#[test]
fn threads_change_no_bit() {
    assert_eq!(computed().root(), computed().root());
}

#[test]
fn a_stopped_probe_and_one_of_other_devices_have_no_result() {
    let progress = ProbeProgress::default();
    progress.stop();
    assert!(ComputedProbe::compute(SEED, SHAPE, &mut devices(2), &progress).is_none());
    let progress = ProbeProgress::default();
    assert!(ComputedProbe::compute(SEED, SHAPE, &mut devices(1), &progress).is_none());
    assert_eq!(progress.links(), 0);
}

#[test]
fn a_card_has_a_time_for_each_number_of_devices() {
    let told = std::cell::RefCell::new(Vec::new());
    let products = || Box::new(PlainFieldProducts::default()) as Box<dyn FieldProducts>;
    let progress = |devices| told.borrow_mut().push(devices);
    let sample = std::time::Duration::from_millis(10);
    let how = CardMeasurement { products: &products, devices: 2, sample, progress: &progress };
    let card = measure_card(&how).unwrap();
    assert!(card.links.on(1).is_some() && card.links.on(2).is_some() && card.links.on(3).is_none());
    assert_eq!(*told.borrow(), [1, 2]);
    for devices in [0, 65] {
        let error = measure_card(&CardMeasurement { devices, ..how }).unwrap_err();
        assert_eq!(error.code(), "COMPUTE_INVALID");
    }
}
