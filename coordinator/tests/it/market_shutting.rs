//! The price of shutting a market, played against the production engine: by registrations and by
//! tasks. An attacker locks money; a newcomer then registers, enrols and commits, or publishes.
//! `cargo test -p florin-coordinator --test it market_shutting -- --nocapture` prints the figures.

use std::sync::OnceLock;

use florin_engine::{
    BEGUN_TASK_WEIGHT, Event, PROVIDERS_PER_TASK_MAX, REGISTRATION_DEPOSIT_MIN, REGISTRATIONS_MAX,
    TASKS_MAX,
};
use florin_protocol::*;
use florin_testkit::figures::{Bar, figure};

use crate::support::*;

/// The least price of shutting a market, as a multiple of a newcomer's deposit.
const MULTIPLE_MIN: u128 = 1_000;

/// Money that an attacker has locked at one moment. It has all of it back later.
#[derive(Default)]
struct Locked(Amount);

impl Locked {
    fn add(&mut self, amount: Amount) {
        self.0 = self.0.plus(amount).unwrap();
    }

    /// Prints a line of the table. Returns the multiple of the newcomer's deposit.
    fn print(&self, attack: &str, newcomer: Result<(), ErrorCode>, deposit: Amount) -> u128 {
        let multiple = self.0.units() / deposit.units();
        let outcome = newcomer.map_or_else(|code| code.to_string(), |()| "in".to_owned());
        println!("{attack:<52} {:>14} FLN  {multiple:>7} x  {outcome}", self.0);
        // The price counts where the market is shut; elsewhere the newcomer takes part.
        let bar =
            if newcomer.is_err() { Bar::AtLeast(MULTIPLE_MIN as f64 - 1.0) } else { Bar::None };
        let name = format!("{attack}: locked, in deposits of the newcomer, who is {outcome}");
        figure(&name, multiple as f64, "", bar);
        multiple
    }
}

/// The address of an attacker's wallet.
fn attacker(number: usize) -> Address {
    let mut bytes = [0xee; 20];
    bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
    Address(bytes)
}

fn register(world: &mut EngineFixture, wallet: Address, role: Role) -> Result<(), ErrorCode> {
    static SIGNED: OnceLock<Registration> = OnceLock::new();
    let signed = SIGNED.get_or_init(|| registration(2, Role::Participant));
    let registration = Registration { wallet, role, ..signed.clone() };
    let applied = world.engine.apply(&Event::Registered(registration), world.now);
    applied.map(drop).map_err(|rejection| rejection.code)
}

fn publish(world: &mut EngineFixture, spec: &TaskSpec) -> Result<TaskId, ErrorCode> {
    let (spec, id) = (spec.clone().into(), spec.id());
    let event = Event::TaskPublished { spec, model_bytes: MODEL_BYTES, update_bytes: MODEL_BYTES };
    world.engine.apply(&event, world.now).map(|_| id).map_err(|rejection| rejection.code)
}

/// A task of the attacker's, which locks `data` and runs for ever with one participant.
fn attackers_task(number: usize, data: Amount) -> TaskSpec {
    static SPEC: OnceLock<TaskSpec> = OnceLock::new();
    let mut spec = SPEC.get_or_init(spec).clone();
    (spec.buyer, spec.salt, spec.expires) = (attacker(number), number as u64, Timestamp(u64::MAX));
    (spec.rounds.count, spec.rounds.cohort_min, spec.rounds.cohort_target) = (1, 1, 1);
    (spec.budget.data, spec.budget.infrastructure) = (data, Amount::ZERO);
    (spec.budget.bond_min, spec.budget.debit_max) = (Amount::ZERO, Amount::ZERO);
    spec
}

/// A market with one honest task, in which three of four members are enrolled.
fn honest_market() -> EngineFixture {
    let spec = TaskSpec { expires: Timestamp(u64::MAX), ..spec() };
    let mut world = EngineFixture::with_published_spec(spec, 3);
    (1..=3).for_each(|i| drop(world.apply(world.enrol_event(i)).unwrap()));
    world.now = world.now.saturating_add_ms(1);
    world
}

/// Delivers a task's model and holdout.
fn complete(world: &mut EngineFixture, task: TaskId) {
    let (digest, holdout) = (world.spec.base_model, blob_digest(&all_rows().0));
    for event in
        [Event::BlobArrived { task, digest }, Event::HoldoutArrived { task, digest: holdout }]
    {
        world.engine.apply(&event, world.now).unwrap();
    }
}

/// Registers attackers' wallets.
fn flood(world: &mut EngineFixture, numbers: std::ops::Range<usize>) {
    for number in numbers {
        register(world, attacker(number), Role::Participant).unwrap();
    }
}

/// Participant 4 registers, enrols and commits, while `between` happens after each step.
fn newcomer_takes_part(
    world: &mut EngineFixture,
    mut between: impl FnMut(&mut EngineFixture),
) -> Result<(), ErrorCode> {
    for step in 0..3 {
        let event = match step {
            0 => Event::Registered(registration(4, Role::Participant)),
            1 => world.enrol_event(4),
            _ => world.commit_event(4),
        };
        world.apply(event).map_err(|rejection| rejection.code)?;
        between(world);
    }
    Ok(())
}

/// Fills the market with providers in tasks of the attacker's own, each with this stake.
fn fill_with_stakes(world: &mut EngineFixture, stake: Amount) -> Locked {
    let mut locked = Locked::default();
    let spec_of = |first: usize| {
        let mut spec = attackers_task(first, DATA_PER_ROUND_MIN);
        spec.budget.stake_min = stake;
        spec
    };
    let mut task = TaskId::default();
    for number in 0..REGISTRATIONS_MAX {
        if register(world, attacker(number), Role::Provider).is_err() {
            break;
        }
        if number.is_multiple_of(PROVIDERS_PER_TASK_MAX) {
            task = publish(world, &spec_of(number)).unwrap();
            complete(world, task);
            locked.add(DATA_PER_ROUND_MIN);
        }
        let ready = Event::ProviderReady { task, provider: attacker(number) };
        world.engine.apply(&ready, world.now).unwrap();
        locked.add(stake);
    }
    locked
}

#[test]
fn registrations_without_money_keep_no_newcomer_out() {
    let deposit = fln("5");
    let mut world = honest_market();
    flood(&mut world, 0..REGISTRATIONS_MAX);
    let mut next = REGISTRATIONS_MAX;
    let newcomer = newcomer_takes_part(&mut world, |world| {
        // Less than all places between two requests of the newcomer's.
        flood(world, next..next + REGISTRATIONS_MAX / 4);
        next += REGISTRATIONS_MAX / 4;
    });
    assert_eq!(newcomer, Ok(()));
    Locked::default().print("175,000 registrations without a deposit", newcomer, deposit);
    // The members of before are there.
    (1..=3).for_each(|i| drop(world.apply(world.commit_event(i)).unwrap()));
}

#[test]
fn registrations_with_small_deposits_keep_no_newcomer_out() {
    let mut world = honest_market();
    let locked = fill_with_stakes(&mut world, Amount::from_units(1));
    let newcomer = newcomer_takes_part(&mut world, |_| ());
    assert_eq!(newcomer, Ok(()));
    locked.print("100,000 registrations with a stake of one unit", newcomer, fln("5"));
}

#[test]
fn registrations_shut_a_market_at_a_thousand_times_a_members_deposit() {
    let mut world = honest_market();
    let locked = fill_with_stakes(&mut world, REGISTRATION_DEPOSIT_MIN);
    let newcomer = newcomer_takes_part(&mut world, |_| ());
    assert_eq!(newcomer, Err(ErrorCode::LimitReached), "the attack succeeds");
    let multiple = locked.print("100,000 registrations with a stake of 1 FLN", newcomer, fln("5"));
    assert!(multiple >= MULTIPLE_MIN);
}

/// Fills the market with tasks of the attacker's, of which each runs a round.
fn fill_with_tasks(world: &mut EngineFixture, data: Amount, begun: bool) -> Locked {
    let (mut locked, account) = (Locked::default(), address(1));
    for number in 1..TASKS_MAX {
        let task = publish(world, &attackers_task(number, data)).unwrap();
        locked.add(data);
        if begun {
            complete(world, task);
            let enrol =
                EnrolRequest::without_invitation(market(), task, account, Timestamp(u64::MAX));
            // The engine's caller verifies signatures, and this is the engine's caller.
            let enrol = Signed { body: enrol, signature: NodeSignature([0; 64]) };
            let event = Event::Enrolled { enrol, bond: Amount::ZERO };
            world.engine.apply(&event, world.now).unwrap();
            assert_eq!(world.engine.state().tasks[&task].phase(), TaskPhase::Committing);
        }
    }
    locked
}

#[test]
fn tasks_shut_a_market_at_a_thousand_times_a_buyers_budget() {
    let budget = fln("100");
    let honest = |salt| {
        let mut spec = TaskSpec { salt, expires: Timestamp(u64::MAX), ..spec() };
        (spec.budget.data, spec.budget.infrastructure) = (budget, Amount::ZERO);
        spec
    };
    let tenth = budget.mul_div_down(1, BEGUN_TASK_WEIGHT).unwrap();
    for (attack, data, begun, shut) in [
        ("9,999 tasks without model and holdout", DATA_PER_ROUND_MIN, false, false),
        ("9,999 tasks that run a round", DATA_PER_ROUND_MIN, true, false),
        ("9,999 tasks that run a round, each of 10 FLN", tenth, true, true),
        ("9,999 tasks without model and holdout, of 100 FLN", budget, false, true),
    ] {
        let mut world = honest_market();
        let locked = fill_with_tasks(&mut world, data, begun);
        // The honest task that runs in this market is not worth less than the attacker's.
        let newcomer = publish(&mut world, &honest(1)).map(drop);
        let multiple = locked.print(attack, newcomer, budget);
        assert_eq!(newcomer.is_err(), shut, "{attack}");
        assert!(!shut || multiple >= MULTIPLE_MIN - 1, "{attack}: {multiple}");
        let own = &world.engine.state().tasks[&world.id];
        assert_eq!(own.end, None, "{attack}: the task of before goes on");
    }
}
