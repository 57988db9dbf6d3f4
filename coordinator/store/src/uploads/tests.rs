//! Tests of resumable uploads: ownership and offsets, space, removal.

use florin_protocol::{Address, RoundNumber, TaskId, blob_digest};

use super::*;

const LENGTH: usize = 300_000;

fn key(task: u8, sender: u8) -> UploadKey {
    let whose = UploadOwner::Sender(RoundNumber(1), Address([sender; 20]));
    UploadKey { task: TaskId([task; 32]), owner: whose, digest: blob_digest(&bytes()) }
}

fn bytes() -> Vec<u8> {
    (0..LENGTH).map(|i| (i * 7 % 251) as u8).collect()
}

fn wanted(key: UploadKey, offset: u64) -> UploadRequest {
    UploadRequest { key, bytes: LENGTH as u64, offset, resumable: true }
}

const WIDE: Limits = Limits { all: u64::MAX, task: u64::MAX, sender: u64::MAX, free: 0 };

struct Fixture {
    dir: tempfile::TempDir,
    blobs: BlobStore,
    partials: Arc<ResumableUploads>,
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let blobs = BlobStore::open(dir.path()).unwrap();
    let partials = Arc::new(ResumableUploads::open(&dir.path().join("uploads")).unwrap());
    Fixture { dir, blobs, partials }
}

impl Fixture {
    fn begin(&self, key: UploadKey, offset: u64) -> Result<Upload, UploadError> {
        self.begin_at(&wanted(key, offset), &WIDE, SystemTime::now())
    }

    fn begin_at(
        &self,
        wanted: &UploadRequest,
        limits: &Limits,
        now: SystemTime,
    ) -> Result<Upload, UploadError> {
        match self.partials.begin(wanted, limits, now)? {
            BeginResult::Ready(upload) => Ok(*upload),
            BeginResult::Busy(_) => panic!("another connection sends it"),
        }
    }

    /// Opens the folder again, as after a restart.
    fn again(&mut self) {
        self.partials = Arc::new(ResumableUploads::open(&self.dir.path().join("uploads")).unwrap());
    }

    fn files(&self) -> usize {
        fs::read_dir(self.dir.path().join("uploads")).unwrap().count()
    }

    /// Leaves an interrupted upload of `n` bytes.
    fn leave(&self, key: UploadKey, n: usize) {
        self.begin(key, 0).unwrap().write(&bytes()[..n]).unwrap();
    }
}

#[test]
fn an_upload_resumes_after_interruptions_and_restarts_with_the_same_digest() {
    let (mut place, all) = (fixture(), bytes());
    for restart in [false, true] {
        let cuts = [1, 8, 400, LENGTH / 2, LENGTH - 1, LENGTH];
        let mut from = 0;
        for cut in cuts {
            let mut upload = place.begin(key(1, 1), from as u64).unwrap();
            upload.write(&all[from..cut]).unwrap();
            drop(upload);
            if restart {
                place.again();
            }
            assert_eq!(place.partials.bytes_of(&key(1, 1)), cut as u64);
            from = cut;
        }
        let mut upload = place.begin(key(1, 1), LENGTH as u64).unwrap();
        assert_eq!(
            (upload.digest(), upload.first(8).unwrap()),
            (blob_digest(&all), all[..8].into())
        );
        let blob = upload.take_blob(&place.blobs).unwrap();
        assert_eq!(place.blobs.store(blob).unwrap(), blob_digest(&all));
        drop(upload);
        assert_eq!((place.files(), place.partials.usage()), (0, UploadUsage::default()));
        assert_eq!(place.blobs.read(blob_digest(&all)).unwrap(), all);
    }
}

#[test]
fn a_wrong_offset_is_rejected_with_the_right_one_and_changes_nothing() {
    let (mut place, all) = (fixture(), bytes());
    place.leave(key(1, 1), 1_000);
    for restart in [false, true] {
        for offset in [1, 999, 1_001, u64::MAX] {
            let error = place.begin(key(1, 1), offset).unwrap_err();
            assert!(matches!(error, UploadError::WrongOffset { stored: 1_000, .. }), "{error}");
            assert!(error.to_string().contains("resume at byte 1000"), "{error}");
        }
        // Another sender has no stored bytes.
        let error = place.begin(key(1, 2), 1_000).unwrap_err();
        assert!(matches!(error, UploadError::WrongOffset { stored: 0, .. }), "{error}");
        if !restart {
            place.again();
        }
    }
    let mut upload = place.begin(key(1, 1), 1_000).unwrap();
    upload.write(&all[1_000..]).unwrap();
    assert_eq!(upload.digest(), blob_digest(&all));
}

#[test]
fn one_connection_at_a_time_sends_a_partial() {
    let place = fixture();
    let mut first = place.begin(key(1, 1), 0).unwrap();
    first.write(&bytes()[..500]).unwrap();
    let again = place.partials.begin(&wanted(key(1, 1), 0), &WIDE, SystemTime::now()).unwrap();
    let BeginResult::Busy(turn) = again else { panic!("two connections write to one file") };
    turn.request_release();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(first.lease().release_requested());
    drop(first);
    runtime.block_on(turn.released());
    assert_eq!(place.begin(key(1, 1), 500).unwrap().bytes(), 500);
}

#[test]
fn an_upload_from_offset_zero_discards_the_stored_bytes() {
    let (place, all) = (fixture(), bytes());
    place.leave(key(1, 1), LENGTH - 1);
    let mut upload = place.begin(key(1, 1), 0).unwrap();
    assert_eq!(upload.bytes(), 0);
    upload.write(&all).unwrap();
    assert_eq!(upload.digest(), blob_digest(&all));
}

#[test]
fn discarded_unretained_and_empty_uploads_leave_nothing() {
    let place = fixture();
    let mut upload = place.begin(key(1, 1), 0).unwrap();
    upload.write(b"wrong").unwrap();
    upload.discard();
    drop(upload);
    let now = SystemTime::now();
    let fleeting = UploadRequest { resumable: false, ..wanted(key(1, 2), 0) };
    place.begin_at(&fleeting, &WIDE, now).unwrap().write(b"fleeting").unwrap();
    drop(place.begin(key(1, 3), 0).unwrap());
    assert_eq!((place.files(), place.partials.usage()), (0, UploadUsage::default()));
}

#[test]
fn space_is_reserved_before_the_first_byte_and_released() {
    let (place, now, n) = (fixture(), SystemTime::now(), LENGTH as u64);
    let quota = |error: UploadError| match error {
        UploadError::QuotaExceeded { quota, .. } => quota,
        other => panic!("{other}"),
    };
    let table = [
        (Limits { sender: 2 * n - 1, ..WIDE }, key(2, 1), Quota::Sender),
        (Limits { task: 2 * n - 1, ..WIDE }, key(1, 2), Quota::Task),
        (Limits { all: 2 * n - 1, ..WIDE }, key(2, 2), Quota::All),
    ];
    for (limits, other, expected) in table {
        let first = place.begin_at(&wanted(key(1, 1), 0), &limits, now).unwrap();
        let refused = place.begin_at(&wanted(other, 0), &limits, now).unwrap_err();
        assert_eq!(quota(refused), expected);
        // The sender and task quotas do not affect another sender in another task.
        let third = place.begin_at(&wanted(key(3, 3), 0), &limits, now);
        assert_eq!(third.is_ok(), expected != Quota::All);
        drop((first, third));
        place.begin_at(&wanted(other, 0), &limits, now).unwrap();
        assert_eq!(place.partials.usage(), UploadUsage::default());
    }
}

#[test]
fn uploads_cannot_use_the_reserved_disk_space() {
    let (place, now) = (fixture(), SystemTime::now());
    let limits = Limits { free: u64::MAX / 2, ..WIDE };
    let error = place.begin_at(&wanted(key(1, 1), 0), &limits, now).unwrap_err();
    assert!(matches!(error, UploadError::InsufficientSpace { .. }), "{error}");
    assert_eq!((place.files(), place.partials.usage()), (0, UploadUsage::default()));
}

#[test]
fn the_longest_interrupted_upload_is_evicted_after_a_grace_period() {
    let (place, now) = (fixture(), SystemTime::now());
    place.leave(key(1, 1), 1_000);
    place.leave(key(1, 2), 1_000);
    let limits = Limits { all: LENGTH as u64 + 1_500, ..WIDE };
    let begin = |now| place.begin_at(&wanted(key(1, 3), 0), &limits, now);
    assert!(matches!(begin(now), Err(UploadError::QuotaExceeded { quota: Quota::All, .. })));
    let later = now + EVICTION_GRACE + Duration::from_secs(1);
    let third = begin(later).unwrap();
    // Only the older one was evicted, because that was enough.
    assert_eq!(place.partials.bytes_of(&key(1, 1)), 0);
    assert_eq!(place.partials.bytes_of(&key(1, 2)), 1_000);
    drop(third);
    // To satisfy a sender's quota, that sender's own uploads are evicted.
    place.leave(key(1, 4), 1_000);
    let tight = Limits { sender: LENGTH as u64, ..WIDE };
    place.begin_at(&wanted(key(2, 4), 0), &tight, later).unwrap();
    assert_eq!(place.partials.bytes_of(&key(1, 4)), 0);
    assert_eq!(place.partials.bytes_of(&key(1, 2)), 1_000);
}

#[test]
fn sweep_removes_old_and_unwanted_uploads_but_not_active_ones() {
    let (place, now) = (fixture(), SystemTime::now());
    let day = Duration::from_secs(86_400);
    (1..=3).for_each(|sender| place.leave(key(1, sender), 1_000));
    let sent = place.begin(key(1, 3), 1_000).unwrap();
    assert_eq!(place.partials.sweep(now, day, |_| true), 0);
    assert_eq!(place.partials.sweep(now, day, |wanted| *wanted != key(1, 1)), 1);
    assert_eq!(place.partials.keys(), [key(1, 2), key(1, 3)]);
    assert_eq!(place.partials.sweep(now + 2 * day, day, |_| true), 1);
    assert_eq!(place.partials.keys(), [key(1, 3)]);
    drop(sent);
    assert_eq!(place.files(), 1);
}

#[test]
fn unknown_files_are_removed_at_the_start_and_damaged_uploads_fail_the_digest() {
    let (mut place, all) = (fixture(), bytes());
    place.leave(key(1, 1), 2_000);
    let folder = place.dir.path().join("uploads");
    fs::write(folder.join("17"), b"torn").unwrap();
    // As after a power failure: the file has its length, but not its bytes.
    let file = folder.join(key(1, 1).file_name());
    fs::write(&file, vec![0; 2_000]).unwrap();
    place.again();
    assert_eq!(place.files(), 1);
    let mut upload = place.begin(key(1, 1), 2_000).unwrap();
    upload.write(&all[2_000..]).unwrap();
    assert_ne!(upload.digest(), blob_digest(&all));
}

#[cfg(unix)]
#[test]
fn a_full_disk_is_a_separate_error_and_leaves_no_partial_file() {
    let place = fixture();
    let file = place.dir.path().join("uploads").join(key(1, 1).file_name());
    std::os::unix::fs::symlink("/dev/full", &file).unwrap();
    let mut upload = place.begin(key(1, 1), 0).unwrap();
    assert!(matches!(upload.write(b"bytes"), Err(BlobError::Full)));
    drop(upload);
    assert_eq!((place.files(), place.partials.usage()), (0, UploadUsage::default()));
    place.begin(key(1, 1), 0).unwrap().write(b"bytes").unwrap();
    assert_eq!(place.files(), 1);
}
