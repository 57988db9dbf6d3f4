//! The time of a step on 1, 2, … devices of one kind, and its knee.

use crate::limits::{MILLI, NODE_DEVICES_MAX, STEP_NANO_MAX};

/// Measured step times of an order on devices of one kind, within one node.
///
/// A profile need not be monotone: an order on `n` devices may leave some of them idle, so its step
/// takes the shortest measured time on at most `n`. Counts without a measurement are never useful.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepProfile {
    /// Nanoseconds of a step on at most 1, 2, … devices.
    within_nano: Vec<u64>,
    /// The counts that are faster than every smaller one, ascending; the first is 1.
    useful: Vec<u32>,
}

/// Why step times are no profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// There is no measurement on one device.
    #[error("the profile has no step time on 1 device; the knee is relative to it")]
    OneDeviceMissing,
    /// There are more counts than a node can have devices.
    #[error("the profile has {count} counts; at most {NODE_DEVICES_MAX} are allowed")]
    TooManyCounts {
        /// The number of counts.
        count: usize,
    },
    /// A step takes no time.
    #[error("the step time on {devices} devices is 0 ns; it must be at least 1 ns")]
    ZeroStep {
        /// The number of devices.
        devices: usize,
    },
    /// A step takes too long.
    #[error("the step time on {devices} devices is {nano} ns; at most {STEP_NANO_MAX} are allowed")]
    StepTooLong {
        /// The number of devices.
        devices: usize,
        /// The time of the step.
        nano: u64,
    },
}

impl ProfileError {
    /// The stable code of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::OneDeviceMissing => "PROFILE_ONE_DEVICE_MISSING",
            Self::TooManyCounts { .. } => "PROFILE_TOO_MANY_COUNTS",
            Self::ZeroStep { .. } => "PROFILE_ZERO_STEP",
            Self::StepTooLong { .. } => "PROFILE_STEP_TOO_LONG",
        }
    }
}

impl StepProfile {
    /// A profile of step times in nanoseconds on 1, 2, … devices; `None` is a count that was not
    /// measured.
    pub fn new(step_nano: &[Option<u64>]) -> Result<Self, ProfileError> {
        if step_nano.len() > NODE_DEVICES_MAX as usize {
            return Err(ProfileError::TooManyCounts { count: step_nano.len() });
        }
        let mut shortest = match step_nano.first() {
            Some(Some(nano)) => *nano,
            _ => return Err(ProfileError::OneDeviceMissing),
        };
        let mut profile = Self { within_nano: Vec::new(), useful: vec![1] };
        for (devices, nano) in (1..).zip(step_nano) {
            match *nano {
                Some(0) => return Err(ProfileError::ZeroStep { devices }),
                Some(nano) if nano > STEP_NANO_MAX => {
                    return Err(ProfileError::StepTooLong { devices, nano });
                }
                Some(nano) if nano < shortest => {
                    shortest = nano;
                    profile.useful.push(devices as u32);
                }
                Some(_) | None => {}
            }
            profile.within_nano.push(shortest);
        }
        Ok(profile)
    }

    /// Nanoseconds of a step on `devices` devices; on 0 as on 1.
    pub fn step_nano(&self, devices: u32) -> u64 {
        let at = (devices.max(1) as usize).min(self.within_nano.len());
        self.within_nano[at - 1]
    }

    /// The counts that are faster than every smaller one, ascending; the first is 1.
    pub fn useful(&self) -> &[u32] {
        &self.useful
    }

    /// The largest useful count of at most `devices`; 1 if `devices` is 0.
    pub fn useful_within(&self, devices: u32) -> u32 {
        let fitting = self.useful.iter().rev().find(|count| **count <= devices);
        fitting.copied().unwrap_or(1)
    }

    /// The knee: the largest useful count `n` whose efficiency `T(1) / (n · T(n))` is at least
    /// `efficiency_min_milli` thousandths.
    pub fn knee(&self, efficiency_min_milli: u32) -> u32 {
        let one = u128::from(self.step_nano(1)) * u128::from(MILLI);
        let is_efficient = |count: &&u32| {
            let all = u128::from(**count) * u128::from(self.step_nano(**count));
            one >= all * u128::from(efficiency_min_milli)
        };
        self.useful.iter().rev().find(is_efficient).copied().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(times: &[u64]) -> StepProfile {
        let times: Vec<Option<u64>> =
            times.iter().map(|nano| Some(*nano).filter(|nano| *nano > 0)).collect();
        StepProfile::new(&times).unwrap()
    }

    #[test]
    fn malformed_profiles_are_refused_with_a_code() {
        let long = vec![Some(1); 65];
        let table: [(&[Option<u64>], &str); 7] = [
            (&[], "PROFILE_ONE_DEVICE_MISSING"),
            (&[None, Some(1)], "PROFILE_ONE_DEVICE_MISSING"),
            (&[Some(0)], "PROFILE_ZERO_STEP"),
            (&[Some(5), Some(0)], "PROFILE_ZERO_STEP"),
            (&[Some(u64::MAX)], "PROFILE_STEP_TOO_LONG"),
            (&[Some(1), Some(STEP_NANO_MAX + 1)], "PROFILE_STEP_TOO_LONG"),
            (&long, "PROFILE_TOO_MANY_COUNTS"),
        ];
        for (times, code) in table {
            let error = StepProfile::new(times).unwrap_err();
            assert_eq!(error.code(), code, "{error}");
        }
        StepProfile::new(&[Some(STEP_NANO_MAX); 64]).unwrap();
    }

    #[test]
    fn the_knee_is_the_largest_count_that_is_efficient() {
        // Efficiencies 1, 0.9, 0.56 (four devices), 0.5 (eight).
        let profile = profile(&[360, 200, 0, 160, 0, 0, 0, 90]);
        let table =
            [(1_000, 1), (901, 1), (900, 2), (600, 2), (562, 4), (501, 4), (500, 8), (1, 8)];
        for (milli, knee) in table {
            assert_eq!(profile.knee(milli), knee, "{milli}");
        }
    }

    #[test]
    fn the_knee_does_not_overflow_at_the_limits() {
        let mut times = [Some(STEP_NANO_MAX); 64];
        times[63] = Some(1);
        assert_eq!(StepProfile::new(&times).unwrap().knee(1_000), 64);
    }

    #[test]
    fn devices_that_slow_an_order_stay_idle() {
        let profile = profile(&[100, 130, 0, 50]);
        assert_eq!(profile.useful(), [1, 4]);
        let times: Vec<u64> = (0..=6).map(|devices| profile.step_nano(devices)).collect();
        assert_eq!(times, [100, 100, 100, 100, 50, 50, 50]);
        assert_eq!([0, 1, 3, 4, 9].map(|devices| profile.useful_within(devices)), [1, 1, 1, 4, 4]);
    }
}
