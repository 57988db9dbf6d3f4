//! Rows, pools and quorum of a round, and which round is the last one: figures computed by hand.

use super::*;
use crate::amount::AmountError;
use crate::id::{ChainId, MarketId};
use crate::message::RoundScope;
use crate::pay::{AccountTotals, PayReason};
use crate::time::Timestamp;

fn fln(text: &str) -> Amount {
    text.parse().unwrap()
}

/// 100 FLN for data in 10 rounds, and 0.05 FLN of bond for a row.
fn task() -> TaskSpec {
    TaskSpec::example()
}

/// The report of a round without updates.
fn abandoned(round: u32, before: Option<&Report>) -> Report {
    let spec = task();
    let market = MarketId { chain: ChainId(1), genesis: Digest([1; 32]) };
    let offer = Offer {
        scope: RoundScope { market, task: spec.id(), round: RoundNumber(round) },
        base_model: Digest([2; 32]),
        previous_report: Digest([3; 32]),
        reasons: Vec::new(),
        candidates: Digest::default(),
        cohort: vec![],
        opened: Timestamp(1),
        commit_by: Timestamp(2),
        reveal_by: Timestamp(3),
        pool: Amount::ZERO,
    };
    let inputs = ReportInputs {
        spec: &spec,
        offer: &offer,
        previous_report: before,
        commits: &[],
        entries: &[],
        times: &RoundTimes::default(),
        missing: &[],
        holdout_rows: &[],
        result: Err(AbandonReason::ValuationFailed),
        verified_work: &[],
    };
    close_round(&inputs).unwrap()
}

#[test]
fn rows_count_as_far_as_the_bond_covers_them() {
    let spec = task();
    for (declared, bond, counted) in
        [(30, "1", 20), (20, "1", 20), (7, "1", 7), (30, "0.0999", 1), (30, "0.0499", 0)]
    {
        assert_eq!(spec.rows_counted(declared, fln(bond)), counted, "{declared} rows, {bond} FLN");
    }
}

#[test]
fn infrastructure_is_paid_as_the_rounds_pass() {
    let mut spec = task();
    spec.budget.infrastructure = Amount::from_units(99);
    spec.rounds.count = 10;
    let mut before = abandoned(1, None);
    for (round, paid, most) in
        [(1, 0, 9), (2, 0, 19), (2, 9, 10), (2, 19, 0), (9, 30, 59), (10, 30, 69), (11, 30, 69)]
    {
        before.infrastructure_total = Amount::from_units(paid);
        let left = spec.infrastructure_for_round(RoundNumber(round), Some(&before));
        assert_eq!(left, Ok(Amount::from_units(most)), "round {round} after {paid}");
    }
    before.infrastructure_total = Amount::from_units(20);
    let overpaid = spec.infrastructure_for_round(RoundNumber(2), Some(&before));
    let (available, needed) = (Amount::from_units(19), Amount::from_units(20));
    assert_eq!(overpaid, Err(AmountError::Insufficient { available, needed }));
}

#[test]
fn a_pool_is_an_equal_part_of_what_is_left() {
    let spec = task();
    assert_eq!(spec.pool_for_round(RoundNumber(1), None), Ok(fln("10")));
    let mut before = abandoned(1, None);
    for (round, paid, pool) in [(2, "0", "11.111111111111111111"), (3, "36", "8"), (10, "36", "64")]
    {
        before.data_total = fln(paid);
        assert_eq!(spec.pool_for_round(RoundNumber(round), Some(&before)), Ok(fln(pool)));
    }
    before.data_total = fln("100.5");
    let error = spec.pool_for_round(RoundNumber(2), Some(&before)).unwrap_err();
    let needed = fln("100.5");
    assert_eq!(error, AmountError::Insufficient { available: fln("100"), needed });
}

#[test]
fn a_round_is_valued_from_the_smallest_cohort_on() {
    let spec =
        TaskSpec { rounds: crate::task::RoundRules { cohort_min: 3, ..task().rounds }, ..task() };
    assert_eq!([0, 2, 3, 4].map(|updates| spec.has_quorum(updates)), [false, false, true, true]);
}

#[test]
fn only_the_last_round_settles_withheld_pay() {
    let account = Address([7; 20]);
    let mut before = abandoned(8, None);
    before.improvement_total_nano = 1_000_000_000;
    let withheld = AccountTotals {
        score_sum_nano: 30_000_000,
        variance_nano2: 5_000_000 * 5_000_000,
        ..AccountTotals::default()
    };
    before.account_totals.insert(account, withheld);
    assert_eq!(abandoned(9, Some(&before)).final_lines, []);
    // 30 millinats at 100 FLN per nat.
    for round in [10, 11] {
        let report = abandoned(round, Some(&before));
        let [line] = &report.final_lines[..] else { panic!("{:?}", report.final_lines) };
        assert_eq!((line.account, line.payout, line.reason), (account, fln("3"), PayReason::Paid));
        assert_eq!((line.increment, report.data_total), (30_000_000, fln("3")));
        assert_eq!(report.score_pay_total, fln("3"));
    }
}

#[test]
fn a_task_that_ends_early_pays_what_was_withheld_and_asks_no_participant() {
    let account = Address([7; 20]);
    let mut before = abandoned(4, None);
    before.improvement_total_nano = 1_000_000_000;
    let sum = AccountTotals { score_sum_nano: 30_000_000, ..AccountTotals::default() };
    before.account_totals.insert(account, sum);
    let (offer, report) = end_task(&task(), &before, Timestamp(9)).unwrap();
    assert_eq!((report.scope.round, offer.cohort.len()), (RoundNumber(5), 0));
    assert_eq!((offer.previous_report, report.offer), (before.digest(), offer.digest()));
    assert_eq!((report.model, report.commits.len()), (before.model, 0));
    let [line] = &report.final_lines[..] else { panic!("{:?}", report.final_lines) };
    assert_eq!((line.account, line.payout), (account, fln("3")));
    assert!(report.ends_task() && report.has_settlement() && !before.ends_task());
}
