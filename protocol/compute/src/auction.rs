//! Sealed bids and the award: a second-score auction.
//!
//! A bid states a price for a useful device-second. An order has `segments · steps · T(1)` of them on the
//! bidder's own devices, so that devices past the knee of the bidder's card earn less each. The score of a bid is
//! its price for the order multiplied by the predicted time; the lowest score wins, and is paid the price that
//! would have had the second score (Y.-K. Che, *Design Competition Through Multidimensional Auctions*, 1993):
//! no other price than its cost would earn a bidder more.

use std::collections::BTreeMap;

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{Address, Amount, AmountError, Digest};
use ruint::aliases::U256;
use serde::{Deserialize, Serialize};

use crate::card::StepTimes;
use crate::error::LeaseError;
use crate::order::ComputeOrder;

/// Microseconds of a second.
const US: u128 = 1_000_000;

/// A provider's bid.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Bid {
    /// Price of a useful device-second.
    pub per_second: Amount,
    /// Devices that the provider would use.
    pub devices: u32,
    /// The job's step times on them, predicted from the provider's card.
    pub times: StepTimes,
}

/// The commitment to a bid. It binds order, bidder and salt.
#[must_use]
pub fn bid_commitment(order: Digest, bidder: Address, bid: &Bid, salt: Digest) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 compute bid");
    hasher.update(&order.0);
    hasher.update(&bidder.0);
    hasher.update(&salt.0);
    hasher.update(&bid.per_second.units().to_le_bytes());
    hasher.update(&bid.devices.to_le_bytes());
    hasher.update(&bid.times.on(bid.devices).unwrap_or_default().to_le_bytes());
    hasher.update(&bid.times.useful_us().to_le_bytes());
    Digest(*hasher.finalize().as_bytes())
}

/// The result of an auction.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Award {
    /// The winner.
    pub provider: Address,
    /// Its devices.
    pub devices: u32,
    /// Its predicted microseconds of a step.
    pub step_us: u64,
    /// The price of its own bid.
    pub own_price: Amount,
    /// Price and microseconds of a step of the second score.
    pub second: (Amount, u64),
}

impl Bid {
    /// Checks the numbers.
    ///
    /// # Errors
    /// [`LeaseError::Invalid`].
    pub fn check(&self) -> Result<(), LeaseError> {
        self.times.check()?;
        let invalid =
            |what, got, rule| Err::<(), LeaseError>(LeaseError::Invalid { what, got, rule });
        if self.times.on(self.devices).is_none() {
            let rule = "the card must have the step time on that number of devices";
            return invalid("devices", self.devices.into(), rule);
        }
        if self.per_second.is_zero() {
            return invalid("per_second", 0, "must be more than zero");
        }
        Ok(())
    }

    /// The price of the order, rounded up.
    ///
    /// # Errors
    /// [`AmountError::Overflow`].
    pub fn price(&self, order: &ComputeOrder) -> Result<Amount, AmountError> {
        let steps = u128::from(order.segments).saturating_mul(order.steps.into());
        let useful = steps.saturating_mul(self.times.useful_us().into());
        // 128 and 71 bits: no overflow.
        let product = U256::from(self.per_second.units()).saturating_mul(U256::from(useful));
        let price = u128::try_from(product.div_ceil(U256::from(US)));
        price.map(Amount::from_units).map_err(|_| AmountError::Overflow)
    }

    /// Whether an order's price and longest step allow the bid.
    #[must_use]
    pub fn can_win(&self, order: &ComputeOrder) -> bool {
        let is_cheap = self.price(order).is_ok_and(|price| price <= order.price_max);
        is_cheap && self.step_us() <= order.step_us_max
    }

    /// The predicted microseconds of a step; the longest possible one without a prediction.
    fn step_us(&self) -> u64 {
        self.times.on(self.devices).unwrap_or(u64::MAX)
    }
}

/// A valid bid with its price for the order.
#[derive(Clone, Copy)]
struct Scored {
    /// Price times predicted time of a step: the same order as by the time of all steps.
    score: U256,
    price: Amount,
    step_us: u64,
    devices: u32,
    bidder: Address,
}

/// The award of an order: to the lowest score, at the price of the second one, but at most the order's largest
/// price. Bids above that price, or slower than the order's longest step, do not count; both together are the
/// second score of a single bid. Of equal scores the smaller address wins. `None` without a valid bid.
#[must_use]
pub fn award(order: &ComputeOrder, bids: &BTreeMap<Address, Bid>) -> Option<Award> {
    let scored = |(bidder, bid): (&Address, &Bid)| {
        let price = bid.price(order).ok().filter(|price| *price <= order.price_max)?;
        let step_us = Some(bid.step_us()).filter(|us| *us <= order.step_us_max)?;
        // 128 and 64 bits: no overflow.
        let score = U256::from(price.units()).saturating_mul(U256::from(step_us));
        Some(Scored { score, price, step_us, devices: bid.devices, bidder: *bidder })
    };
    let mut valid: Vec<Scored> = bids.iter().filter_map(scored).collect();
    valid.sort_by_key(|bid| (bid.score, bid.bidder));
    let winner = valid.first()?;
    let second =
        valid.get(1).map_or((order.price_max, order.step_us_max), |bid| (bid.price, bid.step_us));
    let Scored { price: own_price, step_us, devices, bidder: provider, .. } = *winner;
    let award = Award { provider, devices, step_us, own_price, second };
    Some(award)
}

impl Award {
    /// The price of the order if its steps take a time: that of the second score, at most the order's largest
    /// price. A longer time than the bid's earns less, so that a card that is too good gains nothing.
    #[must_use]
    pub fn price(&self, order: &ComputeOrder, step_us: u64) -> Amount {
        let (price, second_us) = self.second;
        let step_us = step_us.max(self.step_us).max(1);
        let second = price.mul_div_down(second_us.into(), step_us.into());
        second.unwrap_or(order.price_max).min(order.price_max)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lease::tests::order;

    fn address(number: usize) -> Address {
        Address([number as u8; 20])
    }

    fn bid(per_second: u128, devices: u32, us: Vec<u64>) -> Bid {
        let times = StepTimes::new(us).unwrap();
        Bid { per_second: Amount::from_units(per_second), devices, times }
    }

    /// Bids in order of their senders.
    fn book(bids: &[Bid]) -> BTreeMap<Address, Bid> {
        bids.iter().enumerate().map(|(at, bid)| (address(at), bid.clone())).collect()
    }

    #[test]
    fn a_price_is_rounded_up_and_counts_useful_seconds() {
        let order = ComputeOrder { segments: 3, steps: 1, ..order() };
        // 3 steps of 10 µs on one device, on any number of devices.
        for (per_second, price) in [(1, 1), (33_334, 2), (100_000, 3), (100_001, 4)] {
            for devices in 1..=2 {
                let bid = bid(per_second, devices, vec![10, 9]);
                assert_eq!(bid.price(&order), Ok(Amount::from_units(price)), "{per_second}");
            }
        }
        assert_eq!(bid(u128::MAX, 1, vec![400_000]).price(&order), Err(AmountError::Overflow));
        let largest = bid(u128::MAX, 1, vec![10]).price(&order).unwrap();
        assert_eq!(largest.units(), (u128::MAX / 100_000) * 3 + 1);
    }

    #[test]
    fn bids_are_checked() {
        let times = || vec![10, 6];
        assert_eq!(bid(1, 2, times()).check(), Ok(()));
        for wrong in [bid(0, 2, times()), bid(1, 0, times()), bid(1, 3, times())] {
            assert_eq!(wrong.check().map_err(|error| error.code()), Err("COMPUTE_INVALID"));
        }
    }

    #[test]
    fn the_lowest_product_of_price_and_time_wins_at_the_second_one() {
        let order = order();
        // 200 steps. Prices 10,000, 12,000 and 8,000; step times 6, 5 and 10.
        let bids = [
            bid(5_000_000, 2, vec![10, 6]),
            bid(6_000_000, 2, vec![10, 5]),
            bid(4_000_000, 1, vec![10]),
        ];
        let found = award(&order, &book(&bids)).unwrap();
        // Scores of 60,000 (twice) and 80,000: of equal ones the smaller address wins, at its own price.
        assert_eq!(
            (found.provider, found.price(&order, 0)),
            (address(0), Amount::from_units(10_000))
        );
        assert_eq!((found.devices, found.step_us), (2, 6));
        let found = award(&order, &book(&[bids[0].clone(), bids[2].clone()])).unwrap();
        assert_eq!(found.price(&order, 0), Amount::from_units(80_000 / 6));
        let found = award(&order, &book(&bids[2..])).unwrap();
        assert_eq!(
            found.price(&order, 0),
            order.price_max,
            "a single bid has the largest price as its second"
        );
        assert_eq!(award(&order, &BTreeMap::new()), None);
        // A price above the largest does not count: 200 steps of 10 µs at 10.0005 units a µs.
        let dear = bid(10_000_500, 2, vec![10, 1]);
        assert_eq!(award(&order, &book(std::slice::from_ref(&dear))), None);
        let found = award(&order, &book(&[bids[2].clone(), dear])).unwrap();
        assert_eq!((found.provider, found.price(&order, 0)), (address(0), order.price_max));
        let exact = bid(10_000_000, 2, vec![10, 1]);
        let found = award(&order, &book(&[exact])).unwrap();
        assert_eq!((found.price(&order, 0), found.own_price), (order.price_max, order.price_max));
        // A step that takes longer than predicted earns less: the score of 80,000 at 10 µs instead of 6.
        let found = award(&order, &book(&[bids[0].clone(), bids[2].clone()])).unwrap();
        assert_eq!(found.price(&order, 6), Amount::from_units(80_000 / 6));
        assert_eq!(found.price(&order, 10), Amount::from_units(8_000));
        // A bid that is slower than the order allows does not count.
        let slow = bid(1_000_000, 1, vec![order.step_us_max + 1]);
        assert_eq!(award(&order, &book(&[slow])), None);
        let slow = bid(1_000_000, 1, vec![order.step_us_max]);
        assert!(award(&order, &book(&[slow])).is_some());
    }

    #[test]
    fn a_commitment_binds_every_number_that_counts() {
        let own = || bid(5, 2, vec![10, 6, 5]);
        let of = |bid: &Bid| bid_commitment(Digest([1; 32]), address(1), bid, Digest([2; 32]));
        let all = [
            of(&own()),
            of(&Bid { per_second: Amount::from_units(6), ..own() }),
            of(&Bid { devices: 1, ..own() }),
            of(&bid(5, 2, vec![11, 6, 5])),
            of(&bid(5, 2, vec![10, 7, 5])),
            bid_commitment(Digest([3; 32]), address(1), &own(), Digest([2; 32])),
            bid_commitment(Digest([1; 32]), address(2), &own(), Digest([2; 32])),
            bid_commitment(Digest([1; 32]), address(1), &own(), Digest([3; 32])),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{at}");
        }
    }

    proptest! {
        /// No other price than its own cost earns a bidder more, with its devices as they are.
        #[test]
        fn a_bid_of_the_cost_is_the_best_one(
            costs in prop::collection::vec((1_u128..12_000_000, 1_u64..40), 1..6),
            bidder in 0_usize..6,
            other in 1_u128..12_000_000,
        ) {
            let order = order();
            let bidder = bidder % costs.len();
            let of = |(cost, step): &(u128, u64)| bid(*cost, 2, vec![10, *step]);
            let honest: Vec<Bid> = costs.iter().map(of).collect();
            let cost = honest[bidder].price(&order).unwrap().units() as i128;
            let profit = |bids: &[Bid]| match award(&order, &book(bids)) {
                Some(found) if found.provider == address(bidder) => {
                    found.price(&order, 0).units() as i128 - cost
                }
                _ => 0,
            };
            let mut deviating = honest.clone();
            deviating[bidder].per_second = Amount::from_units(other);
            // A base unit, for the rounding of the price.
            prop_assert!(profit(&deviating) <= profit(&honest) + 1);
            prop_assert!(profit(&honest) >= 0);
        }

        /// A card that is too good gains nothing: the steps take the time that they take.
        #[test]
        fn a_card_that_is_too_good_gains_nothing(
            costs in prop::collection::vec((1_u128..12_000_000, 2_u64..40), 1..6),
            claimed in 1_u64..40,
        ) {
            let order = order();
            let of = |(cost, step): &(u128, u64)| bid(*cost, 2, vec![10, *step]);
            let honest: Vec<Bid> = costs.iter().map(of).collect();
            let (cost, time) = (honest[0].price(&order).unwrap().units() as i128, costs[0].1);
            let profit = |bids: &[Bid]| match award(&order, &book(bids)) {
                Some(found) if found.provider == address(0) => {
                    found.price(&order, time).units() as i128 - cost
                }
                _ => 0,
            };
            let mut lying = honest.clone();
            lying[0] = bid(costs[0].0, 2, vec![10, claimed]);
            prop_assert!(profit(&lying) <= profit(&honest).max(0) + 1);
        }

        /// A second name of the winner does not raise its price, and a bid of another account that loses does
        /// not change who wins.
        #[test]
        fn more_names_gain_nothing(
            costs in prop::collection::vec((1_u128..12_000_000, 1_u64..40), 2..6),
            name in (1_u128..12_000_000, 1_u64..40),
        ) {
            let order = order();
            let of = |(cost, step): &(u128, u64)| bid(*cost, 2, vec![10, *step]);
            let bids: Vec<Bid> = costs.iter().map(of).collect();
            let Some(alone) = award(&order, &book(&bids)) else { return Ok(()) };
            let more: Vec<Bid> = bids.iter().cloned().chain([of(&name)]).collect();
            let both = award(&order, &book(&more)).unwrap();
            if both.provider == alone.provider {
                prop_assert!(both.price(&order, 0) <= alone.price(&order, 0));
            } else {
                prop_assert_eq!(both.provider, address(bids.len()));
            }
        }
    }
}
