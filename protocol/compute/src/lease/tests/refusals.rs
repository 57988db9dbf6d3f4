//! Commitments, roles and draws: actions that are refused.

use super::*;
use crate::draw_audits;

#[test]
fn commitments_bind_the_opened_values() {
    let mut market = LeaseMarket::open();
    (0..2).for_each(|number| market.go(auditor(number), &Action::JoinAudit));
    let own = bid(5_000_000, &[10, 6]);
    let id = market.lease.order().id();
    market.go(ANN, &Action::SealBid(bid_commitment(id, ANN, &own, SALT)));
    // Another account copies the commitment: it cannot open it.
    market.go(BEN, &Action::SealBid(bid_commitment(id, ANN, &own, SALT)));
    market.expire();
    assert_eq!(market.act(BEN, &Action::OpenBid(own.clone(), SALT)), Err("COMPUTE_COMMITMENT"));
    let other = bid(4_000_000, &[10, 6]);
    assert_eq!(market.act(ANN, &Action::OpenBid(other, SALT)), Err("COMPUTE_COMMITMENT"));
    let other = Digest([8; 32]);
    assert_eq!(market.act(ANN, &Action::OpenBid(own.clone(), other)), Err("COMPUTE_COMMITMENT"));
    assert_eq!(market.act(RENTER, &Action::OpenBid(own.clone(), SALT)), Err("COMPUTE_ACCOUNT"));
    market.go(ANN, &Action::OpenBid(own, SALT));

    // Another end, another salt, the leaf of another segment, and another start than the leaf before.
    let mut market = LeaseMarket::served(20, &[]);
    for (segment, auditor) in market.asked() {
        let secret = Secret { end: market.honest_end(segment), salt: SALT };
        let sealed = end_commitment(market.lease.id, auditor, segment, secret);
        market.go(auditor, &Action::SealEnd(segment, sealed));
        assert!(market.act(ANN, &Action::SealEnd(segment, sealed)).is_err());
    }
    let drawn = market.drawn();
    let segment = drawn.into_iter().find(|segment| *segment > 0).unwrap();
    let good = market.secret(segment);
    let before = market.secret(segment - 1).salt;
    for (secret, salt) in [
        (Secret { end: SALT, ..good }, before),
        (Secret { salt: SALT, ..good }, before),
        (market.secret(segment - 1), before),
        (good, SALT),
    ] {
        let open = Action::OpenLeaf(segment, secret, salt);
        assert_eq!(market.act(ANN, &open), Err("COMPUTE_COMMITMENT"));
        assert_eq!(market.act(BEN, &open), Err("COMPUTE_ACCOUNT"));
    }
    // A segment that is neither drawn nor the last one is not opened, with the right end.
    let undrawn = (1..19).find(|segment| !market.drawn().contains(segment)).unwrap();
    let open = Action::OpenLeaf(undrawn, market.secret(undrawn), market.secret(undrawn - 1).salt);
    assert_eq!(market.act(ANN, &open), Err("COMPUTE_INVALID"));
    assert_eq!(market.lease.result(), None);
    let (segment, auditor) = market.asked()[0];
    let secret = Secret { end: SALT, salt: SALT };
    assert_eq!(market.act(auditor, &Action::OpenEnd(segment, secret)), Err("COMPUTE_COMMITMENT"));
}

#[test]
fn accounts_have_one_role() {
    let mut market = LeaseMarket::open();
    for account in [RENTER, REFEREE] {
        assert_eq!(market.act(account, &Action::SealBid(SALT)), Err("COMPUTE_ACCOUNT"));
        assert_eq!(market.act(account, &Action::JoinAudit), Err("COMPUTE_ACCOUNT"));
    }
    market.go(ANN, &Action::SealBid(SALT));
    market.go(BEN, &Action::JoinAudit);
    assert_eq!(market.act(ANN, &Action::JoinAudit), Err("COMPUTE_ACCOUNT"));
    assert_eq!(market.act(BEN, &Action::SealBid(SALT)), Err("COMPUTE_ACCOUNT"));
    assert_eq!(market.act(ANN, &Action::SealBid(SALT)), Err("COMPUTE_REPEATED"));
    assert_eq!(market.act(BEN, &Action::JoinAudit), Err("COMPUTE_REPEATED"));
    assert_eq!(market.act(ANN, &Action::Fund), Err("COMPUTE_PHASE"));
    market.now = market.lease.phase().1.saturating_add_ms(1);
    assert_eq!(market.act(auditor(1), &Action::SealBid(SALT)), Err("COMPUTE_LATE"));

    let mut market = LeaseMarket::awarded();
    assert_eq!(market.act(BEN, &Action::Fund), Err("COMPUTE_ACCOUNT"));
    market.go(ANN, &Action::Fund);
    assert_eq!(market.act(BEN, &Action::Deliver(0, SALT)), Err("COMPUTE_ACCOUNT"));
    assert_eq!(market.act(ANN, &Action::Deliver(1, SALT)), Err("COMPUTE_INVALID"));

    // Without auditors there is no lease, and all deposits return. They join before the bids are opened.
    let mut market = LeaseMarket::open();
    market.go(ANN, &Action::SealBid(SALT));
    market.go(auditor(1), &Action::JoinAudit);
    market.expire();
    market.ends_with(LeaseOutcome::Unawarded);
    assert_eq!((market.owed(ANN), market.owed(auditor(1))), (500, BOND));
    let mut market = LeaseMarket::awarded();
    assert_eq!(market.act(auditor(9), &Action::JoinAudit), Err("COMPUTE_PHASE"));
}

#[test]
fn a_first_segment_starts_where_the_order_does() {
    for number in 0..=255 {
        let mut market = LeaseMarket::funded();
        market.deliver(20, &[]);
        market.go(RENTER, &Action::Draw(Digest([number; 32])));
        if market.drawn()[0] == 0 {
            assert_eq!(market.act(ANN, &Action::Serve(0, SALT)), Err("COMPUTE_COMMITMENT"));
            market.go(ANN, &Action::Serve(0, order().start));
            return;
        }
    }
    panic!("no beacon draws the first segment");
}

#[test]
fn draws_follow_the_leaves_and_the_beacon() {
    let leaves: Vec<Digest> = (0..20).map(|leaf| Digest([leaf; 32])).collect();
    let draw = |order, leaves: &[Digest], beacon| {
        draw_audits(&crate::AuditDraw { order, leaves, beacon }, 2)
    };
    let own = draw(SALT, &leaves, BEACON);
    let mut other = leaves.clone();
    other[19] = SALT;
    let different =
        [draw(BEACON, &leaves, BEACON), draw(SALT, &other, BEACON), draw(SALT, &leaves, SALT)];
    assert!(different.iter().filter(|found| **found != own).count() >= 2, "{own:?} {different:?}");
}
