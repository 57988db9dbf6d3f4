//! One lease, played to its end by a provider, a rival, auditors and a referee.

use std::collections::BTreeSet;

use florin_compute::{AuditTerms, Bid, ComputeOrder, DataClass, Deposits, Lease, StepTimes};
use florin_protocol::{Address, Amount, Digest, Timestamp};
use florin_sim::compute::lease_play::{
    AuditorConduct, BidOpening, HashWork, LeasePlan, OrderWork, PlannedAuditor, PlannedBid,
    PlayedLease, ProviderPlan, play_lease,
};

/// Segments of the orders, and the share of them that is audited, in parts per million.
pub(super) const SEGMENTS: u32 = 100;
pub(super) const SHARE: u32 = 50_000;
pub(super) const STEPS: u32 = 4;
/// Auditors of a segment, and auditors that stand ready.
const AUDITORS: u32 = 2;
const POOL: u8 = 60;
/// The price that the winner is paid.
pub(super) const PRICE: u128 = 1_000_000;
/// Pay for an audit: the price of a segment.
pub(super) const FEE: u128 = PRICE / SEGMENTS as u128;

pub(super) const PROVIDER: Address = Address([10; 20]);
const RIVAL: Address = Address([11; 20]);
pub(super) const RENTER: Address = Address([1; 20]);

/// How the parties deviate from honest work.
#[derive(Clone, Debug, Default)]
pub(super) struct Conduct {
    /// Segments that the provider does not compute.
    pub(super) fakes: BTreeSet<u32>,
    /// Auditors that return the provider's end, of all.
    pub(super) colluding: u8,
    /// The auditor that does not compute and seals some end.
    pub(super) lazy: Option<u8>,
    /// Segments after which the provider is gone.
    pub(super) leaves_after: Option<u32>,
    /// Whether the audits are never drawn.
    pub(super) undrawn: bool,
    /// Whether the leaves are those of another order.
    pub(super) replays: bool,
    /// Whether the renter of private rows does not audit, and disputes each audited segment.
    pub(super) disputes: bool,
}

/// A lease that is over.
pub(super) struct Played {
    pub(super) lease: Lease,
    /// Audits that an auditor was asked for.
    pub(super) asked: Vec<(u32, Address)>,
    played: PlayedLease,
}

pub(super) fn auditor(number: u8) -> Address {
    Address([100 + number; 20])
}

fn units(units: u128) -> Amount {
    Amount::from_units(units)
}

/// The order with the stake of its price and a distinct number.
pub(super) fn order(nonce: u64) -> ComputeOrder {
    ComputeOrder {
        renter: RENTER,
        nonce,
        segments: SEGMENTS,
        steps: STEPS,
        price_max: units(2 * PRICE),
        step_us_max: 1_000_000,
        deposits: Deposits {
            bid_bond: units(PRICE / 5),
            stake: units(PRICE),
            audit_bond: units(20 * FEE),
            default_fine: units(PRICE / 5),
        },
        audit: AuditTerms { share: SHARE, auditors: AUDITORS, colluding: 333_333, fee: units(FEE) },
        ..ComputeOrder::example()
    }
}

/// The order on private rows, which its renter audits.
pub(super) fn private_order(nonce: u64) -> ComputeOrder {
    let order = order(nonce);
    let audit = AuditTerms { auditors: 1, colluding: 0, ..order.audit };
    ComputeOrder { data_class: DataClass::Private, audit, ..order }
}

/// The bids of the provider and of its rival: the price of 400 steps of 1 s is half the rival's, so that the second
/// score is a price of 1,000,000.
fn bids(conduct: &Conduct) -> anyhow::Result<[PlannedBid; 2]> {
    let step_us = 600_000;
    let bid = |bidder, per_second: u128, plan| {
        let times = StepTimes::new(vec![1_000_000, step_us])?;
        let bid = Bid { per_second: units(per_second), devices: 2, times };
        anyhow::Ok(PlannedBid { bidder, bid, opening: BidOpening::Always, plan })
    };
    let own = ProviderPlan {
        fakes: conduct.fakes.clone(),
        stops_after: conduct.leaves_after,
        replays: conduct.replays,
        ..ProviderPlan::honest(step_us)
    };
    Ok([bid(PROVIDER, 1_250, own)?, bid(RIVAL, 2_500, ProviderPlan::honest(step_us))?])
}

/// The auditors that stand ready: of private rows the renter alone.
fn auditors(order: &ComputeOrder, conduct: &Conduct) -> Vec<PlannedAuditor> {
    let auditor = |account, conduct| PlannedAuditor { account, conduct, step_us: 0 };
    if order.data_class == DataClass::Private {
        let own = if conduct.disputes { AuditorConduct::MakesUp } else { AuditorConduct::Computes };
        return vec![auditor(RENTER, own)];
    }
    let of = |number: u8| {
        if number < conduct.colluding {
            AuditorConduct::Copies
        } else if conduct.lazy == Some(number) {
            AuditorConduct::MakesUp
        } else {
            AuditorConduct::Computes
        }
    };
    (0..POOL).map(|number| auditor(self::auditor(number), of(number))).collect()
}

/// Plays a lease whose trainings are hashes. The beacon is that of a later block.
pub(super) fn play(
    order: ComputeOrder,
    beacon: Digest,
    conduct: &Conduct,
) -> anyhow::Result<Played> {
    play_on(&mut HashWork, order, beacon, conduct)
}

/// Plays a lease.
pub(super) fn play_on<W: OrderWork>(
    work: &mut W,
    order: ComputeOrder,
    beacon: Digest,
    conduct: &Conduct,
) -> anyhow::Result<Played>
where
    anyhow::Error: From<W::Error>,
{
    let (bids, auditors) = (bids(conduct)?, auditors(&order, conduct));
    let beacon = (!conduct.undrawn).then_some(beacon);
    let favoured = BTreeSet::new();
    let plan = LeasePlan { bids: &bids, auditors: &auditors, favoured: &favoured, beacon };
    let played = play_lease(work, order, plan, Timestamp(1_000))?;
    anyhow::ensure!(played.is_balanced, "the books of a lease do not balance");
    Ok(Played { lease: played.lease.clone(), asked: played.asked.clone(), played })
}

impl Played {
    /// The gain of an account by the lease, without the cost of its computations.
    pub(super) fn earned(&self, account: Address) -> i128 {
        let spent = if account == RENTER { self.played.spent().units() as i128 } else { 0 };
        self.played.net(account) - spent
    }
}
