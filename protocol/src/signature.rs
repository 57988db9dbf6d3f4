//! Signatures: EIP-712 typed data by the wallet (secp256k1) for rare messages, ed25519 by the node
//! key for frequent ones, and the registration that binds the two keys to each other.

use std::fmt;

use borsh::{BorshDeserialize, BorshSerialize};
use ed25519_dalek::{Signer as _, SigningKey, VerifyingKey};
use k256::ecdsa;
use k256::elliptic_curve::zeroize::Zeroizing;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::bytes::{Canonical, keccak256};
use crate::eip712::{TypedData, TypedValue};
use crate::id::{Address, MarketId, NodeKey, TaskId, impl_text_form};
use crate::recover::{recover_key, sign_recoverably};
use crate::time::Timestamp;

/// Why a signature is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The key is of small order: signatures under it can be forged.
    #[error(
        "the node key is weak (of small order): signatures under it can be forged; make a new key"
    )]
    WeakKey,
    /// The key is not a point of the curve.
    #[error("the node key is not an ed25519 public key")]
    InvalidKey,
    /// The signature does not verify.
    #[error("the signature does not verify for this message and key")]
    InvalidSignature,
    /// The wallet signature belongs to another account.
    #[error("signed by {signed_by}, not by {claimed}")]
    WrongSigner {
        /// The claimed signer.
        claimed: Address,
        /// The actual signer.
        signed_by: Address,
    },
    /// The message has expired.
    #[error("the message expired at {0}")]
    Expired(Timestamp),
    /// Signed for another market.
    #[error("the message was signed for another market or chain")]
    WrongMarket,
}

/// Why a signature could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot sign: {0}")]
pub struct SignError(pub String);

/// A wallet signature: r, s (low), v = 27 or 28; 65 bytes.
#[derive(Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "schema", derive(borsh::BorshSchema))]
pub struct WalletSignature(pub [u8; 65]);

/// An ed25519 signature; 64 bytes.
#[derive(Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "schema", derive(borsh::BorshSchema))]
pub struct NodeSignature(pub [u8; 64]);

macro_rules! impl_signature_text {
    ($name:ident, $len:literal, $what:literal) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                crate::id::write_hex(f, &self.0)
            }
        }
        impl std::str::FromStr for $name {
            type Err = crate::id::IdError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                crate::id::parse_hex::<$len>($what, text).map(Self)
            }
        }
        impl_text_form!($name);
    };
}
impl_signature_text!(WalletSignature, 65, "wallet signature");
impl_signature_text!(NodeSignature, 64, "node signature");

/// A wallet that signs for one account: a keystore, a hardware wallet, a test key.
pub trait WalletSigner: Send + Sync {
    /// The account.
    fn address(&self) -> Address;

    /// Signs the EIP-712 hash of a typed structure. The caller has displayed the structure to the
    /// key's owner. The method adds nothing, in particular no chain id beyond the one in the
    /// structure's domain.
    ///
    /// # Errors
    /// [`SignError`] if the key cannot be used.
    fn sign_typed_data(&self, hash: [u8; 32]) -> Result<WalletSignature, SignError>;

    /// Signs the hash of an Ethereum transaction; the hash covers the chain id. A key in memory
    /// signs it like any other hash; a wallet that displays what it signs distinguishes the two
    /// methods.
    ///
    /// # Errors
    /// [`SignError`] if the key cannot be used.
    fn sign_transaction(&self, hash: [u8; 32]) -> Result<WalletSignature, SignError> {
        self.sign_typed_data(hash)
    }
}

/// Recovers the account that signed `hash`.
///
/// # Errors
/// [`VerifyError::InvalidSignature`] for a v other than 27 or 28, for a high s (a second valid
/// signature of the same message), or if no key can have made the signature.
pub fn recover_wallet(hash: [u8; 32], signature: &WalletSignature) -> Result<Address, VerifyError> {
    recover_key(hash, &signature.0)
        .map(|point| address_of_point(&point))
        .ok_or(VerifyError::InvalidSignature)
}

/// The account of a secp256k1 key: the last 20 bytes of the Keccak-256 hash of its uncompressed
/// point.
#[must_use]
pub fn address_of_key(key: &ecdsa::VerifyingKey) -> Address {
    address_of_point(key.to_encoded_point(false).as_bytes())
}

/// The account of an uncompressed point: a byte 4, and two coordinates of 32 bytes.
fn address_of_point(point: &[u8]) -> Address {
    let hash = keccak256(point.get(1..).unwrap_or_default());
    let mut address = Address([0; 20]);
    address.0.iter_mut().zip(hash.iter().skip(12)).for_each(|(to, from)| *to = *from);
    address
}

/// Signs `hash` with a secp256k1 key: r, s (low) and v (27 or 28).
///
/// # Errors
/// [`SignError`] if the key cannot sign it, with negligible probability.
pub fn sign_hash(key: &ecdsa::SigningKey, hash: [u8; 32]) -> Result<WalletSignature, SignError> {
    let secret = Zeroizing::new(key.to_bytes().into());
    let signed = sign_recoverably(hash, &secret).map(WalletSignature);
    signed.ok_or_else(|| SignError("the key cannot sign this hash".to_owned()))
}

/// Verifies that `claimed` signed `hash`.
///
/// # Errors
/// [`VerifyError::WrongSigner`] or [`VerifyError::InvalidSignature`].
pub fn verify_wallet(
    hash: [u8; 32],
    signature: &WalletSignature,
    claimed: Address,
) -> Result<(), VerifyError> {
    let signed_by = recover_wallet(hash, signature)?;
    if signed_by == claimed { Ok(()) } else { Err(VerifyError::WrongSigner { claimed, signed_by }) }
}

/// A decompressed node key: a valid point of the curve, not of small order. Decompression takes
/// about a quarter of the time of a verification, so callers that verify many signatures of one key
/// decompress it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecompressedKey(VerifyingKey);

impl DecompressedKey {
    /// Decompresses a key.
    ///
    /// # Errors
    /// [`VerifyError::InvalidKey`], [`VerifyError::WeakKey`].
    pub fn decompress(key: NodeKey) -> Result<Self, VerifyError> {
        let key = VerifyingKey::from_bytes(&key.0).map_err(|_| VerifyError::InvalidKey)?;
        if key.is_weak() { Err(VerifyError::WeakKey) } else { Ok(Self(key)) }
    }

    /// Verifies a signature over `message`, exactly as [`verify_node`] does.
    ///
    /// # Errors
    /// [`VerifyError::InvalidSignature`].
    pub fn verify(&self, message: &[u8], signature: &NodeSignature) -> Result<(), VerifyError> {
        let signature = ed25519_dalek::Signature::from_bytes(&signature.0);
        self.0.verify_strict(message, &signature).map_err(|_| VerifyError::InvalidSignature)
    }
}

/// Verifies an ed25519 signature over `message` strictly: it rejects weak keys, non-canonical
/// points and malleated signatures.
///
/// # Errors
/// [`VerifyError`].
pub fn verify_node(
    key: NodeKey,
    message: &[u8],
    signature: &NodeSignature,
) -> Result<(), VerifyError> {
    DecompressedKey::decompress(key)?.verify(message, signature)
}

/// The secret half of a node key. Its `Debug` output has only the public half; its memory is zeroed
/// on drop.
#[derive(Clone)]
pub struct NodeSigner(SigningKey);

impl NodeSigner {
    /// Creates the key from 32 secret random bytes.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// The public half.
    #[must_use]
    pub fn key(&self) -> NodeKey {
        NodeKey(self.0.verifying_key().to_bytes())
    }

    /// Signs bytes as they are. They should be the digest of a [`Canonical`] message or an EIP-712
    /// hash.
    #[must_use]
    pub fn sign_bytes(&self, message: &[u8]) -> NodeSignature {
        NodeSignature(self.0.sign(message).to_bytes())
    }

    /// Signs the digest of a message.
    #[must_use]
    pub fn sign<T: Canonical>(&self, body: T) -> Signed<T> {
        let signature = self.sign_bytes(&body.digest().0);
        Signed { body, signature }
    }
}

impl fmt::Debug for NodeSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeSigner({})", self.key())
    }
}

/// A message and a node key's signature over its digest. It does not name the signing key: use
/// [`Signed::verify`].
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Signed<T> {
    /// The message.
    pub body: T,
    /// Signature over the digest of `body`.
    pub signature: NodeSignature,
}

impl<T: Canonical> Signed<T> {
    /// Verifies the signature and returns the message.
    ///
    /// # Errors
    /// [`VerifyError`] if `key` did not sign it.
    pub fn verify(&self, key: NodeKey) -> Result<&T, VerifyError> {
        self.verify_with(&DecompressedKey::decompress(key)?)
    }

    /// Verifies with a key that is already decompressed.
    ///
    /// # Errors
    /// [`VerifyError::InvalidSignature`].
    pub fn verify_with(&self, key: &DecompressedKey) -> Result<&T, VerifyError> {
        key.verify(&self.body.digest().0, &self.signature)?;
        Ok(&self.body)
    }
}

impl<T: Canonical> Canonical for Signed<T> {
    const DOMAIN: &'static str = "florin v1 signed";
}

/// Role of a registered account.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum Role {
    /// Trains on its own data.
    Participant,
    /// Does verifiable work for the market.
    Provider,
    /// Runs rounds.
    Coordinator,
}

impl Role {
    /// The signed and displayed form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Participant => "participant",
            Self::Provider => "provider",
            Self::Coordinator => "coordinator",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A buyer's request to end its task after the current round; signed by its wallet.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct CloseRequest {
    /// The task.
    pub task: TaskId,
    /// The buyer's signature.
    pub signature: WalletSignature,
}

impl CloseRequest {
    /// Creates and signs the request.
    ///
    /// # Errors
    /// [`SignError`] from the wallet.
    pub fn sign(
        market: MarketId,
        buyer: &dyn WalletSigner,
        task: TaskId,
    ) -> Result<Self, SignError> {
        Ok(Self { task, signature: buyer.sign_typed_data(Self::signing_hash(market, task))? })
    }

    /// The EIP-712 hash to sign.
    #[must_use]
    pub fn signing_hash(market: MarketId, task: TaskId) -> [u8; 32] {
        let fields = vec![("task", TypedValue::Bytes32(task.0))];
        TypedData { primary_type: "CloseTask", fields }.signing_hash(market)
    }

    /// Verifies that `buyer` signed it for `market`.
    ///
    /// # Errors
    /// [`VerifyError`].
    pub fn verify(&self, market: MarketId, buyer: Address) -> Result<(), VerifyError> {
        verify_wallet(Self::signing_hash(market, self.task), &self.signature, buyer)
    }
}

/// Binds a wallet and a node key: both sign the same hash, so that a registration requires the
/// possession of both keys.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Registration {
    /// Chain and market.
    pub market: MarketId,
    /// The account.
    pub wallet: Address,
    /// The key with which it signs frequent messages.
    pub node_key: NodeKey,
    /// Its role.
    pub role: Role,
    /// Expiry: not accepted after this time.
    pub expires: Timestamp,
    /// The wallet's signature.
    pub wallet_signature: WalletSignature,
    /// The node key's signature over the same hash.
    pub node_signature: NodeSignature,
}

impl Canonical for Registration {
    const DOMAIN: &'static str = "florin v1 registration";
}

impl Registration {
    /// Creates and signs a registration.
    ///
    /// # Errors
    /// [`SignError`] from the wallet.
    pub fn sign(
        market: MarketId,
        wallet: &dyn WalletSigner,
        node: &NodeSigner,
        role: Role,
        expires: Timestamp,
    ) -> Result<Self, SignError> {
        let hash = Self::signing_hash(market, wallet.address(), node.key(), role, expires);
        Ok(Self {
            market,
            wallet: wallet.address(),
            node_key: node.key(),
            role,
            expires,
            wallet_signature: wallet.sign_typed_data(hash)?,
            node_signature: node.sign_bytes(&hash),
        })
    }

    /// The EIP-712 hash that both keys sign.
    #[must_use]
    pub fn signing_hash(
        market: MarketId,
        wallet: Address,
        node_key: NodeKey,
        role: Role,
        expires: Timestamp,
    ) -> [u8; 32] {
        let fields = vec![
            ("wallet", TypedValue::Address(wallet)),
            ("nodeKey", TypedValue::Bytes32(node_key.0)),
            ("role", TypedValue::String(role.as_str().to_owned())),
            ("expires", TypedValue::Uint64(expires.0)),
        ];
        TypedData { primary_type: "Registration", fields }.signing_hash(market)
    }

    /// Verifies both signatures, the market and the expiry.
    ///
    /// # Errors
    /// [`VerifyError`].
    pub fn verify(&self, market: MarketId, now: Timestamp) -> Result<(), VerifyError> {
        if self.market != market {
            return Err(VerifyError::WrongMarket);
        }
        if now > self.expires {
            return Err(VerifyError::Expired(self.expires));
        }
        let hash =
            Self::signing_hash(self.market, self.wallet, self.node_key, self.role, self.expires);
        verify_wallet(hash, &self.wallet_signature, self.wallet)?;
        verify_node(self.node_key, &hash, &self.node_signature)
    }
}

#[cfg(test)]
#[path = "signature_tests.rs"]
pub(crate) mod tests;
