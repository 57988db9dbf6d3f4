//! The phases of a listing, its deadlines, and its money.

use florin_protocol::WalletSigner as _;

use super::*;
use crate::StepTimes;
use crate::record::tests::LeaseSigner;

const SEED: Digest = Digest([7; 32]);
const SECRET: Digest = Digest([8; 32]);
const ROOT: Digest = Digest([9; 32]);
const HOST: Address = Address([6; 20]);
const ORDER: Digest = Digest([5; 32]);

fn terms() -> ListingTerms {
    let provider = LeaseSigner::number(1).address();
    ListingTerms { provider, ..ListingTerms::example().unwrap() }
}

fn opened() -> Listing {
    let opening = ListingOpening { terms: terms(), coordinator: HOST, opened: Timestamp(1_000) };
    Listing::open(&opening).unwrap()
}

fn signed(number: u8, message: SignedMessage) -> ListingEvent {
    let signer = LeaseSigner::number(number);
    let body = ListingAction { listing: terms().id(), by: signer.address(), message };
    ListingEvent::Signed(body.sign(terms().market, &signer).unwrap())
}

fn probed() -> ListingEvent {
    ListingEvent::Probed { seed: SEED, draw: draw_commitment(terms().id(), SECRET) }
}

fn computed() -> ListingEvent {
    signed(1, SignedMessage::Computed { seed: SEED, root: ROOT })
}

fn measured(order: u8, measured_us: u64) -> ListingEvent {
    ListingEvent::Measured { order: Digest([order; 32]), predicted_us: 1_000, measured_us }
}

fn apply(listing: &mut Listing, ms: u64, event: ListingEvent) -> Result<(), &'static str> {
    let before = listing.clone();
    let record = ListingRecord { at: Timestamp(ms), event };
    let applied = listing.apply(&record).map_err(|error| error.code());
    if applied.is_err() {
        assert_eq!(*listing, before, "a refused event changes nothing");
    }
    applied
}

/// A listing whose first probe is passed.
fn listed() -> Listing {
    let mut listing = opened();
    let events = [
        (2_000, probed()),
        (2_010, computed()),
        (2_010, ListingEvent::Drawn(SECRET)),
        (2_020, ListingEvent::Shown(ROOT)),
    ];
    for (ms, event) in events {
        assert_eq!(apply(&mut listing, ms, event), Ok(()));
    }
    listing
}

/// Paid to the coordinator and debited from the provider, in units.
fn money(listing: &Listing) -> (u128, u128) {
    let totals = listing.totals().unwrap();
    let of = |account: Address| totals.get(&account).copied().unwrap_or_default();
    assert_eq!(of(HOST).debited, Amount::ZERO);
    assert_eq!(of(terms().provider).paid, Amount::ZERO);
    (of(HOST).paid.units(), of(terms().provider).debited.units())
}

#[test]
fn a_listing_counts_once_its_probe_is_shown() {
    let mut listing = opened();
    assert_eq!(listing.phase(), (ListingPhase::Opened, Timestamp(3_601_000)));
    assert!(!listing.covers(1) && listing.probe().is_none());
    assert_eq!(apply(&mut listing, 2_000, probed()), Ok(()));
    assert_eq!(listing.probe().map(|probe| probe.seed), Some(SEED));
    // 32 links of 1.1 ms are 36 ms, times 1.15, and a second.
    assert_eq!(listing.phase(), (ListingPhase::Computing, Timestamp(2_000 + 42 + 1_000)));
    assert_eq!(apply(&mut listing, 2_010, computed()), Ok(()));
    assert!(listing.drawn().is_none() && !listing.covers(1));
    assert_eq!(apply(&mut listing, 2_500, ListingEvent::Drawn(SECRET)), Ok(()));
    assert_eq!(listing.phase(), (ListingPhase::Showing, Timestamp(62_500)));
    let drawn = listing.drawn().unwrap();
    assert_eq!((drawn.root, drawn.secret, drawn.seed), (ROOT, SECRET, SEED));
    assert_eq!(apply(&mut listing, 2_600, ListingEvent::Shown(ROOT)), Ok(()));
    assert_eq!(listing.phase(), (ListingPhase::Listed, Timestamp(3_601_000)));
    assert!(listing.covers(2) && !listing.covers(3) && listing.drawn().is_none());
    assert_eq!((listing.probes(), listing.length()), ((1, 1), 4));
    assert_eq!(money(&listing), (10, 0));
    // Its life ends.
    assert_eq!(apply(&mut listing, 3_601_000, ListingEvent::Expired), Err("COMPUTE_EARLY"));
    assert_eq!(apply(&mut listing, 3_601_001, ListingEvent::Expired), Ok(()));
    assert_eq!(listing.outcome(), Some(ListingOutcome::Expired));
    assert!(!listing.covers(1));
    assert_eq!(money(&listing), (10, 0));
}

#[test]
fn a_late_probe_is_unproven() {
    let mut listing = opened();
    assert_eq!(apply(&mut listing, 2_000, probed()), Ok(()));
    assert_eq!(apply(&mut listing, 3_043, computed()), Err("COMPUTE_LATE"));
    assert_eq!(apply(&mut listing, 3_042, ListingEvent::Expired), Err("COMPUTE_EARLY"));
    assert_eq!(apply(&mut listing, 3_043, ListingEvent::Expired), Ok(()));
    assert_eq!(listing.outcome(), Some(ListingOutcome::Unproven));
    assert_eq!(money(&listing), (10, 0));
    for event in [probed(), computed(), ListingEvent::Expired, ListingEvent::Resumed] {
        assert_eq!(apply(&mut listing, 4_050, event), Err("COMPUTE_PHASE"));
    }
    // The last moment counts.
    let mut listing = opened();
    assert_eq!(apply(&mut listing, 2_000, probed()), Ok(()));
    assert_eq!(apply(&mut listing, 3_042, computed()), Ok(()));
    assert_eq!(apply(&mut listing, 3_042, ListingEvent::Drawn(SECRET)), Ok(()));
    assert_eq!(apply(&mut listing, 63_043, ListingEvent::Shown(ROOT)), Err("COMPUTE_LATE"));
    assert_eq!(apply(&mut listing, 63_043, ListingEvent::Expired), Ok(()));
    assert_eq!(listing.outcome(), Some(ListingOutcome::Unproven));
    // A coordinator that does not draw leaves the provider without fault.
    let mut listing = opened();
    assert_eq!(apply(&mut listing, 2_000, probed()), Ok(()));
    assert_eq!(apply(&mut listing, 2_010, computed()), Ok(()));
    assert_eq!(apply(&mut listing, 62_011, ListingEvent::Expired), Ok(()));
    assert_eq!(listing.outcome(), Some(ListingOutcome::Expired));
}

#[test]
fn events_out_of_turn_are_refused() {
    let mut listing = opened();
    for event in
        [computed(), ListingEvent::Drawn(SECRET), ListingEvent::Shown(ROOT), measured(1, 1)]
    {
        assert_eq!(apply(&mut listing, 2_000, event), Err("COMPUTE_PHASE"), "{event:?}");
    }
    assert_eq!(apply(&mut listing, 2_000, probed()), Ok(()));
    assert_eq!(apply(&mut listing, 1_999, computed()), Err("COMPUTE_COMMITMENT"));
    assert_eq!(apply(&mut listing, 2_001, probed()), Err("COMPUTE_PHASE"));
    let stale = signed(1, SignedMessage::Computed { seed: ORDER, root: ROOT });
    assert_eq!(apply(&mut listing, 2_001, stale), Err("COMPUTE_COMMITMENT"));
    let other = signed(2, SignedMessage::Computed { seed: SEED, root: ROOT });
    assert_eq!(apply(&mut listing, 2_001, other), Err("COMPUTE_ACCOUNT"));
    let ListingEvent::Signed(mut forged) = computed() else { panic!("it is signed") };
    forged.body.message = SignedMessage::Withdraw;
    assert_eq!(apply(&mut listing, 2_001, ListingEvent::Signed(forged)), Err("COMPUTE_ACCOUNT"));
    let elsewhere = ListingAction { listing: ORDER, ..forged.body };
    let signer = LeaseSigner::number(1);
    let elsewhere = elsewhere.sign(terms().market, &signer).unwrap();
    assert_eq!(apply(&mut listing, 2_001, ListingEvent::Signed(elsewhere)), Err("COMPUTE_ACCOUNT"));
    assert_eq!(apply(&mut listing, 2_001, computed()), Ok(()));
    assert_eq!(apply(&mut listing, 2_001, ListingEvent::Shown(ROOT)), Err("COMPUTE_COMMITMENT"));
    assert_eq!(apply(&mut listing, 2_001, ListingEvent::Drawn(ROOT)), Err("COMPUTE_COMMITMENT"));
    assert_eq!(apply(&mut listing, 2_001, ListingEvent::Drawn(SECRET)), Ok(()));
    assert_eq!(apply(&mut listing, 2_001, ListingEvent::Drawn(SECRET)), Err("COMPUTE_PHASE"));
    assert_ne!(draw_commitment(ORDER, SECRET), draw_commitment(terms().id(), SECRET));
}

#[test]
fn three_slow_leases_take_the_stake() {
    let mut listing = listed();
    assert_eq!(apply(&mut listing, 3_000, measured(1, 1_500)), Ok(()));
    // One lease counts once.
    assert_eq!(apply(&mut listing, 3_001, measured(1, 1_500)), Err("COMPUTE_REPEATED"));
    assert_eq!(apply(&mut listing, 3_001, measured(2, 1_500)), Ok(()));
    assert_eq!((listing.outcome(), money(&listing)), (None, (10, 0)));
    assert_eq!(apply(&mut listing, 3_002, measured(5, 1_500)), Ok(()));
    assert_eq!(listing.outcome(), Some(ListingOutcome::Contradicted { order: ORDER }));
    assert_eq!((listing.drift().0, money(&listing)), (3, (10, 5_000)));
    assert!(!listing.covers(1));
    assert_eq!(apply(&mut listing, 3_003, measured(6, 1_500)), Err("COMPUTE_PHASE"));
}

/// A listing ends with the last lease that it can measure: no later one escapes its stake.
#[test]
fn a_listing_ends_with_its_last_measured_lease() {
    let mut listing = listed();
    let lease = |number: usize| {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
        ListingEvent::Measured { order: Digest(bytes), predicted_us: 1_000, measured_us: 1_000 }
    };
    for number in 1..MEASURED_MAX {
        let record = ListingRecord { at: Timestamp(3_000), event: lease(number) };
        listing.apply(&record).unwrap();
    }
    assert!(listing.measures_more() && listing.covers(1));
    assert_eq!(apply(&mut listing, 3_000, lease(MEASURED_MAX)), Ok(()));
    assert_eq!(listing.outcome(), Some(ListingOutcome::Expired));
    assert_eq!(apply(&mut listing, 3_000, lease(MEASURED_MAX + 1)), Err("COMPUTE_LIMIT"));
}

/// A provider that leaves before its third slow lease is over loses the stake all the same.
#[test]
fn the_stake_answers_for_leases_that_end_after_the_listing() {
    let mut listing = listed();
    for order in [1, 2] {
        assert_eq!(apply(&mut listing, 3_000, measured(order, 2_000)), Ok(()));
    }
    assert_eq!(apply(&mut listing, 3_002, signed(1, SignedMessage::Withdraw)), Ok(()));
    assert_eq!(listing.outcome(), Some(ListingOutcome::Withdrawn));
    assert_eq!((listing.covers(1), money(&listing)), (false, (10, 0)));
    assert_eq!(
        apply(&mut listing, 3_002, signed(1, SignedMessage::Withdraw)),
        Err("COMPUTE_PHASE")
    );
    assert_eq!(apply(&mut listing, 3_003, measured(5, 2_000)), Ok(()));
    assert_eq!(listing.outcome(), Some(ListingOutcome::Contradicted { order: ORDER }));
    assert_eq!(money(&listing), (10, 5_000));
}

#[test]
fn probes_repeat_until_the_paid_ones_are_over() {
    let mut listing = listed();
    for _ in [2, 3] {
        assert_eq!(apply(&mut listing, 3_000, probed()), Ok(()));
        // A bid counts while the devices are tested again.
        assert!(listing.covers(2));
        assert_eq!(apply(&mut listing, 3_000, computed()), Ok(()));
        assert_eq!(apply(&mut listing, 3_000, ListingEvent::Drawn(SECRET)), Ok(()));
        assert_eq!(apply(&mut listing, 3_000, ListingEvent::Shown(ROOT)), Ok(()));
    }
    assert_eq!(money(&listing), (30, 0));
    assert_eq!(apply(&mut listing, 3_001, probed()), Ok(()));
    assert_eq!(listing.outcome(), Some(ListingOutcome::Expired));
    assert_eq!((listing.probes(), money(&listing)), ((3, 3), (30, 0)));
}

#[test]
fn a_restart_costs_no_provider_its_listing() {
    let mut listing = opened();
    assert_eq!(apply(&mut listing, 2_000, probed()), Ok(()));
    assert_eq!(apply(&mut listing, 90_000, ListingEvent::Resumed), Ok(()));
    assert_eq!(listing.phase(), (ListingPhase::Opened, Timestamp(3_601_000)));
    assert_eq!((listing.probes(), money(&listing)), ((0, 0), (0, 0)));
    assert_eq!(apply(&mut listing, 90_000, probed()), Ok(()));
    assert_eq!(apply(&mut listing, 90_010, computed()), Ok(()));
    assert_eq!(apply(&mut listing, 90_020, ListingEvent::Drawn(SECRET)), Ok(()));
    assert_eq!(apply(&mut listing, 290_020, ListingEvent::Resumed), Ok(()));
    assert_eq!(listing.phase(), (ListingPhase::Showing, Timestamp(350_020)));
    assert_eq!(apply(&mut listing, 290_030, ListingEvent::Shown(ROOT)), Ok(()));
    assert_eq!(apply(&mut listing, 290_040, ListingEvent::Resumed), Ok(()));
    assert_eq!(listing.phase(), (ListingPhase::Listed, Timestamp(3_601_000)));
    assert_eq!(apply(&mut listing, 290_050, probed()), Ok(()));
    assert_eq!(apply(&mut listing, 290_060, ListingEvent::Resumed), Ok(()));
    assert_eq!(listing.phase(), (ListingPhase::Listed, Timestamp(3_601_000)));
    assert_eq!((listing.probes(), listing.covers(2)), ((1, 1), true));
}

#[test]
fn terms_are_checked() {
    assert_eq!(terms().check(), Ok(()));
    assert_eq!(terms().predicted_ms(), 36);
    assert_eq!(terms().probe_ms(), 42 + 1_000);
    assert_eq!(terms().pool(), Ok(Amount::from_units(30)));
    let code = |change: fn(&mut ListingTerms)| {
        let mut other = terms();
        change(&mut other);
        assert_ne!(other.id(), terms().id());
        other.check().map_err(|error| error.code())
    };
    let right: [fn(&mut ListingTerms); 4] = [
        |terms| terms.probes_max = 10_000,
        |terms| terms.life_ms = LISTING_MS_MIN,
        |terms| terms.life_ms = LISTING_MS_MAX,
        |terms| terms.fee = Amount::ZERO,
    ];
    for change in right {
        assert_eq!(code(change), Ok(()));
    }
    assert_eq!(code(|terms| terms.referee = terms.provider), Err("COMPUTE_ACCOUNT"));
    assert_eq!(code(|terms| terms.fee = Amount::from_units(u128::MAX)), Err("COMPUTE_AMOUNT"));
    let wrong: [fn(&mut ListingTerms); 8] = [
        |terms| terms.probe.devices = 3,
        |terms| terms.probe.filled = 1,
        |terms| terms.stake = Amount::ZERO,
        |terms| terms.probes_max = 0,
        |terms| terms.probes_max = 10_001,
        |terms| terms.life_ms = LISTING_MS_MIN - 1,
        |terms| terms.life_ms = LISTING_MS_MAX + 1,
        // 32 links of 2 minutes are more than an hour.
        |terms| terms.card.links = StepTimes::new(vec![1, 120_000_000]).unwrap(),
    ];
    for change in wrong {
        assert_eq!(code(change), Err("COMPUTE_INVALID"));
    }
}

#[test]
fn each_phase_has_a_name_and_a_measured_lease_is_remembered() {
    use ListingPhase::{Computing, Listed, Opened, Over, Showing};
    let names = [Opened, Computing, Showing, Listed, Over].map(ListingPhase::name);
    assert_eq!(names, ["opened", "computing", "showing", "listed", "over"]);
    let mut listing = listed();
    let order = |number| Digest([number; 32]);
    assert!(!listing.has_measured(order(7)));
    assert_eq!(apply(&mut listing, 3_000, measured(7, 1_000)), Ok(()));
    assert!(listing.has_measured(order(7)) && !listing.has_measured(order(8)));
}
