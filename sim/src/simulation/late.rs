//! Trainings that go on after their round: late updates count in a later one, by the task's rule.

use std::collections::BTreeMap;

use florin_protocol::{Address, Digest, Report, Timestamp};

use super::Simulation;
use crate::market::Arrival;

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
}
