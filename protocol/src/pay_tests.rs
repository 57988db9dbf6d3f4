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
    floor: Amount::ZERO,
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

/// A round to pay; by default not the last one, with bonds and without work.
struct Case<'a> {
    budget: Budget,
    limits: RoundBudget,
    is_last: bool,
    bonds: BTreeMap<Account, Amount>,
    work: &'a [VerifiedWork],
}

impl Default for Case<'_> {
    fn default() -> Self {
        Self { budget: budget(), limits: BUDGET, is_last: false, bonds: bonds(), work: &[] }
    }
}

impl Case<'_> {
    fn try_pay(&self, before: &PayTotals, round: ValuedRound<'_>) -> Result<RoundPay, PayError> {
        pay_round(&PayInputs {
            budget: &self.budget,
            limits: self.limits,
            is_last: self.is_last,
            before,
            round,
            bonds: &self.bonds,
            work: self.work,
        })
    }

    fn pay(&self, before: &PayTotals, round: ValuedRound<'_>) -> RoundPay {
        self.try_pay(before, round).unwrap()
    }
}

/// An improvement that never limits the pay of a test.
const AMPLE: u64 = 1_000_000_000_000;

fn start() -> PayTotals {
    PayTotals::default()
}

/// The pay of a round that improved the model by some milli-nats, or is void without any.
fn pay(before: &PayTotals, scores: &[UpdateScore], total_m: u64) -> RoundPay {
    let round = match total_m {
        0 => ValuedRound::Void(VoidReason::NoImprovement, scores),
        total_m => ValuedRound::Improved(total_m * 1_000_000, scores),
    };
    Case::default().pay(before, round)
}

#[test]
fn pay_matches_the_hand_computed_table() {
    // 30 − 2·5 = 20 and 25 − 2·10 = 5 are payable; 9 − 2·5 is not positive; 0 ± 0 is idle; −50 is
    // significantly harmful (2·10).
    let scores =
        [score(1, 30, 5), score(2, 25, 10), score(3, 9, 5), score(4, 0, 0), score(5, -50, 10)];
    let paid = pay(&start(), &scores, 64);
    let rows: Vec<_> = paid
        .lines
        .iter()
        .map(|l| (l.increment / 1_000_000, l.payout.to_string(), l.debit.to_string(), l.reason))
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
fn only_a_score_and_an_error_of_zero_are_idle() {
    let reasons = |scores: &[UpdateScore], total_m| -> Vec<_> {
        pay(&start(), scores, total_m).lines.iter().map(|line| line.reason).collect()
    };
    let scores = [score(1, 0, 0), score(2, 0, 5), score(3, 9, 5)];
    use PayReason::{Idle, NotHelpful, Withheld};
    assert_eq!(reasons(&scores, 9), [Idle, NotHelpful, Withheld]);
    // In a void round a harmful score without an error is not debited.
    assert_eq!(reasons(&[score(1, -9, 0)], 0), [NotHelpful]);
}

#[test]
fn a_good_round_after_a_harmful_one_earns_nothing() {
    let first = pay(&start(), &[score(1, -50, 1), score(2, 60, 1)], 60);
    assert_eq!(first.lines[0].reason, PayReason::Excluded);
    let second = pay(&first.totals, &[score(1, 45, 1), score(2, 60, 1)], 105);
    assert_eq!(
        (second.lines[0].payout, second.lines[0].reason),
        (Amount::ZERO, PayReason::NotHelpful)
    );
}

#[test]
fn clawed_back_score_can_be_earned_again() {
    let first = pay(&start(), &[score(1, 50, 0)], 50); // 5 FLN at 100 per nat
    let second = pay(&first.totals, &[score(1, -20, 0), score(2, 60, 0)], 60);
    assert_eq!((first.lines[0].payout, second.lines[0].debit), (fln("5"), fln("2")));
    let third = pay(&second.totals, &[score(1, 10, 0)], 10);
    assert_eq!(third.lines[0].payout, fln("1"));
}

#[test]
fn withheld_pay_is_released_once_the_score_is_significant() {
    let first = pay(&start(), &[score(1, 9, 5)], 9);
    assert_eq!(first.data_spent, Amount::ZERO);
    // Two rounds: 18 − 2·√(25 + 25) = 18 − 14.142… = 3.857… milli-nats.
    let second = pay(&first.totals, &[score(1, 9, 5)], 9);
    assert_eq!(second.lines[0].increment, 3_857_864);
    // Three: 27 − 2·√75 = 9.679… (root and product rounded up), less the second round's weight.
    let third = pay(&second.totals, &[score(1, 9, 5)], 9);
    assert_eq!(third.lines[0].increment + second.lines[0].increment, 9_679_490);
}

#[test]
fn a_void_round_pays_and_debits_no_score_and_carries_increments_over() {
    let scores = [score(1, 30, 5), score(2, -50, 1)];
    let first = pay(&start(), &scores, 0);
    assert_eq!((first.data_spent, first.debited), (Amount::ZERO, Amount::ZERO));
    assert_eq!(first.lines[0].reason, PayReason::CarriedOver);
    assert_eq!(first.lines[1].reason, PayReason::NotHelpful);
    let second = pay(&first.totals, &[score(1, 0, 1), score(2, 45, 1)], 100);
    assert!(second.lines[0].increment > 19_000_000, "{:?}", second.lines[0]);
    assert_eq!(second.lines[1].reason, PayReason::NotHelpful, "the harm of a void round counts");
}

#[test]
fn scores_of_an_unresolved_round_enter_no_sum() {
    let scores = [score(1, 30_000, 5), score(2, -50_000, 1)];
    let round = ValuedRound::Void(VoidReason::Unresolved, &scores);
    let paid = Case::default().pay(&start(), round);
    assert_eq!((paid.data_spent, paid.debited), (Amount::ZERO, Amount::ZERO));
    for totals in paid.totals.accounts.values() {
        assert_eq!(*totals, AccountTotals::default());
    }
    let other =
        Case::default().pay(&start(), ValuedRound::Void(VoidReason::NoImprovement, &scores));
    assert_eq!(other.totals.accounts[&account(1)].score_sum_nano, 30_000_000_000);
}

#[test]
fn score_pay_never_exceeds_the_price_of_the_improvement_so_far() {
    // 100 FLN per nat: 10 milli-nats of improvement cover 1 FLN, for any scores.
    let first = pay(&start(), &[score(1, 50, 0)], 10);
    assert_eq!((first.score_pay, first.totals.score_pay), (fln("1"), fln("1")));
    assert_eq!(first.totals.improvement_nano, 10_000_000);
    // Without further improvement nothing is left, and the increment is carried over.
    let second = pay(&first.totals, &[score(1, 20, 0)], 0);
    assert_eq!((second.score_pay, second.lines[0].increment), (Amount::ZERO, 0));
    // The next improvement covers what it adds: 3 FLN, although 20 + 20 milli-nats are payable.
    let third = pay(&second.totals, &[score(1, 20, 0)], 30);
    assert_eq!((third.lines[0].increment, third.score_pay), (40_000_000, fln("3")));
    assert_eq!(third.totals.score_pay, fln("4"));
}

#[test]
fn an_improvement_that_is_spent_carries_increments_over() {
    let spent = PayTotals { improvement_nano: 10, score_pay: fln("5"), ..start() };
    let paid = pay(&spent, &[score(1, 50, 0)], 1);
    let line = &paid.lines[0];
    assert_eq!((line.reason, line.increment), (PayReason::CarriedOver, 0));
    assert_eq!(paid.totals.accounts[&account(1)].paid_score_nano, 0);
}

#[test]
fn the_last_round_pays_the_whole_sum_of_every_account_above_its_error() {
    let earlier = [score(1, 30, 5), score(2, 9, 5), score(3, 20, 5), score(4, 30, 0)];
    let first = pay(&start(), &earlier, 89);
    // 30 − 2·5, not 9 − 2·5, 20 − 2·5, and all of 30.
    assert_eq!(first.score_pay, fln("6"));
    let last = Case { is_last: true, ..Case::default() };
    let scores = [score(1, 10, 0), score(4, -20, 1)];
    let paid = last.pay(&first.totals, ValuedRound::Improved(AMPLE, &scores));
    // 1: 40 in all, less 20 paid. 4: 10 in all, less 30 paid, and a debit. 3 is absent and gets
    // the withheld 10. 2 does not exceed its error.
    assert_eq!((paid.lines[0].increment, paid.lines[0].payout), (20_000_000, fln("2")));
    assert_eq!((paid.lines[1].increment, paid.lines[1].reason), (0, PayReason::Excluded));
    let [absent] = &paid.final_lines[..] else { panic!("{:?}", paid.final_lines) };
    assert_eq!((absent.account, absent.increment), (account(3), 10_000_000));
    assert_eq!((absent.payout, absent.reason), (fln("1"), PayReason::Paid));
    assert_eq!(paid.totals.accounts[&account(3)].data, fln("2"));
    assert_eq!((paid.score_pay, paid.data_spent), (fln("3"), fln("3")));
}

#[test]
fn the_last_round_pays_withheld_scores_also_if_it_is_void_or_abandoned() {
    let first = pay(&start(), &[score(1, 30, 5)], 30);
    let last = Case { is_last: true, ..Case::default() };
    let scores = [score(1, 0, 1)];
    for round in [ValuedRound::Void(VoidReason::NoImprovement, &scores), ValuedRound::Abandoned] {
        let paid = last.pay(&first.totals, round);
        assert_eq!(paid.score_pay, fln("1"), "{round:?}");
        assert_eq!(paid.final_lines.len(), usize::from(round == ValuedRound::Abandoned));
    }
    // An excluded member whose sum still exceeds its error is paid what was withheld, and debited.
    let scores = [score(1, -3, 1), score(2, 9, 0)];
    let paid = last.pay(&first.totals, ValuedRound::Improved(AMPLE, &scores));
    let line = &paid.lines[0];
    assert_eq!((line.reason, line.increment), (PayReason::Excluded, 7_000_000));
    assert!(line.payout == fln("0.7") && !line.debit.is_zero(), "{line:?}");
}

#[test]
fn the_floor_is_paid_in_addition_and_never_out_of_the_score_pay() {
    let limits = RoundBudget { pool: fln("2"), floor: fln("1"), ..BUDGET };
    let case = Case { limits, ..Case::default() };
    let scores = [score(1, 30, 0), score(2, 9, 5)];
    let paid = case.pay(&start(), ValuedRound::Improved(AMPLE, &scores));
    let amounts = |line: &PayLine| (line.payout, line.floor);
    assert_eq!(amounts(&paid.lines[0]), (fln("2"), fln("1")));
    assert_eq!(amounts(&paid.lines[1]), (Amount::ZERO, Amount::ZERO));
    assert_eq!((paid.score_pay, paid.data_spent), (fln("1"), fln("2")));
    assert_eq!(paid.totals.accounts[&account(1)].data, fln("2"));
    // In a round that is void by majority both share it.
    let paid = case.pay(&start(), ValuedRound::Void(VoidReason::MajorityExcluded, &scores));
    assert_eq!(amounts(&paid.lines[1]), (fln("0.5"), fln("0.5")));
    assert_eq!((paid.score_pay, paid.data_spent), (Amount::ZERO, fln("1")));
}

#[test]
fn a_small_pool_lowers_the_price_of_pay_and_debit_equally() {
    let case = Case { limits: RoundBudget { pool: fln("1"), ..BUDGET }, ..Case::default() };
    let scores = [score(1, 20, 0), score(2, -40, 0)];
    let paid = case.pay(&start(), ValuedRound::Improved(20_000_000, &scores));
    assert_eq!((paid.lines[0].payout, paid.lines[1].debit), (fln("1"), fln("2")));
}

#[test]
fn a_nat_of_harm_costs_at_most_what_the_pool_pays_for_a_nat_of_improvement() {
    // A pool of 10 FLN, of which 2 are the floor, and 160 milli-nats of improvement: 50 FLN per nat,
    // half of `per_nat_max`.
    let limits = RoundBudget { pool: fln("10"), floor: fln("2"), ..BUDGET };
    let case = Case { limits, ..Case::default() };
    let debit = |own: i64, error: u64, improvement_m: u64| {
        let scores = [score(1, own, error), score(2, -40, 0)];
        let round = ValuedRound::Improved(improvement_m * 1_000_000, &scores);
        let paid = case.pay(&start(), round);
        (paid.score_pay, paid.lines[1].debit)
    };
    // Nothing is payable yet, or little.
    assert_eq!(debit(200, 150, 160), (Amount::ZERO, fln("2")));
    assert_eq!(debit(5, 0, 160), (fln("0.5"), fln("2")));
    // Without the bound, harm costs `per_nat_max`.
    assert_eq!(debit(200, 150, 80), (Amount::ZERO, fln("4")));
    assert_eq!(debit(5, 0, 79), (fln("0.5"), fln("4")));
    assert_eq!(debit(5, 0, 81), (fln("0.5"), fln("3.950617283950617283")));
}

#[test]
fn a_debit_never_exceeds_the_bond_or_the_limit() {
    let scores = [score(1, -1_000, 0)];
    assert_eq!(pay(&start(), &scores, 1).debited, fln("5"));
    let poor = Case { bonds: BTreeMap::from([(account(1), fln("0.25"))]), ..Case::default() };
    assert_eq!(poor.pay(&start(), ValuedRound::Improved(1, &scores)).debited, fln("0.25"));
}

#[test]
fn the_largest_rates_do_not_prevent_a_round_from_closing() {
    let most = Amount::from_units(u128::MAX);
    let budget = Budget { per_nat_max: most, per_unit: most, debit_max: most, ..budget() };
    let work = [(account(7), Digest([1; 32]), u64::MAX)];
    let case = Case { budget, work: &work, ..Case::default() };
    let scores = [score(1, 2_000, 0), score(2, -2_000, 0)];
    let paid = case.pay(&start(), ValuedRound::Improved(2_000_000_000, &scores));
    assert_eq!((paid.data_spent, paid.infrastructure_spent), (BUDGET.pool, BUDGET.infrastructure));
    assert_eq!(paid.debited, fln("5"), "the whole bond");
}

#[test]
fn verified_work_is_paid_by_unit_until_its_pool_is_empty() {
    let work = [(account(7), Digest([1; 32]), 1), (account(8), Digest([2; 32]), 3)];
    let paid = Case { work: &work, ..Case::default() }.pay(&start(), ValuedRound::Abandoned);
    let amounts: Vec<_> = paid.infrastructure.iter().map(|i| i.amount.to_string()).collect();
    assert_eq!(amounts, ["0.5", "0.5"]);
    assert_eq!(paid.infrastructure_spent, fln("1"));
}

#[test]
fn two_scores_for_one_account_are_an_error() {
    let scores = [score(1, 1, 0), score(1, 1, 0)];
    let error = Case::default().try_pay(&start(), ValuedRound::Improved(1, &scores)).unwrap_err();
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
        floor in 0u128..3,
    ) {
        let floor = Amount::from_units(floor * 10u128.pow(18));
        let mut totals = start();
        let mut spent = Amount::ZERO;
        for (at, values) in rounds.iter().enumerate() {
            let scores: Vec<_> =
                values.iter().zip(1..).map(|((v, e), n)| score(n, *v, *e)).collect();
            let total: i64 = scores.iter().filter(|s| !s.excluded).map(|s| s.score_nano).sum();
            let round = match u64::try_from(total) {
                Ok(total) if total > 0 => ValuedRound::Improved(total, &scores),
                _ => ValuedRound::Void(VoidReason::NoImprovement, &scores),
            };
            let limits = RoundBudget { floor, ..BUDGET };
            let is_last = at + 1 == rounds.len();
            let paid = Case { limits, is_last, ..Case::default() }.pay(&totals, round);
            let lines: Vec<_> = paid.lines.iter().chain(&paid.final_lines).collect();
            let sum = Amount::total(lines.iter().map(|l| l.payout)).unwrap();
            prop_assert_eq!(sum, paid.data_spent);
            prop_assert!(paid.data_spent <= BUDGET.pool);
            prop_assert!(is_last || total > 0 || paid.score_pay.is_zero());
            for line in lines {
                prop_assert!(line.increment > 0 || line.payout == line.floor);
                prop_assert!(line.floor <= line.payout && line.debit <= fln("5"));
                prop_assert!(is_last || line.payout.is_zero() || line.debit.is_zero());
                prop_assert!(total > 0 || line.debit.is_zero());
            }
            spent = spent.plus(paid.data_spent).unwrap();
            totals = paid.totals;
            // Money follows measured improvement: 100 FLN per nat are 10^11 units per nano-nat.
            let covered = u128::from(totals.improvement_nano) * 100_000_000_000;
            prop_assert!(totals.score_pay.units() <= covered);
        }
        let data = Amount::total(totals.accounts.values().map(|s| s.data)).unwrap();
        prop_assert_eq!(data, spent);
        // No account was paid for more than the sum of its positive scores.
        for account in totals.accounts.values() {
            prop_assert!(i128::try_from(account.paid_score_nano).unwrap()
                <= rounds.iter().flatten().map(|(v, _)| i128::from(v.max(&0) * 1_000_000)).sum());
        }
    }

    #[test]
    fn a_sybil_split_gains_nothing_at_zero_standard_error(
        value in 1i64..500, part in 0i64..500, pool in 1u128..10_000,
    ) {
        let part = part.min(value);
        let pool = Amount::from_units(pool * 1_000_000_000_000);
        let case = Case { limits: RoundBudget { pool, ..BUDGET }, ..Case::default() };
        let whole = [score(1, value, 0), score(9, 100, 0)];
        let split = [score(1, part, 0), score(2, value - part, 0), score(9, 100, 0)];
        let run = |scores: &[UpdateScore]| {
            case.pay(&start(), ValuedRound::Improved(AMPLE, scores))
        };
        let one = run(&whole).lines[0].payout.units();
        let two = run(&split).lines[..2].iter().map(|l| l.payout.units()).sum::<u128>();
        prop_assert!(two.abs_diff(one) <= 2, "{one} and {two}");
    }
}
