//! `florin-bench keys`: what each key can take, what it costs to shut a market, which rows an update
//! reveals, and the rate of signature checks.

use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use florin_ledger::bench::recoveries;
use serde::Deserialize;

use super::Measurement;

/// Signature checks per second, relative to k256.
const RECOVERY_RATIO_MIN: f64 = 4.0;

/// A figure that a test measured.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Figure {
    name: String,
    value: f64,
    unit: String,
    at_most: Option<f64>,
    at_least: Option<f64>,
}

impl From<Figure> for Measurement {
    fn from(figure: Figure) -> Self {
        let Figure { name, value, unit, at_most, at_least } = figure;
        match (at_most, at_least) {
            (Some(most), _) => Self::at_most(name, value, &unit, most),
            (None, Some(least)) => Self::at_least(name, value, &unit, least),
            (None, None) => Self::plain(name, value, &unit),
        }
    }
}

/// The figures of the tests in `figures`, one line of JSON each, and the rates of signature checks.
#[expect(clippy::cast_precision_loss, reason = "rates, for output")]
pub(super) fn run(figures: Option<&Path>) -> anyhow::Result<Vec<Measurement>> {
    let file = figures.context("--figures is missing: run `cargo xtask bench keys`")?;
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let figure = |line: &str| {
        let read: Figure = serde_json::from_str(line).with_context(|| line.to_owned())?;
        anyhow::Ok(Measurement::from(read))
    };
    let mut rows: Vec<Measurement> = text.lines().map(figure).collect::<Result<_, _>>()?;
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    let begun = Instant::now();
    let rates = recoveries(&|| begun.elapsed().as_micros())?;
    let ratio = rates[0].value as f64 / rates[1].value.max(1) as f64;
    rows.extend(rates.map(|rate| Measurement::plain(rate.name, rate.value as f64, rate.unit)));
    let name = "signature checks, relative to k256";
    rows.push(Measurement::at_least(name, ratio, "", RECOVERY_RATIO_MIN));
    Ok(rows)
}
