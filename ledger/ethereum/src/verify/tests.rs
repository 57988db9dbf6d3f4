//! Verification of a recorded market, unchanged and with every single value changed.
//!
//! `recorded.json` contains the requests and responses of `florin ledger verify` with anvil after a
//! demonstration of two rounds: every event of the market, and the result of every getter.

use alloy_primitives::{B256, U256};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::contracts::Market::{
    Bonded, Claimed, Debited, HeadCheckpointed, MemberShare, SettlementFinalised, SettlementPosted,
    SettlementsCancelled, Slashed, SplitSet, StakeWithdrawn, Staked, TaskOpened, Terms,
};
use super::super::contracts::Market::{PledgeEnded, Pledged};
use super::super::endpoint::EndpointError;
use super::*;
use crate::contracts::to_address;

#[derive(Clone, Deserialize)]
struct Recording {
    deployment: Deployment,
    calls: Vec<RecordedCall>,
}

#[derive(Clone, Deserialize)]
struct RecordedCall {
    method: String,
    params: Value,
    result: Value,
}

impl Endpoint for Recording {
    fn call(&self, method: &str, params: Value) -> Result<Value, EndpointError> {
        let recorded =
            self.calls.iter().find(|call| call.method == method && call.params == params);
        recorded.map(|call| call.result.clone()).ok_or_else(|| EndpointError::ErrorResponse {
            code: -1,
            message: format!("{method} {params} is not in the recording"),
            data: None,
        })
    }

    fn name(&self) -> String {
        "the recording".to_owned()
    }
}

fn recording() -> Recording {
    serde_json::from_str(include_str!("recorded.json")).unwrap()
}

fn verify_recording(recording: &Recording) -> Result<MarketVerification, LedgerError> {
    let endpoint: Arc<dyn Endpoint> = Arc::new(recording.clone());
    verify(&endpoint, &recording.deployment, &Settings::default())
}

fn logs(recording: &mut Recording) -> &mut Vec<Value> {
    let logs = recording.calls.iter_mut().find(|call| call.method == "eth_getLogs").unwrap();
    logs.result.as_array_mut().unwrap()
}

/// Whether the verification failed or found a difference.
fn is_detected(found: &Result<MarketVerification, LedgerError>) -> bool {
    found.as_ref().map_or(true, |found| found.mismatch_count > 0 || !found.surplus.is_zero())
}

#[test]
fn the_unchanged_recording_verifies() {
    let found = verify_recording(&recording()).unwrap();
    assert_eq!((found.mismatch_count, found.surplus), (0, Amount::ZERO), "{:?}", found.mismatches);
    let books = &found.survey.market;
    assert_eq!((books.tasks.len(), books.accounts.len(), books.providers.len()), (1, 9, 1));
    assert_eq!(books.events, 31);
    assert!(found.compared > 50, "{}", found.compared);
    // The genesis supply of the demonstration.
    assert_eq!(found.survey.supply.to_string(), "5900");
}

#[test]
fn every_missing_event_is_detected() {
    let whole = recording();
    let count = logs(&mut whole.clone()).len();
    for at in 0..count {
        let mut broken = whole.clone();
        let removed = logs(&mut broken).remove(at);
        assert!(is_detected(&verify_recording(&broken)), "without event {at}: {removed}");
    }
}

#[test]
fn every_repeated_event_is_detected() {
    let whole = recording();
    let count = logs(&mut whole.clone()).len();
    for at in 0..count {
        let mut broken = whole.clone();
        let again = logs(&mut broken)[at].clone();
        logs(&mut broken).insert(at, again.clone());
        assert!(is_detected(&verify_recording(&broken)), "event {at} twice: {again}");
    }
}

#[test]
fn every_changed_word_of_an_event_is_detected() {
    let whole = recording();
    let count = logs(&mut whole.clone()).len();
    for at in 0..count {
        let data = logs(&mut whole.clone())[at]["data"].as_str().unwrap().to_owned();
        for word in 0..(data.len() - 2) / 64 {
            let mut broken = whole.clone();
            logs(&mut broken)[at]["data"] = json!(flipped(&data, word));
            assert!(is_detected(&verify_recording(&broken)), "event {at}, word {word}: {data}");
        }
    }
}

#[test]
fn every_changed_word_of_a_getter_is_detected() {
    let whole = recording();
    let supply = selector::<totalSupplyCall>();
    let mut words = 0;
    for at in 0..whole.calls.len() {
        let RecordedCall { method, params, result } = &whole.calls[at];
        // The supply is read from the token only: there is no second value to compare it with.
        if method != "eth_call" || params[0]["data"].as_str().unwrap().starts_with(&supply) {
            continue;
        }
        let result = result.as_str().unwrap();
        for word in 0..(result.len() - 2) / 64 {
            let mut broken = whole.clone();
            broken.calls[at].result = json!(flipped(result, word));
            assert!(is_detected(&verify_recording(&broken)), "{params}: word {word} of {result}");
            words += 1;
        }
    }
    assert!(words > 50, "{words}");
}

fn selector<C: alloy_sol_types::SolCall>() -> String {
    format!("{}", alloy_primitives::Bytes::copy_from_slice(&C::SELECTOR))
}

/// The hex string with the last bit of one word flipped.
fn flipped(hex: &str, word: usize) -> String {
    let at = 2 + word * 64 + 63;
    let digit = hex.as_bytes()[at] as char;
    let other = char::from_digit(digit.to_digit(16).unwrap() ^ 1, 16).unwrap();
    format!("{}{other}{}", &hex[..at], &hex[at + 1..])
}

#[test]
fn missing_tokens_are_a_mismatch_and_surplus_tokens_are_not() {
    let whole = recording();
    let balance = selector::<balanceOfCall>();
    let balance_call_position = |recording: &Recording| {
        let is_it = |call: &RecordedCall| {
            call.method == "eth_call"
                && call.params[0]["data"].as_str().unwrap().starts_with(&balance)
        };
        recording.calls.iter().position(is_it).unwrap()
    };
    let at = balance_call_position(&whole);
    let held: U256 = whole.calls[at].result.as_str().unwrap().parse().unwrap();
    let with = |units: U256| {
        let mut changed = whole.clone();
        changed.calls[at].result = json!(B256::from(units));
        verify_recording(&changed).unwrap()
    };
    let less = with(held - U256::from(1));
    assert_eq!(
        (less.mismatch_count, less.mismatches[0].field.as_str()),
        (1, "tokens of the market")
    );
    let more = with(held + U256::from(5));
    assert_eq!((more.mismatch_count, more.surplus), (0, Amount::from_units(5)));
}

const TASK: B256 = B256::repeat_byte(7);
const ANN: alloy_primitives::Address = alloy_primitives::Address::repeat_byte(1);

fn terms() -> Terms {
    Terms {
        task: TASK,
        buyer: alloy_primitives::Address::repeat_byte(2),
        coordinator: alloy_primitives::Address::repeat_byte(3),
        arbiter: alloy_primitives::Address::repeat_byte(4),
        data: 1_000,
        infrastructure: 100,
        rounds: 10,
        perNatMax: 1,
        floorShare: 1_000_000,
        bondMin: 10,
        debitMax: 5,
        stakeMin: 20,
        challengeMs: 200,
        unbondMs: 1_000,
        expires: 1_000_000,
    }
}

fn posted(round: u32, data: u128) -> MarketEvents {
    MarketEvents::SettlementPosted(SettlementPosted {
        task: TASK,
        round,
        report: B256::repeat_byte(9),
        root: B256::repeat_byte(u8::try_from(round).unwrap()),
        dataTotal: data,
        scorePayTotal: 0,
        infrastructureTotal: 10,
        improvementTotalNano: 0,
        finalAt: 1_000 * u64::from(round) + 200,
    })
}

fn market_with_open_task() -> FoldedMarket {
    let mut books = FoldedMarket::default();
    books
        .apply(&MarketEvents::TaskOpened(TaskOpened {
            task: TASK,
            buyer: terms().buyer,
            terms: terms(),
        }))
        .unwrap();
    books
}

fn task(books: &FoldedMarket) -> &FoldedTask {
    &books.tasks[&florin_protocol::TaskId(TASK.0)]
}

#[test]
fn cancelling_removes_later_settlements_and_the_checkpoint_stays_on_a_valid_one() {
    let mut books = market_with_open_task();
    for event in [posted(1, 100), posted(2, 250)] {
        books.apply(&event).unwrap();
    }
    let two = task(&books).state.head;
    books
        .apply(&MarketEvents::HeadCheckpointed(HeadCheckpointed { task: TASK, head: two }))
        .unwrap();
    books.apply(&posted(3, 300)).unwrap();
    let cancel = |from| {
        MarketEvents::SettlementsCancelled(SettlementsCancelled { task: TASK, fromRound: from })
    };
    books.apply(&cancel(3)).unwrap();
    let state = &task(&books).state;
    assert_eq!(
        (state.head, state.checkpoint, state.pending),
        (two, two, 2),
        "the checkpoint is still valid"
    );
    books.apply(&cancel(2)).unwrap();
    let state = &task(&books).state;
    assert_ne!(state.head, two);
    assert_eq!((state.checkpoint, state.pending, state.lastPost), (state.head, 1, 3_000));
    let last = |round| MarketEvents::SettlementFinalised(SettlementFinalised { task: TASK, round });
    assert!(books.clone().apply(&last(2)).is_err(), "round 2 was cancelled");
    books.apply(&last(1)).unwrap();
    let state = &task(&books).state;
    assert_eq!(
        (state.finalHead, state.checkpoint),
        (state.head, state.head),
        "the checkpoint follows"
    );
    assert_eq!((state.dataPaid, state.owed, state.dataLocked), (100, 110, 900));
}

#[test]
fn slashes_and_debits_go_to_the_treasury() {
    let mut books = market_with_open_task();
    let slashed = |stake, amount| {
        MarketEvents::Slashed(Slashed { task: TASK, account: ANN, stake, amount, evidence: TASK })
    };
    let pledge = Pledged { task: TASK, provider: ANN };
    for event in [
        MarketEvents::Bonded(Bonded { task: TASK, account: ANN, amount: 50 }),
        MarketEvents::Staked(Staked { provider: ANN, amount: 30 }),
        MarketEvents::Pledged(pledge),
        slashed(false, 7),
        slashed(true, 5),
        MarketEvents::Debited(Debited { task: TASK, account: ANN, debited: 9, taken: 4 }),
    ] {
        books.apply(&event).unwrap();
    }
    let provider = &books.providers[&to_address(ANN)];
    assert_eq!((books.treasury, provider.stake.amount), (16, 25));
    assert_eq!(books.accounts[&(florin_protocol::TaskId(TASK.0), to_address(ANN))].slashed, 7);
    assert_eq!(provider.pledges.values().copied().collect::<Vec<_>>(), [5]);
    assert_eq!(
        books.required_tokens(),
        U256::from(1_100 + 39 + 25 + 16),
        "escrow, bond, stake, treasury"
    );
    // The last part of a pledge is slashed after the pledge has ended.
    books.apply(&MarketEvents::PledgeEnded(PledgeEnded { task: TASK, provider: ANN })).unwrap();
    books.apply(&slashed(true, 15)).unwrap();
    assert_eq!(books.providers[&to_address(ANN)].pledges.len(), 0);
    books
        .apply(&MarketEvents::StakeWithdrawn(StakeWithdrawn { provider: ANN, amount: 10 }))
        .unwrap();
    assert_eq!((books.treasury, books.required_tokens()), (31, U256::from(1_100 + 39 + 31)));
}

fn set_split() -> SplitSet {
    let member = MemberShare { member: ANN, share: 1_000_000 };
    SplitSet { task: TASK, account: ANN, members: vec![member] }
}

#[test]
fn inconsistent_events_are_rejected_with_a_reason() {
    let claimed = MarketEvents::Claimed(Claimed { task: TASK, account: ANN, paid: 1 });
    let split = MarketEvents::SplitSet(set_split());
    let bonded = MarketEvents::Bonded(Bonded { task: TASK, account: ANN, amount: 1 });
    let mut with_split = market_with_open_task();
    with_split.apply(&split).unwrap();
    with_split.apply(&bonded).unwrap();
    assert_eq!(with_split.accounts.values().next().unwrap().split, set_split().members);
    assert!(with_split.apply(&split).unwrap_err().contains("set twice"));
    let mut bonded_first = market_with_open_task();
    bonded_first.apply(&bonded).unwrap();
    assert!(bonded_first.apply(&split).unwrap_err().contains("after it took part"));
    let table: [(MarketEvents, &str); 4] = [
        (claimed, "1 is taken from the amount owed by a task, which has 0"),
        (
            MarketEvents::SettlementFinalised(SettlementFinalised { task: TASK, round: 1 }),
            "not of the oldest pending",
        ),
        (
            MarketEvents::TaskOpened(TaskOpened { task: TASK, buyer: ANN, terms: terms() }),
            "opened twice",
        ),
        (
            MarketEvents::Debited(Debited { task: TASK, account: ANN, debited: 3, taken: 2 }),
            "2 is taken from a bond, which has 0",
        ),
    ];
    for (event, why) in table {
        let error = market_with_open_task().apply(&event).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}
