//! Measured rates of two orders that share one device.

use std::collections::BTreeMap;

use crate::devices::DeviceKind;
use crate::limits::{MILLI, PACKINGS_MAX};

/// A class of orders that share devices alike: a model with its batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PackingClass(pub u16);

/// The rate of a class beside another one on the same device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedRate {
    /// The class.
    pub class: PackingClass,
    /// Thousandths of its rate alone, 1 to 1,000.
    pub rate_milli: u32,
}

/// The measured rates of pairs, by kind of devices. A pair that it does not list cannot share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackingTable {
    rates: BTreeMap<(DeviceKind, PackingClass, PackingClass), (u32, u32)>,
}

/// Why a pair is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackingError {
    /// A rate is no part of the rate alone.
    #[error("the packed rate is {rate_milli} thousandths; 1 to {MILLI} are allowed")]
    Rate {
        /// The rate.
        rate_milli: u32,
    },
    /// The table is full.
    #[error("the table of packed rates has {PACKINGS_MAX} pairs, the most that are allowed")]
    TableFull,
}

impl PackingError {
    /// The stable code of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Rate { .. } => "PACKING_RATE",
            Self::TableFull => "PACKING_TABLE_FULL",
        }
    }
}

impl PackingTable {
    /// Adds a pair, in both directions. A later pair of the same classes replaces it.
    pub fn insert(&mut self, kind: DeviceKind, pair: [PackedRate; 2]) -> Result<(), PackingError> {
        let [a, b] = pair;
        for PackedRate { rate_milli, .. } in pair {
            if rate_milli == 0 || u64::from(rate_milli) > MILLI {
                return Err(PackingError::Rate { rate_milli });
            }
        }
        if self.rates.len() >= PACKINGS_MAX {
            return Err(PackingError::TableFull);
        }
        self.rates.insert((kind, a.class, b.class), (a.rate_milli, b.rate_milli));
        self.rates.insert((kind, b.class, a.class), (b.rate_milli, a.rate_milli));
        Ok(())
    }

    /// The rate of `class` beside `other`, in thousandths of its rate alone.
    pub fn rate(&self, kind: DeviceKind, class: PackingClass, other: PackingClass) -> Option<u32> {
        self.rates.get(&(kind, class, other)).map(|(rate, _)| *rate)
    }

    /// The sum of both rates, in thousandths.
    pub fn sum(&self, kind: DeviceKind, class: PackingClass, other: PackingClass) -> Option<u32> {
        self.rates.get(&(kind, class, other)).map(|(one, two)| one + two)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_in_both_directions_and_impossible_rates_refused() {
        let kind = DeviceKind(0);
        let (a, b) = (PackingClass(1), PackingClass(2));
        let pair = |one, two| {
            [PackedRate { class: a, rate_milli: one }, PackedRate { class: b, rate_milli: two }]
        };
        let mut table = PackingTable::default();
        table.insert(kind, pair(900, 400)).unwrap();
        assert_eq!((table.rate(kind, a, b), table.rate(kind, b, a)), (Some(900), Some(400)));
        assert_eq!((table.sum(kind, b, a), table.sum(kind, a, a)), (Some(1_300), None));
        assert_eq!(table.rate(DeviceKind(1), a, b), None);
        for (one, two) in [(0, 5), (5, 0), (1_001, 5), (5, u32::MAX)] {
            assert_eq!(table.insert(kind, pair(one, two)).unwrap_err().code(), "PACKING_RATE");
        }
    }
}
