//! The examination of an order, the bid, and the place among the auditors.

use florin_compute::{Bid, ComputeAction, ComputeOrder, bid_commitment};
use florin_ledger::{Terms, lease_task};
use florin_protocol::{Amount, Digest};
use florin_work::{JobRows, LeasedTraining, SegmentStart};

use super::LeaseDaemon;
use super::error::LeaseServeError;
use super::event::LeaseEvent;
use super::followed::{FollowedOrder, OrderVisit};
use super::measuring::{MeasuredSteps, job_shape, measure_step, remember_step};
use super::policy::{LeaseRole, OfferedOrder, refuse_audit_time, refuse_bid};
use super::secrets::Commitment;
use super::windows::{refuse_answer_time, refuse_beside, refuse_segment_time};
use crate::client::ClientError;
use crate::retry::Transient;

/// Most trainings in memory.
const LOADED_TRAININGS_MAX: usize = 8;

/// Why an account takes no part in an order now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// It is refused.
    Refused(String),
    /// An executor measures its step, or executors cannot be asked for now.
    Awaited,
    /// It is outside the policy's hours.
    Closed,
}

impl From<String> for Obstacle {
    fn from(why: String) -> Self {
        Self::Refused(why)
    }
}

impl Obstacle {
    /// The pause before it is looked at again; `None` if it stays.
    const fn pause_ms(&self) -> Option<u64> {
        match self {
            Self::Refused(_) => None,
            Self::Awaited => Some(MEASURED_POLL_MS),
            Self::Closed => Some(CLOSED_POLL_MS),
        }
    }

    /// It in words.
    pub(super) fn reason(self) -> String {
        match self {
            Self::Refused(why) => why,
            Self::Awaited => "its executors are awaited".to_owned(),
            Self::Closed => "it is outside the policy's hours".to_owned(),
        }
    }
}

/// A value, or an obstacle.
type Accepted<T> = Result<T, Obstacle>;
/// Time between two looks at a measurement, in milliseconds.
const MEASURED_POLL_MS: u64 = 200;

/// Time between two looks at the policy's hours, in milliseconds.
const CLOSED_POLL_MS: u64 = 10_000;

/// Pause before an order of listed devices is looked at again, while the own listing is not proven yet.
const UNLISTED_MS: u64 = 500;

/// The listing of an account, for an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnListing {
    /// It is proven, or the order needs none.
    Proven,
    /// It is not proven yet.
    Awaited,
    /// There is none.
    Missing,
}

/// The reason of an error that a repetition does not end; other errors are returned.
pub(super) fn reason<T>(
    result: Result<T, LeaseServeError>,
) -> Result<Accepted<T>, LeaseServeError> {
    match result {
        Err(error) if !error.is_transient() => Ok(Err(error.to_string().into())),
        result => result.map(Ok),
    }
}

impl LeaseDaemon<'_, '_> {
    /// Seals a bid, if the policy accepts the order and the bid can win.
    pub(super) fn seal_bid(
        &mut self,
        order: &mut FollowedOrder,
    ) -> Result<OrderVisit, LeaseServeError> {
        let listing = self.own_listing(order)?;
        if listing == OwnListing::Awaited {
            order.wait(UNLISTED_MS);
            return Ok(OrderVisit::Idle);
        }
        let bid = match self.examine_bid_with(order, listing)? {
            Ok(bid) => bid,
            Err(obstacle) => match obstacle.pause_ms() {
                Some(ms) => {
                    order.wait(ms);
                    return Ok(OrderVisit::Idle);
                }
                None => {
                    order.roles.bids = false;
                    return Ok(self.skip(order, obstacle.reason()));
                }
            },
        };
        order.folder.write_bid(&bid)?;
        let id = order.view.id;
        let salt = self.secrets.salt(id, Commitment::Bid);
        let action = ComputeAction::SealBid(bid_commitment(id, self.me, &bid, salt));
        self.deposit_for(order, LeaseRole::Provider, &action)?;
        self.act(order, action)?;
        self.summary.bids = self.summary.bids.saturating_add(1);
        let price = bid.price(&order.view.order).map_err(florin_compute::LeaseError::from)?;
        let step_us = bid.times.useful_us();
        self.emit(&LeaseEvent::BidSealed { order: id, price, step_us });
        Ok(OrderVisit::Acted)
    }

    /// Whether the account's devices are listed, if an order asks for it.
    fn own_listing(&self, order: &FollowedOrder) -> Result<OwnListing, LeaseServeError> {
        if !order.view.order.listed {
            return Ok(OwnListing::Proven);
        }
        let listings = self.context.client.listings()?;
        let own = listings.iter().map(|view| &view.listing);
        let own = own.filter(|listing| listing.terms().provider == self.me);
        let (mut is_proven, mut is_open) = (false, false);
        for listing in own {
            // A bid is of one device.
            is_proven |= listing.covers(1);
            is_open |= listing.outcome().is_none();
        }
        Ok(match (is_proven, is_open) {
            (true, _) => OwnListing::Proven,
            (false, true) => OwnListing::Awaited,
            (false, false) => OwnListing::Missing,
        })
    }

    /// Joins as an auditor, if the policy accepts the order and there is time for the audits.
    pub(super) fn join_audit(
        &mut self,
        order: &mut FollowedOrder,
    ) -> Result<OrderVisit, LeaseServeError> {
        if let Err(obstacle) = self.examine_audit(order)? {
            if let Some(ms) = obstacle.pause_ms() {
                order.wait(ms);
                return Ok(OrderVisit::Idle);
            }
            order.roles.audits = false;
            return Ok(self.skip(order, obstacle.reason()));
        }
        self.deposit_for(order, LeaseRole::Auditor, &ComputeAction::JoinAudit)?;
        self.act(order, ComputeAction::JoinAudit)?;
        self.emit(&LeaseEvent::AuditJoined { order: order.view.id });
        Ok(OrderVisit::Acted)
    }

    /// Opens the bid that was sealed.
    pub(super) fn open_bid(
        &mut self,
        order: &mut FollowedOrder,
    ) -> Result<OrderVisit, LeaseServeError> {
        let bid = order.folder.bid()?.ok_or(LeaseServeError::BidLost)?;
        let salt = self.secrets.salt(order.view.id, Commitment::Bid);
        self.act(order, ComputeAction::OpenBid { bid, salt })?;
        self.emit(&LeaseEvent::BidOpened { order: order.view.id });
        Ok(OrderVisit::Acted)
    }

    /// Deposits the stake of an awarded order.
    pub(super) fn fund(
        &mut self,
        order: &mut FollowedOrder,
    ) -> Result<OrderVisit, LeaseServeError> {
        let id = order.view.id;
        if !order.is_award_announced {
            order.is_award_announced = true;
            self.emit(&LeaseEvent::Awarded { order: id });
        }
        self.deposit_for(order, LeaseRole::Provider, &ComputeAction::Fund)?;
        self.act(order, ComputeAction::Fund)?;
        self.emit(&LeaseEvent::Funded { order: id });
        Ok(OrderVisit::Acted)
    }

    /// Records why a role is refused, and announces the reasons once no role is left.
    fn skip(&mut self, order: &mut FollowedOrder, why: String) -> OrderVisit {
        if !order.refusals.contains(&why) {
            order.refusals.push(why);
        }
        if !order.roles.bids && !order.roles.audits {
            let reason = order.refusals.join("; ");
            self.emit(&LeaseEvent::OrderSkipped { order: order.view.id, reason });
        }
        OrderVisit::Acted
    }

    /// The microseconds of a step for an auditor of an order, or the reason why it does not audit.
    pub(super) fn examine_audit(
        &mut self,
        order: &mut FollowedOrder,
    ) -> Result<Accepted<u64>, LeaseServeError> {
        let step_us = match self.examine(order, LeaseRole::Auditor)? {
            Ok(step_us) => step_us,
            Err(why) => return Ok(Err(why)),
        };
        let bond = order.view.order.deposits.audit_bond;
        let refused = refuse_audit_time(&order.view.order, step_us)
            .or_else(|| refuse_answer_time(&order.view.order, step_us))
            .or_else(|| refuse_beside(&order.view.order, step_us, self.shortest_own_window()));
        let refused = match refused {
            None => self.refuse_deposit(order, LeaseRole::Auditor, bond)?,
            refused => refused,
        };
        Ok(refused.map_or(Ok(step_us), |why| Err(why.into())))
    }

    /// The bid for an order, or the reason why there is none. A stored bid may be sealed already.
    pub(super) fn examine_bid(
        &mut self,
        order: &mut FollowedOrder,
    ) -> Result<Accepted<Bid>, LeaseServeError> {
        let listing = self.own_listing(order)?;
        self.examine_bid_with(order, listing)
    }

    fn examine_bid_with(
        &mut self,
        order: &mut FollowedOrder,
        listing: OwnListing,
    ) -> Result<Accepted<Bid>, LeaseServeError> {
        if let Some(bid) = order.folder.bid()? {
            return Ok(Ok(bid));
        }
        if listing == OwnListing::Missing {
            let why = "it takes bids of listed devices: see florin provide --list";
            return Ok(Err(why.to_owned().into()));
        }
        if let Some(obstacle) = self.executors_obstacle() {
            return Ok(Err(obstacle));
        }
        let own_us = match self.examine(order, LeaseRole::Provider)? {
            Ok(own_us) => own_us,
            Err(why) => return Ok(Err(why)),
        };
        // Before an executor measures for an order that is refused all the same.
        if self.executors.is_some()
            && let Some(why) = self.refuse_own(order, own_us)?
        {
            return Ok(Err(why.into()));
        }
        let (step_us, start_ms) = match self.executor_step(order, own_us)? {
            Ok(found) => found,
            Err(obstacle) => return Ok(Err(obstacle)),
        };
        let Some(rule) = self.config.policy.bid else {
            return Ok(Err("the policy has no [bid]".to_owned().into()));
        };
        let sharing = self.config.policy.sharing();
        let bid = match rule.bid(step_us, sharing) {
            Ok(bid) => bid,
            Err(error) => return Ok(Err(error.to_string().into())),
        };
        let offered = &order.view.order;
        let shared_us = step_us.saturating_mul(sharing.into());
        let refused = refuse_bid(offered, &bid)
            .or_else(|| refuse_segment_time(offered, &bid, (shared_us, start_ms)));
        let refused = match refused {
            None => self.refuse_own(order, own_us)?,
            refused => refused,
        };
        Ok(refused.map_or(Ok(bid), |why| Err(why.into())))
    }

    /// Why the daemon cannot answer, store or deposit for an order beside others; `None` if it can. It answers in a dispute
    /// itself, by its own time of a step.
    fn refuse_own(
        &mut self,
        order: &mut FollowedOrder,
        own_us: u64,
    ) -> Result<Option<String>, LeaseServeError> {
        let offered = &order.view.order;
        let deposit = offered.deposits.stake.max(offered.deposits.bid_bond);
        let refused = refuse_answer_time(offered, own_us)
            .or_else(|| refuse_beside(offered, own_us, self.shortest_own_window()));
        let refused = match refused {
            None => self.refuse_states(order)?,
            refused => refused,
        };
        match refused {
            None => self.refuse_deposit(order, LeaseRole::Provider, deposit),
            refused => Ok(refused),
        }
    }

    /// Examines an order for a role. Returns the microseconds of a step on this device, or the
    /// reason why the order is refused.
    fn examine(
        &mut self,
        order: &mut FollowedOrder,
        role: LeaseRole,
    ) -> Result<Accepted<u64>, LeaseServeError> {
        let hours = self.config.policy.hours;
        if hours.is_some_and(|hours| !hours.contain(self.context.client.now())) {
            return Ok(Err(Obstacle::Closed));
        }
        let terms = match self.examine_terms(order)? {
            Ok(terms) => terms,
            Err(why) => return Ok(Err(why)),
        };
        let (id, client) = (order.view.id, self.context.client);
        let offered = &order.view.order;
        let job = match reason(client.order_job(id, offered.job).map_err(Into::into))? {
            Ok(job) => job,
            Err(obstacle) => return Ok(Err(obstacle)),
        };
        let offer = OfferedOrder { order: offered, job: &job, terms: &terms, class: self.class };
        if let Some(why) = self.config.policy.refuse(role, &offer) {
            return Ok(Err(why.into()));
        }
        let shape = job_shape(&job);
        // A bid that is known to be too slow needs no download.
        if let (LeaseRole::Provider, Some(us)) = (role, self.measured.get(&shape))
            && *us > offered.step_us_max
        {
            return Ok(Ok(*us));
        }
        let measured = self.measured_step(order, shape);
        reason(measured)
    }

    /// The terms of the order's task on the ledger, if the task holds the deposits of this order.
    fn examine_terms(&self, order: &FollowedOrder) -> Result<Accepted<Terms>, LeaseServeError> {
        let (ledger, coordinator) = (self.context.ledger, self.context.client.coordinator());
        let offered = &order.view.order;
        let Some(state) = ledger.task(lease_task(offered))? else {
            return Ok(Err("its task is not on the ledger".to_owned().into()));
        };
        if state.closed {
            return Ok(Err("its task on the ledger is closed".to_owned().into()));
        }
        if state.terms.coordinator != coordinator.account {
            let (host, own) = (state.terms.coordinator, coordinator.account);
            return Ok(Err(format!("its coordinator on the ledger is {host}, not {own}").into()));
        }
        let checked = state.terms.check_order(offered, ledger.market(), ledger.now()?);
        Ok(checked.map(|()| state.terms).map_err(|error| error.to_string().into()))
    }

    /// Why the states of an order do not fit on disk; `None` if they do.
    fn refuse_states(
        &mut self,
        order: &mut FollowedOrder,
    ) -> Result<Option<String>, LeaseServeError> {
        self.load_to_measure(order)?;
        let Some(training) = &order.training else { return Ok(None) };
        let one = u64::try_from(training.initial().to_bytes()?.len()).unwrap_or(u64::MAX);
        let states = u64::from(order.view.order.segments).saturating_add(1);
        let (all, most) = (one.saturating_mul(states), self.config.policy.state_bytes_max);
        Ok((all > most)
            .then(|| format!("its states have {all} bytes, and the policy allows {most}")))
    }

    /// Why a deposit is not possible; `None` if it is.
    fn refuse_deposit(
        &self,
        order: &FollowedOrder,
        role: LeaseRole,
        deposit: Amount,
    ) -> Result<Option<String>, LeaseServeError> {
        let left = self.deposit_left(role)?;
        if deposit > left {
            return Ok(Some(format!(
                "it needs a deposit of {deposit} FLN, and the policy leaves {left} FLN beside \
                 losses and other orders"
            )));
        }
        let promised = self.orders.values().filter_map(|order| order.lease.as_ref());
        let promised = promised.map(|lease| super::decide::promised(lease.lease(), self.me));
        let promised = Amount::total(promised).unwrap_or(Amount::from_units(u128::MAX));
        let balance = self.context.ledger.balance(self.me)?;
        let missing = deposit.minus(order.deposited()).unwrap_or(Amount::ZERO);
        let free = balance.minus(promised).unwrap_or(Amount::ZERO);
        Ok((missing > free).then(|| {
            format!("it needs a deposit of {missing} FLN, and the wallet has {free} FLN for it")
        }))
    }

    /// Loads the training of an order with its rows.
    pub(super) fn load(&mut self, order: &mut FollowedOrder) -> Result<(), LeaseServeError> {
        match order.training.is_some() && !order.is_stand_in {
            true => Ok(()),
            false => self.load_with(order, JobRows::All),
        }
    }

    /// Loads the training of an order for a measurement: with rows of zeros, while the account may not read its rows.
    fn load_to_measure(&mut self, order: &mut FollowedOrder) -> Result<(), LeaseServeError> {
        if order.training.is_some() {
            return Ok(());
        }
        let rows = match order.lease()?.lease().may_read_rows(self.me) {
            true => JobRows::All,
            false => JobRows::StandIn,
        };
        self.load_with(order, rows)
    }

    /// Loads the training of an order, with a limit on the trainings in memory.
    fn load_with(
        &mut self,
        order: &mut FollowedOrder,
        rows: JobRows<'_>,
    ) -> Result<(), LeaseServeError> {
        self.turn.is_over = true;
        let loaded = self.orders.values().filter(|other| other.training.is_some()).count();
        if loaded >= LOADED_TRAININGS_MAX {
            for other in self.orders.values_mut() {
                other.training = None;
            }
        }
        let (client, id) = (self.context.client, order.view.id);
        let offered = &order.view.order;
        let job = client.order_job(id, offered.job)?;
        let (found, most) = (job.bytes(), self.config.policy.job_bytes_max);
        if found > most {
            let why = format!("its job has {found} bytes, and the policy allows {most}");
            let what = format!("the order {id}");
            return Err(ClientError::UnexpectedContent { what, why }.into());
        }
        let wallet = self.context.wallet;
        let read = |digest, bytes| client.order_blob(offered, digest, bytes, wallet);
        let training = LeasedTraining::load_with::<ClientError>(offered, &job, rows, read)?;
        order.is_stand_in = rows == JobRows::StandIn;
        order.training = Some(Box::new(training));
        order.total_steps = Some(job.steps());
        Ok(())
    }

    /// The start of the first segment of an order.
    pub(super) fn first_start(
        &mut self,
        order: &mut FollowedOrder,
    ) -> Result<SegmentStart, LeaseServeError> {
        self.load(order)?;
        let training = order.training.as_ref().ok_or(LeaseServeError::NoLease)?;
        let offered = &order.view.order;
        if offered.first_segment == 0 {
            return Ok(training.first());
        }
        let bytes = self.state_bytes(offered, offered.start)?;
        Ok(training.start(0, offered.start, &bytes)?)
    }

    /// The bytes of a state of an order.
    pub(super) fn state_bytes(
        &self,
        order: &ComputeOrder,
        state: Digest,
    ) -> Result<Vec<u8>, LeaseServeError> {
        Ok(self.context.client.order_state(order, state, Some(self.context.wallet))?)
    }

    /// The microseconds of a step on this device: the median of a few trainings of the first steps. Orders of one
    /// shape, whose jobs differ in the seed alone, are measured once.
    pub(super) fn measured_step(
        &mut self,
        order: &mut FollowedOrder,
        shape: Digest,
    ) -> Result<u64, LeaseServeError> {
        if let Some(us) = self.measured.get(&shape) {
            // The blobs of this order are loaded all the same: no account deposits for a job that cannot be trained.
            let us = *us;
            self.load_to_measure(order)?;
            return Ok(us);
        }
        if let Some(us) = order.slow_us {
            return Ok(us);
        }
        self.load_to_measure(order)?;
        let start = match &order.training {
            Some(training) if order.is_stand_in => training.first(),
            _ => self.first_start(order)?,
        };
        let training = order.training.as_ref().ok_or(LeaseServeError::NoLease)?;
        let offered = &order.view.order;
        let measured = MeasuredSteps {
            step_us_max: offered.step_us_max,
            steps_max: offered.steps,
            is_first: self.measured.is_empty(),
        };
        let us = measure_step(training, &mut *self.context.engine, &start, measured)?;
        if us > offered.step_us_max {
            order.slow_us = Some(us);
            return Ok(us);
        }
        remember_step(&mut self.measured, shape, us);
        Ok(us)
    }
}
