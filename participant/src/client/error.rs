//! Errors of the coordinator client.

use std::path::PathBuf;

use florin_protocol::{Address, Digest, MarketId, MarketInfo, NodeKey, Rejection, VerifyError};

use crate::atomic_file::FileError;

/// Errors of a request.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Not a coordinator's URL.
    #[error("{url:?} is not a coordinator's URL: expected http://HOST:PORT or https://HOST")]
    BadUrl {
        /// The URL.
        url: String,
    },
    /// Rows that are not public would cross a network in plain text.
    #[error(
        "rows and states of the data class {class} are sent over TLS alone: use the https:// URL of the market, which \
         its operator configures by the settings tls.*"
    )]
    NotConfidential {
        /// The data class.
        class: &'static str,
    },
    /// The wallet could not sign a request.
    #[error("a request cannot be signed: {0}")]
    Signing(#[from] florin_protocol::SignError),
    /// No connection, no response in time, or a response that asks to retry later. Transient.
    #[error("the coordinator does not answer {what}: {why}")]
    Unavailable {
        /// Which request.
        what: String,
        /// The cause.
        why: String,
    },
    /// The coordinator's rate limit is exceeded. Transient.
    #[error("the coordinator's rate limit is exceeded for {what}: {why}")]
    RateLimited {
        /// Which request.
        what: String,
        /// The coordinator's message.
        why: String,
        /// Seconds to wait before the next request, from the header `Retry-After`.
        retry_after_s: u64,
    },
    /// The TLS handshake failed, and would fail again.
    #[error(
        "no TLS connection for {what}: {why}. For a coordinator with a self-signed certificate use \
         --certificate FILE; for one without TLS use an http:// address"
    )]
    TlsNotTrusted {
        /// Which request.
        what: String,
        /// The cause.
        why: String,
    },
    /// The place that the caller named for frozen weights does not have them.
    #[error(
        "{place} does not have the model's frozen weights: {why}. Leave out --weights to fetch \
             them from the coordinator"
    )]
    Weights {
        /// The file or the address.
        place: String,
        /// The difference, or the failure.
        why: String,
    },
    /// The coordinator is at a limit. Transient.
    #[error(transparent)]
    LimitReached(Rejection),
    /// The coordinator rejected the request.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// An invalid response: another format, or too long.
    #[error("the response to {what} is invalid: {why}")]
    InvalidResponse {
        /// Which request.
        what: String,
        /// The defect of the response.
        why: String,
    },
    /// Signed with another key, or not signed.
    #[error("{what} is not signed by the coordinator's node key {key}: {source}")]
    NotSigned {
        /// Which message.
        what: String,
        /// The key that was expected.
        key: NodeKey,
        /// The verification error.
        source: VerifyError,
    },
    /// Signed, but about another object than the requested one.
    #[error("{what}: {why}")]
    UnexpectedContent {
        /// Which message.
        what: String,
        /// The content, and the expected content.
        why: String,
    },
    /// Bytes whose digest is not the requested one.
    #[error("blob {expected}: the coordinator sent bytes with digest {got}")]
    WrongDigest {
        /// The requested digest.
        expected: Digest,
        /// The digest of the received bytes.
        got: Digest,
    },
    /// Not the coordinator that was pinned at first contact.
    #[error(
        "this is not the coordinator of the first contact: {pinned}, now {current}. Another host may \
         answer at this address. If the market's operator announced the change, delete {} and run \
         the command again",
        pin_file.display()
    )]
    CoordinatorChanged {
        /// The file that records the coordinator of the first contact.
        pin_file: PathBuf,
        /// The pinned coordinator.
        pinned: Box<CoordinatorIdentity>,
        /// The coordinator that responds now.
        current: Box<CoordinatorIdentity>,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// The identity of a coordinator.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoordinatorIdentity {
    /// Chain and genesis.
    pub market: MarketId,
    /// The account.
    pub account: Address,
    /// The node key that it signs with.
    pub node_key: NodeKey,
}

impl From<&MarketInfo> for CoordinatorIdentity {
    fn from(info: &MarketInfo) -> Self {
        Self { market: info.market, account: info.coordinator, node_key: info.node_key }
    }
}

impl std::fmt::Display for CoordinatorIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "account {} with node key {} on chain {} (genesis {})",
            self.account,
            self.node_key.short(),
            self.market.chain,
            self.market.genesis.short()
        )
    }
}

impl ClientError {
    /// The stable error code; for a rejection, the rejection's code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::BadUrl { .. } => "INVALID_URL",
            Self::NotConfidential { .. } => "INSECURE_TRANSPORT",
            Self::Signing(_) => "SIGNING_FAILED",
            Self::Unavailable { .. } => "COORDINATOR_UNAVAILABLE",
            Self::RateLimited { .. } => "RATE_LIMITED",
            Self::TlsNotTrusted { .. } => "TLS_NOT_TRUSTED",
            Self::Weights { .. } => "WRONG_WEIGHTS",
            Self::LimitReached(rejection) | Self::Rejected(rejection) => rejection.code.as_str(),
            Self::InvalidResponse { .. } => "INVALID_RESPONSE",
            Self::NotSigned { .. } => "INVALID_SIGNATURE",
            Self::UnexpectedContent { .. } => "UNEXPECTED_CONTENT",
            Self::WrongDigest { .. } => "WRONG_DIGEST",
            Self::CoordinatorChanged { .. } => "COORDINATOR_CHANGED",
            Self::File(error) => error.code(),
        }
    }

    /// The rejection, if this is one.
    #[must_use]
    pub fn rejection(&self) -> Option<&Rejection> {
        match self {
            Self::LimitReached(rejection) | Self::Rejected(rejection) => Some(rejection),
            _ => None,
        }
    }
}
