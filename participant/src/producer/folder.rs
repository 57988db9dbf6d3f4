//! Rows of a growing folder: a producer adds Parquet files, each of which is read once.
//!
//! ```text
//! FOLDER/*.parquet      unread files; a producer waits while there are `unread_files_max`
//! FOLDER/florin.json    that limit, and the number of files that were read
//! FOLDER/consumed/      files that were read
//! FOLDER/refused/       files that do not fit the task
//! ```

use std::collections::{BTreeMap, BinaryHeap};
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use florin_learning::DataSource;
use florin_learning::data::{FILE_BYTES_MAX, LoadError, TableParts, table_parts};
use serde_json::json;

use super::limits::{FILES_LISTED_MAX, FILES_NOT_READY_MAX, FILES_PER_LOOK_MAX, FILES_UNREAD_MAX};
use super::news::{RefusalCode, RowRefusal};
use super::row_reader::{ReadStop, RowReader, is_not_ready};
use super::{ProducerError, file_name};

/// Time between two looks at a folder without new files.
const LOOK: Duration = Duration::from_millis(100);
const CONSUMED: &str = "consumed";
const REFUSED: &str = "refused";
const STATE: &str = "florin.json";
const STATE_BESIDE: &str = ".florin.json";

/// A file that was not readable, by its size and its last change.
type FileVersion = (u64, Option<SystemTime>);

/// Reads the files of a folder.
#[derive(Debug)]
pub(super) struct FolderReader {
    folder: PathBuf,
    rows: RowReader,
    not_ready: BTreeMap<OsString, FileVersion>,
    files_read: u64,
}

impl FolderReader {
    /// A folder that exists, and in which files can be moved.
    pub(super) fn open(folder: &Path, rows: RowReader) -> Result<Self, ProducerError> {
        let failed = |source| ProducerError::Folder { path: folder.to_owned(), source };
        let folder = fs::canonicalize(folder).map_err(failed)?;
        for name in [CONSUMED, REFUSED] {
            let path = folder.join(name);
            let made = match fs::create_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_folder(&path),
                other => other,
            };
            made.map_err(|source| ProducerError::Folder { path, source })?;
        }
        let reader = Self { folder, rows, not_ready: BTreeMap::new(), files_read: 0 };
        reader.publish().map_err(failed)?;
        Ok(reader)
    }

    /// Reads files until the feed is closed.
    pub(super) fn run(mut self) {
        let exchange = std::sync::Arc::clone(&self.rows.exchange);
        while !exchange.is_closed() {
            // A folder that cannot be listed now may be there again later.
            let names = self.unread().unwrap_or_default();
            let before = self.files_read;
            for name in names {
                if exchange.is_closed() {
                    return;
                }
                if let Err(error) = self.read(&name) {
                    exchange.fail(error);
                    return;
                }
            }
            match self.files_read == before {
                true => exchange.pause(LOOK),
                // The limit holds without the numbers in the file.
                false => drop(self.publish()),
            }
        }
    }

    /// The unread files, the first names first.
    fn unread(&self) -> io::Result<Vec<OsString>> {
        let mut first = BinaryHeap::new();
        for entry in fs::read_dir(&self.folder)?.take(FILES_LISTED_MAX) {
            let entry = entry?;
            let name = entry.file_name();
            // Neither links nor hidden files, which a producer is about to rename.
            if !is_unread(&name) || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
                continue;
            }
            if let Some(known) = self.not_ready.get(&name) {
                let is_same = |found: Metadata| version(&found) == *known;
                if entry.metadata().is_ok_and(is_same) {
                    continue;
                }
            }
            first.push(name);
            if first.len() > FILES_PER_LOOK_MAX {
                first.pop();
            }
        }
        Ok(first.into_sorted_vec())
    }

    /// Reads a file, or leaves it for later.
    fn read(&mut self, name: &OsString) -> Result<(), ProducerError> {
        let path = self.folder.join(name);
        let Ok(found) = fs::symlink_metadata(&path) else { return Ok(()) };
        if !found.is_file() {
            return Ok(());
        }
        if found.len() > FILE_BYTES_MAX {
            let message = format!("{}: more than {FILE_BYTES_MAX} bytes", file_name(&path));
            return self.refuse(&path, RefusalCode::FileTooLarge, message);
        }
        let source = DataSource::Parquet { file: path.clone(), label: self.rows.label.clone() };
        match table_parts(&source, None) {
            Ok(parts) => {
                self.not_ready.remove(name);
                // Its name is free before its rows are read: it is read once.
                let place = self.set_aside(&path, CONSUMED)?;
                self.rows.exchange.count_source();
                self.files_read = self.files_read.saturating_add(1);
                self.read_parts(&place, parts)
            }
            Err(error @ LoadError::NoParquet { .. }) => {
                Err(ProducerError::Unsupported(Box::new(error)))
            }
            Err(error) if is_not_ready(&error) => self.leave(name, &found, &error),
            Err(error) => self.refuse(&path, RefusalCode::SchemaMismatch, error.to_string()),
        }
    }

    fn read_parts(&self, path: &Path, mut parts: Box<dyn TableParts>) -> Result<(), ProducerError> {
        loop {
            let part = match parts.next_part(self.rows.batch_rows()) {
                Ok(Some(part)) => part,
                Ok(None) => return Ok(()),
                Err(error) => {
                    return self.refuse(path, RefusalCode::FileDamaged, error.to_string());
                }
            };
            match self.rows.table(&file_name(path), &part) {
                Ok(()) => {}
                Err(ReadStop::Closed) => return Ok(()),
                Err(ReadStop::Refused(RowRefusal { code, message })) => {
                    return self.refuse(path, code, message);
                }
            }
        }
    }

    /// Leaves a file that is not whole: it is read when it changes.
    fn leave(
        &mut self,
        name: &OsString,
        found: &Metadata,
        error: &LoadError,
    ) -> Result<(), ProducerError> {
        // Files that are gone make room.
        let (folder, limit) = (&self.folder, FILES_NOT_READY_MAX);
        if self.not_ready.len() >= limit {
            self.not_ready.retain(|name, _| folder.join(name).exists());
        }
        self.not_ready.insert(name.clone(), version(found));
        if self.not_ready.len() > limit {
            return Err(ProducerError::NotReady { path: folder.clone() });
        }
        let message = format!("{error}; it is read when it changes");
        self.rows.exchange.note(RowRefusal { code: RefusalCode::FileNotReady, message });
        Ok(())
    }

    fn refuse(&self, path: &Path, code: RefusalCode, message: String) -> Result<(), ProducerError> {
        self.set_aside(path, REFUSED)?;
        self.rows.exchange.refuse(RowRefusal { code, message });
        Ok(())
    }

    /// Moves a file into a subfolder; its name there is a new one.
    fn set_aside(&self, path: &Path, subfolder: &str) -> Result<PathBuf, ProducerError> {
        let name = file_name(path);
        let folder = self.folder.join(subfolder);
        let mut to = folder.join(&name);
        if fs::symlink_metadata(&to).is_ok() {
            let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
            to = folder.join(format!("{since_1970}-{name}"));
        }
        let failed = |source| ProducerError::Folder { path: path.to_owned(), source };
        fs::rename(path, &to).map_err(failed)?;
        Ok(to)
    }

    /// Writes the limit for the producer.
    fn publish(&self) -> io::Result<()> {
        let state = json!({
            "unread_files_max": FILES_UNREAD_MAX,
            "read_files": self.files_read,
        });
        let beside = self.folder.join(STATE_BESIDE);
        fs::write(&beside, format!("{state}\n"))?;
        fs::rename(beside, self.folder.join(STATE))
    }
}

/// Refuses a link or a file in the place of a subfolder.
fn check_folder(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path)?.is_dir() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::AlreadyExists, "is no folder")),
    }
}

/// Whether a name is that of a whole file.
fn is_unread(name: &OsString) -> bool {
    let name = name.to_string_lossy();
    name.ends_with(".parquet") && !name.starts_with(['.', '_'])
}

fn version(found: &Metadata) -> FileVersion {
    (found.len(), found.modified().ok())
}
