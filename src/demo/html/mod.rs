//! The HTML report: one self-contained file.

use std::fmt::Write as _;

use florin_charts::{
    self as charts, Axes, Axis, Colour, HeatCell, HeatMap, HeatSide, Line, Quantity, Shading,
    SharePart, Unit, escape_html, escape_prose, figure_html, table_html,
};
use florin_protocol::{Amount, Report};

use super::ethereum;
use super::outcome::{DemoOutcome, NANO, ParticipantResult, nats, nats_text};
use super::plan::Behaviour;
use crate::show;

/// Printed digits of a Merkle root.
const ROOT_DIGITS: usize = 16;
/// The horizontal axis of plots over rounds.
const ROUND: Quantity<'static> = Quantity { name: "round", unit: Unit::Number };

/// Florins as a float, for charts only.
#[expect(clippy::cast_precision_loss, reason = "for charts; tables print the exact amount")]
fn florins(amount: Amount) -> f64 {
    amount.units() as f64 / 1e18
}

/// Builds the page.
pub(super) fn page(outcome: &DemoOutcome) -> anyhow::Result<String> {
    let lead = format!(
        "A buyer locked {}&nbsp;FLN for a model of handwritten digits. Eight participants trained \
         it on rows that never left their processes; three of them were dishonest. Each update was \
         scored by its effect on the validation loss and paid by its score, and an auditor that \
         does not trust the coordinator recomputed every payment.",
        show::fln(outcome.money()?.deposited)
    );
    let mut html = charts::page_start(&format!("A market in {} rounds", outcome.rounds), &lead);
    cards(&mut html, outcome)?;
    learning(&mut html, outcome);
    model_section(&mut html, outcome)?;
    earnings_section(&mut html, outcome);
    scores_section(&mut html, outcome);
    pay_section(&mut html, outcome);
    money(&mut html, outcome)?;
    dishonest_section(&mut html, outcome);
    rounds(&mut html, outcome);
    if let Some(found) = &outcome.on_chain {
        ethereum::section(&mut html, found);
    }
    let _ = write!(
        html,
        "<footer>Task <code>{}</code> · seed {} · {:.1}&nbsp;s on this machine · Florin \
         {}. On one machine, the same seed gives exactly the same payouts and \
         scores.</footer>{}",
        outcome.task,
        outcome.seed,
        outcome.seconds,
        env!("CARGO_PKG_VERSION"),
        charts::PAGE_END
    );
    Ok(html)
}

fn cards(html: &mut String, outcome: &DemoOutcome) -> anyhow::Result<()> {
    let (before, after) = outcome.accuracy();
    let money = outcome.money()?;
    let differences = outcome.audit.1.len();
    let tone = if differences == 0 { "good" } else { "bad" };
    let price = outcome.price_per_point()?;
    let price = price.map_or("–".to_owned(), |price| format!("{}&nbsp;FLN", show::fln(price)));
    let _ = write!(
        html,
        r#"<div class="cards">
<div class="card"><b>{:.1}&nbsp;% → {:.1}&nbsp;%</b><span>accuracy on {} test rows that were never used in the market</span></div>
<div class="card"><b>{}&nbsp;FLN</b><span>paid for data, to {} of {} participants</span></div>
<div class="card"><b>{}&nbsp;FLN</b><span>paid for infrastructure</span></div>
<div class="card"><b>{price}</b><span>paid for each percentage point of accuracy</span></div>
<div class="card"><b class="{tone}">{differences} mismatches</b><span>{} of {} rounds recomputed</span></div>
</div>"#,
        100.0 * before,
        100.0 * after,
        outcome.model.rows,
        show::fln(money.data_paid),
        outcome.earners.iter().filter(|earner| !earner.earned.is_zero()).count(),
        outcome.earners.len(),
        show::fln(money.infrastructure_paid),
        outcome.audit.0,
        outcome.rounds,
    );
    Ok(())
}

fn learning(html: &mut String, outcome: &DemoOutcome) {
    let share = |correct: u32, rows: u32| 100.0 * f64::from(correct) / f64::from(rows.max(1));
    let metrics: Vec<_> = outcome.reports.iter().filter_map(|report| report.metrics).collect();
    let mut accuracy: Vec<f64> =
        metrics.first().map(|m| share(m.correct_before, m.rows)).into_iter().collect();
    accuracy.extend(metrics.iter().map(|m| share(m.correct_after, m.rows)));
    let first = outcome.reports.iter().find_map(|report| report.valuation.as_ref());
    let mut loss: Vec<f64> =
        first.map(|valuation| nats(valuation.loss_before_nano.into())).into_iter().collect();
    loss.extend(metrics.iter().map(|m| nats(m.loss_after_nano.into())));
    let plot = |title: &str, y: Axis, values: &[f64], place: usize| {
        let last = values.len().saturating_sub(1).max(1);
        let axes = Axes { x: Axis::counting(ROUND, 0.0..=last as f64), y };
        charts::line_plot(title, &axes, &[Line::from_values(title, place, 0, values)])
    };
    let accuracy_axis =
        Axis::between(Quantity { name: "accuracy", unit: Unit::Percent }, 0.0..=100.0);
    let loss_axis = Axis::from_zero(
        Quantity { name: "validation loss", unit: Unit::Nats },
        loss.iter().copied(),
    );
    let _ = write!(
        html,
        "<section><h2>The model's progress</h2><p class=\"note\">Measured on rows of the buyer's \
         holdout, before the first round and after each round. Each round uses other rows, drawn \
         after its updates were submitted, so the values vary from round to round.</p>\
         <div class=\"plots\">{}{}</div></section>",
        figure_html(&plot("Accuracy", accuracy_axis, &accuracy, 0), "Accuracy by round"),
        figure_html(&plot("Loss", loss_axis, &loss, 1), "Loss by round"),
    );
}

/// The identity of the trained model, and what the buyer paid for its accuracy.
fn model_section(html: &mut String, outcome: &DemoOutcome) -> anyhow::Result<()> {
    let model = &outcome.model;
    let price = match outcome.price_per_point()? {
        Some(price) => format!("{}&nbsp;FLN", show::fln(price)),
        None => "– (the accuracy did not rise)".to_owned(),
    };
    let (before, after) = outcome.accuracy();
    let rows = format!(
        "<tr><th>trained model</th><td><code class=\"whole\">{}</code></td></tr>\
         <tr><th>initial model</th><td><code class=\"whole\">{}</code></td></tr>\
         <tr><th>correct test rows</th><td>{} of {} before, {} of {} after</td></tr>\
         <tr><th>gain</th><td>{:.1} percentage points</td></tr>\
         <tr><th>price of a percentage point</th><td>{price}</td></tr>",
        model.trained,
        model.initial,
        model.correct_before,
        model.rows,
        model.correct_after,
        model.rows,
        100.0 * (after - before),
    );
    let _ = write!(
        html,
        "<section><h2>The model</h2><p class=\"note\">The digest identifies the bytes of a model: \
         <code>florin task model</code> downloads the trained model and checks its digest. The price \
         of a percentage point is the sum of all payments, for data and infrastructure, divided by \
         the gain in accuracy on the test rows.</p>{}</section>",
        table_html(&rows),
    );
    Ok(())
}

fn earnings_section(html: &mut String, outcome: &DemoOutcome) {
    let mut rows = String::from(
        "<tr><th>participant</th><th>behaviour</th><th class=\"n\">rows</th>\
         <th class=\"n\">rounds</th><th class=\"n\">score, nats</th><th class=\"n\">share</th>\
         <th class=\"n\">earned, FLN</th><th class=\"n\">bond left, FLN</th></tr>",
    );
    let paid = outcome.books.data_paid;
    for (at, earner) in outcome.earners.iter().enumerate() {
        let tone = if earner.behaviour == Behaviour::Honest { "" } else { "bad" };
        let _ = write!(
            rows,
            "<tr><td><i class=\"key\" style=\"background:{}\"></i>{}</td>\
             <td class=\"{tone}\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            Colour::Series(at).css(),
            escape_html(earner.name),
            earner.behaviour,
            earner.rows,
            earner.rounds,
            nats_text(earner.score_nano),
            escape_prose(&show::share(earner.earned, paid)),
            show::fln(earner.earned),
            show::fln(earner.bond),
        );
    }
    let _ = write!(
        rows,
        "<tr><td>provider</td><td>valuation</td><td class=\"n\">–</td>\
         <td class=\"n\">{}</td>\
         <td class=\"n\">{} units</td><td class=\"n\">–</td><td class=\"n\">{}</td>\
         <td class=\"n\">–</td></tr>",
        outcome.reports.iter().filter(|report| !report.infrastructure.is_empty()).count(),
        outcome.provider.0,
        show::fln(outcome.provider.1),
    );
    let _ = write!(
        html,
        "<section><h2>Earnings</h2><p class=\"note\">A score is the decrease of the validation \
         loss that an update caused, in nats (the unit of natural logarithms). The share is the fraction of all payouts for data.</p>{}</section>",
        table_html(&rows)
    );
}

/// The cells of a participant in the heat map.
fn heat_cells(earner: &ParticipantResult) -> Vec<Option<HeatCell>> {
    let cell = |(at, part): (usize, &super::outcome::ParticipantRound)| {
        let value = part.score_nano as f64 / NANO;
        let reason = part.reason.map_or("no update", show::reason);
        HeatCell {
            value,
            text: if part.reason.is_some() { format!("{value:.3}") } else { "·".to_owned() },
            tooltip: format!(
                "round {}, {}: score {value:.6} ± {:.6} nats, {reason}, {} FLN paid, {} FLN \
                 debited",
                at + 1,
                earner.name,
                part.error_nano as f64 / NANO,
                part.payout,
                part.debit,
            ),
        }
    };
    earner.parts.iter().enumerate().map(cell).map(Some).collect()
}

fn scores_section(html: &mut String, outcome: &DemoOutcome) {
    let names: Vec<String> = outcome.earners.iter().map(|one| one.name.to_owned()).collect();
    let rounds: Vec<String> = (1..=outcome.reports.len()).map(|at| at.to_string()).collect();
    let map = HeatMap {
        columns: HeatSide { title: "round", names: &rounds },
        rows: HeatSide { title: "participant", names: &names },
        cells: outcome.earners.iter().flat_map(heat_cells).collect(),
        // Late rounds have smaller scores.
        shading: Shading::SquareRoot,
    };
    let _ = write!(
        html,
        "<section><h2>Score by participant and round</h2><p class=\"note\">The effect of each \
         update on the validation loss, in nats: blue lowered it, orange raised it. The tooltip \
         has the standard error and the reason.</p>{}</section>",
        charts::heat_map("Score by participant and round", &map),
    );
}

fn pay_section(html: &mut String, outcome: &DemoOutcome) {
    let names: Vec<&str> = outcome.earners.iter().map(|one| one.name).collect();
    let count = outcome.reports.len();
    let payout = |earner: &ParticipantResult, round: usize| {
        earner.parts.get(round).map_or(0.0, |part| florins(part.payout))
    };
    let bars: Vec<Vec<f64>> = (0..count)
        .map(|round| outcome.earners.iter().map(|earner| payout(earner, round)).collect())
        .collect();
    let totals: Vec<Vec<f64>> = outcome.earners.iter().map(cumulative_earnings).collect();
    let lines: Vec<Line<'_>> = (0..)
        .zip(names.iter().zip(&totals))
        .map(|(place, (name, values))| Line::from_values(name, place, 0, values))
        .collect();
    let paid = Quantity { name: "paid", unit: Unit::Florins };
    let earned = Quantity { name: "earned", unit: Unit::Florins };
    let paid_axes = Axes {
        x: Axis::counting(ROUND, 0.5..=count as f64 + 0.5),
        y: Axis::from_zero(paid, bars.iter().map(|parts| parts.iter().sum())),
    };
    let earned_axes = Axes {
        x: Axis::counting(ROUND, 0.0..=count.max(1) as f64),
        y: Axis::from_zero(earned, totals.iter().flatten().copied()),
    };
    let _ = write!(
        html,
        "<section><h2>Pay by participant and round</h2><div class=\"plots\">{}{}</div></section>",
        figure_html(
            &charts::stacked_bars("Pay by round", &paid_axes, &names, &bars),
            "Paid in each round"
        ),
        figure_html(
            &charts::line_plot("Cumulative earnings", &earned_axes, &lines),
            "Cumulative earnings minus debits"
        ),
    );
}

/// A participant's payouts minus its debits, before round 1 and after each round.
fn cumulative_earnings(earner: &ParticipantResult) -> Vec<f64> {
    let mut sum = 0.0;
    let after = earner.parts.iter().map(|part| {
        sum += florins(part.payout) - florins(part.debit);
        sum
    });
    std::iter::once(0.0).chain(after).collect()
}

fn money(html: &mut String, outcome: &DemoOutcome) -> anyhow::Result<()> {
    let money = outcome.money()?;
    let parts = [
        ("data paid", money.data_paid),
        ("infrastructure paid", money.infrastructure_paid),
        ("refunded", money.refunded),
        ("still locked", money.locked),
    ]
    .map(|(name, amount)| SharePart {
        name: format!("{name} {} FLN", show::fln(amount)),
        value: florins(amount),
    });
    let _ = write!(
        html,
        "<section><h2>Use of the budget</h2><p class=\"equation\">{} deposited = {} data + {} \
         infrastructure + {} refunded + {} locked</p>{}<p class=\"note\" \
         style=\"margin-top:14px\">Exact to 10<sup>−18</sup>&nbsp;FLN, because the ledger uses \
         integers. Debited from bonds for harmful updates and held by the treasury: {}&nbsp;FLN.</p>\
         </section>",
        money.deposited,
        money.data_paid,
        money.infrastructure_paid,
        money.refunded,
        money.locked,
        charts::share_bar("Use of the budget", &parts),
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
            escape_html(earner.name),
            earner.behaviour,
            escape_prose(&earner.summary),
            escape_prose(&earner.explanation)
        );
    }
    html.push_str("</section>");
}

fn rounds(html: &mut String, outcome: &DemoOutcome) {
    let mut rows = String::from(
        "<tr><th class=\"n\">round</th><th class=\"n\">loss before</th>\
         <th class=\"n\">loss after</th><th class=\"n\">correct</th><th class=\"n\">updates</th>\
         <th class=\"n\">excluded</th><th>estimator</th><th class=\"n\">gap</th>\
         <th class=\"n\">pool, FLN</th><th class=\"n\">paid, FLN</th>\
         <th>Merkle root of account totals</th></tr>",
    );
    for report in &outcome.reports {
        round_row(&mut rows, report);
    }
    let clean = outcome.audit.1.is_empty();
    let _ = write!(
        html,
        "<section><h2>Audit of every round</h2><p class=\"note\">Audit: <b class=\"{}\">{} of {} \
         rounds recomputed, {} mismatches</b>. The auditor is a separate process that uses only \
         public data: it checks each digest and signature, scores the updates again, and compares \
         every value with the report and the ledger. Losses and gaps are in nats; a gap is the \
         part of a round's improvement that its scores do not explain.</p>{}",
        if clean { "good" } else { "bad" },
        outcome.audit.0,
        outcome.rounds,
        outcome.audit.1.len(),
        table_html(&rows),
    );
    for line in &outcome.audit.1 {
        let _ = write!(html, "<p class=\"bad\">{}</p>", escape_prose(line));
    }
    html.push_str("</section>");
}

fn round_row(rows: &mut String, report: &Report) {
    let paid = report.data_paid().unwrap_or_default();
    let loss = report.valuation.as_ref().map_or(("–".to_owned(), "–".to_owned()), |v| {
        let after = report.metrics.map_or(v.loss_after_nano, |m| m.loss_after_nano);
        (nats_text(v.loss_before_nano.into()), nats_text(after.into()))
    });
    let excluded = report
        .valuation
        .as_ref()
        .map_or(0, |valuation| valuation.scores.iter().filter(|score| score.excluded).count());
    let stage = report.valuation.as_ref().and_then(|valuation| valuation.stages.last());
    let (estimator, gap) = stage.map_or(("–".to_owned(), "–".to_owned()), |stage| {
        (stage.estimator.to_string(), nats_text(stage.gap_nano.into()))
    });
    let correct =
        report.metrics.map_or("–".to_owned(), |m| format!("{} of {}", m.correct_after, m.rows));
    let _ = write!(
        rows,
        "<tr><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
         <td class=\"n\">{correct}</td>\
         <td class=\"n\">{}</td><td class=\"n\">{excluded}</td><td>{}</td><td class=\"n\">{}</td>\
         <td class=\"n\">{}</td>\
         <td class=\"n\">{}</td>\
         <td><code>{}…</code></td></tr>",
        report.scope.round,
        loss.0,
        loss.1,
        report.entries.len(),
        estimator,
        gap,
        show::fln(report.pool),
        show::fln(paid),
        report.root.to_string().chars().take(ROOT_DIGITS).collect::<String>(),
    );
}

#[cfg(test)]
mod tests;
