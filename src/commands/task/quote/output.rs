//! The quote as text and as JSON.

use florin_protocol::{Amount, TaskSpec};
use florin_sim::quote::{
    HONEST_KEEP_PERCENT_WITH_TEN_IDENTITIES, PayLimits, Quote, Spread, WRONG_LABELS_PERCENT,
};
use serde_json::json;

use super::TaskQuote;
use crate::loss_text;
use crate::show::{self, NOTE};

/// Base units in a florin.
const FLORIN: u128 = 1_000_000_000_000_000_000;

impl TaskQuote {
    /// The quote as JSON: amounts in base units, as text.
    pub(in crate::commands::task) fn to_json(&self) -> serde_json::Value {
        let limits = &self.limits;
        let warnings: Vec<_> = self
            .warnings
            .iter()
            .map(|(code, message)| json!({ "code": code, "message": message }))
            .collect();
        json!({
            "limits": {
                "locked": show::units(limits.locked),
                "round_pool": show::units(limits.round_pool),
                "round_floor": show::units(limits.round_floor),
                "floor": show::units(limits.floor),
                "member_floor": show::units(limits.member_floor),
                "score_pay": show::units(limits.score_pay),
                "round_debit": show::units(limits.round_debit),
                "debit": show::units(limits.debit),
            },
            "simulation": self.simulated.as_ref().ok().map(|quote| simulation_json(quote, limits)),
            "no_simulation": self.simulated.as_ref().err(),
            "honest_keep_percent_with_ten_identities": HONEST_KEEP_PERCENT_WITH_TEN_IDENTITIES,
            "warnings": warnings,
        })
    }

    /// Prints the quote for people.
    pub(in crate::commands::task) fn print(&self, spec: &TaskSpec) {
        anstream::println!();
        let mut facts = match &self.simulated {
            Ok(quote) => simulated_facts(spec, quote, &self.limits),
            Err(reason) => {
                let mut facts = vec![("quote", format!("none, only the limits: {reason}"))];
                facts.extend(limit_facts(spec, &self.limits));
                facts
            }
        };
        facts.extend(common_facts(&self.limits));
        show::facts(&facts);
        for (code, sentence) in &self.warnings {
            anstream::println!("\n{NOTE}warning:{NOTE:#} {sentence} [{code}]");
        }
    }
}

fn description(quote: &Quote) -> String {
    let plan = &quote.plan;
    let scaled = match plan.honest == plan.cohort_target {
        true => String::new(),
        false => format!("; pay is converted to {} honest members", plan.cohort_target),
    };
    format!(
        "10th to 90th percentile of {} simulations on the holdout, each with {} honest members, one \
         with wrong labels and one that sends noise; in half of them honest members have unequal \
         rows and labels; {} rows of the holdout value the simulated rounds, and the others train \
         the members{scaled}",
        plan.seeds, plan.honest, plan.valuation_rows
    )
}

type Fact = (&'static str, String);

fn simulated_facts(spec: &TaskSpec, quote: &Quote, limits: &PayLimits) -> Vec<Fact> {
    let plan = &quote.plan;
    let rounds = spec.rounds.count;
    let cost = total_cost(quote);
    vec![
        ("quote", description(quote)),
        (
            "honest",
            format!(
                "a member with {} rows on average earns {} FLN",
                plan.member_rows,
                range(quote.honest)
            ),
        ),
        ("noise", format!("a member that sends noise earns {} FLN", range(quote.noise))),
        (
            "wrong labels",
            format!(
                "a member with {WRONG_LABELS_PERCENT} % wrong labels earns {} FLN",
                range(quote.wrong_labels)
            ),
        ),
        (
            "power",
            format!(
                "honest scores reach {:.1} standard errors by round {}; pay needs {}",
                quote.power.ratio, quote.power.round, spec.budget.confidence_z
            ),
        ),
        quality(spec, quote),
        (
            "cost",
            format!(
                "{} FLN of {}; the rest is refunded",
                range(cost),
                florins(limits.locked.units() as i128)
            ),
        ),
        ("void rounds", format!("{} of {rounds}", counts(quote.void_rounds))),
    ]
}

/// The accuracy after the task and before it; the loss, if no prediction is right or wrong.
fn quality(spec: &TaskSpec, quote: &Quote) -> Fact {
    let rounds = spec.rounds.count;
    if spec.model.has_predictions() {
        let (after, before) = (accuracy_range(quote.accuracy), quote.accuracy_before.median);
        let before = percent(millionths(before));
        return ("accuracy", format!("{after} after {rounds} rounds, {before} before"));
    }
    let loss = |nano: i128| format!("{:.3}", nano as f64 / 1e9);
    let (low, high) = (loss(quote.loss.low), loss(quote.loss.high));
    let after = if low == high { low } else { format!("{low} to {high}") };
    let before = loss(quote.loss_before.median);
    (
        "loss",
        format!("{after} {} after {rounds} rounds, {before} before", loss_text::loss_units(spec)),
    )
}

/// The largest improvement that scores can earn, in words.
fn largest_loss(spec: &TaskSpec) -> &'static str {
    match spec.model.is_loss_in_nats() {
        true => "the loss of equally likely labels",
        false => "the largest loss of a row",
    }
}

fn limit_facts(spec: &TaskSpec, limits: &PayLimits) -> Vec<Fact> {
    vec![
        (
            "pool",
            format!("{} FLN for data in round 1; the rest rolls over", amount(limits.round_pool)),
        ),
        (
            "scores",
            format!(
                "earn at most about {} FLN together: {} is {:.2} {}",
                amount(limits.score_pay),
                largest_loss(spec),
                limits.initial_loss,
                loss_text::loss_units(spec)
            ),
        ),
        ("cost", format!("at most {} FLN; the rest is refunded", amount(limits.locked))),
    ]
}

fn common_facts(limits: &PayLimits) -> Vec<Fact> {
    vec![
        (
            "floor",
            format!(
                "{} FLN per round, split among members with a significant score; if the holdout \
                 separates none from noise, among all whose updates are not harmful",
                amount(limits.round_floor)
            ),
        ),
        (
            "worst case",
            format!(
                "a member whose updates the holdout does not separate from noise earns at most the \
                 floor, about {} FLN in all; a harmful update costs up to {} FLN per round, {} FLN \
                 in all with the minimum bond",
                amount(limits.member_floor),
                amount(limits.round_debit),
                amount(limits.debit)
            ),
        ),
        (
            "identities",
            format!(
                "if one person joins as ten identities with much data, honest members retain about \
                 {HONEST_KEEP_PERCENT_WITH_TEN_IDENTITIES} % of their pay"
            ),
        ),
    ]
}

/// The cost to the buyer: pay for data and for verified work.
fn total_cost(quote: &Quote) -> Spread {
    let (data, work) = (quote.data_spent, quote.infrastructure_spent);
    Spread {
        low: data.low.saturating_add(work.low),
        median: data.median.saturating_add(work.median),
        high: data.high.saturating_add(work.high),
    }
}

fn simulation_json(quote: &Quote, limits: &PayLimits) -> serde_json::Value {
    let (plan, power) = (&quote.plan, &quote.power);
    let losses = |spread: Spread| {
        let [low, median, high] = [spread.low, spread.median, spread.high].map(|n| n as f64 / 1e9);
        json!({ "low": low, "median": median, "high": high })
    };
    let units = |spread: Spread| {
        json!({
            "low": spread.low.to_string(),
            "median": spread.median.to_string(),
            "high": spread.high.to_string(),
        })
    };
    let shares = |spread: Spread| {
        let [low, median, high] = [spread.low, spread.median, spread.high].map(millionths);
        json!({ "low": low, "median": median, "high": high })
    };
    let count = |spread: Spread| {
        json!({
            "low": spread.low as u64, "median": spread.median as u64, "high": spread.high as u64,
        })
    };
    json!({
        "seeds": plan.seeds,
        "honest_members": plan.honest,
        "cohort_target": plan.cohort_target,
        "member_rows": plan.member_rows,
        "valuation_rows": plan.valuation_rows,
        "wrong_labels_percent": WRONG_LABELS_PERCENT,
        "honest_earned": units(quote.honest),
        "noise_earned": units(quote.noise),
        "wrong_labels_earned": units(quote.wrong_labels),
        "data_cost": units(quote.data_spent),
        "infrastructure_cost": units(quote.infrastructure_spent),
        "cost": units(total_cost(quote)),
        "locked": show::units(limits.locked),
        "accuracy_before": shares(quote.accuracy_before),
        "accuracy": shares(quote.accuracy),
        "loss_before": losses(quote.loss_before),
        "loss": losses(quote.loss),
        "void_rounds": count(quote.void_rounds),
        "power": {
            "score_nats": power.score,
            "row_deviation_nats": power.row_deviation,
            "standard_errors": power.ratio,
            "round": power.round,
            "confidence_z": power.confidence_z,
            "payable_percent": power.payable_percent,
        },
        "labels": quote.labels.as_ref().map(|labels| json!({
            "rows": labels.rows,
            "accuracy": labels.accuracy,
            "trained_accuracy": labels.trained_accuracy,
            "chance": labels.chance,
            "majority": labels.majority,
        })),
    })
}

fn amount(amount: Amount) -> String {
    florins(i128::try_from(amount.units()).unwrap_or(i128::MAX))
}

/// Florins with about three digits, and to a thousandth: an estimate has no more.
fn florins(units: i128) -> String {
    let sign = if units < 0 { "-" } else { "" };
    let size = units.unsigned_abs();
    let decimals = match size {
        0 => 0,
        size if size >= 100 * FLORIN => 0,
        size if size >= FLORIN => 1,
        _ => 3,
    };
    let step = FLORIN / 10_u128.pow(decimals);
    let steps = size.saturating_add(step / 2) / step;
    let (whole, part) = (steps / 10_u128.pow(decimals), steps % 10_u128.pow(decimals));
    let whole = show::thousands(&whole.to_string());
    let text = match part {
        0 => whole,
        part => {
            let part = format!("{part:0width$}", width = decimals as usize);
            format!("{whole}.{}", part.trim_end_matches('0'))
        }
    };
    match text.as_str() {
        "0" => text,
        _ => format!("{sign}{text}"),
    }
}

fn range(spread: Spread) -> String {
    let (low, high) = (florins(spread.low), florins(spread.high));
    if low == high { low } else { format!("{low} to {high}") }
}

fn counts(spread: Spread) -> String {
    let Spread { low, high, .. } = spread;
    if low == high { low.to_string() } else { format!("{low} to {high}") }
}

fn accuracy_range(spread: Spread) -> String {
    let [low, high] = [spread.low, spread.high].map(|value| percent(millionths(value)));
    if low == high { low } else { format!("{low} to {high}") }
}

/// Millionths as a fraction.
fn millionths(value: i128) -> f64 {
    value as f64 / 1e6
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
