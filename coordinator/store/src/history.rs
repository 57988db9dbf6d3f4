//! Journal and snapshots together: what a coordinator was told, read back into what it comes to.
//!
//! A start takes the newest snapshot that is whole, and the records behind it. Where it is not to be used, the one before
//! it and more records will do, and in the end all records from the first. What cannot be read back to the last record
//! that a snapshot stands behind is refused: a shorter history is another one.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use florin_protocol::Digest;

use super::frames::{Layout, Position, Reader, head, is_headless};
use super::journal::{Journal, OpenError, Record, Since};
use super::snapshot::{self, Snapshot};
use super::volume::{Disk, Volume, write_stretch_again};
use super::{IDENTITY_FILE, newest};

const FIRST: &str = "journal";
const PREFIX: &str = "journal-";

/// How a state comes from a snapshot's bytes, or from nothing.
pub type Begin<'a, S> = dyn Fn(Option<&[u8]>) -> Result<S, String> + 'a;
/// How a record changes it; the rules may find that it cannot be.
pub type Take<'a, S> = dyn Fn(&mut S, &Record) -> Result<(), String> + 'a;

/// What records are folded into.
pub struct Fold<'a, S> {
    /// The state of a snapshot's bytes, or the one before the first record.
    pub begin: &'a Begin<'a, S>,
    /// The state behind a record.
    pub take: &'a Take<'a, S>,
}

/// The name of the segment that begins behind so many records.
#[must_use]
pub fn segment(records: u64) -> String {
    if records == 0 { FIRST.to_owned() } else { format!("{PREFIX}{records:020}") }
}

/// The number of records that a segment's name says. A file that is named almost like a segment is none.
#[must_use]
pub fn number(name: &str) -> Option<u64> {
    if name == FIRST {
        return Some(0);
    }
    let records = name.strip_prefix(PREFIX)?.parse().ok()?;
    (name == segment(records)).then_some(records)
}

/// The segments of a folder, oldest first, by the number of records before them.
pub(super) fn segments(volume: &dyn Volume) -> Result<Vec<u64>, OpenError> {
    let names = volume.names().map_err(|source| unusable(volume, "", source))?;
    let mut found: Vec<u64> = names.iter().filter_map(|name| number(name)).collect();
    found.sort_unstable();
    Ok(found)
}

/// Where reading came to an end.
pub(super) struct End {
    /// The segment that it ended in.
    pub(super) segment: u64,
    pub(super) layout: Layout,
    /// Where its last whole record begins; its head where it has none.
    last: u64,
    /// Bytes of it that are whole records.
    pub(super) length: u64,
    /// Bytes of it.
    pub(super) size: u64,
    pub(super) at: Position,
    /// What was read.
    pub(super) read: Since,
}

/// A history that was read and not changed.
#[derive(Debug)]
pub struct ReadBack<S> {
    /// What it comes to.
    pub state: S,
    /// Behind which record.
    pub at: Position,
    /// The snapshot that it was read from, by the number of records before it; none if from the first record.
    pub from: Option<u64>,
    /// Records and bytes behind the snapshot.
    pub read: Since,
    /// Bytes of a last record that was never finished.
    pub unfinished: u64,
    /// Snapshots that were not to be used, and why.
    pub unused: Vec<String>,
}

/// Opens a history, making it if it is not there, and removes what a power cut left unfinished.
///
/// # Errors
/// [`OpenError`].
pub fn open<S>(
    volume: &Arc<dyn Volume>,
    owner: Digest,
    fold: &Fold<'_, S>,
) -> Result<(S, Journal), OpenError> {
    let volume_ref = volume.as_ref();
    begin(volume_ref, owner)?;
    let (state, end, from) = read(volume_ref, owner, fold, None)?;
    for why in &from.unused {
        tracing::error!(why, "a snapshot is not to be used; the records behind an older one are");
    }
    let name = segment(end.segment);
    let failed = |source| unusable(volume_ref, &name, source);
    let mut disk = volume.append_to(&name).map_err(failed)?;
    if end.length < end.size {
        tracing::warn!(
            journal = %volume.place(&name).display(), record = end.at.records.saturating_add(1),
            offset = end.length, "cut off a last record that was never finished: {} bytes",
            end.size.saturating_sub(end.length)
        );
        disk.truncate(end.length).map_err(failed)?;
    }
    // What a process that was killed had written and not synced is history from now on. Only the last record can be that,
    // and its sync may have failed: then the system has forgotten that it is not on the disk.
    write_stretch_again(volume_ref, &name, end.last, end.length).map_err(failed)?;
    disk.sync().and_then(|()| volume.sync()).map_err(failed)?;
    Ok((state, Journal::at(Arc::clone(volume), owner, disk, &end)))
}

/// Reads a history back without changing anything. `until` is where to stop: a segment and a length of it.
///
/// # Errors
/// [`OpenError`].
pub fn read_back<S>(
    volume: &dyn Volume,
    owner: Digest,
    fold: &Fold<'_, S>,
    until: Option<(u64, u64)>,
) -> Result<ReadBack<S>, OpenError> {
    let (state, end, base) = read(volume, owner, fold, until)?;
    let unfinished = if until.is_none() { end.size.saturating_sub(end.length) } else { 0 };
    let Base { from, unused, .. } = base;
    Ok(ReadBack { state, at: end.at, from, read: end.read, unfinished, unused })
}

/// The same with as many records as there are: from the first, or behind the oldest snapshot where the first are not
/// kept. `seen` is shown the state at the beginning of each segment, where a snapshot may stand.
///
/// # Errors
/// [`OpenError`].
pub fn read_all<S>(
    volume: &dyn Volume,
    owner: Digest,
    fold: &Fold<'_, S>,
    seen: &mut dyn FnMut(u64, &S),
) -> Result<ReadBack<S>, OpenError> {
    let found = whole_segments(volume)?;
    let (mut state, base) = earliest(volume, owner, &found, fold)?;
    let mut visit = |step: Step<'_>| match step {
        Step::Record(record) => (fold.take)(&mut state, record),
        Step::Segment(records) => {
            seen(records, &state);
            Ok(())
        }
    };
    let end = replay(volume, owner, &found, base.at, None, &mut visit)?;
    check_reach(volume, owner, &found, &end)?;
    let unfinished = end.size.saturating_sub(end.length);
    let Base { from, unused, .. } = base;
    Ok(ReadBack { state, at: end.at, from, read: end.read, unfinished, unused })
}

/// The snapshot behind so many records, if there is one.
#[must_use]
pub fn snapshot(
    volume: &dyn Volume,
    owner: Digest,
    records: u64,
) -> Option<Result<Snapshot, String>> {
    let there = snapshot::list(volume).is_ok_and(|all| all.contains(&records));
    there.then(|| snapshot::read(volume, owner, records))
}

/// What is met on the way through a history.
enum Step<'a> {
    /// A segment begins behind so many records.
    Segment(u64),
    Record(&'a Record),
}

/// What reading begins with.
struct Base {
    at: Position,
    from: Option<u64>,
    unused: Vec<String>,
}

fn read<S>(
    volume: &dyn Volume,
    owner: Digest,
    fold: &Fold<'_, S>,
    until: Option<(u64, u64)>,
) -> Result<(S, End, Base), OpenError> {
    let found = whole_segments(volume)?;
    let (mut state, base) = choose(volume, owner, &found, fold)?;
    let mut visit = |step: Step<'_>| match step {
        Step::Record(record) => (fold.take)(&mut state, record),
        Step::Segment(_) => Ok(()),
    };
    let end = replay(volume, owner, &found, base.at, until, &mut visit)?;
    check_reach(volume, owner, &found, &end)?;
    Ok((state, end, base))
}

/// Whether the segments reach as far as they once did.
fn check_reach(
    volume: &dyn Volume,
    owner: Digest,
    found: &[u64],
    end: &End,
) -> Result<(), OpenError> {
    let snapshots = snapshot::list(volume).map_err(|source| unusable(volume, "", source))?;
    // The segment behind a snapshot is there before the snapshot is.
    let newest_snapshot = snapshots.first().map(|records| (*records, "a snapshot stands"));
    let newest = newest::read(volume, owner)?.map(|records| (records, "the newest segment begins"));
    for (records, what) in [newest_snapshot, newest].into_iter().flatten() {
        if !found.contains(&records) {
            let what = format!("{what} behind record {records}, and no segment is there that does");
            return Err(missing(volume, end.at.records.min(records), &what));
        }
    }
    Ok(())
}

/// The newest snapshot that can be used, or the beginning.
fn choose<S>(
    volume: &dyn Volume,
    owner: Digest,
    segments: &[u64],
    fold: &Fold<'_, S>,
) -> Result<(S, Base), OpenError> {
    let newest_first = snapshot::list(volume).map_err(|source| unusable(volume, "", source))?;
    match first_usable(volume, owner, newest_first, fold) {
        Ok(found) => Ok(found),
        Err(unused) if segments.first() == Some(&0) => beginning(volume, owner, fold, unused),
        Err(unused) => Err(no_snapshot(volume, &unused)),
    }
}

/// The beginning, or the oldest snapshot that can be used and has records behind it.
fn earliest<S>(
    volume: &dyn Volume,
    owner: Digest,
    segments: &[u64],
    fold: &Fold<'_, S>,
) -> Result<(S, Base), OpenError> {
    if segments.first() == Some(&0) {
        return beginning(volume, owner, fold, Vec::new());
    }
    let mut oldest_first = snapshot::list(volume).map_err(|source| unusable(volume, "", source))?;
    oldest_first.retain(|records| segments.contains(records));
    oldest_first.reverse();
    first_usable(volume, owner, oldest_first, fold).map_err(|unused| no_snapshot(volume, &unused))
}

fn beginning<S>(
    volume: &dyn Volume,
    owner: Digest,
    fold: &Fold<'_, S>,
    unused: Vec<String>,
) -> Result<(S, Base), OpenError> {
    let state = (fold.begin)(None).map_err(|what| missing(volume, 0, &what))?;
    Ok((state, Base { at: Position::first(owner), from: None, unused }))
}

/// The first of these snapshots that can be used; otherwise, why none of them can.
fn first_usable<S>(
    volume: &dyn Volume,
    owner: Digest,
    snapshots: Vec<u64>,
    fold: &Fold<'_, S>,
) -> Result<(S, Base), Vec<String>> {
    let mut unused = Vec::new();
    for records in snapshots {
        let taken = snapshot::read(volume, owner, records).and_then(|found| {
            let state = (fold.begin)(Some(&found.state));
            let state = state.map_err(|why| format!("{}: {why}", snapshot::name(records)))?;
            Ok((state, found.at))
        });
        match taken {
            Ok((state, at)) => return Ok((state, Base { at, from: Some(records), unused })),
            Err(why) => unused.push(why),
        }
    }
    Err(unused)
}

fn no_snapshot(volume: &dyn Volume, unused: &[String]) -> OpenError {
    let why = if unused.is_empty() { "there is none".to_owned() } else { unused.join("; ") };
    OpenError::NoSnapshot { path: volume.place(""), why }
}

/// Hands on every record behind a position, and every segment that it begins.
fn replay(
    volume: &dyn Volume,
    owner: Digest,
    segments: &[u64],
    from: Position,
    until: Option<(u64, u64)>,
    visit: &mut dyn FnMut(Step<'_>) -> Result<(), String>,
) -> Result<End, OpenError> {
    let behind: Vec<u64> = segments.iter().copied().filter(|s| *s >= from.records).collect();
    let mut end: Option<End> = None;
    for (place, segment_number) in behind.iter().enumerate() {
        let at = end.as_ref().map_or(from, |end| end.at);
        let name = segment(*segment_number);
        let limit = until.filter(|(last, _)| last == segment_number).map(|(_, length)| length);
        let mut reader = Reader::new(volume, &name, owner, limit)?;
        if reader.at != at {
            let what = format!("{name} goes on behind record {}", reader.at.records);
            return Err(missing(volume, at.records, &what));
        }
        visit(Step::Segment(*segment_number)).map_err(|why| reader.corrupt(&why))?;
        let mut read = end.as_ref().map_or_else(Since::default, |end| end.read);
        let mut begins = 0;
        while let Some(frame) = reader.next_record()? {
            for record in &frame.batch {
                visit(Step::Record(record))
                    .map_err(|why| reader.corrupt(&format!("the rules refuse it: {why}")))?;
            }
            begins = reader.offset;
            reader.pass(&frame);
            read.add(frame.batch.len(), reader.offset.saturating_sub(begins));
        }
        let last = place.saturating_add(1) == behind.len();
        if !last && reader.offset != reader.size {
            return Err(reader.corrupt("the segment was closed, and ends in the middle of it"));
        }
        let Reader { layout, offset: length, size, at, .. } = reader;
        let segment = *segment_number;
        end = Some(End { segment, layout, last: begins, length, size, at, read });
    }
    end.ok_or_else(|| missing(volume, from.records, "no segment begins there"))
}

/// The segments, without a newest one whose head was never finished: nothing was ever appended to it.
fn whole_segments(volume: &dyn Volume) -> Result<Vec<u64>, OpenError> {
    let mut found = segments(volume)?;
    if let Some(newest) = found.last().copied().filter(|_| found.len() > 1) {
        let name = segment(newest);
        if is_headless(volume, &name).map_err(|source| unusable(volume, &name, source))? {
            found.pop();
        }
    }
    Ok(found)
}

/// Makes the first segment, and removes what a power cut left unfinished.
fn begin(volume: &dyn Volume, owner: Digest) -> Result<(), OpenError> {
    let failed = |source| unusable(volume, "", source);
    snapshot::remove_unfinished(volume).map_err(failed)?;
    newest::remove_unfinished(volume).map_err(failed)?;
    let found = segments(volume)?;
    let whole = whole_segments(volume)?;
    if let Some(headless) = found.last().filter(|last| whole.last() != Some(last)) {
        if newest::read(volume, owner)?.is_some_and(|newest| newest >= *headless) {
            let what = format!("the head of {} was whole once, and is not", segment(*headless));
            return Err(missing(volume, *headless, &what));
        }
        volume.remove(&segment(*headless)).and_then(|()| volume.sync()).map_err(failed)?;
    }
    let make = match whole.as_slice() {
        [] => snapshot::list(volume).map_err(failed)?.is_empty(),
        [0] => is_headless(volume, FIRST).map_err(failed)?,
        _ => false,
    };
    if make {
        let names = volume.names().map_err(failed)?;
        if let Some(used) =
            names.iter().find(|name| [IDENTITY_FILE, newest::FILE].contains(&name.as_str()))
        {
            let what =
                format!("{used} says that the folder was used before, and its journal is gone");
            return Err(missing(volume, 0, &what));
        }
        let mut disk = volume.append_to(FIRST).map_err(failed)?;
        let head = head(owner, Position::first(owner));
        let made = disk.truncate(0).and_then(|()| disk.append(&head)).and_then(|()| disk.sync());
        made.and_then(|()| volume.sync()).map_err(failed)?;
    }
    Ok(())
}

/// Begins the segment that follows a position, durably.
pub fn begin_segment(
    volume: &dyn Volume,
    owner: Digest,
    at: Position,
) -> io::Result<Box<dyn Disk>> {
    let mut disk = volume.append_to(&segment(at.records))?;
    disk.truncate(0)?;
    disk.append(&head(owner, at))?;
    disk.sync()?;
    volume.sync()?;
    Ok(disk)
}

/// Writes a snapshot, and removes what nobody needs any more: older ones but the one before it and, unless the journal
/// `keeps` everything, the segments that even that one has behind it.
///
/// # Errors
/// [`OpenError::Unusable`]: there is nothing less than before then.
pub fn keep(
    volume: &dyn Volume,
    owner: Digest,
    snapshot: &Snapshot,
    keeps: bool,
) -> Result<(), OpenError> {
    keep_so_many(volume, owner, snapshot, (snapshot::SNAPSHOTS_KEPT, keeps))
}

pub(super) fn keep_so_many(
    volume: &dyn Volume,
    owner: Digest,
    snapshot: &Snapshot,
    (kept, keeps): (usize, bool),
) -> Result<(), OpenError> {
    let name = snapshot::name(snapshot.at.records);
    let failed = |source| unusable(volume, &name, source);
    snapshot::write(volume, owner, snapshot).map_err(failed)?;
    match snapshot::prune(volume, kept).map_err(failed)? {
        Some(oldest) if !keeps => drop_before(volume, oldest),
        _ => Ok(()),
    }
}

/// Removes the segments that end at or before a record: the oldest first, and each for good before the next, so that
/// those that are left are never without one in the middle.
fn drop_before(volume: &dyn Volume, records: u64) -> Result<(), OpenError> {
    let found = segments(volume)?;
    let old = found.iter().zip(found.iter().skip(1)).filter(|(_, end)| **end <= records);
    for (old, _) in old {
        let name = segment(*old);
        let gone = volume.remove(&name).and_then(|()| volume.sync());
        gone.map_err(|source| unusable(volume, &name, source))?;
    }
    Ok(())
}

pub(super) fn unusable(volume: &dyn Volume, name: &str, source: io::Error) -> OpenError {
    OpenError::Unusable { path: volume.place(name), source }
}

fn missing(volume: &dyn Volume, records: u64, what: &str) -> OpenError {
    let path: PathBuf = volume.place("");
    OpenError::Missing { path, records, what: what.to_owned() }
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
