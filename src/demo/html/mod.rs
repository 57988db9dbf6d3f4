//! The HTML report: one self-contained file.

mod chart;

use std::fmt::Write as _;

use florin_protocol::Amount;

use super::outcome::{DemoOutcome, NANO, ParticipantResult, nats};
use super::plan::Behaviour;
use crate::show;
use chart::Heat;
pub(crate) use chart::escape;

const STYLE: &str = include_str!("style.css");

fn colour(at: usize) -> String {
    format!("var(--c{})", at % 8)
}

/// Florins as a float, for charts only.
#[expect(clippy::cast_precision_loss, reason = "for charts; tables print the exact amount")]
fn florins(amount: Amount) -> f64 {
    amount.units() as f64 / 1e18
}

/// Formats an axis label as a whole number, without a sign on zero.
fn whole(value: f64) -> String {
    format!("{:.0}", value.round() + 0.0)
}

/// Builds the page.
pub(super) fn page(outcome: &DemoOutcome) -> anyhow::Result<String> {
    let mut html = String::with_capacity(64 * 1024);
    let _ = write!(
        html,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>Florin: a market in {} rounds</title><style>{STYLE}</style></head><body><main>",
        outcome.rounds
    );
    let _ = write!(
        html,
        "<h1>A market in {} rounds</h1><p class=\"lead\">A buyer locked {} FLN for a model of \
         handwritten digits. Eight participants trained it on rows that never left their \
         processes; three of them were dishonest. Each update was scored by its effect on the \
         validation loss and paid by its score, and an auditor that does not trust the coordinator \
         recomputed every payment.</p>",
        outcome.rounds,
        show::fln(outcome.money()?.deposited)
    );
    cards(&mut html, outcome)?;
    learning(&mut html, outcome);
    earnings_section(&mut html, outcome);
    scores_section(&mut html, outcome);
    money(&mut html, outcome)?;
    dishonest_section(&mut html, outcome);
    rounds(&mut html, outcome);
    if let Some(found) = &outcome.on_chain {
        crate::ethereum::demo::section(&mut html, found);
    }
    let _ = write!(
        html,
        "<footer>Task <code>{}</code> · seed {} · {:.1} s on this machine · Florin {}. On one \
         machine, the same seed gives exactly the same payouts and scores.</footer></main></body>\
         </html>",
        outcome.task,
        outcome.seed,
        outcome.seconds,
        env!("CARGO_PKG_VERSION")
    );
    Ok(html)
}

fn cards(html: &mut String, outcome: &DemoOutcome) -> anyhow::Result<()> {
    let (before, after) = outcome.accuracy();
    let money = outcome.money()?;
    let differences = outcome.audit.1.len();
    let tone = if differences == 0 { "good" } else { "bad" };
    let _ = write!(
        html,
        r#"<div class="cards">
<div class="card"><b>{:.1} % → {:.1} %</b><span>accuracy on {} test rows that were never used in the market</span></div>
<div class="card"><b>{} FLN</b><span>paid for data, to {} of {} participants</span></div>
<div class="card"><b>{} FLN</b><span>paid for infrastructure</span></div>
<div class="card"><b class="{tone}">{differences} mismatches</b><span>{} of {} rounds recomputed</span></div>
</div>"#,
        100.0 * before,
        100.0 * after,
        outcome.test.2,
        money.data_paid,
        outcome.earners.iter().filter(|earner| !earner.earned.is_zero()).count(),
        outcome.earners.len(),
        money.infrastructure_paid,
        outcome.audit.0,
        outcome.rounds,
    );
    Ok(())
}

fn learning(html: &mut String, outcome: &DemoOutcome) {
    let share = |correct: u32, rows: u32| f64::from(correct) / f64::from(rows.max(1));
    let metrics: Vec<_> = outcome.reports.iter().filter_map(|report| report.metrics).collect();
    let mut accuracy: Vec<f64> =
        metrics.first().map(|m| share(m.correct_before, m.rows)).into_iter().collect();
    accuracy.extend(metrics.iter().map(|m| share(m.correct_after, m.rows)));
    let first = outcome.reports.iter().find_map(|report| report.valuation.as_ref());
    let mut loss: Vec<f64> =
        first.map(|valuation| nats(valuation.loss_before_nano.into())).into_iter().collect();
    loss.extend(metrics.iter().map(|m| nats(m.loss_after_nano.into())));
    let highest = loss.iter().copied().fold(0.1, f64::max) * 1.08;
    let _ = write!(
        html,
        "<section><h2>The model's progress</h2><p class=\"note\">Measured on rows of the buyer's \
         holdout, before the first round and after each round. Each round uses other rows, drawn \
         after its updates were submitted, so the values vary from round to round.</p>\
         <div class=\"two\">\
         <figure><figcaption>Accuracy by round</figcaption>{}</figure>\
         <figure><figcaption>Loss by round (mean cross-entropy, nats)</figcaption>{}</figure></div>\
         </section>",
        chart::line("Accuracy by round", &accuracy, (0.0, 1.0), "var(--good)", &|v| format!(
            "{:.0} %",
            100.0 * v
        )),
        chart::line("Loss by round", &loss, (0.0, highest), "var(--accent)", &|v| format!(
            "{v:.2}"
        )),
    );
}

fn earnings_section(html: &mut String, outcome: &DemoOutcome) {
    html.push_str(
        "<section><h2>Earnings</h2><p class=\"note\">A score is the decrease of the validation \
         loss that an update caused, in nats (the unit of cross-entropy with the natural \
         logarithm). The share is the fraction of all payouts for data.</p><div class=\"scroll\">\
         <table><tr><th>participant</th><th>behaviour</th>\
         <th class=\"n\">rows</th><th class=\"n\">rounds</th><th class=\"n\">score, nats</th>\
         <th class=\"n\">share</th><th class=\"n\">earned, FLN</th><th class=\"n\">bond left, \
         FLN</th></tr>",
    );
    let paid = outcome.books.data_paid;
    for (at, earner) in outcome.earners.iter().enumerate() {
        let tone = if earner.behaviour == Behaviour::Honest { "" } else { "bad" };
        let _ = write!(
            html,
            "<tr><td><i class=\"dot\" style=\"background:{}\"></i>{}</td>\
             <td class=\"{tone}\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{:.4}</td>\
             <td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            colour(at),
            escape(earner.name),
            earner.behaviour,
            earner.rows,
            earner.rounds,
            nats(earner.score_nano),
            show::share(earner.earned, paid),
            show::fln(earner.earned),
            show::fln(earner.bond),
        );
    }
    let _ = write!(
        html,
        "<tr><td>provider</td><td>evaluates the rounds</td><td class=\"n\">–</td>\
         <td class=\"n\">{}</td>\
         <td class=\"n\">{} units</td><td class=\"n\">–</td><td class=\"n\">{}</td>\
         <td class=\"n\">–</td></tr>\
         </table></div></section>",
        outcome.reports.iter().filter(|report| !report.infrastructure.is_empty()).count(),
        outcome.provider.0,
        show::fln(outcome.provider.1),
    );
}

fn heat_of(earner: &ParticipantResult, strongest: f64) -> Vec<Heat> {
    let cell = |(at, part): (usize, &super::outcome::ParticipantRound)| {
        let score = part.score_nano as f64 / NANO;
        let reason = part.reason.map_or("no update", show::reason);
        Heat {
            // The square root makes late rounds visible, whose scores are smaller.
            strength: (score.abs() / strongest).sqrt().copysign(score),
            text: if part.reason.is_some() { format!("{score:.3}") } else { "·".to_owned() },
            tooltip: format!(
                "round {}, {}: score {score:.6} ± {:.6} nats, {reason}, {} FLN paid, {} FLN \
                 debited",
                at + 1,
                earner.name,
                part.error_nano as f64 / NANO,
                part.payout,
                part.debit,
            ),
        }
    };
    earner.parts.iter().enumerate().map(cell).collect()
}

fn scores_section(html: &mut String, outcome: &DemoOutcome) {
    let strongest = outcome
        .earners
        .iter()
        .flat_map(|earner| &earner.parts)
        .map(|part| (part.score_nano as f64 / NANO).abs())
        .fold(1e-9, f64::max);
    let rows: Vec<(String, Vec<Heat>)> = outcome
        .earners
        .iter()
        .map(|earner| (earner.name.to_owned(), heat_of(earner, strongest)))
        .collect();
    let rounds: Vec<Vec<(String, String, f64)>> = (0..outcome.reports.len())
        .map(|round| {
            let part = |(at, earner): (usize, &ParticipantResult)| {
                let payout = earner.parts.get(round).map_or(0.0, |part| florins(part.payout));
                (earner.name.to_owned(), colour(at), payout)
            };
            outcome.earners.iter().enumerate().map(part).collect()
        })
        .collect();
    let totals: Vec<(String, String, Vec<f64>)> = outcome
        .earners
        .iter()
        .enumerate()
        .map(|(at, earner)| {
            let mut sum = 0.0;
            let mut values = vec![0.0];
            for part in &earner.parts {
                sum += florins(part.payout) - florins(part.debit);
                values.push(sum);
            }
            (earner.name.to_owned(), colour(at), values)
        })
        .collect();
    let names: Vec<String> = (0..outcome.earners.len()).map(colour).collect();
    let legend = outcome.earners.iter().zip(&names).map(|(e, c)| (e.name, c.as_str()));
    let _ = write!(
        html,
        "<section><h2>Score by participant and round</h2><p class=\"note\">The effect of each \
         update on the validation loss, in nats: blue lowered it, red raised it. The tooltip has \
         the standard error and the reason.</p>{}</section>\
         <section><h2>Pay by participant and round</h2><div class=\"two\">\
         <figure><figcaption>Paid in each round (FLN)</figcaption>{}</figure>\
         <figure><figcaption>Cumulative earnings minus debits (FLN)</figcaption>{}</figure>\
         </div>{}</section>",
        chart::heat("Score by participant and round", &rows),
        chart::stacks("Pay by participant and round", &rounds, &|v| whole(v)),
        chart::lines("Cumulative earnings by participant", &totals, &|v| whole(v)),
        chart::legend(legend),
    );
}

fn money(html: &mut String, outcome: &DemoOutcome) -> anyhow::Result<()> {
    let money = outcome.money()?;
    let entries = [
        ("data paid", money.data_paid, "var(--c0)"),
        ("infrastructure paid", money.infrastructure_paid, "var(--c4)"),
        ("refunded", money.refunded, "var(--c2)"),
        ("still locked", money.locked, "var(--c7)"),
    ];
    let parts: Vec<(String, String, f64)> = entries
        .iter()
        .map(|(name, amount, colour)| ((*name).to_owned(), (*colour).to_owned(), florins(*amount)))
        .collect();
    let named: Vec<String> = entries
        .iter()
        .map(|(name, amount, _)| format!("{name} {} FLN", show::fln(*amount)))
        .collect();
    let legend = named.iter().zip(&entries).map(|(name, (.., colour))| (name.as_str(), *colour));
    let _ = write!(
        html,
        "<section><h2>Use of the budget</h2><p class=\"equation\">{} deposited = {} data + {} \
         infrastructure + {} refunded + {} locked</p>{}{}<p class=\"note\" \
         style=\"margin-top:14px\">Exact to 10<sup>−18</sup> FLN, because the ledger uses \
         integers. Debited from bonds for harmful updates and held by the treasury: {} FLN.</p>\
         </section>",
        money.deposited,
        money.data_paid,
        money.infrastructure_paid,
        money.refunded,
        money.locked,
        chart::split("Use of the budget", &parts),
        chart::legend(legend),
        show::fln(outcome.treasury),
    );
    Ok(())
}

fn dishonest_section(html: &mut String, outcome: &DemoOutcome) {
    let _ = write!(html, "<section><h2>{}</h2>", outcome.dishonest_title());
    for earner in outcome.earners.iter().filter(|e| e.behaviour != Behaviour::Honest) {
        let _ = write!(
            html,
            "<p class=\"why\"><b>{}</b> <span class=\"soft\">({}; {})</span><br>{}</p>",
            escape(earner.name),
            earner.behaviour,
            escape(&earner.summary),
            escape(&earner.explanation)
        );
    }
    html.push_str("</section>");
}

fn rounds(html: &mut String, outcome: &DemoOutcome) {
    let clean = outcome.audit.1.is_empty();
    let _ = write!(
        html,
        "<section><h2>Audit of every round</h2><p class=\"note\">Audit: <b class=\"{}\">{} of {} \
         rounds recomputed, {} mismatches</b>. The auditor is a separate process that uses only \
         public data: it checks each digest and signature, scores the updates again, and compares \
         every value with the report and the ledger.</p>\
         <div class=\"scroll\"><table><tr><th class=\"n\">round</th><th class=\"n\">loss \
         before</th>\
         <th class=\"n\">loss after</th><th class=\"n\">correct</th><th class=\"n\">updates</th>\
         <th class=\"n\">excluded</th><th class=\"n\">pool, FLN</th><th class=\"n\">paid, FLN</th>\
         <th>Merkle root of account totals</th></tr>",
        if clean { "good" } else { "bad" },
        outcome.audit.0,
        outcome.rounds,
        outcome.audit.1.len(),
    );
    for report in &outcome.reports {
        let paid = Amount::total(report.lines.iter().map(|line| line.payout)).unwrap_or_default();
        let loss = report.valuation.as_ref().map_or(("–".to_owned(), "–".to_owned()), |v| {
            let after = report.metrics.map_or(v.loss_after_nano, |m| m.loss_after_nano);
            (
                format!("{:.4}", nats(v.loss_before_nano.into())),
                format!("{:.4}", nats(after.into())),
            )
        });
        let out = report
            .valuation
            .as_ref()
            .map_or(0, |valuation| valuation.scores.iter().filter(|score| score.excluded).count());
        let correct = report
            .metrics
            .map_or("–".to_owned(), |m| format!("{} of {}", m.correct_after, m.rows));
        let _ = write!(
            html,
            "<tr><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{correct}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{out}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td>\
             <td><code>{}…</code></td></tr>",
            report.scope.round,
            loss.0,
            loss.1,
            report.entries.len(),
            show::fln(report.pool),
            show::fln(paid),
            report.root.to_string().chars().take(20).collect::<String>(),
        );
    }
    html.push_str("</table></div>");
    for line in &outcome.audit.1 {
        let _ = write!(html, "<p class=\"bad\">{}</p>", escape(line));
    }
    html.push_str("</section>");
}

#[cfg(test)]
mod tests;
