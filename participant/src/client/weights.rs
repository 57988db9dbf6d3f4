//! The frozen weights of a model from another place than the coordinator: a file that a participant
//! has, or an address. The digest decides, so the place needs no trust.

use std::convert::Infallible;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use florin_ledger::TrustAnchors;
use florin_protocol::{Blob, blob_digest};
use ureq::Agent;

use super::error::ClientError;

/// Redirections of an address, at most.
const REDIRECTS_MAX: u32 = 5;
/// Time for a connection and for the start of the response.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest pause of the response.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// A place of frozen weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightsSource {
    /// A file.
    File(PathBuf),
    /// An `http://` or `https://` address.
    Url(String),
}

impl FromStr for WeightsSource {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let is_url = text.starts_with("https://") || text.starts_with("http://");
        Ok(if is_url { Self::Url(text.to_owned()) } else { Self::File(text.into()) })
    }
}

impl fmt::Display for WeightsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Url(url) => f.write_str(url),
        }
    }
}

impl WeightsSource {
    /// The bytes of a blob, if they are here.
    pub(super) fn read(&self, blob: Blob) -> Result<Vec<u8>, ClientError> {
        let wrong = |why: String| ClientError::Weights { place: self.to_string(), why };
        let bytes = match self {
            Self::File(path) => {
                let open = || {
                    let mut bytes = Vec::new();
                    let limit = blob.bytes.saturating_add(1);
                    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
                    Ok::<_, std::io::Error>(bytes)
                };
                open().map_err(|error| wrong(error.to_string()))?
            }
            Self::Url(url) => fetch(url, blob.bytes).map_err(wrong)?,
        };
        if bytes.len() as u64 != blob.bytes || blob_digest(&bytes) != blob.digest {
            let Blob { digest, bytes: length } = blob;
            return Err(wrong(format!("the task needs {length} bytes with the digest {digest}")));
        }
        Ok(bytes)
    }
}

/// At most one byte more than `limit`.
fn fetch(url: &str, limit: u64) -> Result<Vec<u8>, String> {
    let config = Agent::config_builder()
        .max_redirects(REDIRECTS_MAX)
        .timeout_connect(Some(START_TIMEOUT))
        .timeout_recv_response(Some(START_TIMEOUT))
        .timeout_per_read(Some(STALL_TIMEOUT))
        .tls_config(TrustAnchors::from_system().tls_config("https:"))
        .user_agent(concat!("florin/", env!("CARGO_PKG_VERSION")));
    let agent: Agent = config.build().into();
    let mut response = agent.get(url).call().map_err(|error| error.to_string())?;
    // The reader counts its probe for the end of the body as one more byte.
    let body = response.body_mut().with_config().limit(limit.saturating_add(1));
    body.read_to_vec().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    fn blob(bytes: &[u8]) -> Blob {
        Blob { digest: blob_digest(bytes), bytes: bytes.len() as u64 }
    }

    #[test]
    fn a_file_is_used_if_its_digest_is_right() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"weights").unwrap();
        let source: WeightsSource = file.path().display().to_string().parse().unwrap();
        assert_eq!(source, WeightsSource::File(file.path().to_owned()));
        assert_eq!(source.read(blob(b"weights")).unwrap(), b"weights");
        for other in [&b"weightx"[..], b"weight", b"weights and more"] {
            let error = source.read(blob(other)).unwrap_err();
            assert_eq!(error.code(), "WRONG_WEIGHTS");
            assert!(error.to_string().contains(&blob(other).digest.to_string()), "{error}");
        }
        let absent = WeightsSource::File("/does/not/exist".into()).read(blob(b""));
        assert!(absent.unwrap_err().to_string().contains("--weights"));
    }

    /// The whole head of a request: a part that is not read would reset the connection.
    fn request(stream: &mut std::net::TcpStream) -> Vec<u8> {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut part = [0; 4_096];
            match stream.read(&mut part) {
                Ok(length) if length > 0 => request.extend_from_slice(&part[..length]),
                _ => break,
            }
        }
        request
    }

    #[test]
    fn an_address_is_followed_and_its_digest_compared() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serve = std::thread::spawn(move || {
            let moved = format!("HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:{port}/b\r\n");
            let found = "HTTP/1.1 200 OK\r\n".to_owned();
            let answers =
                [("a", moved, ""), ("b", found.clone(), "weights"), ("a", found, "weights")];
            for (path, head, body) in answers {
                // A client of another test may retry at a port that was its own server's before.
                let mut stream = loop {
                    let (mut stream, _) = listener.accept().unwrap();
                    if request(&mut stream).starts_with(format!("GET /{path} ").as_bytes()) {
                        break stream;
                    }
                };
                let length = body.len();
                let answer =
                    format!("{head}connection: close\r\ncontent-length: {length}\r\n\r\n{body}");
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let source: WeightsSource = format!("http://127.0.0.1:{port}/a").parse().unwrap();
        assert_eq!(source.read(blob(b"weights")).unwrap(), b"weights");
        assert_eq!(source.read(blob(b"other")).unwrap_err().code(), "WRONG_WEIGHTS");
        serve.join().unwrap();
    }
}
