//! The coordinator's own records: defaults after deadlines, and the beacon of the audits.

use std::time::Duration;

use florin_compute::{RecordedAction, RecordedLease};
use florin_protocol::{Digest, Rejection, Timestamp};

use super::LeaseHost;
use super::hosted::{DueAction, HostedOrder};

/// Pause between two looks at the deadlines.
const TICK: Duration = Duration::from_millis(50);

impl LeaseHost {
    /// Applies all that is due: defaults after deadlines, the beacon of the audits, orders without blobs.
    pub fn apply_due(&self) {
        self.apply_due_to_listings();
        let now = self.now();
        let due: Vec<(Digest, DueAction)> = {
            let state = self.state();
            let due = state
                .orders
                .iter()
                .filter(|(id, order)| !self.waits_for_actions(**id, order, now))
                .filter_map(|(id, order)| {
                    let action = order.due(now)?;
                    Some((order.is_checkpoint_due(now), *id, action))
                });
            // Files of checkpoints are read whole: those of one lease, behind all that others wait for.
            let (slow, fast): (Vec<_>, Vec<_>) = due.partition(|(is_slow, ..)| *is_slow);
            let all = fast.into_iter().chain(slow.into_iter().take(1));
            all.map(|(_, id, action)| (id, action)).collect()
        };
        for (id, action) in due {
            let done = match action {
                DueAction::Record => self.append_own(id),
                DueAction::Abandon => self.abandon(id),
            };
            if let Err(rejection) = done {
                tracing::error!(order = %id, %rejection, "a default cannot be applied: will retry");
            }
        }
        self.remove_unneeded_files();
    }

    /// Whether an action that met the deadline of an order is not recorded yet.
    fn waits_for_actions(&self, id: Digest, order: &HostedOrder, now: Timestamp) -> bool {
        order
            .lease
            .as_ref()
            .is_some_and(|lease| self.inner.arriving.waits(id, lease.lease().phase().1, now))
    }

    fn append_own(&self, id: Digest) -> Result<(), Rejection> {
        self.examine_checkpoints(id, self.now())?;
        let mut state = self.state();
        let order = state.order_mut(id)?;
        let last = order.lease.as_ref().map_or(Timestamp(0), RecordedLease::last);
        match order.own_record(self.now().max(last)) {
            Some(record) => {
                if let RecordedAction::Checkpoints(_) = &record.action {
                    self.add_checkpoints(id, order)?;
                }
                self.append(id, order, record)
            }
            None => Ok(()),
        }
    }

    fn abandon(&self, id: Digest) -> Result<(), Rejection> {
        let mut state = self.state();
        let missing = state.orders.get(&id).map_or(0, |order| order.missing.len());
        let why = format!("{missing} blobs of the job did not arrive in time");
        self.refuse(&mut state, id, &why)
    }

    /// Applies defaults until the host stops.
    pub(crate) fn run_deadlines(&self) {
        while !self.is_stopping() {
            self.apply_due();
            std::thread::sleep(TICK);
        }
    }
}
