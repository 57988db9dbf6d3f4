//! The HTML report of an experiment: tables and plots of its measures.

use std::fmt::Write as _;

use florin_charts::{
    self as charts, Axes, Axis, ErrorBar, Point, Quantity, ScatterPoint, Unit, error_bars,
    escape_html, scatter_plot, table_html,
};

use super::{
    CriterionResult, Program, Results, Verdict, format_bounds, format_count, format_number,
};
use crate::measure::{MEASURES, MeasureSummary};
use crate::mechanism::Mechanism;
use crate::outcome::{MemberOutcome, RoundOutcomeRow};
use crate::page;
use crate::surrogate::MarketFit;

/// Maximum number of members in a scatter plot; a larger sample would look the same.
pub(super) const POINTS_MAX: usize = 2_000;

/// The largest error of a fit, as text.
fn describe_fit(fitted: &MarketFit) -> String {
    let honest = |group: &String| format!(" with {} honest", escape_html(group));
    format!(
        "the fit{} is off by up to {:.1} %, {}{}",
        fitted.made_honest.as_ref().map(honest).unwrap_or_default(),
        fitted.fit.errors.largest() * 100.0,
        if !fitted.fit.has_data() {
            "WHICH MEANS NOTHING: the small simulations had no data to fit"
        } else if fitted.fit.holds() {
            "which is within the limit"
        } else {
            "WHICH IS TOO MUCH"
        },
        if fitted.extrapolates() {
            " (and some draws extrapolate below the losses of the fitted simulations)"
        } else {
            ""
        }
    )
}

impl Results {
    /// The report as HTML.
    #[must_use]
    pub fn to_html(&self, program: &Program<'_>) -> String {
        let scenario = &self.scenario;
        let paid = match &scenario.mechanism {
            Mechanism::Florin => {
                "Every update was trained, valued, paid and settled by the production code"
            }
            Mechanism::Tokenised(_) => {
                "Every update was trained and valued by the production code; the laboratory \
                 computes the pay, in tokens wherever the report names florins"
            }
            _ => {
                "Every update was trained and settled by the production code; the laboratory \
                 scores it by the mechanism named above"
            }
        };
        let how = match self.fits.as_slice() {
            [] => format!(
                "{paid}; error bars and ranges are 95 % confidence intervals over the seeds."
            ),
            fits => format!(
                "Scores were drawn from curves fitted to small real simulations, and paid by the \
                 real pay rule; no member trained. Validation against held-out real simulations: \
                 {}. The intervals are over the seeds and do not include this error.",
                fits.iter().map(describe_fit).collect::<Vec<String>>().join(", ")
            ),
        };
        let lead = format!(
            "Scenario <code>{}</code>, paid by <code>{}</code>, {}, {} from {} on. {how}",
            escape_html(&scenario.name),
            scenario.mechanism.name(),
            format_count(scenario.rounds.into(), "round"),
            format_count(scenario.seeds.count.into(), "seed"),
            scenario.seeds.first
        );
        let mut html = charts::page_start(&scenario.question, &lead);
        self.findings_section(&mut html);
        html.push_str(&criteria_html(&self.criteria, program));
        self.profit_section(&mut html);
        self.pay_section(&mut html);
        self.rounds_section(&mut html);
        self.devices_section(&mut html);
        html.push_str(&measures_html(&self.measures, MEASURES));
        let again = format!(
            "The same scenario and seeds give the same bytes: <code>florin sim replay {} \
             FOLDER</code> simulates one seed again and compares it with the files beside this \
             page.",
            escape_html(&program.run_id(scenario.seeds.first))
        );
        html + &page::page_end(Some(&scenario.to_toml()), program, &again)
    }

    /// The result in words, before any plot.
    fn findings_section(&self, html: &mut String) {
        html.push_str("<section><h2>Result</h2>");
        for finding in self.findings() {
            let (subject, text) = (escape_html(&finding.subject), escape_html(&finding.text));
            // A per cent sign stays on the line of its number.
            let text = text.replace(" %", "\u{a0}%");
            let _ = write!(html, "<p class=\"why\"><b>{subject}</b> {text}</p>");
        }
        html.push_str("</section>");
    }

    /// The summaries of a measure for every group that has it.
    fn error_bars_of(&self, measure: &str) -> Vec<ErrorBar> {
        let groups = self.scenario.population.keys().enumerate();
        let row = |(series, group): (usize, &String)| {
            let measured = self.measure(measure, Some(group))?;
            Some(page::error_bar(group, series, &measured.interval))
        };
        groups.filter_map(row).collect()
    }

    pub(super) fn error_bar_plot(&self, title: &str, measure: &str) -> String {
        error_bars(title, page::measured_quantity(measure), &self.error_bars_of(measure))
    }

    /// Profit by group, as a standalone SVG file.
    pub(super) fn profit_svg(&self) -> String {
        charts::standalone_svg(&self.error_bar_plot("Profit by group", "profit"))
    }

    fn profit_section(&self, html: &mut String) {
        let profit = "Increase of a member's balance over the task minus its costs, in florins.";
        let plot = self.error_bar_plot("Profit by group", "profit");
        let mut figures = vec![charts::figure_html(&plot, profit)];
        if !self.error_bars_of("gain").is_empty() {
            let caption = "Profit minus the honest counterfactual (the same members, honest, in \
                           the same market): a profitable attack lies right of zero.";
            let plot = self.error_bar_plot("Gain by group", "gain");
            figures.push(charts::figure_html(&plot, caption));
        }
        html.push_str(&charts::section("Earnings", &figures));
    }

    /// Pay against its possible bases: a member's score and its number of rows.
    fn pay_section(&self, html: &mut String) {
        let groups: Vec<&str> = self.scenario.population.keys().map(String::as_str).collect();
        let earned = Quantity { name: "earned", unit: Unit::Florins };
        let plot = |title: &str, across: Quantity<'_>, of: fn(&MemberOutcome) -> f64| {
            let members = self.outcomes.iter().flat_map(|played| &played.members).take(POINTS_MAX);
            let dot = |m: &MemberOutcome| ScatterPoint {
                at: Point { x: of(m), y: m.earned },
                series: m.group,
            };
            let dots: Vec<ScatterPoint> = members.map(dot).collect();
            let axes = Axes {
                x: Axis::covering(across, dots.iter().map(|dot| dot.at.x)),
                y: Axis::covering(earned, dots.iter().map(|dot| dot.at.y)),
            };
            scatter_plot(title, &axes, &dots, &groups)
        };
        let score = Quantity { name: "sum of scores", unit: Unit::Nats };
        let count = Quantity { name: "rows", unit: Unit::Number };
        let worth = "Each point is a member in one seed: florins earned over the sum of its scores \
                     in nats.";
        let rows =
            "The same florins over the member's rows: pay by declared rows or pay by contribution.";
        let figures = [
            charts::figure_html(&plot("Pay against score", score, |member| member.score), worth),
            charts::figure_html(
                &plot("Pay against rows", count, |member| member.rows as f64),
                rows,
            ),
        ];
        html.push_str(&charts::section("Pay and quality", &figures));
    }

    /// A value of each round, averaged over the seeds that have the round.
    pub(super) fn mean_per_round(&self, of: &dyn Fn(&RoundOutcomeRow) -> f64) -> Vec<f64> {
        let rounds = self.outcomes.iter().map(|played| played.rounds.len()).max().unwrap_or(0);
        let mean = |at: usize| {
            let values: Vec<f64> =
                self.outcomes.iter().filter_map(|p| p.rounds.get(at)).map(of).collect();
            values.iter().sum::<f64>() / values.len().max(1) as f64
        };
        (0..rounds).map(mean).collect()
    }

    fn rounds_section(&self, html: &mut String) {
        let over = |of: &dyn Fn(&RoundOutcomeRow) -> f64| self.mean_per_round(of);
        let accuracy = page::rounds_plot(
            "Accuracy",
            Quantity { name: "accuracy", unit: Unit::Percent },
            &[("accuracy", over(&|row| row.accuracy * 100.0))],
        );
        let members = Quantity { name: "members or updates", unit: Unit::Number };
        let people = page::rounds_plot(
            "Participation",
            members,
            &[
                ("members online", over(&|row| row.online as f64)),
                ("accounts selected", over(&|row| row.selected as f64)),
                ("updates accepted", over(&|row| row.updates as f64)),
                (
                    "excluded or near-duplicate",
                    over(&|row| (row.excluded + row.near_duplicates) as f64),
                ),
            ],
        );
        let spent = page::rounds_plot(
            "Spent",
            page::measured_quantity("spent"),
            &[("spent", over(&|row| row.spent))],
        );
        let figures = [
            charts::figure_html(
                &accuracy,
                "Accuracy of the model on the test rows, mean of the seeds.",
            ),
            charts::figure_html(
                &people,
                "Members online at the start of a round, accounts selected, and the outcome of \
                 their updates.",
            ),
            charts::figure_html(&spent, "Paid for data."),
        ];
        html.push_str(&charts::section("Round by round", &figures));
    }
}

/// The pass criteria as cards; empty without any.
pub(crate) fn criteria_html(criteria: &[CriterionResult], program: &Program<'_>) -> String {
    if criteria.is_empty() {
        return String::new();
    }
    let mut html = "<section><h2>Pass criteria</h2><div class=\"cards\">".to_owned();
    for judged in criteria {
        let (tone, word) = match judged.verdict {
            Verdict::Passed => ("good", "passed"),
            Verdict::Failed => ("bad", "failed"),
            Verdict::Open => ("undecided", "open: not shown to hold"),
            Verdict::Undecided => ("undecided", "not decided, too few seeds"),
        };
        let value = judged.value.map_or_else(|| "none".to_owned(), format_number);
        let rule = escape_html(&judged.criterion);
        let worst = judged
            .worst_seed
            .map(|seed| format!(", worst in {}", escape_html(&program.run_id(seed))));
        let worst = worst.unwrap_or_default();
        let _ = write!(
            html,
            "<div class=\"card\"><b class=\"{tone}\">{value}</b><span>{rule}: \
             {word}{worst}</span></div>"
        );
    }
    html + "</div></section>"
}

/// All measures as a table, with their descriptions.
pub(crate) fn measures_html(measures: &[MeasureSummary], descriptions: &[(&str, &str)]) -> String {
    let mut rows = "<tr><th>group</th><th>measure</th><th class=\"n\">mean</th>\
                    <th class=\"n\">95 %</th><th>description</th></tr>"
        .to_owned();
    for measured in measures {
        let meaning = descriptions.iter().find(|(name, _)| *name == measured.key.measure);
        let i = &measured.interval;
        let _ = write!(
            rows,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"text\">{}</td></tr>",
            escape_html(measured.key.group.as_deref().unwrap_or("–")),
            measured.key.measure.replace('_', " "),
            format_number(i.mean),
            format_bounds(&measured.shown_interval()),
            meaning.map_or("", |(_, text)| text)
        );
    }
    format!("<section><h2>All measures</h2>{}</section>", table_html(&rows))
}
