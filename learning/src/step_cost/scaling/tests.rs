//! Tests of the time of a step on several replicas.

use super::*;

/// Drawn models of a test.
const DRAWS: u64 = 20;

/// Numbers from a seed: SplitMix64 (Steele, Lea and Flood 2014).
struct Draws(u64);

impl Draws {
    /// Uniform in [0, 1).
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform in the logarithm.
    fn between(&mut self, least: f64, most: f64) -> f64 {
        least * (most / least).powf(self.unit())
    }

    /// About normal, with mean 0 and variance 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    /// Gradients and averages of a like size, so that samples show every parameter.
    fn scaling(&mut self) -> StepScaling {
        let parameters = ScalingParameters {
            grad_seconds: self.between(0.02, 0.2),
            grad_row_seconds: self.between(0.001, 0.01),
            local_seconds: self.between(0.02, 0.2),
            local_replica_seconds: self.between(0.002, 0.02),
            remote_seconds: self.between(0.05, 0.5),
            remote_replica_seconds: self.between(0.005, 0.05),
            overlap: self.between(1.2, 4.0),
        };
        StepScaling::try_from(parameters).unwrap()
    }
}

/// The steps of a model, for every placement of a small cluster.
fn samples(scaling: &StepScaling) -> Vec<ScalingSample> {
    let mut samples = Vec::new();
    for rows in [1, 4, 16, 64, 256] {
        for replicas in [1, 2, 3, 4, 8, 16] {
            for nodes in [Nodes::One, Nodes::Several] {
                let step_seconds = scaling.seconds(rows, replicas, nodes);
                if replicas > 1 || nodes == Nodes::One {
                    samples.push(ScalingSample { rows, replicas, nodes, step_seconds });
                }
            }
        }
    }
    samples
}

fn noisy(draws: &mut Draws, scaling: &StepScaling, deviation: f64) -> Vec<ScalingSample> {
    let mut samples = samples(scaling);
    for sample in &mut samples {
        sample.step_seconds *= (deviation * draws.normal()).exp();
    }
    samples
}

fn plain() -> StepScaling {
    let parameters = ScalingParameters {
        grad_seconds: 1.0,
        grad_row_seconds: 0.5,
        local_seconds: 3.0,
        local_replica_seconds: 1.0,
        remote_seconds: 8.0,
        remote_replica_seconds: 2.0,
        overlap: 2.0,
    };
    StepScaling::try_from(parameters).unwrap()
}

#[test]
fn seconds_follow_the_formula() {
    let scaling = plain();
    // (rows, replicas, nodes, seconds): right triangles, by the exponent 2.
    let table = [
        (6, 1, Nodes::One, 4.0),
        (6, 2, Nodes::One, 5.0),
        (14, 5, Nodes::One, 10.0),
        (10, 2, Nodes::Several, 10.0),
        (8, 4, Nodes::Several, 13.0),
        (6, 0, Nodes::One, 4.0),
    ];
    for (rows, replicas, nodes, seconds) in table {
        let found = scaling.seconds(rows, replicas, nodes);
        assert!((found - seconds).abs() < 1e-12, "{rows} rows, {replicas} replicas: {found}");
    }
    let last = ScalingSample { rows: 6, replicas: 2, nodes: Nodes::One, step_seconds: 0.0 };
    let accumulated = scaling.accumulated_seconds(&last, 3);
    assert!((accumulated - (3.0 * 4.0 + 5.0)).abs() < 1e-12, "{accumulated}");
}

#[test]
fn overlap_goes_from_the_sum_to_nearly_the_longer_part() {
    let with = |overlap| {
        let parameters = ScalingParameters { overlap, ..*plain().parameters() };
        StepScaling::try_from(parameters).unwrap().seconds(6, 2, Nodes::One)
    };
    assert!((with(OVERLAP_MIN) - 7.0).abs() < 1e-12);
    assert!(with(OVERLAP_MAX) > 4.0 && with(OVERLAP_MAX) < 4.03, "{}", with(OVERLAP_MAX));
    // The tenth power of these leaves the range of a float.
    assert!((overlapped(1e-200, 1e-200, 10.0) / 1e-200 - 2.0_f64.powf(0.1)).abs() < 1e-12);
    assert!((overlapped(1e200, 1e200, 10.0) / 1e200 - 2.0_f64.powf(0.1)).abs() < 1e-12);
}

#[test]
fn fit_recovers_drawn_parameters() {
    for seed in 0..DRAWS {
        println!("seed {seed}");
        let drawn = Draws(seed).scaling();
        let found = fit(&samples(&drawn)).unwrap();
        assert!(found.error.rmsle < 1e-9, "{found:?}");
        let pairs =
            drawn.parameters().to_array().into_iter().zip(found.scaling.parameters().to_array());
        for (name, (drawn, found)) in NAMES.iter().zip(pairs) {
            assert!((found / drawn - 1.0).abs() < 1e-5, "{name}: drawn {drawn}, found {found}");
        }
    }
}

#[test]
fn fit_recovers_parameters_at_their_bounds() {
    for overlap in [OVERLAP_MIN, OVERLAP_MAX] {
        let numbers = *plain().parameters();
        let numbers = ScalingParameters { overlap, local_seconds: 0.0, ..numbers };
        let numbers = ScalingParameters { remote_replica_seconds: 0.0, ..numbers };
        let drawn = StepScaling::try_from(numbers).unwrap();
        let found = fit(&samples(&drawn)).unwrap();
        assert!(found.error.rmsle < 1e-6, "{found:?}");
        let found = found.scaling.parameters();
        assert!((found.overlap - overlap).abs() < 1e-3, "{found:?}");
        assert!(found.local_seconds < 1e-4 && found.remote_replica_seconds < 1e-4, "{found:?}");
    }
}

#[test]
fn fit_of_noisy_samples_is_near_and_least() {
    let deviation = 0.05;
    for seed in 0..DRAWS {
        println!("seed {seed}");
        let mut draws = Draws(seed);
        let drawn = draws.scaling();
        let samples = noisy(&mut draws, &drawn, deviation);
        let found = fit(&samples).unwrap();
        // The drawn model is one of those among which the fit chooses.
        assert!(found.error.rmsle <= drawn.error(&samples).unwrap().rmsle, "{found:?}");
        assert!(found.error.rmsle > deviation / 2.0, "noise cannot be fitted: {found:?}");
        // Exact steps are nearer to the model than noise is.
        let error = found.scaling.error(&self::samples(&drawn)).unwrap();
        assert!(error.rmsle < deviation * 0.7, "{error:?}");
        // No model nearby is better.
        for at in 0..PARAMETERS {
            for factor in [0.98, 0.999, 1.001, 1.02] {
                let mut numbers = found.scaling.parameters().to_array();
                numbers[at] *= factor;
                let other = StepScaling::try_from(ScalingParameters::from_array(numbers));
                let Ok(other) = other else { continue };
                let rmsle = other.error(&samples).unwrap().rmsle;
                assert!(rmsle >= found.error.rmsle - 1e-12, "{} is better at {rmsle}", NAMES[at]);
            }
        }
        assert_eq!(fit(&samples).unwrap(), found, "the fit is deterministic");
    }
}

#[test]
fn seconds_grow_with_rows_and_replicas() {
    for seed in 0..DRAWS {
        println!("seed {seed}");
        let mut draws = Draws(seed);
        let drawn = draws.scaling();
        let found = fit(&noisy(&mut draws, &drawn, 0.2)).unwrap().scaling;
        for nodes in [Nodes::One, Nodes::Several] {
            for at in 1..64 {
                let (rows, more_rows) =
                    (found.seconds(at, 4, nodes), found.seconds(at + 1, 4, nodes));
                assert!(rows <= more_rows, "{at} rows");
                let replicas = at as u32;
                let fewer = found.seconds(8, replicas, nodes);
                assert!(fewer <= found.seconds(8, replicas + 1, nodes), "{replicas} replicas");
            }
        }
        let (one, many) = (found.seconds(1, 4, Nodes::One), found.seconds(4_096, 4, Nodes::One));
        assert!(one < many, "rows take time: {one} and {many}");
    }
}

#[test]
fn parameters_that_no_sample_shows_are_zero() {
    let all = samples(&plain());
    let of = |keep: &dyn Fn(&ScalingSample) -> bool| {
        let chosen: Vec<ScalingSample> = all.iter().filter(|of| keep(of)).copied().collect();
        fit(&chosen).unwrap()
    };
    let alone = of(&|of| of.replicas == 1);
    let numbers = alone.scaling.parameters().to_array();
    assert_eq!(numbers[2..], [0.0, 0.0, 0.0, 0.0, OVERLAP_MIN]);
    assert_eq!((alone.local_replicas_max, alone.remote_replicas_max), (1, 0));
    let pairs = of(&|of| of.replicas <= 2 && of.nodes == Nodes::One);
    let numbers = pairs.scaling.parameters().to_array();
    assert!((numbers[2] - 3.0).abs() < 1e-4, "{numbers:?}");
    assert_eq!(numbers[3..6], [0.0, 0.0, 0.0]);
    assert_eq!((pairs.local_replicas_max, pairs.remote_replicas_max), (2, 0));
}

#[test]
fn fastest_replicas_balance_gradients_and_averages() {
    let batch = |rows| ScaledBatch { rows, replicas_max: 64, replicas_per_node: 4 };
    let scaling = plain();
    // A small batch gains nothing from a second replica; a huge one uses them all.
    assert_eq!(scaling.fastest_replicas(batch(2)), 1);
    assert_eq!(scaling.fastest_replicas(batch(100_000)), 64);
    assert_eq!(scaling.fastest_replicas(ScaledBatch { replicas_max: 0, ..batch(100_000) }), 1);
    // By hand: 11 seconds on one, √(6² + 3²) on two, √(4.5² + 4²) on three, √(3.5² + 5²) on four.
    assert_eq!(scaling.fastest_replicas(ScaledBatch { replicas_max: 4, ..batch(20) }), 3);
}

#[test]
fn relative_errors_are_ranks_of_the_measured_time() {
    // Predictions are 4 seconds; the errors are 1, 2, …, 10 %.
    let samples: Vec<ScalingSample> = (1..=10)
        .map(|percent| 4.0 / (1.0 + f64::from(percent) / 100.0))
        .map(|step_seconds| ScalingSample { rows: 6, replicas: 1, nodes: Nodes::One, step_seconds })
        .collect();
    let error = plain().error(&samples).unwrap();
    assert!((error.median_percent - 5.0).abs() < 1e-9, "{error:?}");
    assert!((error.ninetieth_percent - 9.0).abs() < 1e-9, "{error:?}");
    let one = plain().error(&samples[..1]).unwrap();
    assert!((one.rmsle - 1.01_f64.ln()).abs() < 1e-12, "{one:?}");
}

#[test]
fn bad_samples_are_refused() {
    let good = samples(&plain());
    let with = |change: &dyn Fn(&mut ScalingSample)| {
        let mut samples = good.clone();
        change(&mut samples[3]);
        fit(&samples).unwrap_err()
    };
    for seconds in [0.0, -1.0, 0.9e-9, 1.1e9, f64::NAN, f64::INFINITY] {
        let error = with(&|sample| sample.step_seconds = seconds);
        assert!(matches!(error, ScalingError::InvalidSeconds { sample: 3, .. }), "{error}");
        assert!(error.to_string().ends_with("seconds, but 1e-9 to 1e9 are valid"), "{error}");
    }
    assert_eq!(with(&|sample| sample.rows = 0), ScalingError::NoRows { sample: 3 });
    let alone = with(&|sample| (sample.replicas, sample.nodes) = (1, Nodes::Several));
    assert_eq!(alone, ScalingError::TooFewReplicas { sample: 3, replicas: 1, least: 2 });
    let none = with(&|sample| (sample.replicas, sample.nodes) = (0, Nodes::One));
    assert_eq!(none, ScalingError::TooFewReplicas { sample: 3, replicas: 0, least: 1 });
    assert_eq!(fit(&[]).unwrap_err(), ScalingError::TooFewSamples { found: 0, least: 2 });
    // These show all seven parameters: more samples are needed.
    let few = [good[0], good[1], good[2], good[3], good[4], good[11]];
    assert_eq!(fit(&few).unwrap_err(), ScalingError::TooFewSamples { found: 6, least: 7 });
    assert_eq!(fit(&good[..11]).unwrap_err(), ScalingError::OneRowCount { rows: 1 });
    let many = vec![good[0]; SAMPLES_MAX + 1];
    assert_eq!(fit(&many).unwrap_err(), ScalingError::TooManySamples { found: SAMPLES_MAX + 1 });
    let text = ScalingError::TooFewSamples { found: 6, least: 7 }.to_string();
    assert_eq!(text, "there are 6 samples, but these need at least 7: measure more steps");
}

#[test]
fn parameters_outside_their_bounds_are_refused() {
    for at in 0..PARAMETERS {
        for value in [-1e-9, f64::NAN, f64::INFINITY] {
            let mut numbers = plain().parameters().to_array();
            numbers[at] = value;
            let error = StepScaling::try_from(ScalingParameters::from_array(numbers)).unwrap_err();
            assert_eq!(error.name, NAMES[at]);
        }
    }
    let text = serde_json::to_string(&plain()).unwrap();
    assert_eq!(serde_json::from_str::<StepScaling>(&text).unwrap(), plain());
    let bad = text.replace("\"overlap\":2.0", "\"overlap\":0.5");
    let error = serde_json::from_str::<StepScaling>(&bad).unwrap_err().to_string();
    assert!(error.contains("overlap is 0.5, but it must be from 1 to 10"), "{error}");
}
