//! Recovery: rebuilds the state from the newest snapshot and the journal records after it.
//!
//! Recovery uses the newest intact snapshot. If it is unusable, the previous one with more records
//! is used, and in the end all records from the first one. If the records do not reach the position
//! of a snapshot or of the newest segment, recovery fails: a shorter history would be a different
//! history.

use florin_protocol::Digest;

use super::error::{OpenError, missing, unusable};
use super::newest_segment;
use super::segment::{
    JournalEntry, Layout, Position, Reader, has_no_header, segment_name, segments,
};
use super::snapshot::{self, Snapshot};
use super::volume::Volume;

/// Decodes a snapshot into a state; `None` returns the initial state.
pub type RestoreState<'a, S> = dyn Fn(Option<&[u8]>) -> Result<S, String> + 'a;
/// Applies an entry to the state, or returns why the rules reject it.
pub type ApplyEntry<'a, S> = dyn Fn(&mut S, &JournalEntry) -> Result<(), String> + 'a;

/// The state machine that recovery replays the journal into.
pub struct Fold<'a, S> {
    /// Decodes a snapshot into a state; `None` returns the initial state.
    pub restore: &'a RestoreState<'a, S>,
    /// Applies an entry to the state.
    pub apply: &'a ApplyEntry<'a, S>,
}

/// The amount of journal written, or read, since the newest snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalGrowth {
    /// Number of records.
    pub records: u64,
    /// Number of events in them.
    pub events: u64,
    /// Their size in bytes.
    pub bytes: u64,
}

impl JournalGrowth {
    pub(super) fn add(&mut self, events: usize, bytes: u64) {
        self.records = self.records.saturating_add(1);
        self.events = self.events.saturating_add(u64::try_from(events).unwrap_or(u64::MAX));
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// The end of a replay.
pub(super) struct ReplayEnd {
    /// The last segment.
    pub(super) segment: u64,
    pub(super) layout: Layout,
    /// Offset of the last segment's last complete record, or the end of its header.
    pub(super) last_record_offset: u64,
    /// Size of the segment's complete records and header, in bytes.
    pub(super) length: u64,
    /// Size of the segment's file, in bytes.
    pub(super) size: u64,
    pub(super) at: Position,
    /// The amount of journal replayed.
    pub(super) read: JournalGrowth,
}

/// A recovered state, without any change to the folder.
#[derive(Debug)]
pub struct Recovered<S> {
    /// The recovered state.
    pub state: S,
    /// The journal position of the state.
    pub at: Position,
    /// The snapshot that recovery started from, identified by the number of records before it;
    /// `None` if it started from the first record.
    pub from_snapshot: Option<u64>,
    /// The amount of journal replayed after the snapshot.
    pub replayed: JournalGrowth,
    /// Bytes of a torn last record.
    pub unfinished: u64,
    /// Unusable snapshots, with the reason.
    pub unusable_snapshots: Vec<String>,
}

impl<S> Recovered<S> {
    fn new(state: S, end: &ReplayEnd, start: ReplayStart, unfinished: u64) -> Self {
        Self {
            state,
            at: end.at,
            from_snapshot: start.from,
            replayed: end.read,
            unfinished,
            unusable_snapshots: start.unused,
        }
    }
}

/// A position in the journal's files: a segment, identified by the number of records before it, and
/// a length of it in bytes.
#[derive(Clone, Copy, Debug)]
pub struct SegmentOffset {
    /// The segment.
    pub segment: u64,
    /// The length in bytes.
    pub length: u64,
}

/// Recovers the state without changing anything. `until` is where to stop.
///
/// # Errors
/// [`OpenError`].
pub fn recover<S>(
    volume: &dyn Volume,
    owner: Digest,
    fold: &Fold<'_, S>,
    until: Option<SegmentOffset>,
) -> Result<Recovered<S>, OpenError> {
    let (state, end, base) = read(volume, owner, fold, until)?;
    let unfinished = if until.is_none() { end.size.saturating_sub(end.length) } else { 0 };
    Ok(Recovered::new(state, &end, base, unfinished))
}

/// Recovers the state from as many records as exist: from the first one, or from the oldest usable
/// snapshot if the first records were removed. Calls `seen` with the state at the beginning of each
/// segment, where a snapshot may exist.
///
/// # Errors
/// [`OpenError`].
pub fn recover_all<S>(
    volume: &dyn Volume,
    owner: Digest,
    fold: &Fold<'_, S>,
    seen: &mut dyn FnMut(u64, &S),
) -> Result<Recovered<S>, OpenError> {
    let found = complete_segments(volume)?;
    let (mut state, base) = oldest_usable_snapshot(volume, owner, &found, fold)?;
    let mut visit = |step: ReplayStep<'_>| match step {
        ReplayStep::Record(record) => (fold.apply)(&mut state, record),
        ReplayStep::Segment(records) => {
            seen(records, &state);
            Ok(())
        }
    };
    let end = replay(volume, owner, &found, base.at, None, &mut visit)?;
    check_completeness(volume, owner, &found, &end)?;
    let unfinished = end.size.saturating_sub(end.length);
    Ok(Recovered::new(state, &end, base, unfinished))
}

/// The snapshot after this number of records, if there is one.
#[must_use]
pub fn read_snapshot(
    volume: &dyn Volume,
    owner: Digest,
    records: u64,
) -> Option<Result<Snapshot, String>> {
    let there = snapshot::list(volume).is_ok_and(|all| all.contains(&records));
    there.then(|| snapshot::read(volume, owner, records))
}

/// A step of the replay.
enum ReplayStep<'a> {
    /// A segment begins after this number of records.
    Segment(u64),
    Record(&'a JournalEntry),
}

/// The starting point of a replay.
pub(super) struct ReplayStart {
    at: Position,
    from: Option<u64>,
    pub(super) unused: Vec<String>,
}

pub(super) fn read<S>(
    volume: &dyn Volume,
    owner: Digest,
    fold: &Fold<'_, S>,
    until: Option<SegmentOffset>,
) -> Result<(S, ReplayEnd, ReplayStart), OpenError> {
    let found = complete_segments(volume)?;
    let (mut state, base) = newest_usable_snapshot(volume, owner, &found, fold)?;
    let mut visit = |step: ReplayStep<'_>| match step {
        ReplayStep::Record(record) => (fold.apply)(&mut state, record),
        ReplayStep::Segment(_) => Ok(()),
    };
    let end = replay(volume, owner, &found, base.at, until, &mut visit)?;
    check_completeness(volume, owner, &found, &end)?;
    Ok((state, end, base))
}

/// Checks that the segments reach the newest snapshot and the newest segment.
fn check_completeness(
    volume: &dyn Volume,
    owner: Digest,
    found: &[u64],
    end: &ReplayEnd,
) -> Result<(), OpenError> {
    let snapshots = snapshot::list(volume).map_err(|source| unusable(volume, "", source))?;
    // A segment is created before the snapshot at the same position.
    let newest_snapshot = snapshots.first().map(|records| (*records, "a snapshot exists"));
    let newest =
        newest_segment::read(volume, owner)?.map(|records| (records, "the newest segment begins"));
    for (records, what) in [newest_snapshot, newest].into_iter().flatten() {
        if !found.contains(&records) {
            let what = format!(
                "{what} after record {records}, but the segment that begins there is missing"
            );
            return Err(missing(volume, end.at.records.min(records), &what));
        }
    }
    Ok(())
}

/// The newest usable snapshot, or the initial state.
fn newest_usable_snapshot<S>(
    volume: &dyn Volume,
    owner: Digest,
    segments: &[u64],
    fold: &Fold<'_, S>,
) -> Result<(S, ReplayStart), OpenError> {
    let newest_first = snapshot::list(volume).map_err(|source| unusable(volume, "", source))?;
    match first_usable(volume, owner, newest_first, fold) {
        Ok(found) => Ok(found),
        Err(unused) if segments.first() == Some(&0) => initial_state(volume, owner, fold, unused),
        Err(unused) => Err(no_snapshot(volume, &unused)),
    }
}

/// The initial state, or the oldest usable snapshot with records after it.
fn oldest_usable_snapshot<S>(
    volume: &dyn Volume,
    owner: Digest,
    segments: &[u64],
    fold: &Fold<'_, S>,
) -> Result<(S, ReplayStart), OpenError> {
    if segments.first() == Some(&0) {
        return initial_state(volume, owner, fold, Vec::new());
    }
    let mut oldest_first = snapshot::list(volume).map_err(|source| unusable(volume, "", source))?;
    oldest_first.retain(|records| segments.contains(records));
    oldest_first.reverse();
    first_usable(volume, owner, oldest_first, fold).map_err(|unused| no_snapshot(volume, &unused))
}

fn initial_state<S>(
    volume: &dyn Volume,
    owner: Digest,
    fold: &Fold<'_, S>,
    unused: Vec<String>,
) -> Result<(S, ReplayStart), OpenError> {
    let state = (fold.restore)(None).map_err(|what| missing(volume, 0, &what))?;
    Ok((state, ReplayStart { at: Position::first(owner), from: None, unused }))
}

/// The first usable one of these snapshots, or the reason why each is unusable.
fn first_usable<S>(
    volume: &dyn Volume,
    owner: Digest,
    snapshots: Vec<u64>,
    fold: &Fold<'_, S>,
) -> Result<(S, ReplayStart), Vec<String>> {
    let mut unused = Vec::new();
    for records in snapshots {
        let taken = snapshot::read(volume, owner, records).and_then(|found| {
            let state = (fold.restore)(Some(&found.state));
            let state = state.map_err(|why| format!("{}: {why}", snapshot::name(records)))?;
            Ok((state, found.at))
        });
        match taken {
            Ok((state, at)) => return Ok((state, ReplayStart { at, from: Some(records), unused })),
            Err(why) => unused.push(why),
        }
    }
    Err(unused)
}

fn no_snapshot(volume: &dyn Volume, unused: &[String]) -> OpenError {
    let why = if unused.is_empty() { "there are none".to_owned() } else { unused.join("; ") };
    OpenError::NoSnapshot { path: volume.path_of(""), why }
}

/// Visits every segment that begins at or after a position, and every entry in it.
fn replay(
    volume: &dyn Volume,
    owner: Digest,
    segments: &[u64],
    from: Position,
    until: Option<SegmentOffset>,
    visit: &mut dyn FnMut(ReplayStep<'_>) -> Result<(), String>,
) -> Result<ReplayEnd, OpenError> {
    let behind: Vec<u64> = segments.iter().copied().filter(|s| *s >= from.records).collect();
    let mut end: Option<ReplayEnd> = None;
    for (place, segment_number) in behind.iter().enumerate() {
        let at = end.as_ref().map_or(from, |end| end.at);
        let name = segment_name(*segment_number);
        let limit = until.filter(|end| end.segment == *segment_number).map(|end| end.length);
        let mut reader = Reader::new(volume, &name, owner, limit)?;
        if reader.at != at {
            let what = format!("{name} continues after record {}", reader.at.records);
            return Err(missing(volume, at.records, &what));
        }
        visit(ReplayStep::Segment(*segment_number)).map_err(|why| reader.corrupt(&why))?;
        let mut read = end.as_ref().map_or_else(JournalGrowth::default, |end| end.read);
        let mut begins = 0;
        while let Some(frame) = reader.next_record()? {
            for record in &frame.entries {
                visit(ReplayStep::Record(record))
                    .map_err(|why| reader.corrupt(&format!("the rules reject it: {why}")))?;
            }
            begins = reader.offset;
            reader.advance_past(&frame);
            read.add(frame.entries.len(), reader.offset.saturating_sub(begins));
        }
        let last = place.saturating_add(1) == behind.len();
        if !last && reader.offset != reader.size {
            return Err(reader.corrupt(
                "the segment is not the newest one, and ends in the middle of the record",
            ));
        }
        let Reader { layout, offset: length, size, at, .. } = reader;
        let segment = *segment_number;
        end =
            Some(ReplayEnd { segment, layout, last_record_offset: begins, length, size, at, read });
    }
    end.ok_or_else(|| missing(volume, from.records, "no segment begins after them"))
}

/// The segments, without a newest one that has no complete header: nothing was ever appended to it.
pub(super) fn complete_segments(volume: &dyn Volume) -> Result<Vec<u64>, OpenError> {
    let mut found = segments(volume)?;
    if let Some(newest) = found.last().copied().filter(|_| found.len() > 1) {
        let name = segment_name(newest);
        if has_no_header(volume, &name).map_err(|source| unusable(volume, &name, source))? {
            found.pop();
        }
    }
    Ok(found)
}

/// The treatment of the segments before the oldest retained snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldSegments {
    /// They stay.
    Retain,
    /// They are removed.
    Remove,
}

/// The files that stay when a snapshot is stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetentionPolicy {
    /// The number of snapshots.
    pub(super) snapshots: usize,
    pub(super) segments: OldSegments,
}

/// Writes a snapshot and removes older files: all snapshots except the previous one and, if
/// `segments` is [`OldSegments::Remove`], the segments before that one.
///
/// # Errors
/// [`OpenError::Unusable`]; the existing files are sufficient for recovery then.
pub fn store_snapshot(
    volume: &dyn Volume,
    owner: Digest,
    snapshot: &Snapshot,
    segments: OldSegments,
) -> Result<(), OpenError> {
    let policy = RetentionPolicy { snapshots: snapshot::SNAPSHOTS_RETAINED, segments };
    store_snapshot_with_policy(volume, owner, snapshot, policy)
}

pub(super) fn store_snapshot_with_policy(
    volume: &dyn Volume,
    owner: Digest,
    snapshot: &Snapshot,
    policy: RetentionPolicy,
) -> Result<(), OpenError> {
    let name = snapshot::name(snapshot.at.records);
    let failed = |source| unusable(volume, &name, source);
    snapshot::write(volume, owner, snapshot).map_err(failed)?;
    match snapshot::prune(volume, policy.snapshots).map_err(failed)? {
        Some(oldest) if policy.segments == OldSegments::Remove => {
            remove_segments_before(volume, oldest)
        }
        _ => Ok(()),
    }
}

/// Removes the segments that end at or before a record. It starts with the oldest and makes each
/// removal durable before the next one, so that the remaining segments never have a gap.
fn remove_segments_before(volume: &dyn Volume, records: u64) -> Result<(), OpenError> {
    let found = segments(volume)?;
    let old = found.iter().zip(found.iter().skip(1)).filter(|(_, end)| **end <= records);
    for (old, _) in old {
        let name = segment_name(*old);
        let gone = volume.remove(&name).and_then(|()| volume.sync());
        gone.map_err(|source| unusable(volume, &name, source))?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
