//! The trace of a chain of layers: sizes at other rows, different recordings, and gaps.

use super::*;

/// A size that is linear in the rows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bytes {
    pub(super) fixed: i64,
    pub(super) of_row: i64,
}

/// A layer of a chain. It reads the output of the layer before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChainLayer {
    pub(super) output: Bytes,
    /// Memory that it frees at once.
    pub(super) scratch: Bytes,
    pub(super) saves_input: bool,
    pub(super) saves_output: bool,
    /// The number of later layers that read its output in the forward pass.
    pub(super) readers: usize,
    /// Whether the backward pass uses what it saves.
    pub(super) is_used: bool,
}

impl ChainLayer {
    /// A layer of some bytes a row that saves its output.
    pub(super) fn new(of_row: i64) -> Self {
        let output = Bytes { fixed: 0, of_row };
        Self {
            output,
            scratch: Bytes::default(),
            saves_input: false,
            saves_output: true,
            readers: 1,
            is_used: true,
        }
    }
}

/// A step of a chain: its events, one each millisecond. Allocation 0 is the input of the first
/// layer, of one byte a row, and stays.
pub(super) struct ChainStep {
    pub(super) events: Vec<TapeEvent>,
    pub(super) last_alive: LastAlive,
    rows: i64,
    allocations: usize,
    saved: usize,
}

impl ChainStep {
    pub(super) fn new(layers: &[ChainLayer], rows: u32) -> Self {
        let (events, last_alive) = (Vec::new(), LastAlive::new());
        let mut step = Self { events, last_alive, rows: rows.into(), allocations: 0, saved: 0 };
        let input = step.allocate(Bytes { fixed: 0, of_row: 1 });
        step.last_alive.insert(input, None);
        let (outputs, saves) = step.forward(layers, input);
        step.push(TapeEventKind::Mark, layers.len(), 0);
        step.backward(layers, &outputs, &saves);
        step.free(input);
        step
    }

    /// Returns the allocation of each output, and the saved tensors of each layer.
    fn forward(&mut self, layers: &[ChainLayer], input: usize) -> (Vec<usize>, Vec<Vec<usize>>) {
        let (mut outputs, mut saves) = (Vec::new(), Vec::new());
        for (at, layer) in layers.iter().enumerate() {
            self.push(TapeEventKind::Mark, at, 0);
            let output = self.allocate(layer.output);
            self.last_alive.insert(output, Some((at + layer.readers).min(layers.len() - 1)));
            let scratch = self.allocate(layer.scratch);
            let mut own = Vec::new();
            if layer.saves_input {
                own.push(self.save(outputs.last().copied().unwrap_or(input)));
            }
            if layer.saves_output {
                own.push(self.save(output));
            }
            self.free(scratch);
            outputs.push(output);
            saves.push(own);
            let has_ended = |one: &usize| {
                owner(layers, *one).is_none() && self.last_alive[&outputs[*one]] == Some(at)
            };
            let ended: Vec<usize> = (0..=at).filter(has_ended).collect();
            ended.into_iter().for_each(|one| self.free(outputs[one]));
        }
        (outputs, saves)
    }

    fn backward(&mut self, layers: &[ChainLayer], outputs: &[usize], saves: &[Vec<usize>]) {
        let mut gradient = self.allocate(layers[layers.len() - 1].output);
        for (at, layer) in layers.iter().enumerate().rev() {
            for &saved in saves[at].iter().filter(|_| layer.is_used) {
                self.push(TapeEventKind::Use, saved, 0);
            }
            let below = at.checked_sub(1).map_or(Bytes::default(), |below| layers[below].output);
            let next = self.allocate(below);
            self.free(gradient);
            gradient = next;
            let is_last = |one: &usize| owner(layers, *one) == Some(at);
            (0..layers.len()).filter(is_last).for_each(|one| self.free(outputs[one]));
        }
        self.free(gradient);
    }

    fn push(&mut self, kind: TapeEventKind, number: usize, bytes: i64) {
        let nanoseconds = self.events.len() as i64 * 1_000_000;
        self.events.push(TapeEvent { kind, number, bytes, nanoseconds });
    }

    fn allocate(&mut self, bytes: Bytes) -> usize {
        let number = self.allocations;
        self.allocations += 1;
        self.push(TapeEventKind::Allocate, number, bytes.fixed + bytes.of_row * self.rows);
        number
    }

    fn free(&mut self, allocation: usize) {
        self.push(TapeEventKind::Free, allocation, 0);
    }

    fn save(&mut self, allocation: usize) -> usize {
        self.push(TapeEventKind::Save, self.saved, allocation as i64);
        self.saved += 1;
        self.saved - 1
    }

    /// Memory after each event, by the sizes of the events themselves.
    pub(super) fn timeline(&self) -> Vec<u64> {
        let (mut live, mut sizes) = (0, vec![0; self.allocations]);
        let after = |event: &TapeEvent| {
            match event.kind {
                TapeEventKind::Allocate => {
                    sizes[event.number] = event.bytes;
                    live += event.bytes;
                }
                TapeEventKind::Free => live -= sizes[event.number],
                _ => {}
            }
            u64::try_from(live).unwrap()
        };
        self.events.iter().map(after).collect()
    }

    /// The place of an event.
    fn place(&self, kind: TapeEventKind, number: usize) -> usize {
        let is_it = |event: &TapeEvent| event.kind == kind && event.number == number;
        self.events.iter().position(is_it).unwrap()
    }
}

/// The layer after whose backward pass the output of another one is freed; `None` if none saves it.
fn owner(layers: &[ChainLayer], one: usize) -> Option<usize> {
    let by_next = layers.get(one + 1).is_some_and(|next| next.saves_input).then_some(one + 1);
    layers[one].saves_output.then_some(one).or(by_next)
}

/// The trace of a chain, from recordings of 2 and 4 rows.
pub(super) fn trace_of(layers: &[ChainLayer]) -> MemoryTrace {
    let (small, large) = (ChainStep::new(layers, 2), ChainStep::new(layers, 4));
    MemoryTrace::new((&small.events, 2), (&large.events, 4), &large.last_alive).unwrap()
}

/// SplitMix64 (Steele et al. 2014).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % bound
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn bytes(&mut self) -> Bytes {
        let bound = if self.chance(20) { 40 } else { 8 };
        Bytes { fixed: self.below(5) as i64, of_row: self.below(bound) as i64 }
    }

    /// A chain of at most `most` layers.
    pub(super) fn chain(&mut self, most: u64) -> Vec<ChainLayer> {
        let mut layers = Vec::new();
        for _ in 0..1 + self.below(most) {
            layers.push(ChainLayer {
                output: self.bytes(),
                scratch: self.bytes(),
                saves_input: self.chance(50),
                saves_output: self.chance(60),
                readers: 1 + self.below(3) as usize,
                is_used: self.chance(90),
            });
        }
        layers
    }
}

#[test]
fn recordings_of_other_events_differ() {
    let layers = [ChainLayer::new(3), ChainLayer::new(5)];
    let (small, large) = (ChainStep::new(&layers, 2), ChainStep::new(&layers, 4));
    let differs = |change: &dyn Fn(&mut Vec<TapeEvent>), event: usize| {
        let mut changed = large.events.clone();
        change(&mut changed);
        let found = MemoryTrace::new((&small.events, 2), (&changed, 4), &large.last_alive);
        assert_eq!(found, Err(TraceError::Differs { small: 2, large: 4, event }));
    };
    let save = large.place(TapeEventKind::Save, 0);
    let last = large.events.len() - 1;
    differs(&|events| events[0].kind = TapeEventKind::Mark, 0);
    differs(&|events| events[save].number = 7, save);
    differs(&|events| events[save].bytes = 0, save);
    differs(&|events| events[save].bytes = -1, save);
    differs(&|events| events.truncate(last), last);
    differs(&|events| events.push(events[0]), last + 1);
    differs(&|events| events.swap(save, save + 1), save);
}

#[test]
fn other_sizes_and_times_are_the_same_step() {
    let layers = [ChainLayer::new(3), ChainLayer::new(5)];
    let small = ChainStep::new(&layers, 2);
    let mut large = ChainStep::new(&layers, 4);
    for event in &mut large.events {
        event.nanoseconds *= 3;
        if event.kind == TapeEventKind::Free {
            event.bytes = 9;
        }
    }
    let trace = MemoryTrace::new((&small.events, 2), (&large.events, 4), &large.last_alive);
    assert_eq!(trace.unwrap().timeline(6), ChainStep::new(&layers, 6).timeline());
}

#[test]
fn two_recordings_predict_the_timeline_of_other_rows() {
    for seed in 0..200 {
        let layers = Random(seed).chain(9);
        let trace = trace_of(&layers);
        for rows in [1, 2, 3, 4, 5, 17, 1_000] {
            let timeline = ChainStep::new(&layers, rows).timeline();
            assert_eq!(trace.timeline(rows), timeline, "seed {seed}, {rows} rows");
            assert_eq!(trace.peak(rows), timeline.into_iter().max().unwrap(), "seed {seed}");
        }
    }
}

#[test]
fn sizes_below_zero_are_zero() {
    let layers = [ChainLayer { output: Bytes { fixed: -6, of_row: 4 }, ..ChainLayer::new(0) }];
    let trace = trace_of(&layers);
    assert_eq!([3, 2, 1, 0].map(|rows| trace.buffer_bytes(0, rows)), [6, 2, 0, 0]);
}

#[test]
fn a_gap_begins_at_the_mark_after_the_last_save_and_the_last_reader() {
    let saver = ChainLayer { saves_input: true, ..ChainLayer::new(1) };
    let layers = [
        ChainLayer::new(1),
        saver,
        ChainLayer { readers: 3, ..saver },
        ChainLayer::new(1),
        saver,
        saver,
    ];
    let step = ChainStep::new(&layers, 4);
    let trace = trace_of(&layers);
    let mark = |number: usize| step.place(TapeEventKind::Mark, number);
    let used = |number: usize| step.place(TapeEventKind::Use, number);
    let freed = |number: usize| step.place(TapeEventKind::Free, number);
    // Saved tensors: layer 0: 0; 1: 1, 2; 2: 3, 4; 3: 5; 4: 6, 7; 5: 8, 9. Each layer has two
    // allocations: the input is number 0, and outputs are 1, 3, 5, ….
    let rows: [(usize, &[usize], std::ops::Range<usize>); 6] = [
        (1, &[0, 1], mark(2)..used(1)),
        (3, &[2, 3], mark(3)..used(3)),
        // ChainLayer 5 reads it without a save.
        (5, &[4], mark(6)..used(4)),
        (7, &[5, 6], mark(5)..used(6)),
        (9, &[7, 8], mark(6)..used(8)),
        (11, &[9], mark(6)..used(9)),
    ];
    assert_eq!(trace.saved(), 10);
    let wanted = rows.map(|(allocation, saved, gap)| SavedBuffer {
        allocation,
        saved: saved.to_vec(),
        gap,
        end: freed(allocation),
        uses: saved.len(),
    });
    assert_eq!(trace.buffers(), wanted);
    let own = (&*step.events, 4);
    let by_saves = MemoryTrace::new(own, own, &LastAlive::new()).unwrap();
    assert_eq!(by_saves.buffers()[0].gap.start, mark(2), "layer 1 saves it last");
}

#[test]
fn memory_that_stays_or_is_older_than_the_step_is_no_buffer() {
    let layers = [ChainLayer { saves_input: true, ..ChainLayer::new(1) }, ChainLayer::new(1)];
    let mut step = ChainStep::new(&layers, 4);
    let of = |step: &ChainStep| {
        let own = (&*step.events, 4);
        let trace = MemoryTrace::new(own, own, &step.last_alive).unwrap();
        assert_eq!(trace.saved(), 3);
        trace.buffers().iter().map(|buffer| buffer.allocation).collect::<Vec<_>>()
    };
    assert_eq!(of(&step), [1, 3]);
    step.last_alive.insert(3, None);
    assert_eq!(of(&step), [1]);
    let save = step.place(TapeEventKind::Save, 1);
    step.events[save].bytes = -1;
    assert_eq!(of(&step), [0; 0]);
}

#[test]
fn memory_that_is_held_after_the_last_mark_has_no_gap() {
    let mut step = ChainStep::new(&[ChainLayer::new(1), ChainLayer::new(1)], 4);
    let gaps = |step: &ChainStep| {
        let own = (&*step.events, 4);
        let trace = MemoryTrace::new(own, own, &step.last_alive).unwrap();
        trace.buffers().iter().map(|buffer| buffer.gap.is_empty()).collect::<Vec<_>>()
    };
    assert_eq!(gaps(&step), [false, false]);
    step.last_alive.insert(1, Some(2));
    assert_eq!(gaps(&step), [true, false], "held at the last mark");
    step.events.retain(|event| event.kind != TapeEventKind::Mark || event.number < 2);
    assert_eq!(gaps(&step), [true, true], "the last node has no end");
}

#[test]
fn memory_that_is_freed_without_a_use_has_its_gap_to_there() {
    let layers = [ChainLayer { is_used: false, ..ChainLayer::new(1) }, ChainLayer::new(1)];
    let (step, trace) = (ChainStep::new(&layers, 4), trace_of(&layers));
    let [unused, used] = trace.buffers() else { panic!("two buffers") };
    assert_eq!((unused.uses, unused.gap.end), (0, step.place(TapeEventKind::Free, 1)));
    assert_eq!((used.uses, used.end), (1, step.place(TapeEventKind::Free, 3)));
}

#[test]
fn seconds_are_those_of_the_larger_recording_in_proportion_to_the_rows() {
    let layers = [ChainLayer::new(1), ChainLayer::new(1)];
    let (step, trace) = (ChainStep::new(&layers, 4), trace_of(&layers));
    let turn = step.place(TapeEventKind::Use, 1) as f64 * 1e-3;
    let all = (step.events.len() - 1) as f64 * 1e-3;
    let (forward, backward) = trace.seconds(8);
    assert!((forward - turn * 2.0).abs() < 1e-9 && (backward - (all - turn) * 2.0).abs() < 1e-9);
    let marks = trace.mark_seconds(2);
    let wanted = |from: usize| {
        let [from, to] = [from, from + 1].map(|mark| step.place(TapeEventKind::Mark, mark));
        (to - from) as f64 * 1e-3 / 2.0
    };
    assert_eq!(marks.len(), 2, "the last mark has no end");
    (0..2).for_each(|mark| assert!((marks[&mark] - wanted(mark)).abs() < 1e-9));
}
