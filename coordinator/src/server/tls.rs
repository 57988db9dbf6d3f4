//! TLS on the coordinator's port, with a certificate and key from files, or with a self-signed
//! certificate in the data folder for trials.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use florin_protocol::{Digest, blob_digest};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig, crypto::ring};
use tokio_rustls::server::TlsStream;

use super::connection_activity::Protocol;
use super::self_signed::{self, CertificatePaths, SelfSignedError};
use crate::config::Config;

/// Longest file with certificates or a key, in bytes.
const PEM_BYTES_MAX: u64 = 1024 * 1024;
/// Most certificates in a chain.
const CHAIN_MAX: usize = 16;
/// The ALPN name of HTTP/2.
const H2: &[u8] = b"h2";
/// The first byte of every TLS connection: the record type `handshake`.
const HANDSHAKE: u8 = 0x16;
/// The response to a plain HTTP request on a TLS port.
const PLAIN_HTTP_RESPONSE: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n\
    content-length: 86\r\nconnection: close\r\n\r\n\
    {\"code\":\"MALFORMED\",\"message\":\"this port speaks TLS: use https:// instead of http://\"}";
/// Most bytes drained of a plain HTTP request, so that the client receives the response.
const PLAIN_BYTES_MAX: u64 = 64 * 1024;

/// Why TLS cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate file cannot be read.
    #[error("tls.certificate = {file}: {1} [CERTIFICATE_UNREADABLE]", file = .0.display())]
    CertificateUnreadable(PathBuf, io::Error),
    /// The certificate file has no certificate.
    #[error(
        "tls.certificate = {file}: the file has no certificate; expected PEM, with -----BEGIN \
         CERTIFICATE----- [CERTIFICATE_MISSING]",
        file = .0.display()
    )]
    CertificateMissing(PathBuf),
    /// The certificate is malformed.
    #[error("tls.certificate = {file}: {1} [CERTIFICATE_MALFORMED]", file = .0.display())]
    CertificateMalformed(PathBuf, String),
    /// The key file cannot be read.
    #[error("tls.key = {file}: {1} [TLS_KEY_UNREADABLE]", file = .0.display())]
    KeyUnreadable(PathBuf, io::Error),
    /// The key file has no key.
    #[error(
        "tls.key = {file}: the file has no private key; expected PEM without a passphrase, with \
         -----BEGIN PRIVATE KEY----- [TLS_KEY_MISSING]",
        file = .0.display()
    )]
    KeyMissing(PathBuf),
    /// The key's type is not supported, or the key is damaged.
    #[error(
        "tls.key = {file}: {1}; expected an ECDSA (P-256, P-384), Ed25519 or RSA key \
         [TLS_KEY_UNSUPPORTED]",
        file = .0.display()
    )]
    KeyUnsupported(PathBuf, String),
    /// The key belongs to another certificate.
    #[error(
        "tls.key = {file} is not the key of the certificate in {other}: name the pair that belongs \
         together [TLS_KEY_MISMATCH]",
        file = .0.display(), other = .1.display()
    )]
    KeyMismatch(PathBuf, PathBuf),
    /// The self-signed certificate cannot be used.
    #[error(transparent)]
    SelfSigned(#[from] SelfSignedError),
}

/// The TLS configuration of this coordinator; cheap to clone.
#[derive(Clone)]
pub struct Tls {
    current: Arc<RwLock<LoadedCertificate>>,
    files: Arc<CertificateFiles>,
    handshake: Duration,
    reload_interval: Duration,
}

/// The files of the certificate and key, and whether to offer HTTP/2.
struct CertificateFiles {
    certificate: PathBuf,
    key: PathBuf,
    http2: bool,
}

/// The certificate for new connections.
struct LoadedCertificate {
    acceptor: TlsAcceptor,
    fingerprint: String,
    /// Digest of both files as last read, valid or not.
    files_digest: Digest,
}

/// The content of the files.
struct PemPair {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl PemPair {
    fn digest(&self) -> Digest {
        blob_digest(&[&self.certificate[..], &self.key].concat())
    }
}

/// A connection after its handshake.
pub(super) struct TlsConnection {
    pub(super) stream: Box<TlsStream<TcpStream>>,
    /// The protocol negotiated by ALPN.
    pub(super) protocol: Protocol,
}

impl Tls {
    /// Loads the certificate in the settings; `None` for plain HTTP. Makes a self-signed
    /// certificate at the first start if the settings ask for one.
    ///
    /// # Errors
    /// [`TlsError`], with the file.
    pub fn open(config: &Config) -> Result<Option<Self>, TlsError> {
        let CertificatePaths { certificate, key } = match (&config.tls.certificate, &config.tls.key)
        {
            (Some(certificate), Some(key)) => {
                CertificatePaths { certificate: certificate.clone(), key: key.clone() }
            }
            _ if config.tls.self_signed => self_signed::load_or_create(config)?,
            _ => return Ok(None),
        };
        let files = CertificateFiles { certificate, key, http2: config.http2.enabled };
        Ok(Some(Self {
            current: Arc::new(RwLock::new(files.load(&files.read()?)?)),
            files: Arc::new(files),
            handshake: Duration::from_millis(config.tls.handshake_ms),
            reload_interval: Duration::from_millis(config.tls.reload_ms),
        }))
    }

    /// Reloads the files if they have changed; new connections then use them. Returns whether they
    /// have changed.
    ///
    /// # Errors
    /// [`TlsError`] if the changed files are invalid; the previous certificate stays in use.
    fn reload_if_changed(&self) -> Result<bool, TlsError> {
        let pem = self.files.read()?;
        let mut shown = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if shown.files_digest == pem.digest() {
            return Ok(false);
        }
        shown.files_digest = pem.digest();
        *shown = self.files.load(&pem)?;
        Ok(true)
    }

    /// Watches the files for a renewed certificate; never returns.
    pub(crate) async fn watch_files(self) {
        loop {
            tokio::time::sleep(self.reload_interval).await;
            let tls = self.clone();
            match tokio::task::spawn_blocking(move || tls.reload_if_changed()).await {
                Ok(Ok(false)) => {}
                Ok(Ok(true)) => {
                    let (file, fingerprint) = (self.certificate().display(), self.fingerprint());
                    tracing::info!(%file, fingerprint, "renewed certificate loaded");
                }
                Ok(Err(error)) => {
                    tracing::error!(%error, "the previous certificate stays in use");
                }
                Err(error) => tracing::error!(%error, "reloading the certificate failed"),
            }
        }
    }

    /// The certificate's file.
    #[must_use]
    pub fn certificate(&self) -> &Path {
        &self.files.certificate
    }

    /// The certificate's SHA-256 fingerprint, as `openssl x509 -fingerprint -sha256` prints it.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        self.current.read().unwrap_or_else(PoisonError::into_inner).fingerprint.clone()
    }

    fn acceptor(&self) -> TlsAcceptor {
        self.current.read().unwrap_or_else(PoisonError::into_inner).acceptor.clone()
    }

    /// Performs the TLS handshake within its timeout. A plain HTTP request gets a response with the
    /// reason.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsConnection> {
        let hello = async {
            let mut first = [0; 1];
            match stream.peek(&mut first).await? {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                _ if first == [HANDSHAKE] => {
                    let stream = Box::new(self.acceptor().accept(stream).await?);
                    let agreed = stream.get_ref().1.alpn_protocol();
                    let protocol =
                        if agreed == Some(H2) { Protocol::Http2 } else { Protocol::Http1 };
                    Ok(TlsConnection { stream, protocol })
                }
                _ => reject_plain_http(stream).await,
            }
        };
        timeout(self.handshake, hello).await.map_err(io::Error::from)?
    }
}

impl CertificateFiles {
    fn read(&self) -> Result<PemPair, TlsError> {
        let certificate = read_bounded(&self.certificate)
            .map_err(|error| TlsError::CertificateUnreadable(self.certificate.clone(), error))?;
        let key = read_bounded(&self.key)
            .map_err(|error| TlsError::KeyUnreadable(self.key.clone(), error))?;
        Ok(PemPair { certificate, key })
    }

    fn load(&self, pem: &PemPair) -> Result<LoadedCertificate, TlsError> {
        let (certificate, key) = (&self.certificate, &self.key);
        let chain = parse_chain(certificate, &pem.certificate)?;
        let fingerprint = chain.first().map(fingerprint).unwrap_or_default();
        let private = parse_key(key, &pem.key)?;
        let mut server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| {
                TlsError::CertificateMalformed(certificate.clone(), error.to_string())
            })?
            .with_no_client_auth()
            .with_single_cert(chain, private)
            .map_err(|error| config_error(error, certificate, key))?;
        if self.http2 {
            server.alpn_protocols.push(H2.to_vec());
        }
        server.alpn_protocols.push(b"http/1.1".to_vec());
        let acceptor = TlsAcceptor::from(Arc::new(server));
        Ok(LoadedCertificate { acceptor, fingerprint, files_digest: pem.digest() })
    }
}

async fn reject_plain_http(mut stream: TcpStream) -> io::Result<TlsConnection> {
    stream.write_all(PLAIN_HTTP_RESPONSE).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(PLAIN_BYTES_MAX), &mut tokio::io::sink()).await?;
    Err(io::Error::other("a plain HTTP request on a TLS port"))
}

fn config_error(error: rustls::Error, certificate: &Path, key: &Path) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            TlsError::KeyMismatch(key.to_owned(), certificate.to_owned())
        }
        rustls::Error::InvalidCertificate(error) => {
            TlsError::CertificateMalformed(certificate.to_owned(), format!("{error:?}"))
        }
        error => TlsError::KeyUnsupported(key.to_owned(), error.to_string()),
    }
}

fn parse_chain(file: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let malformed = |why: String| TlsError::CertificateMalformed(file.to_owned(), why);
    let mut chain = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(text) {
        chain.push(certificate.map_err(|error| malformed(error.to_string()))?);
        if chain.len() > CHAIN_MAX {
            return Err(malformed(format!("more than {CHAIN_MAX} certificates in a chain")));
        }
    }
    if chain.is_empty() {
        return Err(TlsError::CertificateMissing(file.to_owned()));
    }
    Ok(chain)
}

fn parse_key(file: &Path, text: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    warn_if_world_readable(file);
    PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError::KeyMissing(file.to_owned()),
        error => TlsError::KeyUnsupported(file.to_owned(), error.to_string()),
    })
}

fn read_bounded(file: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(file)?.take(PEM_BYTES_MAX.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > PEM_BYTES_MAX {
        return Err(io::Error::other(format!("the file is longer than {PEM_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

#[cfg(unix)]
fn warn_if_world_readable(file: &Path) {
    use std::os::unix::fs::PermissionsExt;
    if let Ok(known) = std::fs::metadata(file)
        && known.permissions().mode() & 0o007 != 0
    {
        tracing::warn!(file = %file.display(), "every user can read the TLS key: use chmod o=");
    }
}

#[cfg(not(unix))]
const fn warn_if_others_read(_: &Path) {}

/// Pairs of hexadecimal digits with colons between them.
fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(certificate) {
        let colon = if text.is_empty() { "" } else { ":" };
        let _ = write!(text, "{colon}{byte:02X}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_length_of_the_plain_http_response_is_right() {
        let text = std::str::from_utf8(PLAIN_HTTP_RESPONSE).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{}", body.len());
        let rejection: florin_protocol::Rejection = serde_json::from_str(body).unwrap();
        assert_eq!(rejection.code, florin_protocol::ErrorCode::Malformed);
    }

    fn pair() -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    #[test]
    fn each_certificate_and_key_error_has_its_code() {
        let dir = tempfile::tempdir().unwrap();
        let ((certificate, key), (_, other)) = (pair(), pair());
        let sealed =
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let odd = |what: &str| format!("-----BEGIN {what}-----\nAAAA\n-----END {what}-----\n");
        let (odd_certificate, odd_key) = (odd("CERTIFICATE"), odd("PRIVATE KEY"));
        let many = certificate.repeat(CHAIN_MAX + 1);
        let cut = certificate.replace("-----END", "");
        let (c, k) = (Some(certificate.as_str()), Some(key.as_str()));
        let table = [
            (None, k, "CERTIFICATE_UNREADABLE"),
            (Some(""), k, "CERTIFICATE_MISSING"),
            (k, k, "CERTIFICATE_MISSING"),
            (Some(cut.as_str()), k, "CERTIFICATE_MALFORMED"),
            (Some(odd_certificate.as_str()), k, "CERTIFICATE_MALFORMED"),
            (Some(many.as_str()), k, "CERTIFICATE_MALFORMED"),
            (c, None, "TLS_KEY_UNREADABLE"),
            (c, Some(""), "TLS_KEY_MISSING"),
            (c, c, "TLS_KEY_MISSING"),
            (c, Some(sealed), "TLS_KEY_MISSING"),
            (c, Some(odd_key.as_str()), "TLS_KEY_UNSUPPORTED"),
            (c, Some(other.as_str()), "TLS_KEY_MISMATCH"),
            (c, k, ""),
        ];
        for (number, (certificate, key, code)) in table.into_iter().enumerate() {
            let mut config = Config::new("127.0.0.1:0".parse().unwrap(), dir.path().to_owned());
            let file = |name: &str, text: Option<&str>| {
                let file = dir.path().join(format!("{number}-{name}"));
                if let Some(text) = text {
                    std::fs::write(&file, text).unwrap();
                }
                Some(file)
            };
            config.tls.certificate = file("certificate.pem", certificate);
            config.tls.key = file("key.pem", key);
            let error = Tls::open(&config).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(
                error.ends_with(&format!("[{code}]")) || error == code,
                "{number} {code}: {error}"
            );
            assert!(code.is_empty() || error.contains(".pem"), "{error}");
        }
    }
}
