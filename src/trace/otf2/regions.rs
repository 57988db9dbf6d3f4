//! The events of an archive: balanced enters and leaves, in the order of time, per location.

use std::collections::BTreeMap;

use crate::trace::analysis::read::ProcessTrace;
use crate::trace::record::{EventKind, message_id};

/// Spans that overlap by at most this are made to nest, in nanoseconds: the times of a file are
/// numbers with a resolution of a quarter of a microsecond.
const OVERLAP_MAX: u64 = 1_000;

/// An enter, a leave, or one end of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LocationEvent {
    pub(super) at: u64,
    pub(super) action: LocationAction,
}

/// The action of a location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LocationAction {
    /// A span begins.
    Enter(String),
    /// The span that began last ends.
    Leave(String),
    /// A message to the location with this number leaves.
    Send(u32, MessageSize),
    /// A message from the location with this number arrives.
    Receive(u32, MessageSize),
}

/// The kind and the length of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageSize {
    pub(super) tag: u32,
    pub(super) bytes: u64,
}

/// One location of an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LocationEvents {
    pub(super) name: String,
    /// Its number in the file, unless it is a further location of spans that overlap.
    number: Option<u32>,
    pub(super) events: Vec<LocationEvent>,
}

/// Texts and regions by number. The numbers of each have no gaps, as readers expect.
#[derive(Debug, Default)]
pub(super) struct StringTable {
    ids: BTreeMap<String, u32>,
    /// The number of a region by the number of its name.
    regions: BTreeMap<u32, u32>,
}

impl StringTable {
    /// The number of a text.
    pub(super) fn id(&mut self, text: &str) -> u32 {
        let next = u32::try_from(self.ids.len()).unwrap_or(u32::MAX);
        *self.ids.entry(text.to_owned()).or_insert(next)
    }

    /// The number of a region.
    pub(super) fn region(&mut self, name: &str) -> u32 {
        let name = self.id(name);
        let next = u32::try_from(self.regions.len()).unwrap_or(u32::MAX);
        *self.regions.entry(name).or_insert(next)
    }

    /// All texts, in the order of their numbers.
    pub(super) fn texts(&self) -> Vec<(u32, &str)> {
        let mut all: Vec<_> = self.ids.iter().map(|(text, id)| (*id, text.as_str())).collect();
        all.sort_unstable();
        all
    }

    /// The number and the name of each region, in the order of their numbers.
    pub(super) fn regions(&self) -> Vec<(u32, u32)> {
        let mut all: Vec<_> = self.regions.iter().map(|(name, region)| (*region, *name)).collect();
        all.sort_unstable();
        all
    }
}

/// A span with its end.
struct ClosedSpan {
    from: u64,
    to: u64,
    name: String,
}

/// The locations of a process. Spans of one location that overlap without nesting go to further
/// locations with a number.
pub(super) fn locations(trace: &ProcessTrace) -> Vec<LocationEvents> {
    let mut all = Vec::new();
    for (location, mut spans) in closed_spans(trace) {
        spans.sort_by_key(|span| (span.from, std::cmp::Reverse(span.to)));
        let name = trace.locations.get(&location).cloned();
        let name = name.unwrap_or_else(|| format!("location {location}"));
        let mut lanes: Vec<Lane> = Vec::new();
        for span in spans {
            if !lanes.iter_mut().any(|lane| lane.try_enter(&span)) {
                let mut lane = Lane::default();
                lane.try_enter(&span);
                lanes.push(lane);
            }
        }
        for (number, lane) in lanes.into_iter().enumerate() {
            let is_first = number == 0;
            let suffix = if is_first { String::new() } else { format!(" #{}", number + 1) };
            all.push(LocationEvents {
                name: format!("{name}{suffix}"),
                number: is_first.then_some(location),
                events: lane.close(),
            });
        }
    }
    all
}

fn closed_spans(trace: &ProcessTrace) -> BTreeMap<u32, Vec<ClosedSpan>> {
    let mut spans: BTreeMap<u32, Vec<ClosedSpan>> = BTreeMap::new();
    let mut open: BTreeMap<u32, Vec<(u64, String)>> = BTreeMap::new();
    let mut last = 0;
    for event in &trace.events {
        let (from, to) = (event.at.unsigned_abs(), event.end().unsigned_abs());
        last = to.max(last);
        let closed = match event.kind {
            EventKind::Complete(_) => Some(ClosedSpan { from, to, name: event.name.clone() }),
            EventKind::Begin => {
                open.entry(event.location).or_default().push((from, event.name.clone()));
                None
            }
            EventKind::End => {
                let begun = open.get_mut(&event.location).and_then(Vec::pop);
                begun.map(|(begun, name)| ClosedSpan { from: begun, to, name })
            }
            _ => None,
        };
        if let Some(span) = closed {
            spans.entry(event.location).or_default().push(span);
        }
    }
    // A killed process has no ends: its last event is the end of what was open.
    for (location, begun) in open {
        let closed = begun.into_iter().map(|(from, name)| ClosedSpan { from, to: last, name });
        spans.entry(location).or_default().extend(closed);
    }
    spans
}

/// The kinds of messages: the tag is the place in this list.
const KINDS: [&str; 5] = ["offer", "commit", "reveal", "update", "record"];

/// An end of a message: where, and when.
type MessageEnd = (usize, u64);

/// Adds the messages of which the traces have both ends. `groups` are the locations of each trace; a
/// location's number is its place in all groups together.
pub(super) fn add_messages(traces: &[ProcessTrace], groups: &mut [Vec<LocationEvents>]) {
    let (mut sent, mut received) = (BTreeMap::new(), BTreeMap::new());
    let mut places = Vec::new();
    for (group, (trace, locations)) in traces.iter().zip(groups.iter()).enumerate() {
        let first = places.len();
        places.extend((0..locations.len()).map(|at| (group, at)));
        for event in &trace.events {
            let ends = match event.kind {
                EventKind::FlowStart => &mut sent,
                EventKind::FlowEnd => &mut received,
                _ => continue,
            };
            let own = locations.iter().position(|one| one.number == Some(event.location));
            let Some(own) = own else { continue };
            let end: MessageEnd = (first + own, event.at.unsigned_abs());
            let tag = KINDS.iter().position(|kind| *kind == event.text("kind")).unwrap_or(0);
            let size = MessageSize { tag: tag as u32, bytes: event.number("bytes") };
            ends.entry(message_id(&event.fields)).or_insert((end, size));
        }
    }
    for (id, ((from, sent), size)) in sent {
        let Some(((to, arrived), _)) = received.get(&id) else { continue };
        let mut push = |place: usize, at: u64, action| {
            let (group, location) = places[place];
            groups[group][location].events.push(LocationEvent { at, action });
        };
        push(from, sent, LocationAction::Send(*to as u32, size));
        push(*to, *arrived, LocationAction::Receive(from as u32, size));
    }
    // The order of equal times stays: enters and leaves are balanced.
    let locations = groups.iter_mut().flatten();
    locations.for_each(|location| location.events.sort_by_key(|event| event.at));
}

/// Spans that nest.
#[derive(Default)]
struct Lane {
    open: Vec<(u64, String)>,
    events: Vec<LocationEvent>,
}

impl Lane {
    /// Leaves the spans that end before this one begins, and enters it if it nests in the rest.
    fn try_enter(&mut self, span: &ClosedSpan) -> bool {
        while let Some((to, _)) = self.open.last()
            && *to <= span.from.saturating_add(OVERLAP_MAX).min(span.to)
        {
            self.leave();
        }
        let end = self.open.last().map_or(span.to, |(to, _)| *to);
        if span.to > end.saturating_add(OVERLAP_MAX) {
            return false;
        }
        let at = span.from.max(self.events.last().map_or(0, |event| event.at));
        let to = span.to.min(end).max(at);
        self.events.push(LocationEvent { at, action: LocationAction::Enter(span.name.clone()) });
        self.open.push((to, span.name.clone()));
        true
    }

    fn leave(&mut self) {
        if let Some((to, region)) = self.open.pop() {
            let at = to.max(self.events.last().map_or(0, |event| event.at));
            self.events.push(LocationEvent { at, action: LocationAction::Leave(region) });
        }
    }

    fn close(mut self) -> Vec<LocationEvent> {
        while !self.open.is_empty() {
            self.leave();
        }
        self.events
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use serde_json::Map;

    use super::*;
    use crate::trace::analysis::read::TracedEvent;

    fn event(name: &str, kind: EventKind, at: i64) -> TracedEvent {
        TracedEvent { name: name.to_owned(), kind, at, location: 1, fields: Map::new() }
    }

    fn check(locations: &[LocationEvents]) {
        for location in locations {
            let (mut open, mut at) = (Vec::new(), 0);
            for event in &location.events {
                assert!(event.at >= at, "time goes back: {location:?}");
                at = event.at;
                match &event.action {
                    LocationAction::Enter(region) => open.push(region.clone()),
                    LocationAction::Leave(region) => {
                        assert_eq!(open.pop().as_ref(), Some(region), "{location:?}");
                    }
                    LocationAction::Send(..) | LocationAction::Receive(..) => {}
                }
            }
            assert!(open.is_empty(), "{location:?}");
        }
    }

    #[test]
    fn random_spans_become_balanced_events_in_the_order_of_time() {
        for seed in 0..200 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut trace = ProcessTrace::default();
            let mut spans = 0;
            for number in 0..rng.random_range(1..60) {
                let at = rng.random_range(0..100_000);
                let kind = match rng.random_range(0..4) {
                    0 => EventKind::Begin,
                    1 => EventKind::End,
                    _ => EventKind::Complete(rng.random_range(0..20_000)),
                };
                spans += usize::from(kind != EventKind::End);
                trace.events.push(event(&format!("span {number}"), kind, at));
            }
            trace.events.sort_by_key(|event| event.at);
            let locations = locations(&trace);
            check(&locations);
            let events: usize = locations.iter().map(|location| location.events.len()).sum();
            assert_eq!(events, 2 * spans, "seed {seed}: no span is lost");
        }
    }

    #[test]
    fn numbers_of_texts_and_regions_have_no_gaps() {
        let mut strings = StringTable::default();
        for name in ["train", "upload", "train", "commit"] {
            strings.region(name);
            strings.id(&format!("location of {name}"));
        }
        let numbers = |all: Vec<u32>| assert_eq!(all, (0..all.len() as u32).collect::<Vec<_>>());
        numbers(strings.regions().into_iter().map(|(region, _)| region).collect());
        numbers(strings.texts().into_iter().map(|(text, _)| text).collect());
        let texts: BTreeMap<u32, &str> = strings.texts().into_iter().collect();
        let names: Vec<&str> = strings.regions().iter().map(|(_, name)| texts[name]).collect();
        assert_eq!(names, ["train", "upload", "commit"]);
    }

    #[test]
    fn a_message_with_both_ends_joins_two_locations() {
        let message = |kind, at| {
            let fields = serde_json::json!({ "kind": "commit", "member": "0x01", "bytes": 7 });
            let fields = fields.as_object().cloned().unwrap();
            TracedEvent { fields, ..event("commit", kind, at) }
        };
        let trace = |kind, at| ProcessTrace {
            events: vec![event("work", EventKind::Complete(50), 10), message(kind, at)],
            ..ProcessTrace::default()
        };
        let traces = [trace(EventKind::FlowStart, 20), trace(EventKind::FlowEnd, 40)];
        let mut groups: Vec<_> = traces.iter().map(locations).collect();
        add_messages(&traces, &mut groups);
        let size = MessageSize { tag: 1, bytes: 7 };
        assert_eq!(groups[0][0].events[1].action, LocationAction::Send(1, size));
        assert_eq!(groups[1][0].events[1].action, LocationAction::Receive(0, size));
        groups.iter().for_each(|group| check(group));
        let mut alone = vec![locations(&traces[0])];
        add_messages(&traces[..1], &mut alone);
        assert_eq!(alone[0][0].events.len(), 2, "half a message is none");
    }

    #[test]
    fn nested_spans_share_a_location_and_overlapping_ones_do_not() {
        let span = |name, from, to: i64| event(name, EventKind::Complete((to - from) as u64), from);
        let (from, to) = (100_000, 900_000);
        let nested = ProcessTrace {
            events: vec![span("outer", from, to), span("inner", from + 9, to + 250)],
            ..ProcessTrace::default()
        };
        assert_eq!(locations(&nested).len(), 1);
        let overlapping = ProcessTrace {
            events: vec![span("first", from, to), span("second", from + 9, to + 9_000)],
            ..ProcessTrace::default()
        };
        let found = locations(&overlapping);
        assert_eq!(
            found.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(),
            ["location 1", "location 1 #2"]
        );
        check(&found);
    }
}
