//! Commitments to the ends of segments, and the draw of segments and auditors.
//!
//! The draw follows from all leaves and from a beacon that appeared after the last leaf: neither side could
//! know it before. Of two neighbours at most one is drawn, because the end of one segment is the start of the
//! next: an auditor reads the start of its own segment, and no drawn end is the start of another one.

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{Address, Digest};
use serde::{Deserialize, Serialize};

/// An end with its salt, secret until its owner opens the commitment.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Secret {
    /// Digest of the state at the end of a segment.
    pub end: Digest,
    /// Salt.
    pub salt: Digest,
}

/// A provider's commitment to the end of a segment.
#[must_use]
pub fn segment_leaf(order: Digest, provider: Address, segment: u32, secret: Secret) -> Digest {
    commitment("florin v1 compute leaf", order, provider, segment, secret)
}

/// An auditor's commitment to the end of a segment.
#[must_use]
pub fn end_commitment(order: Digest, auditor: Address, segment: u32, secret: Secret) -> Digest {
    commitment("florin v1 compute end", order, auditor, segment, secret)
}

fn commitment(domain: &str, order: Digest, by: Address, segment: u32, secret: Secret) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key(domain);
    hasher.update(&order.0);
    hasher.update(&by.0);
    hasher.update(&segment.to_le_bytes());
    hasher.update(&secret.salt.0);
    hasher.update(&secret.end.0);
    Digest(*hasher.finalize().as_bytes())
}

/// The inputs of a draw.
#[derive(Clone, Copy, Debug)]
pub struct AuditDraw<'a> {
    /// The order.
    pub order: Digest,
    /// Leaves of the delivered segments.
    pub leaves: &'a [Digest],
    /// Randomness that appeared after the last leaf.
    pub beacon: Digest,
}

impl AuditDraw<'_> {
    /// The seed of the draw, from order, beacon and all leaves.
    #[must_use]
    pub fn seed(&self) -> Digest {
        let mut hasher = blake3::Hasher::new_derive_key("florin v1 compute draw");
        hasher.update(&self.order.0);
        hasher.update(&self.beacon.0);
        self.leaves.iter().for_each(|leaf| {
            hasher.update(&leaf.0);
        });
        Digest(*hasher.finalize().as_bytes())
    }
}

fn ticket(seed: Digest, domain: &str, segment: u32, account: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(domain);
    hasher.update(&seed.0);
    hasher.update(&segment.to_le_bytes());
    hasher.update(account);
    *hasher.finalize().as_bytes()
}

/// Draws `count` segments, ascending, no two of them neighbours on the ring of the delivered ones: by their
/// tickets, the smallest first. Each segment has the same chance. It draws fewer if no more fit.
#[must_use]
pub fn draw_audits(draw: &AuditDraw<'_>, count: u32) -> Vec<u32> {
    let delivered = u32::try_from(draw.leaves.len()).unwrap_or(u32::MAX);
    let seed = draw.seed();
    let mut tickets: Vec<([u8; 32], u32)> = (0..delivered)
        .map(|segment| (ticket(seed, "florin v1 compute segment ticket", segment, &[]), segment))
        .collect();
    tickets.sort_unstable();
    let mut drawn = std::collections::BTreeSet::new();
    let wanted = usize::try_from(count).unwrap_or(usize::MAX);
    for (_, segment) in tickets {
        if drawn.len() >= wanted {
            break;
        }
        let last = delivered.saturating_sub(1);
        let before = segment.checked_sub(1).unwrap_or(last);
        let after = if segment == last { 0 } else { segment.saturating_add(1) };
        let is_alone = |other: u32| other == segment || !drawn.contains(&other);
        if is_alone(before) && is_alone(after) {
            drawn.insert(segment);
        }
    }
    drawn.into_iter().collect()
}

/// All auditors in the order in which a segment asks them: the first ones at once, later ones instead of silent
/// ones.
#[must_use]
pub fn draw_auditors(
    seed: Digest,
    segment: u32,
    auditors: impl Iterator<Item = Address>,
) -> Vec<Address> {
    let domain = "florin v1 compute auditor ticket";
    let mut tickets: Vec<([u8; 32], Address)> =
        auditors.map(|who| (ticket(seed, domain, segment, &who.0), who)).collect();
    tickets.sort_unstable();
    tickets.into_iter().map(|(_, who)| who).collect()
}
