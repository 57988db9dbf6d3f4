//! Settings of what is on disk: how often the journal's state is kept, and whether its old part stays.

use serde::Deserialize;

/// When a snapshot of the state is written, and what becomes of the journal before it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Journal {
    /// Events after which one is written.
    pub snapshot_events: u64,
    /// MiB of journal after which one is written, if that comes first.
    pub snapshot_mib: u64,
    /// Whether the journal before it is kept.
    pub keep: bool,
}

impl Default for Journal {
    fn default() -> Self {
        Self { snapshot_events: 100_000, snapshot_mib: 64, keep: true }
    }
}
