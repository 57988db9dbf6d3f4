//! Counts what an estimator asks of a game, and lets nothing through that is not finite.

use crate::{Coalition, Game, Progress, Run, SmoothGame, ValuationError};

/// The only way an estimator speaks to its game: every pass is counted, reported and checked here.
pub struct Meter<'a> {
    run: Run<'a>,
    players: usize,
    rows: Option<usize>,
    planned: u64,
    evaluations: u64,
    gradients: u64,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(run: Run<'a>, players: usize, planned: u64) -> Self {
        Self { run, players, rows: None, planned, evaluations: 0, gradients: 0 }
    }

    /// What everything random must be drawn from.
    pub fn seed(&self) -> u64 {
        self.run.seed
    }

    /// Passes still allowed; `None` without a limit.
    pub fn budget_left(&self) -> Option<u64> {
        self.run.budget.map(|budget| budget.saturating_sub(self.passes()))
    }

    /// Evaluations so far.
    pub fn evaluations(&self) -> u64 {
        self.evaluations
    }

    /// Gradients so far.
    pub fn gradients(&self) -> u64 {
        self.gradients
    }

    /// Announces `passes` more than were foreseen.
    pub fn plan_more(&mut self, passes: u64) {
        self.planned += passes;
    }

    /// The worth of `coalition`, row by row.
    ///
    /// # Errors
    /// [`ValuationError::ValueNotFinite`], [`ValuationError::ShapeChanged`], or the game's own.
    pub fn value_rows<G: Game + ?Sized>(
        &mut self,
        game: &mut G,
        coalition: &Coalition,
    ) -> Result<Vec<f64>, ValuationError> {
        let rows = game.value_rows(coalition)?;
        self.check_rows(rows.len())?;
        if let Some((row, &worth)) = first_not_finite(&rows) {
            let coalition = coalition.clone();
            return Err(ValuationError::ValueNotFinite { coalition, row, worth });
        }
        self.evaluations += 1;
        self.report();
        Ok(rows)
    }

    /// The worth with everybody at `t`, row by row.
    ///
    /// # Errors
    /// [`ValuationError::DiagonalNotFinite`] (at 0 and 1 [`ValuationError::ValueNotFinite`], since
    /// those are coalitions), [`ValuationError::ShapeChanged`], or the game's own.
    pub fn diagonal<G: SmoothGame + ?Sized>(
        &mut self,
        game: &mut G,
        t: f64,
    ) -> Result<Vec<f64>, ValuationError> {
        let rows = game.diagonal(t)?;
        self.check_rows(rows.len())?;
        if let Some((row, &worth)) = first_not_finite(&rows) {
            return Err(self.diagonal_not_finite(t, row, worth));
        }
        self.evaluations += 1;
        self.report();
        Ok(rows)
    }

    /// The slopes with everybody at `t`: `[player][row]`.
    ///
    /// # Errors
    /// [`ValuationError::SlopeNotFinite`], [`ValuationError::ShapeChanged`], or the game's own.
    pub fn slopes<G: SmoothGame + ?Sized>(
        &mut self,
        game: &mut G,
        t: f64,
    ) -> Result<Vec<Vec<f64>>, ValuationError> {
        let slopes = game.slopes(t)?;
        if slopes.len() != self.players {
            let (got, expected) = (slopes.len(), self.players);
            return Err(ValuationError::ShapeChanged { what: "players' slopes", got, expected });
        }
        for (player, rows) in slopes.iter().enumerate() {
            self.check_rows(rows.len())?;
            if let Some((row, &slope)) = first_not_finite(rows) {
                return Err(ValuationError::SlopeNotFinite { player, row, t, slope });
            }
        }
        self.gradients += 1;
        self.report();
        Ok(slopes)
    }

    fn passes(&self) -> u64 {
        self.evaluations + self.gradients
    }

    fn report(&mut self) {
        let progress = Progress { done: self.passes(), planned: self.planned };
        if let Some(watch) = self.run.watch.as_mut() {
            watch(progress);
        }
    }

    fn check_rows(&mut self, got: usize) -> Result<(), ValuationError> {
        let expected = *self.rows.get_or_insert(got);
        if got == 0 {
            return Err(ValuationError::ShapeChanged { what: "rows", got, expected: 1 });
        }
        if got != expected {
            return Err(ValuationError::ShapeChanged { what: "rows", got, expected });
        }
        Ok(())
    }

    fn diagonal_not_finite(&self, t: f64, row: usize, worth: f64) -> ValuationError {
        if t == 0.0 || t == 1.0 {
            let coalition = if t == 0.0 {
                Coalition::empty(self.players)
            } else {
                Coalition::full(self.players)
            };
            return ValuationError::ValueNotFinite { coalition, row, worth };
        }
        ValuationError::DiagonalNotFinite { t, row, worth }
    }
}

fn first_not_finite(rows: &[f64]) -> Option<(usize, &f64)> {
    rows.iter().enumerate().find(|(_, row)| !row.is_finite())
}
