//! What a member makes of what it earned: how much effort is worth it, and whether to come at all.

use std::collections::VecDeque;

/// Shares of its rows that a member who weighs its effort chooses from.
pub(super) const EFFORTS: [f64; 4] = [0.0, 0.25, 0.5, 1.0];
/// In one of so many rounds it tries something else.
const TRIES_ONE_IN: f64 = 10.0;
/// Rounds that a member looks back on, and stays away for when they were not worth it.
const ROUNDS: usize = 5;

/// One member's memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Habits {
    /// What each effort earned in all, and how often it was chosen.
    earned: [(f64, u32); EFFORTS.len()],
    /// What it does in this round: an effort by its place, and what that costs.
    now: Option<(usize, f64)>,
    /// What the last rounds brought after costs.
    last: VecDeque<f64>,
    /// Rounds that it still stays away.
    away: usize,
    /// It was asked and did not answer: it has to enrol again.
    pub(super) is_silent: bool,
    /// What it decided last, and when.
    decided: Option<(u64, bool)>,
}

impl Habits {
    /// The effort of a round; `chance` is a number in [0, 1).
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

    /// It works in this round, with an effort and at a cost.
    pub(super) fn works(&mut self, effort: usize, cost: f64) {
        self.now = Some((effort, cost));
    }

    /// What the round paid it.
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

    /// Whether it takes part at this moment, when elsewhere a round would bring it so much. Asked again at the same moment
    /// it says the same.
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
            // This one is the first of them.
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
    fn effort_goes_where_it_earned_most() {
        let mut habits = Habits::default();
        for _ in 0..40 {
            let effort = habits.effort(0.5);
            habits.works(effort, EFFORTS[effort]);
            // The last quarter of the effort earns nothing more.
            habits.learn(if effort >= 2 { 2.0 } else { 0.1 });
        }
        assert_eq!(habits.effort(0.5), 2);
        let tried = |chance| habits.effort(chance);
        assert_eq!([0.0, 0.03, 0.06, 0.09].map(tried), [0, 1, 2, 3]);
    }

    #[test]
    fn who_earns_less_than_elsewhere_leaves_and_comes_back_to_look() {
        let mut habits = Habits::default();
        let mut there = Vec::new();
        for moment in 0..20 {
            let comes = habits.comes(Some(1.0), moment);
            assert_eq!(habits.comes(Some(1.0), moment), comes, "asked again, it says the same");
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
