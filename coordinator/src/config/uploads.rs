//! Settings of unfinished uploads: how much space they may use, and for how long.

use std::time::Duration;

use serde::Deserialize;

use super::MIB;
use florin_store::uploads::Limits;

/// Limits of unfinished uploads.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UploadSettings {
    /// Maximum of all unfinished uploads, in MiB.
    pub disk_mib_max: u64,
    /// Maximum for one task, in MiB.
    pub task_mib_max: u64,
    /// Maximum for one sender, in MiB.
    pub sender_mib_max: u64,
    /// Disk space that uploads leave free for the journal and the ledger, in MiB.
    pub free_mib_min: u64,
    /// Milliseconds after which an interrupted upload is removed if its sender does not resume it.
    pub expire_ms: u64,
}

impl Default for UploadSettings {
    fn default() -> Self {
        Self {
            disk_mib_max: 64 * 1_024,
            task_mib_max: 16 * 1_024,
            sender_mib_max: 8 * 1_024,
            free_mib_min: 512,
            expire_ms: 24 * 3_600 * 1_000,
        }
    }
}

impl UploadSettings {
    /// The limits in bytes.
    pub(crate) const fn limits(&self) -> Limits {
        Limits {
            all: self.disk_mib_max.saturating_mul(MIB),
            task: self.task_mib_max.saturating_mul(MIB),
            sender: self.sender_mib_max.saturating_mul(MIB),
            free: self.free_mib_min.saturating_mul(MIB),
        }
    }

    /// Age at which an interrupted upload is removed if its sender does not resume it.
    pub(crate) const fn expiry(&self) -> Duration {
        Duration::from_millis(self.expire_ms)
    }
}
