//! The times of a round's messages, for a trace of the simulation.

use std::collections::BTreeMap;

use florin_protocol::{Address, Offer, RoundRules, Timestamp};

use super::Arrival;

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
    /// Smallest number of updates; with fewer the round is abandoned.
    pub updates_least: u32,
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
    /// The members of the cohort that trained, and for whose commits the round did not wait.
    pub spares: BTreeMap<Address, SpareCommit>,
    /// The members of the cohort whose trainings began in an earlier round, with its offer.
    pub begun: BTreeMap<Address, Timestamp>,
}

/// A commit for which a round did not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpareCommit {
    /// When it would have arrived, in milliseconds after the offer.
    pub commit_ms: u64,
    /// The duration of its upload in milliseconds.
    pub upload_ms: u64,
}

impl RoundTimeline {
    /// The timeline of an offer, before any message.
    pub(super) fn new(offer: &Offer, rules: &RoundRules) -> Self {
        let target = usize::try_from(rules.cohort_target).unwrap_or(usize::MAX);
        Self {
            round: offer.scope.round.0,
            opened: offer.opened,
            commit_by: offer.commit_by,
            reveal_by: offer.reveal_by,
            commits_needed: target.min(offer.cohort.len()),
            updates_least: rules.cohort_min,
            cohort: offer.cohort.clone(),
            commits: Vec::new(),
            commits_closed: offer.opened,
            updates: Vec::new(),
            updates_closed: offer.opened,
            spares: BTreeMap::new(),
            begun: BTreeMap::new(),
        }
    }

    /// Records the trainings of the cohort, before any of them has committed.
    pub(super) fn expect(&mut self, arrivals: &[Arrival]) {
        for Arrival { account, commit_ms, upload_ms, begun, .. } in arrivals {
            if self.cohort.binary_search(account).is_ok() {
                let spare = SpareCommit { commit_ms: *commit_ms, upload_ms: *upload_ms };
                self.spares.entry(*account).or_insert(spare);
                self.begun.extend(begun.map(|begun| (*account, begun)));
            }
        }
    }
}
