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
