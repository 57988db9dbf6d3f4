//! A cache of unpacked node keys: a sender signs many messages, and unpacking its key takes a
//! quarter of the time of a signature check.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use florin_protocol::{DecompressedKey, NodeKey, VerifyError};

/// Capacity of the cache; a key takes about 300 bytes. When the cache is full, it is cleared.
const KEYS_MAX: usize = 16_384;

/// Unpacked keys by their bytes. Lookups are only for registered keys.
#[derive(Debug, Default)]
pub(super) struct KeyCache {
    unpacked: Mutex<BTreeMap<NodeKey, DecompressedKey>>,
}

impl KeyCache {
    /// The unpacked key, from the cache if present.
    pub(super) fn of(&self, key: NodeKey) -> Result<DecompressedKey, VerifyError> {
        let known = self.unpacked.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
        if let Some(known) = known {
            return Ok(known);
        }
        let found = DecompressedKey::decompress(key)?;
        let mut unpacked = self.unpacked.lock().unwrap_or_else(PoisonError::into_inner);
        if unpacked.len() >= KEYS_MAX {
            unpacked.clear();
        }
        unpacked.insert(key, found);
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use florin_protocol::NodeSigner;

    use super::*;

    #[test]
    fn a_cached_key_verifies_its_own_signatures_and_a_weak_key_is_never_cached() {
        let keys = KeyCache::default();
        let signers = [1, 2].map(|seed| NodeSigner::from_seed(&[seed; 32]));
        for _ in 0..2 {
            for (signer, other) in [(&signers[0], &signers[1]), (&signers[1], &signers[0])] {
                let key = keys.of(signer.key()).unwrap();
                key.verify(b"message", &signer.sign_bytes(b"message")).unwrap();
                let foreign = other.sign_bytes(b"message");
                assert_eq!(key.verify(b"message", &foreign), Err(VerifyError::InvalidSignature));
            }
            let mut weak = [0; 32];
            weak[0] = 1;
            assert_eq!(keys.of(NodeKey(weak)), Err(VerifyError::WeakKey));
        }
        assert_eq!(keys.unpacked.lock().unwrap().len(), 2);
    }

    #[test]
    fn the_table_is_bounded() {
        let keys = KeyCache::default();
        let one = DecompressedKey::decompress(NodeSigner::from_seed(&[1; 32]).key()).unwrap();
        let filler = (0..KEYS_MAX as u64).map(|n| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&n.to_le_bytes());
            (NodeKey(key), one)
        });
        keys.unpacked.lock().unwrap().extend(filler);
        keys.of(NodeSigner::from_seed(&[2; 32]).key()).unwrap();
        assert_eq!(keys.unpacked.lock().unwrap().len(), 1);
    }
}
