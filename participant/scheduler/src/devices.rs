//! Devices, nodes, and the devices that an order has.

use crate::limits::NODE_DEVICES_MAX;

/// A kind of devices, as profiles distinguish them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceKind(pub u16);

/// A node: devices of one kind with fast links between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceNode {
    /// The kind of its devices.
    pub kind: DeviceKind,
    /// The number of its devices, 1 to [`NODE_DEVICES_MAX`].
    pub devices: u32,
    /// Bytes of memory of each device.
    pub memory_bytes: u64,
}

/// Some devices of a node; bit `i` is device `i`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceSet(u64);

impl DeviceSet {
    /// The first `count` devices of a node; all 64 if `count` is larger.
    pub fn first(count: u32) -> Self {
        Self(if count >= NODE_DEVICES_MAX { u64::MAX } else { (1 << count) - 1 })
    }

    /// The device `index`; empty if no node can have it.
    pub fn from_index(index: u32) -> Self {
        Self(if index >= NODE_DEVICES_MAX { 0 } else { 1 << index })
    }

    /// The number of devices.
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether there is no device.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The devices of both sets.
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The devices that both sets have.
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The devices that `other` lacks.
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The `count` devices of the lowest indices.
    pub fn lowest(self, count: u32) -> Self {
        let taken: u64 = self.iter().take(count as usize).map(|index| 1 << index).sum();
        Self(taken)
    }

    /// The indices, ascending.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let index = rest.trailing_zeros();
            rest &= rest.wrapping_sub(1);
            (index < NODE_DEVICES_MAX).then_some(index)
        })
    }
}

/// The devices that an order has: all of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allotment {
    /// The index of the node.
    pub node: usize,
    /// The devices of that node.
    pub devices: DeviceSet,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_count_and_list_their_devices() {
        let indices = |set: DeviceSet| set.iter().collect::<Vec<u32>>();
        assert_eq!(indices(DeviceSet::first(3)), [0, 1, 2]);
        assert_eq!(DeviceSet::first(64).len(), 64);
        assert_eq!(DeviceSet::first(0), DeviceSet::default());
        assert!(DeviceSet::from_index(64).is_empty());
        assert_eq!(indices(DeviceSet::from_index(63)), [63]);
        let some = DeviceSet::first(5).without(DeviceSet::first(2));
        assert_eq!(indices(some), [2, 3, 4]);
        assert_eq!(indices(some.lowest(2)), [2, 3]);
        assert_eq!(some.lowest(9), some);
        assert_eq!(DeviceSet::first(64).lowest(64).len(), 64);
    }
}
