//! What uploads that are not whole yet may hold, and how long.

use std::time::Duration;

use serde::Deserialize;

use super::MIB;
use florin_store::partial::Limits;

/// How much unfinished uploads may hold, and how long.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Uploads {
    /// All together, in MiB.
    pub disk_mib_max: u64,
    /// Those of one task, in MiB.
    pub task_mib_max: u64,
    /// Those of one sender, in MiB.
    pub sender_mib_max: u64,
    /// What uploads leave free on the disk, in MiB: journal and ledger need it.
    pub free_mib_min: u64,
    /// Milliseconds that one is kept whose sender does not come back.
    pub partial_ms_max: u64,
}

impl Default for Uploads {
    fn default() -> Self {
        Self {
            disk_mib_max: 64 * 1_024,
            task_mib_max: 16 * 1_024,
            sender_mib_max: 8 * 1_024,
            free_mib_min: 512,
            partial_ms_max: 24 * 3_600 * 1_000,
        }
    }
}

impl Uploads {
    /// The same in bytes.
    pub(crate) const fn limits(&self) -> Limits {
        Limits {
            all: self.disk_mib_max.saturating_mul(MIB),
            task: self.task_mib_max.saturating_mul(MIB),
            sender: self.sender_mib_max.saturating_mul(MIB),
            free: self.free_mib_min.saturating_mul(MIB),
        }
    }

    /// How long one is kept whose sender does not come back.
    pub(crate) const fn age_max(&self) -> Duration {
        Duration::from_millis(self.partial_ms_max)
    }
}
