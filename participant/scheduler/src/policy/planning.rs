//! A plan in the making: the tenants after the changes so far.

use crate::board::DeviceBoard;
use crate::decision::AllotmentChange;
use crate::devices::{Allotment, DeviceKind};
use crate::order::{OrderId, TrainingOrder};
use crate::profile::StepProfile;
use crate::state::{ClusterState, RunningOrder};

/// The tenants after the changes so far, and these changes.
pub(super) struct Planning<'a> {
    pub(super) state: &'a ClusterState,
    pub(super) board: DeviceBoard,
    pub(super) changes: Vec<AllotmentChange>,
    /// Nodes with a free device, ascending.
    free_nodes: Vec<usize>,
}

impl<'a> Planning<'a> {
    pub(super) fn new(state: &'a ClusterState) -> Self {
        Self::on(state, state.board().clone())
    }

    /// A plan that begins with other tenants than the state has.
    pub(super) fn on(state: &'a ClusterState, board: DeviceBoard) -> Self {
        let free_nodes = board.free_nodes();
        Self { state, board, changes: Vec::new(), free_nodes }
    }

    /// The nodes with a free device, ascending.
    pub(super) fn free_nodes(&self) -> &[usize] {
        &self.free_nodes
    }

    pub(super) fn has_free(&self) -> bool {
        !self.free_nodes.is_empty()
    }

    /// The devices of one node on which an order is fastest, of at most the wanted count for each
    /// profile; then those of the node with the fewest free devices.
    pub(super) fn best_fit(
        &self,
        order: &TrainingOrder,
        wanted: impl Fn(&StepProfile) -> u32,
    ) -> Option<Allotment> {
        let of_kinds: Vec<(DeviceKind, &StepProfile, u32)> =
            order.profiles().map(|(kind, profile)| (kind, profile, wanted(profile))).collect();
        let nodes = self.state.nodes();
        let mut best = None;
        for at in &self.free_nodes {
            let (node, free) = (nodes[*at], self.board.free(*at).len());
            if order.memory_bytes > node.memory_bytes {
                continue;
            }
            let of_kind = of_kinds.iter().find(|(kind, ..)| *kind == node.kind);
            let Some((_, profile, wanted)) = of_kind else { continue };
            let count = profile.useful_within(free.min(*wanted));
            let key = (profile.step_nano(count), free, *at);
            if best.is_none_or(|(least, _)| key < least) {
                best = Some((key, count));
            }
        }
        best.map(|((_, _, node), count)| Allotment {
            node,
            devices: self.board.free(node).lowest(count),
        })
    }

    /// Starts a waiting order on devices that have a place for it.
    pub(super) fn start(&mut self, order: OrderId, allotment: Allotment) {
        self.add(order, allotment);
        self.changes.push(AllotmentChange::Start { order, allotment });
    }

    /// Moves a running order to devices that have a place for it, its own included.
    pub(super) fn rescale(&mut self, running: &RunningOrder, allotment: Allotment) {
        let order = running.order.id;
        self.board.remove(order, running.allotment);
        let freed = running.allotment.node;
        if !self.board.free(freed).is_empty()
            && let Err(at) = self.free_nodes.binary_search(&freed)
        {
            self.free_nodes.insert(at, freed);
        }
        self.add(order, allotment);
        self.changes.push(AllotmentChange::Rescale { order, allotment });
    }

    /// Adds a tenant without a change.
    pub(super) fn add(&mut self, order: OrderId, allotment: Allotment) {
        self.board.add(order, allotment).expect("the planned devices have a place");
        if self.board.free(allotment.node).is_empty()
            && let Ok(at) = self.free_nodes.binary_search(&allotment.node)
        {
            self.free_nodes.remove(at);
        }
    }
}
