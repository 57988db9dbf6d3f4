//! The file of a process: a bounded queue, and a thread that writes whole lines.
//!
//! The file is an array in JSON with one event on each line. A killed process leaves it without its
//! last bracket, which the format permits.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use serde_json::{Map, Value, json};

use super::record::{EventKind, Process, Record};

/// Maximum number of queued events; later ones are dropped and counted.
const QUEUE_MAX: usize = 65_536;
/// Maximum size of a file in bytes. After it, one event states that the file was cut.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 30;
/// Maximum number of characters of an account in a file's name.
const NAME_CHARS_MAX: usize = 32;

/// A queue to the thread that writes a file.
#[derive(Debug)]
pub(crate) struct TraceWriter {
    path: PathBuf,
    queue: Mutex<Option<SyncSender<Record>>>,
    dropped: AtomicU64,
    thread: Mutex<Option<JoinHandle<io::Result<()>>>>,
}

impl TraceWriter {
    /// Creates the folder, and the file of this process in it.
    ///
    /// # Errors
    /// The folder or the file cannot be created.
    pub(crate) fn create(folder: &Path, process: &Process) -> io::Result<Self> {
        Self::with_limit(folder, process, FILE_BYTES_MAX)
    }

    fn with_limit(folder: &Path, process: &Process, bytes_max: u64) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let id = short_name(&process.id);
        let (path, file) =
            new_file(folder, &format!("{}-{id}-{}", process.role, std::process::id()))?;
        let (queue, records) = sync_channel(QUEUE_MAX);
        let mut out = TraceFile { file, process: std::process::id(), bytes: 0, bytes_max };
        out.write_lines(&format!("[\n{}", name_of_process(process).to_json(out.process)))?;
        let thread = std::thread::Builder::new().name("florin-trace".to_owned());
        let thread = thread.spawn(move || out.run(&records))?;
        Ok(Self {
            path,
            queue: Mutex::new(Some(queue)),
            dropped: AtomicU64::new(0),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Queues an event, or drops it if the queue is full.
    pub(crate) fn push(&self, record: Record) {
        let queue = self.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_queued = queue.as_ref().is_some_and(|queue| queue.try_send(record).is_ok());
        if !is_queued {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Queues an event, and waits for room: for a trace that no request waits for.
    pub(crate) fn push_waiting(&self, record: Record) {
        let queue = self.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // The thread has ended only if a write failed, which its result states.
        let _ = queue.as_ref().map(|queue| queue.send(record));
    }

    /// Writes what is queued, and closes the file. Later events are dropped.
    ///
    /// # Errors
    /// A write failed, now or before.
    pub(crate) fn finish(&self, last: Vec<Record>) -> io::Result<()> {
        let lock = |error| std::sync::PoisonError::into_inner(error);
        if let Some(queue) = self.queue.lock().unwrap_or_else(lock).take() {
            let dropped = self.dropped.load(Ordering::Relaxed);
            let notice = (dropped > 0).then(|| notice("dropped", dropped, &last));
            for record in last.into_iter().chain(notice) {
                // The thread has ended only if a write failed, which its result states.
                let _ = queue.send(record);
            }
        }
        let thread = self.thread.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        match thread.map(JoinHandle::join) {
            Some(Ok(written)) => written,
            Some(Err(_)) => Err(io::Error::other("the thread that writes the trace panicked")),
            None => Ok(()),
        }
    }
}

/// A new file of this name; one with a number if it exists, as after a restart in a container, where
/// each start has the same process id.
fn new_file(folder: &Path, name: &str) -> io::Result<(PathBuf, File)> {
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for attempt in 0..1_000_u32 {
        let suffix = if attempt == 0 { String::new() } else { format!("-{attempt}") };
        let path = folder.join(format!("{name}{suffix}.json"));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn short_name(id: &str) -> String {
    let is_plain = |char: &char| char.is_ascii_alphanumeric() || *char == '_';
    id.chars().filter(is_plain).take(NAME_CHARS_MAX).collect()
}

fn name_of_process(process: &Process) -> Record {
    let mut fields = Map::new();
    fields.insert("name".to_owned(), json!(format!("{} {}", process.role, process.id)));
    fields.insert("role".to_owned(), json!(process.role));
    fields.insert("id".to_owned(), json!(process.id));
    let name = "process_name".to_owned();
    Record { name, kind: EventKind::Metadata, at_ns: 0, location: 0, fields }
}

fn notice(name: &str, number: u64, after: &[Record]) -> Record {
    let at_ns = after.last().map_or(0, |record| record.at_ns);
    let fields = Map::from_iter([("number".to_owned(), Value::from(number))]);
    Record { name: name.to_owned(), kind: EventKind::Instant, at_ns, location: 0, fields }
}

/// The file, and its size so far.
struct TraceFile {
    file: File,
    process: u32,
    bytes: u64,
    bytes_max: u64,
}

impl TraceFile {
    /// Writes batches until the queue is closed.
    fn run(mut self, records: &Receiver<Record>) -> io::Result<()> {
        let mut is_cut = false;
        while let Ok(first) = records.recv() {
            let mut lines = String::new();
            let mut last = first.at_ns;
            for record in std::iter::once(first).chain(records.try_iter().take(QUEUE_MAX)) {
                last = record.at_ns;
                lines.push_str(",\n");
                lines.push_str(&record.to_json(self.process));
            }
            if is_cut {
                continue;
            }
            if self.bytes + lines.len() as u64 > self.bytes_max {
                is_cut = true;
                let mut cut = notice("cut", self.bytes_max, &[]);
                cut.at_ns = last;
                lines = format!(",\n{}", cut.to_json(self.process));
            }
            self.write_lines(&lines)?;
        }
        self.write_lines("\n]\n")
    }

    fn write_lines(&mut self, lines: &str) -> io::Result<()> {
        self.bytes += lines.len() as u64;
        self.file.write_all(lines.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(at_ns: u64) -> Record {
        let name = "train".to_owned();
        Record { name, kind: EventKind::Complete(5), at_ns, location: 1, fields: Map::new() }
    }

    fn process() -> Process {
        Process { role: "participant", id: "0x12/../34".to_owned() }
    }

    #[test]
    fn a_closed_file_is_an_array_in_json() {
        let folder = tempfile::tempdir().unwrap();
        let writer = TraceWriter::create(folder.path(), &process()).unwrap();
        (0..100).for_each(|at| writer.push(record(at)));
        writer.finish(vec![record(100)]).unwrap();
        writer.push(record(101));
        let text = std::fs::read_to_string(writer.path()).unwrap();
        let events: Vec<Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(events.len(), 102, "with the name of the process");
        let name = writer.path().file_name().unwrap().to_str().unwrap();
        assert_eq!(name, format!("participant-0x1234-{}.json", std::process::id()));
        let second = TraceWriter::create(folder.path(), &process()).unwrap();
        assert_ne!(second.path(), writer.path(), "no file is overwritten");
        second.finish(Vec::new()).unwrap();
    }

    #[test]
    fn a_file_ends_at_its_limit_with_a_notice() {
        let folder = tempfile::tempdir().unwrap();
        let writer = TraceWriter::with_limit(folder.path(), &process(), 500).unwrap();
        (0..100).for_each(|at| writer.push(record(at)));
        writer.finish(Vec::new()).unwrap();
        let text = std::fs::read_to_string(writer.path()).unwrap();
        assert!(text.len() < 700, "{text}");
        let events: Vec<Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(events.last().unwrap()["name"], "cut");
    }
}
