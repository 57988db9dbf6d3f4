//! libsecp256k1 accepts exactly the signatures that k256 accepts, and recovers the same keys.

use k256::ecdsa;

use super::*;

#[path = "recover_portable.rs"]
mod portable;

/// The order n of the group, big-endian.
const ORDER: [u8; 32] = [
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe,
    0xba, 0xae, 0xdc, 0xe6, 0xaf, 0x48, 0xa0, 0x3b, 0xbf, 0xd2, 0x5e, 0x8c, 0xd0, 0x36, 0x41, 0x41,
];

/// Random bytes of a seed.
struct Draws(blake3::OutputReader);

impl Draws {
    fn new(seed: u64) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("florin v1 test recovery");
        hasher.update(&seed.to_le_bytes());
        Self(hasher.finalize_xof())
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.fill(&mut bytes);
        bytes
    }

    fn below(&mut self, n: u64) -> usize {
        (u64::from_le_bytes(self.bytes()) % n) as usize
    }

    /// A number at a boundary, or next to one.
    fn special(&mut self) -> [u8; 32] {
        let mut number = [[0; 32], [0xff; 32], ORDER, LOW_S_MAX][self.below(4)];
        number[31] = number[31].wrapping_add([0, 1, 2, 0xff, 0xfe][self.below(5)]);
        number
    }

    /// A signature that is valid, or damaged in one of several ways.
    fn signature(&mut self, hash: [u8; 32]) -> [u8; 65] {
        let key = ecdsa::SigningKey::from_slice(&self.bytes::<32>()).unwrap();
        let mut signature = crate::sign_hash(&key, hash).unwrap().0;
        match self.below(8) {
            0 => signature[self.below(65)] ^= 1 << self.below(8),
            1 => signature[..32].copy_from_slice(&self.special()),
            2 => signature[32..64].copy_from_slice(&self.special()),
            3 => signature[64] = self.bytes::<1>()[0],
            4 => signature[..64].copy_from_slice(&self.bytes::<64>()),
            5 => {
                // The other signature of the same message, with a high s.
                let low = ecdsa::Signature::from_slice(&signature[..64]).unwrap();
                let high =
                    ecdsa::Signature::from_scalars(low.r().to_bytes(), (-*low.s()).to_bytes());
                signature[..64].copy_from_slice(&high.unwrap().to_bytes());
                signature[64] ^= 27 ^ 28;
            }
            _ => {}
        }
        signature
    }
}

#[test]
#[expect(clippy::disallowed_types, reason = "the clock gives the seed of a test")]
fn libsecp256k1_accepts_what_k256_accepts() {
    let fixed = std::env::var("FLORIN_SEED").ok().and_then(|text| text.parse().ok());
    let clock = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    let seed: u64 = fixed.unwrap_or(clock as u64);
    println!("seed {seed}: FLORIN_SEED repeats it");
    let mut draws = Draws::new(seed);
    let (mut accepted, mut refused) = (0, 0);
    for case in 0..4_000 {
        let hash = if draws.below(8) == 0 { draws.special() } else { draws.bytes() };
        let signature = draws.signature(hash);
        let expected = portable::recover_key(hash, &signature);
        let found = recover_key(hash, &signature);
        assert_eq!(found, expected, "seed {seed}, case {case}: {signature:02x?} over {hash:02x?}");
        *if found.is_some() { &mut accepted } else { &mut refused } += 1;
    }
    assert!(accepted > 1_000 && refused > 1_000, "{accepted} accepted, {refused} refused");
}

#[test]
fn the_boundaries_of_r_s_and_v_are_those_of_k256() {
    let mut draws = Draws::new(1);
    let hash = draws.bytes();
    let key = ecdsa::SigningKey::from_slice(&[7; 32]).unwrap();
    let valid = crate::sign_hash(&key, hash).unwrap().0;
    let mut above = LOW_S_MAX;
    above[31] += 1;
    let mut below_order = ORDER;
    below_order[31] -= 1;
    for part in [[0; 32], [0xff; 32], ORDER, below_order, LOW_S_MAX, above] {
        for at in [0, 32] {
            for v in [0, 1, 26, 27, 28, 29, 255] {
                let mut signature = valid;
                signature[at..at + 32].copy_from_slice(&part);
                signature[64] = v;
                let expected = portable::recover_key(hash, &signature);
                assert_eq!(recover_key(hash, &signature), expected, "{signature:02x?}");
            }
        }
    }
}

#[test]
fn both_libraries_make_the_same_signatures() {
    let seed = 20_261_125;
    let mut draws = Draws::new(seed);
    for number in 0..500 {
        let (hash, secret): ([u8; 32], [u8; 32]) = (draws.bytes(), draws.bytes());
        let ours = sign_recoverably(hash, &Zeroizing::new(secret));
        assert_eq!(
            ours,
            portable::sign_recoverably(hash, &Zeroizing::new(secret)),
            "seed {seed}, signature {number}"
        );
        assert!(recover_key(hash, &ours.unwrap()).is_some());
    }
    let mut last = ORDER;
    last[31] -= 1;
    for secret in [[0; 32], ORDER, [0xff; 32], last, {
        let mut one = [0; 32];
        one[31] = 1;
        one
    }] {
        let ours = sign_recoverably([7; 32], &Zeroizing::new(secret));
        assert_eq!(
            ours,
            portable::sign_recoverably([7; 32], &Zeroizing::new(secret)),
            "{secret:?}"
        );
    }
}
