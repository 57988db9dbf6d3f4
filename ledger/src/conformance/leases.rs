//! Leases of compute: deposits are bonds, pay comes from the escrow, and at the end each account
//! has what the books of the lease state.

use florin_compute::{
    AuditTerms, Bid, ComputeAction, ComputeOrder, Deposits, Lease, LeaseOutcome, Secret, StepTimes,
    bid_commitment, end_commitment, segment_leaf,
};
use florin_protocol::{
    Amount, DATA_PER_ROUND_MIN, Digest, Report, RoundNumber, Timestamp, WalletSigner,
};

use crate::api::{Claim, Settlement, Terms};
use crate::conformance::INITIAL_BALANCE;
use crate::conformance::scenario::{
    CHALLENGE_MS, Scenario, TASK, expect_equal, failed, fln, total,
};
use crate::lease::lease_claims;

/// Deposits and prices, in florins.
const PRICE_MAX: u64 = 40;
const FEE: u64 = 1;
const STAKE: u64 = 60;
const BID_BOND: u64 = 4;
const AUDIT_BOND: u64 = 5;
/// The second score: 8 useful seconds at 3 FLN.
const PRICE: u64 = 24;
/// The bounty: a fee, divided by the share of audited segments.
const BOUNTY: u64 = 4;
const SEGMENTS: u32 = 4;
const STEPS: u32 = 2;
const SALT: Digest = Digest([9; 32]);

fn order(stage: &Scenario) -> Result<ComputeOrder, String> {
    Ok(ComputeOrder {
        market: stage.ledger().market(),
        renter: stage.buyer()?.address(),
        referee: stage.arbiter()?.address(),
        segments: SEGMENTS,
        steps: STEPS,
        price_max: fln(PRICE_MAX),
        step_us_max: 1_000_000,
        deposits: Deposits {
            bid_bond: fln(BID_BOND),
            stake: fln(STAKE),
            audit_bond: fln(AUDIT_BOND),
            default_fine: fln(BID_BOND),
        },
        audit: AuditTerms { share: 250_000, auditors: 1, colluding: 0, fee: fln(FEE) },
        ..ComputeOrder::example()
    })
}

/// A lease beside the task that holds its deposits.
struct LeasedTask<'a> {
    stage: &'a Scenario,
    lease: Lease,
    now: Timestamp,
}

impl<'a> LeasedTask<'a> {
    fn open(stage: &'a Scenario) -> Result<Self, String> {
        let (order, now) = (order(stage)?, stage.now()?);
        let coordinator = stage.coordinator()?;
        let market = stage.ledger().market();
        let terms = Terms::from_order(&order, market, coordinator.address(), CHALLENGE_MS, now);
        let terms = terms.map_err(failed)?;
        stage.ok(stage.ledger().open_task(stage.buyer()?, &Terms { task: TASK, ..terms }))?;
        let opened = Terms { task: terms.task, ..stage.task(TASK)?.terms };
        opened.check_order(&order, market, now).map_err(failed)?;
        // The coordinator covers the most that it could settle.
        let cover = order.escrow().map_err(failed)?;
        stage.ok(stage.ledger().bond(coordinator, TASK, cover))?;
        Ok(Self { stage, lease: Lease::open(order, now).map_err(failed)?, now })
    }

    /// Performs an action after its account has deposited what the action needs.
    fn act(&mut self, by: &dyn WalletSigner, action: &ComputeAction) -> Result<(), String> {
        let who = by.address();
        let mut next = self.lease.clone();
        next.apply(who, action, self.now).map_err(failed)?;
        let needed = next.books().bond_needed(who).map_err(failed)?;
        let bonded = self.stage.bond_amount(TASK, who)?;
        if let Ok(more) = needed.minus(bonded)
            && !more.is_zero()
        {
            self.stage.ok(self.stage.ledger().bond(by, TASK, more))?;
        }
        self.lease = next;
        Ok(())
    }

    fn expire(&mut self) -> Result<(), String> {
        self.now = self.lease.phase().1.saturating_add_ms(1);
        self.act(self.stage.stranger()?, &ComputeAction::Expire)
    }

    /// Bids of the provider, of Bob, and of a stranger that never opens it; Alice is the auditor.
    fn fund(&mut self) -> Result<(), String> {
        let id = self.lease.order().id();
        let (provider, bob) = (self.stage.provider()?, self.stage.bob()?);
        let bid = |per_second: u64| {
            let times = StepTimes::new(vec![1_000_000]).map_err(failed)?;
            Ok::<_, String>(Bid { per_second: fln(per_second), devices: 1, times })
        };
        let bids = [(provider, bid(2)?), (bob, bid(3)?)];
        let silent = ComputeAction::SealBid(Digest([1; 32]));
        self.act(self.stage.stranger()?, &silent)?;
        for (bidder, bid) in &bids {
            let sealed = bid_commitment(id, bidder.address(), bid, SALT);
            self.act(*bidder, &ComputeAction::SealBid(sealed))?;
        }
        self.act(self.stage.alice()?, &ComputeAction::JoinAudit)?;
        self.expire()?;
        for (bidder, bid) in bids {
            self.act(bidder, &ComputeAction::OpenBid { bid, salt: SALT })?;
        }
        self.expire()?;
        self.act(provider, &ComputeAction::Fund)
    }

    /// Delivers all segments and opens everything. The auditor's end is `found`.
    fn deliver(&mut self, found: Digest) -> Result<(), String> {
        let (provider, alice) = (self.stage.provider()?, self.stage.alice()?);
        let (id, own) = (self.lease.order().id(), provider.address());
        let secret = |segment: u32| Secret { end: end(segment), salt: SALT };
        for segment in 0..SEGMENTS {
            let leaf = segment_leaf(id, own, segment, secret(segment));
            self.act(provider, &ComputeAction::Deliver { segment, leaf })?;
        }
        self.act(alice, &ComputeAction::Draw(Digest([7; 32])))?;
        let drawn = self.lease.audited().map(|(segment, _)| segment).next();
        let drawn = drawn.ok_or("no segment is drawn")?;
        let start = match drawn.checked_sub(1) {
            Some(before) => end(before),
            None => self.lease.order().start,
        };
        self.act(provider, &ComputeAction::Serve { segment: drawn, start })?;
        let theirs = Secret { end: if found == SALT { end(drawn) } else { found }, salt: SALT };
        let sealed = end_commitment(id, alice.address(), drawn, theirs);
        self.act(alice, &ComputeAction::SealEnd { segment: drawn, sealed })?;
        self.act(
            provider,
            &ComputeAction::OpenLeaf { segment: drawn, secret: secret(drawn), salt_before: SALT },
        )?;
        let last = SEGMENTS.saturating_sub(1);
        if drawn != last {
            self.act(
                provider,
                &ComputeAction::OpenLeaf { segment: last, secret: secret(last), salt_before: SALT },
            )?;
        }
        self.act(alice, &ComputeAction::OpenEnd { segment: drawn, secret: theirs })
    }

    /// Posts the settlement, proves every claim, and closes the task. Returns the refund.
    fn settle(&self) -> Result<Amount, String> {
        let (stage, ledger) = (self.stage, self.stage.ledger());
        let coordinator = stage.coordinator()?;
        let settlement = Settlement::from_lease(&self.lease).map_err(failed)?;
        let settlement = settlement.ok_or("the lease is not over")?;
        let payout = Report::settlement_id(TASK, RoundNumber::FIRST);
        let settlement = Settlement { task: TASK, payout, ..settlement };
        stage.ok(ledger.post(coordinator, &settlement))?;
        stage.advance_past(CHALLENGE_MS);
        stage.ok(ledger.finalize(stage.stranger()?, TASK))?;
        for claim in lease_claims(&self.lease) {
            stage.ok(ledger.claim(stage.stranger()?, &Claim { task: TASK, ..claim }))?;
        }
        stage.ok(ledger.close(coordinator, TASK))
    }

    /// Withdraws all bonds after the close. Then each account has what the books of the lease state.
    fn withdraw(&self) -> Result<(), String> {
        let stage = self.stage;
        stage.advance_past(CHALLENGE_MS.saturating_mul(2));
        for owner in [
            stage.coordinator()?,
            stage.alice()?,
            stage.bob()?,
            stage.provider()?,
            stage.stranger()?,
        ] {
            if !stage.bond_amount(TASK, owner.address())?.is_zero() {
                stage.ok(stage.ledger().withdraw_bond(owner, TASK))?;
            }
        }
        let totals = self.lease.books().totals();
        for owner in [
            stage.coordinator()?,
            stage.arbiter()?,
            stage.alice()?,
            stage.bob()?,
            stage.provider()?,
            stage.stranger()?,
        ] {
            let own = totals.get(&owner.address()).copied().unwrap_or_default();
            let gained = total([INITIAL_BALANCE, own.paid])?.minus(own.debited).map_err(failed)?;
            expect_equal("balance by the books", stage.balance(owner.address())?, gained)?;
        }
        let paid = total(totals.values().map(|totals| totals.paid))?;
        stage.expect_lost(stage.buyer()?.address(), paid)?;
        let forfeited = self.lease.books().forfeited().map_err(failed)?;
        expect_equal("treasury", stage.expect_read(stage.ledger().treasury())?, forfeited)
    }
}

/// The end of a segment.
fn end(segment: u32) -> Digest {
    let mut bytes = [3; 32];
    if let Some(first) = bytes.first_mut() {
        *first = segment.to_le_bytes().first().copied().unwrap_or_default();
    }
    Digest(bytes)
}

pub(super) fn settled(stage: &Scenario) -> Result<(), String> {
    let mut leased = LeasedTask::open(stage)?;
    leased.fund()?;
    leased.deliver(SALT)?;
    expect_equal("outcome", leased.lease.outcome(), Some(LeaseOutcome::Settled))?;
    let refund = leased.settle()?;
    let left = fln(PRICE_MAX.saturating_sub(PRICE));
    expect_equal("refund", refund, total([left, DATA_PER_ROUND_MIN])?)?;
    leased.withdraw()?;
    stage.expect_gained(stage.provider()?.address(), fln(PRICE))?;
    stage.expect_gained(stage.alice()?.address(), fln(FEE))?;
    stage.expect_lost(stage.buyer()?.address(), fln(PRICE.saturating_add(FEE)))?;
    stage.expect_lost(stage.stranger()?.address(), fln(BID_BOND))?;
    expect_equal("treasury", stage.expect_read(stage.ledger().treasury())?, fln(BID_BOND))
}

pub(super) fn slashed(stage: &Scenario) -> Result<(), String> {
    let mut leased = LeasedTask::open(stage)?;
    leased.fund()?;
    let truth = Digest([8; 32]);
    leased.deliver(truth)?;
    // Both state the middle of two steps alike, and the referee finds the auditor's end.
    leased.act(stage.provider()?, &ComputeAction::Answer(Digest([2; 32])))?;
    leased.act(stage.alice()?, &ComputeAction::Answer(Digest([2; 32])))?;
    leased.act(stage.arbiter()?, &ComputeAction::Rule(truth))?;
    let is_slashed = matches!(leased.lease.outcome(), Some(LeaseOutcome::Slashed { .. }));
    expect_equal("slashed", is_slashed, true)?;
    leased.settle()?;
    leased.withdraw()?;
    let found = FEE.saturating_add(BOUNTY);
    stage.expect_lost(stage.provider()?.address(), fln(STAKE))?;
    stage.expect_gained(stage.alice()?.address(), fln(found))?;
    stage.expect_lost(stage.buyer()?.address(), fln(found))?;
    let lost = fln(STAKE.saturating_add(BID_BOND));
    expect_equal("treasury", stage.expect_read(stage.ledger().treasury())?, lost)
}

pub(super) fn unawarded(stage: &Scenario) -> Result<(), String> {
    let mut leased = LeasedTask::open(stage)?;
    leased.act(stage.alice()?, &ComputeAction::JoinAudit)?;
    leased.expire()?;
    expect_equal("outcome", leased.lease.outcome(), Some(LeaseOutcome::Unawarded))?;
    expect_equal("nothing to settle", Settlement::from_lease(&leased.lease), Ok(None))?;
    stage.close_after_window(TASK)?;
    leased.withdraw()
}

/// A bid that stays closed is debited, although no account is paid.
pub(super) fn debited_alone(stage: &Scenario) -> Result<(), String> {
    let mut leased = LeasedTask::open(stage)?;
    leased.act(stage.alice()?, &ComputeAction::JoinAudit)?;
    leased.act(stage.stranger()?, &ComputeAction::SealBid(Digest([1; 32])))?;
    leased.expire()?;
    leased.expire()?;
    expect_equal("outcome", leased.lease.outcome(), Some(LeaseOutcome::Unawarded))?;
    leased.settle()?;
    leased.withdraw()?;
    stage.expect_lost(stage.stranger()?.address(), fln(BID_BOND))
}

/// A provider that stops is paid for what it delivered, and fined, by one claim.
pub(super) fn paid_and_debited(stage: &Scenario) -> Result<(), String> {
    let mut leased = LeasedTask::open(stage)?;
    leased.fund()?;
    let (provider, own) = (stage.provider()?, stage.provider()?.address());
    let secret = Secret { end: end(0), salt: SALT };
    let leaf = segment_leaf(leased.lease.order().id(), own, 0, secret);
    leased.act(provider, &ComputeAction::Deliver { segment: 0, leaf })?;
    leased.expire()?;
    // The audits are not drawn: the result is opened without.
    leased.expire()?;
    leased.act(provider, &ComputeAction::OpenLeaf { segment: 0, secret, salt_before: SALT })?;
    let outcome = Some(LeaseOutcome::Defaulted { delivered: 1 });
    expect_equal("outcome", leased.lease.outcome(), outcome)?;
    leased.settle()?;
    leased.withdraw()?;
    let quarter = PRICE.checked_div(SEGMENTS.into()).unwrap_or_default();
    stage.expect_gained(own, fln(quarter.saturating_sub(BID_BOND)))
}
