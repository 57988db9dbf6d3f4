//! A model of the ledger in small integers, and the random operations under which a real ledger is compared with it.

pub mod books;
pub mod cast;
pub mod coverage;
pub mod dice;
pub mod draw;
pub mod operation;
pub mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use florin_ledger::Genesis;
use florin_protocol::{Address, ChainId, NodeSigner};

use books::{FUNDS, Model, PEOPLE};
use cast::{Cast, START, units};

/// The model of a ledger in which every account has the same balance.
pub fn fresh_model() -> Model {
    Model { wallets: [FUNDS; PEOPLE], now: START, ..Model::default() }
}

pub fn operator() -> NodeSigner {
    NodeSigner::from_seed(&[3; 32])
}

pub fn genesis(cast: &Cast) -> Genesis {
    Genesis {
        chain_id: ChainId(5),
        operator: Address([1; 20]),
        operator_key: operator().key(),
        allocations: (0..PEOPLE).map(|n| (cast.address(n), units(FUNDS))).collect(),
        created: cast.tick(START),
    }
}

/// A clock that a test sets.
#[derive(Clone, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    pub fn set(&self, to: florin_protocol::Timestamp) {
        self.0.store(to.0, Ordering::SeqCst);
    }

    pub fn as_seen_by_a_chain(&self) -> florin_ledger::Clock {
        let now = Arc::clone(&self.0);
        Arc::new(move || florin_protocol::Timestamp(now.load(Ordering::SeqCst)))
    }
}
