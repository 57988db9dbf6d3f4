//! The next step of an account in a lease: a pure function of the lease, which its record decides.

use florin_compute::{ComputeAccount, DataClass, Lease, Phase};
use florin_protocol::{Address, Amount, Digest, Timestamp};

/// The parts that an account may take in an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseRoles {
    /// It may bid.
    pub bids: bool,
    /// It may join as an auditor.
    pub audits: bool,
    /// It computes disputed steps, if the order names it.
    pub referees: bool,
}

/// The next step of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStep {
    /// Examine the order, and seal a bid.
    SealBid,
    /// Examine the order, and join as an auditor.
    JoinAudit,
    /// Open the sealed bid.
    OpenBid,
    /// Deposit the stake.
    Fund,
    /// Compute the next segment, and deliver it.
    Deliver(u32),
    /// Upload the start of a drawn segment, and serve it.
    Serve(u32),
    /// Compute a drawn segment from the start that was served, and seal its end.
    SealEnd(u32, Digest),
    /// Open the leaf of a segment; behind that of the last delivered one is the result.
    OpenLeaf(u32),
    /// Open the sealed end of a segment.
    OpenEnd(u32, Digest),
    /// Answer in the dispute of a segment with the state after a step, from 1.
    Answer(DisputedStep),
    /// Upload the state before the disputed step of private rows, for the referee.
    ShowAgreed(DisputedStep),
    /// Rule with the state after a step of a segment, from 1.
    Rule(DisputedStep),
}

/// A step of a segment in a dispute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisputedStep {
    /// The segment.
    pub segment: u32,
    /// Its start, as the provider served it.
    pub start: Digest,
    /// The step after which the state is asked for, from 1.
    pub step: u32,
}

/// The next step of an account in a lease; `None` if there is nothing to do now.
#[must_use]
pub fn next_step(
    lease: &Lease,
    me: Address,
    roles: LeaseRoles,
    now: Timestamp,
) -> Option<LeaseStep> {
    let (phase, deadline) = lease.phase();
    if now > deadline {
        return None;
    }
    let is_provider = lease.award().is_some_and(|award| award.provider == me);
    match phase {
        Phase::Bidding => first_step(lease, me, roles),
        Phase::Revealing => {
            let is_due = lease.sealed_bid(me).is_some() && lease.opened_bid(me).is_none();
            is_due.then_some(LeaseStep::OpenBid)
        }
        Phase::Funding => is_provider.then_some(LeaseStep::Fund),
        Phase::Running => is_provider.then(|| LeaseStep::Deliver(delivered(lease))),
        Phase::Serving if is_provider => {
            let open = lease.audits().iter().find(|audit| audit.start.is_none())?;
            Some(LeaseStep::Serve(open.segment))
        }
        Phase::Auditing => lease.audits().iter().find_map(|audit| {
            let is_due = audit.asked.contains(&me) && !audit.sealed.contains_key(&me);
            Some(LeaseStep::SealEnd(audit.segment, audit.start.filter(|_| is_due)?))
        }),
        Phase::Opening if is_provider => leaf_to_open(lease),
        Phase::Opening => lease.audits().iter().find_map(|audit| {
            let is_due = audit.sealed.contains_key(&me) && !audit.ends.contains_key(&me);
            Some(LeaseStep::OpenEnd(audit.segment, audit.start.filter(|_| is_due)?))
        }),
        Phase::Disputing if lease.answers() == Some(me) => {
            disputed(lease, lease.dispute()?.middle()?).map(LeaseStep::Answer)
        }
        Phase::Refereeing if roles.referees && lease.order().referee == me => {
            disputed(lease, lease.dispute()?.differ.0).map(LeaseStep::Rule)
        }
        Phase::Refereeing if is_own_audit(lease, me) => {
            let dispute = lease.dispute().filter(|dispute| dispute.auditor == me)?;
            disputed(lease, dispute.agreed.0).map(LeaseStep::ShowAgreed)
        }
        Phase::Delivered | Phase::Serving | Phase::Disputing | Phase::Refereeing | Phase::Over => {
            None
        }
    }
}

/// A bid or a place among the auditors, if the account has neither.
fn first_step(lease: &Lease, me: Address, roles: LeaseRoles) -> Option<LeaseStep> {
    let order = lease.order();
    if lease.sealed_bid(me).is_some() || lease.is_auditor(me) || me == order.referee {
        return None;
    }
    let (is_renter, is_private) = (me == order.renter, order.data_class == DataClass::Private);
    match roles {
        LeaseRoles { bids: true, .. } if !is_renter => Some(LeaseStep::SealBid),
        // Private rows are audited by their owner alone, and others never by theirs.
        LeaseRoles { audits: true, .. } if is_renter == is_private => Some(LeaseStep::JoinAudit),
        _ => None,
    }
}

/// Whether an account audits its own order on private rows.
fn is_own_audit(lease: &Lease, me: Address) -> bool {
    lease.order().renter == me && lease.order().data_class == DataClass::Private
}

/// A leaf that the provider has not opened: those of the drawn segments, and that of the last
/// delivered one.
fn leaf_to_open(lease: &Lease) -> Option<LeaseStep> {
    let closed = lease.audits().iter().find(|audit| audit.end.is_none());
    let last = || delivered(lease).checked_sub(1).filter(|_| lease.result().is_none());
    closed.map(|audit| audit.segment).or_else(last).map(LeaseStep::OpenLeaf)
}

fn disputed(lease: &Lease, step: u32) -> Option<DisputedStep> {
    let segment = lease.dispute()?.segment;
    let audit = lease.audits().iter().find(|audit| audit.segment == segment)?;
    Some(DisputedStep { segment, start: audit.start?, step })
}

/// Segments that were delivered.
pub(super) fn delivered(lease: &Lease) -> u32 {
    u32::try_from(lease.leaves().len()).unwrap_or(u32::MAX)
}

/// The part of an account's deposits that a lease may still ask for: the rest of the stake, while
/// its bid can win.
pub(super) fn promised(lease: &Lease, me: Address) -> Amount {
    let can_win = match lease.phase().0 {
        Phase::Bidding => lease.sealed_bid(me).is_some(),
        Phase::Revealing => lease.sealed_bid(me).is_some(),
        Phase::Funding => lease.opened_bid(me).is_some(),
        _ => false,
    };
    let bond = lease.books().balance(ComputeAccount::BidBond(me));
    match can_win {
        true => lease.order().deposits.stake.minus(bond).unwrap_or(Amount::ZERO),
        false => Amount::ZERO,
    }
}

/// Whether an account computes a lease, or would if its bid won.
pub(super) fn is_computing(lease: &Lease, me: Address) -> bool {
    let is_provider = lease.award().is_some_and(|award| award.provider == me);
    match lease.phase().0 {
        Phase::Bidding | Phase::Revealing => lease.sealed_bid(me).is_some(),
        Phase::Funding => lease.opened_bid(me).is_some(),
        Phase::Running => is_provider,
        _ => false,
    }
}

/// Whether a lease asks the account for nothing more.
pub(super) fn is_over_for(lease: &Lease, me: Address) -> bool {
    let (phase, _) = lease.phase();
    let is_open = matches!(phase, Phase::Bidding | Phase::Revealing | Phase::Funding);
    let is_provider = lease.award().is_some_and(|award| award.provider == me);
    let is_asked = lease
        .audits()
        .iter()
        .any(|audit| audit.asked.contains(&me) || audit.sealed.contains_key(&me));
    let is_referee = lease.order().referee == me;
    let has_part = is_open || is_provider || is_asked || is_referee || lease.is_auditor(me);
    phase == Phase::Over || !has_part
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
