//! The final output of a demonstration.

use super::outcome::{DemoOutcome, Money, nats_text};
use super::plan::Behaviour;
use crate::show::{self, BAD, Cell, DIM, GOOD, HEAD, TextTable};

/// Prints all results.
pub(super) fn print(outcome: &DemoOutcome) -> anyhow::Result<()> {
    anstream::println!();
    participant_table(outcome).print();
    let (before, after) = outcome.accuracy();
    anstream::println!();
    let (before, after, rows) = (100.0 * before, 100.0 * after, outcome.model.rows);
    let model = format!(
        "accuracy {before:.1} % → {GOOD}{after:.1} %{GOOD:#} on {rows} test rows that were never \
         used in the market"
    );
    show::labelled("Model", &model);
    money(outcome)?;
    audit(outcome);
    if let Some(on_chain) = &outcome.on_chain {
        on_chain.print();
    }
    anstream::println!("\n{HEAD}{}{HEAD:#}", outcome.dishonest_title());
    for earner in outcome.earners.iter().filter(|e| e.behaviour != Behaviour::Honest) {
        let title = format!("{} ({}; {})", earner.name, earner.behaviour, earner.summary);
        show::paragraph("  ", &title, anstyle::Style::new());
        show::paragraph("    ", &earner.explanation, DIM);
    }
    Ok(())
}

fn participant_table(outcome: &DemoOutcome) -> TextTable {
    let mut table = TextTable::new(&[
        "participant",
        "behaviour",
        ">rows",
        ">rounds",
        ">score, nats",
        ">share",
        ">earned, FLN",
        ">bond, FLN",
    ]);
    for earner in &outcome.earners {
        let style = match earner.behaviour {
            Behaviour::Honest => anstyle::Style::new(),
            _ => BAD,
        };
        let earned = if earner.earned.is_zero() { anstyle::Style::new() } else { GOOD };
        table.row([
            earner.name.into(),
            Cell::styled(earner.behaviour.to_string(), style),
            earner.rows.into(),
            earner.rounds.into(),
            nats_text(earner.score_nano).into(),
            show::share(earner.earned, outcome.books.data_paid).into(),
            Cell::styled(show::fln(earner.earned), earned),
            show::fln(earner.bond).into(),
        ]);
    }
    let worked = outcome.reports.iter().filter(|report| !report.infrastructure.is_empty()).count();
    table.row([
        "provider".into(),
        "valuation".into(),
        "".into(),
        worked.into(),
        format!("{} units", outcome.provider.0).into(),
        "".into(),
        Cell::styled(show::fln(outcome.provider.1), GOOD),
        "".into(),
    ]);
    table
}

/// Prints exact amounts, because rounded ones would not add up.
fn money(outcome: &DemoOutcome) -> anyhow::Result<()> {
    let money = outcome.money()?;
    let balances = outcome.balances()?;
    let (mark, style) = if balances { ("exactly", GOOD) } else { ("NOT EQUAL", BAD) };
    let Money { deposited, data_paid, infrastructure_paid, refunded, locked } = money;
    let equation = format!(
        "{deposited} deposited = {data_paid} data + {infrastructure_paid} infrastructure + \
         {refunded} refunded + {locked} locked ({style}{mark}{style:#})"
    );
    show::labelled("Money", &equation);
    let debited = show::fln(outcome.treasury);
    show::labelled(
        "",
        &format!("{DIM}{debited} FLN were debited from bonds for harmful updates{DIM:#}"),
    );
    Ok(())
}

fn audit(outcome: &DemoOutcome) {
    let (rounds, differences) = (outcome.audit.0, &outcome.audit.1);
    let style = if differences.is_empty() { GOOD } else { BAD };
    let (all, mismatches) = (outcome.rounds, differences.len());
    let result =
        format!("{rounds} of {all} rounds recomputed, {style}{mismatches} mismatches{style:#}");
    show::labelled("Audit", &result);
    for line in differences {
        show::labelled("", &format!("{BAD}{line}{BAD:#}"));
    }
}
