//! Keystore v3 files (Web3 Secret Storage), compatible with geth, MetaMask and Foundry.
//!
//! Every field is checked before it is used: a file may come from anywhere, and a wrong length or a
//! huge cost must be an error and not a crash. The primitives are RustCrypto's.

use std::path::Path;

use aes::Aes128;
use ctr::Ctr128BE;
use ctr::cipher::{KeyIvInit, StreamCipher};
use florin_protocol::{Address, address_of_key, keccak256};
use k256::ecdsa::SigningKey;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::WalletError;
use crate::atomic_file;
use crate::secret::Secret;

/// Largest keystore file that is read, in bytes; real ones have about 500.
pub const KEYSTORE_BYTES_MAX: u64 = 64 * 1024;
/// Limit on the memory that a file's scrypt parameters may require, in bytes.
const SCRYPT_MEMORY_MAX: u64 = 1024 * 1024 * 1024;
/// Limit on scrypt's parallelisation parameter p.
const SCRYPT_PARALLELISM_MAX: u32 = 64;
/// Limit on PBKDF2 iterations.
const PBKDF2_ITERATIONS_MAX: u32 = 10_000_000;
/// Longest salt, in bytes.
const SALT_BYTES_MAX: usize = 256;
const SCRYPT_BLOCK: u32 = 8;
const SCRYPT_PARALLELISM: u32 = 1;
const DERIVED_BYTES: usize = 32;
const IV_BYTES: usize = 16;
const KEY_BYTES: usize = 32;
const KEY_BYTES_MIN: usize = 28;

/// Strength of a keystore's key derivation: the scrypt cost, in geth's two settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeystoreStrength {
    /// N = 2¹⁸: 256 MiB and about a second per guess. For wallets that hold tokens.
    #[default]
    Standard,
    /// N = 2¹²: 4 MiB and some milliseconds per guess. For demonstrations and tests.
    Light,
}

impl KeystoreStrength {
    const fn log_n(self) -> u8 {
        match self {
            Self::Standard => 18,
            Self::Light => 12,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct KeystoreFile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    crypto: Crypto,
    id: String,
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct Crypto {
    cipher: String,
    cipherparams: CipherParams,
    ciphertext: String,
    kdf: String,
    kdfparams: KdfParams,
    mac: String,
}

#[derive(Serialize, Deserialize)]
struct CipherParams {
    iv: String,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum KdfParams {
    Pbkdf2 { c: u32, dklen: u32, prf: String, salt: String },
    Scrypt { dklen: u32, n: u32, p: u32, r: u32, salt: String },
}

/// Decrypts the keystore at `path` with its passphrase.
pub(super) fn open(path: &Path, passphrase: &Secret) -> Result<SigningKey, WalletError> {
    let corrupt = |what: String| WalletError::KeystoreCorrupt { path: path.to_owned(), what };
    let bytes = atomic_file::read_limited(path, KEYSTORE_BYTES_MAX)?
        .ok_or_else(|| WalletError::NoKeystore { path: path.to_owned() })?;
    let file: KeystoreFile =
        serde_json::from_slice(&bytes).map_err(|error| corrupt(error.to_string()))?;
    check_fields(&file).map_err(corrupt)?;
    // The remaining error is a wrong MAC over key and ciphertext: a wrong passphrase and a
    // corrupted file cannot be distinguished.
    let key = decrypt(&file.crypto, passphrase)
        .ok_or_else(|| WalletError::WrongPassphrase { path: path.to_owned() })?;
    if let Some(text) = &file.address {
        let stated: Address = text.parse().map_err(|_| corrupt(format!("address {text:?}")))?;
        let actual = address_of_key(key.verifying_key());
        if stated != actual {
            return Err(corrupt(format!(
                "its address is {stated}, but its key belongs to {actual}"
            )));
        }
    }
    Ok(key)
}

/// Decrypts the key of a checked file; `None` if the MAC or the key is wrong.
fn decrypt(crypto: &Crypto, passphrase: &Secret) -> Option<SigningKey> {
    let passphrase = passphrase.reveal().as_bytes();
    let mut derived = Zeroizing::new([0u8; DERIVED_BYTES]);
    match &crypto.kdfparams {
        KdfParams::Pbkdf2 { c, salt, .. } => {
            let salt = from_hex(salt)?;
            pbkdf2::pbkdf2_hmac::<sha2::Sha256>(passphrase, &salt, *c, derived.as_mut());
        }
        KdfParams::Scrypt { n, p, r, salt, .. } => {
            let log_n = u8::try_from(n.trailing_zeros()).ok()?;
            let params = scrypt::Params::new(log_n, *r, *p).ok()?;
            scrypt::scrypt(passphrase, &from_hex(salt)?, &params, derived.as_mut()).ok()?;
        }
    }
    let (cipher_key, mac_key) = derived.split_at(16);
    let mut text = Zeroizing::new(from_hex(&crypto.ciphertext)?);
    let mac = keccak256(&[mac_key, text.as_slice()].concat());
    if hex(&mac) != crypto.mac.to_ascii_lowercase() {
        return None;
    }
    Ctr128BE::<Aes128>::new_from_slices(cipher_key, &from_hex(&crypto.cipherparams.iv)?)
        .ok()?
        .apply_keystream(text.as_mut());
    let mut secret = Zeroizing::new([0u8; KEY_BYTES]);
    secret.iter_mut().rev().zip(text.iter().rev()).for_each(|(to, from)| *to = *from);
    SigningKey::from_slice(secret.as_slice()).ok()
}

/// The cost of a keystore's key derivation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeystoreCost {
    /// Memory in bytes.
    pub memory: u64,
    /// Number of hash iterations, in the unit of the key-derivation function.
    pub iterations: u64,
}

/// Checks a keystore without deriving its key, and returns the cost of the derivation.
///
/// # Errors
/// A message about the first invalid field.
pub fn check_keystore(bytes: &[u8]) -> Result<KeystoreCost, String> {
    let file: KeystoreFile = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    check_fields(&file)?;
    Ok(match &file.crypto.kdfparams {
        KdfParams::Pbkdf2 { c, .. } => KeystoreCost { memory: 0, iterations: (*c).into() },
        KdfParams::Scrypt { n, p, r, .. } => {
            let rounds = u64::from(*n).saturating_mul((*p).into()).saturating_mul((*r).into());
            let memory = u64::from(*n).saturating_mul((*r).into()).saturating_mul(128);
            KeystoreCost { memory, iterations: rounds }
        }
    })
}

/// Checks every field that the decryption relies on.
fn check_fields(file: &KeystoreFile) -> Result<(), String> {
    let must = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_owned()) };
    let hex = |text: &str, what: &str| {
        let even = text.len().is_multiple_of(2) && text.bytes().all(|c| c.is_ascii_hexdigit());
        if even { Ok(text.len() / 2) } else { Err(format!("{what} is not hexadecimal")) }
    };
    must(file.version == 3, &format!("version is {}: must be 3", file.version))?;
    let crypto = &file.crypto;
    must(
        crypto.cipher == "aes-128-ctr",
        &format!("cipher is {:?}: must be \"aes-128-ctr\"", crypto.cipher),
    )?;
    must(hex(&crypto.cipherparams.iv, "iv")? == IV_BYTES, "iv must have 16 bytes")?;
    // Early geth versions omitted leading zeros of the key.
    let key_bytes = hex(&crypto.ciphertext, "ciphertext")?;
    must((KEY_BYTES_MIN..=KEY_BYTES).contains(&key_bytes), "ciphertext must have 32 bytes")?;
    must(hex(&crypto.mac, "mac")? == 32, "mac must have 32 bytes")?;
    let length = DERIVED_BYTES as u32;
    let salt_fits = |salt: &str| Ok::<bool, String>(hex(salt, "salt")? <= SALT_BYTES_MAX);
    match (&crypto.kdfparams, crypto.kdf.as_str()) {
        (KdfParams::Pbkdf2 { c, dklen, prf, salt }, "pbkdf2") => {
            must(*dklen == length, "dklen must be 32")?;
            must(prf == "hmac-sha256", &format!("prf is {prf:?}: must be \"hmac-sha256\""))?;
            must(salt_fits(salt)?, "salt must have at most 256 bytes")?;
            let right = format!("c is {c}: must be 1 to {PBKDF2_ITERATIONS_MAX}");
            must((1..=PBKDF2_ITERATIONS_MAX).contains(c), &right)
        }
        (KdfParams::Scrypt { dklen, n, p, r, salt }, "scrypt") => {
            must(*dklen == length, "dklen must be 32")?;
            must(salt_fits(salt)?, "salt must have at most 256 bytes")?;
            must(n.is_power_of_two() && *n >= 2, &format!("n is {n}: must be a power of two"))?;
            must((1..=SCRYPT_PARALLELISM_MAX).contains(p), &format!("p is {p}: must be 1 to 64"))?;
            let log_n = n.trailing_zeros();
            let right = format!("n = {n} with r = {r}: n must be below 2^(16 r) (RFC 7914)");
            must(u64::from(log_n) < u64::from(*r).saturating_mul(16), &right)?;
            let memory = u64::from(*n).saturating_mul(u64::from(*r)).saturating_mul(128);
            let right = format!("n = {n} and r = {r} would require more than 1 GiB of memory");
            must(memory <= SCRYPT_MEMORY_MAX, &right)
        }
        (_, kdf) => {
            Err(format!("kdf {kdf:?} is unknown or does not match kdfparams: use scrypt or pbkdf2"))
        }
    }
}

/// Encodes a keystore file for `key`, encrypted with `passphrase`.
pub(super) fn encrypt(
    key: &SigningKey,
    passphrase: &Secret,
    strength: KeystoreStrength,
) -> Result<Vec<u8>, WalletError> {
    let salt: [u8; 32] = super::random()?;
    let iv: [u8; IV_BYTES] = super::random()?;
    let id: [u8; 16] = super::random()?;
    let mut derived = Zeroizing::new([0u8; DERIVED_BYTES]);
    let params = scrypt::Params::new(strength.log_n(), SCRYPT_BLOCK, SCRYPT_PARALLELISM)
        .expect("both strengths are within scrypt's bounds");
    scrypt::scrypt(passphrase.reveal().as_bytes(), &salt, &params, derived.as_mut())
        .expect("32 bytes is a valid output length of scrypt");
    let mut text = Zeroizing::new(key.to_bytes());
    Ctr128BE::<Aes128>::new_from_slices(&derived[..16], &iv)
        .expect("16 bytes are AES-128's key and block length")
        .apply_keystream(text.as_mut());
    let mac = keccak256(&[&derived[16..], text.as_slice()].concat());
    let file = KeystoreFile {
        address: Some(hex(address_of_key(key.verifying_key()).as_bytes())),
        crypto: Crypto {
            cipher: "aes-128-ctr".to_owned(),
            cipherparams: CipherParams { iv: hex(&iv) },
            ciphertext: hex(text.as_slice()),
            kdf: "scrypt".to_owned(),
            kdfparams: KdfParams::Scrypt {
                dklen: DERIVED_BYTES as u32,
                n: 1 << strength.log_n(),
                p: SCRYPT_PARALLELISM,
                r: SCRYPT_BLOCK,
                salt: hex(&salt),
            },
            mac: hex(&mac),
        },
        id: uuid(id),
        version: 3,
    };
    Ok(serde_json::to_vec_pretty(&file)
        .expect("a structure of strings and numbers is serialisable as JSON"))
}

/// The bytes of hexadecimal digits, which [`check_fields`] has accepted.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    text.as_bytes().as_chunks::<2>().0.iter().map(byte).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A version 4 UUID of random bytes (RFC 9562).
fn uuid(mut bytes: [u8; 16]) -> String {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let text = hex(&bytes);
    let parts = [&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]];
    parts.join("-")
}
