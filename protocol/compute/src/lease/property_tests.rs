//! Random histories: after each action the deposits are the balances, a refused action changes nothing, and
//! silence ends every lease.

use florin_protocol::{Address, Canonical};
use proptest::prelude::*;

use super::tests::order;
use super::*;
use crate::audit::{end_commitment, segment_leaf};
use crate::card::StepTimes;
use crate::order::{AuditTerms, Deposits};
use crate::{AuditDraw, DataClass, bid_commitment, draw_auditors, draw_audits};

/// Expiries after which a lease of twenty segments is over, from any phase: one for each phase, one for
/// each bid that is not funded and one for each dispute that is left.
const EXPIRIES_MAX: usize = 64;

fn account(number: u8) -> Address {
    // 1 and 2 are the renter and the referee.
    Address([number % 8 + 1; 20])
}

fn state(number: u8) -> Digest {
    Digest([number % 3; 32])
}

fn small_order(data_class: DataClass) -> ComputeOrder {
    let auditors = if data_class == DataClass::Private { 1 } else { order().audit.auditors };
    let audit = AuditTerms { share: 333_333, auditors, ..order().audit };
    let deposits = Deposits { stake: Amount::from_units(60_000), ..order().deposits };
    ComputeOrder { segments: 4, steps: 3, data_class, audit, deposits, ..order() }
}

fn bid(number: u8) -> Bid {
    let times = StepTimes::new(vec![10, u64::from(number % 5) + 5]).unwrap();
    Bid { per_second: Amount::from_units(u128::from(number) * 100_000 + 1), devices: 2, times }
}

/// An action of an account that may be valid: commitments can be opened, ends are one of three states.
fn action(lease: &Lease, by: Address, kind: u8, number: u8) -> ComputeAction {
    let id = lease.order().id();
    let salt = Digest([0; 32]);
    let secret = |segment: u32| Secret { end: state(by.0[0].wrapping_add(segment as u8)), salt };
    let segment = u32::from(number) % 4;
    match kind % 13 {
        0 => ComputeAction::SealBid(bid_commitment(id, by, &bid(by.0[0]), salt)),
        1 => ComputeAction::OpenBid { bid: bid(by.0[0]), salt },
        2 => ComputeAction::JoinAudit,
        3 => ComputeAction::Fund,
        4 => {
            let next = lease.leaves().len() as u32;
            ComputeAction::Deliver { segment: next, leaf: segment_leaf(id, by, next, secret(next)) }
        }
        5 => ComputeAction::Draw(state(number)),
        6 if segment == 0 => ComputeAction::Serve { segment: 0, start: lease.order().start },
        6 => ComputeAction::Serve { segment, start: secret(segment - 1).end },
        7 => ComputeAction::SealEnd {
            segment,
            sealed: end_commitment(id, by, segment, secret(segment)),
        },
        8 => ComputeAction::OpenLeaf { segment, secret: secret(segment), salt_before: salt },
        9 => ComputeAction::OpenEnd { segment, secret: secret(segment) },
        10 => ComputeAction::Answer(state(number)),
        11 => ComputeAction::Rule(state(number)),
        _ => ComputeAction::Expire,
    }
}

/// The account whose action the phase waits for, so that random histories reach every phase.
fn likely(lease: &Lease, number: u8) -> (Address, u8) {
    let provider = lease.award().map_or(account(number), |award| award.provider);
    let asked: Vec<Address> =
        lease.audited().flat_map(|(_, asked)| asked.iter().copied()).collect();
    let auditor = asked.get(usize::from(number) % asked.len().max(1)).copied();
    let auditor = auditor.unwrap_or(account(number));
    match lease.phase().0 {
        Phase::Bidding if lease.order().data_class == DataClass::Private && number < 64 => {
            (lease.order().renter, 2)
        }
        Phase::Bidding => (account(number), [0, 2, 2, 12][usize::from(number / 64)]),
        Phase::Revealing => (account(number), 1),
        Phase::Funding => (provider, 3),
        Phase::Running => (provider, 4),
        Phase::Delivered => (account(number), 5),
        Phase::Serving => (provider, 6),
        Phase::Auditing => (auditor, 7),
        Phase::Opening if number.is_multiple_of(2) => (provider, 8),
        Phase::Opening => (auditor, 9),
        Phase::Disputing => (lease.answers().unwrap(), 10),
        Phase::Refereeing => (lease.order().referee, 11),
        Phase::Over => (provider, 12),
    }
}

/// Uses the checkpoints of the provider after a deadline, which are those of its leaves in these histories.
fn stand_in(lease: &mut Lease, now: Timestamp) -> Result<(), LeaseError> {
    let by = lease.award().map_or(account(0), |award| award.provider);
    let secret = |segment: u32| {
        let end = state(by.0[0].wrapping_add(segment as u8));
        Checkpoint { segment, secret: Secret { end, salt: Digest([0; 32]) } }
    };
    let checkpoints: Vec<Checkpoint> = lease.checkpoints_needed().into_iter().map(secret).collect();
    lease.use_checkpoints(&checkpoints, now)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn books_balance_and_silence_ends_every_lease(
        steps in prop::collection::vec((any::<u8>(), any::<u8>(), any::<u8>()), 0..160),
        class in prop::sample::select(vec![DataClass::Public, DataClass::Buyer, DataClass::Private]),
        has_checkpoints in any::<bool>(),
    ) {
        let mut now = Timestamp(5);
        let mut lease = Lease::open(small_order(class), now).unwrap();
        let (renter, mut own_bond) = (lease.order().renter, Amount::ZERO);
        for (kind, by, number) in steps {
            let (who, kind) = match kind < 200 {
                true => likely(&lease, by),
                false => (account(by), kind),
            };
            let action = action(&lease, who, kind, number);
            if action == ComputeAction::Expire && number < 128 {
                now = lease.phase().1.saturating_add_ms(1);
            }
            let before = lease.clone();
            let is_late = action == ComputeAction::Expire && has_checkpoints;
            let done = match is_late && stand_in(&mut lease, now).is_ok() {
                true => Ok(()),
                false => lease.apply(who, &action, now),
            };
            prop_assert!(lease.books().is_conserved());
            prop_assert!(done.is_ok() || lease == before);
            let has_joined = done.is_ok() && action == ComputeAction::JoinAudit;
            if has_joined && class == DataClass::Private {
                prop_assert_eq!(who, renter);
                own_bond = lease.order().deposits.audit_bond;
            }
        }
        for _ in 0..EXPIRIES_MAX {
            if lease.outcome().is_some() {
                break;
            }
            now = lease.phase().1.saturating_add_ms(1);
            let is_used = has_checkpoints && stand_in(&mut lease, now).is_ok();
            prop_assert!(!is_used || class != DataClass::Private);
            if !is_used {
                prop_assert_eq!(lease.apply(account(0), &ComputeAction::Expire, now), Ok(()));
            }
            prop_assert!(lease.books().is_conserved());
        }
        prop_assert!(lease.outcome().is_some(), "{:?}", lease.phase());
        // Each expiry is a millisecond late.
        let spent = now.ms_since(Timestamp(5));
        prop_assert!(spent <= lease.order().duration_ms_max() + 1_000, "{spent} ms");
        prop_assert_eq!(lease.books().locked(), Ok(Amount::ZERO));
        // A settlement pays from the escrow alone, and an account loses no more than one of its deposits.
        let order = lease.order();
        let totals = lease.books().totals();
        let paid = Amount::total(totals.values().map(|totals| totals.paid)).unwrap();
        let returned = lease.books().balance(ComputeAccount::Returned(renter));
        let lost = lease.books().balance(ComputeAccount::Forfeited(renter));
        let refund = returned.plus(lost).unwrap().minus(own_bond).unwrap();
        prop_assert_eq!(paid.plus(refund), order.escrow());
        for (account, of_account) in &totals {
            prop_assert!(of_account.debited <= order.deposits.largest(), "{account}");
            prop_assert_eq!(lease.books().bond_needed(*account), Ok(of_account.debited));
        }
        let unchanged = lease.clone();
        prop_assert!(lease.apply(account(0), &ComputeAction::Expire, now).is_err());
        prop_assert_eq!(lease, unchanged);
    }

    /// Drawn segments are in range, ascending and no neighbours; each auditor has one place.
    #[test]
    fn draws_are_in_range(delivered in 1_usize..60, count in 0_u32..40, beacon in any::<[u8; 32]>()) {
        let leaves: Vec<Digest> = (0..delivered).map(|at| Digest([at as u8; 32])).collect();
        let draw = AuditDraw { order: Digest([1; 32]), leaves: &leaves, beacon: Digest(beacon) };
        let drawn = draw_audits(&draw, count);
        prop_assert!(drawn.len() <= count as usize);
        prop_assert!(drawn.iter().all(|segment| (*segment as usize) < delivered));
        let half = if delivered == 1 { 1 } else { delivered / 2 };
        prop_assert!(drawn.len() <= half);
        for pair in drawn.windows(2) {
            prop_assert!(pair[1] > pair[0] + 1);
        }
        let ends = drawn.len() > 1 && drawn[0] == 0;
        prop_assert!(!ends || drawn[drawn.len() - 1] as usize != delivered - 1);
        // Up to a third of the ring, the count is reached.
        if (count as usize) * 3 <= delivered || delivered == 1 && count > 0 {
            prop_assert_eq!(drawn.len(), (count as usize).min(half));
        }
        let auditors: Vec<Address> = (0..9).map(|number| Address([number; 20])).collect();
        let mut asked = draw_auditors(draw.seed(), 0, auditors.iter().copied());
        asked.sort_unstable();
        prop_assert_eq!(asked, auditors);
    }
}

/// Each segment is drawn with the chance that the stake is based on, and each auditor is asked first as often as
/// the others: within four standard deviations.
#[test]
fn every_segment_and_every_auditor_has_the_same_chance() {
    const DRAWS: u32 = 20_000;
    let leaves: Vec<Digest> = (0..20).map(|at| Digest([at; 32])).collect();
    let auditors: Vec<Address> = (0..5).map(|number| Address([number; 20])).collect();
    let (mut segments, mut first) = ([0_u32; 20], [0_u32; 5]);
    for number in 0..DRAWS {
        let beacon = Digest(*blake3::hash(&number.to_le_bytes()).as_bytes());
        let draw = AuditDraw { order: Digest([1; 32]), leaves: &leaves, beacon };
        for segment in draw_audits(&draw, 2) {
            segments[segment as usize] += 1;
        }
        let asked = draw_auditors(draw.seed(), 3, auditors.iter().copied());
        first[usize::from(asked[0].0[0])] += 1;
    }
    for (counts, chance) in [(&segments[..], 0.1), (&first[..], 0.2)] {
        let expected = f64::from(DRAWS) * chance;
        let bound = 4.0 * (expected * (1.0 - chance)).sqrt();
        let far = |count: &&u32| (f64::from(**count) - expected).abs() > bound;
        assert_eq!(counts.iter().find(far), None, "{counts:?}");
    }
}

#[test]
fn orders_are_checked() {
    fn wrong(change: impl FnOnce(&mut ComputeOrder)) -> String {
        let mut order = order();
        change(&mut order);
        Lease::open(order, Timestamp(0)).unwrap_err().to_string()
    }
    assert_eq!(order().check(), Ok(()));
    for (found, field) in [
        (wrong(|order| order.segments = 0), "segments"),
        (wrong(|order| order.segments = 10_001), "segments"),
        (wrong(|order| order.steps = 0), "steps"),
        (wrong(|order| order.steps = 1_000_001), "steps"),
        (wrong(|order| order.audit.auditors = 0), "audit.auditors"),
        (wrong(|order| order.audit.auditors = 17), "audit.auditors"),
        (wrong(|order| order.audit.share = 0), "audit.share"),
        (wrong(|order| order.audit.share = 333_334), "audit.share"),
        (wrong(|order| order.step_us_max = 0), "step_us_max"),
        (wrong(|order| order.audit.colluding = 1_000_000), "audit.colluding"),
        (wrong(|order| order.windows.slack = 999_999), "windows.slack"),
        (wrong(|order| order.windows.slack = 100_000_001), "windows.slack"),
        (wrong(|order| order.windows.bid = 0), "windows.bid"),
        (wrong(|order| order.windows.reveal = 0), "windows.reveal"),
        (wrong(|order| order.windows.fund = 0), "windows.fund"),
        (wrong(|order| order.windows.segment = 0), "windows.segment"),
        (wrong(|order| order.windows.draw = 0), "windows.draw"),
        (wrong(|order| order.windows.audit = 0), "windows.audit"),
        (wrong(|order| order.windows.answer = 2_592_000_001), "windows.answer"),
        (wrong(|order| order.price_max = Amount::ZERO), "price_max"),
        (wrong(|order| order.deposits.bid_bond = Amount::ZERO), "deposits.bid_bond"),
        (wrong(|order| order.deposits.bid_bond = Amount::from_units(1_999)), "deposits.bid_bond"),
        (
            wrong(|order| order.deposits.audit_bond = Amount::from_units(6_999)),
            "deposits.audit_bond",
        ),
        (wrong(|order| order.audit.fee = Amount::ZERO), "audit.fee"),
        (wrong(|order| order.price_max = Amount::from_units(6_999)), "price_max"),
        (
            wrong(|order| order.deposits.default_fine = Amount::from_units(1_999)),
            "deposits.default_fine",
        ),
        (wrong(|order| order.deposits.stake = Amount::from_units(19_700)), "deposits.stake"),
        (wrong(|order| order.audit.fee = Amount::from_units(u128::MAX)), "deposits.audit_bond"),
    ] {
        assert!(found.starts_with(field), "{field}: {found}");
    }
}

#[test]
fn the_audited_share_is_rounded_up_to_half_at_most() {
    let order = order();
    for (delivered, audited) in [(0, 0), (1, 1), (2, 1), (10, 1), (11, 2), (20, 2)] {
        assert_eq!(order.audited(delivered), audited, "{delivered}");
    }
    let audit = AuditTerms { share: 500_000, ..order.audit };
    let half = ComputeOrder { audit, ..order };
    for (delivered, audited) in [(1, 1), (2, 1), (3, 1), (4, 2), (9, 4)] {
        assert_eq!(half.audited(delivered), audited, "{delivered}");
    }
}

#[test]
fn a_segment_has_the_predicted_time_with_slack() {
    let order = order();
    // 10 steps of 30 µs, twice: 600 µs, rounded up, and half a second.
    assert_eq!(order.segment_ms(30), 501);
    assert_eq!(order.segment_ms(50), 501);
    assert_eq!(order.segment_ms(51), 502);
    assert_eq!(order.segment_ms(1_000_000), 20_500);
    assert_eq!(order.segment_ms(u64::MAX), 2 * 864_000_000 + 500);
}

#[test]
fn a_renter_is_not_its_own_referee() {
    let own = ComputeOrder { referee: order().renter, ..order() };
    assert_eq!(Lease::open(own, Timestamp(0)).unwrap_err().code(), "COMPUTE_ACCOUNT");
}

/// Bids, 1,024 winners that do not fund, 20 segments of 501 ms, a draw, six windows of audits, and 36
/// answers: 2 segments of 2 auditors, each with 4 answers of both sides and a ruling.
#[test]
fn the_longest_duration_adds_all_deadlines() {
    let sum = 2_000 + 1_024_000 + 20 * 501 + 1_000 + 6_000 + 36 * 100;
    assert_eq!(order().duration_ms_max(), sum);
}

#[test]
fn an_account_loses_its_largest_deposit_at_most() {
    for (bid_bond, stake, audit_bond) in [(3, 1, 2), (1, 3, 2), (2, 1, 3)] {
        let [bid_bond, stake, audit_bond] = [bid_bond, stake, audit_bond].map(Amount::from_units);
        let deposits = Deposits { bid_bond, stake, audit_bond, ..order().deposits };
        assert_eq!(deposits.largest(), Amount::from_units(3));
    }
}

#[test]
fn orders_have_ids_of_their_own() {
    let other = ComputeOrder { nonce: 2, ..order() };
    assert_ne!(order().id(), other.id());
    assert_eq!(order().id(), order().digest());
}
