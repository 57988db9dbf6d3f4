//! Wallet signatures, and the recovery of the key that made one, by libsecp256k1: the C library of
//! Bitcoin Core, several times as fast as k256 (decision 51). Tests compare both.

use std::sync::OnceLock;

use k256::elliptic_curve::zeroize::Zeroizing;
use secp256k1::ecdsa::{RecoverableSignature, RecoveryId};
use secp256k1::{Message, Secp256k1, SecretKey, SignOnly, VerifyOnly};

/// (n − 1) / 2, big-endian; n is the order of the group. An s above it is high.
const LOW_S_MAX: [u8; 32] = [
    0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    0x5d, 0x57, 0x6e, 0x73, 0x57, 0xa4, 0x50, 0x1d, 0xdf, 0xe9, 0x2f, 0x46, 0x68, 0x1b, 0x20, 0xa0,
];

/// The uncompressed key that signed `hash` with r ‖ s ‖ v. `None` for a v other than 27 or 28, for a
/// high s, for an r or s that is zero or not below n, or if no key can have made the signature.
pub(crate) fn recover_key(hash: [u8; 32], signature: &[u8; 65]) -> Option<[u8; 65]> {
    static CONTEXT: OnceLock<Secp256k1<VerifyOnly>> = OnceLock::new();
    let (rs, v) = signature.split_at(64);
    let recovery = match v {
        [27] => RecoveryId::Zero,
        [28] => RecoveryId::One,
        _ => return None,
    };
    if rs.get(32..)? > &LOW_S_MAX[..] {
        return None;
    }
    let signature = RecoverableSignature::from_compact(rs, recovery).ok()?;
    let context = CONTEXT.get_or_init(Secp256k1::verification_only);
    let key = context.recover_ecdsa(Message::from_digest(hash), &signature).ok()?;
    Some(key.serialize_uncompressed())
}

/// Signs `hash`: r, s (low) and v = 27 or 28, with the nonce of RFC 6979, as k256 does. `None` for a
/// secret that is no key, and for an r beyond the order of the curve, with a probability of 2⁻¹²⁷.
pub(crate) fn sign_recoverably(hash: [u8; 32], secret: &Zeroizing<[u8; 32]>) -> Option<[u8; 65]> {
    static CONTEXT: OnceLock<Secp256k1<SignOnly>> = OnceLock::new();
    let mut key = SecretKey::from_byte_array(**secret).ok()?;
    let context = CONTEXT.get_or_init(Secp256k1::signing_only);
    let signature = context.sign_ecdsa_recoverable(Message::from_digest(hash), &key);
    key.non_secure_erase();
    let (recovery, parts) = signature.serialize_compact();
    let v = match recovery {
        RecoveryId::Zero => 27,
        RecoveryId::One => 28,
        _ => return None,
    };
    let mut bytes = [v; 65];
    bytes.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
    Some(bytes)
}

#[cfg(test)]
#[path = "recover_tests.rs"]
mod tests;
