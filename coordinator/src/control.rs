//! The operator's own way to a running coordinator: a socket in its data folder, which only whoever owns the folder can
//! open. One request and one answer, each a line of JSON.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use crate::backup::{self, BackupError, Manifest};
use crate::host::Host;

/// The socket's name in the data folder.
const SOCKET: &str = "control";
/// Longest request or answer, in bytes.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// How long a client has for its request.
const REQUEST_TIME: Duration = Duration::from_secs(10);

/// What an operator may ask.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    /// Copy everything into this new folder.
    Backup(PathBuf),
}

/// What it hears.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Made(Manifest),
    /// A sentence with its code.
    Refused(String),
}

/// Listens until the folder is given back. Without the socket everything goes on, and there are no backups of the running
/// coordinator.
pub(crate) fn listen(data: &Path) -> Option<Control> {
    let path = data.join(SOCKET);
    let bind = || -> io::Result<UnixListener> {
        // A process that was killed leaves its socket; the folder is ours.
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
            tracing::warn!(%path, %error, "no socket for the operator: no backups while running");
            None
        }
    }
}

/// The socket; gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Control {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Control {
    fn drop(&mut self) {
        // Left behind, it is removed at the next start.
        let _ = fs::remove_file(&self.path);
    }
}

impl Control {
    /// Answers one operator after the other.
    pub(crate) async fn serve(self, host: Host, data: PathBuf) {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                tracing::warn!("the operator's socket takes nobody more");
                return;
            };
            if let Err(error) = answer(stream, &host, &data).await {
                tracing::warn!(%error, "an operator's request came to nothing");
            }
        }
    }
}

async fn answer(stream: UnixStream, host: &Host, data: &Path) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    let mut limited = (&mut stream).take(LINE_BYTES_MAX);
    tokio::time::timeout(REQUEST_TIME, limited.read_until(b'\n', &mut line))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let answer = match serde_json::from_slice(&line) {
        Ok(Request::Backup(dest)) => match back_up(host, data, &dest).await {
            Ok(made) => Answer::Made(made),
            Err(error) => Answer::Refused(error.to_string()),
        },
        Err(error) => Answer::Refused(format!("no request: {error} [MALFORMED]")),
    };
    let mut line = serde_json::to_vec(&answer)?;
    line.push(b'\n');
    stream.get_mut().write_all(&line).await
}

/// Copies the data folder of a running engine, as it is at one moment, into a new folder.
///
/// # Errors
/// [`BackupError`].
pub async fn back_up(host: &Host, data: &Path, dest: &Path) -> Result<Manifest, BackupError> {
    let (data, dest, files) = (data.to_owned(), dest.to_owned(), host.files());
    let host = host.clone();
    let runtime = tokio::runtime::Handle::current();
    let copied = tokio::task::spawn_blocking(move || {
        // Nothing is removed while it is copied.
        let _held = files.lock().unwrap_or_else(PoisonError::into_inner);
        let moment = runtime.block_on(host.cut())?;
        backup::copy(&data, &dest, moment)
    });
    copied.await.unwrap_or_else(|error| Err(BackupError::Journal(error.to_string())))
}

/// Why a running coordinator made no backup.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens.
    #[error(
        "a coordinator uses {path}, and does not answer on its socket ({source}): see its log, or stop it first \
         [COORDINATOR_SILENT]"
    )]
    Silent {
        /// Which folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It said why not.
    #[error("{0}")]
    Refused(String),
}

/// Asks the coordinator that uses `data` for a backup in `dest`, and waits for it.
///
/// # Errors
/// [`AskError`].
pub fn ask_backup(data: &Path, dest: &Path) -> Result<Manifest, AskError> {
    use std::io::{BufRead, Read, Write};
    use std::os::unix::net::UnixStream;
    let ask = || -> io::Result<Answer> {
        let mut stream = UnixStream::connect(data.join(SOCKET))?;
        let mut line = serde_json::to_vec(&Request::Backup(dest.to_owned()))?;
        line.push(b'\n');
        stream.write_all(&line)?;
        let mut answer = Vec::new();
        io::BufReader::new(stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut answer)?;
        Ok(serde_json::from_slice(&answer)?)
    };
    match ask() {
        Ok(Answer::Made(made)) => Ok(made),
        Ok(Answer::Refused(why)) => Err(AskError::Refused(why)),
        Err(source) => Err(AskError::Silent { path: data.to_owned(), source }),
    }
}

/// Something that is copied is not removed meanwhile: held by whoever copies, and by whoever removes.
pub type Files = Arc<std::sync::Mutex<()>>;
