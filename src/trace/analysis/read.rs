//! Reads the files of a folder. A file that was cut, or that another program wrote, is read as far
//! as its lines are events.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::trace::record::EventKind;
use crate::trace::writer::FILE_BYTES_MAX;

/// Maximum number of files of a folder.
const FILES_MAX: usize = 10_000;
/// Maximum number of files that an error names.
const FILES_NAMED_MAX: usize = 3;
/// Maximum number of events of all files together.
const EVENTS_MAX: usize = 20_000_000;
/// Maximum length of a line, in bytes.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// The latest time, in nanoseconds since 1970: in 2065.
const TIME_MAX: i64 = 3_000_000_000_000_000_000;
/// The roles of processes, with which the names of their files begin.
const ROLES: [&str; 4] = ["coordinator", "participant", "provider", "laboratory"];
/// Nanoseconds of a microsecond.
const NANOS: f64 = 1e3;

/// Why a folder cannot be analysed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceReadError {
    /// The folder or one of its files cannot be read.
    #[error("{path}: {source}")]
    Unreadable {
        /// The folder or the file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// No file of the folder has an event of a trace.
    #[error("{path} has no trace{}: give the folder of --trace", unusable(files))]
    Empty {
        /// The folder.
        path: PathBuf,
        /// The first of its files, none of which has an event of a known process.
        files: Vec<String>,
    },
    /// The folder has more files or events than this program reads.
    #[error("{path} has more than {limit} {what}: move some of its files away")]
    TooLarge {
        /// The folder.
        path: PathBuf,
        /// The limit.
        limit: usize,
        /// Files or events.
        what: &'static str,
    },
}

impl TraceReadError {
    /// The stable code.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "TRACE_UNREADABLE",
            Self::Empty { .. } => "TRACE_EMPTY",
            Self::TooLarge { .. } => "TRACE_TOO_LARGE",
        }
    }
}

/// The names of files without an event, for an error.
fn unusable(files: &[String]) -> String {
    match files {
        [] => String::new(),
        files => format!(" (no line of {} is an event of a known process)", files.join(", ")),
    }
}

/// One event with its time by the clock of its process.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TracedEvent {
    /// Its name.
    pub(crate) name: String,
    /// Its kind.
    pub(crate) kind: EventKind,
    /// Nanoseconds since 1970; after the alignment by the clock of the coordinator.
    pub(crate) at: i64,
    /// The number of its location in the file.
    pub(crate) location: u32,
    /// Its fields.
    pub(crate) fields: Map<String, Value>,
}

impl TracedEvent {
    /// A field as text; empty without it.
    pub(crate) fn text(&self, key: &str) -> &str {
        self.fields.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// A field as a number; 0 without it.
    pub(crate) fn number(&self, key: &str) -> u64 {
        self.fields.get(key).and_then(Value::as_u64).unwrap_or_default()
    }

    /// Its end: later than its time for a complete span.
    pub(crate) fn end(&self) -> i64 {
        match self.kind {
            EventKind::Complete(ns) => {
                clamp_time(self.at.saturating_add(i64::try_from(ns).unwrap_or(i64::MAX)))
            }
            _ => self.at,
        }
    }
}

/// The events of one process, in the order of their times.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ProcessTrace {
    /// The name of the file.
    pub(crate) file: String,
    /// `coordinator`, `participant`, `provider` or `laboratory`.
    pub(crate) role: String,
    /// The account of a participant or provider.
    pub(crate) member: Option<String>,
    /// The names of the locations.
    pub(crate) locations: BTreeMap<u32, String>,
    /// The events.
    pub(crate) events: Vec<TracedEvent>,
    /// The lines and events that are missing.
    pub(crate) damage: FileDamage,
}

/// The parts of a file that are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileDamage {
    /// Number of lines that are no events: one if the process was killed.
    pub(crate) unreadable_lines: u64,
    /// Whether the last line is one of them, as after a kill.
    pub(crate) is_last_unreadable: bool,
    /// Number of events that the process dropped.
    pub(crate) dropped_events: u64,
    /// Whether the file reached the limit of its size.
    pub(crate) reached_limit: bool,
}

impl FileDamage {
    /// Whether anything is missing.
    pub(crate) fn is_any(&self) -> bool {
        self != &Self::default()
    }
}

/// All files of a folder.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TraceFolder {
    /// The traces.
    pub(crate) traces: Vec<ProcessTrace>,
    /// The files that are left out, because no line of them is an event of a known process.
    pub(crate) left_out: Vec<(String, FileDamage)>,
}

/// An event as in the file.
#[derive(Deserialize)]
struct FileEvent {
    name: String,
    ph: String,
    #[serde(default)]
    tid: u32,
    ts: Option<f64>,
    dur: Option<f64>,
    #[serde(default)]
    args: Map<String, Value>,
}

/// Whether a file has the name of a process's trace.
pub(crate) fn is_trace_name(name: &str) -> bool {
    let role = name.split('-').next().unwrap_or_default();
    name.ends_with(".json") && ROLES.contains(&role)
}

/// Reads all files of a folder that end in `.json`.
///
/// # Errors
/// [`TraceReadError`].
pub(crate) fn read_folder(folder: &Path) -> Result<TraceFolder, TraceReadError> {
    let too_large = |limit, what| TraceReadError::TooLarge { path: folder.into(), limit, what };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| unreadable(folder, error))? {
        let path = entry.map_err(|error| unreadable(folder, error))?.path();
        if path.extension().is_some_and(|end| end == "json") && path.is_file() {
            paths.push(path);
        }
        if paths.len() > FILES_MAX {
            return Err(too_large(FILES_MAX, "files"));
        }
    }
    paths.sort();
    let (mut found, mut left) = (TraceFolder::default(), EVENTS_MAX);
    for path in paths {
        let trace = read_bounded(&path, left)?;
        left = left.saturating_sub(trace.events.len());
        if left == 0 {
            return Err(too_large(EVENTS_MAX, "events"));
        }
        if !trace.role.is_empty() && !trace.events.is_empty() {
            found.traces.push(trace);
        } else {
            found.left_out.push((trace.file, trace.damage));
        }
    }
    if found.traces.is_empty() {
        let files = found.left_out.into_iter().map(|(file, _)| file).take(FILES_NAMED_MAX);
        return Err(TraceReadError::Empty { path: folder.into(), files: files.collect() });
    }
    Ok(found)
}

/// Reads one file.
///
/// # Errors
/// [`TraceReadError::Unreadable`].
pub(crate) fn read_file(path: &Path) -> Result<ProcessTrace, TraceReadError> {
    read_bounded(path, EVENTS_MAX)
}

fn read_bounded(path: &Path, events_max: usize) -> Result<ProcessTrace, TraceReadError> {
    let file = File::open(path).map_err(|error| unreadable(path, error))?;
    let limit = FILE_BYTES_MAX.saturating_add(LINE_BYTES_MAX);
    let mut file = BufReader::new(file.take(limit));
    let trace = read_lines(&mut file, events_max).map_err(|error| unreadable(path, error))?;
    let is_longer = file.get_ref().limit() == 0;
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut trace = ProcessTrace { file, ..trace };
    trace.damage.reached_limit |= is_longer;
    trace.recover_process();
    Ok(trace)
}

fn unreadable(path: &Path, source: io::Error) -> TraceReadError {
    TraceReadError::Unreadable { path: path.into(), source }
}

/// Reads at most `events_max` events.
pub(crate) fn read_lines(mut lines: impl BufRead, events_max: usize) -> io::Result<ProcessTrace> {
    let mut trace = ProcessTrace::default();
    let mut line = Vec::new();
    while trace.events.len() < events_max && read_line(&mut lines, &mut line)? {
        let text = line.trim_ascii();
        let text = text.strip_prefix(b"[").unwrap_or(text).trim_ascii();
        let text = text.strip_prefix(b",").unwrap_or(text);
        let text = text.strip_suffix(b"]").unwrap_or(text).trim_ascii();
        let text = text.strip_suffix(b",").unwrap_or(text);
        if text.is_empty() {
            continue;
        }
        let before = trace.damage.unreadable_lines;
        match serde_json::from_slice::<FileEvent>(text) {
            Ok(event) => trace.add(event),
            Err(_) => trace.damage.unreadable_lines += 1,
        }
        trace.damage.is_last_unreadable = trace.damage.unreadable_lines > before;
    }
    // Ends come after begins of the same moment in the file; the order of equal times stays.
    trace.events.sort_by_key(|event| event.at);
    Ok(trace)
}

/// Reads a line up to the limit of its length, and leaves out the rest of it. Returns whether there
/// was one.
fn read_line(lines: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut rest = Vec::new();
    let read = lines.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', line)?;
    let mut is_whole = (read as u64) < LINE_BYTES_MAX || line.ends_with(b"\n");
    while !is_whole {
        rest.clear();
        let read = lines.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut rest)?;
        is_whole = (read as u64) < LINE_BYTES_MAX || rest.ends_with(b"\n");
    }
    Ok(read > 0)
}

impl ProcessTrace {
    /// Takes the role from the file's name, and the account from a message, where the lines that
    /// have them are unreadable.
    fn recover_process(&mut self) {
        if self.role.is_empty() {
            let role = self.file.split('-').next().unwrap_or_default();
            if ROLES.contains(&role) {
                self.role = role.to_owned();
            }
        }
        if self.member.is_none() && ["participant", "provider"].contains(&self.role.as_str()) {
            let is_message = |event: &&TracedEvent| {
                matches!(event.kind, EventKind::FlowStart | EventKind::FlowEnd)
            };
            let members = self.events.iter().filter(is_message).map(|event| event.text("member"));
            self.member = members.filter(|member| !member.is_empty()).map(str::to_owned).next();
        }
    }

    fn add(&mut self, event: FileEvent) {
        let kind = match event.ph.as_str() {
            "X" => EventKind::Complete(nanoseconds(event.dur.unwrap_or(0.0)).unsigned_abs()),
            "B" => EventKind::Begin,
            "E" => EventKind::End,
            "i" => EventKind::Instant,
            "s" => EventKind::FlowStart,
            "f" => EventKind::FlowEnd,
            "M" => return self.describe(&event),
            _ => {
                self.damage.unreadable_lines += 1;
                return;
            }
        };
        let at = nanoseconds(event.ts.unwrap_or(0.0));
        let event =
            TracedEvent { name: event.name, kind, at, location: event.tid, fields: event.args };
        match event.name.as_str() {
            "cut" => self.damage.reached_limit = true,
            "dropped" => self.damage.dropped_events = event.number("number"),
            "member" => self.member = Some(event.text("member").to_owned()),
            _ => {}
        }
        self.events.push(event);
    }

    fn describe(&mut self, event: &FileEvent) {
        let text = |key: &str| event.args.get(key).and_then(Value::as_str).unwrap_or_default();
        match event.name.as_str() {
            "process_name" => self.role = text("role").to_owned(),
            "thread_name" => {
                self.locations.insert(event.tid, text("name").to_owned());
            }
            _ => {}
        }
    }
}

/// Saturates, and a number that is none becomes 0.
fn nanoseconds(micros: f64) -> i64 {
    clamp_time((micros * NANOS).round() as i64)
}

/// A time within the bounds in which differences and sums of a few do not overflow.
pub(crate) const fn clamp_time(at: i64) -> i64 {
    if at < 0 {
        0
    } else if at > TIME_MAX {
        TIME_MAX
    } else {
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"[
{"name":"process_name","ph":"M","pid":7,"tid":0,"args":{"role":"participant","id":"0x01"}}
,{"name":"thread_name","ph":"M","pid":7,"tid":1,"args":{"name":"main"}}
,{"name":"member","ph":"i","pid":7,"tid":1,"ts":5.000,"s":"t","args":{"member":"0x01"}}
,{"name":"train","ph":"X","pid":7,"tid":1,"ts":2.500,"dur":1.250,"args":{"round":3}}
"#;

    #[test]
    fn a_file_of_a_killed_process_is_read_up_to_its_last_whole_line() {
        for end in ["", "]\n", ",{\"name\":\"tra"] {
            let trace = read_lines(format!("{FILE}{end}").as_bytes(), 100).unwrap();
            assert_eq!((trace.role.as_str(), trace.events.len()), ("participant", 2), "{end}");
            let is_cut = end.starts_with(',');
            let damage = FileDamage {
                unreadable_lines: u64::from(is_cut),
                is_last_unreadable: is_cut,
                ..FileDamage::default()
            };
            assert_eq!(trace.damage, damage);
            let train = &trace.events[0];
            assert_eq!((train.at, train.end(), train.number("round")), (2_500, 3_750, 3));
            assert_eq!(trace.member.as_deref(), Some("0x01"));
        }
    }

    #[test]
    fn hostile_lines_are_skipped() {
        let hostile = [
            "{".repeat(100_000),
            r#"{"name":"a","ph":"X","ts":1e999}"#.to_owned(),
            r#"{"name":"a","ph":"X","ts":1e300,"dur":-1e300}"#.to_owned(),
            r#"{"name":"a","ph":"B","tid":-1}"#.to_owned(),
            "\u{0}\u{7f}[[[[".to_owned(),
        ];
        for line in hostile {
            let trace = read_lines(format!("{FILE}{line}\n").as_bytes(), 100).unwrap();
            assert!((2..=3).contains(&trace.events.len()), "{line:.60}");
            trace.events.iter().for_each(|event| assert!(event.end() >= event.at));
            assert!(trace.damage.unreadable_lines <= 1, "{line:.60}");
        }
        assert_eq!(read_lines(FILE.as_bytes(), 1).unwrap().events.len(), 1, "the limit");
    }

    #[test]
    fn a_folder_without_a_trace_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("other.json"), "{}").unwrap();
        let error = read_folder(folder.path()).unwrap_err();
        assert_eq!(error.code(), "TRACE_EMPTY");
        assert!(error.to_string().contains("no line of other.json is an event"), "{error}");
        let missing = folder.path().join("missing");
        assert_eq!(read_folder(&missing).unwrap_err().code(), "TRACE_UNREADABLE");
        std::fs::write(folder.path().join("a.json"), FILE).unwrap();
        let read = read_folder(folder.path()).unwrap();
        assert_eq!((read.traces.len(), read.left_out.len()), (1, 1));
        // The file of a process that was killed before its first event.
        std::fs::write(folder.path().join("participant-0x02-8.json"), "[]").unwrap();
        let read = read_folder(folder.path()).unwrap();
        let left_out: Vec<&str> = read.left_out.iter().map(|(file, _)| file.as_str()).collect();
        assert_eq!(left_out, ["other.json", "participant-0x02-8.json"]);
    }

    #[test]
    fn a_file_whose_first_line_is_damaged_belongs_to_the_process_of_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let damaged = FILE.replace("process_name", "process_name\u{0}").replace("\"i\"", "\"?\"");
        let message = r#",{"name":"commit","ph":"s","ts":6.000,"args":{"member":"0x01"}}"#;
        let damaged = format!("{damaged}{message}\n");
        std::fs::write(folder.path().join("participant-0x01-7.json"), &damaged).unwrap();
        std::fs::write(folder.path().join("copy.json"), &damaged).unwrap();
        let read = read_folder(folder.path()).unwrap();
        let [trace] = &read.traces[..] else { panic!("{read:?}") };
        let found = (trace.role.as_str(), trace.member.as_deref(), trace.events.len());
        assert_eq!(found, ("participant", Some("0x01"), 2));
        let damage = FileDamage { unreadable_lines: 2, ..FileDamage::default() };
        assert_eq!(trace.damage, damage);
        assert_eq!(read.left_out, [("copy.json".to_owned(), damage)]);
    }
}
