//! The wallet: one secp256k1 key in a keystore v3 file, and all keys derived from it.
//!
//! One backup restores all keys. The node key (Ed25519), with which a participant or provider signs
//! frequent messages, is derived from the wallet's key: its seed is BLAKE3 in key-derivation mode,
//! context [`NODE_KEY_CONTEXT`], over the 32 bytes of the secp256k1 secret key. The wallet gives
//! the node key, but the node key does not reveal the wallet's key.
//!
//! The recovery phrase (BIP-39) is displayed once, at creation, and never stored: the file holds
//! the key derived from it on Ethereum's standard path (BIP-44). An export is a keystore as well,
//! not a phrase.

mod keystore;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use coins_bip39::{English, Entropy, Mnemonic};
use florin_protocol::{
    Address, NodeSigner, SignError, WalletSignature, WalletSigner, address_of_key, sign_hash,
};
use k256::ecdsa::SigningKey;
use rand::TryRng;
use zeroize::{Zeroize, Zeroizing};

pub use keystore::{KEYSTORE_BYTES_MAX, KeystoreCost, KeystoreStrength, check_keystore};

use crate::atomic_file::{self, FileError};
use crate::secret::Secret;

/// Key-derivation context of the node key. A change would change all node keys.
pub const NODE_KEY_CONTEXT: &str = "florin v1 node key of a wallet";
/// Number of words of a new recovery phrase.
pub const PHRASE_WORDS: usize = 12;
/// Derivation path of the account's key.
pub const DERIVATION_PATH: &str = "m/44'/60'/0'/0/0";

/// An account with its secret key.
pub struct Wallet {
    key: SigningKey,
}

/// Errors of the wallet.
#[derive(Debug, thiserror::Error)]
pub enum WalletError {
    /// The file does not exist.
    #[error(
        "there is no wallet at {path}: create one with `florin wallet new`",
        path = path.display()
    )]
    NoKeystore {
        /// The path.
        path: PathBuf,
    },
    /// The file exists; it may hold the only copy of a key.
    #[error(
        "{path} exists and is not overwritten: choose another name, or move the file",
        path = path.display()
    )]
    KeystoreExists {
        /// The file.
        path: PathBuf,
    },
    /// Not a keystore v3 file.
    #[error("{path} is not a keystore v3 file: {what}", path = path.display())]
    KeystoreCorrupt {
        /// The file.
        path: PathBuf,
        /// The defect.
        what: String,
    },
    /// The passphrase does not decrypt the file.
    #[error(
        "the passphrase does not decrypt {path}: the passphrase is wrong, or the file is damaged",
        path = path.display()
    )]
    WrongPassphrase {
        /// The file.
        path: PathBuf,
    },
    /// An empty passphrase gives no protection.
    #[error("the passphrase is empty: choose one")]
    EmptyPassphrase,
    /// Not a BIP-39 phrase. The message does not contain the phrase.
    #[error("not a recovery phrase: {0}")]
    BadPhrase(&'static str),
    /// Not a private key. The message does not contain the text.
    #[error("not a private key: expected 64 hexadecimal digits below the curve's order")]
    BadKey,
    /// The operating system provides no random bytes.
    #[error("the operating system provides no random bytes, so no key can be generated: {0}")]
    NoRandomness(String),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

impl WalletError {
    /// The stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoKeystore { .. } => "NO_KEYSTORE",
            Self::KeystoreExists { .. } => "KEYSTORE_EXISTS",
            Self::KeystoreCorrupt { .. } => "KEYSTORE_CORRUPT",
            Self::WrongPassphrase { .. } => "WRONG_PASSPHRASE",
            Self::EmptyPassphrase => "EMPTY_PASSPHRASE",
            Self::BadPhrase(_) => "INVALID_PHRASE",
            Self::BadKey => "INVALID_KEY",
            Self::NoRandomness(_) => "RANDOMNESS_UNAVAILABLE",
            Self::File(error) => error.code(),
        }
    }
}

impl Wallet {
    /// Creates a wallet from fresh entropy and writes its keystore to `path`. Also returns the
    /// recovery phrase, which is not stored: display it once, so that the user can write it down.
    ///
    /// # Errors
    /// [`WalletError::KeystoreExists`], [`WalletError::EmptyPassphrase`],
    /// [`WalletError::NoRandomness`], [`WalletError::File`].
    pub fn create(
        path: &Path,
        passphrase: &Secret,
        strength: KeystoreStrength,
    ) -> Result<(Self, Secret), WalletError> {
        let entropy = Zeroizing::new(random::<16>()?);
        let phrase = Mnemonic::<English>::new_from_entropy(Entropy::Sixteen(*entropy)).to_phrase();
        let phrase = Secret::new(phrase);
        Ok((Self::import_phrase(path, &phrase, passphrase, strength)?, phrase))
    }

    /// Writes the wallet of a recovery phrase to `path`. White space and letter case are ignored.
    ///
    /// # Errors
    /// [`WalletError::BadPhrase`], and those of [`Wallet::create_new`].
    pub fn import_phrase(
        path: &Path,
        phrase: &Secret,
        passphrase: &Secret,
        strength: KeystoreStrength,
    ) -> Result<Self, WalletError> {
        Self { key: key_from_phrase(phrase)? }.store(path, passphrase, strength)
    }

    /// Writes the wallet of a private key, 64 hexadecimal digits, to `path`.
    ///
    /// # Errors
    /// [`WalletError::BadKey`], and those of [`Wallet::create_new`].
    pub fn import_key(
        path: &Path,
        key: &Secret,
        passphrase: &Secret,
        strength: KeystoreStrength,
    ) -> Result<Self, WalletError> {
        Self::from_key(key)?.store(path, passphrase, strength)
    }

    /// Writes the wallet of another keystore file to `path`, with the same passphrase.
    ///
    /// # Errors
    /// Those of [`Wallet::open`] and [`Wallet::create_new`].
    pub fn import_keystore(
        path: &Path,
        from: &Path,
        passphrase: &Secret,
        strength: KeystoreStrength,
    ) -> Result<Self, WalletError> {
        Self::open(from, passphrase)?.store(path, passphrase, strength)
    }

    /// Opens the keystore at `path`.
    ///
    /// # Errors
    /// [`WalletError::NoKeystore`], [`WalletError::KeystoreCorrupt`],
    /// [`WalletError::WrongPassphrase`], [`WalletError::File`].
    pub fn open(path: &Path, passphrase: &Secret) -> Result<Self, WalletError> {
        Ok(Self { key: keystore::open(path, passphrase)? })
    }

    /// A wallet in memory only, from a private key of 64 hexadecimal digits.
    ///
    /// # Errors
    /// [`WalletError::BadKey`].
    pub fn from_key(key: &Secret) -> Result<Self, WalletError> {
        let mut bytes: [u8; 32] = key
            .reveal()
            .trim()
            .parse::<florin_protocol::Digest>()
            .map_err(|_| WalletError::BadKey)?
            .0;
        let key = SigningKey::from_slice(&bytes).map_err(|_| WalletError::BadKey);
        bytes.zeroize();
        Ok(Self { key: key? })
    }

    /// Writes a copy of the keystore to `to`, with its own passphrase. The copy does not contain
    /// the recovery phrase, which is displayed at creation only.
    ///
    /// # Errors
    /// [`WalletError::KeystoreExists`], [`WalletError::EmptyPassphrase`], [`WalletError::File`].
    pub fn export(
        &self,
        to: &Path,
        passphrase: &Secret,
        strength: KeystoreStrength,
    ) -> Result<(), WalletError> {
        if passphrase.reveal().is_empty() {
            return Err(WalletError::EmptyPassphrase);
        }
        let exists = || WalletError::KeystoreExists { path: to.to_owned() };
        // Checked first, to skip a key derivation of about a second.
        if to.symlink_metadata().is_ok() {
            return Err(exists());
        }
        let bytes = keystore::encrypt(&self.key, passphrase, strength)?;
        atomic_file::create_new(to, &bytes).map_err(|error| match error.source.kind() {
            io::ErrorKind::AlreadyExists => exists(),
            _ => error.into(),
        })
    }

    /// The node key derived from this wallet; see the module documentation.
    #[must_use]
    pub fn node_signer(&self) -> NodeSigner {
        let secret = Zeroizing::new(self.key.to_bytes());
        let seed = Zeroizing::new(blake3::derive_key(NODE_KEY_CONTEXT, secret.as_slice()));
        NodeSigner::from_seed(&seed)
    }

    /// Derives a 32-byte secret for another purpose, named by `context`. Deterministic.
    pub(crate) fn derive_secret(&self, context: &'static str) -> Zeroizing<[u8; 32]> {
        let secret = Zeroizing::new(self.key.to_bytes());
        Zeroizing::new(blake3::derive_key(context, secret.as_slice()))
    }

    fn store(
        self,
        path: &Path,
        passphrase: &Secret,
        strength: KeystoreStrength,
    ) -> Result<Self, WalletError> {
        self.export(path, passphrase, strength)?;
        Ok(self)
    }
}

impl fmt::Debug for Wallet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wallet({})", self.address())
    }
}

impl WalletSigner for Wallet {
    fn address(&self) -> Address {
        address_of_key(self.key.verifying_key())
    }

    fn sign_typed_data(&self, hash: [u8; 32]) -> Result<WalletSignature, SignError> {
        sign_hash(&self.key, hash)
    }
}

/// The key of a recovery phrase, on the path [`DERIVATION_PATH`].
fn key_from_phrase(phrase: &Secret) -> Result<SigningKey, WalletError> {
    let words: Vec<Zeroizing<String>> = phrase
        .reveal()
        .split_whitespace()
        .map(|word| Zeroizing::new(word.to_lowercase()))
        .collect();
    if ![12, 15, 18, 21, 24].contains(&words.len()) {
        return Err(WalletError::BadPhrase("expected 12, 15, 18, 21 or 24 words"));
    }
    let mut plain = Zeroizing::new(String::new());
    for (at, word) in words.iter().enumerate() {
        if at > 0 {
            plain.push(' ');
        }
        plain.push_str(word);
    }
    // The parser's errors quote the phrase, so they are not propagated.
    let derived = Mnemonic::<English>::new_from_phrase(plain.as_str())
        .and_then(|mnemonic| mnemonic.derive_key(DERIVATION_PATH, None));
    let derived = derived.map_err(|_| {
        WalletError::BadPhrase(
            "a word is not in the English word list, or the last word, which is a checksum, does \
             not fit the others",
        )
    })?;
    let key: &SigningKey = derived.as_ref();
    Ok(key.clone())
}

/// Random bytes from the operating system.
fn random<const N: usize>() -> Result<[u8; N], WalletError> {
    let mut bytes = [0u8; N];
    rand::rngs::SysRng
        .try_fill_bytes(&mut bytes)
        .map_err(|error| WalletError::NoRandomness(error.to_string()))?;
    Ok(bytes)
}
