//! The laboratory's additions to the frame of a page.

use florin_charts::{
    Axes, Axis, ErrorBar, ErrorBarBounds, Line, PAGE_END, Quantity, Unit, escape_html, line_plot,
};

use crate::measure::ConfidenceInterval;
use crate::program::Program;

/// The end of a page: the scenario and the program version. `again` is HTML: how to reproduce the
/// results.
pub(crate) fn page_end(scenario: Option<&str>, program: &Program<'_>, again: &str) -> String {
    let scenario = scenario.map_or_else(String::new, |text| {
        let text = escape_html(text);
        format!("<details><summary>The scenario</summary><pre>{text}</pre></details>")
    });
    format!(
        "{scenario}<footer>Florin {} of commit {}. {again}</footer>{PAGE_END}",
        escape_html(program.version),
        escape_html(program.commit)
    )
}

/// A row for a mean and its confidence interval.
pub(crate) fn error_bar(name: &str, series: usize, interval: &ConfidenceInterval) -> ErrorBar {
    let bounds = interval.bounds.map(|ends| ErrorBarBounds { low: ends.low, high: ends.high });
    ErrorBar { name: name.to_owned(), series, mean: interval.mean, bounds }
}

/// The quantity of a measure, with its unit.
pub(crate) fn measured_quantity(measure: &str) -> Quantity<'_> {
    let unit = match measure {
        "profit" | "earned" | "earned_per_row" | "cost" | "gain" | "unspent" | "spent" => {
            Unit::Florins
        }
        "spent_per_accuracy_point" => Unit::FlorinsPerPoint,
        "improvement" => Unit::Nats,
        "rounds" => Unit::Number,
        "round_seconds" | "round_duration" => Unit::Seconds,
        _ => Unit::Fraction,
    };
    Quantity { name: measure, unit }
}

/// The horizontal axis of plots over rounds.
const ROUND: Quantity<'static> = Quantity { name: "round", unit: Unit::Number };

/// A plot over rounds, from 1.
pub(crate) fn rounds_plot(
    title: &str,
    quantity: Quantity<'_>,
    series: &[(&str, Vec<f64>)],
) -> String {
    let rounds = series.iter().map(|(_, values)| values.len()).max().unwrap_or(0).max(2);
    let values = series.iter().flat_map(|(_, values)| values.iter().copied());
    let axes =
        Axes { x: Axis::counting(ROUND, 1.0..=rounds as f64), y: Axis::covering(quantity, values) };
    let lines: Vec<Line<'_>> = (0..)
        .zip(series)
        .map(|(place, (name, values))| Line::from_values(name, place, 1, values))
        .collect();
    line_plot(title, &axes, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::MEASURES;

    #[test]
    fn a_measure_in_florins_or_nats_has_that_unit() {
        for (measure, description) in MEASURES {
            let unit = measured_quantity(measure).unit;
            if description.ends_with("in florins") {
                assert_eq!(unit, Unit::Florins, "{measure}");
            }
            assert_eq!(description.ends_with("in nats"), unit == Unit::Nats, "{measure}");
        }
    }
}
