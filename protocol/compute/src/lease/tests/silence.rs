//! Silent and late parties.

use super::*;

#[test]
fn silence_has_a_default_in_every_phase() {
    // No bid.
    let mut market = LeaseMarket::open();
    market.expire();
    market.ends_with(LeaseOutcome::Unawarded);
    assert_eq!(market.owed(RENTER), order().escrow().unwrap().units());

    // A bid that is not opened.
    let mut market = LeaseMarket::open();
    market.go(ANN, &ComputeAction::SealBid(Digest([1; 32])));
    (0..2).for_each(|number| market.go(auditor(number), &ComputeAction::JoinAudit));
    market.expire();
    market.expire();
    market.ends_with(LeaseOutcome::Unawarded);
    assert_eq!((market.treasury(), market.owed(ANN)), (2_000, 0));

    // A winner that does not fund: the next one wins, at the largest price.
    let mut market = LeaseMarket::awarded();
    assert_eq!(market.lease.award().unwrap().provider, ANN);
    market.expire();
    let award = market.lease.award().unwrap().clone();
    assert_eq!((award.provider, award.price(&order(), 0)), (BEN, units(20_000)));
    market.go(BEN, &ComputeAction::Fund);
    assert_eq!((market.treasury(), market.owed(ANN), market.owed(BEN)), (2_000, 0, 2_000));
    let mut market = LeaseMarket::awarded();
    market.expire();
    market.expire();
    market.ends_with(LeaseOutcome::Unawarded);
    assert_eq!(market.treasury(), 4_000);

    // No draw.
    let mut market = LeaseMarket::funded();
    market.deliver(20, &[]);
    market.expire();
    market.open_result();
    market.ends_with(LeaseOutcome::Settled);
    assert_eq!(market.owed(RENTER), 20_000 - PRICE + 4 * 700);

    // A start that is not served.
    let mut market = LeaseMarket::funded();
    market.deliver(20, &[]);
    market.go(RENTER, &ComputeAction::Draw(BEACON));
    let segment = market.drawn()[0];
    market.expire();
    market.ends_with(LeaseOutcome::Slashed { segment });
    assert_eq!(market.treasury(), 22_000);

    // A leaf that is not opened.
    let mut market = LeaseMarket::served(20, &[]);
    for (segment, auditor) in market.asked() {
        let secret = Secret { end: market.honest_end(segment), salt: SALT };
        let sealed = end_commitment(market.lease.id, auditor, segment, secret);
        market.go(auditor, &ComputeAction::SealEnd { segment, sealed });
    }
    market.open_leaf(market.drawn()[1]);
    let segment = market.drawn()[0];
    market.expire();
    market.ends_with(LeaseOutcome::Slashed { segment });

    // A result that is not opened.
    let mut market = LeaseMarket::funded();
    market.deliver(20, &[]);
    market.expire();
    market.expire();
    market.ends_with(LeaseOutcome::Slashed { segment: 19 });
}

/// 200 steps in 20 ms beyond the windows of the segments: 100 µs each instead of 6.
#[test]
fn a_late_delivery_earns_less() {
    let mut market = LeaseMarket::funded();
    let begun = market.now;
    for _ in 0..20 {
        market.now = market.now.saturating_add_ms(500);
        market.deliver_one();
    }
    market.now = begun.saturating_add_ms(20 * 500 + 20);
    market.lease.ran.1 = market.now;
    market.expire();
    market.open_result();
    market.ends_with(LeaseOutcome::Settled);
    // The second score is 84,000.
    assert_eq!(market.owed(ANN), 84_000 / 100 + 24_000);
}

#[test]
fn silent_auditors_are_replaced_and_lose_their_bonds() {
    let mut market = LeaseMarket::served(20, &[]);
    let mut silent = BTreeSet::new();
    while market.lease.phase().0 == Phase::Auditing {
        let asked: Vec<Address> = market.asked().into_iter().map(|(_, auditor)| auditor).collect();
        assert!(asked.iter().all(|auditor| !silent.contains(auditor)), "each is asked once");
        silent.extend(asked);
        market.expire();
        assert_eq!(market.treasury(), BOND * silent.len() as u128);
    }
    assert_eq!(silent.len(), 4, "all auditors were asked");
    for segment in market.drawn() {
        market.open_leaf(segment);
    }
    market.open_result();
    market.ends_with(LeaseOutcome::Settled);
    assert_eq!(market.owed(RENTER), 20_000 - PRICE + 4 * 700, "no audit is paid");

    // Auditors that seal and do not open.
    let mut market = LeaseMarket::served(20, &[]);
    for (segment, auditor) in market.asked() {
        market.go(auditor, &ComputeAction::SealEnd { segment, sealed: SALT });
    }
    for segment in market.drawn() {
        market.open_leaf(segment);
    }
    market.open_result();
    let asked: BTreeSet<Address> = market.asked().into_iter().map(|(_, auditor)| auditor).collect();
    market.expire();
    market.ends_with(LeaseOutcome::Settled);
    assert_eq!(market.treasury(), BOND * asked.len() as u128);
}

/// A bid that cannot win only takes a place: it loses its bond.
#[test]
fn a_bid_above_the_largest_price_loses_its_bond() {
    let mut market = LeaseMarket::open();
    market.auction(&[(ANN, bid(5_000_000, &[10, 6])), (BEN, bid(10_000_500, &[10, 7]))]);
    assert_eq!((market.treasury(), market.lease.award().unwrap().provider), (2_000, ANN));
}

/// With many auditors the silent ones are replaced three times, and not more, also if others are left because one
/// of two has sealed its end.
#[test]
fn replacements_have_a_limit() {
    for one_seals in [false, true] {
        let mut market = LeaseMarket::open();
        (4..20).for_each(|number| market.go(auditor(number), &ComputeAction::JoinAudit));
        market.auction(&[(ANN, bid(5_000_000, &[10, 6])), (BEN, bid(6_000_000, &[10, 7]))]);
        market.go(ANN, &ComputeAction::Fund);
        market.deliver(20, &[]);
        market.go(RENTER, &ComputeAction::Draw(BEACON));
        market.serve();
        for segment in market.drawn().into_iter().filter(|_| one_seals) {
            let asked = market.asked().into_iter().find(|(own, _)| *own == segment).unwrap();
            market.go(asked.1, &ComputeAction::SealEnd { segment, sealed: SALT });
        }
        for _ in 0..4 {
            market.phase(Phase::Auditing);
            assert!(!market.asked().is_empty());
            market.expire();
        }
        market.phase(Phase::Opening);
        assert_eq!(market.asked().len(), if one_seals { 2 } else { 0 });
    }
}
