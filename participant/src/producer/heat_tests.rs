//! A toy simulation that is coupled with a trainer: rows of a heat equation, a real training, and the
//! waits of either side when the other one is slowed.

use std::fmt::Write;
use std::ops::ControlFlow;
use std::sync::mpsc;
use std::thread;

use florin_learning::{EngineKind, ModelSpec, Training, engine};

use super::row_reader::{ConnectionRows, RowReader};
use super::tests::{TestClock, encoder, exchange, settings};
use super::*;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);
/// Points of the rod.
const POINTS: usize = 32;
/// Rows of one step of the simulation: a point each.
const STEP_ROWS: usize = POINTS;
/// Seconds by which a side is slowed in each round.
const SLOWED: u64 = 3;
const ROUNDS: u64 = 4;

/// The heat equation on a rod with ends at 0, u_t = u_xx, by the explicit scheme with
/// Δt = Δx² / 4, which is stable.
struct HeatRod {
    heat: [f64; POINTS],
    steps: u64,
}

impl HeatRod {
    fn new() -> Self {
        let at = |point: usize| (std::f64::consts::PI * point as f64 / (POINTS - 1) as f64).sin();
        Self { heat: std::array::from_fn(at), steps: 0 }
    }

    /// One step: the lines of its points, with the time, the square of the place from the middle, and whether the point is hotter
    /// than half of the first maximum.
    fn step(&mut self) -> String {
        let before = self.heat;
        for point in 1..POINTS - 1 {
            let curve = before[point - 1] - 2.0 * before[point] + before[point + 1];
            self.heat[point] = before[point] + curve / 4.0;
        }
        self.steps += 1;
        let mut lines = String::new();
        for (point, heat) in self.heat.iter().enumerate() {
            let x = (2.0 * point as f64 / (POINTS - 1) as f64 - 1.0).powi(2);
            let t = self.steps as f64 / 100.0;
            writeln!(lines, "{t},{x},{}", u8::from(*heat > 0.5)).unwrap();
        }
        lines
    }
}

#[test]
fn the_rod_cools_as_the_equation_does() {
    let mut rod = HeatRod::new();
    for _ in 0..200 {
        rod.step();
    }
    // The sine is an eigenvector: each step multiplies it by 1 − (1 − cos(π/31)) / 2.
    let factor = 1.0 - (1.0 - (std::f64::consts::PI / (POINTS - 1) as f64).cos()) / 2.0;
    let exact = factor.powi(200) * (std::f64::consts::PI * 16.0 / (POINTS - 1) as f64).sin();
    assert!((rod.heat[16] - exact).abs() < 1e-12, "{} is not {exact}", rod.heat[16]);
}

/// Trains a softmax regression on a sample, and returns its accuracy on it.
fn train(sample: &Dataset) -> f64 {
    let mut engine = engine(EngineKind::Reference, 1).unwrap();
    let model = ModelSpec::Softmax { inputs: 2, classes: 2 };
    let how = Training::sgd(100, 16, 0.5);
    let start = model.init(1).into_vec();
    let go_on = &mut |_| ControlFlow::Continue(());
    let trained = engine.train(&model, &start, sample, &how, 7, go_on).unwrap();
    let params: Vec<f64> = trained.params.iter().map(|value| (*value).into()).collect();
    engine.correct_predictions(&model, &params, sample).unwrap() as f64 / sample.rows() as f64
}

/// Writes the lines of steps, each after a permission, until the feed is closed or no permission is
/// left.
fn simulate(exchange: &Arc<Exchange>, permissions: mpsc::Receiver<()>) -> thread::JoinHandle<u64> {
    let rows = RowReader::new(Arc::clone(exchange), encoder(), "hot".to_owned());
    thread::spawn(move || {
        let (mut rod, mut sent) = (HeatRod::new(), 0);
        let mut lines = ConnectionRows::new(&rows, "rod".to_owned());
        lines.line(1, b"t,x,hot").unwrap();
        while permissions.recv().is_ok() {
            for line in rod.step().lines() {
                lines.line(2, line.as_bytes()).unwrap();
            }
            if lines.flush().is_err() {
                break;
            }
            sent += STEP_ROWS as u64;
        }
        sent
    })
}

#[test]
fn a_slow_simulation_is_blamed_for_the_wait_of_its_trainer() {
    let clock = TestClock::default();
    let exchange = exchange(1_000, &clock);
    let need = FeedSettings { new_rows_min: STEP_ROWS as u64, ..settings(1_000, STEP_ROWS) };
    let (permit, permissions) = mpsc::channel();
    let simulation = simulate(&exchange, permissions);
    let (has_taken, taken) = mpsc::channel();
    let trainer = {
        let exchange = Arc::clone(&exchange);
        thread::spawn(move || {
            let mut accuracies = Vec::new();
            for _ in 0..ROUNDS {
                let sample = exchange.take(&need, SamplePurpose::Training, LONG);
                has_taken.send(()).unwrap();
                accuracies.push(train(&sample.unwrap().unwrap()));
                exchange.resume();
            }
            accuracies
        })
    };
    for round in 0..ROUNDS {
        // Each step is slower than the training before it.
        exchange.wait_until(|sides| sides.trainer);
        clock.pass(SLOWED);
        assert_eq!(exchange.counts().producer_slow_ms, 1_000 * SLOWED * (round + 1));
        permit.send(()).unwrap();
        taken.recv().unwrap();
    }
    let accuracies = trainer.join().unwrap();
    drop(permit);
    assert_eq!(simulation.join().unwrap(), ROUNDS * STEP_ROWS as u64);
    let counts = exchange.counts();
    assert_eq!((counts.producer_slow_ms, counts.trainer_slow_ms), (1_000 * SLOWED * ROUNDS, 0));
    assert_eq!(counts.rows_seen, ROUNDS * STEP_ROWS as u64);
    assert!(accuracies.iter().all(|accuracy| *accuracy > 0.85), "{accuracies:?}");
}

#[test]
fn a_slow_trainer_is_blamed_for_the_wait_of_its_simulation() {
    let clock = TestClock::default();
    let exchange = exchange(1_000, &clock);
    let need = settings(1_000, STEP_ROWS);
    let (permit, permissions) = mpsc::channel();
    let simulation = simulate(&exchange, permissions);
    permit.send(()).unwrap();
    // The simulation is never slow: it always has a permission for more steps than the queue holds.
    let steps = QUEUE_ROWS_MAX / STEP_ROWS + 1;
    let mut sample = exchange.take(&need, SamplePurpose::Training, LONG).unwrap().unwrap();
    let waited_at_start = exchange.counts().producer_slow_ms;
    for round in 0..ROUNDS {
        (0..steps).for_each(|_| permit.send(()).unwrap());
        let accuracy = train(&sample);
        assert!(accuracy > 0.8, "round {round}: {accuracy} with {} rows", sample.rows());
        exchange.wait_until(|sides| sides.producer);
        assert_eq!(exchange.counts().rows_queued, QUEUE_ROWS_MAX as u64, "the limit holds");
        clock.pass(SLOWED);
        exchange.resume();
        let seen = STEP_ROWS as u64 + (round + 1) * (steps * STEP_ROWS) as u64;
        // All steps with a permission are taken before the next training begins.
        let all = FeedSettings { new_rows_min: (steps * STEP_ROWS) as u64, ..need };
        sample = exchange.take(&all, SamplePurpose::Training, LONG).unwrap().unwrap();
        assert_eq!((exchange.counts().rows_seen, sample.rows()), (seen, 1_000));
    }
    drop(permit);
    simulation.join().unwrap();
    let counts = exchange.counts();
    assert_eq!(waited_at_start, 0, "the clock stood still");
    assert_eq!((counts.producer_slow_ms, counts.trainer_slow_ms), (0, 1_000 * SLOWED * ROUNDS));
}
