//! Offers against the policies of markets, and the stored terms.

use florin_compute::{Card, StepTimes};

use super::*;

fn offer() -> ListingOffer {
    ListingOffer {
        referee: Address([2; 20]),
        devices: 2,
        filled: 100,
        stake: None,
        fees_max: Amount::from_units(55),
        life_ms: 3_600_000,
        challenge_ms: 600_000,
    }
}

fn policy() -> ListingPolicy {
    ListingPolicy {
        stake_min: Amount::from_units(500),
        fee: Amount::from_units(10),
        probe_ms_min: 15_000,
        life_ms_min: 600_000,
        challenge_ms_max: 600_000,
        referees: vec![Address([1; 20]), Address([2; 20])],
    }
}

fn terms(offer: &ListingOffer, policy: &ListingPolicy) -> Result<ListingTerms, &'static str> {
    let example = ListingTerms::example().unwrap();
    let card = Card { links: StepTimes::new(vec![1_000, 1_500]).unwrap(), ..example.card };
    let parties = (example.market, Address([7; 20]));
    offer.terms(policy, parties, card, 3).map_err(|error| error.code())
}

#[test]
fn a_probe_is_as_long_as_the_market_needs() {
    let found = terms(&offer(), &policy()).unwrap();
    assert_eq!((found.provider, found.nonce), (Address([7; 20]), 3));
    assert_eq!((found.stake.units(), found.probes_max), (1_000, 5));
    assert!((15_000..15_010).contains(&found.predicted_ms()), "{}", found.predicted_ms());
    // Three reads of each filled state are the least, however short the market's probes are.
    let short = ListingPolicy { probe_ms_min: 10, ..policy() };
    let found = terms(&offer(), &short).unwrap();
    assert_eq!((found.probe.filled, found.probe.reads), (100, 300));
}

#[test]
fn an_offer_that_the_market_does_not_take_deposits_nothing() {
    let code = |offer: ListingOffer| terms(&offer, &policy()).map(|terms| terms.probes_max);
    assert_eq!(
        code(ListingOffer { referee: Address([3; 20]), ..offer() }),
        Err("REFEREE_NOT_ACCEPTED")
    );
    let stake = |units| Some(Amount::from_units(units));
    assert_eq!(code(ListingOffer { stake: stake(999), ..offer() }), Err("STAKE_TOO_SMALL"));
    assert_eq!(code(ListingOffer { stake: stake(1_000), ..offer() }), Ok(5));
    let fees = |units| ListingOffer { fees_max: Amount::from_units(units), ..offer() };
    assert_eq!(code(fees(9)), Err("FEE_TOO_LARGE"));
    assert_eq!(code(fees(10)), Ok(1));
    // Twelve intervals of five minutes: twice as many probes, and sixteen.
    assert_eq!(code(fees(u128::MAX)), Ok(40));
    assert_eq!(code(ListingOffer { life_ms: 599_999, ..offer() }), Err("LIFE_TOO_SHORT"));
    assert_eq!(code(ListingOffer { challenge_ms: 600_001, ..offer() }), Err("CHALLENGE_TOO_LONG"));
    // A device more than the card has.
    assert_eq!(code(ListingOffer { devices: 3, ..offer() }), Err("COMPUTE_INVALID"));
    let free = ListingPolicy { fee: Amount::ZERO, ..policy() };
    assert_eq!(terms(&fees(0), &free).map(|terms| terms.probes_max), Ok(40));
}

#[test]
fn the_terms_of_an_earlier_run_are_read_again() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(store::stored(folder.path()).unwrap(), None);
    let found = terms(&offer(), &policy()).unwrap();
    store::store(&folder.path().join("new"), &found).unwrap();
    assert_eq!(store::stored(&folder.path().join("new")).unwrap(), Some(found));
    assert!(measure_storage(folder.path()).unwrap() > 0);
}
