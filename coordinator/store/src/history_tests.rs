//! Tests of recovery with missing or damaged files.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use crate::AppendError;
use crate::IDENTITY_FILE;
use crate::LocalVolume;
use crate::faulty_volume::{FaultyVolume, InjectedFault, VolumeOp};
use crate::journal::tests::{All, OWNER, open_volume, record};
use crate::segment::{FIRST_SEGMENT, encode_header, segment_number};

fn local(path: &Path) -> Arc<dyn Volume> {
    Arc::new(LocalVolume(path.to_owned()))
}

fn open_all(path: &Path) -> Result<All, OpenError> {
    open_volume(&local(path), OWNER).map(|(_, all)| all)
}

/// Writes a journal of `records` records, with a new segment after each of `cuts`. Returns all
/// entries.
fn cut_behind(path: &Path, records: u8, cuts: &[u8]) -> All {
    let (mut journal, mut all) = open_volume(&local(path), OWNER).unwrap();
    for i in 1..=records {
        journal.append(&[record(i)]).unwrap();
        all.push(record(i));
        if cuts.contains(&i) {
            journal.rotate_segment().unwrap();
        }
    }
    all
}

fn names(path: &Path) -> Vec<String> {
    let mut names = LocalVolume(path.to_owned()).names().unwrap();
    names.sort();
    names
}

#[test]
fn a_missing_newest_segment_is_detected_without_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let all = cut_behind(dir.path(), 5, &[2, 4]);
    assert_eq!(open_all(dir.path()).unwrap(), all);
    let newest = dir.path().join(segment_name(4));
    let bytes = fs::read(&newest).unwrap();
    fs::remove_file(&newest).unwrap();
    let error = open_all(dir.path()).unwrap_err();
    assert!(error.to_string().contains("[JOURNAL_MISSING]"), "{error}");
    // A segment without its header was complete once: it is not created anew.
    fs::write(&newest, b"").unwrap();
    let before = names(dir.path());
    let error = open_all(dir.path()).unwrap_err();
    assert!(error.to_string().contains("[JOURNAL_MISSING]"), "{error}");
    assert_eq!(names(dir.path()), before, "nothing was changed");
    fs::write(&newest, bytes).unwrap();
    assert_eq!(open_all(dir.path()).unwrap(), all);
    // The file that names the newest segment is verified too.
    let marker = dir.path().join(newest_segment::FILE);
    let mut bytes = fs::read(&marker).unwrap();
    bytes[50] ^= 1;
    fs::write(&marker, bytes).unwrap();
    assert!(matches!(open_all(dir.path()), Err(OpenError::HeaderDamaged { .. })));
    let foreign = encode_header(Digest([6; 32]), Position::first(Digest([6; 32])));
    fs::write(&marker, foreign).unwrap();
    assert!(matches!(open_all(dir.path()), Err(OpenError::OwnerMismatch { .. })));
    fs::remove_file(&marker).unwrap();
    assert_eq!(open_all(dir.path()).unwrap(), all, "folders of older versions have no such file");
}

#[test]
fn a_missing_journal_is_not_recreated() {
    let used = [
        (IDENTITY_FILE, Vec::new()),
        (newest_segment::FILE, encode_header(OWNER, Position::first(OWNER))),
    ];
    for (name, bytes) in used {
        for journal in [None, Some(Vec::new())] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(name), &bytes).unwrap();
            if let Some(journal) = &journal {
                fs::write(dir.path().join(FIRST_SEGMENT), journal).unwrap();
            }
            let before = names(dir.path());
            let error = open_all(dir.path()).unwrap_err();
            assert!(error.to_string().contains("[JOURNAL_MISSING]"), "{error}");
            assert_eq!(names(dir.path()), before, "nothing was created");
        }
    }
}

#[test]
fn files_with_names_similar_to_a_segment_or_snapshot_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let all = cut_behind(dir.path(), 3, &[2]);
    for stray in
        ["journal-5", "journal-+0000000000000000005", "journal-", "journal-2.bak", "snapshot-5"]
    {
        assert_eq!(segment_number(stray), None, "{stray}");
        assert_eq!(snapshot::number(stray), None, "{stray}");
        fs::write(dir.path().join(stray), b"a copy").unwrap();
    }
    // A folder is not a segment, even with a segment's name.
    fs::create_dir(dir.path().join(segment_name(99))).unwrap();
    let zero = format!("journal-{:020}", 0);
    assert_eq!(segment_number(&zero), None, "the first segment has another name");
    assert_eq!(open_all(dir.path()).unwrap(), all);
}

#[test]
fn old_segments_are_removed_oldest_first_and_durably_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let all = cut_behind(dir.path(), 7, &[2, 4, 6]);
    let noted = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&noted);
    let volume = FaultyVolume::intercept(dir.path(), move |doing| {
        if matches!(doing, VolumeOp::Remove(_) | VolumeOp::SyncNames) {
            notes.lock().unwrap().push(doing.to_string());
        }
        Ok(())
    });
    let at = |records: usize| {
        let part: All = all[..records].to_vec();
        let chain = newest_chain(dir.path(), records as u64);
        Snapshot {
            at: Position { records: records as u64, chain },
            state: borsh::to_vec(&part).unwrap(),
        }
    };
    for records in [4, 6] {
        store_snapshot_with_policy(
            volume.as_ref(),
            OWNER,
            &at(records),
            RetentionPolicy { snapshots: 1, segments: OldSegments::Retain },
        )
        .unwrap();
    }
    noted.lock().unwrap().clear();
    store_snapshot_with_policy(
        volume.as_ref(),
        OWNER,
        &at(6),
        RetentionPolicy { snapshots: 1, segments: OldSegments::Remove },
    )
    .unwrap();
    let mut expected = vec!["sync names".to_owned()];
    for gone in [0, 2, 4] {
        expected.extend([format!("remove {}", segment_name(gone)), "sync names".to_owned()]);
    }
    assert_eq!(*noted.lock().unwrap(), expected);
    assert_eq!(open_all(dir.path()).unwrap(), all);
}

/// The chain value at the beginning of a segment.
fn newest_chain(path: &Path, records: u64) -> Digest {
    let volume = LocalVolume(path.to_owned());
    let name = segment_name(records);
    Reader::new(&volume, &name, OWNER, None).unwrap().at.chain
}

#[test]
fn an_oversized_snapshot_is_not_read_and_a_failed_write_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    cut_behind(dir.path(), 3, &[2]);
    let name = snapshot::name(2);
    let file = fs::File::create(dir.path().join(&name)).unwrap();
    file.set_len(5 << 30).unwrap(); // sparse: it uses no disk space
    let why = snapshot::read(&LocalVolume(dir.path().to_owned()), OWNER, 2).unwrap_err();
    assert!(why.contains("at most"), "{why}");
    fs::remove_file(dir.path().join(&name)).unwrap();
    let full = FaultyVolume::with_free_space(dir.path(), Arc::new(Mutex::new(200)));
    let at = Position { records: 2, chain: newest_chain(dir.path(), 2) };
    let before = names(dir.path());
    let error = store_snapshot(
        full.as_ref(),
        OWNER,
        &Snapshot { at, state: vec![7; 1_000] },
        OldSegments::Retain,
    )
    .unwrap_err();
    assert!(error.to_string().contains("[JOURNAL_UNUSABLE]"), "{error}");
    assert_eq!(names(dir.path()), before);
}

#[test]
fn a_torn_tail_is_at_most_as_long_as_one_record() {
    let dir = tempfile::tempdir().unwrap();
    let all = cut_behind(dir.path(), 2, &[]);
    let path = dir.path().join(FIRST_SEGMENT);
    let length = fs::metadata(&path).unwrap().len();
    let most = crate::segment::RECORD_BYTES_MAX as u64;
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(length + most + 4_096).unwrap(); // sparse
    let error = open_all(dir.path()).unwrap_err();
    assert!(matches!(error, OpenError::Corrupt { record: 3, .. }), "{error}");
    file.set_len(length + 100_000).unwrap();
    assert_eq!(open_all(dir.path()).unwrap(), all);
}

#[test]
fn recovery_skips_a_damaged_oldest_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let all = cut_behind(dir.path(), 7, &[2, 4, 6]);
    let volume = LocalVolume(dir.path().to_owned());
    for records in [4, 6] {
        let chain = newest_chain(dir.path(), records as u64);
        let state = borsh::to_vec(&all[..records].to_vec()).unwrap();
        let taken = Snapshot { at: Position { records: records as u64, chain }, state };
        store_snapshot(&volume, OWNER, &taken, OldSegments::Remove).unwrap();
    }
    let path = dir.path().join(snapshot::name(4));
    let mut bytes = fs::read(&path).unwrap();
    bytes[130] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_eq!(open_all(dir.path()).unwrap(), all);
    let begin = |bytes: Option<&[u8]>| {
        bytes.map_or(Ok(All::new()), |bytes| borsh::from_slice(bytes).map_err(|e| e.to_string()))
    };
    let take = |all: &mut All, record: &JournalEntry| {
        all.push(record.clone());
        Ok(())
    };
    let fold = Fold { restore: &begin, apply: &take };
    let read = recover_all(&volume, OWNER, &fold, &mut |_, _| ()).unwrap();
    assert_eq!((read.state, read.from_snapshot, read.unusable_snapshots.len()), (all, Some(6), 1));
}

#[test]
fn a_failed_write_is_truncated_durably_before_the_next_write() {
    let dir = tempfile::tempdir().unwrap();
    let (noted, fails) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
    let (notes, failing) = (Arc::clone(&noted), Arc::clone(&fails));
    let volume = FaultyVolume::intercept(dir.path(), move |doing| {
        notes.lock().unwrap().push(doing.to_string());
        let half = match doing {
            VolumeOp::Append(_, bytes) if failing.swap(false, Ordering::SeqCst) => bytes / 2,
            _ => return Ok(()),
        };
        Err(InjectedFault(half, io::Error::other("EIO")))
    });
    let (mut journal, _) = open_volume(&volume, OWNER).unwrap();
    journal.append(&[record(1)]).unwrap();
    noted.lock().unwrap().clear();
    fails.store(true, Ordering::SeqCst);
    assert!(matches!(journal.append(&[record(2)]), Err(AppendError::Failed(_))));
    let done = noted.lock().unwrap().clone();
    assert_eq!((done.len(), done.last().unwrap().as_str()), (2, "sync journal"), "{done:?}");
    journal.append(&[record(3)]).unwrap();
    journal.rotate_segment().unwrap();
    assert_eq!(open_volume(&volume, OWNER).unwrap().1, [record(1), record(3)]);
}
