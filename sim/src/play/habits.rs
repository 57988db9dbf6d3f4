//! Adaptive behaviour of a member: which effort earns most, and whether participation pays.

use std::collections::VecDeque;

/// Fractions of its rows among which a member with the effort strategy chooses.
pub(super) const EFFORTS: [f64; 4] = [0.0, 0.25, 0.5, 1.0];
/// It explores in one round out of this many (epsilon-greedy).
const TRIES_ONE_IN: f64 = 10.0;
/// Rounds over which a member averages its profit, and for which it stays away when the average was
/// too low.
const ROUNDS: usize = 5;

/// State of one member.
#[derive(Clone, Debug, Default)]
pub(super) struct Habits {
    /// Total profit and number of choices of each effort.
    earned: [(f64, u32); EFFORTS.len()],
    /// The choice in the open round: index of the effort and its cost.
    now: Option<(usize, f64)>,
    /// Profit of the last rounds.
    last: VecDeque<f64>,
    /// Remaining rounds for which it stays away.
    away: usize,
    /// Whether it was selected and did not answer: it must enrol again.
    pub(super) is_silent: bool,
    /// The last decision on participation and the moment of it.
    decided: Option<(u64, bool)>,
}

impl Habits {
    /// Chooses the effort of a round (epsilon-greedy); `chance` is uniform in [0, 1).
    pub(super) fn effort(&self, chance: f64) -> usize {
        if let Some(untried) = self.earned.iter().rposition(|(_, times)| *times == 0) {
            return untried;
        }
        if chance * TRIES_ONE_IN < 1.0 {
            let at = chance * TRIES_ONE_IN * EFFORTS.len() as f64;
            return (at as usize).min(EFFORTS.len() - 1);
        }
        let mean = |(earned, times): (f64, u32)| earned / f64::from(times);
        let best = (0..EFFORTS.len())
            .max_by(|a, b| mean(self.earned[*a]).total_cmp(&mean(self.earned[*b])).then(b.cmp(a)));
        best.unwrap_or(0)
    }

    /// Records that the member works in this round with this effort at this cost.
    pub(super) fn works(&mut self, effort: usize, cost: f64) {
        self.now = Some((effort, cost));
    }

    /// Records the pay of the round.
    pub(super) fn learn(&mut self, pay: f64) {
        let Some((effort, cost)) = self.now.take() else { return };
        let (earned, times) = &mut self.earned[effort];
        *earned += pay - cost;
        *times += 1;
        self.last.push_back(pay - cost);
        if self.last.len() > ROUNDS {
            self.last.pop_front();
        }
    }

    /// Whether the member takes part at this moment, when it can earn `elsewhere` per round in
    /// another market. A second call for the same moment returns the same answer.
    pub(super) fn comes(&mut self, elsewhere: Option<f64>, moment: u64) -> bool {
        if let Some((_, comes)) = self.decided.filter(|(at, _)| *at == moment) {
            return comes;
        }
        let comes = elsewhere.is_none_or(|elsewhere| self.decides(elsewhere));
        self.decided = Some((moment, comes));
        comes
    }

    fn decides(&mut self, elsewhere: f64) -> bool {
        if self.away > 0 {
            self.away -= 1;
            return false;
        }
        let mean = self.last.iter().sum::<f64>() / self.last.len().max(1) as f64;
        if self.last.len() == ROUNDS && mean < elsewhere {
            // The current round is the first of them.
            self.away = ROUNDS - 1;
            self.last.clear();
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_member_chooses_the_effort_with_the_highest_mean_profit() {
        let mut habits = Habits::default();
        for _ in 0..40 {
            let effort = habits.effort(0.5);
            habits.works(effort, EFFORTS[effort]);
            // The last quarter of the effort adds no pay.
            habits.learn(if effort >= 2 { 2.0 } else { 0.1 });
        }
        assert_eq!(habits.effort(0.5), 2);
        let tried = |chance| habits.effort(chance);
        assert_eq!([0.0, 0.03, 0.06, 0.09].map(tried), [0, 1, 2, 3]);
    }

    #[test]
    fn a_member_with_less_profit_than_elsewhere_pauses_and_then_returns() {
        let mut habits = Habits::default();
        let mut there = Vec::new();
        for moment in 0..20 {
            let comes = habits.comes(Some(1.0), moment);
            assert_eq!(
                habits.comes(Some(1.0), moment),
                comes,
                "a second call returns the same answer"
            );
            there.push(comes);
            if comes {
                habits.works(3, 0.5);
                habits.learn(1.0);
            }
        }
        assert_eq!(there.iter().filter(|comes| **comes).count(), 10, "{there:?}");
        assert!(Habits::default().comes(None, 0));
    }
}
