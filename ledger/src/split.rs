//! The split of an account's pay among members: a silo trains as one sender, and the ledger pays
//! its members.
//!
//! The base units of the account's pay in a task are numbered in the order in which they are
//! claimed, from 0 on. They are dealt in turns of a million: unit `n` belongs to the member in whose
//! part of the turn `n mod 10⁶` falls, and the parts are the members' shares in millionths, one
//! behind the other. A member's total is therefore a function of the account's claimed total
//! alone, it never decreases, and the members' totals add up to the account's without a remainder.
//! It deviates from the exact share by less than 10⁶ units, a millionth of a millionth of a florin.

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{Address, Amount, AmountError, Micro};
use serde::{Deserialize, Serialize};

use crate::limits::SPLIT_MEMBERS_MAX;
use crate::refusal::Refusal;

/// Units of one turn: a whole, in millionths.
const TURN: u128 = 1_000_000;

/// One member of a split.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct MemberShare {
    /// The account that is paid.
    pub member: Address,
    /// Its share of the pay.
    pub share: Micro,
}

/// Checks that members and shares are a split: 1 to [`SPLIT_MEMBERS_MAX`] members in ascending order
/// of their addresses, which are distinct and not zero, with shares above zero that add up to one.
///
/// # Errors
/// [`Refusal::LimitExceeded`] or [`Refusal::SplitInvalid`].
pub fn check_split(members: &[MemberShare]) -> Result<(), Refusal> {
    if members.len() > SPLIT_MEMBERS_MAX {
        let what =
            format!("{} members: the maximum of a split is {SPLIT_MEMBERS_MAX}", members.len());
        return Err(Refusal::LimitExceeded(what));
    }
    let wrong = |what: String| Err(Refusal::SplitInvalid(what));
    let mut previous = Address::default();
    let mut whole = 0u64;
    for MemberShare { member, share } in members {
        if *member == Address::default() {
            return wrong(format!("{member}, the zero address, is not allowed: no key owns it"));
        }
        if *member == previous {
            return wrong(format!("{member} is listed twice: add its shares up"));
        }
        if *member < previous {
            return wrong(format!(
                "{member} does not follow {previous}: list the addresses in ascending order"
            ));
        }
        if *share == Micro::ZERO {
            return wrong(format!("{member} has a share of 0: leave it out"));
        }
        previous = *member;
        whole = whole.saturating_add(share.0);
    }
    if whole != Micro::ONE.0 {
        return wrong(format!("the shares add up to {}, not to 1", Micro(whole)));
    }
    Ok(())
}

/// The amounts that the members receive while the account's claimed total grows from `before` to
/// `after`, in the order of the members. They add up to the increase.
///
/// # Errors
/// [`AmountError`] if the total decreases or the shares exceed one.
pub fn member_payments(
    members: &[MemberShare],
    before: Amount,
    after: Amount,
) -> Result<Vec<Amount>, AmountError> {
    let mut upper = 0u128;
    let mut paid = Amount::ZERO;
    let mut payments = Vec::with_capacity(members.len());
    for MemberShare { share, .. } in members {
        upper = upper.checked_add(share.0.into()).ok_or(AmountError::Overflow)?;
        let due = dealt(after, upper)?.minus(dealt(before, upper)?)?;
        payments.push(due.minus(paid)?);
        paid = due;
    }
    Ok(payments)
}

/// The number of the first `total` units that the members up to a sum of shares own:
/// `⌊total / 10⁶⌋ · upper + min(total mod 10⁶, upper)`. At most `total`, unless `upper` exceeds one.
fn dealt(total: Amount, upper: u128) -> Result<Amount, AmountError> {
    let units = total.units();
    let turns = units.checked_div(TURN).ok_or(AmountError::DivisionByZero)?;
    let begun = units.checked_rem(TURN).ok_or(AmountError::DivisionByZero)?;
    let whole = turns.checked_mul(upper).ok_or(AmountError::Overflow)?;
    let dealt = whole.checked_add(begun.min(upper)).ok_or(AmountError::Overflow)?;
    Ok(Amount::from_units(dealt))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn members(shares: &[u64]) -> Vec<MemberShare> {
        let member = |n: usize| Address([u8::try_from(n).unwrap() + 1; 20]);
        let shares = shares.iter().enumerate();
        shares.map(|(n, share)| MemberShare { member: member(n), share: Micro(*share) }).collect()
    }

    fn amount(units: u128) -> Amount {
        Amount::from_units(units)
    }

    fn payments(shares: &[u64], before: u128, after: u128) -> Vec<u128> {
        let paid = member_payments(&members(shares), amount(before), amount(after)).unwrap();
        paid.into_iter().map(Amount::units).collect()
    }

    /// Shares that add up to a million, by cuts at distinct places.
    fn any_shares() -> impl Strategy<Value = Vec<u64>> {
        let cuts = prop::collection::btree_set(1u64..1_000_000, 0..SPLIT_MEMBERS_MAX);
        cuts.prop_map(|cuts| {
            let ends = cuts.iter().copied().chain([1_000_000]);
            let starts = std::iter::once(0).chain(cuts.iter().copied());
            starts.zip(ends).map(|(start, end)| end - start).collect()
        })
    }

    /// Ascending totals: small, around whole turns, and up to the largest amount.
    fn any_totals() -> impl Strategy<Value = Vec<u128>> {
        let near = (0u128..400, 0u128..5).prop_map(|(turns, more)| turns * 250_000 + more);
        let total = prop_oneof![
            0u128..50,
            near,
            any::<u128>(),
            (0u128..3_000_000).prop_map(|less| u128::MAX - less),
            (0u128..3_000_000).prop_map(|less| (1 << 96) - 1 - less),
        ];
        prop::collection::vec(total, 1..12).prop_map(|mut totals| {
            totals.sort_unstable();
            totals
        })
    }

    #[test]
    fn a_split_lists_distinct_members_whose_shares_are_one() {
        let code = |members: &[MemberShare]| check_split(members).map_err(|refusal| refusal.code());
        let invalid = Err("SPLIT_INVALID");
        assert_eq!(code(&members(&[1_000_000])), Ok(()));
        assert_eq!(code(&members(&[1, 999_999])), Ok(()));
        for shares in [&[][..], &[999_999], &[1_000_001], &[500_000, 500_001], &[0, 1_000_000]] {
            assert_eq!(code(&members(shares)), invalid, "{shares:?}");
        }
        assert_eq!(code(&members(&[u64::MAX, 1_000_001])), invalid, "no sum wraps");
        let swapped: Vec<_> = members(&[400_000, 600_000]).into_iter().rev().collect();
        assert_eq!(code(&swapped), invalid);
        let mut twice = members(&[400_000, 600_000]);
        twice[1].member = twice[0].member;
        assert_eq!(code(&twice), invalid);
        twice[0].member = Address::default();
        assert_eq!(code(&twice), invalid, "the zero address");
        let mut most = members(&[1; SPLIT_MEMBERS_MAX]);
        most[0].share = Micro(1_000_001 - SPLIT_MEMBERS_MAX as u64);
        assert_eq!(code(&most), Ok(()));
        assert_eq!(code(&members(&[15_384; SPLIT_MEMBERS_MAX + 1])), Err("LIMIT_EXCEEDED"));
    }

    #[test]
    fn a_refused_list_is_explained_by_its_mistake() {
        let why = |members: &[MemberShare]| check_split(members).unwrap_err().to_string();
        let two = members(&[400_000, 600_000]);
        let swapped: Vec<_> = two.iter().rev().copied().collect();
        assert!(why(&swapped).contains("ascending order"), "{}", why(&swapped));
        let twice = [two[0], two[0]];
        let text = why(&twice);
        assert!(text.contains("is listed twice") && !text.contains("order"), "{text}");
        let zero = [MemberShare { member: Address::default(), share: Micro::ONE }];
        assert!(why(&zero).contains("the zero address, is not allowed"), "{}", why(&zero));
    }

    #[test]
    fn units_are_dealt_in_turns_of_a_million() {
        let shares = [500_000, 200_000, 300_000];
        assert_eq!(payments(&shares, 0, 1_000_000), [500_000, 200_000, 300_000]);
        assert_eq!(payments(&shares, 0, 10), [10, 0, 0]);
        assert_eq!(payments(&shares, 499_999, 500_001), [1, 1, 0]);
        assert_eq!(payments(&shares, 699_999, 1_000_002), [2, 1, 300_000]);
        assert_eq!(payments(&shares, 0, 2_750_000), [1_500_000, 600_000, 650_000]);
        assert_eq!(payments(&[1_000_000], 3, u128::MAX), [u128::MAX - 3]);
        let most = payments(&shares, 0, u128::MAX);
        assert_eq!(most.iter().sum::<u128>(), u128::MAX);
        assert_eq!(most[0], u128::MAX / 1_000_000 * 500_000 + 211_455);
        assert!(member_payments(&members(&shares), amount(5), amount(4)).is_err());
    }

    /// The rule of the module's page, one unit after another.
    #[test]
    fn the_formula_equals_the_dealing_of_single_units() {
        for shares in [&[1, 999_999][..], &[333_333, 333_333, 333_334], &[700_000, 250_000, 50_000]]
        {
            let mut totals = vec![0u128; shares.len()];
            let owner = |unit: u64| {
                let mut end = 0;
                shares.iter().position(|share| {
                    end += share;
                    unit % 1_000_000 < end
                })
            };
            for unit in 0..2_100_000u64 {
                totals[owner(unit).unwrap()] += 1;
                if unit % 1_733 == 0 || unit % 1_000_000 > 999_997 {
                    assert_eq!(payments(shares, 0, u128::from(unit) + 1), totals, "{shares:?}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

        #[test]
        fn any_sequence_of_claims_pays_the_same(shares in any_shares(), totals in any_totals()) {
            let mut sums = vec![0u128; shares.len()];
            let mut before = 0;
            for after in &totals {
                let paid = payments(&shares, before, *after);
                prop_assert_eq!(paid.iter().sum::<u128>(), after - before);
                for (sum, paid) in sums.iter_mut().zip(paid) {
                    *sum += paid;
                }
                before = *after;
            }
            prop_assert_eq!(payments(&shares, 0, before), sums);
        }

        #[test]
        fn a_member_has_its_share_up_to_a_turn(shares in any_shares(), total in any::<u128>()) {
            for (share, paid) in shares.iter().zip(payments(&shares, 0, total)) {
                let exact = amount(total).mul_div_down((*share).into(), 1_000_000).unwrap();
                prop_assert!(exact.units().abs_diff(paid) < 1_000_000, "{share}: {paid}");
            }
        }
    }
}
