//! What everybody could read when a round began, looked for in the reports: the engine carries it along instead.

use florin_protocol::limits::PUBLIC_STEPS_MAX;
use florin_protocol::{Address, Digest, Entry};

use super::coordinator::{Past, State};

impl State {
    /// What the rounds before began with, the latest first.
    pub(super) fn earlier_models(&self) -> Vec<Digest> {
        let latest = self.past.iter().rev().take(PUBLIC_STEPS_MAX);
        latest.map(|past| past.report.base_model).collect()
    }

    /// What was sent since the model last got better and was not set aside, looked for from the end.
    pub(super) fn last_updates(&self) -> Vec<(Address, Digest)> {
        let mut shown = Vec::new();
        for Past { report, .. } in self.past.iter().rev() {
            let scores = report.valuation.iter().flat_map(|valuation| &valuation.scores);
            let repeating: Vec<Address> = scores
                .filter(|score| score.treatment.repeats.is_some())
                .map(|score| score.account)
                .collect();
            let mut entries: Vec<&Entry> = report.entries.iter().collect();
            entries.retain(|entry| !repeating.contains(&entry.sender));
            entries.sort_by_key(|entry| std::cmp::Reverse(entry.order));
            shown.extend(entries.into_iter().map(|entry| (entry.sender, entry.update)));
            if report.valuation.as_ref().is_some_and(|valuation| valuation.total_nano > 0) {
                break;
            }
        }
        shown.reverse();
        shown
    }
}
