//! The layer of the log that records the target `florin::trace` into a file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::record::{EventKind, Process, Record};
use super::writer::TraceWriter;
use crate::log::LogLayer;

/// The target of the events and spans of a trace.
const TARGET: &str = "florin::trace";
/// Prefix of the names of our threads.
const THREAD_PREFIX: &str = "florin-";

/// A trace in progress; cheap to clone.
#[derive(Clone, Debug)]
pub struct TraceLayer(Arc<TraceRecorder>);

impl TraceLayer {
    /// Starts the file of this process in a folder.
    ///
    /// # Errors
    /// The folder or the file cannot be created.
    pub fn create(folder: &Path, process: &Process) -> std::io::Result<Self> {
        let writer = TraceWriter::create(folder, process)?;
        let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let start = (Instant::now(), nanoseconds(since_1970));
        Ok(Self(Arc::new(TraceRecorder { writer, start, places: Mutex::default() })))
    }

    /// The layer of the log.
    #[must_use]
    pub fn layer(&self) -> LogLayer {
        self.clone().with_filter(filter_fn(|of| of.target() == TARGET)).boxed()
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.writer.path()
    }

    /// Ends the open phases and closes the file.
    ///
    /// # Errors
    /// A write failed, now or before.
    pub fn finish(&self) -> std::io::Result<()> {
        let mut places = self.0.places.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.0.now();
        let open = std::mem::take(&mut places.open_phases);
        drop(places);
        self.0.writer.finish(open.into_iter().map(|location| end(location, now)).collect())
    }
}

fn nanoseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn end(location: u32, at_ns: u64) -> Record {
    let (name, fields) = ("phase".to_owned(), Map::new());
    Record { name, kind: EventKind::End, at_ns, location, fields }
}

/// The state of a trace.
#[derive(Debug)]
struct TraceRecorder {
    writer: TraceWriter,
    /// The start by the monotonic clock, and in nanoseconds since 1970.
    start: (Instant, u64),
    places: Mutex<Places>,
}

/// The locations of a process.
#[derive(Debug, Default)]
struct Places {
    numbers: BTreeMap<String, u32>,
    /// Numbers of the requests in progress, for spans that belong to no thread.
    requests: BTreeSet<u32>,
    /// Locations of tasks with an open phase.
    open_phases: BTreeSet<u32>,
}

/// A span in progress.
struct OpenSpan {
    begun_ns: u64,
    location: u32,
    /// The request's number, if the span has one of its own.
    request: Option<u32>,
    fields: Map<String, Value>,
}

impl TraceRecorder {
    fn now(&self) -> u64 {
        let (begun, since_1970) = self.start;
        since_1970.saturating_add(nanoseconds(begun.elapsed()))
    }

    fn places(&self) -> std::sync::MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a location; the first use writes its name.
    fn location(&self, places: &mut Places, name: &str) -> u32 {
        if let Some(number) = places.numbers.get(name) {
            return *number;
        }
        let number = u32::try_from(places.numbers.len()).unwrap_or(u32::MAX).saturating_add(1);
        places.numbers.insert(name.to_owned(), number);
        let fields = Map::from_iter([("name".to_owned(), Value::from(name))]);
        let (name, kind) = ("thread_name".to_owned(), EventKind::Metadata);
        self.writer.push(Record { name, kind, at_ns: 0, location: number, fields });
        number
    }

    /// The location of a span without a parent: its thread, or a request if the thread serves many.
    fn root(&self) -> (u32, Option<u32>) {
        let mut places = self.places();
        if let Some(name) = own_thread() {
            return (self.location(&mut places, &name), None);
        }
        let free = (1..).find(|number| !places.requests.contains(number)).unwrap_or(u32::MAX);
        places.requests.insert(free);
        (self.location(&mut places, &format!("request {free}")), Some(free))
    }

    /// A task's phase begins, and the one before ends.
    fn phase(&self, at_ns: u64, fields: Map<String, Value>) {
        let text = |key: &str| fields.get(key).and_then(Value::as_str).unwrap_or_default();
        let (name, task) = (text("phase").to_owned(), format!("task {}", text("task")));
        let mut places = self.places();
        let location = self.location(&mut places, &task);
        if places.open_phases.remove(&location) {
            self.writer.push(end(location, at_ns));
        }
        let is_last = name == "done";
        if !is_last {
            places.open_phases.insert(location);
        }
        let kind = if is_last { EventKind::Instant } else { EventKind::Begin };
        self.writer.push(Record { name, kind, at_ns, location, fields });
    }

    /// One end of a message. A moment on a thread is also a short span, from which viewers draw the
    /// arrow.
    fn message(&self, kind: EventKind, at_ns: u64, fields: Map<String, Value>) {
        let text = |key: &str| fields.get(key).and_then(Value::as_str).unwrap_or_default();
        let (name, task) = (text("kind").to_owned(), format!("task {}", text("task")));
        let mut places = self.places();
        let location = self.location(&mut places, &task);
        let is_in_phase = places.open_phases.contains(&location);
        drop(places);
        if !is_in_phase {
            let (name, kind) = (name.clone(), EventKind::Complete(1_000));
            self.writer.push(Record { name, kind, at_ns, location, fields: Map::new() });
        }
        self.writer.push(Record { name, kind, at_ns, location, fields });
    }
}

/// The name of a thread with a purpose; threads of the runtime serve many requests.
fn own_thread() -> Option<String> {
    let thread = std::thread::current();
    let name = thread.name()?;
    match name.strip_prefix(THREAD_PREFIX) {
        Some(own) => Some(own.to_owned()),
        None => (name == "main").then(|| name.to_owned()),
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for TraceLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let parent = span.parent();
        let above = parent
            .as_ref()
            .and_then(|parent| parent.extensions().get::<OpenSpan>().map(|open| open.location));
        let (location, request) = above.map_or_else(|| self.0.root(), |location| (location, None));
        let begun_ns = self.0.now();
        span.extensions_mut().insert(OpenSpan { begun_ns, location, request, fields: fields.0 });
    }

    fn on_record(&self, id: &Id, values: &tracing::span::Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<OpenSpan>() {
            let mut fields = Fields(std::mem::take(&mut open.fields));
            values.record(&mut fields);
            open.fields = fields.0;
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(open) = span.extensions_mut().remove::<OpenSpan>() else { return };
        let now = self.0.now();
        if let Some(request) = open.request {
            self.0.places().requests.remove(&request);
        }
        self.0.writer.push(Record {
            name: span.name().to_owned(),
            kind: EventKind::Complete(now.saturating_sub(open.begun_ns)),
            at_ns: open.begun_ns,
            location: open.location,
            fields: open.fields,
        });
    }

    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let at_ns = self.0.now();
        let mut fields = Fields::default();
        event.record(&mut fields);
        match event.metadata().name() {
            "phase" => self.0.phase(at_ns, fields.0),
            "send" => self.0.message(EventKind::FlowStart, at_ns, fields.0),
            "receive" => self.0.message(EventKind::FlowEnd, at_ns, fields.0),
            name => {
                let own = own_thread().unwrap_or_else(|| "requests".to_owned());
                let location = self.0.location(&mut self.0.places(), &own);
                let (name, kind) = (name.to_owned(), EventKind::Instant);
                self.0.writer.push(Record { name, kind, at_ns, location, fields: fields.0 });
            }
        }
    }
}

/// The fields of an event or of a span.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    fn trace(work: impl FnOnce()) -> Vec<Value> {
        let folder = tempfile::tempdir().unwrap();
        let process = Process { role: "coordinator", id: "0x01".to_owned() };
        let trace = TraceLayer::create(folder.path(), &process).unwrap();
        let subscriber = tracing_subscriber::registry().with(trace.layer());
        tracing::subscriber::with_default(subscriber, work);
        trace.finish().unwrap();
        let text = std::fs::read_to_string(trace.path()).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn phase(name: &'static str) {
        tracing::event!(name: "phase", target: TARGET, tracing::Level::TRACE, task = "3fa9",
            round = 1_u32, phase = name);
    }

    #[test]
    fn phases_begin_and_end_and_messages_are_arrows() {
        let events = trace(|| {
            phase("commit");
            tracing::event!(name: "send", target: TARGET, tracing::Level::TRACE, kind = "offer",
                task = "3fa9", round = 1_u32, member = %"0x02");
            phase("reveal");
            tracing::info!("of another target");
        });
        let letters: String = events.iter().filter_map(|event| event["ph"].as_str()).collect();
        assert_eq!(letters, "MMBsEBE", "{events:?}");
        assert_eq!(events[3]["id"], "offer/3fa9/1/0x02");
        assert_eq!(events[2]["args"]["phase"], "commit");
    }

    #[test]
    fn spans_of_one_parent_share_its_location_and_other_requests_have_their_own() {
        let events = trace(|| {
            let outer = tracing::trace_span!(target: TARGET, "receive update", bytes = 7_u64);
            let inner = outer.in_scope(|| tracing::trace_span!(target: TARGET, "store"));
            let other = tracing::trace_span!(target: TARGET, "ledger");
            drop((inner, outer, other));
        });
        let spans: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
        let of = |name: &str| spans.iter().find(|span| span["name"] == name).unwrap();
        assert_eq!(of("store")["tid"], of("receive update")["tid"]);
        assert_ne!(of("ledger")["tid"], of("store")["tid"]);
        assert_eq!(of("receive update")["args"]["bytes"], 7);
    }
}
