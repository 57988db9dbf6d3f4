//! The terms of an order that its file leaves out: they follow from its size, its price and its longest
//! step, so that [`ComputeOrder::check`] accepts them.

use florin_compute::{AuditTerms, ComputeOrder, DataClass, Deposits, LeaseError, PARTS, Windows};
use florin_protocol::{Amount, AmountError};

use super::sections::{AuditSection, DepositSection, WindowSection};
use crate::task_file::TaskFileError;
use crate::task_file::file::Decimal;

/// The smallest share of audited segments, in parts per million.
const SHARE: u32 = 50_000;
/// The largest share that an order may have, in parts per million.
const SHARE_MAX: u32 = 333_333;
/// The largest share of auditors that could work for the provider, in parts per million.
const COLLUDING_MAX: u64 = 999_999;
/// Auditors of an audited segment.
const AUDITORS: u32 = 2;
/// The share of auditors that could work for the provider, in parts per million.
const COLLUDING: u32 = 200_000;
/// The bond of a bid is this part of the largest price.
const BID_BOND_PART: u128 = 10;
/// The fine of a provider that stops is this part of the largest price, unless the rows are public.
const FINE_PART: u128 = 4;
/// A segment may take this multiple of its predicted time, in parts per million.
const SLACK: u32 = 3 * PARTS;

const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
/// For sealed bids: programs of providers look at a market every few seconds.
pub(super) const BID_MS: u64 = 5 * MINUTE_MS;
const REVEAL_MS: u64 = 2 * MINUTE_MS;
/// It counts 1,024 times in the longest duration.
const FUND_MS: u64 = 2 * MINUTE_MS;
/// For transfers and the start of a segment.
const SEGMENT_MS: u64 = 10 * SECOND_MS;
const DRAW_MS: u64 = 10 * MINUTE_MS;
/// The shortest windows of audits and answers; both also cover the work of a segment.
const AUDIT_MS_MIN: u64 = 10 * MINUTE_MS;
const ANSWER_MS_MIN: u64 = MINUTE_MS;

/// A part of an amount, rounded up.
pub(super) fn part_up(
    amount: Amount,
    numerator: u128,
    denominator: u128,
) -> Result<Amount, AmountError> {
    let down = amount.mul_div_down(numerator, denominator)?;
    match down.mul_div_down(denominator, numerator.max(1))? == amount {
        true => Ok(down),
        false => down.plus(Amount::from_units(1)),
    }
}

/// Checks the audits of a file, on which the least stake depends.
pub(super) fn check_audit(section: &AuditSection) -> Result<(), TaskFileError> {
    let decimal = |key, found: Option<Decimal>, least: u64, most: u64, right: &str| match found {
        Some(Decimal(micro)) if !(least..=most).contains(&micro.0) => {
            Err(TaskFileError::key(key, micro.to_string(), right))
        }
        _ => Ok(()),
    };
    let share = "a share of the segments from 0.000001 to 0.333333";
    decimal("audit.share", section.share, 1, SHARE_MAX.into(), share)?;
    let colluding = "a share of the auditors from 0 to 0.999999";
    decimal("audit.colluding", section.colluding, 0, COLLUDING_MAX, colluding)?;
    match section.auditors {
        Some(0) => Err(TaskFileError::key("audit.auditors", "0", "a whole number from 1 to 16")),
        _ => Ok(()),
    }
}

/// The audits of an order of a number of segments.
pub(super) fn audit(
    section: &AuditSection,
    (segments, class): (u32, DataClass),
    price: Amount,
) -> Result<AuditTerms, AmountError> {
    let parts = |micro: u64| u32::try_from(micro).unwrap_or(u32::MAX);
    // At least one segment is audited at the price of one, and the bounty is at most the price.
    let enough = PARTS.div_ceil(segments.max(1)).clamp(SHARE, SHARE_MAX);
    let share = section.share.map_or(enough, |share| parts(share.0.0));
    let of_segment = price.mul_div_down(1, segments.max(1).into())?;
    let most = price.mul_div_down(share.into(), PARTS.into())?;
    let fee = section.fee.unwrap_or(of_segment.min(most).max(Amount::from_units(1)));
    // The renter audits private rows itself, and not for the provider.
    let (auditors, colluding) = match class {
        DataClass::Private => (1, 0),
        DataClass::Public | DataClass::Buyer => (AUDITORS, COLLUDING),
    };
    Ok(AuditTerms {
        share,
        auditors: section.auditors.unwrap_or(auditors),
        colluding: section.colluding.map_or(colluding, |share| parts(share.0.0)),
        fee,
    })
}

/// The windows of an order whose audits are known. One auditor may compute all drawn segments.
pub(super) fn windows(section: &WindowSection, order: &ComputeOrder) -> Windows {
    let slack = |micro: u64| u32::try_from(micro).unwrap_or(u32::MAX);
    let known = Windows {
        bid: section.bid.map_or(BID_MS, |ms| ms.0),
        reveal: section.reveal.map_or(REVEAL_MS, |ms| ms.0),
        fund: section.fund.map_or(FUND_MS, |ms| ms.0),
        slack: section.slack.map_or(SLACK, |decimal| slack(decimal.0.0)),
        segment: section.segment.map_or(SEGMENT_MS, |ms| ms.0),
        draw: section.draw.map_or(DRAW_MS, |ms| ms.0),
        audit: AUDIT_MS_MIN,
        answer: ANSWER_MS_MIN,
    };
    let order = ComputeOrder { windows: known.clone(), ..order.clone() };
    let segment = order.segment_ms(order.step_us_max);
    let audits = segment.saturating_mul(order.audited(order.segments).into());
    Windows {
        audit: section.audit.map_or(audits.max(AUDIT_MS_MIN), |ms| ms.0),
        answer: section.answer.map_or(segment.max(ANSWER_MS_MIN), |ms| ms.0),
        ..known
    }
}

/// The deposits of an order whose price and audits are known. The stake is the price, or the least that is
/// allowed.
pub(super) fn deposits(
    section: &DepositSection,
    order: &ComputeOrder,
) -> Result<Deposits, LeaseError> {
    let bid_bond = match section.bid_bond {
        Some(bond) => bond,
        None => part_up(order.price_max, 1, BID_BOND_PART)?,
    };
    let audit_bond = match order.data_class {
        DataClass::Private => order.bounty().max(bid_bond),
        DataClass::Public | DataClass::Buyer => order.bounty(),
    };
    // A provider that stops has read the rows.
    let fine = match order.data_class {
        DataClass::Public => Amount::ZERO,
        DataClass::Buyer | DataClass::Private => part_up(order.price_max, 1, FINE_PART)?,
    };
    let without_stake = Deposits {
        bid_bond,
        stake: Amount::ZERO,
        audit_bond: section.audit_bond.unwrap_or(audit_bond),
        default_fine: section.default_fine.unwrap_or(bid_bond.max(fine)),
    };
    let least = ComputeOrder { deposits: without_stake.clone(), ..order.clone() }.stake_min()?;
    let stake = section.stake.unwrap_or(least.max(order.price_max));
    Ok(Deposits { stake, ..without_stake })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(segments: u32, price: u128) -> ComputeOrder {
        let price_max = Amount::from_units(price);
        let order = ComputeOrder {
            segments,
            price_max,
            step_us_max: 400_000,
            audit: audit(&AuditSection::default(), (segments, DataClass::Public), price_max)
                .unwrap(),
            ..ComputeOrder::example()
        };
        let windows = windows(&WindowSection::default(), &order);
        let order = ComputeOrder { windows, ..order };
        let deposits = deposits(&DepositSection::default(), &order).unwrap();
        ComputeOrder { deposits, ..order }
    }

    #[test]
    fn defaults_of_every_size_and_price_are_accepted() {
        for segments in [1, 2, 3, 4, 7, 19, 20, 21, 100, 999, 10_000] {
            for price in [1_000, 999_999, 10_u128.pow(18), 123 * 10_u128.pow(24) + 1] {
                if price >= u128::from(segments) {
                    let order = order(segments, price);
                    assert_eq!(order.check(), Ok(()), "{segments} {price}");
                }
            }
        }
    }

    #[test]
    fn a_hundred_segments_have_the_documented_terms() {
        let order = order(100, 1_000_000);
        let units = Amount::from_units;
        assert_eq!((order.audit.share, order.audit.auditors), (50_000, 2));
        assert_eq!((order.audit.fee, order.bounty()), (units(10_000), units(200_000)));
        assert_eq!(
            (order.deposits.bid_bond, order.deposits.audit_bond),
            (units(100_000), units(200_000))
        );
        assert_eq!(order.deposits.stake, units(1_000_000));
        // Ten steps of 400 ms, times three, and ten seconds.
        assert_eq!(order.segment_ms(order.step_us_max), 22_000);
        assert_eq!((order.windows.audit, order.windows.answer), (AUDIT_MS_MIN, ANSWER_MS_MIN));
    }

    #[test]
    fn parts_are_rounded_up() {
        for (units, part) in [(40, 2), (41, 3), (59, 3), (60, 3), (0, 0), (1, 1)] {
            let found = part_up(Amount::from_units(units), 1, 20);
            assert_eq!(found, Ok(Amount::from_units(part)), "{units}");
        }
    }
}
