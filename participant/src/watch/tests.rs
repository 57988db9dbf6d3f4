//! An honest task is left alone; each forged report or settlement is cancelled within its window.

use std::cell::Cell;

use florin_learning::{EngineKind, engine};
use florin_ledger::Settlement;
use florin_protocol::{Canonical, Digest, RoundNumber, WalletSigner};

use super::*;
use crate::arbitration::{cancel_settlement, cancellable_settlements};
use crate::audit::tests::run_participant;
use crate::testing::{Fault, TestMarket, fln, wallet};

/// A window that no test outlasts: the ledger's clock advances by a millisecond for each reading.
const LONG_MS: u64 = 1_000_000;

fn market_with_window(challenge_ms: u64) -> TestMarket {
    TestMarket::start_with(1, false, |spec| {
        spec.budget.challenge_ms = challenge_ms;
        spec.budget.unbond_ms = spec.unbond_ms_min();
    })
}

fn config(market: &TestMarket) -> WatchConfig {
    WatchConfig {
        folder: market.folder.path().join("arbiter"),
        task: Some(market.task),
        dry_run: false,
        keeps_unverifiable: false,
        poll_ms: 1,
    }
}

/// Watches as wallet 3, the arbiter, until `is_last` accepts an event; returns all events.
fn watch_until(
    market: &TestMarket,
    config: &WatchConfig,
    mut is_last: impl FnMut(&WatchEvent) -> bool,
) -> (Vec<WatchEvent>, WatchSummary) {
    let shutdown = Shutdown::new();
    let mut events = Vec::new();
    let mut on_event = |event: &WatchEvent| {
        events.push(event.clone());
        assert!(events.len() < 2_000, "the watch does not end: {event}");
        if is_last(event) {
            shutdown.request();
        }
    };
    let (client, wallet) = (market.client(), wallet(3));
    let mut engine = engine(EngineKind::Reference, 1).unwrap();
    let ledger = market.ledger.as_ref();
    let context =
        WatchContext { wallet: &wallet, client: &client, ledger, engine: engine.as_mut() };
    let summary = watch(config, context, &shutdown, &mut on_event).unwrap();
    (events, summary)
}

fn is_cancelled(event: &WatchEvent) -> bool {
    matches!(event, WatchEvent::Cancelled { .. })
}

fn is_audit_of(round: u32) -> impl Fn(&WatchEvent) -> bool {
    move |event| matches!(event, WatchEvent::RoundAudited { audit, .. } if audit.round.0 == round)
}

fn pending(market: &TestMarket) -> Vec<u32> {
    let state = market.ledger.task(market.task).unwrap().unwrap();
    state.pending.iter().map(|pending| pending.settlement.round.0).collect()
}

fn objection(events: &[WatchEvent]) -> &Objection {
    let found = events.iter().find_map(|event| match event {
        WatchEvent::Objected { objection, .. } => Some(objection),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no objection in {events:?}"))
}

fn line(objection: &Objection) -> &str {
    match objection {
        Objection::ReportWrong { first_mismatch, .. }
        | Objection::SettlementWrong { first_mismatch } => &first_mismatch.line,
        Objection::NoReport => "no report",
        Objection::Unverifiable { .. } => "unverifiable",
    }
}

#[test]
fn an_honest_task_is_audited_and_left_alone() {
    let market = market_with_window(LONG_MS);
    run_participant(&market, 2);
    let (events, summary) = watch_until(&market, &config(&market), is_audit_of(2));
    assert_eq!((summary.rounds, summary.objections, summary.cancelled), (2, 0, 0), "{events:?}");
    assert!(!events.iter().any(WatchEvent::is_alarm), "{events:?}");
    assert_eq!(pending(&market), [1, 2]);
}

#[test]
fn a_wrong_report_or_settlement_is_cancelled_with_all_later_ones() {
    for (fault, expected) in [
        (Fault::WrongPayout, "lines[0].payout"),
        (Fault::WrongScore, "valuation.scores[0].score_nano"),
        (Fault::OtherSeed, "holdout.seed"),
        (Fault::OtherTotals, "ledger.pending[2].root"),
        (Fault::OtherReport, "ledger.pending[2].report"),
    ] {
        let market = market_with_window(LONG_MS);
        run_participant(&market, 1);
        market.inject(fault);
        run_participant(&market, 2);
        assert_eq!(pending(&market), [1, 2], "{fault:?}");
        let (events, summary) = watch_until(&market, &config(&market), is_cancelled);
        let objection = objection(&events);
        assert_eq!(line(objection), expected, "{fault:?}: {objection}");
        assert_eq!(pending(&market), [1], "{fault:?}: the honest round stays");
        assert_eq!((summary.objections, summary.cancelled), (1, 1), "{fault:?}");
        let folder = config(&market).folder.join(market.task.to_string()).join("2");
        let file = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
        let record: serde_json::Value =
            serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert!(record["reason"].as_str().unwrap().contains(expected), "{record:#}");
        assert_eq!(record["settlement"]["round"], 2, "{record:#}");
        assert!(record["report"]["signature"].is_string(), "{record:#}");
    }
}

#[test]
fn every_later_settlement_falls_with_the_wrong_one() {
    let market = market_with_window(LONG_MS);
    market.inject(Fault::WrongPayout);
    run_participant(&market, 2);
    let (events, summary) = watch_until(&market, &config(&market), is_cancelled);
    assert_eq!(summary.cancelled, 2, "{events:?}");
    assert_eq!(pending(&market), [0u32; 0]);
}

#[test]
fn a_settlement_without_a_report_is_cancelled_after_the_grace() {
    let market = market_with_window(400);
    market.inject(Fault::NoReport);
    run_participant(&market, 1);
    let posted = market.ledger.task(market.task).unwrap().unwrap().pending;
    assert_eq!(pending(&market), [1, 2]);
    let (events, _) = watch_until(&market, &config(&market), is_cancelled);
    assert_eq!(line(objection(&events)), "no report");
    assert_eq!(pending(&market), [1]);
    // Not before the last quarter of the window, which is shorter than the grace.
    let now = market.ledger.now().unwrap();
    let left = posted[1].final_at.ms_since(now);
    assert!(left <= 100, "cancelled {left} ms before the end of the window");
}

#[test]
fn data_that_is_missing_for_a_moment_cancels_nothing() {
    for fault in [Fault::Unavailable, Fault::HiddenRows, Fault::WrongBytes] {
        let market = market_with_window(LONG_MS);
        run_participant(&market, 1);
        let is_watching = Cell::new(false);
        let mut retries = 0;
        let (events, summary) = watch_until(&market, &config(&market), |event| {
            match event {
                WatchEvent::TaskWatched { .. } => {
                    is_watching.set(true);
                    market.inject(fault);
                }
                WatchEvent::Retrying { .. } => {
                    retries += 1;
                    if retries == 3 {
                        market.clear_faults();
                    }
                }
                _ => {}
            }
            is_audit_of(1)(event)
        });
        assert!(is_watching.get() && retries >= 3, "{fault:?}: {events:?}");
        assert_eq!((summary.rounds, summary.objections), (1, 0), "{fault:?}: {events:?}");
        assert_eq!(pending(&market), [1], "{fault:?}");
    }
}

#[test]
fn a_settlement_that_stays_unverifiable_is_cancelled_in_the_last_quarter_unless_it_is_kept() {
    for keeps in [false, true] {
        let market = market_with_window(400);
        run_participant(&market, 1);
        market.inject(Fault::HiddenRows);
        let final_at = market.ledger.task(market.task).unwrap().unwrap().pending[0].final_at;
        let config = WatchConfig { keeps_unverifiable: keeps, ..config(&market) };
        let (events, summary) = watch_until(&market, &config, |event| match keeps {
            false => is_cancelled(event),
            true => matches!(event, WatchEvent::Objected { .. }),
        });
        assert_eq!(line(objection(&events)), "unverifiable");
        let left = final_at.ms_since(market.ledger.now().unwrap());
        assert!((1..=100).contains(&left), "decided {left} ms before the end of the window");
        assert_eq!(summary.cancelled, u64::from(!keeps));
        assert_eq!(pending(&market).len(), usize::from(keeps));
    }
}

#[test]
fn a_dry_run_cancels_nothing_and_needs_no_arbiter() {
    let market = market_with_window(LONG_MS);
    market.inject(Fault::WrongPayout);
    run_participant(&market, 1);
    let config = WatchConfig { dry_run: true, ..config(&market) };
    let (events, summary) =
        watch_until(&market, &config, |event| matches!(event, WatchEvent::Objected { .. }));
    assert_eq!((summary.objections, summary.cancelled), (1, 0), "{events:?}");
    assert_eq!(pending(&market), [1]);
    let (client, stranger, ledger) = (market.client(), wallet(9), market.ledger.as_ref());
    let mut engine = engine(EngineKind::Reference, 1).unwrap();
    let config = WatchConfig { dry_run: false, ..config };
    let context =
        WatchContext { wallet: &stranger, client: &client, ledger, engine: engine.as_mut() };
    let error = watch(&config, context, &Shutdown::new(), &mut |_| ()).unwrap_err();
    assert_eq!(error.code(), "NOT_ARBITER");
}

#[test]
fn a_restart_acts_on_no_settlement_twice() {
    let market = market_with_window(LONG_MS);
    run_participant(&market, 1);
    market.inject(Fault::WrongPayout);
    run_participant(&market, 2);
    watch_until(&market, &config(&market), is_cancelled);
    let (events, summary) = watch_until(&market, &config(&market), is_audit_of(1));
    assert_eq!(summary.objections, 0, "{events:?}");
    assert_eq!(pending(&market), [1]);
    // The coordinator posts the same wrong settlement again: it falls again.
    let report = market.client().report(market.task, RoundNumber(2)).unwrap().body;
    let again = Settlement::from_report(&report, report.digest());
    market.ledger.post(&wallet(2), &again).unwrap();
    let (events, _) = watch_until(&market, &config(&market), is_cancelled);
    assert_eq!(line(objection(&events)), "lines[0].payout");
    assert_eq!(pending(&market), [1]);
}

#[test]
fn rounds_that_are_final_are_read_but_not_audited_again() {
    let market = market_with_window(LONG_MS);
    run_participant(&market, 1);
    let settled = market.ledger.task(market.task).unwrap().unwrap().pending[0].final_at;
    market.advance_clock(LONG_MS);
    assert!(market.ledger.now().unwrap() > settled);
    assert_eq!(market.ledger.finalize(&wallet(2), market.task).unwrap(), 1);
    run_participant(&market, 2);
    let (events, summary) = watch_until(&market, &config(&market), is_audit_of(2));
    let (task, first, last) = (market.task, RoundNumber(1), RoundNumber(1));
    assert!(events.contains(&WatchEvent::FinalWithoutAudit { task, first, last }), "{events:?}");
    assert_eq!((summary.rounds, summary.objections), (1, 0));
}

#[test]
fn all_tasks_of_the_arbiter_are_watched_and_no_others() {
    for own in [true, false] {
        let market = TestMarket::start_with(1, false, |spec| {
            spec.budget.challenge_ms = LONG_MS;
            spec.budget.unbond_ms = spec.unbond_ms_min();
            if !own {
                spec.arbiter = spec.coordinator;
            }
        });
        let config = WatchConfig { task: None, ..config(&market) };
        let (client, wallet, ledger) = (market.client(), wallet(3), market.ledger.as_ref());
        let mut engine = engine(EngineKind::Reference, 1).unwrap();
        let shutdown = Shutdown::new();
        let mut watched = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // One request lists the tasks, and one fetches the specification.
                while market.request_count("GET", &market.task.to_string()) == 0 {
                    std::thread::yield_now();
                }
                shutdown.request();
            });
            let context =
                WatchContext { wallet: &wallet, client: &client, ledger, engine: engine.as_mut() };
            let mut on_event = |event: &WatchEvent| {
                watched += usize::from(matches!(event, WatchEvent::TaskWatched { .. }))
            };
            watch(&config, context, &shutdown, &mut on_event).unwrap();
        });
        assert_eq!(watched, usize::from(own));
    }
}

#[test]
fn an_arbiter_cancels_from_a_round_on_and_slashes_what_is_left() {
    let market = market_with_window(LONG_MS);
    run_participant(&market, 2);
    let (ledger, task) = (market.ledger.as_ref(), market.task);
    let code = |by: u8, round| {
        let found = cancellable_settlements(ledger, wallet(by).address(), task, RoundNumber(round));
        found.map_err(|error| error.code()).map(|found| found.len())
    };
    assert_eq!(code(4, 1), Err("NOT_ARBITER"));
    assert_eq!(code(3, 3), Err("NOTHING_PENDING"));
    assert_eq!((code(3, 1), code(3, 2)), (Ok(2), Ok(1)));
    let found = cancellable_settlements(ledger, wallet(3).address(), task, RoundNumber(2)).unwrap();
    cancel_settlement(ledger, &wallet(3), (&found[0]).into()).unwrap();
    let again = cancel_settlement(ledger, &wallet(3), (&found[0]).into()).unwrap_err();
    assert_eq!((again.code(), pending(&market)), ("NOTHING_PENDING", vec![1]));
    market.advance_clock(2 * LONG_MS);
    assert_eq!(code(3, 1), Err("WINDOW_CLOSED"), "not final yet");
    ledger.finalize(&wallet(2), task).unwrap();
    assert_eq!(code(3, 1), Err("WINDOW_CLOSED"));

    let account = wallet(4).address();
    let least = market.spec.budget.bond_min;
    assert!(ledger.bond_of(task, account).unwrap().amount > least);
    let slash = |account, stake| florin_ledger::Slash {
        task,
        account,
        stake,
        amount: fln("1000"),
        evidence: Digest([9; 32]),
    };
    let look = |by: u8, slash: &florin_ledger::Slash| {
        crate::slashable_deposit(ledger, wallet(by).address(), slash).map_err(|error| error.code())
    };
    assert_eq!(look(4, &slash(account, false)), Err("NOT_ARBITER"));
    assert_eq!(look(3, &slash(account, true)), Err("NOTHING_TO_SLASH"));
    assert_eq!(look(3, &slash(account, false)), Ok(least));
    let taken = crate::slash_deposit(ledger, &wallet(3), &slash(account, false)).unwrap();
    assert_eq!(taken, least);
    let again = crate::slash_deposit(ledger, &wallet(3), &slash(account, false)).unwrap_err();
    assert_eq!(again.code(), "NOTHING_TO_SLASH");
}
