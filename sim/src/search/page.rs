//! The HTML report of a search: the gain of each strategy's best candidate, and all candidates.

use std::fmt::Write as _;

use florin_charts::{
    self as charts, Axes, Axis, Point, Quantity, ScatterPoint, Unit, error_bars, escape_html,
    scatter_plot, table_html, with_unit,
};

use super::{SearchResults, StrategyResult};
use crate::page;
use crate::results::{Program, format_bounds, format_number};

/// The columns of numbers in the table of the best candidates.
const BEST_COLUMNS: [&str; 7] =
    ["candidates", "gain, FLN", "95 %", "profit, FLN", "95 %", "rejected", "accuracy"];

impl SearchResults {
    /// The report as HTML.
    #[must_use]
    pub fn to_html(&self, program: &Program<'_>) -> String {
        let scenario = &self.scenario;
        let seeds = scenario.seeds;
        let training = scenario.search.as_ref().map_or(0, |search| search.seeds.count);
        let lead = format!(
            "Scenario <code>{}</code>, paid by <code>{}</code>. {} candidates were compared on \
             {training} selection seeds; the best of each strategy was then measured on {} fresh \
             seeds, from {} on.",
            escape_html(&scenario.name),
            scenario.mechanism.name(),
            self.candidates.len(),
            seeds.count,
            seeds.first
        );
        let mut html = charts::page_start(&scenario.question, &lead);
        if let (Some(epsilon), Some(best)) = (self.epsilon(), self.strategies.get(self.best)) {
            let _ = write!(
                html,
                "<div class=\"cards\"><div class=\"card\"><b>{}</b><span>epsilon of the \
                 best deviation found, {} [{}]</span></div></div>",
                with_unit(&format_number(epsilon.mean), Unit::Florins),
                escape_html(&best.name),
                format_bounds(&epsilon)
            );
        }
        self.plots(&mut html);
        self.table(&mut html);
        let again = "The same scenario gives the same bytes: <code>florin sim attack \
                     scenario.toml</code>, with the scenario file beside this page.";
        html + &page::page_end(Some(&scenario.to_toml()), program, again)
    }

    /// The gain of each strategy, one below the other.
    fn gains(&self) -> String {
        let row = |(series, found): (usize, &StrategyResult)| {
            page::error_bar(&found.name, series, &found.gain)
        };
        error_bars(
            "Gain by strategy",
            page::measured_quantity("gain"),
            &self.strategies.iter().enumerate().map(row).collect::<Vec<_>>(),
        )
    }

    /// The same plot as a standalone SVG file.
    pub(super) fn gain_svg(&self) -> String {
        charts::standalone_svg(&self.gains())
    }

    fn plots(&self, html: &mut String) {
        let dots = self.candidates.iter().zip(1..);
        let dots: Vec<ScatterPoint> = dots
            .map(|(one, at)| ScatterPoint {
                at: Point { x: f64::from(at), y: one.gain },
                series: one.strategy_index,
            })
            .collect();
        let candidate = Quantity { name: "candidate", unit: Unit::Number };
        let gain = page::measured_quantity("gain");
        let axes = Axes {
            x: Axis::counting(candidate, 1.0..=dots.len().max(2) as f64),
            y: Axis::covering(gain, dots.iter().map(|dot| dot.at.y)),
        };
        let names: Vec<&str> = self.strategies.iter().map(|found| found.name.as_str()).collect();
        let _ = write!(
            html,
            "<section><h2>Gain of each deviation</h2><div class=\"plots\">\
             <figure>{}<figcaption>Profit minus the honest counterfactual on fresh seeds, in \
             florins: a profitable deviation lies right of zero.</figcaption></figure>\
             <figure>{}<figcaption>Gain of every candidate on the selection seeds, in the order of \
             the search.</figcaption></figure></div></section>",
            self.gains(),
            scatter_plot("Candidates", &axes, &dots, &names)
        );
    }

    fn table(&self, html: &mut String) {
        let mut rows = String::from("<tr><th>strategy</th><th>parameters</th>");
        for name in BEST_COLUMNS {
            let _ = write!(rows, "<th class=\"n\">{name}</th>");
        }
        rows.push_str("</tr>");
        for found in &self.strategies {
            let _ = write!(
                rows,
                "<tr><td>{}</td><td><code>{}</code></td><td class=\"n\">{}</td><td \
                 class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td \
                 class=\"n\">{}</td><td class=\"n\">{:.0} %</td><td class=\"n\">{:.1} %</td></tr>",
                escape_html(&found.name),
                escape_html(&found.display_text()),
                found.candidate_count,
                format_number(found.gain.mean),
                format_bounds(&found.gain),
                format_number(found.profit.mean),
                format_bounds(&found.profit),
                found.rejected.mean * 100.0,
                found.accuracy.mean * 100.0
            );
        }
        let _ = write!(
            html,
            "<section><h2>Best candidate of each strategy</h2>{}</section>",
            table_html(&rows)
        );
    }
}
