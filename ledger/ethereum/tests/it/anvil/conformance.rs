//! The conformance suite on the contracts, with anvil.

use std::sync::Arc;

use florin_ledger::Ledger;
use florin_ledger::conformance::{
    Fixture, INITIAL_BALANCE, SIGNER_COUNT, TestLedger, TestSigner, run,
};
use florin_ledger_ethereum::{EthereumLedger, Settings, Token, deploy};
use florin_protocol::{Amount, WalletSigner};
use serde_json::json;

use super::chain::AnvilNode;

struct AnvilFixture {
    anvil: Arc<AnvilNode>,
}

impl Fixture for AnvilFixture {
    fn new_ledger(&self) -> TestLedger {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let signers: Vec<TestSigner> =
            (1..=SIGNER_COUNT as u64).map(|n| TestSigner::new(n).unwrap()).collect();
        let deployer = TestSigner::new(100).unwrap();
        self.anvil.fund_gas(deployer.address());
        let supply = INITIAL_BALANCE.mul_div_down(SIGNER_COUNT as u128, 1).unwrap();
        let token = Token::New { supply, holder: deployer.address() };
        let settings = Settings::default();
        let endpoint = &self.anvil.endpoint;
        let deployment = deploy(endpoint, &deployer, token, settings, folder.path()).unwrap();
        let ledger =
            EthereumLedger::open(Arc::clone(endpoint), deployment, settings, folder.path())
                .unwrap();
        for signer in &signers {
            self.anvil.fund_gas(signer.address());
            ledger.transfer(&deployer, signer.address(), INITIAL_BALANCE).unwrap();
        }
        assert_eq!(ledger.balance(deployer.address()).unwrap(), Amount::ZERO);
        let anvil = Arc::clone(&self.anvil);
        let advance = move |ms: u64| {
            // The outboxes must exist as long as the clock of the test ledger.
            let _ = &folder;
            anvil.request("evm_increaseTime", json!([ms / 1_000]));
            anvil.request("evm_mine", json!([]));
        };
        TestLedger {
            ledger: Box::new(ledger),
            signers: signers.into_iter().map(|s| Box::new(s) as Box<dyn WalletSigner>).collect(),
            advance: Box::new(advance),
            is_clock_exact: false,
        }
    }
}

#[test]
fn the_contracts_pass_the_conformance_suite_on_anvil() {
    run(&AnvilFixture { anvil: Arc::new(AnvilNode::start(&[])) }).unwrap();
}
