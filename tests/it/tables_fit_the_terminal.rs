//! Tables are as narrow as the terminal; into a pipe they keep their columns.

use crate::support::process::command;

/// The lines of a command's output on a terminal with this many columns, or into a pipe.
fn lines(arguments: &[&str], columns: Option<usize>) -> Vec<String> {
    let mut command = command(arguments);
    command.env_remove("COLUMNS").envs(columns.map(|columns| ("COLUMNS", columns.to_string())));
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    text.lines().map(str::to_owned).collect()
}

#[test]
fn tables_fit_60_columns() {
    let game = ["sim", "run", "copying", "--seeds", "1", "--set", "rounds=1"];
    for (arguments, heading) in [
        (&["doctor"][..], 0),
        (&["sim", "list"], 0),
        (&["data", "show", "digits"], 0),
        (&game, 1), // the scenario's question
    ] {
        let narrow = lines(arguments, Some(60)).split_off(heading);
        let long: Vec<&String> = narrow.iter().filter(|line| line.chars().count() > 60).collect();
        assert!(long.is_empty(), "{arguments:?}: {long:?}");
        let piped = lines(arguments, None).split_off(heading).join(" ");
        for word in piped.split([' ', '─']).filter(|word| word.len() < 20) {
            assert!(narrow.concat().contains(word), "{arguments:?} lost {word:?}");
        }
    }
    let piped = lines(&["doctor"], None);
    assert!(piped.iter().any(|line| line.chars().count() > 60), "{piped:?}");
}

#[test]
fn a_demonstration_fits_60_columns() {
    let page = tempfile::NamedTempFile::new().unwrap();
    let page = page.path().display().to_string();
    let narrow = lines(&["demo", "--rounds", "2", "--out", &page], Some(60));
    // A path stays whole, so that it can be copied.
    let text = narrow.iter().filter(|line| !line.starts_with("Report"));
    let long: Vec<&String> = text.filter(|line| line.chars().count() > 60).collect();
    assert!(long.is_empty(), "{long:?}");
    assert!(narrow.iter().any(|line| line.starts_with("round   2   loss")), "{narrow:?}");
}
