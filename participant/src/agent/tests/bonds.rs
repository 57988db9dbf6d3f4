//! The bond: the quote before it, and top-ups after debits.

use std::sync::Mutex;

use florin_ledger::rpc::{LedgerRequest, LedgerResponse};
use florin_ledger::{
    Action, BondState, LedgerError, LedgerTransport, SignedTransaction, Slash, TransactionOutcome,
};
use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{Digest, MarketId, Micro};

use super::*;

fn bond_of(market: &TestMarket, person: &TestParticipant) -> Amount {
    market.ledger.bond_of(market.task, person.wallet.address()).unwrap().amount
}

fn position(person: &TestParticipant, found: impl Fn(&ParticipantEvent) -> bool) -> Option<usize> {
    person.events.iter().position(found)
}

#[test]
fn the_quote_comes_before_the_bond_and_can_be_declined() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    person.agrees = false;
    assert_eq!(person.run(&market, None).unwrap_err().code(), "DECLINED");
    assert!(bond_of(&market, &person).is_zero());
    assert_eq!(market.request_count("POST", "/enrol"), 0);
    person.agrees = true;
    assert!(person.run(&market, None).unwrap().finished);
    let quoted = position(&person, |event| matches!(event, ParticipantEvent::Quoted { .. }));
    let bonded = position(&person, |event| matches!(event, ParticipantEvent::Bonded { .. }));
    assert!(quoted.is_some() && quoted < bonded, "{:?}", person.events);
}

/// The arbiter slashes an account's bond: the amount taken, or the code of the refusal.
fn slash(market: &TestMarket, account: Address, amount: &str) -> Result<Amount, &'static str> {
    let (task, amount, evidence) = (market.task, fln(amount), Digest([1; 32]));
    let slash = Slash { task, account, stake: false, amount, evidence };
    market.ledger.slash(&wallet(3), &slash).map_err(|error| match error {
        LedgerError::Refused(refusal) => refusal.code(),
        error => panic!("{error}"),
    })
}

#[test]
fn a_slashed_bond_is_not_deposited_again_beyond_the_limit() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    person.config.bond_max = Some(fln("2.5"));
    let account = person.wallet.address();
    let bonded = |event: &ParticipantEvent| matches!(event, ParticipantEvent::Bonded { .. });
    person.run_until(&market, bonded).unwrap();
    assert_eq!(bond_of(&market, &person), fln("2"));
    assert_eq!(slash(&market, account, "9"), Ok(fln("1")), "the task's bond_min");
    person.run_until(&market, bonded).unwrap();
    assert_eq!(bond_of(&market, &person), fln("1.5"), "1 of 2.5 FLN is lost");
    assert_eq!(slash(&market, account, "0.1"), Err("NOT_FOUND"), "bond_min is taken");
    assert_eq!(market.ledger.balance(account).unwrap(), fln("997.5"));
}

#[test]
fn a_limit_below_the_minimum_after_a_slash_ends_the_participation() {
    let market = TestMarket::start(1, false);
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    person.config.bond_max = Some(fln("1"));
    let account = person.wallet.address();
    let bonded = |event: &ParticipantEvent| matches!(event, ParticipantEvent::Bonded { .. });
    person.run_until(&market, bonded).unwrap();
    assert_eq!(slash(&market, account, "1"), Ok(fln("1")));
    let error = person.run(&market, None).unwrap_err();
    assert_eq!(error.code(), "BOND_LIMIT_TOO_LOW", "{error}");
    assert_eq!(bond_of(&market, &person), Amount::ZERO);
}

#[test]
fn a_limit_below_the_bond_of_one_row_is_refused_before_the_bond() {
    let market = TestMarket::start_with(1, false, |spec| spec.budget.bond_per_row = fln("1000"));
    let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
    person.config.bond_max = Some(fln("20"));
    let error = person.run(&market, None).unwrap_err();
    assert_eq!(error.code(), "BOND_LIMIT_TOO_LOW", "{error}");
    assert!(error.to_string().contains("1000 FLN"), "{error}");
    assert!(bond_of(&market, &person).is_zero());
}

#[test]
fn a_floor_below_the_least_pay_is_refused_before_the_bond() {
    for (least, pays) in [("2", true), ("2.000001", false)] {
        // A floor of 2 FLN per round for one update.
        let share = |spec: &mut TaskSpec| spec.budget.floor_share = Micro(200_000);
        let market = TestMarket::start_with(1, false, share);
        let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
        person.config.pay_min = Some(fln(least));
        match person.run(&market, None) {
            Ok(done) => assert!(pays && done.finished),
            Err(error) => {
                assert!(!pays, "{error}");
                assert_eq!(error.code(), "PAY_TOO_LOW");
                assert!(error.to_string().contains("2 FLN"), "{error}");
                assert!(bond_of(&market, &person).is_zero());
            }
        }
    }
}

#[test]
fn a_training_longer_than_a_round_is_refused_before_the_bond() {
    // Rounds of 60 seconds, and 10 steps.
    for (step_seconds_most, processes, accepts_slow_training, is_refused, warns) in [
        (3.0, 1, false, false, false),
        (3.1, 1, false, false, true),
        (6.0, 1, false, false, true),
        (6.1, 1, false, true, true),
        (6.1, 1, true, false, true),
        (6.1, 4, false, false, false),
        (60.0, 4, false, false, true),
    ] {
        let market = TestMarket::start(1, false);
        let mut person = TestParticipant::new(&market, 4, BehaviourKind::Honest);
        let (steps, step_seconds) = (10, 0.1);
        let quote = TrainingQuote { steps, step_seconds, step_seconds_most, step_bytes: 1 };
        person.engine.quoted = Some(quote);
        person.config.processes = processes;
        person.config.accepts_slow_training = accepts_slow_training;
        let done = person.run(&market, None);
        let case = format!("{step_seconds_most} s, {processes} processes: {done:?}");
        let is_slow = |event: &ParticipantEvent| match event {
            ParticipantEvent::TrainingSlow { time } => Some(*time),
            _ => None,
        };
        let slow: Vec<_> = person.events.iter().filter_map(is_slow).collect();
        assert_eq!(slow.len(), usize::from(warns), "{case}");
        let Err(error) = done else {
            assert!(!is_refused, "{case}");
            continue;
        };
        assert!(is_refused && slow[0].is_beyond, "{case}");
        assert_eq!(error.code(), "TRAINING_TOO_SLOW");
        let text = error.to_string();
        assert!(text.contains("1 min 1 s") && text.contains("a round has 1 min"), "{text}");
        assert!(text.contains("--threads") && text.contains("--accept-slow-training"), "{text}");
        assert!(bond_of(&market, &person).is_zero());
        let event = person.events.iter().find(|event| is_slow(event).is_some()).unwrap();
        let json = serde_json::to_value(event).unwrap();
        assert_eq!(json["event"], "training_slow");
        assert_eq!(
            (json["training_ms"].as_u64(), json["round_ms"].as_u64()),
            (Some(61_000), Some(60_000))
        );
    }
}

/// Runs two honest members and one with flipped labels, whose bond debits make smaller.
fn run_with_debits(prepare: impl FnOnce(&TestMarket, &mut TestParticipant)) -> TestParticipant {
    let market = TestMarket::start(3, false);
    let mut members =
        [4, 5].map(|number| TestParticipant::new(&market, number, BehaviourKind::Honest));
    let mut debited = TestParticipant::new(&market, 6, BehaviourKind::Flipped);
    prepare(&market, &mut debited);
    std::thread::scope(|scope| {
        for member in &mut members {
            scope.spawn(|| assert!(member.run(&market, None).unwrap().finished));
        }
        let done = debited.run(&market, None).unwrap();
        assert!(done.finished);
        let debits = Amount::total(done.statements.iter().map(|s| s.debit)).unwrap();
        assert!(!debits.is_zero(), "the test needs debits: {:?}", done.statements);
        let deposits = Amount::total(deposits(&debited)).unwrap();
        assert_eq!(done.bond, BondStatus::Returned(deposits.minus(debits).unwrap()));
    });
    debited
}

fn deposits(person: &TestParticipant) -> Vec<Amount> {
    let added = person.events.iter().filter_map(|event| match event {
        ParticipantEvent::Bonded { added, .. } => Some(*added),
        _ => None,
    });
    added.collect()
}

fn not_restored(person: &TestParticipant) -> Vec<(u64, bool)> {
    let found = person.events.iter().filter_map(|event| match event {
        ParticipantEvent::BondNotRestored { covered, has_funds, .. } => {
            Some((*covered, *has_funds))
        }
        _ => None,
    });
    found.collect()
}

#[test]
fn a_debited_bond_is_topped_up_within_the_limit() {
    let member = run_with_debits(|_, member| member.config.bond_max = Some(fln("9")));
    let deposits = deposits(&member);
    assert!(deposits.len() >= 2, "{deposits:?}");
    assert_eq!(deposits[0], fln("2"));
    assert_eq!(not_restored(&member), []);
    // The last round needs no bond, so that each top-up replaces one debit.
    let debits = member.events.iter().filter_map(|event| match event {
        ParticipantEvent::Reported { statement } => Some(statement.debit),
        _ => None,
    });
    let debits: Vec<Amount> = debits.filter(|debit| !debit.is_zero()).collect();
    assert!(deposits[1..].iter().zip(&debits).all(|(added, debit)| added == debit), "{debits:?}");
}

#[test]
fn all_deposits_together_stay_within_the_limit() {
    let member = run_with_debits(|_, member| member.config.bond_max = Some(fln("2.1")));
    let total = Amount::total(deposits(&member)).unwrap();
    assert_eq!(total, fln("2.1"));
    let found = not_restored(&member);
    assert!(!found.is_empty() && found.iter().all(|(_, has_funds)| *has_funds), "{found:?}");
    // Without a limit, nothing is added to the bond that the rows require.
    let member = run_with_debits(|_, _| ());
    assert_eq!(deposits(&member), [fln("2")]);
}

#[test]
fn a_wallet_without_funds_is_reported_once() {
    let member = run_with_debits(|market, member| {
        member.config.bond_max = Some(fln("9"));
        let all_but_the_bond = fln("998");
        market.ledger.transfer(&member.wallet, wallet(7).address(), all_but_the_bond).unwrap();
    });
    let found = not_restored(&member);
    assert!(!found.is_empty() && found.iter().all(|(_, has_funds)| !has_funds), "{found:?}");
    let mut distinct = found.clone();
    distinct.dedup();
    assert_eq!(found, distinct, "the same state is reported once");
    assert_eq!(deposits(&member), [fln("2")]);
}

/// A ledger with one bond, which applies a debit after a number of requests.
struct DebitingLedger {
    market: MarketId,
    books: Mutex<DebitingBooks>,
}

struct DebitingBooks {
    bond: Amount,
    applied: Amount,
    requests_before_debit: u32,
}

impl LedgerTransport for DebitingLedger {
    fn market(&self) -> MarketId {
        self.market
    }

    fn request(&self, request: LedgerRequest) -> Result<LedgerResponse, LedgerError> {
        let mut books = self.books.lock().unwrap();
        let response = match request {
            LedgerRequest::Bond { .. } => {
                LedgerResponse::Bond(BondState { amount: books.bond, ..BondState::default() })
            }
            LedgerRequest::Claimed { .. } => LedgerResponse::Totals(ClaimTotals {
                debited: books.applied,
                ..ClaimTotals::default()
            }),
            LedgerRequest::Nonce { .. } => LedgerResponse::Nonce(0),
            other => panic!("{other:?}"),
        };
        if books.requests_before_debit == 1 {
            books.bond = books.bond.minus(fln("0.5")).unwrap();
            books.applied = books.applied.plus(fln("0.5")).unwrap();
        }
        books.requests_before_debit = books.requests_before_debit.saturating_sub(1);
        Ok(response)
    }

    fn submit(&self, transaction: SignedTransaction) -> Result<TransactionOutcome, LedgerError> {
        let Action::Bond { amount, .. } = transaction.transaction.action else { panic!() };
        let mut books = self.books.lock().unwrap();
        books.bond = books.bond.plus(amount).unwrap();
        Ok(TransactionOutcome::Moved(amount))
    }
}

#[test]
fn a_debit_during_a_top_up_does_not_exceed_the_limit() {
    let spec = TaskSpec::example();
    for requests_before_debit in 1..=8 {
        let books = DebitingBooks { bond: fln("2"), applied: Amount::ZERO, requests_before_debit };
        let ledger = DebitingLedger { market: spec.market, books: Mutex::new(books) };
        let wanted = |applied| fln("2").minus(applied).unwrap();
        let (added, _) = joining::top_up_bond(&ledger, &wallet(6), spec.id(), wanted).unwrap();
        assert!(added.is_zero(), "the debit comes after {requests_before_debit} requests: {added}");
    }
}
