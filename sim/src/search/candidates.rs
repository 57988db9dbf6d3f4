//! Chooses the next candidates: uniformly at random first, then around the best so far with
//! shrinking distance.
//!
//! The spaces have one to three dimensions and every evaluation costs whole simulations, which is
//! too little data to learn a covariance. A random search with a local second half therefore
//! performs as well as a larger method.

use crate::random::{normal, stream, uniform};
use crate::scenario::{Search, SearchMethod, StrategyFamily};
use crate::strategy::Strategy;

/// Number of candidates of a strategy in one generation.
const GENERATION: usize = 4;
/// Standard deviation of the first local candidates around the best, relative to the range.
const LOCAL_STD: f64 = 0.25;
/// Factor by which the standard deviation shrinks with each generation.
const LOCAL_STD_DECAY: f64 = 0.7;

/// A candidate of the search.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Index of its strategy in the search.
    pub strategy_index: usize,
    /// Relative positions of its parameters in their ranges, from 0 to 1; empty if it has no
    /// parameters.
    pub positions: Vec<f64>,
    /// The strategy with these parameters.
    pub strategy: Strategy,
    /// Its mean gain on the selection seeds; NaN before it was simulated.
    pub gain: f64,
}

/// Number of candidates of a strategy.
pub(super) fn candidate_count(search: &Search, family: &StrategyFamily) -> usize {
    if family.parameters.is_empty() { 1 } else { search.candidates as usize }
}

/// The evaluated candidates and the state of the search.
pub(super) struct CandidatePlan<'a> {
    search: &'a Search,
    seed: u64,
    candidates: Vec<Candidate>,
    generation: u64,
}

impl<'a> CandidatePlan<'a> {
    pub(super) fn new(search: &'a Search, seed: u64) -> Self {
        Self { search, seed, candidates: Vec::new(), generation: 0 }
    }

    /// The next candidates of all strategies; empty at the end.
    pub(super) fn next_generation(&mut self) -> Vec<Candidate> {
        self.generation += 1;
        let families = self.search.strategies.iter().enumerate();
        families.flat_map(|(at, family)| self.next_of_strategy(at, family)).collect()
    }

    fn next_of_strategy(&self, at: usize, family: &StrategyFamily) -> Vec<Candidate> {
        let done = self.candidates.iter().filter(|one| one.strategy_index == at).count();
        let all = candidate_count(self.search, family);
        let anywhere = match self.search.method {
            SearchMethod::Random => all,
            SearchMethod::Refine => all.div_ceil(2),
        };
        let until = if done == 0 { anywhere } else { (done + GENERATION).min(all) };
        (done..until).filter_map(|number| self.candidate(at, family, number)).collect()
    }

    fn candidate(&self, at: usize, family: &StrategyFamily, number: usize) -> Option<Candidate> {
        if number == 0 {
            // The strategy with its own parameters; validation of the scenario ensures that they
            // are within their ranges.
            let (places, strategy) = (family.initial_positions().ok()?, family.strategy);
            return Some(Candidate {
                strategy_index: at,
                positions: places,
                strategy,
                gain: f64::NAN,
            });
        }
        let rng = &mut stream(self.seed, "candidate", [at as u64, number as u64]);
        let best = self.best(at).filter(|_| self.generation > 1);
        let dimensions = 0..family.parameters.len();
        let places: Vec<f64> = match best {
            Some(best) => {
                let near = LOCAL_STD * LOCAL_STD_DECAY.powi(self.generation as i32 - 2);
                let around = best.positions.iter();
                around.map(|place| (place + near * normal(rng)).clamp(0.0, 1.0)).collect()
            }
            None => dimensions.map(|_| uniform(rng)).collect(),
        };
        let strategy = family.at(&places).ok()?;
        Some(Candidate { strategy_index: at, positions: places, strategy, gain: f64::NAN })
    }

    /// The best candidate of a strategy so far; the earliest of several.
    fn best(&self, family: usize) -> Option<&Candidate> {
        let of = self.candidates.iter().filter(|one| one.strategy_index == family);
        of.reduce(|best, one| if one.gain > best.gain { one } else { best })
    }

    /// Records the gains of candidates.
    pub(super) fn record_gains(&mut self, candidates: Vec<Candidate>, gains: Vec<f64>) {
        let played = candidates.into_iter().zip(gains);
        self.candidates.extend(played.map(|(one, gain)| Candidate { gain, ..one }));
    }

    /// All candidates, and the best of each strategy with the number of its candidates.
    pub(super) fn into_results(self) -> (Vec<Candidate>, Vec<(Candidate, usize)>) {
        let families = 0..self.search.strategies.len();
        let chosen = families.filter_map(|at| {
            let tries = self.candidates.iter().filter(|one| one.strategy_index == at).count();
            Some((self.best(at)?.clone(), tries))
        });
        let chosen = chosen.collect();
        (self.candidates, chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The distance between the best candidate and the maximum, at 0.3 and 0.8, of a test function.
    fn found(method: &str, tries: u32, seed: u64) -> f64 {
        let text = format!(
            "group = 'a'\ncandidates = {tries}\nmethod = '{method}'\n[[strategies]]\nname = \
             'hill'\n\
             strategy = {{ kind = 'backdoor', fraction = 0.0, boost = 0.0 }}\n\
             parameters = {{ 'strategy.boost' = [0.0, 1.0], 'strategy.fraction' = [0.0, 1.0] }}"
        );
        let search: Search = toml::from_str(&text).unwrap();
        let mut plan = CandidatePlan::new(&search, seed);
        loop {
            let candidates = plan.next_generation();
            if candidates.is_empty() {
                break;
            }
            let height = |one: &Candidate| match one.strategy {
                Strategy::Backdoor { fraction, boost } => {
                    -((fraction - 0.3).powi(2) + (boost - 0.8).powi(2))
                }
                _ => f64::NAN,
            };
            let gains = candidates.iter().map(height).collect();
            plan.record_gains(candidates, gains);
        }
        let (tried, chosen) = plan.into_results();
        assert_eq!((tried.len(), chosen[0].1), (tries as usize, tries as usize));
        (-chosen[0].0.gain).sqrt()
    }

    #[test]
    fn local_candidates_stay_near_the_best() {
        let text = "group = 'a'\ncandidates = 8\n[[strategies]]\nname = 'hill'\n\
                    strategy = { kind = 'noise', scale = 8.0 }\nparameters = { 'strategy.scale' = \
                    [2.0, 12.0] }";
        let search: Search = toml::from_str(text).unwrap();
        let mut plan = CandidatePlan::new(&search, 3);
        let first = plan.next_generation();
        assert_eq!(
            (first[0].strategy, &first[0].positions),
            (Strategy::Noise { scale: 8.0 }, &vec![0.6])
        );
        // The first candidate is the best.
        let gains = (0..first.len()).map(|at| if at == 0 { 1.0 } else { 0.0 }).collect();
        plan.record_gains(first, gains);
        let near = plan.next_generation();
        assert_eq!(near.len(), GENERATION);
        for one in near {
            let Strategy::Noise { scale } = one.strategy else { panic!("{one:?}") };
            assert!((2.0..=12.0).contains(&scale), "{one:?}");
            assert!((one.positions[0] - 0.6).abs() < 4.0 * LOCAL_STD, "{one:?}");
            assert!((scale - (2.0 + 10.0 * one.positions[0])).abs() < 1e-9, "{one:?}");
        }
    }

    #[test]
    fn local_refinement_gets_nearer_to_the_maximum_than_random_search() {
        let mean = |method| (1..=40).map(|seed| found(method, 40, seed)).sum::<f64>() / 40.0;
        let (random, refined) = (mean("random"), mean("refine"));
        assert!(refined < 0.5 * random && refined < 0.05, "{refined} and {random}, seeds 1 to 40");
        let first = found("refine", 1, 1) - (0.09f64 + 0.64).sqrt();
        assert!(first.abs() < 1e-12, "the strategy as it was written: {first}");
    }
}
