//! A lease of compute on a ledger: the terms that hold its deposits, and the settlement that ends it.
//!
//! An order is a task of one round. Its escrow is the infrastructure pool; stake and bonds are bonds in the
//! task. A settlement pays from the escrow and debits the bonds, whose debits go to the treasury; what is
//! left of the escrow returns to the renter with the close. Both kinds of ledgers have all of this without a
//! rule of its own.

use std::collections::BTreeMap;

use florin_compute::{ComputeOrder, Lease, LeaseError};
use florin_protocol::limits::{PHASE_MS_MAX, TASK_MS_MAX};
use florin_protocol::merkle::{ClaimTotals, ClaimTree};
use florin_protocol::{
    Address, Amount, Canonical, DATA_PER_ROUND_MIN, Digest, MarketId, Micro, Report, RoundNumber,
    TaskId, Timestamp,
};

use crate::api::{Claim, Settlement, Terms};

/// Time for the settlement after the longest duration of a lease, in milliseconds: one day.
pub const LEASE_SETTLE_MS: u64 = 86_400_000;

/// Shortest challenge window of a lease, in milliseconds.
pub const LEASE_CHALLENGE_MS_MIN: u64 = 1_000;

/// Longest challenge window of a lease, in milliseconds: a day. The coordinator's bond covers the pay for two of them.
pub const LEASE_CHALLENGE_MS_MAX: u64 = 86_400_000;

/// Time to prove the debits of a final settlement before a bond returns, in milliseconds: ten minutes.
pub(crate) const LEASE_PROOF_MS: u64 = 600_000;

/// The task of an order on the ledger.
#[must_use]
pub fn lease_task(order: &ComputeOrder) -> TaskId {
    TaskId(order.id().0)
}

impl Terms {
    /// The terms of an order that is opened on a market at a moment. Its referee may cancel the settlement within
    /// the challenge window, so the coordinator covers the pay by a bond until then.
    ///
    /// # Errors
    /// [`LeaseError`] for an order that is invalid or of another market, whose coordinator is its renter or its
    /// referee, or whose deposits could be at risk for more than 30 days.
    pub fn from_order(
        order: &ComputeOrder,
        market: MarketId,
        coordinator: Address,
        challenge_ms: u64,
        now: Timestamp,
    ) -> Result<Self, LeaseError> {
        order.check()?;
        if order.market != market {
            return Err(LeaseError::Mismatch("the market of the order"));
        }
        if coordinator == order.renter || coordinator == order.referee {
            let role =
                "independent: the coordinator of a lease is neither its renter nor its referee";
            return Err(LeaseError::Account { account: coordinator, role });
        }
        if challenge_ms < LEASE_CHALLENGE_MS_MIN {
            return Err(LeaseError::Invalid {
                what: "the challenge window in milliseconds",
                got: challenge_ms.into(),
                rule: "at least a second: the referee cancels a wrong settlement within it",
            });
        }
        if challenge_ms > LEASE_CHALLENGE_MS_MAX {
            return Err(LeaseError::Invalid {
                what: "the challenge window in milliseconds",
                got: challenge_ms.into(),
                rule: "at most a day: the coordinator covers the pay by a bond for two windows",
            });
        }
        let duration = order.duration_ms_max();
        let unbond_ms = one_round_unbond_ms(duration, challenge_ms);
        if unbond_ms > PHASE_MS_MAX {
            return Err(LeaseError::Invalid {
                what: "the longest duration with its settlement, in milliseconds",
                got: unbond_ms.into(),
                rule: "at most 30 days: use shorter windows or fewer segments",
            });
        }
        let life = duration.saturating_add(LEASE_SETTLE_MS).min(TASK_MS_MAX);
        Ok(Self {
            task: lease_task(order),
            buyer: order.renter,
            coordinator,
            arbiter: order.referee,
            // The smallest pool, which no settlement of a lease pays from.
            data: DATA_PER_ROUND_MIN,
            infrastructure: order.escrow()?,
            rounds: 1,
            per_nat_max: Amount::ZERO,
            floor_share: Micro::ZERO,
            // The coordinator requires the deposits of each action. An arbiter may slash as much as the smallest
            // bond without a ruling: nothing.
            bond_min: Amount::ZERO,
            debit_max: order.deposits.largest(),
            stake_min: Amount::ZERO,
            challenge_ms,
            unbond_ms,
            expires: now.saturating_add_ms(life),
        })
    }

    /// Checks that a task on the ledger has the terms of an order, and outlasts it by half a day, so that all
    /// deposits are safe in it.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub fn check_order(
        &self,
        order: &ComputeOrder,
        market: MarketId,
        now: Timestamp,
    ) -> Result<(), LeaseError> {
        let own = Self::from_order(order, market, self.coordinator, self.challenge_ms, now)?;
        self.check_one_round(&own, "the task of the order on the ledger")
    }

    /// Checks that a task of one round has terms that were derived just now, and outlasts them by half a day.
    pub(crate) fn check_one_round(&self, own: &Self, what: &'static str) -> Result<(), LeaseError> {
        let differ = Self { expires: self.expires, ..own.clone() } != *self;
        let is_late = self.expires.saturating_add_ms(LEASE_SETTLE_MS / 2) < own.expires;
        match differ || is_late {
            true => Err(LeaseError::Mismatch(what)),
            false => Ok(()),
        }
    }
}

/// How long a bond stays at risk in a task of one round whose deposits are at risk for a duration: until the last
/// debit is proven after the challenge window.
pub(crate) const fn one_round_unbond_ms(duration_ms: u64, challenge_ms: u64) -> u64 {
    duration_ms
        .saturating_add(LEASE_SETTLE_MS)
        .saturating_add(challenge_ms.saturating_mul(2))
        .saturating_add(LEASE_PROOF_MS)
}

impl Settlement {
    /// The settlement of a lease that is over; `None` before, and if no account is paid or debited.
    ///
    /// # Errors
    /// [`LeaseError::Amount`] if the sum of all pay overflows.
    pub fn from_lease(lease: &Lease) -> Result<Option<Self>, LeaseError> {
        let totals = lease.books().totals();
        if lease.outcome().is_none() || totals.is_empty() {
            return Ok(None);
        }
        Self::of_totals(lease_task(lease.order()), lease.digest(), totals).map(Some)
    }

    /// The settlement of a task of one round that pays from the infrastructure pool and debits.
    pub(crate) fn of_totals(
        task: TaskId,
        report: Digest,
        totals: BTreeMap<Address, ClaimTotals>,
    ) -> Result<Self, LeaseError> {
        let paid = Amount::total(totals.values().map(|totals| totals.paid))?;
        Ok(Self {
            task,
            payout: Report::settlement_id(task, RoundNumber::FIRST),
            round: RoundNumber::FIRST,
            report,
            previous_root: Digest::default(),
            root: ClaimTree::new(totals).root(),
            data_total: Amount::ZERO,
            score_pay_total: Amount::ZERO,
            infrastructure_total: paid,
            improvement_total_nano: 0,
        })
    }
}

/// The claims of a settled lease, one for each account. Any account may send them.
#[must_use]
pub fn lease_claims(lease: &Lease) -> Vec<Claim> {
    claims_of(lease_task(lease.order()), &lease.books().totals())
}

/// A claim for each account of a task's totals.
pub(crate) fn claims_of(task: TaskId, totals: &BTreeMap<Address, ClaimTotals>) -> Vec<Claim> {
    let tree = ClaimTree::new(totals.clone());
    let claims = totals.iter().filter_map(|(account, totals)| {
        let proof = tree.proof(*account, *totals)?;
        Some(Claim { task, account: *account, totals: *totals, proof })
    });
    claims.collect()
}

#[cfg(test)]
mod tests {
    use florin_compute::{ComputeAction, Windows};
    use florin_protocol::ChainId;

    use super::*;

    const HOST: Address = Address([9; 20]);
    const CHALLENGE: u64 = LEASE_CHALLENGE_MS_MIN;

    fn terms(order: &ComputeOrder, host: Address, now: Timestamp) -> Result<Terms, LeaseError> {
        Terms::from_order(order, ComputeOrder::example().market, host, CHALLENGE, now)
    }

    fn units(units: u128) -> Amount {
        Amount::from_units(units)
    }

    #[test]
    fn the_terms_are_those_of_the_order() {
        let (order, now) = (ComputeOrder::example(), Timestamp(7));
        let terms = terms(&order, HOST, now).unwrap();
        assert_eq!((terms.buyer, terms.arbiter), (order.renter, order.referee));
        assert_eq!((terms.coordinator, terms.rounds), (HOST, 1));
        assert_eq!(terms.infrastructure, order.escrow().unwrap());
        assert_eq!((terms.bond_min, terms.debit_max), (units(0), units(22_000)));
        let duration = order.duration_ms_max();
        assert_eq!(terms.unbond_ms, duration + LEASE_SETTLE_MS + 2 * CHALLENGE + LEASE_PROOF_MS);
        assert_eq!(terms.expires, Timestamp(7 + duration + LEASE_SETTLE_MS));
        assert_eq!(terms.task.0, order.id().0);
    }

    /// A deposit must not be withdrawn before its lease can be settled.
    #[test]
    fn an_order_that_outlasts_the_ledgers_delays_is_refused() {
        let fixed = ComputeOrder::example().duration_ms_max()
            + LEASE_SETTLE_MS
            + 2 * CHALLENGE
            + LEASE_PROOF_MS;
        let longest = PHASE_MS_MAX - fixed + ComputeOrder::example().windows.bid;
        let with = |bid: u64| {
            let windows = Windows { bid, ..ComputeOrder::example().windows };
            terms(&ComputeOrder { windows, ..ComputeOrder::example() }, HOST, Timestamp(0))
        };
        assert_eq!(with(longest).unwrap().unbond_ms, PHASE_MS_MAX);
        assert_eq!(with(longest + 1).unwrap_err().code(), "COMPUTE_INVALID");
    }

    #[test]
    fn terms_without_independent_roles_or_a_window_are_refused() {
        let order = ComputeOrder::example();
        let code = |order: &ComputeOrder, host, challenge| {
            let market = ComputeOrder::example().market;
            Terms::from_order(order, market, host, challenge, Timestamp(0)).unwrap_err().code()
        };
        let invalid = ComputeOrder { segments: 0, ..order.clone() };
        assert_eq!(code(&invalid, HOST, CHALLENGE), "COMPUTE_INVALID");
        assert_eq!(code(&order, HOST, CHALLENGE - 1), "COMPUTE_INVALID");
        assert_eq!(code(&order, HOST, LEASE_CHALLENGE_MS_MAX + 1), "COMPUTE_INVALID");
        let market = order.market;
        let longest = Terms::from_order(&order, market, HOST, LEASE_CHALLENGE_MS_MAX, Timestamp(0));
        assert_eq!(longest.unwrap().challenge_ms, LEASE_CHALLENGE_MS_MAX);
        for host in [order.renter, order.referee] {
            assert_eq!(code(&order, host, CHALLENGE), "COMPUTE_ACCOUNT");
        }
        let market = MarketId { chain: ChainId(2), ..order.market };
        let elsewhere = ComputeOrder { market, ..order };
        assert_eq!(code(&elsewhere, HOST, CHALLENGE), "COMPUTE_MISMATCH");
    }

    #[test]
    fn a_task_with_other_terms_holds_no_deposits_of_an_order() {
        let order = ComputeOrder::example();
        let own = terms(&order, HOST, Timestamp(0)).unwrap();
        let check = |terms: &Terms, now| terms.check_order(&order, order.market, Timestamp(now));
        assert_eq!(check(&own, 0), Ok(()));
        // Half a day is left for the settlement.
        assert_eq!(check(&own, LEASE_SETTLE_MS / 2), Ok(()));
        assert_eq!(check(&own, LEASE_SETTLE_MS / 2 + 1).unwrap_err().code(), "COMPUTE_MISMATCH");
        let longer = Terms { expires: Timestamp(own.expires.0 + 1), ..own };
        assert_eq!(check(&longer, 0), Ok(()));
        let changes: [fn(&mut Terms); 6] = [
            |terms| terms.debit_max = Amount::ZERO,
            |terms| terms.rounds = 2,
            |terms| terms.infrastructure = units(1),
            |terms| terms.unbond_ms -= 1,
            |terms| terms.buyer = HOST,
            |terms| terms.task = TaskId([1; 32]),
        ];
        for change in changes {
            let mut other = own.clone();
            change(&mut other);
            assert!(check(&other, 0).is_err(), "{other:?}");
        }
    }

    #[test]
    fn a_lease_that_is_not_over_has_no_settlement() {
        let lease = Lease::open(ComputeOrder::example(), Timestamp(0)).unwrap();
        assert_eq!(Settlement::from_lease(&lease), Ok(None));
        assert!(lease_claims(&lease).is_empty());
    }

    /// Without a bid nothing is owed; a sealed bid that stays closed is debited.
    #[test]
    fn a_lease_that_is_over_settles_each_account_with_pay_or_a_debit() {
        let order = ComputeOrder::example();
        let bidder = Address([10; 20]);
        let over = |accounts: &[(Address, ComputeAction)]| {
            let mut lease = Lease::open(order.clone(), Timestamp(0)).unwrap();
            for (by, action) in accounts {
                lease.apply(*by, action, Timestamp(0)).unwrap();
            }
            while lease.outcome().is_none() {
                let late = lease.phase().1.saturating_add_ms(1);
                lease.apply(order.renter, &ComputeAction::Expire, late).unwrap();
            }
            lease
        };
        let empty = over(&[]);
        assert_eq!(Settlement::from_lease(&empty), Ok(None));
        assert!(lease_claims(&empty).is_empty());
        let joins = [11, 12].map(|number| (Address([number; 20]), ComputeAction::JoinAudit));
        let sealed = ComputeAction::SealBid(Digest([9; 32]));
        let lease = over(&[vec![(bidder, sealed)], joins.to_vec()].concat());
        let settlement = Settlement::from_lease(&lease).unwrap().expect("a debit");
        assert_eq!(
            (settlement.infrastructure_total, settlement.task),
            (units(0), lease_task(&order))
        );
        let claims = lease_claims(&lease);
        let [claim] = &claims[..] else { panic!("{claims:?}") };
        let debited = order.deposits.bid_bond;
        assert_eq!(
            (claim.account, claim.totals),
            (bidder, ClaimTotals { paid: units(0), debited })
        );
        assert_eq!(settlement.root, ClaimTree::new(lease.books().totals()).root());
    }
}
