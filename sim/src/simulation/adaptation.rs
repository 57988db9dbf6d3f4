//! Adaptive behaviour of a member: which effort earns most, and whether participation pays.

use std::collections::VecDeque;

/// Fractions of its rows among which a member with adaptive effort chooses.
pub(super) const EFFORTS: [f64; 4] = [0.0, 0.25, 0.5, 1.0];
/// It explores in one round out of this many (epsilon-greedy).
const EXPLORE_ONE_IN: f64 = 10.0;
/// Rounds over which a member averages its profit, and for which it stays away when the average was
/// too low.
const ROUNDS: usize = 5;

/// State of one member.
#[derive(Clone, Debug, Default)]
pub(super) struct Adaptation {
    /// Total profit and number of choices of each effort.
    profits: [(f64, u32); EFFORTS.len()],
    /// The choice in the open round: index of the effort and its cost.
    current: Option<(usize, f64)>,
    /// Profit of the last rounds.
    last: VecDeque<f64>,
    /// Remaining rounds for which it stays away.
    pause_left: usize,
    /// Expected seconds of the rounds for which it was selected.
    expected: Vec<f64>,
    /// Whether it was selected and did not answer: it must enrol again.
    pub(super) must_re_enrol: bool,
    /// The last decision on participation and the moment of it.
    last_decision: Option<(u64, bool)>,
}

impl Adaptation {
    /// Chooses the effort of a round (epsilon-greedy); `chance` is uniform in [0, 1).
    pub(super) fn choose_effort(&self, chance: f64) -> usize {
        if let Some(untried) = self.profits.iter().rposition(|(_, times)| *times == 0) {
            return untried;
        }
        if chance * EXPLORE_ONE_IN < 1.0 {
            let at = chance * EXPLORE_ONE_IN * EFFORTS.len() as f64;
            return (at as usize).min(EFFORTS.len() - 1);
        }
        let mean = |(earned, times): (f64, u32)| earned / f64::from(times);
        let best = (0..EFFORTS.len()).max_by(|a, b| {
            mean(self.profits[*a]).total_cmp(&mean(self.profits[*b])).then(b.cmp(a))
        });
        best.unwrap_or(0)
    }

    /// Whether a round that is expected to take `seconds` is in the faster half of those for which the member was selected.
    pub(super) fn is_fast(&mut self, seconds: f64) -> bool {
        let slower = self.expected.iter().filter(|earlier| **earlier >= seconds).count();
        let is_fast = 2 * slower >= self.expected.len();
        self.expected.push(seconds);
        is_fast
    }

    /// Records that the member works in this round with this effort at this cost.
    pub(super) fn record_work(&mut self, effort: usize, cost: f64) {
        self.current = Some((effort, cost));
    }

    /// Records the pay of the round.
    pub(super) fn record_pay(&mut self, pay: f64) {
        let Some((effort, cost)) = self.current.take() else { return };
        let (earned, times) = &mut self.profits[effort];
        *earned += pay - cost;
        *times += 1;
        self.last.push_back(pay - cost);
        if self.last.len() > ROUNDS {
            self.last.pop_front();
        }
    }

    /// Whether the member takes part at this moment, when it can earn `outside_option` per
    /// round in another market. A second call for the same moment returns the same answer.
    pub(super) fn participates(&mut self, outside_option: Option<f64>, moment: u64) -> bool {
        if let Some((_, comes)) = self.last_decision.filter(|(at, _)| *at == moment) {
            return comes;
        }
        let comes = outside_option.is_none_or(|outside_option| self.decide(outside_option));
        self.last_decision = Some((moment, comes));
        comes
    }

    fn decide(&mut self, outside_option: f64) -> bool {
        if self.pause_left > 0 {
            self.pause_left -= 1;
            return false;
        }
        let mean = self.last.iter().sum::<f64>() / self.last.len().max(1) as f64;
        if self.last.len() == ROUNDS && mean < outside_option {
            // The current round is the first of them.
            self.pause_left = ROUNDS - 1;
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
        let mut habits = Adaptation::default();
        for _ in 0..40 {
            let effort = habits.choose_effort(0.5);
            habits.record_work(effort, EFFORTS[effort]);
            // The last quarter of the effort adds no pay.
            habits.record_pay(if effort >= 2 { 2.0 } else { 0.1 });
        }
        assert_eq!(habits.choose_effort(0.5), 2);
        let tried = |chance| habits.choose_effort(chance);
        assert_eq!([0.0, 0.03, 0.06, 0.09].map(tried), [0, 1, 2, 3]);
    }

    #[test]
    fn a_member_with_less_profit_than_elsewhere_pauses_and_then_returns() {
        let mut habits = Adaptation::default();
        let mut there = Vec::new();
        for moment in 0..20 {
            let comes = habits.participates(Some(1.0), moment);
            assert_eq!(
                habits.participates(Some(1.0), moment),
                comes,
                "a second call returns the same answer"
            );
            there.push(comes);
            if comes {
                habits.record_work(3, 0.5);
                habits.record_pay(1.0);
            }
        }
        assert_eq!(there.iter().filter(|comes| **comes).count(), 10, "{there:?}");
        assert!(Adaptation::default().participates(None, 0));
    }
}
