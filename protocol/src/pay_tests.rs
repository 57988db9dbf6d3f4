//! The pay rule: a table computed by hand, and its properties.

use proptest::prelude::*;

use super::*;
use crate::task::TaskSpec;

fn fln(text: &str) -> Amount {
    text.parse().unwrap()
}

fn account(n: u8) -> Account {
    Address([n; 20])
}

/// κ_max = 100 FLN per nat, z = 2, debit at most 5 FLN.
fn budget() -> Budget {
    Budget {
        bond_per_row: fln("0.1"),
        debit_max: fln("5"),
        per_unit: fln("0.5"),
        unbond_ms: 0,
        ..TaskSpec::example().budget
    }
}

const BUDGET: RoundBudget = RoundBudget {
    pool: Amount::from_units(10 * 10u128.pow(18)),
    infrastructure: Amount::from_units(10u128.pow(18)),
};

/// In milli-nats, for readable tables.
fn score(n: u8, value_m: i64, error_m: u64) -> UpdateScore {
    UpdateScore {
        account: account(n),
        score_nano: value_m * 1_000_000,
        error_nano: error_m * 1_000_000,
        excluded: value_m < 0 && value_m.unsigned_abs() > 2 * error_m,
        preprocessing: crate::report::Preprocessing::default(),
    }
}

fn bonds() -> BTreeMap<Account, Amount> {
    (0..10).map(|n| (account(n), fln("5"))).collect()
}

fn pay(
    before: &BTreeMap<Account, AccountTotals>,
    scores: &[UpdateScore],
    total_m: i64,
) -> RoundPay {
    pay_round(&budget(), BUDGET, before, scores, &bonds(), total_m * 1_000_000, &[]).unwrap()
}

#[test]
fn pay_matches_the_hand_computed_table() {
    // 30 − 2·5 = 20 and 25 − 2·10 = 5 are payable; 9 − 2·5 is not positive; 0 ± 0 is idle; −50 is
    // significantly harmful (2·10).
    let scores =
        [score(1, 30, 5), score(2, 25, 10), score(3, 9, 5), score(4, 0, 0), score(5, -50, 10)];
    let paid = pay(&BTreeMap::new(), &scores, 64);
    let rows: Vec<_> = paid
        .lines
        .iter()
        .map(|l| (l.weight / 1_000_000, l.payout.to_string(), l.debit.to_string(), l.reason))
        .collect();
    // 25 milli-nats at 100 FLN per nat are 2.5 FLN, below the pool of 10; harm of 50 milli-nats
    // costs 5 FLN.
    assert_eq!(
        rows,
        [
            (20, "2".to_owned(), "0".to_owned(), PayReason::Paid),
            (5, "0.5".to_owned(), "0".to_owned(), PayReason::Paid),
            (0, "0".to_owned(), "0".to_owned(), PayReason::Withheld),
            (0, "0".to_owned(), "0".to_owned(), PayReason::Idle),
            (0, "0".to_owned(), "5".to_owned(), PayReason::Excluded),
        ]
    );
    assert_eq!((paid.data_spent, paid.debited), (fln("2.5"), fln("5")));
}

#[test]
fn a_good_round_after_a_harmful_one_earns_nothing() {
    let first = pay(&BTreeMap::new(), &[score(1, -50, 1), score(2, 60, 1)], 60);
    assert_eq!(first.lines[0].reason, PayReason::Excluded);
    let second = pay(&first.account_totals, &[score(1, 45, 1), score(2, 60, 1)], 105);
    assert_eq!(
        (second.lines[0].payout, second.lines[0].reason),
        (Amount::ZERO, PayReason::NotHelpful)
    );
}

#[test]
fn clawed_back_score_can_be_earned_again() {
    let first = pay(&BTreeMap::new(), &[score(1, 50, 0)], 50); // 5 FLN at 100 per nat
    let second = pay(&first.account_totals, &[score(1, -20, 0), score(2, 60, 0)], 60);
    assert_eq!((first.lines[0].payout, second.lines[0].debit), (fln("5"), fln("2")));
    let third = pay(&second.account_totals, &[score(1, 10, 0)], 10);
    assert_eq!(third.lines[0].payout, fln("1"));
}

#[test]
fn withheld_pay_is_released_once_the_score_is_significant() {
    let first = pay(&BTreeMap::new(), &[score(1, 9, 5)], 9);
    assert_eq!(first.data_spent, Amount::ZERO);
    // Two rounds: 18 − 2·√(25 + 25) = 18 − 14.142… = 3.857… milli-nats.
    let second = pay(&first.account_totals, &[score(1, 9, 5)], 9);
    assert_eq!(second.lines[0].weight, 3_857_864);
    // Three: 27 − 2·√75 = 9.679… (root and product rounded up), less the second round's weight.
    let third = pay(&second.account_totals, &[score(1, 9, 5)], 9);
    assert_eq!(third.lines[0].weight + second.lines[0].weight, 9_679_490);
}

#[test]
fn a_round_without_improvement_pays_nothing_and_carries_weights_over() {
    let first = pay(&BTreeMap::new(), &[score(1, 30, 5)], 0);
    assert_eq!((first.data_spent, first.lines[0].reason), (Amount::ZERO, PayReason::NoImprovement));
    let second = pay(&first.account_totals, &[score(1, 0, 1)], 1);
    assert!(second.lines[0].weight > 19_000_000, "{:?}", second.lines[0]);
}

#[test]
fn a_small_pool_lowers_the_price_of_pay_and_debit_equally() {
    let purse = RoundBudget { pool: fln("1"), ..BUDGET };
    let scores = [score(1, 20, 0), score(2, -40, 0)];
    let paid = pay_round(&budget(), purse, &BTreeMap::new(), &scores, &bonds(), 1, &[]).unwrap();
    assert_eq!((paid.lines[0].payout, paid.lines[1].debit), (fln("1"), fln("2")));
}

#[test]
fn a_debit_never_exceeds_the_bond_or_the_limit() {
    let scores = [score(1, -1_000, 0)];
    assert_eq!(pay(&BTreeMap::new(), &scores, 0).debited, fln("5"));
    let poor = BTreeMap::from([(account(1), fln("0.25"))]);
    let paid = pay_round(&budget(), BUDGET, &BTreeMap::new(), &scores, &poor, 0, &[]).unwrap();
    assert_eq!(paid.debited, fln("0.25"));
}

#[test]
fn the_largest_rates_do_not_prevent_a_round_from_closing() {
    let most = Amount::from_units(u128::MAX);
    let budget = Budget { per_nat_max: most, per_unit: most, debit_max: most, ..budget() };
    let scores = [score(1, 2_000, 0), score(2, -2_000, 0)];
    let work = [(account(7), Digest([1; 32]), u64::MAX)];
    let paid = pay_round(&budget, BUDGET, &BTreeMap::new(), &scores, &bonds(), 1, &work).unwrap();
    assert_eq!((paid.data_spent, paid.infrastructure_spent), (BUDGET.pool, BUDGET.infrastructure));
    assert_eq!(paid.debited, fln("5"), "the whole bond");
}

#[test]
fn verified_work_is_paid_by_unit_until_its_pool_is_empty() {
    let work = [(account(7), Digest([1; 32]), 1), (account(8), Digest([2; 32]), 3)];
    let paid = pay_round(&budget(), BUDGET, &BTreeMap::new(), &[], &bonds(), 0, &work).unwrap();
    let amounts: Vec<_> = paid.infrastructure.iter().map(|i| i.amount.to_string()).collect();
    assert_eq!(amounts, ["0.5", "0.5"]);
    assert_eq!(paid.infrastructure_spent, fln("1"));
}

#[test]
fn two_scores_for_one_account_are_an_error() {
    let scores = [score(1, 1, 0), score(1, 1, 0)];
    let error =
        pay_round(&budget(), BUDGET, &BTreeMap::new(), &scores, &bonds(), 1, &[]).unwrap_err();
    assert_eq!(error, PayError::DuplicateScore(account(1)));
}

#[test]
fn the_claim_root_commits_to_pay_and_debits() {
    let with = |data, infrastructure, debited| AccountTotals {
        data: fln(data),
        infrastructure: fln(infrastructure),
        debited: fln(debited),
        ..AccountTotals::default()
    };
    let standings = BTreeMap::from([
        (account(1), with("3", "4", "0")),
        (account(2), with("0", "0", "5")),
        (account(3), with("1", "0", "2")),
        (account(4), with("0", "0", "0")),
    ]);
    let totals = |paid, debited| ClaimTotals { paid: fln(paid), debited: fln(debited) };
    let leaves = [
        (account(1), totals("7", "0")),
        (account(2), totals("0", "5")),
        (account(3), totals("1", "2")),
    ];
    let tree = claim_tree(&standings).unwrap();
    assert_eq!(
        tree.root(),
        ClaimTree::new(leaves).root(),
        "accounts without pay and debits have no leaf"
    );
    assert_eq!(claim_tree(&BTreeMap::new()).unwrap().root(), Digest::default());
}

#[test]
fn the_last_round_may_spend_the_whole_rest() {
    assert_eq!(round_pool(fln("10"), 4), fln("2.5"));
    assert_eq!(round_pool(Amount::from_units(7), 3), Amount::from_units(2));
    assert_eq!(round_pool(fln("10"), 1), fln("10"));
    assert_eq!(round_pool(fln("10"), 0), fln("10"));
}

proptest! {
    #[test]
    fn payouts_sum_exactly_and_only_improvement_is_paid(
        rounds in prop::collection::vec(
            prop::collection::vec((-100i64..100, 0u64..30), 1..8), 1..12),
    ) {
        let mut standings = BTreeMap::new();
        let mut spent = Amount::ZERO;
        for values in &rounds {
            let scores: Vec<_> =
                values.iter().zip(1..).map(|((v, e), n)| score(n, *v, *e)).collect();
            let total: i64 = scores.iter().filter(|s| !s.excluded).map(|s| s.score_nano).sum();
            let paid = pay_round(
                &budget(), BUDGET, &standings, &scores, &bonds(), total, &[]).unwrap();
            let lines = Amount::total(paid.lines.iter().map(|l| l.payout)).unwrap();
            prop_assert_eq!(lines, paid.data_spent);
            prop_assert!(paid.data_spent <= BUDGET.pool);
            prop_assert!(total > 0 || paid.data_spent.is_zero());
            for line in &paid.lines {
                prop_assert!(line.weight > 0 || line.payout.is_zero());
                prop_assert!(line.debit <= fln("5"));
                prop_assert!(line.payout.is_zero() || line.debit.is_zero());
            }
            spent = spent.plus(paid.data_spent).unwrap();
            standings = paid.account_totals;
        }
        let totals = Amount::total(standings.values().map(|s| s.data)).unwrap();
        prop_assert_eq!(totals, spent);
        // No account was paid for more than the sum of its positive scores.
        for standing in standings.values() {
            prop_assert!(i128::try_from(standing.paid_score_nano).unwrap()
                <= rounds.iter().flatten().map(|(v, _)| i128::from(v.max(&0) * 1_000_000)).sum());
        }
    }

    #[test]
    fn a_sybil_split_gains_nothing_at_zero_standard_error(
        value in 1i64..500, part in 0i64..500, pool in 1u128..10_000,
    ) {
        let part = part.min(value);
        let purse = RoundBudget { pool: Amount::from_units(pool * 1_000_000_000_000), ..BUDGET };
        let whole = [score(1, value, 0), score(9, 100, 0)];
        let split = [score(1, part, 0), score(2, value - part, 0), score(9, 100, 0)];
        let run = |scores: &[UpdateScore]| {
            pay_round(&budget(), purse, &BTreeMap::new(), scores, &bonds(), 1, &[]).unwrap()
        };
        let one = run(&whole).lines[0].payout.units();
        let two = run(&split).lines[..2].iter().map(|l| l.payout.units()).sum::<u128>();
        prop_assert!(two.abs_diff(one) <= 2, "{one} and {two}");
    }
}
