//! Trainings that go on after their round: late updates count in a later one, by the task's rule.

use std::collections::BTreeMap;

use florin_protocol::{Address, Digest, MissingReason, Report, Timestamp};

use super::Simulation;
use crate::market::{Arrival, RoundResult};

/// A training that was not over when its round's commits ended.
#[derive(Clone, Debug)]
pub(super) struct LateArrival {
    /// When its update is ready.
    ready: Timestamp,
    /// The update, with the model that it was trained from.
    arrival: Arrival,
}

impl Simulation<'_> {
    /// The late updates of the open round's cohort, as arrivals of this round. Those of accounts that
    /// the round no longer asks are lost.
    pub(super) fn take_late(&mut self) -> Vec<Arrival> {
        let Some(offer) = self.market.offer() else { return Vec::new() };
        let late = std::mem::take(&mut self.late).into_iter();
        let mut arrivals = Vec::new();
        for (account, LateArrival { ready, arrival }) in late {
            if offer.cohort.binary_search(&account).is_ok() {
                let commit_ms = ready.ms_since(offer.opened).saturating_add(1);
                arrivals.push(Arrival { commit_ms, ..arrival });
            }
        }
        arrivals
    }

    /// Remembers the trainings that go on after a round: of those that sent no commit, as far as the
    /// task's rule admits them.
    pub(super) fn remember_late(
        &mut self,
        sent: Vec<Arrival>,
        (opened, base_model): (Timestamp, Digest),
        report: &Report,
    ) {
        let mut by_account: BTreeMap<Address, Arrival> =
            sent.into_iter().map(|arrival| (arrival.account, arrival)).collect();
        self.late = report
            .missing
            .iter()
            .filter(|(account, _)| self.market.training_goes_on(*account))
            .filter_map(|(account, _)| {
                let arrival = by_account.remove(account)?;
                let ready = opened.saturating_add_ms(arrival.commit_ms);
                let base_model = Some(arrival.base_model.unwrap_or(base_model));
                let begun = Some(arrival.begun.unwrap_or(opened));
                let arrival = Arrival { base_model, begun, ..arrival };
                Some((*account, LateArrival { ready, arrival }))
            })
            .collect();
    }

    /// Counts the senders whose trainings ended with this round, too late for it: each training once.
    pub(super) fn record_late(&mut self, senders: &[Address], done: &RoundResult) -> usize {
        let missing = &done.report.missing;
        let mut count = 0;
        for (account, reason) in missing.iter().filter(|(account, _)| senders.contains(account)) {
            let is_late = self.is_too_late(*account, *reason, done);
            if let Some((member, _)) = self.owner.get(account).filter(|_| is_late) {
                self.members[*member].late += 1;
                count += 1;
            }
        }
        count
    }

    /// Whether a training that the round does not count was too late: for the commits, which waited for
    /// it until their deadline; for the last round of the task's rule of late updates; or with its upload.
    /// Not a training that goes on, nor one for which a complete round did not wait.
    fn is_too_late(&self, account: Address, reason: MissingReason, done: &RoundResult) -> bool {
        let times = &done.report.times;
        let closed_at_deadline = times.commits_closed >= times.commit_by;
        let may_be_late = self.market.spec().rounds.staleness.admits_late();
        // Uploads were asked for only if there were enough commits.
        let had_uploads = done.timeline.updates_closed > done.timeline.commits_closed;
        match reason {
            MissingReason::NoCommit => {
                (closed_at_deadline || may_be_late) && !self.market.training_goes_on(account)
            }
            MissingReason::NoReveal => had_uploads,
            MissingReason::Rejected(_) => false,
        }
    }
}
