//! The audit of a round's cohort: it must follow from the published candidates, the task's rule and
//! the reports of all earlier rounds.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use florin_protocol::{
    Address, Candidate, Candidates, Canonical, Digest, Mismatch, MissingReason, Offer, Report,
    RoundTimes, Standing, TaskHistory, TaskSpec, Timestamp, commit_deadline_ms, select_cohort,
};

use super::{AuditError, Auditor};

/// The earlier rounds, as far as the next cohort follows from them.
#[derive(Clone, Debug, Default)]
pub(super) struct SelectionAudit {
    history: TaskHistory,
    /// The seed of the last round with an accepted update.
    seed: Option<Digest>,
    /// The accounts that were selected, or candidates in an audited round.
    known: BTreeSet<Address>,
    /// The accounts that delivered an update when they were last selected.
    delivered: BTreeSet<Address>,
    /// The accounts that were selected before the round with the seed.
    before_seed: BTreeSet<Address>,
}

impl SelectionAudit {
    /// Goes on to the round after this report.
    pub(super) fn advance(&mut self, spec: &TaskSpec, report: &Report) {
        self.history.add_round(spec.rounds.staleness, report);
        if !report.entries.is_empty() {
            self.seed = Some(report.holdout.seed);
            self.before_seed.clone_from(&self.known);
        }
        for (account, _) in &report.missing {
            self.delivered.remove(account);
        }
        self.delivered.extend(report.entries.iter().map(|entry| entry.sender));
        self.known.extend(report.commits.iter().map(|(account, _)| *account));
        self.known.extend(report.missing.iter().map(|(account, _)| *account));
    }

    /// The mismatches of a round's cohort, of its deadline and of its times.
    pub(super) fn check(
        &self,
        spec: &TaskSpec,
        offer: &Offer,
        candidates: &Candidates,
        report: &Report,
    ) -> Vec<Mismatch> {
        let mut found = Vec::new();
        if let Some(seed) = self.seed.filter(|seed| *seed != candidates.seed) {
            found.push(Mismatch::new("candidates.seed", &candidates.seed, &seed));
        }
        if let Some(lost) = self.known.iter().find(|who| !candidates.accounts.contains_key(who)) {
            let stated = format!("without {lost}");
            found.push(Mismatch::new("candidates.accounts", &stated, &"all earlier participants"));
        }
        found.extend(self.standing_lies(candidates));
        for (at, entry) in report.entries.iter().enumerate() {
            let staleness = self.history.staleness(entry.sender);
            if entry.staleness != staleness {
                let line = format!("entries[{at}].staleness");
                found.push(Mismatch::new(line, &entry.staleness, &staleness));
            }
        }
        found.extend(super::sharing::contradictions(spec, candidates));
        let round = offer.scope.round;
        let selected = select_cohort(&spec.rounds, round, candidates, &self.history);
        let (cohort, reasons): (Vec<_>, Vec<_>) =
            selected.into_iter().map(|one| (one.account, one.reason)).unzip();
        if cohort != offer.cohort {
            found.push(Mismatch::new("offer.cohort", &Listed(&offer.cohort), &Listed(&cohort)));
        } else if reasons != offer.reasons {
            found.push(Mismatch::new("offer.reasons", &"others", &"as recomputed"));
        }
        let allowed =
            commit_deadline_ms(&spec.rounds, round, candidates, &self.history, &offer.cohort);
        let commit_by = offer.opened.saturating_add_ms(allowed);
        if offer.commit_by != commit_by {
            found.push(Mismatch::new("offer.commit_by", &offer.commit_by, &commit_by));
        }
        if !has_all_commits(report) {
            let line = "commits of the entries and of those that are missing after one";
            found.push(Mismatch::new(line, &false, &true));
        }
        found.extend(
            time_fault(spec, offer, report).map(|why| Mismatch::new("times", &why, &"in order")),
        );
        found
    }

    /// The accounts whose standing contradicts earlier reports: one that delivered, or whose training
    /// goes on, does not sit out, and one that took part before the seed was known is no newcomer.
    fn standing_lies(&self, candidates: &Candidates) -> Vec<Mismatch> {
        let lie = |(account, candidate): (&Address, &Candidate)| {
            let is_lie = match candidate.standing {
                Standing::Absent | Standing::Reserve => {
                    self.delivered.contains(account)
                        || self.history.member(*account).ongoing.is_some()
                }
                Standing::Newcomer => self.before_seed.contains(account),
                Standing::Eligible | Standing::BondTooSmall => false,
                // Those follow from other tasks; the audit of shared participants checks them.
                Standing::Busy(_) | Standing::Reserved(_) => false,
            };
            let line = format!("candidates.accounts[{account}].standing");
            let stated = format!("{:?}", candidate.standing);
            is_lie.then(|| Mismatch::new(line, &stated, &"Eligible"))
        };
        candidates.accounts.iter().filter_map(lie).collect()
    }

    /// Why the cohort's seed cannot be verified, if chance decided it.
    pub(super) fn unverified_seed(&self, offer: &Offer, candidates: &Candidates) -> Option<String> {
        let eligible = |standing| matches!(standing, Standing::Eligible | Standing::Newcomer);
        let count = candidates.accounts.values().filter(|one| eligible(one.standing)).count();
        let is_drawn = self.seed.is_none() && count > offer.cohort.len();
        is_drawn.then(|| {
            format!(
                "round {}: the seed of its cohort follows from the holdout, which only buyer and \
                 coordinator have",
                offer.scope.round
            )
        })
    }
}

impl Auditor<'_> {
    /// Checks that the round's cohort follows from its candidates and the earlier rounds.
    pub(super) fn check_selection(
        &mut self,
        offer: &Offer,
        report: &Report,
        found: &mut Vec<Mismatch>,
    ) -> Result<(), AuditError> {
        if report.ends_task() {
            return Ok(());
        }
        let candidates = self.client.candidates(report.scope.task, report.scope.round)?;
        let digest = candidates.digest();
        if !candidates.has_valid_length() || digest != offer.candidates {
            // The response has no signature: a later one may be right.
            found.push(self.unavailable("candidates", &offer.candidates, &digest));
            return Ok(());
        }
        found.extend(self.selection.check(&self.spec, offer, &candidates, report));
        found.extend(self.check_busy(offer, &candidates)?);
        self.selection.known.extend(candidates.accounts.keys());
        let line = self.selection.unverified_seed(offer, &candidates);
        let line = line.filter(|line| !self.unverifiable.contains(line));
        self.unverifiable.extend(line);
        Ok(())
    }
}

/// Addresses in a mismatch.
struct Listed<'a>(&'a [Address]);

impl std::fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown: Vec<String> = self.0.iter().map(Address::to_string).collect();
        f.write_str(&shown.join(", "))
    }
}

/// Whether the commits are those of the entries and of the members that are missing after one, ascending: the number
/// of commits decides how many members later rounds ask.
fn has_all_commits(report: &Report) -> bool {
    let missing = report.missing.iter().filter(|(_, why)| *why != MissingReason::NoCommit);
    let senders = report.entries.iter().map(|entry| entry.sender);
    let mut senders: Vec<Address> = senders.chain(missing.map(|(sender, _)| *sender)).collect();
    senders.sort_unstable();
    senders.iter().eq(report.commits.iter().map(|(sender, _)| sender))
}

/// The fault in the end of the commits, if there is one: they end with the last one that the round waits for, or at
/// the deadline. An earlier end would leave members out, and a later one would have more asked in later rounds.
fn end_fault(spec: &TaskSpec, offer: &Offer, report: &Report) -> Option<&'static str> {
    let target = usize::try_from(spec.rounds.cohort_target).unwrap_or(usize::MAX);
    let needed = target.min(offer.cohort.len());
    let RoundTimes { commits, commits_closed: closed, .. } = &report.times;
    match report.commits.len().cmp(&needed) {
        Ordering::Less if *closed < offer.commit_by => {
            Some("the commits ended early without a reason")
        }
        Ordering::Less => None,
        Ordering::Equal if commits.iter().max() == Some(closed) => None,
        Ordering::Equal => {
            Some("the commits did not end with the last one that the round waited for")
        }
        Ordering::Greater => Some("more commits than the round waited for"),
    }
}

/// The fault in the times of a report, if there is one.
fn time_fault(spec: &TaskSpec, offer: &Offer, report: &Report) -> Option<&'static str> {
    let RoundTimes { commits, commits_closed, updates, .. } = &report.times;
    let within =
        |times: &[Timestamp], from, to| times.iter().all(|time| (from..=to).contains(time));
    let mut by_position: Vec<(u32, Timestamp)> = Vec::new();
    for entry in &report.entries {
        let at = report.commits.iter().position(|(who, _)| *who == entry.sender);
        by_position.extend(at.and_then(|at| Some((entry.commit_position, *commits.get(at)?))));
    }
    by_position.sort_unstable();
    if commits.len() != report.commits.len() || updates.len() != report.entries.len() {
        Some("not one for each commit and update")
    } else if !within(commits, offer.opened, offer.commit_by) {
        Some("a commit outside its phase")
    } else if commits.iter().any(|at| at > commits_closed) {
        Some("a commit after the end of its phase")
    } else if let Some(fault) = end_fault(spec, offer, report) {
        Some(fault)
    } else if !within(updates, *commits_closed, offer.reveal_by) {
        Some("an update outside its phase")
    } else if !by_position.is_sorted_by_key(|(_, at)| *at) {
        Some("not in the order of the commits")
    } else {
        None
    }
}

#[cfg(test)]
#[path = "selection_tests.rs"]
mod tests;
