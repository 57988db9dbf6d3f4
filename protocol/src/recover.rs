//! Recovery of the key that made a wallet signature, by libsecp256k1: the C library of Bitcoin Core,
//! about five times as fast as k256, which still signs (decision 51). Tests compare both.

use std::sync::OnceLock;

use secp256k1::ecdsa::{RecoverableSignature, RecoveryId};
use secp256k1::{Message, Secp256k1, VerifyOnly};

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

#[cfg(test)]
#[path = "recover_tests.rs"]
mod tests;
