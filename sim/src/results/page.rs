//! A run's page: figures as tables and plots.

use std::fmt::Write as _;

use super::{Program, Results, counted, ends, figure};
use crate::measure::MEASURES;
use crate::mechanism::Mechanism;
use crate::page::{self, Dot, Whisker, escape, lines, scatter, whiskers};
use crate::play::{MemberOutcome, RoundOutcomeRow};
use crate::surrogate::Fitted;

/// Members whose dots are drawn; a sample of more would look the same.
const DOTS_MAX: usize = 2_000;

/// How far a fit is off where it is off most.
fn told(fitted: &Fitted) -> String {
    let honest = |group: &String| format!(" with {} honest", escape(group));
    format!(
        "the fit{} is off by up to {:.1} %, {}{}",
        fitted.made_honest.as_ref().map(honest).unwrap_or_default(),
        fitted.fit.errors.largest() * 100.0,
        if !fitted.fit.is_of_something() {
            "WHICH SAYS NOTHING: the small games had nothing to fit"
        } else if fitted.fit.holds() {
            "which is let pass"
        } else {
            "WHICH IS TOO MUCH"
        },
        if fitted.is_drawn_on() {
            " (and losses below those of the fitted games were drawn)"
        } else {
            ""
        }
    )
}

impl Results {
    /// The report, as HTML.
    #[must_use]
    pub fn to_html(&self, program: &Program<'_>) -> String {
        let scenario = &self.scenario;
        let paid = match &scenario.mechanism {
            Mechanism::Own => {
                "Every update was trained, valued, paid and settled by the code that runs the market"
            }
            Mechanism::Tokenised(_) => {
                "Every update was trained and valued by the code that runs the market; pay is the laboratory's, in \
                 tokens where florins are named"
            }
            _ => {
                "Every update was trained and settled by the code that runs the market; what it is worth is the \
                 laboratory's to say, by the rule named above"
            }
        };
        let how = match self.fits.as_slice() {
            [] => format!("{paid}; whiskers and brackets are 95 % intervals over the seeds."),
            fits => format!(
                "Scores were drawn from curves fitted to small real games, and paid by the real pay rule: nobody \
                 trained. Held against other real games {}; intervals are over the seeds and do not contain that.",
                fits.iter().map(told).collect::<Vec<String>>().join(", ")
            ),
        };
        let lead = format!(
            "Scenario <code>{}</code>, paid by <code>{}</code>, {}, {} from {} on. {how}",
            escape(&scenario.name),
            scenario.mechanism.name(),
            counted(scenario.rounds.into(), "round"),
            counted(scenario.seeds.count.into(), "seed"),
            scenario.seeds.first
        );
        let mut html = page::open(&scenario.question, &lead);
        self.rules_part(&mut html, program);
        self.profit_part(&mut html);
        self.pay_part(&mut html);
        self.rounds_part(&mut html);
        self.tables_part(&mut html);
        let again = format!(
            "The same scenario and seeds give the same bytes again: <code>florin sim replay {} FOLDER</code> plays a \
             seed once more and holds it against the files beside this page.",
            escape(&program.game(scenario.seeds.first))
        );
        html + &page::close(Some(&scenario.to_toml()), program, &again)
    }

    fn rules_part(&self, html: &mut String, program: &Program<'_>) {
        if self.rules.is_empty() {
            return;
        }
        html.push_str("<div class=\"cards\">");
        for judged in &self.rules {
            let (tone, word) = if judged.holds { ("good", "holds") } else { ("bad", "is broken") };
            let value = judged.value.map_or_else(|| "none".to_owned(), figure);
            let rule = escape(&judged.rule);
            let worst =
                judged.worst.map(|seed| format!(", most in {}", escape(&program.game(seed))));
            let worst = worst.unwrap_or_default();
            let _ = write!(
                html,
                "<div class=\"card\"><b class=\"{tone}\">{value}</b><span>{rule}: {word}{worst}</span></div>"
            );
        }
        html.push_str("</div>");
    }

    /// A measure of every group that has it.
    fn rows(&self, measure: &str) -> Vec<Whisker> {
        let groups = self.scenario.population.keys().enumerate();
        let row = |(series, group): (usize, &String)| {
            let measured = self.measure(measure, Some(group))?;
            Some(Whisker::of(group, series, &measured.interval))
        };
        groups.filter_map(row).collect()
    }

    /// Profit by group, as a picture of its own.
    pub(super) fn profit_svg(&self) -> String {
        page::picture(&whiskers("Profit by group", &self.rows("profit")))
    }

    fn profit_part(&self, html: &mut String) {
        let profit = "Florins a member has more at the end than at the beginning, after costs.";
        let plot = whiskers("Profit by group", &self.rows("profit"));
        let mut figures = vec![page::figure(&plot, profit)];
        let gain = self.rows("gain");
        if !gain.is_empty() {
            let caption = "Profit beyond what the same members, honest, make in the same market: an attack that pays \
                           lies right of zero.";
            figures.push(page::figure(&whiskers("Gain by group", &gain), caption));
        }
        html.push_str(&page::section("Who earns what", &figures));
    }

    /// Pay against what it is for: the worth of what a member sent, and how many rows it has.
    fn pay_part(&self, html: &mut String) {
        let groups: Vec<&str> = self.scenario.population.keys().map(String::as_str).collect();
        let plot = |title: &str, of: fn(&MemberOutcome) -> f64| {
            let members = self.played.iter().flat_map(|played| &played.members).take(DOTS_MAX);
            let dot = |m: &MemberOutcome| Dot { x: of(m), y: m.earned, series: m.group };
            scatter(title, &members.map(dot).collect::<Vec<Dot>>(), &groups)
        };
        let worth =
            "Each dot is a member in one seed: florins earned over the sum of its scores in nats.";
        let rows = "The same florins over its rows: who is paid for what it says, and who for what it is worth.";
        let figures = [
            page::figure(&plot("Pay against worth", |member| member.score), worth),
            page::figure(&plot("Pay against rows", |member| member.rows as f64), rows),
        ];
        html.push_str(&page::section("Pay and quality", &figures));
    }

    /// A figure of each round, mean of the seeds that have it.
    pub(super) fn over_rounds(&self, of: &dyn Fn(&RoundOutcomeRow) -> f64) -> Vec<f64> {
        let rounds = self.played.iter().map(|played| played.rounds.len()).max().unwrap_or(0);
        let mean = |at: usize| {
            let values: Vec<f64> =
                self.played.iter().filter_map(|p| p.rounds.get(at)).map(of).collect();
            values.iter().sum::<f64>() / values.len().max(1) as f64
        };
        (0..rounds).map(mean).collect()
    }

    fn rounds_part(&self, html: &mut String) {
        let over = |of: &dyn Fn(&RoundOutcomeRow) -> f64| self.over_rounds(of);
        let accuracy = lines("Accuracy", &[("accuracy, %", over(&|row| row.accuracy * 100.0))]);
        let people = lines(
            "Participation",
            &[
                ("members there", over(&|row| row.there as f64)),
                ("accounts asked", over(&|row| row.asked as f64)),
                ("updates taken", over(&|row| row.updates as f64)),
                ("kept out or set aside", over(&|row| (row.excluded + row.set_aside) as f64)),
            ],
        );
        let spent = lines("Spent", &[("florins paid", over(&|row| row.spent))]);
        let figures = [
            page::figure(
                &accuracy,
                "Share of test rows that the model gets right, mean of the seeds.",
            ),
            page::figure(
                &people,
                "Who was there when a round opened, who was asked, and what came of it.",
            ),
            page::figure(&spent, "Paid for data."),
        ];
        html.push_str(&page::section("Round by round", &figures));
    }

    fn tables_part(&self, html: &mut String) {
        html.push_str("<section><h2>Every figure</h2><table><thead><tr><th>group</th><th>measure</th><th>mean</th>\
                       <th>95 %</th><th>what it is</th></tr></thead><tbody>");
        for measured in &self.measures {
            let meaning = MEASURES.iter().find(|(name, _)| *name == measured.key.measure);
            let i = &measured.interval;
            let _ = write!(
                html,
                "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>",
                escape(measured.key.group.as_deref().unwrap_or("–")),
                measured.key.measure.replace('_', " "),
                figure(i.mean),
                ends(i),
                meaning.map_or("", |(_, text)| text)
            );
        }
        html.push_str("</tbody></table></section>");
    }
}
