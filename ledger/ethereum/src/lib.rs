//! The market on Ethereum: the trait [`Ledger`](crate::Ledger) on the contracts in `contracts/`,
//! through any JSON-RPC node.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::float_arithmetic,
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::as_conversions
    )
)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod anchor;
mod check;
mod confirmation;
mod contracts;
mod deploy;
mod deployment;
mod endpoint;
mod history;
mod http;
mod ledger;
pub mod limits;
mod node;
mod outbox;
mod plan;
mod revert;
mod sender;
mod transaction_costs;
pub mod verify;

pub use anchor::{AnchoredHead, anchor_head, anchored_head};
pub use check::{DeploymentMismatch, chain_id, check_deployment, market_predates_deployment};
pub use contracts::{FlorinToken, Market as MarketContract, Registry, to_address};
pub use deploy::{Token, deploy};
pub use deployment::Deployment;
pub use endpoint::{Endpoint, EndpointError};
pub use florin_ledger::ethereum::Settings;
pub use http::{Health, HttpEndpoint};
pub use ledger::EthereumLedger;
pub use transaction_costs::{TransactionCost, transaction_costs};
