//! The readers of rows and states in each phase, and leases that their renter audits.

use florin_protocol::WalletSigner;

use super::*;
use crate::record::tests::LeaseSigner;
use crate::{DataClass, LEASE_READ_MS_MAX, LeaseRead};

const STRANGER: Address = Address([250; 20]);

fn of_class(data_class: DataClass) -> ComputeOrder {
    let audit = match data_class {
        DataClass::Private => crate::AuditTerms { auditors: 1, colluding: 0, ..order().audit },
        _ => order().audit,
    };
    ComputeOrder { data_class, audit, ..order() }
}

impl LeaseMarket {
    /// Bids of Ann and Ben, and the renter as the auditor.
    fn auction_on_private_rows(&mut self) {
        let id = self.lease.order().id();
        let bid = bid(5_000_000, &[10, 6]);
        self.go(ANN, &ComputeAction::SealBid(bid_commitment(id, ANN, &bid, SALT)));
        for (by, code) in [(auditor(0), "COMPUTE_ACCOUNT"), (REFEREE, "COMPUTE_ACCOUNT")] {
            assert_eq!(self.act(by, &ComputeAction::JoinAudit), Err(code));
        }
        self.go(RENTER, &ComputeAction::JoinAudit);
        self.expire();
        self.go(ANN, &ComputeAction::OpenBid { bid, salt: SALT });
        self.go(ANN, &ComputeAction::Fund);
    }

    fn readers(&self) -> Vec<Address> {
        let all = [RENTER, REFEREE, ANN, BEN, STRANGER].into_iter().chain((0..4).map(auditor));
        all.filter(|who| self.lease.may_read_rows(*who)).collect()
    }

    fn state_readers(&self, state: Digest) -> Vec<Address> {
        let all = [RENTER, REFEREE, ANN, BEN, STRANGER].into_iter().chain((0..4).map(auditor));
        all.filter(|who| self.lease.may_read_state(*who, state)).collect()
    }
}

#[test]
fn all_accounts_read_public_rows() {
    let market = LeaseMarket::open();
    assert!(market.lease.may_read_rows(STRANGER));
    assert!(market.lease.may_read_state(STRANGER, SALT));
    assert!(!market.lease.may_read_batch(REFEREE));
}

#[test]
fn rows_of_a_buyer_are_for_the_parties_from_their_deposits_on() {
    let mut market = LeaseMarket::of(of_class(DataClass::Buyer));
    assert_eq!(market.readers(), [RENTER]);
    market.auction(&[(ANN, bid(5_000_000, &[10, 6])), (BEN, bid(6_000_000, &[10, 7]))]);
    // A bond of a bid is a tenth of the price: the award buys no rows.
    assert_eq!(market.readers(), [RENTER]);
    market.go(ANN, &ComputeAction::Fund);
    assert_eq!(market.readers(), [RENTER, ANN]);
    let wrong: Vec<(u32, u32)> = (0..20).map(|segment| (segment, 4)).collect();
    market.deliver(20, &wrong);
    assert_eq!(market.readers(), [RENTER, ANN]);
    market.go(RENTER, &ComputeAction::Draw(BEACON));
    market.serve();
    let asked = market.asked();
    let is_asked = |who: &Address| asked.iter().any(|(_, own)| own == who);
    let drawn: Vec<Address> = (0..4).map(auditor).filter(is_asked).collect();
    assert_eq!(market.readers(), [vec![RENTER, ANN], drawn].concat());
    // An auditor reads the start of its own segment.
    let (segment, first) = asked[0];
    let start = market.traces[segment as usize][0];
    assert!(market.lease.may_read_state(first, start));
    let of_segment = |who: &Address| asked.contains(&(segment, *who));
    let own: Vec<Address> = (0..4).map(auditor).filter(of_segment).collect();
    assert_eq!(market.state_readers(start), [vec![RENTER, ANN], own].concat());
    assert_eq!(market.state_readers(SALT), [RENTER, ANN]);
    market.seal_and_open(|market, segment, _| market.honest_end(segment));
    // The referee of a dispute reads rows and start.
    market.phase(Phase::Disputing);
    assert_eq!(market.readers()[..3], [RENTER, REFEREE, ANN]);
    let disputed = market.lease.dispute().unwrap().segment;
    let start = market.traces[disputed as usize][0];
    assert!(market.lease.may_read_state(REFEREE, start));
    assert!(!market.lease.may_read_state(REFEREE, SALT));
    assert!(!market.lease.may_read_batch(REFEREE));
    // The provider answers no more: the lease is over, and its renter alone reads.
    market.expire();
    market.phase(Phase::Over);
    assert_eq!((market.readers(), market.state_readers(start)), (vec![RENTER], vec![RENTER]));
}

/// A dispute of the renter with a provider whose segments are wrong from a step on.
fn disputed_on_private_rows(wrong_from: Option<u32>) -> LeaseMarket {
    let mut market = LeaseMarket::of(of_class(DataClass::Private));
    market.auction_on_private_rows();
    let wrong: Vec<(u32, u32)> =
        wrong_from.iter().flat_map(|step| (0..20).map(|segment| (segment, *step))).collect();
    market.deliver(20, &wrong);
    market.go(RENTER, &ComputeAction::Draw(BEACON));
    market.serve();
    assert!(market.asked().iter().all(|(_, auditor)| *auditor == RENTER));
    assert_eq!(market.readers(), [RENTER, ANN]);
    market
}

#[test]
fn a_referee_of_private_rows_reads_one_step_alone() {
    let mut market = disputed_on_private_rows(Some(4));
    market.seal_and_open(|market, segment, _| market.honest_end(segment));
    market.phase(Phase::Disputing);
    assert_eq!(market.readers(), [RENTER, ANN]);
    assert!(!market.lease.may_read_batch(REFEREE));
    let segment = market.lease.dispute().unwrap().segment as usize;
    let honest = trace(market.traces[segment][0], None);
    while let Some(by) = market.lease.answers() {
        let middle = market.lease.dispute().unwrap().middle().unwrap() as usize;
        let states = if by == ANN { &market.traces[segment] } else { &honest };
        let answer = ComputeAction::Answer(states[middle]);
        market.go(by, &answer);
    }
    market.phase(Phase::Refereeing);
    let (before, agreed) = market.lease.dispute().unwrap().agreed;
    assert_eq!((before, agreed), (3, honest[3]));
    assert!(market.lease.may_read_batch(REFEREE));
    for who in [RENTER, ANN, BEN, STRANGER, auditor(0)] {
        assert!(!market.lease.may_read_batch(who), "{who}");
    }
    assert_eq!(market.readers(), [RENTER, ANN]);
    assert_eq!(market.state_readers(agreed), [RENTER, REFEREE, ANN]);
    assert_eq!(market.state_readers(honest[0]), [RENTER, ANN]);
    market.go(REFEREE, &ComputeAction::Rule(honest[4]));
    assert_eq!(market.lease.outcome(), Some(LeaseOutcome::Slashed { segment: segment as u32 }));
    assert!(!market.lease.may_read_batch(REFEREE) && !market.lease.may_read_state(ANN, agreed));
}

/// The renter names the referee and has the rows of its step: without a ruling it was wrong.
#[test]
fn a_renter_that_disputes_for_nothing_loses_its_bond() {
    let mut market = disputed_on_private_rows(None);
    market.seal_and_open(|_, _, _| Digest([66; 32]));
    while market.lease.outcome().is_none() {
        let Some(by) = market.lease.answers() else {
            // The referee does not rule.
            market.phase(Phase::Refereeing);
            market.expire();
            continue;
        };
        let dispute = market.lease.dispute().unwrap();
        let at = dispute.middle().unwrap() as usize;
        let honest = market.traces[dispute.segment as usize][at];
        let state = if by == ANN { honest } else { Digest([67; 32]) };
        market.go(by, &ComputeAction::Answer(state));
    }
    assert_eq!(market.lease.outcome(), Some(LeaseOutcome::Settled));
    assert_eq!(market.treasury(), BOND);
    // The only bid has the largest price, and wrong ends earn no fee: the renter gets its audits back.
    let audits = order().audit.fee.units() * market.drawn().len() as u128;
    assert_eq!(market.owed(RENTER), audits);
    assert_eq!(market.owed(ANN), 20_000 + 22_000 + 2_000);
}

#[test]
fn an_order_on_private_rows_without_its_renters_audit_finds_no_provider() {
    let mut market = LeaseMarket::of(of_class(DataClass::Private));
    let id = market.lease.order().id();
    let bid = bid(5_000_000, &[10, 6]);
    market.go(ANN, &ComputeAction::SealBid(bid_commitment(id, ANN, &bid, SALT)));
    assert_eq!(
        market.act(RENTER, &ComputeAction::SealBid(SALT)),
        Err("COMPUTE_ACCOUNT"),
        "a renter does not bid"
    );
    market.expire();
    assert_eq!(market.lease.outcome(), Some(LeaseOutcome::Unawarded));
    let escrow = market.lease.order().escrow().unwrap().units();
    assert_eq!(market.owed(RENTER), escrow);
}

#[test]
fn orders_on_private_rows_have_one_auditor_with_a_bond_at_risk() {
    let private = of_class(DataClass::Private);
    assert_eq!(private.check(), Ok(()));
    let two = crate::AuditTerms { auditors: 2, ..private.audit };
    let refused = |order: ComputeOrder| match order.check() {
        Err(LeaseError::Invalid { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(ComputeOrder { audit: two, ..private.clone() }), "audit.auditors");
    // A fee of one unit has a bounty of ten, and a bid a bond of 2,000.
    let audit = crate::AuditTerms { fee: units(1), ..private.audit };
    let bond = |bond| {
        let deposits = crate::Deposits { audit_bond: units(bond), ..private.deposits.clone() };
        ComputeOrder { audit: audit.clone(), deposits, ..private.clone() }
    };
    assert_eq!(refused(bond(1_999)), "deposits.audit_bond");
    assert_eq!(bond(2_000).check(), Ok(()));
    // A ruling has two windows more, for the upload of a state; there is one auditor of each of two segments.
    let public = ComputeOrder { data_class: DataClass::Public, ..private.clone() };
    let more = 2 * 2 * private.windows.answer;
    assert_eq!(private.duration_ms_max(), public.duration_ms_max() + more);
    assert_eq!(ComputeOrder { data_class: DataClass::Buyer, ..bond(1_999) }.check(), Ok(()));
}

#[test]
fn a_signed_request_to_read_is_short_lived_and_of_one_thing() {
    let read = LeaseRead { order: SALT, by: ANN, digest: BEACON, expires: Timestamp(1_000_000) };
    let at = |ms| read.is_valid_at(Timestamp(ms));
    let first = 1_000_000 - LEASE_READ_MS_MAX;
    assert_eq!(
        [at(first - 1), at(first), at(1_000_000), at(1_000_001)],
        [false, true, true, false]
    );
    let market = order().market;
    let others = [
        LeaseRead { order: BEACON, ..read },
        LeaseRead { by: BEN, ..read },
        LeaseRead { digest: SALT, ..read },
        LeaseRead { expires: Timestamp(1_000_001), ..read },
    ];
    for other in others {
        assert_ne!(other.signing_hash(market), read.signing_hash(market), "{other:?}");
    }
    let (signer, stranger) = (LeaseSigner::number(3), LeaseSigner::number(4));
    let own = LeaseRead { by: signer.address(), ..read };
    let signature = own.sign(market, &signer).unwrap();
    assert_eq!(own.verify(market, &signature), Ok(()));
    assert!(own.verify(market, &own.sign(market, &stranger).unwrap()).is_err());
    for class in [DataClass::Public, DataClass::Buyer, DataClass::Private] {
        assert_eq!(DataClass::from_name(class.name()), Some(class));
    }
    assert_eq!(DataClass::from_name("split"), None);
}
