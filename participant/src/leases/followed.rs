//! An order that the daemon follows.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use florin_compute::{OrderView, Phase, RecordedLease};
use florin_protocol::{Address, Amount, Digest};
use florin_work::{LeasedTraining, SegmentStart};

use super::checkpointing::CheckpointPlan;
use super::decide::{LeaseRoles, promised};
use super::error::LeaseServeError;
use super::policy::{LeasePolicy, LeaseRole};
use super::store::{OrderFolder, StoredState};
use crate::client::Client;

/// First wait after an error of an order, in milliseconds.
const RETRY_MS: u64 = 100;

/// The result of a visit of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OrderVisit {
    /// A step was performed, or a part of one.
    Acted,
    /// There was nothing to do.
    Idle,
    /// The order asks for nothing more.
    Finished,
}

/// An order with all that the daemon has of it in memory.
#[derive(Debug)]
pub(super) struct FollowedOrder {
    /// The coordinator's last view.
    pub(super) view: OrderView,
    /// The lease, from its record.
    pub(super) lease: Option<RecordedLease>,
    /// The roles that are not refused.
    pub(super) roles: LeaseRoles,
    /// Why other roles are refused.
    pub(super) refusals: Vec<String>,
    pub(super) folder: OrderFolder,
    /// This account's bond in the order's task, as the ledger last had it.
    pub(super) deposit: Option<Amount>,
    /// The training, once it was needed.
    pub(super) training: Option<Box<LeasedTraining>>,
    /// Whether the training has rows of zeros: the account may not read those of the order yet.
    pub(super) is_stand_in: bool,
    /// The state that was uploaded for the referee of a dispute.
    pub(super) shown: Option<Digest>,
    /// Steps of the whole job, once it was loaded.
    pub(super) total_steps: Option<u64>,
    /// The states on disk, by the segment that they start.
    pub(super) states: Option<BTreeMap<u32, StoredState>>,
    /// The state that was computed last, with the segment that it starts.
    pub(super) current: Option<(u32, SegmentStart)>,
    /// The ends of segments that are left with the coordinator.
    pub(super) checkpoints: CheckpointPlan,
    /// Whether the award was announced.
    pub(super) is_award_announced: bool,
    /// Whether the end of the lease was announced.
    pub(super) is_end_announced: bool,
    /// Whether the lock of the bond was announced.
    pub(super) is_lock_announced: bool,
    /// The next visit is not before this moment.
    pub(super) retry_at: Option<Instant>,
    /// The next wait after an error, in milliseconds.
    pub(super) retry_ms: u64,
    /// The measured microseconds of a step that is too slow for the order.
    pub(super) slow_us: Option<u64>,
    /// Executors in a row that computed nothing.
    pub(super) executor_failures: u32,
    /// The next look at the settlement is not before this moment.
    pub(super) settle_at: Option<Instant>,
}

impl FollowedOrder {
    pub(super) fn new(view: OrderView, folder: OrderFolder, policy: &LeasePolicy) -> Self {
        let roles = LeaseRoles {
            bids: policy.bid.is_some(),
            audits: policy.audit.is_some(),
            referees: policy.referee,
        };
        Self {
            view,
            lease: None,
            roles,
            refusals: Vec::new(),
            folder,
            deposit: None,
            training: None,
            is_stand_in: false,
            shown: None,
            total_steps: None,
            states: None,
            current: None,
            checkpoints: CheckpointPlan::Unknown,
            is_award_announced: false,
            is_end_announced: false,
            is_lock_announced: false,
            retry_at: None,
            retry_ms: RETRY_MS,
            slow_us: None,
            executor_failures: 0,
            settle_at: None,
        }
    }

    pub(super) fn is_waiting(&self, now: Instant) -> bool {
        self.retry_at.is_some_and(|at| now < at)
    }

    /// Delays the next visit.
    pub(super) fn wait(&mut self, ms: u64) {
        self.retry_at = Instant::now().checked_add(Duration::from_millis(ms));
    }

    /// The account's bond in the order.
    pub(super) fn deposited(&self) -> Amount {
        self.deposit.unwrap_or(Amount::ZERO)
    }

    /// Whether the account has no part in the order, and cannot get one.
    pub(super) fn is_of_others(&self, me: Address) -> bool {
        let may_join = self.view.phase == Phase::Bidding && (self.roles.bids || self.roles.audits);
        !(self.has_part(me) || may_join)
    }

    /// Whether the account has a folder or a deposit, or may be asked for a ruling.
    pub(super) fn has_part(&self, me: Address) -> bool {
        let is_open = self.view.opened.is_some() && self.view.phase != Phase::Over;
        let may_rule = self.roles.referees && self.view.order.referee == me && is_open;
        may_rule || self.folder.exists() || !self.deposited().is_zero()
    }

    /// Brings the lease up to the coordinator's view; returns whether it is.
    pub(super) fn follow(&mut self, client: &Client) -> Result<bool, LeaseServeError> {
        match &mut self.lease {
            None => self.lease = client.recorded_lease(&self.view)?,
            Some(lease) => {
                while lease.length() < self.view.records && client.follow_lease(lease, 0)? {}
            }
        }
        Ok(self.lease()?.length() >= self.view.records)
    }

    pub(super) fn lease(&self) -> Result<&RecordedLease, LeaseServeError> {
        self.lease.as_ref().ok_or(LeaseServeError::NoLease)
    }

    pub(super) fn lease_mut(&mut self) -> Result<&mut RecordedLease, LeaseServeError> {
        self.lease.as_mut().ok_or(LeaseServeError::NoLease)
    }

    /// The deposits of the account in a role, and the rest that the lease may still ask for. A role
    /// that is not known counts as each.
    pub(super) fn exposure(&self, role: LeaseRole, me: Address) -> Amount {
        let Some(recorded) = &self.lease else { return self.deposited() };
        let lease = recorded.lease();
        let own = match lease.sealed_bid(me) {
            Some(_) => Some(LeaseRole::Provider),
            None if lease.is_auditor(me) => Some(LeaseRole::Auditor),
            None if lease.phase().0 != Phase::Bidding => Some(LeaseRole::Auditor),
            None => None,
        };
        if own.is_some_and(|own| own != role) {
            return Amount::ZERO;
        }
        let lost = lease.books().balance(florin_compute::ComputeAccount::Forfeited(me));
        // A loss counts by its record from the end of the lease on.
        let is_over = lease.phase().0 == Phase::Over;
        let recorded = if is_over { lost } else { Amount::ZERO };
        let open = self.deposited().minus(recorded).unwrap_or(Amount::ZERO);
        open.plus(promised(lease, me)).unwrap_or(Amount::from_units(u128::MAX))
    }
}
