//! The updates of earlier rounds that a round's are held against, because everybody could read them when it began.

use std::collections::BTreeSet;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::id::{Address, Digest};
use crate::limits::{LAST_ROUNDS_MAX, LAST_UPDATES_BYTES_MAX};
use crate::report::Report;
use crate::task::{Protection, Repeats};

/// The updates that were shown since the model last got better, carried from report to report. Those of the last round
/// that came to something still help the model that the next one begins with, and so do those shown since: rounds that
/// came to nothing show their updates too.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct EarlierUpdates {
    /// The last round that came to something and those behind it, the oldest first; all since the first one where none
    /// did. Senders and digests, in the order of their commits.
    rounds: Vec<Vec<(Address, Digest)>>,
}

impl EarlierUpdates {
    /// Those that a task's reports show, the first round's first.
    #[must_use]
    pub fn of<'a>(reports: impl IntoIterator<Item = &'a Report>) -> Self {
        let mut shown = Self::default();
        reports.into_iter().for_each(|report| shown.pass(report));
        shown
    }

    /// Goes on to the round after this one.
    pub fn pass(&mut self, report: &Report) {
        if report.came_to_something() {
            self.rounds.clear();
        }
        let updates = own_work(report);
        if !updates.is_empty() {
            self.rounds.push(updates);
        }
        if self.rounds.len() > LAST_ROUNDS_MAX {
            // The first stays: its updates are worth the most, and nobody is to push them out with rounds that fail.
            self.rounds.remove(1);
        }
    }

    /// What the next round's updates are held against: senders and digests, those of earlier rounds first, within a round
    /// in the order of their commits, so that whoever sent something first stands first. None where the task pays for
    /// repeats. Rounds are left out whose updates, decoded, would bring all of them over [`LAST_UPDATES_BYTES_MAX`]
    /// bytes; the last one that came to something goes before the later ones, and of these the latest. `model_bytes` is
    /// the length of one.
    #[must_use]
    pub fn held_against(&self, rules: Protection, model_bytes: u64) -> Vec<(Address, Digest)> {
        if rules.repeats == Repeats::Counted {
            return Vec::new();
        }
        let mut room = LAST_UPDATES_BYTES_MAX;
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

/// A round's updates in the order of their commits, but for those that were set aside: else whoever sends a member's old
/// update once more would have that member's next one held against it.
fn own_work(report: &Report) -> Vec<(Address, Digest)> {
    let scores = report.valuation.as_ref().map_or(&[][..], |valuation| &valuation.scores);
    let repeats = scores.iter().filter(|score| score.treatment.repeats.is_some());
    let repeating: BTreeSet<Address> = repeats.map(|score| score.account).collect();
    let own = report.entries.iter().filter(|entry| !repeating.contains(&entry.sender));
    let mut own: Vec<_> = own.collect();
    own.sort_by_key(|entry| entry.order);
    own.into_iter().map(|entry| (entry.sender, entry.update)).collect()
}
