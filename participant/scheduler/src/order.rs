//! An order: steps of a training that a renter has bought.

use std::collections::BTreeMap;

use crate::devices::{DeviceKind, DeviceNode};
use crate::limits::{MICRO, STEPS_MAX};
use crate::packing::PackingClass;
use crate::profile::StepProfile;

/// The number of an order. Orders arrive in ascending order of it, and an order that is preempted
/// returns to its old place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderId(pub u64);

/// An order and the work that is left of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainingOrder {
    /// Its number.
    pub id: OrderId,
    /// Its class in the table of packed rates; `None` never shares a device.
    pub class: Option<PackingClass>,
    /// Bytes of memory that it takes on each of its devices.
    pub memory_bytes: u64,
    profiles: BTreeMap<DeviceKind, StepProfile>,
    remaining_micro: u64,
    has_run: bool,
}

/// Why something is no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// It has no step, or too many.
    #[error("the order has {steps} steps; 1 to {STEPS_MAX} are allowed")]
    Steps {
        /// The number of steps.
        steps: u64,
    },
    /// It has no profile.
    #[error("the order has no profile; at least one kind of devices must have one")]
    NoProfile,
}

impl OrderError {
    /// The stable code of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Steps { .. } => "ORDER_STEPS",
            Self::NoProfile => "ORDER_NO_PROFILE",
        }
    }
}

impl TrainingOrder {
    /// An order of `steps` steps that shares no device and takes no memory.
    pub fn new(
        id: OrderId,
        profiles: BTreeMap<DeviceKind, StepProfile>,
        steps: u64,
    ) -> Result<Self, OrderError> {
        if steps == 0 || steps > STEPS_MAX {
            return Err(OrderError::Steps { steps });
        }
        if profiles.is_empty() {
            return Err(OrderError::NoProfile);
        }
        let remaining_micro = steps * MICRO;
        Ok(Self { id, class: None, memory_bytes: 0, profiles, remaining_micro, has_run: false })
    }

    /// The same order with `memory_bytes` bytes of memory on each of its devices.
    pub fn with_memory(self, memory_bytes: u64) -> Self {
        Self { memory_bytes, ..self }
    }

    /// The same order, which may share a device where its class has a measured rate.
    pub fn with_class(self, class: PackingClass) -> Self {
        Self { class: Some(class), ..self }
    }

    /// The profile on devices of a kind.
    pub fn profile(&self, kind: DeviceKind) -> Option<&StepProfile> {
        self.profiles.get(&kind)
    }

    /// All profiles, by kind.
    pub fn profiles(&self) -> impl Iterator<Item = (DeviceKind, &StepProfile)> {
        self.profiles.iter().map(|(kind, profile)| (*kind, profile))
    }

    /// Millionths of a step that are left.
    pub fn remaining_micro(&self) -> u64 {
        self.remaining_micro
    }

    /// Whether it was preempted, so that its next start restores it.
    pub fn has_run(&self) -> bool {
        self.has_run
    }

    /// Nanoseconds that the rest takes with steps of `step_nano`, rounded up.
    pub fn remaining_nano(&self, step_nano: u64) -> u128 {
        (u128::from(self.remaining_micro) * u128::from(step_nano)).div_ceil(u128::from(MICRO))
    }

    /// Whether a node has devices on which the order can run.
    pub fn fits(&self, node: &DeviceNode) -> bool {
        self.memory_bytes <= node.memory_bytes && self.profiles.contains_key(&node.kind)
    }

    /// Subtracts `nano` nanoseconds of steps of `step_nano`. Parts of a millionth of a step are
    /// lost, unless they finish the order.
    pub(crate) fn advance(&mut self, nano: u128, step_nano: u64) {
        let done = nano * u128::from(MICRO) / u128::from(step_nano);
        let done = u64::try_from(done).unwrap_or(u64::MAX);
        self.remaining_micro = if nano >= self.remaining_nano(step_nano) {
            0
        } else {
            self.remaining_micro.saturating_sub(done)
        };
    }

    pub(crate) fn set_remaining(&mut self, steps: u64) {
        self.remaining_micro = self.remaining_micro.min(steps.saturating_mul(MICRO));
    }

    pub(crate) fn mark_run(&mut self) {
        self.has_run = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profiles() -> BTreeMap<DeviceKind, StepProfile> {
        BTreeMap::from([(DeviceKind(0), StepProfile::new(&[Some(3)]).unwrap())])
    }

    #[test]
    fn orders_without_steps_or_profiles_are_refused() {
        let code = |profiles, steps| {
            TrainingOrder::new(OrderId(1), profiles, steps).map(drop).map_err(|e| e.code())
        };
        assert_eq!(code(profiles(), 0), Err("ORDER_STEPS"));
        assert_eq!(code(profiles(), STEPS_MAX + 1), Err("ORDER_STEPS"));
        assert_eq!(code(BTreeMap::new(), 1), Err("ORDER_NO_PROFILE"));
        assert_eq!(code(profiles(), STEPS_MAX), Ok(()));
    }

    #[test]
    fn work_is_subtracted_and_ends_at_its_own_time() {
        let mut order = TrainingOrder::new(OrderId(1), profiles(), 10).unwrap();
        assert_eq!(order.remaining_nano(3), 30);
        order.advance(15, 3);
        assert_eq!(order.remaining_micro(), 5 * MICRO);
        let rest = order.remaining_nano(7);
        order.advance(rest - 1, 7);
        assert!(order.remaining_micro() > 0);
        order.advance(rest, 7);
        assert_eq!(order.remaining_micro(), 0);
        order.advance(u128::from(u64::MAX), 1);
        assert_eq!(order.remaining_micro(), 0);
    }
}
