//! Signing keys for tests and benchmarks.

use std::fmt;

use florin_protocol::{
    Address, SignError, WalletSignature, WalletSigner, address_of_key, sign_hash,
};
use k256::ecdsa::SigningKey;

/// Signs with a key that is derived from a public number. Never use it for money.
pub struct TestSigner {
    key: SigningKey,
    address: Address,
}

impl fmt::Debug for TestSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TestSigner({})", self.address)
    }
}

impl TestSigner {
    /// The signer with this number. Different numbers give different accounts.
    ///
    /// # Errors
    /// [`SignError`] if the seed is not a valid key, with a probability of about 2⁻¹²⁸.
    pub fn new(number: u64) -> Result<Self, SignError> {
        let mut hasher = blake3::Hasher::new_derive_key("florin v1 test signer");
        hasher.update(&number.to_le_bytes());
        let key = SigningKey::from_slice(hasher.finalize().as_bytes())
            .map_err(|error| SignError(error.to_string()))?;
        let address = address_of_key(key.verifying_key());
        Ok(Self { key, address })
    }
}

impl WalletSigner for TestSigner {
    fn address(&self) -> Address {
        self.address
    }

    fn sign_typed_data(&self, hash: [u8; 32]) -> Result<WalletSignature, SignError> {
        sign_hash(&self.key, hash)
    }
}
