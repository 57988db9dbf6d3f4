//! A model of the ledger in small integers, and the random operations under which a real ledger is compared with it.

pub mod accounts;
pub mod comparison;
pub mod coverage;
pub mod generator;
pub mod model;
pub mod operation;
pub mod rng;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use florin_ledger::Genesis;
use florin_protocol::{Address, ChainId, NodeSigner};

use accounts::{START, TestAccounts, units};
use model::{INITIAL_BALANCE, LedgerModel, PEOPLE};

/// The model of a ledger in which every account has the same balance.
pub fn fresh_model() -> LedgerModel {
    let grain = i128::try_from(units(1).units()).expect("a unit of the model is small");
    let mut model = LedgerModel { now: START, grain, ..LedgerModel::default() };
    model.wallets[..PEOPLE].fill(INITIAL_BALANCE);
    model
}

pub fn operator() -> NodeSigner {
    NodeSigner::from_seed(&[3; 32])
}

pub fn genesis(cast: &TestAccounts) -> Genesis {
    Genesis {
        chain_id: ChainId(5),
        operator: Address([1; 20]),
        operator_key: operator().key(),
        allocations: (0..PEOPLE).map(|n| (cast.address(n), units(INITIAL_BALANCE))).collect(),
        created: cast.tick(START),
    }
}

/// A clock that a test sets.
#[derive(Clone, Default)]
pub struct TestClock(Arc<AtomicU64>);

impl TestClock {
    pub fn set(&self, to: florin_protocol::Timestamp) {
        self.0.store(to.0, Ordering::SeqCst);
    }

    pub fn to_ledger_clock(&self) -> florin_ledger::LedgerClock {
        let now = Arc::clone(&self.0);
        Arc::new(move || florin_protocol::Timestamp(now.load(Ordering::SeqCst)))
    }
}
