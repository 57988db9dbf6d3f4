//! The way to an Ethereum node: JSON-RPC, over whatever carries it.

use std::fmt;

use serde_json::Value;

/// Why a call brought no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// No answer, or one that makes no sense: it is not known whether the call had an effect.
    #[error("{0}")]
    Unreachable(String),
    /// The node said no.
    #[error("{message} (code {code})")]
    Answered {
        /// JSON-RPC's number for it.
        code: i64,
        /// In the node's words.
        message: String,
        /// What a contract reverted with, where it did.
        data: Option<Vec<u8>>,
    },
}

/// A node that answers JSON-RPC calls.
pub trait Endpoint: Send + Sync {
    /// Carries out one call, such as `eth_blockNumber`, and returns its `result`.
    ///
    /// # Errors
    /// [`EndpointError`].
    fn call(&self, method: &str, params: Value) -> Result<Value, EndpointError>;

    /// Names the node in messages to people, without secrets: an address may hold an access key.
    fn name(&self) -> String;
}

impl fmt::Debug for dyn Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", self.name())
    }
}
