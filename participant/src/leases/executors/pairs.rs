//! The times of leases that share a device.

use std::collections::BTreeMap;

use florin_protocol::Digest;
use florin_scheduler::{
    DeviceKind, PackedRate, PackingClass, PackingError, PackingTable, limits::MILLI,
};

use crate::leases::measuring::MEASURED_SHAPES_MAX;

/// Most leases of a device.
pub const DEVICE_LEASES_MAX: u32 = 2;
/// The rate of a lease beside one with which it was not measured, in thousandths of its rate alone.
const RATE_MILLI_GUESS: u32 = 600;

/// Microseconds of a step of a shape beside another one on the same device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PairTimes(BTreeMap<(Digest, Digest), u64>);

/// A lease that may share its device: the shape of its job, and microseconds of a step alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharingLease {
    pub(crate) shape: Digest,
    pub(crate) alone_us: u64,
}

impl PairTimes {
    /// Records a step of `shape` beside `other`; the newest time stays.
    pub(crate) fn record(&mut self, shape: Digest, other: Digest, us: u64) {
        if self.0.len() >= MEASURED_SHAPES_MAX && !self.0.contains_key(&(shape, other)) {
            self.0.clear();
        }
        self.0.insert((shape, other), us);
    }

    /// The rate of a lease beside another one, in thousandths of its rate alone.
    fn rate_milli(&self, one: SharingLease, other: SharingLease) -> u32 {
        let Some(us) = self.0.get(&(one.shape, other.shape)) else { return RATE_MILLI_GUESS };
        let rate = one.alone_us.saturating_mul(MILLI) / (*us).max(1);
        u32::try_from(rate.clamp(1, MILLI)).unwrap_or(RATE_MILLI_GUESS)
    }

    /// The sum of the rates of two leases on one device, in thousandths.
    pub(crate) fn sum_milli(&self, one: SharingLease, other: SharingLease) -> u32 {
        self.rate_milli(one, other).saturating_add(self.rate_milli(other, one))
    }

    /// The rates of all pairs, for the scheduler. A class is the number of its lease.
    ///
    /// # Errors
    /// [`PackingError`] for more pairs than the scheduler takes.
    pub(crate) fn table(
        &self,
        kind: DeviceKind,
        leases: &[(PackingClass, SharingLease)],
    ) -> Result<PackingTable, PackingError> {
        let mut table = PackingTable::default();
        for (at, (class, one)) in leases.iter().enumerate() {
            for (other_class, other) in leases.iter().skip(at.saturating_add(1)) {
                let rate = |class, one, other| PackedRate {
                    class,
                    rate_milli: self.rate_milli(one, other),
                };
                let pair = [rate(*class, *one, *other), rate(*other_class, *other, *one)];
                table.insert(kind, pair)?;
            }
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(number: u8, alone_us: u64) -> SharingLease {
        SharingLease { shape: Digest([number; 32]), alone_us }
    }

    #[test]
    fn a_pair_has_a_guess_until_it_is_measured() {
        let (one, two) = (lease(1, 1_000), lease(2, 3_000));
        let mut pairs = PairTimes::default();
        assert_eq!(pairs.sum_milli(one, two), 1_200);
        pairs.record(one.shape, two.shape, 1_250);
        assert_eq!((pairs.sum_milli(one, two), pairs.sum_milli(two, one)), (1_400, 1_400));
        pairs.record(two.shape, one.shape, 12_000);
        assert_eq!(pairs.sum_milli(one, two), 800 + 250);
        // A pair that is faster than each alone is noise.
        pairs.record(two.shape, one.shape, 100);
        assert_eq!(pairs.sum_milli(one, two), 800 + 1_000);
        let table = pairs.table(DeviceKind(0), &[(PackingClass(0), one), (PackingClass(1), two)]);
        let table = table.unwrap();
        let rate = |a, b| table.rate(DeviceKind(0), PackingClass(a), PackingClass(b));
        assert_eq!((rate(0, 1), rate(1, 0), rate(0, 0)), (Some(800), Some(1_000), None));
    }

    #[test]
    fn the_pairs_have_a_limit() {
        let mut pairs = PairTimes::default();
        for number in 0..=MEASURED_SHAPES_MAX {
            let mut shape = [0; 32];
            shape[..8].copy_from_slice(&number.to_be_bytes());
            pairs.record(Digest(shape), Digest([0; 32]), 1);
        }
        assert_eq!(pairs.0.len(), 1);
    }
}
