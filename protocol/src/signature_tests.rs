//! Signatures: which are accepted, and which must be rejected.

use alloy_primitives::U256;
use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;
use proptest::prelude::*;

use super::*;
use crate::id::{ChainId, Digest};
use crate::message::{Commit, RoundScope};
use crate::{RoundNumber, TaskId};

pub(crate) struct TestWallet(PrivateKeySigner);

impl WalletSigner for TestWallet {
    fn address(&self) -> Address {
        Address(self.0.address().into_array())
    }
    fn sign_typed_data(&self, hash: [u8; 32]) -> Result<WalletSignature, SignError> {
        let signature =
            self.0.sign_hash_sync(&hash.into()).map_err(|e| SignError(e.to_string()))?;
        Ok(WalletSignature(signature.as_bytes()))
    }
}

pub(crate) fn wallet(n: u8) -> TestWallet {
    TestWallet(PrivateKeySigner::from_slice(&[n; 32]).unwrap())
}

pub(crate) fn market(chain: u64) -> MarketId {
    MarketId { chain: ChainId(chain), genesis: Digest([9; 32]) }
}

fn commit() -> Commit {
    Commit {
        scope: RoundScope { market: market(1), task: TaskId([1; 32]), round: RoundNumber(3) },
        sender: Address([2; 20]),
        offer: Digest([3; 32]),
        commitment: Digest([4; 32]),
    }
}

fn registration(chain: u64) -> Registration {
    let node = NodeSigner::from_seed(&[5; 32]);
    Registration::sign(market(chain), &wallet(1), &node, Role::Participant, Timestamp(100)).unwrap()
}

#[test]
fn a_registration_binds_both_keys() {
    registration(1).verify(market(1), Timestamp(100)).unwrap();
}

#[test]
fn a_registration_with_any_field_changed_is_refused() {
    let good = registration(1);
    let other_node = NodeSigner::from_seed(&[6; 32]);
    let hash = Registration::signing_hash(
        good.market,
        good.wallet,
        good.node_key,
        good.role,
        good.expires,
    );
    let cases: Vec<(Registration, VerifyError)> = vec![
        (Registration { market: market(2), ..good.clone() }, VerifyError::WrongMarket),
        (
            // The wallet signs for a node key that did not sign for the wallet.
            Registration { node_signature: other_node.sign_bytes(&hash), ..good.clone() },
            VerifyError::InvalidSignature,
        ),
        (
            // The node key signs for a wallet that did not sign for the node key.
            Registration {
                wallet_signature: wallet(2).sign_typed_data(hash).unwrap(),
                ..good.clone()
            },
            VerifyError::WrongSigner { claimed: good.wallet, signed_by: wallet(2).address() },
        ),
    ];
    for (registration, error) in cases {
        assert_eq!(registration.verify(market(1), Timestamp(0)), Err(error));
    }
    assert_eq!(good.verify(market(1), Timestamp(101)), Err(VerifyError::Expired(Timestamp(100))));
    let later = Registration { expires: Timestamp(200), ..good };
    assert!(later.verify(market(1), Timestamp(0)).is_err());
    let provider = Registration { role: Role::Provider, ..later };
    assert!(provider.verify(market(1), Timestamp(0)).is_err());
}

#[test]
fn a_high_s_or_an_invalid_v_is_refused() {
    let hash = [7; 32];
    let good = wallet(1).sign_typed_data(hash).unwrap();
    verify_wallet(hash, &good, wallet(1).address()).unwrap();
    let order = U256::from_str_radix(
        "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141",
        16,
    )
    .unwrap();
    let mut high = good;
    let s = order - U256::from_be_slice(&good.0[32..64]);
    high.0[32..64].copy_from_slice(&s.to_be_bytes::<32>());
    high.0[64] = if good.0[64] == 27 { 28 } else { 27 };
    assert_eq!(recover_wallet(hash, &high), Err(VerifyError::InvalidSignature));
    for v in [0, 1, 26, 29, 255] {
        let mut strange = good;
        strange.0[64] = v;
        assert_eq!(recover_wallet(hash, &strange), Err(VerifyError::InvalidSignature), "v = {v}");
    }
}

/// The eight points of small order, and their non-canonical encodings.
const SMALL_ORDER: [&str; 12] = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
];

#[test]
fn signatures_under_small_order_keys_are_refused() {
    // With the identity point as key, (R = identity, S = 0) passes non-strict verification for
    // any message.
    let mut forged = [0; 64];
    forged[0] = 1;
    for key in SMALL_ORDER {
        let key: NodeKey = key.parse().unwrap();
        for message in [b"pay alice 1".as_slice(), b"pay mallory 1000000"] {
            let verdict = verify_node(key, message, &NodeSignature(forged));
            assert!(
                matches!(verdict, Err(VerifyError::WeakKey | VerifyError::InvalidKey)),
                "{key}: {verdict:?}"
            );
        }
    }
}

#[test]
fn a_malleated_signature_is_refused() {
    // S + L is the same scalar; a lax verifier would accept it as a second signature.
    let order = U256::from_str_radix(
        "1000000000000000000000000000000014def9dea2f79cd65812631a5cf5d3ed",
        16,
    )
    .unwrap();
    let node = NodeSigner::from_seed(&[5; 32]);
    let good = node.sign(commit());
    good.verify(node.key()).unwrap();
    let mut bad = good.clone();
    let s = U256::from_le_slice(&good.signature.0[32..]) + order;
    bad.signature.0[32..].copy_from_slice(&s.to_le_bytes::<32>());
    assert_eq!(bad.verify(node.key()), Err(VerifyError::InvalidSignature));
}

#[test]
fn a_signature_does_not_verify_in_another_context() {
    let node = NodeSigner::from_seed(&[5; 32]);
    let good = node.sign(commit());
    let changes: [fn(&mut Commit); 7] = [
        |c| c.scope.market.chain = ChainId(2),
        |c| c.scope.market.genesis = Digest([8; 32]),
        |c| c.scope.task = TaskId([9; 32]),
        |c| c.scope.round = RoundNumber(4),
        |c| c.sender = Address([9; 20]),
        |c| c.offer = Digest([9; 32]),
        |c| c.commitment = Digest([9; 32]),
    ];
    for change in changes {
        let mut moved = good.clone();
        change(&mut moved.body);
        assert_eq!(moved.verify(node.key()), Err(VerifyError::InvalidSignature));
    }
    let other = NodeSigner::from_seed(&[6; 32]);
    assert_eq!(good.verify(other.key()), Err(VerifyError::InvalidSignature));
}

proptest! {
    #[test]
    fn no_mutated_message_verifies(byte in 0usize..168, bit in 0u8..8) {
        let node = NodeSigner::from_seed(&[5; 32]);
        let mut bytes = node.sign(commit()).to_bytes();
        let at = byte % bytes.len();
        bytes[at] ^= 1 << bit;
        if let Ok(signed) = Signed::<Commit>::from_bytes(&bytes) {
            prop_assert!(signed.verify(node.key()).is_err());
        }
    }
}
