//! Tests of the journal: crashes, disk errors and bit flips.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use florin_engine::Event;
use florin_protocol::{Address, ErrorCode, RoundNumber, TaskId, Timestamp};

use super::*;
use crate::faulty_volume::{FaultyVolume, InjectedFault, VolumeOp};
use crate::recovery::OldSegments;
use crate::segment::{ALIGN_BYTES, SECTOR_BYTES};
use crate::{LocalVolume, Snapshot, snapshot};

pub(crate) const OWNER: Digest = Digest([5; 32]);

pub(crate) fn record(i: u8) -> JournalEntry {
    let event = Event::UploadRejected {
        task: TaskId([i; 32]),
        round: RoundNumber(u32::from(i)),
        sender: Address([i; 20]),
        code: ErrorCode::Truncated,
    };
    JournalEntry { now: Timestamp(u64::from(i)), event }
}

/// The test state: all entries.
pub(crate) type All = Vec<JournalEntry>;

pub(crate) fn open_volume(
    volume: &Arc<dyn Volume>,
    owner: Digest,
) -> Result<(Journal, All), OpenError> {
    let begin = |bytes: Option<&[u8]>| {
        bytes.map_or(Ok(All::new()), |bytes| borsh::from_slice(bytes).map_err(|e| e.to_string()))
    };
    let take = |all: &mut All, record: &JournalEntry| {
        all.push(record.clone());
        Ok(())
    };
    let (all, journal) = super::open(volume, owner, &Fold { restore: &begin, apply: &take })?;
    Ok((journal, all))
}

fn open(path: &Path) -> Result<(Journal, All), OpenError> {
    let volume: Arc<dyn Volume> = Arc::new(LocalVolume(path.parent().unwrap().to_owned()));
    open_volume(&volume, OWNER)
}

/// Writes a journal of three records; the second one has two entries.
fn three(path: &Path) -> Vec<JournalEntry> {
    let (mut journal, _) = open(path).unwrap();
    journal.append(&[record(1)]).unwrap();
    journal.append(&[record(2), record(3)]).unwrap();
    journal.append(&[record(4)]).unwrap();
    (1..=4).map(record).collect()
}

#[test]
fn appended_records_are_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let written = three(&path);
    let (mut journal, read) = open(&path).unwrap();
    assert_eq!((read, journal.records()), (written, 3));
    journal.append(&[record(9)]).unwrap();
    assert_eq!(open(&path).unwrap().1.len(), 5);
}

#[test]
fn a_journal_truncated_anywhere_recovers_its_complete_records_and_continues() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let written = three(&path);
    let bytes = fs::read(&path).unwrap();
    for cut in 0..bytes.len() {
        fs::write(&path, &bytes[..cut]).unwrap();
        let (mut journal, read) = open(&path).unwrap();
        assert!(written.starts_with(&read), "cut at {cut}");
        journal.append(&[record(7)]).unwrap();
        drop(journal);
        let (_, again) = open(&path).unwrap();
        assert_eq!(again.len(), read.len() + 1, "cut at {cut}");
        assert_eq!(again.last(), Some(&record(7)));
    }
}

#[test]
fn a_flipped_bit_anywhere_is_detected_and_nothing_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    three(&path);
    let bytes = fs::read(&path).unwrap();
    for position in 0..bytes.len() {
        for bit in [0, 7] {
            let mut flipped = bytes.clone();
            flipped[position] ^= 1 << bit;
            fs::write(&path, &flipped).unwrap();
            let error = open(&path).unwrap_err();
            match error {
                OpenError::Corrupt { record, offset, .. } => {
                    assert!((1..=3).contains(&record) && offset >= 128, "{position}");
                    assert!(error.to_string().contains("[JOURNAL_CORRUPT]"));
                }
                OpenError::HeaderDamaged { .. } => {
                    assert!(position < 128, "{position}");
                    assert!(error.to_string().contains("[JOURNAL_HEADER_DAMAGED]"));
                }
                error => panic!("{position}: {error}"),
            }
            assert_eq!(fs::read(&path).unwrap(), flipped);
        }
    }
}

#[test]
fn a_last_record_with_unwritten_sectors_is_truncated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    three(&path);
    let length = fs::metadata(&path).unwrap().len();
    let (mut journal, _) = open(&path).unwrap();
    let many: Vec<JournalEntry> = (10..60).map(record).collect();
    journal.append(&many).unwrap();
    let bytes = fs::read(&path).unwrap();
    let second = usize::try_from(length.next_multiple_of(SECTOR_BYTES)).unwrap();
    let first = usize::try_from(length).unwrap();
    assert_eq!(length % ALIGN_BYTES, 0);
    // The record's first sector, another one, the last one.
    let end = bytes.len();
    for hole in [first..second, second..second + 512, end / 512 * 512..end] {
        let mut holed = bytes.clone();
        holed[hole].fill(0);
        fs::write(&path, &holed).unwrap();
        assert_eq!(open(&path).unwrap().1.len(), 4);
    }
    // The file has its full length, but none of the record's bytes.
    let mut bytes = fs::read(&path).unwrap();
    bytes.resize(bytes.len() + 3_000, 0);
    fs::write(&path, &bytes).unwrap();
    assert_eq!(open(&path).unwrap().1.len(), 4);
}

#[test]
fn a_lost_header_sector_is_damage_and_not_a_foreign_journal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    three(&path);
    let mut bytes = fs::read(&path).unwrap();
    bytes[..128].fill(0);
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(open(&path), Err(OpenError::HeaderDamaged { .. })));
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
fn a_file_that_is_not_this_journal_is_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    fs::write(&path, b"my diary").unwrap();
    assert!(matches!(open(&path), Err(OpenError::OwnerMismatch { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"my diary");
    fs::remove_file(&path).unwrap();
    three(&path);
    let volume: Arc<dyn Volume> = Arc::new(LocalVolume(dir.path().to_owned()));
    let other = open_volume(&volume, Digest([6; 32]));
    assert!(matches!(other, Err(OpenError::OwnerMismatch { .. })));
}

#[test]
fn a_record_that_the_rules_reject_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    three(&path);
    let begin = |_: Option<&[u8]>| Ok(());
    let take = |_: &mut (), record: &JournalEntry| match record.now {
        Timestamp(3) => Err("no such task".to_owned()),
        _ => Ok(()),
    };
    let volume: Arc<dyn Volume> = Arc::new(LocalVolume(dir.path().to_owned()));
    let error = super::open(&volume, OWNER, &Fold { restore: &begin, apply: &take });
    assert!(matches!(error, Err(OpenError::Corrupt { record: 2, .. })));
}

type Knobs = (Arc<Mutex<usize>>, Arc<Mutex<bool>>);

/// A journal on a disk of limited size, whose fsync can be made to fail.
fn open_small(path: &Path, room: usize) -> (Journal, Knobs) {
    let knobs = (Arc::new(Mutex::new(room)), Arc::new(Mutex::new(false)));
    let (room, sync_fails) = (Arc::clone(&knobs.0), Arc::clone(&knobs.1));
    let volume = FaultyVolume::intercept(path.parent().unwrap(), move |doing| match doing {
        VolumeOp::Append(_, bytes) => {
            let mut room = room.lock().unwrap();
            let fits = bytes.min(*room);
            if fits < bytes {
                // Bytes that are truncated again use no space.
                return Err(InjectedFault(fits, io::ErrorKind::StorageFull.into()));
            }
            *room -= bytes;
            Ok(())
        }
        VolumeOp::Sync(_) if *sync_fails.lock().unwrap() => {
            Err(InjectedFault(0, io::Error::other("I/O error")))
        }
        _ => Ok(()),
    });
    (open_volume(&volume, OWNER).unwrap().0, knobs)
}

#[test]
fn a_full_disk_leaves_no_partial_record_and_appends_work_again_after_space_is_freed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let (mut journal, (room, _)) = open_small(&path, 350);
    journal.append(&[record(1)]).unwrap();
    let good = fs::read(&path).unwrap();
    assert!(matches!(journal.append(&[record(2)]), Err(AppendError::Full(_))));
    assert_eq!(fs::read(&path).unwrap(), good);
    assert!(matches!(journal.check_room(), Err(AppendError::Full(_))));
    assert_eq!(fs::read(&path).unwrap(), good);
    *room.lock().unwrap() = 1_000_000;
    journal.append(&[record(3)]).unwrap();
    drop(journal);
    assert_eq!(open(&path).unwrap().1, [record(1), record(3)]);
}

#[test]
fn after_a_failed_fsync_nothing_is_appended_until_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let (mut journal, (_, sync_fails)) = open_small(&path, 1_000_000);
    journal.append(&[record(1)]).unwrap();
    *sync_fails.lock().unwrap() = true;
    assert!(matches!(journal.append(&[record(2)]), Err(AppendError::Broken(_))));
    *sync_fails.lock().unwrap() = false;
    assert!(matches!(journal.append(&[record(3)]), Err(AppendError::Broken(_))));
    let begin = |_: Option<&[u8]>| Ok(All::new());
    let take = |all: &mut All, record: &JournalEntry| {
        all.push(record.clone());
        Ok(())
    };
    let durable = journal.replay_durable(&Fold { restore: &begin, apply: &take }).unwrap();
    assert_eq!(durable, [record(1)]);
}

#[test]
fn a_full_disk_at_a_segment_rotation_leaves_the_journal_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let (mut journal, (room, _)) = open_small(&path, 1_000_000);
    journal.append(&[record(1)]).unwrap();
    *room.lock().unwrap() = 100;
    assert!(matches!(journal.rotate_segment(), Err(AppendError::Full(_))));
    *room.lock().unwrap() = 1_000_000;
    journal.append(&[record(2)]).unwrap();
    drop(journal);
    assert_eq!(open(&path).unwrap().1, [record(1), record(2)]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// The bytes of a version 1 journal, without segments: one record with two entries.
fn first_version() -> Vec<u8> {
    let payload = borsh::to_vec(&vec![record(1), record(2)]).unwrap();
    let derived = |context: &str, parts: &[&[u8]]| {
        let mut hasher = blake3::Hasher::new_derive_key(context);
        parts.iter().for_each(|part| {
            hasher.update(part);
        });
        *hasher.finalize().as_bytes()
    };
    let magic = b"florin journal 1";
    let length = (payload.len() as u32).to_le_bytes();
    let first = derived("florin v1 journal", &[&OWNER.0, magic]);
    let check = derived("florin v1 journal length", &[&first, &length]);
    let chain = derived("florin v1 journal", &[&first, &payload]);
    [magic, OWNER.0.as_slice(), &length, &check[..4], &payload, &chain].concat()
}

#[test]
fn a_version_1_journal_is_read_and_continued() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    fs::write(&path, first_version()).unwrap();
    let (mut journal, all) = open(&path).unwrap();
    assert_eq!(all, [record(1), record(2)]);
    journal.append(&[record(3)]).unwrap();
    assert_eq!(journal.rotate_segment().unwrap().records, 2);
    journal.append(&[record(4)]).unwrap();
    drop(journal);
    assert_eq!(open(&path).unwrap().1, (1..=4).map(record).collect::<All>());
}

/// Writes `records` records, with a snapshot after each of `cuts`. Returns all entries.
fn written(volume: &Arc<dyn Volume>, records: u8, cuts: &[u8], segments: OldSegments) -> All {
    let (mut journal, mut all) = open_volume(volume, OWNER).unwrap();
    for i in 1..=records {
        journal.append(&[record(i)]).unwrap();
        all.push(record(i));
        if cuts.contains(&i) {
            let at = journal.rotate_segment().unwrap();
            let taken = Snapshot { at, state: borsh::to_vec(&all).unwrap() };
            recovery::store_snapshot(volume.as_ref(), OWNER, &taken, segments).unwrap();
        }
    }
    all
}

#[test]
fn a_damaged_snapshot_is_skipped_and_missing_records_are_an_error() {
    for segments in [OldSegments::Retain, OldSegments::Remove] {
        let dir = tempfile::tempdir().unwrap();
        let volume: Arc<dyn Volume> = Arc::new(LocalVolume(dir.path().to_owned()));
        let all = written(&volume, 9, &[2, 4, 6], segments);
        let (journal, read) = open_volume(&volume, OWNER).unwrap();
        assert_eq!((read, journal.growth().records), (all.clone(), 3));
        drop(journal);
        let damage = |records: u64| {
            let path = dir.path().join(snapshot::name(records));
            let mut bytes = fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(&path, bytes).unwrap();
        };
        assert!(!dir.path().join(snapshot::name(2)).exists(), "two are retained");
        damage(6);
        assert_eq!(open_volume(&volume, OWNER).unwrap().1, all);
        damage(4);
        match open_volume(&volume, OWNER) {
            Ok((_, read)) => assert_eq!((read, segments), (all, OldSegments::Retain)),
            Err(error) => {
                assert_eq!(segments, OldSegments::Remove);
                assert!(matches!(error, OpenError::NoSnapshot { .. }), "{error}");
                assert!(error.to_string().contains("[SNAPSHOT_UNUSABLE]"), "{error}");
                continue;
            }
        }
        // Without its newest segment, the journal is shorter than the newest snapshot.
        fs::remove_file(dir.path().join(segment_name(6))).unwrap();
        let error = open_volume(&volume, OWNER).unwrap_err();
        assert!(error.to_string().contains("[JOURNAL_MISSING]"), "{error}");
        // Without a segment in the middle, it has a gap.
        fs::remove_file(dir.path().join(segment_name(2))).unwrap();
        fs::remove_file(dir.path().join(snapshot::name(6))).unwrap();
        let error = open_volume(&volume, OWNER).unwrap_err();
        assert!(matches!(error, OpenError::Missing { records: 2, .. }), "{error}");
    }
}

#[test]
fn a_snapshot_of_another_position_or_history_is_never_used() {
    let dir = tempfile::tempdir().unwrap();
    let volume: Arc<dyn Volume> = Arc::new(LocalVolume(dir.path().to_owned()));
    let all = written(&volume, 5, &[2, 4], OldSegments::Retain);
    let (two, four) = (dir.path().join(snapshot::name(2)), dir.path().join(snapshot::name(4)));
    fs::copy(&two, &four).unwrap();
    assert_eq!(open_volume(&volume, OWNER).unwrap().1, all);
    let elsewhere = tempfile::tempdir().unwrap();
    let other: Arc<dyn Volume> = Arc::new(LocalVolume(elsewhere.path().to_owned()));
    let wrong = Snapshot { at: Position { records: 4, chain: Digest([1; 32]) }, state: vec![0; 4] };
    recovery::store_snapshot(other.as_ref(), OWNER, &wrong, OldSegments::Retain).unwrap();
    fs::copy(elsewhere.path().join(snapshot::name(4)), &four).unwrap();
    // The snapshot is intact, but its chain value differs from the journal's.
    let error = open_volume(&volume, OWNER).unwrap_err();
    assert!(error.to_string().contains("[JOURNAL_MISSING]"), "{error}");
}
