//! The times of a round's messages, for a trace of the simulation.

use florin_protocol::{Address, Offer, Timestamp};

/// The times of one round, in virtual time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundTimeline {
    /// The round, from 1.
    pub round: u32,
    /// The offer.
    pub opened: Timestamp,
    /// The deadline of the commits.
    pub commit_by: Timestamp,
    /// The deadline of the updates.
    pub reveal_by: Timestamp,
    /// Number of commits that end their phase.
    pub commits_needed: usize,
    /// The cohort.
    pub cohort: Vec<Address>,
    /// The accepted commits in the order of their arrival.
    pub commits: Vec<(Address, Timestamp)>,
    /// The end of the commits.
    pub commits_closed: Timestamp,
    /// The accepted updates in the order of their arrival.
    pub updates: Vec<(Address, Timestamp)>,
    /// The end of the updates. Valuation and settlement take no virtual time.
    pub updates_closed: Timestamp,
}

impl RoundTimeline {
    /// The timeline of an offer, before any message. `target` is the task's number of updates.
    pub(super) fn new(offer: &Offer, target: u32) -> Self {
        let target = usize::try_from(target).unwrap_or(usize::MAX);
        Self {
            round: offer.scope.round.0,
            opened: offer.opened,
            commit_by: offer.commit_by,
            reveal_by: offer.reveal_by,
            commits_needed: target.min(offer.cohort.len()),
            cohort: offer.cohort.clone(),
            commits: Vec::new(),
            commits_closed: offer.opened,
            updates: Vec::new(),
            updates_closed: offer.opened,
        }
    }
}
