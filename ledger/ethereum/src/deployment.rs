//! Where a market's contracts are: what a client needs to know besides a node.

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{Address, Canonical, ChainId, Market};
use serde::{Deserialize, Serialize};

/// A market's contracts on one chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deployment {
    /// The chain.
    pub chain: ChainId,
    /// The ERC-20 that everything is counted in.
    pub token: Address,
    /// Escrow, bonds, stakes, settlements.
    pub market: Address,
    /// Node keys of wallets.
    pub registry: Address,
    /// The block that holds the market's deployment: nothing of it is older.
    pub block: u64,
}

/// What makes a market the one that it is. The block is left out: a reorganisation may move it.
#[derive(BorshSerialize, BorshDeserialize)]
struct Identity {
    chain: ChainId,
    token: Address,
    market: Address,
    registry: Address,
}

impl Canonical for Identity {
    const DOMAIN: &'static str = "florin v1 deployment";
}

impl Deployment {
    /// The market as messages name it: its genesis is the digest of chain and addresses.
    #[must_use]
    pub fn market(&self) -> Market {
        let Self { chain, token, market, registry, .. } = *self;
        let genesis = Identity { chain, token, market, registry }.digest();
        Market { chain, genesis }
    }
}
