//! The page of a synthetic outcome is complete and self-contained.

use std::collections::BTreeMap;

use florin_ledger::{TaskState, Terms};
use florin_ledger_ethereum::Deployment;
use florin_protocol::{
    Address, ChainId, Digest, HoldoutSample, InfrastructurePayment, MarketId, Micro, ModelMetrics,
    PayLine, PayReason, Report, RoundNumber, RoundOutcome, RoundScope, RoundTimes, SettlementId,
    TaskId, Timestamp, UpdateEntry, UpdateScore, Valuation, ValuationEvidence,
};

use super::*;
use crate::demo::ethereum::{Gas, LedgerReplay, OnChain, RoundSettlement};
use crate::demo::outcome::{ModelResult, ParticipantResult};
use crate::demo::plan::{PARTICIPANTS, florins};

const ROUNDS: u32 = 10;
const PROVIDER: Address = Address([99; 20]);

fn address(at: usize) -> Address {
    Address([u8::try_from(at).unwrap(); 20])
}

/// Score, error and reason of a participant in a round: the scores of honest participants decrease,
/// the others are dishonest.
fn scored(at: usize, round: u32) -> (i64, u64, PayReason) {
    let late = i64::from(round * round);
    let swing = if round.is_multiple_of(2) { 900_000 } else { -700_000 };
    match at {
        5 => (swing / i64::from(round), 2_000_000, PayReason::NotHelpful),
        6 => (-60_000_000 / late, 4_000_000, PayReason::Excluded),
        7 => (0, 0, PayReason::Idle),
        _ => ((at as i64 + 2) * 30_000_000 / late, 3_000_000, PayReason::Paid),
    }
}

fn entry(at: usize) -> UpdateEntry {
    UpdateEntry {
        sender: address(at),
        header: Digest::default(),
        update: Digest::default(),
        salt: Digest::default(),
        rows_declared: 100,
        rows_counted: 100,
        bond: florins(20),
        commit_position: at as u32 + 1,
        staleness: 0,
    }
}

/// The loss after a round.
fn loss(round: u32) -> i64 {
    2_300_000_000 / i64::from(round + 1)
}

fn valuation(round: u32, scores: Vec<UpdateScore>) -> Valuation {
    Valuation {
        loss_before_nano: loss(round - 1),
        loss_after_nano: loss(round),
        total_nano: loss(round - 1) - loss(round),
        gap_nano: 0,
        model_loss_nano: loss(round),
        stages: Vec::new(),
        scores,
        units: 5,
        evidence: ValuationEvidence::default(),
    }
}

fn report(round: u32) -> Report {
    let mut lines = Vec::new();
    let mut scores = Vec::new();
    for at in 0..PARTICIPANTS.len() {
        let (score_nano, error_nano, reason) = scored(at, round);
        let paid = reason == PayReason::Paid;
        let weight = u128::try_from(score_nano).unwrap_or(0);
        let payout = Amount::from_units(if paid { weight * 500_000_000_000 } else { 0 });
        let debit = if reason == PayReason::Excluded { florins(1) } else { Amount::ZERO };
        let floor = Amount::ZERO;
        lines.push(PayLine {
            account: address(at),
            increment: weight,
            payout,
            floor,
            debit,
            reason,
        });
        let treatment = florin_protocol::Preprocessing::default();
        let account = address(at);
        scores.push(UpdateScore {
            account,
            score_nano,
            error_nano,
            excluded: reason == PayReason::Excluded,
            preprocessing: treatment,
        });
    }
    let entries = (0..PARTICIPANTS.len()).map(entry).collect();
    let market = MarketId { chain: ChainId(1), genesis: Digest::default() };
    Report {
        version: 1,
        scope: RoundScope { market, task: TaskId([7; 32]), round: RoundNumber(round) },
        previous_report: Digest::default(),
        previous_root: Digest::default(),
        offer: Digest::default(),
        outcome: RoundOutcome::Settled,
        base_model: Digest::default(),
        model: Digest::default(),
        holdout: HoldoutSample { seed: Digest::default(), rows: Vec::new() },
        commits: Vec::new(),
        entries,
        times: RoundTimes::default(),
        missing: Vec::new(),
        valuation: Some(valuation(round, scores)),
        baseline: None,
        metrics: Some(ModelMetrics {
            rows: 360,
            correct_before: 300 - 260 / round,
            correct_after: 330 - 260 / (round + 1),
            loss_after_nano: loss(round),
        }),
        pool: florins(100),
        lines,
        infrastructure: vec![InfrastructurePayment {
            provider: PROVIDER,
            record: Digest::default(),
            units: 5,
            amount: florins(1),
        }],
        final_lines: Vec::new(),
        account_totals: BTreeMap::new(),
        improvement_total_nano: 0,
        score_pay_total: florins(50),
        data_total: florins(50),
        infrastructure_total: florins(1),
        root: Digest([u8::try_from(round).unwrap(); 32]),
        settlement_id: SettlementId::default(),
    }
}

fn outcome() -> DemoOutcome {
    let reports: Vec<Report> = (1..=ROUNDS).map(report).collect();
    let earners = PARTICIPANTS.into_iter().enumerate().map(|(at, who)| {
        let earned = Amount::total(
            reports.iter().filter_map(|report| report.line(address(at))).map(|line| line.payout),
        );
        let rows = 80 + 30 * at as u64;
        ParticipantResult::from_reports(who, address(at), rows, earned.unwrap(), &reports).unwrap()
    });
    let terms = Terms {
        task: TaskId([7; 32]),
        buyer: Address::default(),
        coordinator: Address::default(),
        arbiter: Address::default(),
        data: florins(1000),
        infrastructure: florins(50),
        rounds: ROUNDS,
        per_nat_max: florins(1),
        floor_share: Micro::ZERO,
        bond_min: florins(10),
        debit_max: florins(1),
        stake_min: florins(20),
        challenge_ms: 0,
        unbond_ms: 0,
        expires: Timestamp(0),
    };
    DemoOutcome {
        seed: 1,
        task: TaskId([7; 32]),
        rounds: ROUNDS,
        earners: earners.collect(),
        reports,
        provider: (50, florins(5)),
        books: TaskState {
            terms,
            data_locked: Amount::ZERO,
            infrastructure_locked: Amount::ZERO,
            data_paid: florins(800),
            infrastructure_paid: florins(5),
            refunded: florins(245),
            owed: Amount::ZERO,
            root: Digest::default(),
            pending: Vec::new(),
            round: None,
            closes_at: None,
            closed: true,
        },
        treasury: florins(10),
        model: ModelResult {
            initial: Digest([0xaa; 32]),
            trained: Digest([0xbb; 32]),
            rows: 323,
            correct_before: 32,
            correct_after: 301,
        },
        audit: (ROUNDS, Vec::new()),
        on_chain: None,
        seconds: 33.3,
    }
}

#[test]
fn the_page_is_self_contained() {
    let page = page(&outcome()).unwrap();
    for outside in ["http://", "https://", "<script", "@import", "url(", "<img", "<link"] {
        assert!(!page.contains(outside), "the page has an external reference: {outside}");
    }
    assert!(!page.contains("NaN"));
    for (open, close) in [("<svg", "</svg>"), ("<table", "</table>"), ("<section", "</section>")] {
        assert_eq!(page.matches(open).count(), page.matches(close).count(), "{open}");
    }
    for part in ["10 of 10 rounds recomputed", "0 mismatches", "flora", "1050 deposited"] {
        assert!(page.contains(part), "the page lacks {part:?}");
    }
    if let Some(path) = std::env::var_os("FLORIN_TEST_PAGE") {
        std::fs::write(path, page).unwrap();
    }
}

#[test]
fn the_page_has_the_digest_of_the_model_and_the_price_of_a_percentage_point() {
    // 805 FLN for 269 of 323 rows, which are 83.28 percentage points. Tables round down.
    let price = outcome().price_per_point().unwrap().unwrap();
    assert_eq!(price.to_string(), "9.665985130111524163");
    let text = page(&outcome()).unwrap();
    let digest = Digest([0xbb; 32]).to_string();
    for part in [
        format!("<th>trained model</th><td><code class=\"whole\">{digest}</code></td>"),
        "<b>9.6659&nbsp;FLN</b><span>paid for each percentage point of accuracy".to_owned(),
        "<th>price of a percentage point</th><td>9.6659&nbsp;FLN</td>".to_owned(),
        "<td>83.3 percentage points</td>".to_owned(),
    ] {
        assert!(text.contains(&part), "the page lacks {part:?}");
    }
    let mut none = outcome();
    none.model.correct_after = none.model.correct_before;
    assert_eq!(none.price_per_point().unwrap(), None);
    assert!(page(&none).unwrap().contains("the accuracy did not rise"));
}

/// The part of a page between two marks.
fn between<'a>(page: &'a str, from: &str, to: &str) -> &'a str {
    let start = page.find(from).unwrap() + from.len();
    &page[start..start + page[start..].find(to).unwrap()]
}

#[test]
fn every_chart_has_axis_titles_with_units() {
    let page = page(&outcome()).unwrap();
    for title in ["accuracy, %", "validation loss, nats", "paid, FLN", "earned, FLN"] {
        assert!(page.contains(&format!(">{title}</text>")), "no axis title {title:?}");
    }
    assert_eq!(page.matches("<svg class=\"plot\"").count(), 4);
    assert_eq!(page.matches(">round</text>").count(), 4);
    assert!(page.contains("participant ↓ round&nbsp;→</th>"));
}

#[test]
fn figures_do_not_break_before_their_unit() {
    let page = page(&outcome()).unwrap();
    let visible = &page[page.find("<main>").unwrap()..];
    for pair in visible.as_bytes().windows(5) {
        let unit = &pair[1..];
        let breaks = pair[0].is_ascii_digit() && (unit == b" FLN" || unit.starts_with(b" %"));
        assert!(!breaks, "a figure can break: {:?}", String::from_utf8_lossy(pair));
    }
    assert!(between(&page, "class=\"cards\"", "paid for data").contains("&nbsp;FLN</b>"));
}

#[test]
fn the_page_fits_a_narrow_screen() {
    let page = page(&outcome()).unwrap();
    assert!(page.contains("name=\"viewport\" content=\"width=device-width, initial-scale=1\""));
    let tables = page.matches("<table").count();
    assert_eq!(tables, page.matches("<div class=\"scroll\"><table").count(), "no box for a table");
}

#[test]
fn green_means_only_that_a_check_passed() {
    let page = page(&outcome()).unwrap();
    let body = &page[page.find("</style>").unwrap()..];
    assert_eq!(body.matches("\"good\"").count(), 2, "the mismatches, on top and in the audit");
    assert!(!body.contains("var(--good)"));
}

fn on_chain() -> OnChain {
    let settled = |round: u32| RoundSettlement {
        round: RoundNumber(round),
        payout: SettlementId([0xab; 32]),
        posted: 100 + u64::from(round),
        finalised: (round < ROUNDS).then_some(200 + u64::from(round)),
        root: Digest([0xcd; 32]),
    };
    OnChain {
        deployment: Deployment {
            chain: ChainId(31_337),
            token: address(201),
            market: address(202),
            registry: address(203),
            block: 7,
        },
        settled: (1..=ROUNDS).map(settled).collect(),
        gas: vec![("coordinator", Gas { transactions: 9, gas: 588_609, wei: 1_000_000_000_000 })],
        verified: (57, 0),
        replay: LedgerReplay {
            events: 41,
            compared: 46,
            differences: vec!["anna: 1 <> 2".to_owned()],
        },
    }
}

#[test]
fn the_page_of_a_market_on_ethereum_has_a_section_about_the_chain() {
    assert!(!page(&outcome()).unwrap().contains("On the chain"));
    let page = page(&DemoOutcome { on_chain: Some(on_chain()), ..outcome() }).unwrap();
    let market = format!("<code>{}</code>", address(202));
    for part in [
        market.as_str(),
        "Ethereum chain 31337",
        "57 values compared, <b class=\"good\">0 mismatches</b>",
        "46 balances compared, <b class=\"bad\">1 mismatches</b>",
        "anna: 1 &lt;&gt; 2",
        "<td class=\"n\">101</td><td class=\"n\">201</td><td><code>abababababababababab…</code>",
        "<td class=\"n\">110</td><td class=\"n\">–</td>",
        "588,609",
    ] {
        assert!(page.contains(part), "the page lacks {part:?}");
    }
    for (open, close) in [("<table", "</table>"), ("<section", "</section>")] {
        assert_eq!(page.matches(open).count(), page.matches(close).count(), "{open}");
    }
    if let Some(path) = std::env::var_os("FLORIN_TEST_CHAIN_PAGE") {
        std::fs::write(path, page).unwrap();
    }
}

#[test]
fn the_json_outcome_has_the_agreed_form() {
    let json = outcome().to_json().unwrap();
    assert_eq!(json["money"]["deposited"], "1050000000000000000000");
    assert_eq!(json["money"]["locked"], "0");
    assert_eq!(json["audit"], serde_json::json!({ "rounds": 10, "differences": 0 }));
    assert_eq!(json["participants"].as_array().unwrap().len(), 8);
    let flora = &json["participants"][6];
    assert_eq!((&flora["earned"], &flora["bond"]), (&"0".into(), &"10000000000000000000".into()));
    for key in ["name", "behaviour", "rows", "rounds", "score", "weight"] {
        assert!(!flora[key].is_null(), "{key}");
    }
    assert!(outcome().balances().unwrap());
}

#[test]
fn an_unbalanced_budget_is_detected() {
    let mut outcome = outcome();
    outcome.books.refunded = outcome.books.refunded.plus(Amount::from_units(1)).unwrap();
    assert!(!outcome.balances().unwrap());
}
