//! The rules by which orders get devices.

mod exclusive;
mod finish_time;
mod marble;
mod optimus;
mod planning;
mod rescaling;
mod targets;

use crate::decision::ScheduleDecision;
use crate::state::ClusterState;

/// The reason for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// An order arrived, finished or was cancelled.
    Change,
    /// An interval of the policy ended.
    Interval,
}

/// A rule by which orders get devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulePolicy {
    /// Allotments at the knee, several orders on a node, first in first out; after Han et al.,
    /// *MARBLE* (CCGRID 2020).
    Marble(MarbleSettings),
    /// Whole nodes, first in first out, as batch systems allot them (LSF).
    Exclusive,
    /// Every order gets one device, and each further device goes to the order that it shortens
    /// most; after Peng et al., *Optimus* (EuroSys 2018).
    Optimus(IntervalSettings),
    /// The orders that finish first run, in rounds; the greedy form of the shortest-job policy of
    /// Narayanan et al., *Gavel* (OSDI 2020), for a fixed number of devices per order.
    FinishTime(IntervalSettings),
}

/// The settings of [`SchedulePolicy::Marble`]. Efficiencies and sums are in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarbleSettings {
    /// The efficiency at the knee while at most `relaxed_waiting` orders wait; 0 is the fastest
    /// count, more than 1,000 a single device.
    pub relaxed_milli: u32,
    /// The efficiency at the knee while more orders wait.
    pub strict_milli: u32,
    /// Most waiting orders, the head included, for which the knee is relaxed.
    pub relaxed_waiting: usize,
    /// Two orders share a device if the sum of their rates is at least this; `None` never shares.
    pub packed_sum_min_milli: Option<u32>,
    /// The efficiency up to which running orders grow while none waits; `None` never grows.
    pub growth_milli: Option<u32>,
    /// The efficiency of the knee to which a running order shrinks for the head of the queue, if
    /// that costs it less than the queue would wait; `None` never shrinks.
    pub shrink_milli: Option<u32>,
}

/// The settings of a policy that reconsiders all orders at intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalSettings {
    /// Nanoseconds between two reconsiderations; 0 reconsiders at every change.
    pub interval_nano: u64,
    /// The efficiency at the knee, in thousandths: the devices that an order requests. Optimus
    /// has no requests and ignores it.
    pub requested_milli: u32,
}

impl SchedulePolicy {
    /// Nanoseconds between two triggers [`Trigger::Interval`], if the policy has intervals.
    pub fn interval_nano(&self) -> Option<u64> {
        match self {
            Self::Marble(_) | Self::Exclusive => None,
            Self::Optimus(settings) | Self::FinishTime(settings) => {
                Some(settings.interval_nano).filter(|nano| *nano > 0)
            }
        }
    }
}

/// The changes of a policy: a pure function of the state and the trigger. Equal states have equal
/// decisions, and [`ClusterState::apply`] accepts each.
///
/// [`SchedulePolicy::Marble`] and [`SchedulePolicy::Exclusive`] never preempt, so that the first
/// order of the queue waits for a bounded time: under the former until the first completion on a
/// node that it fits, and the order at position `k` for at most `k` of them.
pub fn decide(state: &ClusterState, policy: &SchedulePolicy, trigger: Trigger) -> ScheduleDecision {
    let reconsiders = trigger == Trigger::Interval || policy.interval_nano().is_none();
    let changes = match policy {
        SchedulePolicy::Marble(settings) => marble::changes(state, settings),
        SchedulePolicy::Exclusive => exclusive::changes(state),
        SchedulePolicy::Optimus(_) if reconsiders => optimus::reconsider(state),
        SchedulePolicy::Optimus(_) => optimus::admit(state),
        SchedulePolicy::FinishTime(settings) if reconsiders => {
            finish_time::reconsider(state, settings)
        }
        SchedulePolicy::FinishTime(settings) => finish_time::admit(state, settings),
    };
    ScheduleDecision { changes }
}
