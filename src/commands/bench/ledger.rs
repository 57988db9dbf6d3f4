//! `florin bench ledger`: durable transfers, as the ledger itself measures them.

use std::time::Instant;

use anyhow::Context;
use florin_ledger::bench::{self, transfers};

use super::Row;

/// Transfers in a run.
const TRANSFERS: u64 = 300_000;

pub(super) fn run() -> anyhow::Result<Vec<Row>> {
    // In the folder where it is called: a temporary one may lie in memory, where nothing is durable.
    let folder = tempfile::Builder::new()
        .prefix("florin-bench-")
        .tempdir_in(".")
        .context("this folder must be writable: the ledger is measured on its disk")?;
    let begun = Instant::now();
    let rows = transfers(folder.path(), TRANSFERS, &|| begun.elapsed().as_micros())?;
    Ok(rows.into_iter().map(row).collect())
}

#[expect(clippy::cast_precision_loss, reason = "rates, for people")]
fn row(row: bench::Row) -> Row {
    match row.bar {
        Some(bar) => Row::at_least(row.name, row.value as f64, row.unit, bar as f64),
        None => Row::plain(row.name, row.value as f64, row.unit),
    }
}
