//! The rules of a task's rounds in words: who is asked, when a round ends, and how late updates count.

use florin_protocol::{
    DeadlineRule, RoundRules, Selection, SelectionKnob, StalenessRule, StalenessWeight, format_ms,
};
use serde::Serialize;

/// The rules of rounds that decide when a participant trains and whether its update counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RoundTerms {
    /// Updates that complete a round.
    pub cohort_target: u32,
    /// Participants that are asked beyond them.
    pub over_selection: u32,
    /// How the cohort is selected.
    pub selection: Selection,
    /// How the deadline of commits follows.
    pub deadline: DeadlineRule,
    /// How late updates count.
    pub staleness: StalenessRule,
    /// The longest time from an offer to the last commit, in milliseconds.
    pub train_ms: u64,
}

impl From<&RoundRules> for RoundTerms {
    fn from(rules: &RoundRules) -> Self {
        let RoundRules { cohort_target, over_selection, selection, deadline, .. } = *rules;
        let (staleness, train_ms) = (rules.staleness, rules.train_ms);
        Self { cohort_target, over_selection, selection, deadline, staleness, train_ms }
    }
}

impl RoundTerms {
    /// When a round ends, and how many participants train at a time. A published task has rules and no name of a mode.
    #[must_use]
    pub fn end(self) -> String {
        let (updates, more) = (counted(self.cohort_target, "update"), self.over_selection);
        let asked = self.cohort_target.saturating_add(more);
        let end = format!("a round ends with {updates}");
        match (self.staleness.admits_late(), more) {
            (false, 0) => end,
            (false, _) => format!("{end}, and asks up to {asked} participants"),
            (true, 0) => format!("{end}, and slower trainings go on"),
            (true, _) => {
                format!("{end}, and up to {asked} participants train at the same time")
            }
        }
    }

    /// How late updates count.
    #[must_use]
    pub fn lateness(self) -> String {
        let weight = match self.staleness.weight {
            StalenessWeight::Equal => "with its whole weight",
            StalenessWeight::InverseRoot => "with its weight divided by √(1 + rounds)",
            StalenessWeight::Inverse => "with its weight divided by 1 + rounds",
        };
        match self.staleness.rounds {
            0 => "an update that misses its round is lost".to_owned(),
            late => format!("an update counts up to {} late, {weight}", counted(late, "round")),
        }
    }

    /// How the cohort is selected.
    #[must_use]
    pub fn selected(self) -> String {
        match self.selection.knob {
            SelectionKnob::Random => "random: all with the same probability".to_owned(),
            knob => {
                let explore = self.selection.explore;
                format!("{}; {explore} of the places explore", knob.name())
            }
        }
    }

    /// When the commits of a round end.
    #[must_use]
    pub fn deadline(self) -> String {
        let most = format_ms(self.train_ms);
        match self.deadline {
            DeadlineRule::Fixed => format!("{most} after the offer"),
            DeadlineRule::Predicted { quantile, slack } => format!(
                "{slack} times the {quantile}-quantile of the predicted times, at most {most} after \
                 the offer"
            ),
        }
    }
}

fn counted(count: u32, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use florin_protocol::Micro;

    fn terms(change: impl FnOnce(&mut RoundRules)) -> RoundTerms {
        let mut rules = testing::spec().rounds;
        (rules.cohort_target, rules.over_selection, rules.train_ms) = (4, 0, 120_000);
        change(&mut rules);
        RoundTerms::from(&rules)
    }

    #[test]
    fn synchronous_rounds_end_with_the_target_and_lose_late_updates() {
        let plain = terms(|_| ());
        assert_eq!(plain.end(), "a round ends with 4 updates");
        assert_eq!(plain.lateness(), "an update that misses its round is lost");
        assert_eq!(plain.deadline(), "2 min after the offer");
        assert_eq!(plain.selected(), "random: all with the same probability");
        let more = terms(|rules| rules.over_selection = 2).end();
        assert!(more.ends_with("asks up to 6 participants"), "{more}");
    }

    #[test]
    fn rounds_with_late_updates_name_their_concurrency_and_the_weight_of_late_updates() {
        let buffered = terms(|rules| {
            (rules.over_selection, rules.staleness.rounds) = (8, 1);
            rules.selection = Selection { knob: SelectionKnob::Fast, explore: Micro(100_000) };
            rules.deadline =
                DeadlineRule::Predicted { quantile: Micro(900_000), slack: Micro(1_500_000) };
        });
        let end = "a round ends with 4 updates, and up to 12 participants train at the same time";
        assert_eq!(buffered.end(), end);
        let patient = terms(|rules| rules.staleness.rounds = 1).end();
        assert!(patient.ends_with("and slower trainings go on"), "{patient}");
        assert!(buffered.lateness().starts_with("an update counts up to 1 round late, with"));
        assert_eq!(buffered.selected(), "fast; 0.1 of the places explore");
        assert!(buffered.deadline().starts_with("1.5 times the 0.9-quantile"));
    }
}
