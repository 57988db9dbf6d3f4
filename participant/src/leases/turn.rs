//! A turn of the daemon: the orders that it follows, and the sequence of their visits.
//!
//! Orders in which the account has a part are always followed, and those with a due action come
//! first, by their deadlines. An expensive step ends the turn, so that no order waits for more than
//! one step of another one. An examination of a new order may follow each of them, unless an action
//! would be late behind it.

use std::collections::BTreeSet;

use florin_compute::{ComputeJob, OrderView, Phase};
use florin_ledger::lease_task;
use florin_protocol::{Digest, Timestamp};

use super::decide::{LeaseStep, next_step};
use super::error::LeaseServeError;
use super::followed::{FollowedOrder, OrderVisit};
use super::measuring::job_shape;
use super::windows::shortest_window;
use super::{FOLLOWED_ORDERS_MAX, LeaseDaemon};
use crate::retry::Transient;

/// Predicted time of an examination without downloads and measurement, in milliseconds.
const EXAMINATION_MS: u64 = 200;
/// Predicted time of the measurement of a job whose shape is new, in milliseconds: twice the
/// longest one.
const MEASUREMENT_MS: u64 = 2 * super::measuring::MEASURE_MS_MAX;
/// Predicted rate of the downloads of a job, in bytes per millisecond: 10 MB/s.
pub(super) const DOWNLOAD_BYTES_PER_MS: u64 = 10_000;
/// An examination takes at most this part of the shortest window of an order with a deposit.
const EXAMINATION_PART: u64 = 2;
/// A postponed examination waits at least this long, in milliseconds.
const POSTPONED_MS: u64 = 500;

/// The place of an order in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum VisitRank {
    /// A new order, or a ruling without a deposit, after a turn that an own order ended.
    Awaited,
    /// An action is due, or the record has news, in an order with a deposit.
    Due,
    /// Another order in which the account has a part.
    Own,
    /// A new order, or a ruling without a deposit.
    Other,
}

/// The state of a turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TurnState {
    /// An expensive step was performed: urgent orders come first again.
    pub(super) is_over: bool,
    /// A new order was examined, or its examination was postponed.
    has_examined: bool,
    /// An own order ended the turn before: other orders come first now.
    pub(super) is_of_others: bool,
}

impl LeaseDaemon<'_, '_> {
    /// Reads the list of orders, and visits each until an expensive step. Returns whether any step
    /// was performed.
    pub(super) fn run_once(&mut self) -> Result<bool, LeaseServeError> {
        self.listed.read(self.context.client)?;
        let mut views = self.listed.views().to_vec();
        if let Some(only) = self.config.only {
            views.retain(|view| view.id == only);
        }
        let is_listed = !views.is_empty();
        self.follow(views);
        self.read_deposits()?;
        self.turn_executors();
        self.settle_forgotten()?;
        // An order that the coordinator has forgotten ends with its claim.
        if let Some(only) = self.config.only
            && !is_listed
            && !self.orders.contains_key(&only)
            && !self.store.order(only).exists()
        {
            self.finished.insert(only);
        }
        let mut acted = false;
        (self.turn.is_over, self.turn.has_examined) = (false, false);
        for (rank, id) in self.by_urgency() {
            if self.shutdown.is_requested() {
                break;
            }
            acted |= self.visit(id);
            if self.turn.is_over {
                self.turn.is_of_others = matches!(rank, VisitRank::Due | VisitRank::Own);
                return Ok(true);
            }
        }
        self.turn.is_of_others = false;
        Ok(acted)
    }

    /// Follows the listed orders in which the account has a part, and the newest of those that it
    /// may examine.
    pub(super) fn follow(&mut self, views: Vec<OrderView>) {
        let (me, listed) = (self.me, views.iter().map(|view| view.id).collect::<BTreeSet<_>>());
        self.finished.retain(|id| listed.contains(id));
        self.orders.retain(|id, order| listed.contains(id) || order.has_part(me));
        let mut places = 0;
        for view in views {
            if self.finished.contains(&view.id) {
                continue;
            }
            let has_part = match self.orders.get(&view.id) {
                Some(order) => order.has_part(me),
                None => self.may_have_part(&view),
            };
            if !has_part && (view.refused.is_some() || view.phase == Phase::Over) {
                self.orders.remove(&view.id);
                self.finished.insert(view.id);
                continue;
            }
            if !has_part && (view.opened.is_none() || places >= FOLLOWED_ORDERS_MAX) {
                self.orders.remove(&view.id);
                continue;
            }
            places += usize::from(!has_part);
            self.follow_view(view);
        }
    }

    /// Follows an order by a new view.
    fn follow_view(&mut self, view: OrderView) {
        match self.orders.get_mut(&view.id) {
            Some(order) => order.view = view,
            None => {
                let folder = self.store.order(view.id);
                let order = FollowedOrder::new(view, folder, &self.config.policy);
                self.orders.insert(order.view.id, order);
            }
        }
    }

    /// Whether the account may have a part in an order that is not followed yet.
    fn may_have_part(&self, view: &OrderView) -> bool {
        let is_open = view.opened.is_some() && view.phase != Phase::Over;
        let may_rule = self.config.policy.referee && view.order.referee == self.me && is_open;
        may_rule || view.provider == Some(self.me) || self.store.order(view.id).exists()
    }

    /// Reads the deposits in new orders, on which the limits of the policy rest.
    pub(super) fn read_deposits(&mut self) -> Result<(), LeaseServeError> {
        let (ledger, me) = (self.context.ledger, self.me);
        for order in self.orders.values_mut().filter(|order| order.deposit.is_none()) {
            order.deposit = Some(ledger.bond_of(lease_task(&order.view.order), me)?.amount);
        }
        Ok(())
    }

    /// The orders in the sequence of their visits.
    pub(super) fn by_urgency(&self) -> Vec<(VisitRank, Digest)> {
        let now = self.context.client.now();
        let all = self.orders.iter();
        let mut all: Vec<(VisitRank, Timestamp, Digest)> =
            all.map(|(id, order)| (self.rank(order, now), order.view.deadline, *id)).collect();
        all.sort_unstable();
        all.into_iter().map(|(rank, _, id)| (rank, id)).collect()
    }

    fn rank(&self, order: &FollowedOrder, now: Timestamp) -> VisitRank {
        let is_own = !order.deposited().is_zero() || order.folder.exists();
        match is_own {
            true if self.is_due(order, now) => VisitRank::Due,
            true => VisitRank::Own,
            false if self.turn.is_of_others => VisitRank::Awaited,
            false => VisitRank::Other,
        }
    }

    /// Whether an order asks the account for an action, as far as its record was read.
    fn is_due(&self, order: &FollowedOrder, now: Timestamp) -> bool {
        let Some(recorded) = &order.lease else { return order.view.phase != Phase::Over };
        let has_news = recorded.length() < order.view.records;
        let step = next_step(recorded.lease(), self.me, order.roles, now);
        has_news || step.is_some_and(|step| !is_examination(step))
    }

    /// Examines an order for a bid or an audit: one in a turn, and none while an action on another
    /// order could be late behind it.
    pub(super) fn examine_new(
        &mut self,
        order: &mut FollowedOrder,
        step: LeaseStep,
    ) -> Result<OrderVisit, LeaseServeError> {
        if self.turn.has_examined {
            return Ok(OrderVisit::Idle);
        }
        self.turn.has_examined = true;
        if self.config.gate.is_closed() || !self.has_time_to_examine(order)? {
            order.wait(POSTPONED_MS);
            return Ok(OrderVisit::Idle);
        }
        self.turn.is_over = true;
        match step {
            LeaseStep::SealBid => self.seal_bid(order),
            _ => self.join_audit(order),
        }
    }

    pub(super) fn has_time_to_examine(
        &self,
        order: &FollowedOrder,
    ) -> Result<bool, LeaseServeError> {
        let Some(left) = self.spare_ms() else { return Ok(true) };
        match self.context.client.order_job(order.view.id, order.view.order.job) {
            Ok(job) => Ok(self.examination_ms(order, &job) <= left),
            Err(error) if error.is_transient() => Err(error.into()),
            // The examination gives the reason.
            Err(_) => Ok(true),
        }
    }

    /// The predicted time of an examination.
    fn examination_ms(&self, order: &FollowedOrder, job: &ComputeJob) -> u64 {
        let shape = job_shape(job);
        let measurement = if self.measured.contains_key(&shape) { 0 } else { MEASUREMENT_MS };
        let bytes = if order.training.is_some() { 0 } else { job.bytes() };
        let download = bytes.div_ceil(DOWNLOAD_BYTES_PER_MS);
        EXAMINATION_MS.saturating_add(measurement).saturating_add(download)
    }

    /// The time for an examination, in milliseconds: no due action, and none that may be asked for,
    /// is late behind it. `None` without an open order with a deposit.
    pub(super) fn spare_ms(&self) -> Option<u64> {
        let now = self.context.client.now();
        let of_order = |order: &FollowedOrder| {
            let window = shortest_window_of(order, self)? / EXAMINATION_PART;
            let left = order.view.deadline.ms_since(now);
            Some(if self.is_due(order, now) { window.min(left) } else { window })
        };
        self.orders.values().filter_map(of_order).min()
    }

    /// The shortest window of the other orders in which this account has open deposits.
    pub(super) fn shortest_own_window(&self) -> Option<u64> {
        self.orders.values().filter_map(|order| shortest_window_of(order, self)).min()
    }
}

const fn is_examination(step: LeaseStep) -> bool {
    matches!(step, LeaseStep::SealBid | LeaseStep::JoinAudit)
}

/// The shortest window of an open order with a deposit; `None` for another one.
fn shortest_window_of(order: &FollowedOrder, daemon: &LeaseDaemon<'_, '_>) -> Option<u64> {
    let phase = order.view.phase;
    if order.deposited().is_zero() || phase == Phase::Over {
        return None;
    }
    let may_compute = order.view.provider.is_none_or(|provider| provider == daemon.me);
    // A bid that cannot be read is reported where it is opened.
    let bid = if may_compute { order.folder.bid().unwrap_or_default() } else { None };
    Some(shortest_window(&order.view.order, phase, bid.as_ref()))
}
