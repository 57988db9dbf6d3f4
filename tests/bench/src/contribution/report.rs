//! Reports: tables for the terminal and for the documentation, and the update of the documentation
//! pages.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context;

use super::super::{Measurement, format_value};
use super::curve::{Curve, Reached, TARGET};
use super::games::BenchGame;
use super::ours::OURS;
use super::plot::{HorizontalAxis, Panel, svg};
use super::rounds::GradientResults;
use super::{ContributionResults, targets};
use florin::show::{self, Cell, TextTable};

/// The page with the tables, in the documentation folder.
const PAGE: &str = "contribution.md";
/// The plotted games, by name and title.
const PANELS: [(&str, &str); 8] = [
    ("mlp-loss-10", "real rounds, loss, n = 10"),
    ("mlp-loss-20", "real rounds, loss, n = 20"),
    ("saturating-10", "saturating game, n = 10"),
    ("saturating-20", "saturating game, n = 20"),
    ("coverage-10", "coverage game, n = 10"),
    ("coverage-20", "coverage game, n = 20"),
    ("interaction-20", "interaction game, n = 20"),
    (targets::STEPS_GAME, "real rounds, accuracy (steps), n = 20"),
];

/// The evaluations at which a curve reaches 1 % in a game of `players`: `109`, `≤ 20`, `all` if it
/// needed every coalition, or `1.4 % @ 1,024` for the smallest error.
fn cell(curve: Option<&Curve>, players: usize) -> String {
    let all = 2_f64.powi(i32::try_from(players).unwrap_or(i32::MAX));
    if curve.and_then(Curve::first_below_target).is_some_and(|point| point.evaluations >= all) {
        return "all".to_owned();
    }
    match curve.and_then(Curve::reached) {
        Some(Reached::At(evaluations)) => whole(evaluations),
        Some(Reached::Within(evaluations)) => format!("≤ {}", whole(evaluations)),
        Some(Reached::Never(best)) => {
            format!("{} % @ {}", short(100.0 * best.error), whole(best.evaluations))
        }
        None => "–".to_owned(),
    }
}

/// Formats a number with about two digits.
fn short(value: f64) -> String {
    if value < 9.95 { format!("{value:.1}") } else { whole(value) }
}

fn whole(value: f64) -> String {
    show::thousands(&format!("{value:.0}"))
}

/// A table of evaluations to 1 %: one row per estimator, one column per game.
struct Evaluations {
    titles: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Evaluations {
    fn new(curves: &[Curve], games: &[&BenchGame]) -> Self {
        let mut names: Vec<&str> = Vec::new();
        for curve in curves {
            if !names.contains(&curve.estimator.as_str()) {
                names.push(&curve.estimator);
            }
        }
        let titles = games.iter().map(|game| game.title.clone()).collect();
        let row = |name: &&str| {
            let cells = games.iter().map(|game| {
                cell(
                    curves.iter().find(|c| c.estimator == *name && c.game == game.name),
                    game.players,
                )
            });
            let cells: Vec<String> = cells.collect();
            let is_empty = cells.iter().all(|cell| cell == "–");
            (!is_empty).then(|| std::iter::once((*name).to_owned()).chain(cells).collect())
        };
        Self { titles, rows: names.iter().filter_map(row).collect() }
    }

    fn markdown(&self) -> String {
        let mut out = format!("| evaluations to {} % |", TARGET * 100.0);
        for title in &self.titles {
            let _ = write!(out, " {title} |");
        }
        out.push_str("\n|---|");
        out.push_str(&"---:|".repeat(self.titles.len()));
        out.push('\n');
        for row in &self.rows {
            let ours = row[0].starts_with(OURS);
            for (at, cell) in row.iter().enumerate() {
                let bold = ours && at == 0;
                let _ = write!(out, "{}{}", if at == 0 { "| " } else { " " }, emphasis(cell, bold));
                out.push_str(" |");
            }
            out.push('\n');
        }
        out
    }
}

fn emphasis(text: &str, is_bold: bool) -> String {
    if is_bold { format!("**{text}**") } else { text.to_owned() }
}

/// Prints the comparison: one table for ten players, one for twenty.
pub(super) fn print(measured: &ContributionResults) {
    for players in [10, 20] {
        let games = games_with_players(measured, players);
        let table = Evaluations::new(&measured.curves, &games);
        anstream::println!(
            "\n{}Evaluations to {} % relative error, n = {players}{:#}",
            show::HEAD,
            TARGET * 100.0,
            show::HEAD
        );
        let mut shown = TextTable::new(&["", ">", ">", ">", ">", ">", ">", ">", ">"]);
        let heads = table.titles.iter().map(|title| title.split(", n =").next().unwrap_or(title));
        shown.row(
            std::iter::once("estimator").chain(heads).map(|head| Cell::styled(head, show::HEAD)),
        );
        for row in &table.rows {
            let style = match row[0].starts_with(OURS) {
                true => show::GOOD,
                false => anstyle::Style::new(),
            };
            let cells = row.iter().enumerate().map(|(at, cell)| match at {
                0 => Cell::styled(cell, style),
                _ => cell.as_str().into(),
            });
            shown.row(cells);
        }
        shown.print();
    }
    anstream::println!();
}

fn games_with_players(measured: &ContributionResults, players: usize) -> Vec<&BenchGame> {
    measured.games.iter().filter(|game| game.players == players).collect()
}

/// The measurements with targets as a Markdown table.
fn bars_markdown(rows: &[Measurement]) -> String {
    let mut out = "| measurement | value | target | |\n|---|---:|---|---|\n".to_owned();
    for row in rows {
        let mark = match row.holds {
            Some(true) => "met",
            Some(false) => "**missed**",
            None => "",
        };
        let _ = writeln!(
            out,
            "| {} | {} {} | {} | {mark} |",
            row.name,
            format_value(row.value),
            row.unit,
            row.bar
        );
    }
    out
}

fn regimes_markdown(inside: &[(String, Vec<GradientResults>)]) -> String {
    let mut out = "| rounds | regime | number | path, 3 gradients: median error | 90 % quantile \
         | first-order: median | cosine: median |\n|---|---|---:|---:|---:|---:|---:|\n"
        .to_owned();
    for (what, rounds) in inside {
        for (regime, count, errors) in targets::by_regime(rounds) {
            let _ = write!(out, "| {what} | {regime} | {count} |");
            for error in errors {
                let _ = write!(out, " {} % |", format_value(100.0 * error));
            }
            out.push('\n');
        }
    }
    out
}

fn versions_markdown(measured: &ContributionResults) -> String {
    let mut out = String::new();
    for (name, version) in &measured.versions {
        let _ = writeln!(out, "* {name} {version}");
    }
    let _ = writeln!(out, "* Florin {}, {}", env!("CARGO_PKG_VERSION"), measured.machine);
    let _ = writeln!(out, "* {}", measured.extent);
    out
}

/// Writes the plots into `folder`/contribution, and refreshes the tables of the page in `folder`.
pub(super) fn write(
    folder: &Path,
    rows: &[Measurement],
    measured: &ContributionResults,
) -> anyhow::Result<()> {
    let plots = folder.join("contribution");
    fs::create_dir_all(&plots).with_context(|| plots.display().to_string())?;
    let panels: Vec<Panel<'_>> = PANELS.iter().map(|(game, title)| Panel { game, title }).collect();
    for (file, title, across) in [
        (
            "error-against-evaluations.svg",
            "Relative error against evaluations (medians)",
            HorizontalAxis::Evaluations,
        ),
        (
            "error-against-time.svg",
            "Relative error against time (medians)",
            HorizontalAxis::Seconds,
        ),
    ] {
        let path = plots.join(file);
        let picture = svg(title, &panels, &measured.curves, across);
        fs::write(&path, picture).with_context(|| path.display().to_string())?;
    }
    let small = games_with_players(measured, 10);
    let large = games_with_players(measured, 20);
    refresh(
        folder,
        &[
            ("targets", bars_markdown(rows)),
            ("evaluations-10", Evaluations::new(&measured.curves, &small).markdown()),
            ("evaluations-20", Evaluations::new(&measured.curves, &large).markdown()),
            ("rounds", regimes_markdown(&measured.gradient_results)),
            ("versions", versions_markdown(measured)),
        ],
    )
}

/// Writes the rows of another benchmark to their marker on the page in `folder`.
pub(crate) fn write_rows(folder: &Path, name: &str, rows: &[Measurement]) -> anyhow::Result<()> {
    refresh(folder, &[(name, bars_markdown(rows))])
}

fn refresh(folder: &Path, texts: &[(&str, String)]) -> anyhow::Result<()> {
    refresh_page(&folder.join(PAGE), texts)
}

/// Replaces the texts at their markers on a page.
pub(crate) fn refresh_page(path: &Path, texts: &[(&str, String)]) -> anyhow::Result<()> {
    let mut page = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    for (name, text) in texts {
        page = replace_between_markers(&page, name, text)
            .with_context(|| format!("{} has no marker for {name}", path.display()))?;
    }
    fs::write(path, page).with_context(|| path.display().to_string())
}

/// `page` with `text` between the markers of `name`; `None` if the page has no such markers.
fn replace_between_markers(page: &str, name: &str, text: &str) -> Option<String> {
    let (open, close) = (format!("<!-- measured: {name} -->"), "<!-- end -->");
    let (before, rest) = page.split_once(&open)?;
    let (_, after) = rest.split_once(close)?;
    Some(format!("{before}{open}\n{text}{close}{after}"))
}

#[cfg(test)]
mod tests {
    use super::super::curve::CurvePoint;
    use super::*;

    #[test]
    fn a_page_is_refreshed_only_between_its_markers() {
        let page = "a\n<!-- measured: x -->\nold\n<!-- end -->\nb <!-- measured: y --><!-- end -->";
        let fresh = replace_between_markers(page, "x", "new\n").unwrap();
        assert_eq!(
            fresh,
            "a\n<!-- measured: x -->\nnew\n<!-- end -->\nb <!-- measured: y --><!-- end -->"
        );
        assert_eq!(replace_between_markers(page, "z", ""), None);
    }

    #[test]
    fn a_cell_has_the_evaluations_to_one_per_cent_or_the_smallest_error() {
        let point = |evaluations, error| CurvePoint { evaluations, error, seconds: 0.0 };
        let curve = |points| Curve { estimator: "e".into(), game: "g".into(), points };
        assert_eq!(cell(Some(&curve(vec![point(20.0, 0.001)])), 10), "≤ 20");
        let near = vec![point(800.0, 0.016), point(1_000.0, 0.014)];
        assert_eq!(cell(Some(&curve(near)), 10), "1.4 % @ 1,000");
        let enumerated = vec![point(800.0, 0.02), point(1_024.0, 0.0)];
        assert_eq!(cell(Some(&curve(enumerated)), 10), "all");
        assert_eq!(cell(None, 10), "–");
    }
}
