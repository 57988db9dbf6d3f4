//! The wallet: one secp256k1 key in a keystore file, and everything that follows from it.
//!
//! One backup restores all of it. The node key (ed25519), with which a participant or provider
//! signs frequent things, is derived from the wallet's key: its seed is blake3 in key-derivation
//! mode, context [`NODE_KEY_CONTEXT`], over the 32 bytes of the secp256k1 secret. Whoever has the
//! wallet has the node key; from the node key nothing leads back to the wallet.
//!
//! The recovery phrase (BIP-39) is shown once, when a wallet is made, and never stored: the file
//! holds the key that follows from it on Ethereum's usual path, and an export of it is a keystore
//! too, not a phrase.

mod keystore;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use alloy_primitives::B256;
use alloy_signer::SignerSync;
use alloy_signer_local::coins_bip39::{English, Entropy, Mnemonic};
use alloy_signer_local::{MnemonicBuilder, PrivateKeySigner};
use florin_protocol::{Address, NodeSigner, SignError, Signer, WalletSignature};
use rand::TryRng;
use zeroize::{Zeroize, Zeroizing};

pub use keystore::{KEYSTORE_BYTES_MAX, KeystoreCost, Strength, check_keystore};

use crate::durable::{self, FileError};
use crate::secret::Secret;

/// Context of the node key's derivation. Another one would be another node key.
pub const NODE_KEY_CONTEXT: &str = "florin v1 node key of a wallet";
/// Words of a new phrase.
pub const PHRASE_WORDS: usize = 12;
/// Where in the phrase's tree of keys the account lies.
pub const DERIVATION_PATH: &str = "m/44'/60'/0'/0/0";

/// An account and the key that signs for it.
pub struct Wallet {
    signer: PrivateKeySigner,
}

/// Why there is no wallet.
#[derive(Debug, thiserror::Error)]
pub enum WalletError {
    /// There is no such file.
    #[error(
        "there is no wallet at {path}: make one with `florin wallet new`",
        path = path.display()
    )]
    NoKeystore {
        /// Where one was looked for.
        path: PathBuf,
    },
    /// There is a file already; it may hold the only copy of a key.
    #[error(
        "{path} exists and is not overwritten: choose another name or move it away",
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
        /// What is wrong with it.
        what: String,
    },
    /// The passphrase does not open it.
    #[error(
        "the passphrase does not open {path}: it is another one, or the file is damaged",
        path = path.display()
    )]
    WrongPassphrase {
        /// The file.
        path: PathBuf,
    },
    /// An empty passphrase protects nothing.
    #[error("the passphrase is empty: give the wallet one")]
    EmptyPassphrase,
    /// Not a BIP-39 phrase. The phrase itself is not repeated.
    #[error("not a recovery phrase: {0}")]
    BadPhrase(&'static str),
    /// Not a private key. The text itself is not repeated.
    #[error("not a private key: expected 64 hexadecimal digits below the curve's order")]
    BadKey,
    /// The operating system gave no random bytes.
    #[error("no randomness from the operating system, so no key can be made: {0}")]
    NoRandomness(String),
    /// Disk trouble.
    #[error(transparent)]
    File(#[from] FileError),
}

impl WalletError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoKeystore { .. } => "NO_KEYSTORE",
            Self::KeystoreExists { .. } => "KEYSTORE_EXISTS",
            Self::KeystoreCorrupt { .. } => "KEYSTORE_CORRUPT",
            Self::WrongPassphrase { .. } => "WRONG_PASSPHRASE",
            Self::EmptyPassphrase => "EMPTY_PASSPHRASE",
            Self::BadPhrase(_) => "BAD_PHRASE",
            Self::BadKey => "BAD_KEY",
            Self::NoRandomness(_) => "NO_RANDOMNESS",
            Self::File(error) => error.code(),
        }
    }
}

impl Wallet {
    /// Makes a wallet from fresh randomness and writes its keystore to `path`. Returns the
    /// recovery phrase too, which is stored nowhere: show it once, to be written down.
    ///
    /// # Errors
    /// [`WalletError::KeystoreExists`], [`WalletError::EmptyPassphrase`],
    /// [`WalletError::NoRandomness`], [`WalletError::File`].
    pub fn create(
        path: &Path,
        passphrase: &Secret,
        strength: Strength,
    ) -> Result<(Self, Secret), WalletError> {
        let entropy = Zeroizing::new(random::<16>()?);
        let phrase = Mnemonic::<English>::new_from_entropy(Entropy::Sixteen(*entropy)).to_phrase();
        let phrase = Secret::new(phrase);
        Ok((Self::import_phrase(path, &phrase, passphrase, strength)?, phrase))
    }

    /// Writes the wallet of a recovery phrase to `path`. Spaces and capitals do not matter.
    ///
    /// # Errors
    /// [`WalletError::BadPhrase`], and those of [`Wallet::create`].
    pub fn import_phrase(
        path: &Path,
        phrase: &Secret,
        passphrase: &Secret,
        strength: Strength,
    ) -> Result<Self, WalletError> {
        Self { signer: signer_of_phrase(phrase)? }.keep(path, passphrase, strength)
    }

    /// Writes the wallet of a private key, 64 hexadecimal digits, to `path`.
    ///
    /// # Errors
    /// [`WalletError::BadKey`], and those of [`Wallet::create`].
    pub fn import_key(
        path: &Path,
        key: &Secret,
        passphrase: &Secret,
        strength: Strength,
    ) -> Result<Self, WalletError> {
        Self::from_key(key)?.keep(path, passphrase, strength)
    }

    /// Writes the wallet of another keystore file to `path`, under the same passphrase.
    ///
    /// # Errors
    /// Those of [`Wallet::open`] and [`Wallet::create`].
    pub fn import_keystore(
        path: &Path,
        from: &Path,
        passphrase: &Secret,
        strength: Strength,
    ) -> Result<Self, WalletError> {
        Self::open(from, passphrase)?.keep(path, passphrase, strength)
    }

    /// Opens the keystore at `path`.
    ///
    /// # Errors
    /// [`WalletError::NoKeystore`], [`WalletError::KeystoreCorrupt`],
    /// [`WalletError::WrongPassphrase`], [`WalletError::File`].
    pub fn open(path: &Path, passphrase: &Secret) -> Result<Self, WalletError> {
        Ok(Self { signer: keystore::open(path, passphrase)? })
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
        let signer = PrivateKeySigner::from_slice(&bytes).map_err(|_| WalletError::BadKey);
        bytes.zeroize();
        Ok(Self { signer: signer? })
    }

    /// Writes a copy of the keystore to `to`, under a passphrase of its own. The recovery phrase
    /// is not in it: it was shown when the wallet was made, and is stored nowhere.
    ///
    /// # Errors
    /// [`WalletError::KeystoreExists`], [`WalletError::EmptyPassphrase`], [`WalletError::File`].
    pub fn export(
        &self,
        to: &Path,
        passphrase: &Secret,
        strength: Strength,
    ) -> Result<(), WalletError> {
        if passphrase.reveal().is_empty() {
            return Err(WalletError::EmptyPassphrase);
        }
        let exists = || WalletError::KeystoreExists { path: to.to_owned() };
        // Asked first so that nobody waits a second for a key derivation in vain.
        if to.symlink_metadata().is_ok() {
            return Err(exists());
        }
        let bytes = keystore::encrypt(&self.signer, passphrase, strength)?;
        durable::create(to, &bytes).map_err(|error| match error.source.kind() {
            io::ErrorKind::AlreadyExists => exists(),
            _ => error.into(),
        })
    }

    /// The node key that belongs to this wallet; see the front of this module.
    #[must_use]
    pub fn node_signer(&self) -> NodeSigner {
        let secret = Zeroizing::new(self.signer.to_bytes().0);
        let seed = Zeroizing::new(blake3::derive_key(NODE_KEY_CONTEXT, secret.as_slice()));
        NodeSigner::from_seed(&seed)
    }

    /// Derives a secret of 32 bytes for another purpose, named by `context`. The same wallet and
    /// context always give the same.
    pub(crate) fn derive(&self, context: &'static str) -> Zeroizing<[u8; 32]> {
        let secret = Zeroizing::new(self.signer.to_bytes().0);
        Zeroizing::new(blake3::derive_key(context, secret.as_slice()))
    }

    fn keep(
        self,
        path: &Path,
        passphrase: &Secret,
        strength: Strength,
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

impl Signer for Wallet {
    fn address(&self) -> Address {
        self.signer.address().into()
    }

    fn sign_typed(&self, hash: [u8; 32]) -> Result<WalletSignature, SignError> {
        let signature = self
            .signer
            .sign_hash_sync(&B256::from(hash))
            .map_err(|error| SignError(error.to_string()))?;
        Ok(WalletSignature(signature.as_bytes()))
    }
}

fn signer_of_phrase(phrase: &Secret) -> Result<PrivateKeySigner, WalletError> {
    let words: Vec<Zeroizing<String>> = phrase
        .reveal()
        .split_whitespace()
        .map(|word| Zeroizing::new(word.to_lowercase()))
        .collect();
    if ![12, 15, 18, 21, 24].contains(&words.len()) {
        return Err(WalletError::BadPhrase("it has 12, 15, 18, 21 or 24 words"));
    }
    let mut plain = Zeroizing::new(String::new());
    for (at, word) in words.iter().enumerate() {
        if at > 0 {
            plain.push(' ');
        }
        plain.push_str(word);
    }
    // Errors of the parser quote the phrase, so none of them is passed on.
    MnemonicBuilder::from_phrase(plain.as_str())
        .derivation_path(DERIVATION_PATH)
        .and_then(|builder| builder.build())
        .map_err(|_| {
            WalletError::BadPhrase(
                "a word is not in the English list, or the last word, \
             which is a checksum, does not fit the others",
            )
        })
}

/// Random bytes from the operating system.
fn random<const N: usize>() -> Result<[u8; N], WalletError> {
    let mut bytes = [0u8; N];
    rand::rngs::SysRng
        .try_fill_bytes(&mut bytes)
        .map_err(|error| WalletError::NoRandomness(error.to_string()))?;
    Ok(bytes)
}
