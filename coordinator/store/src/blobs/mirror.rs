//! Mirroring of blobs to the bucket. A blob is in the bucket before it is acknowledged, and is
//! fetched from there if the folder has lost it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, PoisonError};

use florin_protocol::Digest;

use super::{BlobStore, BlobWriter, OpenedBlob};
use crate::bucket::{Bucket, BucketError, BucketMetrics};
use crate::error::BlobError;
use crate::pack::StoreCallback;
use crate::sync_folder;

/// Most concurrent fetches, including those that wait for another fetch of the same blob.
pub const FETCHES_MAX: usize = 8;
/// Most small blobs in flight while a new bucket is filled.
const MIRRORED_MAX: usize = 64;
/// The file with the name of the bucket that has every blob of the state.
const MIRROR_MARKER: &str = "bucket";

/// Proof that the bucket has a file's bytes, if there is a bucket.
#[derive(Debug)]
pub(crate) struct Mirrored(());

/// The blobs that are being fetched, so that each is fetched once.
#[derive(Debug, Default)]
pub(super) struct FetchLimiter {
    state: Mutex<FetchState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct FetchState {
    running: BTreeSet<Digest>,
    inside: usize,
}

impl FetchLimiter {
    /// Acquires the right to fetch a blob; `None` if too many fetches are running.
    fn acquire(&self, digest: Digest) -> Option<FetchGuard<'_>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.inside >= FETCHES_MAX {
            return None;
        }
        state.inside += 1;
        while !state.running.insert(digest) {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Some(FetchGuard { fetching: self, digest })
    }
}

struct FetchGuard<'a> {
    fetching: &'a FetchLimiter,
    digest: Digest,
}

impl Drop for FetchGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.fetching.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.running.remove(&self.digest);
        state.inside = state.inside.saturating_sub(1);
        drop(state);
        self.fetching.ended.notify_all();
    }
}

impl BlobStore {
    /// Metrics of the bucket; empty without a bucket.
    #[must_use]
    pub fn bucket_metrics(&self) -> BucketMetrics {
        self.bucket.as_ref().map(|bucket| bucket.metrics().clone()).unwrap_or_default()
    }

    /// Whether a blob is in the folder or in the bucket.
    ///
    /// # Errors
    /// [`BlobError::Bucket`].
    pub fn has(&self, digest: Digest) -> Result<bool, BlobError> {
        match &self.bucket {
            Some(bucket) if !self.contains(digest) => Ok(bucket.has(digest)?),
            _ => Ok(self.contains(digest)),
        }
    }

    /// Stores a writer's blob in the folder and in the bucket, and calls `done` when it is durable
    /// in both. Does not block for a small blob.
    pub(super) fn store_mirrored(&self, bucket: &Bucket, writer: BlobWriter, done: StoreCallback) {
        let digest = writer.digest();
        let Some(bytes) = writer.small() else {
            return match self.mirror_writer(bucket, &writer) {
                Ok(()) => self.store_locally(writer, done),
                Err(error) => done(Err(error)),
            };
        };
        let (bytes, bucket) = (bytes.to_vec(), bucket.clone());
        let then: StoreCallback = Box::new(move |stored| match stored {
            Err(error) => done(Err(error)),
            Ok(_) => bucket.put_then(digest, bytes, move |put| {
                done(put.map(|()| digest).map_err(BlobError::from));
            }),
        });
        self.store_locally(writer, then);
    }

    fn mirror_writer(&self, bucket: &Bucket, writer: &BlobWriter) -> Result<(), BlobError> {
        match writer.file() {
            Some(file) if !writer.is_mirrored() => {
                bucket.put_file(writer.digest(), file, writer.bytes())
            }
            _ => Ok(()),
        }
    }

    /// Copies a complete upload to the bucket before the blob store takes over its file. If the
    /// copy fails, the upload is still there for a retry.
    pub(crate) fn mirror_upload(
        &self,
        digest: Digest,
        file: &File,
        bytes: u64,
    ) -> Result<Mirrored, BlobError> {
        if let Some(bucket) = &self.bucket {
            bucket.put_file::<BlobError>(digest, file, bytes)?;
        }
        Ok(Mirrored(()))
    }

    /// The result of `read`. If the blob is missing or damaged in the folder, it is fetched from
    /// the bucket and read again.
    pub(super) fn read_or_fetch<T>(
        &self,
        digest: Digest,
        read: impl Fn() -> Result<T, BlobError>,
    ) -> Result<T, BlobError> {
        let found = read();
        let lost = matches!(found, Err(BlobError::Missing(_) | BlobError::WrongDigest { .. }));
        let Some(bucket) = self.bucket.as_ref().filter(|_| lost) else {
            return found;
        };
        let busy = || BucketError::Busy(bucket.name().to_owned());
        let _turn = self.fetches.acquire(digest).ok_or_else(busy)?;
        // Another thread may have fetched it meanwhile.
        if let Ok(found) = read() {
            return Ok(found);
        }
        self.fetch(bucket, digest)?;
        read()
    }

    fn fetch(&self, bucket: &Bucket, digest: Digest) -> Result<(), BlobError> {
        let fetched = bucket.get(digest, |bytes| self.writer(bytes), BlobWriter::write);
        let writer = match fetched {
            Err(BlobError::Bucket(BucketError::NoObject(_))) => {
                return Err(BlobError::Missing(digest));
            }
            other => other?,
        };
        let found = writer.digest();
        if found != digest {
            bucket.metrics().count_digest_mismatch();
            tracing::error!(
                bucket = bucket.name(), wanted = %digest, %found,
                "the bytes in the bucket do not match the blob's digest [BUCKET_DIGEST_MISMATCH]"
            );
            return Err(BlobError::WrongDigest { wanted: digest, found });
        }
        let (sender, answer) = sync_channel(1);
        self.store_locally(writer, send_to(sender));
        flatten_result(answer.recv())?;
        tracing::info!(%digest, "fetched a blob from the bucket");
        Ok(())
    }

    /// Copies every blob of the state to the bucket if it is not there, before any other blob is
    /// stored. Does nothing if an earlier run finished for the same bucket. Returns the number of
    /// copied blobs.
    ///
    /// # Errors
    /// [`BlobError`]; blobs copied before the error remain in the bucket.
    pub fn mirror_all(&self, needed: &BTreeSet<Digest>) -> Result<u64, BlobError> {
        let mark = self.root().join(MIRROR_MARKER);
        let Some(bucket) = &self.bucket else {
            return self.remove_marker(&mark).map(|()| 0).map_err(BlobError::from);
        };
        if fs::read_to_string(&mark).is_ok_and(|name| name == bucket.name()) {
            return Ok(0);
        }
        let there = bucket.list()?;
        let (mut brought, mut lost) = (0u64, 0u64);
        let (send, answers) = sync_channel(MIRRORED_MAX);
        let mut under_way = 0;
        for digest in needed.difference(&there) {
            match self.open_local(*digest) {
                Ok(OpenedBlob::File(file, bytes)) => {
                    bucket.put_file::<BlobError>(*digest, &file, bytes)?
                }
                Ok(OpenedBlob::Bytes(bytes)) => {
                    if under_way >= MIRRORED_MAX {
                        flatten_result(answers.recv())?;
                        under_way -= 1;
                    }
                    let (digest, send) = (*digest, send_to(send.clone()));
                    bucket.put_then(digest, bytes, move |put| {
                        send(put.map(|()| digest).map_err(BlobError::from));
                    });
                    under_way += 1;
                }
                // Lost everywhere. As without a bucket, a request for it fails.
                Err(BlobError::Missing(_) | BlobError::WrongDigest { .. }) => {
                    tracing::error!(%digest, "a blob of the state is in neither folder nor bucket");
                    lost += 1;
                    continue;
                }
                Err(error) => return Err(error),
            }
            brought += 1;
        }
        for _ in 0..under_way {
            flatten_result(answers.recv())?;
        }
        write_marker(&mark, bucket.name()).map_err(BlobError::from)?;
        tracing::info!(
            bucket = bucket.name(),
            brought,
            lost,
            "the bucket mirrors all blobs of the state"
        );
        Ok(brought)
    }

    /// Removes the marker: from now on the folder stores blobs that no bucket has.
    fn remove_marker(&self, mark: &Path) -> io::Result<()> {
        match fs::read_to_string(mark) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            found => {
                let was = found?;
                tracing::warn!(bucket = %was, "no bucket is set any more: blobs are not mirrored");
                fs::remove_file(mark)?;
                sync_folder(self.root())
            }
        }
    }
}

fn write_marker(mark: &Path, name: &str) -> io::Result<()> {
    let unfinished = mark.with_extension("unfinished");
    let mut file = File::create(&unfinished)?;
    file.write_all(name.as_bytes())?;
    file.sync_all()?;
    fs::rename(&unfinished, mark)?;
    mark.parent().map_or(Ok(()), sync_folder)
}

/// A callback that sends the result to a channel.
fn send_to(answer: SyncSender<Result<Digest, BlobError>>) -> StoreCallback {
    Box::new(move |result| {
        // The receiver is waiting, or has given up.
        let _ = answer.send(result);
    })
}

fn flatten_result<E>(answer: Result<Result<Digest, BlobError>, E>) -> Result<Digest, BlobError> {
    answer.map_err(|_| BlobError::Failed(io::Error::other("the blob store is closed")))?
}
