//! A cluster, its queue and its running orders.

use std::collections::{BTreeMap, BTreeSet};

use crate::board::DeviceBoard;
use crate::decision::{AllotmentChange, DecisionError, ScheduleDecision};
use crate::devices::{Allotment, DeviceNode, DeviceSet};
use crate::limits::{MILLI, NODE_DEVICES_MAX, NODES_MAX, ORDERS_MAX, RESCALE_NANO_MAX};
use crate::order::{OrderId, TrainingOrder};
use crate::packing::PackingTable;

/// The nodes of a provider, the orders that wait and those that run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterState {
    nodes: Vec<DeviceNode>,
    packing: PackingTable,
    rescale_nano: u64,
    waiting: BTreeMap<OrderId, TrainingOrder>,
    running: BTreeMap<OrderId, RunningOrder>,
    board: DeviceBoard,
}

/// An order with its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningOrder {
    /// The order.
    pub order: TrainingOrder,
    /// Its devices.
    pub allotment: Allotment,
    /// Nanoseconds until its next step begins, while it is restored on these devices.
    pub pause_nano: u64,
}

/// Why nodes are no cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// There is no node, or too many.
    #[error("the cluster has {nodes} nodes; 1 to {NODES_MAX} are allowed")]
    Nodes {
        /// The number of nodes.
        nodes: usize,
    },
    /// A node has no device, or too many.
    #[error("node {node} has {devices} devices; 1 to {NODE_DEVICES_MAX} are allowed")]
    Devices {
        /// The index of the node.
        node: usize,
        /// The number of its devices.
        devices: u32,
    },
    /// A rescale takes too long.
    #[error("the pause of a rescale is {nano} ns; at most {RESCALE_NANO_MAX} are allowed")]
    RescaleTooLong {
        /// The pause.
        nano: u64,
    },
}

impl ClusterError {
    /// The stable code of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Nodes { .. } => "CLUSTER_NODES",
            Self::Devices { .. } => "CLUSTER_DEVICES",
            Self::RescaleTooLong { .. } => "CLUSTER_RESCALE_TOO_LONG",
        }
    }
}

/// Why an order does not enter the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full.
    #[error("{ORDERS_MAX} orders wait or run, the most that are allowed")]
    QueueFull,
    /// The number of the order is known.
    #[error("order {} waits or runs already", order.0)]
    Known {
        /// The order.
        order: OrderId,
    },
    /// No node has devices of a kind and a memory that the order can use.
    #[error("order {} fits on no node: none has devices of its kinds with its memory", order.0)]
    FitsNowhere {
        /// The order.
        order: OrderId,
    },
}

impl SubmitError {
    /// The stable code of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::QueueFull => "SUBMIT_QUEUE_FULL",
            Self::Known { .. } => "SUBMIT_KNOWN",
            Self::FitsNowhere { .. } => "SUBMIT_FITS_NOWHERE",
        }
    }
}

impl ClusterState {
    /// An idle cluster. A rescale, or the start of an order that has run before, pauses the order
    /// for `rescale_nano` nanoseconds.
    pub fn new(
        nodes: Vec<DeviceNode>,
        packing: PackingTable,
        rescale_nano: u64,
    ) -> Result<Self, ClusterError> {
        if nodes.is_empty() || nodes.len() > NODES_MAX {
            return Err(ClusterError::Nodes { nodes: nodes.len() });
        }
        for (node, DeviceNode { devices, .. }) in nodes.iter().enumerate() {
            if *devices == 0 || *devices > NODE_DEVICES_MAX {
                return Err(ClusterError::Devices { node, devices: *devices });
            }
        }
        if rescale_nano > RESCALE_NANO_MAX {
            return Err(ClusterError::RescaleTooLong { nano: rescale_nano });
        }
        let board = DeviceBoard::new(&nodes);
        let (waiting, running) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { nodes, packing, rescale_nano, waiting, running, board })
    }

    /// The nodes.
    pub fn nodes(&self) -> &[DeviceNode] {
        &self.nodes
    }

    /// The rates of orders that share a device.
    pub fn packing(&self) -> &PackingTable {
        &self.packing
    }

    /// Nanoseconds of a rescale.
    pub fn rescale_nano(&self) -> u64 {
        self.rescale_nano
    }

    /// The orders that wait, first in first.
    pub fn waiting(&self) -> &BTreeMap<OrderId, TrainingOrder> {
        &self.waiting
    }

    /// The orders that run.
    pub fn running(&self) -> &BTreeMap<OrderId, RunningOrder> {
        &self.running
    }

    /// The devices of a node that no order has.
    pub fn free(&self, node: usize) -> DeviceSet {
        self.board.free(node)
    }

    pub(crate) fn board(&self) -> &DeviceBoard {
        &self.board
    }

    /// Nanoseconds of a step of a running order, on its devices and beside its partner.
    pub fn step_nano(&self, running: &RunningOrder) -> u64 {
        let kind = self.nodes[running.allotment.node].kind;
        let profile = running.order.profile(kind).expect("apply checks that the order fits");
        let alone = profile.step_nano(running.allotment.devices.len());
        let partner = self.board.partner(running.order.id, running.allotment);
        let partner = partner.and_then(|partner| self.running.get(&partner)?.order.class);
        let rate = running.order.class.zip(partner);
        let rate = rate.and_then(|(own, other)| self.packing.rate(kind, own, other));
        rate.map_or(alone, |rate| (alone * MILLI).div_ceil(u64::from(rate)))
    }

    /// Adds an order to the queue.
    pub fn submit(&mut self, order: TrainingOrder) -> Result<(), SubmitError> {
        if self.waiting.len() + self.running.len() >= ORDERS_MAX {
            return Err(SubmitError::QueueFull);
        }
        if self.waiting.contains_key(&order.id) || self.running.contains_key(&order.id) {
            return Err(SubmitError::Known { order: order.id });
        }
        if !self.nodes.iter().any(|node| order.fits(node)) {
            return Err(SubmitError::FitsNowhere { order: order.id });
        }
        self.waiting.insert(order.id, order);
        Ok(())
    }

    /// Sets the steps that are left of a running order, as its process reports them. The work that
    /// is left never grows, and an unknown order is ignored.
    pub fn report(&mut self, order: OrderId, remaining_steps: u64) {
        if let Some(running) = self.running.get_mut(&order) {
            running.order.set_remaining(remaining_steps);
        }
    }

    /// Removes a running order: it is finished, or cancelled. Returns whether it ran.
    pub fn finish(&mut self, order: OrderId) -> bool {
        let Some(running) = self.running.remove(&order) else { return false };
        self.board.remove(order, running.allotment);
        true
    }

    /// Nanoseconds until the first running order finishes, if no decision changes its devices.
    pub fn next_completion_nano(&self) -> Option<u128> {
        let left = |running: &RunningOrder| {
            let steps = running.order.remaining_nano(self.step_nano(running));
            steps + u128::from(running.pause_nano)
        };
        self.running.values().map(left).min()
    }

    /// Lets `nano` nanoseconds pass, at most until the first completion. Returns the orders that
    /// finish, which leave the cluster.
    pub fn advance(&mut self, nano: u128) -> Vec<OrderId> {
        let steps: Vec<u64> =
            self.running.values().map(|running| self.step_nano(running)).collect();
        for (running, step_nano) in self.running.values_mut().zip(steps) {
            let pause = u128::from(running.pause_nano).min(nano);
            running.pause_nano -= u64::try_from(pause).expect("a pause is an u64");
            running.order.advance(nano - pause, step_nano);
        }
        let all = self.running.iter();
        let is_done = |running: &RunningOrder| running.order.remaining_micro() == 0;
        let done: Vec<OrderId> =
            all.filter(|(_, running)| is_done(running)).map(|(order, _)| *order).collect();
        for order in &done {
            self.finish(*order);
        }
        done
    }

    /// Checks a whole decision, then changes the devices of its orders.
    pub fn apply(&mut self, decision: &ScheduleDecision) -> Result<(), DecisionError> {
        let board = self.checked(decision)?;
        for change in &decision.changes {
            self.change(*change);
        }
        self.board = board;
        Ok(())
    }

    fn change(&mut self, change: AllotmentChange) {
        let pause = self.rescale_nano;
        match change {
            AllotmentChange::Start { order, allotment } => {
                if let Some(order) = self.waiting.remove(&order) {
                    let pause_nano = if order.has_run() { pause } else { 0 };
                    let running = RunningOrder { order, allotment, pause_nano };
                    self.running.insert(running.order.id, running);
                }
            }
            AllotmentChange::Rescale { order, allotment } => {
                if let Some(running) = self.running.get_mut(&order) {
                    (running.allotment, running.pause_nano) = (allotment, pause);
                }
            }
            AllotmentChange::Preempt { order } => {
                if let Some(mut running) = self.running.remove(&order) {
                    running.order.mark_run();
                    self.waiting.insert(order, running.order);
                }
            }
        }
    }

    /// The tenants after a decision, if it is possible.
    fn checked(&self, decision: &ScheduleDecision) -> Result<DeviceBoard, DecisionError> {
        let mut board = self.board.clone();
        let mut seen = BTreeSet::new();
        for change in &decision.changes {
            let order = change.order();
            if !seen.insert(order) {
                return Err(DecisionError::TwoChanges { order });
            }
            if matches!(change, AllotmentChange::Start { .. }) {
                let waits = self.waiting.contains_key(&order);
                waits.then_some(()).ok_or(DecisionError::NotWaiting { order })?;
            } else {
                let running =
                    self.running.get(&order).ok_or(DecisionError::NotRunning { order })?;
                board.remove(order, running.allotment);
            }
        }
        let mut placed = BTreeMap::new();
        for change in &decision.changes {
            if let AllotmentChange::Start { order, allotment }
            | AllotmentChange::Rescale { order, allotment } = *change
            {
                self.check_place(order, allotment)?;
                let taken = DecisionError::DeviceTaken { order, node: allotment.node };
                board.add(order, allotment).map_err(|_| taken)?;
                placed.insert(order, allotment);
            }
        }
        for (order, allotment) in &placed {
            self.check_partner(*order, *allotment, &board, &placed)?;
        }
        Ok(board)
    }

    fn check_place(&self, order: OrderId, allotment: Allotment) -> Result<(), DecisionError> {
        let Allotment { node, devices } = allotment;
        let missing = DecisionError::NoSuchDevice { order, node };
        let of_node = self.nodes.get(node).ok_or(missing)?;
        if devices.is_empty() || !devices.without(DeviceSet::first(of_node.devices)).is_empty() {
            return Err(missing);
        }
        let fits = self.order(order).is_some_and(|order| order.fits(of_node));
        fits.then_some(()).ok_or(DecisionError::DoesNotFit { order, node })
    }

    /// Whether an order can share its device with the other tenant, if there is one.
    fn check_partner(
        &self,
        order: OrderId,
        allotment: Allotment,
        board: &DeviceBoard,
        placed: &BTreeMap<OrderId, Allotment>,
    ) -> Result<(), DecisionError> {
        let Some(partner) = board.partner(order, allotment) else { return Ok(()) };
        let others = placed.get(&partner).copied();
        let others = others.or_else(|| Some(self.running.get(&partner)?.allotment));
        let is_single = allotment.devices.len() == 1 && others == Some(allotment);
        let pair = self.order(order).zip(self.order(partner));
        let shares =
            is_single && pair.is_some_and(|(one, two)| self.can_share(one, two, allotment));
        let node = allotment.node;
        shares.then_some(()).ok_or(DecisionError::DeviceTaken { order, node })
    }

    /// Whether the table has the rates of two orders on a device, and the device has their memory.
    pub(crate) fn can_share(
        &self,
        one: &TrainingOrder,
        two: &TrainingOrder,
        allotment: Allotment,
    ) -> bool {
        let node = self.nodes[allotment.node];
        let memory = one.memory_bytes.checked_add(two.memory_bytes);
        let classes = one.class.zip(two.class);
        let rate = classes.and_then(|(one, two)| self.packing.rate(node.kind, one, two));
        rate.is_some() && memory.is_some_and(|memory| memory <= node.memory_bytes)
    }

    /// A waiting or running order.
    pub fn order(&self, order: OrderId) -> Option<&TrainingOrder> {
        let running = || self.running.get(&order).map(|running| &running.order);
        self.waiting.get(&order).or_else(running)
    }
}
