//! The data folder of one participation: the files that a restart needs.
//!
//! ```text
//! FOLDER/guard                                  signatures (see `guard`)
//! FOLDER/privacy                                private trainings of all tasks (see `privacy`)
//! FOLDER/blobs/DIGEST                           graphs of tasks, their frozen weights, tokenizers
//! FOLDER/TASK/bond.json                         all deposits of bond, less what came back
//! FOLDER/TASK/ROUND/update.safetensors          the update, until its round is reported, or while a
//!                                               later round may still accept it
//! FOLDER/TASK/ROUND/late.json                   where a late update was trained
//! FOLDER/TASK/ROUND/residual.safetensors        the residual of the update (top_k), until the next
//!                                               round that changes the model is reported
//! FOLDER/TASK/ROUND/rows.json                   the number of rows of an update that was trained on a
//!                                               sample of a producer's rows
//! FOLDER/TASK/ROUND/receipt.json                the coordinator's receipt: evidence, never deleted
//! FOLDER/TASK/ROUND/report.json                 the signed report: evidence, never deleted
//! FOLDER/TASK/ROUND/disputed_report.json        a signed report that raised an alarm: the same
//! ```

use std::path::{Path, PathBuf};

use florin_protocol::{
    Amount, Blob, Digest, Report, RoundNumber, Signed, TaskId, UpdateReceipt, UploadReceipt,
    blob_digest,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::AgentError;
use super::late::LateUpdate;
use super::producing::SampledRows;
use crate::atomic_file::{self, FileError};
use crate::client::{Client, JSON_BYTES_MAX};
use crate::deposits::DepositRecord;

const BLOBS: &str = "blobs";
const UPDATE: &str = "update.safetensors";
const LATE: &str = "late.json";
const RESIDUAL: &str = "residual.safetensors";
const ROWS: &str = "rows.json";
const REPORT: &str = "report.json";
const DISPUTED_REPORT: &str = "disputed_report.json";

/// A blob of a task from a data folder, or from the market, after which the folder has it.
///
/// # Errors
/// [`AgentError::Client`] or [`AgentError::File`].
pub fn task_blob(folder: &Path, client: &Client, blob: Blob) -> Result<Vec<u8>, AgentError> {
    let files = TaskFolder { folder: folder.to_owned(), blobs: folder.join(BLOBS) };
    if let Some(stored) = files.blob(blob)? {
        return Ok(stored);
    }
    let fetched = client.blob(blob.digest, blob.bytes)?;
    files.write_blob(blob.digest, &fetched)?;
    Ok(fetched)
}

/// Files of one task.
#[derive(Debug)]
pub(super) struct TaskFolder {
    folder: PathBuf,
    blobs: PathBuf,
}

impl TaskFolder {
    pub(super) fn new(folder: &Path, task: TaskId) -> Self {
        Self { folder: folder.join(task.to_string()), blobs: folder.join(BLOBS) }
    }

    /// The record of the bond's deposits.
    pub(super) fn bond_record(&self) -> DepositRecord {
        DepositRecord::new(self.folder.join("bond.json"))
    }

    /// Whether an earlier run stored files of the task.
    pub(super) fn exists(&self) -> bool {
        self.folder.exists()
    }

    /// A blob of a task, if its bytes are on disk.
    pub(super) fn blob(&self, blob: Blob) -> Result<Option<Vec<u8>>, FileError> {
        let stored = atomic_file::read_limited(&self.blob_path(blob.digest), blob.bytes)?;
        Ok(stored.filter(|stored| blob_digest(stored) == blob.digest))
    }

    pub(super) fn write_blob(&self, digest: Digest, bytes: &[u8]) -> Result<(), FileError> {
        let path = self.blob_path(digest);
        path.parent().map_or(Ok(()), atomic_file::create_folder)?;
        atomic_file::write_atomically(&path, bytes)
    }

    fn blob_path(&self, digest: Digest) -> PathBuf {
        self.blobs.join(digest.to_string())
    }

    fn path(&self, round: RoundNumber, name: &str) -> PathBuf {
        self.folder.join(round.to_string()).join(name)
    }

    /// The update of a round, if it is still on disk.
    pub(super) fn update(
        &self,
        round: RoundNumber,
        limit: u64,
    ) -> Result<Option<Vec<u8>>, FileError> {
        atomic_file::read_limited(&self.path(round, UPDATE), limit)
    }

    pub(super) fn write_update(&self, round: RoundNumber, bytes: &[u8]) -> Result<(), FileError> {
        self.write(round, UPDATE, bytes)
    }

    /// The origin of a round's update, if it was trained in an earlier round.
    pub(super) fn late(&self, round: RoundNumber) -> Result<Option<LateUpdate>, FileError> {
        self.read_json(round, LATE)
    }

    /// The round in which the update of `round` was trained.
    pub(super) fn trained_in(&self, round: RoundNumber) -> Result<RoundNumber, FileError> {
        Ok(self.late(round)?.map_or(round, |late| late.round))
    }

    /// Removes the origin: the round has an update of its own.
    pub(super) fn remove_late(&self, round: RoundNumber) -> Result<(), FileError> {
        self.remove(round, LATE)
    }

    pub(super) fn write_late(
        &self,
        round: RoundNumber,
        late: &LateUpdate,
    ) -> Result<(), FileError> {
        self.write_json(round, LATE, late)
    }

    /// The number of rows of a round's update, if they were a sample.
    pub(super) fn rows(&self, round: RoundNumber) -> Result<Option<SampledRows>, FileError> {
        self.read_json(round, ROWS)
    }

    pub(super) fn write_rows(
        &self,
        round: RoundNumber,
        rows: &SampledRows,
    ) -> Result<(), FileError> {
        self.write_json(round, ROWS, rows)
    }

    /// The residual of a round's update, encoded as parameters.
    pub(super) fn residual(
        &self,
        round: RoundNumber,
        limit: u64,
    ) -> Result<Option<Vec<u8>>, FileError> {
        atomic_file::read_limited(&self.path(round, RESIDUAL), limit)
    }

    pub(super) fn write_residual(&self, round: RoundNumber, bytes: &[u8]) -> Result<(), FileError> {
        self.write(round, RESIDUAL, bytes)
    }

    /// Removes a residual that no later update adds.
    pub(super) fn remove_residual(&self, round: RoundNumber) -> Result<(), FileError> {
        self.remove(round, RESIDUAL)
    }

    /// Removes the update of a reported round: no later step needs it.
    pub(super) fn remove_update(&self, round: RoundNumber) -> Result<(), FileError> {
        self.remove(round, UPDATE)
    }

    fn remove(&self, round: RoundNumber, name: &str) -> Result<(), FileError> {
        let path = self.path(round, name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(FileError::new("remove", &path, error))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn receipt(&self, round: RoundNumber) -> Result<Option<UploadReceipt>, FileError> {
        self.read_json(round, "receipt.json")
    }

    pub(super) fn write_receipt(
        &self,
        round: RoundNumber,
        receipt: &UploadReceipt,
    ) -> Result<(), FileError> {
        self.write_json(round, "receipt.json", receipt)
    }

    pub(super) fn report(&self, round: RoundNumber) -> Result<Option<Signed<Report>>, FileError> {
        self.read_json(round, REPORT)
    }

    pub(super) fn write_report(
        &self,
        round: RoundNumber,
        report: &Signed<Report>,
    ) -> Result<(), FileError> {
        self.write_json(round, REPORT, report)
    }

    /// Keeps a report that raised an alarm: signed evidence, which is not read again.
    pub(super) fn write_disputed_report(
        &self,
        round: RoundNumber,
        report: &Signed<Report>,
    ) -> Result<(), FileError> {
        self.write_json(round, DISPUTED_REPORT, report)
    }

    /// All receipts of the task on disk, ascending by round.
    pub(super) fn upload_receipts(&self) -> Result<Vec<UploadReceipt>, FileError> {
        let mut rounds: Vec<u32> = entries_named_by(&self.folder)?;
        rounds.sort_unstable();
        let receipts = rounds.into_iter().map(|round| self.receipt(RoundNumber(round)));
        Ok(receipts.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// All reports of the task on disk, the latest first; disputed ones too.
    fn reports(&self) -> Result<Vec<Report>, FileError> {
        let mut rounds: Vec<u32> = entries_named_by(&self.folder)?;
        rounds.sort_unstable_by(|a, b| b.cmp(a));
        let mut reports = Vec::new();
        for round in rounds.into_iter().map(RoundNumber) {
            for name in [REPORT, DISPUTED_REPORT] {
                let report: Option<Signed<Report>> = self.read_json(round, name)?;
                reports.extend(report.map(|report| report.body));
            }
        }
        Ok(reports)
    }

    fn write(&self, round: RoundNumber, name: &str, bytes: &[u8]) -> Result<(), FileError> {
        let path = self.path(round, name);
        atomic_file::create_folder(path.parent().unwrap_or(&self.folder))?;
        atomic_file::write_atomically(&path, bytes)
    }

    fn write_json<T: Serialize>(
        &self,
        round: RoundNumber,
        name: &str,
        value: &T,
    ) -> Result<(), FileError> {
        let bytes = serde_json::to_vec_pretty(value)
            .map_err(|error| FileError::new("write", &self.path(round, name), error.into()))?;
        self.write(round, name, &bytes)
    }

    fn read_json<T: DeserializeOwned>(
        &self,
        round: RoundNumber,
        name: &str,
    ) -> Result<Option<T>, FileError> {
        let path = self.path(round, name);
        let Some(bytes) = atomic_file::read_limited(&path, JSON_BYTES_MAX)? else {
            return Ok(None);
        };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| FileError::new("read", &path, error.into()))
    }
}

/// The coordinator's receipts that a participation in `task` stored in its data folder, ascending
/// by round. [`crate::audit_task`] checks reports against them.
///
/// # Errors
/// [`FileError`], also if the folder has no files of this task.
pub fn stored_receipts(
    folder: &Path,
    task: TaskId,
) -> Result<Vec<Signed<UpdateReceipt>>, FileError> {
    let receipts = TaskFolder::new(folder, task).upload_receipts()?;
    Ok(receipts.into_iter().map(|receipt| receipt.receipt).collect())
}

/// The reports that a participation in `task` stored in its data folder, the latest first. Each has
/// the account totals of all accounts, so that a claim needs no proof of the coordinator.
///
/// # Errors
/// As [`stored_receipts`].
pub(super) fn stored_reports(folder: &Path, task: TaskId) -> Result<Vec<Report>, FileError> {
    TaskFolder::new(folder, task).reports()
}

/// All deposits of a data folder in a task, less what came back: the bond, and all that was taken.
pub(crate) fn recorded_deposit(folder: &Path, task: TaskId) -> Result<Amount, FileError> {
    TaskFolder::new(folder, task).bond_record().outstanding()
}

/// The tasks of which a data folder has files.
///
/// # Errors
/// [`FileError`].
pub fn stored_tasks(folder: &Path) -> Result<Vec<TaskId>, FileError> {
    entries_named_by(folder)
}

/// The names in a folder that have the form of a `T`.
fn entries_named_by<T: std::str::FromStr>(folder: &Path) -> Result<Vec<T>, FileError> {
    let failed = |source| FileError::new("read", folder, source);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        found.extend(name.to_str().and_then(|name| name.parse::<T>().ok()));
    }
    Ok(found)
}
