//! A listing of devices on a ledger: the terms that hold its deposits, and the settlement that ends it.
//!
//! A listing is a task of one round, as a lease is. Its buyer is the provider, its infrastructure pool pays the
//! coordinator for the probes, and the provider's bond in the task is the stake.

use florin_compute::{LeaseError, Listing, ListingTerms};
use florin_protocol::limits::PHASE_MS_MAX;
use florin_protocol::{
    Address, Amount, Canonical, DATA_PER_ROUND_MIN, Digest, MarketId, Micro, TaskId, Timestamp,
};

use crate::api::{Claim, Settlement, Terms};
use crate::lease::{LEASE_CHALLENGE_MS_MIN, LEASE_SETTLE_MS, claims_of, one_round_unbond_ms};

/// The task of a listing on the ledger.
#[must_use]
pub const fn listing_task(listing: Digest) -> TaskId {
    TaskId(listing.0)
}

impl Terms {
    /// The terms of a listing that is opened on a market at a moment. Its referee may cancel the settlement within
    /// the challenge window.
    ///
    /// # Errors
    /// [`LeaseError`] for a listing that is invalid or of another market, whose coordinator is its provider or its
    /// referee, or with a challenge window that no ledger has.
    pub fn from_listing(
        listing: &ListingTerms,
        market: MarketId,
        coordinator: Address,
        now: Timestamp,
    ) -> Result<Self, LeaseError> {
        listing.check()?;
        if listing.market != market {
            return Err(LeaseError::Mismatch("the market of the listing"));
        }
        if coordinator == listing.provider || coordinator == listing.referee {
            let role =
                "independent: the coordinator of a listing is neither its provider nor its referee";
            return Err(LeaseError::Account { account: coordinator, role });
        }
        let challenge_ms = listing.challenge_ms;
        // The stake answers for leases that end within half a day after the listing, until their debit is proven.
        let unbond_ms = one_round_unbond_ms(listing.life_ms, challenge_ms);
        if challenge_ms < LEASE_CHALLENGE_MS_MIN || unbond_ms > PHASE_MS_MAX {
            return Err(LeaseError::Invalid {
                what: "the challenge window in milliseconds",
                got: challenge_ms.into(),
                rule: "at least a second, and with the life of the listing at most 28 days",
            });
        }
        Ok(Self {
            task: listing_task(listing.id()),
            buyer: listing.provider,
            coordinator,
            arbiter: listing.referee,
            // The smallest pool, which no settlement of a listing pays from.
            data: DATA_PER_ROUND_MIN,
            infrastructure: listing.pool()?,
            rounds: 1,
            per_nat_max: Amount::ZERO,
            floor_share: Micro::ZERO,
            bond_min: Amount::ZERO,
            debit_max: listing.stake,
            stake_min: Amount::ZERO,
            challenge_ms,
            unbond_ms,
            expires: now.saturating_add_ms(listing.life_ms.saturating_add(LEASE_SETTLE_MS)),
        })
    }

    /// Checks that a task on the ledger has the terms of a listing, and outlasts it by half a day.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub fn check_listing(
        &self,
        listing: &ListingTerms,
        market: MarketId,
        now: Timestamp,
    ) -> Result<(), LeaseError> {
        let own = Self::from_listing(listing, market, self.coordinator, now)?;
        self.check_one_round(&own, "the task of the listing on the ledger")
    }
}

impl Settlement {
    /// The settlement of a listing that is over; `None` before, and if no account is paid or debited.
    ///
    /// # Errors
    /// [`LeaseError::Amount`] if the pay overflows.
    pub fn from_listing(listing: &Listing) -> Result<Option<Self>, LeaseError> {
        let totals = listing.totals()?;
        if listing.outcome().is_none() || totals.is_empty() {
            return Ok(None);
        }
        Self::of_totals(listing_task(listing.id()), listing.digest(), totals).map(Some)
    }
}

/// The claims of a settled listing, one for each account. Any account may send them.
///
/// # Errors
/// [`LeaseError::Amount`] if the pay overflows.
pub fn listing_claims(listing: &Listing) -> Result<Vec<Claim>, LeaseError> {
    Ok(claims_of(listing_task(listing.id()), &listing.totals()?))
}

#[cfg(test)]
mod tests {
    use florin_compute::{
        LISTING_MS_MAX, ListingEvent, ListingOpening, ListingPhase, ListingRecord, draw_commitment,
    };
    use florin_protocol::ChainId;

    use super::*;
    use crate::lease::LEASE_PROOF_MS;

    const HOST: Address = Address([9; 20]);

    fn listing() -> ListingTerms {
        ListingTerms::example().unwrap()
    }

    fn terms(listing: &ListingTerms, host: Address) -> Result<Terms, &'static str> {
        let market = ListingTerms::example().unwrap().market;
        Terms::from_listing(listing, market, host, Timestamp(7)).map_err(|error| error.code())
    }

    #[test]
    fn the_terms_are_those_of_the_listing() {
        let (listing, units) = (listing(), Amount::from_units);
        let found = terms(&listing, HOST).unwrap();
        assert_eq!((found.buyer, found.arbiter), (listing.provider, listing.referee));
        assert_eq!((found.infrastructure, found.debit_max), (units(30), units(5_000)));
        assert_eq!((found.rounds, found.bond_min, found.stake_min), (1, units(0), units(0)));
        assert_eq!(found.unbond_ms, 3_600_000 + LEASE_SETTLE_MS + 2_000 + LEASE_PROOF_MS);
        assert_eq!(found.expires, Timestamp(7 + 3_600_000 + LEASE_SETTLE_MS));
        assert_eq!(found.task.0, listing.id().0);
    }

    #[test]
    fn terms_without_independent_roles_or_a_window_are_refused() {
        let own = listing();
        for host in [own.provider, own.referee] {
            assert_eq!(terms(&own, host), Err("COMPUTE_ACCOUNT"));
        }
        let challenge = |challenge_ms, life_ms| {
            let changed = ListingTerms { challenge_ms, life_ms, ..listing() };
            terms(&changed, HOST).map(|terms| terms.unbond_ms)
        };
        assert_eq!(challenge(999, 3_600_000), Err("COMPUTE_INVALID"));
        assert!(challenge(1_000, LISTING_MS_MAX).is_ok());
        let longest = (PHASE_MS_MAX - LISTING_MS_MAX - LEASE_SETTLE_MS - LEASE_PROOF_MS) / 2;
        assert_eq!(challenge(longest, LISTING_MS_MAX), Ok(PHASE_MS_MAX));
        assert_eq!(challenge(longest + 1, LISTING_MS_MAX), Err("COMPUTE_INVALID"));
        assert_eq!(challenge(1_000, 1), Err("COMPUTE_INVALID"));
        let market = MarketId { chain: ChainId(2), ..own.market };
        assert_eq!(terms(&ListingTerms { market, ..own }, HOST), Err("COMPUTE_MISMATCH"));
    }

    #[test]
    fn a_task_with_other_terms_holds_no_stake() {
        let (listing, own) = (listing(), terms(&listing(), HOST).unwrap());
        let check = |terms: &Terms, now| {
            let checked = terms.check_listing(&listing, listing.market, Timestamp(now));
            checked.map_err(|error| error.code())
        };
        assert_eq!(check(&own, 7 + LEASE_SETTLE_MS / 2), Ok(()));
        assert_eq!(check(&own, 8 + LEASE_SETTLE_MS / 2), Err("COMPUTE_MISMATCH"));
        let changes: [fn(&mut Terms); 5] = [
            |terms| terms.debit_max = Amount::ZERO,
            |terms| terms.infrastructure = Amount::ZERO,
            |terms| terms.unbond_ms -= 1,
            |terms| terms.buyer = HOST,
            |terms| terms.arbiter = Address([8; 20]),
        ];
        for change in changes {
            let mut other = own.clone();
            change(&mut other);
            assert_eq!(check(&other, 7), Err("COMPUTE_MISMATCH"));
        }
    }

    #[test]
    fn a_listing_that_is_not_over_has_no_settlement() {
        let opening = ListingOpening { terms: listing(), coordinator: HOST, opened: Timestamp(1) };
        let opened = Listing::open(&opening).unwrap();
        assert_eq!(opened.phase().0, ListingPhase::Opened);
        assert_eq!(Settlement::from_listing(&opened), Ok(None));
        assert_eq!(listing_claims(&opened), Ok(Vec::new()));
        let over = |events: &[(u64, ListingEvent)]| {
            let mut listing = Listing::open(&opening).unwrap();
            for (at, event) in events {
                let record = ListingRecord { at: Timestamp(*at), event: *event };
                listing.apply(&record).unwrap();
            }
            listing
        };
        // A probe that is late costs its fee; without a probe nothing is owed.
        let end = opened.phase().1.0 + 1;
        let unused = over(&[(end, ListingEvent::Expired)]);
        assert!(unused.outcome().is_some());
        assert_eq!(Settlement::from_listing(&unused), Ok(None));
        let draw = draw_commitment(listing().id(), Digest([7; 32]));
        let probed = ListingEvent::Probed { seed: Digest([6; 32]), draw };
        let computing = over(&[(2, probed)]);
        assert_eq!(Settlement::from_listing(&computing), Ok(None), "it goes on");
        let late = computing.phase().1.0 + 1;
        let unproven = over(&[(2, probed), (late, ListingEvent::Expired)]);
        let settlement = Settlement::from_listing(&unproven).unwrap().expect("a fee");
        assert_eq!(settlement.infrastructure_total, listing().fee);
        let claims = listing_claims(&unproven).unwrap();
        assert_eq!(claims.iter().map(|claim| claim.account).collect::<Vec<_>>(), [HOST]);
    }
}
