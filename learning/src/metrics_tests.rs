//! Metrics beside those of scikit-learn 1.7.2, and their symmetries.

use super::*;

fn near(found: f64, wanted: f64) {
    assert!((found - wanted).abs() < 1e-12, "{found} {wanted}");
}

fn classes(logits: &[f64], labels: &[u32], classes: usize) -> ClassMetrics {
    let mut collector = MetricsCollector::new(OutputKind::Classes { classes });
    for (logits, &label) in logits.chunks(classes).zip(labels) {
        collector.add(logits, &Dataset::new(vec![0.0], vec![label], 1, classes).unwrap());
    }
    match collector.finish() {
        Some(Metrics::Classes(found)) => found,
        other => panic!("{other:?}"),
    }
}

/// Eight rows of three classes.
const LOGITS: [f64; 24] = [
    2.0, 0.5, 0.1, 0.2, 1.5, 0.3, 0.1, 0.2, 2.2, 1.0, 1.1, 0.9, 0.3, 0.2, 0.1, 0.5, 2.0, 0.4, 1.2,
    0.3, 1.3, 0.0, 0.1, 0.05,
];
const LABELS: [u32; 8] = [0, 1, 2, 0, 0, 1, 2, 2];

#[test]
fn metrics_of_classes_are_those_of_scikit_learn() {
    let found = classes(&LOGITS, &LABELS, 3);
    near(found.accuracy, 0.75);
    near(found.balanced_accuracy, 0.777_777_777_777_777_7);
    near(found.f1, 0.755_555_555_555_555_5);
    near(found.auroc.unwrap(), 0.955_555_555_555_555_6);
    near(found.cross_entropy, 0.672_259_999_593_792_6);
    assert_eq!(found.confusion, [[2, 1, 0], [0, 2, 0], [0, 1, 2]]);
}

#[test]
fn an_area_needs_two_classes_and_ties_count_one_half() {
    let logits = [0.0, 1.0, 0.0, 1.0, 0.0, 2.0, 0.0, -1.0];
    let found = classes(&logits, &[0, 1, 1, 0], 2);
    // Of the four pairs, one is a tie and three are right.
    near(found.auroc.unwrap(), 3.5 / 4.0);
    assert_eq!(classes(&logits, &[1; 4], 2).auroc, None);
    let turned: Vec<f64> = logits.iter().map(|logit| -logit).collect();
    near(classes(&turned, &[0, 1, 1, 0], 2).auroc.unwrap(), 1.0 - 3.5 / 4.0);
    assert_eq!(classes(&[f64::NAN; 8], &[0, 1, 1, 0], 2).auroc, None);
}

fn rows(numbers: &[f32], width: usize) -> Dataset {
    Dataset::new(numbers.to_vec(), vec![0; numbers.len() / width], width, 1).unwrap()
}

#[test]
fn metrics_of_numbers_are_those_of_scikit_learn() {
    let mut collector = MetricsCollector::new(OutputKind::Numbers { from: 1, values: 1 });
    let data = rows(&[9.0, 3.0, 9.0, -0.5, 9.0, 2.0, 9.0, 7.0], 2);
    collector.add(&[2.5, 0.0, 2.0, 8.0], &data);
    let Some(Metrics::Numbers(found)) = collector.finish() else { panic!() };
    near(found.rmse, 0.375_f64.sqrt());
    near(found.mae, 0.5);
    near(found.r2.unwrap(), 0.948_608_137_044_967_9);
    near(found.scaled(2.0).mae, 1.0);
    let mut constant = MetricsCollector::new(OutputKind::Numbers { from: 0, values: 1 });
    constant.add(&[1.0, 2.0], &rows(&[5.0, 5.0], 1));
    let Some(Metrics::Numbers(found)) = constant.finish() else { panic!() };
    assert_eq!(found.r2, None);
}

#[test]
fn metrics_of_truth_values_are_those_of_scikit_learn() {
    let mut collector = MetricsCollector::new(OutputKind::TruthValues { from: 0, values: 2 });
    let logits = [1.0, -1.0, 0.5, 2.0, -0.3, 0.7, -2.0, -0.1];
    collector.add(&logits, &rows(&[1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0], 2));
    let Some(Metrics::TruthValues(found)) = collector.finish() else { panic!() };
    near(found.accuracy, 5.0 / 8.0);
    near(found.exact_match, 1.0 / 4.0);
    near(found.f1, (0.5 + 0.8) / 2.0);
    near(found.auroc.unwrap(), (0.75 + 1.0) / 2.0);
}

#[test]
fn tokens_without_a_target_do_not_count() {
    let mut collector =
        MetricsCollector::new(OutputKind::Tokens { from: 2, tokens: 2, classes: 2 });
    let logits = [0.0, 1.0, 3.0, 0.0, 0.0, 0.0, 5.0, 5.0];
    collector.add(&logits, &rows(&[0.0, 0.0, 1.0, -1.0, 0.0, 0.0, 1.0, -1.0], 4));
    let Some(Metrics::Tokens(found)) = collector.finish() else { panic!() };
    assert_eq!(found.tokens, 2);
    let wanted = f64::midpoint(libm::log(1.0 + libm::exp(-1.0)), libm::log(2.0));
    near(found.cross_entropy, wanted);
    near(found.perplexity, libm::exp(wanted));
    near(found.accuracy, 0.5);
    assert_eq!(MetricsCollector::new(OutputKind::Loss).finish(), None);
}
