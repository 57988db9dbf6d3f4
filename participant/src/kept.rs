//! What was fetched for the round that was worked on last, so that who works on the next one need not fetch it again: a
//! round is held against what the rounds before showed, and most of that was there a round ago.

use std::collections::BTreeMap;
use std::sync::Arc;

use florin_protocol::Digest;
use florin_protocol::limits::LAST_UPDATES_BYTES_MAX;

/// Bytes of models that are kept from one round to the next (1 GiB): what does not fit is fetched again.
const MODELS_KEPT_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// The bytes of no model: nobody can work with them.
pub(crate) const NO_MODEL: &[u8] = &[];

/// A blob that was fetched, and has its digest.
pub(crate) type Fetched = (Digest, Arc<Vec<u8>>);

/// Blobs by their digests, up to so many bytes.
#[derive(Debug)]
pub(crate) struct Kept {
    bytes_max: u64,
    blobs: BTreeMap<Digest, Arc<Vec<u8>>>,
}

impl Kept {
    /// For updates: no more bytes of them than a round is held against.
    pub(crate) const fn updates() -> Self {
        Self { bytes_max: LAST_UPDATES_BYTES_MAX, blobs: BTreeMap::new() }
    }

    /// For models that rounds began with.
    pub(crate) const fn models() -> Self {
        Self { bytes_max: MODELS_KEPT_BYTES_MAX, blobs: BTreeMap::new() }
    }

    /// The blobs of these names, in their order: `fetch` is asked for what is not kept, with its place among them, and
    /// for each blob once. What it does not find is left out.
    pub(crate) fn with_others<E>(
        &self,
        names: impl IntoIterator<Item = Digest>,
        mut fetch: impl FnMut(usize, Digest) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Vec<Fetched>, E> {
        let mut fetched: BTreeMap<Digest, Arc<Vec<u8>>> = BTreeMap::new();
        let mut all = Vec::new();
        for (at, digest) in names.into_iter().enumerate() {
            let known = self.blobs.get(&digest).or_else(|| fetched.get(&digest)).cloned();
            let bytes = match known {
                Some(bytes) => bytes,
                None => match fetch(at, digest)? {
                    Some(bytes) => Arc::clone(fetched.entry(digest).or_insert(Arc::new(bytes))),
                    None => continue,
                },
            };
            all.push((digest, bytes));
        }
        Ok(all)
    }

    /// Keeps these instead, the first ones first, as many as fit.
    pub(crate) fn keep(&mut self, fetched: &[Fetched]) {
        self.blobs.clear();
        let mut room = self.bytes_max;
        for (digest, bytes) in fetched {
            let Some(left) = room.checked_sub(bytes.len() as u64) else { continue };
            if self.blobs.insert(*digest, Arc::clone(bytes)).is_none() {
                room = left;
            }
        }
    }
}

/// The bytes of blobs, as the work takes them.
pub(crate) fn views(fetched: &[Fetched]) -> Vec<&[u8]> {
    fetched.iter().map(|(_, bytes)| bytes.as_slice()).collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn named(n: u8) -> Digest {
        Digest([n; 32])
    }

    /// The blobs of these names, and which of them were fetched.
    fn ask(kept: &Kept, names: &[u8]) -> (Vec<Fetched>, Vec<usize>) {
        let mut asked = Vec::new();
        let found = kept.with_others(names.iter().copied().map(named), |at, digest| {
            asked.push(at);
            Ok::<_, Infallible>((digest != named(9)).then(|| digest.0[..4].to_vec()))
        });
        (found.unwrap(), asked)
    }

    #[test]
    fn what_is_kept_is_not_fetched_again_and_nothing_is_fetched_twice() {
        let mut kept = Kept::models();
        let (found, asked) = ask(&kept, &[1, 2, 1, 9, 3]);
        assert_eq!(asked, [0, 1, 3, 4]);
        assert_eq!(views(&found), [[1; 4], [2; 4], [1; 4], [3; 4]]);
        kept.keep(&found[1..]);
        let (found, asked) = ask(&kept, &[4, 2, 1, 3]);
        assert_eq!(asked, [0]);
        assert_eq!(views(&found), [[4; 4], [2; 4], [1; 4], [3; 4]]);
        kept.keep(&found[..1]);
        assert_eq!(ask(&kept, &[4, 2]).1, [1]);
    }

    #[test]
    fn no_more_is_kept_than_fits_and_the_first_ones_come_first() {
        let mut kept = Kept { bytes_max: 9, ..Kept::updates() };
        let (found, _) = ask(&kept, &[1, 1, 2, 3]);
        kept.keep(&found);
        // A blob that is named twice counts once.
        assert_eq!(ask(&kept, &[1, 2, 3]).1, [2]);
    }
}
