//! What everybody could read when a round began, and whose it was first.

use std::ops::Range;

use super::repeats::copied;
use super::{Found, Gram, NOISY_COSINE};

/// What everybody could read when a round began, by the numbers of its vectors in the matrix.
#[derive(Debug, Clone)]
pub struct Public<'a> {
    /// The public steps, the latest first.
    pub steps: Range<usize>,
    /// The updates of earlier rounds, in the order in which they were sent.
    pub updates: Range<usize>,
    /// For each of those the update of this round that has the same sender, if there is one: a member's own work of an
    /// earlier round may look like its work of this one.
    pub same_sender: &'a [Option<usize>],
    /// All vectors, for the products of earlier updates with each other: the matrix need not have them.
    pub vectors: &'a [&'a [f32]],
}

impl Public<'_> {
    /// The earlier updates, with what their senders sent in this round.
    fn sent(&self) -> impl Iterator<Item = (usize, Option<usize>)> + '_ {
        self.updates.clone().zip(self.same_sender.iter().copied())
    }

    /// What the sender of earlier update `at` sent in this round.
    fn same_sender(&self, at: usize) -> Option<usize> {
        self.same_sender.get(at.checked_sub(self.updates.start)?).copied().flatten()
    }

    /// Sees to it that the matrices have the product of two earlier updates.
    fn compare(&self, gram: &mut Gram, beyond: &mut Gram, pair: (usize, usize)) {
        let (a, b) = pair;
        if gram.has(a, b) {
            return;
        }
        let known: Vec<usize> = [a, b].into_iter().chain(self.steps.clone()).collect();
        let mut part = gram.part(&known);
        part.set((0, 1), Gram::of(&[self.vectors[a], self.vectors[b]]).at(0, 1));
        gram.set(pair, part.at(0, 1));
        beyond.set(pair, part.beyond(2..known.len()).at(0, 1));
    }

    /// Whether earlier update `at` is the work of who sent `later`: sent by the same, or a copy of what the same had sent
    /// before it. Rounds that come to nothing set no copy aside, and whoever repeats a member's update in one must not
    /// make that member a copier of its own work.
    pub(super) fn is_own(
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
        let witnesses = without(rows, [Some(later), by]);
        let before = self.sent().take_while(|(own, _)| *own < at);
        let mut own = before.filter(|(_, by)| *by == Some(later));
        own.any(|(own, _)| {
            self.compare(gram, beyond, (at, own));
            copied(gram, beyond, &witnesses, (at, own)).is_some()
        })
    }
}

/// The rows of those who bear witness: all but these.
fn without(rows: &[u64], those: [Option<usize>; 2]) -> Vec<u64> {
    let mut witnesses = rows.to_vec();
    for at in those.into_iter().flatten() {
        witnesses.get_mut(at).into_iter().for_each(|rows| *rows = 0);
    }
    witnesses
}

/// The first update that somebody else sent in an earlier round and that update `later` is a copy of. The matrices get
/// what they lack and a case asks for.
#[must_use]
pub fn republished(
    gram: &mut Gram,
    beyond: &mut Gram,
    rows: &[u64],
    public: &Public<'_>,
    later: usize,
) -> Option<Found> {
    public.sent().find_map(|(earlier, own)| {
        if own == Some(later) || gram.cosine(later, earlier) <= NOISY_COSINE {
            return None;
        }
        // What its sender did since has the same own part: it does not say what is common.
        let witnesses = without(rows, [own, None]);
        let found = copied(gram, beyond, &witnesses, (later, earlier))?;
        (!public.is_own(gram, beyond, rows, (later, earlier))).then_some(found)
    })
}
