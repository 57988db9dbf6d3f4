//! The market on Ethereum: the trait [`Ledger`](crate::Ledger) on the contracts in `contracts/`,
//! through any JSON-RPC node.

mod check;
mod contracts;
mod deploy;
mod deployment;
mod endpoint;
mod gas;
mod history;
mod http;
mod ledger;
mod node;
mod outbox;
mod plan;
mod refusals;
mod sender;
mod settings;
mod transit;
pub mod verify;

pub use check::{Foreign, began_earlier, chain_id, check};
pub use contracts::{FlorinToken, Market as MarketContract, Registry};
pub use deploy::{Token, deploy};
pub use deployment::Deployment;
pub use endpoint::{Endpoint, EndpointError};
pub use gas::{Spent, spent};
pub use http::{Health, HttpEndpoint};
pub use ledger::EthereumLedger;
pub use settings::Settings;
