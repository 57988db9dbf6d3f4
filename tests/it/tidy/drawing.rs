//! The drawing of the crates in ARCHITECTURE.md and the table of arrows agree.

use std::collections::BTreeSet;

use super::repository::Repository;
use super::{ARROWS, refuse};

type Arrow<'a> = (&'a str, &'a str);

/// The arrows `a --> b` of the drawings in a document.
fn drawn(document: &str) -> BTreeSet<Arrow<'_>> {
    let drawings = document.split("```mermaid\n").skip(1);
    let lines = drawings.flat_map(|rest| rest.split("```").next().unwrap_or_default().lines());
    lines.filter_map(|line| line.trim().split_once(" --> ")).collect()
}

/// All crates to which arrows lead from `start`.
fn reachable<'a>(arrows: &BTreeSet<Arrow<'a>>, start: &'a str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec![start];
    while let Some(from) = open.pop() {
        let next = arrows.iter().filter(|(source, _)| *source == from);
        open.extend(next.map(|(_, to)| *to).filter(|to| found.insert(*to)));
    }
    found
}

/// Drawn arrows that the table does not list, and listed ones that do not follow from the drawing.
fn differences(document: &str, table: &[(&str, &[&str])]) -> Vec<String> {
    let drawn = drawn(document);
    let listed =
        |(from, to): &Arrow<'_>| table.iter().any(|(name, uses)| name == from && uses.contains(to));
    let strange = drawn.iter().filter(|arrow| !listed(arrow));
    let mut violations: Vec<String> =
        strange.map(|(from, to)| format!("{from} --> {to} is drawn, but not allowed")).collect();
    for (name, uses) in table {
        let reached = reachable(&drawn, name);
        let missing = uses.iter().filter(|to| !reached.contains(*to));
        violations.extend(missing.map(|to| format!("{name} --> {to} does not follow")));
    }
    violations
}

#[test]
fn the_drawing_shows_the_allowed_arrows() {
    let repository = Repository::read();
    let document = &repository.file("ARCHITECTURE.md").text;
    refuse("the drawing in ARCHITECTURE.md", &differences(document, &ARROWS));
}

#[test]
fn a_wrong_drawing_is_detected() {
    let draw = |lines: &str| format!("# A\n\n```mermaid\ngraph TD\n{lines}```\n\na --> c\n");
    let table: [(&str, &[&str]); 3] = [("a", &["b", "c"]), ("b", &["c"]), ("c", &[])];
    assert!(differences(&draw("    a --> b\n    b --> c\n"), &table).is_empty());
    assert_eq!(differences(&draw("a --> b\n"), &table).len(), 2, "a and b do not reach c");
    let found = differences(&draw("a --> b\nb --> c\nc --> a\n"), &table);
    assert_eq!(found, ["c --> a is drawn, but not allowed"]);
}
