//! The HTML report of a search: the gain of each strategy's best candidate, and all candidates.

use std::fmt::Write as _;

use super::{SearchResults, StrategyResult};
use crate::page;
use crate::results::{Program, format_bounds, format_number};
use florin_charts::{
    self as charts, ScatterPoint, error_bars, escape_html, scatter_plot,
};

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
                "<div class=\"cards\"><div class=\"card\"><b>{}</b><span>florins: epsilon of the \
                 best deviation found, {} [{}]</span></div></div>",
                format_number(epsilon.mean),
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
                x: f64::from(at),
                y: one.gain,
                series: one.strategy_index,
            })
            .collect();
        let names: Vec<&str> = self.strategies.iter().map(|found| found.name.as_str()).collect();
        let _ = write!(
            html,
            "<section><h2>Gain of each deviation</h2><div class=\"plots\">\
             <figure>{}<figcaption>Profit minus the honest counterfactual on fresh seeds, in \
             florins: a profitable deviation lies right of zero.</figcaption></figure>\
             <figure>{}<figcaption>Gain of every candidate on the selection seeds, in the order of \
             the search.</figcaption></figure></div></section>",
            self.gains(),
            scatter_plot("Candidates", &dots, &names)
        );
    }

    fn table(&self, html: &mut String) {
        html.push_str(
            "<section><h2>Best candidate of each strategy</h2><table><thead><tr><th>strategy</th>\
             <th>parameters</th><th>candidates</th><th>gain</th><th>95 %</th><th>profit</th><th>95 \
             %</th><th>rejected</th><th>accuracy</th></tr></thead><tbody>",
        );
        for found in &self.strategies {
            let _ = write!(
                html,
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
        html.push_str("</tbody></table></section>");
    }
}
