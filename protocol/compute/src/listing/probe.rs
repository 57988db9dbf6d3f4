//! The probe of a listing: products of matrices that need all claimed memory and all claimed devices at once, and
//! that a verifier checks without computing one.
//!
//! Each device has a chain of states, matrices over the field of 251 elements. State `p + 1` is
//! `S_p · M_p + C_p`. First the device **fills** its memory: `M` and `C` are two of 256 public matrices, which the
//! digest of the state before chooses. Then it **reads**: `M` is a filled state of one of the devices in turn, which
//! the digest chooses, too, so that a state that is not in memory must be computed again. A shown read has the link of
//! the state that it read, too: otherwise filled states of zeros would spare all products.
//!
//! Sums of 256 products of numbers below 251 are below 2²⁴: they are exact in `f32` in any order of additions, so
//! that every library and every processor has the same states. The device commits to all states by the root of a
//! tree, and shows drawn links. A link is checked by its product with random vectors (R. Freivalds, *Probabilistic
//! Machines Can Use Less Running Time*, 1977), in the time of a few hundred thousand multiplications.

use std::borrow::Cow;

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{Digest, holdout};
use serde::{Deserialize, Serialize};

use crate::error::LeaseError;

/// Rows and columns of a matrix.
pub const PROBE_SIDE: usize = 256;
/// Elements of a matrix, and its bytes.
pub const PROBE_MATRIX_BYTES: usize = PROBE_SIDE * PROBE_SIDE;
/// Elements of the field.
pub const PROBE_FIELD: u8 = 251;
/// Public matrices of a probe.
pub const PROBE_POOL: usize = 256;
/// Links of all devices together that are shown.
pub const DRAWN_LINKS: usize = 32;
/// Most states of all devices together.
pub const PROBE_STATES_MAX: u64 = 1 << 24;
/// Fewest filled states of a device.
const FILLED_MIN: u32 = 8;
/// Reads of a device for each filled state, at least.
const READS_PER_FILLED: u32 = 3;
/// Vectors that check a link: a wrong one passes with a probability of `251⁻⁴`.
const CHECK_VECTORS: usize = 4;
/// Most devices of a listing.
pub const LISTED_DEVICES_MAX: u32 = 64;
/// Most bytes of a proof of a state: a tree of 2²⁴ states has 24 levels.
const PROOF_LEVELS_MAX: usize = 24;

/// The size of a probe.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct ProbeShape {
    /// Devices that work at once.
    pub devices: u32,
    /// States that a device holds in memory, of 64 KiB each.
    pub filled: u32,
    /// Reads of a device after that.
    pub reads: u32,
}

impl ProbeShape {
    /// Checks the numbers.
    ///
    /// # Errors
    /// [`LeaseError::Invalid`].
    pub fn check(&self) -> Result<(), LeaseError> {
        let invalid =
            |what, got: u64, rule| Err(LeaseError::Invalid { what, got: got.into(), rule });
        if !(1..=LISTED_DEVICES_MAX).contains(&self.devices) {
            return invalid("devices", self.devices.into(), "a listing has from 1 to 64 devices");
        }
        if self.filled < FILLED_MIN {
            let rule = "a device holds at least 8 states of 64 KiB";
            return invalid("the filled states", self.filled.into(), rule);
        }
        if self.reads < self.filled.saturating_mul(READS_PER_FILLED) {
            let rule = "there are at least three reads for each filled state: with fewer, a device with a \
                        part of the memory is little slower";
            return invalid("the reads", self.reads.into(), rule);
        }
        match self.states() > PROBE_STATES_MAX {
            true => invalid("the states", self.states(), "a probe has at most 2^24 states"),
            false => Ok(()),
        }
    }

    /// Links of one device.
    #[must_use]
    pub fn links(&self) -> u64 {
        u64::from(self.filled).saturating_add(self.reads.into())
    }

    /// States of all devices that the root commits to.
    #[must_use]
    pub fn states(&self) -> u64 {
        self.links().saturating_mul(self.devices.into())
    }

    /// Bytes that a device holds in memory.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let bytes = u64::try_from(PROBE_MATRIX_BYTES).unwrap_or(u64::MAX);
        u64::from(self.filled).saturating_mul(bytes)
    }

    /// The position of the state behind a link in the tree.
    #[must_use]
    pub fn leaf_index(&self, link: ProbeLink) -> u32 {
        let before = u64::from(link.device).saturating_mul(self.links());
        u32::try_from(before.saturating_add(link.position.into())).unwrap_or(u32::MAX)
    }
}

/// A link of a device's chain: from state `position` to the next.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct ProbeLink {
    /// The device.
    pub device: u32,
    /// The state before it.
    pub position: u32,
}

/// The factor of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factor {
    /// A public matrix.
    Pool(u8),
    /// A filled state: the one behind this link.
    Filled(ProbeLink),
}

/// The computation of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeStep {
    /// The factor.
    pub factor: Factor,
    /// The public matrix that is added.
    pub added: u8,
}

/// The computation of a link, which follows from the leaf of the state before it; the first state has no leaf.
#[must_use]
pub fn step(
    seed: Digest,
    shape: &ProbeShape,
    link: ProbeLink,
    before: Option<Digest>,
) -> ProbeStep {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 probe choice");
    hasher.update(&seed.0);
    hasher.update(&link.device.to_le_bytes());
    hasher.update(&link.position.to_le_bytes());
    hasher.update(&before.unwrap_or_default().0);
    let [pool, added, _, _, _, _, _, _, drawn @ ..] = *hasher.finalize().as_bytes();
    let read = link.position.checked_sub(shape.filled);
    let factor = match read {
        None => Factor::Pool(pool),
        Some(read) => {
            let device = u64::from(link.device).saturating_add(read.into()).saturating_add(1);
            let device = device.checked_rem(shape.devices.into()).unwrap_or_default();
            let drawn = drawn.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            let position = drawn.checked_rem(shape.filled.into()).unwrap_or_default();
            let number = |wide: u64| u32::try_from(wide).unwrap_or_default();
            Factor::Filled(ProbeLink { device: number(device), position: number(position) })
        }
    };
    ProbeStep { factor, added }
}

fn expand(domain: &str, seed: Digest, number: u32) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new_derive_key(domain);
    hasher.update(&seed.0);
    hasher.update(&number.to_le_bytes());
    elements(&hasher, PROBE_MATRIX_BYTES)
}

/// Elements of the field from the output of a hash.
fn elements(hasher: &blake3::Hasher, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    hasher.finalize_xof().fill(&mut bytes);
    bytes.iter_mut().for_each(|byte| *byte = byte.checked_rem(PROBE_FIELD).unwrap_or_default());
    bytes
}

/// A public matrix of a probe, row by row.
#[must_use]
pub fn pool_matrix(seed: Digest, number: u8) -> Vec<u8> {
    expand("florin v1 probe pool", seed, number.into())
}

/// The first state of a device.
#[must_use]
pub fn first_state(seed: Digest, device: u32) -> Vec<u8> {
    expand("florin v1 probe start", seed, device)
}

/// The leaf of the state behind a link.
#[must_use]
pub fn state_leaf(link: ProbeLink, state: &[u8]) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 probe state");
    hasher.update(&link.device.to_le_bytes());
    hasher.update(&link.position.to_le_bytes());
    hasher.update(state);
    Digest(*hasher.finalize().as_bytes())
}

/// The links that are shown: drawn by a secret that was opened after the root, ascending.
#[must_use]
pub fn drawn_links(shape: &ProbeShape, secret: Digest, root: Digest) -> Vec<ProbeLink> {
    let total = shape.states();
    let wanted = DRAWN_LINKS.min(usize::try_from(total).unwrap_or(usize::MAX));
    let mut drawn = std::collections::BTreeSet::new();
    let mut number = 0_u64;
    // Each number draws a new link with a probability of at least 1 / total.
    while drawn.len() < wanted {
        let mut hasher = blake3::Hasher::new_derive_key("florin v1 probe draw");
        hasher.update(&secret.0);
        hasher.update(&root.0);
        hasher.update(&number.to_le_bytes());
        let bytes = hasher.finalize();
        let ticket = bytes.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let at = ticket.checked_rem(total).unwrap_or_default();
        let device = at.checked_div(shape.links()).unwrap_or_default();
        let position = at.checked_rem(shape.links()).unwrap_or_default();
        let narrow = |wide: u64| u32::try_from(wide).unwrap_or_default();
        drawn.insert(ProbeLink { device: narrow(device), position: narrow(position) });
        number = number.saturating_add(1);
    }
    drawn.into_iter().collect()
}

/// A state with its proof.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "schema", derive(borsh::BorshSchema))]
pub struct ShownState {
    /// The matrix, row by row.
    pub state: Vec<u8>,
    /// The sibling hashes of its leaf from the bottom to the root.
    pub proof: Vec<Digest>,
}

/// A shown link.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "schema", derive(borsh::BorshSchema))]
pub struct ShownLink {
    /// The state before it; none for the first state, which is public.
    pub before: Option<ShownState>,
    /// The filled state that it reads, with the state before that one; none while it fills.
    pub factor: Option<ShownFactor>,
    /// The state behind it.
    pub after: ShownState,
}

/// A filled state that a link reads. Its own link is checked, too: a filled state of zeros would spare the product of
/// each read.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "schema", derive(borsh::BorshSchema))]
pub struct ShownFactor {
    /// The filled state.
    pub state: ShownState,
    /// The state before it; none for the first state, which is public.
    pub before: Option<ShownState>,
}

/// The drawn links of a probe, in their order.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "schema", derive(borsh::BorshSchema))]
pub struct ShownLinks {
    /// The links.
    pub links: Vec<ShownLink>,
}

/// Most bytes of the shown links of a probe.
pub const SHOWN_BYTES_MAX: usize =
    4 + DRAWN_LINKS * (3 + 4 * (8 + PROBE_MATRIX_BYTES + 32 * PROOF_LEVELS_MAX));

impl ShownLinks {
    /// The bytes, in borsh.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        borsh::to_vec(self).unwrap_or_default()
    }

    /// Decodes the bytes. Does not check the links.
    ///
    /// # Errors
    /// [`LeaseError::Probe`] for more bytes than [`SHOWN_BYTES_MAX`], and for bytes of another form.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, LeaseError> {
        if bytes.len() > SHOWN_BYTES_MAX {
            return Err(LeaseError::Probe("the shown links have too many bytes"));
        }
        Self::try_from_slice(bytes)
            .map_err(|_| LeaseError::Probe("the shown links have another form than borsh's"))
    }

    /// Checks the drawn links of a committed probe.
    ///
    /// # Errors
    /// [`LeaseError::Probe`] with the first contradiction.
    pub fn check(&self, probe: &DrawnProbe) -> Result<(), LeaseError> {
        let drawn = drawn_links(&probe.shape, probe.secret, probe.root);
        if drawn.len() != self.links.len() {
            return Err(LeaseError::Probe("other links were drawn: show each drawn one once"));
        }
        drawn.iter().zip(&self.links).try_for_each(|(link, shown)| probe.check(*link, shown))
    }
}

/// A probe whose links are drawn.
#[derive(Clone, Copy, Debug)]
pub struct DrawnProbe {
    /// Its size.
    pub shape: ProbeShape,
    /// The seed of its matrices.
    pub seed: Digest,
    /// The root of all states.
    pub root: Digest,
    /// The secret that draws the links.
    pub secret: Digest,
}

impl DrawnProbe {
    /// Checks a state against the root; returns its leaf.
    fn leaf(&self, link: ProbeLink, shown: &ShownState) -> Result<Digest, LeaseError> {
        let is_matrix = shown.state.len() == PROBE_MATRIX_BYTES
            && shown.state.iter().all(|byte| *byte < PROBE_FIELD);
        if !is_matrix {
            return Err(LeaseError::Probe("a state is not a matrix of numbers below 251"));
        }
        let leaf = state_leaf(link, &shown.state);
        let states = u32::try_from(self.shape.states()).unwrap_or(u32::MAX);
        let index = self.shape.leaf_index(link);
        match holdout::verify(self.root, states, index, leaf, &shown.proof) {
            true => Ok(leaf),
            false => Err(LeaseError::Probe("a state is not the one that the root commits to")),
        }
    }

    fn check(&self, link: ProbeLink, shown: &ShownLink) -> Result<(), LeaseError> {
        self.leaf(link, &shown.after)?;
        let (before, leaf) = self.before(link, shown.before.as_ref())?;
        let step = step(self.seed, &self.shape, link, leaf);
        let factor = match (step.factor, &shown.factor) {
            (Factor::Pool(number), None) => Cow::Owned(pool_matrix(self.seed, number)),
            (Factor::Filled(read), Some(factor)) => {
                self.check_factor(read, factor)?;
                Cow::Borrowed(factor.state.state.as_slice())
            }
            _ => {
                return Err(LeaseError::Probe(
                    "a link shows the state that it reads, and no other",
                ));
            }
        };
        self.check_product(link, &before, &factor, step.added, &shown.after.state)
    }

    /// Checks a filled state against the root, and its own link.
    fn check_factor(&self, link: ProbeLink, shown: &ShownFactor) -> Result<(), LeaseError> {
        self.leaf(link, &shown.state)?;
        let (before, leaf) = self.before(link, shown.before.as_ref())?;
        let step = step(self.seed, &self.shape, link, leaf);
        let Factor::Pool(number) = step.factor else {
            return Err(LeaseError::Probe("a link shows the state that it reads, and no other"));
        };
        let factor = pool_matrix(self.seed, number);
        self.check_product(link, &before, &factor, step.added, &shown.state.state)
    }

    /// The state before a link, and its leaf.
    fn before<'a>(
        &self,
        link: ProbeLink,
        shown: Option<&'a ShownState>,
    ) -> Result<(Cow<'a, [u8]>, Option<Digest>), LeaseError> {
        match (link.position.checked_sub(1), shown) {
            (None, None) => Ok((Cow::Owned(first_state(self.seed, link.device)), None)),
            (Some(position), Some(before)) => {
                let leaf = self.leaf(ProbeLink { position, ..link }, before)?;
                Ok((Cow::Borrowed(before.state.as_slice()), Some(leaf)))
            }
            _ => Err(LeaseError::Probe("each link but the first one shows the state before it")),
        }
    }

    /// Checks that `after` is `before · factor` plus a public matrix.
    fn check_product(
        &self,
        link: ProbeLink,
        before: &[u8],
        factor: &[u8],
        added: u8,
        after: &[u8],
    ) -> Result<(), LeaseError> {
        let added = pool_matrix(self.seed, added);
        let matrices = LinkMatrices { before, factor, added: &added, after };
        match (0..CHECK_VECTORS).all(|number| matrices.agree(&self.check_vector(link, number))) {
            true => Ok(()),
            false => Err(LeaseError::Probe("a link is not the product that it should be")),
        }
    }

    fn check_vector(&self, link: ProbeLink, number: usize) -> Vec<u8> {
        let mut hasher = blake3::Hasher::new_derive_key("florin v1 probe check");
        hasher.update(&self.secret.0);
        hasher.update(&self.root.0);
        hasher.update(&link.device.to_le_bytes());
        hasher.update(&link.position.to_le_bytes());
        hasher.update(&u64::try_from(number).unwrap_or(u64::MAX).to_le_bytes());
        elements(&hasher, PROBE_SIDE)
    }
}

/// The matrices of a link.
struct LinkMatrices<'a> {
    before: &'a [u8],
    factor: &'a [u8],
    added: &'a [u8],
    after: &'a [u8],
}

impl LinkMatrices<'_> {
    /// Whether `before · (factor · v) + added · v = after · v`.
    fn agree(&self, vector: &[u8]) -> bool {
        let product = times(self.before, &times(self.factor, vector));
        let added = times(self.added, vector);
        let sum = product.iter().zip(&added).map(|(a, b)| {
            let sum = u16::from(*a).saturating_add(u16::from(*b));
            sum.checked_rem(PROBE_FIELD.into()).unwrap_or_default()
        });
        sum.eq(times(self.after, vector).into_iter().map(u16::from))
    }
}

/// A matrix times a vector over the field.
fn times(matrix: &[u8], vector: &[u8]) -> Vec<u8> {
    let row = |row: &[u8]| {
        // 256 products below 2¹⁶.
        let sum = row.iter().zip(vector).fold(0_u32, |sum, (a, b)| {
            sum.saturating_add(u32::from(*a).saturating_mul(u32::from(*b)))
        });
        u8::try_from(sum.checked_rem(PROBE_FIELD.into()).unwrap_or_default()).unwrap_or_default()
    };
    matrix.chunks(PROBE_SIDE).map(row).collect()
}

#[cfg(test)]
#[path = "probe_tests.rs"]
mod tests;
