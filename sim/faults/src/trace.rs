//! The event log of a simulation, in chronological order. Two simulations of one seed write the
//! same lines.

use std::fmt::{Arguments, Write};

use florin_protocol::{Digest, blob_digest};

/// The lines so far.
#[derive(Clone, Debug, Default)]
pub struct EventLog {
    text: String,
    lines: u64,
}

impl EventLog {
    /// Appends a line: virtual time in milliseconds, process, and event.
    pub fn log(&mut self, at: u64, who: &str, what: Arguments<'_>) {
        // Writing into a string cannot fail.
        let _ = writeln!(self.text, "{at:>7} {who:<12} {what}");
        self.lines += 1;
    }

    /// Number of lines.
    #[must_use]
    pub const fn lines(&self) -> u64 {
        self.lines
    }

    /// The digest of all lines.
    #[must_use]
    pub fn digest(&self) -> Digest {
        blob_digest(self.text.as_bytes())
    }

    /// All lines.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }
}
