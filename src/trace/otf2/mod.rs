//! Writes traces as an OTF2 archive, by the reference library: one location group per process, one
//! location per thread, request or task, a region per kind of work, and the messages between them.

mod library;
mod regions;

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

use super::analysis::read::{ProcessTrace, TraceReadError};
pub(crate) use library::Library;
use library::{Archive, LocationDefinition};
use regions::{LocationEvents, StringTable, add_messages, locations};

/// Why no archive was written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Otf2Error {
    /// The library is not installed, or lacks a function.
    #[error(
        "the OTF2 library is not installed ({0}): install otf2-tools, or name its file in FLORIN_OTF2"
    )]
    NoLibrary(String),
    /// The file of `FLORIN_OTF2` cannot be loaded.
    #[error(
        "FLORIN_OTF2 = {file} is no OTF2 library ({why}): name the file of the library, version 3, or \
         unset the variable"
    )]
    WrongLibrary {
        /// The file.
        file: String,
        /// The reason of the system's loader.
        why: String,
    },
    /// The library refused a call.
    #[error("the OTF2 library failed in {call}: {why}")]
    Call {
        /// The function.
        call: &'static str,
        /// Its description of the error.
        why: String,
    },
    /// The folder exists, or cannot be created.
    #[error("{path}: {source}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The trace cannot be read.
    #[error(transparent)]
    Read(#[from] TraceReadError),
    /// The file is too large for a conversion at exit.
    #[error("the file has more than {limit} bytes: use `florin trace export`")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
}

impl Otf2Error {
    /// The stable code.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::NoLibrary(_) | Self::WrongLibrary { .. } => "OTF2_MISSING",
            Self::Call { .. } => "OTF2_FAILED",
            Self::Folder { .. } => "TRACE_NOT_WRITTEN",
            Self::Read(error) => error.code(),
            Self::TooLarge { .. } => "TRACE_TOO_LARGE",
        }
    }
}

/// The number of events of an archive of one process.
pub(super) fn event_count(trace: &ProcessTrace) -> usize {
    locations(trace).iter().map(|location| location.events.len()).sum()
}

/// Writes an archive into a new folder; its anchor file is `traces.otf2`. A failure leaves the folder
/// as it was, so that a retry is possible.
///
/// # Errors
/// [`Otf2Error`].
pub(crate) fn write(
    library: &Library,
    traces: &[ProcessTrace],
    out: &Path,
) -> Result<(), Otf2Error> {
    let folder = |source| Otf2Error::Folder { path: out.to_owned(), source };
    let is_empty = std::fs::read_dir(out).map_or(true, |mut entries| entries.next().is_none());
    if !is_empty {
        return Err(folder(io::Error::from(io::ErrorKind::AlreadyExists)));
    }
    in_folder(out, |out| write_into(library, traces, out))
}

/// Creates a folder and writes into it. A failure removes all that was written.
fn in_folder(
    out: &Path,
    write: impl FnOnce(&Path) -> Result<(), Otf2Error>,
) -> Result<(), Otf2Error> {
    let is_new = !out.exists();
    std::fs::create_dir_all(out)
        .map_err(|source| Otf2Error::Folder { path: out.to_owned(), source })?;
    let written = write(out);
    if written.is_err() {
        remove_partial(out, is_new);
    }
    written
}

/// Removes an archive that is not complete. The error that led here is reported, not one of this.
fn remove_partial(out: &Path, is_new: bool) {
    for entry in std::fs::read_dir(out).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let _ = match is_folder {
            true => std::fs::remove_dir_all(&path),
            false => std::fs::remove_file(&path),
        };
    }
    if is_new {
        let _ = std::fs::remove_dir(out);
    }
}

fn write_into(library: &Library, traces: &[ProcessTrace], out: &Path) -> Result<(), Otf2Error> {
    let folder = |source| Otf2Error::Folder { path: out.to_owned(), source };
    let path = out.to_str().and_then(|path| CString::new(path).ok());
    let path = path.ok_or_else(|| folder(io::Error::from(io::ErrorKind::InvalidInput)))?;
    let mut strings = StringTable::default();
    let archive = Archive::create(library, &path)?;
    let mut definitions = Vec::new();
    let mut all: Vec<Vec<LocationEvents>> = traces.iter().map(locations).collect();
    add_messages(traces, &mut all);
    let events = || all.iter().flatten().flat_map(|location| &location.events);
    let first = events().map(|event| event.at).min().unwrap_or(0);
    let last = events().map(|event| event.at).max().unwrap_or(0);
    for (group, process) in all.iter().enumerate() {
        for location in process {
            let id = definitions.len() as u64;
            archive.write_events(id, &location.events, &mut strings)?;
            definitions.push(LocationDefinition {
                name: strings.id(&location.name),
                group: u32::try_from(group).unwrap_or(u32::MAX),
                events: location.events.len() as u64,
            });
        }
    }
    let groups: Vec<u32> =
        traces.iter().map(|trace| strings.id(trace.file.trim_end_matches(".json"))).collect();
    archive.write_definitions((first, last), &strings, &groups, &definitions)?;
    archive.close()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_archive_leaves_no_folder_and_can_be_written_again() {
        let parent = tempfile::tempdir().unwrap();
        let (new, empty) = (parent.path().join("new"), parent.path().join("empty"));
        std::fs::create_dir(&empty).unwrap();
        let fail = |out: &Path| {
            std::fs::write(out.join("traces.def"), "part").unwrap();
            std::fs::create_dir(out.join("traces")).unwrap();
            std::fs::write(out.join("traces").join("0.evt"), "part").unwrap();
            Err(Otf2Error::Call { call: "OTF2_EvtWriter", why: "no space".to_owned() })
        };
        for out in [&new, &empty] {
            assert_eq!(in_folder(out, fail).unwrap_err().code(), "OTF2_FAILED");
        }
        assert!(!new.exists() && empty.read_dir().unwrap().next().is_none());
        let write = |out: &Path| {
            std::fs::write(out.join("traces.otf2"), "whole").unwrap();
            Ok(())
        };
        in_folder(&new, write).unwrap();
        assert!(new.join("traces.otf2").exists());
    }
}
