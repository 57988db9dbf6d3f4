//! Wallet signatures by k256 alone, for a browser, which runs no C code. Tests compare this with
//! libsecp256k1.

use k256::ecdsa;
use k256::elliptic_curve::zeroize::Zeroizing;

/// As the function of libsecp256k1.
pub(crate) fn recover_key(hash: [u8; 32], signature: &[u8; 65]) -> Option<[u8; 65]> {
    let (rs, v) = signature.split_at(64);
    let is_y_odd = match v {
        [27] => false,
        [28] => true,
        _ => return None,
    };
    let signature = ecdsa::Signature::from_slice(rs).ok()?;
    if signature.normalize_s().is_some() {
        return None;
    }
    let recovery = ecdsa::RecoveryId::new(is_y_odd, false);
    let key = ecdsa::VerifyingKey::recover_from_prehash(&hash, &signature, recovery).ok()?;
    key.to_encoded_point(false).as_bytes().try_into().ok()
}

/// As the function of libsecp256k1.
pub(crate) fn sign_recoverably(hash: [u8; 32], secret: &Zeroizing<[u8; 32]>) -> Option<[u8; 65]> {
    let key = ecdsa::SigningKey::from_slice(&**secret).ok()?;
    let (signature, recovery) = key.sign_prehash_recoverable(&hash).ok()?;
    let v = if recovery.is_y_odd() { 28 } else { 27 };
    let mut bytes = [v; 65];
    bytes.iter_mut().zip(signature.to_bytes()).for_each(|(to, from)| *to = from);
    Some(bytes)
}
