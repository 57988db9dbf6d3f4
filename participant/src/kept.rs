//! The updates of the round that was worked on last, so that who works on the next one need not fetch them again.

use std::collections::BTreeMap;

use florin_protocol::Digest;
use florin_protocol::limits::LAST_UPDATES_BYTES_MAX;

/// Updates by their digests: those of one round, and no more bytes than a round is held against.
#[derive(Debug, Default)]
pub(crate) struct Kept(BTreeMap<Digest, Vec<u8>>);

impl Kept {
    /// One of them, which is not kept any longer.
    pub(crate) fn take(&mut self, digest: Digest) -> Option<Vec<u8>> {
        self.0.remove(&digest)
    }

    /// Keeps these instead, if they are not too many.
    pub(crate) fn keep(&mut self, digests: impl Iterator<Item = Digest>, updates: Vec<Vec<u8>>) {
        self.0.clear();
        let bytes: u64 = updates.iter().map(|update| update.len() as u64).sum();
        if bytes <= LAST_UPDATES_BYTES_MAX {
            self.0 = digests.zip(updates).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_not_fetched_again() {
        let mut kept = Kept::default();
        kept.keep([Digest([1; 32]), Digest([2; 32])].into_iter(), vec![vec![1], vec![2]]);
        assert_eq!(kept.take(Digest([2; 32])), Some(vec![2]));
        assert_eq!(kept.take(Digest([2; 32])), None);
        kept.keep([Digest([3; 32])].into_iter(), vec![vec![3]]);
        assert_eq!(kept.take(Digest([1; 32])), None);
        assert_eq!(kept.take(Digest([3; 32])), Some(vec![3]));
    }
}
