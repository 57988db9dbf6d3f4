//! Golden vectors of the draw of audits, from leases with some delivered segments.

use std::collections::BTreeSet;

use florin_compute::{
    AuditDraw, AuditTerms, ComputeAction, ComputeOrder, Lease, Phase, SegmentAudit,
};
use florin_protocol::{Address, Digest};
use serde_json::{Value, json};

use super::leases::{Deliveries, LeaseVector, PROVIDER, bid, delivered, expire};

fn order(share: u32) -> ComputeOrder {
    let example = ComputeOrder::example();
    let audit = AuditTerms { share, ..example.audit };
    ComputeOrder { audit, ..example }
}

/// The segments that were not drawn because a neighbour was: their tickets are smaller than that of
/// the last drawn one.
fn skipped(seed: Digest, drawn: &BTreeSet<u32>, delivered: u32) -> Vec<u32> {
    let ticket = |segment: &u32| {
        let mut hasher = blake3::Hasher::new_derive_key("florin v1 compute segment ticket");
        hasher.update(&seed.0);
        hasher.update(&segment.to_le_bytes());
        *hasher.finalize().as_bytes()
    };
    let last = drawn.iter().map(ticket).max().unwrap();
    (0..delivered).filter(|g| ticket(g) < last && !drawn.contains(g)).collect()
}

fn audit_json(audit: &SegmentAudit) -> Value {
    json!({ "segment": audit.segment, "asked": audit.asked, "reserve": audit.reserve })
}

struct DrawCase {
    name: &'static str,
    share: u32,
    auditors: u8,
    count: u32,
    beacon: u8,
}

fn drawn_lease(case: &DrawCase, accounts: &[Address], beacon: Digest) -> Lease {
    let order = order(case.share);
    let bids = [(PROVIDER, bid(1_000, 1, &[40]))];
    let deliveries = Deliveries { count: case.count, ms: 1 };
    let mut lease = delivered(&order, &bids, accounts, &deliveries);
    if lease.phase().0 == Phase::Running {
        expire(&mut lease);
    }
    let draw = ComputeAction::Draw(beacon);
    lease.apply(PROVIDER, &draw, lease.phase().1).unwrap();
    lease
}

fn draw_vector(case: &DrawCase) -> Value {
    let accounts: Vec<Address> = (1..=case.auditors).map(|n| Address([0x20 + n; 20])).collect();
    let beacon = Digest([case.beacon; 32]);
    let lease = drawn_lease(case, &accounts, beacon);
    let (order, leaves) = (lease.order(), lease.leaves());
    let seed = AuditDraw { order: order.id(), leaves, beacon }.seed();
    let drawn = lease.audits().iter().map(|audit| audit.segment).collect();
    let fields = json!({
        "order": order, "leaves": leaves, "beacon": beacon, "accounts": accounts,
    });
    let expected = json!({
        "seed": seed,
        "skipped": skipped(seed, &drawn, case.count),
        "audits": lease.audits().iter().map(audit_json).collect::<Vec<_>>(),
    });
    LeaseVector { name: case.name, kind: "draw", fields, expected }.json()
}

pub(crate) fn draws() -> Vec<Value> {
    let case =
        |name, share, auditors, count, beacon| DrawCase { name, share, auditors, count, beacon };
    let third = 333_333;
    let cases = [
        case("a draw of one segment", third, 9, 1, 1),
        case("a draw of two segments", third, 9, 2, 1),
        case("a draw of three segments", third, 9, 3, 1),
        case("a draw of 20 segments", 100_000, 9, 20, 1),
        case("a draw that skips a neighbour", third, 9, 20, 2),
        case("a draw that skips the first segment beside the last one", third, 9, 20, 75),
        case("a draw that skips the last segment beside the first one", third, 9, 20, 104),
        case("a draw from as many auditors as are asked", third, 2, 20, 5),
        case("a draw from fewer auditors than the largest reserve", third, 5, 7, 6),
    ];
    let draws: Vec<Value> = cases.iter().map(draw_vector).collect();
    let skipped = |at: usize, segment: u32| {
        let expected = &draws[at]["expected"];
        expected["skipped"].as_array().unwrap().contains(&json!(segment))
    };
    let drawn = |at: usize, segment: u32| {
        let audits = draws[at]["expected"]["audits"].as_array().unwrap();
        audits.iter().any(|audit| audit["segment"] == json!(segment))
    };
    // Across the end of the ring alone.
    assert!(skipped(5, 0) && drawn(5, 19) && !drawn(5, 1));
    assert!(skipped(6, 19) && drawn(6, 0) && !drawn(6, 18));
    draws
}
