//! The audit of honest tasks, and of each injected fault that it must detect.

use florin_learning::{EngineKind, engine};
use florin_ledger::Settlement;
use florin_protocol::{
    Amount, HoldoutSample, MissingReason, NodeSigner, Registration, SettlementId, TaskPhase,
    Timestamp, WalletSigner, draw_rows, round_seed,
};

use super::*;
use crate::ArbiterPolicy;
use crate::agent::{ParticipantConfig, ParticipantContext, participate};
use crate::behaviour::Honest;
use crate::event::ParticipantEvent;
use crate::provider::{ProviderConfig, ProviderContext, provide};
use crate::retry::Backoff;
use crate::shutdown::Shutdown;
use crate::statement::{balance, statements};
use crate::testing::{Fault, TestMarket, fln, rows, wallet};

/// Runs one honest participant through the task, or until it has read `reports` reports.
pub(crate) fn run_participant(market: &TestMarket, reports: usize) {
    run_participant_until(market, reports, &Shutdown::new());
}

fn run_participant_until(market: &TestMarket, reports: usize, shutdown: &Shutdown) {
    let config = ParticipantConfig {
        folder: market.folder.path().join("participant"),
        task: market.task,
        seed: 7,
        bond_max: None,
        pay_min: None,
        invitation: None,
        arbiters: ArbiterPolicy::default(),
        asks_for_arbiter: true,
        accepted_models: Vec::new(),
        continues_on_alarm: true,
        execution: Default::default(),
        processes: 1,
        accepts_slow_training: false,
        privacy: None,
        supervision: Default::default(),
        poll_ms: 1_000,
        backoff: Backoff::default(),
    };
    let mut read = 0;
    let mut on_event = |event: &ParticipantEvent| {
        read += usize::from(matches!(event, ParticipantEvent::Reported { .. }));
        if read == reports {
            shutdown.request();
        }
    };
    let mut engine = engine(EngineKind::Reference, 1).unwrap();
    let mut honest = Honest;
    let (wallet, data, client) = (wallet(4), rows(40, 4), market.client());
    let parts = ParticipantContext {
        wallet: &wallet,
        client: &client,
        ledger: market.ledger.as_ref(),
        engine: engine.as_mut(),
        data: &data,
        producer: None,
        behaviour: &mut honest,
        consent: &mut |_| true,
    };
    participate(&config, parts, shutdown, &mut on_event).unwrap();
}

fn audit(
    market: &TestMarket,
    rounds: Option<RangeInclusive<u32>>,
) -> Result<AuditReport, AuditError> {
    audit_with(market, rounds, &[])
}

fn audit_with(
    market: &TestMarket,
    rounds: Option<RangeInclusive<u32>>,
    receipts: &[Signed<UpdateReceipt>],
) -> Result<AuditReport, AuditError> {
    audit_as(market, &AuditOptions { rounds, receipts, ..AuditOptions::default() })
}

fn audit_as(market: &TestMarket, scrutiny: &AuditOptions<'_>) -> Result<AuditReport, AuditError> {
    let mut engine = engine(EngineKind::Reference, 1).unwrap();
    let mut emitted = Vec::new();
    let report = audit_task(
        &market.client(),
        market.ledger.as_ref(),
        market.task,
        scrutiny,
        engine.as_mut(),
        &mut |round| emitted.push(round.clone()),
    )?;
    assert!(emitted.iter().all(|round| report.rounds.contains(round)));
    Ok(report)
}

fn first_line(report: &AuditReport) -> Option<String> {
    report.first_mismatch().map(|(_, difference)| difference.line.clone())
}

#[test]
fn an_honest_task_has_no_mismatches() {
    let market = TestMarket::start(1, false);
    run_participant(&market, usize::MAX);
    let report = audit(&market, None).unwrap();
    assert_eq!(
        (report.rounds.len(), report.recomputed_count(), report.mismatch_count()),
        (3, 3, 0)
    );
    let part = audit(&market, Some(2..=2)).unwrap();
    assert_eq!((part.rounds.len(), part.recomputed_count(), part.mismatch_count()), (1, 1, 0));
    let mut engine = engine(EngineKind::Reference, 1).unwrap();
    let one = audit_round(&market.client(), market.task, RoundNumber(3), engine.as_mut()).unwrap();
    assert!(one.recomputed && one.mismatches.is_empty());
    let spot = Some(SpotCheckOptions { draws: 1, seed: 3 });
    let short = audit_as(&market, &AuditOptions { spot, ..AuditOptions::default() }).unwrap();
    assert_eq!((short.recomputed_count(), short.mismatch_count()), (3, 0));
    for round in &short.rounds {
        let looked = round.spot_check.as_ref().unwrap();
        // A round with one update has one score and no proper coalitions.
        assert_eq!((looked.scores, looked.coalition_values), ((1, 1), (0, 0)), "{looked:?}");
    }
    for rounds in [0..=1, 1..=4, 4..=4] {
        assert_eq!(audit(&market, Some(rounds)).unwrap_err().code(), "ROUNDS_OUT_OF_RANGE");
    }
}

#[test]
fn an_audit_fetches_each_blob_once_also_after_an_abandoned_round() {
    for abandons in [false, true] {
        let market = TestMarket::start(1, false);
        if abandons {
            market.inject(Fault::AbandonedRound);
        }
        run_participant(&market, usize::MAX);
        let by_others = market.fetched_digests("blobs/").len();
        let report = audit(&market, None).unwrap();
        // The one mismatch of the second round: it was abandoned without a reason.
        let found: Vec<usize> = report.rounds.iter().map(|round| round.mismatches.len()).collect();
        assert_eq!(found, [0, usize::from(abandons), 0], "{report:?}");
        // Three rounds had an update each; an abandoned round leaves the model unchanged.
        let models = if abandons { 2 } else { 3 };
        let fetched = market.fetched_digests("blobs/").len() - by_others;
        assert_eq!(fetched, models + 3, "abandons: {abandons}");
    }
}

#[test]
fn a_settled_round_is_recomputed_while_the_task_is_running() {
    let market = TestMarket::start(1, false);
    for rounds in 1..=2 {
        run_participant(&market, rounds);
        let report = audit(&market, None).unwrap();
        let found = (report.rounds.len(), report.recomputed_count(), report.mismatch_count());
        assert_eq!(found, (rounds, rounds, 0));
        assert!(market.client().task(market.task).unwrap().phase != TaskPhase::Done);
    }
}

#[test]
fn forged_or_hidden_holdout_rows_are_mismatches() {
    let lies = [
        (Fault::ForgedRow, "holdout.rows[2]", "does not lead to the root"),
        (Fault::OtherSeed, "holdout.seed", ""),
        (Fault::HiddenRows, "holdout.rows", "NOT_YET_PUBLIC"),
    ];
    for (lie, line, why) in lies {
        let market = TestMarket::start(1, false);
        market.inject(lie);
        run_participant(&market, 1);
        let report = audit(&market, None).unwrap();
        let (round, first) = report.first_mismatch().unwrap();
        assert_eq!((round, first.line.as_str()), (Some(RoundNumber(1)), line), "{report:?}");
        assert!(first.recomputed.contains(why), "{report:?}");
    }
}

#[test]
fn a_holdout_row_used_in_two_rounds_is_a_mismatch() {
    let market = TestMarket::start(1, false);
    run_participant(&market, 1);
    market.inject(Fault::SameRows);
    run_participant(&market, usize::MAX);
    let report = audit(&market, None).unwrap();
    let (round, first) = report.first_mismatch().unwrap();
    assert_eq!((round, first.line.as_str()), (Some(RoundNumber(2)), "holdout.rows[0]"));
    assert!(first.reported.ends_with("disclosed in an earlier round"), "{first:?}");
    assert!(report.rounds[2].mismatches.iter().any(|d| d.line == "holdout.rows[0]"));
    // Also if the round that disclosed it first is not audited, and if a single round is audited.
    let part = audit(&market, Some(2..=2)).unwrap();
    assert_eq!(first_line(&part).as_deref(), Some("holdout.rows[0]"));
    let mut engine = engine(EngineKind::Reference, 1).unwrap();
    let one = audit_round(&market.client(), market.task, RoundNumber(2), engine.as_mut()).unwrap();
    assert_eq!(one.mismatches[0].line, "holdout.rows[0]");
}

#[test]
fn a_wrong_payout_is_a_mismatch_at_its_line() {
    let market = TestMarket::start(1, false);
    market.inject(Fault::WrongPayout);
    run_participant(&market, 1);
    let report = audit(&market, None).unwrap();
    assert_eq!(first_line(&report).as_deref(), Some("lines[0].payout"), "{report:?}");
    assert_eq!(report.first_mismatch().unwrap().0, Some(RoundNumber(1)));
}

#[test]
fn an_entry_that_differs_from_its_header_is_a_mismatch() {
    let market = TestMarket::start(1, false);
    market.inject(Fault::MoreRows);
    run_participant(&market, 1);
    assert_eq!(lines(&audit(&market, None).unwrap()), ["entries[0].rows_declared"]);
}

#[test]
fn a_wrong_score_is_a_mismatch_once_the_round_is_settled() {
    let market = TestMarket::start(1, false);
    market.inject(Fault::WrongScore);
    run_participant(&market, 1);
    let report = audit(&market, None).unwrap();
    assert_eq!(report.recomputed_count(), 1);
    let line = first_line(&report).unwrap();
    assert!(line.contains("score"), "{line}");
}

/// The same with a provider, wallet 5, that does the work.
fn run_with_provider(market: &TestMarket, reports: usize) {
    let shutdown = Shutdown::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let config = ProviderConfig {
                folder: market.folder.path().join("provider"),
                tasks: Some(vec![market.task]),
                stake_max: fln("100"),
                arbiters: ArbiterPolicy {
                    accepted: vec![wallet(3).address()],
                    ..ArbiterPolicy::default()
                },
                accepted_trainers: Vec::new(),
                until_done: true,
                poll_ms: 100,
                backoff: Backoff::default(),
            };
            let mut engine = engine(EngineKind::Reference, 1).unwrap();
            let (wallet, client) = (wallet(5), market.client());
            let ledger = market.ledger.as_ref();
            let parts = ProviderContext {
                wallet: &wallet,
                client: &client,
                ledger,
                engine: engine.as_mut(),
            };
            provide(&config, parts, &shutdown, &mut |_| ()).unwrap();
        });
        run_participant_until(market, reports, &shutdown);
    });
}

/// A market whose settlements stay within their challenge window for the duration of a test.
fn slow_market(wants_provider: bool) -> TestMarket {
    TestMarket::start_with(1, wants_provider, |spec| {
        spec.budget.challenge_ms = 1_000_000;
        spec.budget.unbond_ms = spec.unbond_ms_min();
    })
}

fn lines(report: &AuditReport) -> Vec<String> {
    let of_rounds = report.rounds.iter().flat_map(|round| &round.mismatches);
    of_rounds.chain(&report.ledger).map(|difference| difference.line.clone()).collect()
}

#[test]
fn a_settlement_without_a_matching_report_is_a_mismatch() {
    for (lie, expected) in [
        (Fault::OtherReport, vec!["ledger.pending[1].report"]),
        (Fault::NoReport, vec!["ledger.pending[2]"]),
        (Fault::NeverPosted, vec!["ledger.settlements[1]"]),
    ] {
        let market = slow_market(false);
        assert!(audit(&market, None).unwrap().ledger.is_empty());
        market.inject(lie);
        run_participant(&market, 1);
        assert_eq!(lines(&audit(&market, None).unwrap()), expected, "{lie:?}");
    }
    let market = slow_market(false);
    run_participant(&market, 2);
    assert_eq!(lines(&audit(&market, None).unwrap()), Vec::<String>::new());
}

#[test]
fn a_task_closed_without_its_last_settlement_is_a_mismatch() {
    let market = TestMarket::start(1, false);
    run_participant(&market, 2);
    market.inject(Fault::NeverPosted);
    run_participant(&market, usize::MAX);
    assert_eq!(lines(&audit(&market, None).unwrap()), ["ledger.settlements[3]"]);
}

#[test]
fn every_field_of_a_settlement_is_compared_with_its_report() {
    type SettlementChange = fn(&mut Settlement);
    let market = slow_market(false);
    run_participant(&market, 2);
    let reports: Vec<Report> = (1..=2)
        .map(|r| market.client().report(market.task, RoundNumber(r)).unwrap().body)
        .collect();
    let honest = settlements::settlement_from_report(&reports[1], Some(&reports[0]));
    assert_eq!(settlements::compare_settlement(&honest, &reports), []);
    let more = |amount: Amount| amount.plus(Amount::from_units(1)).unwrap();
    let changes: [(&str, SettlementChange); 5] = [
        ("task", |s| s.task = TaskId([1; 32])),
        ("payout", |s| s.payout = SettlementId([1; 32])),
        ("report", |s| s.report = Digest([1; 32])),
        ("previous_root", |s| s.previous_root = Digest([1; 32])),
        ("root", |s| s.root = Digest([1; 32])),
    ];
    for (field, change) in changes {
        let mut posted = honest;
        change(&mut posted);
        let found = settlements::compare_settlement(&posted, &reports);
        let lines: Vec<_> = found.iter().map(|difference| difference.line.as_str()).collect();
        assert_eq!(lines, [format!("ledger.pending[2].{field}")]);
    }
    let data = Settlement { data_total: more(honest.data_total), ..honest };
    let scores = Settlement { score_pay_total: more(honest.score_pay_total), ..honest };
    let improvement =
        Settlement { improvement_total_nano: honest.improvement_total_nano + 1, ..honest };
    let work = Settlement { infrastructure_total: more(Amount::ZERO), ..honest };
    for (posted, field) in [
        (data, "data_total"),
        (work, "infrastructure_total"),
        (scores, "score_pay_total"),
        (improvement, "improvement_total_nano"),
    ] {
        let found = settlements::compare_settlement(&posted, &reports);
        assert_eq!(found[0].line, format!("ledger.pending[2].{field}"));
    }
}

#[test]
fn paid_honest_work_has_no_mismatches() {
    let market = TestMarket::start(1, true);
    run_with_provider(&market, usize::MAX);
    let report = audit(&market, None).unwrap();
    assert_eq!(
        (report.recomputed_count(), lines(&report), report.unverifiable),
        (3, vec![], vec![])
    );
}

#[test]
fn a_paid_record_with_another_result_is_a_mismatch() {
    let market = TestMarket::start(1, true);
    market.inject(Fault::OtherResult);
    run_with_provider(&market, usize::MAX);
    let report = audit(&market, Some(1..=1)).unwrap();
    assert_eq!(lines(&report), ["infrastructure[0].record.valuation.loss_before_nano"]);
}

#[test]
fn a_record_paid_twice_is_a_mismatch() {
    let market = TestMarket::start(1, true);
    market.inject(Fault::SameRecord);
    run_with_provider(&market, usize::MAX);
    let found = audit(&market, None).unwrap().rounds;
    assert_eq!(found[0].mismatches, []);
    for round in &found[1..] {
        let first = &round.mismatches[0];
        assert_eq!(first.line, "infrastructure[0].record");
        assert!(first.recomputed.contains("already"), "{first:?}");
    }
    // Also if the round that paid it first is not audited.
    let second = audit(&market, Some(2..=2)).unwrap();
    assert!(
        second.first_mismatch().unwrap().1.recomputed.contains("paid in round 1"),
        "{second:?}"
    );
}

#[test]
fn pay_to_a_provider_without_a_pledge_is_a_mismatch() {
    for (market, settled) in [(slow_market(true), false), (TestMarket::start(1, true), true)] {
        market.inject(Fault::UnpledgedProvider);
        let (wallet, node) = (wallet(6), wallet(6).node_signer());
        let registration =
            Registration::sign(market.spec.market, &wallet, &node, Role::Provider, Timestamp(99));
        market.client().register(&registration.unwrap()).unwrap();
        run_with_provider(&market, 1);
        let report = audit(&market, Some(1..=1)).unwrap();
        if settled {
            // The provider may have withdrawn its stake since.
            assert!(report.unverifiable[0].contains("no stake pledged now"), "{report:?}");
        } else {
            assert_eq!(lines(&report), ["infrastructure[0].provider"]);
        }
    }
}

#[test]
fn a_receipt_for_an_omitted_update_is_a_mismatch() {
    let market = TestMarket::start(1, false);
    run_participant(&market, 1);
    market.inject(Fault::LostUpdate);
    run_participant(&market, usize::MAX);
    let lost = market.client().report(market.task, RoundNumber(2)).unwrap().body;
    assert_eq!(lost.missing, [(wallet(4).address(), MissingReason::NoReveal)]);
    assert_eq!(
        lines(&audit(&market, None).unwrap()),
        Vec::<String>::new(),
        "invisible without the receipt"
    );
    let folder = market.folder.path().join("participant");
    let receipts = crate::stored_receipts(&folder, market.task).unwrap();
    assert_eq!(receipts.len(), 3);
    let line = format!("receipts[{}].update", wallet(4).address());
    let found = audit_with(&market, None, &receipts).unwrap();
    assert_eq!(lines(&found), [line.clone(), line.clone()]);
    assert_eq!(found.first_mismatch().unwrap().0, Some(RoundNumber(2)));
    assert_eq!(lines(&audit_with(&market, Some(3..=3), &receipts).unwrap()), [line]);
    let forged = NodeSigner::from_seed(&[9; 32]).sign(receipts[0].body.clone());
    let line = format!("receipts[{}].signature", wallet(4).address());
    assert_eq!(lines(&audit_with(&market, None, &[forged]).unwrap()), [line]);
    assert!(
        crate::stored_receipts(&folder, TaskId([1; 32])).is_err(),
        "an empty folder is an error, not agreement"
    );
}

#[test]
fn an_inconsistent_offer_or_cohort_is_found_without_any_blob() {
    type ReportChange<'a> = &'a dyn Fn(&mut Offer, &mut Report);
    let market = TestMarket::start(1, false);
    run_participant(&market, 1);
    let client = market.client();
    let offer = client.offer(market.task, RoundNumber(1)).unwrap().body;
    let report = client.report(market.task, RoundNumber(1)).unwrap().body;
    assert_eq!(check_report(&market.spec, &offer, &report, None, &[]), []);
    let stranger = Address([1; 20]);
    let changes: [(&str, ReportChange<'_>); 5] = [
        ("offer.pool", &|offer, _| offer.pool = fln("9")),
        ("offer.cohort ascending and within the size limit", &|offer, report| {
            offer.cohort.insert(0, stranger);
            report.missing.push((stranger, MissingReason::NoCommit));
        }),
        ("entries and missing are the cohort", &|_, report| {
            report.missing.push((stranger, MissingReason::NoCommit));
        }),
        ("entries are at least cohort_min", &|_, report| {
            let sender = report.entries.remove(0).sender;
            report.missing.push((sender, MissingReason::NoReveal));
        }),
        ("entries[0].rows_counted", &|_, report| report.entries[0].rows_counted += 1),
    ];
    for (line, change) in changes {
        let (mut offer, mut report) = (offer.clone(), report.clone());
        change(&mut offer, &mut report);
        report.offer = offer.digest();
        let seed = round_seed(report.scope, &report.commits, &report.entries);
        let rows = match market.spec.has_quorum(report.entries.len()) {
            true => draw_rows(&market.spec.holdout, &[], seed).unwrap(),
            false => Vec::new(),
        };
        report.holdout = HoldoutSample { seed, rows };
        let found = check_report(&market.spec, &offer, &report, None, &[]);
        let lines: Vec<_> = found.iter().map(|difference| difference.line.as_str()).collect();
        assert_eq!(lines, [line]);
    }
}

#[test]
fn missing_or_changed_blobs_are_mismatches_not_errors() {
    let market = TestMarket::start(1, false);
    run_participant(&market, 1);
    market.inject(Fault::WrongBytes);
    let report = audit(&market, None).unwrap();
    assert_eq!(first_line(&report).as_deref(), Some("base_model"), "{report:?}");
}

#[test]
fn statements_and_balance_agree_with_the_ledger() {
    let market = TestMarket::start(1, false);
    run_participant(&market, 2);
    let (client, me) = (market.client(), wallet(4).address());
    let all = statements(&client, market.task, me, None).unwrap();
    assert_eq!(all.lines.len(), 2);
    let own = balance(Some(&client), market.ledger.as_ref(), me, None).unwrap();
    assert_eq!((own.wallet, own.tasks.len()), (fln("998"), 1));
    let line = &own.tasks[0];
    assert_eq!((line.bond.amount, line.claimed, line.owed), (fln("2"), Amount::ZERO, all.payout));
    assert!(!line.owed.is_zero());
    run_participant(&market, usize::MAX);
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
