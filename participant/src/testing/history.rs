//! Public data of earlier rounds, recomputed from the reports; the real engine maintains it
//! incrementally.

use florin_protocol::limits::GLOBAL_DELTAS_MAX;
use florin_protocol::{Address, Digest, UpdateEntry};

use super::coordinator::{ClosedRound, FakeCoordinator};

impl FakeCoordinator {
    /// Base models of the earlier rounds, the latest first.
    pub(super) fn earlier_models(&self) -> Vec<Digest> {
        let latest = self.closed_rounds.iter().rev().take(GLOBAL_DELTAS_MAX);
        latest.map(|past| past.report.base_model).collect()
    }

    /// Updates since the last round that improved the model, without those rejected as
    /// near-duplicates; searched from the end.
    pub(super) fn last_updates(&self) -> Vec<(Address, Digest)> {
        let mut shown = Vec::new();
        for ClosedRound { report, .. } in self.closed_rounds.iter().rev() {
            let scores = report.valuation.iter().flat_map(|valuation| &valuation.scores);
            let repeating: Vec<Address> = scores
                .filter(|score| score.preprocessing.duplicate_of.is_some())
                .map(|score| score.account)
                .collect();
            let mut entries: Vec<&UpdateEntry> = report.entries.iter().collect();
            entries.retain(|entry| !repeating.contains(&entry.sender));
            entries.sort_by_key(|entry| std::cmp::Reverse(entry.commit_position));
            shown.extend(entries.into_iter().map(|entry| (entry.sender, entry.update)));
            if report.valuation.as_ref().is_some_and(|valuation| valuation.total_nano > 0) {
                break;
            }
        }
        shown.reverse();
        shown
    }
}
