//! wip
mod chained;
mod durable;
mod guard;
mod secret;
mod wallet;
pub use chained::ChainedError;
pub use durable::FileError;
pub use guard::*;
pub use secret::{SECRET_BYTES_MAX, Secret, SecretError};
pub use wallet::*;
