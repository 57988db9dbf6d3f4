//! Many games at once, in the order in which they were asked for; the first that comes to a halt stops the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::parallel::each;
use crate::play::{Played, SimError, play};
use crate::scenario::Scenario;

/// A game that came to a halt.
#[derive(Debug, thiserror::Error)]
#[error("seed {seed}: {error}")]
pub struct Halted {
    /// Its seed.
    pub seed: u64,
    /// Why.
    #[source]
    pub error: SimError,
}

/// A game to be played: a seed of a scenario.
pub(crate) type Wanted = (u64, Arc<Scenario>);

/// Hears how many games are done, and of how many.
pub type Watch<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Plays them all on so many threads. After a halt no further game is begun.
pub(crate) fn play_all(
    games: Vec<Wanted>,
    threads: usize,
    watch: Watch<'_>,
) -> Result<Vec<Played>, Halted> {
    let (all, done, halted) = (games.len(), AtomicUsize::new(0), AtomicBool::new(false));
    // A game on each thread is faster than several threads in one game.
    let inner = (threads / all.max(1)).max(1);
    let one = |(): &mut (), (seed, scenario): Wanted| {
        if halted.load(Ordering::Relaxed) {
            return None;
        }
        let played = play(&scenario, seed, inner).map_err(|error| {
            halted.store(true, Ordering::Relaxed);
            Halted { seed, error }
        });
        watch(done.fetch_add(1, Ordering::Relaxed).saturating_add(1), all);
        Some(played)
    };
    // What was not begun stands behind a halt, and is left out with it.
    each(threads, games, || (), one).into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_halt_ends_it_and_names_its_seed() {
        let text = "name = 'a'\nquestion = 'Does it stop?'\nrounds = 1\n\
            [population.honest]\ncount = 2\nrows = [20, 20]";
        let mut scenario = Scenario::read(text, &[]).unwrap();
        // No market takes such a task; the scenario is not checked again.
        scenario.rounds = 0;
        let scenario = Arc::new(scenario);
        let begun = AtomicUsize::new(0);
        let watch = |_, _| {
            begun.fetch_add(1, Ordering::Relaxed);
        };
        let games = (1..=50).map(|seed| (seed, Arc::clone(&scenario))).collect();
        let halted = play_all(games, 1, &watch).unwrap_err();
        assert!(halted.to_string().starts_with("seed 1: "), "{halted}");
        assert_eq!(begun.load(Ordering::Relaxed), 1, "no other game is begun");
    }
}
