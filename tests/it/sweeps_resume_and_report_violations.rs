//! A sweep reports violated rules, reuses completed results, and never reuses results of other
//! inputs.

use std::fs;
use std::path::Path;

use crate::support::{CommandOutput, florin};

const SCENARIO: &str = "name = 'tiny'\nquestion = 'Does the rule hold?'\nrounds = \
    2\n[seeds]\ncount = 2\n\
    [learning]\nhidden = []\nholdout_rows = 60\nholdout_rows_per_round = 30\n\
    [population.honest]\ncount = 3\nrows = [20, 30]\nonline = { pattern = 'trace', file = 't.csv' \
    }\n\
    [[criteria]]\nmeasure = 'spent'\nat_most = 300\n";

fn sweep(folder: &Path, budgets: &str) -> CommandOutput {
    let (scenario, out) = (folder.join("tiny.toml"), folder.join("out"));
    let vary = format!("task.budget={budgets}");
    let per_nat = "task.per_nat_max=1000000";
    let (scenario, out) = (scenario.display().to_string(), out.display().to_string());
    florin(&["sim", "sweep", &scenario, "--set", per_nat, "--vary", &vary, "--out", &out, "--json"])
}

/// The modification time of each combination's results, sorted by folder name.
fn written(folder: &Path) -> Vec<std::time::SystemTime> {
    let cells = fs::read_dir(folder.join("out")).unwrap().map(|entry| entry.unwrap().path());
    let mut cells: Vec<_> = cells.filter(|path| path.is_dir()).collect();
    cells.sort();
    let when = |cell: &std::path::PathBuf| {
        fs::metadata(cell.join("results.json")).unwrap().modified().unwrap()
    };
    cells.iter().map(when).collect()
}

#[test]
fn a_sweep_exits_with_one_if_a_rule_is_violated_and_runs_only_new_combinations() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let days = |until: u32| {
        let lines = format!("member,from_s,until_s\n0,0,{until}\n1,0,9000\n2,0,9000\n");
        fs::write(folder.join("t.csv"), lines).unwrap();
    };
    fs::write(folder.join("tiny.toml"), SCENARIO).unwrap();
    days(9000);
    sweep(folder, "100,200").expect(0);
    let before = written(folder);
    // The last combination spends twice the rule's bound, and the other combinations are not run
    // again.
    let broken = sweep(folder, "100,200,600").expect(1);
    let rows = broken.json();
    let passed: Vec<bool> =
        (0..3).map(|at| rows[at]["results"]["passed"].as_bool().unwrap()).collect();
    assert_eq!(passed, [true, true, false], "{broken:?}");
    assert_eq!(written(folder)[..2], before[..], "existing results are reused");
    // Reused results give the same output as new ones.
    let (again, before) = (sweep(folder, "100,200,600"), written(folder));
    assert_eq!(again.expect(1).json(), rows);
    assert_eq!(written(folder), before);
    // The same trace name with other content: all combinations run again.
    days(700);
    sweep(folder, "100,200").expect(0);
    assert!(written(folder)[..2].iter().zip(&before).all(|(now, then)| now > then));
}
