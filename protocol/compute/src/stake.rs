//! The smallest stake with which a fake segment does not pay.
//!
//! A provider that fakes `m` of `n` segments of an order saves `m·G/n`, and escapes with probability
//! `(1−d)^m`, where `d` is the chance that one fake segment is found. It loses by that if its stake `S` is at
//! least `(m·G/n)·(1−d)^m / (1−(1−d)^m)`, which falls with `m`: the worst case is one segment,
//! `S ≥ (G/n)·(1−d)/d`.

use florin_protocol::{Amount, AmountError};

/// The whole of a share: shares are in parts per million.
pub const PARTS: u32 = 1_000_000;

/// The numbers on which the smallest stake depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StakeRule {
    /// The saving from faking the whole order: at most its price, and a motive outside the market.
    pub saving: Amount,
    /// Segments of the order.
    pub segments: u32,
    /// Segments that are audited.
    pub audited: u32,
    /// Auditors of each.
    pub auditors: u32,
    /// The share of the auditors that could work for the provider, in parts per million.
    pub colluding: u32,
}

impl StakeRule {
    /// The chance that one fake segment is found, in parts per million, rounded down: it is audited, and not
    /// all of its auditors collude.
    #[must_use]
    pub fn detection(&self) -> u32 {
        let parts = u64::from(PARTS);
        let mut all_collude = parts;
        // Rounded up: a smaller chance of detection asks for a larger stake.
        for _ in 0..self.auditors.min(PARTS) {
            let product = all_collude.saturating_mul(u64::from(self.colluding.min(PARTS)));
            all_collude = product.div_ceil(parts);
            if all_collude <= 1 {
                break;
            }
        }
        if self.auditors == 0 {
            return 0;
        }
        let honest = parts.saturating_sub(all_collude);
        let audited = u64::from(self.audited.min(self.segments));
        let found = audited.saturating_mul(honest).checked_div(u64::from(self.segments));
        found.and_then(|found| u32::try_from(found).ok()).unwrap_or_default()
    }
}

/// The smallest stake; `None` if nothing is ever found.
///
/// # Errors
/// [`AmountError::Overflow`].
pub fn stake_min(rule: &StakeRule) -> Result<Option<Amount>, AmountError> {
    let detection = rule.detection();
    if detection == 0 || rule.segments == 0 {
        return Ok(None);
    }
    let missed = PARTS.saturating_sub(detection);
    let denominator = u128::from(rule.segments).saturating_mul(u128::from(detection));
    let exact = rule.saving.mul_div_down(missed.into(), denominator)?;
    // Rounded up.
    Ok(Some(exact.plus(Amount::from_units(1))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVING: Amount = Amount::from_units(1_000_000_000);

    fn rule(audited: u32, auditors: u32, colluding: u32) -> StakeRule {
        StakeRule { saving: SAVING, segments: 100, audited, auditors, colluding }
    }

    /// The cases of the analysis: 5 % audited by two, a third colluding; 2 % by one, a fifth; 10 % by three,
    /// half.
    #[test]
    fn the_stake_is_that_of_the_formula() {
        for (rule, detection, share) in [
            (rule(5, 2, 333_333), 44_444, 0.215),
            (rule(2, 1, 200_000), 16_000, 0.615),
            (rule(10, 3, 500_000), 87_500, 0.104_285),
        ] {
            assert_eq!(rule.detection(), detection);
            let stake = stake_min(&rule).unwrap().unwrap();
            let found = stake.units() as f64 / SAVING.units() as f64;
            assert!((found - share).abs() < 1e-3, "{rule:?}: {found}");
            // With this stake one fake segment does not pay, and with a thousandth less it does.
            let d = f64::from(rule.detection()) / f64::from(PARTS);
            let profit = |stake: f64| (1.0 - d) * SAVING.units() as f64 / 100.0 - d * stake;
            assert!(profit(stake.units() as f64) <= 0.0);
            assert!(profit(stake.units() as f64 * 0.999) > 0.0);
        }
    }

    #[test]
    fn one_fake_segment_is_the_worst_case() {
        let rule = rule(5, 2, 333_333);
        let d = f64::from(rule.detection()) / f64::from(PARTS);
        let stake = stake_min(&rule).unwrap().unwrap().units() as f64;
        for fakes in 1..=100 {
            let escapes = (1.0 - d).powi(fakes);
            let saving = f64::from(fakes) * SAVING.units() as f64 / 100.0;
            assert!(escapes * saving <= (1.0 - escapes) * stake, "{fakes}");
        }
    }

    #[test]
    fn nothing_found_has_no_stake() {
        for rule in [rule(0, 2, 0), rule(5, 0, 0), rule(5, 2, PARTS), rule(5, 2, u32::MAX)] {
            assert_eq!((rule.detection(), stake_min(&rule)), (0, Ok(None)), "{rule:?}");
        }
        assert_eq!(StakeRule { segments: 0, ..rule(5, 2, 0) }.detection(), 0);
        // All segments are audited by honest auditors: a base unit, for the rounding.
        assert_eq!(rule(200, 1, 0).detection(), PARTS);
        assert_eq!(stake_min(&rule(100, 1, 0)), Ok(Some(Amount::from_units(1))));
        let large = StakeRule { saving: Amount::from_units(u128::MAX), ..rule(1, 1, 999_000) };
        assert_eq!(stake_min(&large), Err(AmountError::Overflow));
    }
}
