//! Admission of a step to a memory, and its plan.

use std::collections::BTreeSet;

use super::trace::MemoryTrace;

/// The share of the memory, as its inverse, for tensors on their way to the file or back.
const WINDOW_DIVISOR: u64 = 16;
/// Sizes up to which all buffers leave, at most, in the search for the smallest plan.
const SIZES_TRIED_MAX: usize = 32;
/// Searches of a window that holds the largest tensor of its plan.
const WINDOWS_MAX: usize = 8;

/// The fate of a saved tensor between the forward pass and its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SavedRule {
    /// It stays in the memory.
    Retain,
    /// It is written to a file, and read again before its use.
    Offload,
    /// It is dropped, and computed again from other tensors.
    Recompute,
}

/// Speeds of a memory, in bytes a second, above 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryRates {
    /// Of writing.
    pub write: f64,
    /// Of reading.
    pub read: f64,
    /// Of the first use of memory that the system gives: under a plan, freed memory is returned to it.
    pub fresh: f64,
}

/// A way to compute the content of a buffer again.
#[derive(Debug, Clone, PartialEq)]
pub struct Recompute {
    /// The buffer.
    pub buffer: usize,
    /// Its time.
    pub seconds: f64,
    /// The buffers that it reads; all others of its inputs stay in the memory anyway.
    pub inputs: Vec<usize>,
}

/// A buffer of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedBuffer {
    /// Its fate.
    pub rule: SavedRule,
    /// Its size.
    pub bytes: u64,
    /// Its last saved tensor: after it the forward pass has no more need of it.
    pub last_saved: usize,
    /// How often the backward pass uses a tensor in it.
    pub uses: usize,
}

/// The fate of each saved tensor of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryPlan {
    /// In the order of [`MemoryTrace::buffers`].
    pub buffers: Vec<PlannedBuffer>,
    /// The buffer of each saved tensor; `None` for older memory.
    pub buffer_of: Vec<Option<usize>>,
    /// The offloaded buffers, in the order in which the backward pass needs them.
    pub returns: Vec<usize>,
    /// Bytes of buffers on their way, at most.
    pub window: u64,
    /// Predicted bytes of all tensors at once, at most.
    pub peak: u64,
    /// Predicted time of a step, as a multiple of that with all tensors in the memory.
    pub slow_down: f64,
}

impl MemoryPlan {
    /// Bytes of the buffers with a rule.
    #[must_use]
    pub fn bytes(&self, rule: SavedRule) -> u64 {
        self.buffers.iter().filter(|buffer| buffer.rule == rule).map(|buffer| buffer.bytes).sum()
    }
}

/// Whether a step fits into a memory.
#[derive(Debug, Clone, PartialEq)]
pub enum Admission {
    /// All its tensors do.
    Fits {
        /// Bytes of them at once, at most.
        peak: u64,
    },
    /// It does with a plan.
    FitsByPlan(Box<MemoryPlan>),
    /// No plan makes it fit.
    TooLarge {
        /// Bytes that it needs at once with the smallest plan.
        needed: u64,
        /// Bytes of them that no plan can move: parameters, gradients and the optimizer's state.
        fixed: u64,
    },
}

/// Admits a step on `rows` rows to a memory of `limit` bytes. `fixed` bytes are there before the step;
/// `recomputes` are the buffers that can be computed again.
///
/// A buffer leaves the memory when the step does not fit otherwise: the one whose next use is farthest,
/// which moves the fewest buffers (Belady 1966). Of those that leave, the ones are computed again for which
/// that shortens the step: transfers run beside the computation, and count where they take longer.
#[must_use]
pub fn admit(
    trace: &MemoryTrace,
    rows: u32,
    (fixed, limit): (u64, u64),
    rates: MemoryRates,
    recomputes: &[Recompute],
) -> Admission {
    let timeline = trace.timeline(rows);
    let peak = fixed + timeline.iter().max().copied().unwrap_or(0);
    if peak <= limit {
        return Admission::Fits { peak };
    }
    let mut window = limit.saturating_sub(fixed) / WINDOW_DIVISOR;
    let mut draft = Draft::new(trace, rows, &timeline);
    for _ in 0..WINDOWS_MAX {
        draft = Draft::new(trace, rows, &timeline);
        let bytes = limit.saturating_sub(fixed).saturating_sub(window);
        draft.evict(Eviction { bytes, buffer_max: u64::MAX });
        let largest = draft.largest_evicted();
        if largest <= window {
            break;
        }
        window = largest;
    }
    if fixed + window + draft.peak() > limit {
        (draft, window) = Draft::smallest(trace, rows, &timeline);
    }
    let needed = fixed + window + draft.peak();
    if needed > limit {
        return Admission::TooLarge { needed, fixed };
    }
    // The smallest plan may move more than it needs to.
    let eviction = Eviction { bytes: limit - fixed - window, buffer_max: window };
    draft = Draft::new(trace, rows, &timeline);
    draft.evict(eviction);
    draft.recompute(recomputes, limit - fixed - window, rates);
    Admission::FitsByPlan(Box::new(draft.plan(fixed, window, rates)))
}

/// The aim of an eviction.
#[derive(Debug, Clone, Copy)]
struct Eviction {
    /// Most bytes at an event.
    bytes: u64,
    /// Most bytes of a buffer that leaves.
    buffer_max: u64,
}

/// A plan in the making.
struct Draft<'a> {
    trace: &'a MemoryTrace,
    rows: u32,
    rules: Vec<SavedRule>,
    bytes: Vec<u64>,
    /// Where each buffer is needed again: of a recomputation, or its own use.
    needed_at: Vec<usize>,
    is_input: Vec<bool>,
    /// Where each buffer is freed: at its end, or after a recomputation that reads it later.
    ends: Vec<usize>,
    /// Memory after each event.
    live: Vec<u64>,
    recompute_seconds: f64,
}

impl<'a> Draft<'a> {
    fn new(trace: &'a MemoryTrace, rows: u32, timeline: &[u64]) -> Self {
        let count = trace.buffers().len();
        Self {
            trace,
            rows,
            rules: vec![SavedRule::Retain; count],
            bytes: (0..count).map(|buffer| trace.buffer_bytes(buffer, rows)).collect(),
            needed_at: trace.buffers().iter().map(|buffer| buffer.gap.end).collect(),
            is_input: vec![false; count],
            ends: trace.buffers().iter().map(|buffer| buffer.end).collect(),
            live: timeline.to_vec(),
            recompute_seconds: 0.0,
        }
    }

    fn peak(&self) -> u64 {
        self.live.iter().max().copied().unwrap_or(0)
    }

    fn largest_evicted(&self) -> u64 {
        let evicted = self.rules.iter().zip(&self.bytes);
        evicted.filter(|(rule, _)| **rule != SavedRule::Retain).map(|(_, &b)| b).max().unwrap_or(0)
    }

    /// The plan with the fewest bytes, and its window. A large buffer may need more of the window than it
    /// frees: all buffers up to some size leave, for each size.
    fn smallest(trace: &'a MemoryTrace, rows: u32, timeline: &[u64]) -> (Self, u64) {
        let none = Self::new(trace, rows, timeline);
        let sizes: BTreeSet<u64> = none.bytes.iter().copied().collect();
        let of_size = |buffer_max: u64| {
            let mut draft = Self::new(trace, rows, timeline);
            draft.evict(Eviction { bytes: 0, buffer_max });
            let window = draft.largest_evicted();
            (draft, window)
        };
        let each = sizes.len().div_ceil(SIZES_TRIED_MAX).max(1);
        // The largest size is among them.
        let sizes = sizes.into_iter().rev().step_by(each);
        let least = (none.peak(), none, 0);
        let (_, draft, window) = sizes.map(of_size).fold(least, |least, (draft, window)| {
            let needed = draft.peak() + window;
            if needed < least.0 { (needed, draft, window) } else { least }
        });
        (draft, window)
    }

    /// Offloads buffers until no event has too many bytes, as far as possible.
    fn evict(&mut self, Eviction { bytes, buffer_max }: Eviction) {
        for at in 0..self.live.len() {
            while self.live[at] > bytes {
                let farthest = (0..self.rules.len())
                    .filter(|&one| self.rules[one] == SavedRule::Retain && self.bytes[one] > 0)
                    .filter(|&one| self.bytes[one] <= buffer_max)
                    .filter(|&one| self.trace.buffers()[one].gap.contains(&at))
                    .max_by_key(|&one| (self.trace.buffers()[one].gap.end, self.bytes[one]));
                let Some(one) = farthest else { break };
                self.rules[one] = SavedRule::Offload;
                let gap = self.trace.buffers()[one].gap.clone();
                self.live[gap].iter_mut().for_each(|live| *live -= self.bytes[one]);
            }
        }
    }

    /// Computes offloaded buffers again where that shortens the step and fits into `limit`.
    fn recompute(&mut self, ways: &[Recompute], limit: u64, rates: MemoryRates) {
        let mut ways: Vec<&Recompute> = ways
            .iter()
            .filter(|way| self.rules.get(way.buffer) == Some(&SavedRule::Offload))
            .filter(|way| self.trace.buffers()[way.buffer].uses > 0)
            .collect();
        let of_byte = |way: &Recompute| way.seconds / self.bytes[way.buffer] as f64;
        ways.sort_by(|a, b| of_byte(a).total_cmp(&of_byte(b)).then(a.buffer.cmp(&b.buffer)));
        for way in ways {
            let is_there = |&input: &usize| match self.rules[input] {
                SavedRule::Retain => true,
                SavedRule::Offload => self.trace.buffers()[input].uses > 0,
                SavedRule::Recompute => false,
            };
            let is_offloaded = self.rules[way.buffer] == SavedRule::Offload;
            if !is_offloaded || self.is_input[way.buffer] || !way.inputs.iter().all(is_there) {
                continue;
            }
            let seconds = self.seconds(rates);
            let before = (self.live.clone(), self.needed_at.clone(), self.ends.clone());
            self.rules[way.buffer] = SavedRule::Recompute;
            self.recompute_seconds += way.seconds;
            let at = self.needed_at[way.buffer];
            way.inputs.iter().for_each(|&input| self.need(input, at));
            if self.seconds(rates) < seconds && self.peak() <= limit {
                way.inputs.iter().for_each(|&input| self.is_input[input] = true);
                continue;
            }
            self.rules[way.buffer] = SavedRule::Offload;
            self.recompute_seconds -= way.seconds;
            (self.live, self.needed_at, self.ends) = before;
        }
    }

    /// A recomputation reads a buffer at an event: it is in the memory from there to its own use, or from
    /// its end to there.
    fn need(&mut self, input: usize, at: usize) {
        let bytes = self.bytes[input];
        let end = self.ends[input];
        if at >= end {
            self.live[end..=at].iter_mut().for_each(|live| *live += bytes);
            self.ends[input] = at + 1;
        }
        if self.rules[input] == SavedRule::Offload && at < self.needed_at[input] {
            self.live[at..self.needed_at[input]].iter_mut().for_each(|live| *live += bytes);
            self.needed_at[input] = at;
        }
    }

    /// Predicted seconds of a step.
    fn seconds(&self, rates: MemoryRates) -> f64 {
        let moved: u64 = self.bytes_of(SavedRule::Offload);
        let (forward, backward) = self.trace.seconds(self.rows);
        forward.max(moved as f64 / rates.write)
            + backward.max(moved as f64 / rates.read)
            + self.recompute_seconds
            + self.trace.allocated(self.rows) as f64 / rates.fresh
    }

    fn bytes_of(&self, wanted: SavedRule) -> u64 {
        let own = self.rules.iter().zip(&self.bytes).filter(|(rule, _)| **rule == wanted);
        own.map(|(_, bytes)| bytes).sum()
    }

    fn plan(self, fixed: u64, window: u64, rates: MemoryRates) -> MemoryPlan {
        let (forward, backward) = self.trace.seconds(self.rows);
        let slow_down = self.seconds(rates) / (forward + backward).max(f64::MIN_POSITIVE);
        let peak = fixed + window + self.peak();
        let mut buffer_of = vec![None; self.trace.saved()];
        let mut returns = Vec::new();
        let mut buffers = Vec::new();
        for (at, buffer) in self.trace.buffers().iter().enumerate() {
            buffer.saved.iter().for_each(|&saved| buffer_of[saved] = Some(at));
            let rule = self.rules[at];
            // A buffer without a use leaves for ever.
            if rule == SavedRule::Offload && buffer.uses > 0 {
                returns.push(at);
            }
            buffers.push(PlannedBuffer {
                rule,
                bytes: self.bytes[at],
                last_saved: buffer.saved.last().copied().unwrap_or(0),
                uses: buffer.uses,
            });
        }
        returns.sort_by_key(|&buffer| self.needed_at[buffer]);
        MemoryPlan { buffers, buffer_of, returns, window, peak, slow_down }
    }
}
