//! Listings of devices: the provider is the buyer of its own task, pays for probes, and loses its stake by leases
//! that contradict its card.

use florin_compute::{
    Listing, ListingAction, ListingEvent, ListingOpening, ListingRecord, ListingTerms,
    SignedMessage, draw_commitment,
};
use florin_protocol::{DATA_PER_ROUND_MIN, Digest, Report, RoundNumber, Timestamp};

use crate::api::{Claim, Settlement, Terms};
use crate::conformance::scenario::{
    CHALLENGE_MS, Scenario, TASK, expect_equal, failed, fln, total,
};
use crate::listing::listing_claims;

/// The stake and the fee of a probe, in florins.
const STAKE: u64 = 50;
const FEE: u64 = 2;
const SECRET: Digest = Digest([8; 32]);

/// A listing beside the task that holds its deposits.
struct ListedTask<'a> {
    stage: &'a Scenario,
    listing: Listing,
    now: Timestamp,
}

impl<'a> ListedTask<'a> {
    /// Opens a listing, deposits fees and stake, and passes a probe.
    fn open(stage: &'a Scenario) -> Result<Self, String> {
        let (provider, coordinator) = (stage.provider()?, stage.coordinator()?);
        let terms = ListingTerms {
            market: stage.ledger().market(),
            provider: provider.address(),
            referee: stage.arbiter()?.address(),
            stake: fln(STAKE),
            fee: fln(FEE),
            challenge_ms: CHALLENGE_MS,
            ..ListingTerms::example().map_err(failed)?
        };
        let (market, now) = (stage.ledger().market(), stage.now()?);
        let own = Terms::from_listing(&terms, market, coordinator.address(), now);
        let own = own.map_err(failed)?;
        stage.ok(stage.ledger().open_task(provider, &Terms { task: TASK, ..own }))?;
        stage.ok(stage.ledger().bond(provider, TASK, fln(STAKE)))?;
        let opened = Terms { task: own.task, ..stage.task(TASK)?.terms };
        opened.check_listing(&terms, market, now).map_err(failed)?;
        stage.ok(stage.ledger().bond(coordinator, TASK, terms.pool().map_err(failed)?))?;
        let opening = ListingOpening { terms, coordinator: coordinator.address(), opened: now };
        let listing = Listing::open(&opening).map_err(failed)?;
        let mut listed = Self { stage, listing, now };
        let draw = draw_commitment(listed.listing.id(), SECRET);
        listed.apply(ListingEvent::Probed { seed: Digest([7; 32]), draw })?;
        listed.signed(SignedMessage::Computed { seed: Digest([7; 32]), root: Digest([9; 32]) })?;
        listed.apply(ListingEvent::Drawn(SECRET))?;
        listed.apply(ListingEvent::Shown(Digest([9; 32])))?;
        Ok(listed)
    }

    fn apply(&mut self, event: ListingEvent) -> Result<(), String> {
        self.listing.apply(&ListingRecord { at: self.now, event }).map_err(failed)
    }

    fn signed(&mut self, message: SignedMessage) -> Result<(), String> {
        let provider = self.stage.provider()?;
        let body = ListingAction { listing: self.listing.id(), by: provider.address(), message };
        let signed = body.sign(self.listing.terms().market, provider).map_err(failed)?;
        self.apply(ListingEvent::Signed(signed))
    }

    /// Settles and closes, and withdraws all bonds. The provider has lost an amount, and the coordinator has gained
    /// its fee.
    fn settle(&self, lost: u64, taken: u64) -> Result<(), String> {
        let (stage, ledger) = (self.stage, self.stage.ledger());
        let (provider, coordinator) = (stage.provider()?, stage.coordinator()?);
        let settlement = Settlement::from_listing(&self.listing).map_err(failed)?;
        let settlement = settlement.ok_or("the listing is not over")?;
        let payout = Report::settlement_id(TASK, RoundNumber::FIRST);
        stage.ok(ledger.post(coordinator, &Settlement { task: TASK, payout, ..settlement }))?;
        stage.advance_past(CHALLENGE_MS);
        stage.ok(ledger.finalize(stage.stranger()?, TASK))?;
        for claim in listing_claims(&self.listing).map_err(failed)? {
            stage.ok(ledger.claim(stage.stranger()?, &Claim { task: TASK, ..claim }))?;
        }
        let refund = stage.ok(ledger.close(coordinator, TASK))?;
        let unused = self.listing.terms().pool().and_then(|pool| pool.minus(fln(FEE)));
        let unused = unused.map_err(failed)?;
        expect_equal("refund", refund, total([unused, DATA_PER_ROUND_MIN])?)?;
        stage.advance_past(CHALLENGE_MS.saturating_mul(2));
        for owner in [provider, coordinator] {
            if !stage.bond_amount(TASK, owner.address())?.is_zero() {
                stage.ok(ledger.withdraw_bond(owner, TASK))?;
            }
        }
        stage.expect_lost(provider.address(), fln(lost))?;
        stage.expect_gained(coordinator.address(), fln(FEE))?;
        expect_equal("treasury", stage.expect_read(ledger.treasury())?, fln(taken))
    }
}

/// A provider that leaves pays for its probes alone.
pub(super) fn withdrawn(stage: &Scenario) -> Result<(), String> {
    let mut listed = ListedTask::open(stage)?;
    listed.signed(SignedMessage::Withdraw)?;
    listed.settle(FEE, 0)
}

/// Three leases that take twice the predicted time take the stake.
pub(super) fn contradicted(stage: &Scenario) -> Result<(), String> {
    let mut listed = ListedTask::open(stage)?;
    for number in 0..3 {
        let order = Digest([number; 32]);
        listed.apply(ListingEvent::Measured { order, predicted_us: 100, measured_us: 200 })?;
    }
    listed.settle(FEE.saturating_add(STAKE), STAKE)
}
