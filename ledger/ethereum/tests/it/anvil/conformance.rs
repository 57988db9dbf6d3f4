//! The conformance suite on the contracts, with anvil.

use std::sync::Arc;

use florin_ledger::Ledger;
use florin_ledger::conformance::{FUNDS, Fixture, SIGNERS, TestSigner, World, run};
use florin_ledger_ethereum::{EthereumLedger, Settings, Token, deploy};
use florin_protocol::{Amount, WalletSigner};
use serde_json::json;

use super::chain::Anvil;

struct OnAnvil {
    anvil: Arc<Anvil>,
}

impl Fixture for OnAnvil {
    fn new_world(&self) -> World {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let signers: Vec<TestSigner> =
            (1..=SIGNERS as u64).map(|n| TestSigner::new(n).unwrap()).collect();
        let deployer = TestSigner::new(100).unwrap();
        self.anvil.fuel(deployer.address());
        let supply = FUNDS.mul_div_down(SIGNERS as u128, 1).unwrap();
        let token = Token::New { supply, holder: deployer.address() };
        let settings = Settings::default();
        let endpoint = &self.anvil.endpoint;
        let deployment = deploy(endpoint, &deployer, token, settings, folder.path()).unwrap();
        let ledger =
            EthereumLedger::open(Arc::clone(endpoint), deployment, settings, folder.path())
                .unwrap();
        for signer in &signers {
            self.anvil.fuel(signer.address());
            ledger.transfer(&deployer, signer.address(), FUNDS).unwrap();
        }
        assert_eq!(ledger.balance(deployer.address()).unwrap(), Amount::ZERO);
        let anvil = Arc::clone(&self.anvil);
        let advance = move |ms: u64| {
            // The outboxes must exist as long as the clock of the test ledger.
            let _ = &folder;
            anvil.ask("evm_increaseTime", json!([ms / 1_000]));
            anvil.ask("evm_mine", json!([]));
        };
        World {
            ledger: Box::new(ledger),
            signers: signers.into_iter().map(|s| Box::new(s) as Box<dyn WalletSigner>).collect(),
            advance: Box::new(advance),
            is_exact: false,
        }
    }
}

#[test]
fn the_contracts_pass_the_conformance_suite_on_anvil() {
    run(&OnAnvil { anvil: Arc::new(Anvil::start(&[])) }).unwrap();
}
