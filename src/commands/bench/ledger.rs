//! `florin bench ledger`: durable transfers, as the ledger itself measures them.
use super::Row;
pub(super) fn run() -> anyhow::Result<Vec<Row>> {
    anyhow::bail!("not joined yet")
}
