//! The client: requests run on their own threads; a caller may block on any thread. Each request
//! has a timeout, retries included.

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use florin_protocol::Digest;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path as Key;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt, PutPayload, RetryConfig};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::settings::BucketLocation;
use super::{BucketError, BucketMetrics, BucketSettings};

/// Most concurrent requests; others wait.
const REQUESTS_MAX: usize = 64;
/// Most small blobs that wait for their request. For further ones the bucket is busy.
const WAITING_MAX: usize = 1_024;
/// Most files that are sent, and blobs that are fetched, at the same time; others wait. Each holds
/// one part in memory.
const TRANSFERS_MAX: usize = 8;
/// Size of a part, in bytes. Larger only if a blob would otherwise have more than [`PARTS_MAX`]
/// parts.
const PART_BYTES: u64 = 8 * 1_024 * 1_024;
/// Most parts of one blob: the limit of S3.
const PARTS_MAX: u64 = 10_000;
/// Largest blob that is fetched, in bytes: the largest body that the settings allow.
const BLOB_BYTES_MAX: u64 = 1_048_576 * 1_024 * 1_024;
/// Most retries of a request, within its timeout.
const RETRIES_MAX: usize = 4;
/// Timeout of a connection attempt.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Timeout of a complete listing, as a multiple of the request timeout. A listing has pages of a
/// thousand keys, each a request of its own.
const LIST_TIMEOUT_FACTOR: u32 = 60;
/// Threads that run the requests.
const THREADS: usize = 2;
/// The key that is written at the start to test access.
const PROBE: &str = "florin-probe";
/// Environment variables with the credentials. Without them, the credentials come from the
/// machine's role.
const VARIABLES: [(&str, AmazonS3ConfigKey); 9] = [
    ("AWS_ACCESS_KEY_ID", AmazonS3ConfigKey::AccessKeyId),
    ("AWS_SECRET_ACCESS_KEY", AmazonS3ConfigKey::SecretAccessKey),
    ("AWS_SESSION_TOKEN", AmazonS3ConfigKey::Token),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", AmazonS3ConfigKey::WebIdentityTokenFile),
    ("AWS_ROLE_ARN", AmazonS3ConfigKey::RoleArn),
    ("AWS_ROLE_SESSION_NAME", AmazonS3ConfigKey::RoleSessionName),
    ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", AmazonS3ConfigKey::ContainerCredentialsRelativeUri),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", AmazonS3ConfigKey::ContainerCredentialsFullUri),
    ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", AmazonS3ConfigKey::ContainerAuthorizationTokenFile),
];

/// A bucket, or a prefix of one; cheap to clone.
#[derive(Clone)]
pub struct Bucket {
    inner: Arc<BucketInner>,
}

struct BucketInner {
    /// The name in the settings.
    name: String,
    prefix: Key,
    store: Arc<dyn ObjectStore>,
    request_timeout: Duration,
    requests: Semaphore,
    waiting: Arc<Semaphore>,
    transfers: Arc<Semaphore>,
    metrics: BucketMetrics,
    handle: Handle,
    _threads: BucketRuntime,
}

/// The runtime of the requests. It shuts down in the background, because the last clone of a bucket
/// may be dropped on one of its own threads.
struct BucketRuntime(Option<Runtime>);

impl Drop for BucketRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bucket({})", self.inner.name)
    }
}

impl Bucket {
    /// Opens the bucket of the settings, and tests write, read and list access. `variable` returns
    /// environment variables with the credentials.
    ///
    /// # Errors
    /// [`BucketError`]. Settings without a bucket are not an error.
    pub fn open(
        settings: &BucketSettings,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, BucketError> {
        let opened = Self::open_read_only(settings, variable)?;
        if let Some(bucket) = &opened {
            bucket.put(bucket.inner.prefix.clone().join(PROBE), b"may be removed".to_vec())?;
            bucket.list_first()?;
        }
        Ok(opened)
    }

    /// Opens the bucket without a write, to check a folder that no process uses.
    ///
    /// # Errors
    /// [`BucketError`].
    pub fn open_read_only(
        settings: &BucketSettings,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, BucketError> {
        // The settings were checked before; invalid ones count as no bucket.
        let Ok(Some(place)) = settings.location() else {
            return Ok(None);
        };
        let name = match &settings.endpoint {
            Some(endpoint) => format!("s3://{}/{} at {endpoint}", place.bucket, place.prefix),
            None => format!("s3://{}/{}", place.bucket, place.prefix),
        };
        let store = build_client(settings, place, variable)
            .map_err(|error| BucketError::from_client_error(&name, &error))?;
        Self::with_store(name, place.prefix, store, settings.request_timeout()).map(Some)
    }

    /// A bucket in any implementation of `ObjectStore`.
    ///
    /// # Errors
    /// [`BucketError::Unreachable`] if its threads cannot be started.
    pub fn with_store(
        name: String,
        prefix: &str,
        store: Arc<dyn ObjectStore>,
        patience: Duration,
    ) -> Result<Self, BucketError> {
        let threads = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("florin-bucket")
            .enable_all()
            .build();
        let threads = threads.map_err(|error| BucketError::Unreachable {
            name: name.clone(),
            why: format!("its threads cannot be started: {error}"),
        })?;
        let inner = BucketInner {
            name,
            prefix: Key::from(prefix),
            store,
            request_timeout: patience,
            requests: Semaphore::new(REQUESTS_MAX),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
            transfers: Arc::new(Semaphore::new(TRANSFERS_MAX)),
            metrics: BucketMetrics::default(),
            handle: threads.handle().clone(),
            _threads: BucketRuntime(Some(threads)),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The name in the settings.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Metrics of the requests.
    #[must_use]
    pub fn metrics(&self) -> &BucketMetrics {
        &self.inner.metrics
    }

    /// The digests of all blobs, from their keys. Their bytes are not verified.
    ///
    /// # Errors
    /// [`BucketError`].
    pub fn list(&self) -> Result<BTreeSet<Digest>, BucketError> {
        let inner = Arc::clone(&self.inner);
        let whole_list = self.inner.request_timeout.saturating_mul(LIST_TIMEOUT_FACTOR);
        let listed = self.wait_for("list", whole_list, async move {
            inner.store.list_with_delimiter(Some(&inner.prefix)).await
        })?;
        let names = listed.objects.iter().filter_map(|object| object.location.filename());
        Ok(names.filter_map(|name| name.parse().ok()).collect())
    }

    /// Stores a small blob and calls `done` with the result, on a thread that `done` must not
    /// block.
    pub(crate) fn put_then(
        &self,
        digest: Digest,
        bytes: Vec<u8>,
        done: impl FnOnce(Result<(), BucketError>) + Send + 'static,
    ) {
        let inner = &self.inner;
        let Ok(place) = Arc::clone(&inner.waiting).try_acquire_owned() else {
            let busy = Err(BucketError::Busy(inner.name.clone()));
            inner.metrics.count_result("put", &busy);
            return done(busy);
        };
        let (bucket, key) = (self.clone(), self.key(digest));
        inner.handle.spawn(async move {
            let put = bucket.inner.store.put(&key, PutPayload::from(bytes));
            let put = bucket
                .run_request("put", bucket.inner.request_timeout, async { put.await.map(drop) });
            done(put.await);
            drop(place);
        });
    }

    /// Stores the bytes of a file. The file, too, can fail: `E` is the caller's error for both.
    pub(crate) fn put_file<E: From<BucketError> + From<io::Error>>(
        &self,
        digest: Digest,
        file: &File,
        bytes: u64,
    ) -> Result<(), E> {
        let _turn = self.acquire_transfer()?;
        let key = self.key(digest);
        if bytes <= PART_BYTES {
            return Ok(self.put(key, part(file, 0, bytes)?)?);
        }
        let inner = Arc::clone(&self.inner);
        let mut upload = self.wait("put", async move { inner.store.put_multipart(&key).await })?;
        let each = PART_BYTES.max(bytes.div_ceil(PARTS_MAX));
        let mut at = 0;
        while at < bytes {
            let end = at.saturating_add(each).min(bytes);
            let sent = part(file, at, end)
                .map_err(E::from)
                .and_then(|part| Ok(self.wait("put", upload.put_part(PutPayload::from(part)))?));
            if let Err(error) = sent {
                // Removes the parts of the failed upload. If this fails too, a lifecycle rule of
                // the bucket removes them.
                let _ = self.wait("abort", async move { upload.abort().await });
                return Err(error);
            }
            at = end;
        }
        Ok(self.wait("put", async move { upload.complete().await.map(drop) })?)
    }

    /// Fetches a blob. Calls `begin` with its length, then `take` for each part; `E` is their error.
    pub(crate) fn get<T, E: From<BucketError> + From<io::Error>>(
        &self,
        digest: Digest,
        begin: impl FnOnce(u64) -> Result<T, E>,
        mut take: impl FnMut(&mut T, &[u8]) -> Result<(), E>,
    ) -> Result<T, E> {
        let _turn = self.acquire_transfer()?;
        let key = self.key(digest);
        let (inner, whole) = (Arc::clone(&self.inner), key.clone());
        let (bytes, first) = self.wait("get", async move {
            let found = inner.store.get(&whole).await?;
            let bytes = found.meta.size;
            let first = if bytes <= PART_BYTES { Some(found.bytes().await?) } else { None };
            Ok((bytes, first))
        })?;
        if bytes > BLOB_BYTES_MAX {
            let what =
                format!("a blob in the bucket has {bytes} bytes; the limit is {BLOB_BYTES_MAX}");
            return Err(io::Error::other(what).into());
        }
        let mut taken = begin(bytes)?;
        if let Some(first) = first {
            take(&mut taken, &first)?;
            return Ok(taken);
        }
        let mut at = 0;
        while at < bytes {
            let end = at.saturating_add(PART_BYTES).min(bytes);
            let (inner, key) = (Arc::clone(&self.inner), key.clone());
            let part =
                self.wait("get", async move { inner.store.get_range(&key, at..end).await })?;
            take(&mut taken, &part)?;
            at = end;
        }
        Ok(taken)
    }

    /// Whether an object exists under a blob's key.
    pub(crate) fn has(&self, digest: Digest) -> Result<bool, BucketError> {
        let (inner, key) = (Arc::clone(&self.inner), self.key(digest));
        match self.wait("head", async move { inner.store.head(&key).await }) {
            Ok(_) => Ok(true),
            Err(BucketError::NoObject(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn key(&self, digest: Digest) -> Key {
        self.inner.prefix.clone().join(digest.to_string())
    }

    fn put(&self, key: Key, bytes: Vec<u8>) -> Result<(), BucketError> {
        let inner = Arc::clone(&self.inner);
        self.wait(
            "put",
            async move { inner.store.put(&key, PutPayload::from(bytes)).await.map(drop) },
        )
    }

    /// Tests list access. The prefix is that of the probe, so that the list is short.
    fn list_first(&self) -> Result<(), BucketError> {
        let (inner, below) = (Arc::clone(&self.inner), self.inner.prefix.clone().join(PROBE));
        self.wait("list", async move { inner.store.list_with_delimiter(Some(&below)).await })
            .map(drop)
    }

    /// Acquires a transfer slot, which limits the parts in memory.
    fn acquire_transfer(&self) -> Result<OwnedSemaphorePermit, BucketError> {
        let (transfers, busy) = (Arc::clone(&self.inner.transfers), self.inner.name.clone());
        let patience = self.inner.request_timeout;
        self.block_on(async move {
            let turn = timeout(patience, transfers.acquire_owned()).await;
            turn.ok().and_then(Result::ok).ok_or(BucketError::Busy(busy))
        })
    }

    /// Runs a request and blocks the current thread until it ends.
    fn wait<T: Send + 'static>(
        &self,
        request: &'static str,
        work: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T, BucketError> {
        self.wait_for(request, self.inner.request_timeout, work)
    }

    fn wait_for<T: Send + 'static>(
        &self,
        request: &'static str,
        patience: Duration,
        work: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T, BucketError> {
        let bucket = self.clone();
        self.block_on(async move { bucket.run_request(request, patience, work).await })
    }

    fn block_on<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, BucketError>> + Send + 'static,
    ) -> Result<T, BucketError> {
        let (done, answer) = sync_channel(1);
        self.inner.handle.spawn(async move {
            // The caller waits below.
            let _ = done.send(work.await);
        });
        answer.recv().unwrap_or_else(|_| Err(self.unreachable("its threads are gone".to_owned())))
    }

    /// Runs one request within its timeout, and counts it.
    async fn run_request<T>(
        &self,
        request: &'static str,
        patience: Duration,
        work: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, BucketError> {
        let inner = &self.inner;
        let in_time = timeout(patience, async {
            let _place = inner.requests.acquire().await;
            work.await.map_err(|error| BucketError::from_client_error(&inner.name, &error))
        });
        let result = in_time.await.unwrap_or_else(|_| {
            Err(self.unreachable(format!("no answer in {} ms", patience.as_millis())))
        });
        inner.metrics.count_result(request, &result);
        result
    }

    fn unreachable(&self, why: String) -> BucketError {
        BucketError::Unreachable { name: self.inner.name.clone(), why }
    }
}

/// Reads a range of a file, independent of the file's offset.
fn part(file: &File, at: u64, end: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

/// The S3 client for the settings.
fn build_client(
    settings: &BucketSettings,
    place: BucketLocation<'_>,
    variable: impl Fn(&str) -> Option<String>,
) -> object_store::Result<Arc<dyn ObjectStore>> {
    // All TLS uses ring; an earlier call may have installed it already.
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    let patience = settings.request_timeout();
    let retry =
        RetryConfig { max_retries: RETRIES_MAX, retry_timeout: patience, ..RetryConfig::default() };
    let is_plain = settings.endpoint.as_ref().is_some_and(|url| url.starts_with("http://"));
    let client = ClientOptions::new()
        .with_timeout(patience)
        .with_connect_timeout(CONNECT_TIME.min(patience))
        .with_allow_http(is_plain);
    let mut service = AmazonS3Builder::new()
        .with_bucket_name(place.bucket)
        .with_retry(retry)
        .with_client_options(client);
    for (name, key) in VARIABLES {
        if let Some(value) = variable(name) {
            service = service.with_config(key, value);
        }
    }
    if let Some(endpoint) = &settings.endpoint {
        service = service.with_endpoint(endpoint);
    }
    if let Some(region) = &settings.region {
        service = service.with_region(region);
    }
    Ok(Arc::new(service.build()?))
}
