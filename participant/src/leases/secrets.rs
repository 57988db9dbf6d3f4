//! The salts of an account's commitments in leases. They follow from the wallet, so that no crash
//! loses one.

use florin_compute::Secret as SealedEnd;
use florin_protocol::Digest;
use zeroize::Zeroizing;

use crate::wallet::Wallet;

/// Key-derivation context of the salts. A change would lose the salts of open leases.
const SALT_CONTEXT: &str = "florin v1 lease salts of a wallet";

/// A commitment of an account in a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Commitment {
    /// A bid.
    Bid,
    /// The leaf of a segment.
    Leaf(u32),
    /// The end of a segment that an auditor computed.
    End(u32),
}

/// The salts of one account. They cannot be computed without its wallet.
pub(super) struct LeaseSecrets {
    key: Zeroizing<[u8; 32]>,
}

impl std::fmt::Debug for LeaseSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LeaseSecrets")
    }
}

impl LeaseSecrets {
    pub(super) fn new(wallet: &Wallet) -> Self {
        Self { key: wallet.derive_secret(SALT_CONTEXT) }
    }

    /// The salt of a commitment: always the same for one order.
    pub(super) fn salt(&self, order: Digest, commitment: Commitment) -> Digest {
        let (kind, number) = match commitment {
            Commitment::Bid => (0_u8, 0),
            Commitment::Leaf(segment) => (1, segment),
            Commitment::End(segment) => (2, segment),
        };
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&order.0).update(&[kind]).update(&number.to_le_bytes());
        Digest(*hasher.finalize().as_bytes())
    }

    /// The end of a segment with the salt of its leaf.
    pub(super) fn leaf(&self, order: Digest, segment: u32, end: Digest) -> SealedEnd {
        SealedEnd { end, salt: self.salt(order, Commitment::Leaf(segment)) }
    }

    /// The end of a segment with the salt of an auditor's commitment.
    pub(super) fn end(&self, order: Digest, segment: u32, end: Digest) -> SealedEnd {
        SealedEnd { end, salt: self.salt(order, Commitment::End(segment)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::wallet;

    #[test]
    fn each_commitment_has_a_salt_of_its_own_that_follows_from_the_wallet() {
        let (own, order) = (LeaseSecrets::new(&wallet(4)), Digest([1; 32]));
        let salt = own.salt(order, Commitment::Leaf(7));
        assert_eq!(salt, LeaseSecrets::new(&wallet(4)).salt(order, Commitment::Leaf(7)));
        for other in [
            LeaseSecrets::new(&wallet(5)).salt(order, Commitment::Leaf(7)),
            own.salt(Digest([2; 32]), Commitment::Leaf(7)),
            own.salt(order, Commitment::Leaf(8)),
            own.salt(order, Commitment::End(7)),
            own.salt(order, Commitment::Bid),
        ] {
            assert_ne!(salt, other);
        }
        assert_eq!(format!("{own:?}"), "LeaseSecrets");
    }
}
