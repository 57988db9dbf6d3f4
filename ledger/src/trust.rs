//! Whom a connection over TLS believes: who this system trusts, or one certificate and nobody else.

use std::sync::{Arc, OnceLock};

use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// Most certificates in a file.
const CERTIFICATES_MAX: usize = 64;

/// Whose word for "this is the coordinator" counts on an `https://` address; cheap to copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// Certificates in DER; who this system trusts where there are none.
    only: Option<Arc<[Vec<u8>]>>,
}

/// A text without a certificate that could be trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTrust {
    /// None in it.
    #[error(
        "there is no certificate in it; expected PEM, with -----BEGIN CERTIFICATE----- \
         [CERTIFICATE_MISSING]"
    )]
    Missing,
    /// Something else than certificates.
    #[error("{0} [CERTIFICATE_MALFORMED]")]
    Malformed(String),
}

impl Trust {
    /// Who this system trusts: its certificate store, or `SSL_CERT_FILE` and `SSL_CERT_DIR`. A system without any is
    /// lent Mozilla's list.
    #[must_use]
    pub const fn system() -> Self {
        Self { only: None }
    }

    /// These certificates in PEM, the coordinator's own or its authority's, and nobody else.
    ///
    /// # Errors
    /// [`BadTrust`].
    pub fn only(pem: &[u8]) -> Result<Self, BadTrust> {
        let mut all = Vec::new();
        for item in parse_pem(pem) {
            match item.map_err(|error| BadTrust::Malformed(error.to_string()))? {
                PemItem::Certificate(certificate) => all.push(certificate.der().to_vec()),
                _ => {
                    let what = "there is a private key in it: hand out the certificate alone";
                    return Err(BadTrust::Malformed(what.to_owned()));
                }
            }
            if all.len() > CERTIFICATES_MAX {
                let what = format!("more than {CERTIFICATES_MAX} certificates");
                return Err(BadTrust::Malformed(what));
            }
        }
        if all.is_empty() {
            return Err(BadTrust::Missing);
        }
        Ok(Self { only: Some(all.into()) })
    }

    /// The same for an HTTP client. An address without TLS needs none of it, and reads no store.
    #[must_use]
    pub fn tls_config(&self, url: &str) -> TlsConfig {
        let roots = match &self.only {
            Some(certificates) => roots_of(certificates),
            None if url.starts_with("https:") => systems().clone(),
            None => RootCerts::WebPki,
        };
        TlsConfig::builder().root_certs(roots).build()
    }
}

fn roots_of(certificates: &[Vec<u8>]) -> RootCerts {
    let owned = certificates.iter().map(|der| Certificate::from_der(der).to_owned());
    RootCerts::Specific(Arc::new(owned.collect()))
}

/// What the system trusts, read once.
fn systems() -> &'static RootCerts {
    static SYSTEM: OnceLock<RootCerts> = OnceLock::new();
    SYSTEM.get_or_init(|| {
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "a certificate of this system cannot be read");
        }
        let certificates: Vec<Vec<u8>> = found.certs.iter().map(|der| der.to_vec()).collect();
        if certificates.is_empty() { RootCerts::WebPki } else { roots_of(&certificates) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_certificate_is_refused_by_name() {
        let odd = |what: &str| format!("-----BEGIN {what}-----\nAAAA\n-----END {what}-----\n");
        let code = |text: &str| Trust::only(text.as_bytes()).unwrap_err().to_string();
        for (text, expected) in [
            (String::new(), "[CERTIFICATE_MISSING]"),
            ("no PEM".to_owned(), "[CERTIFICATE_MISSING]"),
            ("-----BEGIN CERTIFICATE-----\nAAAA".to_owned(), "[CERTIFICATE_MALFORMED]"),
            (odd("PRIVATE KEY"), "[CERTIFICATE_MALFORMED]"),
            (odd("CERTIFICATE").repeat(CERTIFICATES_MAX + 1), "[CERTIFICATE_MALFORMED]"),
        ] {
            assert!(code(&text).ends_with(expected), "{text}: {}", code(&text));
        }
        assert_ne!(Trust::only(odd("CERTIFICATE").as_bytes()).unwrap(), Trust::system());
    }
}
