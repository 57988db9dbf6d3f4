//! What can go wrong between us and the coordinator.

use florin_protocol::{Address, Digest, Market, NodeKey, Rejection, VerifyError};

use crate::durable::FileError;

/// Why a request has no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Not an address of a coordinator.
    #[error("{url:?} is not a coordinator's address: expected http://HOST:PORT or https://HOST")]
    BadUrl {
        /// What was given.
        url: String,
    },
    /// No connection, no answer in time, or an answer that says "later": trying again may help.
    #[error("the coordinator does not answer {what}: {why}")]
    Unavailable {
        /// Which request.
        what: String,
        /// What happened.
        why: String,
    },
    /// More requests than the coordinator takes from us; trying again later helps.
    #[error("the coordinator calls {what} one request too many: {why}")]
    TooOften {
        /// Which request.
        what: String,
        /// In its words.
        why: String,
        /// Seconds that it asks us to wait.
        after_s: u64,
    },
    /// No TLS connection, and trying again does not help.
    #[error(
        "no TLS connection for {what}: {why}. A coordinator with a certificate of its own is \
         believed with --certificate FILE, one without TLS has an http:// address"
    )]
    NotTrusted {
        /// Which request.
        what: String,
        /// What happened.
        why: String,
    },
    /// The coordinator said no.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// An answer that is none: another format, or longer than it may be.
    #[error("the answer to {what} is not understood: {why}")]
    NotUnderstood {
        /// Which request.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// Signed by somebody else, or not at all.
    #[error("{what} is not signed by the coordinator's node key {key}: {source}")]
    NotSigned {
        /// Which message.
        what: String,
        /// The key that was expected.
        key: NodeKey,
        /// What is wrong with the signature.
        source: VerifyError,
    },
    /// Signed, but about something else than what was asked.
    #[error("{what}: {why}")]
    WrongContent {
        /// Which message.
        what: String,
        /// What it says, and what would be right.
        why: String,
    },
    /// Bytes that are not those of their digest.
    #[error("blob {expected}: the coordinator sent bytes of digest {got}")]
    WrongDigest {
        /// What was asked for.
        expected: Digest,
        /// What came.
        got: Digest,
    },
    /// Another coordinator than at first contact.
    #[error(
        "this is not the coordinator of the first contact: {was}, now {now}. If that is meant, \
         use another data folder"
    )]
    CoordinatorChanged {
        /// Who it was.
        was: Box<Coordinator>,
        /// Who it is.
        now: Box<Coordinator>,
    },
    /// Disk trouble.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Who runs a market.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coordinator {
    /// Chain and genesis.
    pub market: Market,
    /// Its account.
    pub account: Address,
    /// What it signs with.
    pub node_key: NodeKey,
}

impl std::fmt::Display for Coordinator {
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
    /// The stable code; a rejection's own for a rejection.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::BadUrl { .. } => "BAD_URL",
            Self::Unavailable { .. } => "COORDINATOR_UNAVAILABLE",
            Self::TooOften { .. } => "RATE_LIMITED",
            Self::NotTrusted { .. } => "TLS_NOT_TRUSTED",
            Self::Rejected(rejection) => rejection.code.as_str(),
            Self::NotUnderstood { .. } => "ANSWER_NOT_UNDERSTOOD",
            Self::NotSigned { .. } => "BAD_SIGNATURE",
            Self::WrongContent { .. } => "WRONG_CONTENT",
            Self::WrongDigest { .. } => "WRONG_DIGEST",
            Self::CoordinatorChanged { .. } => "COORDINATOR_CHANGED",
            Self::File(error) => error.code(),
        }
    }

    /// The rejection, if this is one.
    #[must_use]
    pub fn rejection(&self) -> Option<&Rejection> {
        match self {
            Self::Rejected(rejection) => Some(rejection),
            _ => None,
        }
    }
}
