//! The step times of a job on a provider's devices, and the useful part of device time.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::error::LeaseError;

/// Most devices of one lease.
pub(crate) const DEVICES_MAX: usize = 1_024;
/// Longest step in microseconds: one day.
pub(crate) const STEP_US_MAX: u64 = 86_400_000_000;

/// Microseconds of a step on 1, 2, … devices, as the provider's card predicts them.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct StepTimes(Vec<u64>);

impl StepTimes {
    /// The step times on 1, 2, … devices, in microseconds.
    ///
    /// # Errors
    /// [`LeaseError::Invalid`] for no time, for more than 1,024, and for a time of zero or of more than a day.
    pub fn new(us: Vec<u64>) -> Result<Self, LeaseError> {
        let times = Self(us);
        times.check()?;
        Ok(times)
    }

    /// Checks decoded times.
    pub(crate) fn check(&self) -> Result<(), LeaseError> {
        let count = self.0.len();
        let count_u128 = u128::try_from(count).unwrap_or(u128::MAX);
        if count == 0 || count > DEVICES_MAX {
            let rule = "a card has from 1 to 1024 step times";
            return Err(LeaseError::Invalid { what: "step times", got: count_u128, rule });
        }
        let outside = |us: &&u64| **us == 0 || **us > STEP_US_MAX;
        match self.0.iter().find(outside) {
            Some(&us) => {
                let rule = "a step takes from 1 µs to one day";
                Err(LeaseError::Invalid { what: "a step time", got: us.into(), rule })
            }
            None => Ok(()),
        }
    }

    /// The step time on a number of devices; `None` if the card has none.
    #[must_use]
    pub fn on(&self, devices: u32) -> Option<u64> {
        let at = usize::try_from(devices).ok()?.checked_sub(1)?;
        self.0.get(at).copied()
    }

    /// The useful device time of a step in microseconds, on any number of devices: that on one device.
    /// `n` devices take `n · T(n)`, of which the share `S(n)/n = T(1)/(n · T(n))` is useful.
    #[must_use]
    pub fn useful_us(&self) -> u64 {
        self.0.first().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_times_are_checked() {
        let code = |us: Vec<u64>| StepTimes::new(us).map_err(|error| error.code());
        assert_eq!(code(Vec::new()), Err("COMPUTE_INVALID"));
        assert_eq!(code(vec![5, 0]), Err("COMPUTE_INVALID"));
        assert_eq!(code(vec![STEP_US_MAX + 1]), Err("COMPUTE_INVALID"));
        assert_eq!(code(vec![1; DEVICES_MAX + 1]), Err("COMPUTE_INVALID"));
        assert!(code(vec![1; DEVICES_MAX]).is_ok());
        assert!(code(vec![STEP_US_MAX]).is_ok());
    }

    #[test]
    fn the_useful_time_of_a_step_is_that_on_one_device() {
        let times = StepTimes::new(vec![100, 60, 45]).unwrap();
        assert_eq!(
            [0, 1, 2, 3, 4].map(|n| times.on(n)),
            [None, Some(100), Some(60), Some(45), None]
        );
        assert_eq!(times.useful_us(), 100);
    }
}
