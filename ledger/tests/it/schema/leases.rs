//! Golden vectors of leases: commitments, draws, awards, pay, and the arithmetic of orders.
//! `protocol/vectors/leases.py` recomputes them by the formulas of docs/lease-protocol.md. They
//! stand here because terms and settlements are the ledger's, and the crate of the formulas has no
//! JSON.

use std::collections::BTreeMap;

use florin_compute::{
    AuditTerms, Award, Bid, ComputeAccount, ComputeAction, ComputeOrder, DataClass, Deposits,
    Lease, Phase, Secret, StepTimes, Windows, award, beacon_commitment, bid_commitment,
    end_commitment, segment_leaf,
};
use florin_ledger::Terms;
use florin_protocol::*;
use serde_json::{Value, json};

use super::lease_cases::whole_leases;
use super::lease_draws::draws;
use super::lease_example::example_vector;

// The text of their checksums has another order than their bytes.
pub(crate) const PROVIDER: Address = Address([0xa2; 20]);
const RIVAL: Address = Address([0xb0; 20]);
const THIRD: Address = Address([0xc2; 20]);
const SALT: Digest = Digest([0x13; 32]);
const END: Digest = Digest([0x14; 32]);
/// The moment of a provider's stake.
const BEGAN: Timestamp = Timestamp(1_700_000_002_000);

/// A vector: the fields that are given, and those that follow from them.
pub(crate) struct LeaseVector<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) fields: Value,
    pub(crate) expected: Value,
}

impl LeaseVector<'_> {
    pub(crate) fn json(self) -> Value {
        let mut vector = self.fields;
        vector["name"] = json!(self.name);
        vector["kind"] = json!(self.kind);
        vector["expected"] = self.expected;
        vector
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn units(amount: Amount) -> String {
    amount.units().to_string()
}

/// An order of 20 segments of 10 steps of at most two seconds.
fn order() -> ComputeOrder {
    ComputeOrder { step_us_max: 2_000_000, ..ComputeOrder::example() }
}

pub(crate) fn bid(per_second: u128, devices: u32, us: &[u64]) -> Bid {
    let times = StepTimes::new(us.to_vec()).unwrap();
    Bid { per_second: Amount::from_units(per_second), devices, times }
}

fn bid_vectors() -> Vec<Value> {
    let no_time: StepTimes = serde_json::from_value(json!([])).unwrap();
    let per_second = Amount::from_units(1 << 100);
    let cases = [
        ("a bid with as many devices as times", bid(1 << 100, 2, &[900, 500])),
        ("a bid with times behind its devices, which are free", bid(1 << 100, 2, &[900, 500, 7])),
        ("a bid with fewer devices than times", bid(1 << 100, 1, &[900, 500])),
        ("a bid with more devices than times", bid(1 << 100, 3, &[900, 500])),
        ("a bid without devices", bid(1 << 100, 0, &[900, 500])),
        ("a bid without times", Bid { per_second, devices: 1, times: no_time }),
        ("a bid with the largest price", bid(u128::MAX, 1, &[86_400_000_000])),
    ];
    let of = |(name, bid): &(&str, Bid)| {
        let commitment = bid_commitment(order().id(), PROVIDER, bid, SALT);
        let fields = json!({ "order": order(), "bidder": PROVIDER, "bid": bid, "salt": SALT });
        let expected = json!({ "commitment": commitment });
        LeaseVector { name, kind: "bid", fields, expected }.json()
    };
    let vectors: Vec<Value> = cases.iter().map(of).collect();
    assert_eq!(vectors[0]["expected"], vectors[1]["expected"]);
    vectors
}

fn commitment_vectors() -> Vec<Value> {
    let secret = Secret { end: END, salt: SALT };
    let mut vectors = Vec::new();
    for segment in [0, 19, 9_999] {
        for (kind, commit) in
            [("leaf", segment_leaf as fn(_, _, _, _) -> _), ("end", end_commitment)]
        {
            let commitment: Digest = commit(order().id(), PROVIDER, segment, secret);
            let fields = json!({
                "order": order(), "account": PROVIDER, "segment": segment, "secret": secret,
            });
            let name = format!("{kind} of segment {segment}");
            let expected = json!({ "commitment": commitment });
            vectors.push(LeaseVector { name: &name, kind, fields, expected }.json());
        }
    }
    let commitment = beacon_commitment(order().id(), END);
    let fields = json!({ "order": order(), "beacon": END });
    let expected = json!({ "commitment": commitment });
    let beacon = LeaseVector { name: "a beacon", kind: "beacon", fields, expected };
    vectors.push(beacon.json());
    vectors
}

fn award_json(award: &Award) -> Value {
    let (price, us) = award.second;
    json!({
        "provider": award.provider,
        "devices": award.devices,
        "step_us": award.step_us,
        "own_price": units(award.own_price),
        "second_price": units(price),
        "second_us": us,
    })
}

fn award_vector(name: &str, order: &ComputeOrder, bids: &[(Address, Bid)]) -> Value {
    let bids: BTreeMap<Address, Bid> = bids.iter().cloned().collect();
    let price =
        |(bidder, bid): (&Address, &Bid)| (bidder.to_string(), bid.price(order).ok().map(units));
    let removed = bids.iter().filter(|(_, bid)| !bid.can_win(order));
    let expected = json!({
        "prices": bids.iter().map(price).collect::<BTreeMap<_, _>>(),
        "removed": removed.map(|(bidder, _)| bidder).collect::<Vec<_>>(),
        "award": award(order, &bids).as_ref().map(award_json),
    });
    let fields = json!({ "order": order, "bids": bids });
    LeaseVector { name, kind: "award", fields, expected }.json()
}

/// 200 steps of a second on one device: 200 device-seconds.
fn awards() -> Vec<Value> {
    let second = 1_000_000;
    let ann = |per_second| (PROVIDER, bid(per_second, 2, &[second, 600_000]));
    let ben = |per_second| (RIVAL, bid(per_second, 2, &[second, 500_000, 400_000]));
    let cat = |per_second, us| (THIRD, bid(per_second, 1, &[us]));
    let order = order();
    let large = ComputeOrder { price_max: Amount::from_units(u128::MAX), ..order.clone() };
    let vectors = vec![
        award_vector("the lower of two scores", &order, &[ann(50), ben(70), cat(60, second)]),
        award_vector("a tie, which the smaller address wins", &order, &[ben(60), ann(50)]),
        award_vector("a single bid", &order, &[ann(50)]),
        award_vector("a price that is rounded up", &order, &[cat(3, 333_333), ann(50)]),
        award_vector("bids at both limits", &order, &[ann(100), cat(50, 2 * second)]),
        award_vector("a bid above price_max", &order, &[ann(50), ben(101)]),
        award_vector("a bid above step_us_max", &order, &[ann(50), cat(1, 2 * second + 1)]),
        award_vector("a price above 128 bits", &large, &[ann(50), ben(u128::MAX)]),
        award_vector(
            "a score above 128 bits",
            &large,
            &[ann(u128::MAX / 200), ben(u128::MAX / 300)],
        ),
        award_vector("no bid that can win", &order, &[ann(101)]),
        award_vector("no bid", &order, &[]),
    ];
    assert_eq!(vectors[1]["expected"]["award"]["provider"], json!(PROVIDER));
    assert_eq!(vectors[4]["expected"]["removed"], json!([]));
    vectors
}

/// The deliveries of a lease: each takes a time, and the last one a millisecond more.
pub(crate) struct Deliveries {
    pub(crate) count: u32,
    pub(crate) ms: u64,
}

/// A lease whose bids win, up to the last delivery. All accounts are ready as auditors.
pub(crate) fn delivered(
    order: &ComputeOrder,
    bids: &[(Address, Bid)],
    auditors: &[Address],
    deliveries: &Deliveries,
) -> Lease {
    let opened = BEGAN.0 - 1_002;
    let mut lease = Lease::open(order.clone(), Timestamp(opened)).unwrap();
    let mut act = |by, ms, action| lease.apply(by, &action, Timestamp(ms)).unwrap();
    for (bidder, bid) in bids {
        let sealed = bid_commitment(order.id(), *bidder, bid, SALT);
        act(*bidder, opened, ComputeAction::SealBid(sealed));
    }
    auditors.iter().for_each(|auditor| act(*auditor, opened, ComputeAction::JoinAudit));
    act(RIVAL, opened + 1_001, ComputeAction::Expire);
    for (bidder, bid) in bids {
        let action = ComputeAction::OpenBid { bid: bid.clone(), salt: SALT };
        act(*bidder, opened + 1_001, action);
    }
    act(PROVIDER, BEGAN.0, ComputeAction::Fund);
    for segment in 0..deliveries.count {
        let late = u64::from(segment + 1 == deliveries.count);
        let at = BEGAN.0 + deliveries.ms * u64::from(segment + 1) + late;
        let leaf = segment_leaf(order.id(), PROVIDER, segment, Secret { end: END, salt: SALT });
        act(PROVIDER, at, ComputeAction::Deliver { segment, leaf });
    }
    lease
}

/// Applies the default of a phase after its deadline.
pub(crate) fn expire(lease: &mut Lease) {
    let at = lease.phase().1.saturating_add_ms(1);
    lease.apply(RIVAL, &ComputeAction::Expire, at).unwrap();
}

/// The lease of an order that is paid without audits.
fn pay_vector(name: &str, bids: &[(Address, Bid)], deliveries: &Deliveries) -> Value {
    let auditors = [Address([0x20; 20]), Address([0x21; 20])];
    let mut lease = delivered(&order(), bids, &auditors, deliveries);
    let won = lease.award().unwrap().clone();
    let measured_us = lease.measured_us();
    while lease.phase().0 != Phase::Opening && lease.outcome().is_none() {
        expire(&mut lease);
    }
    if lease.outcome().is_none() {
        let (segment, secret) = (deliveries.count - 1, Secret { end: END, salt: SALT });
        let open = ComputeAction::OpenLeaf { segment, secret, salt_before: SALT };
        lease.apply(PROVIDER, &open, lease.phase().1).unwrap();
    }
    let ended = deliveries.ms * u64::from(deliveries.count) + u64::from(deliveries.count > 0);
    let fields = json!({
        "order": order(),
        "award": award_json(&won),
        "began": BEGAN,
        "ended": BEGAN.saturating_add_ms(ended),
        "delivered": deliveries.count,
    });
    let expected = json!({
        "measured_us": measured_us,
        "price": units(won.price(&order(), measured_us)),
        "pay": units(lease.books().balance(ComputeAccount::Owed(PROVIDER))),
    });
    LeaseVector { name, kind: "pay", fields, expected }.json()
}

/// The winner bids 10,000 and 600 ms a step; the second score is 12,000 and 700 ms.
fn pays() -> Vec<Value> {
    let ann = (PROVIDER, bid(50, 2, &[1_000_000, 600_000]));
    let ben = (RIVAL, bid(60, 2, &[1_000_000, 700_000]));
    let both = [ann.clone(), ben];
    let of = |name, count, ms| pay_vector(name, &both, &Deliveries { count, ms });
    let vectors = vec![
        of("a measured time below zero", 20, 400),
        of("steps as fast as the bid", 20, 6_300),
        of("steps slower than the bid", 20, 9_001),
        of("seven of 20 segments", 7, 12_001),
        of("no segment", 0, 0),
        pay_vector("a single bid is paid price_max", &[ann], &Deliveries { count: 20, ms: 6_300 }),
    ];
    let pay = |at: usize| vectors[at]["expected"]["pay"].as_str().unwrap();
    assert_eq!([pay(0), pay(1), pay(4), pay(5)], ["14000", "14000", "0", "20000"]);
    vectors
}

fn order_vector(name: &str, order: &ComputeOrder) -> Value {
    let (delivered, step_us) = ([0, 1, 2, 3, 4, 5, 6, 7, 19, 20, 10_000], [1, 19_615, 2_000_000]);
    let (challenge_ms, now) = (60_000, BEGAN);
    let host = Address([0x30; 20]);
    let terms = Terms::from_order(order, order.market, host, challenge_ms, now).unwrap();
    let fields = json!({
        "order": order, "delivered": delivered, "step_us": step_us,
        "challenge_ms": challenge_ms, "now": now,
    });
    let expected = json!({
        "id": order.id(),
        "audited": delivered.map(|delivered| order.audited(delivered)),
        "audit_budget": units(order.audit_budget().unwrap()),
        "bounty": units(order.bounty()),
        "detection": order.stake_rule().detection(),
        "stake_min": units(order.stake_min().unwrap()),
        "segment_ms": step_us.map(|us| order.segment_ms(us)),
        "duration_ms": order.duration_ms_max(),
        "infrastructure": units(terms.infrastructure),
        "debit_max": units(terms.debit_max),
        "unbond_ms": terms.unbond_ms,
        "expires": terms.expires,
    });
    LeaseVector { name, kind: "order", fields, expected }.json()
}

/// Orders with large deposits, which differ in their audits.
fn orders_by_audit() -> Vec<Value> {
    let base = order();
    let deposits = Deposits {
        stake: Amount::from_units(1_000_000),
        audit_bond: Amount::from_units(20_000),
        ..base.deposits
    };
    let fee = Amount::from_units(701);
    let audit = AuditTerms { share: 100_000, auditors: 2, colluding: 7, fee };
    let base = ComputeOrder { deposits, audit: audit.clone(), ..base };
    let of = |name, audit| order_vector(name, &ComputeOrder { audit, ..base.clone() });
    let largest = AuditTerms { share: 333_333, auditors: 3, colluding: 333_333, fee };
    let honest = AuditTerms { share: 50_001, auditors: 1, colluding: 0, fee };
    let many = AuditTerms { auditors: 16, colluding: 900_000, ..audit };
    let private = ComputeOrder {
        data_class: DataClass::Private,
        audit: AuditTerms { auditors: 1, ..audit },
        ..base.clone()
    };
    let buyer = ComputeOrder { data_class: DataClass::Buyer, ..base.clone() };
    vec![
        of("an order with the largest share", largest),
        of("an order whose auditors do not collude", honest),
        of("an order of 16 auditors", many),
        order_vector("an order on private rows", &private),
        order_vector("an order on rows of the buyer", &buyer),
    ]
}

fn orders() -> Vec<Value> {
    let base = order();
    // An auditor has more at risk than the provider.
    let deposits = Deposits { audit_bond: Amount::from_units(22_001), ..base.deposits };
    let single = ComputeOrder { segments: 1, steps: 1, deposits, ..base.clone() };
    let windows = Windows { slack: 1_000_001, segment: 1, draw: 7, answer: 11, ..base.windows };
    let long = ComputeOrder { steps: 1_023, windows, ..base.clone() };
    let mut vectors = vec![
        order_vector("an order", &base),
        order_vector("an order of one step", &single),
        order_vector("an order with other windows", &long),
    ];
    vectors.extend(orders_by_audit());
    vectors
}

pub(crate) fn formulas() -> Value {
    [bid_vectors(), commitment_vectors(), draws(), awards(), pays(), orders()].concat().into()
}

pub(crate) fn leases() -> Vec<Value> {
    let mut leases = whole_leases();
    leases.push(example_vector());
    leases
}
