//! The interface of the places where executors run.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::atomic_file::FileError;

/// An executor to start.
#[derive(Clone, Copy, Debug)]
pub struct ExecutorStart<'a> {
    /// A name that no other executor has.
    pub name: &'a str,
    /// Its folder, with the file of its work.
    pub folder: &'a Path,
    /// The numbers of its devices on this machine; a batch system reads their count alone.
    pub devices: &'a [u32],
}

/// The state of an executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecutorState {
    /// It waits for devices, with the reason of the batch system.
    Waiting(String),
    /// It runs.
    Running,
    /// It has ended, with the end of its log.
    Ended(String),
}

/// An executor cannot be started, looked up or cancelled.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// A program of the backend is missing, or fails.
    #[error("{program}: {why}")]
    Program {
        /// The program.
        program: String,
        /// Its error.
        why: String,
    },
    /// A file of the executor.
    #[error(transparent)]
    File(#[from] FileError),
    /// The executor computed no segment.
    #[error("the executor ended without its segments [{code}]: {why}")]
    Failed {
        /// The stable code of its error.
        code: String,
        /// The error, or the end of its log.
        why: String,
    },
}

/// Where executors run: processes of this machine, or jobs of a batch system.
pub trait ExecutorBackend: fmt::Debug {
    /// Its name in events.
    fn name(&self) -> &'static str;

    /// Checks that executors can be started, before anything is deposited.
    ///
    /// # Errors
    /// [`ExecutorError::Program`].
    fn check(&mut self) -> Result<(), ExecutorError>;

    /// Starts an executor. Returns its handle, which finds it again after a restart of the daemon.
    ///
    /// # Errors
    /// [`ExecutorError`]; no executor runs then.
    fn start(&mut self, start: &ExecutorStart<'_>) -> Result<String, ExecutorError>;

    /// The state of an executor by its handle.
    ///
    /// # Errors
    /// [`ExecutorError`] if the state is not known now.
    fn state(&mut self, handle: &str, folder: &Path) -> Result<ExecutorState, ExecutorError>;

    /// Ends an executor. One that has ended is ignored.
    ///
    /// # Errors
    /// [`ExecutorError`] if it may still run.
    fn cancel(&mut self, handle: &str) -> Result<(), ExecutorError>;

    /// Ends an executor that was started, but whose handle is not known: the daemon was killed in between.
    ///
    /// # Errors
    /// As [`Self::cancel`].
    fn cancel_by_name(&mut self, name: &str) -> Result<(), ExecutorError>;

    /// Whether executors outlive the daemon.
    fn outlives_daemon(&self) -> bool;
}

/// The command of an executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorCommand {
    /// The program and its first arguments; the folder of the work follows.
    pub command: Vec<String>,
    /// Further arguments behind the folder.
    pub options: Vec<String>,
}

impl ExecutorCommand {
    /// The whole command for a folder.
    #[must_use]
    pub fn of(&self, folder: &Path) -> Vec<String> {
        let folder = folder.to_string_lossy().into_owned();
        let command = self.command.iter().cloned();
        command.chain([folder]).chain(self.options.iter().cloned()).collect()
    }
}

/// The variables that an executor inherits. Others, such as passwords of wallets, do not reach it.
pub(super) const INHERITED: [&str; 7] =
    ["PATH", "HOME", "LD_LIBRARY_PATH", "LIBTORCH", "TMPDIR", "SLURM_CONF", "ATEN_CPU_CAPABILITY"];

/// The file of an executor's log.
#[must_use]
pub fn executor_log(folder: &Path) -> PathBuf {
    folder.join("log")
}

/// Longest part of a log that is shown.
const LOG_CHARS_MAX: usize = 400;
/// Longest end of a log that is read, in bytes.
const LOG_BYTES_MAX: u64 = 4_096;

/// The end of an executor's log.
#[must_use]
pub fn executor_log_end(folder: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        use std::io::{Read as _, Seek as _, SeekFrom};
        let mut file = std::fs::File::open(executor_log(folder))?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES_MAX)))?;
        let mut bytes = Vec::new();
        file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim();
    let from = text.char_indices().rev().nth(LOG_CHARS_MAX - 1).map_or(0, |(at, _)| at);
    text.get(from..).unwrap_or_default().to_owned()
}
