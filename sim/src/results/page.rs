//! One page that carries everything it shows: figures as tables and plots, nothing fetched and nothing run.

use std::fmt::Write as _;

use super::Results;
use super::plot::{Dot, Whisker, escape, lines, scatter, whiskers};
use crate::measure::{MEASURES, Measured};

const STYLE: &str = include_str!("style.css");
/// Members whose dots are drawn; a sample of more would look the same.
const DOTS_MAX: usize = 2_000;

impl Results {
    /// The report, as HTML.
    #[must_use]
    pub fn to_html(&self, version: &str) -> String {
        let scenario = &self.scenario;
        let question = escape(&scenario.question);
        let mut html = String::with_capacity(64 * 1024);
        let _ = write!(
            html,
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
             content=\"width=device-width, initial-scale=1\"><title>{question}</title><style>{STYLE}</style></head>\
             <body><main><h1>{question}</h1><p class=\"lead\">Scenario <code>{}</code>, paid by <code>{}</code>, {} \
             rounds, {} seeds from {} on. Every update was trained, valued, paid and settled by the code that runs the \
             market; whiskers and brackets are 95 % intervals over the seeds.</p>",
            escape(&scenario.name),
            scenario.mechanism.name(),
            scenario.rounds,
            scenario.seeds.count,
            scenario.seeds.first
        );
        self.rules_part(&mut html);
        self.profit_part(&mut html);
        self.pay_part(&mut html);
        self.rounds_part(&mut html);
        self.tables_part(&mut html);
        let _ = writeln!(
            html,
            "<details><summary>The scenario</summary><pre>{}</pre></details><footer>Florin {}. The same scenario \
             and seeds give the same bytes again: <code>florin sim run scenario.toml</code>, with the file of that name \
             beside this one.</footer></main></body></html>",
            escape(&scenario.to_toml()),
            escape(version)
        );
        html
    }

    fn rules_part(&self, html: &mut String) {
        if self.rules.is_empty() {
            return;
        }
        html.push_str("<div class=\"cards\">");
        for judged in &self.rules {
            let (tone, word) = if judged.holds { ("good", "holds") } else { ("bad", "is broken") };
            let value = judged.value.map_or_else(|| "no such measure".to_owned(), figure);
            let rule = escape(&judged.rule);
            let _ = write!(
                html,
                "<div class=\"card\"><b class=\"{tone}\">{value}</b><span>{rule}: {word}</span></div>"
            );
        }
        html.push_str("</div>");
    }

    fn profit_part(&self, html: &mut String) {
        let of = |measure: &str| -> Vec<Whisker> {
            let groups = self.scenario.population.keys();
            let found = groups.enumerate().filter_map(|(series, group)| {
                self.measure(measure, Some(group)).map(|measured| whisker(series, measured))
            });
            found.collect()
        };
        let profit = whiskers("Profit by group", &of("profit"));
        let _ = write!(
            html,
            "<section><h2>Who earns what</h2><div class=\"plots\"><figure>{profit}<figcaption>Florins a member has \
             more at the end than at the beginning, after costs.</figcaption></figure>"
        );
        let gain = of("gain");
        if !gain.is_empty() {
            let gain = whiskers("Gain by group", &gain);
            let _ = write!(
                html,
                "<figure>{gain}<figcaption>Profit beyond what the same members, honest, make in the same market: an \
                 attack that pays lies right of zero.</figcaption></figure>"
            );
        }
        html.push_str("</div></section>");
    }

    fn pay_part(&self, html: &mut String) {
        let members = self.played.iter().flat_map(|played| &played.members);
        let dots: Vec<Dot> = members
            .take(DOTS_MAX)
            .map(|member| Dot { x: member.score, y: member.earned, series: member.group })
            .collect();
        let groups: Vec<&str> = self.scenario.population.keys().map(String::as_str).collect();
        let plot = scatter("Pay against worth", &dots, &groups);
        let _ = write!(
            html,
            "<section><h2>Pay and worth</h2><div class=\"plots\"><figure>{plot}<figcaption>Each dot is a member in one \
             seed: florins earned over the sum of its scores in nats.</figcaption></figure></div></section>"
        );
    }

    fn rounds_part(&self, html: &mut String) {
        let over = |figure: &dyn Fn(&crate::play::RoundOutcomeRow) -> f64| -> Vec<f64> {
            let rounds = self.played.iter().map(|played| played.rounds.len()).max().unwrap_or(0);
            let mean = |at: usize| {
                let values: Vec<f64> =
                    self.played.iter().filter_map(|p| p.rounds.get(at)).map(figure).collect();
                values.iter().sum::<f64>() / values.len().max(1) as f64
            };
            (0..rounds).map(mean).collect()
        };
        let accuracy = lines("Accuracy", &[("accuracy, %", over(&|row| row.accuracy * 100.0))]);
        let updates = |row: &crate::play::RoundOutcomeRow| row.updates as f64;
        let kept_out = |row: &crate::play::RoundOutcomeRow| (row.excluded + row.set_aside) as f64;
        let people = lines(
            "Updates",
            &[("updates", over(&updates)), ("kept out or set aside", over(&kept_out))],
        );
        let spent = lines("Spent", &[("florins paid", over(&|row| row.spent))]);
        let _ = write!(
            html,
            "<section><h2>Round by round</h2><div class=\"plots\"><figure>{accuracy}<figcaption>Share of test rows \
             that the model gets right, mean of the seeds.</figcaption></figure><figure>{people}<figcaption>Updates \
             taken, and those that did not count.</figcaption></figure><figure>{spent}<figcaption>Paid for data.\
             </figcaption></figure></div></section>"
        );
    }

    fn tables_part(&self, html: &mut String) {
        html.push_str("<section><h2>Every figure</h2><table><thead><tr><th>group</th><th>measure</th><th>mean</th>\
                       <th>95 %</th><th>what it is</th></tr></thead><tbody>");
        for measured in &self.measures {
            let meaning = MEASURES.iter().find(|(name, _)| *name == measured.key.measure);
            let i = &measured.interval;
            let _ = write!(
                html,
                "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{} to {}</td><td>{}</td></tr>",
                escape(measured.key.group.as_deref().unwrap_or("–")),
                measured.key.measure.replace('_', " "),
                figure(i.mean),
                figure(i.low),
                figure(i.high),
                meaning.map_or("", |(_, text)| text)
            );
        }
        html.push_str("</tbody></table></section>");
    }
}

fn whisker(series: usize, measured: &Measured) -> Whisker {
    let i = &measured.interval;
    let name = measured.key.group.clone().unwrap_or_default();
    Whisker { name, series, low: i.low, mean: i.mean, high: i.high }
}

/// A figure with the decimals it needs.
fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 1_000.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{:.decimals$}", value + 0.0)
}
