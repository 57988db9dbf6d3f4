//! `florin task check` states what a task will probably pay, cost and reach, and refuses settings by
//! which honest members are not paid.

use std::path::Path;

use crate::support::{CommandOutput, florin};

/// A task file from the template with these replacements and the salt 5, from which the simulations
/// are drawn.
fn task_file(folder: &Path, replacements: &[(&str, &str)]) -> String {
    let path = folder.join("task.toml");
    if !path.exists() {
        florin(&["task", "new", path.to_str().unwrap()]).expect(0);
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let salt = text.lines().find(|line| line.starts_with("salt = ")).unwrap().to_owned();
    let mut text = text.replace(&salt, "salt = 5");
    for (from, to) in replacements {
        assert!(text.contains(from), "the template has no {from:?}");
        text = text.replace(from, to);
    }
    let changed = folder.join("changed.toml");
    std::fs::write(&changed, text).unwrap();
    changed.display().to_string()
}

/// A random sequence that is the same in every run (Knuth's MMIX generator).
fn uniform(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 11) as f64 / (1u64 << 53) as f64
}

/// Rows of four features and a label of two, and the replacements that a task on them needs.
fn two_labels(
    folder: &Path,
    label: impl Fn(&[f64], f64) -> bool,
) -> Vec<(&'static str, &'static str)> {
    let mut text = "a,b,c,d,y\n".to_owned();
    let state = &mut 1;
    for _ in 0..800 {
        let row: Vec<f64> = (0..4).map(|_| 2.0 * uniform(state) - 1.0).collect();
        let label = u8::from(label(&row, uniform(state)));
        let row: Vec<String> = row.iter().map(f64::to_string).collect();
        text += &format!("{},{label}\n", row.join(","));
    }
    std::fs::write(folder.join("rows.csv"), text).unwrap();
    vec![
        ("source = \"digits\"", "source = \"csv:rows.csv#y\""),
        ("rows = \"1047..1797\"", "rows = \"0..800\""),
        ("inputs = 64", "inputs = 4"),
        ("width = 64", "width = 4"),
        ("classes = 10", "classes = 2"),
    ]
}

fn quote_of(output: &CommandOutput) -> serde_json::Value {
    output.json()["quote"].clone()
}

fn florins(value: &serde_json::Value) -> f64 {
    value.as_str().unwrap().parse::<f64>().unwrap() / 1e18
}

#[test]
fn the_template_is_quoted_as_text_and_as_json() {
    let folder = tempfile::tempdir().unwrap();
    // A date, so that both runs check the same task.
    let date = std::time::SystemTime::now() + std::time::Duration::from_secs(90 * 86_400);
    let expires = format!("expires = \"{}\"", humantime::format_rfc3339_seconds(date));
    let task = task_file(folder.path(), &[("expires = \"7 d\"", &expires)]);
    let first = florin(&["task", "check", &task]).expect(0);
    for part in [
        "a member with 100 rows on average earns",
        "a member that sends noise earns",
        "a member with 40 % wrong labels earns",
        "standard errors by round",
        "FLN of 1,050; the rest is refunded",
        "20 FLN per round",
        "up to 2 FLN per round, 10 FLN in all",
        "ten identities",
    ] {
        assert!(first.out.contains(part), "{:?} lacks {part:?}", first.out);
    }
    let again = florin(&["task", "check", &task]).expect(0);
    assert_eq!(first.out, again.out, "two runs print the same");

    let json = florin(&["task", "check", &task, "--json"]).expect(0);
    assert_eq!(json.out, florin(&["task", "check", &task, "--json"]).expect(0).out);
    let quote = quote_of(&json);
    let simulated = &quote["simulation"];
    let earned = |who: &str, end: &str| florins(&simulated[format!("{who}_earned")][end]);
    assert!(earned("honest", "low") > 50.0 && earned("honest", "high") < 500.0, "{quote:#}");
    assert!(earned("honest", "median") > earned("wrong_labels", "median"), "{quote:#}");
    // The initial parameters follow from all bytes of a task, also its date, and some suit noise: with
    // 120 dates the largest share of the median was a ninth.
    assert!(earned("honest", "median") > 4.0 * earned("noise", "high"), "{quote:#}");
    assert!(earned("honest", "low") > earned("noise", "high"), "{quote:#}");
    assert!(simulated["accuracy"]["low"].as_f64().unwrap() > 0.7, "{quote:#}");
    assert!(florins(&simulated["cost"]["high"]) <= florins(&quote["limits"]["locked"]));
    assert_eq!(florins(&quote["limits"]["round_floor"]), 20.0);
    assert_eq!(quote["warnings"].as_array().unwrap().len(), 0, "{quote:#}");

    let limits = quote_of(&florin(&["task", "check", &task, "--json", "--no-quote"]).expect(0));
    assert_eq!(limits["simulation"], serde_json::Value::Null);
    assert_eq!(limits["limits"], quote["limits"]);
    let text = florin(&["task", "check", &task, "--no-quote"]).expect(0);
    assert!(text.out.contains("only the limits: --no-quote"), "{}", text.out);
}

#[test]
fn a_holdout_with_random_labels_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut replacements = two_labels(folder.path(), |_, chance| chance < 0.5);
    // Softmax regression starts from zeros. The initial parameters of a network follow from all bytes
    // of a task, also its expiry, so that some of them fit random labels by chance.
    replacements.extend([("kind = \"mlp\"", "kind = \"softmax\""), ("\nhidden = [64]\n", "\n")]);
    let task = task_file(folder.path(), &replacements);
    let refused = florin(&["task", "check", &task]);
    for part in ["changed.toml, line ", "holdout.source", "the labels look random"] {
        assert!(refused.err.contains(part), "{:?} lacks {part:?}", refused.err);
    }
    refused.refused(2, "LABELS_RANDOM");
    florin(&["task", "check", &task, "--no-quote"]).expect(0);
}

#[test]
fn settings_without_pay_for_honest_work_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    // Labels with errors, so that eight rows a round show no score.
    let mut replacements =
        two_labels(folder.path(), |row, chance| (row[0] > 0.0) == (chance < 0.7));
    replacements.extend([
        ("rows_per_round = 75", "rows_per_round = 8"),
        ("confidence_z = 2", "confidence_z = 4"),
        ("learning_rate = 0.1", "learning_rate = 0.001"),
        ("floor_share = 0.2", "floor_share = 0"),
    ]);
    let task = task_file(folder.path(), &replacements);
    let refused = florin(&["task", "check", &task]);
    for part in ["changed.toml, line ", "honest members cannot be paid", "budget.floor_share = 0"] {
        assert!(refused.err.contains(part), "{:?} lacks {part:?}", refused.err);
    }
    refused.refused(2, "PAY_IMPOSSIBLE");
    // Such a threshold is refused by the specification alone, also without a quote.
    let few =
        [("rows_per_round = 75", "rows_per_round = 2"), ("confidence_z = 2", "confidence_z = 10")];
    let task = task_file(folder.path(), &few);
    let refused = florin(&["task", "check", &task, "--no-quote"]);
    assert!(refused.err.contains("budget.confidence_z = 10: use 0 to 4"), "{}", refused.err);
    refused.refused(2, "INVALID_TASK");
}
