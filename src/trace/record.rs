//! One event of a trace file, and its JSON text: Chrome's trace event format.

use std::fmt::Write;

use serde_json::{Map, Value};

/// The process that a file belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// `coordinator`, `participant`, `provider` or `laboratory`.
    pub role: &'static str,
    /// The account, or the name of a scenario.
    pub id: String,
}

/// The kind of an event: the field `ph` of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// A span with its duration, in nanoseconds.
    Complete(u64),
    /// A span begins; without an end if the process was killed.
    Begin,
    /// The span that began last at this location ends.
    End,
    /// A moment.
    Instant,
    /// A message leaves.
    FlowStart,
    /// A message arrives.
    FlowEnd,
    /// Describes the process or a location; has no time.
    Metadata,
}

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    /// Its name.
    pub(crate) name: String,
    /// Its kind.
    pub(crate) kind: EventKind,
    /// Nanoseconds since 1970 by the clock of the process.
    pub(crate) at_ns: u64,
    /// Number of the location: a thread, a request or the rounds of a task.
    pub(crate) location: u32,
    /// Its fields.
    pub(crate) fields: Map<String, Value>,
}

impl Record {
    /// The event as a JSON object on one line. `process` is the number of the process in the file.
    pub(crate) fn to_json(&self, process: u32) -> String {
        let mut text = String::with_capacity(256);
        let name = Value::from(self.name.as_str());
        let letter = self.kind.letter();
        let (pid, tid) = (process, self.location);
        let _ = write!(text, r#"{{"name":{name},"ph":"{letter}","pid":{pid},"tid":{tid}"#);
        if self.kind != EventKind::Metadata {
            let _ = write!(text, r#","ts":{}"#, Micros(self.at_ns));
        }
        match self.kind {
            EventKind::Complete(ns) => {
                let _ = write!(text, r#","dur":{}"#, Micros(ns));
            }
            EventKind::Instant => text.push_str(r#","s":"t""#),
            EventKind::FlowStart | EventKind::FlowEnd => {
                let id = Value::from(message_id(&self.fields));
                let _ = write!(text, r#","cat":"message","id":{id},"bp":"e""#);
            }
            EventKind::Begin | EventKind::End | EventKind::Metadata => {}
        }
        if !self.fields.is_empty() {
            let fields = serde_json::to_string(&self.fields).unwrap_or_default();
            let _ = write!(text, r#","args":{fields}"#);
        }
        text.push('}');
        text
    }
}

impl EventKind {
    /// The letter of the field `ph`.
    pub(crate) const fn letter(self) -> char {
        match self {
            Self::Complete(_) => 'X',
            Self::Begin => 'B',
            Self::End => 'E',
            Self::Instant => 'i',
            Self::FlowStart => 's',
            Self::FlowEnd => 'f',
            Self::Metadata => 'M',
        }
    }
}

/// The id by which both ends of a message are one arrow.
pub(crate) fn message_id(fields: &Map<String, Value>) -> String {
    let text = |key: &str| match fields.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    format!("{}/{}/{}/{}", text("kind"), text("task"), text("round"), text("member"))
}

/// Nanoseconds as microseconds with three decimals.
struct Micros(u64);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000, self.0 % 1_000)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_one_line_of_chromes_format() {
        let Value::Object(fields) =
            json!({ "kind": "offer", "task": "3fa9", "round": 2, "member": "0x01" })
        else {
            panic!("an object")
        };
        let record = |kind| Record {
            name: "send".to_owned(),
            kind,
            at_ns: 1_700_000_000_123_456_789,
            location: 3,
            fields: fields.clone(),
        };
        let read = |kind| serde_json::from_str::<Value>(&record(kind).to_json(7)).unwrap();
        let flow = read(EventKind::FlowStart);
        assert_eq!((&flow["ph"], &flow["pid"], &flow["tid"]), (&"s".into(), &7.into(), &3.into()));
        assert_eq!(flow["id"], "offer/3fa9/2/0x01");
        assert_eq!(flow["args"], Value::Object(fields.clone()));
        let line = record(EventKind::Complete(1_500)).to_json(7);
        assert!(line.contains(r#""ts":1700000000123456.789,"dur":1.500"#), "{line}");
        assert!(!line.contains('\n'));
        assert!(read(EventKind::Metadata).get("ts").is_none());
    }
}
