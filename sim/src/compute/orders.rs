//! The terms of a simulated order, its bidders and its auditors.

use std::collections::BTreeSet;

use florin_compute::{
    AuditTerms, Bid, ComputeOrder, DataClass, Deposits, PARTS, StepTimes, Windows,
};
use florin_participant::leases::CARD_MARGIN_PERCENT;
use florin_protocol::{Address, Digest, blob_digest};

use super::lease_play::{
    Absence, AuditorConduct, BidOpening, PlannedAuditor, PlannedBid, ProviderPlan,
};
use super::market::{ComputeMarket, Placement};
use super::members::{BiddingAccount, shill_account};
use super::scenario::{ProviderGroup, RenterGroup};
use super::strategy::{ProviderStrategy, RenterStrategy};
use super::{ComputeError, HOUR_MS, units};
use crate::random::{normal, shuffle, stream, uniform};

/// The price of a useful hour of an order that a renter places with itself, of the largest price of others: no
/// stranger can meet it.
const WASH_PRICE: f64 = 0.01;
/// Milliseconds that a segment has for transfers, and those for the draw and for an answer.
const TRANSFER_MS: u64 = 1_000;
const DRAW_MS: u64 = 60_000;
/// The bond of an auditor, in bounties.
const AUDIT_BOND: f64 = 1.5;
/// Further accounts of a bidder bid this part more each.
const SYBIL_STEP: f64 = 0.1;

impl<'a> ComputeMarket<'a> {
    /// The order of the segments that are left.
    pub(super) fn order(
        &self,
        placed: &Placement,
        group: &RenterGroup,
    ) -> Result<ComputeOrder, ComputeError> {
        let terms = &self.scenario.order;
        let segments = terms.segments.saturating_sub(placed.done).max(1);
        let hours = terms.step_ms * f64::from(placed.steps) / HOUR_MS as f64;
        let scale = match group.strategy {
            RenterStrategy::Washes { .. } => WASH_PRICE,
            _ => 1.0,
        };
        let price_of_segment = terms.price_max * scale * hours;
        let price = price_of_segment * f64::from(segments);
        // The bounty, a fee divided by the share of audits, is at most the price: a short rest of a job pays less.
        let fee = (price_of_segment * terms.audit_fee).min(price * terms.audited * (1.0 - 1e-5));
        let bid_bond = price * terms.bid_bond * (1.0 + 1e-9);
        let is_private = group.data_class == DataClass::Private;
        let ms = |seconds: f64| ((seconds * 1e3).round() as u64).max(1);
        let step_us_max = (terms.step_ms * 1e3 * terms.slowest).round() as u64;
        let audited = (f64::from(segments) * terms.audited).ceil().max(1.0);
        let audit_ms = audited * f64::from(placed.steps) * terms.step_ms * 2.0;
        let renter = self.members.renters.get(placed.renter).map(|own| own.address);
        let mut order = ComputeOrder {
            renter: renter.unwrap_or_default(),
            referee: Address([2; 20]),
            start: blob_digest(&placed.job.to_le_bytes()),
            first_segment: placed.done,
            nonce: placed.nonce(),
            segments,
            steps: placed.steps,
            price_max: units(price),
            step_us_max,
            listed: self.listings.is_some(),
            data_class: group.data_class,
            deposits: Deposits {
                bid_bond: units(bid_bond),
                stake: units(price * terms.stake),
                audit_bond: units((fee / terms.audited * AUDIT_BOND).max(bid_bond)),
                default_fine: units(bid_bond),
            },
            audit: AuditTerms {
                share: (terms.audited * f64::from(PARTS)).round() as u32,
                auditors: if is_private { 1 } else { terms.auditors },
                colluding: match is_private {
                    true => 0,
                    false => (terms.colluding * f64::from(PARTS)).round() as u32,
                },
                fee: units(fee),
            },
            windows: Windows {
                bid: ms(terms.bid_seconds),
                reveal: ms(terms.bid_seconds),
                fund: ms(terms.bid_seconds),
                slack: (terms.slack * f64::from(PARTS)).round() as u32,
                segment: TRANSFER_MS,
                draw: DRAW_MS,
                audit: (audit_ms.round() as u64).max(DRAW_MS),
                answer: DRAW_MS,
            },
            ..ComputeOrder::example()
        };
        order.deposits.stake = order.deposits.stake.max(order.stake_min()?);
        Ok(order)
    }

    /// Whether the bid of an account, by its number, would count and its machine has a free device.
    pub(super) fn accepts(&self, number: usize, account: &BiddingAccount, ms: u64) -> bool {
        let machine = self.members.machines.get(account.machine);
        machine.is_some_and(|machine| machine.is_free(ms))
            && self.listings.as_ref().is_none_or(|listings| listings.covers(number))
    }

    /// The bids of all accounts that accept the order.
    pub(super) fn bids(
        &self,
        placed: &Placement,
        renter: &RenterGroup,
        order: &ComputeOrder,
    ) -> Result<Vec<PlannedBid>, ComputeError> {
        let mut bids = Vec::new();
        for (at, account) in self.members.accounts.iter().enumerate() {
            if self.accepts(at, account, placed.at_ms) {
                bids.push(self.bid(placed, renter, order, account)?);
            }
        }
        if let RenterStrategy::Shills { levels } = &renter.strategy {
            let times = StepTimes::new(vec![self.scenario.order.step_us()])?;
            for (at, level) in levels.iter().enumerate() {
                let per_second = units(self.scenario.order.price_max * level / 3_600.0);
                bids.push(PlannedBid {
                    bidder: shill_account(placed.renter, at),
                    bid: Bid { per_second, devices: 1, times: times.clone() },
                    opening: BidOpening::IfCheaper,
                    plan: ProviderPlan { funds: false, ..ProviderPlan::honest(1) },
                });
            }
        }
        Ok(bids)
    }

    fn bid(
        &self,
        placed: &Placement,
        renter: &RenterGroup,
        order: &ComputeOrder,
        account: &BiddingAccount,
    ) -> Result<PlannedBid, ComputeError> {
        let missing = || ComputeError::Wallet("an account without a machine".to_owned());
        let machine = self.members.machines.get(account.machine).ok_or_else(missing)?;
        let (name, group) = self.provider_group(account).ok_or_else(missing)?;
        let strategy = &group.strategy;
        let washes =
            matches!(&renter.strategy, RenterStrategy::Washes { providers } if providers == name);
        // Leases with itself are to show predictions that it keeps.
        let margin = CARD_MARGIN_PERCENT as f64 / 100.0;
        let claimed = match strategy {
            ProviderStrategy::Inflates { factor, .. } if !washes => factor.recip(),
            _ => margin,
        };
        let claimed_us = machine.step_us * claimed;
        let times = StepTimes::new(vec![(claimed_us.round() as u64).max(1)])?;
        let factor = match strategy {
            _ if washes => 0.0,
            ProviderStrategy::Bids { factor } => *factor,
            ProviderStrategy::NeverOpens => 0.5,
            ProviderStrategy::Sybil { .. } => 1.0 + SYBIL_STEP * f64::from(account.number),
            _ => 1.0,
        };
        let opening = match strategy {
            ProviderStrategy::NeverOpens => BidOpening::Never,
            _ => BidOpening::Always,
        };
        Ok(PlannedBid {
            bidder: account.address,
            bid: Bid {
                per_second: units(machine.cost_per_hour * factor / 3_600.0),
                devices: 1,
                times,
            },
            opening,
            plan: self.plan(placed, order, account, group, machine.step_us),
        })
    }

    /// The plan of a provider for a lease.
    fn plan(
        &self,
        placed: &Placement,
        order: &ComputeOrder,
        account: &BiddingAccount,
        group: &ProviderGroup,
        step_us: f64,
    ) -> ProviderPlan {
        let (name, number) = self.members.place(account);
        let mut rng = stream(self.seed, &format!("compute lease {name}"), [order.nonce, number]);
        let noise = (group.variation * normal(&mut rng)).exp();
        let fails_hours = -(1.0 - uniform(&mut rng)).ln() / group.failures_per_hour;
        let machine = self.members.machines.get(account.machine);
        let sharing = machine.map_or(1.0, |machine| machine.sharing(placed.at_ms));
        let device_us = step_us * noise;
        let step_us = device_us * sharing;
        let segment_hours = step_us / 1e3 * f64::from(order.steps) / HOUR_MS as f64;
        let fails = (fails_hours / segment_hours).floor();
        let mut plan = ProviderPlan::honest((step_us.round() as u64).max(1));
        plan.device_us = (device_us.round() as u64).max(1);
        plan.stops_after = (fails < f64::from(order.segments)).then_some(fails.max(0.0) as u32);
        let mut fakes = |share: f64| -> BTreeSet<u32> {
            let count = (share * f64::from(order.segments)).round().max(1.0) as usize;
            let mut all: Vec<u32> = (0..order.segments).collect();
            shuffle(&mut rng, &mut all);
            all.into_iter().take(count).collect()
        };
        match &group.strategy {
            ProviderStrategy::Fakes { share } => plan.fakes = fakes(*share),
            ProviderStrategy::Grinds { share, salts, knows_beacon } => {
                plan.fakes = fakes(*share);
                let beacon = match knows_beacon {
                    true => self.beacon(order),
                    false => Digest([0; 32]),
                };
                plan.grinding = Some((*salts, beacon));
            }
            ProviderStrategy::Replays => plan.replays = true,
            ProviderStrategy::Leaves { after, returns, checkpoints } => {
                plan.absence = (!returns).then_some(Absence { checkpoints: *checkpoints });
                let stop = (after * f64::from(order.segments)).round() as u32;
                plan.stops_after = Some(plan.stops_after.map_or(stop, |fails| fails.min(stop)));
            }
            ProviderStrategy::NeverFunds => plan.funds = false,
            _ => {}
        }
        plan
    }

    fn provider_group(&self, account: &BiddingAccount) -> Option<(&'a str, &'a ProviderGroup)> {
        let name = self.members.members.get(account.member)?.group.as_str();
        let (name, group) = self.scenario.providers.get_key_value(name)?;
        Some((name, group))
    }

    /// The auditors that stand ready; of private rows the renter alone.
    pub(super) fn auditors(&self, placed: &Placement, renter: &RenterGroup) -> Vec<PlannedAuditor> {
        if renter.data_class != DataClass::Private {
            return self.members.auditors.iter().map(|(planned, _)| *planned).collect();
        }
        let conduct = match renter.strategy {
            RenterStrategy::Disputes => AuditorConduct::MakesUp,
            _ => AuditorConduct::Computes,
        };
        let step_us = self.scenario.order.step_us();
        let own = self.members.renters.get(placed.renter);
        own.map(|own| PlannedAuditor { account: own.address, conduct, step_us })
            .into_iter()
            .collect()
    }
}
