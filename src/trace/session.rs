//! The trace of one command, from its start to its exit.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::layer::TraceLayer;
use super::otf2::{self, Otf2Error};
use super::record::Process;
use crate::cli::Command;
use crate::commands::wallet;
use crate::failure::Failure;
use crate::log::LogLayer;

/// Largest file that is also written in OTF2 at exit; `florin trace export` writes larger ones.
const EXPORT_BYTES_MAX: u64 = 64 << 20;

/// A trace in progress.
pub(crate) struct TraceSession(TraceLayer);

impl TraceSession {
    /// Starts the trace of a command with `--trace`.
    ///
    /// # Errors
    /// The wallet or the folder cannot be used.
    pub(crate) fn start(command: &Command) -> anyhow::Result<Option<Self>> {
        let (role, folder, key_file) = match command {
            Command::Coordinate(it) => ("coordinator", &it.trace, &it.wallet.wallet),
            Command::Participate(it) => ("participant", &it.trace, &it.wallet.wallet),
            Command::Provide(it) => ("provider", &it.trace, &it.wallet.wallet),
            _ => return Ok(None),
        };
        let Some(folder) = &folder.trace else { return Ok(None) };
        let id = wallet::keystore_address(key_file)?.short();
        let layer = TraceLayer::create(folder, &Process { role, id });
        layer
            .map(|layer| Some(Self(layer)))
            .map_err(|error| trace_not_written(folder, &error).into())
    }

    /// The layer of the log.
    pub(crate) fn layer(&self) -> LogLayer {
        self.0.layer()
    }

    /// Closes the file and writes it in OTF2, where its library is installed. A failure changes no
    /// exit code: the rounds of the command are done.
    pub(crate) fn finish(self) {
        let path = self.0.path();
        if let Err(error) = self.0.finish() {
            anstream::eprintln!("The trace {} is incomplete: {error}", path.display());
            return;
        }
        export(path);
    }
}

/// Writes a complete file in OTF2 as well, or prints the reason why not.
pub(super) fn export(path: &Path) {
    if let Err(error) = export_file(path) {
        anstream::eprintln!("The trace is in Chrome's format only: {error}");
    }
}

/// Writes one file in OTF2, into a folder of its name.
fn export_file(path: &Path) -> Result<(), Otf2Error> {
    let size = std::fs::metadata(path).map_or(u64::MAX, |metadata| metadata.len());
    if size > EXPORT_BYTES_MAX {
        return Err(Otf2Error::TooLarge { limit: EXPORT_BYTES_MAX });
    }
    let library = otf2::Library::load()?;
    let traces = super::analysis::read::read_file(path).map_err(Otf2Error::from)?;
    let out: PathBuf = path.with_extension("otf2");
    otf2::write(&library, &[traces], &out)
}

/// The failure of a trace that cannot be written: wrong input if another folder would help, and
/// otherwise, as with a full disk, one of the system.
pub(crate) fn trace_not_written(path: &Path, error: &io::Error) -> Failure {
    let (code, message) = ("TRACE_NOT_WRITTEN", format!("--trace {}: {error}", path.display()));
    match error.kind() {
        ErrorKind::NotFound
        | ErrorKind::PermissionDenied
        | ErrorKind::AlreadyExists
        | ErrorKind::NotADirectory
        | ErrorKind::ReadOnlyFilesystem
        | ErrorKind::InvalidInput
        | ErrorKind::InvalidFilename => Failure::input(code, message),
        _ => Failure::fault(code, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Exit, classify};

    #[test]
    fn a_full_disk_is_a_fault_and_a_wrong_folder_is_wrong_input() {
        let exit = |kind: ErrorKind| {
            let failure = trace_not_written(Path::new("traces"), &io::Error::from(kind));
            let (code, exit) = classify(&failure.into());
            assert_eq!(code, "TRACE_NOT_WRITTEN");
            exit
        };
        assert_eq!(exit(ErrorKind::StorageFull), Exit::Fault);
        assert_eq!(exit(ErrorKind::FileTooLarge), Exit::Fault);
        assert_eq!(exit(ErrorKind::PermissionDenied), Exit::Input);
        assert_eq!(exit(ErrorKind::NotADirectory), Exit::Input);
    }
}
