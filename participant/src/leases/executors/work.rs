//! The folder of an executor: its work, the states that it computes, and its result.
//!
//! ```text
//! work.json              order, job, what to compute
//! blob-<digest>          model, parameters, rows
//! state-<s>-<digest>…    the start, and each state that the executor adds
//! times                  devices and microseconds of a step, a line for each segment
//! stop                   asks the executor to end behind its segment
//! handle                 the handle of the executor
//! result.json            the result, once it has ended by itself
//! ```

use std::path::{Path, PathBuf};
use std::{fs, io};

use florin_compute::{ComputeJob, ComputeOrder};
use florin_protocol::Digest;
use rand::TryRng;
use rand::rngs::SysRng;
use serde::{Deserialize, Serialize};

use super::EXECUTOR_START_MS;
use crate::atomic_file::{self, FileError};
use crate::leases::store::OrderFolder;

/// The version of this program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Longest file with a work or a result, in bytes.
const WORK_BYTES_MAX: u64 = 1 << 20;
/// Longest file with times, in bytes.
const TIMES_BYTES_MAX: u64 = 16 << 20;
/// Longest handle, in bytes.
const HANDLE_BYTES_MAX: u64 = 256;

/// The kind of work of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum WorkKind {
    /// The time of a step, with rows of zeros.
    Measure,
    /// All segments behind the last state in the folder.
    Segments,
}

/// The work of an executor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ExecutorWork {
    pub(crate) order: ComputeOrder,
    pub(crate) job: ComputeJob,
    #[serde(flatten)]
    pub(crate) kind: WorkKind,
    /// The version of the daemon: an executor of another one could have other bits.
    pub(crate) version: String,
    /// A random text by which the ranks of this executor find each other, and no other process.
    pub(crate) token: String,
    /// The predicted time until the first step, in milliseconds: a later daemon expects it, too.
    #[serde(default = "default_start_ms")]
    pub(crate) start_ms: u64,
}

const fn default_start_ms() -> u64 {
    EXECUTOR_START_MS
}

impl ExecutorWork {
    /// A work of this program.
    ///
    /// # Errors
    /// [`FileError`] if the operating system provides no random bytes.
    pub(crate) fn new(
        order: ComputeOrder,
        job: ComputeJob,
        kind: WorkKind,
        start_ms: u64,
    ) -> Result<Self, FileError> {
        let mut token = [0; 32];
        SysRng.try_fill_bytes(&mut token).map_err(|error| {
            let source = Path::new("the random bytes of the operating system");
            FileError::new("read", source, io::Error::other(error.to_string()))
        })?;
        let (token, version) = (Digest(token).to_string(), VERSION.to_owned());
        Ok(Self { order, job, kind, version, token, start_ms })
    }
}

/// The result of an executor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExecutorResult {
    /// The measured microseconds of a step.
    #[serde(default)]
    pub(crate) step_us: Option<u64>,
    /// Code and text of an error.
    #[serde(default)]
    pub(crate) error: Option<(String, String)>,
}

/// The name of a file with a blob.
pub(crate) fn blob_name(digest: Digest) -> String {
    format!("blob-{digest}")
}

/// The folder of an executor.
#[derive(Clone, Debug)]
pub(crate) struct WorkFolder {
    path: PathBuf,
}

impl WorkFolder {
    pub(crate) const fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The states in the folder.
    pub(crate) fn states(&self) -> OrderFolder {
        OrderFolder::at(self.path.clone())
    }

    /// Writes the work, behind all blobs and the start.
    pub(crate) fn write_work(&self, work: &ExecutorWork) -> Result<(), FileError> {
        self.write_json("work.json", work)
    }

    pub(crate) fn work(&self) -> Result<Option<ExecutorWork>, FileError> {
        self.read_json("work.json")
    }

    pub(crate) fn write_result(&self, result: &ExecutorResult) -> Result<(), FileError> {
        self.write_json("result.json", result)
    }

    pub(crate) fn result(&self) -> Result<Option<ExecutorResult>, FileError> {
        self.read_json("result.json")
    }

    /// Links a file with a blob, or copies it to another file system.
    pub(crate) fn link_blob(&self, digest: Digest, from: &Path) -> Result<(), FileError> {
        atomic_file::create_folder(&self.path)?;
        let path = self.path.join(blob_name(digest));
        let linked = fs::hard_link(from, &path).or_else(|_| fs::copy(from, &path).map(drop));
        linked.map_err(|error| FileError::new("write", &path, error))
    }

    pub(crate) fn blob(&self, digest: Digest, limit: u64) -> Result<Vec<u8>, FileError> {
        let path = self.path.join(blob_name(digest));
        let missing = || FileError::new("read", &path, io::ErrorKind::NotFound.into());
        atomic_file::read_limited(&path, limit)?.ok_or_else(missing)
    }

    pub(crate) fn write_handle(&self, handle: &str) -> Result<(), FileError> {
        self.write("handle", handle.as_bytes())
    }

    pub(crate) fn handle(&self) -> Result<Option<String>, FileError> {
        let bytes = atomic_file::read_limited(&self.path.join("handle"), HANDLE_BYTES_MAX)?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Asks the executor to end behind its segment.
    pub(crate) fn ask_to_stop(&self) -> Result<(), FileError> {
        self.write("stop", &[])
    }

    pub(crate) fn is_asked_to_stop(&self) -> bool {
        self.path.join("stop").exists()
    }

    /// Adds the time of a segment on a number of devices.
    pub(crate) fn add_time(&self, devices: u32, step_us: u64) -> Result<(), FileError> {
        use std::io::Write as _;
        let path = self.path.join("times");
        let file = fs::OpenOptions::new().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| writeln!(file, "{devices} {step_us}"));
        written.map_err(|error| FileError::new("write", &path, error))
    }

    /// The times of segments: devices, and microseconds of a step. A line that was not written whole is left out.
    pub(crate) fn times(&self) -> Vec<(u32, u64)> {
        let bytes = atomic_file::read_limited(&self.path.join("times"), TIMES_BYTES_MAX);
        let bytes = bytes.ok().flatten().unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let parse = |line: &str| {
            let (devices, us) = line.split_once(' ')?;
            Some((devices.parse().ok()?, us.parse().ok().filter(|us| *us > 0)?))
        };
        whole.lines().filter_map(parse).collect()
    }

    /// Removes the folder with all its files.
    pub(crate) fn remove(&self) -> Result<(), FileError> {
        self.states().remove()
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), FileError> {
        atomic_file::create_folder(&self.path)?;
        atomic_file::write_atomically(&self.path.join(name), bytes)
    }

    fn write_json(&self, name: &str, value: &impl Serialize) -> Result<(), FileError> {
        let failed = |error: serde_json::Error| FileError::new("write", &self.path, error.into());
        self.write(name, &serde_json::to_vec(value).map_err(failed)?)
    }

    fn read_json<T: serde::de::DeserializeOwned>(
        &self,
        name: &str,
    ) -> Result<Option<T>, FileError> {
        let path = self.path.join(name);
        let bytes = atomic_file::read_limited(&path, WORK_BYTES_MAX)?;
        let read = bytes.map(|bytes| serde_json::from_slice(&bytes)).transpose();
        read.map_err(|error| FileError::new("read", &path, error.into()))
    }
}
