//! The connection to an Ethereum node: JSON-RPC over any transport.

use std::fmt;

use serde_json::Value;

/// The error of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// No response, or an invalid one: it is unknown whether the call had an effect.
    #[error("{0}")]
    Unreachable(String),
    /// The node returned an error.
    #[error("{message} (code {code})")]
    ErrorResponse {
        /// The JSON-RPC error code.
        code: i64,
        /// The node's message.
        message: String,
        /// The revert data of a contract, if there is any.
        data: Option<Vec<u8>>,
    },
}

/// A node that accepts JSON-RPC calls.
pub trait Endpoint: Send + Sync {
    /// Executes one call, such as `eth_blockNumber`, and returns its `result`.
    ///
    /// # Errors
    /// [`EndpointError`].
    fn call(&self, method: &str, params: Value) -> Result<Value, EndpointError>;

    /// The node's name for messages, without secrets: a URL may contain an access key.
    fn name(&self) -> String;
}

impl fmt::Debug for dyn Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", self.name())
    }
}
