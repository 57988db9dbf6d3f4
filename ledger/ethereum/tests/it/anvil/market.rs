//! A chain with a market, funded accounts, and faults of their transactions.

use std::path::Path;
use std::sync::Arc;

use alloy_consensus::{SignableTransaction, TxEip1559};
use alloy_primitives::{B256, Bytes, Signature, TxKind, U64, U256, keccak256};
use florin_ledger::conformance::TestSigner;
use florin_ledger_ethereum::{Deployment, Endpoint, EthereumLedger, Settings, Token, deploy};
use florin_protocol::{Address, Amount, WalletSigner};
use serde_json::{Value, json};

use super::chain::AnvilNode;

/// A fault that affects the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransactionFault {
    Undisturbed,
    /// The node drops it from the mempool.
    Dropped,
    /// Another device with the same wallet uses its nonce for another transaction.
    Replaced,
    /// It stays in the mempool until the restarted process has begun.
    Delayed,
}

pub(crate) fn fln(n: u64) -> Amount {
    Amount::from_units(u128::from(n) * 1_000_000_000_000_000_000)
}

pub(crate) struct AnvilMarket {
    pub(crate) anvil: AnvilNode,
    pub(crate) deployment: Deployment,
    pub(crate) funder: TestSigner,
    /// The outboxes of the funding account.
    pub(crate) folder: tempfile::TempDir,
    next: u64,
}

pub(crate) fn settings() -> Settings {
    // A short timeout, so that a crashed process is detected at once.
    Settings { write_timeout_ms: 4_000, displaced_ms: 250, ..Settings::default() }
}

/// Settings of a process that crashes: it does not wait.
pub(crate) fn short_timeout() -> Settings {
    Settings { write_timeout_ms: 30, ..settings() }
}

impl AnvilMarket {
    pub(crate) fn set(first: u64) -> Self {
        let anvil = AnvilNode::start(&[]);
        let funder = TestSigner::new(first).unwrap();
        anvil.fund_gas(funder.address());
        let folder = tempfile::tempdir().unwrap();
        let token = Token::New { supply: fln(1_000_000), holder: funder.address() };
        let deployment =
            deploy(&anvil.endpoint, &funder, token, settings(), folder.path()).unwrap();
        Self { anvil, deployment, funder, folder, next: first + 1 }
    }

    /// The number of accounts so far, which makes ids unique.
    pub(crate) const fn number(&self) -> u64 {
        self.next
    }

    /// Sets an account's token balance in the token's storage.
    pub(crate) fn set_florins(&self, account: Address, value: Amount) {
        let mut key = [0u8; 64];
        key[12..32].copy_from_slice(&account.0);
        let slot = keccak256(key);
        let value = B256::from(U256::from(value.units()));
        self.anvil.request(
            "anvil_setStorageAt",
            json!([self.deployment.token.to_string(), U256::from_be_bytes(slot.0), value]),
        );
    }

    pub(crate) fn new_account(&mut self) -> TestSigner {
        self.next += 1;
        let person = TestSigner::new(self.next).unwrap();
        self.anvil.fund_gas(person.address());
        person
    }

    pub(crate) fn open(
        &self,
        endpoint: Arc<dyn Endpoint>,
        settings: Settings,
        folder: &Path,
    ) -> EthereumLedger {
        EthereumLedger::open(endpoint, self.deployment, settings, folder).unwrap()
    }

    pub(crate) fn mine(&self, blocks: u64) {
        self.anvil.request("anvil_mine", json!([format!("{blocks:#x}")]));
    }

    pub(crate) fn wait(&self, ms: u64) {
        self.anvil.request("evm_increaseTime", json!([ms.div_ceil(1_000)]));
        self.mine(1);
    }

    /// Uses the nonce of an account for another transaction.
    pub(crate) fn use_nonce(&self, by: &TestSigner, nonce: u64) {
        let transaction = TxEip1559 {
            chain_id: self.deployment.chain.0,
            nonce,
            gas_limit: 21_000,
            max_fee_per_gas: 100_000_000_000,
            max_priority_fee_per_gas: 50_000_000_000,
            to: TxKind::Call(alloy_primitives::Address::from(by.address().0)),
            value: U256::ZERO,
            ..TxEip1559::default()
        };
        let signature = by.sign_transaction(transaction.signature_hash().0).unwrap();
        let signed = transaction.into_signed(Signature::from_raw_array(&signature.0).unwrap());
        let mut raw = Vec::new();
        signed.eip2718_encode(&mut raw);
        self.anvil.request("eth_sendRawTransaction", json!([Bytes::from(raw)]));
    }

    pub(crate) fn nonce(&self, account: Address, tag: &str) -> u64 {
        let count =
            self.anvil.request("eth_getTransactionCount", json!([account.to_string(), tag]));
        serde_json::from_value::<U64>(count).unwrap().to()
    }

    pub(crate) fn pending_of(&self, account: Address) -> Vec<Value> {
        let pool = self.anvil.request("txpool_content", json!([]));
        let mine = pool["pending"]
            .as_object()
            .unwrap()
            .iter()
            .find(|(who, _)| who.parse::<Address>().is_ok_and(|who| who == account));
        mine.map(|(_, by_nonce)| by_nonce.as_object().unwrap().values().cloned().collect())
            .unwrap_or_default()
    }

    /// Applies a fault to the account's last transaction, mined or not; `before` is its earlier
    /// nonce.
    pub(crate) fn apply_fault(
        &self,
        by: &TestSigner,
        fate: TransactionFault,
        depth: u64,
        before: u64,
    ) {
        self.anvil.wait_until_mined();
        if fate == TransactionFault::Dropped {
            for transaction in self.pending_of(by.address()) {
                self.anvil.request("anvil_dropTransaction", json!([transaction["hash"]]));
            }
        }
        if depth > 0 {
            self.anvil.reorganise(depth);
        }
        if fate == TransactionFault::Replaced && self.nonce(by.address(), "latest") <= before {
            for transaction in self.pending_of(by.address()) {
                self.anvil.request("anvil_dropTransaction", json!([transaction["hash"]]));
            }
            self.use_nonce(by, before);
        }
        if fate != TransactionFault::Delayed {
            self.resume_mining();
        }
    }

    pub(crate) fn resume_mining(&self) {
        self.anvil.request("evm_setAutomine", json!([true]));
        self.mine(1);
    }
}
