//! The tenants of every device. Policies plan on a copy.

use crate::devices::{Allotment, DeviceNode, DeviceSet};
use crate::order::OrderId;

/// Most orders on one device.
const TENANTS_MAX: usize = 2;

/// The tenants of the devices of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NodeTenants {
    free: DeviceSet,
    tenants: Vec<[Option<OrderId>; TENANTS_MAX]>,
}

/// The tenants of all devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceBoard {
    nodes: Vec<NodeTenants>,
}

/// A device has as many tenants as it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoPlace;

impl DeviceBoard {
    pub(crate) fn new(nodes: &[DeviceNode]) -> Self {
        let empty = |node: &DeviceNode| NodeTenants {
            free: DeviceSet::first(node.devices),
            tenants: vec![[None; TENANTS_MAX]; node.devices as usize],
        };
        Self { nodes: nodes.iter().map(empty).collect() }
    }

    /// The devices of a node without a tenant.
    pub(crate) fn free(&self, node: usize) -> DeviceSet {
        self.nodes.get(node).map_or(DeviceSet::default(), |node| node.free)
    }

    /// The nodes that have a free device, ascending.
    pub(crate) fn free_nodes(&self) -> Vec<usize> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(|(_, node)| !node.free.is_empty()).map(|(at, _)| at).collect()
    }

    /// Adds a tenant to devices that exist; changes nothing if one of them is full.
    pub(crate) fn add(&mut self, order: OrderId, allotment: Allotment) -> Result<(), NoPlace> {
        let node = self.nodes.get_mut(allotment.node).ok_or(NoPlace)?;
        let mut indices = allotment.devices.iter();
        let has_place = |index: u32| {
            node.tenants.get(index as usize).is_some_and(|seats| seats.contains(&None))
        };
        if !indices.all(has_place) {
            return Err(NoPlace);
        }
        for index in allotment.devices.iter() {
            let seats = node.tenants[index as usize].iter_mut();
            if let Some(seat) = seats.into_iter().find(|seat| seat.is_none()) {
                *seat = Some(order);
            }
        }
        node.free = node.free.without(allotment.devices);
        Ok(())
    }

    /// Removes a tenant from its devices.
    pub(crate) fn remove(&mut self, order: OrderId, allotment: Allotment) {
        let Some(node) = self.nodes.get_mut(allotment.node) else { return };
        for index in allotment.devices.iter() {
            let Some(seats) = node.tenants.get_mut(index as usize) else { continue };
            for seat in seats.iter_mut().filter(|seat| **seat == Some(order)) {
                *seat = None;
            }
            if seats.iter().all(Option::is_none) {
                node.free = node.free.union(DeviceSet::from_index(index));
            }
        }
    }

    /// The first other tenant on the devices of an order.
    pub(crate) fn partner(&self, order: OrderId, allotment: Allotment) -> Option<OrderId> {
        let node = self.nodes.get(allotment.node)?;
        let seats = allotment.devices.iter().filter_map(|index| node.tenants.get(index as usize));
        seats.flatten().flatten().find(|tenant| **tenant != order).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::DeviceKind;

    #[test]
    fn a_device_has_at_most_two_tenants() {
        let node = DeviceNode { kind: DeviceKind(0), devices: 2, memory_bytes: 1 };
        let mut board = DeviceBoard::new(&[node]);
        let one = Allotment { node: 0, devices: DeviceSet::from_index(0) };
        let both = Allotment { node: 0, devices: DeviceSet::first(2) };
        let missing = Allotment { node: 0, devices: DeviceSet::from_index(2) };
        let [a, b, c] = [1, 2, 3].map(OrderId);
        board.add(a, one).unwrap();
        assert_eq!(board.partner(a, one), None);
        board.add(b, both).unwrap();
        assert_eq!((board.partner(a, one), board.partner(b, both)), (Some(b), Some(a)));
        let before = board.clone();
        assert_eq!(board.add(c, both), Err(NoPlace));
        assert_eq!(board.add(c, missing), Err(NoPlace));
        assert_eq!(board, before);
        assert!(board.free(0).is_empty() && board.free_nodes().is_empty());
        board.remove(b, both);
        assert_eq!(board.free(0), DeviceSet::from_index(1));
        board.remove(a, one);
        assert_eq!(board, DeviceBoard::new(&[node]));
    }
}
