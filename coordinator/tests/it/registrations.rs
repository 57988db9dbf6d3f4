//! Registrations: one node key for each wallet and role, and which registrations give way when the
//! market has as many as it stores.

use std::sync::OnceLock;

use florin_engine::state::{DepositReading, RegistrationEntry};
use florin_engine::{
    Engine, Event, EventStatus, REGISTRATION_DEPOSIT_MIN, REGISTRATION_MS_MAX,
    REGISTRATIONS_EVICTED_AT_ONCE, REGISTRATIONS_MAX,
};
use florin_protocol::*;

use crate::support::*;

/// One signed registration; a signature takes longer than an event.
fn template() -> &'static Registration {
    static SIGNED: OnceLock<Registration> = OnceLock::new();
    SIGNED.get_or_init(|| registration(2, Role::Participant))
}

/// A registration of a made-up wallet. The engine's caller verifies signatures.
fn wallet_number(n: u32) -> Registration {
    let mut bytes = [0xaa; 20];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    Registration { wallet: Address(bytes), ..template().clone() }
}

/// Registers made-up wallets until every place is taken.
fn fill(world: &mut EngineFixture) {
    let stored = world.engine.state().registrations.len();
    for n in 0..u32::try_from(REGISTRATIONS_MAX - stored).unwrap() {
        let event = Event::Registered(wallet_number(n));
        world.engine.apply(&event, world.now).unwrap();
    }
    assert_eq!(world.engine.state().registrations.len(), REGISTRATIONS_MAX);
}

fn is_registered(world: &EngineFixture, account: Address) -> bool {
    world.engine.registration(account, None).is_ok()
}

fn newcomer() -> Event {
    Event::Registered(registration(99, Role::Participant))
}

/// The same market in which every made-up wallet has this deposit in the fixture's task.
fn with_deposits(world: &mut EngineFixture, amount: Amount) {
    let mut state = world.engine.state().clone();
    let locked_until = world.now.saturating_add_ms(world.spec.budget.unbond_ms);
    for (n, (_, entry)) in state.registrations.iter_mut().enumerate() {
        let since = Timestamp(world.now.0 + n as u64);
        let deposit = Some(DepositReading { task: world.id, amount, locked_until });
        *entry = RegistrationEntry { since, deposit, ..entry.clone() };
    }
    world.engine = Engine::from_state(market(), address(COORDINATOR), state);
}

#[test]
fn a_registration_is_bound_to_its_node_key_and_renewable_only_after_half_its_lifetime() {
    let mut world = EngineFixture::with_published_task(1);
    let sign = |seed, expires| {
        let node = node(seed);
        let wallet = SeededWallet::number(1);
        let registration =
            Registration::sign(market(), &wallet, &node, Role::Participant, Timestamp(expires));
        Event::Registered(registration.unwrap())
    };
    assert_eq!(world.rejection_code(sign(7, 1_000_001)), ErrorCode::ConflictingMessage);
    assert_eq!(world.rejection_code(sign(1, 10)), ErrorCode::DeadlinePassed);
    assert_eq!(
        world.rejection_code(sign(1, 1_001 + REGISTRATION_MS_MAX)),
        ErrorCode::InvalidExpiry
    );
    assert_eq!(world.apply(sign(1, 2_000_000)).unwrap().status, EventStatus::Duplicate);
    assert_eq!(world.apply(sign(1, 999_999)).unwrap().status, EventStatus::Duplicate);
    world.now = Timestamp(500_501);
    assert_eq!(world.apply(sign(1, 2_000_000)).unwrap().status, EventStatus::New);
    assert_eq!(world.apply(sign(1, 2_000_001)).unwrap().status, EventStatus::Duplicate);
    world.now = Timestamp(3_000_000);
    assert_eq!(world.rejection_code(sign(7, 4_000_000)), ErrorCode::ConflictingMessage);
    assert_eq!(world.engine.registration(address(1), None).unwrap().node_key, node(1).key());
}

#[test]
fn in_a_full_market_a_newcomer_replaces_the_oldest_registrations_that_nothing_backs() {
    let mut world = EngineFixture::with_published_task(2);
    world.apply(world.enrol_event(1)).unwrap();
    world.now = Timestamp(2_000);
    fill(&mut world);
    world.now = Timestamp(3_000);
    world.apply(newcomer()).unwrap();
    assert!(is_registered(&world, address(99)));
    assert!(is_registered(&world, address(1)), "it has a bond in an open task");
    assert!(!is_registered(&world, address(2)), "it is the oldest without one");
    assert!(!is_registered(&world, address(PROVIDER)), "it has not asked for work");
    let stored = world.engine.state().registrations.len();
    assert_eq!(stored, REGISTRATIONS_MAX - REGISTRATIONS_EVICTED_AT_ONCE + 1);
    // The rest of the batch is the first of the made-up wallets.
    let last = u32::try_from(REGISTRATIONS_EVICTED_AT_ONCE).unwrap() - 3;
    assert!(!is_registered(&world, wallet_number(last).wallet));
    assert!(is_registered(&world, wallet_number(last + 1).wallet));
}

#[test]
fn an_evicted_participant_registers_again_and_goes_on() {
    let mut world = EngineFixture::with_open_round(4);
    // Every account has a deposit that is too small to count, and participant 1 is the oldest.
    fill(&mut world);
    with_deposits(&mut world, Amount::from_units(1));
    let mut state = world.engine.state().clone();
    let oldest = state.registrations.get_mut(&(address(1), Role::Participant)).unwrap();
    oldest.since = Timestamp(0);
    world.engine = Engine::from_state(market(), address(COORDINATOR), state);
    world.apply(newcomer()).unwrap();
    assert_eq!(world.rejection_code(world.commit_event(1)), ErrorCode::NotRegistered);
    // Its balance may be its bond: the server asks for no other money.
    assert!(world.engine.takes_part(address(1)) && !world.engine.takes_part(address(99)));
    world.apply(Event::Registered(registration(1, Role::Participant))).unwrap();
    world.apply(world.commit_event(1)).unwrap();
    let entry = &world.engine.state().registrations[&(address(1), Role::Participant)];
    assert!(entry.deposit.is_some_and(|read| read.amount == fln("5")), "its bond backs it again");
}

#[test]
fn a_locked_deposit_keeps_its_registration_and_a_market_of_such_accounts_is_full() {
    let mut world = EngineFixture::with_published_task(1);
    fill(&mut world);
    with_deposits(&mut world, REGISTRATION_DEPOSIT_MIN);
    assert_eq!(world.rejection_code(newcomer()), ErrorCode::LimitReached);
    // One unit less does not keep it.
    let almost = REGISTRATION_DEPOSIT_MIN.minus(Amount::from_units(1)).unwrap();
    let mut small = world.clone();
    with_deposits(&mut small, almost);
    small.apply(newcomer()).unwrap();
    // Nor does a deposit that its owner may have taken back.
    let mut late = world.clone();
    late.now = late.now.saturating_add_ms(late.spec.budget.unbond_ms);
    late.apply(newcomer()).unwrap();
    // Nor does one in a task that is closed.
    world.apply(Event::TaskClosed { task: world.id, refund: Amount::ZERO }).unwrap();
    world.apply(newcomer()).unwrap();
}

#[test]
fn a_repeated_enrolment_renews_the_deposit_after_half_of_its_lock() {
    let mut world = EngineFixture::with_published_task(1);
    let key = (address(1), Role::Participant);
    world.apply(world.enrol_event(1)).unwrap();
    let delay = world.spec.budget.unbond_ms;
    let locked_until = |world: &EngineFixture| {
        world.engine.state().registrations[&key].deposit.unwrap().locked_until
    };
    let begun = world.now;
    assert_eq!(locked_until(&world), begun.saturating_add_ms(delay));
    world.now = begun.saturating_add_ms(delay / 2);
    assert_eq!(world.apply(world.enrol_event(1)).unwrap().status, EventStatus::Duplicate);
    world.now = world.now.saturating_add_ms(1);
    assert_eq!(world.apply(world.enrol_event(1)).unwrap().status, EventStatus::New);
    assert_eq!(locked_until(&world), world.now.saturating_add_ms(delay));
    // A provider's request for work shows its stake.
    let ready = Event::ProviderReady { task: world.id, provider: address(PROVIDER) };
    world.apply(ready.clone()).unwrap();
    assert_eq!(world.apply(ready.clone()).unwrap().status, EventStatus::Duplicate);
    world.now = world.now.saturating_add_ms(delay / 2 + 1);
    assert_eq!(world.apply(ready).unwrap().status, EventStatus::New);
    let read = world.engine.state().registrations[&(address(PROVIDER), Role::Provider)].deposit;
    assert_eq!(read.unwrap().amount, world.spec.budget.stake_min);
}

#[test]
fn a_registration_that_verifies_an_accepted_update_stays_for_good_and_does_not_count() {
    let mut world = EngineFixture::in_valuing(4);
    assert_eq!(world.engine.state().signed_registrations, 4);
    let record = Event::WorkRecordReceived { record: world.record(), agrees: None };
    world.apply(record).unwrap();
    assert_eq!(world.engine.state().signed_registrations, 5);
    world.apply(Event::TaskClosed { task: world.id, refund: Amount::ZERO }).unwrap();
    for n in 0..u32::try_from(REGISTRATIONS_MAX).unwrap() {
        world.engine.apply(&Event::Registered(wallet_number(n)), world.now).unwrap();
    }
    assert_eq!(world.engine.state().registrations.len(), REGISTRATIONS_MAX + 5, "no eviction yet");
    world.apply(newcomer()).unwrap();
    assert!((1..=4).all(|i| is_registered(&world, address(i))));
    assert!(is_registered(&world, address(PROVIDER)));
    assert!(!is_registered(&world, wallet_number(0).wallet));
}

#[test]
fn evictions_follow_from_the_journal() {
    let mut world = EngineFixture::with_open_round(4);
    let from = world.engine.state().registrations.len();
    for n in 0..u32::try_from(REGISTRATIONS_MAX - from).unwrap() {
        world.now = world.now.saturating_add_ms(u64::from(n % 2));
        world.apply(Event::Registered(wallet_number(n.reverse_bits()))).unwrap();
    }
    world.apply(newcomer()).unwrap();
    let mut replayed = Engine::new(market(), address(COORDINATOR));
    for (at, event) in &world.journal {
        assert_eq!(replayed.apply(event, *at).unwrap().status, EventStatus::New);
    }
    assert_eq!(replayed.state(), world.engine.state());
}
