//! `florin-bench ledger`: durable transfers, measured by the ledger crate.

use std::time::Instant;

use anyhow::Context;
use florin_ledger::bench::{self, transfers};

use super::Measurement;

/// Transfers per run.
const TRANSFERS: u64 = 300_000;

pub(super) fn run() -> anyhow::Result<Vec<Measurement>> {
    // Use the working folder: a temporary folder may be in memory, where nothing is durable.
    let folder = tempfile::Builder::new().prefix("florin-bench-").tempdir_in(".").context(
        "the working folder must be writable, because the ledger is measured on its disk",
    )?;
    let begun = Instant::now();
    let rows = transfers(folder.path(), TRANSFERS, &|| begun.elapsed().as_micros())?;
    Ok(rows.into_iter().map(row).collect())
}

#[expect(clippy::cast_precision_loss, reason = "rates, for output")]
fn row(row: bench::LedgerMeasurement) -> Measurement {
    match row.bar {
        Some(bar) => Measurement::at_least(row.name, row.value as f64, row.unit, bar as f64),
        None => Measurement::plain(row.name, row.value as f64, row.unit),
    }
}
