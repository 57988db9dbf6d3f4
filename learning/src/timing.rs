//! Timing of coalition and path evaluations on a synthetic round. The caller provides the clock:
//! this crate reads none.

use std::convert::Infallible;

use crate::coalitions::{CoalitionError, CoalitionMasks, Coalitions, Updates};
use crate::data::{CLASSES_MAX, Dataset, DatasetError};
use crate::engine::{Evaluator, ParameterSegment};
use crate::model::ModelSpec;
use crate::params::norm;
use crate::path::{PathError, PathGradient};
use crate::rng::{Purpose, below, rng, uniform};

/// A synthetic round: random updates with realistic sizes, without any training.
#[derive(Debug, Clone)]
pub struct SyntheticRound {
    /// The model.
    pub model: ModelSpec,
    /// The parameters before the round.
    pub base: Vec<f32>,
    /// The update of each player.
    pub deltas: Vec<Vec<f32>>,
    /// Equal shares.
    pub shares: Vec<f64>,
    /// The rows, with features between 0 and 1.
    pub holdout: Dataset,
}

impl SyntheticRound {
    /// Generates a round of `players` updates and `rows` rows. The same seed gives the same bits.
    ///
    /// # Errors
    /// [`DatasetError`] if the rows exceed the limit of a data set.
    pub fn generate(
        model: ModelSpec,
        players: usize,
        rows: usize,
        seed: u64,
    ) -> Result<Self, DatasetError> {
        let mut rng = rng(seed, Purpose::Split, 0);
        let (width, classes) = (model.inputs(), model.classes().min(CLASSES_MAX));
        let features = (0..rows * width).map(|_| uniform(&mut rng) as f32).collect();
        let labels = (0..rows).map(|_| below(&mut rng, classes as u64) as u32).collect();
        let holdout = Dataset::new(features, labels, width, classes)?;
        let base = model.init(seed).into_vec();
        let delta = |player: usize| {
            let drawn = model.init(seed + 1 + player as u64).into_vec();
            drawn.into_iter().map(|value| 0.2 * value).collect()
        };
        let deltas = (0..players).map(delta).collect();
        let shares = vec![1.0 / players.max(1) as f64; players];
        Ok(Self { model, base, deltas, shares, holdout })
    }

    /// Calls `work` with the updates.
    pub fn with_updates<T>(&self, work: impl FnOnce(Updates<'_>) -> T) -> T {
        let deltas: Vec<&[f32]> = self.deltas.iter().map(Vec::as_slice).collect();
        let (model, base, shares) = (&self.model, self.base.as_slice(), self.shares.as_slice());
        work(Updates { model, base, deltas: &deltas, shares })
    }
}

/// Mean losses of coalitions, and the time of their evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct CoalitionTiming {
    /// Seconds for all coalitions, including preparation.
    pub seconds: f64,
    /// The mean loss of each coalition, in nats.
    pub losses: Vec<f64>,
}

impl CoalitionTiming {
    fn measure(
        clock: &mut dyn FnMut() -> f64,
        work: impl FnOnce() -> Result<Vec<f64>, CoalitionError>,
    ) -> Result<Self, CoalitionError> {
        let start = clock();
        let losses = work()?;
        Ok(Self { seconds: clock() - start, losses })
    }

    /// Seconds per coalition.
    pub fn seconds_per_coalition(&self) -> f64 {
        self.seconds / self.losses.len().max(1) as f64
    }
}

/// `count` of all coalitions of `players` players, evenly spaced.
///
/// # Errors
/// [`CoalitionError::TooManyToEnumerate`].
pub fn spread_masks(players: usize, count: usize) -> Result<CoalitionMasks, CoalitionError> {
    let all = CoalitionMasks::all(players)?.len();
    let mut masks = CoalitionMasks::new(players);
    for at in 0..count.min(all) {
        // The middle of each part, so that the sizes are balanced.
        masks.push(&[((2 * at + 1) * all / (2 * count.min(all))) as u64][..players.min(1)])?;
    }
    Ok(masks)
}

/// Times [`Coalitions`], including its construction. `clock` returns seconds.
///
/// # Errors
/// [`CoalitionError`].
pub fn coalitions(
    problem: &SyntheticRound,
    masks: &CoalitionMasks,
    threads: usize,
    clock: &mut dyn FnMut() -> f64,
) -> Result<CoalitionTiming, CoalitionError> {
    problem.with_updates(|updates| {
        CoalitionTiming::measure(clock, || {
            Coalitions::new(updates, &problem.holdout, threads)?.mean_losses(masks)
        })
    })
}

/// Times libtorch, one coalition after another, after one warm-up evaluation.
///
/// # Errors
/// [`CoalitionError`].
#[cfg(feature = "torch")]
pub fn one_by_one(
    problem: &SyntheticRound,
    masks: &CoalitionMasks,
    engine: &mut crate::torch::Torch,
    clock: &mut dyn FnMut() -> f64,
) -> Result<CoalitionTiming, CoalitionError> {
    problem.with_updates(|updates| {
        let warm = spread_masks(masks.players(), 1)?;
        engine.coalition_losses_one_by_one(updates, &warm, &problem.holdout)?;
        CoalitionTiming::measure(clock, || {
            engine.coalition_losses_one_by_one(updates, masks, &problem.holdout)
        })
    })
}

/// Times libtorch in large batches, after one warm-up evaluation.
///
/// # Errors
/// [`CoalitionError`].
#[cfg(feature = "torch")]
pub fn batched(
    problem: &SyntheticRound,
    masks: &CoalitionMasks,
    engine: &mut crate::torch::Torch,
    clock: &mut dyn FnMut() -> f64,
) -> Result<CoalitionTiming, CoalitionError> {
    problem.with_updates(|updates| {
        let mut rows = &problem.holdout;
        let warm = spread_masks(masks.players(), 1)?;
        engine.coalition_losses(updates, &warm, &mut rows)?;
        CoalitionTiming::measure(clock, || engine.coalition_losses(updates, masks, &mut rows))
    })
}

/// Times of the path evaluation of many updates, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathTiming {
    /// One gradient of the mean loss over all rows: a validation pass.
    pub validation: f64,
    /// Three gradients by groups, and the losses at both endpoints.
    pub gradients: f64,
    /// Reading all updates and computing their norms: the minimum cost of any pass over them.
    pub reading: f64,
    /// The pass that computes their values.
    pub values: f64,
}

/// Times the path evaluation of `updates` updates, which are the round's updates repeated, with
/// three nodes.
///
/// # Errors
/// [`PathError`].
pub fn path(
    problem: &SyntheticRound,
    updates: usize,
    groups: usize,
    engine: &mut dyn Evaluator,
    threads: usize,
    clock: &mut dyn FnMut() -> f64,
) -> Result<PathTiming, PathError> {
    let away = (3.0_f64 / 20.0).sqrt();
    let nodes = [(0.5 - away, 5.0 / 18.0), (0.5, 8.0 / 18.0), (0.5 + away, 5.0 / 18.0)];
    let SyntheticRound { model, base, deltas, shares, holdout } = problem;
    let mut total = vec![0.0; base.len()];
    for (delta, share) in deltas.iter().zip(shares) {
        total.iter_mut().zip(delta).for_each(|(sum, &own)| *sum += share * f64::from(own));
    }
    let way = ParameterSegment { model, base, total: &total };
    let hand_out = |at: &mut usize, update: &mut Vec<f32>| {
        if *at == updates || deltas.is_empty() {
            return Ok::<_, Infallible>(None);
        }
        update.clear();
        update.extend_from_slice(&deltas[*at % deltas.len()]);
        *at += 1;
        Ok(Some(1.0 / updates as f64))
    };
    let wide: Vec<f64> = base.iter().map(|&value| value.into()).collect();
    let mut times = vec![clock()];
    engine.gradient(model, &wide, holdout)?;
    times.push(clock());
    let gradient = PathGradient::new(way, &nodes, groups, &mut &*holdout, engine)?;
    times.push(clock());
    let (mut at, mut room, mut lengths) = (0, Vec::new(), 0.0);
    while let Ok(Some(_)) = hand_out(&mut at, &mut room) {
        lengths += norm(&room);
    }
    std::hint::black_box(lengths);
    times.push(clock());
    let mut at = 0;
    std::hint::black_box(gradient.values(threads, |update| hand_out(&mut at, update))?);
    times.push(clock());
    let took = |step: usize| times[step + 1] - times[step];
    Ok(PathTiming { validation: took(0), gradients: took(1), reading: took(2), values: took(3) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reference;

    /// A clock that advances by one at each call.
    fn ticks() -> impl FnMut() -> f64 {
        let mut now = 0.0;
        move || {
            now += 1.0;
            now
        }
    }

    fn small() -> SyntheticRound {
        let model = ModelSpec::Mlp { inputs: 6, hidden: vec![5], classes: 3 };
        SyntheticRound::generate(model, 4, 50, 3).unwrap()
    }

    #[test]
    fn timings_cover_the_work_of_each_phase() {
        let problem = small();
        let masks = CoalitionMasks::all(4).unwrap();
        let timed = coalitions(&problem, &masks, 2, &mut ticks()).unwrap();
        assert_eq!(
            (timed.seconds, timed.losses.len(), timed.seconds_per_coalition()),
            (1.0, 16, 1.0 / 16.0)
        );
        let timed = path(&problem, 40, 5, &mut Reference::new(), 1, &mut ticks()).unwrap();
        assert_eq!([timed.validation, timed.gradients, timed.reading, timed.values], [1.0; 4]);
        assert_eq!(small().holdout, problem.holdout);
    }

    #[test]
    fn a_sample_is_spread_over_all_coalitions() {
        let masks = spread_masks(10, 64).unwrap();
        let sizes: usize = (0..64).map(|at| masks.members(at).count()).sum();
        assert_eq!(masks.len(), 64);
        assert!((64 * 4..=64 * 6).contains(&sizes), "{sizes}");
        assert_eq!(spread_masks(2, 64).unwrap().len(), 4);
        assert_eq!(spread_masks(0, 3).unwrap().len(), 1);
    }

    #[cfg(feature = "torch")]
    #[test]
    fn all_implementations_give_the_same_losses() {
        use crate::torch::{Torch, TorchDevice};
        let (problem, masks) = (small(), CoalitionMasks::all(4).unwrap());
        let mut torch = Torch::new(TorchDevice::Cpu, 1).unwrap();
        let fast = coalitions(&problem, &masks, 1, &mut ticks()).unwrap().losses;
        let singly = one_by_one(&problem, &masks, &mut torch, &mut ticks()).unwrap().losses;
        let batched = batched(&problem, &masks, &mut torch, &mut ticks()).unwrap().losses;
        for ((fast, singly), batched) in fast.iter().zip(singly).zip(batched) {
            assert!((fast - singly).abs() < 1e-6 && (fast - batched).abs() < 1e-6);
        }
    }
}
