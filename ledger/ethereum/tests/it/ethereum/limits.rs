//! Limits that random sequences do not reach, on the embedded chain and on the contracts.

use florin_ledger::limits::PLEDGES_MAX;
use florin_ledger::{EmbeddedChain, Ledger, LedgerError, Terms};
use florin_protocol::{Address, Amount, TaskId, WalletSigner};

use super::market::{InProcessMarket, MarketTemplate};
use florin_testkit::ledger_model::accounts::{START, TestAccounts, units};
use florin_testkit::ledger_model::model::{Flaw, INITIAL_BALANCE, PEOPLE, Rules};
use florin_testkit::ledger_model::{TestClock, genesis, operator};

/// The account that closes tasks.
const COORDINATOR: usize = 1;

fn cast() -> TestAccounts {
    TestAccounts::new(1_000)
}

fn both(cast: &TestAccounts) -> (EmbeddedChain, InProcessMarket) {
    let clock = TestClock::default();
    clock.set(cast.tick(START));
    let seen = clock.to_ledger_clock();
    let chain = EmbeddedChain::in_memory(&genesis(cast), operator(), seen).unwrap();
    let people: Vec<Address> = (0..PEOPLE).map(|n| cast.address(n)).collect();
    (chain, MarketTemplate::new(&people, units(INITIAL_BALANCE), START as u64).market())
}

fn code<T: std::fmt::Debug>(answer: Result<T, LedgerError>) -> &'static str {
    match answer {
        Err(LedgerError::Refused(refusal)) => refusal.code(),
        other => panic!("not refused: {other:?}"),
    }
}

/// A task with the smallest pool and window, and otherwise zero terms.
fn terms(cast: &TestAccounts, number: usize) -> Terms {
    let rules = Rules {
        coordinator: COORDINATOR,
        arbiter: 2,
        data: 1,
        rounds: 1,
        window: 1,
        expires: START + 1_000,
        ..Rules::default()
    };
    let mut id = [0; 32];
    id[..8].copy_from_slice(&number.to_le_bytes());
    Terms { task: TaskId(id), ..cast.terms(0, rules, Flaw::Nothing) }
}

fn pledges(ledger: &dyn Ledger, cast: &TestAccounts) {
    let (buyer, provider) = (&cast.people[0], &cast.people[4]);
    ledger.stake(provider, units(1)).unwrap();
    // A coordinator that is the arbiter closes at any time.
    let trusted = |number| Terms { arbiter: cast.address(COORDINATOR), ..terms(cast, number) };
    let tasks: Vec<Terms> = (0..=PLEDGES_MAX).map(trusted).collect();
    for terms in &tasks {
        ledger.open_task(buyer, terms).unwrap();
    }
    let (one_more, allowed) = tasks.split_last().unwrap();
    for terms in allowed {
        ledger.pledge(provider, terms.task).unwrap();
    }
    assert_eq!(code(ledger.pledge(provider, one_more.task)), "LIMIT_EXCEEDED");
    ledger.unstake(provider).unwrap();
    // A closed task no longer counts towards the limit.
    ledger.close(&cast.people[COORDINATOR], allowed[7].task).unwrap();
    ledger.pledge(provider, one_more.task).unwrap();
    assert!(!ledger.is_pledged(allowed[7].task, provider.address()).unwrap());
    assert_eq!(ledger.stake_of(provider.address()).unwrap().release, None);
}

#[test]
fn the_limit_of_pledges_is_the_same_on_chain_and_contracts() {
    let cast = cast();
    let (chain, market) = both(&cast);
    pledges(&chain, &cast);
    pledges(&market.ledger, &cast);
}

#[test]
fn a_transfer_to_the_zero_address_is_refused_by_both() {
    let cast = cast();
    let (chain, market) = both(&cast);
    let zero_address = Address([0; 20]);
    for ledger in [&chain as &dyn Ledger, &market.ledger] {
        let give = |amount| code(ledger.transfer(&cast.people[0], zero_address, amount));
        assert_eq!(give(units(1)), "INVALID_ARGUMENT");
        assert_eq!(give(units(INITIAL_BALANCE + 1)), "INSUFFICIENT_FUNDS");
        assert_eq!(ledger.balance(zero_address).unwrap(), Amount::ZERO);
    }
}

/// The amount that a task owes shares a storage slot with 96 bits of its root. No account has such
/// a balance, so both refuse, with different codes.
#[test]
fn pools_beyond_96_bits_are_refused_by_both() {
    let cast = cast();
    let (chain, market) = both(&cast);
    let terms = Terms { data: Amount::from_units(1 << 96), ..terms(&cast, 0) };
    let buyer = &cast.people[0];
    assert_eq!(code(chain.open_task(buyer, &terms)), "INSUFFICIENT_FUNDS");
    assert_eq!(code(market.ledger.open_task(buyer, &terms)), "LIMIT_EXCEEDED");
    let terms = Terms { data: Amount::from_units((1 << 96) - 1), ..terms };
    assert_eq!(code(market.ledger.open_task(buyer, &terms)), "INSUFFICIENT_FUNDS");
}
