//! A cluster under virtual time.

use std::collections::BTreeMap;

use crate::decision::{AllotmentChange, DecisionError};
use crate::limits::SIMULATED_EVENTS_MAX;
use crate::order::{OrderId, TrainingOrder};
use crate::policy::{SchedulePolicy, Trigger, decide};
use crate::state::{ClusterState, SubmitError};

/// An order and the time at which it arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderArrival {
    /// Nanoseconds since the begin.
    pub at_nano: u128,
    /// The order.
    pub order: TrainingOrder,
}

/// The times of one order, in nanoseconds since the begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderOutcome {
    /// The order.
    pub order: OrderId,
    /// Its arrival.
    pub arrived_nano: u128,
    /// Its completion.
    pub finished_nano: u128,
}

/// The result of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimulationLog {
    /// The orders, in the order of their completions.
    pub outcomes: Vec<OrderOutcome>,
    /// Nanoseconds in which devices had an order, summed over the devices.
    pub occupied_nano: u128,
    /// The time of the last completion.
    pub end_nano: u128,
    /// The number of rescales and preemptions.
    pub interruptions: u64,
}

/// Why a simulation stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// Arrivals are not ascending.
    #[error("order {} arrives before an earlier one", order.0)]
    ArrivalsOutOfOrder {
        /// The order.
        order: OrderId,
    },
    /// An order does not enter the queue.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// A decision does not fit.
    #[error(transparent)]
    Decision(#[from] DecisionError),
    /// Orders wait, none runs, and none arrives.
    #[error("{waiting} orders wait and none runs: the policy starts none of them")]
    Stalled {
        /// The number of waiting orders.
        waiting: usize,
    },
    /// There are too many events.
    #[error("the simulation has {SIMULATED_EVENTS_MAX} events, the most that are allowed")]
    TooManyEvents,
}

impl SimulationError {
    /// The stable code of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::ArrivalsOutOfOrder { .. } => "SIMULATION_ARRIVALS_OUT_OF_ORDER",
            Self::Submit(error) => error.code(),
            Self::Decision(error) => error.code(),
            Self::Stalled { .. } => "SIMULATION_STALLED",
            Self::TooManyEvents => "SIMULATION_TOO_MANY_EVENTS",
        }
    }
}

/// Runs all orders to their completion. `arrivals` ascend in time and in the orders' numbers.
pub fn simulate(
    state: ClusterState,
    policy: &SchedulePolicy,
    arrivals: &[OrderArrival],
) -> Result<SimulationLog, SimulationError> {
    let pairs = arrivals.iter().zip(arrivals.iter().skip(1));
    for (earlier, later) in pairs {
        if earlier.at_nano > later.at_nano || earlier.order.id >= later.order.id {
            return Err(SimulationError::ArrivalsOutOfOrder { order: later.order.id });
        }
    }
    let tick_nano = policy.interval_nano().map(u128::from);
    let log = SimulationLog::default();
    let arrived = BTreeMap::new();
    let mut run = VirtualRun { state, arrivals, arrived, now_nano: 0, tick_nano, log };
    for _ in 0..SIMULATED_EVENTS_MAX {
        let Some(trigger) = run.next_event(policy)? else { return Ok(run.log) };
        let decision = decide(&run.state, policy, trigger);
        run.state.apply(&decision)?;
        let is_interruption =
            |change: &&AllotmentChange| !matches!(change, AllotmentChange::Start { .. });
        run.log.interruptions += decision.changes.iter().filter(is_interruption).count() as u64;
    }
    Err(SimulationError::TooManyEvents)
}

/// A simulation at one time.
struct VirtualRun<'a> {
    state: ClusterState,
    /// The orders that have not arrived.
    arrivals: &'a [OrderArrival],
    /// The arrivals of the orders that are in the cluster.
    arrived: BTreeMap<OrderId, u128>,
    now_nano: u128,
    /// The end of the current interval.
    tick_nano: Option<u128>,
    log: SimulationLog,
}

impl VirtualRun<'_> {
    /// Passes to the next arrival, completion or end of an interval; `None` if all is done.
    fn next_event(&mut self, policy: &SchedulePolicy) -> Result<Option<Trigger>, SimulationError> {
        let arrival = self.arrivals.first().map(|arrival| arrival.at_nano);
        let completion = self.state.next_completion_nano().map(|nano| self.now_nano + nano);
        let is_active = completion.is_some() || !self.state.waiting().is_empty();
        if arrival.is_none() && !is_active {
            return Ok(None);
        }
        let tick = self.tick_nano.filter(|_| is_active);
        let next = arrival.into_iter().chain(completion).chain(tick).min();
        let Some(next) = next else {
            return Err(SimulationError::Stalled { waiting: self.state.waiting().len() });
        };
        self.pass(next);
        while let Some((arrival, rest)) = self.arrivals.split_first()
            && arrival.at_nano <= next
        {
            self.state.submit(arrival.order.clone())?;
            self.arrived.insert(arrival.order.id, arrival.at_nano);
            self.arrivals = rest;
        }
        let (Some(tick), Some(interval)) = (self.tick_nano, policy.interval_nano()) else {
            return Ok(Some(Trigger::Change));
        };
        if next < tick {
            return Ok(Some(Trigger::Change));
        }
        self.tick_nano = Some(next + u128::from(interval));
        Ok(Some(Trigger::Interval))
    }

    /// Lets the time until `next` pass, at most until the first completion.
    fn pass(&mut self, next: u128) {
        let nano = next - self.now_nano;
        let occupied: u32 = self
            .state
            .nodes()
            .iter()
            .enumerate()
            .map(|(at, node)| node.devices - self.state.free(at).len())
            .sum();
        self.log.occupied_nano += nano * u128::from(occupied);
        self.now_nano = next;
        for order in self.state.advance(nano) {
            self.log.end_nano = next;
            let arrived_nano = self.arrived.remove(&order).unwrap_or(next);
            self.log.outcomes.push(OrderOutcome { order, arrived_nano, finished_nano: next });
        }
    }
}
