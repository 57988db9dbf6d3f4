//! The client in a test market: which task it joins, a restart, and a task that it leaves.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use florin_learning::{EngineKind, engine};
use florin_ledger::Ledger;
use florin_protocol::{Amount, TaskSpec, WalletSigner};

use super::*;
use crate::agent::ParticipantConfig;
use crate::arbiter::ArbiterPolicy;
use crate::event::ParticipantEvent;
use crate::retry::Backoff;
use crate::shutdown::Shutdown;
use crate::testing::{TestMarket, fln, rows, wallet};

fn policy() -> Policy {
    Policy {
        data: vec![DataRule {
            name: "clusters".to_owned(),
            tasks: TaskRules { any: true, ..TaskRules::default() },
        }],
        bond_max: fln("9"),
        pay_per_hour_min: Amount::ZERO,
        models: ModelRules { kinds: BTreeSet::from(ModelFamily::ALL), bytes_max: 1 << 20 },
        tasks_max: 2,
        hours: None,
        review_ms: 600_000,
    }
}

fn config(market: &TestMarket, policy: Policy) -> ManyConfig {
    let participant = ParticipantConfig {
        folder: market.folder.path().join("many"),
        task: market.task,
        seed: 7,
        bond_max: None,
        pay_min: None,
        invitation: None,
        arbiters: ArbiterPolicy { accepted: vec![wallet(3).address()], trusts_coordinator: false },
        asks_for_arbiter: false,
        accepted_models: Vec::new(),
        continues_on_alarm: false,
        execution: Default::default(),
        processes: 1,
        accepts_slow_training: false,
        privacy: None,
        supervision: Default::default(),
        poll_ms: 100,
        backoff: Backoff { initial_ms: 1, max_ms: 1, max_total_ms: 3 },
    };
    ManyConfig { participant, policy }
}

fn with_context<T>(market: &TestMarket, act: impl FnOnce(&ManyContext<'_>) -> T) -> T {
    let (wallet, client) = (wallet(4), market.client());
    let context = ManyContext {
        wallet: &wallet,
        client: &client,
        ledger: market.ledger.as_ref(),
        rows: &|_: &TaskSpec, _| Ok(rows(40, 4)),
        engine: &|_: &TaskSpec| Ok(engine(EngineKind::Reference, 1).unwrap()),
    };
    act(&context)
}

/// Runs the client until an event of an agent, at most twenty seconds.
fn run_until(
    market: &TestMarket,
    policy: Policy,
    is_last: impl Fn(&ParticipantEvent) -> bool + Sync,
) -> (ManySummary, Vec<ParticipantEvent>) {
    let (shutdown, events) = (Shutdown::new(), Mutex::new(Vec::new()));
    let on_event = |event: &ManyEvent<'_>| {
        let ManyEvent::OfTask(_, event) = event else { return };
        events.lock().unwrap().push((*event).clone());
        if is_last(event) {
            shutdown.request();
        }
    };
    let watch = shutdown.clone();
    let watchdog = std::thread::spawn(move || {
        watch.wait(Duration::from_secs(20));
        watch.request();
    });
    let config = config(market, policy);
    let done = with_context(market, |context| {
        participate_in_many(&config, context, &shutdown, &on_event).unwrap()
    });
    shutdown.request();
    watchdog.join().unwrap();
    (done, events.into_inner().unwrap())
}

fn deposits(events: &[ParticipantEvent]) -> usize {
    events.iter().filter(|event| matches!(event, ParticipantEvent::Bonded { .. })).count()
}

fn code(market: &TestMarket, policy: Policy) -> String {
    let config = config(market, policy);
    let found =
        with_context(market, |context| examine_market(&config, context, &Shutdown::new())).unwrap();
    match &found.decisions[..] {
        [TaskDecision { verdict: TaskVerdict::Refused(why), .. }] => why.code().to_owned(),
        [one] => one.verdict.name().to_owned(),
        others => panic!("{others:?}"),
    }
}

#[test]
fn a_client_is_paid_and_a_restart_deposits_no_second_bond() {
    let market = TestMarket::start(1, false);
    let ledger = market.ledger.as_ref();
    let bond = || ledger.bond_of(market.task, wallet(4).address()).unwrap().amount;
    let committed = |event: &ParticipantEvent| matches!(event, ParticipantEvent::Committed { .. });
    let (first, before) = run_until(&market, policy(), committed);
    assert_eq!((first.tasks, deposits(&before), bond()), (1, 1, fln("2")), "{before:?}");
    // The limit is the bond itself: a second deposit would exceed it, and is not made with more.
    let finished = |event: &ParticipantEvent| matches!(event, ParticipantEvent::Finished { .. });
    let (second, after) = run_until(&market, policy(), finished);
    assert_eq!((second.tasks, deposits(&after), second.alarms), (1, 0, 0), "{after:?}");
    assert!(!second.claimed.is_zero());
    assert_eq!(bond(), Amount::ZERO, "it is back");
}

#[test]
fn each_reason_against_a_task_has_a_code() {
    let market = TestMarket::start(1, false);
    assert_eq!(code(&market, policy()), "join");
    let with = |change: &dyn Fn(&mut Policy)| {
        let mut policy = policy();
        change(&mut policy);
        code(&market, policy)
    };
    assert_eq!(with(&|it| it.data[0].tasks.any = false), "DATA_NOT_ALLOWED");
    assert_eq!(with(&|it| it.models.bytes_max = 1), "MODEL_TOO_LARGE");
    assert_eq!(with(&|it| it.bond_max = fln("0.5")), "BOND_LIMIT_TOO_LOW");
    assert_eq!(with(&|it| it.pay_per_hour_min = fln("1000000000000")), "PAY_TOO_LOW");
    let asleep = |it: &mut Policy| {
        let hour = (market.client().now().0 / 3_600_000 % 24) as u8;
        it.hours = Some(DailyHours { from: (hour + 2) % 24, to: (hour + 3) % 24 });
    };
    assert_eq!(with(&asleep), "OUTSIDE_HOURS");
    let chosen = TestMarket::start_with(1, false, |spec| spec.base_model.0[0] ^= 1);
    assert_eq!(code(&chosen, policy()), "MODEL_NOT_DERIVED");
    let missing = TestMarket::start_with(1, false, |spec| spec.name = "\u{1b}[2J".to_owned());
    assert_eq!(code(&missing, policy()), "INVALID_TASK");
}

#[test]
fn a_task_that_the_policy_no_longer_allows_is_left_and_its_bond_returns() {
    let market = TestMarket::start(1, false);
    let enrolled = |event: &ParticipantEvent| matches!(event, ParticipantEvent::Enrolled { .. });
    let (_, before) = run_until(&market, policy(), enrolled);
    assert_eq!(deposits(&before), 1);
    let mut none = policy();
    none.data[0].tasks = TaskRules::default();
    let returned =
        |event: &ParticipantEvent| matches!(event, ParticipantEvent::BondReturned { .. });
    let (_, after) = std::thread::scope(|scope| {
        let running = scope.spawn(|| run_until(&market, none, returned));
        let ledger = market.ledger.as_ref();
        let bond = || ledger.bond_of(market.task, wallet(4).address()).unwrap();
        while bond().release.is_none() && !bond().amount.is_zero() {
            std::thread::sleep(Duration::from_millis(5));
        }
        market.advance_clock(market.spec.budget.unbond_ms);
        running.join().unwrap()
    });
    assert!(after.iter().any(returned), "{after:?}");
    let trained = |event: &&ParticipantEvent| matches!(event, ParticipantEvent::Trained { .. });
    assert_eq!(after.iter().filter(trained).count(), 0, "the rows are not used");
}
