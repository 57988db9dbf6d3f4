//! Florin's own mechanism pays honest work and not its imitations, in small markets.

use florin_sim::Scenario;
use florin_sim::results::Results;
use florin_sim::run_experiment;

/// Six honest members and one with another strategy, over a few seeds, with one hidden layer.
fn beside(strategy: &str, more: &str) -> Results {
    beside_with_units("[16]", strategy, more)
}

/// As [`beside`], with these hidden layers.
fn beside_with_units(hidden: &str, strategy: &str, more: &str) -> Results {
    let text = format!(
        "name = 'beside'\nquestion = 'What does it earn?'\nrounds = 6\n\
         [seeds]\nfirst = 1\ncount = 3\n[learning]\nholdout_rows = 480\nholdout_rows_per_round = \
         80\nhidden = {hidden}\n{more}\n\
         [population.honest]\ncount = 6\nrows = [40, 80]\n\
         [population.other]\ncount = 1\nrows = [60, 60]\nstrategy = {strategy}"
    );
    let scenario = Scenario::read(&text, &[]).unwrap();
    let results = run_experiment(&scenario, 2, &|_, _| {}).unwrap();
    assert!(
        results.outcomes.iter().all(|played| played.balanced),
        "the total of all accounts changed"
    );
    results
}

fn profit(results: &Results, group: &str) -> f64 {
    results.measure("profit", Some(group)).unwrap().interval.mean
}

#[test]
fn honest_members_earn_and_idle_members_do_not() {
    let results = beside("{ kind = 'zero_update' }", "");
    assert!(profit(&results, "honest") > 0.0);
    assert_eq!(profit(&results, "other"), 0.0);
    assert!(results.measure("accuracy", None).unwrap().interval.mean > 0.6);
    assert!(results.measure("gain", Some("other")).unwrap().interval.mean < 0.0);
}

/// The measurement behind the row on copies of another task in docs/threats.md.
#[test]
fn an_earlier_task_is_copied_between_softmax_regressions_but_not_between_networks() {
    let earns = |hidden: &str, copies: &str| {
        let strategy = format!("{{ kind = 'copy_earlier_task', copies = '{copies}' }}");
        let results = beside_with_units(hidden, &strategy, "[task]\nearlier_task = 'ignored'");
        profit(&results, "other") / profit(&results, "honest")
    };
    for copies in ["first_update", "last_model"] {
        let [softmax, network] = ["[]", "[16]"].map(|hidden| earns(hidden, copies));
        assert!(softmax > 0.5 && network < 0.2, "{copies}: {softmax} and {network}");
    }
}

#[test]
fn harmful_updates_are_excluded_and_debited() {
    for strategy in
        ["{ kind = 'flip_labels', fraction = 1.0 }", "{ kind = 'sign_flip', factor = 1.0 }"]
    {
        let results = beside(strategy, "");
        assert!(profit(&results, "other") < 0.0, "{strategy}");
        assert!(profit(&results, "honest") > 0.0, "{strategy}");
        let detection = results.measure("detection", None).unwrap().interval.mean;
        assert!(detection > 0.9, "{strategy}: {detection}");
    }
}

#[test]
fn equal_pay_rewards_idle_members_and_pay_by_rows_rewards_row_inflation() {
    let equal = beside("{ kind = 'zero_update' }", "[mechanism]\nrule = 'equal'");
    assert!(profit(&equal, "other") > 0.0);
    let by_rows = beside("{ kind = 'inflate_rows', factor = 3.0 }", "[mechanism]\nrule = 'rows'");
    assert!(profit(&by_rows, "other") > 0.0);
}

#[test]
fn every_mechanism_and_every_strategy_completes_all_rounds() {
    for rule in ["florin", "equal", "rows", "leave_one_out", "gtg", "cosine", "rank", "tokenised"] {
        let results = beside("{ kind = 'honest' }", &format!("[mechanism]\nrule = '{rule}'"));
        assert_eq!(results.outcomes[0].rounds.len(), 6, "{rule}");
    }
    for strategy in [
        "{ kind = 'lazy', fraction = 0.3 }",
        "{ kind = 'adaptive_effort' }",
        "{ kind = 'noise', scale = 1.0 }",
        "{ kind = 'replay', noise = 0.1 }",
        "{ kind = 'scale', factor = 3.0 }",
        "{ kind = 'alie', z = 1.0 }",
        "{ kind = 'backdoor', fraction = 0.5, boost = 2.0 }",
        "{ kind = 'copy', noise = 0.0 }",
        "{ kind = 'sybil', identities = 3, updates = 'same' }",
        "{ kind = 'sybil', identities = 3, updates = 'noisy' }",
        "{ kind = 'collude', noise = 0.1 }",
        "{ kind = 'collude', noise = 0.1, size = 2 }",
        "{ kind = 'shared_training', noise = 0.1, size = 3 }",
        "{ kind = 'fewer_epochs', epochs = 1 }",
        "{ kind = 'duplicate_rows', factor = 3.0 }",
    ] {
        let results = beside(strategy, "");
        assert_eq!(results.outcomes[0].rounds.len(), 6, "{strategy}");
    }
}

#[test]
fn a_slow_machine_does_not_delay_the_other_members() {
    let slow = "{ kind = 'honest' }\nmachine = { steps_per_second = 0.001 }";
    let results = beside(slow, "");
    for played in &results.outcomes {
        assert_eq!(played.rounds.len(), 6);
        assert!(played.rounds.iter().all(|round| round.updates == 6), "{:?}", played.rounds);
        let late = played.members.iter().find(|member| member.rounds == 0).unwrap();
        assert!(late.selected > 1, "a late member enrols again");
    }
    assert!(profit(&results, "honest") > 0.0);
}

#[test]
fn a_hedge_earns_more_if_negative_scores_are_cut_at_zero_instead_of_debited() {
    let bare = "[task]\nclip = false\nbond_per_row = 1.0";
    let hedge = "{ kind = 'hedge', factor = 16.0 }";
    let debited = beside(hedge, bare);
    let cut = beside(hedge, &format!("[mechanism]\nrule = 'cut_at_zero'\n{bare}"));
    let (debited, cut) = (profit(&debited, "other"), profit(&cut, "other"));
    assert!(cut > 1.2 * debited, "{cut} is not above {debited}");
}
