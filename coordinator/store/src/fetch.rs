//! Blobs that are in the bucket: kept there before anybody is told of them, and fetched from there where the folder has
//! lost them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, PoisonError};

use florin_protocol::Digest;

use super::blobs::{BlobError, BlobWriter, Blobs, Opened};
use super::bucket::{Bucket, BucketError, Seen};
use super::pack::Done;
use super::sync_folder;

/// Who may fetch at once, those among them who wait because another fetches the same.
pub const FETCHES_MAX: usize = 8;
/// Small blobs on their way to a new bucket at once.
const MIRRORED_MAX: usize = 64;
/// The file that names the bucket which has every blob that the state names.
const MARK: &str = "bucket";

/// A file's bytes are in the bucket, if there is one.
#[derive(Debug)]
pub(super) struct Carried(());

/// Which blobs are being fetched, so that each is fetched once.
#[derive(Debug, Default)]
pub(super) struct Fetching {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: BTreeSet<Digest>,
    inside: usize,
}

impl Fetching {
    /// The turn to fetch a blob; `None` where too many fetch.
    fn begin(&self, digest: Digest) -> Option<Turn<'_>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.inside >= FETCHES_MAX {
            return None;
        }
        state.inside += 1;
        while !state.running.insert(digest) {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Some(Turn { fetching: self, digest })
    }
}

struct Turn<'a> {
    fetching: &'a Fetching,
    digest: Digest,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.fetching.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.running.remove(&self.digest);
        state.inside = state.inside.saturating_sub(1);
        drop(state);
        self.fetching.ended.notify_all();
    }
}

impl Blobs {
    /// What was asked of the bucket; nothing where there is none.
    #[must_use]
    pub fn seen(&self) -> Seen {
        self.bucket.as_ref().map(|bucket| bucket.seen().clone()).unwrap_or_default()
    }

    /// Whether a blob is here, or in the bucket.
    ///
    /// # Errors
    /// [`BlobError::Bucket`].
    pub fn has(&self, digest: Digest) -> Result<bool, BlobError> {
        match &self.bucket {
            Some(bucket) if !self.contains(digest) => Ok(bucket.has(digest)?),
            _ => Ok(self.contains(digest)),
        }
    }

    /// Keeps what a writer took, in the bucket too; `done` hears when it is durable in both. Does not wait if the blob is
    /// small.
    pub(super) fn keep_there_too(&self, bucket: &Bucket, writer: BlobWriter, done: Done) {
        let digest = writer.digest();
        let Some(bytes) = writer.small() else {
            return match self.carry_writer(bucket, &writer) {
                Ok(()) => self.keep_here(writer, done),
                Err(error) => done(Err(error)),
            };
        };
        let (bytes, bucket) = (bytes.to_vec(), bucket.clone());
        let then: Done = Box::new(move |kept| match kept {
            Err(error) => done(Err(error)),
            Ok(_) => bucket.put_then(digest, bytes, move |put| {
                done(put.map(|()| digest).map_err(BlobError::from));
            }),
        });
        self.keep_here(writer, then);
    }

    fn carry_writer(&self, bucket: &Bucket, writer: &BlobWriter) -> Result<(), BlobError> {
        match writer.file() {
            Some(file) if !writer.is_carried() => {
                bucket.put_file(writer.digest(), file, writer.bytes())
            }
            _ => Ok(()),
        }
    }

    /// Brings a whole upload's bytes to the bucket, before they are taken from their sender: where that fails, they are
    /// there for the next try.
    pub(super) fn carry(
        &self,
        digest: Digest,
        file: &File,
        bytes: u64,
    ) -> Result<Carried, BlobError> {
        if let Some(bucket) = &self.bucket {
            bucket.put_file(digest, file, bytes)?;
        }
        Ok(Carried(()))
    }

    /// What `read` finds here; where that is nothing, or damaged, what it finds when the blob was fetched.
    pub(super) fn or_fetched<T>(
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
        let _turn = self.fetching.begin(digest).ok_or_else(busy)?;
        // Somebody else may have fetched it meanwhile.
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
            bucket.seen().wrong();
            tracing::error!(
                bucket = bucket.name(), wanted = %digest, %found,
                "the bucket has other bytes than a blob's own [BUCKET_WRONG_BYTES]"
            );
            return Err(BlobError::WrongDigest { wanted: digest, found });
        }
        let (kept, answer) = sync_channel(1);
        self.keep_here(writer, to(kept));
        waited(answer.recv())?;
        tracing::info!(%digest, "fetched a blob from the bucket");
        Ok(())
    }

    /// Sees to it that the bucket has every blob that the state names, before anything else is kept. Nothing to do where
    /// that was seen to before and the bucket is the same. Returns how many were brought.
    ///
    /// # Errors
    /// [`BlobError`]; what was brought by then stays.
    pub fn mirror(&self, needed: &BTreeSet<Digest>) -> Result<u64, BlobError> {
        let mark = self.root().join(MARK);
        let Some(bucket) = &self.bucket else {
            return self.unmark(&mark).map(|()| 0).map_err(BlobError::from);
        };
        if fs::read_to_string(&mark).is_ok_and(|name| name == bucket.name()) {
            return Ok(0);
        }
        let there = bucket.list()?;
        let (mut brought, mut lost) = (0u64, 0u64);
        let (send, answers) = sync_channel(MIRRORED_MAX);
        let mut under_way = 0;
        for digest in needed.difference(&there) {
            match self.open_here(*digest) {
                Ok(Opened::File(file, bytes)) => bucket.put_file(*digest, &file, bytes)?,
                Ok(Opened::Bytes(bytes)) => {
                    if under_way >= MIRRORED_MAX {
                        waited(answers.recv())?;
                        under_way -= 1;
                    }
                    let (digest, send) = (*digest, to(send.clone()));
                    bucket.put_then(digest, bytes, move |put| {
                        send(put.map(|()| digest).map_err(BlobError::from));
                    });
                    under_way += 1;
                }
                // Nobody has it: as without a bucket, whoever asks for it hears so.
                Err(BlobError::Missing(_) | BlobError::WrongDigest { .. }) => {
                    tracing::error!(%digest, "a blob that the state names is nowhere");
                    lost += 1;
                    continue;
                }
                Err(error) => return Err(error),
            }
            brought += 1;
        }
        for _ in 0..under_way {
            waited(answers.recv())?;
        }
        write_mark(&mark, bucket.name()).map_err(BlobError::from)?;
        tracing::info!(
            bucket = bucket.name(),
            brought,
            lost,
            "the bucket has what the state names"
        );
        Ok(brought)
    }

    /// From now on blobs are kept that no bucket has.
    fn unmark(&self, mark: &Path) -> io::Result<()> {
        match fs::read_to_string(mark) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            found => {
                let was = found?;
                tracing::warn!(bucket = %was, "blobs are kept in this folder alone from now on");
                fs::remove_file(mark)?;
                sync_folder(self.root())
            }
        }
    }
}

fn write_mark(mark: &Path, name: &str) -> io::Result<()> {
    let unfinished = mark.with_extension("unfinished");
    let mut file = File::create(&unfinished)?;
    file.write_all(name.as_bytes())?;
    file.sync_all()?;
    fs::rename(&unfinished, mark)?;
    mark.parent().map_or(Ok(()), sync_folder)
}

/// Tells whoever waits.
fn to(answer: SyncSender<Result<Digest, BlobError>>) -> Done {
    Box::new(move |result| {
        // It is waited for, or nobody wants to know any more.
        let _ = answer.send(result);
    })
}

fn waited<E>(answer: Result<Result<Digest, BlobError>, E>) -> Result<Digest, BlobError> {
    answer.map_err(|_| BlobError::Failed(io::Error::other("the blob store is closed")))?
}
