//! What a crash, a broken disk or a flipped bit can do to a journal.

use std::fs;
use std::sync::{Arc, Mutex};

use florin_protocol::{Address, Code, Round, TaskId};

use super::*;
use crate::store::frames::SECTOR_BYTES;

const OWNER: Digest = Digest([5; 32]);

fn record(i: u8) -> Record {
    let event = Event::Refused {
        task: TaskId([i; 32]),
        round: Round(u32::from(i)),
        sender: Address([i; 20]),
        code: Code::Truncated,
    };
    Record { now: Tick(u64::from(i)), event }
}

fn open(path: &Path) -> Result<(Journal, Vec<Record>), OpenError> {
    let mut all = Vec::new();
    let journal = Journal::open(path, OWNER, &mut |record| {
        all.push(record);
        Ok(())
    })?;
    Ok((journal, all))
}

/// A journal of three records; the second has two events.
fn three(path: &Path) -> Vec<Record> {
    let (mut journal, _) = open(path).unwrap();
    journal.append(&[record(1)]).unwrap();
    journal.append(&[record(2), record(3)]).unwrap();
    journal.append(&[record(4)]).unwrap();
    (1..=4).map(record).collect()
}

#[test]
fn what_was_appended_is_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let written = three(&path);
    let (mut journal, read) = open(&path).unwrap();
    assert_eq!((read, journal.records()), (written, 3));
    journal.append(&[record(9)]).unwrap();
    assert_eq!(open(&path).unwrap().1.len(), 5);
}

#[test]
fn a_journal_cut_anywhere_opens_with_its_whole_records_and_goes_on() {
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
fn a_flipped_bit_anywhere_is_named_and_nothing_is_changed() {
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
                    assert!((1..=3).contains(&record) && offset >= HEAD_BYTES, "{position}");
                    assert!(error.to_string().contains("[JOURNAL_CORRUPT]"));
                }
                OpenError::Foreign { .. } => assert!(position < 48, "{position}"),
                OpenError::Unusable { .. } => panic!("{position}: {error}"),
            }
            assert_eq!(fs::read(&path).unwrap(), flipped);
        }
    }
}

#[test]
fn a_last_record_with_unwritten_sectors_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    three(&path);
    let length = fs::metadata(&path).unwrap().len();
    let (mut journal, _) = open(&path).unwrap();
    let many: Vec<Record> = (10..60).map(record).collect();
    journal.append(&many).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let hole = usize::try_from(length.next_multiple_of(SECTOR_BYTES)).unwrap();
    bytes[hole..hole + 512].fill(0);
    fs::write(&path, &bytes).unwrap();
    assert_eq!(open(&path).unwrap().1.len(), 4);
    // The file was given its length, but none of the record's bytes.
    let mut bytes = fs::read(&path).unwrap();
    bytes.resize(bytes.len() + 3_000, 0);
    fs::write(&path, &bytes).unwrap();
    assert_eq!(open(&path).unwrap().1.len(), 4);
}

#[test]
fn a_foreign_file_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    fs::write(&path, b"my diary").unwrap();
    assert!(matches!(open(&path), Err(OpenError::Foreign { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"my diary");
    fs::remove_file(&path).unwrap();
    three(&path);
    let other = Journal::open(&path, Digest([6; 32]), &mut |_| Ok(()));
    assert!(matches!(other, Err(OpenError::Foreign { .. })));
}

#[test]
fn a_record_the_rules_refuse_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    three(&path);
    let error = Journal::open(&path, OWNER, &mut |record| match record.now {
        Tick(3) => Err("no such task".to_owned()),
        _ => Ok(()),
    });
    assert!(matches!(error, Err(OpenError::Corrupt { record: 2, .. })));
}

/// A disk of limited size whose fsync can fail.
struct Small {
    file: File,
    room: Arc<Mutex<usize>>,
    sync_fails: Arc<Mutex<bool>>,
}

impl Disk for Small {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut room = self.room.lock().unwrap();
        let fits = bytes.len().min(*room);
        Disk::append(&mut self.file, &bytes[..fits])?;
        if fits < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        *room -= bytes.len();
        Ok(())
    }
    fn sync(&mut self) -> io::Result<()> {
        if *self.sync_fails.lock().unwrap() {
            return Err(io::Error::other("I/O error"));
        }
        Disk::sync(&mut self.file)
    }
    fn truncate(&mut self, length: u64) -> io::Result<()> {
        Disk::truncate(&mut self.file, length)
    }
}

type Knobs = (Arc<Mutex<usize>>, Arc<Mutex<bool>>);

fn open_small(path: &Path, room: usize) -> (Journal, Knobs) {
    let room = Arc::new(Mutex::new(room));
    let sync_fails = Arc::new(Mutex::new(false));
    let knobs = (Arc::clone(&room), Arc::clone(&sync_fails));
    let journal = Journal::open_on(path, OWNER, &mut |_| Ok(()), |file| {
        Box::new(Small { file, room, sync_fails })
    });
    (journal.unwrap(), knobs)
}

#[test]
fn a_full_disk_leaves_no_half_record_and_works_again_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let (mut journal, (room, _)) = open_small(&path, 200);
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
fn after_a_failed_fsync_nothing_more_is_taken_until_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let (mut journal, (_, sync_fails)) = open_small(&path, 1_000_000);
    journal.append(&[record(1)]).unwrap();
    *sync_fails.lock().unwrap() = true;
    assert!(matches!(journal.append(&[record(2)]), Err(AppendError::Broken(_))));
    *sync_fails.lock().unwrap() = false;
    assert!(matches!(journal.append(&[record(3)]), Err(AppendError::Broken(_))));
    let mut durable = Vec::new();
    journal
        .replay(&mut |record| {
            durable.push(record);
            Ok(())
        })
        .unwrap();
    assert_eq!(durable, [record(1)]);
}
