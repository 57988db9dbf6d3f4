//! The bucket of a build without the feature `bucket`: none can be opened, so no method of one runs.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs::File;

use florin_protocol::Digest;

use super::{BucketError, BucketMetrics, BucketSettings};

/// A bucket; this build can open none.
#[derive(Clone, Debug)]
pub struct Bucket(Infallible);

impl Bucket {
    /// Refuses settings that name a bucket.
    ///
    /// # Errors
    /// [`BucketError::NotBuilt`]. Settings without a bucket are not an error.
    pub fn open(
        settings: &BucketSettings,
        _variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, BucketError> {
        match &settings.url {
            None => Ok(None),
            Some(url) => Err(BucketError::NotBuilt(url.clone())),
        }
    }

    /// As [`Bucket::open`].
    ///
    /// # Errors
    /// [`BucketError::NotBuilt`].
    pub fn open_read_only(
        settings: &BucketSettings,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, BucketError> {
        Self::open(settings, variable)
    }

    /// The name in the settings.
    #[must_use]
    pub const fn name(&self) -> &str {
        match self.0 {}
    }

    /// Metrics of the requests.
    #[must_use]
    pub const fn metrics(&self) -> &BucketMetrics {
        match self.0 {}
    }

    /// The digests of all blobs.
    ///
    /// # Errors
    /// [`BucketError`].
    pub const fn list(&self) -> Result<BTreeSet<Digest>, BucketError> {
        match self.0 {}
    }

    pub(crate) fn put_then(
        &self,
        _digest: Digest,
        _bytes: Vec<u8>,
        _done: impl FnOnce(Result<(), BucketError>) + Send + 'static,
    ) {
        match self.0 {}
    }

    pub(crate) const fn put_file<E>(
        &self,
        _digest: Digest,
        _file: &File,
        _bytes: u64,
    ) -> Result<(), E> {
        match self.0 {}
    }

    pub(crate) fn get<T, E>(
        &self,
        _digest: Digest,
        _begin: impl FnOnce(u64) -> Result<T, E>,
        _take: impl FnMut(&mut T, &[u8]) -> Result<(), E>,
    ) -> Result<T, E> {
        match self.0 {}
    }

    pub(crate) const fn has(&self, _digest: Digest) -> Result<bool, BucketError> {
        match self.0 {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_with_a_bucket_are_refused_and_others_are_not() {
        assert!(Bucket::open(&BucketSettings::default(), |_| None).unwrap().is_none());
        let url = Some("s3://florin".to_owned());
        let settings = BucketSettings { url, ..BucketSettings::default() };
        let error = Bucket::open_read_only(&settings, |_| None).unwrap_err().to_string();
        assert!(error.contains("s3://florin") && error.contains("[FEATURE_NOT_BUILT]"), "{error}");
    }
}
