//! Rows over a socket: a producer connects, and writes lines of CSV. One connection is read at a
//! time; another one waits until it ends.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
#[cfg(unix)]
use std::os::unix::{
    fs::{FileTypeExt, PermissionsExt},
    net::{UnixListener, UnixStream},
};
use std::path::{Path, PathBuf};
use std::time::Duration;

use florin_learning::data::ProducerSource;

use super::ProducerError;
use super::lines::LineSplitter;
use super::news::{RefusalCode, RowRefusal};
use super::row_reader::{ConnectionRows, ReadStop, RowReader};

/// Time between two looks at a new connection, and at the end of the feed.
const LOOK: Duration = Duration::from_millis(20);
/// Time for which a read of a connection waits before it looks at the end of the feed, and for which
/// the answer to a producer may take.
const READ_WAIT: Duration = Duration::from_millis(100);
/// Bytes of a read.
const CHUNK_BYTES: usize = 64 * 1024;

/// A socket that producers connect to.
#[derive(Debug)]
pub(super) struct Listener {
    socket: ListeningSocket,
    address: String,
}

#[derive(Debug)]
enum ListeningSocket {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix {
        listener: UnixListener,
        _file: SocketFile,
    },
}

/// The file of a Unix socket, which is removed at the end.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A connection.
trait Connection: Read + Write {}
impl Connection for TcpStream {}
#[cfg(unix)]
impl Connection for UnixStream {}

impl Listener {
    /// Listens at a place that is no folder.
    pub(super) fn bind(source: &ProducerSource) -> Result<Self, ProducerError> {
        let at = source.to_string();
        let failed = |source| ProducerError::Address { at: at.clone(), source };
        match source {
            ProducerSource::Tcp { address, .. } => {
                let listener = TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                let address = listener.local_addr().map_err(failed)?.to_string();
                Ok(Self { socket: ListeningSocket::Tcp(listener), address })
            }
            ProducerSource::Unix { path, .. } => {
                let socket = listen_at(path).map_err(failed)?;
                Ok(Self { socket, address: path.display().to_string() })
            }
            ProducerSource::Folder { .. } => {
                Err(failed(io::Error::new(ErrorKind::InvalidInput, "a folder is no socket")))
            }
        }
    }

    /// The address with its port, or the socket's file.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Reads connections until the feed is closed.
    pub(super) fn run(self, rows: &RowReader) {
        let mut number = 0_u64;
        while !rows.exchange.is_closed() {
            let Ok(mut connection) = self.accept() else {
                // None is there, or it ended before it was accepted.
                rows.exchange.pause(LOOK);
                continue;
            };
            number = number.saturating_add(1);
            rows.exchange.count_source();
            read(&mut *connection, rows, &format!("connection {number}"));
        }
    }

    fn accept(&self) -> io::Result<Box<dyn Connection>> {
        match &self.socket {
            ListeningSocket::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(READ_WAIT))?;
                stream.set_write_timeout(Some(READ_WAIT))?;
                Ok(Box::new(stream))
            }
            #[cfg(unix)]
            ListeningSocket::Unix { listener, .. } => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(READ_WAIT))?;
                stream.set_write_timeout(Some(READ_WAIT))?;
                Ok(Box::new(stream))
            }
        }
    }
}

/// A socket that only its owner can write to. A file that an ended process left there is replaced.
#[cfg(unix)]
fn listen_at(path: &Path) -> io::Result<ListeningSocket> {
    if let Ok(found) = fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            let why = "another file is there: name a new one";
            return Err(io::Error::new(ErrorKind::AlreadyExists, why));
        }
        if UnixStream::connect(path).is_ok() {
            let why = "another process listens there: name a new file";
            return Err(io::Error::new(ErrorKind::AddrInUse, why));
        }
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    let file = SocketFile(path.to_owned());
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(ListeningSocket::Unix { listener, _file: file })
}

#[cfg(not(unix))]
fn listen_at(_: &Path) -> io::Result<ListeningSocket> {
    let why = "this system has no Unix sockets: use tcp:127.0.0.1:PORT#LABEL";
    Err(io::Error::new(ErrorKind::Unsupported, why))
}

/// Reads one connection to its end. A refusal that ends it is written to it, for its program.
fn read(connection: &mut dyn Connection, rows: &RowReader, place: &str) {
    let Err(ReadStop::Refused(refusal)) = read_lines(connection, rows, place) else { return };
    let answer = format!("error[{}]: {}\n", refusal.code.as_str(), refusal.message);
    rows.exchange.refuse(refusal);
    let _ = connection.write_all(answer.as_bytes());
}

fn read_lines(
    connection: &mut dyn Connection,
    rows: &RowReader,
    place: &str,
) -> Result<(), ReadStop> {
    let mut splitter = LineSplitter::default();
    let mut lines = ConnectionRows::new(rows, place.to_owned());
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = match connection.read(&mut chunk) {
            Ok(count) => count,
            Err(error) if is_no_end(error.kind()) => match rows.exchange.is_closed() {
                true => return Err(ReadStop::Closed),
                false => continue,
            },
            // A producer that was killed.
            Err(_) => 0,
        };
        let read = chunk.get(..count).unwrap_or_default();
        splitter.split(read, |number, line| lines.line(number, line))?;
        lines.flush()?;
        if count > 0 {
            continue;
        }
        // Its last number may have lost digits.
        if let Some(line) = splitter.unfinished() {
            let message = format!("{place}, line {line}: the connection ended before the line did");
            rows.exchange.refuse(RowRefusal { code: RefusalCode::RowCut, message });
        }
        return Ok(());
    }
}

/// Whether a connection goes on after an error.
fn is_no_end(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
