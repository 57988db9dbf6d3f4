//! Tests of the bucket with an in-memory object store, optionally throttled.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use florin_protocol::{Digest, blob_digest};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};

use super::*;
use crate::BlobStore;
use crate::pack::PACKED_BYTES_MAX;

type Slow = Arc<ThrottledStore<InMemory>>;

/// Longer than any test runs.
const NEVER: Duration = Duration::from_secs(3_600);

fn memory() -> Slow {
    Arc::new(ThrottledStore::new(InMemory::new(), ThrottleConfig::default()))
}

fn bucket(store: &Slow, prefix: &str, timeout_ms: u64) -> Bucket {
    let store: Arc<dyn ObjectStore> = Arc::clone(store) as _;
    Bucket::with_store("s3://test".to_owned(), prefix, store, Duration::from_millis(timeout_ms))
        .unwrap()
}

fn blobs(folder: &Path, bucket: &Bucket) -> BlobStore {
    BlobStore::open_with(folder, Some(bucket.clone())).unwrap()
}

/// A blob for a pack, a blob with its own file, and a blob of two parts.
fn three() -> [Vec<u8>; 3] {
    let parts = usize::try_from(PART_BYTES).unwrap() + 77;
    [b"small".to_vec(), vec![7; PACKED_BYTES_MAX + 1], vec![9; parts]]
}

#[test]
fn stored_blobs_are_mirrored_and_restored_when_the_folder_loses_them() {
    for prefix in ["", "markets/one"] {
        let (dir, store) = (tempfile::tempdir().unwrap(), memory());
        let bucket = bucket(&store, prefix, 10_000);
        let all = three();
        let digests = all.clone().map(|bytes| blobs(dir.path(), &bucket).put(&bytes).unwrap());
        assert_eq!(bucket.list().unwrap(), BTreeSet::from(digests));
        fs::remove_dir_all(dir.path()).unwrap();
        let again = blobs(dir.path(), &bucket);
        for (bytes, digest) in all.iter().zip(digests) {
            assert!(!again.contains(digest) && again.has(digest).unwrap());
            assert_eq!(again.read(digest).unwrap(), *bytes);
            assert!(again.contains(digest), "the folder has it from now on");
            assert_eq!(*again.map(digest).unwrap(), **bytes);
        }
        assert_eq!(bucket.metrics().number("get", "ok"), 2 + 3);
        let unknown = Digest([5; 32]);
        assert!(!again.has(unknown).unwrap());
        assert!(matches!(again.read(unknown), Err(crate::BlobError::Missing(_))));
        assert_eq!(bucket.metrics().number("get", "not_found"), 1);
        // Without a bucket the folder is unchanged.
        let alone = BlobStore::open(dir.path()).unwrap();
        assert_eq!(alone.read(digests[0]).unwrap(), all[0]);
        assert!(!alone.has(unknown).unwrap());
    }
}

#[test]
fn wrong_bytes_in_the_bucket_are_never_returned_and_an_upload_repairs_them() {
    let (dir, store) = (tempfile::tempdir().unwrap(), memory());
    let bucket = bucket(&store, "", 10_000);
    for bytes in three() {
        let digest = blobs(dir.path(), &bucket).put(&bytes).unwrap();
        let mut wrong = bytes.clone();
        *wrong.last_mut().unwrap() ^= 1;
        bucket.put(bucket.key(digest), wrong).unwrap();
        fs::remove_dir_all(dir.path()).unwrap();
        let again = blobs(dir.path(), &bucket);
        assert!(matches!(again.read(digest), Err(crate::BlobError::WrongDigest { .. })));
        assert!(matches!(again.map(digest), Err(crate::BlobError::WrongDigest { .. })));
        assert!(!again.contains(digest), "nothing of it is stored");
        assert_eq!(again.put(&bytes).unwrap(), digest);
        fs::remove_dir_all(dir.path()).unwrap();
        assert_eq!(blobs(dir.path(), &bucket).read(digest).unwrap(), bytes);
    }
    assert_eq!(bucket.metrics().number("get", "digest_mismatch"), 2 * 3);
}

#[test]
fn an_unresponsive_bucket_acknowledges_nothing_and_requests_time_out() {
    let (dir, store) = (tempfile::tempdir().unwrap(), memory());
    let bucket = bucket(&store, "", 50);
    let blobs = blobs(dir.path(), &bucket);
    store.config_mut(|config| config.wait_put_per_call = NEVER);
    for bytes in three().iter().take(2) {
        let error = blobs.put(bytes).unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert!(error.to_string().contains("no answer in 50 ms [BUCKET_UNREACHABLE]"), "{error}");
    }
    assert!(bucket.list().unwrap().is_empty());
    assert_eq!(bucket.metrics().number("put", "failed"), 2);
    store.config_mut(|config| config.wait_put_per_call = Duration::ZERO);
    let digests = three().map(|bytes| blobs.put(&bytes).unwrap());
    assert_eq!(bucket.list().unwrap(), BTreeSet::from(digests));
    // Blobs of the folder are read without the bucket.
    store.config_mut(|config| config.wait_get_per_call = NEVER);
    assert_eq!(blobs.read(digests[1]).unwrap(), three()[1]);
    let error = blobs.read(Digest([5; 32])).unwrap_err();
    assert!(error.is_transient(), "{error}");
}

#[test]
fn a_damaged_blob_of_the_folder_is_fetched_again() {
    let (dir, store) = (tempfile::tempdir().unwrap(), memory());
    let bucket = bucket(&store, "", 10_000);
    let [small, large, _] = three();
    let blobs = blobs(dir.path(), &bucket);
    let digests = [&small, &large].map(|bytes| blobs.put(bytes).unwrap());
    let pack = dir.path().join("packs/0000000000.pack");
    let mut frames = fs::read(&pack).unwrap();
    *frames.last_mut().unwrap() ^= 1;
    fs::write(&pack, frames).unwrap();
    let name = digests[1].to_string();
    let file = dir.path().join(&name[..2]).join(&name[2..4]).join(&name);
    fs::write(&file, vec![8; 3]).unwrap();
    assert_eq!(blobs.read(digests[0]).unwrap(), small);
    assert_eq!(blobs.read(digests[1]).unwrap(), large);
    assert_eq!(fs::read(&file).unwrap(), large);
    assert_eq!(bucket.metrics().number("get", "ok"), 2);
    // Repaired in the folder: not fetched again.
    assert_eq!(blobs.read(digests[0]).unwrap(), small);
    assert_eq!(bucket.metrics().number("get", "ok"), 2);
}

#[test]
fn many_readers_of_a_lost_blob_fetch_it_once() {
    let (dir, store) = (tempfile::tempdir().unwrap(), memory());
    let bucket = bucket(&store, "", 10_000);
    let [_, large, _] = three();
    let digest = blobs(dir.path(), &bucket).put(&large).unwrap();
    fs::remove_dir_all(dir.path()).unwrap();
    let blobs = blobs(dir.path(), &bucket);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(blobs.read(digest).unwrap(), large));
        }
    });
    assert_eq!(bucket.metrics().number("get", "ok"), 1);
}

#[test]
fn a_new_bucket_is_filled_once_with_the_blobs_of_the_state() {
    let (dir, store) = (tempfile::tempdir().unwrap(), memory());
    let alone = BlobStore::open(dir.path()).unwrap();
    let all = three();
    let digests = all.clone().map(|bytes| alone.put(&bytes).unwrap());
    let many = (0..200u8).map(|n| alone.put(&[n; 9]).unwrap());
    let spare = alone.put(b"unreferenced").unwrap();
    let lost = Digest([5; 32]);
    let named: BTreeSet<Digest> = digests.into_iter().chain([lost]).chain(many).collect();
    assert_eq!(alone.mirror_all(&named).unwrap(), 0, "there is no bucket");
    drop(alone);
    let first = bucket(&store, "first", 10_000);
    first.put(first.key(digests[0]), all[0].clone()).unwrap();
    let behind = blobs(dir.path(), &first);
    assert_eq!(behind.mirror_all(&named).unwrap(), 202);
    let mut expected = named.clone();
    expected.remove(&lost);
    assert_eq!(first.list().unwrap(), expected);
    assert!(!first.has(spare).unwrap());
    // Complete: the bucket is not even listed.
    assert_eq!(behind.mirror_all(&named).unwrap(), 0);
    assert_eq!(first.metrics().number("list", "ok"), 2);
    drop(behind);
    // Blobs were stored without the bucket, so it is compared again.
    let alone = BlobStore::open(dir.path()).unwrap();
    alone.mirror_all(&named).unwrap();
    let late = alone.put(b"while there was no bucket").unwrap();
    drop(alone);
    let more: BTreeSet<Digest> = named.iter().copied().chain([late]).collect();
    assert_eq!(blobs(dir.path(), &first).mirror_all(&more).unwrap(), 1);
    assert!(first.has(late).unwrap());
}

#[test]
fn an_interrupted_mirror_run_does_not_count_as_complete() {
    let (dir, store) = (tempfile::tempdir().unwrap(), memory());
    let named =
        BTreeSet::from([BlobStore::open(dir.path()).unwrap().put(b"stored before").unwrap()]);
    let bucket = bucket(&store, "", 50);
    let behind = blobs(dir.path(), &bucket);
    store.config_mut(|config| config.wait_put_per_call = NEVER);
    assert!(behind.mirror_all(&named).unwrap_err().is_transient());
    store.config_mut(|config| config.wait_put_per_call = Duration::ZERO);
    assert_eq!(behind.mirror_all(&named).unwrap(), 1);
    assert_eq!(bucket.list().unwrap(), named);
    assert_eq!(bucket.list().unwrap().first(), Some(&blob_digest(b"stored before")));
}

#[test]
fn the_queue_of_small_blobs_is_bounded() {
    let store = memory();
    let bucket = bucket(&store, "", 60_000);
    store.config_mut(|config| config.wait_put_per_call = NEVER);
    let (send, results) = std::sync::mpsc::channel();
    for number in 0..=WAITING_MAX {
        let send = send.clone();
        // Queued requests do not finish during the test.
        bucket.put_then(Digest([1; 32]), vec![1], move |put| drop(send.send((number, put))));
    }
    let (number, put) = results.recv().unwrap();
    assert_eq!((number, put), (WAITING_MAX, Err(BucketError::Busy("s3://test".to_owned()))));
}
