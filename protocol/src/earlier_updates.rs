//! Published updates of earlier rounds. Updates of a new round are compared with them, because
//! every participant could read them when that round began.

use std::collections::BTreeSet;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::id::{Address, Digest};
use crate::limits::{EARLIER_ROUNDS_MAX, EARLIER_UPDATES_BYTES_MAX};
use crate::preprocessing::{DuplicatePolicy, PreprocessingRules};
use crate::report::Report;

/// The updates published since the last productive round (v(N) > 0), carried from report to report.
/// Both the updates of that round and those of the unproductive rounds since then would still
/// improve the current model, so copies of them must be detected.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "schema", derive(borsh::BorshSchema))]
pub struct EarlierUpdates {
    /// Updates per round, the oldest round first: the last productive round and those after it, or
    /// all rounds if none was productive. Senders and digests, in commit order.
    rounds: Vec<Vec<(Address, Digest)>>,
}

impl EarlierUpdates {
    /// Collects the updates that a task's `reports` published. The reports start with round 1.
    #[must_use]
    pub fn from_reports<'a>(reports: impl IntoIterator<Item = &'a Report>) -> Self {
        let mut shown = Self::default();
        reports.into_iter().for_each(|report| shown.add_report(report));
        shown
    }

    /// Adds the updates of the next round, given its report.
    pub fn add_report(&mut self, report: &Report) {
        if report.is_productive() {
            self.rounds.clear();
        }
        let updates = accepted_updates(report);
        if !updates.is_empty() {
            self.rounds.push(updates);
        }
        if self.rounds.len() > EARLIER_ROUNDS_MAX {
            // The first round stays, because its updates are worth the most: otherwise a sequence
            // of unproductive rounds could push them out.
            self.rounds.remove(1);
        }
    }

    /// The updates that the next round's updates are compared with: senders and digests, by round
    /// and then in commit order, so that the first sender of an update precedes its copies. Empty
    /// if the task pays for duplicates.
    ///
    /// Rounds whose decoded updates would exceed the total of [`EARLIER_UPDATES_BYTES_MAX`] bytes are
    /// omitted. The last productive round has priority, then the later rounds, the latest first.
    /// `model_bytes` is the decoded size of one update.
    #[must_use]
    pub fn reference_updates(
        &self,
        rules: PreprocessingRules,
        model_bytes: u64,
    ) -> Vec<(Address, Digest)> {
        if rules.near_duplicates == DuplicatePolicy::Accept {
            return Vec::new();
        }
        let mut room = EARLIER_UPDATES_BYTES_MAX;
        let mut fits = |round: &&Vec<(Address, Digest)>| {
            let count = u64::try_from(round.len()).unwrap_or(u64::MAX);
            let left = count.checked_mul(model_bytes).and_then(|bytes| room.checked_sub(bytes));
            room = left.unwrap_or(room);
            left.is_some()
        };
        let first = self.rounds.iter().take(1).filter(&mut fits);
        let first: Vec<_> = first.collect();
        let since: Vec<_> = self.rounds.iter().skip(1).rev().filter(fits).collect();
        first.into_iter().chain(since.into_iter().rev()).flatten().copied().collect()
    }
}

/// The updates of a round in commit order, except those that were rejected as near-duplicates.
/// Otherwise a sender that repeats another member's old update would cause that member's next
/// update to be compared with it.
fn accepted_updates(report: &Report) -> Vec<(Address, Digest)> {
    let scores = report.valuation.as_ref().map_or(&[][..], |valuation| &valuation.scores);
    let repeats = scores.iter().filter(|score| score.preprocessing.duplicate_of.is_some());
    let repeating: BTreeSet<Address> = repeats.map(|score| score.account).collect();
    let own = report.entries.iter().filter(|entry| !repeating.contains(&entry.sender));
    let mut own: Vec<_> = own.collect();
    own.sort_by_key(|entry| entry.commit_position);
    own.into_iter().map(|entry| (entry.sender, entry.update)).collect()
}
