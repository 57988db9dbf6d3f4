//! `florin-bench NAME`: measures this program against its limits and its peers, in one run on one
//! machine.

mod aggregate;
mod arguments;
mod attacks;
mod compute;
mod contribution;
mod devices;
mod keys;
mod ledger;
mod listener;
mod models;
mod page;
mod pay;
mod peers;
mod recovery;
mod round;
mod rounds;
mod server;
mod sim;
mod soak;
mod statistics;
mod traces;
mod train;
mod uploads;
mod wire;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use florin::failure::Exit;
use florin::log;
use florin::program::{self, FailureFormat};
use florin::show::{self, BAD, Cell, GOOD, TextTable};
use serde::{Serialize, Serializer};

use arguments::{BenchArgs, BenchName, PeerArg};
use peers::Peer;

/// Rounds of a Flower deployment; the median interval between rounds counts.
const FLOWER_ROUNDS: u32 = 5;

/// One measurement, with its target.
#[derive(Debug, Clone, Serialize)]
struct Measurement {
    /// Name of the measurement.
    name: String,
    /// The value; NaN if it is undefined. JSON has neither: an infinite one is a text, NaN is null.
    #[serde(serialize_with = "number_or_text")]
    value: f64,
    /// The unit.
    unit: String,
    /// The target in words; empty if there is none.
    bar: String,
    /// Whether the target is met; `None` if there is none.
    holds: Option<bool>,
}

impl Measurement {
    /// A measurement without a target.
    fn plain(name: impl Into<String>, value: f64, unit: &str) -> Self {
        Self { name: name.into(), value, unit: unit.to_owned(), bar: String::new(), holds: None }
    }

    /// A measurement that must not exceed `bar`.
    fn at_most(name: impl Into<String>, value: f64, unit: &str, bar: f64) -> Self {
        let text = format!("≤ {} {unit}", format_value(bar)).trim_end().to_owned();
        Self { bar: text, holds: Some(value <= bar), ..Self::plain(name, value, unit) }
    }

    /// A measurement that must be less than `bar`.
    fn below(name: impl Into<String>, value: f64, unit: &str, bar: f64) -> Self {
        let text = format!("< {} {unit}", format_value(bar));
        Self { bar: text, holds: Some(value < bar), ..Self::plain(name, value, unit) }
    }

    /// A measurement that fails its target.
    fn failed(name: impl Into<String>, value: f64, unit: &str) -> Self {
        Self { holds: Some(false), ..Self::plain(name, value, unit) }
    }

    /// The same without a value, which is undefined: its target is neither met nor missed.
    fn undefined(self) -> Self {
        Self { value: f64::NAN, holds: None, ..self }
    }

    /// Adds an aspirational value beyond the target.
    fn aiming_at(mut self, aim: f64) -> Self {
        self.bar = format!("{}, aim {}", self.bar, format_value(aim));
        self
    }

    /// A measurement that must not be less than `bar`.
    fn at_least(name: impl Into<String>, value: f64, unit: &str, bar: f64) -> Self {
        let text = format!("≥ {} {unit}", format_value(bar));
        Self { bar: text, holds: Some(value >= bar), ..Self::plain(name, value, unit) }
    }
}

fn number_or_text<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    match value.is_finite() {
        true => serializer.serialize_f64(*value),
        false if value.is_nan() => serializer.serialize_none(),
        false => serializer.collect_str(value),
    }
}

/// Formats a number with about four significant digits.
fn format_value(value: f64) -> String {
    if value.is_nan() {
        return "–".to_owned();
    }
    let decimals = match value.abs() {
        v if v >= 1_000.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 1.0 => 2,
        _ => 4,
    };
    let text = format!("{value:.decimals$}");
    let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
    let whole = show::thousands(whole);
    if part.is_empty() { whole } else { format!("{whole}.{part}") }
}

fn main() -> ExitCode {
    let arguments = BenchArgs::parse();
    log::start(arguments.log, None);
    program::run(FailureFormat::Text, || run(&arguments))
}

fn run(arguments: &BenchArgs) -> anyhow::Result<Exit> {
    if cfg!(debug_assertions) {
        anstream::eprintln!(
            "{}this is a development build: `cargo xtask bench` measures an optimised build{:#}",
            show::NOTE,
            show::NOTE
        );
    }
    let python = arguments.python.as_deref();
    let of_rows = |rows: Vec<Measurement>| anyhow::Ok((serde_json::to_value(&rows)?, rows));
    let (numbers, rows) = match arguments.name {
        BenchName::Rounds => of_rows(rounds::run(&arguments.pay, &arguments.rounds)?)?,
        BenchName::Compute => of_rows(compute::run(&arguments.pay, &arguments.compute)?)?,
        BenchName::Sim => of_rows(sim::run(python, &arguments.peer)?)?,
        BenchName::Aggregate => of_rows(aggregate::run(python)?)?,
        BenchName::Train => of_rows(train::run(python)?)?,
        BenchName::Models => models::run(&arguments.models, arguments.pay.only.as_deref(), python)?,
        BenchName::Devices => {
            if devices::run_as_process(&arguments.devices)? {
                return Ok(Exit::Done);
            }
            of_rows(devices::run(&arguments.devices, python)?)?
        }
        BenchName::Keys => of_rows(keys::run(arguments.keys.figures.as_deref())?)?,
        BenchName::Ledger => of_rows(ledger::run()?)?,
        BenchName::Round => of_rows(with_peer(round::run()?, arguments)?)?,
        BenchName::Server => of_rows(with_peer(server::run()?, arguments)?)?,
        BenchName::Listener => of_rows(listener::run(arguments.listener.connections)?)?,
        BenchName::Traces => of_rows(traces::run()?)?,
        BenchName::Uploads => of_rows(uploads::run(&arguments.uploads)?)?,
        BenchName::Page => of_rows(page::run()?)?,
        BenchName::Soak => of_rows(soak::run(&arguments.soak)?)?,
        BenchName::Recovery => of_rows(recovery::run()?)?,
        BenchName::Attacks => of_rows(attacks::run()?)?,
        BenchName::Pay => {
            let pay = &arguments.pay;
            of_rows(pay::run(python, pay.first_seed, pay.tasks, pay.only.as_deref())?)?
        }
        BenchName::Wire => {
            of_rows(wire::run(arguments.wire.seeds, arguments.contribution.docs.as_deref())?)?
        }
        BenchName::Contribution => contribution::run(arguments)?,
    };
    let mut table = TextTable::new(&["measurement", ">value", "unit", "target", ""]);
    for row in &rows {
        let (mark, style) = match row.holds {
            Some(true) => ("met", GOOD),
            Some(false) => ("MISSED", BAD),
            None if row.value.is_nan() => ("undefined", show::DIM),
            None => ("", show::DIM),
        };
        table.row([
            row.name.as_str().into(),
            format_value(row.value).into(),
            row.unit.as_str().into(),
            row.bar.as_str().into(),
            Cell::styled(mark, style),
        ]);
    }
    table.print();
    if let (BenchName::Attacks, Some(folder)) = (arguments.name, &arguments.contribution.docs) {
        contribution::write_rows(folder, "attacks", &rows)?;
    }
    if let Some(file) = &arguments.json {
        let text = serde_json::to_string_pretty(&numbers)?;
        std::fs::write(file, text + "\n").with_context(|| file.display().to_string())?;
    }
    let missed = rows.iter().any(|row| row.holds == Some(false));
    Ok(if missed { Exit::Negative } else { Exit::Done })
}

/// Adds the rows of the peer, if one is requested.
fn with_peer(
    mut rows: Vec<Measurement>,
    arguments: &BenchArgs,
) -> anyhow::Result<Vec<Measurement>> {
    if arguments.peer.contains(&PeerArg::Flower) {
        let script = include_str!("../../../xtask/peers/flower.py");
        let rounds = vec![FLOWER_ROUNDS.to_string()];
        let peer = Peer { name: "Flower", script, arguments: rounds };
        rows.extend(peers::run(&peer, arguments.python.as_deref())?);
    }
    Ok(rows)
}

/// Mean and standard deviation of a sample.
fn mean_and_std(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0).max(1.0)).sqrt())
}

/// The duration of the fastest of several runs, in seconds.
fn fastest(times: usize, mut run: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..times {
        let begun = std::time::Instant::now();
        run()?;
        best = best.min(begun.elapsed().as_secs_f64());
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_no_number_is_a_text_in_json() {
        let value = |value: f64| serde_json::to_value(Measurement::plain("a", value, "s")).unwrap();
        assert_eq!(value(f64::INFINITY)["value"], "inf");
        assert_eq!(value(f64::NEG_INFINITY)["value"], "-inf");
        assert_eq!(value(1.5)["value"], 1.5);
        let undefined = Measurement::at_most("a", f64::INFINITY, "%", 10.0).undefined();
        assert_eq!((undefined.holds, format_value(undefined.value)), (None, "–".to_owned()));
        assert_eq!(serde_json::to_value(undefined).unwrap()["value"], serde_json::Value::Null);
    }

    #[test]
    fn a_target_is_met_or_missed() {
        assert_eq!(Measurement::at_most("a", 0.2, "s", 0.25).holds, Some(true));
        assert_eq!(Measurement::at_most("a", 0.3, "s", 0.25).holds, Some(false));
        let row = Measurement::at_least("a", 160_000.0, "1/s", 150_000.0);
        assert_eq!((row.holds, row.bar.as_str()), (Some(true), "≥ 150,000 1/s"));
        assert_eq!(format_value(0.1234), "0.1234");
    }
}
