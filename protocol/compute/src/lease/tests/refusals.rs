//! Commitments, roles and draws: actions that are refused.

use super::*;
use crate::draw_audits;

#[test]
fn commitments_bind_the_opened_values() {
    let mut market = LeaseMarket::open();
    (0..2).for_each(|number| market.go(auditor(number), &ComputeAction::JoinAudit));
    let own = bid(5_000_000, &[10, 6]);
    let id = market.lease.order().id();
    market.go(ANN, &ComputeAction::SealBid(bid_commitment(id, ANN, &own, SALT)));
    // Another account copies the commitment: it cannot open it.
    market.go(BEN, &ComputeAction::SealBid(bid_commitment(id, ANN, &own, SALT)));
    market.expire();
    assert_eq!(
        market.act(BEN, &ComputeAction::OpenBid { bid: own.clone(), salt: SALT }),
        Err("COMPUTE_COMMITMENT")
    );
    let other = bid(4_000_000, &[10, 6]);
    assert_eq!(
        market.act(ANN, &ComputeAction::OpenBid { bid: other, salt: SALT }),
        Err("COMPUTE_COMMITMENT")
    );
    let other = Digest([8; 32]);
    assert_eq!(
        market.act(ANN, &ComputeAction::OpenBid { bid: own.clone(), salt: other }),
        Err("COMPUTE_COMMITMENT")
    );
    assert_eq!(
        market.act(RENTER, &ComputeAction::OpenBid { bid: own.clone(), salt: SALT }),
        Err("COMPUTE_ACCOUNT")
    );
    market.go(ANN, &ComputeAction::OpenBid { bid: own, salt: SALT });

    // Another end, another salt, the leaf of another segment, and another start than the leaf before.
    let mut market = LeaseMarket::served(20, &[]);
    for (segment, auditor) in market.asked() {
        let secret = Secret { end: market.honest_end(segment), salt: SALT };
        let sealed = end_commitment(market.lease.id, auditor, segment, secret);
        market.go(auditor, &ComputeAction::SealEnd { segment, sealed });
        assert!(market.act(ANN, &ComputeAction::SealEnd { segment, sealed }).is_err());
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
        let open = ComputeAction::OpenLeaf { segment, secret, salt_before: salt };
        assert_eq!(market.act(ANN, &open), Err("COMPUTE_COMMITMENT"));
        assert_eq!(market.act(BEN, &open), Err("COMPUTE_ACCOUNT"));
    }
    // A segment that is neither drawn nor the last one is not opened, with the right end.
    let undrawn = (1..19).find(|segment| !market.drawn().contains(segment)).unwrap();
    let open = ComputeAction::OpenLeaf {
        segment: undrawn,
        secret: market.secret(undrawn),
        salt_before: market.secret(undrawn - 1).salt,
    };
    assert_eq!(market.act(ANN, &open), Err("COMPUTE_INVALID"));
    assert_eq!(market.lease.result(), None);
    let (segment, auditor) = market.asked()[0];
    let secret = Secret { end: SALT, salt: SALT };
    assert_eq!(
        market.act(auditor, &ComputeAction::OpenEnd { segment, secret }),
        Err("COMPUTE_COMMITMENT")
    );
}

#[test]
fn accounts_have_one_role() {
    let mut market = LeaseMarket::open();
    for account in [RENTER, REFEREE] {
        assert_eq!(market.act(account, &ComputeAction::SealBid(SALT)), Err("COMPUTE_ACCOUNT"));
        assert_eq!(market.act(account, &ComputeAction::JoinAudit), Err("COMPUTE_ACCOUNT"));
    }
    market.go(ANN, &ComputeAction::SealBid(SALT));
    market.go(BEN, &ComputeAction::JoinAudit);
    assert_eq!(market.act(ANN, &ComputeAction::JoinAudit), Err("COMPUTE_ACCOUNT"));
    assert_eq!(market.act(BEN, &ComputeAction::SealBid(SALT)), Err("COMPUTE_ACCOUNT"));
    assert_eq!(market.act(ANN, &ComputeAction::SealBid(SALT)), Err("COMPUTE_REPEATED"));
    assert_eq!(market.act(BEN, &ComputeAction::JoinAudit), Err("COMPUTE_REPEATED"));
    assert_eq!(market.act(ANN, &ComputeAction::Fund), Err("COMPUTE_PHASE"));
    market.now = market.lease.phase().1.saturating_add_ms(1);
    assert_eq!(market.act(auditor(1), &ComputeAction::SealBid(SALT)), Err("COMPUTE_LATE"));

    let mut market = LeaseMarket::awarded();
    assert_eq!(market.act(BEN, &ComputeAction::Fund), Err("COMPUTE_ACCOUNT"));
    market.go(ANN, &ComputeAction::Fund);
    assert_eq!(
        market.act(BEN, &ComputeAction::Deliver { segment: 0, leaf: SALT }),
        Err("COMPUTE_ACCOUNT")
    );
    assert_eq!(
        market.act(ANN, &ComputeAction::Deliver { segment: 1, leaf: SALT }),
        Err("COMPUTE_INVALID")
    );

    // Without auditors there is no lease, and all deposits return. They join before the bids are opened.
    let mut market = LeaseMarket::open();
    market.go(ANN, &ComputeAction::SealBid(SALT));
    market.go(auditor(1), &ComputeAction::JoinAudit);
    market.expire();
    market.ends_with(LeaseOutcome::Unawarded);
    assert_eq!((market.owed(ANN), market.owed(auditor(1))), (2_000, BOND));
    let mut market = LeaseMarket::awarded();
    assert_eq!(market.act(auditor(9), &ComputeAction::JoinAudit), Err("COMPUTE_PHASE"));
}

#[test]
fn a_first_segment_starts_where_the_order_does() {
    for number in 0..=255 {
        let mut market = LeaseMarket::funded();
        market.deliver(20, &[]);
        market.go(RENTER, &ComputeAction::Draw(Digest([number; 32])));
        if market.drawn()[0] == 0 {
            assert_eq!(
                market.act(ANN, &ComputeAction::Serve { segment: 0, start: SALT }),
                Err("COMPUTE_COMMITMENT")
            );
            market.go(ANN, &ComputeAction::Serve { segment: 0, start: order().start });
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
