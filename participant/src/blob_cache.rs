//! A cache of blobs from the last round: consecutive rounds share most of the models and updates
//! that a round is compared with.

use std::collections::BTreeMap;
use std::sync::Arc;

use florin_protocol::Digest;
use florin_protocol::limits::EARLIER_UPDATES_BYTES_MAX;

/// Limit of cached model bytes from one round to the next (1 GiB); the rest is fetched again.
const MODEL_CACHE_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// The empty model: invalid as an input.
pub(crate) const EMPTY_MODEL: &[u8] = &[];

/// A fetched blob with its verified digest.
pub(crate) type CachedBlob = (Digest, Arc<Vec<u8>>);

/// Blobs by digest, with a limit on their total size.
#[derive(Debug)]
pub(crate) struct BlobCache {
    bytes_max: u64,
    blobs: BTreeMap<Digest, Arc<Vec<u8>>>,
}

impl BlobCache {
    /// A cache of updates, with the protocol's limit on earlier updates of a comparison.
    pub(crate) const fn for_updates() -> Self {
        Self { bytes_max: EARLIER_UPDATES_BYTES_MAX, blobs: BTreeMap::new() }
    }

    /// A cache of base models.
    pub(crate) const fn for_models() -> Self {
        Self { bytes_max: MODEL_CACHE_BYTES_MAX, blobs: BTreeMap::new() }
    }

    /// Returns the blobs with these digests, in order. Calls `fetch` once for each digest that is
    /// not cached, with its first position in `names`. Blobs that `fetch` does not find are
    /// omitted.
    pub(crate) fn get_or_fetch<E>(
        &self,
        names: impl IntoIterator<Item = Digest>,
        mut fetch: impl FnMut(usize, Digest) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Vec<CachedBlob>, E> {
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

    /// A blob, if it is cached.
    pub(crate) fn get(&self, digest: Digest) -> Option<Arc<Vec<u8>>> {
        self.blobs.get(&digest).cloned()
    }

    /// Replaces the content of the cache by these blobs, in order, as many as fit.
    pub(crate) fn replace<'a>(&mut self, fetched: impl IntoIterator<Item = &'a CachedBlob>) {
        self.blobs.clear();
        let mut bytes_left = self.bytes_max;
        for (digest, bytes) in fetched {
            let Some(left) = bytes_left.checked_sub(bytes.len() as u64) else { continue };
            if self.blobs.insert(*digest, Arc::clone(bytes)).is_none() {
                bytes_left = left;
            }
        }
    }
}

/// The blobs' bytes as slices.
pub(crate) fn byte_slices(fetched: &[CachedBlob]) -> Vec<&[u8]> {
    fetched.iter().map(|(_, bytes)| bytes.as_slice()).collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn named(n: u8) -> Digest {
        Digest([n; 32])
    }

    /// The blobs with these digests, and the positions that were fetched.
    fn fetch_all(cache: &BlobCache, names: &[u8]) -> (Vec<CachedBlob>, Vec<usize>) {
        let mut asked = Vec::new();
        let found = cache.get_or_fetch(names.iter().copied().map(named), |at, digest| {
            asked.push(at);
            Ok::<_, Infallible>((digest != named(9)).then(|| digest.0[..4].to_vec()))
        });
        (found.unwrap(), asked)
    }

    #[test]
    fn cached_and_repeated_blobs_are_fetched_once() {
        let mut cache = BlobCache::for_models();
        let (found, asked) = fetch_all(&cache, &[1, 2, 1, 9, 3]);
        assert_eq!(asked, [0, 1, 3, 4]);
        assert_eq!(byte_slices(&found), [[1; 4], [2; 4], [1; 4], [3; 4]]);
        cache.replace(&found[1..]);
        let (found, asked) = fetch_all(&cache, &[4, 2, 1, 3]);
        assert_eq!(asked, [0]);
        assert_eq!(byte_slices(&found), [[4; 4], [2; 4], [1; 4], [3; 4]]);
        cache.replace(&found[..1]);
        assert_eq!(fetch_all(&cache, &[4, 2]).1, [1]);
    }

    #[test]
    fn the_cache_is_filled_in_order_up_to_its_limit() {
        let mut cache = BlobCache { bytes_max: 9, ..BlobCache::for_updates() };
        let (found, _) = fetch_all(&cache, &[1, 1, 2, 3]);
        cache.replace(&found);
        // A digest that occurs twice counts once.
        assert_eq!(fetch_all(&cache, &[1, 2, 3]).1, [2]);
    }
}
