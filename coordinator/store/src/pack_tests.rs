//! Tests of pack files: durability, recovery of torn tails, damage.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use florin_protocol::blob_digest;

use super::*;
use crate::faulty_volume::{FaultyVolume, InjectedFault, VolumeOp};
use crate::volume::LocalVolume;

fn open(path: &Path) -> PackStore {
    PackStore::open(Arc::new(LocalVolume(path.to_owned()))).unwrap()
}

fn open_on(volume: Arc<dyn Volume>) -> PackStore {
    PackStore::open(volume).unwrap()
}

fn append(packs: &PackStore, bytes: &[u8]) -> Result<Digest, BlobError> {
    let (done, answer) = channel();
    let digest = blob_digest(bytes);
    packs.append(bytes.to_vec(), digest, Box::new(move |result| done.send(result).unwrap()));
    answer.recv().unwrap()
}

fn blob(n: u8) -> Vec<u8> {
    vec![n; 100 + usize::from(n)]
}

#[test]
fn acknowledged_blobs_are_readable_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut digests = Vec::new();
    for life in 0..3 {
        let packs = open(dir.path());
        for n in 0..10 {
            digests.push((append(&packs, &blob(life * 10 + n)).unwrap(), blob(life * 10 + n)));
        }
        for (digest, bytes) in &digests {
            assert_eq!(packs.read(*digest).unwrap().unwrap(), *bytes);
        }
    }
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        3,
        "each process appends to its own pack"
    );
}

#[test]
fn a_torn_tail_is_truncated_and_no_complete_blob_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let stored = {
        let packs = open(dir.path());
        [1, 2].map(|n| append(&packs, &blob(n)).unwrap())
    };
    let path = dir.path().join(name(0));
    let whole = fs::read(&path).unwrap();
    let lost = blob(3);
    let mut frame = (lost.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&blob_digest(&lost).0);
    frame.extend_from_slice(&lost);
    for cut in 0..frame.len() {
        // Truncated, or with the full length but unwritten bytes.
        for zeroed in [false, true] {
            let mut torn = whole.clone();
            torn.extend_from_slice(&frame[..cut]);
            if zeroed {
                torn.resize(whole.len() + frame.len(), 0);
            }
            fs::write(&path, &torn).unwrap();
            let packs = open(dir.path());
            assert!(stored.iter().all(|digest| packs.contains(*digest)), "cut at {cut}");
            assert!(!packs.contains(blob_digest(&lost)), "cut at {cut}, zeroed {zeroed}");
            assert_eq!(fs::metadata(&path).unwrap().len(), whole.len() as u64);
        }
    }
}

#[test]
fn a_failed_write_is_not_acknowledged_and_loses_no_other_blob() {
    for sync in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        // The third append or sync fails.
        let count = AtomicUsize::new(0);
        let packs = open_on(FaultyVolume::intercept(dir.path(), move |doing| match doing {
            VolumeOp::Append(_, bytes) if !sync && count.fetch_add(1, Ordering::SeqCst) == 2 => {
                Err(InjectedFault(bytes / 2, io::ErrorKind::StorageFull.into()))
            }
            VolumeOp::Sync(_) if sync && count.fetch_add(1, Ordering::SeqCst) == 2 => {
                Err(InjectedFault(0, io::Error::other("EIO")))
            }
            _ => Ok(()),
        }));
        let good: Vec<Digest> = [1, 2].map(|n| append(&packs, &blob(n)).unwrap()).to_vec();
        let failed = append(&packs, &blob(3)).unwrap_err();
        assert_eq!(matches!(failed, BlobError::Full), !sync, "{failed}");
        assert!(!packs.contains(blob_digest(&blob(3))));
        let after = append(&packs, &blob(4)).unwrap();
        drop(packs);
        let packs = open(dir.path());
        for (digest, n) in good.into_iter().chain([after]).zip([1, 2, 4]) {
            assert_eq!(packs.read(digest).unwrap().unwrap(), blob(n), "sync {sync}");
        }
    }
}

#[test]
fn a_pack_accepts_blobs_only_after_its_name_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let synced = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&synced);
    let packs = open_on(FaultyVolume::intercept(dir.path(), move |doing| {
        let first =
            matches!(doing, VolumeOp::SyncNames) && counter.fetch_add(1, Ordering::SeqCst) == 0;
        if first { Err(InjectedFault(0, io::Error::other("EIO"))) } else { Ok(()) }
    }));
    append(&packs, &blob(1)).unwrap_err();
    let stored = append(&packs, &blob(2)).unwrap();
    assert_eq!(synced.load(Ordering::SeqCst), 2, "the name of the pack that took it was synced");
    assert_eq!(packs.read(stored).unwrap().unwrap(), blob(2));
}

#[test]
fn concurrent_writers_share_fsyncs() {
    let dir = tempfile::tempdir().unwrap();
    let syncs = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&syncs);
    let packs = open_on(FaultyVolume::intercept(dir.path(), move |doing| {
        if matches!(doing, VolumeOp::Sync(_)) {
            counter.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        Ok(())
    }));
    let (done, answers) = channel();
    for n in 0..200u8 {
        let (bytes, done) = (blob(n), done.clone());
        let digest = blob_digest(&bytes);
        packs.append(bytes, digest, Box::new(move |result| done.send(result).unwrap()));
    }
    assert_eq!(answers.iter().take(200).filter(Result::is_ok).count(), 200);
    assert!(syncs.load(Ordering::SeqCst) < 50, "{syncs:?} syncs for 200 blobs");
}

#[test]
fn a_large_batch_matches_the_index_and_its_buffers_are_pooled() {
    let dir = tempfile::tempdir().unwrap();
    let packs = open(dir.path());
    let large = |n: usize| {
        let mut bytes = packs.buffer(PACKED_BYTES_MAX);
        assert!(bytes.is_empty() && bytes.capacity() >= PACKED_BYTES_MAX);
        bytes.resize(PACKED_BYTES_MAX - n, n as u8);
        bytes
    };
    // The others queue while the first is written, and become one batch.
    let (done, answers) = channel();
    let mut digests = Vec::new();
    for n in 0..100 {
        let (bytes, done) = (large(n), done.clone());
        let digest = blob_digest(&bytes);
        digests.push(digest);
        packs.append(bytes, digest, Box::new(move |result| done.send(result).unwrap()));
    }
    assert_eq!(answers.iter().take(100).filter(Result::is_ok).count(), 100);
    let check = |packs: &PackStore| {
        for (n, digest) in digests.iter().enumerate() {
            let bytes = packs.read(*digest).unwrap().unwrap();
            assert_eq!((bytes.len(), blob_digest(&bytes)), (PACKED_BYTES_MAX - n, *digest));
        }
    };
    check(&packs);
    let spare = packs.buffers.lock().unwrap().len();
    assert!((1..=POOLED_BUFFERS_MAX).contains(&spare), "{spare}");
    drop(packs);
    check(&open(dir.path()));
}

#[test]
fn a_flipped_byte_in_the_newest_pack_loses_one_blob_and_none_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let digests = {
        let packs = open(dir.path());
        [1, 2, 3].map(|n| append(&packs, &blob(n)).unwrap())
    };
    let path = dir.path().join(name(0));
    let mut bytes = fs::read(&path).unwrap();
    bytes[HEADER_BYTES + blob(1).len() + HEADER_BYTES + 5] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let found = check(&LocalVolume(dir.path().to_owned())).unwrap();
    assert_eq!((found.whole.len(), found.damaged.len(), found.unfinished), (2, 1, 0));
    let packs = open(dir.path());
    assert_eq!(digests.map(|digest| packs.contains(digest)), [true, false, true]);
    assert_eq!(fs::read(&path).unwrap(), bytes, "nothing was truncated");
}

#[test]
fn a_damaged_length_loses_one_blob_in_any_pack_and_none_after_it() {
    for newest in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let digests = {
            let packs = open(dir.path());
            [1, 2, 3].map(|n| append(&packs, &blob(n)).unwrap())
        };
        if !newest {
            append(&open(dir.path()), &blob(4)).unwrap();
        }
        let path = dir.path().join(name(0));
        let whole = fs::read(&path).unwrap();
        let second = HEADER_BYTES + blob(1).len();
        // Too long for any blob; beyond the end of the file; into the next blob.
        for length in [u32::MAX, 100_000, 150] {
            let mut bytes = whole.clone();
            bytes[second..second + 4].copy_from_slice(&length.to_le_bytes());
            fs::write(&path, &bytes).unwrap();
            let found = check(&LocalVolume(dir.path().to_owned())).unwrap();
            assert_eq!((found.damaged.len(), found.unfinished), (1, 0), "{:?}", found.damaged);
            let packs = open(dir.path());
            let there = digests.map(|digest| packs.contains(digest));
            assert_eq!(there, [true, false, true], "{newest} {length}");
            assert_eq!(packs.read(digests[2]).unwrap().unwrap(), blob(3));
            drop(packs);
            assert_eq!(fs::read(&path).unwrap(), bytes, "nothing was truncated");
        }
    }
}

#[test]
fn files_with_names_similar_to_a_pack_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    for stray in ["7.pack", "+000000007.pack", "00000000007.pack", "a.pack"] {
        assert_eq!(number(stray), None, "{stray}");
        fs::write(dir.path().join(stray), b"a copy").unwrap();
    }
    let packs = open(dir.path());
    append(&packs, &blob(1)).unwrap();
    assert!(dir.path().join(name(0)).exists());
}
