//! Rounds of the tokenised mechanism, which settles its own tokens outside the task.

use florin_learning::Evaluator;
use florin_protocol::{Address, UpdateEntry};

use super::Simulation;
use crate::error::SimError;
use crate::market::{Arrival, RoundResult, amount_to_florins};
use crate::mechanism::TokenRoundInput;
use crate::member_updates::MemberTrainingError;

/// The outcome of a round in tokens, per member.
#[derive(Debug)]
pub(super) struct TokenPayments {
    /// Tokens received minus tokens paid.
    pub(super) pay: Vec<f64>,
    /// Contribution of each member, in nats.
    pub(super) scores: Vec<f64>,
}

impl Simulation<'_> {
    /// Settles the round in tokens, if the mechanism is tokenised.
    pub(super) fn settle_tokens(
        &mut self,
        base: &[f32],
        sent: &[Arrival],
        done: &RoundResult,
    ) -> Result<TokenPayments, SimError> {
        let zeros = || vec![0.0; self.members.len()];
        let mut paid = TokenPayments { pay: zeros(), scores: zeros() };
        let Some(mut tokens) = self.tokens.take() else { return Ok(paid) };
        if let Some(metrics) = &done.report.metrics {
            let accuracy = f64::from(metrics.correct_after) / f64::from(metrics.rows.max(1));
            let from_new = tokens.scores_at_new_model();
            let scores = self.first_order_scores(base, sent, done, from_new)?;
            for (who, score) in &scores {
                if let Some((member, _)) = self.owner.get(who) {
                    paid.scores[*member] += score;
                }
            }
            let market = &self.market;
            let moves =
                tokens.settle(&TokenRoundInput { scores, accuracy }, |who| market.balance(who));
            for (from, to, amount) in moves {
                for (who, sign) in [(from, -1.0), (to, 1.0)] {
                    if let Some((member, _)) = self.owner.get(&who) {
                        paid.pay[*member] += sign * amount_to_florins(amount);
                    }
                }
                self.market.transfer(from, to, amount)?;
            }
        }
        self.tokens = Some(tokens);
        Ok(paid)
    }

    /// First-order decrease of the loss by each update, in nats: `−pᵢ·⟨∇L, Δᵢ⟩` on the round's
    /// holdout rows, at the round's base model and with the weights of the mean. With `from_new`,
    /// as in the published form: at the model after the round, with equal weights, and with each
    /// update centred on the mean, so that the scores sum to zero.
    fn first_order_scores(
        &mut self,
        base: &[f32],
        sent: &[Arrival],
        done: &RoundResult,
        from_new: bool,
    ) -> Result<Vec<(Address, f64)>, SimError> {
        let report = &done.report;
        let rows: Vec<usize> = report.holdout.rows.iter().map(|row| *row as usize).collect();
        let judged = self.population.holdout.subset(&rows).map_err(MemberTrainingError::from)?;
        let zero = vec![0.0; base.len()];
        let step = done.step.as_deref().filter(|_| from_new).unwrap_or(&zero);
        let at: Vec<f64> =
            base.iter().zip(step).map(|(base, step)| f64::from(*base) + f64::from(*step)).collect();
        let (_, gradient) = self.worker.gradient(&self.model, &at, &judged)?;
        let all: u64 = report.entries.iter().map(|entry| entry.rows_counted).sum();
        let count = report.entries.len().max(1) as f64;
        let score = |entry: &UpdateEntry| {
            let sent = sent.iter().find(|arrival| arrival.account == entry.sender)?;
            let mut delta = sent.delta.clone();
            florin_work::clip_update(self.market.spec(), &mut delta);
            let along = delta.iter().zip(step).zip(&gradient);
            let along: f64 = along.map(|((d, s), g)| (f64::from(*d) - f64::from(*s)) * g).sum();
            let share = entry.rows_counted as f64 / all.max(1) as f64;
            let weight = if from_new { 1.0 / count } else { share };
            Some((entry.sender, -weight * along))
        };
        Ok(report.entries.iter().filter_map(score).collect())
    }
}
