//! Settings of the journal: when snapshots are written, and whether older records are retained.

use serde::Deserialize;

/// When a snapshot of the state is written, and whether the journal before it is retained.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JournalSettings {
    /// Events after which a snapshot is written.
    pub snapshot_events: u64,
    /// MiB of journal after which a snapshot is written, if that is reached first.
    pub snapshot_mib: u64,
    /// Whether the journal before the snapshots is retained.
    pub retain: bool,
}

impl Default for JournalSettings {
    fn default() -> Self {
        Self { snapshot_events: 100_000, snapshot_mib: 64, retain: true }
    }
}
