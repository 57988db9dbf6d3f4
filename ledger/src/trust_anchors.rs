//! Trust anchors of TLS connections: the system's certificate store, or a given set of
//! certificates.

use std::sync::{Arc, OnceLock};

use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// Most certificates in one PEM file.
const CERTIFICATES_MAX: usize = 64;

/// The trust anchors that authenticate the coordinator at an `https://` address; cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustAnchors {
    /// Certificates in DER; `None` for the system's certificate store.
    certificates: Option<Arc<[Vec<u8>]>>,
}

/// An error in a PEM text with trust anchors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustAnchorsError {
    /// It contains no certificate.
    #[error(
        "it contains no certificate: expected PEM with -----BEGIN CERTIFICATE----- \
         [CERTIFICATE_MISSING]"
    )]
    Missing,
    /// It contains something else than certificates.
    #[error("{0} [CERTIFICATE_MALFORMED]")]
    Malformed(String),
}

impl TrustAnchors {
    /// The system's trust anchors: its certificate store, or `SSL_CERT_FILE` and `SSL_CERT_DIR`. A
    /// system without any uses Mozilla's root certificates (webpki-roots).
    #[must_use]
    pub const fn from_system() -> Self {
        Self { certificates: None }
    }

    /// Only the given PEM certificates: the coordinator's own or its certificate authority's.
    ///
    /// # Errors
    /// [`TrustAnchorsError`].
    pub fn from_pem(pem: &[u8]) -> Result<Self, TrustAnchorsError> {
        let mut all = Vec::new();
        for item in parse_pem(pem) {
            match item.map_err(|error| TrustAnchorsError::Malformed(error.to_string()))? {
                PemItem::Certificate(certificate) => all.push(certificate.der().to_vec()),
                _ => {
                    let what = "it contains a private key: pass a file with the certificate only";
                    return Err(TrustAnchorsError::Malformed(what.to_owned()));
                }
            }
            if all.len() > CERTIFICATES_MAX {
                let what = format!("more than {CERTIFICATES_MAX} certificates");
                return Err(TrustAnchorsError::Malformed(what));
            }
        }
        if all.is_empty() {
            return Err(TrustAnchorsError::Missing);
        }
        Ok(Self { certificates: Some(all.into()) })
    }

    /// The TLS configuration of an HTTP client. For a URL without TLS it reads no certificate
    /// store.
    #[must_use]
    pub fn tls_config(&self, url: &str) -> TlsConfig {
        let roots = match &self.certificates {
            Some(certificates) => root_certs(certificates),
            None if url.starts_with("https:") => system_root_certs().clone(),
            None => RootCerts::WebPki,
        };
        TlsConfig::builder().root_certs(roots).build()
    }
}

/// Converts DER certificates to root certificates.
fn root_certs(certificates: &[Vec<u8>]) -> RootCerts {
    let owned = certificates.iter().map(|der| Certificate::from_der(der).to_owned());
    RootCerts::Specific(Arc::new(owned.collect()))
}

/// The system's certificate store, read once.
fn system_root_certs() -> &'static RootCerts {
    static SYSTEM: OnceLock<RootCerts> = OnceLock::new();
    SYSTEM.get_or_init(|| {
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "cannot read a certificate of the system's certificate store");
        }
        let certificates: Vec<Vec<u8>> = found.certs.iter().map(|der| der.to_vec()).collect();
        if certificates.is_empty() { RootCerts::WebPki } else { root_certs(&certificates) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pem_without_a_valid_certificate_is_refused_with_a_code() {
        let odd = |what: &str| format!("-----BEGIN {what}-----\nAAAA\n-----END {what}-----\n");
        let code = |text: &str| TrustAnchors::from_pem(text.as_bytes()).unwrap_err().to_string();
        for (text, expected) in [
            (String::new(), "[CERTIFICATE_MISSING]"),
            ("no PEM".to_owned(), "[CERTIFICATE_MISSING]"),
            ("-----BEGIN CERTIFICATE-----\nAAAA".to_owned(), "[CERTIFICATE_MALFORMED]"),
            (odd("PRIVATE KEY"), "[CERTIFICATE_MALFORMED]"),
            (odd("CERTIFICATE").repeat(CERTIFICATES_MAX + 1), "[CERTIFICATE_MALFORMED]"),
        ] {
            assert!(code(&text).ends_with(expected), "{text}: {}", code(&text));
        }
        assert_ne!(
            TrustAnchors::from_pem(odd("CERTIFICATE").as_bytes()).unwrap(),
            TrustAnchors::from_system()
        );
    }
}
