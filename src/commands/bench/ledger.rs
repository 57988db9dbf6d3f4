//! `florin bench ledger`: durable transfers, as the ledger itself measures them.

use std::time::Instant;

use anyhow::Context;

use super::Row;

/// Transfers that are measured.
const TRANSFERS: u64 = 200_000;

pub(super) fn run() -> anyhow::Result<Vec<Row>> {
    // Beside the build, not in a memory-backed temporary folder: durability is what is measured.
    let folder = tempfile::tempdir_in(".").context("the current folder cannot be written to")?;
    let begun = Instant::now();
    let rows = florin_ledger::bench::transfers(folder.path(), TRANSFERS, &|| {
        begun.elapsed().as_micros()
    })?;
    let shown = rows.into_iter().map(|row| match row.bar {
        Some(bar) => Row::at_least(row.name, row.value as f64, row.unit, bar as f64),
        None => Row::plain(row.name, row.value as f64, row.unit),
    });
    Ok(shown.collect())
}
