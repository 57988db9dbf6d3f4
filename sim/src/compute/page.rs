//! The HTML report of an experiment on the market for compute.

use florin_charts::{
    self as charts, Axes, Axis, ErrorBar, Line, Quantity, Unit, error_bars, escape_html, line_plot,
};

use super::measure::COMPUTE_MEASURES;
use super::outcome::{ComputeLease, LeaseEnd};
use super::results::ComputeResults;
use crate::page;
use crate::results::{Program, criteria_html, format_count, measures_html};

impl ComputeResults {
    /// The report as HTML.
    #[must_use]
    pub fn to_html(&self, program: &Program<'_>) -> String {
        let scenario = &self.scenario;
        let lead = format!(
            "Scenario <code>{}</code>, {} of orders, {} from {} on. Every lease was played on the production rules; \
             trainings are hashes. Error bars and ranges are 95 % confidence intervals over the seeds.",
            escape_html(&scenario.name),
            format_count(scenario.hours.into(), "hour"),
            format_count(scenario.seeds.count.into(), "seed"),
            scenario.seeds.first
        );
        let mut html = charts::page_start(&scenario.question, &lead);
        html.push_str(&criteria_html(&self.criteria, program));
        let mut figures = vec![charts::figure_html(
            &self.group_plot("Profit by group", "profit"),
            "Earnings minus costs of a member, in florins. A renter's results are worth their largest price.",
        )];
        if self.measures.iter().any(|measured| measured.key.measure == "gain") {
            figures.push(charts::figure_html(
                &self.group_plot("Gain by group", "gain"),
                "Profit of a member beyond that in the same market with every group honest.",
            ));
        }
        html.push_str(&charts::section("Earnings", &figures));
        html.push_str(&charts::section("Hour by hour", &self.hourly_figures()));
        html.push_str(&measures_html(&self.measures, COMPUTE_MEASURES));
        let again = "The same scenario and seeds give the same bytes.";
        html + &page::page_end(Some(&scenario.to_toml()), program, again)
    }

    /// Profit by group, as a standalone SVG file.
    #[must_use]
    pub fn profit_svg(&self) -> String {
        charts::standalone_svg(&self.group_plot("Profit by group", "profit"))
    }

    fn group_plot(&self, title: &str, measure: &'static str) -> String {
        let row = |(series, (group, ..)): (usize, (&str, _, u32))| {
            let measured = self.measure(measure, Some(group))?;
            Some(page::error_bar(group, series, &measured.interval))
        };
        let rows: Vec<ErrorBar> = self.scenario.groups().enumerate().filter_map(row).collect();
        error_bars(title, page::measured_quantity(measure), &rows)
    }

    /// Orders, prices and failures over the hours, as means of the seeds.
    fn hourly_figures(&self) -> Vec<String> {
        let orders = self.hourly(&|_| Some(1.0), true);
        let failed = self.hourly(
            &|lease| {
                let fails = matches!(lease.end, LeaseEnd::Slashed | LeaseEnd::Defaulted);
                Some(f64::from(u8::from(fails)))
            },
            true,
        );
        let price = self.hourly(&|lease| lease.price, false);
        let count = Quantity { name: "leases", unit: Unit::Number };
        let florins = Quantity { name: "price of a device-hour", unit: Unit::Florins };
        vec![
            charts::figure_html(
                &hours_plot("Leases", count, &[("opened", &orders), ("failed", &failed)]),
                "Leases that were opened in an hour, and those that were slashed or ended early; mean of the seeds.",
            ),
            charts::figure_html(
                &hours_plot("Price", florins, &[("price", &price)]),
                "Paid to providers for an hour of a device of median speed, by the hour of the order.",
            ),
        ]
    }

    /// The sum, or the mean, of a value of the leases that were opened in each hour; sums are means of the seeds.
    fn hourly(&self, of: &dyn Fn(&ComputeLease) -> Option<f64>, is_sum: bool) -> Vec<f64> {
        let mut sums = vec![(0.0, 0.0); self.scenario.hours as usize];
        for lease in self.outcomes.iter().flat_map(|played| &played.leases) {
            let hour = sums.get_mut(lease.opened_hours as usize);
            if let (Some((sum, count)), Some(value)) = (hour, of(lease)) {
                *sum += value;
                *count += 1.0;
            }
        }
        let seeds = self.outcomes.len().max(1) as f64;
        let mut last = 0.0;
        let value = |(sum, count): (f64, f64)| {
            last = match (is_sum, count > 0.0) {
                (true, _) => sum / seeds,
                (false, true) => sum / count,
                // An hour without a lease has the price of the one before.
                (false, false) => last,
            };
            last
        };
        sums.into_iter().map(value).collect()
    }
}

fn hours_plot(title: &str, quantity: Quantity<'_>, series: &[(&str, &Vec<f64>)]) -> String {
    let hours = series.iter().map(|(_, values)| values.len()).max().unwrap_or(0).max(2);
    let values = series.iter().flat_map(|(_, values)| values.iter().copied());
    let hour = Quantity { name: "hour", unit: Unit::Number };
    let axes =
        Axes { x: Axis::counting(hour, 1.0..=hours as f64), y: Axis::from_zero(quantity, values) };
    let lines = (0..).zip(series);
    let lines: Vec<Line<'_>> =
        lines.map(|(place, (name, values))| Line::from_values(name, place, 1, values)).collect();
    line_plot(title, &axes, &lines)
}
