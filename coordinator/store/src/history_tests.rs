//! What a folder's files can be without and what they cannot, whatever took them away.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use crate::Local;
use crate::journal::AppendError;
use crate::journal::tests::{All, OWNER, open_volume, record};
use crate::meddled::{Doing, Meddled, Refused};

fn local(path: &Path) -> Arc<dyn Volume> {
    Arc::new(Local(path.to_owned()))
}

fn open_all(path: &Path) -> Result<All, OpenError> {
    open_volume(&local(path), OWNER).map(|(_, all)| all)
}

/// A journal of so many records, cut behind each of `cuts`; returns all.
fn cut_behind(path: &Path, records: u8, cuts: &[u8]) -> All {
    let (mut journal, mut all) = open_volume(&local(path), OWNER).unwrap();
    for i in 1..=records {
        journal.append(&[record(i)]).unwrap();
        all.push(record(i));
        if cuts.contains(&i) {
            journal.cut().unwrap();
        }
    }
    all
}

fn names(path: &Path) -> Vec<String> {
    let mut names = Local(path.to_owned()).names().unwrap();
    names.sort();
    names
}

#[test]
fn a_newest_segment_that_is_gone_is_missed_also_without_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let all = cut_behind(dir.path(), 5, &[2, 4]);
    assert_eq!(open_all(dir.path()).unwrap(), all);
    let newest = dir.path().join(segment(4));
    let bytes = fs::read(&newest).unwrap();
    fs::remove_file(&newest).unwrap();
    let error = open_all(dir.path()).unwrap_err();
    assert!(error.to_string().contains("[JOURNAL_MISSING]"), "{error}");
    // One whose head is gone was whole once: it is not begun anew either.
    fs::write(&newest, b"").unwrap();
    let before = names(dir.path());
    let error = open_all(dir.path()).unwrap_err();
    assert!(error.to_string().contains("[JOURNAL_MISSING]"), "{error}");
    assert_eq!(names(dir.path()), before, "nothing was changed");
    fs::write(&newest, bytes).unwrap();
    assert_eq!(open_all(dir.path()).unwrap(), all);
    // What says it is itself checked.
    let says = dir.path().join(newest::FILE);
    let mut bytes = fs::read(&says).unwrap();
    bytes[50] ^= 1;
    fs::write(&says, bytes).unwrap();
    assert!(matches!(open_all(dir.path()), Err(OpenError::Foreign { .. })));
    fs::remove_file(&says).unwrap();
    assert_eq!(open_all(dir.path()).unwrap(), all, "older folders have none");
}

#[test]
fn a_journal_that_is_gone_is_not_begun_anew() {
    let used = [(IDENTITY_FILE, Vec::new()), (newest::FILE, head(OWNER, Position::first(OWNER)))];
    for (name, bytes) in used {
        for journal in [None, Some(Vec::new())] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(name), &bytes).unwrap();
            if let Some(journal) = &journal {
                fs::write(dir.path().join(FIRST), journal).unwrap();
            }
            let before = names(dir.path());
            let error = open_all(dir.path()).unwrap_err();
            assert!(error.to_string().contains("[JOURNAL_MISSING]"), "{error}");
            assert_eq!(names(dir.path()), before, "nothing was made");
        }
    }
}

#[test]
fn a_file_that_is_named_almost_like_one_of_ours_is_none_of_ours() {
    let dir = tempfile::tempdir().unwrap();
    let all = cut_behind(dir.path(), 3, &[2]);
    for stray in
        ["journal-5", "journal-+0000000000000000005", "journal-", "journal-2.bak", "snapshot-5"]
    {
        assert_eq!(number(stray), None, "{stray}");
        assert_eq!(snapshot::number(stray), None, "{stray}");
        fs::write(dir.path().join(stray), b"a copy").unwrap();
    }
    // A folder is no segment, whatever it is called.
    fs::create_dir(dir.path().join(segment(99))).unwrap();
    let zero = format!("{PREFIX}{:020}", 0);
    assert_eq!(number(&zero), None, "the first segment has another name");
    assert_eq!(open_all(dir.path()).unwrap(), all);
}

#[test]
fn what_is_dropped_goes_oldest_first_and_each_for_good_before_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let all = cut_behind(dir.path(), 7, &[2, 4, 6]);
    let noted = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&noted);
    let volume = Meddled::on(dir.path(), move |doing| {
        if matches!(doing, Doing::Remove(_) | Doing::SyncNames) {
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
        keep_so_many(volume.as_ref(), OWNER, &at(records), (1, true)).unwrap();
    }
    noted.lock().unwrap().clear();
    keep_so_many(volume.as_ref(), OWNER, &at(6), (1, false)).unwrap();
    let mut expected = vec!["sync names".to_owned()];
    for gone in [0, 2, 4] {
        expected.extend([format!("remove {}", segment(gone)), "sync names".to_owned()]);
    }
    assert_eq!(*noted.lock().unwrap(), expected);
    assert_eq!(open_all(dir.path()).unwrap(), all);
}

/// The chain value with which a segment begins.
fn newest_chain(path: &Path, records: u64) -> Digest {
    let volume = Local(path.to_owned());
    let name = segment(records);
    Reader::new(&volume, &name, OWNER, None).unwrap().at.chain
}

#[test]
fn a_snapshot_larger_than_any_is_not_read_and_one_that_fails_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    cut_behind(dir.path(), 3, &[2]);
    let name = snapshot::name(2);
    let file = fs::File::create(dir.path().join(&name)).unwrap();
    file.set_len(5 << 30).unwrap(); // of holes: it takes no room
    let why = snapshot::read(&Local(dir.path().to_owned()), OWNER, 2).unwrap_err();
    assert!(why.contains("at most"), "{why}");
    fs::remove_file(dir.path().join(&name)).unwrap();
    let full = Meddled::with_room(dir.path(), Arc::new(Mutex::new(200)));
    let at = Position { records: 2, chain: newest_chain(dir.path(), 2) };
    let before = names(dir.path());
    let error =
        keep(full.as_ref(), OWNER, &Snapshot { at, state: vec![7; 1_000] }, true).unwrap_err();
    assert!(error.to_string().contains("[JOURNAL_UNUSABLE]"), "{error}");
    assert_eq!(names(dir.path()), before);
}

#[test]
fn no_more_is_taken_for_a_torn_end_than_one_record_can_have() {
    let dir = tempfile::tempdir().unwrap();
    let all = cut_behind(dir.path(), 2, &[]);
    let path = dir.path().join(FIRST);
    let length = fs::metadata(&path).unwrap().len();
    let most = crate::journal::RECORD_BYTES_MAX as u64;
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(length + most + 4_096).unwrap(); // of holes
    let error = open_all(dir.path()).unwrap_err();
    assert!(matches!(error, OpenError::Corrupt { record: 3, .. }), "{error}");
    file.set_len(length + 100_000).unwrap();
    assert_eq!(open_all(dir.path()).unwrap(), all);
}

#[test]
fn damage_to_the_oldest_snapshot_does_not_keep_the_rest_from_being_read() {
    let dir = tempfile::tempdir().unwrap();
    let all = cut_behind(dir.path(), 7, &[2, 4, 6]);
    let volume = Local(dir.path().to_owned());
    for records in [4, 6] {
        let chain = newest_chain(dir.path(), records as u64);
        let state = borsh::to_vec(&all[..records].to_vec()).unwrap();
        let taken = Snapshot { at: Position { records: records as u64, chain }, state };
        keep(&volume, OWNER, &taken, false).unwrap();
    }
    let path = dir.path().join(snapshot::name(4));
    let mut bytes = fs::read(&path).unwrap();
    bytes[130] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_eq!(open_all(dir.path()).unwrap(), all);
    let begin = |bytes: Option<&[u8]>| {
        bytes.map_or(Ok(All::new()), |bytes| borsh::from_slice(bytes).map_err(|e| e.to_string()))
    };
    let take = |all: &mut All, record: &Record| {
        all.push(record.clone());
        Ok(())
    };
    let fold = Fold { begin: &begin, take: &take };
    let read = read_all(&volume, OWNER, &fold, &mut |_, _| ()).unwrap();
    assert_eq!((read.state, read.from, read.unused.len()), (all, Some(6), 1));
}

#[test]
fn a_failed_write_is_cut_off_for_good_before_anything_else_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (noted, fails) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
    let (notes, failing) = (Arc::clone(&noted), Arc::clone(&fails));
    let volume = Meddled::on(dir.path(), move |doing| {
        notes.lock().unwrap().push(doing.to_string());
        let half = match doing {
            Doing::Append(_, bytes) if failing.swap(false, Ordering::SeqCst) => bytes / 2,
            _ => return Ok(()),
        };
        Err(Refused(half, io::Error::other("EIO")))
    });
    let (mut journal, _) = open_volume(&volume, OWNER).unwrap();
    journal.append(&[record(1)]).unwrap();
    noted.lock().unwrap().clear();
    fails.store(true, Ordering::SeqCst);
    assert!(matches!(journal.append(&[record(2)]), Err(AppendError::Failed(_))));
    let done = noted.lock().unwrap().clone();
    assert_eq!((done.len(), done.last().unwrap().as_str()), (2, "sync journal"), "{done:?}");
    journal.append(&[record(3)]).unwrap();
    journal.cut().unwrap();
    assert_eq!(open_volume(&volume, OWNER).unwrap().1, [record(1), record(3)]);
}
