//! Traces of rounds: a process writes one file of Chrome's trace events into a folder (`--trace`),
//! and `florin trace` reads the files of all processes together.
//!
//! ```text
//! spans and events of the target florin::trace ─▶ layer ─▶ bounded queue ─▶ writer ─▶ DIR/*.json
//! DIR/*.json ─▶ read ─▶ clocks ─▶ rounds ─▶ waits, critical path, replay
//!                  └──▶ otf2
//! ```
//!
//! The recording delays no request: a full queue drops events, and the file counts them. Nothing in
//! a trace reaches a report, a signature or a payout.

pub(crate) mod analysis;
mod laboratory;
mod layer;
pub(crate) mod otf2;
mod record;
mod session;
mod writer;

pub use layer::TraceLayer;
pub use record::Process;

pub(crate) use laboratory::write_simulation;
pub(crate) use session::{TraceSession, trace_not_written};

/// Analyses the text of one file, as `florin trace` does, and describes its rounds: for fuzzing.
#[must_use]
pub fn describe(text: &[u8]) -> String {
    let Ok(trace) = analysis::read::read_lines(text, usize::MAX) else {
        return "unreadable".to_owned();
    };
    let events = otf2::event_count(&trace);
    let mut traces = [trace];
    analysis::clocks::align(&mut traces);
    let rounds = analysis::round::rounds(&traces);
    let latencies = analysis::path::latencies(&rounds);
    let times: Vec<_> =
        rounds.iter().map(|round| analysis::waits::round_times(round, &latencies)).collect();
    let delays = analysis::delays::delays(&rounds, &times);
    let change = analysis::replay::ReplayChange::default();
    let replayed: Vec<_> =
        rounds.iter().map(|round| analysis::replay::replay(round, &rounds, &change)).collect();
    format!("{events} {times:?} {delays:?} {replayed:?}")
}
