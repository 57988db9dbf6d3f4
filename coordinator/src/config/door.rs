//! Settings of the front door that have tables of their own: rates, TLS, HTTP/2.

use std::path::PathBuf;

use serde::Deserialize;

use super::{ConfigError, Network};

/// How many requests who may make. What is not used is saved up to a burst.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rate {
    /// Requests a second from one IPv4 address or IPv6 /64.
    pub address_per_second: u64,
    /// Requests at once from it after a pause.
    pub address_burst: u64,
    /// Signed messages a second from one wallet.
    pub wallet_per_second: u64,
    /// Signed messages at once from it after a pause.
    pub wallet_burst: u64,
    /// Blobs a second that one provider fetches for a work order.
    pub fetch_per_second: u64,
    /// Blobs at once that it fetches after a pause.
    pub fetch_burst: u64,
    /// Addresses, and wallets, that are remembered at once.
    pub entries_max: usize,
    /// Networks without a limit for addresses.
    pub exempt: Vec<Network>,
}

impl Default for Rate {
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

/// TLS on the port that everybody uses.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// The certificate and its chain, in PEM.
    pub certificate: Option<PathBuf>,
    /// Its private key, in PEM.
    pub key: Option<PathBuf>,
    /// Whether to make a certificate in the data folder and use it.
    pub self_signed: bool,
    /// Names and addresses that such a certificate is for, besides this machine's.
    pub names: Vec<String>,
    /// Milliseconds for a handshake.
    pub handshake_ms: u64,
    /// Milliseconds from one look at the files, for a renewed certificate, to the next.
    pub look_ms: u64,
}

impl Default for Tls {
    fn default() -> Self {
        Self {
            certificate: None,
            key: None,
            self_signed: false,
            names: Vec::new(),
            handshake_ms: 10_000,
            look_ms: 60_000,
        }
    }
}

impl Tls {
    /// Whether the port speaks TLS.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.self_signed || self.certificate.is_some()
    }

    /// Whether the settings go together.
    ///
    /// # Errors
    /// [`ConfigError::Tls`].
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

/// Where spans of requests go. Nowhere unless asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Otlp {
    /// The collector's address, without a path.
    pub url: Option<String>,
}

impl Otlp {
    /// Whether the address can be one.
    ///
    /// # Errors
    /// [`ConfigError::Otlp`].
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

/// HTTP/2 over TLS. Off unless asked for: it has more ways to be attacked than HTTP/1.1, and participants need none of
/// what it can do.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http2 {
    /// Whether it is offered.
    pub enabled: bool,
    /// Requests at once on one connection.
    pub streams_max: u32,
}

impl Default for Http2 {
    fn default() -> Self {
        Self { enabled: false, streams_max: 64 }
    }
}
