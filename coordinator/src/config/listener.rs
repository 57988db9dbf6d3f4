//! Settings of the public listener that have their own tables: rate limits, TLS, HTTP/2, span
//! export.

use std::path::PathBuf;

use serde::Deserialize;

use super::{ConfigError, IpNetwork};

/// Rate limits: sustained rates and bursts. Unused capacity accumulates up to the burst.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RateLimits {
    /// Sustained requests per second from one IPv4 address or IPv6 /64.
    pub address_per_second: u64,
    /// Requests from it in one burst after a pause.
    pub address_burst: u64,
    /// Sustained signed messages per second from one wallet.
    pub wallet_per_second: u64,
    /// Signed messages from it in one burst after a pause.
    pub wallet_burst: u64,
    /// Sustained blobs per second that one provider downloads for a work order.
    pub fetch_per_second: u64,
    /// Blobs that it downloads in one burst after a pause.
    pub fetch_burst: u64,
    /// Maximum number of addresses, and of wallets, whose rate is tracked.
    pub entries_max: usize,
    /// Networks without a rate limit for addresses.
    pub exempt: Vec<IpNetwork>,
}

impl Default for RateLimits {
    fn default() -> Self {
        let this_machine = ["127.0.0.0/8", "::1"];
        Self {
            address_per_second: 500,
            address_burst: 5_000,
            wallet_per_second: 50,
            wallet_burst: 500,
            fetch_per_second: 500,
            fetch_burst: 5_000,
            entries_max: 65_536,
            exempt: this_machine.iter().filter_map(|text| text.parse().ok()).collect(),
        }
    }
}

/// TLS on the public listener.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsSettings {
    /// PEM file with the certificate and its chain.
    pub certificate: Option<PathBuf>,
    /// PEM file with the certificate's private key.
    pub key: Option<PathBuf>,
    /// Whether to create a self-signed certificate in the data folder and use it.
    pub self_signed: bool,
    /// Host names and addresses of the self-signed certificate, in addition to this machine's.
    pub names: Vec<String>,
    /// Milliseconds for the TLS handshake.
    pub handshake_ms: u64,
    /// Milliseconds between two checks of the certificate and key files for a renewal.
    pub reload_ms: u64,
}

impl Default for TlsSettings {
    fn default() -> Self {
        Self {
            certificate: None,
            key: None,
            self_signed: false,
            names: Vec::new(),
            handshake_ms: 10_000,
            reload_ms: 60_000,
        }
    }
}

impl TlsSettings {
    /// Whether TLS is enabled.
    #[must_use]
    pub const fn is_enabled(&self) -> bool {
        self.self_signed || self.certificate.is_some()
    }

    /// Checks that the settings are consistent.
    ///
    /// # Errors
    /// [`ConfigError::TlsSettings`].
    pub(super) const fn check(&self) -> Result<(), ConfigError> {
        match (self.certificate.is_some(), self.key.is_some(), self.self_signed) {
            (true, false, _) => Err(ConfigError::Tls(
                "tls.certificate without tls.key: name the file with its private key",
            )),
            (false, true, _) => Err(ConfigError::Tls(
                "tls.key without tls.certificate: name the file with the certificate",
            )),
            (true, true, true) => Err(ConfigError::Tls(
                "tls.self_signed and tls.certificate: use one of the two certificates",
            )),
            _ => Ok(()),
        }
    }
}

/// Export of request spans with OpenTelemetry. Disabled unless set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OtlpSettings {
    /// The collector's address, without a path.
    pub url: Option<String>,
}

impl OtlpSettings {
    /// Checks the form of the collector's address.
    ///
    /// # Errors
    /// [`ConfigError::OtlpSettings`].
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let Some(url) = &self.url else {
            return Ok(());
        };
        let address = url.parse::<hyper::Uri>().ok().filter(|uri| uri.host().is_some());
        match address.as_ref().and_then(hyper::Uri::scheme_str) {
            Some("http" | "https") => Ok(()),
            _ => Err(ConfigError::Otlp(url.chars().take(200).collect())),
        }
    }
}

/// HTTP/2 over TLS. Disabled by default: its attack surface is larger than that of HTTP/1.1, and
/// participants need none of its features.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http2Settings {
    /// Whether the listener offers HTTP/2.
    pub enabled: bool,
    /// Maximum number of concurrent requests on one connection.
    pub streams_max: u32,
}

impl Default for Http2Settings {
    fn default() -> Self {
        Self { enabled: false, streams_max: 64 }
    }
}
