//! The devices of executors.

use super::allotment;
use super::pairs::DEVICE_LEASES_MAX;

/// Most devices of one machine.
pub const MACHINE_DEVICES_MAX: u32 = allotment::MACHINE_DEVICES_MAX;
/// Most tasks of one job of a batch system.
pub const BATCH_DEVICES_MAX: u32 = 64;

/// The devices of executors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSupply {
    /// Devices of this machine.
    Machine {
        /// Their number, from 1 to [`MACHINE_DEVICES_MAX`].
        devices: u32,
        /// Whether a launcher starts executors on several devices.
        launches: bool,
        /// Most leases of each, from 1 to [`DEVICE_LEASES_MAX`].
        leases_of_each: u32,
    },
    /// Devices of a batch system, which has a queue of its own.
    Batch {
        /// Devices of each executor, from 1 to [`BATCH_DEVICES_MAX`].
        of_each: u32,
        /// Longest accepted wait in its queue, in milliseconds: while executors wait longer, the account does not bid.
        queue_ms: u64,
    },
}

impl DeviceSupply {
    /// The same devices for at most `orders_max` leases: none is shared where each lease can have its own.
    #[must_use]
    pub(in crate::leases) const fn for_leases(self, orders_max: u32) -> Self {
        match self {
            Self::Machine { devices, launches, .. } if orders_max <= devices => {
                Self::Machine { devices, launches, leases_of_each: 1 }
            }
            supply => supply,
        }
    }

    /// Most leases that share a device.
    pub(in crate::leases) const fn leases_of_each(self) -> u32 {
        match self {
            Self::Machine { leases_of_each, .. } => leases_of_each,
            Self::Batch { .. } => 1,
        }
    }
}

/// Checks the devices of executors.
///
/// # Errors
/// The key and the reason.
pub(in crate::leases) fn check_supply(
    supply: DeviceSupply,
    orders_max: Option<u32>,
) -> Result<(), (&'static str, String)> {
    match supply {
        DeviceSupply::Machine { devices, leases_of_each, .. } => {
            if !(1..=MACHINE_DEVICES_MAX).contains(&devices) {
                let why = format!("{devices}: use 1 to {MACHINE_DEVICES_MAX} devices");
                return Err(("executors.devices", why));
            }
            if !(1..=DEVICE_LEASES_MAX).contains(&leases_of_each) {
                let why = format!("{leases_of_each}: use 1 to {DEVICE_LEASES_MAX} leases");
                return Err(("executors.leases_per_device", why));
            }
            let most = devices.saturating_mul(leases_of_each);
            if let Some(orders) = orders_max.filter(|orders| *orders > most) {
                let why = format!(
                    "{orders}: use at most {most}, as executors.devices is {devices} and \
                     executors.leases_per_device {leases_of_each}"
                );
                return Err(("bid.orders_max", why));
            }
        }
        DeviceSupply::Batch { of_each, queue_ms } => {
            if !(1..=BATCH_DEVICES_MAX).contains(&of_each) {
                let why = format!("{of_each}: use 1 to {BATCH_DEVICES_MAX} devices");
                return Err(("executors.devices", why));
            }
            if queue_ms == 0 {
                return Err(("executors.queue_max", "0: use more than 0".to_owned()));
            }
        }
    }
    Ok(())
}
