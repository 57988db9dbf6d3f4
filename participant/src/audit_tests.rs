use florin_learning::{EngineKind, engine};
use florin_protocol::Signer;

use super::*;
use crate::agent::{Participant, ParticipantConfig, participate};
use crate::behaviour::Honest;
use crate::event::Event;
use crate::retry::Patience;
use crate::shutdown::Shutdown;
use crate::statement::{balance, statements};
use crate::testing::{Lie, Market, fln, rows, wallet};

/// One honest participant through the whole task, or until it has read so many reports.
fn play(market: &Market, reports: usize) {
    let config = ParticipantConfig {
        folder: market.folder.path().join("participant"),
        task: market.task,
        seed: 7,
        bond_max: None,
        poll_ms: 1_000,
        patience: Patience::default(),
    };
    let shutdown = Shutdown::new();
    let mut read = 0;
    let mut tell = |event: &Event| {
        read += usize::from(matches!(event, Event::Reported { .. }));
        if read == reports {
            shutdown.request();
        }
    };
    let mut engine = engine(EngineKind::Reference, 1).unwrap();
    let mut honest = Honest;
    let (wallet, data, client) = (wallet(4), rows(40, 4), market.client());
    let parts = Participant {
        wallet: &wallet,
        client: &client,
        ledger: market.ledger.as_ref(),
        engine: engine.as_mut(),
        data: &data,
        behaviour: &mut honest,
    };
    participate(&config, parts, &shutdown, &mut tell).unwrap();
}

fn audit(market: &Market, rounds: Option<RangeInclusive<u32>>) -> Result<AuditReport, AuditError> {
    let mut engine = engine(EngineKind::Reference, 1).unwrap();
    let mut heard = Vec::new();
    let report = audit_task(
        &market.client(),
        market.ledger.as_ref(),
        market.task,
        rounds,
        engine.as_mut(),
        &mut |round| heard.push(round.clone()),
    )?;
    assert!(heard.iter().all(|round| report.rounds.contains(round)));
    Ok(report)
}

fn first_line(report: &AuditReport) -> Option<String> {
    report.first().map(|(_, difference)| difference.line.clone())
}

#[test]
fn an_honest_task_is_recomputed_without_a_difference() {
    let market = Market::begin(1, false);
    play(&market, usize::MAX);
    let report = audit(&market, None).unwrap();
    assert_eq!((report.rounds.len(), report.recomputed(), report.differences()), (3, 3, 0));
    assert_eq!(report.not_yet, None);
    let part = audit(&market, Some(2..=2)).unwrap();
    assert_eq!((part.rounds.len(), part.recomputed(), part.differences()), (1, 1, 0));
    let mut engine = engine(EngineKind::Reference, 1).unwrap();
    let one = audit_round(&market.client(), market.task, Round(3), engine.as_mut()).unwrap();
    assert!(one.recomputed && one.differences.is_empty());
    for rounds in [0..=1, 1..=4, 4..=4] {
        assert_eq!(audit(&market, Some(rounds)).unwrap_err().code(), "NO_SUCH_ROUNDS");
    }
}

#[test]
fn before_the_holdout_is_public_the_rest_is_audited_and_said_to_be_so() {
    let market = Market::begin(1, false);
    play(&market, 2);
    let report = audit(&market, None).unwrap();
    assert_eq!((report.rounds.len(), report.recomputed(), report.differences()), (2, 0, 0));
    let not_yet = report.not_yet.unwrap().to_string();
    assert!(not_yet.contains("NOT_YET_PUBLIC") && not_yet.contains("scores"), "{not_yet}");
}

#[test]
fn a_lie_about_money_is_found_at_its_line_without_the_holdout() {
    let market = Market::begin(1, false);
    market.lie(Lie::WrongPayout);
    play(&market, 1);
    let report = audit(&market, None).unwrap();
    assert_eq!(first_line(&report).as_deref(), Some("lines[0].payout"), "{report:?}");
    assert_eq!(report.first().unwrap().0, Some(Round(1)));
}

#[test]
fn a_lie_about_a_score_is_found_once_the_holdout_is_public() {
    let market = Market::begin(1, false);
    market.lie(Lie::WrongScore);
    play(&market, 1);
    assert_eq!(audit(&market, None).unwrap().differences(), 0, "it pays what it states");
    play(&market, usize::MAX);
    let report = audit(&market, None).unwrap();
    assert_eq!(report.recomputed(), 3);
    let line = first_line(&report).unwrap();
    assert!(line.contains("score"), "{line}");
}

#[test]
fn missing_and_changed_bytes_are_differences_and_not_errors() {
    let market = Market::begin(1, false);
    play(&market, 1);
    market.lie(Lie::WrongBytes);
    let report = audit(&market, None).unwrap();
    assert_eq!(first_line(&report).as_deref(), Some("base_model"), "{report:?}");
}

#[test]
fn statements_and_balance_agree_with_the_ledger() {
    let market = Market::begin(1, false);
    play(&market, 2);
    let (client, me) = (market.client(), wallet(4).address());
    let all = statements(&client, market.task, me, None).unwrap();
    assert_eq!(all.lines.len(), 2);
    let own = balance(Some(&client), market.ledger.as_ref(), me, None).unwrap();
    assert_eq!((own.wallet, own.tasks.len()), (fln("998"), 1));
    let line = &own.tasks[0];
    assert_eq!((line.bond.amount, line.claimed, line.owed), (fln("2"), Amount::ZERO, all.payout));
    assert!(!line.owed.is_zero());
    play(&market, usize::MAX);
    let all = statements(&client, market.task, me, Some(1..=9)).unwrap();
    assert_eq!(all.lines.len(), 3);
    let own = balance(Some(&client), market.ledger.as_ref(), me, None).unwrap();
    assert_eq!(own.wallet, fln("1000").plus(all.payout).unwrap());
    let line = &own.tasks[0];
    assert_eq!(
        (line.bond.amount, line.claimed, line.owed),
        (Amount::ZERO, all.payout, Amount::ZERO)
    );
    let stranger = wallet(9).address();
    let none = statements(&client, market.task, stranger, None).unwrap();
    assert!(none.lines.is_empty() && none.payout.is_zero());
    let empty = balance(Some(&client), market.ledger.as_ref(), stranger, None).unwrap();
    assert!(empty.tasks.is_empty());
    let offline = balance(None, market.ledger.as_ref(), me, Some(&[market.task])).unwrap();
    assert_eq!(offline.tasks[0].claimed, all.payout);
}
