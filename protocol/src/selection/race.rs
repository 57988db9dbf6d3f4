//! A weighted sample without replacement by integers alone: the exponential race.
//!
//! Source: Efraimidis and Spirakis, "Weighted random sampling with a reservoir", Information
//! Processing Letters 97 (2006): with u uniform in (0, 1], the smallest −ln(u)/w win. The logarithm
//! is binary, with [`FRACTION_BITS`] bits by repeated squaring, and quotients are compared by
//! products, so that no machine rounds differently.

use std::cmp::Ordering;

use crate::id::{Address, Digest, RoundNumber};

/// Bits of a logarithm after the binary point.
const FRACTION_BITS: u32 = 32;
/// Domain of the hashes that drive a race.
const CONTEXT: &str = "florin v1 selection";

/// The participants of a race with their weights, and the number of places.
pub(super) struct Race {
    pub(super) seed: Digest,
    pub(super) round: RoundNumber,
    /// Distinguishes several races of one round.
    pub(super) number: u8,
}

impl Race {
    /// The first `places` of the participants, ascending by address. A weight of 0 counts as 1.
    pub(super) fn winners(
        &self,
        weighted: impl Iterator<Item = (Address, u32)>,
        places: usize,
    ) -> Vec<Address> {
        let mut first = self.finishers(weighted, places);
        first.sort_unstable();
        first
    }

    /// The same in the order of their finish.
    pub(super) fn finishers(
        &self,
        weighted: impl Iterator<Item = (Address, u32)>,
        places: usize,
    ) -> Vec<Address> {
        let mut entries: Vec<(u64, u32, Address)> = weighted
            .map(|(account, weight)| (self.exponential(account), weight.max(1), account))
            .collect();
        entries.sort_unstable_by(|one, other| finish_order(*one, *other));
        entries.into_iter().take(places).map(|(_, _, account)| account).collect()
    }

    /// −log2(u) as fixed-point number, for u = (hash + 1) / 2^64.
    fn exponential(&self, account: Address) -> u64 {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(&self.seed.0);
        hasher.update(&self.round.0.to_le_bytes());
        hasher.update(&[self.number]);
        hasher.update(&account.0);
        let hash = hasher.finalize();
        let head = hash.as_bytes().first_chunk().copied().unwrap_or_default();
        let drawn = u64::from_le_bytes(head);
        let log = log2(u128::from(drawn).saturating_add(1));
        (64_u64 << FRACTION_BITS).saturating_sub(log)
    }
}

/// The order of two finishes: by exponential over weight, then by address.
fn finish_order(one: (u64, u32, Address), other: (u64, u32, Address)) -> Ordering {
    let left = u128::from(one.0).saturating_mul(other.1.into());
    let right = u128::from(other.0).saturating_mul(one.1.into());
    left.cmp(&right).then(one.2.cmp(&other.2))
}

/// log2 of a number from 1 to 2^64, with [`FRACTION_BITS`] bits after the point, rounded down.
fn log2(number: u128) -> u64 {
    let whole = 127_u32.saturating_sub(number.leading_zeros());
    // The mantissa in [1, 2) with 63 bits after the point.
    let mut mantissa = if whole <= 63 {
        number << 63_u32.saturating_sub(whole)
    } else {
        number >> whole.saturating_sub(63)
    };
    let mut log = u64::from(whole);
    for _ in 0..FRACTION_BITS {
        mantissa = mantissa.saturating_mul(mantissa) >> 63;
        log <<= 1;
        if mantissa >> 64 != 0 {
            mantissa >>= 1;
            log |= 1;
        }
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_exact_at_powers_of_two_and_close_elsewhere() {
        for power in 0..=64_u32 {
            assert_eq!(log2(1_u128 << power), u64::from(power) << FRACTION_BITS);
        }
        for number in [3_u128, 5, 7, 1_000_003, u128::from(u64::MAX)] {
            let exact = (number as f64).log2() * 2_f64.powi(32);
            assert!((log2(number) as f64 - exact).abs() <= exact * 1e-14 + 2.0, "{number}");
        }
    }

    #[test]
    fn a_participant_wins_in_proportion_to_its_weight() {
        let accounts: Vec<Address> = (0..4_u8).map(|i| Address([i; 20])).collect();
        let mut wins = [0_u32; 4];
        for round in 0..4_000 {
            let race = Race { seed: Digest([3; 32]), round: RoundNumber(round), number: 0 };
            let weighted = accounts.iter().copied().zip([1_u32, 2, 3, 4]);
            let first = race.winners(weighted, 1);
            wins[usize::from(first[0].0[0])] += 1;
        }
        // Expected 400, 800, 1200, 1600; the bounds are five standard deviations.
        for (won, expected) in wins.iter().zip([400_i64, 800, 1_200, 1_600]) {
            assert!((i64::from(*won) - expected).abs() < 160, "{wins:?}");
        }
    }

    #[test]
    fn every_input_changes_a_race() {
        let accounts: Vec<Address> = (0..64_u8).map(|i| Address([i; 20])).collect();
        let winners = |seed, round, number| {
            let race = Race { seed: Digest([seed; 32]), round: RoundNumber(round), number };
            race.winners(accounts.iter().map(|account| (*account, 1)), 8)
        };
        let all = [winners(1, 1, 0), winners(2, 1, 0), winners(1, 2, 0), winners(1, 1, 1)];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{at}");
            assert!(one.is_sorted() && one.len() == 8);
        }
    }
}
