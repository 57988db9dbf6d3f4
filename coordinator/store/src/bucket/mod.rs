//! A bucket of an S3-compatible object storage that mirrors the data folder's blobs. A blob's key
//! is its digest, so writing it twice is idempotent and a reader can verify its bytes.
//!
//! The client is behind the feature `bucket`: it is a fifth of the dependencies, and few markets
//! have a bucket. A build without it refuses settings that name one.

mod error;
mod metrics;
mod settings;

#[cfg(feature = "bucket")]
mod client;
#[cfg(not(feature = "bucket"))]
#[path = "without_client.rs"]
mod client;

pub use client::Bucket;
pub use error::BucketError;
pub use metrics::BucketMetrics;
pub use settings::{BucketSettings, BucketSettingsError};
