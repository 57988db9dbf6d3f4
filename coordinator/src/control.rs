//! The operator's interface to a running coordinator: a Unix socket in the data folder, accessible
//! only to the owner of the folder. A connection carries one request and one response, each a line
//! of JSON.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use crate::backup::{self, BackupError, BackupFolders, Manifest};
use crate::host::Host;

/// The socket's name in the data folder.
const SOCKET: &str = "control";
/// Longest request or response, in bytes.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// Time that a client has to send its request.
const REQUEST_TIME: Duration = Duration::from_secs(10);

/// A request of the operator.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum ControlRequest {
    /// Write a backup to this new folder.
    Backup(PathBuf),
}

/// The response to a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ControlResponse {
    Completed(Manifest),
    /// An error message with its code.
    Rejected(String),
}

/// Opens the control socket. If that fails, the coordinator runs without it, and no backup of the
/// running coordinator is possible.
pub(crate) fn listen(data: &Path) -> Option<Control> {
    let path = data.join(SOCKET);
    let bind = || -> io::Result<UnixListener> {
        // A killed process leaves its socket. This process owns the folder, so it may remove it.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    match bind() {
        Ok(listener) => Some(Control { listener, path }),
        Err(error) => {
            let path = path.display();
            tracing::warn!(%path, %error, "no control socket: no backups while running");
            None
        }
    }
}

/// The control socket. It is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Control {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Control {
    fn drop(&mut self) {
        // A remaining socket is removed at the next start.
        let _ = fs::remove_file(&self.path);
    }
}

impl Control {
    /// Serves one connection after the other.
    pub(crate) async fn serve(self, host: Host, data: PathBuf) {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                tracing::warn!("the control socket accepts no more connections");
                return;
            };
            if let Err(error) = handle_connection(stream, &host, &data).await {
                tracing::warn!(%error, "a request on the control socket failed");
            }
        }
    }
}

async fn handle_connection(stream: UnixStream, host: &Host, data: &Path) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    let mut limited = (&mut stream).take(LINE_BYTES_MAX);
    tokio::time::timeout(REQUEST_TIME, limited.read_until(b'\n', &mut line))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let answer = match serde_json::from_slice(&line) {
        Ok(ControlRequest::Backup(dest)) => {
            match back_up(host, BackupFolders { data, backup: &dest }).await {
                Ok(made) => ControlResponse::Completed(made),
                Err(error) => ControlResponse::Rejected(error.to_string()),
            }
        }
        Err(error) => ControlResponse::Rejected(format!("invalid request: {error} [MALFORMED]")),
    };
    let mut line = serde_json::to_vec(&answer)?;
    line.push(b'\n');
    stream.get_mut().write_all(&line).await
}

/// Copies the data folder of a running engine, as of one point in time, into a new folder.
///
/// # Errors
/// [`BackupError`].
pub async fn back_up(host: &Host, folders: BackupFolders<'_>) -> Result<Manifest, BackupError> {
    let (data, backup) = (folders.data.to_owned(), folders.backup.to_owned());
    let files = host.files_lock();
    let host = host.clone();
    let runtime = tokio::runtime::Handle::current();
    let copied = tokio::task::spawn_blocking(move || {
        // No file is removed while the copy runs.
        let _held = files.lock().unwrap_or_else(PoisonError::into_inner);
        let moment = runtime.block_on(host.checkpoint())?;
        backup::copy(BackupFolders { data: &data, backup: &backup }, moment)
    });
    copied.await.unwrap_or_else(|error| Err(BackupError::Journal(error.to_string())))
}

/// Why a running coordinator did not make a backup.
#[derive(Debug, thiserror::Error)]
pub enum BackupRequestError {
    /// No coordinator answers on the socket.
    #[error(
        "a coordinator uses {path} but does not answer on its control socket ({source}): see its \
         log, or stop it first [COORDINATOR_UNRESPONSIVE]"
    )]
    NoResponse {
        /// The data folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The coordinator rejected the request.
    #[error("{0}")]
    Refused(String),
}

/// Requests a backup to `dest` from the coordinator that uses `data`, and waits until it is
/// complete.
///
/// # Errors
/// [`BackupRequestError`].
pub fn request_backup(folders: BackupFolders<'_>) -> Result<Manifest, BackupRequestError> {
    let BackupFolders { data, backup: dest } = folders;
    use std::io::{BufRead, Read, Write};
    use std::os::unix::net::UnixStream;
    let ask = || -> io::Result<ControlResponse> {
        let mut stream = UnixStream::connect(data.join(SOCKET))?;
        let mut line = serde_json::to_vec(&ControlRequest::Backup(dest.to_owned()))?;
        line.push(b'\n');
        stream.write_all(&line)?;
        let mut answer = Vec::new();
        io::BufReader::new(stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut answer)?;
        Ok(serde_json::from_slice(&answer)?)
    };
    match ask() {
        Ok(ControlResponse::Completed(made)) => Ok(made),
        Ok(ControlResponse::Rejected(why)) => Err(BackupRequestError::Refused(why)),
        Err(source) => Err(BackupRequestError::NoResponse { path: data.to_owned(), source }),
    }
}
