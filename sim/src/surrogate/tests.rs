//! Fits of a small market, and simulations sampled from them.

use super::*;
use crate::experiment::{honest_counterfactuals, run_experiment};
use crate::results::{Program, Results, Verdict};

/// Honest members and label flippers, few enough for a development build.
fn market() -> Scenario {
    let text = "name = \"tiny\"\nquestion = \"What?\"\nrounds = 20\nmode = \"surrogate\"\n\
                [seeds]\ncount = 1\n\
                [surrogate]\nmembers = 32\ntraining_seeds = 3\nheld_out = 3\nerror_max = 0.35\n\
                [learning]\nhidden = [16]\nepochs = 2\nholdout_rows = \
                1280\nholdout_rows_per_round = 64\nfeature_noise = 0.1\n\
                [task]\nbudget = 300\ncohort = 400\n\
                [population.honest]\ncount = 1500\nrows = [30, 80]\n\
                [population.flipper]\ncount = 300\nrows = [80, 80]\n\
                strategy = { kind = \"flip_labels\", fraction = 1.0 }\n";
    Scenario::read(text, &[]).unwrap()
}

fn played(scenario: &Scenario, threads: usize) -> Results {
    run_experiment(scenario, threads, &|_, _| {}).unwrap()
}

#[test]
fn a_surrogate_is_deterministic_on_any_number_of_threads_and_conserves_money() {
    let mut scenario = market();
    let one = played(&scenario, 1);
    let four = played(&scenario, 4);
    // Compared as text: measures without a value are NaN, which equals nothing.
    assert_eq!(format!("{:?}", one.outcomes), format!("{:?}", four.outcomes));
    let program = Program { version: "0", commit: "unknown" };
    assert_eq!(one.to_json(&program), four.to_json(&program));
    let game = one.outcomes.first().unwrap();
    assert!(game.balanced);
    let paid: f64 = game.rounds.iter().map(|round| round.spent).sum();
    assert!(paid > 0.0 && paid <= 300.0 + 1e-6, "{paid}");
    // The members' earnings are the pay minus the debits.
    let earned: f64 = game.members.iter().map(|member| member.earned).sum();
    assert!(earned > 0.0 && earned <= paid + 1e-6, "{earned} of {paid}");
    scenario.seeds.first = 2;
    assert_ne!(played(&scenario, 2).outcomes.first().unwrap().members, game.members);
}

#[test]
fn honest_work_earns_more_than_wrong_labels_as_in_real_simulations() {
    let results = played(&market(), 2);
    let fit = &results.fits.first().unwrap().fit;
    let profit = |group| results.measure("profit", Some(group)).unwrap().interval.mean;
    assert!(profit("honest") > 0.0, "{fit:#?}");
    assert!(profit("flipper") < 0.5 * profit("honest"), "{fit:#?}");
    assert!(fit.errors.loss < 0.25, "{:#?}", fit.errors);
    assert!(fit.holds(), "{:#?}", fit.errors);
    assert_eq!(results.verdict(), Verdict::Passed);
    // The honest counterfactual, from which gains are measured, has its own fit, which is validated
    // too.
    let honest = results.fits.get(1).unwrap();
    assert_eq!((results.fits.len(), honest.made_honest.as_deref()), (2, Some("flipper")));
    assert_ne!(honest.fit.errors, fit.errors);
    let mut missed = results.clone();
    missed.fits[1].fit.errors.earned.insert("flipper".to_owned(), -0.4);
    assert!(
        missed.fits[0].fit.holds() && missed.verdict() == Verdict::Failed,
        "an excessive error of either fit fails"
    );
    assert!(missed.to_html(&Program { version: "0", commit: "unknown" }).contains("TOO MUCH"));
    let accuracy = results.measure("accuracy", None).unwrap().interval.mean;
    assert!((0.4..1.0).contains(&accuracy), "{accuracy}");
}

#[test]
fn validation_detects_a_wrong_curve() {
    let scenario = market();
    let fit = Fit::new(&scenario, 2).unwrap();
    let again = fit.with_curve(fit.curve, &scenario).unwrap();
    assert_eq!(again.errors, fit.errors);
    for by in [3.0, 0.25] {
        let knots = fit.curve.knots.map(|knot| Knot { gain: knot.gain * by, ..knot });
        let curve = LearningCurve { knots, ..fit.curve };
        let wrong = fit.with_curve(curve, &scenario).unwrap();
        assert!(wrong.errors.loss > fit.errors.loss + 0.1, "{:#?}", wrong.errors);
        assert!(!wrong.holds(), "{:#?}", wrong.errors);
    }
}

#[test]
fn groups_with_the_same_behaviour_share_a_fit() {
    let scenario = market();
    assert_eq!(equivalent_groups(&scenario), [vec![0], vec![1]]);
    let (_, honest) = honest_counterfactuals(&scenario).pop().unwrap();
    assert_eq!(equivalent_groups(&honest), [vec![0, 1], vec![0, 1]]);
    let mut noisy = (*honest).clone();
    noisy.population.get_mut("flipper").unwrap().label_noise = 0.2;
    assert_eq!(equivalent_groups(&noisy), [vec![0], vec![1]]);
}

#[test]
fn unsupported_scenarios_are_refused_for_a_surrogate() {
    use crate::scenario::SettingOverride;
    let text = market().to_toml();
    for (key, value) in [
        ("mechanism.rule", "equal"),
        ("population.honest.outside_option", "1.0"),
        ("population.flipper.strategy", "{ kind = \"adaptive_effort\" }"),
        ("population.flipper.strategy", "{ kind = \"sybil\", identities = 2, updates = \"same\" }"),
        ("population.honest.count", "1000001"),
        ("surrogate.held_out", "0"),
        // Two markets of 1,800 members each, ten thousand times: more than fits into memory.
        ("seeds.count", "9999"),
    ] {
        let change: SettingOverride = format!("{key}={value}").parse().unwrap();
        let refused = Scenario::read(&text, &[change]).unwrap_err().to_string();
        assert!(refused.contains("[SCENARIO_VALUE]"), "{key}={value}: {refused}");
    }
}

#[test]
fn default_surrogate_settings_are_accepted_without_a_surrogate() {
    let text = "name = \"defaults\"\nquestion = \"Is it accepted?\"\nrounds = 1\nmode \
                = \"real\"\n[surrogate]\nmembers = 48\n\
                [population.honest]\ncount = 4\n";
    assert!(Scenario::read(text, &[]).unwrap().mode.is_real());
    let change = "surrogate.members=20".parse().unwrap();
    let refused = Scenario::read(text, &[change]).unwrap_err().to_string();
    assert!(
        refused.contains("[SCENARIO_CHANGE]") && refused.contains("mode=surrogate"),
        "{refused}"
    );
}

#[test]
fn a_member_that_misses_the_deadline_still_has_costs() {
    let text = "name = \"late\"\nquestion = \"Who pays?\"\nrounds = 3\nmode \
                = \"surrogate\"\n[seeds]\ncount = 1\n\
                [surrogate]\nheld_out = 1\n[learning]\nhidden = []\nholdout_rows = \
                90\nholdout_rows_per_round = 30\n\
                [population.late]\ncount = 4\ncost = { per_megabyte = 100 }\n\
                machine = { steps_per_second = 0.001 }\n[population.honest]\ncount = 4\n";
    let scenario = Scenario::read(text, &[]).unwrap();
    let played = play(&scenario, 1, 1).unwrap();
    let late = played.members.iter().filter(|member| member.group == 1);
    assert!(late.clone().all(|member| member.rounds == 0 && member.cost > 0.0), "{played:?}");
    assert_eq!(late.count(), 4);
}
