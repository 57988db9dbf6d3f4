//! A page that compares several results: two or more experiments, or all combinations of a sweep.

use std::collections::BTreeSet;

use florin_charts::{
    self as charts, ErrorBar, HeatCell, HeatMap, HeatSide, Quantity, Shading, Unit, error_bars,
    escape_html, format_number, heat_map,
};

use super::Program;
use super::loaded::LoadedResults;
use crate::measure::MEASURES;
use crate::page;

/// Maximum number of lines in one plot; more would be indistinguishable.
const LINES_MAX: usize = 6;
/// Maximum number of rows in one plot of error bars.
const ROWS_MAX: usize = 40;
/// Measures of the whole market that are plotted.
const MARKET: &[&str] =
    &["accuracy", "spent", "spent_per_accuracy_point", "detection", "false_rejections"];
/// Measures of groups that are plotted.
const GROUPS: &[&str] = &["profit", "gain"];

/// A page that compares several results.
#[must_use]
pub fn comparison_page(title: &str, sides: &[LoadedResults], program: &Program<'_>) -> String {
    let lead = format!(
        "Comparison of {} results; error bars are 95 % confidence intervals over the seeds of \
         each.",
        sides.len()
    );
    let mut html = charts::page_start(title, &lead);
    html.push_str(&accuracy_section(sides));
    let keys = keys(sides);
    let figures: Vec<String> = plotted_measures(sides)
        .into_iter()
        .map(|(group, measure)| {
            let name = group.as_ref().map_or_else(
                || measure.replace('_', " "),
                |group| format!("{} of {group}", measure.replace('_', " ")),
            );
            let meaning = MEASURES.iter().find(|(known, _)| *known == measure);
            let caption =
                format!("{}: {}.", escape_html(&name), meaning.map_or("", |(_, text)| text));
            let plot = match keys.as_slice() {
                [down, across] => {
                    heat_map_plot(&name, sides, [down, across], group.as_deref(), measure)
                }
                _ => error_bar_plot(&name, sides, group.as_deref(), measure),
            };
            charts::figure_html(&plot, &caption)
        })
        .collect();
    html.push_str(&charts::section("Measures", &figures));
    let again = "Each combination has its own folder, with every member and every round.";
    html + &page::page_end(None, program, again)
}

/// The profit of every group in every result, as a standalone SVG file.
#[must_use]
pub fn comparison_svg(sides: &[LoadedResults]) -> String {
    let groups: BTreeSet<&String> = sides
        .iter()
        .flat_map(|side| side.measures.keys())
        .filter_map(|(g, _)| g.as_ref())
        .collect();
    let rows = sides.iter().flat_map(|side| {
        groups.iter().enumerate().filter_map(|(series, group)| {
            let label = format!("{}, {group}", side.label);
            Some(page::error_bar(&label, series, side.measure(Some(group), "profit")?))
        })
    });
    let rows: Vec<ErrorBar> = rows.take(ROWS_MAX).collect();
    charts::standalone_svg(&error_bars("Profit by group", page::measured_quantity("profit"), &rows))
}

/// The keys that were varied, in the order in which they were given.
fn keys(sides: &[LoadedResults]) -> Vec<String> {
    let first = sides.first().map(|side| side.settings.as_slice()).unwrap_or_default();
    first.iter().map(|(key, _)| key.clone()).collect()
}

/// The measures to plot: those that at least one result has.
fn plotted_measures(sides: &[LoadedResults]) -> Vec<(Option<String>, &'static str)> {
    let groups: BTreeSet<&String> = sides
        .iter()
        .flat_map(|side| side.measures.keys())
        .filter_map(|(g, _)| g.as_ref())
        .collect();
    let market = MARKET.iter().map(|measure| (None, *measure));
    let of_groups = groups
        .into_iter()
        .flat_map(|group| GROUPS.iter().map(move |measure| (Some(group.clone()), *measure)));
    let there = |(group, measure): &(Option<String>, &str)| {
        sides.iter().any(|side| side.measure(group.as_deref(), measure).is_some())
    };
    market.chain(of_groups).filter(there).collect()
}

/// Accuracy round by round: by mechanism if there are several, otherwise by result.
fn accuracy_section(sides: &[LoadedResults]) -> String {
    let mechanisms: BTreeSet<&str> = sides.iter().map(|side| side.mechanism.as_str()).collect();
    let percent = |values: &[f64]| values.iter().map(|value| value * 100.0).collect::<Vec<f64>>();
    let (series, by): (Vec<(&str, Vec<f64>)>, &str) = if mechanisms.len() > 1 {
        let mean = |mechanism: &&str| {
            let of = sides.iter().filter(|side| side.mechanism == **mechanism);
            percent(&mean_of(&of.map(|side| side.accuracy.as_slice()).collect::<Vec<_>>()))
        };
        (mechanisms.iter().map(|name| (*name, mean(name))).collect(), "mechanism")
    } else {
        let named = |side: &'_ LoadedResults| percent(&side.accuracy);
        (sides.iter().map(|side| (side.label.as_str(), named(side))).collect(), "result")
    };
    let shown: Vec<(&str, Vec<f64>)> = series.into_iter().take(LINES_MAX).collect();
    let caption = format!("Accuracy after each round, by {by}; mean of the seeds.");
    let accuracy = Quantity { name: "accuracy", unit: Unit::Percent };
    charts::section(
        "Accuracy",
        &[charts::figure_html(&page::rounds_plot("Accuracy", accuracy, &shown), &caption)],
    )
}

/// Element-wise means; each element averages the series that are long enough.
fn mean_of(all: &[&[f64]]) -> Vec<f64> {
    let longest = all.iter().map(|values| values.len()).max().unwrap_or(0);
    let mean = |at: usize| {
        let (sum, count) = all
            .iter()
            .filter_map(|values| values.get(at))
            .fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
        sum / count
    };
    (0..longest).map(mean).collect()
}

fn error_bar_plot(
    title: &str,
    sides: &[LoadedResults],
    group: Option<&str>,
    measure: &str,
) -> String {
    let row = |(at, side): (usize, &LoadedResults)| {
        Some(page::error_bar(&side.label, at, side.measure(group, measure)?))
    };
    let rows: Vec<ErrorBar> = sides.iter().enumerate().filter_map(row).take(ROWS_MAX).collect();
    error_bars(title, page::measured_quantity(measure), &rows)
}

/// A heat map over the two varied keys.
fn heat_map_plot(
    title: &str,
    sides: &[LoadedResults],
    [down, across]: [&String; 2],
    group: Option<&str>,
    measure: &str,
) -> String {
    let of = |side: &LoadedResults, key: &str| {
        let found = side.settings.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let values = |key: &str| {
        let mut all: Vec<String> = Vec::new();
        for side in sides {
            let value = of(side, key);
            if !all.contains(&value) {
                all.push(value);
            }
        }
        all
    };
    let (rows, columns) = (values(down), values(across));
    let cell = |row: &String, column: &String| -> Option<HeatCell> {
        let there = |side: &&LoadedResults| of(side, down) == *row && of(side, across) == *column;
        let value = sides.iter().find(there)?.measure(group, measure)?.mean;
        Some(HeatCell { value, text: format_number(value), tooltip: String::new() })
    };
    let cells = rows.iter().flat_map(|row| columns.iter().map(move |column| (row, column)));
    let cells = cells.map(|(row, column)| cell(row, column)).collect();
    let map = HeatMap {
        columns: HeatSide { title: across, names: &columns },
        rows: HeatSide { title: down, names: &rows },
        cells,
        shading: Shading::Linear,
    };
    heat_map(title, &map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::confidence_interval;

    fn side(mechanism: &str, settings: &[(&str, &str)], accuracy: f64) -> LoadedResults {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        LoadedResults {
            label: settings.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" "),
            mechanism: mechanism.to_owned(),
            settings: settings.iter().map(owned).collect(),
            measures: [(
                (None, "accuracy".to_owned()),
                confidence_interval(&[accuracy, accuracy + 0.1]),
            )]
            .into(),
            accuracy: vec![0.1, accuracy],
        }
    }

    #[test]
    fn two_varied_keys_give_a_heat_map_and_one_gives_rows() {
        let program = Program { version: "1", commit: "abc" };
        let grid = [
            side("florin", &[("a.b", "1"), ("c", "x")], 0.2),
            side("florin", &[("a.b", "1"), ("c", "y")], 0.4),
            side("florin", &[("a.b", "2"), ("c", "x")], 0.6),
        ];
        let html = comparison_page("t", &grid, &program);
        assert_eq!(html.matches("<td").count(), 4, "a cell for the missing combination too");
        assert!(html.contains(">0.250<") && html.contains(">–<"), "{html}");
        let one = [side("florin", &[("c", "x")], 0.2), side("equal", &[("c", "y")], 0.4)];
        let html = comparison_page("t", &one, &program);
        assert_eq!(html.matches("<td").count(), 0);
        assert!(html.contains("by mechanism") && html.contains("c=x"), "{html}");
        assert_eq!(mean_of(&[&[1.0, 2.0], &[3.0]]), [2.0, 2.0]);
    }
}
