//! Requests that a wallet signs and that carry no signature of their own.

/// Implements signing and verification for a type with a field `by` and a method `signing_hash`.
macro_rules! wallet_signed {
    ($type:ty) => {
        impl $type {
            /// Signs it.
            ///
            /// # Errors
            /// [`SignError`](florin_protocol::SignError) from the wallet.
            pub fn sign(
                &self,
                market: florin_protocol::MarketId,
                wallet: &dyn florin_protocol::WalletSigner,
            ) -> Result<florin_protocol::WalletSignature, florin_protocol::SignError> {
                wallet.sign_typed_data(self.signing_hash(market))
            }

            /// Verifies that its account signed it for a market.
            ///
            /// # Errors
            /// [`VerifyError`](florin_protocol::VerifyError).
            pub fn verify(
                &self,
                market: florin_protocol::MarketId,
                signature: &florin_protocol::WalletSignature,
            ) -> Result<(), florin_protocol::VerifyError> {
                florin_protocol::verify_wallet(self.signing_hash(market), signature, self.by)
            }
        }
    };
}

pub(crate) use wallet_signed;
