//! Published vectors of earlier rounds, and the attribution of updates to their first sender.

use std::ops::Range;

use super::duplicates::find_copy;
use super::{COPY_COSINE_MIN, Gram, NearDuplicate};

/// The public vectors at the start of a round, by their indices in the Gram matrix.
#[derive(Debug, Clone)]
pub struct PublicVectors<'a> {
    /// The global model deltas, the latest first.
    pub global_deltas: Range<usize>,
    /// The updates of earlier rounds, in the order in which they were sent.
    pub updates: Range<usize>,
    /// For each of them the same sender's update of this round, if any: a member's own update of an
    /// earlier round may be similar to its update of this round.
    pub same_sender: &'a [Option<usize>],
    /// All vectors, for the inner products among earlier updates that the matrix omits.
    pub vectors: &'a [&'a [f32]],
}

impl PublicVectors<'_> {
    /// The earlier updates, each with the same sender's update of this round.
    fn with_same_sender(&self) -> impl Iterator<Item = (usize, Option<usize>)> + '_ {
        self.updates.clone().zip(self.same_sender.iter().copied())
    }

    /// The update of this round by the sender of earlier update `at`.
    fn same_sender(&self, at: usize) -> Option<usize> {
        self.same_sender.get(at.checked_sub(self.updates.start)?).copied().flatten()
    }

    /// Ensures that the matrices have the product of a pair of earlier updates.
    fn ensure_product(&self, gram: &mut Gram, beyond: &mut Gram, pair: (usize, usize)) {
        let (a, b) = pair;
        if gram.has_product(a, b) {
            return;
        }
        let known: Vec<usize> = [a, b].into_iter().chain(self.global_deltas.clone()).collect();
        let mut part = gram.submatrix(&known);
        part.set_product((0, 1), Gram::new(&[self.vectors[a], self.vectors[b]]).at(0, 1));
        gram.set_product(pair, part.at(0, 1));
        beyond.set_product(pair, part.project_out(2..known.len()).at(0, 1));
    }

    /// Whether earlier update `at` is the own work of the sender of `later`: sent by the same
    /// sender, or a copy of what that sender had sent before. An abandoned round rejects no copies,
    /// so a copy sent in one must not make its original sender a copier of its own work.
    pub(super) fn is_own_work(
        &self,
        gram: &mut Gram,
        beyond: &mut Gram,
        rows: &[u64],
        (later, at): (usize, usize),
    ) -> bool {
        let by = self.same_sender(at);
        if by == Some(later) {
            return true;
        }
        let witnesses = without_members(rows, [Some(later), by]);
        let before = self.with_same_sender().take_while(|(own, _)| *own < at);
        let mut own = before.filter(|(_, by)| *by == Some(later));
        own.any(|(own, _)| {
            self.ensure_product(gram, beyond, (at, own));
            find_copy(gram, beyond, &witnesses, (at, own)).is_some()
        })
    }
}

/// The rows with which other members count as witnesses: zero for the given members.
fn without_members(rows: &[u64], those: [Option<usize>; 2]) -> Vec<u64> {
    let mut witnesses = rows.to_vec();
    for at in those.into_iter().flatten() {
        witnesses.get_mut(at).into_iter().for_each(|rows| *rows = 0);
    }
    witnesses
}

/// The first update that another sender sent in an earlier round and that update `later` copies.
/// Computes missing products of the matrices on demand.
#[must_use]
pub fn find_republished(
    gram: &mut Gram,
    beyond: &mut Gram,
    rows: &[u64],
    public: &PublicVectors<'_>,
    later: usize,
) -> Option<NearDuplicate> {
    public.with_same_sender().find_map(|(earlier, own)| {
        if own == Some(later) || gram.cosine(later, earlier) <= COPY_COSINE_MIN {
            return None;
        }
        // A later update of the same sender has the same own part, so it is not evidence of the
        // common direction.
        let witnesses = without_members(rows, [own, None]);
        let found = find_copy(gram, beyond, &witnesses, (later, earlier))?;
        (!public.is_own_work(gram, beyond, rows, (later, earlier))).then_some(found)
    })
}
