//! A decision: the orders that get other devices than before.

use crate::devices::Allotment;
use crate::order::OrderId;

/// One order's new devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllotmentChange {
    /// A waiting order starts. An order that has run before is restored, which takes the pause of a
    /// rescale.
    Start {
        /// The order.
        order: OrderId,
        /// Its devices. A device with one tenant is shared.
        allotment: Allotment,
    },
    /// A running order continues on other devices, after the pause of a rescale.
    Rescale {
        /// The order.
        order: OrderId,
        /// All of its devices from now on.
        allotment: Allotment,
    },
    /// A running order returns to its place in the queue.
    Preempt {
        /// The order.
        order: OrderId,
    },
}

impl AllotmentChange {
    /// The order that changes.
    pub fn order(&self) -> OrderId {
        match self {
            Self::Start { order, .. } | Self::Rescale { order, .. } | Self::Preempt { order } => {
                *order
            }
        }
    }
}

/// All changes at one time. Devices that a change releases are free for all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduleDecision {
    /// The changes, at most one for each order.
    pub changes: Vec<AllotmentChange>,
}

/// Why a decision does not fit the state; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecisionError {
    /// Two changes are of one order.
    #[error("order {} has two changes; one is allowed", order.0)]
    TwoChanges {
        /// The order.
        order: OrderId,
    },
    /// The order to start does not wait.
    #[error("order {} is to start, but it does not wait", order.0)]
    NotWaiting {
        /// The order.
        order: OrderId,
    },
    /// The order to rescale or to preempt does not run.
    #[error("order {} is to change its devices, but it does not run", order.0)]
    NotRunning {
        /// The order.
        order: OrderId,
    },
    /// The node does not exist, or lacks a device.
    #[error("order {} is to have devices of node {node} that do not exist, or none", order.0)]
    NoSuchDevice {
        /// The order.
        order: OrderId,
        /// The node.
        node: usize,
    },
    /// The order has no profile there, or needs more memory.
    #[error("order {} does not fit on the devices of node {node}", order.0)]
    DoesNotFit {
        /// The order.
        order: OrderId,
        /// The node.
        node: usize,
    },
    /// A device has a tenant with which the order cannot share.
    #[error("order {} is to have a device of node {node} that another order has", order.0)]
    DeviceTaken {
        /// The order.
        order: OrderId,
        /// The node.
        node: usize,
    },
}

impl DecisionError {
    /// The stable code of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::TwoChanges { .. } => "DECISION_TWO_CHANGES",
            Self::NotWaiting { .. } => "DECISION_NOT_WAITING",
            Self::NotRunning { .. } => "DECISION_NOT_RUNNING",
            Self::NoSuchDevice { .. } => "DECISION_NO_SUCH_DEVICE",
            Self::DoesNotFit { .. } => "DECISION_DOES_NOT_FIT",
            Self::DeviceTaken { .. } => "DECISION_DEVICE_TAKEN",
        }
    }
}
