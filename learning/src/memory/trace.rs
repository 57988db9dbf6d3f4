//! The trace of a step: its allocations in order, with sizes as functions of the number of rows.

use std::collections::BTreeMap;
use std::ops::Range;

use thiserror::Error;

/// The kind of an event of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TapeEventKind {
    /// A tensor's memory is allocated.
    Allocate,
    /// It is freed.
    Free,
    /// The caller's mark: a node of the graph begins.
    Mark,
    /// A tensor is saved for the backward pass.
    Save,
    /// The backward pass uses a saved tensor.
    Use,
}

/// An event of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TapeEvent {
    /// Its kind.
    pub kind: TapeEventKind,
    /// The number of the allocation, the mark, or the saved tensor.
    pub number: usize,
    /// Bytes of an allocation. For [`TapeEventKind::Save`] the number of the memory's allocation, or −1
    /// for memory that is older than the step.
    pub bytes: i64,
    /// When it happened, on a clock that never goes back.
    pub nanoseconds: i64,
}

/// Two recordings do not describe the same step.
#[derive(Debug, Clone, Copy, Error, PartialEq, Eq)]
pub enum TraceError {
    /// Their events differ.
    #[error(
        "the operators of a step on {small} rows allocate otherwise than on {large}: event {event}"
    )]
    Differs {
        /// Rows of the smaller step.
        small: u32,
        /// Rows of the larger step.
        large: u32,
        /// The first event that differs.
        event: usize,
    },
}

/// A size that is linear in the rows.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LinearBytes {
    fixed: f64,
    of_row: f64,
}

impl LinearBytes {
    fn at(self, rows: u32) -> u64 {
        (self.of_row.mul_add(rows.into(), self.fixed)).round().max(0.0) as u64
    }
}

/// Memory that saved tensors share, with its places among the events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedBuffer {
    /// The number of its allocation.
    pub allocation: usize,
    /// The saved tensors in it, in order.
    pub saved: Vec<usize>,
    /// From the place at which the forward pass has no more need of it to its first use.
    pub gap: Range<usize>,
    /// Where it is freed.
    pub end: usize,
    /// How often the backward pass uses a tensor in it.
    pub uses: usize,
}

/// For each allocation the last mark after which the forward pass itself holds it, or `None` if it stays to
/// the end of the step.
pub type LastAlive = BTreeMap<usize, Option<usize>>;

/// A step's allocations and uses, for any number of rows.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryTrace {
    events: Vec<TapeEvent>,
    sizes: Vec<LinearBytes>,
    buffers: Vec<SavedBuffer>,
    /// Saved tensors.
    saved: usize,
    rows: u32,
}

impl MemoryTrace {
    /// The trace of two recordings of one step. `last_alive` has, for each allocation, the last mark
    /// after which the forward pass itself holds it; `None` for memory that stays to the end of the step.
    ///
    /// # Errors
    /// [`TraceError`] if the events of the recordings are not the same ones.
    pub fn new(
        (small, small_rows): (&[TapeEvent], u32),
        (large, large_rows): (&[TapeEvent], u32),
        last_alive: &LastAlive,
    ) -> Result<Self, TraceError> {
        let is_same = |a: &TapeEvent, b: &TapeEvent| {
            let is_save = a.kind == TapeEventKind::Save;
            a.kind == b.kind && a.number == b.number && (!is_save || a.bytes == b.bytes)
        };
        let differs = small.iter().zip(large).position(|(a, b)| !is_same(a, b));
        let shorter = (small.len() != large.len()).then(|| small.len().min(large.len()));
        if let Some(event) = differs.or(shorter) {
            return Err(TraceError::Differs { small: small_rows, large: large_rows, event });
        }
        let mut sizes = Vec::new();
        for (a, b) in small.iter().zip(large) {
            if a.kind == TapeEventKind::Allocate {
                // Two recordings of the same rows are valid for these alone.
                let rows = f64::from(large_rows.saturating_sub(small_rows).max(1));
                let of_row = (b.bytes - a.bytes) as f64 / rows;
                let fixed = of_row.mul_add(-f64::from(small_rows), a.bytes as f64);
                sizes.push(LinearBytes { fixed, of_row });
            }
        }
        let buffers = buffers(large, last_alive);
        let saved = large.iter().filter(|event| event.kind == TapeEventKind::Save).count();
        Ok(Self { events: large.to_vec(), sizes, buffers, saved, rows: large_rows })
    }

    /// Number of saved tensors of a step.
    #[must_use]
    pub fn saved(&self) -> usize {
        self.saved
    }

    /// The memory of the saved tensors, in the order of their allocations. Tensors in older memory, such as
    /// parameters, are not among them.
    #[must_use]
    pub fn buffers(&self) -> &[SavedBuffer] {
        &self.buffers
    }

    /// The size of a buffer, in bytes.
    #[must_use]
    pub fn buffer_bytes(&self, buffer: usize, rows: u32) -> u64 {
        self.sizes[self.buffers[buffer].allocation].at(rows)
    }

    /// The memory of tensors after each event, in bytes.
    #[must_use]
    pub fn timeline(&self, rows: u32) -> Vec<u64> {
        let mut live = 0_u64;
        let after = |event: &TapeEvent| {
            let bytes = || self.sizes[event.number].at(rows);
            match event.kind {
                TapeEventKind::Allocate => live += bytes(),
                TapeEventKind::Free => live = live.saturating_sub(bytes()),
                _ => {}
            }
            live
        };
        self.events.iter().map(after).collect()
    }

    /// The bytes of all allocations of a step.
    #[must_use]
    pub fn allocated(&self, rows: u32) -> u64 {
        self.sizes.iter().map(|size| size.at(rows)).sum()
    }

    /// The largest memory of tensors at once, in bytes.
    #[must_use]
    pub fn peak(&self, rows: u32) -> u64 {
        self.timeline(rows).into_iter().max().unwrap_or(0)
    }

    /// Seconds of the forward pass and of the backward pass, at most: those of the recording, in
    /// proportion to the rows.
    #[must_use]
    pub fn seconds(&self, rows: u32) -> (f64, f64) {
        let time = |event: &TapeEvent| event.nanoseconds;
        let turn = self.events.iter().find(|event| event.kind == TapeEventKind::Use).map(time);
        let ends = self.events.first().map(time).zip(self.events.last().map(time));
        let Some((first, last)) = ends else { return (0.0, 0.0) };
        let turn = turn.unwrap_or(last);
        (self.scaled(turn - first, rows), self.scaled(last - turn, rows))
    }

    /// Seconds from a mark to the next event of its kind, by mark.
    #[must_use]
    pub fn mark_seconds(&self, rows: u32) -> BTreeMap<usize, f64> {
        let marks: Vec<&TapeEvent> =
            self.events.iter().filter(|event| event.kind == TapeEventKind::Mark).collect();
        let time = |pair: &[&TapeEvent]| {
            (pair[0].number, self.scaled(pair[1].nanoseconds - pair[0].nanoseconds, rows))
        };
        marks.windows(2).map(time).collect()
    }

    fn scaled(&self, nanoseconds: i64, rows: u32) -> f64 {
        nanoseconds.max(0) as f64 * 1e-9 * f64::from(rows) / f64::from(self.rows.max(1))
    }
}

/// The memory of saved tensors.
fn buffers(events: &[TapeEvent], last_alive: &LastAlive) -> Vec<SavedBuffer> {
    let mut found: BTreeMap<usize, SavedBuffer> = BTreeMap::new();
    let mut buffer_of: Vec<Option<usize>> = Vec::new();
    let mut marks: Vec<(usize, usize)> = Vec::new();
    for (at, event) in events.iter().enumerate() {
        match event.kind {
            TapeEventKind::Mark => marks.push((event.number, at)),
            TapeEventKind::Save => {
                let stays = |allocation: &usize| last_alive.get(allocation) == Some(&None);
                let allocation =
                    usize::try_from(event.bytes).ok().filter(|allocation| !stays(allocation));
                buffer_of.push(allocation);
                let Some(allocation) = allocation else { continue };
                let buffer = found.entry(allocation).or_insert_with(|| SavedBuffer {
                    allocation,
                    saved: Vec::new(),
                    gap: at..events.len(),
                    end: events.len(),
                    uses: 0,
                });
                buffer.saved.push(event.number);
                buffer.gap.start = at;
            }
            TapeEventKind::Use => {
                let allocation = buffer_of.get(event.number).copied().flatten();
                if let Some(buffer) = allocation.and_then(|number| found.get_mut(&number)) {
                    buffer.gap.end = buffer.gap.end.min(at);
                    buffer.uses += 1;
                }
            }
            TapeEventKind::Free => {
                if let Some(buffer) = found.get_mut(&event.number) {
                    buffer.end = at;
                    buffer.gap.end = buffer.gap.end.min(at);
                }
            }
            TapeEventKind::Allocate => {}
        }
    }
    for buffer in found.values_mut() {
        // The node that saves it has ended at the next mark, and one that the forward pass holds later.
        // Without such a mark it has not ended.
        let place = |mark: Option<&(usize, usize)>| mark.map_or(buffer.gap.end, |(_, at)| *at);
        let saved = place(marks.iter().find(|(_, at)| *at > buffer.gap.start));
        let last = last_alive.get(&buffer.allocation).copied().flatten();
        let held = last.map_or(0, |last| place(marks.iter().find(|(mark, _)| *mark > last)));
        buffer.gap.start = saved.max(held).min(buffer.gap.end);
    }
    found.into_values().collect()
}
