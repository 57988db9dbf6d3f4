//! The conformance suite on the contracts, with a node in this process.

use std::sync::atomic::{AtomicU64, Ordering};

use florin_ledger::conformance::{
    self, Fixture, INITIAL_BALANCE, SIGNER_COUNT, TestLedger, TestSigner,
};
use florin_protocol::{Address, WalletSigner};

use super::market::{InProcessMarket, MarketTemplate};

/// The initial time, in seconds.
const START: u64 = 1_000;

struct ContractFixture(MarketTemplate);

fn signer(n: usize) -> TestSigner {
    TestSigner::new(n as u64).unwrap()
}

impl Fixture for ContractFixture {
    fn new_ledger(&self) -> TestLedger {
        let InProcessMarket { node, ledger, outbox } = self.0.market();
        let seconds = AtomicU64::new(START);
        let advance = move |ms: u64| {
            // The outboxes must exist as long as the test ledger.
            let _folder = &outbox;
            assert!(ms.is_multiple_of(1_000), "{ms} ms are not whole seconds");
            node.set_time(seconds.fetch_add(ms / 1_000, Ordering::SeqCst) + ms / 1_000);
        };
        TestLedger {
            ledger: Box::new(ledger),
            signers: (0..SIGNER_COUNT)
                .map(|n| Box::new(signer(n)) as Box<dyn WalletSigner>)
                .collect(),
            advance: Box::new(advance),
            // It stands still, but its resolution is one second.
            is_clock_exact: false,
        }
    }
}

#[test]
fn the_contracts_pass_the_conformance_suite_in_process() {
    let people: Vec<Address> = (0..SIGNER_COUNT).map(|n| signer(n).address()).collect();
    conformance::run(&ContractFixture(MarketTemplate::new(&people, INITIAL_BALANCE, START)))
        .unwrap();
}
