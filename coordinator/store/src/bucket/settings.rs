//! Settings of the bucket that mirrors the blobs.

#[cfg(feature = "bucket")]
use std::time::Duration;

use serde::Deserialize;

/// Maximum length of a bucket's name, and of a prefix, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The bucket that stores a copy of every blob. Disabled unless set.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BucketSettings {
    /// The bucket and the prefix of its keys.
    pub url: Option<String>,
    /// The S3-compatible service, if it is not Amazon's.
    pub endpoint: Option<String>,
    /// The region of the bucket.
    pub region: Option<String>,
    /// Timeout of one request in milliseconds, retries included.
    pub timeout_ms: u64,
}

impl Default for BucketSettings {
    fn default() -> Self {
        Self { url: None, endpoint: None, region: None, timeout_ms: 20_000 }
    }
}

/// An invalid setting of the bucket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("settings: {key} = {value:?}: use {right} [INVALID_BUCKET_SETTINGS]")]
pub struct BucketSettingsError {
    /// The key.
    pub key: &'static str,
    /// Its value, shortened.
    pub value: String,
    /// The accepted form.
    pub right: &'static str,
}

/// A bucket and the prefix of the keys in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BucketLocation<'a> {
    pub(super) bucket: &'a str,
    pub(super) prefix: &'a str,
}

impl BucketSettings {
    /// The bucket's location, if one is set.
    ///
    /// # Errors
    /// [`BucketSettingsError`].
    pub(super) fn location(&self) -> Result<Option<BucketLocation<'_>>, BucketSettingsError> {
        let Some(url) = &self.url else {
            return Ok(None);
        };
        let place = url.strip_prefix("s3://").map(|rest| {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            BucketLocation { bucket, prefix: prefix.trim_end_matches('/') }
        });
        match place.filter(|place| is_name(place.bucket) && is_prefix(place.prefix)) {
            Some(place) => Ok(Some(place)),
            None => Err(wrong("blobs.url", url, "s3://BUCKET or s3://BUCKET/PREFIX")),
        }
    }

    /// Checks that the settings are consistent.
    ///
    /// # Errors
    /// [`BucketSettingsError`].
    pub fn check(&self) -> Result<(), BucketSettingsError> {
        let of_a_bucket = [("blobs.endpoint", &self.endpoint), ("blobs.region", &self.region)];
        if self.location()?.is_none()
            && let Some((key, value)) =
                of_a_bucket.iter().find_map(|(key, v)| Some((key, v.as_ref()?)))
        {
            return Err(wrong(key, value, "it together with blobs.url"));
        }
        if let Some(endpoint) = &self.endpoint {
            let address = endpoint.parse::<http::Uri>().ok().filter(|uri| uri.host().is_some());
            let address = address.filter(|uri| uri.path() == "/" && uri.query().is_none());
            if !matches!(address.as_ref().and_then(http::Uri::scheme_str), Some("http" | "https")) {
                return Err(wrong("blobs.endpoint", endpoint, "https://HOST or http://HOST:PORT"));
            }
        }
        match &self.region {
            Some(region) if !is_name(region) => {
                Err(wrong("blobs.region", region, "a name such as eu-central-1"))
            }
            _ => Ok(()),
        }
    }

    /// Timeout of one request, retries included.
    #[cfg(feature = "bucket")]
    pub(super) const fn request_timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

fn wrong(key: &'static str, value: &str, right: &'static str) -> BucketSettingsError {
    BucketSettingsError { key, value: value.chars().take(200).collect(), right }
}

fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(fits)
}

fn is_prefix(text: &str) -> bool {
    let part = |part: &str| is_name(part) && part != "." && part != "..";
    text.is_empty() || (text.len() <= NAME_BYTES_MAX && text.split('/').all(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(url: &str) -> BucketSettings {
        BucketSettings { url: Some(url.to_owned()), ..BucketSettings::default() }
    }

    #[test]
    fn a_url_names_a_bucket_and_a_key_prefix() {
        for (url, bucket, prefix) in [
            ("s3://florin", "florin", ""),
            ("s3://florin/", "florin", ""),
            ("s3://florin.eu/markets/one/", "florin.eu", "markets/one"),
        ] {
            assert_eq!(
                at(url).location().unwrap(),
                Some(BucketLocation { bucket, prefix }),
                "{url}"
            );
            at(url).check().unwrap();
        }
        assert_eq!(BucketSettings::default().location().unwrap(), None);
        let long = format!("s3://{}", "b".repeat(NAME_BYTES_MAX + 1));
        for url in ["", "florin", "s3://", "s3:///a", "http://florin", "s3://a b", "s3://a//b"] {
            let error = at(url).check().unwrap_err().to_string();
            assert!(error.contains("[INVALID_BUCKET_SETTINGS]"), "{url}: {error}");
        }
        for url in ["s3://a/../b", "s3://a/b?c", "s3://key:secret@a", long.as_str()] {
            assert!(at(url).check().is_err(), "{url}");
        }
    }

    #[test]
    fn endpoint_and_region_require_a_bucket_and_an_endpoint_has_no_path() {
        let endpoint =
            |endpoint: &str| BucketSettings { endpoint: Some(endpoint.to_owned()), ..at("s3://a") };
        for fine in ["http://127.0.0.1:9000", "https://minio.example", "https://minio.example/"] {
            endpoint(fine).check().unwrap();
        }
        for wrong in
            ["minio.example", "ftp://minio", "http://minio/bucket", "http://minio/?a=b", ""]
        {
            let error = endpoint(wrong).check().unwrap_err().to_string();
            assert!(error.contains("blobs.endpoint"), "{wrong}: {error}");
        }
        let alone = BucketSettings { url: None, ..endpoint("http://127.0.0.1:9000") };
        let error = alone.check().unwrap_err().to_string();
        assert!(error.contains("together with blobs.url [INVALID_BUCKET_SETTINGS]"), "{error}");
        let region = BucketSettings { region: Some("eu central".to_owned()), ..at("s3://a") };
        assert!(region.check().unwrap_err().to_string().contains("blobs.region"));
    }
}
