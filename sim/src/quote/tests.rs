//! Quotes of a task on the digits: what they state, and what they need.

use florin_learning::data::load;
use florin_learning::{DataSource, cores};
use florin_protocol::{
    Address, Admission, Aggregation, Amount, Micro, ModelArchitecture, blob_digest,
};
use florin_work::{initial_model, model_spec};

use super::*;

const FLN: u128 = 1_000_000_000_000_000_000;

/// A task as in the template of task files, on the same rows.
struct DigitsTask {
    spec: TaskSpec,
    base_model: Vec<u8>,
    holdout: Dataset,
}

fn digits_spec() -> TaskSpec {
    let mut spec = TaskSpec::example();
    spec.model = ModelArchitecture::Mlp { inputs: 64, hidden: vec![64], classes: 10 };
    (spec.holdout.rows, spec.holdout.rows_per_round) = (750, 75);
    spec.training.batch = 32;
    spec.budget.data = Amount::from_units(1_000 * FLN);
    spec.budget.per_nat_max = Amount::from_units(1_000 * FLN);
    spec.budget.floor_share = Micro(200_000);
    spec.budget.bond_min = Amount::from_units(10 * FLN);
    spec.budget.debit_max = Amount::from_units(2 * FLN);
    spec
}

impl DigitsTask {
    fn new(change: impl FnOnce(&mut TaskSpec)) -> Self {
        let mut spec = digits_spec();
        change(&mut spec);
        let base_model = initial_model(&spec.model, 1).unwrap();
        spec.base_model = blob_digest(&base_model);
        let digits = load(&DataSource::Digits).unwrap();
        let last = digits.rows();
        let holdout = digits.slice(last - spec.holdout.rows as usize..last).unwrap();
        Self { spec, base_model, holdout }
    }

    /// The same task with other labels.
    fn with_labels(mut self, label: impl Fn(usize, u32) -> u32) -> Self {
        let rows = &self.holdout;
        let labels = rows.labels().iter().enumerate().map(|(row, old)| label(row, *old)).collect();
        let features = rows.features().to_vec();
        self.holdout = Dataset::new(features, labels, rows.width(), rows.classes()).unwrap();
        self
    }

    fn quote_on(&self, threads: usize) -> Result<Quote, QuoteError> {
        let inputs = QuoteInputs {
            spec: &self.spec,
            graph: None,
            base_model: &self.base_model,
            holdout: &self.holdout,
        };
        quote(&inputs, threads, &|_, _| {})
    }

    fn quote(&self) -> Result<Quote, QuoteError> {
        self.quote_on(cores())
    }
}

#[test]
fn honest_members_earn_and_noise_does_not() {
    let task = DigitsTask::new(|_| ());
    let quote = task.quote().unwrap();
    let plan = quote.plan;
    assert_eq!((plan.honest, plan.member_rows, plan.valuation_rows), (4, 100, 250));
    assert!(plan.seeds >= 3);
    assert!(quote.honest.median > quote.wrong_labels.median, "{quote:#?}");
    assert!(quote.honest.low > quote.noise.high, "{quote:#?}");
    assert!(quote.wrong_labels.median >= quote.noise.median, "{quote:#?}");
    assert!(quote.accuracy.low > 700_000 && quote.accuracy_before.high < 200_000, "{quote:#?}");
    let budget = signed(task.spec.budget.data);
    assert!(quote.data_spent.high <= budget && quote.data_spent.low > 0, "{quote:#?}");
    // Members earn what the buyer pays: four honest ones, one with wrong labels, and noise.
    let earned = quote.honest.median * 4 + quote.wrong_labels.median + quote.noise.median;
    let paid = quote.data_spent.median;
    assert!((earned - paid).abs() < paid / 5, "{earned} of {paid}: {quote:#?}");
    assert_eq!(quote.power.verdict(), PowerVerdict::Likely);
    assert_eq!(quote.labels.unwrap().verdict(), LabelVerdict::Learnable);
}

#[test]
fn a_quote_depends_on_the_task_alone() {
    let first = DigitsTask::new(|_| ()).quote_on(1).unwrap();
    let other_parties = DigitsTask::new(|spec| {
        spec.buyer = Address([7; 20]);
        spec.expires = Timestamp(77);
    });
    assert_eq!(first, other_parties.quote_on(2).unwrap());
    let other_task = DigitsTask::new(|spec| spec.salt = 7).quote().unwrap();
    assert_ne!(first.honest, other_task.honest);
}

#[test]
fn a_task_that_admits_only_listed_or_invited_accounts_is_quoted() {
    for admission in
        [Admission::Invitation, Admission::AllowList { accounts: vec![Address([7; 20])] }]
    {
        let quote = DigitsTask::new(|spec| spec.admission = admission).quote().unwrap();
        assert!(quote.honest.median > 0, "{quote:#?}");
    }
}

#[test]
fn few_rows_and_a_high_threshold_make_pay_impossible_and_the_stated_rows_likely() {
    let task = DigitsTask::new(|spec| {
        // The number of rows is an estimate that follows from the task's draws: 547 to 792 with the
        // salts 1 to 7, and 991, too many, with salt 0.
        spec.salt = 5;
        (spec.holdout.rows, spec.holdout.rows_per_round) = (1_797, 8);
        spec.training.learning_rate = Micro(3_000);
        spec.rounds.count = 2;
        spec.budget.confidence_z = Micro(4_000_000);
        spec.budget.floor_share = Micro::ZERO;
    });
    let quote = task.quote().unwrap();
    assert_eq!(quote.power.verdict(), PowerVerdict::Impossible, "{quote:#?}");
    assert_eq!(quote.honest.median, 0, "{quote:#?}");
    // The stated number of rows makes it possible.
    let rows = quote.power.rows_needed().unwrap();
    assert!(rows > 8 && rows * 2 <= 1_797, "{rows} rows: {quote:#?}");
    let more = DigitsTask::new(|spec| {
        spec.clone_from(&task.spec);
        spec.holdout.rows_per_round = rows;
    });
    let quote = more.quote().unwrap();
    assert_eq!(quote.power.verdict(), PowerVerdict::Likely, "{quote:#?}");
}

#[test]
fn random_labels_are_recognised() {
    // Labels that a hash of the row draws.
    let random = |row: usize, _| (row as u32).wrapping_mul(2_654_435_761) >> 16;
    let task = DigitsTask::new(|_| ()).with_labels(|row, old| random(row, old) % 10);
    let inputs = QuoteInputs {
        spec: &task.spec,
        graph: None,
        base_model: &task.base_model,
        holdout: &task.holdout,
    };
    let labels = quote(&inputs, cores(), &|_, _| {}).unwrap().labels.unwrap();
    assert_eq!(labels.verdict(), LabelVerdict::Random, "{labels:?}");
    // With 40 % wrong labels the rest is still learnable.
    let noisy =
        |row, old: u32| if random(row, old) % 10 < 4 { random(row, old) / 7 % 10 } else { old };
    let labels = DigitsTask::new(|_| ()).with_labels(noisy).quote().unwrap().labels.unwrap();
    assert_eq!(labels.verdict(), LabelVerdict::Learnable, "{labels:?}");
}

#[test]
fn a_training_that_diverges_is_reported() {
    let mut task = DigitsTask::new(|spec| spec.training.learning_rate = Micro(100_000_000));
    let rows = &task.holdout;
    let large = rows.features().iter().map(|value| value * 1e12).collect();
    task.holdout =
        Dataset::new(large, rows.labels().to_vec(), rows.width(), rows.classes()).unwrap();
    assert!(matches!(task.quote(), Err(QuoteError::Diverged { .. })), "{:?}", task.quote());
}

#[test]
fn a_task_that_cannot_be_simulated_states_the_reason() {
    let plan = |change: &dyn Fn(&mut TaskSpec)| {
        let mut spec = digits_spec();
        change(&mut spec);
        QuotePlan::new(&spec, &model_spec(&spec.model))
            .and_then(|plan| plan.simulated_spec(&spec).map(drop))
    };
    let few = plan(&|spec| (spec.holdout.rows, spec.holdout.rows_per_round) = (89, 8));
    assert_eq!(few, Err(NoQuote::TooFewRows { rows: 89, needed: 90 }));
    assert_eq!(plan(&|spec| (spec.holdout.rows, spec.holdout.rows_per_round) = (90, 9)), Ok(()));
    let large = plan(&|spec| {
        let hidden = vec![4_096, 4_096];
        spec.model = ModelArchitecture::Mlp { inputs: 64, hidden, classes: 10 };
    });
    assert_eq!(large, Err(NoQuote::TooLarge));
    let (filters, channels, height, width) = ([8, 16], 1, 8, 8);
    let cnn = ModelArchitecture::Cnn { channels, height, width, filters, hidden: 8, classes: 10 };
    let cnn = plan(&|spec| spec.model = cnn.clone());
    assert!(matches!(cnn, Err(NoQuote::Model(_))), "{cnn:?}");
    let krum = plan(&|spec| {
        (spec.rounds.cohort_min, spec.rounds.cohort_target) = (43, 43);
        spec.rounds.aggregation = Aggregation::Krum { byzantine: 20 };
    });
    assert!(matches!(krum, Err(NoQuote::Rules { members: 10, .. })), "{krum:?}");
}

#[test]
fn pay_is_converted_to_the_cohort_of_the_task() {
    let mut spec = digits_spec();
    spec.rounds.cohort_target = 32;
    let plan = QuotePlan::new(&spec, &model_spec(&spec.model)).unwrap();
    assert_eq!((plan.honest, plan.cohort_target, plan.member_rows), (8, 32, 55));
    assert_eq!((plan.scaled_pay(100), plan.scaled_pay(-100)), (25, -100));
}

#[test]
fn the_limits_follow_from_the_task() {
    let limits = PayLimits::new(&digits_spec()).unwrap();
    let florins = |amount: Amount| amount.units() / FLN;
    assert_eq!(florins(limits.round_pool), 100);
    assert_eq!((florins(limits.round_floor), florins(limits.floor)), (20, 200));
    assert_eq!((florins(limits.member_floor), florins(limits.score_pay)), (50, 800));
    assert_eq!((florins(limits.round_debit), florins(limits.debit)), (2, 10));
    // −ln(0.99 · 0.1 + 0.01) = −ln 0.109
    assert!((limits.initial_loss - 2.2164).abs() < 1e-4, "{}", limits.initial_loss);
    let mut cheap = digits_spec();
    cheap.budget.per_nat_max = Amount::from_units(100 * FLN);
    assert_eq!(florins(PayLimits::new(&cheap).unwrap().score_pay), 221);
    cheap.budget.per_nat_max = Amount::from_units(u128::MAX);
    assert_eq!(florins(PayLimits::new(&cheap).unwrap().score_pay), 800);
}

#[test]
fn a_spread_is_by_nearest_rank() {
    let spread = |values: &[i128]| {
        let Spread { low, median, high } = Spread::from_values(values.to_vec());
        [low, median, high]
    };
    assert_eq!(spread(&[]), [0, 0, 0]);
    assert_eq!(spread(&[5]), [5, 5, 5]);
    assert_eq!(spread(&[3, 1, 2]), [1, 2, 3]);
    let ten: Vec<i128> = (1..=10).rev().collect();
    assert_eq!(spread(&ten), [1, 5, 9]);
}
