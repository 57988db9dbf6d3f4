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
    let found = terms(&offer(), &policy()).unwrap();
    let lister = store::Lister { market: found.market, provider: found.provider };
    assert_eq!(store::stored(folder.path(), lister).unwrap(), None);
    store::store(&folder.path().join("new"), &found).unwrap();
    assert_eq!(store::stored(&folder.path().join("new"), lister).unwrap(), Some(found));
    assert!(measure_storage(folder.path()).unwrap() > 0);
}

/// Another wallet or market in the folder does not hide the listing, whose stake is locked.
#[test]
fn a_listing_of_another_account_is_set_aside_and_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let own = terms(&offer(), &policy()).unwrap();
    let lister = store::Lister { market: own.market, provider: own.provider };
    let other = store::Lister { provider: Address([8; 20]), ..lister };
    store::store(folder, &own).unwrap();
    assert_eq!(store::stored(folder, other).unwrap(), None);
    let of_other = ListingTerms { provider: other.provider, ..own.clone() };
    store::store(folder, &of_other).unwrap();
    for _ in 0..2 {
        assert_eq!(store::stored(folder, lister).unwrap(), Some(own.clone()));
        assert_eq!(store::stored(folder, other).unwrap(), Some(of_other.clone()));
    }
    // So does an ended listing: its stake returns to its own account alone.
    store::set_aside(folder, of_other.id()).unwrap();
    assert_eq!(store::aside(folder, lister).unwrap(), []);
    assert_eq!(store::aside(folder, other).unwrap(), [of_other.id()]);
    assert_eq!(store::stored(folder, other).unwrap(), None);
    store::forget(folder, of_other.id()).unwrap();
    assert_eq!(store::aside(folder, other).unwrap(), []);
    assert_eq!(store::stored(folder, lister).unwrap(), Some(own));
}

#[test]
fn a_damaged_record_is_an_error_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let own = terms(&offer(), &policy()).unwrap();
    let lister = store::Lister { market: own.market, provider: own.provider };
    for text in ["", "{}", "{\"version\": 0}"] {
        std::fs::write(folder.path().join("listing.json"), text).unwrap();
        let error = ListError::from(store::stored(folder.path(), lister).unwrap_err());
        assert_eq!(error.code(), "LISTING_RECORD_INVALID", "{error}");
        assert!(error.to_string().contains("--unlist"), "{error}");
    }
}
