//! The daemon that takes part in leases of compute: it bids for orders and computes their segments,
//! audits segments of other providers, and rules on disputed steps of orders that name it as their
//! referee.
//!
//! ```text
//! listed orders ─▶ followed: each lease ─▶ next step: a pure ─▶ examined, computed, ─▶ settled: pay and
//!                  from its record         function             deposited, signed      bond return
//! ```
//!
//! Each turn reads the list of orders and visits them by their urgency, until one of them takes an
//! expensive step, such as one segment: no lease waits for the whole of another one. The record of the coordinator decides about
//! the next step. So the daemon may be killed at any point: salts follow from the wallet, states
//! and the sealed bid are in the data folder, and everything else can be computed again. An error
//! of one order delays that order alone.

mod auditing;
mod bidding;
mod checkpointing;
mod decide;
mod deposits;
mod error;
mod event;
mod executing;
pub mod executors;
#[cfg(test)]
mod fake_host;
mod followed;
mod forgotten;
mod measuring;
#[cfg(test)]
mod played_tests;
mod policy;
mod prospects;
mod providing;
mod secrets;
mod settling;
mod store;
#[cfg(test)]
mod toy_engine;
mod turn;
#[cfg(test)]
mod turn_tests;
mod windows;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use florin_compute::{ComputeAction, LeaseAction};
use florin_protocol::{Address, Amount, Digest, WalletSigner};
use florin_work::compute_class;

pub use decide::{DisputedStep, LeaseRoles, LeaseStep, next_step};
pub use error::LeaseServeError;
pub use event::LeaseEvent;
pub use policy::{
    AuditRule, BidRule, CARD_MARGIN_PERCENT, LEASE_CHALLENGE_MS, LEASE_JOB_BYTES,
    LEASE_SEGMENTS_MAX, LEASE_STATE_BYTES, LEASES_AT_ONCE_MAX, LeasePolicy, LeasePolicyError,
    LeaseRole, OfferedOrder, REFEREES_MAX,
};

pub use prospects::{OrderProspect, prospects};
pub use windows::{LEASE_WINDOW_MS, SEGMENT_WINDOW_MS_MIN, served_ms};

use crate::client::OrderList;
use crate::provider::ProviderContext;
use crate::retry::{Backoff, Transient, resume_transactions};
use crate::shutdown::Shutdown;
use executors::{ExecutorBackend, Executors};
use followed::{FollowedOrder, OrderVisit};
use secrets::LeaseSecrets;
use store::LeaseStore;
use turn::TurnState;

/// Most orders without a part of the account that are followed: the newest ones that are open.
pub const FOLLOWED_ORDERS_MAX: usize = 256;
/// Time between two readings of the list of orders while nothing is left to do, in milliseconds.
pub const ORDERS_POLL_MS: u64 = 200;
/// Without an open order, and between two looks at a settlement, the daemon waits this many times
/// as long.
const IDLE_POLLS: u64 = 5;

/// A misbehaviour for tests and the demonstration, which audits find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseExperiment {
    /// Every second segment is not trained: only its steps are counted.
    Lazy,
}

/// Settings of the daemon.
#[derive(Clone, Debug)]
pub struct LeaseServeConfig {
    /// Closed while a probe of a listing of this process computes: then no order is examined.
    pub gate: crate::listings::ProbeGate,
    /// The data folder. One process at a time.
    pub folder: PathBuf,
    /// The policy.
    pub policy: LeasePolicy,
    /// Time between two readings of the list of orders, in milliseconds; see [`ORDERS_POLL_MS`].
    pub poll_ms: u64,
    /// How long to retry while the coordinator does not answer.
    pub backoff: Backoff,
    /// Follow this order alone, until it asks for nothing more.
    pub only: Option<Digest>,
    /// A misbehaviour.
    pub experiment: Option<LeaseExperiment>,
}

/// The result of a run of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseSummary {
    /// The account.
    pub account: Address,
    /// Sealed bids.
    pub bids: u64,
    /// Delivered segments.
    pub segments: u64,
    /// Sealed ends of audits.
    pub audits: u64,
    /// Rulings as a referee.
    pub rulings: u64,
    /// Pay of orders that this run found claimed, or claimed itself.
    pub paid: Amount,
    /// Deposits that this run recorded as lost.
    pub lost: Amount,
    /// Deposits that this run withdrew.
    pub returned: Amount,
}

/// Takes part in the orders of a coordinator until shutdown is requested, or in one order until it is over.
///
/// # Errors
/// [`LeaseServeError`] for an engine without a class, an invalid policy, a data folder that cannot
/// be used, and a coordinator that does not answer for longer than the back-off. After any of them
/// the same call continues where this one ended.
pub fn serve_orders(
    config: &LeaseServeConfig,
    context: ProviderContext<'_>,
    shutdown: &Shutdown,
    on_event: &mut dyn FnMut(&LeaseEvent),
) -> Result<LeaseSummary, LeaseServeError> {
    serve_orders_by(config, context, None, shutdown, on_event)
}

/// As [`serve_orders`], with segments computed by executors of a backend on the devices of
/// [`LeasePolicy::executors`].
///
/// # Errors
/// Those of [`serve_orders`].
pub fn serve_orders_by(
    config: &LeaseServeConfig,
    context: ProviderContext<'_>,
    backend: Option<Box<dyn ExecutorBackend>>,
    shutdown: &Shutdown,
    on_event: &mut dyn FnMut(&LeaseEvent),
) -> Result<LeaseSummary, LeaseServeError> {
    let _lock = LeaseStore::lock(&config.folder, config.only)?;
    let mut daemon = LeaseDaemon::open(config, context, shutdown, on_event)?;
    daemon.open_executors(backend)?;
    let mut wait_ms = config.backoff.initial_ms.max(1);
    let mut waited_ms = 0_u64;
    while !shutdown.is_requested() {
        match daemon.run_once() {
            Ok(acted) => {
                (wait_ms, waited_ms) = (config.backoff.initial_ms.max(1), 0);
                if config.only.is_some_and(|only| daemon.finished.contains(&only)) {
                    break;
                }
                if !acted {
                    daemon.pause();
                }
            }
            Err(error) if !error.is_final() && waited_ms < config.backoff.max_total_ms => {
                daemon.retry(&error);
                shutdown.wait(Duration::from_millis(wait_ms));
                waited_ms = waited_ms.saturating_add(wait_ms);
                wait_ms = wait_ms.saturating_mul(2).min(config.backoff.max_ms.max(1));
            }
            Err(error) => return Err(error),
        }
    }
    if shutdown.is_requested() {
        if let Some(executors) = &mut daemon.executors {
            executors.end_all();
        }
        daemon.emit(&LeaseEvent::Stopped);
    }
    Ok(daemon.summary)
}

struct LeaseDaemon<'a, 'p> {
    config: &'a LeaseServeConfig,
    context: ProviderContext<'p>,
    shutdown: &'a Shutdown,
    on_event: &'a mut dyn FnMut(&LeaseEvent),
    me: Address,
    class: Digest,
    secrets: LeaseSecrets,
    store: LeaseStore,
    orders: BTreeMap<Digest, FollowedOrder>,
    /// The coordinator's orders.
    listed: OrderList,
    /// Measured microseconds of a step, by the shape of the job.
    measured: BTreeMap<Digest, u64>,
    /// Listed orders that ask for nothing more.
    finished: BTreeSet<Digest>,
    /// Microseconds of a step on the devices of executors, by the shape of the job.
    measured_elsewhere: BTreeMap<Digest, u64>,
    /// The executors of segments; without them the daemon computes itself.
    executors: Option<Executors>,
    /// The next look at orders that are no longer listed is not before this moment.
    forgotten_at: Option<Instant>,
    turn: TurnState,
    summary: LeaseSummary,
}

impl<'a, 'p> LeaseDaemon<'a, 'p> {
    fn open(
        config: &'a LeaseServeConfig,
        context: ProviderContext<'p>,
        shutdown: &'a Shutdown,
        on_event: &'a mut dyn FnMut(&LeaseEvent),
    ) -> Result<Self, LeaseServeError> {
        config.policy.check()?;
        let engine = context.engine.name();
        let class = compute_class(context.engine).ok_or(LeaseServeError::NoClass { engine })?;
        let me = context.wallet.address();
        // A write that an earlier run did not complete changes what the ledger returns below.
        resume_transactions(context.ledger, context.wallet);
        let mut daemon = Self {
            config,
            shutdown,
            on_event,
            me,
            class,
            secrets: LeaseSecrets::new(context.wallet),
            store: LeaseStore::open(&config.folder)?,
            orders: BTreeMap::new(),
            listed: OrderList::default(),
            measured: BTreeMap::new(),
            measured_elsewhere: BTreeMap::new(),
            finished: BTreeSet::new(),
            executors: None,
            forgotten_at: None,
            turn: TurnState::default(),
            summary: LeaseSummary { account: me, ..LeaseSummary::default() },
            context,
        };
        if let Some(LeaseExperiment::Lazy) = config.experiment {
            daemon.emit(&LeaseEvent::Experiment { behaviour: "lazy" });
        }
        daemon.emit(&LeaseEvent::Serving { account: me, class });
        Ok(daemon)
    }

    fn emit(&mut self, event: &LeaseEvent) {
        (self.on_event)(event);
    }

    fn retry(&mut self, error: &LeaseServeError) {
        self.emit(&LeaseEvent::Retrying { why: error.to_string() });
        if error.is_ledger_error() {
            resume_transactions(self.context.ledger, self.context.wallet);
        }
    }

    /// Waits for the next reading of the list of orders.
    fn pause(&self) {
        let polls = if self.orders.is_empty() { IDLE_POLLS } else { 1 };
        let ms = self.config.poll_ms.max(1).saturating_mul(polls);
        self.shutdown.wait(Duration::from_millis(ms));
    }

    /// Performs the next step of an order. An error delays the order. Returns whether a step was
    /// performed.
    fn visit(&mut self, id: Digest) -> bool {
        let Some(mut order) = self.orders.remove(&id) else { return false };
        if order.is_waiting(Instant::now()) {
            self.orders.insert(id, order);
            return false;
        }
        order.retry_at = None;
        match self.visit_order(&mut order) {
            Ok(OrderVisit::Finished) => {
                self.finished.insert(id);
                false
            }
            Ok(visit) => {
                order.retry_ms = self.config.backoff.initial_ms.max(1);
                self.orders.insert(id, order);
                visit == OrderVisit::Acted
            }
            Err(error) => {
                self.delay(&mut order, &error);
                self.orders.insert(id, order);
                false
            }
        }
    }

    /// Delays an order after an error.
    fn delay(&mut self, order: &mut FollowedOrder, error: &LeaseServeError) {
        order.wait(order.retry_ms);
        order.retry_ms = order.retry_ms.saturating_mul(2).min(self.config.backoff.max_ms.max(1));
        if error.is_of_record() && !error.is_transient() {
            // The record is read again from its beginning: the coordinator may have restored an
            // older one.
            order.lease = None;
        }
        if error.is_ledger_error() {
            resume_transactions(self.context.ledger, self.context.wallet);
        }
        let why = error.to_string();
        self.emit(&LeaseEvent::OrderRetrying { order: order.view.id, code: error.code(), why });
    }

    fn visit_order(&mut self, order: &mut FollowedOrder) -> Result<OrderVisit, LeaseServeError> {
        if order.view.refused.is_some() {
            return Ok(OrderVisit::Finished);
        }
        if order.view.opened.is_none() {
            return Ok(OrderVisit::Idle);
        }
        if order.is_of_others(self.me) {
            return Ok(OrderVisit::Finished);
        }
        if !order.follow(self.context.client)? {
            return Ok(OrderVisit::Idle);
        }
        let lease = order.lease()?.lease();
        if decide::is_over_for(lease, self.me) {
            return self.settle(order);
        }
        let roles = LeaseRoles { bids: order.roles.bids && self.has_place(), ..order.roles };
        let now = self.context.client.now();
        match next_step(order.lease()?.lease(), self.me, roles, now) {
            Some(step) => self.perform(order, step),
            None => self.prepare(order),
        }
    }

    /// Whether another lease may be computed at the same time.
    fn has_place(&self) -> bool {
        let Some(rule) = self.config.policy.bid else { return false };
        // A bid whose record was not read yet, behind a restart, may have won.
        let is_computing = |order: &&FollowedOrder| match &order.lease {
            Some(recorded) => decide::is_computing(recorded.lease(), self.me),
            None => order.folder.has_bid(),
        };
        let computing = self.orders.values().filter(is_computing).count();
        u32::try_from(computing).is_ok_and(|computing| computing < rule.orders_max)
    }

    fn perform(
        &mut self,
        order: &mut FollowedOrder,
        step: LeaseStep,
    ) -> Result<OrderVisit, LeaseServeError> {
        match step {
            LeaseStep::SealBid | LeaseStep::JoinAudit => self.examine_new(order, step),
            LeaseStep::OpenBid => self.open_bid(order),
            LeaseStep::Fund => self.fund(order),
            LeaseStep::Deliver(segment) => self.deliver(order, segment),
            LeaseStep::Serve(segment) => self.serve_start(order, segment),
            LeaseStep::OpenLeaf(segment) => self.open_leaf(order, segment),
            LeaseStep::SealEnd(segment, start) => self.seal_end(order, segment, start),
            LeaseStep::OpenEnd(segment, start) => self.open_end(order, segment, start),
            LeaseStep::Answer(step) => self.answer(order, step),
            LeaseStep::ShowAgreed(step) => self.show_agreed(order, step),
            LeaseStep::Rule(step) => self.rule(order, step),
        }
    }

    /// Signs and sends an action that the lease accepts, and follows the record behind it.
    fn act(&self, order: &mut FollowedOrder, action: ComputeAction) -> Result<(), LeaseServeError> {
        let (client, me) = (self.context.client, self.me);
        let id = order.view.id;
        let recorded = order.lease_mut()?;
        let now = client.now().max(recorded.last());
        recorded.lease().clone().apply(me, &action, now)?;
        let nonce = recorded.next_nonce(me);
        let market = recorded.opening().order.market;
        let action = LeaseAction { order: id, by: me, nonce, action };
        client.act(&action.sign(market, self.context.wallet)?)?;
        if let Err(error) = client.follow_lease(recorded, 0) {
            tracing::debug!(%error, "the record of an accepted action is read again");
            order.lease = None;
        }
        Ok(())
    }
}
