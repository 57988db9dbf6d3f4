//! Measures are complete under every mechanism and with absent members.

use florin_sim::measure::{MeasureKey, MeasureValues, summarise_seeds};
use florin_sim::results::{Program, Results, Verdict};
use florin_sim::run_experiment;
use florin_sim::{Scenario, simulate};

fn read(text: &str) -> Scenario {
    let text = format!("name = 'a'\nquestion = 'What?'\n{text}");
    Scenario::read(&text, &[]).unwrap()
}

fn ran(text: &str) -> Results {
    run_experiment(&read(text), 2, &|_, _| {}).unwrap()
}

const LEARNING: &str = "[learning]\nholdout_rows = 360\nholdout_rows_per_round = 60\nhidden = []\n";

#[test]
fn a_market_waits_for_offline_members_and_completes_every_round() {
    let text = format!(
        "rounds = 6\n[seeds]\ncount = 2\n[task]\ncohort_min = \
         3\n{LEARNING}[population.honest]\ncount = 5\nrows = [30, 60]\nonline = {{ pattern = \
         'random', probability = 0.6 }}"
    );
    let results = ran(&text);
    for played in &results.outcomes {
        assert_eq!(played.rounds.last().unwrap().round, 6, "{:?}", played.rounds);
    }
    // Rounds without a settlement, because of too few updates, are not counted.
    let settled = results.measure("rounds", None).unwrap().interval.mean;
    let counted: f64 = results
        .outcomes
        .iter()
        .flat_map(|p| &p.rounds)
        .map(|r| f64::from(u8::from(r.settled)))
        .sum();
    assert_eq!(settled, counted / 2.0);
    assert!(settled > 0.0, "{settled}");
}

#[test]
fn a_zero_update_is_distinguished_from_a_zero_model() {
    let text = format!(
        "rounds = 3\n[seeds]\ncount = 1\n{LEARNING}[population.honest]\ncount = 3\nrows = [30, \
         60]\n\
         online = {{ pattern = 'random', probability = 0.4 }}\n\
         [population.idle]\ncount = 2\nstrategy = {{ kind = 'zero_update' }}"
    );
    let results = ran(&text);
    assert_eq!(results.outcomes[0].rounds.len(), 3);
}

#[test]
fn token_pay_is_recorded_per_round_and_harmful_members_are_detected() {
    let text = format!(
        "rounds = 6\n[seeds]\ncount = 4\n[mechanism]\nrule = \
         'tokenised'\n{LEARNING}[population.honest]\ncount = 4\nrows = [40, 80]\n\
         [population.wrong]\ncount = 2\nrows = [60, 60]\nstrategy = {{ kind = 'flip_labels', \
         fraction = 1.0 }}"
    );
    let results = ran(&text);
    for member in results.outcomes.iter().flat_map(|outcome| &outcome.members) {
        let by_round: f64 = member.by_round.iter().sum();
        assert!((by_round - member.earned).abs() < 1e-6, "{by_round} and {}", member.earned);
    }
    assert!(results.measure("pay_rank_correlation", None).is_some());
    let detection = results.measure("detection", None).unwrap().interval.mean;
    assert!(detection > 0.8, "{detection}");
}

#[test]
fn identities_that_are_not_selected_cost_nothing() {
    let text = |cohort: u32| {
        read(&format!(
            "rounds = 6\n[task]\ncohort = {cohort}\n{LEARNING}[population.honest]\ncount = 3\nrows \
             = [30, 60]\n\
             [population.many]\ncount = 1\nrows = [80, 80]\ncost = {{ per_step = 1.0 }}\n\
             strategy = {{ kind = 'sybil', identities = 8, updates = 'disjoint' }}"
        ))
    };
    let cost = |cohort| {
        let played = simulate(&text(cohort), 1, 1).unwrap();
        (played.members[3].cost, played.members[3].selected)
    };
    let ((few, asked), (all, of)) = (cost(4), cost(11));
    assert!(asked < of, "{asked} of {of}");
    // Ten rows are one batch, five epochs long: 5 florins for each selected identity.
    assert_eq!((few, all), (f64::from(asked) * 5.0, f64::from(of) * 5.0));
}

#[test]
fn without_exclusion_no_update_is_excluded() {
    let text = |exclude_harmful: bool| {
        format!(
            "rounds = 6\n[seeds]\ncount = 2\n[task]\nbaseline_epochs = 0\nexclude_harmful = \
             {exclude_harmful}\n{LEARNING}[population.honest]\ncount = 4\nrows = [40, 80]\n\
             [population.wrong]\ncount = 2\nrows = [60, 60]\nstrategy = {{ kind = 'flip_labels', \
             fraction = 1.0 }}"
        )
    };
    let excluded = |results: &Results| {
        results.outcomes.iter().flat_map(|p| &p.rounds).map(|round| round.excluded).sum::<usize>()
    };
    let (with, without) = (ran(&text(true)), ran(&text(false)));
    assert!(excluded(&with) > 0);
    assert_eq!(excluded(&without), 0);
    let accuracy = |results: &Results| results.measure("accuracy", None).unwrap().interval.mean;
    assert!(accuracy(&with) > accuracy(&without));
}

#[test]
fn a_failed_criterion_reports_the_worst_seed() {
    let text = format!(
        "rounds = 2\n[seeds]\nfirst = 3\ncount = 3\n{LEARNING}[population.honest]\ncount = 3\nrows \
         = [30, 60]\n\
         [[criteria]]\nmeasure = 'accuracy'\nat_least = 2"
    );
    let results = ran(&text);
    let lowest = results.outcomes.iter().min_by(|a, b| {
        let last = |p: &florin_sim::SimulationOutcome| p.rounds.last().unwrap().accuracy;
        last(a).total_cmp(&last(b))
    });
    assert_eq!(results.verdict(), Verdict::Failed);
    assert_eq!(results.criteria[0].worst_seed, Some(lowest.unwrap().seed));
}

#[test]
fn a_criterion_on_an_interval_is_undecided_with_one_seed() {
    let text = |least: f64| {
        format!(
            "rounds = 2\n[seeds]\ncount = 1\n{LEARNING}[population.honest]\ncount = 3\nrows = \
             [30, 60]\n\
             [[criteria]]\nmeasure = 'accuracy'\nstatistic = 'lower'\nat_least = 0\n\
             [[criteria]]\nmeasure = 'balanced'\nat_least = {least}"
        )
    };
    let verdicts =
        |results: &Results| results.criteria.iter().map(|c| c.verdict).collect::<Vec<_>>();
    let one = ran(&text(1.0));
    assert_eq!(verdicts(&one), [Verdict::Undecided, Verdict::Passed]);
    assert_eq!((one.criteria[0].value, one.criteria[0].worst_seed), (None, None));
    assert_eq!(one.verdict(), Verdict::Undecided);
    let json = one.to_json(&Program { version: "1", commit: "abc" });
    assert!(json["passed"].is_null() && json["criteria"][0]["passed"].is_null(), "{json}");
    // A failed criterion decides the whole.
    assert_eq!(ran(&text(2.0)).verdict(), Verdict::Failed);
}

#[test]
fn shown_bounds_of_a_fraction_are_from_0_to_1() {
    let seed = |accuracy: f64, improvement: f64| {
        let key = |measure| MeasureKey { group: None, measure };
        MeasureValues::from([(key("accuracy"), accuracy), (key("improvement"), improvement)])
    };
    let measures = summarise_seeds(&[seed(0.8, 0.8), seed(1.0, 1.0)]);
    let bounds = |at: usize| measures[at].shown_interval().bounds.unwrap();
    assert_eq!((bounds(0).low, bounds(0).high), (0.0, 1.0));
    assert!(measures[0].interval.high().unwrap() > 1.0, "files have the interval as it is");
    assert!(bounds(1).high > 1.0, "an improvement is no fraction");
}
