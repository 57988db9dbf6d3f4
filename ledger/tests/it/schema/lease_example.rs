//! The whole lease of docs/lease-protocol.md: docs/lease-example.json, folded.

use std::fs;

use florin_compute::{
    AuditDraw, ComputeAccount, ComputeAction, Lease, LeaseRecord, OrderView, RecordedAction,
    RecordedLease, SignedLeaseAction,
};
use florin_ledger::{Settlement, Terms};
use florin_protocol::*;
use serde_json::{Value, json};

use super::leases::{LeaseVector, hex};
use super::repository;

/// Its path in the folder of the documentation.
const FILE: &str = "lease-example.json";

fn page() -> String {
    fs::read_to_string(repository().join("docs/lease-protocol.md")).unwrap()
}

fn example() -> Value {
    let text = fs::read_to_string(repository().join("docs").join(FILE)).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn view() -> OrderView {
    serde_json::from_value(example()["view"].clone()).unwrap()
}

fn records() -> Vec<LeaseRecord> {
    serde_json::from_value(example()["records"].clone()).unwrap()
}

/// The lease after each record, and its digests.
fn folded() -> (RecordedLease, Vec<Digest>) {
    let mut lease = RecordedLease::open(view().opening().unwrap()).unwrap();
    let states = records().into_iter().map(|record| {
        lease.apply(&record).unwrap();
        lease.lease().digest()
    });
    let states = states.collect();
    (lease, states)
}

/// A lease that is over: its bytes, its digest after each record, totals and settlement.
pub(crate) fn lease_json(lease: &Lease, states: &[Digest]) -> Value {
    let (bytes, totals) = (lease.to_bytes(), lease.books().totals());
    let total = |(account, totals): (&Address, &merkle::ClaimTotals)| {
        let [paid, debited] = [totals.paid, totals.debited].map(|own| own.units().to_string());
        json!([account, paid, debited])
    };
    json!({
        "bytes": hex(&bytes),
        "states": states,
        "totals": totals.iter().map(total).collect::<Vec<_>>(),
        "settlement": Settlement::from_lease(lease).unwrap(),
    })
}

/// The vector of the example, which has its records.
pub(crate) fn example_vector() -> Value {
    let (lease, states) = folded();
    let fields = json!({ "file": FILE });
    let expected = lease_json(lease.lease(), &states);
    LeaseVector { name: "the lease of the example", kind: "lease", fields, expected }.json()
}

fn settlement() -> Settlement {
    Settlement::from_lease(folded().0.lease()).unwrap().unwrap()
}

#[test]
fn the_lease_of_the_example_has_its_view_and_settlement() {
    let ((folded, _), view) = (folded(), view());
    let lease = folded.lease();
    assert_eq!((lease.id(), folded.length()), (view.id, view.records));
    assert_eq!(lease.phase(), (view.phase, view.deadline));
    assert_eq!(lease.award().map(|award| award.provider), view.provider);
    assert_eq!((lease.leaves().len(), lease.outcome()), (20, view.outcome));
    assert_eq!(view.delivered, 20);
    assert_eq!(json!(settlement()), example()["settlement"]);
}

/// An amount or a number with a comma between thousands.
fn grouped(number: u128) -> String {
    let digits = number.to_string();
    let places = digits.len();
    let with_comma = |(at, digit): (usize, char)| match at > 0 && (places - at).is_multiple_of(3) {
        true => format!(",{digit}"),
        false => format!("{digit}"),
    };
    digits.chars().enumerate().map(with_comma).collect()
}

/// The digests that the page states.
fn stated_digests() -> Vec<String> {
    let (folded, _) = folded();
    let lease = folded.lease();
    let records = records();
    let signed = |at: usize| -> &SignedLeaseAction {
        let RecordedAction::Signed(signed) = &records[at].action else { panic!("{at}") };
        signed
    };
    let beacon = records.iter().find_map(|record| match record.action {
        RecordedAction::Beacon(beacon) => Some(beacon),
        _ => None,
    });
    let beacon = beacon.unwrap();
    let seed = AuditDraw { order: lease.id(), leaves: lease.leaves(), beacon }.seed();
    let join = &signed(0).body;
    let ComputeAction::SealBid(sealed) = signed(2).body.action else { panic!("no bid") };
    let settlement = settlement();
    vec![
        sealed.to_string(),
        join.digest().to_string(),
        hex(&join.signing_hash(lease.order().market)),
        lease.leaves()[19].to_string(),
        beacon.to_string(),
        folded.opening().beacon.to_string(),
        seed.to_string(),
        settlement.report.to_string(),
        json!(settlement.payout).as_str().unwrap().to_owned(),
        settlement.root.to_string(),
    ]
}

/// The numbers that the page states.
fn stated_numbers() -> Vec<String> {
    let (folded, _) = folded();
    let (lease, order) = (folded.lease(), folded.lease().order());
    let award = lease.award().unwrap();
    let (second, second_us) = award.second;
    let terms =
        Terms::from_order(order, order.market, Address([9; 20]), 1_000, Timestamp(0)).unwrap();
    let pay = lease.books().balance(ComputeAccount::Owed(award.provider));
    let measured = award.price(order, lease.measured_us());
    let numbers: [u128; 10] = [
        award.own_price.units(),
        second.units(),
        second_us.into(),
        award.step_us.into(),
        order.segment_ms(award.step_us).into(),
        pay.units(),
        measured.units(),
        lease.to_bytes().len().try_into().unwrap(),
        order.duration_ms_max().into(),
        terms.unbond_ms.into(),
    ];
    let drawn: Vec<String> = lease.audited().map(|(segment, _)| segment.to_string()).collect();
    let (last, others) = drawn.split_last().unwrap();
    let segments = format!("the segments {} and {last} are drawn", others.join(", "));
    let stake = format!("{} FLN", order.stake_min().unwrap());
    numbers.into_iter().map(grouped).chain([segments, stake]).collect()
}

#[test]
fn the_page_states_the_numbers_of_the_example() {
    let page = page();
    let (_, section) = page.split_once("\n## An example\n").unwrap();
    for stated in stated_digests().into_iter().chain(stated_numbers()) {
        assert!(section.contains(&stated), "the page does not state {stated}");
    }
}
