//! The evidence of a cancelled settlement, as a file in the arbiter's data folder.

use std::path::{Path, PathBuf};

use florin_ledger::{PendingSettlement, Settlement};
use florin_protocol::{Report, Signed};
use serde::Serialize;

use crate::atomic_file::{self, FileError};

/// A settlement that an arbiter cancelled, and the reason. The ledger records only that it did.
#[derive(Clone, Debug, Serialize)]
pub struct CancellationRecord<'a> {
    /// The settlement as posted.
    #[serde(flatten)]
    pub pending: &'a PendingSettlement,
    /// The reason, in words.
    pub reason: &'a str,
    /// The coordinator's signed report: of the wrong round, or of the settlement's round.
    pub report: Option<&'a Signed<Report>>,
}

impl CancellationRecord<'_> {
    /// Writes `FOLDER/TASK/ROUND/cancellation-TIME.json`, before the settlement is cancelled. The
    /// time is that of its finality, so that a repeated call writes the same file. Returns the path.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn store(&self, folder: &Path) -> Result<PathBuf, FileError> {
        let Settlement { task, round, .. } = self.pending.settlement;
        let folder = folder.join(task.to_string()).join(round.to_string());
        let path = folder.join(format!("cancellation-{}.json", self.pending.final_at.0));
        let bytes = serde_json::to_vec_pretty(self)
            .map_err(|error| FileError::new("write", &path, error.into()))?;
        atomic_file::create_folder(&folder)?;
        atomic_file::write_atomically(&path, &bytes)?;
        Ok(path)
    }
}
