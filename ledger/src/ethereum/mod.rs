//! The same market on Ethereum: the trait [`Ledger`](crate::Ledger) on the contracts in `contracts/`, through any
//! node that answers JSON-RPC.

mod contracts;
mod deployment;
mod endpoint;
mod settings;

pub use contracts::{FlorinToken, Market as MarketContract, Registry};
pub use deployment::Deployment;
pub use endpoint::{Endpoint, EndpointError};
pub use settings::Settings;
